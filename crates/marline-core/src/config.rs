//! Configuration of endpoints and connections, with defaults and their sources.

use std::sync::Arc;

use marline_policy::{LocalAddress, PolicySet, RttConfig, SchedulerFactory};
use marline_time::Duration;
use marline_wire::mptcp::Extensions;

use crate::{FourTuple, LoneKeepalive, ReceiveProbes, ReceiveTimer};

/// Data that the TCP checksum covers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum ChecksumScope {
    /// Header, payload and the pseudo-header of the addresses (native TCP).
    #[default]
    WithAddresses,
    /// Header and payload only, since outer addresses may change on the path (UDP carrier).
    WithoutAddresses,
}

/// Capabilities of a carrier. The core knows nothing else about it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Size in bytes of a TCP segment (header, options, payload) that passes on every path.
    pub base_segment: u16,
    /// Upper limit in bytes of the segment size that probing (RFC 4821) may find. If the checksum covers addresses,
    /// this is the limit for IPv4, and the IPv6 limit is 20 bytes smaller.
    pub max_segment: u16,
    /// Data that the TCP checksum covers.
    pub checksum: ChecksumScope,
    /// Subflows are identified by 64-bit ids instead of addresses.
    pub flow_ids: bool,
    /// The ECN field can be read and set.
    pub ecn: bool,
}

impl Capabilities {
    /// True if middleboxes do not see TCP options, because segments are carried in Marline's own datagrams.
    pub(crate) const fn hides_options(self) -> bool {
        self.flow_ids
    }

    /// Capabilities on a path. With IPv6, the longer header leaves 20 bytes less for a native segment.
    pub(crate) fn for_path(self, path: FourTuple) -> Self {
        const MORE: u16 = 20;
        let native = self.checksum == ChecksumScope::WithAddresses;
        let less = if native && path.remote.is_ipv6() { MORE } else { 0 };
        let max_segment = (self.max_segment - less).max(self.base_segment);
        Capabilities { max_segment, ..self }
    }
}

/// The part of the id and token space that this endpoint owns.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard, below `count`.
    pub index: u8,
    /// Number of shards that share the port; a power of two.
    pub count: u8,
    /// Index of the process among those that share the port, below [`GENERATIONS`](Self::GENERATIONS). It is part of
    /// the ids. `None` if the port is not shared.
    pub generation: Option<u8>,
}

impl Shard {
    /// An endpoint that does not share its port.
    pub const SINGLE: Shard = Shard { index: 0, count: 1, generation: None };
    /// Maximum number of processes that share a port.
    pub const GENERATIONS: u8 = 16;
    /// Bit position of the generation in an id: the low half of the second byte.
    const GENERATION_SHIFT: u32 = 48;

    /// Generation that created a subflow id, if the process has one.
    #[must_use]
    pub const fn generation_of_flow(flow: u64) -> u8 {
        (flow >> Self::GENERATION_SHIFT) as u8 & (Self::GENERATIONS - 1)
    }

    /// Writes the generation into a random id.
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

    /// Shard that owns a subflow id: its top bits.
    #[must_use]
    pub const fn of_flow(flow: u64, count: u8) -> u8 {
        (flow >> 56) as u8 & (count - 1)
    }

    /// Shard that owns a token: its top bits.
    #[must_use]
    pub const fn index_for_token(token: u32, count: u8) -> u8 {
        (token >> 24) as u8 & (count - 1)
    }
}

/// Limits on the state that peers can create.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections per endpoint.
    pub connections: usize,
    /// Maximum number of half-open connections. When half of them are in use, a new peer must prove that it receives at
    /// its address, with a SYN cookie on native TCP or the carrier's own cookie otherwise; 0 always requires this.
    /// Beyond this limit, the oldest entry of the source with the most entries is dropped. If SYN/ACKs are withheld,
    /// this also limits the SYNs that wait for the application's decision; further SYNs are ignored.
    pub syn_queue: usize,
    /// Maximum number of subflows per connection, up to 32.
    pub subflows: usize,
    /// Maximum number of joins per connection whose handshake is in progress.
    pub pending_joins: usize,
    /// Maximum number of out-of-order ranges held per subflow and per connection.
    pub out_of_order_ranges: usize,
    /// Maximum number of mappings announced but not filled, per subflow; contiguous mappings count once. With a large
    /// receive buffer the limit is higher: one per 128 bytes of the buffer.
    pub mappings: usize,
    /// Maximum number of a server's connections that have no subflow and whose peer is unauthenticated. Beyond the
    /// limit, the one that has waited longest ends.
    pub lingering: usize,
    /// Maximum number of subflows in TIME-WAIT.
    pub time_wait: usize,
    /// Maximum number of challenge ACKs per second, and of answers per second to unknown flows (RFC 5961 section 7).
    /// Each second allows a random number between half of this value and all of it.
    pub challenges_per_s: u32,
    /// Maximum number of remote addresses remembered per connection.
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

/// Method of sizing a connection's buffers within their limits (NSDI 2012, mechanism M3).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum BufferTuning {
    /// Both buffers have their maximum size from the start, as if the application had set `SO_SNDBUF` and `SO_RCVBUF`.
    /// As with those options, a blocked writer is woken when a third of the buffer is free (in the other modes, an
    /// eighth).
    Fixed,
    /// The send buffer is twice the sum of all congestion windows. The receive window is twice the data that the
    /// application reads in a round trip of the slowest subflow.
    Windows,
    /// Like `Windows`, and like `Rates` once the application has written faster than the paths carry for a second: by
    /// windows, a slow path that fast ones outpace never gets room.
    #[default]
    WindowsThenRates,
    /// Like `Windows`, but the send buffer is twice the sum of all rates times the longest RTT, as the paper
    /// recommends, so that no path has to wait for a slower one. With unequal RTTs this buffer is larger, and newly
    /// written data waits in it for longer.
    Rates,
}

/// Lifetime of a connection without any working path: none is left, or all are unreachable.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Linger {
    /// Time without progress after which the connection ends. It starts when the last subflow ends, or when all
    /// subflows are silent and the second consecutive retransmission or probe (window probe, DATA_FIN, receiver
    /// probe) stays unanswered.
    pub timeout: Duration,
    /// For servers: the timeout after a RST ended the last subflow, unless the application has authenticated the peer
    /// ([`KnownPeer`](crate::SocketOption::KnownPeer)). Such connections count among [`Limits::lingering`]. `None`
    /// treats all connections alike.
    pub unknown_peer: Option<Duration>,
}

impl Linger {
    /// Uses this timeout, but at most a minute for unauthenticated peers after a RST.
    #[must_use]
    pub const fn new(timeout: Duration) -> Self {
        Linger { timeout, unknown_peer: Some(UNKNOWN_PEER_LINGER) }
    }
}

/// Time for a client to retry joins several times on each of its paths.
const UNKNOWN_PEER_LINGER: Duration = Duration::from_secs(60);

/// Configuration of an endpoint: one shard of a port, or one host of a simulation.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The carrier's capabilities.
    pub capabilities: Capabilities,
    /// Limits on the state that peers can create.
    pub limits: Limits,
    /// This endpoint's part of the id space.
    pub shard: Shard,
    /// Accept connections with this configuration; `None` for a client.
    pub accept: Option<ConnectionConfig>,
    /// Emit monitor events.
    pub monitor: bool,
}

/// TCP Fast Open for a connection (RFC 7413; with Multipath TCP RFC 8684 appendix B).
///
/// A client requests a cookie from a server. On its next connection, data that the application wrote before the first
/// [`poll_transmit`](crate::Endpoint::poll_transmit) is sent with the SYN, up to one segment, and the server passes
/// it to its application at once. The answer arrives a round trip sooner, or half a round trip with Multipath TCP,
/// where the server sends nothing before it has the client's key.
///
/// *An observer can replay such a SYN*, and so can a network that duplicates it after the connection has ended.
/// The server's application then gets the data again, on a separate connection. Use it only for requests that may
/// be processed more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastOpen {
    /// The server accepts data without a cookie. Use this only if address forgery is impossible. Otherwise a forged
    /// SYN makes the server send data to the forged address.
    pub without_cookie: bool,
    /// Server: maximum number of connections that Fast Open has passed to the application and whose client has not
    /// answered the SYN/ACK. Beyond it, SYNs are answered as if Fast Open were off.
    pub pending: u32,
    /// Server ports for which Fast Open is on; empty for all ports.
    pub ports: Vec<u16>,
    /// Client: data is also sent with the SYN to servers with Multipath TCP. If false, only servers that previously
    /// declined Multipath TCP get data. A Linux 6.18 server with Multipath TCP withholds an answer written before the
    /// third ACK arrives until the connection ends (docs/decisions/opening.md).
    pub with_multipath: bool,
}

impl FastOpen {
    /// True if Fast Open is on for this server port.
    #[must_use]
    pub fn is_on(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }
}

impl Default for FastOpen {
    /// Cookies required, at most 64 pending connections, all ports, with and without Multipath TCP.
    fn default() -> Self {
        FastOpen { without_cookie: false, pending: 64, ports: Vec::new(), with_multipath: true }
    }
}

/// Configuration of a connection. Each connection may have different values.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Initial policies.
    pub policies: PolicySet,
    /// Offer (client) or accept (server) Multipath TCP; off means plain TCP.
    pub mptcp: bool,
    /// Require DSS checksums (flag A).
    pub dss_checksum: bool,
    /// Forbid joins to the address of the initial subflow (flag C).
    pub deny_join_id0: bool,
    /// Local addresses with their flags.
    pub local_addresses: Vec<LocalAddress>,
    /// Addresses to announce instead of the local ones, by address id (for a server behind NAT).
    pub advertised: Vec<(marline_policy::AddressId, core::net::SocketAddr)>,
    /// Maximum send buffer in payload bytes, reached by autotuning.
    pub send_buffer: u64,
    /// Maximum receive buffer in payload bytes, reached by autotuning.
    pub receive_buffer: u64,
    /// Sizing of both buffers within these limits.
    pub buffer_tuning: BufferTuning,
    /// RTO bounds.
    pub rtt: RttConfig,
    /// RTO bounds for subflows whose path has a radio that sleeps ([`PathCost::tail_ms`](marline_policy::PathCost)
    /// above 0: cellular), because promotions and handovers delay answers longer than collisions in a WLAN. A server
    /// knows this only if the client reports path costs. `None`, the default, uses `rtt` for all. After Shin et al.,
    /// IEEE Communications Letters 20(5), 2016, whose timeout depends on the kind of interface.
    pub radio_rtt: Option<RttConfig>,
    /// Initial window in segments (RFC 6928: 10).
    pub initial_window: u32,
    /// Maximum delay of an ACK.
    pub ack_delay: Duration,
    /// Server: wait for the application's decision before answering a SYN. See [`Event::Requested`](crate::Event),
    /// then [`Endpoint::admit`](crate::Endpoint::admit), [`refuse`](crate::Endpoint::refuse) or
    /// [`forget_request`](crate::Endpoint::forget_request). At most [`Limits::syn_queue`] requests wait; there are no
    /// SYN cookies.
    pub withhold_syn_ack: bool,
    /// Client: the application writes as soon as it is connected. The third ACK is delayed by up to four milliseconds
    /// so that it can carry the first data (as in Linux with a pending write).
    pub speaks_first: bool,
    /// Number of repeats of an unanswered SYN before the attempt ends, if the interval doubles each time (Linux: 6,
    /// which takes 127 s).
    pub syn_retries: u32,
    /// Client: number of repeats of the first SYN at constant intervals (the initial timeout) before the interval
    /// starts to double, so that a connection opened during a short outage is established within a second of its end
    /// (Linux since 6.5: 4, the default). The total duration of the attempt does not change.
    pub linear_syn_retries: u32,
    /// Like [`syn_retries`](Self::syn_retries), for joins. Lower, because path managers start new attempts, whereas
    /// the interval between SYNs of one attempt keeps growing.
    pub join_syn_retries: u32,
    /// Number of repeats of an unanswered SYN with MP_CAPABLE before the option is left out (Linux: 2). With several
    /// local addresses, this applies to each. Between addresses where options passed before, the limit is twice this
    /// number plus one. Also the number of timeouts of the first data before MPTCP options are given up, if the path
    /// answers segments without them. If nothing is received, the limit is twice this number plus two, unless options
    /// passed between the two addresses before. No effect on a carrier with flow ids, whose datagrams hide options.
    pub mptcp_syn_retries: u32,
    /// Client: time without an answer after which the first SYN is also sent from the next local address, backup
    /// addresses last (the Connection Attempt Delay of RFC 8305); at most the initial RTO. The first answer selects
    /// the initial subflow. `None` tries only the address from which the connection is opened.
    pub connection_attempt_delay: Option<Duration>,
    /// Silence after which keepalives start; `None` disables them.
    pub keepalive: Option<Duration>,
    /// Client: detect a dead download path by its silence; `None` leaves this to the sender.
    pub receive_timer: Option<ReceiveTimer>,
    /// Client: probe a connection's only subflow while it is idle; `None` disables this.
    pub lone_keepalive: Option<LoneKeepalive>,
    /// Client: probe the peer periodically while only waiting for data; `None` disables this.
    pub receive_probes: Option<ReceiveProbes>,
    /// Offer ECN (RFC 3168).
    pub ecn: bool,
    /// Pace transmissions.
    pub pacing: bool,
    /// Lifetime of a connection without a working path.
    pub linger: Linger,
    /// Number of unanswered retransmission timeouts after which a subflow is closed, even if other subflows work.
    pub subflow_retries: u32,
    /// Duration of TIME-WAIT for subflows (Linux: 60 s).
    pub time_wait: Duration,
    /// Wait to fill a segment while data is in flight (Nagle). Turn this off for interactive traffic.
    pub nagle: bool,
    /// Client: extensions requested from a Marline server after the handshake (HELLO). Other
    /// servers ignore the request.
    pub extensions: Extensions,
    /// Server: extensions granted to a client on request.
    pub allow_extensions: Extensions,
    /// Server: the scheduler used when a client requests that the server follow its path choice
    /// ([`Extensions::FOLLOW_CLIENT`]); `None` refuses the request.
    pub follow_client: Option<Arc<dyn SchedulerFactory>>,
    /// Offer or accept timestamps (RFC 7323).
    pub timestamps: bool,
    /// Largest MSS, in bytes, to announce and to send; `None` uses the carrier's maximum.
    pub max_segment_size: Option<u16>,
    /// Use one DSS mapping for all full segments sent together on a subflow, repeated on every eighth, instead of one
    /// per segment. This gives 0.7 % more goodput and halves the sender's processing (docs/spec/mapping-runs.md). No
    /// effect with DSS checksums.
    pub mapping_runs: bool,
    /// Score each subflow's forecasts of answer times ([`ForecastScore`](crate::ForecastScore)), for research; nothing
    /// else changes. Takes up to 300 kB of memory for a subflow with much data in flight.
    pub score_forecasts: bool,
    /// TCP Fast Open (RFC 7413): data in the SYN. `None`, the default, neither sends nor accepts it. No effect
    /// together with [`withhold_syn_ack`](Self::withhold_syn_ack).
    pub fast_open: Option<FastOpen>,
}

impl ConnectionConfig {
    /// Default configuration with these policies.
    #[must_use]
    pub fn new(policies: PolicySet) -> Self {
        ConnectionConfig {
            policies,
            mptcp: true,
            dss_checksum: false,
            deny_join_id0: false,
            local_addresses: Vec::new(),
            advertised: Vec::new(),
            send_buffer: 8 << 20,
            receive_buffer: 8 << 20,
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
