//! Standard scenario of most tests: a client with several addresses, a server with one per address family, and a
//! separate link for each address of the client.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use marline_core::{
    Capabilities, ChecksumScope, ConnectError, ConnectionConfig, ConnectionId, EndpointConfig,
    Limits, Shard,
};
use marline_datagram::LaneConfig;
use marline_link::DuplexConfig;
use marline_policy::{AddressId, LocalAddress, PathCost};
use marline_time::{Instant, SeedTree};

use crate::app::App;
use crate::lane::{self, DatagramApp, LANE_PORT};
use crate::{Host, HostConfig, LinkId, Listen, ListenByPort, NodeId, Report, World, digest};

/// The server's port.
pub const SERVER_PORT: u16 = 443;

/// First group of the client's IPv6 addresses.
const CLIENT_IPV6_PREFIX: u16 = 0xfd00;

/// Capabilities of a carrier like UDP without a known maximum segment size: ids identify subflows, and middleboxes see
/// no TCP.
pub const UDP_CAPABILITIES: Capabilities = Capabilities {
    base_segment: 1_200,
    max_segment: 1_400,
    checksum: ChecksumScope::WithoutAddresses,
    flow_ids: true,
    ecn: true,
};

/// Configuration of the scene.
#[derive(Clone, Debug)]
pub struct PathsConfig {
    /// One link per address of the client. Up is from the client.
    pub links: Vec<DuplexConfig>,
    /// Names of the links. A named link derives its random streams from its name, like a live link, so it loses the
    /// same packets with and without other links.
    pub names: Vec<String>,
    /// Backup flag of each address. Missing ones are false.
    pub backup: Vec<bool>,
    /// Cost of each address. Missing ones cost nothing.
    pub costs: Vec<PathCost>,
    /// True for each path with IPv6. Missing ones have IPv4. The client knows both addresses of the server, as from its
    /// DNS name.
    pub ipv6: Vec<bool>,
    /// Configuration of the client's connections. `local_addresses` is filled in.
    pub client: ConnectionConfig,
    /// Configuration of the server's connections. `local_addresses` is filled in.
    pub server: ConnectionConfig,
    /// Capabilities of the carrier.
    pub capabilities: Capabilities,
    /// Size of the headers between IP and TCP in bytes.
    pub carrier_overhead: u16,
    /// Limits on both endpoints.
    pub limits: Limits,
}

impl PathsConfig {
    /// Native TCP over Ethernet on these links. As with real carriers, connections start with small segments and
    /// discover that 1500-byte packets pass.
    #[must_use]
    pub fn new(links: Vec<DuplexConfig>, connection: ConnectionConfig) -> Self {
        PathsConfig {
            links,
            names: Vec::new(),
            backup: Vec::new(),
            costs: Vec::new(),
            ipv6: Vec::new(),
            client: connection.clone(),
            server: connection,
            capabilities: Capabilities {
                base_segment: 1_240,
                max_segment: 1_480,
                checksum: ChecksumScope::WithAddresses,
                flow_ids: false,
                ecn: true,
            },
            carrier_overhead: 0,
            limits: Limits::default(),
        }
    }

    /// Uses maximum-size segments from the start without probing, for tests that count segments.
    #[must_use]
    pub const fn with_known_mtu(mut self) -> Self {
        self.capabilities.base_segment = self.capabilities.max_segment;
        self
    }
}

/// A client, a server, and the links between them. Its end is reported to [`digest::digest_of_runs`].
#[derive(Debug)]
pub struct Paths {
    /// The world.
    pub world: World,
    /// The client.
    pub client: NodeId,
    /// The server.
    pub server: NodeId,
    /// Links from the client, by address.
    pub up: Vec<LinkId>,
    /// Links to the client, by address.
    pub down: Vec<LinkId>,
    connection: ConnectionConfig,
    /// Endpoint configuration for competing traffic, which accepts nothing.
    endpoint: EndpointConfig,
    carrier_overhead: u16,
    competing_hosts: u8,
    /// Number of address changes of the client on each path, which determines the current address.
    renumbered: Vec<u8>,
    /// True for each path with IPv6.
    ipv6: Vec<bool>,
}

impl Drop for Paths {
    fn drop(&mut self) {
        digest::run_ended(self.world.digest());
    }
}

impl Paths {
    /// Builds the scene. All random numbers are derived from `seeds`.
    #[must_use]
    pub fn new(config: &PathsConfig, seeds: SeedTree) -> Self {
        let mut world = World::new(seeds);
        let is_ipv6 = |path| config.ipv6.get(path).copied().unwrap_or(false);
        let ipv6: Vec<bool> = (0..config.links.len()).map(is_ipv6).collect();
        let addresses: Vec<LocalAddress> = ipv6
            .iter()
            .enumerate()
            .map(|(path, ipv6)| {
                let backup = config.backup.get(path).copied().unwrap_or(false);
                let cost = config.costs.get(path).copied().unwrap_or_default();
                let [client, _] = ends(path, 0, *ipv6);
                LocalAddress { cost, ..local_address(path as u8, client, backup, true) }
            })
            .collect();
        let server_ips = server_ips(&ipv6);
        let mut connection = config.client.clone();
        connection.local_addresses.clone_from(&addresses);
        let endpoint = EndpointConfig {
            capabilities: config.capabilities,
            limits: config.limits,
            shard: Shard::SINGLE,
            accept: None,
            monitor: true,
        };
        let carrier_overhead = config.carrier_overhead;
        let host = |accept: Option<ConnectionConfig>, addresses: Vec<LocalAddress>, name: &str| {
            let peers = if accept.is_none() { server_ips.clone() } else { Vec::new() };
            let endpoint = EndpointConfig { accept, ..endpoint.clone() };
            let host = HostConfig { endpoint, addresses, peers, carrier_overhead };
            Host::new(host, Box::new(seeds.stream(&format!("host/{name}"))))
        };
        let ips: Vec<IpAddr> = addresses.iter().map(|address| address.address.ip()).collect();
        let client = world.add_node(host(None, addresses, "client"), &ips);
        let at_server: Vec<LocalAddress> = (0..)
            .zip(&server_ips)
            .map(|(id, address)| local_address(id, *address, false, false))
            .collect();
        let mut accept = config.server.clone();
        accept.local_addresses.clone_from(&at_server);
        let server = world.add_node(host(Some(accept), at_server, "server"), &server_ips);
        let mut paths = Paths {
            world,
            client,
            server,
            up: Vec::new(),
            down: Vec::new(),
            connection,
            endpoint,
            carrier_overhead,
            competing_hosts: 0,
            renumbered: vec![0; config.links.len()],
            ipv6,
        };
        for (path, link) in config.links.iter().enumerate() {
            let seeds = config.names.get(path).map(|name| seeds.branch(name));
            paths.add_link(paths.ends(path), link.clone(), seeds);
        }
        paths
    }

    /// Adds the link between an address of the client and the server.
    fn add_link(
        &mut self,
        [client, server]: [IpAddr; 2],
        link: DuplexConfig,
        seeds: Option<SeedTree>,
    ) {
        let (up, down) = match seeds {
            None => self.world.connect(client, server, link.up, link.down),
            Some(seeds) => {
                let up = self.world.add_seeded_link(link.up, &seeds.branch("up"));
                let down = self.world.add_seeded_link(link.down, &seeds.branch("down"));
                self.world.route(client, server, up);
                self.world.route(server, client, down);
                (up, down)
            }
        };
        self.up.push(up);
        self.down.push(down);
    }

    /// The current addresses of both ends of a path, the client's first.
    #[must_use]
    pub fn ends(&self, path: usize) -> [IpAddr; 2] {
        ends(path, self.renumbered[path], self.ipv6[path])
    }

    /// The index of the path to which an address of the client belongs.
    #[must_use]
    pub const fn path_of(address: IpAddr) -> Option<usize> {
        match address {
            IpAddr::V4(address) => match address.octets() {
                [10, path, _, 1] => Some(path as usize),
                _ => None,
            },
            IpAddr::V6(address) => match address.segments() {
                [CLIENT_IPV6_PREFIX, 0, 0, path, ..] => Some(path as usize),
                _ => None,
            },
        }
    }

    /// The client's IPv4 address on a path after this many changes.
    #[must_use]
    pub fn address(path: usize, renumbered: u8) -> IpAddr {
        IpAddr::from([10, path as u8, renumbered, 1])
    }

    /// The server's IPv4 address.
    #[must_use]
    pub fn server_address() -> IpAddr {
        IpAddr::from([192, 0, 2, 1])
    }

    /// Sets how the server's applications are created, each from the number of earlier connections.
    pub fn listen(&mut self, mut listen: Listen) {
        let mut numbers = 0..;
        self.listen_by_port(Box::new(move |_| numbers.next().map(&mut listen)));
    }

    /// Sets how the server's applications are created, each from its port.
    pub fn listen_by_port(&mut self, listen: ListenByPort) {
        self.world.node_mut(self.server).listen(listen);
    }

    /// Opens a connection over a path.
    ///
    /// # Errors
    /// The endpoint refuses the connection.
    pub fn connect(
        &mut self,
        path: usize,
        app: Box<dyn App>,
    ) -> Result<ConnectionId, ConnectError> {
        self.connect_to(path, SERVER_PORT, app)
    }

    /// Opens a connection to a port of the server over a path.
    ///
    /// # Errors
    /// The endpoint refuses the connection.
    pub fn connect_to(
        &mut self,
        path: usize,
        port: u16,
        app: Box<dyn App>,
    ) -> Result<ConnectionId, ConnectError> {
        let [local, remote] = self.sockets(path, port);
        let (now, config) = (self.world.now(), self.connection.clone());
        self.world.node_mut(self.client).connect(now, config, local, remote, app)
    }

    /// Both ends of a connection over a path to this port of the server.
    fn sockets(&self, path: usize, port: u16) -> [SocketAddr; 2] {
        let [client, server] = self.ends(path);
        [SocketAddr::new(client, 0), SocketAddr::new(server, port)]
    }

    /// Opens a connection to a port of the server over a path at a later time.
    pub fn schedule_connect(&mut self, when: Instant, path: usize, port: u16, app: Box<dyn App>) {
        let [local, remote] = self.sockets(path, port);
        let (client, config) = (self.client, self.connection.clone());
        self.world.run_at(when, move |world| {
            let now = world.now();
            // If there is no room for a connection, its messages count as missing.
            world.node_mut(client).connect(now, config, local, remote, app).ok();
        });
    }

    /// Opens a connection with another configuration over a path. It uses the client's paths.
    ///
    /// # Errors
    /// The endpoint refuses the connection.
    pub fn connect_as(
        &mut self,
        mut config: ConnectionConfig,
        path: usize,
        app: Box<dyn App>,
    ) -> Result<ConnectionId, ConnectError> {
        config.local_addresses.clone_from(&self.connection.local_addresses);
        let usual = core::mem::replace(&mut self.connection, config);
        let connected = self.connect(path, app);
        self.connection = usual;
        connected
    }

    /// Gives both hosts lanes over the first `count` paths, with the backup flags and costs of the streams.
    pub fn add_lanes(&mut self, client: &LaneConfig, server: &LaneConfig, count: usize) {
        let costs: Vec<_> = self
            .connection
            .local_addresses
            .iter()
            .take(count)
            .map(|address| (address.backup, address.cost))
            .collect();
        let ends: Vec<_> = (0..costs.len()).map(|path| self.ends(path)).collect();
        let [near, far] = lane::lanes([client, server], &ends, &costs, [LANE_PORT, LANE_PORT]);
        self.world.node_mut(self.client).set_lane(near);
        self.world.node_mut(self.server).set_lane(far);
    }

    /// Adds the two ends of a datagram application, the client's first.
    pub fn add_datagram_apps(&mut self, [client, server]: [Box<dyn DatagramApp>; 2]) {
        for (node, app) in [(self.client, client), (self.server, server)] {
            if let Some(lane) = self.world.node_mut(node).lane_mut() {
                lane.add_app(app);
            }
        }
    }

    /// Adds a competing plain TCP connection between two other hosts with this configuration, over the links of a
    /// path, starting at this time. The first application is on the client's side.
    pub fn add_competing_connection_at(
        &mut self,
        when: Instant,
        path: usize,
        mut config: ConnectionConfig,
        [near, far]: [Box<dyn App>; 2],
    ) {
        let number = self.competing_hosts;
        self.competing_hosts += 1;
        config.mptcp = false;
        let (near_ip, far_ip) = (IpAddr::from([10, 255, number, 1]), [198, 51, 100, number].into());
        let host = |accept, address: IpAddr, name: &str| {
            let addresses = vec![local_address(0, address, false, true)];
            let endpoint = EndpointConfig { accept, monitor: false, ..self.endpoint.clone() };
            let carrier_overhead = self.carrier_overhead;
            let rng = self.world.seeds().stream(&format!("stranger/{number}/{name}"));
            let peers = Vec::new();
            Host::new(HostConfig { endpoint, addresses, peers, carrier_overhead }, Box::new(rng))
        };
        let (client, server) =
            (host(None, near_ip, "near"), host(Some(config.clone()), far_ip, "far"));
        let client = self.world.add_node(client, &[near_ip]);
        let server = self.world.add_node(server, &[far_ip]);
        self.world.mark_competing_host(client);
        self.world.mark_competing_host(server);
        self.world.route(near_ip, far_ip, self.up[path]);
        self.world.route(far_ip, near_ip, self.down[path]);
        let mut far = Some(far);
        let accepts = move |_| far.take();
        self.world.node_mut(server).listen(Box::new(accepts));
        self.world.run_at(when, move |world| {
            let (now, local) = (world.now(), SocketAddr::new(near_ip, 0));
            let remote = SocketAddr::new(far_ip, SERVER_PORT);
            // A new host has room for a connection.
            world.node_mut(client).connect(now, config, local, remote, near).ok();
        });
    }

    /// Routes the packets of a path over another path's link, as a shared bottleneck.
    pub fn share_link(&mut self, path: usize, with: usize) {
        (self.up[path], self.down[path]) = (self.up[with], self.down[with]);
        self.route(path);
    }

    /// Routes the packets between the ends of a path over its link.
    fn route(&mut self, path: usize) {
        let [client, server] = self.ends(path);
        self.world.route(client, server, self.up[path]);
        self.world.route(server, client, self.down[path]);
    }

    /// Takes both directions of a path down or up, without notifying the hosts.
    pub fn set_path_up(&mut self, path: usize, up: bool) {
        self.world.set_link_up(self.up[path], up);
        self.world.set_link_up(self.down[path], up);
    }

    /// Takes both directions of a path down or up at a later time, without notifying the hosts.
    pub fn schedule_path_change(&mut self, when: Instant, path: usize, up: bool) {
        let links = [self.up[path], self.down[path]];
        self.world
            .run_at(when, move |world| links.iter().for_each(|link| world.set_link_up(*link, up)));
    }

    /// Removes or restores the address of the client's interface, and notifies the client.
    pub fn schedule_address_change(&mut self, when: Instant, path: usize, up: bool) {
        let (client, [address, _]) = (self.client, self.ends(path));
        self.world.run_at(when, move |world| world.set_address(client, address, up));
    }

    /// Gives the client another address on this path at `when`. The old address must have been removed by then.
    pub fn schedule_renumbering(&mut self, when: Instant, path: usize) {
        self.renumbered[path] += 1;
        self.route(path);
        let (client, [address, _]) = (self.client, self.ends(path));
        self.world.run_at(when, move |world| world.set_address(client, address, true));
    }

    /// Report of the client's application with this index.
    #[must_use]
    pub fn client_report(&self, index: usize) -> Option<&Report> {
        self.world.node(self.client).report(index)
    }

    /// Report of the server's application with this index.
    #[must_use]
    pub fn server_report(&self, index: usize) -> Option<&Report> {
        self.world.node(self.server).report(index)
    }
}

/// The addresses of both ends of a path after this many changes of the client's, which comes first.
fn ends(path: usize, renumbered: u8, ipv6: bool) -> [IpAddr; 2] {
    if !ipv6 {
        return [Paths::address(path, renumbered), Paths::server_address()];
    }
    let client = [CLIENT_IPV6_PREFIX, 0, 0, path as u16, 0, 0, renumbered.into(), 1];
    [Ipv6Addr::from(client).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()]
}

/// The server's addresses, one per family of the paths, in the order of the paths.
fn server_ips(ipv6: &[bool]) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for is_ipv6 in ipv6 {
        let [_, server] = ends(0, 0, *is_ipv6);
        if !ips.contains(&server) {
            ips.push(server);
        }
    }
    ips
}

fn local_address(id: u8, address: IpAddr, backup: bool, subflow: bool) -> LocalAddress {
    LocalAddress {
        backup,
        subflow,
        ..LocalAddress::new(AddressId(id), SocketAddr::new(address, 0))
    }
}
