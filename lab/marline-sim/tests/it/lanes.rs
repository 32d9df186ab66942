//! Lanes of datagrams in virtual time.

use marline_algos::Registry;
use marline_datagram::{FlowId, LaneConfig};
use marline_link::{DuplexConfig, DuplexSpec};
use marline_sim::{LanePaths, LanePathsConfig, Pulse, PulsePlan, QuicLikeFlow};
use marline_time::{Duration, Instant, SeedTree};

const MS: fn(u64) -> Duration = Duration::from_millis;
const START: Instant = Instant::from_secs(1);

fn link(text: &str) -> DuplexConfig {
    let spec: DuplexSpec = text.parse().unwrap();
    spec.resolve(&SeedTree::new(1), &mut |_| None).unwrap()
}

fn config(policy: &str) -> LaneConfig {
    let registry = Registry::default();
    let policy = registry.datagram_policy(policy).unwrap();
    LaneConfig::new(policy, registry.congestion("cubic-westwood").unwrap())
}

fn scene(policy: &str, links: [&str; 2], seed: u64) -> LanePaths {
    let links = [("a", links[0]), ("b", links[1])];
    let links = links.map(|(name, text)| (name.to_owned(), link(text))).to_vec();
    let (client, server) = (config(policy), config(policy));
    LanePaths::new(
        &LanePathsConfig { links, backup: Vec::new(), client, server },
        SeedTree::new(seed),
    )
}

fn call(seconds: u64) -> PulsePlan {
    PulsePlan {
        from: START,
        until: START + Duration::from_secs(seconds),
        gap: (MS(20), MS(33)),
        group: (1, 4),
        bytes: 1_000,
    }
}

fn game(seconds: u64) -> PulsePlan {
    PulsePlan { gap: (MS(16), MS(17)), group: (1, 1), bytes: 80, ..call(seconds) }
}

fn add(scene: &mut LanePaths, flow: u64, plan: PulsePlan, seed: u64) {
    let end = |name| Box::new(Pulse::new(FlowId(flow), plan, SeedTree::new(seed).stream(name)));
    scene.add_apps(end("client"), end("server"));
}

/// Latencies of the server's datagrams, ms; infinite for lost ones.
fn down_ms(scene: &LanePaths, app: usize) -> Vec<f64> {
    let (from, to) = (scene.server_app::<Pulse>(app), scene.client_app::<Pulse>(app));
    let (from, to) = (from.unwrap().report(), to.unwrap().report());
    assert_eq!((to.twice, to.wrong), (0, 0));
    let latency = |(number, sent): (usize, &Instant)| {
        let arrived = to.arrived.get(number).copied().flatten();
        arrived.map_or(f64::INFINITY, |at| at.since(*sent).as_secs_f64() * 1e3)
    };
    from.sent.iter().enumerate().map(latency).collect()
}

#[test]
fn a_call_over_two_links_arrives_once_and_in_time() {
    let links = ["rate=20M,delay=20ms,queue=100ms", "rate=20M,delay=30ms,queue=100ms"];
    for policy in ["auto", "duplicate", "min-rtt", "one-path"] {
        let run = || {
            let mut scene = scene(policy, links, 3);
            add(&mut scene, 5, call(10), 7);
            scene.world.run_until(Instant::from_secs(12));
            (down_ms(&scene, 0), scene.world.digest())
        };
        let (latencies, digest) = run();
        assert!(latencies.len() > 800, "{}", latencies.len());
        assert!(latencies.iter().all(|ms| (20.0..30.0).contains(ms)), "{policy}: {latencies:?}");
        assert_eq!(run().1, digest);
    }
}

#[test]
fn a_path_that_dies_costs_a_call_a_fraction_of_a_second() {
    let links = ["rate=30M,delay=10ms,queue=100ms", "rate=20M,delay=30ms,queue=100ms"];
    let mut gaps = Vec::new();
    for seed in 0..30 {
        let mut scene = scene("auto", links, seed);
        add(&mut scene, 5, call(10), seed);
        scene.schedule_path_change(START + Duration::from_secs(5) + MS(37 * seed), 0, false);
        scene.world.run_until(Instant::from_secs(12));
        let client = scene.client_app::<Pulse>(0).unwrap().report();
        let mut arrived: Vec<Instant> = client.arrived.iter().copied().flatten().collect();
        arrived.sort_unstable();
        let gap = arrived.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
        gaps.push(gap);
        let late = down_ms(&scene, 0).iter().filter(|ms| **ms > 150.0).count();
        assert!(late <= 4, "{late} late or lost of a call with seed {seed}");
    }
    gaps.sort_unstable();
    assert!(gaps[15] <= MS(200) && gaps[29] <= MS(400), "{gaps:?}");
}

#[test]
fn a_call_does_not_wait_behind_a_download_of_the_same_client_nor_starve_it() {
    let links = ["rate=10M,delay=20ms,queue=200ms", "rate=1M,delay=80ms,queue=200ms"];
    let mut scene = scene("one-path", links, 1);
    add(&mut scene, 5, call(12), 2);
    let until = START + Duration::from_secs(12);
    let [sends, receives] = QuicLikeFlow::pair(FlowId(9), &config("one-path"), START, until);
    scene.add_apps(Box::new(receives), Box::new(sends));
    scene.world.run_until(Instant::from_secs(14));
    let latencies = down_ms(&scene, 0);
    let mut sorted = latencies[latencies.len() / 4..].to_vec();
    sorted.sort_by(f64::total_cmp);
    let p90 = sorted[sorted.len() * 9 / 10];
    let quic = scene.client_app::<QuicLikeFlow>(1).unwrap().report();
    let bytes: u32 = quic.arrived.iter().map(|(_, bytes)| *bytes).sum();
    let mbit = f64::from(bytes) * 8.0 / 12e6;
    // The download fills the link's queue; the lane adds no delay.
    assert!(p90 < 20.0 + 200.0 + 20.0, "p90 of the call {p90} ms");
    assert!(mbit > 6.0, "download {mbit} Mbit/s");
}

#[test]
fn a_download_alone_fills_the_link() {
    let links = ["rate=10M,delay=20ms,queue=100ms", "rate=1M,delay=80ms,queue=200ms"];
    let mut scene = scene("one-path", links, 1);
    let until = START + Duration::from_secs(12);
    let [sends, receives] = QuicLikeFlow::pair(FlowId(9), &config("one-path"), START, until);
    scene.add_apps(Box::new(receives), Box::new(sends));
    scene.world.run_until(Instant::from_secs(14));
    let quic = scene.client_app::<QuicLikeFlow>(0).unwrap().report();
    let bytes: u32 = quic.arrived.iter().map(|(_, bytes)| *bytes).sum();
    let mbit = f64::from(bytes) * 8.0 / 12e6;
    assert!(mbit > 8.0, "{mbit} Mbit/s");
}

#[test]
fn a_game_uses_both_paths_and_loses_only_joint_losses() {
    let links = ["rate=20M,delay=20ms,loss=0.05", "rate=20M,delay=30ms,loss=0.05"];
    let mut scene = scene("auto", links, 4);
    add(&mut scene, 5, game(60), 7);
    scene.world.run_until(Instant::from_secs(62));
    let latencies = down_ms(&scene, 0);
    let lost = latencies.iter().filter(|ms| ms.is_infinite()).count();
    assert!(lost * 200 < latencies.len(), "{lost} of {}", latencies.len());
}
