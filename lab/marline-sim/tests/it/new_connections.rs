//! Tests of MultiMob's new connections in virtual time: where they start while the path health
//! monitor considers WiFi bad, and how long WiFi may be silent before cellular is woken.

use crate::cases;
use core::net::IpAddr;

use crate::cases::link;
use marline_algos::Registry;
use marline_core::{
    ConnectionConfig, ConnectionId, Extensions, MonitorKind, PathHealthMonitor, ReceiveTimer,
    SubflowState,
};
use marline_policy::PathHealthConfig;
use marline_sim::{Echo, EchoServer, ObservationPoint, Observer, Packet, Paths, PathsConfig};
use marline_time::{Duration, Instant, SeedTree};
use marline_wire::{TcpFlags, TcpSegment};

const WIFI: usize = 0;
const LTE: usize = 1;

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

/// A phone in `--mode interactive` and a server that follows it, both observed.
fn phone(wifi: &str) -> Paths {
    let mut client = policies("min-rtt", "break-before-make");
    client.extensions = Extensions::ALL.difference(Extensions::REPAIR);
    client.receive_timer = Some(ReceiveTimer::with_probes());
    let lte = link("rate=20M,delay=30ms,radio=lte");
    let mut config = PathsConfig::new(vec![link(wifi), lte], client);
    config.server = policies("min-rtt", "full-mesh");
    config.server.follow_client = Registry::default().scheduler("follow-client").ok();
    config.backup = vec![false, true];
    let mut paths = Paths::new(&config, SeedTree::new(7));
    let monitor = PathHealthMonitor::new(PathHealthConfig::prompt());
    paths.world.node_mut(paths.client).endpoint_mut().set_path_health_monitor(monitor);
    paths.world.observe(Box::new(Wire::default()));
    paths.listen(Box::new(|_| Box::new(EchoServer::new(3))));
    paths
}

/// Sixty bytes every 50 ms.
fn keys(count: u64) -> Box<Echo> {
    Box::new(Echo::new(60, ms(50), count, 3))
}

/// A sent segment.
#[derive(Copy, Clone, Debug)]
struct Sent {
    at: Instant,
    from: IpAddr,
    to: IpAddr,
    syn: bool,
    payload: usize,
}

/// All sent segments.
#[derive(Debug, Default)]
struct Wire {
    sent: Vec<Sent>,
}

impl Observer for Wire {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        let ObservationPoint::Sent { .. } = sighting else { return };
        let Ok(segment) = TcpSegment::parse(&packet.segment) else { return };
        let (from, to) = (packet.path.local.ip(), packet.path.remote.ip());
        let syn = segment.header.flags.contains(TcpFlags::SYN);
        let payload = segment.payload.len();
        self.sent.push(Sent { at: now, from, to, syn, payload });
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}

/// Segments that either host sent on a path between two times.
fn sent(paths: &Paths, path: usize, from: Instant, to: Instant) -> Vec<Sent> {
    let end = Paths::address(path, 0);
    let wire = paths.world.observer::<Wire>().expect("observed");
    let during = |sent: &&Sent| sent.at >= from && sent.at < to;
    let there = |sent: &&Sent| sent.from == end || sent.to == end;
    wire.sent.iter().filter(during).filter(there).copied().collect()
}

/// Path of a new connection: WiFi first, unless the path health monitor considers it bad.
fn start(paths: &Paths) -> usize {
    let monitor = paths.world.node(paths.client).endpoint().path_health_monitor().expect("set");
    let good =
        |path: &usize| !monitor.is_degraded(Paths::address(*path, 0), Paths::server_address());
    [WIFI, LTE].into_iter().find(good).unwrap_or(WIFI)
}

/// Opens a connection on that path.
fn open(paths: &mut Paths, count: u64) -> (usize, ConnectionId) {
    let path = start(paths);
    (path, paths.connect(path, keys(count)).expect("a connection"))
}

/// Times at which the verdict on WiFi was given and lifted.
fn verdicts(paths: &Paths) -> Vec<(Instant, bool)> {
    let events = paths.world.node(paths.client).monitor().iter();
    let mut told: Vec<(Instant, bool)> = events
        .filter_map(|event| match event.kind {
            MonitorKind::AddressPair { fault, .. } => Some((event.at, fault.is_some())),
            _ => None,
        })
        .collect();
    // Each connection is notified.
    told.dedup_by_key(|(_, bad)| *bad);
    told
}

/// Bytes that each host sent on a connection's established WiFi subflows, and the number of these subflows.
fn on_wifi(paths: &Paths, id: ConnectionId) -> (usize, u64) {
    let wifi = Paths::address(WIFI, 0);
    let info = paths.world.node(paths.client).endpoint().info(id).expect("it lives");
    let here = info.subflows.iter().filter(|s| s.path.local.ip() == wifi);
    let up: Vec<_> = here.filter(|s| s.state == SubflowState::Established).collect();
    (up.len(), up.iter().map(|s| s.bytes_sent + s.bytes_received).sum())
}

/// WiFi dies under an active connection. A connection opened afterwards starts on LTE. It joins WiFi when that
/// returns, and sends nothing there before the clean period is over. The next one starts on WiFi and never wakes LTE.
#[test]
fn a_new_connection_leaves_a_degraded_address_pair_alone_until_a_clean_period() {
    let (dies, returns) = (at(5_030), at(9_000));
    let run = |until: Instant| {
        let mut paths = phone("rate=30M,delay=10ms");
        paths.schedule_path_change(dies, WIFI, false);
        paths.schedule_path_change(returns, WIFI, true);
        let first = open(&mut paths, 600);
        assert_eq!(first.0, WIFI, "the path has no bad verdict");
        paths.world.run_until(at(6_500));
        let second = open(&mut paths, 500);
        paths.world.run_until(until);
        (paths, second)
    };
    let (paths, (path, _)) = run(at(20_000));
    assert_eq!(path, LTE, "warned by the affected connection");
    let verdicts = verdicts(&paths);
    let [(condemned, true), (lifted, false)] = verdicts[..] else { panic!("{verdicts:?}") };
    println!("bad at {condemned:?}, good at {lifted:?}");
    assert!(condemned > dies && condemned < dies + ms(400));
    assert!(lifted >= returns + ms(2_000) && lifted < returns + ms(5_000), "a clean period");

    // It did not start on WiFi, and when WiFi returned it only joined there.
    let joins = sent(&paths, WIFI, at(6_500), lifted).iter().filter(|s| s.syn).count();
    assert!(joins > 0, "it must probe, or the return would never be detected");
    let (before, (_, id)) = run(Instant::from_nanos(lifted.as_nanos() - 1_000_000));
    let bytes = sent(&before, WIFI, returns, lifted).iter().map(|s| s.payload).sum::<usize>();
    println!("just before: {:?} on WiFi, {bytes} bytes in total", on_wifi(&before, id));
    assert_eq!(on_wifi(&before, id), (1, 0), "joined, and unused");

    let (mut paths, (_, second)) = run(lifted + ms(100));
    let (path, third) = open(&mut paths, 200);
    assert_eq!(path, WIFI);
    paths.world.run_until(at(20_000));
    assert!(on_wifi(&paths, second).1 > 0 && on_wifi(&paths, third).1 > 0, "all on WiFi again");
    let lte = Paths::address(LTE, 0);
    let woken = paths.world.node(paths.client).monitor().iter().filter(|event| {
        event.connection == third
            && matches!(event.kind, MonitorKind::SubflowEstablished { path, .. }
                if path.local.ip() == lte)
    });
    assert_eq!(woken.count(), 0, "the third needs no LTE");
    assert_eq!(sent(&paths, LTE, at(18_000), at(20_000)).len(), 0, "LTE sleeps again");
    for (connection, least) in [(0, 390), (1, 260), (2, 145)] {
        let report = paths.client_report(connection).expect("connected");
        assert_eq!(report.wrong_at, None);
        assert!(report.latencies.len() >= least, "{connection}: {}", report.latencies.len());
    }
}

/// WiFi that only sometimes answers is also bad: a new connection does not start there although its SYN might be
/// answered.
#[test]
fn an_address_pair_that_loses_half_of_everything_opens_nothing_either() {
    let mut paths = phone("rate=30M,delay=10ms");
    open(&mut paths, 600);
    paths.world.run_until(at(3_000));
    let lossy = link("rate=30M,delay=10ms,loss=45%");
    let (up, down) = (paths.up[WIFI], paths.down[WIFI]);
    paths.world.set_link(up, lossy.up);
    paths.world.set_link(down, lossy.down);
    paths.world.run_until(at(8_000));
    let (path, id) = open(&mut paths, 100);
    assert_eq!(path, LTE, "{:?}", verdicts(&paths));
    paths.world.run_until(at(13_000));
    let there = on_wifi(&paths, id);
    paths.world.run_until(at(14_000));
    assert_eq!(paths.client_report(1).expect("connected").latencies.len(), 100);
    let worst = paths.client_report(1).and_then(|r| r.latencies.iter().max().copied());
    println!("{:?}, {worst:?}, {there:?} on WiFi", verdicts(&paths));
    assert!(worst < Some(ms(900)), "LTE's promotion, and no repair on WiFi: {worst:?}");
}

/// Returns true if a silence of WiFi with this start and duration wakes cellular.
fn wakes(phase_ms: u64, silence_ms: u64) -> bool {
    let mut paths = phone("rate=30M,delay=10ms");
    open(&mut paths, 200);
    let dies = at(5_000 + phase_ms);
    paths.schedule_path_change(dies, WIFI, false);
    paths.schedule_path_change(dies + ms(silence_ms), WIFI, true);
    paths.world.run_until(at(8_000));
    !sent(&paths, LTE, at(0), at(8_000)).is_empty()
}

/// Limits for keystrokes every 50 ms and a round trip of 20 ms: the longest silence that never wakes cellular, and the
/// shortest that always does, regardless of its start. A probe timeout of two round trips and three waits of 50 ms
/// make 190 ms; a silence that ends 50 ms earlier has also lost the last probe.
#[test]
fn a_short_silence_opens_no_path_and_a_long_one_always() {
    let phases: Vec<u64> = (0..50).step_by(7).collect();
    let woken = |silence: u64| phases.iter().filter(|phase| wakes(**phase, silence)).count();
    let silences: Vec<u64> = (100..=240).step_by(20).collect();
    let counts = cases::parallel(&silences, |silence| woken(*silence));
    println!(
        "silence, of {}: {:?}",
        phases.len(),
        silences.iter().zip(&counts).collect::<Vec<_>>()
    );
    for (silence, count) in silences.iter().zip(&counts) {
        if *silence <= 120 {
            assert_eq!(*count, 0, "{silence} ms");
        }
        if *silence >= 200 {
            assert_eq!(*count, phases.len(), "{silence} ms");
        }
    }
    assert!(counts.is_sorted(), "longer silences wake it more often: {counts:?}");
}
