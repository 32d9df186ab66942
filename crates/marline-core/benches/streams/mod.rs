//! Streams in memory that the benches share: two endpoints of ours, two interfaces of smoltcp.

mod bounded;
mod pair;
mod plain_tcp;

pub(crate) use pair::{Captured, Pair};
pub(crate) use plain_tcp::PlainTcp;

/// What the applications write and read at a time.
pub(crate) const CHUNK: usize = 128 << 10;

/// How the connections' clients send.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) subflows: usize,
    pub(crate) scheduler: &'static str,
    /// Bound on each congestion window; `None`: there is none.
    pub(crate) window_segments: Option<u64>,
}

/// One subflow, as it comes.
pub(crate) const ONE: Setting =
    Setting { subflows: 1, scheduler: "min-rtt", window_segments: None };
/// A segment on one, the next on the other: the most decisions there can be.
pub(crate) const BY_TURNS: Setting =
    Setting { subflows: 2, scheduler: "round-robin", window_segments: None };
/// The first subflow never is full in memory, where nothing is lost and a window grows beyond all
/// that there is to send: `min-rtt` would leave the second one idle. With windows of less than half
/// of what the application writes at a time, both are filled in every round trip.
pub(crate) const MIN_RTT: Setting =
    Setting { subflows: 2, scheduler: "min-rtt", window_segments: Some(40) };

/// The same by the default.
pub(crate) const AUTO: Setting = Setting { scheduler: "auto", ..MIN_RTT };

/// What the applications write, over and over.
pub(crate) fn chunk() -> Vec<u8> {
    (0..CHUNK).map(|i| (i * 31 + (i >> 8)) as u8).collect()
}
