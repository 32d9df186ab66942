//! World of one client and one server with streams and datagrams over the same links, and an observer of the time that
//! each packet waited in the queue of its link.

use core::any::Any;
use core::net::{IpAddr, SocketAddr};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use marline_algos::Registry;
use marline_core::{
    ConnectionConfig, EndpointConfig, FourTuple, Limits, MonitorKind, Purpose, Shard, Traffic,
};
use marline_datagram::{FlowId, Lane, LaneConfig, LaneIds, PathId, TestCipher};
use marline_policy::{AddressId, LocalAddress};
use marline_sim::{
    Amount, Bulk, Echo, EchoServer, Host, HostConfig, LANE_PORT, LaneHost, LinkId, NodeId,
    ObservationPoint, Observer, Packet, Paths, Pulse, PulsePlan, SERVER_PORT, UDP_CAPABILITIES,
    World, quantile,
};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::link;

/// Wireless routers and modems hold half a second of uplink and more.
const LINKS: [&str; 2] = [
    "up.rate=10M,down.rate=30M,delay=15ms,up.queue=500ms,down.queue=100ms",
    "up.rate=6M,down.rate=15M,delay=30ms,up.queue=1s,down.queue=100ms",
];
const RATE_MBIT: [f64; 2] = [10.0, 6.0];
const DELAY_MS: [f64; 2] = [15.0, 30.0];
/// Goodput of both uplinks together: 1,373 bytes of payload in packets of 1,445.
pub(super) const UP_MBIT: f64 = 16.0 * 0.95;
const GAME: FlowId = FlowId(5);
const GAME_BYTES: usize = 80;
const SHELL_EVERY: Duration = Duration::from_millis(100);
const SHELL_BYTES: u64 = 100;
/// Uploads begin at 2 s. Measurements begin when they have filled the queues.
const UPLOADS_AT: Instant = Instant::from_secs(2);
const MEASURED_FROM: Instant = Instant::from_secs(5);

/// One run.
#[derive(Copy, Clone, Debug)]
pub(super) struct Plan {
    pub(super) congestion: &'static str,
    /// Indexes of the links.
    pub(super) paths: &'static [usize],
    pub(super) uploads: usize,
    pub(super) seconds: u64,
}

/// Results after [`MEASURED_FROM`].
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Round trip: p50 and p99.
    pub(super) game_ms: [f64; 2],
    /// Share of the client's datagrams that were lost.
    pub(super) game_lost_percent: f64,
    /// Round trip: p50 and p99.
    pub(super) shell_ms: [f64; 2],
    /// Total of all uploads.
    pub(super) goodput_mbit: f64,
    /// Time from the game's `send` until its frame is offered to a link: p99.
    pub(super) lane_wait_ms: f64,
    /// Time from the shell's `write` until its segment is offered to a link: p50.
    pub(super) shell_wait_ms: f64,
    /// Median time that a packet waited in the queue of each uplink.
    pub(super) queue_ms: [f64; 2],
    /// Packets dropped by each uplink's queue.
    pub(super) dropped: [u64; 2],
    /// Median of the uploads' data in flight on each link, in multiples of its capacity without a queue.
    pub(super) flight: [f64; 2],
    /// Median time for which a byte of an upload is in its send buffer before it is sent.
    pub(super) buffer_ms: f64,
}

impl Seen {
    pub(super) const HEAD: &str = "| | uploads | game p50, p99 ms | lost % | shell p50, p99 ms | \
        Mbit/s | lane waits ms | shell waits ms | queue WiFi, LTE ms | dropped | in flight, BDP | \
        send buffers ms |\n\
        |---|---|---|---|---|---|---|---|---|---|---|---|";

    pub(super) fn row(&self) -> String {
        let number =
            |value: f64| if value.is_nan() { "-".to_owned() } else { format!("{value:.0}") };
        format!(
            "| {:.0}, {:.0} | {:.1} | {:.0}, {:.0} | {:.1} | {:.1} | {:.1} | {}, {} | {}, {} | \
                {:.1}, {:.1} | {:.0} |",
            self.game_ms[0],
            self.game_ms[1],
            self.game_lost_percent,
            self.shell_ms[0],
            self.shell_ms[1],
            self.goodput_mbit,
            self.lane_wait_ms,
            self.shell_wait_ms,
            number(self.queue_ms[0]),
            number(self.queue_ms[1]),
            self.dropped[0],
            self.dropped[1],
            self.flight[0],
            self.flight[1],
            self.buffer_ms,
        )
    }
}

/// Records when packets were offered to the uplinks, and how long they waited in the queues.
#[derive(Debug)]
struct Queues {
    up: Vec<LinkId>,
    paths: &'static [usize],
    offered_at: BTreeMap<u64, Instant>,
    waits_ms: [Vec<f64>; 2],
    game_offered: Vec<Instant>,
}

impl Observer for Queues {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        use marline_link::Packet as _;
        let place = |id: LinkId| self.up.iter().position(|up| *up == id);
        match sighting {
            ObservationPoint::Sent { link: Some(link), .. } if place(link).is_some() => {
                self.offered_at.insert(packet.number, now);
                if packet.path.local.port() == LANE_PORT && packet.segment.len() >= GAME_BYTES {
                    self.game_offered.push(now);
                }
            }
            ObservationPoint::Delivered { link, .. } => {
                let Some(number) = place(link).map(|place| self.paths[place]) else { return };
                let Some(offered) = self.offered_at.remove(&packet.number) else { return };
                let sending_ms = packet.wire_len() as f64 * 8.0 / (RATE_MBIT[number] * 1e3);
                let passing_ms = now.since(offered).as_secs_f64() * 1e3;
                if offered >= MEASURED_FROM {
                    let waits_ms = passing_ms - DELAY_MS[number] - sending_ms;
                    self.waits_ms[number].push(waits_ms.max(0.0));
                }
            }
            ObservationPoint::Sent { .. } => {}
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Time at which the first byte of each shell message left the endpoint.
type Left = Rc<RefCell<BTreeMap<u64, Instant>>>;

struct Scene {
    world: World,
    client: NodeId,
    server: NodeId,
    up: Vec<LinkId>,
    left: Left,
}

fn addresses(plan: &Plan) -> Vec<IpAddr> {
    plan.paths.iter().map(|path| Paths::address(*path, 0)).collect()
}

fn connection(plan: &Plan, client: bool) -> ConnectionConfig {
    let mut policies = marline_algos::default_policies();
    policies.congestion = Registry::default().congestion(plan.congestion).expect("built in");
    let own = if client { addresses(plan) } else { vec![Paths::server_address()] };
    let local = |(id, address): (usize, &IpAddr)| LocalAddress {
        subflow: client,
        ..LocalAddress::new(AddressId(id as u8), SocketAddr::new(*address, 0))
    };
    let mut config = ConnectionConfig::new(policies);
    config.local_addresses = own.iter().enumerate().map(local).collect();
    config
}

fn host(plan: &Plan, client: bool, seeds: &SeedTree) -> Host {
    let config = connection(plan, client);
    let endpoint = EndpointConfig {
        capabilities: UDP_CAPABILITIES,
        limits: Limits::default(),
        shard: Shard::SINGLE,
        accept: (!client).then(|| config.clone()),
        monitor: true,
    };
    let config_of_host = HostConfig {
        endpoint,
        addresses: config.local_addresses.clone(),
        peers: Vec::new(),
        carrier_overhead: 17,
    };
    let name = if client { "client" } else { "server" };
    let mut host = Host::new(config_of_host, Box::new(seeds.stream(name)));
    let server = Paths::server_address();
    let path = |(id, address): (usize, &IpAddr)| {
        let ends = [*address, server].map(|address| SocketAddr::new(address, LANE_PORT));
        let [local, remote] = if client { ends } else { [ends[1], ends[0]] };
        (PathId(id as u8), FourTuple { local, remote })
    };
    let paths = addresses(plan).iter().enumerate().map(path).collect();
    let policy = Registry::default().datagram_policy("auto").expect("built in");
    let [ours, theirs] = TestCipher::pair(1);
    let (id, peers, keys) = if client { (1, 2, ours) } else { (2, 1, theirs) };
    let ids = LaneIds { local: id, peers };
    let lane =
        Lane::new(LaneConfig::new(policy, config.policies.congestion), ids, keys, Instant::ZERO);
    host.set_lane(LaneHost::new(lane, paths, Instant::ZERO));
    host
}

impl Scene {
    fn new(plan: &Plan) -> Scene {
        let seeds = SeedTree::new(1);
        let mut world = World::new(seeds);
        let server_address = Paths::server_address();
        let client = world.add_node(host(plan, true, &seeds), &addresses(plan));
        let server = world.add_node(host(plan, false, &seeds), &[server_address]);
        let mut up = Vec::new();
        for (path, address) in plan.paths.iter().zip(addresses(plan)) {
            let spec = link(LINKS[*path]);
            up.push(world.connect(address, server_address, spec.up, spec.down).0);
        }
        let waits_ms = Default::default();
        world.observe(Box::new(Queues {
            up: up.clone(),
            paths: plan.paths,
            offered_at: BTreeMap::new(),
            waits_ms,
            game_offered: Vec::new(),
        }));
        let left = Left::default();
        Scene { world, client, server, up, left }
    }

    fn start(&mut self, plan: &Plan) {
        let until = Instant::from_secs(plan.seconds);
        let messages = plan.seconds * 1_000 / SHELL_EVERY.as_millis() as u64;
        // The first connection is the shell's.
        let mut accepted = 0;
        self.world.node_mut(self.server).listen(Box::new(move |_| {
            accepted += 1;
            Some(match accepted {
                1 => Box::new(EchoServer::new(7)),
                _ => Box::new(Bulk::new(Amount::Nothing, 2, 1)),
            })
        }));
        self.connect(plan, || Box::new(Echo::new(SHELL_BYTES, SHELL_EVERY, messages, 7)));
        let left = Rc::clone(&self.left);
        let shell = self.world.node(self.client).connections().next().expect("open").0;
        self.world.node_mut(self.client).set_watcher(Box::new(move |event| {
            let MonitorKind::Traffic { what, .. } = &event.kind else { return };
            let Traffic::Sent(sent) = &**what else { return };
            if event.connection == shell && sent.purpose == Purpose::New {
                left.borrow_mut().entry(sent.data.start.0 / SHELL_BYTES).or_insert(event.at);
            }
        }));
        let pulse = PulsePlan {
            from: Instant::from_secs(1),
            until,
            gap: (Duration::from_millis(16), Duration::from_millis(17)),
            group: (1, 1),
            bytes: GAME_BYTES,
        };
        for (node, name) in [(self.client, "game client"), (self.server, "game server")] {
            let app = Pulse::new(GAME, pulse, SeedTree::new(3).stream(name));
            self.world.node_mut(node).lane_mut().expect("a lane").add_app(Box::new(app));
        }
        self.world.run_until(UPLOADS_AT);
        for _ in 0..plan.uploads {
            self.connect(plan, || Box::new(Bulk::new(Amount::Endless, 1, 2)));
        }
    }

    fn connect(&mut self, plan: &Plan, app: impl FnOnce() -> Box<dyn marline_sim::App>) {
        let now = self.world.now();
        let config = connection(plan, true);
        let local = SocketAddr::new(addresses(plan)[0], 0);
        let remote = SocketAddr::new(Paths::server_address(), SERVER_PORT);
        let streams = &mut self.world.node_mut(self.client);
        streams.connect(now, config, local, remote, app()).expect("a connection");
    }

    /// One-way latencies of the game's datagrams from one end to the other; infinite for lost ones.
    fn game_ms(&self, from: NodeId, to: NodeId) -> Vec<f64> {
        let report = |node: NodeId| {
            let app = self.world.node(node).lane().and_then(|lane| lane.app(0)).expect("a game");
            app.as_any().downcast_ref::<Pulse>().expect("a pulse").report()
        };
        let arrived = &report(to).arrived;
        let took = |(number, sent): (usize, &Instant)| {
            let at = arrived.get(number).copied().flatten();
            at.map_or(f64::INFINITY, |at| at.since(*sent).as_secs_f64() * 1e3)
        };
        let measured = report(from).sent.iter().enumerate();
        measured.filter(|(_, sent)| **sent >= MEASURED_FROM).map(took).collect()
    }

    fn game_sent(&self) -> Vec<Instant> {
        let app = self.world.node(self.client).lane().and_then(|lane| lane.app(0)).expect("a game");
        let report = app.as_any().downcast_ref::<Pulse>().expect("a pulse").report();
        report.sent.iter().copied().filter(|sent| *sent >= MEASURED_FROM).collect()
    }

    /// Time from each of the shell's writes until it left the endpoint, and until its echo arrived.
    fn shell_ms(&self) -> (Vec<f64>, Vec<f64>) {
        let report = self.world.node(self.client).report(0).expect("a shell");
        assert_eq!(report.wrong_at, None);
        let opened = report.opened_at.expect("open");
        let due = |number: usize| opened + SHELL_EVERY * number as u32;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let first = report.latencies.len().min(
            MEASURED_FROM.since(opened).as_millis() as usize / SHELL_EVERY.as_millis() as usize,
        );
        let back = report.latencies[first..].iter().map(|took| ms(*took)).collect();
        let left = self.left.borrow();
        let left =
            left.range(first as u64..).map(|(number, at)| ms(at.since(due(*number as usize))));
        (left.collect(), back)
    }
}

/// Current data of the uploads in flight and in their send buffers.
struct Sample {
    in_flight: [u64; 2],
    unsent: u64,
}

fn sample(scene: &Scene, plan: &Plan) -> Sample {
    let streams = &scene.world.node(scene.client);
    let mut sample = Sample { in_flight: [0; 2], unsent: 0 };
    for (id, _) in streams.connections().skip(1) {
        let Some(info) = streams.endpoint().info(id) else { continue };
        sample.unsent += info.unsent;
        for subflow in &info.subflows {
            let place = addresses(plan).iter().position(|ip| *ip == subflow.path.local.ip());
            sample.in_flight[plan.paths[place.expect("ours")]] += subflow.in_flight;
        }
    }
    sample
}

/// Bytes of the uploads that the server has read.
fn uploaded(scene: &Scene, plan: &Plan) -> u64 {
    let server = &scene.world.node(scene.server);
    (1..=plan.uploads).filter_map(|index| server.report(index)).map(|report| report.read).sum()
}

/// Runs a scene.
pub(super) fn run(plan: &Plan) -> Seen {
    let mut scene = Scene::new(plan);
    scene.start(plan);
    scene.world.run_until(MEASURED_FROM);
    let before = uploaded(&scene, plan);
    let until = Instant::from_secs(plan.seconds);
    let mut samples = Vec::new();
    while scene.world.now() < until {
        let next = scene.world.now() + Duration::from_millis(50);
        scene.world.run_until(next);
        samples.push(sample(&scene, plan));
    }
    let bits = (uploaded(&scene, plan) - before) as f64 * 8.0;
    let goodput_mbit = bits / until.since(MEASURED_FROM).as_secs_f64() / 1e6;
    scene.world.run_until(until + Duration::from_secs(3));
    judge(&scene, &samples, goodput_mbit)
}

fn judge(scene: &Scene, samples: &[Sample], goodput_mbit: f64) -> Seen {
    let queues = scene.world.observer::<Queues>().expect("an observer");
    let (there, back) =
        (scene.game_ms(scene.client, scene.server), scene.game_ms(scene.server, scene.client));
    let both: Vec<f64> = there.iter().zip(&back).map(|(there, back)| there + back).collect();
    let lost = there.iter().filter(|ms| ms.is_infinite()).count();
    let lane_waits = scene.game_sent().into_iter().filter_map(|sent| {
        let after = queues.game_offered.partition_point(|at| *at < sent);
        Some(queues.game_offered.get(after)?.since(sent).as_secs_f64() * 1e3)
    });
    let (left, shell) = scene.shell_ms();
    let flight = [0, 1].map(|path: usize| {
        // Capacity of the link with an empty queue.
        let holds = RATE_MBIT[path] * 1e6 / 8.0 * 2.0 * DELAY_MS[path] / 1e3;
        quantile(&samples.iter().map(|s| s.in_flight[path] as f64 / holds).collect::<Vec<_>>(), 0.5)
    });
    let unsent: Vec<f64> = samples.iter().map(|sample| sample.unsent as f64).collect();
    let rate = (goodput_mbit * 1e6 / 8e3).max(1.0);
    let mut dropped = [0; 2];
    for (place, id) in scene.up.iter().enumerate() {
        dropped[queues.paths[place]] = scene.world.link(*id).stats().dropped_queue;
    }
    Seen {
        game_ms: [quantile(&both, 0.5), quantile(&both, 0.99)],
        game_lost_percent: lost as f64 / there.len() as f64 * 100.0,
        shell_ms: [quantile(&shell, 0.5), quantile(&shell, 0.99)],
        goodput_mbit,
        lane_wait_ms: quantile(&lane_waits.collect::<Vec<_>>(), 0.99),
        shell_wait_ms: quantile(&left, 0.5),
        queue_ms: [0, 1].map(|path: usize| quantile(&queues.waits_ms[path], 0.5)),
        dropped,
        flight,
        buffer_ms: if goodput_mbit > 0.0 { quantile(&unsent, 0.5) / rate } else { 0.0 },
    }
}
