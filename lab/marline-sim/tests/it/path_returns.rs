//! Table of returns: the time until traffic again uses a path that was silent, slow or flapping, and the bytes of its
//! probes, for streams and for datagrams.

use marline_core::ConnectionConfig;
use marline_datagram::{FlowId, LaneConfig};
use marline_link::DuplexConfig;
use marline_sim::{
    Amount, Bulk, Echo, EchoServer, ExchangeSizes, LanePaths, LanePathsConfig, LinkId, NodeId,
    Pace, Paths, PathsConfig, Pulse, PulsePlan, ResponseServer, UDP_CAPABILITIES, Units, World,
    median,
};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::{link, parallel};

const WIFI: &str = "up.rate=15M,down.rate=30M,delay=8ms,queue=100ms";
const LTE: &str = "up.rate=6M,down.rate=15M,delay=30ms,queue=100ms";
/// WiFi at the edge of its range.
const SLOW: &str = "rate=300k,delay=400ms,queue=1s";
const SECONDS: [u64; 6] = [4, 10, 15, 30, 60, 120];
const SEEDS: u64 = 8;
const MS: fn(u64) -> Duration = Duration::from_millis;
/// Messages of both kinds of traffic.
const EVERY: Duration = Duration::from_millis(100);
const BYTES: u64 = 100;
/// A faster echo used WiFi in both directions, a faster datagram in one.
const ECHO_OVER_WIFI: Duration = Duration::from_millis(30);
const DATAGRAM_OVER_WIFI: Duration = Duration::from_millis(15);
/// Number of consecutive fast messages that count as a return.
const IN_A_ROW: usize = 10;

/// Trouble of WiFi.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Trouble {
    Silent,
    Slow,
    Flapping,
}

/// Start and end of the trouble.
#[derive(Copy, Clone, Debug)]
struct Spell {
    trouble: Trouble,
    from: Instant,
    until: Instant,
}

impl Spell {
    fn new(trouble: Trouble, seconds: u64, seed: u64) -> Self {
        let from = Instant::from_secs(10) + MS(137 * seed);
        Spell { trouble, from, until: from + Duration::from_secs(seconds) + MS(61 * seed) }
    }

    /// Applies it to the two directions of WiFi.
    fn schedule<N: marline_sim::Node + 'static>(self, world: &mut World<N>, links: [LinkId; 2]) {
        match self.trouble {
            Trouble::Silent => at_set_up(world, self.from, links, false),
            Trouble::Flapping => {
                let mut at = self.from;
                while at < self.until {
                    at_set_up(world, at, links, false);
                    at_set_up(world, (at + MS(1_100)).min(self.until), links, true);
                    at += MS(1_500);
                }
            }
            Trouble::Slow => {
                for (at, text) in [(self.from, SLOW), (self.until, WIFI)] {
                    let DuplexConfig { up, down } = link(text);
                    world.run_at(at, move |world| {
                        world.set_link(links[0], up);
                        world.set_link(links[1], down);
                    });
                }
            }
        }
        at_set_up(world, self.until, links, true);
    }

    /// Time from the end of the trouble until the arrival of the first of several consecutive messages that were
    /// `quick` enough.
    fn return_time(self, messages: &[(Instant, Duration)], quick: Duration) -> Duration {
        let after: Vec<_> =
            messages.iter().filter(|(sent, took)| *sent + *took >= self.until).collect();
        let back = after.windows(IN_A_ROW).find(|row| row.iter().all(|(_, took)| *took <= quick));
        let at = back.map(|row| row[0].0 + row[0].1);
        at.map_or(Duration::from_secs(999), |at| at.since(self.until))
    }
}

fn at_set_up<N: marline_sim::Node + 'static>(
    world: &mut World<N>,
    at: Instant,
    links: [LinkId; 2],
    up: bool,
) {
    world.run_at(at, move |world| links.iter().for_each(|link| world.set_link_up(*link, up)));
}

/// Return time of a run, and the bytes per second that were sent during the silence.
#[derive(Copy, Clone, Debug)]
struct Outcome {
    back: Duration,
    probes_per_s: f64,
}

fn offered<N: marline_sim::Node>(world: &World<N>, links: [LinkId; 2]) -> u64 {
    links.iter().map(|id| world.link(*id).stats().offered_bytes).sum()
}

/// Runs to the end, and measures the bytes sent on WiFi starting some seconds after the beginning of its trouble.
fn run<N: marline_sim::Node + 'static>(
    world: &mut World<N>,
    links: [LinkId; 2],
    spell: Spell,
) -> f64 {
    let since = (spell.from + Duration::from_secs(2)).min(spell.until);
    world.run_until(since);
    let before = offered(world, links);
    world.run_until(spell.until);
    let sent = offered(world, links) - before;
    world.run_until(spell.until + Duration::from_secs(40));
    sent as f64 / spell.until.since(since).as_secs_f64()
}

fn config() -> ConnectionConfig {
    ConnectionConfig::new(marline_algos::default_policies())
}

fn scene(seed: u64) -> Paths {
    let links = [WIFI, LTE].map(link).to_vec();
    let mut scene = PathsConfig::new(links, config());
    scene.capabilities = UDP_CAPABILITIES;
    scene.carrier_overhead = 17;
    Paths::new(&scene, SeedTree::new(seed))
}

/// Opens an echo connection that lasts this long after the fault.
fn open_echo(paths: &mut Paths, spell: Spell) {
    let length = spell.until.since(Instant::ZERO) + Duration::from_secs(40);
    let messages = length.as_millis() as u64 / EVERY.as_millis() as u64;
    paths.connect(0, Box::new(Echo::new(BYTES, EVERY, messages, 7))).expect("a connection");
}

/// Send times of a connection's echoes, and their durations.
fn echoes(paths: &Paths, connection: usize) -> Vec<(Instant, Duration)> {
    let report = paths.client_report(connection).expect("connected");
    assert_eq!(report.wrong_at, None);
    let opened = report.opened_at.expect("opened");
    let numbered = (0u32..).zip(&report.latencies);
    numbered.map(|(number, took)| (opened + EVERY * number, *took)).collect()
}

fn streams(spell: Spell, seed: u64) -> Outcome {
    let mut paths = scene(seed);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    open_echo(&mut paths, spell);
    let links = [paths.up[0], paths.down[0]];
    spell.schedule(&mut paths.world, links);
    let probes_per_s = run(&mut paths.world, links, spell);
    let messages = echoes(&paths, 0);
    Outcome { back: spell.return_time(&messages, ECHO_OVER_WIFI), probes_per_s }
}

/// Send times of an end's datagrams, and their delays; infinite for lost ones.
fn datagrams(scene: &LanePaths, from: NodeId, to: NodeId) -> Vec<(Instant, Duration)> {
    let report = |node: NodeId| {
        let app = scene.world.node(node).app(0).expect("an application");
        app.as_any().downcast_ref::<Pulse>().expect("a pulse").report()
    };
    let arrived = &report(to).arrived;
    let took = |(number, sent): (usize, &Instant)| {
        let at = arrived.get(number).copied().flatten();
        (*sent, at.map_or(Duration::from_secs(100), |at| at.since(*sent)))
    };
    report(from).sent.iter().enumerate().map(took).collect()
}

fn lane() -> LaneConfig {
    let registry = marline_algos::Registry::default();
    let policy = registry.datagram_policy("auto").expect("built in");
    LaneConfig::new(policy, registry.congestion("cubic-westwood").expect("built in"))
}

fn lanes(spell: Spell, seed: u64) -> Outcome {
    let links = [("wifi", WIFI), ("lte", LTE)];
    let links = links.map(|(name, text)| (name.to_owned(), link(text))).to_vec();
    let config = LanePathsConfig { links, backup: Vec::new(), client: lane(), server: lane() };
    let mut scene = LanePaths::new(&config, SeedTree::new(seed));
    let plan = PulsePlan {
        from: Instant::from_secs(1),
        until: spell.until + Duration::from_secs(40),
        gap: (EVERY, EVERY + MS(1)),
        group: (1, 1),
        bytes: BYTES as usize,
    };
    let end = |name| Box::new(Pulse::new(FlowId(5), plan, SeedTree::new(seed).stream(name)));
    scene.add_apps(end("client"), end("server"));
    let links = [scene.up[0], scene.down[0]];
    spell.schedule(&mut scene.world, links);
    let probes_per_s = run(&mut scene.world, links, spell);
    let both = [(scene.client, scene.server), (scene.server, scene.client)];
    let back =
        both.map(|(from, to)| spell.return_time(&datagrams(&scene, from, to), DATAGRAM_OVER_WIFI));
    Outcome { back: back[0].max(back[1]), probes_per_s }
}

/// Prints the table of one kind of traffic and judges it.
fn table(name: &str, play: fn(Spell, u64) -> Outcome) {
    let mut faults = Vec::new();
    for trouble in [Trouble::Silent, Trouble::Slow, Trouble::Flapping] {
        for seconds in SECONDS {
            let seeds: Vec<u64> = (0..SEEDS).collect();
            let runs = parallel(&seeds, |seed| play(Spell::new(trouble, seconds, *seed), *seed));
            let back: Vec<f64> = runs.iter().map(|run| run.back.as_secs_f64()).collect();
            let worst = back.iter().copied().fold(0.0, f64::max);
            let probes = runs.iter().map(|run| run.probes_per_s).fold(0.0, f64::max);
            let line = format!(
                "{name}, WiFi {:>8} for {seconds:>3} s: back after {:.2} s (median), {worst:.2} s \
                 (worst); {probes:>5.0} B/s sent on it",
                format!("{trouble:?}").to_lowercase(),
                median(&back),
            );
            println!("{line}");
            let late = median(&back) > 0.8 || worst > 1.5;
            let loud = trouble == Trouble::Silent && seconds >= 10 && probes > 300.0;
            if late || loud {
                faults.push(line);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn streams_are_back_within_a_second() {
    table("streams", streams);
}

#[test]
fn datagrams_are_back_within_a_second() {
    table("datagrams", lanes);
}

/// All connections together send as many probes as one, and an answer to one wakes the others.
#[test]
fn forty_connections_are_back_together_and_probed_as_one() {
    const CONNECTIONS: usize = 40;
    let spell = Spell::new(Trouble::Silent, 30, 1);
    let mut paths = scene(1);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    for _ in 0..CONNECTIONS {
        open_echo(&mut paths, spell);
    }
    let links = [paths.up[0], paths.down[0]];
    spell.schedule(&mut paths.world, links);
    let probes_per_s = run(&mut paths.world, links, spell);
    let back = |connection| spell.return_time(&echoes(&paths, connection), ECHO_OVER_WIFI);
    let worst = (0..CONNECTIONS).map(back).max().expect("connections");
    println!("{CONNECTIONS} connections: all are back after {worst:?}; {probes_per_s:.0} B/s");
    assert!(worst <= MS(1_500), "{worst:?}");
    assert!(probes_per_s <= 300.0, "{probes_per_s} B/s");
}

/// A client that only receives does not detect the silence, so the server probes.
#[test]
fn a_download_is_back_within_two_seconds() {
    for seconds in [10, 30] {
        let spell = Spell::new(Trouble::Silent, seconds, 1);
        let mut paths = scene(1);
        paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(1 << 30), 1, 2))));
        paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
        let links = [paths.up[0], paths.down[0]];
        spell.schedule(&mut paths.world, links);
        paths.world.run_until(spell.until);
        let delivered = |paths: &Paths| paths.world.link(paths.down[0]).stats().delivered_bytes;
        let before = delivered(&paths);
        let limit = spell.until + Duration::from_secs(20);
        let down = paths.down[0];
        paths
            .world
            .run_while(limit, |world| world.link(down).stats().delivered_bytes < before + 200_000);
        let back = paths.world.now().since(spell.until);
        println!("download, WiFi silent for {seconds} s: 200 kB over WiFi after {back:?}");
        assert!(back <= MS(2_000), "{back:?}");
    }
}

/// On an idle connection, a silent path is probed occasionally.
#[test]
fn an_idle_connection_hardly_probes_a_silent_path() {
    // Later the subflow is abandoned, and the path manager opens another.
    let spell = Spell::new(Trouble::Silent, 80, 1);
    let mut paths = scene(1);
    let sizes = ExchangeSizes { request_bytes: BYTES, answer_bytes: BYTES };
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 2, 1))));
    // The last request is in flight when WiFi dies.
    let times = (0..50).rev().map(|number| spell.from - MS(5) - EVERY * number).collect();
    let asks = Units::new(Pace::At { bytes: BYTES, times }, BYTES, 1, 2);
    paths.connect(0, Box::new(asks)).expect("a connection");
    let links = [paths.up[0], paths.down[0]];
    spell.schedule(&mut paths.world, links);
    paths.world.run_until(spell.from + Duration::from_secs(20));
    let before = offered(&paths.world, links);
    paths.world.run_until(spell.until);
    let per_s = (offered(&paths.world, links) - before) as f64 / 60.0;
    println!("idle: {per_s:.1} B/s");
    assert!(per_s < 10.0, "{per_s} B/s");
}
