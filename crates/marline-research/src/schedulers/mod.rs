//! Schedulers of the literature, and wrappers around any scheduler.

mod augur;
mod blest;
mod ecf;
mod opportunistic_redundant;
mod orp;
mod paaf;
mod papd;
mod peekaboo;
mod primary;
mod tail_probes;
mod xlink;

pub use augur::{Augur, AugurConfig};
pub use blest::{Blest, BlestConfig};
pub use ecf::{Ecf, EcfConfig};
pub use opportunistic_redundant::OpportunisticRedundant;
pub use orp::Orp;
pub use paaf::{Paaf, PaafConfig};
pub use papd::{Papd, PapdConfig};
pub use peekaboo::{Peekaboo, PeekabooConfig};
pub use tail_probes::{After, TailProbes};
pub use xlink::{Xlink, XlinkConfig};
