//! Tests of links between namespaces, measured by the kernels at their ends. Needs root.
//!
//! Times are checked only in runs that the emulator reports as reliable. If no run is reliable, the test fails.

mod namespaces;

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::Duration;

use marline_emulator::{DEFAULT_SPIN, LinkCommand, RelayReport, Side};
use marline_link::DuplexSpec;
use marline_testkit::need;
use marline_time::SeedTree;
use namespaces::{Testbed, ip, processor_time};
use quinn_udp::{RecvMeta, UdpSocketState};

/// Bytes of IPv4 and UDP header.
const HEADERS: usize = 28;

/// Runs the tests one at a time, because they measure time and CPU time.
static ALONE: Mutex<()> = Mutex::new(());

fn lock_exclusively() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn ready() -> bool {
    need::root() && need::program("ip").is_some()
}

fn testbed(tag: &str, spec: &str) -> Testbed {
    Testbed::new(tag, 1, spec, DEFAULT_SPIN, &mut |_| None).expect("namespaces")
}

fn report(testbed: &Testbed) -> RelayReport {
    testbed.emulator.report().expect("report").remove(0)
}

/// Waits until the link has handled this many packets from the client.
fn settled(testbed: &Testbed, packets: u64) -> RelayReport {
    for _ in 0..4_000 {
        let report = report(testbed);
        let stats = &report.up.stats;
        if stats.delivered_packets + stats.dropped() >= packets {
            return report;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not settled: {:?}", report(testbed).up);
}

/// Times, in seconds, at which the kernel received `count` datagrams.
fn arrivals(server: &UdpSocket, count: usize) -> Vec<f64> {
    let state = UdpSocketState::new(server.into()).expect("socket");
    server.set_nonblocking(false).expect("blocking");
    server.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let (mut bytes, mut meta) = ([0; 2_048], [RecvMeta::default()]);
    let mut times = Vec::new();
    while times.len() < count {
        let mut slots = [IoSliceMut::new(&mut bytes)];
        state.recv(server.into(), &mut slots, &mut meta).expect("a datagram");
        times.push(meta[0].timestamp.expect("the kernel's time").as_secs_f64());
    }
    times
}

/// Time between the first and the last of `count` datagrams, by the kernel's clock, and the emulator's doubts
/// about the run.
fn span_s(spec: &str, wire: usize, count: usize, trace: &str) -> (f64, Vec<String>) {
    let mut read = |name: &str| (name == "t.up").then(|| trace.as_bytes().to_vec());
    let testbed = Testbed::new("rate", 1, spec, DEFAULT_SPIN, &mut read).expect("namespaces");
    let (client, server) = testbed.sockets().expect("sockets");
    for _ in 0..count {
        client.send(&vec![0; wire - HEADERS]).expect("send");
    }
    let times = arrivals(&server, count);
    (times[count - 1] - times[0], report(&testbed).doubts())
}

/// Asserts that one of several runs takes the expected time: a busy machine delays one run, but a wrong rate delays
/// all.
///
/// A run that the emulator doubts counts if its time is right, and is ignored otherwise. The test fails after five
/// wrong runs without doubts, or after 40 wrong runs in total.
fn assert_within_2_percent(expected_s: f64, span_s: impl Fn() -> (f64, Vec<String>)) {
    let mut spans = Vec::new();
    while spans.len() < 40 {
        let (span, doubts) = span_s();
        if (span / expected_s - 1.0).abs() < 0.02 {
            return;
        }
        spans.push((span, doubts));
        if spans.iter().filter(|(_, doubts)| doubts.is_empty()).count() == 5 {
            break;
        }
    }
    panic!("took {spans:?} s, not {expected_s} s");
}

#[test]
fn the_rate_holds_within_2_percent() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let span = || span_s("rate=8M,delay=3ms,queue=1MB", 1_000, 401, "");
    assert_within_2_percent(400.0 * 1_000.0 * 8.0 / 8e6, span);
}

#[test]
fn a_trace_is_the_rate() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    // Three packets in 40 ms, ten times, from any position in the trace.
    assert_within_2_percent(0.4, || span_s("up.trace=t,queue=1MB", 1_500, 31, "10\n10\n40\n"));
}

#[test]
fn losses_are_as_frequent_as_asked_and_all_are_counted() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let testbed = testbed("loss", "loss=10%,delay=1ms");
    let (client, _server) = testbed.sockets().expect("sockets");
    for _ in 0..5_000 {
        client.send(&[0; 100]).expect("send");
    }
    let report = settled(&testbed, 5_000);
    let stats = report.up.stats;
    assert_eq!((stats.offered_packets, report.kernel_drops), (5_000, 0));
    assert_eq!(stats.delivered_packets + stats.dropped_loss, 5_000);
    // Five standard deviations.
    assert!((395..=605).contains(&stats.dropped_loss), "{stats:?}");
}

#[test]
fn a_queue_is_bounded_in_bytes_or_time() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    // 400 ms of 200 kbit/s are 10,000 bytes: nine packets of 1,028, including the one being sent.
    for spec in ["rate=200k,queue=10kB", "rate=200k,queue=400ms"] {
        let testbed = testbed("queue", spec);
        let (client, _server) = testbed.sockets().expect("sockets");
        for _ in 0..40 {
            client.send(&[0; 1_000]).expect("send");
        }
        let stats = settled(&testbed, 40).up.stats;
        assert_eq!(stats.queue_max_bytes, 9 * 1_028, "{spec}: {stats:?}");
        // Meanwhile the queue accepted more packets, one every 41 ms.
        assert!((9..20).contains(&stats.delivered_packets), "{spec}: {stats:?}");
    }
}

#[test]
fn commands_break_restore_and_change_a_link() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let testbed = testbed("down", "delay=1ms");
    let (client, server) = testbed.sockets().expect("sockets");
    server.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let tell = |command| testbed.emulator.command(0, command).expect("command");
    let mut buffer = [0; 16];
    tell(LinkCommand::Break(Side::Up));
    client.send(b"lost").expect("send");
    assert_eq!(settled(&testbed, 1).up.stats.dropped_outage, 1);
    assert!(!report(&testbed).up.up && report(&testbed).down.up);
    tell(LinkCommand::Restore(Side::Up));
    client.send(b"heard").expect("send");
    assert_eq!(server.recv(&mut buffer).expect("recv"), 5);
    let spec: DuplexSpec = "loss=100%".parse().expect("spec");
    let config = spec.resolve(&SeedTree::new(1), &mut |_| None).expect("link");
    tell(LinkCommand::Set(Box::new(config)));
    client.send(b"lost").expect("send");
    assert_eq!(settled(&testbed, 3).up.stats.dropped_loss, 1);
    assert_eq!(report(&testbed).doubts(), Vec::<String>::new());
}

/// The emulator thread's share of a processor over 300 ms.
fn load() -> f64 {
    const TIME: Duration = Duration::from_millis(300);
    let before = processor_time().expect("CPU time");
    std::thread::sleep(TIME);
    let used = processor_time().expect("CPU time") - before;
    used.as_secs_f64() / TIME.as_secs_f64()
}

#[test]
fn an_interface_may_go_down_and_up_again() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let testbed = testbed("updown", "delay=1ms");
    let (client, server) = testbed.sockets().expect("sockets");
    server.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    for namespace in [testbed.client(), testbed.server()] {
        let set = |state| ip(&["-n", namespace, "link", "set", "path0", state]).expect("ip");
        set("down");
        // At the client the kernel rejects the packet, at the server the interface does.
        let _ = client.send(b"lost");
        assert!(load() < 0.5, "the thread spins on an interface that is down");
        set("up");
        client.send(b"heard").expect("send");
        assert_eq!(server.recv(&mut [0; 16]).expect("recv"), 5);
    }
    let report = report(&testbed);
    assert_eq!(report.up.send_errors, 1);
    assert_eq!(report.doubts(), Vec::<String>::new());
}

#[test]
fn an_interface_that_is_removed_is_reported_and_costs_nothing() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let testbed = testbed("gone", "delay=1ms");
    ip(&["-n", testbed.client(), "link", "del", "path0"]).expect("ip");
    assert!(load() < 0.5, "the thread spins on a removed interface");
    let report = report(&testbed);
    assert_eq!(report.lost_interfaces, ["path0"]);
    assert!(report.doubts()[0].contains("path0 was removed"));
}

#[test]
fn an_idle_emulator_sleeps_and_no_packet_gets_lost_unseen() {
    let _alone = lock_exclusively();
    if !ready() {
        return;
    }
    let testbed = testbed("flood", "rate=1G,delay=1ms,queue=100kB");
    let (client, _server) = testbed.sockets().expect("sockets");
    assert!(load() < 0.1, "the thread is busy without packets");
    const FLOOD: u64 = 60_000;
    for _ in 0..FLOOD {
        client.send(&[0; 1_200]).expect("send");
    }
    let mut seen = 0;
    for _ in 0..1_000 {
        let report = report(&testbed);
        seen = report.up.stats.offered_packets + report.kernel_drops;
        if seen == FLOOD {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(seen, FLOOD, "{:?}", report(&testbed));
    assert!(load() < 0.1, "the thread is busy without packets");
}
