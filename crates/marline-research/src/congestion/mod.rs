//! Congestion controls that couple subflows, and wrappers around any congestion control.

mod capped;
mod coupled;
mod keep_window;

pub use capped::Capped;
pub use coupled::{Balia, Lia, Olia};
pub use keep_window::KeepWindow;
