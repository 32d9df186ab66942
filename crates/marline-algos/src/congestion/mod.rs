//! Congestion control: limits on the data in flight of each subflow.

mod bbr;
mod cubic;
mod cubic_westwood;
mod filter;
mod reno;
mod shared_bottleneck;
pub mod window;

pub use bbr::Bbr;
pub use cubic::{Cubic, RenoEstimate};
pub use cubic_westwood::CubicWestwood;
pub use reno::Reno;
