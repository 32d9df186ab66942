//! Tests of paths with costs: bytes on a metered path stay within its budget, a radio sleeps while another path is
//! sufficient, and both are used when that path dies.

use marline_core::ConnectionConfig;
use marline_link::radio::Energy;
use marline_policy::PathCost;
use marline_sim::{Amount, App, Bulk, Echo, EchoServer, Listen, NodeId, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};

use crate::cases::link;

const CALM: &str = "rate=20M,delay=15ms,queue=100ms,jitter=3ms";
/// WiFi with bad periods, in which some probes get no answer.
const TROUBLED: &str = "rate=20M,delay=15ms,queue=100ms,jitter=3ms,ge=4s:60ms:50%:0.1%";
const LTE: &str = "radio=lte,rate=20M,delay=20ms,queue=100ms";
const METERED: PathCost = PathCost { metered: true, ..PathCost::NONE };
const LIMITED: PathCost = PathCost { limited: true, ..PathCost::NONE };
/// Slightly longer than the radio of the link stays awake.
const RADIO: PathCost = PathCost { tail_ms: 11_600, ..PathCost::NONE };
const SEEDS: [u64; 3] = [1, 2, 3];

/// The shipped policies with this path manager.
fn shipped(path_manager: &str) -> ConnectionConfig {
    let mut policies = marline_algos::default_policies();
    let registry = marline_algos::Registry::default();
    policies.path_manager = registry.path_manager(path_manager).expect("a built-in manager");
    ConnectionConfig::new(policies)
}

/// This WiFi, and LTE at this cost.
fn scene(wifi: &str, cost: PathCost, connection: ConnectionConfig, seed: u64) -> Paths {
    let mut config = PathsConfig::new(vec![link(wifi), link(LTE)], connection);
    config.costs = vec![PathCost::NONE, cost];
    Paths::new(&config, SeedTree::new(seed))
}

fn start(paths: &mut Paths, listen: Listen, app: Box<dyn App>) {
    paths.listen(listen);
    paths.connect(0, app).expect("a connection");
}

/// 300 bytes in each direction, at this interval and for this duration.
fn echoes(paths: &mut Paths, every_ms: u64, for_s: u64) {
    let count = for_s * 1_000 / every_ms;
    let echo = Echo::new(300, Duration::from_millis(every_ms), count, 7);
    start(paths, Box::new(|_| Box::new(EchoServer::new(7))), Box::new(echo));
}

/// The server sends this many bytes.
fn download(paths: &mut Paths, bytes: u64) {
    let sends: Listen = Box::new(move |_| Box::new(Bulk::new(Amount::Bytes(bytes), 1, 2)));
    start(paths, sends, Box::new(Bulk::new(Amount::Nothing, 2, 1)));
}

/// Payload that a host has sent over LTE.
fn sent_over_lte(paths: &Paths, node: NodeId) -> u64 {
    let host = paths.world.node(node);
    let Some((id, _)) = host.connections().next() else { return 0 };
    let info = host.endpoint().info(id).expect("known");
    let lte = |ip| ip == Paths::address(1, 0);
    let over = |s: &&marline_core::SubflowInfo| lte(s.path.local.ip()) || lte(s.path.remote.ip());
    info.subflows.iter().filter(over).map(|subflow| subflow.bytes_sent).sum()
}

fn energy(paths: &Paths) -> Energy {
    paths.world.link(paths.up[1]).radio().expect("LTE's radio").energy(paths.world.now())
}

/// Longest gap in arrivals at the client within these seconds.
fn hole(paths: &Paths, from_s: u64, to_s: u64) -> Duration {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.longest_gap_within(Instant::from_secs(from_s), Instant::from_secs(to_s)).length
}

#[test]
fn echoes_stay_within_the_budget_of_a_metered_path() {
    for seed in SEEDS {
        let run = |cost| {
            let mut paths = scene(TROUBLED, cost, shipped("full-mesh"), seed);
            echoes(&mut paths, 20, 70);
            paths.schedule_path_change(Instant::from_secs(60), 0, false);
            paths.world.run_until(Instant::from_secs(60));
            let both = [paths.client, paths.server];
            let sent = both.map(|node| sent_over_lte(&paths, node));
            paths.world.run_until(Instant::from_secs(90));
            let report = paths.client_report(0).expect("connected");
            assert_eq!(report.latencies.len(), 3_500, "seed {seed}");
            (sent, hole(&paths, 59, 69))
        };
        let ((metered, rescued), (free, unspared)) = (run(METERED), run(PathCost::NONE));
        println!("seed {seed}: {metered:?} bytes, gap {rescued:?}; free {free:?}, {unspared:?}");
        for (metered, free) in metered.into_iter().zip(free) {
            // Only 2 kB per second for a minute. The server also knows the budget.
            assert!(metered <= 132_000, "seed {seed}: {metered} bytes over a metered path");
            assert!(free > 3 * metered, "seed {seed}: {free} bytes on a free path");
        }
        // Two probes, a one-way delay and some margin. If everything is copied, it is one message.
        assert!(rescued <= Duration::from_millis(400), "seed {seed}: {rescued:?}");
    }
}

#[test]
fn a_download_stays_within_the_budget_of_a_metered_path() {
    for seed in SEEDS {
        let run = |cost| {
            let mut paths = scene(TROUBLED, cost, shipped("full-mesh"), seed);
            download(&mut paths, 200_000_000);
            paths.world.run_until(Instant::from_secs(12));
            let read = paths.client_report(0).expect("connected").read;
            (read, sent_over_lte(&paths, paths.server))
        };
        let ((read, metered), (faster, free)) = (run(METERED), run(PathCost::NONE));
        println!("seed {seed}: {metered} of {read} bytes; free {free} of {faster}");
        assert!(metered <= read / 10 + 100_000, "seed {seed}: {metered} of {read} bytes");
        // WiFi alone is used as before, and both together if neither has a price.
        assert!(read > 20_000_000 && free > faster / 3, "seed {seed}: {read}; {free} of {faster}");
    }
}

#[test]
fn copies_use_no_idle_capacity_of_a_limited_path() {
    const WARM_S: u64 = 5;
    const END_S: u64 = 65;
    for seed in SEEDS {
        // 30 kB in each direction every 300 ms, 100 kB/s: copies of everything would far exceed the byte budget.
        let run = |cost, scheduler: &str| {
            let mut connection = shipped("full-mesh");
            let registry = marline_algos::Registry::default();
            connection.policies.scheduler = registry.scheduler(scheduler).expect("built in");
            let mut paths = scene(TROUBLED, cost, connection, seed);
            let echo = Echo::new(30_000, Duration::from_millis(300), 2 * END_S * 1_000 / 300, 7);
            start(&mut paths, Box::new(|_| Box::new(EchoServer::new(7))), Box::new(echo));
            paths.world.run_until(Instant::from_secs(WARM_S));
            let copies = |paths: &Paths| {
                let of = |node: NodeId| {
                    let host = paths.world.node(node);
                    let (id, _) = host.connections().next().expect("one connection");
                    let info = host.endpoint().info(id).expect("known");
                    let lte = Paths::address(1, 0);
                    let over = |s: &&marline_core::SubflowInfo| {
                        s.path.local.ip() == lte || s.path.remote.ip() == lte
                    };
                    info.subflows.iter().filter(over).map(|s| s.bytes_reinjected).sum::<u64>()
                };
                [paths.client, paths.server].map(of)
            };
            let before = copies(&paths);
            paths.world.run_until(Instant::from_secs(END_S));
            let after = copies(&paths);
            [after[0] - before[0], after[1] - before[1]]
        };
        let (limited, free) = (run(LIMITED, "auto"), run(PathCost::NONE, "auto"));
        let unlimited = run(LIMITED, "auto,budget=unlimited");
        println!("seed {seed}: copies {limited:?}; free {free:?}; without a budget {unlimited:?}");
        for (limited, free) in limited.into_iter().zip(free) {
            // A quarter of 100 kB/s for a minute, plus the allowed excess. The server also knows the budget.
            let budget = (END_S - WARM_S) * 25_000;
            assert!(limited <= 2 * budget, "seed {seed}: {limited} bytes copied to a limited path");
            assert!(free > limited, "seed {seed}: {free} bytes on a free path");
        }
    }
}

#[test]
fn a_radio_sleeps_while_another_path_is_fast_enough_and_wakes_when_it_dies() {
    for seed in SEEDS {
        let run = |cost| {
            let mut paths = scene(CALM, cost, shipped("full-mesh"), seed);
            echoes(&mut paths, 100, 130);
            paths.schedule_path_change(Instant::from_secs(120), 0, false);
            paths.world.run_until(Instant::from_secs(120));
            let before = energy(&paths);
            paths.world.run_until(Instant::from_secs(160));
            let report = paths.client_report(0).expect("connected");
            assert_eq!(report.latencies.len(), 1_300, "seed {seed}");
            (before, energy(&paths).promotions, hole(&paths, 119, 129))
        };
        let (asleep, woken, rescued) = run(RADIO);
        let (awake, _, _) = run(PathCost::NONE);
        let joules = [asleep.traffic_j(), awake.traffic_j()];
        println!("seed {seed}: {joules:?} J, {} and {woken} times, {rescued:?}", asleep.promotions);
        // Not even the join wakes it.
        assert_eq!((asleep.promotions, woken), (0, 1), "seed {seed}");
        assert!(joules[0] < 3.0 && joules[1] > 20.0, "seed {seed}: {joules:?} J");
        // The promotion takes 260 ms.
        assert!(rescued <= Duration::from_millis(800), "seed {seed}: {rescued:?}");
    }
}

#[test]
fn a_long_download_uses_a_radio_that_sleeps_before_and_after() {
    for seed in SEEDS {
        let mut paths = scene("rate=5M,delay=15ms,queue=100ms", RADIO, shipped("full-mesh"), seed);
        let whole = 20_000_000;
        download(&mut paths, whole);
        paths.world.run_until(Instant::from_secs(10));
        let read = paths.client_report(0).expect("connected").read;
        // 5 Mbit/s for 1.5 s, and then both together.
        assert!(read > 20_000_000 / 2, "seed {seed}: {read} bytes");
        paths.world.run_until(Instant::from_secs(60));
        let report = paths.client_report(0).expect("connected");
        assert_eq!((report.read, energy(&paths).promotions), (whole, 1), "seed {seed}");
        let host = paths.world.node(paths.client);
        let open = host.connections().next().and_then(|(id, _)| host.endpoint().info(id));
        assert!(open.is_none_or(|info| info.subflows.len() < 2), "seed {seed}: LTE is open");
    }
}

#[test]
fn a_backup_draws_nothing_while_a_regular_path_lives() {
    for seed in SEEDS {
        // Not even a join wakes it if the path manager keeps it on standby.
        for (manager, promotions) in [("break-before-make", 0), ("full-mesh", 1)] {
            let mut config = PathsConfig::new(vec![link(CALM), link(LTE)], shipped(manager));
            config.backup = vec![false, true];
            let mut paths = Paths::new(&config, SeedTree::new(seed));
            echoes(&mut paths, 20, 70);
            paths.schedule_path_change(Instant::from_secs(60), 0, false);
            paths.world.run_until(Instant::from_secs(60));
            assert_eq!(energy(&paths).promotions, promotions, "{manager}, seed {seed}");
            assert_eq!(energy(&paths).traffic_j() > 0.0, promotions > 0, "{manager}, seed {seed}");
            let both = [paths.client, paths.server];
            assert_eq!(both.map(|node| sent_over_lte(&paths, node)), [0, 0], "{manager}");
            paths.world.run_until(Instant::from_secs(90));
            let report = paths.client_report(0).expect("connected");
            assert_eq!(report.latencies.len(), 3_500, "{manager}, seed {seed}");
            assert_eq!(energy(&paths).promotions, promotions + 1, "{manager}, seed {seed}");
        }
    }
}

#[test]
fn a_path_that_becomes_metered_while_it_is_used_is_spared_from_then_on() {
    let mut paths = scene(TROUBLED, METERED, shipped("full-mesh"), 4);
    echoes(&mut paths, 20, 70);
    let client = paths.client;
    let price = |paths: &mut Paths, cost| {
        let (now, host) = (paths.world.now(), paths.world.node_mut(client));
        let address = marline_policy::LocalAddress {
            cost,
            ..marline_policy::LocalAddress::new(
                marline_policy::AddressId(1),
                (Paths::address(1, 0), 0).into(),
            )
        };
        host.endpoint_mut().set_local_address(now, None, address);
    };
    let mut spent = Vec::new();
    for (until_s, next) in [(15, PathCost::NONE), (30, METERED), (45, METERED), (60, METERED)] {
        let before = [paths.client, paths.server].map(|node| sent_over_lte(&paths, node));
        paths.world.run_until(Instant::from_secs(until_s));
        let after = [paths.client, paths.server].map(|node| sent_over_lte(&paths, node));
        spent.push([after[0] - before[0], after[1] - before[1]]);
        price(&mut paths, next);
    }
    println!("{spent:?}");
    // Metered, free, and metered again: at both ends, since the server is notified of each change.
    for end in 0..2 {
        assert!(
            spent[0][end] * 3 < spent[1][end] && spent[3][end] * 3 < spent[1][end],
            "{spent:?}"
        );
    }
}
