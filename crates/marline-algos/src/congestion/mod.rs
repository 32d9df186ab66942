//! Congestion control: how much each subflow may have in flight.

mod bbr;
mod capped;
mod coupled;
mod cubic;
mod keep_window;
mod reno;
mod window;

pub use bbr::{Bbr, BbrConfig};
pub use capped::Capped;
pub use coupled::{Balia, Lia, Olia};
pub use cubic::{Cubic, RenoEstimate};
pub use keep_window::KeepWindow;
pub use reno::Reno;
