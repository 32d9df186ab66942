//! Scene with lanes: a client with an address on each link, and a server with one address.

use core::net::{IpAddr, SocketAddr};

use marline_core::FourTuple;
use marline_datagram::{Lane, LaneConfig, LaneIds, PathId, TestCipher};
use marline_link::DuplexConfig;
use marline_policy::PathCost;
use marline_time::{Instant, SeedTree};

use super::app::DatagramApp;
use super::host::LaneHost;
use crate::{LinkId, NodeId, Paths, SERVER_PORT, World, digest};

/// Configuration of the scene.
#[derive(Clone, Debug)]
pub struct LanePathsConfig {
    /// A link per address of the client, with the name that selects its random streams. Up is from the client.
    pub links: Vec<(String, DuplexConfig)>,
    /// Backup flag of each path. Missing ones are false.
    pub backup: Vec<bool>,
    /// Lane of the client.
    pub client: LaneConfig,
    /// Lane of the server.
    pub server: LaneConfig,
}

/// Two hosts with a lane each, and the links between them. Its end is reported to [`digest::digest_of_runs`].
#[derive(Debug)]
pub struct LanePaths {
    /// The world.
    pub world: World<LaneHost>,
    /// The client.
    pub client: NodeId,
    /// The server.
    pub server: NodeId,
    /// Links from the client, by path.
    pub up: Vec<LinkId>,
    /// Links to the client, by path.
    pub down: Vec<LinkId>,
}

impl Drop for LanePaths {
    fn drop(&mut self) {
        digest::run_ended(self.world.digest());
    }
}

impl LanePaths {
    /// Builds the scene. All random numbers are derived from `seeds`. Links with the same name draw the same numbers
    /// in other scenes.
    #[must_use]
    pub fn new(config: &LanePathsConfig, seeds: SeedTree) -> Self {
        let mut world = World::new(seeds);
        let server_address = Paths::server_address();
        let count = config.links.len();
        let backup = |number: usize| config.backup.get(number).copied().unwrap_or(false);
        let costs: Vec<_> = (0..count).map(|number| (backup(number), PathCost::NONE)).collect();
        let addresses: Vec<_> = (0..count).map(|path| Paths::address(path, 0)).collect();
        let ends: Vec<_> = addresses.iter().map(|address| [*address, server_address]).collect();
        let [client, server] =
            lanes([&config.client, &config.server], &ends, &costs, [40_000, SERVER_PORT]);
        let client = world.add_node(client, &addresses);
        let server = world.add_node(server, &[server_address]);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        for (number, (name, link)) in config.links.iter().enumerate() {
            let (own, address) = (seeds.branch(name), Paths::address(number, 0));
            up.push(world.add_seeded_link(link.up.clone(), &own.branch("up")));
            down.push(world.add_seeded_link(link.down.clone(), &own.branch("down")));
            world.route(address, server_address, up[number]);
            world.route(server_address, address, down[number]);
        }
        LanePaths { world, client, server, up, down }
    }

    /// Adds the two ends of an application.
    pub fn add_apps(&mut self, client: Box<dyn DatagramApp>, server: Box<dyn DatagramApp>) {
        self.world.node_mut(self.client).add_app(client);
        self.world.node_mut(self.server).add_app(server);
    }

    /// Takes both directions of a path down or up at a later time, without notifying the hosts.
    pub fn schedule_path_change(&mut self, when: Instant, path: usize, up: bool) {
        let links = [self.up[path], self.down[path]];
        self.world
            .run_at(when, move |world| links.iter().for_each(|link| world.set_link_up(*link, up)));
    }

    /// An application of the client, if it has this type.
    #[must_use]
    pub fn client_app<T: 'static>(&self, index: usize) -> Option<&T> {
        self.world.node(self.client).app(index)?.as_any().downcast_ref()
    }

    /// An application of the server, if it has this type.
    #[must_use]
    pub fn server_app<T: 'static>(&self, index: usize) -> Option<&T> {
        self.world.node(self.server).app(index)?.as_any().downcast_ref()
    }
}

/// Creates the hosts of two lanes, the client's first, over paths between these addresses, with these backup flags and
/// costs, between these ports.
pub(crate) fn lanes(
    [client, server]: [&LaneConfig; 2],
    ends: &[[IpAddr; 2]],
    paths: &[(bool, PathCost)],
    [client_port, server_port]: [u16; 2],
) -> [LaneHost; 2] {
    let four_tuple = |number: usize, is_client: bool| {
        let [client, server] = ends[number];
        let ours = SocketAddr::new(client, client_port);
        let theirs = SocketAddr::new(server, server_port);
        let (local, remote) = if is_client { (ours, theirs) } else { (theirs, ours) };
        (PathId(number as u8), FourTuple { local, remote })
    };
    let host = |config: &LaneConfig, keys, is_client: bool| {
        let (ours, peers) = if is_client { (1, 2) } else { (2, 1) };
        let lane = Lane::new(config.clone(), LaneIds { local: ours, peers }, keys, Instant::ZERO);
        let tuples = (0..paths.len()).map(|number| four_tuple(number, is_client)).collect();
        let mut host = LaneHost::new(lane, tuples, Instant::ZERO);
        for (number, (backup, cost)) in paths.iter().enumerate() {
            host.lane_mut().set_path_cost(PathId(number as u8), *backup, *cost);
        }
        host
    };
    let [ours, theirs] = TestCipher::pair(1);
    [host(client, ours, true), host(server, theirs, false)]
}
