//! Hosts whose process does not run for a while (SIGSTOP, a frozen cgroup, a paused virtual machine): that time does
//! not count as a round trip, loses nothing, and does not slow the connection.

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Linger, SubflowInfo};
use marline_datagram::{FlowId, LaneConfig};
use marline_sim::{
    ExchangeSizes, LanePaths, LanePathsConfig, NodeId, Paths, Pulse, PulsePlan, RequestResponse,
    ResponseServer,
};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::{connection, link, scene};

const MS: fn(u64) -> Duration = Duration::from_millis;
const MEGABYTE: u64 = 1_000_000;
const THINK: Duration = Duration::from_secs(2);
const WIFI: &str = "rate=40M,delay=15ms,queue=80ms";
const LTE: &str = "rate=20M,delay=30ms,queue=120ms";

/// A client that repeatedly requests or sends a megabyte, with pauses.
fn dialogue(links: &[&str], upload: bool) -> Paths {
    let (request_bytes, answer_bytes) = if upload { (MEGABYTE, 100) } else { (100, MEGABYTE) };
    let sizes = ExchangeSizes { request_bytes, answer_bytes };
    // The other end waits for the paused one.
    let linger = Linger::new(Duration::from_secs(7_200));
    let config = ConnectionConfig { linger, ..connection("min-rtt") };
    let mut paths = scene(links, config, 7);
    paths.listen(Box::new(move |_| Box::new(ResponseServer::new(sizes, 2, 1))));
    let app = RequestResponse::new(1_000, sizes, THINK, 1, 2);
    paths.connect(0, Box::new(app)).expect("a connection");
    paths
}

fn answered(paths: &Paths) -> usize {
    let report = paths.client_report(0).expect("connected");
    assert_eq!((report.wrong_at, report.closed), (None, None));
    report.latencies.len()
}

/// Runs until the next megabyte is complete; returns the time.
fn run_to_answer(paths: &mut Paths, within: Duration) -> Instant {
    let (had, limit) = (answered(paths), paths.world.now() + within);
    while answered(paths) == had {
        assert!(paths.world.now() < limit, "nothing by {limit}");
        let next = paths.world.now() + MS(5);
        paths.world.run_until(next);
    }
    paths.world.now()
}

/// Duration of the next megabyte, and the pause before it.
fn next_takes(paths: &mut Paths) -> Duration {
    let began = paths.world.now();
    run_to_answer(paths, Duration::from_secs(60)).since(began)
}

fn subflows(paths: &Paths, node: NodeId) -> Vec<SubflowInfo> {
    let host = paths.world.node(node);
    let (id, _) = host.connections().next().expect("one connection");
    host.endpoint().info(id).expect("it is open").subflows
}

/// Longest smoothed RTT and smallest RTT of an end's subflows.
fn round_trips(paths: &Paths, node: NodeId) -> (Duration, Duration) {
    let all = subflows(paths, node);
    let longest = all.iter().filter_map(|subflow| subflow.srtt).max();
    let least = all.iter().filter_map(|subflow| subflow.min_rtt).min();
    longest.zip(least).expect("measured")
}

#[test]
fn a_process_pause_does_not_distort_measurements() {
    for (links, upload, by_client, in_mid_transfer, pause_s) in scenes() {
        let mut paths = dialogue(links, upload);
        let what = format!(
            "{} paths, {}, the {} stops for {pause_s} s, {}",
            links.len(),
            if upload { "upload" } else { "download" },
            if by_client { "client" } else { "server" },
            if in_mid_transfer { "in mid-transfer" } else { "idle" },
        );
        for _ in 0..4 {
            run_to_answer(&mut paths, Duration::from_secs(60));
        }
        let usual = next_takes(&mut paths);
        let ends = [paths.client, paths.server];
        let before = ends.map(|node| round_trips(&paths, node));
        let lead = if in_mid_transfer { THINK + MS(120) } else { MS(1_000) };
        let at = paths.world.now() + lead;
        paths.world.run_until(at);
        let node = if by_client { paths.client } else { paths.server };
        paths.world.stop_node(node, Duration::from_secs(pause_s));
        // The megabyte during the pause.
        let done = run_to_answer(&mut paths, Duration::from_secs(pause_s + 60));
        let resumed = done.since(at + Duration::from_secs(pause_s));
        let took = next_takes(&mut paths);
        println!("{what}: {usual:?} before, {resumed:?} to continue, {took:?} after");
        // Subflows that were replaced meanwhile start with a small window.
        let fast = took - THINK <= (usual - THINK) * 5 / 2;
        assert!(fast, "{what}: {usual:?} before, {took:?} after");
        // Data in flight is lost only if a whole flight arrived at a paused host; only that is retransmitted.
        assert!(resumed <= usual + Duration::from_secs(16), "{what}: {resumed:?} to continue");
        let after = ends.map(|node| round_trips(&paths, node));
        for ((srtt, min), (srtt_after, min_after)) in before.into_iter().zip(after) {
            assert!(srtt_after <= srtt * 2, "{what}: {before:?}, {after:?}");
            assert!(min_after >= min * 9 / 10, "{what}: too short: {before:?}, {after:?}");
        }
    }
}

type Scene = (&'static [&'static str], bool, bool, bool, u64);

fn scenes() -> Vec<Scene> {
    const BOOLS: [bool; 2] = [false, true];
    let mut scenes: Vec<Scene> = Vec::new();
    for links in [&[WIFI][..], &[WIFI, LTE]] {
        for (upload, by_client) in [(false, false), (false, true), (true, false), (true, true)] {
            for in_mid_transfer in BOOLS {
                let pauses = [1, 60, 3_600].map(|s| (links, upload, by_client, in_mid_transfer, s));
                scenes.extend(pauses);
            }
        }
    }
    scenes
}

/// Datagrams of a call between two hosts, one of which pauses: the lane's round trips are those of the network.
#[test]
fn a_lane_measures_the_network_and_not_the_time_in_which_its_process_stood_still() {
    for (stopped, pause_s) in [(0, 1), (0, 60), (0, 3_600), (1, 1), (1, 60)] {
        let mut paths = lane_scene();
        let plan = PulsePlan {
            from: Instant::from_secs(1),
            until: Instant::from_secs(90),
            gap: (MS(20), MS(33)),
            group: (1, 4),
            bytes: 1_000,
        };
        let end = |name| Box::new(Pulse::new(FlowId(1), plan, SeedTree::new(1).stream(name)));
        paths.add_apps(end("client"), end("server"));
        paths.world.run_until(Instant::from_secs(10));
        let nodes = [paths.client, paths.server];
        let round_trips = |paths: &LanePaths| {
            let now = paths.world.now();
            let infos = |node: NodeId| paths.world.node(node).lane().paths(now);
            nodes.map(|node| infos(node).map(|path| path.srtt.expect("measured")).max())
        };
        let before = round_trips(&paths);
        paths.world.stop_node(nodes[stopped], Duration::from_secs(pause_s));
        let resumed = Instant::from_secs(10 + pause_s);
        paths.world.run_until(resumed + MS(500));
        let after = round_trips(&paths);
        let what = format!("end {stopped} stops for {pause_s} s: {before:?}, {after:?}");
        println!("{what}");
        assert!(after[stopped] <= before[stopped].map(|srtt| srtt * 2), "{what}");
    }
}

fn lane_scene() -> LanePaths {
    let registry = Registry::default();
    let config = || {
        let policy = registry.datagram_policy("auto").expect("a policy");
        LaneConfig::new(policy, registry.congestion("cubic-westwood").expect("a controller"))
    };
    let links = [("a", WIFI), ("b", LTE)].map(|(name, text)| (name.to_owned(), link(text)));
    LanePaths::new(
        &LanePathsConfig {
            links: links.to_vec(),
            backup: Vec::new(),
            client: config(),
            server: config(),
        },
        SeedTree::new(3),
    )
}
