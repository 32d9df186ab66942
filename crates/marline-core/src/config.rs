//! Configuration of endpoints and connections, with defaults and their sources.

use std::sync::Arc;

use marline_policy::{LocalAddress, PolicySet, RttConfig, SchedulerFactory};
use marline_time::Duration;
use marline_wire::mptcp::Extensions;

use crate::{FourTuple, LoneKeepalive, ReceiveProbes, ReceiveTimer};

/// Scope of the TCP checksum.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ChecksumScope {
    /// Header, payload and the pseudo-header of the addresses (native TCP).
    #[default]
    WithAddresses,
    /// Header and payload only, since outer addresses may change on the way (UDP carrier).
    WithoutAddresses,
}

/// Capabilities of a carrier: all that the core knows of it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Size of a TCP segment (header, options, payload) in bytes that passes on every path.
    pub base_segment: u16,
    /// Largest size of a TCP segment in bytes that may pass; determined by probing (RFC 4821). With
    /// addresses in the checksum's scope it is that of IPv4, and IPv6 packets carry 20 bytes less.
    pub max_segment: u16,
    /// Scope of the TCP checksum.
    pub checksum: ChecksumScope,
    /// Subflows are identified by 64-bit ids, not by addresses.
    pub flow_ids: bool,
    /// The ECN field can be read and set.
    pub ecn: bool,
}

impl Capabilities {
    /// Nobody on the way can take offence at TCP options: segments travel in datagrams of our own.
    pub(crate) const fn hides_options(self) -> bool {
        self.flow_ids
    }

    /// Capabilities on a path: an IPv6 header takes 20 bytes more of a native packet.
    pub(crate) fn on(self, path: FourTuple) -> Self {
        const MORE: u16 = 20;
        let native = self.checksum == ChecksumScope::WithAddresses;
        let less = if native && path.remote.is_ipv6() { MORE } else { 0 };
        let max_segment = (self.max_segment - less).max(self.base_segment);
        Capabilities { max_segment, ..self }
    }
}

/// Part of the id and token space that belongs to this endpoint.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard, below `count`.
    pub index: u8,
    /// Number of shards that share the port; a power of two.
    pub count: u8,
    /// Number of the process among those that share the port, below [`GENERATIONS`](Self::GENERATIONS), which its ids
    /// then tell; `None`: it has the port to itself.
    pub generation: Option<u8>,
}

impl Shard {
    /// An endpoint that shares its port with nobody.
    pub const ALONE: Shard = Shard { index: 0, count: 1, generation: None };
    /// Processes that may share a port.
    pub const GENERATIONS: u8 = 16;
    /// Where the generation stands in an id: the low half of the second byte.
    const GENERATION_SHIFT: u32 = 48;

    /// The generation that gave out a subflow id, if it was a process that has one.
    #[must_use]
    pub const fn generation_of_flow(flow: u64) -> u8 {
        (flow >> Self::GENERATION_SHIFT) as u8 & (Self::GENERATIONS - 1)
    }

    /// A random id, with the generation in its place.
    #[must_use]
    pub const fn with_generation(self, flow: u64) -> u64 {
        const MASK: u64 = ((Shard::GENERATIONS - 1) as u64) << Shard::GENERATION_SHIFT;
        match self.generation {
            Some(number) => {
                let number = (number & (Self::GENERATIONS - 1)) as u64;
                flow & !MASK | number << Self::GENERATION_SHIFT
            }
            None => flow,
        }
    }

    /// The shard that owns a subflow id: its top bits.
    #[must_use]
    pub const fn of_flow(flow: u64, count: u8) -> u8 {
        (flow >> 56) as u8 & (count - 1)
    }

    /// The shard that owns a token: its top bits.
    #[must_use]
    pub const fn of_token(token: u32, count: u8) -> u8 {
        (token >> 24) as u8 & (count - 1)
    }
}

/// Limits on all state that a peer can make grow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of the endpoint.
    pub connections: usize,
    /// Half-open connections. When half of them are taken, a new peer must prove that it receives
    /// at its address: by a SYN cookie on native TCP, by the carrier's cookie elsewhere; 0 requires
    /// this always. Beyond this limit the oldest one of the source that has most of them is dropped. Where SYN/ACKs are
    /// withheld, this also limits the SYNs that wait for the application's decision; further SYNs are ignored.
    pub syn_queue: usize,
    /// Subflows of a connection, at most 32.
    pub subflows: usize,
    /// Joins of a connection whose handshake is in progress.
    pub pending_joins: usize,
    /// Ranges held out of order per subflow and per connection.
    pub out_of_order_ranges: usize,
    /// Mappings announced but not filled, per subflow; contiguous mappings count once. With a large
    /// receive buffer the limit is higher: one for each 128 bytes of it.
    pub mappings: usize,
    /// Connections of a server that have no subflow and an unauthenticated peer; beyond the limit,
    /// the one that has waited longest ends.
    pub lingering: usize,
    /// Connections in TIME-WAIT.
    pub time_wait: usize,
    /// Challenge ACKs per second, and as many answers to unknown flows (RFC 5961 section 7). Each
    /// second grants a random number between half of this and all of it.
    pub challenges_per_s: u32,
    /// Remote addresses remembered per connection.
    pub remote_addresses: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 65_536,
            syn_queue: 1_024,
            subflows: 8,
            pending_joins: 4,
            out_of_order_ranges: 4_096,
            mappings: 4_096,
            lingering: 1_024,
            time_wait: 16_384,
            challenges_per_s: 1_000,
            remote_addresses: 16,
        }
    }
}

/// Sizing of a connection's buffers below their limits (NSDI 2012, mechanism M3).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum BufferTuning {
    /// At their limits from the start, as for an application that sets `SO_SNDBUF` and `SO_RCVBUF`.
    /// As with these, a blocked writer is woken when a third of the buffer is free (an eighth
    /// otherwise).
    Fixed,
    /// The send buffer follows twice the sum of all congestion windows, the receive window twice what
    /// the application reads in a round trip of the slowest subflow.
    #[default]
    Windows,
    /// The same, but the send buffer follows twice the sum of all rates times the longest RTT, as
    /// the paper recommends, so that no path has to wait for a slower one. With unequal RTTs that
    /// is more, and the larger the full buffer, the longer newly written data waits in it.
    Rates,
}

/// Lifetime of a connection without any path: none is left, or nothing is heard on those that are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Linger {
    /// Without progress for this long, the connection ends. It begins when the last subflow ends; when all are silent
    /// and the second retransmission in a row stays unanswered; or when the second question of another kind does (of
    /// a shut window, the end of the stream, whether the peer is there at all).
    pub timeout: Duration,
    /// For servers: the same once a RST ended the last subflow, unless the application has
    /// authenticated the peer ([`KnownPeer`](crate::SocketOption::KnownPeer)). Such connections
    /// count among [`Limits::lingering`]. `None`: all are treated alike.
    pub stranger: Option<Duration>,
}

impl Linger {
    /// This timeout, and at most a minute for unauthenticated peers after a RST.
    #[must_use]
    pub const fn new(timeout: Duration) -> Self {
        Linger { timeout, stranger: Some(STRANGER_LINGER) }
    }
}

/// Enough for a client to join again over every path it has, several times.
const STRANGER_LINGER: Duration = Duration::from_secs(60);

/// Configuration of an endpoint: one shard of a port, or one host of a simulation.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The carrier's capabilities.
    pub capabilities: Capabilities,
    /// Bounds.
    pub limits: Limits,
    /// This endpoint's part of the id space.
    pub shard: Shard,
    /// Accept connections; `None` is a client.
    pub accept: Option<ConnectionConfig>,
    /// Emit monitor events.
    pub monitor: bool,
}

/// TCP Fast Open of a connection (RFC 7413; with Multipath TCP RFC 8684 appendix B).
///
/// A client asks a server for a cookie. Its next connection sends with the SYN what the application wrote before the
/// first [`poll_transmit`](crate::Endpoint::poll_transmit), as much as one segment holds, and the server hands it to
/// its application at once: the answer is there a round trip sooner, with Multipath TCP half of one, since the server
/// sends nothing before it has the client's key.
///
/// *Whoever saw such a SYN can send it again*, as can a network that duplicates it after the connection has ended, and
/// the server's application gets the data again, on a connection of its own. Use it only for requests that may be
/// carried out more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastOpen {
    /// Data needs no cookie: only where nobody can send from addresses that are not theirs. A server answers any SYN
    /// with data otherwise, to wherever it says it came from.
    pub without_cookie: bool,
    /// Server: connections that the application has by Fast Open and whose client has not answered the SYN/ACK.
    /// Beyond so many, SYNs are answered as if Fast Open were off.
    pub pending: u32,
    /// The server's ports at which it is on, a server's own or those that a client connects to; none listed: all.
    pub ports: Vec<u16>,
    /// Client: data goes with the SYN to servers of Multipath TCP, too. Without it those alone get some that were
    /// offered Multipath TCP and did not take it: a Linux server (6.18) whose application answers before the third ACK
    /// has come keeps its answer until the connection ends (docs/decisions/opening.md).
    pub with_multipath: bool,
}

impl FastOpen {
    /// Whether it is on for this port of the server.
    #[must_use]
    pub fn is_on(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }
}

impl Default for FastOpen {
    /// With cookies, at most 64 that wait, at every port, with Multipath TCP and without.
    fn default() -> Self {
        FastOpen { without_cookie: false, pending: 64, ports: Vec::new(), with_multipath: true }
    }
}

/// Configuration of a connection. Every value may differ from one connection to the next.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// The policies to start with.
    pub policies: PolicySet,
    /// Offer (client) or accept (server) Multipath TCP; off means plain TCP.
    pub mptcp: bool,
    /// Require DSS checksums (flag A).
    pub dss_checksum: bool,
    /// Forbid joins to the address of the initial subflow (flag C).
    pub deny_join_id0: bool,
    /// Local addresses with their flags.
    pub local_addresses: Vec<LocalAddress>,
    /// Addresses to announce instead of the local ones (a server behind NAT): by address id.
    pub advertised: Vec<(marline_policy::AddressId, core::net::SocketAddr)>,
    /// Largest send buffer, payload bytes (autotuned below it).
    pub send_buffer: u64,
    /// Largest receive buffer, payload bytes (autotuned below it).
    pub receive_buffer: u64,
    /// Their sizing below these limits.
    pub buffer_tuning: BufferTuning,
    /// RTO bounds.
    pub rtt: RttConfig,
    /// Other RTO bounds for subflows whose path has a radio that sleeps
    /// ([`PathCost::tail_ms`](marline_policy::PathCost) above 0: cellular), as its promotions and handovers delay
    /// answers that a WLAN's collisions do not. Known to a client, and to the server that it tells. `None`, the
    /// default: the same for all. After Shin et al., IEEE Communications Letters 20(5), 2016, whose timeout knows the
    /// kind of the interface.
    pub radio_rtt: Option<RttConfig>,
    /// Initial window in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Longest delay of an ACK.
    pub ack_delay: Duration,
    /// Server: answer a SYN when the application says so and not at once: [`Event::Requested`](crate::Event),
    /// then [`Endpoint::admit`](crate::Endpoint::admit), [`refuse`](crate::Endpoint::refuse) or
    /// [`forget_request`](crate::Endpoint::forget_request). At most [`Limits::syn_queue`] requests wait; there
    /// are no SYN cookies.
    pub withhold_syn_ack: bool,
    /// Client: the application writes as soon as it is connected. The third ACK is delayed for that
    /// by up to four milliseconds, and then carries the first data (as Linux does for a pending
    /// write).
    pub speaks_first: bool,
    /// Repeats of a SYN without answer before the attempt ends, if the interval between them doubles each
    /// time (Linux: 6, which takes 127 s).
    pub syn_retries: u32,
    /// Client: repeats of the first SYN at intervals of the initial timeout before it doubles each time, so that
    /// a connection that begins in a short outage is there within a second of its end (Linux since 6.5: 4,
    /// the default). The attempt takes as long as it does without them.
    pub linear_syn_retries: u32,
    /// As [`syn_retries`](Self::syn_retries) for joins. Fewer, since path managers retry anyway, whereas the
    /// interval between the SYNs of one attempt only grows.
    pub join_syn_retries: u32,
    /// Repeats of a SYN with MP_CAPABLE without answer before it is left out (Linux: 2). With several local
    /// addresses so many on each; twice as many and one more between addresses where options passed
    /// before. Also timeouts of the first data before MPTCP options are given
    /// up, if the path answers segments without them meanwhile; if nothing is heard, twice as many
    /// and two more, unless options passed between the two addresses before. Without effect on a
    /// carrier with flow ids, in whose datagrams nobody sees options.
    pub mptcp_syn_retries: u32,
    /// Client: time without an answer after which the first SYN is also sent from the next of the
    /// local addresses, backup ones last (the Connection Attempt Delay of RFC 8305), at most the
    /// initial RTO. The first answer decides where the connection begins. `None`: only from the
    /// address that it is opened from.
    pub connection_attempt_delay: Option<Duration>,
    /// Silence after which keepalives start; `None`: never.
    pub keepalive: Option<Duration>,
    /// Detect a dead download path by its silence (clients); `None`: leave it to the sender.
    pub receive_timer: Option<ReceiveTimer>,
    /// Watch a connection's only subflow while it is idle (clients); `None`: do not.
    pub lone_keepalive: Option<LoneKeepalive>,
    /// While only waiting for data, probe from time to time whether the peer is still there
    /// (clients); `None`: wait.
    pub receive_probes: Option<ReceiveProbes>,
    /// Offer ECN (RFC 3168).
    pub ecn: bool,
    /// Pace transmissions.
    pub pacing: bool,
    /// Time for which a connection without paths is kept.
    pub linger: Linger,
    /// Unanswered retransmission timeouts after which a subflow is closed although others live.
    pub subflow_retries: u32,
    /// TIME-WAIT of subflows (Linux: 60 s).
    pub time_wait: Duration,
    /// Wait to fill a segment while data is in flight (Nagle); off for interactive traffic.
    pub nagle: bool,
    /// Client: extensions requested from a Marline server after the handshake (HELLO). Other
    /// servers ignore the request.
    pub extensions: Extensions,
    /// Server: extensions that it grants to a client that asks.
    pub allow_extensions: Extensions,
    /// Server: the scheduler used when a client asks to be followed
    /// ([`Extensions::FOLLOW_CLIENT`]); `None`: the request is refused.
    pub follow_client: Option<Arc<dyn SchedulerFactory>>,
    /// Offer or accept timestamps (RFC 7323).
    pub timestamps: bool,
    /// Largest segment payload to announce and to send, bytes of MSS; `None`: what the carrier passes.
    pub max_segment_size: Option<u16>,
    /// One DSS mapping for all full segments that leave at once on a subflow, repeated on every eighth, instead of one
    /// for each: 0.7 % more goodput, and half of the sender's work (docs/spec/mapping-runs.md). Has no effect where
    /// DSS checksums are on.
    pub mapping_runs: bool,
    /// Judge the forecasts of each subflow's answers ([`ForecastScore`](crate::ForecastScore)): for research. Nothing
    /// else depends on it; it takes up to 300 kB for a subflow with much in flight.
    pub score_forecasts: bool,
    /// TCP Fast Open (RFC 7413): data in the SYN. `None`, the default: neither sent nor taken. No effect together
    /// with [`withhold_syn_ack`](Self::withhold_syn_ack).
    pub fast_open: Option<FastOpen>,
}

impl ConnectionConfig {
    /// The defaults, with these policies.
    #[must_use]
    pub fn new(policies: PolicySet) -> Self {
        ConnectionConfig {
            policies,
            mptcp: true,
            dss_checksum: false,
            deny_join_id0: false,
            local_addresses: Vec::new(),
            advertised: Vec::new(),
            send_buffer: 4 << 20,
            receive_buffer: 6 << 20,
            buffer_tuning: BufferTuning::default(),
            rtt: RttConfig::default(),
            radio_rtt: None,
            initial_window: 10,
            ack_delay: Duration::from_millis(40),
            withhold_syn_ack: false,
            speaks_first: false,
            syn_retries: 6,
            linear_syn_retries: 4,
            join_syn_retries: 2,
            mptcp_syn_retries: 2,
            connection_attempt_delay: Some(Duration::from_millis(250)),
            keepalive: None,
            receive_timer: None,
            lone_keepalive: None,
            receive_probes: None,
            ecn: false,
            pacing: true,
            linger: Linger::new(Duration::from_secs(60)),
            subflow_retries: 8,
            time_wait: Duration::from_secs(60),
            nagle: false,
            extensions: Extensions::NONE,
            allow_extensions: Extensions::ALL,
            follow_client: None,
            timestamps: true,
            max_segment_size: None,
            mapping_runs: true,
            score_forecasts: false,
            fast_open: None,
        }
    }
}
