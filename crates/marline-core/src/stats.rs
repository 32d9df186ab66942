//! Counters and snapshots for monitoring: per endpoint, per connection, per subflow.

use marline_policy::{Health, PathCost, Phase, SubflowId};
use marline_time::{Duration, Instant, Rate};
use marline_wire::mptcp::Extensions;

use crate::{ConnectionId, FallbackReason, FourTuple};

/// Defines counters, each as a field with its name.
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
            /// Each counter with its name, in the order of the fields.
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
    /// Counters of an endpoint since its start. Names follow the kernel's MPTcpExt where the meaning agrees.
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
        /// Segments whose payload was dropped because memory was short and the application had unread data.
        segments_without_memory,
        connections_refused,
        /// Number of times that a visit to the path health monitor examined a connection.
        connections_examined,
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

/// State of a subflow, named as in RFC 9293.
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

/// Snapshot of one subflow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubflowInfo {
    /// Slot of the subflow.
    pub id: SubflowId,
    /// Addresses of the subflow.
    pub path: FourTuple,
    /// TCP state.
    pub state: SubflowState,
    /// Congestion phase.
    pub phase: Phase,
    /// True if either side marked the subflow as a backup.
    pub backup: bool,
    /// True if a reliable stream (a kernel TCP connection) carries the subflow instead of datagrams.
    pub reliable: bool,
    /// Health of the subflow, with the cause if it is not usable.
    pub health: Health,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// RTT variation.
    pub rttvar: Duration,
    /// Smallest RTT.
    pub min_rtt: Option<Duration>,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Slow-start threshold in bytes.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes in flight that are retransmissions.
    pub repeats_in_flight: u64,
    /// Bytes SACKed by the peer.
    pub sacked: u64,
    /// Bytes considered lost and not yet retransmitted.
    pub lost: u64,
    /// Payload of a full segment in bytes.
    pub mss: u32,
    /// Estimated delivery rate.
    pub delivery_rate: Option<Rate>,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes retransmitted by this subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes sent that another subflow had already carried (reinjected or redundant).
    pub bytes_reinjected: u64,
    /// Duplicate payload bytes received.
    pub bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Tail loss probes sent.
    pub probes: u64,
    /// Window reductions undone as spurious.
    pub undone: u64,
    /// Score of the forecasts; `None` unless
    /// [`ConnectionConfig::score_forecasts`](crate::ConnectionConfig::score_forecasts) is on.
    pub forecast_score: Option<ForecastScore>,
    /// Time of the last segment received.
    pub last_rx_at: Instant,
    /// Further TCP state.
    pub tcp: TcpDetail,
}

/// Location of a subflow, for drivers that carry other data alongside it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SubflowLocation {
    /// Our id on carriers that use ids; otherwise 0.
    pub local_flow: u64,
    /// The peer's id on carriers that use ids; otherwise 0.
    pub peer_flow: u64,
    /// Addresses of the subflow.
    pub path: FourTuple,
    /// True if either side marked the subflow as a backup.
    pub backup: bool,
    /// Cost of using the subflow, as reported by the client.
    pub cost: PathCost,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
}

/// Score of a subflow's forecasts of its answers. Each RTT sample after a forecast is an answer. It is compared with
/// the forecast made when its segment was sent ([`Forecast`](marline_policy::Forecast)), plus the expected delay from
/// the sender's own bytes ahead of the segment. Lost segments have no answer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ForecastScore {
    /// Number of answers scored.
    pub answers: u64,
    /// Number of answers no later than p50, p90 and p99.
    pub within: [u64; 3],
    /// Number of answers no later than the p50, p90 and p99 forecast just before they arrived, which uses answers
    /// received while the segment was in flight.
    pub within_latest: [u64; 3],
    /// Sum of the pinball losses (Koenker and Bassett 1978) of p50, p90 and p99, ns.
    pub pinball_ns: [u64; 3],
    /// Number of answers no later than SRTT + 4 RTTVAR (RFC 6298).
    pub within_srtt_4var: u64,
    /// Sum of the pinball losses of SRTT + 4 RTTVAR as a forecast of p90, ns.
    pub pinball_srtt_4var_ns: u64,
    /// Number of segments marked lost, minus those unmarked later.
    pub lost_segments: u64,
    /// Answers to segments without a forecast: mostly those sent before the first sample.
    pub unforecast: u64,
}

impl ForecastScore {
    /// Returns the sum with another score.
    #[must_use]
    pub fn plus(&self, other: &ForecastScore) -> ForecastScore {
        self.combine(other, u64::saturating_add)
    }

    /// Returns the score of the answers after the snapshot `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ForecastScore) -> ForecastScore {
        self.combine(earlier, u64::saturating_sub)
    }

    fn combine(&self, other: &ForecastScore, of: impl Fn(u64, u64) -> u64) -> ForecastScore {
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
    /// The peer accepts SACK blocks (RFC 2018).
    pub sack: bool,
    /// Shifts of our window and of the peer's (RFC 7323), if windows are scaled.
    pub window_scales: Option<(u8, u8)>,
    /// Both sides support ECN (RFC 3168).
    pub ecn: bool,
    /// Retransmission timeout without backoff.
    pub rto: Duration,
    /// Number of timeouts since data was last acknowledged.
    pub backoff: u32,
    /// Segments that are not cumulatively acknowledged.
    pub unacked_segments: u32,
    /// Maximum reordering seen on the path, in full segments; 0 if none.
    pub reordering: u32,
    /// ACKs that showed reordering.
    pub reorderings: u32,
    /// The peer's window in bytes.
    pub peer_window: u64,
    /// Largest payload received, in bytes; at most our MSS.
    pub largest_received: u32,
    /// Time of the last payload received.
    pub last_data_at: Option<Instant>,
    /// Time of the last segment sent with a sequence number.
    pub last_sent_at: Instant,
    /// All data sent with our SYN was acknowledged with it, or all data of the peer's SYN was accepted
    /// ([`FastOpen`](crate::FastOpen)).
    pub took_syn_data: bool,
}

/// Snapshot of one connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Id of the connection.
    pub id: ConnectionId,
    /// Reason for the fallback to plain TCP, if there was one.
    pub fallback: Option<FallbackReason>,
    /// Extensions beyond RFC 8684 that both sides agreed on.
    pub extensions: Extensions,
    /// Name of the current scheduler.
    pub scheduler: String,
    /// Name of the current path manager.
    pub path_manager: String,
    /// Number of bytes that the application wrote.
    pub bytes_written: u64,
    /// Number of bytes that the application read.
    pub bytes_read: u64,
    /// Number of bytes that the peer DATA_ACKed.
    pub bytes_acked: u64,
    /// Number of bytes that the application wrote and that have never been sent.
    pub unsent: u64,
    /// Number of bytes that the application may read now.
    pub readable: u64,
    /// The peer has finished sending, and all its data has arrived.
    pub peer_finished: bool,
    /// Memory held in buffers, in bytes.
    pub buffered: u64,
    /// Memory held by the lists of sent segments, mappings, acknowledgments and reinjections, in bytes.
    pub bookkeeping: u64,
    /// Time at which an acknowledgment of data became due; `None` if all sent data is acknowledged.
    pub ack_due_since: Option<Instant>,
    /// Time at which data from the peer became due; `None` if none is known to be due.
    pub data_due_since: Option<Instant>,
    /// Existing subflows.
    pub subflows: Vec<SubflowInfo>,
    /// Totals of the subflows that ended, one entry per pair of addresses, so that they survive the loss of a path.
    pub gone: Vec<SubflowInfo>,
}
