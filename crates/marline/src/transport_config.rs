//! Settings of connections, the same for clients and servers.

use std::sync::Arc;

use marline_algos::default_policies;
use marline_core::{
    BufferTuning, ConnectionConfig, Extensions, FastOpen, Linger, LoneKeepalive, ReceiveProbes,
    ReceiveTimer,
};
use marline_policy::{CongestionFactory, PathManagerFactory, PolicySet, SchedulerFactory};
use marline_time::Duration;

/// How connections behave: policies, buffers, timers, options.
///
/// The defaults suit interactive traffic: [`default_policies`], which are the scheduler `auto`, a full mesh of paths,
/// the congestion control `cubic-westwood` and RACK-TLP. Setters return the configuration, so that calls chain:
///
/// ```
/// use marline::TransportConfig;
///
/// let mut transport = TransportConfig::default();
/// transport.receive_buffer(8 << 20).ecn(true);
/// ```
#[derive(Clone, Debug)]
pub struct TransportConfig {
    core: ConnectionConfig,
}

impl Default for TransportConfig {
    fn default() -> Self {
        ConnectionConfig::new(default_policies()).into()
    }
}

/// Setters of plain values: the name of the setter is that of the core's field.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])*
        pub fn $name(&mut self, $name: $type) -> &mut Self {
            self.core.$name = $name;
            self
        })*
    };
}

impl TransportConfig {
    setters! {
        /// Scheduler, path manager, congestion control and loss recovery to start with.
        policies: PolicySet;
        /// Offer (client) or accept (server) Multipath TCP. Off: plain TCP. Default: on.
        mptcp: bool;
        /// Require DSS checksums (flag A of MP_CAPABLE, RFC 8684 section 3.1). Default: off.
        dss_checksum: bool;
        /// Forbid joins to the address of the initial subflow (flag C, RFC 8684 section 3.1).
        /// Default: off.
        deny_join_id0: bool;
        /// Largest send buffer, bytes of payload.
        send_buffer: u64;
        /// Largest receive buffer, bytes of payload.
        receive_buffer: u64;
        /// How buffers grow towards their largest size.
        buffer_tuning: BufferTuning;
        /// Initial congestion window, segments (RFC 6928: 10, the default).
        initial_window: u32;
        /// Longest delay of an acknowledgement.
        ack_delay: Duration;
        /// Client: the application writes as soon as it is connected, so the third ACK may carry its
        /// first bytes. Default: off.
        speaks_first: bool;
        /// Retransmissions of a first SYN before the attempt ends, each after twice the time of the one before.
        syn_retries: u32;
        /// Client: retransmissions of a first SYN before that time doubles; the attempt takes as long as without
        /// them. Default: 4, as Linux.
        linear_syn_retries: u32;
        /// First SYNs that carry MP_CAPABLE before it is left out (RFC 8684 section 3.7).
        mptcp_syn_retries: u32;
        /// Silence after which keepalives start; `None`: never.
        keepalive: Option<Duration>;
        /// Client: notice a dead download path by its silence; `None`: leave it to the sender.
        receive_timer: Option<ReceiveTimer>;
        /// Client: watch an idle connection's only subflow; `None`: do not.
        lone_keepalive: Option<LoneKeepalive>;
        /// Client: while only waiting for data, ask now and then whether the server is still there;
        /// `None`: wait. Clients that were not told how use the defaults.
        receive_probes: Option<ReceiveProbes>;
        /// Offer ECN (RFC 3168).
        ecn: bool;
        /// Pace transmissions.
        pacing: bool;
        /// How long a connection is kept after its last path ended.
        linger: Linger;
        /// Unanswered retransmission timeouts after which a subflow is closed although others live.
        subflow_retries: u32;
        /// TIME-WAIT of subflows.
        time_wait: Duration;
        /// TCP Fast Open (RFC 7413): data in the SYN, which **the server may get twice**; `None`, the default: neither
        /// sent ([`Client::connect_with`](crate::Client::connect_with)) nor taken.
        fast_open: Option<FastOpen>;
        /// Nagle's algorithm (RFC 9293 section 3.7.4). Default: off.
        nagle: bool;
        /// Client: extensions beyond RFC 8684 to ask a Marline server for.
        extensions: Extensions;
        /// Server: extensions beyond RFC 8684 to grant.
        allow_extensions: Extensions;
        /// Offer or accept timestamps (RFC 7323).
        timestamps: bool;
        /// Largest segment to announce and to send, bytes of MSS; `None`: what the carrier allows.
        max_segment_size: Option<u16>;
    }

    /// The scheduler of new connections, as an object. By name: [`ClientBuilder::scheduler`] and
    /// [`ServerBuilder::scheduler`].
    ///
    /// [`ClientBuilder::scheduler`]: crate::ClientBuilder::scheduler
    /// [`ServerBuilder::scheduler`]: crate::ServerBuilder::scheduler
    pub fn scheduler(&mut self, scheduler: Arc<dyn SchedulerFactory>) -> &mut Self {
        self.core.policies.scheduler = scheduler;
        self
    }

    /// The path manager of new connections, as an object.
    pub fn path_manager(&mut self, path_manager: Arc<dyn PathManagerFactory>) -> &mut Self {
        self.core.policies.path_manager = path_manager;
        self
    }

    /// The congestion control of new connections, as an object.
    pub fn congestion(&mut self, congestion: Arc<dyn CongestionFactory>) -> &mut Self {
        self.core.policies.congestion = congestion;
        self
    }

    /// Server: the scheduler that takes over when a client asks to be followed
    /// ([`Extensions::FOLLOW_CLIENT`]); `None`: the built-in one.
    pub fn follow_client(&mut self, scheduler: Option<Arc<dyn SchedulerFactory>>) -> &mut Self {
        self.core.follow_client = scheduler;
        self
    }

    /// The configuration as the protocol core has it, with every field.
    #[must_use]
    pub const fn as_core(&self) -> &ConnectionConfig {
        &self.core
    }

    /// The same, to be changed: for what has no setter here.
    pub const fn as_core_mut(&mut self) -> &mut ConnectionConfig {
        &mut self.core
    }
}

impl From<ConnectionConfig> for TransportConfig {
    fn from(core: ConnectionConfig) -> Self {
        TransportConfig { core }
    }
}
