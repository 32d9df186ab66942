//! Path managers of the literature.

mod emptcp;

pub use emptcp::{Emptcp, EmptcpConfig, EnergyBase, InterfaceSet, Rates};
