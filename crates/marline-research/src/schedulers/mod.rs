//! Schedulers from the literature, and wrappers around any scheduler.

mod augur;
mod blest;
mod ecf;
mod fuso;
mod lamps;
mod losses;
mod opportunistic_redundant;
mod orp;
mod paaf;
mod papd;
mod peekaboo;
mod pending_copies;
mod primary;
mod raven;
mod tail_probes;
mod xlink;

pub use augur::{Augur, AugurConfig};
pub use blest::{Blest, BlestConfig};
pub use ecf::{Ecf, EcfConfig};
pub use fuso::{Fuso, FusoConfig};
pub use lamps::{Lamps, LampsConfig};
pub use opportunistic_redundant::OpportunisticRedundant;
pub use orp::Orp;
pub use paaf::{Paaf, PaafConfig};
pub use papd::{MeasurementMethod, Papd, PapdConfig};
pub use peekaboo::{Peekaboo, PeekabooConfig};
pub use raven::{Raven, RavenConfig};
pub use tail_probes::{SilentOriginalAction, TailProbes};
pub use xlink::{EndCopies, Xlink, XlinkConfig};
