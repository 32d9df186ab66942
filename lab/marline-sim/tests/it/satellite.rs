//! Fiber and a satellite: when the fiber dies, the gap is a round trip of the satellite plus the detection time, which
//! depends on the fiber's RTT and not on a timeout of the satellite.

use marline_core::ConnectionConfig;
use marline_datagram::{FlowId, LaneConfig};
use marline_sim::{
    Echo, EchoServer, LanePaths, LanePathsConfig, NodeId, Paths, PathsConfig, Pulse, PulsePlan,
    UDP_CAPABILITIES, median,
};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::{link, parallel};

const FIBER: &str = "rate=20M,delay=20ms,queue=100ms";
const SATELLITE: &str = "rate=50M,delay=300ms,queue=300ms,loss=0.5%";
/// The satellite without losses.
const LOSSLESS: &str = "rate=50M,delay=300ms,queue=300ms";
const ROUND_TRIP_MS: f64 = 600.0;
/// Two and a half round trips of the fiber, in which both ends detect the failure. A round trip of the satellite is
/// six times as long.
const NOTICED_MS: f64 = 100.0;
const SEEDS: u64 = 32;
const MS: fn(u64) -> Duration = Duration::from_millis;
const BYTES: u64 = 100;
const UNTIL: Instant = Instant::from_secs(25);

fn dies_at(seed: u64) -> Instant {
    Instant::from_secs(15) + MS(13 * seed)
}

/// The longest time without an echo around the fiber's death, ms.
fn echo_gap_ms(every: Duration, seed: u64, satellite: &str) -> f64 {
    let links = [FIBER, satellite].map(link).to_vec();
    let config = ConnectionConfig::new(marline_algos::default_policies());
    let mut scene = PathsConfig::new(links, config);
    (scene.capabilities, scene.carrier_overhead) = (UDP_CAPABILITIES, 17);
    let mut paths = Paths::new(&scene, SeedTree::new(seed));
    paths.listen(Box::new(|_| Box::new(EchoServer::new(7))));
    let messages = UNTIL.since(Instant::ZERO).as_millis() as u64 / every.as_millis() as u64;
    paths.connect(0, Box::new(Echo::new(BYTES, every, messages, 7))).expect("a connection");
    paths.schedule_path_change(dies_at(seed), 0, false);
    paths.world.run_until(UNTIL);
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.wrong_at, report.closed), (None, None));
    // A later gap is caused by a loss on the satellite.
    let hole = report.longest_gap_within(dies_at(seed), dies_at(seed) + MS(100));
    hole.length.as_secs_f64() * 1e3
}

fn lane() -> LaneConfig {
    let registry = marline_algos::Registry::default();
    let policy = registry.datagram_policy("auto").expect("built in");
    LaneConfig::new(policy, registry.congestion("cubic-westwood").expect("built in"))
}

/// Longest gap for datagrams that both ends send independently, the longer one of both ends.
fn datagram_gap_ms(every: Duration, seed: u64) -> f64 {
    let links = [("fiber", FIBER), ("satellite", SATELLITE)];
    let links = links.map(|(name, text)| (name.to_owned(), link(text))).to_vec();
    let config = LanePathsConfig { links, backup: Vec::new(), client: lane(), server: lane() };
    let mut scene = LanePaths::new(&config, SeedTree::new(seed));
    let plan = PulsePlan {
        from: Instant::from_secs(1),
        until: UNTIL,
        gap: (every, every),
        group: (1, 1),
        bytes: BYTES as usize,
    };
    let end = |name| Box::new(Pulse::new(FlowId(5), plan, SeedTree::new(seed).stream(name)));
    scene.add_apps(end("client"), end("server"));
    scene.schedule_path_change(dies_at(seed), 0, false);
    scene.world.run_until(UNTIL);
    let gap = |node: NodeId| {
        let app = scene.world.node(node).app(0).expect("an application");
        let report = app.as_any().downcast_ref::<Pulse>().expect("a pulse").report();
        let mut arrived: Vec<Instant> = report.arrived.iter().copied().flatten().collect();
        arrived.sort_unstable();
        let gaps = arrived.windows(2).map(|pair| pair[1].since(pair[0]).as_secs_f64() * 1e3);
        gaps.fold(0.0, f64::max)
    };
    gap(scene.client).max(gap(scene.server))
}

fn gaps_ms(name: &str, gap_ms: impl Fn(u64) -> f64 + Sync) -> (f64, f64) {
    let seeds: Vec<u64> = (0..SEEDS).collect();
    let gaps = parallel(&seeds, |seed| gap_ms(*seed));
    let worst = gaps.iter().copied().fold(0.0, f64::max);
    println!("{name}: gap {:.0} ms (median), {worst:.0} ms (worst)", median(&gaps));
    (median(&gaps), worst)
}

/// A gap is the time between two messages, plus the detection time and a round trip of the satellite.
#[test]
fn echoes_are_back_a_round_trip_of_the_satellite_after_the_fibers_death_is_noticed() {
    for every_ms in [20, 50, 100, 250, 1_000] {
        let name = format!("echoes every {every_ms} ms, a satellite without losses");
        let (_, worst) = gaps_ms(&name, |seed| echo_gap_ms(MS(every_ms), seed, LOSSLESS));
        assert!(worst <= every_ms as f64 + ROUND_TRIP_MS + NOTICED_MS, "{every_ms}: {worst} ms");
        let name = format!("echoes every {every_ms} ms, a satellite with 0.5 % loss");
        let (usual, worst) = gaps_ms(&name, |seed| echo_gap_ms(MS(every_ms), seed, SATELLITE));
        assert!(usual <= every_ms as f64 + ROUND_TRIP_MS + NOTICED_MS, "{every_ms}: {usual} ms");
        // Losses on the satellite are repaired a round trip later.
        let most = every_ms as f64 + 2.0 * ROUND_TRIP_MS + 2.0 * NOTICED_MS;
        assert!(worst <= most, "{every_ms}: {worst} ms");
    }
}

/// Each end detects the failure independently: half a round trip.
#[test]
fn datagrams_come_by_the_satellite_as_soon_as_the_fibers_death_is_noticed() {
    for every_ms in [20, 50, 100] {
        let name = format!("datagrams every {every_ms} ms");
        let (usual, worst) = gaps_ms(&name, |seed| datagram_gap_ms(MS(every_ms), seed));
        let most = every_ms as f64 + ROUND_TRIP_MS / 2.0 + NOTICED_MS;
        assert!(
            usual <= most && worst <= most + every_ms as f64,
            "{every_ms}: {usual}, {worst} ms"
        );
    }
}
