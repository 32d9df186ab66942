//! Path managers from the literature.

mod emptcp;

pub use emptcp::{Emptcp, EmptcpConfig, EnergyBase, InterfaceSet, Rates};
