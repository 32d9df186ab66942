//! Counters and snapshots for monitoring: per endpoint, per connection, per subflow.

use marline_policy::{Health, PathCost, Phase, SubflowId};
use marline_time::{Duration, Instant, Rate};
use marline_wire::mptcp::Extensions;

use crate::{ConnectionId, FallbackReason, FourTuple};

/// Counts of things that happen, each a field and a name.
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are the kernel's, one counter each")]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Each count with its name, in the order of the fields.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }

        impl core::ops::AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Counts of an endpoint since its start. Names follow the kernel's MPTcpExt where the meaning agrees.
    pub struct Counters {
        segments_in,
        segments_out,
        bytes_in,
        bytes_out,
        parse_errors,
        checksum_errors,
        no_such_flow,
        resets_out,
        challenge_acks,
        syn_queue_overflow,
        syn_cookies_sent,
        syn_cookies_received,
        /// Connections with unauthenticated peers that ended because too many had no subflow.
        lingering_overflow,
        /// Segments whose payload was not taken, as memory was short and the application had not read what it has.
        segments_without_memory,
        connections_refused,
        /// Number of times that the path health monitor had a connection checked.
        connections_looked_at,
        mp_capable_syn_rx,
        mp_capable_syn_tx,
        mp_capable_fallback,
        mp_join_syn_rx,
        mp_join_syn_tx,
        mp_join_ack_rx,
        mp_join_no_token,
        mp_join_bad_hmac,
        mp_join_rejected,
        data_csum_err,
        mp_fail_rx,
        mp_fail_tx,
        mp_fastclose_rx,
        mp_fastclose_tx,
        mp_rst_rx,
        mp_rst_tx,
        add_addr_rx,
        add_addr_tx,
        echo_add_rx,
        rm_addr_rx,
        rm_addr_tx,
        mp_prio_rx,
        mp_prio_tx,
        duplicate_data,
        dss_not_matching,
        mp_idle_tx,
        mp_idle_rx,
        rto_request_tx,
        rto_request_rx,
        rto_info_tx,
        rto_info_rx,
        rto_info_refused,
        receive_timer_probes,
        receive_timer_expired,
        receive_probes,
        path_probes,
        lone_keepalives,
        lone_keepalive_expired,
        fast_join_syn_tx,
        fast_join_syn_rx,
        fast_join_syn_ack_rx,
        fast_join_fallback,
        fast_join_bad_hmac,
        fast_join_empty,
        fast_join_stale,
        fast_join_replayed,
        fast_join_refused,
        fast_join_data_ignored,
        hello_tx,
        hello_rx,
        repair_tx,
        repair_rx,
        repaired_bytes,
        path_cost_tx,
        path_cost_rx,
    }
}

/// State of a subflow, by the names of RFC 9293.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the states of RFC 9293 section 3.3.2")]
pub enum SubflowState {
    #[default]
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// A snapshot of one subflow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubflowInfo {
    /// Its slot.
    pub id: SubflowId,
    /// Its ends.
    pub path: FourTuple,
    /// TCP state.
    pub state: SubflowState,
    /// Congestion phase.
    pub phase: Phase,
    /// Backup, as set by either side.
    pub backup: bool,
    /// Carried by a reliable stream (a TCP connection of the kernel), not by datagrams.
    pub reliable: bool,
    /// Whether data sent on it is expected to arrive.
    pub health: Health,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT.
    pub min_rtt: Option<Duration>,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes in flight that are retransmissions.
    pub repeats_in_flight: u64,
    /// Bytes SACKed by the peer.
    pub sacked: u64,
    /// Bytes believed lost and not yet retransmitted.
    pub lost: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Delivery rate.
    pub delivery_rate: Option<Rate>,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes retransmitted by this subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes it carried that another subflow had carried before (reinjected or redundant).
    pub bytes_reinjected: u64,
    /// Duplicate payload bytes received on it.
    pub bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Tail loss probes sent.
    pub probes: u64,
    /// Reductions undone as spurious.
    pub undone: u64,
    /// How well its forecasts held; `None` unless
    /// [`ConnectionConfig::score_forecasts`](crate::ConnectionConfig::score_forecasts) is on.
    pub forecast_score: Option<ForecastScore>,
    /// When a segment was last received on it.
    pub last_heard_at: Instant,
    /// Further state of its TCP.
    pub tcp: TcpDetail,
}

/// Where a subflow is, for drivers that carry something beside it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SubflowPlace {
    /// Our id of it on carriers that use ids; 0 elsewhere.
    pub local_flow: u64,
    /// The peer's id of it; 0 elsewhere.
    pub peer_flow: u64,
    /// Its ends.
    pub path: FourTuple,
    /// Backup, as set by either side.
    pub backup: bool,
    /// What using it costs, as the client says.
    pub cost: PathCost,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
}

/// How well a subflow's forecasts of its answers held. Each RTT sample after a forecast is an answer, and is judged by
/// what was forecast when its segment left ([`Forecast`](marline_policy::Forecast)), with the time that the
/// sender's own bytes ahead of it were to take. Segments that were lost have no answer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ForecastScore {
    /// Answers that were judged.
    pub answers: u64,
    /// Of these, how many were no later than p50, p90 and p99.
    pub within: [u64; 3],
    /// How many were no later than p50, p90 and p99 of the moment just before they came: what was learnt while the
    /// segment was on its way is in these.
    pub within_latest: [u64; 3],
    /// Sum of the pinball losses (Koenker and Bassett 1978) of p50, p90 and p99, ns.
    pub pinball_ns: [u64; 3],
    /// Answers that were no later than SRTT + 4 RTTVAR (RFC 6298).
    pub within_srtt_4var: u64,
    /// Sum of the pinball losses of SRTT + 4 RTTVAR as a forecast of p90, ns.
    pub pinball_srtt_4var_ns: u64,
    /// Segments that were held to be lost, and not taken back since.
    pub lost_segments: u64,
    /// Answers to segments of which no forecast is known: mostly those that left before the first sample.
    pub unforecast: u64,
}

impl ForecastScore {
    /// With the answers of another.
    #[must_use]
    pub fn plus(&self, other: &ForecastScore) -> ForecastScore {
        self.with(other, u64::saturating_add)
    }

    /// Of the answers that came since it was as `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ForecastScore) -> ForecastScore {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &ForecastScore, of: impl Fn(u64, u64) -> u64) -> ForecastScore {
        let each = |a: [u64; 3], b: [u64; 3]| core::array::from_fn(|index| of(a[index], b[index]));
        ForecastScore {
            answers: of(self.answers, other.answers),
            within: each(self.within, other.within),
            within_latest: each(self.within_latest, other.within_latest),
            pinball_ns: each(self.pinball_ns, other.pinball_ns),
            within_srtt_4var: of(self.within_srtt_4var, other.within_srtt_4var),
            pinball_srtt_4var_ns: of(self.pinball_srtt_4var_ns, other.pinball_srtt_4var_ns),
            lost_segments: of(self.lost_segments, other.lost_segments),
            unforecast: of(self.unforecast, other.unforecast),
        }
    }
}

/// Negotiated TCP options of a subflow, and diagnostic state.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpDetail {
    /// Segments carry timestamps (RFC 7323).
    pub timestamps: bool,
    /// The peer takes SACK blocks (RFC 2018).
    pub sack: bool,
    /// Shifts of our window and of the peer's (RFC 7323), if windows are scaled.
    pub window_scales: Option<(u8, u8)>,
    /// Both sides support ECN (RFC 3168).
    pub ecn: bool,
    /// Retransmission timeout without backoff.
    pub rto: Duration,
    /// Timeouts since data was last acknowledged.
    pub backoff: u32,
    /// Segments that are not cumulatively acknowledged.
    pub unacked_segments: u32,
    /// Largest reordering seen on the path, in full segments; 0 if none.
    pub reordering: u32,
    /// ACKs that showed reordering.
    pub reorderings: u32,
    /// The peer's window, bytes.
    pub peer_window: u64,
    /// Largest payload received, bytes, at most our MSS.
    pub largest_received: u32,
    /// When payload last came in.
    pub last_data_at: Option<Instant>,
    /// When anything with a sequence number was last sent.
    pub last_sent_at: Instant,
    /// All data that went with our SYN was acknowledged with it, or all that came with the peer's was taken
    /// ([`FastOpen`](crate::FastOpen)).
    pub took_syn_data: bool,
}

/// A snapshot of one connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The connection.
    pub id: ConnectionId,
    /// The reason for the fallback, on plain TCP.
    pub fallback: Option<FallbackReason>,
    /// Extensions beyond RFC 8684 that both sides agreed on.
    pub extensions: Extensions,
    /// Name of the current scheduler.
    pub scheduler: String,
    /// Name of the current path manager.
    pub path_manager: String,
    /// Bytes the application wrote.
    pub bytes_written: u64,
    /// Bytes the application read.
    pub bytes_read: u64,
    /// Bytes the peer DATA_ACKed.
    pub bytes_acked: u64,
    /// Bytes the application wrote that have never been sent.
    pub unsent: u64,
    /// Bytes the application may read now.
    pub readable: u64,
    /// The peer has finished sending, and all of it has arrived.
    pub peer_finished: bool,
    /// Bytes of memory held in buffers.
    pub buffered: u64,
    /// Bytes of memory held by the lists of sent segments, mappings, acknowledgments and
    /// reinjections.
    pub bookkeeping: u64,
    /// Since when the peer owes an acknowledgement of data; `None`: all that was sent is acknowledged.
    pub ack_due_since: Option<Instant>,
    /// Since when data is known to be on its way that does not come; `None`: nothing is known of.
    pub data_due_since: Option<Instant>,
    /// Subflows that exist.
    pub subflows: Vec<SubflowInfo>,
    /// Sums over the subflows that are gone, so that totals survive path death:
    /// one entry per pair of addresses.
    pub gone: Vec<SubflowInfo>,
}
