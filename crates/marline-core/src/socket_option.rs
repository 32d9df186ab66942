//! Options that an application may change on an established connection.

use marline_time::Duration;

/// One change, for [`Endpoint::set`](crate::Endpoint::set).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// Wait to fill a segment while data is in flight. To turn it off also lets go what is held.
    Nagle(bool),
    /// Whether the end of what was written waits for more.
    Hold(Hold),
    /// Bytes that may lie in the send buffer without having been sent once: beyond, writes are refused as if
    /// it were full, and [`Event::Writable`](crate::Event::Writable) follows when half of it is left. What is
    /// written late is written with later knowledge, and may still be replaced. `None`: no such bound.
    NotSentLowat(Option<u64>),
    /// How long data may stay without a DATA_ACK (on plain TCP: an ACK) before the connection ends, whatever
    /// is retried meanwhile (RFC 9293 section 3.9.1, RFC 5482). `None`: as long as it takes.
    UserTimeout(Option<Duration>),
    /// Largest send buffer, payload bytes.
    SendBuffer(u64),
    /// The application knows who the peer is (it authenticated itself): without a path the connection is kept as
    /// long as any, however the last one ended ([`Linger::stranger`](crate::Linger)).
    KnownPeer,
    /// Watch silent subflows; `None`: do not.
    Keepalive(Option<Keepalive>),
}

/// When a subflow that is silent and owes nothing is asked whether it is still there (RFC 9293 section
/// 3.8.4).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first question.
    pub idle: Duration,
    /// From one question to the next.
    pub interval: Duration,
    /// So many without an answer, and the subflow is dead.
    pub probes: u32,
}

/// Whether a segment that is not full waits for more, at most for a retransmission timeout.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// It does not.
    #[default]
    No,
    /// It does until this is taken back (`TCP_CORK`).
    Corked,
    /// What was written begins something: more follows at once (`MSG_MORE`). The peer is not asked to
    /// deliver it (PSH), and an ACK lets it go.
    MoreFollows,
}
