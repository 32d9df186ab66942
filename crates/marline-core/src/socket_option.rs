//! Options that an application may change on an established connection.

use marline_time::Duration;

/// One change, for [`Endpoint::set`](crate::Endpoint::set).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// Wait to fill a segment while data is in flight (Nagle). Turning it off also sends held data.
    Nagle(bool),
    /// Hold mode for partial segments.
    Hold(Hold),
    /// Limit on bytes in the send buffer that were never sent. Beyond it, writes are refused as if the buffer were
    /// full, and [`Event::Writable`](crate::Event::Writable) follows when half of the limit is left. This lets the
    /// application decide later which data to write. `None` sets no limit.
    NotSentLowat(Option<u64>),
    /// Time for which data may remain without a DATA_ACK (on plain TCP, an ACK) before the connection ends, regardless
    /// of retries (RFC 9293 section 3.9.1, RFC 5482). `None` sets no limit.
    UserTimeout(Option<Duration>),
    /// Maximum send buffer in payload bytes.
    SendBuffer(u64),
    /// The application has authenticated the peer: without a path, the connection is kept for the full timeout,
    /// however the last path ended ([`Linger::unknown_peer`](crate::Linger)).
    KnownPeer,
    /// Send keepalives on silent subflows; `None` disables this.
    Keepalive(Option<Keepalive>),
    /// Maximum time until a segment from the peer arrives; otherwise the connection times out, regardless of its wait
    /// for a path ([`Linger::timeout`](crate::Linger)). For an application that has reason to doubt the peer's
    /// presence, for instance because the same paths lead to another server. The peer is probed on every subflow,
    /// immediately, after 2, 4 and 8 s, and then every 15 s; any acceptable segment from it revokes the deadline.
    /// Setting it again before that has no effect.
    AnswerWithin(Duration),
}

/// Keepalive probes on an idle subflow (RFC 9293 section 3.8.4).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Interval between probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the subflow is considered dead.
    pub probes: u32,
}

/// Rule for holding partial segments, at most for a retransmission timeout.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// Sent immediately.
    #[default]
    No,
    /// Held until the mode changes (`TCP_CORK`).
    Corked,
    /// More data follows immediately (`MSG_MORE`). The segment is sent without PSH, at the latest when an ACK
    /// arrives.
    MoreFollows,
}
