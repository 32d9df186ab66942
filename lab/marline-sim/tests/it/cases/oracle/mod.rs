//! Invariant checks of a run, one file each. [`Conservation`] and [`Windows`] watch every packet
//! ([`World::observe`](marline_sim::World::observe)); [`Liveness`] is given the streams at intervals;
//! [`stream`] checks two reports at the end.

mod conservation;
mod liveness;
pub mod stream;
mod windows;

pub use conservation::Conservation;
pub use liveness::{Liveness, StreamState};
pub use windows::Windows;
