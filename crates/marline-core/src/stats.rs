//! Counters and snapshots for people: per endpoint, per connection, per subflow.

use marline_policy::{Phase, SubflowId};
use marline_time::{Duration, Instant, Rate};
use marline_wire::mptcp::Extensions;

use crate::{ConnectionId, FallbackReason, FourTuple};

/// Counts of an endpoint since its start. Names follow the kernel's MPTcpExt where the meaning agrees.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the kernel's, one counter each")]
pub struct Counters {
    pub segments_in: u64,
    pub segments_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub parse_errors: u64,
    pub checksum_errors: u64,
    pub no_such_flow: u64,
    pub resets_out: u64,
    pub challenge_acks: u64,
    pub syn_queue_overflow: u64,
    pub syn_cookies_sent: u64,
    pub syn_cookies_received: u64,
    /// Connections of strangers that ended because too many had no subflow.
    pub lingering_overflow: u64,
    pub connections_refused: u64,
    /// Times that the path health monitor had a connection looked at.
    pub connections_looked_at: u64,
    pub mp_capable_syn_rx: u64,
    pub mp_capable_syn_tx: u64,
    pub mp_capable_fallback: u64,
    pub mp_join_syn_rx: u64,
    pub mp_join_syn_tx: u64,
    pub mp_join_ack_rx: u64,
    pub mp_join_no_token: u64,
    pub mp_join_bad_hmac: u64,
    pub mp_join_rejected: u64,
    pub data_csum_err: u64,
    pub mp_fail_rx: u64,
    pub mp_fail_tx: u64,
    pub mp_fastclose_rx: u64,
    pub mp_fastclose_tx: u64,
    pub mp_rst_rx: u64,
    pub mp_rst_tx: u64,
    pub add_addr_rx: u64,
    pub add_addr_tx: u64,
    pub echo_add_rx: u64,
    pub rm_addr_rx: u64,
    pub rm_addr_tx: u64,
    pub mp_prio_rx: u64,
    pub mp_prio_tx: u64,
    pub duplicate_data: u64,
    pub dss_not_matching: u64,
    pub mp_idle_tx: u64,
    pub mp_idle_rx: u64,
    pub rto_request_tx: u64,
    pub rto_request_rx: u64,
    pub rto_info_tx: u64,
    pub rto_info_rx: u64,
    pub rto_info_refused: u64,
    pub receive_timer_probes: u64,
    pub receive_timer_expired: u64,
    pub receive_probes: u64,
    pub lone_keepalives: u64,
    pub lone_keepalive_expired: u64,
    pub fast_join_syn_tx: u64,
    pub fast_join_syn_rx: u64,
    pub fast_join_syn_ack_rx: u64,
    pub fast_join_fallback: u64,
    pub fast_join_bad_hmac: u64,
    pub fast_join_empty: u64,
    pub fast_join_stale: u64,
    pub fast_join_replayed: u64,
    pub fast_join_refused: u64,
    pub fast_join_data_ignored: u64,
    pub hello_tx: u64,
    pub hello_rx: u64,
    pub repair_tx: u64,
    pub repair_rx: u64,
    pub repaired_bytes: u64,
}

/// Where a subflow is in its life, by RFC 9293's names.
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

/// A picture of one subflow.
#[derive(Clone, Debug)]
pub struct SubflowInfo {
    /// Its slot.
    pub id: SubflowId,
    /// Its ends.
    pub path: FourTuple,
    /// TCP state.
    pub state: SubflowState,
    /// Congestion phase.
    pub phase: Phase,
    /// Backup, by either side's wish.
    pub backup: bool,
    /// Suspected dead.
    pub potentially_failed: bool,
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
    /// Bytes in flight that were sent before.
    pub repeats_in_flight: u64,
    /// Bytes that the peer has beyond a hole (SACK).
    pub sacked: u64,
    /// Bytes believed lost and not repeated yet.
    pub lost: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Delivery rate.
    pub delivery_rate: Option<Rate>,
    /// Payload bytes sent, repeats included.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes this subflow sent again.
    pub bytes_retransmitted: u64,
    /// Payload bytes it carried that another subflow had carried before (reinjected or redundant).
    pub bytes_reinjected: u64,
    /// Payload bytes received on it that were there already.
    pub bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Tail loss probes sent.
    pub probes: u64,
    /// Reductions taken back as spurious.
    pub undone: u64,
    /// When it was last heard.
    pub last_heard_at: Instant,
    /// What else its TCP knows.
    pub tcp: TcpDetail,
}

/// What the two TCPs of a subflow agreed on, and what only their people look at.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TcpDetail {
    /// Segments carry timestamps (RFC 7323).
    pub timestamps: bool,
    /// The peer takes SACK blocks (RFC 2018).
    pub sack: bool,
    /// Shifts of our window and of the peer's (RFC 7323), if windows are scaled.
    pub window_scales: Option<(u8, u8)>,
    /// Both sides speak ECN (RFC 3168).
    pub ecn: bool,
    /// Retransmission timeout, its backoff not counted.
    pub rto: Duration,
    /// Timeouts since data was last acknowledged.
    pub backoff: u32,
    /// Segments that are not cumulatively acknowledged.
    pub unacked_segments: u32,
    /// How far the path was seen to let a segment be overtaken, in full segments; 0 if it was not.
    pub reordering: u32,
    /// ACKs that showed a segment to have been overtaken.
    pub reorderings: u32,
    /// The peer's window, bytes.
    pub peer_window: u64,
    /// Largest payload received, bytes, at most our MSS.
    pub largest_received: u32,
    /// When payload last came in.
    pub last_data_at: Option<Instant>,
    /// When anything with a sequence number was last sent.
    pub last_sent_at: Instant,
}

/// A picture of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Which.
    pub id: ConnectionId,
    /// Plain TCP, and why.
    pub fallback: Option<FallbackReason>,
    /// Extensions beyond RFC 8684 that both sides agreed on.
    pub extensions: Extensions,
    /// Name of the scheduler in force.
    pub scheduler: String,
    /// Name of the path manager in force.
    pub path_manager: String,
    /// Bytes the application wrote.
    pub bytes_written: u64,
    /// Bytes the application read.
    pub bytes_read: u64,
    /// Bytes the peer DATA_ACKed.
    pub bytes_acked: u64,
    /// Bytes the application wrote that were not sent once.
    pub unsent: u64,
    /// Bytes the application may read now.
    pub readable: u64,
    /// Bytes of memory held in buffers.
    pub buffered: u64,
    /// Bytes of memory held by lists: of what was sent, mapped, acknowledged, and is to go again.
    pub bookkeeping: u64,
    /// Subflows that exist.
    pub subflows: Vec<SubflowInfo>,
    /// Sums over the subflows that are gone, so that totals survive path death:
    /// one entry per pair of addresses.
    pub gone: Vec<SubflowInfo>,
}
