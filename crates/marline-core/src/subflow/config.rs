//! Configuration of a subflow, taken from its connection and the carrier. All that have the same share it.

use std::sync::Arc;

use marline_policy::RttConfig;
use marline_time::Duration;
use marline_wire::SeqNum;

use super::pacer::Pacer;
use super::segment::HEADER;
use crate::{Capabilities, ConnectionConfig, Keepalive, Limits};

/// Keepalives after the first are at most this far apart (Linux: 75 s).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);

/// Largest shift of the window scale option (RFC 7323 section 2.3).
pub(super) const MAX_WINDOW_SCALE: u8 = 14;

/// Segments of fewer payload bytes than this fill the scoreboard before they fill the send buffer.
const BYTES_PER_ENTRY: u64 = 64;
/// As many bytes may be outstanding, however small the send buffer is.
const LEAST_OUTSTANDING: u64 = 1024 * 1024;
/// As many segments may be outstanding, however small the send buffer is.
const LEAST_ENTRIES: u64 = 1_024;

/// The settings of a subflow.
#[derive(Clone, Debug)]
pub(crate) struct SubflowConfig {
    /// Bytes of TCP segment (header, options, payload) that may pass; probed for.
    pub(crate) max_segment: u16,
    /// Bytes of TCP segment that surely pass.
    pub(crate) base_segment: u16,
    /// RTO bounds.
    pub(crate) rtt: Arc<RttConfig>,
    /// The same where the path has a radio that sleeps, if they differ.
    pub(crate) radio_rtt: Option<Arc<RttConfig>>,
    /// Initial window in segments.
    pub(crate) initial_window: u32,
    /// Longest delay of an ACK.
    pub(crate) ack_delay: Duration,
    /// How often a SYN or SYN/ACK is sent.
    pub(crate) syn: SynRetries,
    /// Unanswered retransmission timeouts after which the subflow is dead.
    pub(crate) retries: u32,
    /// How silence is met.
    pub(crate) keepalive: Option<Keepalive>,
    /// Offer or accept ECN.
    pub(crate) ecn: bool,
    /// Pace transmissions.
    pub(crate) pacing: bool,
    /// How long TIME-WAIT lasts, if the struct is kept for it.
    pub(crate) time_wait: Duration,
    /// Our window scale shift.
    pub(crate) window_scale: u8,
    /// Ranges held out of order.
    pub(crate) out_of_order_ranges: usize,
    /// Bytes outstanding: the connection keeps them, also those that the peer acknowledged at the data level.
    pub(crate) outstanding_bytes: u64,
    /// Segments outstanding: what a peer with a tiny MSS, or an application that writes bytes one by one, can
    /// make of a send buffer.
    pub(crate) outstanding_segments: usize,
    /// Offer or accept timestamps.
    pub(crate) timestamps: bool,
    /// Judge the forecasts of answers.
    pub(crate) score_forecasts: bool,
}

/// How often a SYN or SYN/ACK is sent that nobody answers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SynRetries {
    /// The attempt takes as long as so many repeats with backoff.
    pub(crate) most: u32,
    /// So many repeats of a SYN come at the distance of the first, in the same time.
    pub(crate) linear: u32,
}

impl SynRetries {
    /// Those of a connection's first subflow.
    pub(crate) const fn first(connection: &ConnectionConfig) -> SynRetries {
        SynRetries { most: connection.syn_retries, linear: connection.linear_syn_retries }
    }

    /// Those of a join, on either side: path managers see to the next attempt.
    pub(crate) const fn join(connection: &ConnectionConfig) -> SynRetries {
        SynRetries { most: connection.join_syn_retries, linear: 0 }
    }

    /// Repeats for no longer than this many with backoff take.
    pub(crate) fn at_most(self, most: u32) -> SynRetries {
        SynRetries { most: self.most.min(most), ..self }
    }
}

/// The numbers that one subflow starts with.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Start {
    /// Initial sequence number.
    pub(crate) isn: SeqNum,
    /// Added to our timestamp clock, so that it does not tell the host's uptime.
    pub(crate) ts_offset: u32,
}

impl SubflowConfig {
    /// The part of a connection's settings that its subflows need.
    pub(crate) fn new(
        connection: &ConnectionConfig,
        capabilities: &Capabilities,
        limits: &Limits,
        syn: SynRetries,
    ) -> Self {
        let passes = capabilities.max_segment.max(capabilities.base_segment);
        let asked = connection.max_segment_size.map(|mss| mss.saturating_add(HEADER as u16));
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

    /// The send buffer may become this large.
    pub(super) fn set_send_buffer(&mut self, bytes: u64) {
        self.outstanding_bytes = outstanding_limit(bytes);
        self.outstanding_segments = entries_for(bytes);
    }

    /// The pacer of a subflow whose first `free` bytes are not paced.
    pub(super) fn pacer(&self, free: u64) -> Pacer {
        Pacer::new(self.pacing, free)
    }
}

/// Bytes that a subflow may have outstanding beside a send buffer of so many bytes: twice as many, as much as it has
/// under way on a path whose ACKs take as long as its data, if the DATA_ACKs come by a path where they take no time.
pub(super) const fn outstanding_limit(send_buffer: u64) -> u64 {
    let limit = send_buffer.saturating_mul(2);
    if limit > LEAST_OUTSTANDING { limit } else { LEAST_OUTSTANDING }
}

/// Entries of a scoreboard beside a send buffer of so many bytes.
fn entries_for(send_buffer: u64) -> usize {
    usize::try_from((send_buffer / BYTES_PER_ENTRY).max(LEAST_ENTRIES)).unwrap_or(usize::MAX)
}

/// The smallest shift with which a window of `buffer` bytes can be said in 16 bits.
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
