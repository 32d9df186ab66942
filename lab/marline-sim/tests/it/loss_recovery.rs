//! Tests of loss recovery in scripts of segments: the server's retransmissions and their times when
//! chosen packets are lost.
//!
//! One path of 20 ms is so fast that a burst takes no time to send. Bursts are one second apart, and chosen packets of
//! the last one are lost. Times count from when it is written.

use core::any::Any;

use crate::cases::{LINUX_314, link};
use marline_core::ConnectionConfig;
use marline_sim::{NodeId, ObservationPoint, Observer, Pace, Packet, Paths, PathsConfig, Units};
use marline_time::{Duration, Instant, SeedTree};
use marline_wire::TcpSegment;

/// Payload of a segment of plain TCP with timestamps on 1500-byte packets.
const MSS: u64 = 1_448;
const LINK: &str = "rate=10G,delay=10ms";
const WARM: usize = 20;

const COUNTING: &str = "rfc6675";
const RACK: &str = "rack-tlp,pto=linux";

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// When a burst is written.
fn begins(burst: usize) -> Instant {
    Instant::from_secs(1) + ms(1_000) * burst as u32
}

/// Data segments from the server: time and absolute sequence number.
#[derive(Debug)]
struct Log {
    server: NodeId,
    sent: Vec<(Instant, u32)>,
}

impl Observer for Log {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        let segment = TcpSegment::parse(&packet.segment).expect("a segment");
        let by_server =
            matches!(sighting, ObservationPoint::Sent { node, .. } if node == self.server);
        if by_server && !segment.payload.is_empty() {
            self.sent.push((now, segment.header.seq.0));
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A script: bursts of this many segments, and the losses in the last one.
struct Script {
    recovery: &'static str,
    segments: u64,
    /// Initial window. Windows are kept over pauses unless this is set.
    window: u32,
    congestion: &'static str,
    lost: &'static [u64],
}

/// Result of the last burst: later transmissions as (ms, segment from 1), and the time when it was read.
#[derive(Debug)]
struct Outcome {
    at_once: u64,
    later: Vec<(u64, u64)>,
    complete: u64,
    rtos: u64,
}

impl Script {
    const fn new(recovery: &'static str, segments: u64, lost: &'static [u64]) -> Script {
        Script { recovery, segments, window: 60, congestion: "reno+keep-window", lost }
    }

    fn stage(&self) -> Paths {
        let set = marline_research::registry().policy_set(
            "min-rtt",
            "full-mesh",
            self.congestion,
            self.recovery,
        );
        let mut connection = ConnectionConfig::new(set.expect("specs"));
        (connection.mptcp, connection.pacing) = (false, false);
        connection.initial_window = self.window;
        let mut paths =
            Paths::new(&PathsConfig::new(vec![link(LINK)], connection), SeedTree::new(3));
        let (bytes, times) = (self.segments * MSS, (0..=WARM).map(begins).collect());
        let mut pace = Some(Pace::At { bytes, times });
        paths.listen(Box::new(move |_| {
            Box::new(Units::new(pace.take().unwrap_or(Pace::Never), 1, 7, 8))
        }));
        paths.connect(0, Box::new(Units::new(Pace::Never, bytes, 8, 7))).expect("a connection");
        let log = Log { server: paths.server, sent: Vec::new() };
        paths.world.observe(Box::new(log));
        paths
    }

    fn run(&self) -> Outcome {
        let mut paths = self.stage();
        paths.world.run_until(begins(WARM) - ms(1));
        let passed = paths.world.link(paths.down[0]).stats().offered_packets;
        let mut config = link(LINK).down;
        config.loss.pattern = self.lost.iter().map(|number| passed + number).collect();
        paths.world.set_link(paths.down[0], config);
        paths.world.run_until(begins(WARM) + ms(5_000));
        let client = paths.client_report(0).expect("connected");
        assert_eq!((client.received.len(), client.wrong_at), (WARM + 1, None));
        let host = paths.world.node(paths.server);
        let (id, _) = host.connections().next().expect("one connection");
        let info = host.endpoint().info(id).expect("it is open");
        let log = paths.world.observer::<Log>().expect("the observer is set");
        let first = log.sent.iter().find(|(at, _)| *at >= begins(WARM)).expect("a burst").1;
        let of_burst = log.sent.iter().filter(|(at, _)| *at >= begins(WARM));
        let all: Vec<(u64, u64)> = of_burst
            .map(|(at, seq)| {
                let segment = 1 + u64::from(seq.wrapping_sub(first)) / MSS;
                (at.since(begins(WARM)).as_micros() as u64 / 1_000, segment)
            })
            .collect();
        let (at_once, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at == 0);
        let complete = client.received[WARM].since(begins(WARM)).as_micros() as u64 / 1_000;
        Outcome { at_once: at_once.len() as u64, later, complete, rtos: info.subflows[0].rtos }
    }
}

#[test]
fn a_loss_in_the_middle_is_repaired_in_a_round_trip_by_either() {
    for recovery in [COUNTING, LINUX_314, RACK, "rack-tlp"] {
        for lost in [&[3][..], &[15], &[27]] {
            let lost: &'static [u64] = Box::leak(lost.to_vec().into_boxed_slice());
            let outcome = Script::new(recovery, 30, lost).run();
            assert_eq!(outcome.at_once, 30, "{recovery}");
            assert_eq!(outcome.later, [(20, lost[0])], "{recovery}");
            assert_eq!((outcome.complete, outcome.rtos), (30, 0), "{recovery}");
        }
    }
}

#[test]
fn several_holes_are_repaired_together() {
    for recovery in [COUNTING, LINUX_314, RACK] {
        let outcome = Script::new(recovery, 30, &[5, 6, 14]).run();
        let repeated: Vec<u64> = outcome.later.iter().map(|(_, segment)| *segment).collect();
        assert_eq!(repeated, [5, 6, 14], "{recovery}: {outcome:?}");
        assert!(outcome.later.iter().all(|(at, _)| *at == 20), "{recovery}: {outcome:?}");
        assert_eq!(outcome.rtos, 0, "{recovery}");
    }
}

#[test]
fn a_lost_retransmission_waits_for_the_timer_except_with_rack() {
    // Bursts start with a window of twenty, so that data follows the retransmission.
    let script = |recovery, lost| Script {
        window: 20,
        congestion: "reno",
        ..Script::new(recovery, 60, lost)
    };
    let once = script(COUNTING, &[3]).run();
    assert_eq!(once.at_once, 20);
    let repeat = once.later.iter().position(|(_, s)| *s == 3).expect("repeated");
    let repeat = once.at_once + 1 + repeat as u64;
    let lost: &'static [u64] = Box::leak(vec![3, repeat].into_boxed_slice());
    for (recovery, rtos) in [(COUNTING, 1), (LINUX_314, 1), (RACK, 0)] {
        let outcome = script(recovery, lost).run();
        let copies: Vec<u64> =
            outcome.later.iter().filter(|(_, s)| *s == 3).map(|(at, _)| *at).collect();
        assert_eq!((copies.len(), outcome.rtos), (2, rtos), "{recovery}: {outcome:?}");
        assert_eq!(copies[0], 20, "{recovery}");
        // Two round trips later, or a timeout.
        assert_eq!(copies[1] > 200, rtos > 0, "{recovery}: {copies:?}");
    }
}

#[test]
fn early_retransmit_of_one_to_three_outstanding_segments() {
    // Outstanding and lost segments, and retransmissions with early retransmit: time and segment.
    for (segments, lost, repeats) in [
        // A quarter of a round trip after the SACK.
        (2, &[1][..], &[(25, 1)][..]),
        (3, &[1], &[(25, 1)]),
        (3, &[1, 2], &[(25, 1), (45, 2)]),
        (3, &[2], &[(25, 2)]),
        // Nothing is SACKed, and the ACK of the first is delayed by 12 ms. The probe follows two round trips later,
        // and its SACK triggers the rest.
        (3, &[2, 3], &[(72, 3), (97, 2)]),
        // A lone segment is probed at the time of the timer.
        (1, &[1], &[(220, 1)]),
    ] {
        let lost: &'static [u64] = Box::leak(lost.to_vec().into_boxed_slice());
        let outcome = Script::new(LINUX_314, segments, lost).run();
        assert_eq!(outcome.later, repeats, "{segments} sent, {lost:?} lost");
        assert_eq!(outcome.rtos, 0, "{segments} sent, {lost:?} lost");
    }
}

#[test]
fn without_early_retransmit_few_segments_wait_for_the_timer() {
    for (segments, lost) in [(2, &[1][..]), (3, &[1]), (3, &[2])] {
        let lost: &'static [u64] = Box::leak(lost.to_vec().into_boxed_slice());
        let outcome = Script::new(COUNTING, segments, lost).run();
        assert_eq!(outcome.rtos, 1, "{segments} sent, {lost:?} lost: {outcome:?}");
        assert!(outcome.later[0].0 >= 220, "{outcome:?}");
    }
    // According to RFC 5827, nothing waits for reordering.
    let outcome = Script::new("rfc6675,early-retransmit=rfc5827", 3, &[1]).run();
    assert_eq!(outcome.later, [(20, 1)]);
    // RACK also waits for reordering.
    let outcome = Script::new(RACK, 3, &[1]).run();
    assert_eq!(outcome.later, [(25, 1)]);
}

#[test]
fn limited_transmit_lets_new_data_out_on_the_first_sacks() {
    // A window of four with the first segment lost: each of the three SACKs may release one more segment.
    for (recovery, limited) in
        [("rfc6675,limited-transmit=on", true), ("rfc6675,limited-transmit=off", false)]
    {
        let script = Script { window: 4, ..Script::new(recovery, 20, &[]) };
        let mut paths = script.stage();
        // The first burst starts with the initial window.
        let mut config = link(LINK).down;
        paths.world.run_until(begins(0) - ms(1));
        let passed = paths.world.link(paths.down[0]).stats().offered_packets;
        config.loss.pattern = vec![passed + 1];
        paths.world.set_link(paths.down[0], config);
        paths.world.run_until(begins(0) + ms(500));
        let log = paths.world.observer::<Log>().expect("the observer is set");
        let first = log.sent[0].1;
        let of_round = log
            .sent
            .iter()
            .filter(|(at, _)| at.since(begins(0)).as_micros() / 1_000 == 20)
            .map(|(_, seq)| 1 + u64::from(seq.wrapping_sub(first)) / MSS);
        let before_the_repeat: Vec<u64> = of_round.take_while(|segment| *segment != 1).collect();
        assert_eq!(before_the_repeat.contains(&5), limited, "{recovery}: {before_the_repeat:?}");
        assert_eq!(before_the_repeat.is_empty(), !limited, "{recovery}: {before_the_repeat:?}");
    }
}

#[test]
fn a_tail_is_found_by_its_probe() {
    // The last four of twenty are lost: the probe repeats the last one, and its SACK shows the others (FACK, RACK).
    // Without FACK one SACK is not enough, and the timer repairs the rest.
    for (recovery, rtos) in
        [(LINUX_314, 0), (RACK, 0), ("rfc6675,pto=linux-3.10", 1), ("rfc6675,pto=off", 1)]
    {
        let outcome = Script::new(recovery, 20, &[17, 18, 19, 20]).run();
        assert_eq!(outcome.rtos, rtos, "{recovery}: {outcome:?}");
        assert_eq!(outcome.complete > 200, rtos > 0, "{recovery}: {outcome:?}");
    }
}
