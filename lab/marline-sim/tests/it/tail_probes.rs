//! Tests of tail loss probes in scripts of segments: which part of a burst the server sends, on which path, and when.
//!
//! Path 0 has an RTT of 13 ms (WLAN), path 1 of 85 ms (4G). Both are fast enough that a burst takes no time to send.
//! Times count from when the burst is written.

use core::any::Any;

use crate::cases::{LINUX_314, link};
use marline_core::ConnectionConfig;
use marline_sim::{
    NodeId, ObservationPoint, Observer, Pace, Packet, Paths, PathsConfig, Placement, Units,
};
use marline_time::{Duration, Instant, SeedTree};
use marline_wire::TcpSegment;

const WLAN: usize = 0;
const LTE: usize = 1;
const LINKS: [&str; 2] = ["rate=1G,delay=6.5ms", "rate=1G,delay=42.5ms"];
/// Number of bursts after which the path estimates are stable.
const WARM: usize = 20;
/// A little less than a segment, so that n of these make n segments.
const MSS: u64 = 1_400;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A data segment sent by the server.
#[derive(Copy, Clone, Debug)]
struct Sent {
    at: Instant,
    path: usize,
    dsn: u32,
}

#[derive(Debug)]
struct Log {
    server: NodeId,
    placement: Placement<usize>,
    sent: Vec<Sent>,
}

impl Observer for Log {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        if !matches!(sighting, ObservationPoint::Sent { node, .. } if node == self.server) {
            return;
        }
        let segment = TcpSegment::parse(&packet.segment).expect("a segment");
        let path = (0..2).find(|path| Paths::address(*path, 0) == packet.path.remote.ip());
        let path = path.expect("one of the two");
        let Some(dsn) = self.placement.place_segment(path, &segment) else { return };
        self.sent.push(Sent { at: now, path, dsn });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Setup {
    paths: Paths,
    bytes: u64,
    bursts: usize,
}

/// When a burst is written.
fn begins(burst: usize) -> Instant {
    Instant::from_secs(1) + ms(1_000) * burst as u32
}

impl Setup {
    /// The server writes bursts of `bytes`, one a second, with these policies.
    fn new(scheduler: &str, recovery: &str, bytes: u64, bursts: usize) -> Setup {
        Self::over(LINKS, scheduler, recovery, bytes, bursts)
    }

    fn over(links: [&str; 2], scheduler: &str, recovery: &str, bytes: u64, bursts: usize) -> Setup {
        let set = marline_research::registry().policy_set(scheduler, "full-mesh", "reno", recovery);
        let mut connection = ConnectionConfig::new(set.expect("specs"));
        connection.initial_window = 40;
        let config = PathsConfig::new(links.map(link).to_vec(), connection).with_known_mtu();
        let mut paths = Paths::new(&config, SeedTree::new(7));
        let times = (0..bursts).map(begins).collect();
        let mut pace = Some(Pace::At { bytes, times });
        paths.listen(Box::new(move |_| {
            Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
        }));
        let client = Units::new(Pace::Never, bytes, 8, 7);
        paths.connect(WLAN, Box::new(client)).expect("a connection");
        let log = Log { server: paths.server, placement: Placement::default(), sent: Vec::new() };
        paths.world.observe(Box::new(log));
        Setup { paths, bytes, bursts }
    }

    /// WLAN is down in this part of a burst.
    fn outage(mut self, burst: usize, from_ms: u64, to_ms: Option<u64>) -> Setup {
        self.paths.schedule_path_change(
            begins(burst) + ms(from_ms) - Duration::from_micros(1),
            WLAN,
            false,
        );
        if let Some(to) = to_ms {
            self.paths.schedule_path_change(begins(burst) + ms(to), WLAN, true);
        }
        self
    }

    fn run(mut self) -> Setup {
        self.paths.world.run_until(begins(self.bursts) + ms(10_000));
        let client = self.paths.client_report(0).expect("connected");
        assert_eq!((client.received.len(), client.wrong_at), (self.bursts, None));
        self
    }

    /// Sent segments of a burst: (ms after its start, path, segment from 1).
    fn sent(&self, burst: usize) -> Vec<(u64, usize, u64)> {
        let log = self.paths.world.observer::<Log>().expect("the observer is set");
        let first = log.sent[0].dsn;
        let of_burst = |sent: &&Sent| {
            let offset = u64::from(sent.dsn.wrapping_sub(first));
            offset / self.bytes == burst as u64
        };
        let of_burst = log.sent.iter().filter(of_burst);
        of_burst
            .map(|sent| {
                let offset = u64::from(sent.dsn.wrapping_sub(first)) % self.bytes;
                (rounded_ms(sent.at.since(begins(burst))), sent.path, 1 + offset / MSS)
            })
            .collect()
    }

    /// Segments of a burst that were sent after the first milliseconds.
    fn repeats(&self, burst: usize) -> Vec<(u64, usize, u64)> {
        self.sent(burst).into_iter().filter(|(at, ..)| *at > 5).collect()
    }

    /// Time at which a burst had been read, ms after it was written.
    fn complete(&self, burst: usize) -> u64 {
        let client = self.paths.client_report(0).expect("connected");
        rounded_ms(client.received[burst].since(begins(burst)))
    }
}

fn rounded_ms(duration: Duration) -> u64 {
    ((duration.as_nanos() + 500_000) / 1_000_000) as u64
}

const LINUX: &str = "rack-tlp,pto=linux-3.10";

/// One packet, after which the path is dead.
fn lone(scheduler: &str, recovery: &str) -> Setup {
    Setup::new(scheduler, recovery, 400, WARM + 2).outage(WARM, 0, None).run()
}

#[test]
fn a_lone_packet_on_a_dead_path_waits_two_timeouts_with_the_standard() {
    for recovery in [LINUX, LINUX_314] {
        let setup = lone("min-rtt+tlp-std", recovery);
        // The probe is sent at the time of the timer, and the timer fires a timeout later, with a reinjection.
        let sent = setup.sent(WARM);
        let expected = [(0, WLAN, 1), (213, WLAN, 1), (426, WLAN, 1), (426, LTE, 1)];
        assert_eq!(sent[..4], expected, "{recovery}: {sent:?}");
        assert_eq!(setup.complete(WARM), 426 + 43, "{recovery}");
        // The next burst avoids the path.
        assert_eq!(setup.sent(WARM + 1), [(0, LTE, 1)], "{recovery}");
    }
}

#[test]
fn tlp_mp_saves_one_of_two_timeouts() {
    for recovery in [LINUX, LINUX_314] {
        for after in ["reinject", "rto"] {
            let setup = lone(&format!("min-rtt+tlp-mp,after={after}"), recovery);
            let sent = setup.sent(WARM);
            let expected = [(0, WLAN, 1), (213, WLAN, 1), (213, LTE, 1), (426, WLAN, 1)];
            assert_eq!(sent[..4], expected, "{recovery}, {after}: {sent:?}");
            assert_eq!(setup.complete(WARM), 213 + 43);
            // On the dead path TCP must keep retransmitting it; on the other it was sent once.
            assert!(sent[4..].iter().all(|(_, path, _)| *path == WLAN), "{sent:?}");
            assert_eq!(setup.sent(WARM + 1), [(0, LTE, 1)]);
        }
    }
}

#[test]
fn the_formula_decides_when_a_lone_packet_is_probed() {
    for (pto, probe) in [
        ("draft-dukkipati", 213),
        ("linux-3.10", 213),
        ("linux", 213),
        ("rfc8985", 213),
        ("no-allowance", 28),
    ] {
        for base in ["rack-tlp", "rfc6675"] {
            let recovery = format!("{base},pto={pto}");
            let setup = lone("min-rtt+tlp-mp", &recovery);
            let sent = setup.sent(WARM);
            assert_eq!(sent[1..3], [(probe, WLAN, 1), (probe, LTE, 1)], "{recovery}: {sent:?}");
            assert_eq!(setup.complete(WARM), probe + 43, "{recovery}");
        }
    }
}

#[test]
fn the_default_sends_elsewhere_at_the_first_unanswered_probe() {
    let setup = lone("min-rtt", "rack-tlp");
    let sent = setup.sent(WARM);
    let (probe, ..) = sent[1];
    assert!(probe <= 28, "{sent:?}");
    assert_eq!(sent[1..3], [(probe, WLAN, 1), (probe, LTE, 1)], "{sent:?}");
    assert_eq!(setup.complete(WARM), probe + 43);
}

/// Three packets, after which the path is dead.
fn three(scheduler: &str) -> Setup {
    Setup::new(scheduler, LINUX, 3 * MSS, WARM + 2).outage(WARM, 0, None).run()
}

#[test]
fn tlp_probes_the_last_packet_and_the_option_decides_the_rest() {
    let standard = three("min-rtt+tlp-std");
    let sent = standard.repeats(WARM);
    let expected = [(26, WLAN, 3), (239, WLAN, 1), (239, LTE, 1), (239, LTE, 2), (239, LTE, 3)];
    assert_eq!(sent[..5], expected, "{sent:?}");
    assert_eq!(standard.complete(WARM), 239 + 43);

    let waits = three("min-rtt+tlp-mp,after=rto");
    let sent = waits.repeats(WARM);
    let expected = [(26, WLAN, 3), (26, LTE, 3), (239, WLAN, 1), (239, LTE, 1), (239, LTE, 2)];
    assert_eq!(sent[..5], expected, "{sent:?}");
    assert_eq!(waits.complete(WARM), 239 + 43);

    let reinjects = three("min-rtt+tlp-mp");
    let sent = reinjects.repeats(WARM);
    // The copy is answered after a round trip of 4G, and the original is still silent.
    let expected = [(26, WLAN, 3), (26, LTE, 3), (111, LTE, 1), (111, LTE, 2), (239, WLAN, 1)];
    assert_eq!(sent[..5], expected, "{sent:?}");
    assert_eq!(reinjects.complete(WARM), 111 + 43);

    for setup in [standard, waits, reinjects] {
        for segment in 1..=3 {
            let copies = setup.sent(WARM).into_iter().filter(|s| s.1 == LTE && s.2 == segment);
            assert_eq!(copies.count(), 1, "segment {segment} on 4G");
        }
        assert!(setup.sent(WARM + 1).iter().all(|(_, path, _)| *path == LTE));
    }
}

#[test]
fn an_original_that_answers_is_trusted_again() {
    // Down for 150 ms: burst and probe are lost, but the timer's first retransmission arrives.
    let setup = Setup::new("min-rtt+tlp-mp", LINUX, 3 * MSS, WARM + 2);
    let setup = setup.outage(WARM, 0, Some(150)).run();
    assert_eq!(setup.complete(WARM), 111 + 43);
    let sent = setup.repeats(WARM);
    assert_eq!(sent[4], (239, WLAN, 1), "{sent:?}");
    let next = setup.sent(WARM + 1);
    assert!(next.iter().all(|(_, path, _)| *path == WLAN), "{next:?}");
    assert!(next.iter().all(|(at, ..)| *at == 0), "{next:?}");
}

#[test]
fn an_ordinary_tail_loss_costs_one_packet_on_the_other_path() {
    for (scheduler, extra) in
        [("min-rtt+tlp-std", 0), ("min-rtt+tlp-mp,after=rto", 1), ("min-rtt+tlp-mp", 1)]
    {
        // The previous burst is entirely on WLAN: its packets are counted to find the last packet of the next burst.
        let probe = Setup::new(scheduler, LINUX, 5 * MSS, WARM + 2).run();
        let log = probe.paths.world.observer::<Log>().expect("the observer is set");
        assert!(log.sent.iter().all(|sent| sent.path == WLAN));
        let packets = probe.paths.world.link(probe.paths.down[WLAN]).stats();
        assert_eq!(packets.offered_packets, packets.delivered_packets);
        let first = packet_number(scheduler, WARM);
        let lossy = format!("rate=1G,delay=6.5ms,down.drop={}", first + 4);
        let setup = Setup::over([&lossy, LINKS[LTE]], scheduler, LINUX, 5 * MSS, WARM + 2).run();
        let sent = setup.repeats(WARM);
        // Four were acknowledged at 13 ms, then one is left: a lone segment again.
        assert_eq!(sent[0].1, WLAN, "{scheduler}: {sent:?}");
        assert_eq!(sent.len(), 1 + extra, "{scheduler}: {sent:?}");
        assert!(sent.iter().all(|(at, _, segment)| (*at, *segment) == (sent[0].0, 5)));
        assert!(setup.complete(WARM) <= sent[0].0 + 7);
        let next = setup.sent(WARM + 1);
        assert!(next.iter().all(|(_, path, _)| *path == WLAN), "{scheduler}: {next:?}");
    }
}

/// Number of the packet, counted from 1, with which a burst begins on WLAN towards the client.
fn packet_number(scheduler: &str, burst: usize) -> u64 {
    let mut setup = Setup::new(scheduler, LINUX, 5 * MSS, burst + 1);
    setup.paths.world.run_until(begins(burst) - Duration::from_micros(1));
    setup.paths.world.link(setup.paths.down[WLAN]).stats().offered_packets + 1
}
