//! Schedulers of the literature, and wrappers around any scheduler.

mod blest;
mod ecf;
mod opportunistic_redundant;
mod orp;
mod papd;
mod tail_probes;

pub use blest::{Blest, BlestConfig};
pub use ecf::{Ecf, EcfConfig};
pub use opportunistic_redundant::OpportunisticRedundant;
pub use orp::Orp;
pub use papd::{Papd, PapdConfig};
pub use tail_probes::{After, TailProbes};
