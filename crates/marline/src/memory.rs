//! Memory of connections: budgets, accounts, and what is charged to them.

pub use marline_core::{MemoryAccount, MemoryBudget, MemoryCharge, MemoryKind, MemoryUsage};
