//! Congestion control: how much each subflow may have in flight.

mod cubic;
mod reno;
mod window;

pub use cubic::Cubic;
pub use reno::Reno;
