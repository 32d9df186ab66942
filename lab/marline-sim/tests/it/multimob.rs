//! Tests of MultiMob's parts together, in virtual time: cellular sleeps until WiFi fails, then all data moves there,
//! and later back.

use crate::cases::link;
use marline_algos::Registry;
use marline_core::{
    ConnectionConfig, ConnectionId, Extensions, LoneKeepalive, MonitorKind, PathHealthMonitor,
    ReceiveTimer,
};
use marline_policy::{PathHealth, PathHealthConfig};
use marline_sim::{Echo, EchoServer, Paths, PathsConfig, UDP_CAPABILITIES};
use marline_time::{Duration, Instant, SeedTree};

const WIFI: &str = "rate=30M,delay=10ms";
const LTE: &str = "rate=20M,delay=30ms,radio=lte";

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn policies(scheduler: &str, path_manager: &str) -> ConnectionConfig {
    let set = Registry::default().policy_set(scheduler, path_manager, "cubic", "rack-tlp");
    ConnectionConfig::new(set.expect("built-in names"))
}

fn client() -> ConnectionConfig {
    let mut config = policies("min-rtt", "break-before-make");
    config.extensions = Extensions::ALL.difference(Extensions::REPAIR);
    config.receive_timer = Some(ReceiveTimer::with_probes());
    config
}

/// A Marline server without configuration for its clients.
fn server() -> ConnectionConfig {
    let mut config = policies("min-rtt", "full-mesh");
    config.follow_client = Registry::default().scheduler("follow-client").ok();
    config
}

/// A phone and a server. The phone's connections send echoed keystrokes at intervals.
fn phone(wifi: &str, server: &ConnectionConfig, monitor: bool, intervals: &[u64]) -> Paths {
    let mut config = PathsConfig::new(vec![link(wifi), link(LTE)], client());
    config.server = server.clone();
    config.backup = vec![false, true];
    let mut paths = Paths::new(&config, SeedTree::new(7));
    if monitor {
        let monitor = PathHealthMonitor::new(PathHealthConfig::default());
        paths.world.node_mut(paths.client).endpoint_mut().set_path_health_monitor(monitor);
    }
    paths.listen(Box::new(|_| Box::new(EchoServer::new(3))));
    for interval in intervals {
        let count = 60_000 / interval;
        let echo = Echo::new(60, ms(*interval), count, 3);
        paths.connect(0, Box::new(echo)).expect("a connection");
    }
    paths
}

/// As above, over the UDP carrier, which identifies subflows by ids.
#[test]
fn fast_join_learns_the_ids_of_the_udp_carrier() {
    let mut config = PathsConfig::new(vec![link(WIFI), link(LTE)], client());
    config.server = server();
    config.backup = vec![false, true];
    config.capabilities = UDP_CAPABILITIES;
    let mut paths = Paths::new(&config, SeedTree::new(7));
    let monitor = PathHealthMonitor::new(PathHealthConfig::default());
    paths.world.node_mut(paths.client).endpoint_mut().set_path_health_monitor(monitor);
    paths.listen(Box::new(|_| Box::new(EchoServer::new(3))));
    paths.connect(0, Box::new(Echo::new(60, ms(50), 400, 3))).expect("a connection");
    paths.schedule_path_change(at(5_030), 0, false);
    paths.world.run_until(at(19_900));
    let hole = hole(&paths, at(19_900));
    println!("gap {hole:?}");
    assert!(hole < ms(800), "{hole:?}");
    assert!(paths.client_report(0).expect("connected").latencies.len() >= 390);
}

/// Time and connection of each matching event at the client.
fn times(paths: &Paths, fits: impl Fn(&MonitorKind) -> bool) -> Vec<(Instant, ConnectionId)> {
    let events = paths.world.node(paths.client).monitor().iter();
    events.filter(|event| fits(&event.kind)).map(|event| (event.at, event.connection)).collect()
}

fn opened(kind: &MonitorKind) -> bool {
    let cell = Paths::address(1, 0);
    matches!(kind, MonitorKind::SubflowEstablished { path, .. } if path.local.ip() == cell)
}

fn closed(kind: &MonitorKind) -> bool {
    let cell = Paths::address(1, 0);
    matches!(kind, MonitorKind::SubflowClosed { path, .. } if path.local.ip() == cell)
}

fn condemned(kind: &MonitorKind) -> bool {
    matches!(kind, MonitorKind::AddressPair { fault: Some(_), .. })
}

/// Checks that all echoes arrived in order. Returns the longest time between two arrivals after the first second.
fn hole(paths: &Paths, until: Instant) -> Duration {
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    report.longest_gap_within(at(1_000), until).length
}

fn sent_on(paths: &Paths, path: usize) -> u64 {
    paths.world.link(paths.up[path]).stats().offered_packets
}

#[test]
fn wifi_dies_cellular_takes_over_wifi_returns_cellular_sleeps_again() {
    let mut paths = phone(WIFI, &server(), true, &[50]);
    paths.schedule_path_change(at(5_030), 0, false);
    paths.schedule_path_change(at(15_000), 0, true);
    paths.world.run_until(at(5_000));
    assert_eq!((times(&paths, opened).len(), sent_on(&paths, 1)), (0, 0), "asleep");

    paths.world.run_until(at(14_900));
    let up = times(&paths, opened);
    assert_eq!(up.len(), 1, "one cellular subflow: {up:?}");
    println!("condemned {:?}, cellular up {:?}", times(&paths, condemned), up[0].0);
    assert!(up[0].0 > at(5_030) && up[0].0 < at(5_900), "{up:?}");
    let hole = hole(&paths, at(14_900));
    println!("gap {hole:?}");
    assert!(hole < ms(800), "{hole:?}");
    let peer = paths.world.node(paths.server).endpoint();
    let info = peer.info(peer.connections()[0]).expect("the connection exists");
    assert_eq!(info.scheduler, "follow-client", "requested by HELLO");

    paths.world.run_until(at(25_000));
    let down = times(&paths, closed);
    println!("cellular closed {down:?}");
    assert_eq!(down.len(), 1);
    // A probe every 2.4 s at most, a clean period of 2 s, a quiet time of 2 s, and some time for the FINs.
    assert!(down[0].0 > at(17_000) && down[0].0 < at(23_500), "{down:?}");
    let asleep = sent_on(&paths, 1);
    paths.world.run_until(at(40_000));
    assert_eq!(sent_on(&paths, 1), asleep, "no further packet");
    let report = paths.client_report(0).expect("connected");
    assert_eq!(report.wrong_at, None);
    assert!(report.latencies.len() >= 790, "{}", report.latencies.len());
    let last = report.latencies.iter().rev().take(50).max();
    assert!(last < Some(&ms(25)), "on WiFi: {last:?}");
}

#[test]
fn a_static_phone_never_wakes_its_radio() {
    for wifi in [
        WIFI,
        "rate=30M,delay=10ms,loss=2%",
        "rate=5M,delay=20ms,jitter=10ms",
        "rate=30M,delay=10ms,ge=2s:30ms:100%:0",
    ] {
        let mut paths = phone(wifi, &server(), true, &[50, 333]);
        paths.world.run_until(at(62_000));
        assert_eq!(times(&paths, opened), [], "{wifi}");
        assert_eq!(sent_on(&paths, 1), 0, "{wifi}");
        assert!(paths.client_report(0).expect("connected").latencies.len() >= 1_199, "{wifi}");
    }
}

/// Time after WiFi's death at which each of nine mostly idle connections had its cellular subflow.
fn nine_others(monitor: bool) -> Vec<Duration> {
    let dies = at(20_100);
    let mut intervals = vec![50];
    intervals.extend([7_000; 9]);
    let mut paths = phone(WIFI, &server(), monitor, &intervals);
    paths.schedule_path_change(dies, 0, false);
    paths.world.run_until(at(40_000));
    let up = times(&paths, opened);
    let first = paths.world.node(paths.client).connections().next().expect("ten").0;
    let others = up.iter().filter(|(at, id)| *id != first && *at > dies);
    others.map(|(at, _)| *at - dies).collect()
}

#[test]
fn one_failing_connection_warns_nine_others() {
    let warned = nine_others(true);
    let alone = nine_others(false);
    println!("with path health {warned:?}\nwithout {alone:?}");
    assert_eq!((warned.len(), alone.len()), (9, 9));
    let (slowest, quickest) = (warned.iter().max(), alone.iter().min());
    assert!(slowest < Some(&ms(900)), "{warned:?}");
    assert!(quickest > Some(&ms(900)), "each detects it when it sends a request: {alone:?}");
}

#[test]
fn a_peer_without_any_extension_is_served_too() {
    let mut stock = policies("lowest-rtt", "full-mesh");
    stock.allow_extensions = Extensions::NONE;
    let mut paths = phone(WIFI, &stock, true, &[50]);
    paths.schedule_path_change(at(5_030), 0, false);
    paths.schedule_path_change(at(15_000), 0, true);
    paths.world.run_until(at(14_900));
    let hole = hole(&paths, at(14_900));
    println!("gap {hole:?}");
    assert!(hole < ms(1_500), "{hole:?}");
    paths.world.run_until(at(62_000));
    assert_eq!((times(&paths, opened).len(), times(&paths, closed).len()), (1, 1));
    assert_eq!(paths.client_report(0).expect("connected").latencies.len(), 1_200);
}

#[test]
fn an_address_that_goes_takes_no_detour() {
    let mut paths = phone(WIFI, &server(), true, &[50]);
    paths.schedule_address_change(at(5_030), 0, false);
    paths.schedule_address_change(at(12_000), 0, true);
    paths.world.run_until(at(11_900));
    let up = times(&paths, opened);
    // One radio promotion, and one and a half round trips of LTE.
    assert!(up.len() == 1 && up[0].0 < at(5_030 + 260 + 130), "{up:?}");
    paths.world.run_until(at(30_000));
    assert_eq!(times(&paths, closed).len(), 1);
    let report = paths.client_report(0).expect("connected");
    assert!(report.wrong_at.is_none() && report.latencies.len() >= 595);
}

#[test]
fn the_path_health_table_is_exposed_and_runs_are_repeatable() {
    let run = || {
        let mut paths = phone(WIFI, &server(), true, &[50]);
        paths.schedule_path_change(at(5_030), 0, false);
        paths.world.run_until(at(8_000));
        paths
    };
    let (one, two) = (run(), run());
    assert_eq!(one.world.digest(), two.world.digest());
    let monitor = one.world.node(one.client).endpoint().path_health_monitor().expect("set").clone();
    let table = monitor.table();
    assert_eq!(table.len(), 2, "{table:?}");
    let verdicts: Vec<bool> = table.iter().map(|line| line.health != PathHealth::Usable).collect();
    assert_eq!(verdicts, [true, false], "{table:?}");
    assert!(monitor.is_degraded(Paths::address(0, 0), Paths::server_address()));
}

/// Time of the server's push, after five minutes of silence.
const PUSH: Instant = Instant::from_secs(300);

/// A phone whose only connection waits for the server's next message.
fn waiting_phone(keepalive: Option<LoneKeepalive>, wifi: &str, pause: Duration) -> Paths {
    let client = ConnectionConfig { lone_keepalive: keepalive, ..client() };
    let mut config = PathsConfig::new(vec![link(wifi), link(LTE)], client);
    config.server = server();
    config.backup = vec![false, true];
    let mut paths = Paths::new(&config, SeedTree::new(7));
    let monitor = PathHealthMonitor::new(PathHealthConfig::default());
    paths.world.node_mut(paths.client).endpoint_mut().set_path_health_monitor(monitor);
    paths.listen(Box::new(move |_| Box::new(Echo::new(60, pause, 2, 3))));
    paths.connect(0, Box::new(EchoServer::new(3))).expect("a connection");
    paths
}

/// Delay of the push if WiFi loses all packets after this time.
fn push_arrives_after(keepalive: Option<LoneKeepalive>, dies_at: Instant) -> Option<Duration> {
    let mut paths = waiting_phone(keepalive, WIFI, PUSH.since(Instant::ZERO));
    paths.schedule_path_change(dies_at, 0, false);
    let client = paths.client;
    paths.world.run_until(PUSH);
    let arrived = paths.world.run_while(PUSH + Duration::from_secs(600), |world| {
        world.node(client).report(0).is_none_or(|report| report.read < 120)
    });
    arrived.then(|| paths.world.now().since(PUSH))
}

/// The server cannot open a path, and the client misses no data, so the client must have probed.
#[test]
fn a_push_after_a_pause_in_which_wifi_died_arrives() {
    let LoneKeepalive { idle, interval, count } = LoneKeepalive::default();
    let opening = Duration::from_secs(1);
    let bound = idle + interval * count + opening;
    let mut longest = Duration::ZERO;
    for dies_ms in [20_000, 150_000, 288_500, 293_000, 297_300, 299_950] {
        let after = push_arrives_after(Some(LoneKeepalive::default()), at(dies_ms));
        println!("WiFi dies at {dies_ms} ms: the push is {after:?} late");
        longest = longest.max(after.expect("it arrives"));
    }
    assert!(longest <= bound, "{longest:?}, {bound:?} allowed");
    assert_eq!(push_arrives_after(None, at(150_000)), None, "keepalives detect the failure");
}

/// The cost of an idle connection, as in docs/concepts/path-health.md.
#[test]
fn an_idle_hour_has_bounded_traffic_and_energy() {
    let wifi = "rate=30M,delay=10ms,radio=wifi";
    let hour = |keepalive| {
        let mut paths = waiting_phone(keepalive, wifi, Duration::from_secs(7_200));
        let total = |paths: &Paths| {
            let stats = |link| paths.world.link(link).stats();
            let (up, down) = (stats(paths.up[0]), stats(paths.down[0]));
            let packets = up.offered_packets + down.offered_packets;
            let bytes = up.offered_bytes + down.offered_bytes;
            let radio = paths.world.link(paths.up[0]).radio().expect("a radio");
            let energy = radio.energy(paths.world.now());
            (packets, bytes, energy.traffic_j(), energy.idle_j())
        };
        paths.world.run_until(Instant::from_secs(400));
        let before = total(&paths);
        paths.world.run_until(Instant::from_secs(4_000));
        let after = total(&paths);
        assert_eq!(sent_on(&paths, 1), 0, "cellular sleeps");
        (after.0 - before.0, after.1 - before.1, after.2 - before.2, after.3 - before.3)
    };
    let (packets, bytes, traffic_j, idle_j) = hour(Some(LoneKeepalive::default()));
    println!("{packets} packets, {bytes} bytes, {traffic_j:.1} J; the radio idle {idle_j:.1} J");
    assert!((700..=722).contains(&packets), "{packets}: one each way every ten seconds");
    assert!(bytes <= 50_000, "{bytes}");
    assert!(traffic_j < 20.0, "{traffic_j} J");
    assert_eq!(hour(None).0, 0, "silence costs nothing");
}
