//! Congestion control: how much each subflow may have in flight.

mod bbr;
mod cubic;
mod reno;
pub mod window;

pub use bbr::{Bbr, BbrConfig};
pub use cubic::{Cubic, RenoEstimate};
pub use reno::Reno;
