//! Streams in memory that the benches share: two Marline endpoints, or two interfaces of smoltcp.

mod bounded;
mod pair;
mod plain_tcp;

pub(crate) use pair::{Captured, Pair};
pub(crate) use plain_tcp::PlainTcp;

/// Bytes that the applications write and read at a time.
pub(crate) const CHUNK: usize = 128 << 10;

/// Sending method of the connections' clients.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) subflows: usize,
    pub(crate) scheduler: &'static str,
    /// Bound on each congestion window; `None` for no bound.
    pub(crate) window_segments: Option<u64>,
}

/// One subflow with default settings.
pub(crate) const ONE: Setting =
    Setting { subflows: 1, scheduler: "min-rtt", window_segments: None };
/// Segments alternate between two subflows, which causes the maximum number of decisions.
pub(crate) const BY_TURNS: Setting =
    Setting { subflows: 2, scheduler: "round-robin", window_segments: None };
/// In memory, nothing is lost and a window grows beyond all available data, so the first subflow is never full, and
/// `min-rtt` would leave the second one idle. With windows of less than half of an application's write, both are
/// filled in every round trip.
pub(crate) const MIN_RTT: Setting =
    Setting { subflows: 2, scheduler: "min-rtt", window_segments: Some(40) };

/// Like `MIN_RTT`, with the default scheduler.
pub(crate) const AUTO: Setting = Setting { scheduler: "auto", ..MIN_RTT };

/// The bytes that the applications write repeatedly.
pub(crate) fn chunk() -> Vec<u8> {
    (0..CHUNK).map(|i| (i * 31 + (i >> 8)) as u8).collect()
}
