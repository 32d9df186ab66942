//! Slow start, separate from congestion avoidance: window growth while the capacity is unknown.
//!
//! RFC 9406 is written as a part of slow start that any loss-based controller may use, so it is one
//! here: Reno and CUBIC hold a [`SlowStart`] and ask it about every ACK of the *initial* slow start.
//! Later ones (after a timeout or a pause) have an ssthresh to aim at and grow classically.

mod classic;
mod hystart;

use core::fmt::Debug;

use marline_policy::AckSample;

pub use classic::Classic;
pub use hystart::HyStart;

/// Effect of one ACK in slow start on the window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Bytes to add, if the window limits the sender at all.
    pub bytes: u64,
    /// Slow start has found its limit: ssthresh becomes the window, congestion avoidance follows.
    pub leave: bool,
}

/// The growth of a window whose ssthresh is unknown.
pub trait SlowStart: Debug + Send {
    /// An ACK came outside of recovery.
    fn on_ack(&mut self, ack: &AckSample, mss: u32) -> Growth;

    /// Sending pauses or starts over: what was learned of this round is void.
    fn restart(&mut self);
}

/// Which slow start a controller uses.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SlowStartKind {
    /// RFC 5681: double each round until something is lost.
    Classic,
    /// RFC 9406: leave when the RTT rises.
    #[default]
    HyStart,
}

impl SlowStartKind {
    /// A new one.
    #[must_use]
    pub fn build(self) -> Box<dyn SlowStart> {
        match self {
            SlowStartKind::Classic => Box::new(Classic),
            SlowStartKind::HyStart => Box::new(HyStart::default()),
        }
    }
}
