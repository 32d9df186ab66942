//! Linux-compatible behaviour where the RFCs leave a choice and Marline's default differs.

/// Switches for choices that the RFCs leave open and that Marline makes in favour of latency. All
/// are off by default. [`LinuxCompat::LINUX`] is the behaviour of Linux, for comparisons segment by
/// segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxCompat {
    /// A server does not answer the third ACK, so that the client can join other paths only after
    /// the first data.
    pub silent_third_ack: bool,
    /// DSNs always have 8 bytes, not only on fast connections.
    pub long_dsn: bool,
    /// DATA_ACKs have 8 bytes if the latest data came with MP_CAPABLE or an 8-byte DSN. Otherwise a peer
    /// that ever used 8 bytes gets 8.
    pub data_ack_like_data: bool,
    /// PSH also on the last of several full segments that a kernel hands to its device as one
    /// (TSO), although more data follows. The value is the minimum number of segments in such a
    /// batch, window permitting; 0: no such PSH.
    pub push_bursts: u8,
    /// Segments without timestamps are accepted although timestamps were negotiated (RFC 7323
    /// section 3.2 recommends dropping them).
    pub forgive_missing_timestamps: bool,
    /// ADD_ADDR and its echo are sent alone, without a DATA_ACK, and ahead of everything else.
    pub lone_add_addr: bool,
    /// A server announces its addresses once it has both keys, not only after the first DSS.
    pub announce_at_once: bool,
    /// Data for a stream that the application has released is answered by a reset at once (RFC 9293
    /// section 3.6.1), on plain TCP only, although the peer may lose data sent before. Otherwise
    /// the reset waits until the peer has acknowledged that data, and Multipath TCP ends by
    /// MP_FASTCLOSE.
    pub reset_late_data_at_once: bool,
    /// An ACK for data that was never sent is dropped without an answer (RFC 9293 section 3.10.7.4
    /// asks for one).
    pub ignore_early_ack: bool,
    /// Plain TCP counts its window in its own full segments. Otherwise in those of Multipath TCP,
    /// which are 20 bytes smaller, so that a fallback changes nothing.
    pub plain_counts_full_segments: bool,
    /// On plain TCP the last data segment carries the FIN; otherwise the FIN is a segment of its
    /// own.
    pub fin_with_data: bool,
    /// The window grows only by ACKs that acknowledge cumulatively (RFC 5681 section 3.1, RFC
    /// 3042); otherwise SACKed bytes make it grow too while nothing is lost.
    pub grow_by_cumulative_acks: bool,
    /// The DATA_FIN is retransmitted twice before its timer backs off.
    pub data_fin_twice: bool,
    /// Who answers a join that asks for a backup path asks for one, too (Linux until 6.10). Otherwise each side
    /// speaks of its own address.
    pub echo_backup: bool,
    /// The DATA_ACK of the peer's DATA_FIN goes alone before the FIN of a subflow, and in TIME-WAIT there is none
    /// (Linux until 6.10); otherwise the FIN takes it along, and so does the last ACK.
    pub lone_last_data_ack: bool,
    /// A DATA_FIN is acknowledged on every subflow; otherwise where it came.
    pub data_fin_acked_everywhere: bool,
    /// The pacer forgives a burst that comes late half of its own time (Linux); otherwise two bursts go at once.
    pub half_burst_credit: bool,
    /// The congestion window counts whole segments; otherwise the last one may exceed it by a part of itself.
    pub whole_segments: bool,
}

impl LinuxCompat {
    /// As Linux.
    pub const LINUX: LinuxCompat = LinuxCompat {
        silent_third_ack: true,
        long_dsn: true,
        data_ack_like_data: true,
        push_bursts: 2,
        forgive_missing_timestamps: true,
        lone_add_addr: true,
        announce_at_once: true,
        reset_late_data_at_once: true,
        ignore_early_ack: true,
        plain_counts_full_segments: true,
        fin_with_data: true,
        grow_by_cumulative_acks: true,
        data_fin_twice: true,
        echo_backup: true,
        lone_last_data_ack: true,
        data_fin_acked_everywhere: true,
        half_burst_credit: true,
        whole_segments: true,
    };
}
