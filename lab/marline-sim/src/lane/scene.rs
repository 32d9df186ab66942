//! Scene with lanes: a client with an address on each link, and a server with one address.

use core::net::SocketAddr;

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
    /// A link per address of the client, with its name, which selects its random streams. Up is from the client.
    pub links: Vec<(String, DuplexConfig)>,
    /// Backup flag of each path; missing ones are false.
    pub backup: Vec<bool>,
    /// Lane of the client.
    pub client: LaneConfig,
    /// Lane of the server.
    pub server: LaneConfig,
}

/// Two hosts with a lane each, and the links between them. Its end is reported to [`digest::of_runs`].
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
    /// Builds the scene. All randomness is derived from `seeds`. Links with the same name draw the same in other
    /// scenes.
    #[must_use]
    pub fn new(config: &LanePathsConfig, seeds: SeedTree) -> Self {
        let mut world = World::new(seeds);
        let server_address = Paths::server_address();
        let paths = |client: bool| -> Vec<(PathId, FourTuple)> {
            let path = |number: usize| {
                let ours = SocketAddr::new(Paths::address(number, 0), 40_000);
                let theirs = SocketAddr::new(server_address, SERVER_PORT);
                let (local, remote) = if client { (ours, theirs) } else { (theirs, ours) };
                (PathId(number as u8), FourTuple { local, remote })
            };
            (0..config.links.len()).map(path).collect()
        };
        let [ours, theirs] = TestCipher::pair(1);
        let start = Instant::ZERO;
        let mut host = |client: bool, keys| {
            let lane = if client { &config.client } else { &config.server };
            let (ours, peers) = if client { (1, 2) } else { (2, 1) };
            let ids = LaneIds { ours, peers };
            let mut lane =
                LaneHost::new(Lane::new(lane.clone(), ids, keys, start), paths(client), start);
            for (number, backup) in config.backup.iter().enumerate() {
                lane.lane_mut().set_path_cost(PathId(number as u8), *backup, PathCost::NONE);
            }
            let addresses: Vec<_> = match client {
                true => (0..config.links.len()).map(|path| Paths::address(path, 0)).collect(),
                false => vec![server_address],
            };
            world.add_node(lane, &addresses)
        };
        let (client, server) = (host(true, ours), host(false, theirs));
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
    pub fn at_set_path_up(&mut self, when: Instant, path: usize, up: bool) {
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
