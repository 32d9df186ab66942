//! Slow start, separate from congestion avoidance: window growth while the capacity is unknown.
//!
//! RFC 9406 specifies a slow start that any loss-based controller may use. Accordingly, Reno and CUBIC own a
//! [`SlowStart`] and consult it for every ACK of the *initial* slow start. Later ones (after a timeout or a pause) have
//! an ssthresh as the target and grow classically.

mod classic;
mod hystart;

use core::fmt::Debug;

use marline_policy::AckSample;

pub use classic::Classic;
pub use hystart::HyStart;

/// Effect of one ACK in slow start on the window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Bytes to add, if the window limits the sender.
    pub bytes: u64,
    /// True if slow start ends: ssthresh becomes the window, and congestion avoidance follows.
    pub leave: bool,
}

/// Grows a window whose ssthresh is unknown.
pub trait SlowStart: Debug + Send {
    /// Processes an ACK received outside of recovery.
    fn on_ack(&mut self, ack: &AckSample, mss: u32) -> Growth;

    /// Discards the state of the current round because sending pauses or restarts.
    fn restart(&mut self);
}

/// Kind of slow start of a controller.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum SlowStartKind {
    /// RFC 5681: double each round until a loss.
    Classic,
    /// RFC 9406: end when the RTT rises.
    #[default]
    HyStart,
}

impl SlowStartKind {
    /// Creates a slow start of this kind.
    #[must_use]
    pub fn build(self) -> Box<dyn SlowStart> {
        match self {
            SlowStartKind::Classic => Box::new(Classic),
            SlowStartKind::HyStart => Box::new(HyStart::default()),
        }
    }
}
