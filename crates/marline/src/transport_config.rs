//! Connection settings, shared by clients and servers.

use std::sync::Arc;

use marline_algos::default_policies;
use marline_core::{
    BufferTuning, ConnectionConfig, Extensions, FastOpen, Linger, LoneKeepalive, ReceiveProbes,
    ReceiveTimer,
};
use marline_policy::{CongestionFactory, PathManagerFactory, PolicySet, SchedulerFactory};
use marline_time::Duration;

/// Behavior of connections: policies, buffers, timers, options.
///
/// The defaults suit interactive traffic: [`default_policies`] are the scheduler `auto`, a full mesh of paths, the
/// congestion control `cubic-westwood` and RACK-TLP. Setters return the configuration, so that calls can be chained:
///
/// ```
/// use marline::config::TransportConfig;
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

/// Generates setters of plain values, named like the core's fields.
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
        /// Initial scheduler, path manager, congestion control and loss recovery.
        policies: PolicySet;
        /// Offer (client) or accept (server) Multipath TCP. Off: plain TCP. Default: on.
        mptcp: bool;
        /// Require DSS checksums (flag A of MP_CAPABLE, RFC 8684 section 3.1). Default: off.
        dss_checksum: bool;
        /// Forbid joins to the address of the initial subflow (flag C, RFC 8684 section 3.1).
        /// Default: off.
        deny_join_id0: bool;
        /// Maximum send buffer, in bytes of payload.
        send_buffer: u64;
        /// Maximum receive buffer, in bytes of payload.
        receive_buffer: u64;
        /// Growth of buffers up to their maximum.
        buffer_tuning: BufferTuning;
        /// Initial congestion window in segments (RFC 6928: 10, the default).
        initial_window: u32;
        /// Maximum delay of an acknowledgment.
        ack_delay: Duration;
        /// Client: the application writes as soon as it is connected, so the third ACK may carry its first bytes.
        /// Default: off.
        speaks_first: bool;
        /// Retransmissions of a first SYN before the attempt ends, with a timeout that doubles each time.
        syn_retries: u32;
        /// Client: retransmissions of a first SYN before the timeout starts to double; the attempt takes the same time
        /// in total. Default: 4, as in Linux.
        linear_syn_retries: u32;
        /// Number of first SYNs with MP_CAPABLE before the option is omitted (RFC 8684 section 3.7).
        mptcp_syn_retries: u32;
        /// Idle time after which keepalives start; `None` for never.
        keepalive: Option<Duration>;
        /// Client: detection of a failed download path from its silence; `None` to leave the detection to the sender.
        receive_timer: Option<ReceiveTimer>;
        /// Client: watch over an idle connection's only subflow; `None` for off.
        lone_keepalive: Option<LoneKeepalive>;
        /// Client: probes of the server while the client only waits for data; `None` for off. Clients without this
        /// setting use the defaults.
        receive_probes: Option<ReceiveProbes>;
        /// Offer ECN (RFC 3168).
        ecn: bool;
        /// Pace transmissions.
        pacing: bool;
        /// Time for which a connection is kept after its last path has ended.
        linger: Linger;
        /// Unanswered retransmission timeouts after which a subflow is closed even though others work.
        subflow_retries: u32;
        /// Duration of TIME-WAIT of subflows.
        time_wait: Duration;
        /// TCP Fast Open (RFC 7413): data in the SYN, which **the server may receive twice**. `None` (default):
        /// neither sent ([`Client::connect_with`](crate::Client::connect_with)) nor accepted.
        fast_open: Option<FastOpen>;
        /// Nagle's algorithm (RFC 9293 section 3.7.4). Default: off.
        nagle: bool;
        /// Client: extensions beyond RFC 8684 to request from a Marline server.
        extensions: Extensions;
        /// Server: extensions beyond RFC 8684 to grant.
        allow_extensions: Extensions;
        /// Offer or accept timestamps (RFC 7323).
        timestamps: bool;
        /// Maximum segment size to announce and to send, in bytes of MSS; `None` for the carrier's maximum.
        max_segment_size: Option<u16>;
    }

    /// Sets the scheduler of new connections, as an object. To set it by name, see [`ClientBuilder::scheduler`] and
    /// [`ServerBuilder::scheduler`].
    ///
    /// [`ClientBuilder::scheduler`]: crate::ClientBuilder::scheduler
    /// [`ServerBuilder::scheduler`]: crate::ServerBuilder::scheduler
    pub fn scheduler(&mut self, scheduler: Arc<dyn SchedulerFactory>) -> &mut Self {
        self.core.policies.scheduler = scheduler;
        self
    }

    /// Sets the path manager of new connections, as an object.
    pub fn path_manager(&mut self, path_manager: Arc<dyn PathManagerFactory>) -> &mut Self {
        self.core.policies.path_manager = path_manager;
        self
    }

    /// Sets the congestion control of new connections, as an object.
    pub fn congestion(&mut self, congestion: Arc<dyn CongestionFactory>) -> &mut Self {
        self.core.policies.congestion = congestion;
        self
    }

    /// Server: sets the scheduler that takes over when a client requests that the server follow it
    /// ([`Extensions::FOLLOW_CLIENT`]); `None` for the built-in one.
    pub fn follow_client(&mut self, scheduler: Option<Arc<dyn SchedulerFactory>>) -> &mut Self {
        self.core.follow_client = scheduler;
        self
    }

    /// Returns the configuration of the protocol core, with every field.
    #[must_use]
    pub const fn as_core(&self) -> &ConnectionConfig {
        &self.core
    }

    /// Returns the mutable configuration of the protocol core, for fields without a setter here.
    pub const fn as_core_mut(&mut self) -> &mut ConnectionConfig {
        &mut self.core
    }
}

impl From<ConnectionConfig> for TransportConfig {
    fn from(core: ConnectionConfig) -> Self {
        TransportConfig { core }
    }
}
