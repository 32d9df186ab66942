//! Configuration of both sides.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Limits, PathHealthMonitor};
use marline_time::Duration;

use marline_io::{PathSpec, RawSockets, ResetSeed, SegmentLog, SharedObserver};

/// `0.0.0.0:0` behind `[::]:PORT` means that port.
pub(crate) fn same_port(address: SocketAddr, before: Option<SocketAddr>) -> SocketAddr {
    let everywhere = |at: &SocketAddr| at.ip().is_unspecified();
    match before.filter(|at| at.is_ipv6() && everywhere(at)) {
        Some(ipv6) if address.is_ipv4() && everywhere(&address) && address.port() == 0 => {
            SocketAddr::new(address.ip(), ipv6.port())
        }
        _ => address,
    }
}

/// Longest time between two datagrams on a path with connections that a NAT may see: many forget a
/// UDP mapping after 30 s of silence.
pub const LONGEST_KEEPALIVE: Duration = Duration::from_secs(20);

/// How segments travel.
#[derive(Clone, Debug, Default)]
pub enum Carrier {
    /// In UDP datagrams: needs no privilege, talks to Marline only.
    #[default]
    Udp,
    /// As native TCP on raw sockets that are opened when needed: talks to any stack that speaks
    /// Multipath TCP or plain TCP. Needs CAP_NET_RAW then.
    Raw,
    /// The same on raw sockets that were opened before, while the process might.
    Opened(Arc<RawSockets>),
    /// As native TCP on TUN interfaces, one per path: Marline is a host of its own behind each.
    Tun(Vec<TunPath>),
}

/// A TUN interface and the host behind it, which is Marline.
///
/// The system routes packets for the address into the interface and forwards what comes out, so it
/// must be configured as a router between that address and the network. Making the interface needs
/// CAP_NET_ADMIN; one made before that belongs to the user (`ip tuntap add`) needs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunPath {
    /// Name of the interface.
    pub interface: String,
    /// Address of the host behind it: none of the system's own.
    pub address: IpAddr,
}

impl Carrier {
    pub(crate) const fn is_native(&self) -> bool {
        !matches!(self, Carrier::Udp)
    }

    /// What users call the transport below.
    pub(crate) const fn transport(&self) -> &'static str {
        if self.is_native() { "TCP" } else { "UDP" }
    }
}

/// An address by which a server can be reached besides those it listens on, or by which it is to be
/// announced.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// One of this machine's; port 0 stands for that of the first listening address.
    pub address: SocketAddr,
    /// Announce it to clients (ADD_ADDR).
    pub signal: bool,
    /// Subflows to it carry data only if nothing else can.
    pub backup: bool,
    /// Announce this address instead, by which a translator lets clients reach it.
    pub advertised: Option<SocketAddr>,
}

impl ServerAddress {
    /// An address that is announced as it is.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        ServerAddress { address, signal: true, backup: false, advertised: None }
    }
}

/// A client: the local addresses it uses and how its connections behave.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// How segments travel.
    pub carrier: Carrier,
    /// The paths. Empty: every interface with a default route, followed as they come and go.
    pub paths: Vec<PathSpec>,
    /// How connections behave. `local_addresses` is filled in from `paths`.
    pub connection: ConnectionConfig,
    /// Write one pcapng file per path into this directory.
    pub capture_dir: Option<PathBuf>,
    /// Leave MPTCP keys, tokens and HMACs in captures. They let a reader disturb the connection.
    pub capture_secrets: bool,
    /// Where segments are noted, for a diagnosis.
    pub tap: Option<SegmentLog>,
    /// Who else is shown its segments and its paths: a meter, a recorder.
    pub observers: Vec<SharedObserver>,
    /// The policies that can be chosen by name while connections run.
    pub registry: Arc<Registry>,
    /// What all connections of the process learn of each other's paths; clones are one path health monitor, and
    /// every client and server of a process may share it. `None`: each connection for itself.
    pub path_health: Option<PathHealthMonitor>,
    /// Emit monitor events.
    pub monitor: bool,
    /// Bounds.
    pub limits: Limits,
    /// Silence on a path after which a UDP keepalive is sent; at most [`LONGEST_KEEPALIVE`].
    pub keepalive: Duration,
    /// Wait this long for an answer before the next path is tried as well (50 to 250 ms).
    pub stagger: Duration,
    /// A server that has not answered on any path within this time does not: `connect` then fails. What
    /// TCP by itself takes for that is two minutes.
    pub patience: Duration,
}

impl ClientConfig {
    /// The defaults: all interfaces, with these connections, which ask now and then whether the server
    /// is there ([`ConnectionConfig::receive_probes`]) unless they were told how.
    #[must_use]
    pub fn new(mut connection: ConnectionConfig) -> Self {
        connection.receive_probes.get_or_insert_default();
        ClientConfig {
            carrier: Carrier::Udp,
            paths: Vec::new(),
            connection,
            capture_dir: None,
            capture_secrets: false,
            tap: None,
            observers: Vec::new(),
            registry: Arc::new(Registry::default()),
            path_health: None,
            monitor: false,
            limits: Limits::default(),
            keepalive: Duration::from_secs(15),
            stagger: Duration::from_millis(100),
            patience: Duration::from_secs(10),
        }
    }
}

/// A server: where it listens and how its connections behave.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How segments travel.
    pub carrier: Carrier,
    /// Addresses to listen on (UDP or TCP, as the carrier has it); port 0 lets the system choose one.
    /// `[::]` stands for all addresses of both families, or of IPv6 alone where an IPv4 address is listed
    /// with the same port.
    pub listen: Vec<SocketAddr>,
    /// Addresses to announce to clients, in the order of their ids from 1 on. Native carriers also
    /// listen on them. At most 254.
    pub addresses: Vec<ServerAddress>,
    /// Endpoints that share the ports: a power of two, at most 128. Native carriers have one.
    pub shards: usize,
    /// How connections behave.
    pub connection: ConnectionConfig,
    /// Write one pcapng file per listening address into this directory.
    pub capture_dir: Option<PathBuf>,
    /// Leave MPTCP keys, tokens and HMACs in captures. They let a reader disturb the connection.
    pub capture_secrets: bool,
    /// Where segments are noted, for a diagnosis.
    pub tap: Option<SegmentLog>,
    /// The policies that can be chosen by name while connections run.
    pub registry: Arc<Registry>,
    /// What all connections of the process learn of each other's paths; clones are one path health monitor, and
    /// every client and server of a process may share it. `None`: each connection for itself.
    pub path_health: Option<PathHealthMonitor>,
    /// Emit monitor events.
    pub monitor: bool,
    /// Bounds, per shard.
    pub limits: Limits,
    /// Connections that wait for `accept`, per shard; more are refused.
    pub backlog: usize,
    /// UDP carrier: one that outlives the process lets a server that was killed and started again tell
    /// its clients, as soon as they send, that it knows nothing of their connections. `None`: they find out
    /// by their timers.
    pub reset_seed: Option<ResetSeed>,
}

impl ServerConfig {
    /// Spells out what `[::]` stands for: all addresses of both families. Behind each `[::]:PORT`,
    /// `0.0.0.0:PORT` is put, unless an IPv4 address is listed with that port. Listeners do this
    /// themselves; who reserves ports in advance must do it before. A second time changes nothing.
    pub fn listen_on_both_families(&mut self) {
        let has_ipv4 = |port| self.listen.iter().any(|at| at.is_ipv4() && at.port() == port);
        let missing = |at: &SocketAddr| {
            let everywhere = at.is_ipv6() && at.ip().is_unspecified();
            let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
            (everywhere && !has_ipv4(at.port())).then_some(ipv4)
        };
        let spelled = self.listen.iter().flat_map(|at| [Some(*at), missing(at)]);
        self.listen = spelled.flatten().collect();
    }

    /// The defaults: one shard on these addresses.
    #[must_use]
    pub fn new(listen: Vec<SocketAddr>, connection: ConnectionConfig) -> Self {
        ServerConfig {
            carrier: Carrier::Udp,
            listen,
            addresses: Vec::new(),
            shards: 1,
            connection,
            capture_dir: None,
            capture_secrets: false,
            tap: None,
            registry: Arc::new(Registry::default()),
            path_health: None,
            monitor: false,
            limits: Limits::default(),
            backlog: 1_024,
            reset_seed: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_algos::default_policies;

    use super::*;

    #[test]
    fn everywhere_is_both_families_unless_one_is_listed() {
        let spelled = |words: &[&str]| {
            let listen = words.iter().map(|word| word.parse().unwrap()).collect();
            let connection = ConnectionConfig::new(default_policies());
            let mut config = ServerConfig::new(listen, connection);
            config.listen_on_both_families();
            let once = config.listen.clone();
            config.listen_on_both_families();
            assert_eq!(config.listen, once);
            once.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(spelled(&["[::]:7"]), "[::]:7 0.0.0.0:7");
        assert_eq!(spelled(&["[::]:7", "0.0.0.0:7"]), "[::]:7 0.0.0.0:7");
        assert_eq!(
            spelled(&["192.0.2.1:7", "[::]:7", "[::]:8"]),
            "192.0.2.1:7 [::]:7 [::]:8 0.0.0.0:8"
        );
        assert_eq!(spelled(&["[::1]:7", "0.0.0.0:8"]), "[::1]:7 0.0.0.0:8");
        let [v6, v4] = ["[::]:9", "0.0.0.0:0"].map(|at| at.parse().unwrap());
        assert_eq!(same_port(v4, Some(v6)).port(), 9);
        assert_eq!(same_port(v4, None).port(), 0);
    }
}
