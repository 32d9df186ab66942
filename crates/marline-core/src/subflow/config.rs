//! Configuration of a subflow, derived from its connection and the carrier. Subflows with equal settings share it.

use std::sync::Arc;

use marline_policy::RttConfig;
use marline_time::Duration;
use marline_wire::SeqNum;

use super::pacer::Pacer;
use super::segment::HEADER_BYTES;
use crate::{Capabilities, ConnectionConfig, Keepalive, Limits};

/// Maximum time between keepalives after the first (Linux: 75 s).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);

/// Largest shift of the window scale option (RFC 7323 section 2.3).
pub(super) const MAX_WINDOW_SCALE: u8 = 14;

/// Average payload per segment, in bytes, below which the scoreboard limit is reached before the send buffer limit.
const BYTES_PER_ENTRY: u64 = 64;
/// Minimum limit on outstanding bytes, for small send buffers.
const MIN_OUTSTANDING_LIMIT: u64 = 1024 * 1024;
/// Minimum limit on outstanding segments, for small send buffers.
const MIN_ENTRY_LIMIT: u64 = 1_024;

/// Settings of a subflow.
#[derive(Clone, Debug)]
pub(crate) struct SubflowConfig {
    /// Maximum size in bytes of a TCP segment (header, options, payload), up to which the path is probed.
    pub(crate) max_segment: u16,
    /// Size in bytes of a TCP segment that passes on every path.
    pub(crate) base_segment: u16,
    /// RTO bounds.
    pub(crate) rtt: Arc<RttConfig>,
    /// RTO bounds for a path with a radio that sleeps, if they differ.
    pub(crate) radio_rtt: Option<Arc<RttConfig>>,
    /// Initial window in segments.
    pub(crate) initial_window: u32,
    /// Maximum delay of an ACK.
    pub(crate) ack_delay: Duration,
    /// Limits on transmissions of an unanswered SYN or SYN/ACK.
    pub(crate) syn: SynRetries,
    /// Number of unanswered retransmission timeouts after which the subflow is dead.
    pub(crate) retries: u32,
    /// Keepalive settings.
    pub(crate) keepalive: Option<Keepalive>,
    /// Offer or accept ECN.
    pub(crate) ecn: bool,
    /// Pace transmissions.
    pub(crate) pacing: bool,
    /// Duration of TIME-WAIT if this subflow is kept for it.
    pub(crate) time_wait: Duration,
    /// Our window scale shift.
    pub(crate) window_scale: u8,
    /// Limit on ranges held out of order.
    pub(crate) out_of_order_ranges: usize,
    /// Limit on outstanding bytes: the connection keeps them, including those that the peer acknowledged at the
    /// data level.
    pub(crate) outstanding_bytes: u64,
    /// Limit on outstanding segments, because a peer with a tiny MSS, or an application that writes single bytes,
    /// can cause many segments for one send buffer.
    pub(crate) outstanding_segments: usize,
    /// Offer or accept timestamps.
    pub(crate) timestamps: bool,
    /// Score forecasts of answer times.
    pub(crate) score_forecasts: bool,
}

/// Limits on transmissions of an unanswered SYN or SYN/ACK.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SynRetries {
    /// The attempt takes as long as this many repeats with backoff.
    pub(crate) most: u32,
    /// Number of repeats of a SYN at the initial interval, without changing the total time.
    pub(crate) linear: u32,
}

impl SynRetries {
    /// Limits for a connection's first subflow.
    pub(crate) const fn first(connection: &ConnectionConfig) -> SynRetries {
        SynRetries { most: connection.syn_retries, linear: connection.linear_syn_retries }
    }

    /// Limits for a join, on either side. They are lower, because path managers start new attempts.
    pub(crate) const fn join(connection: &ConnectionConfig) -> SynRetries {
        SynRetries { most: connection.join_syn_retries, linear: 0 }
    }

    /// Limits the duration to the time of `most` repeats with backoff.
    pub(crate) fn at_most(self, most: u32) -> SynRetries {
        SynRetries { most: self.most.min(most), ..self }
    }
}

/// Initial sequence number and timestamp offset of a subflow.
#[derive(Copy, Clone, Debug)]
pub(crate) struct InitialValues {
    /// Initial sequence number.
    pub(crate) isn: SeqNum,
    /// Offset of our timestamp clock, so that it does not reveal the host's uptime.
    pub(crate) ts_offset: u32,
}

impl SubflowConfig {
    /// Selects the connection's settings that its subflows need.
    pub(crate) fn new(
        connection: &ConnectionConfig,
        capabilities: &Capabilities,
        limits: &Limits,
        syn: SynRetries,
    ) -> Self {
        let passes = capabilities.max_segment.max(capabilities.base_segment);
        let asked = connection.max_segment_size.map(|mss| mss.saturating_add(HEADER_BYTES as u16));
        let max_segment = asked.map_or(passes, |asked| asked.min(passes));
        SubflowConfig {
            max_segment,
            base_segment: capabilities.base_segment.min(max_segment),
            rtt: Arc::new(connection.rtt),
            radio_rtt: connection.radio_rtt.map(Arc::new),
            initial_window: connection.initial_window.max(1),
            ack_delay: connection.ack_delay,
            syn,
            retries: connection.subflow_retries,
            keepalive: connection.keepalive.map(|idle| Keepalive {
                idle,
                interval: idle.min(KEEPALIVE_INTERVAL),
                probes: connection.subflow_retries,
            }),
            ecn: connection.ecn && capabilities.ecn,
            pacing: connection.pacing,
            time_wait: connection.time_wait,
            window_scale: window_scale_for(connection.receive_buffer),
            out_of_order_ranges: limits.out_of_order_ranges.max(1),
            outstanding_bytes: outstanding_limit(connection.send_buffer),
            outstanding_segments: entries_for(connection.send_buffer),
            timestamps: connection.timestamps,
            score_forecasts: connection.score_forecasts,
        }
    }

    /// Sets the maximum size of the send buffer.
    pub(super) fn set_send_buffer(&mut self, bytes: u64) {
        self.outstanding_bytes = outstanding_limit(bytes);
        self.outstanding_segments = entries_for(bytes);
    }

    /// Creates the pacer of a subflow whose first `free` bytes are not paced.
    pub(super) fn pacer(&self, free: u64) -> Pacer {
        Pacer::new(self.pacing, free)
    }
}

/// Limit on outstanding bytes of a subflow for this send buffer: twice its size. That much is in flight on a path
/// whose ACKs take as long as its data if DATA_ACKs arrive instantly on another path.
pub(super) const fn outstanding_limit(send_buffer: u64) -> u64 {
    let limit = send_buffer.saturating_mul(2);
    if limit > MIN_OUTSTANDING_LIMIT { limit } else { MIN_OUTSTANDING_LIMIT }
}

/// Limit on scoreboard entries for this send buffer.
fn entries_for(send_buffer: u64) -> usize {
    usize::try_from((send_buffer / BYTES_PER_ENTRY).max(MIN_ENTRY_LIMIT)).unwrap_or(usize::MAX)
}

/// Smallest shift that makes a window of `buffer` bytes fit into 16 bits.
const fn window_scale_for(buffer: u64) -> u8 {
    let mut shift = 0;
    while shift < MAX_WINDOW_SCALE && buffer >> shift > u16::MAX as u64 {
        shift += 1;
    }
    shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_smallest_that_expresses_the_buffer() {
        assert_eq!(window_scale_for(65_535), 0);
        assert_eq!(window_scale_for(65_536), 1);
        assert_eq!(window_scale_for(6 << 20), 7);
        assert_eq!(window_scale_for(u64::MAX), MAX_WINDOW_SCALE);
    }
}
