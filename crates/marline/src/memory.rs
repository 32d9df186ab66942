//! Memory of connections: budgets, accounts, and charges.

pub use marline_core::{MemoryAccount, MemoryBudget, MemoryCharge, MemoryKind, MemoryUsage};
