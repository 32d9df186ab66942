//! Tests of a closed window: a peer whose application never reads, and an application of our own
//! that does not.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::two_hosts::{MiddleboxAction, Packet, TwoHosts, bytes, two_paths};
use marline_core::{ConnectionConfig, ConnectionId, Event, MemoryBudget};
use marline_testkit::fixtures::{listening, served};
use marline_testkit::{Pair, Seg, SegmentOutcome, Side, config, endpoint_config};
use marline_wire::TcpSegment;

const BUFFERS: u64 = (6 << 20) + (4 << 20) + (1 << 20);

struct Stalled {
    pair: Pair,
    writer: ConnectionId,
    reader: ConnectionId,
    written: u64,
    read: u64,
}

fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Stalled {
    fn new(mptcp: bool, checksums: bool, scheduler: &str) -> Self {
        let mut ours: ConnectionConfig = config();
        (ours.mptcp, ours.dss_checksum) = (mptcp, checksums);
        let registry = marline_algos::Registry::default();
        ours.policies.scheduler = registry.scheduler(scheduler).expect("a scheduler");
        let theirs = endpoint_config(Some(ours.clone()));
        let mut pair = Pair::new(endpoint_config(None), theirs, 1);
        let now = pair.now();
        let local = "10.0.0.1:0".parse().expect("an address");
        let remote = "10.0.0.2:443".parse().expect("an address");
        let writer = pair.endpoint(Side::A).connect(now, ours, local, remote).expect("room");
        let mut stalled = Stalled { pair, writer, reader: ConnectionId(0), written: 0, read: 0 };
        let (_, events) = stalled.run(Duration::from_secs(1));
        let incoming = events.iter().find_map(|(side, event)| match event {
            Event::Incoming(id) if *side == Side::B => Some(*id),
            _ => None,
        });
        stalled.reader = incoming.expect("a connection");
        stalled
    }

    /// Lets time pass, 10 ms each way. Returns the payload bytes of each sent segment, and events.
    fn run(&mut self, time: Duration) -> (Vec<usize>, Vec<(Side, Event)>) {
        let (mut sent, mut events) = (Vec::new(), Vec::new());
        let end = self.pair.now() + time;
        loop {
            events.extend(self.pair.gather(&mut |flight| {
                let payload = TcpSegment::parse(&flight.bytes).expect("a segment").payload.len();
                sent.push(payload);
                SegmentOutcome::Arrive(Duration::from_millis(10))
            }));
            if !self.pair.step(end) {
                return (sent, events);
            }
        }
    }

    fn write_all_that_fits(&mut self) {
        loop {
            let bytes: Vec<u8> = (0..65_536).map(|i| byte(self.written + i)).collect();
            let now = self.pair.now();
            match self.pair.endpoint(Side::A).write(now, self.writer, &bytes) {
                Ok(taken) => self.written += taken as u64,
                Err(_) => return,
            }
        }
    }

    fn read_all(&mut self) {
        self.read_at_most(u64::MAX);
    }

    fn read_at_most(&mut self, most: u64) {
        let mut out = vec![0; 65_536];
        let (now, end) = (self.pair.now(), self.read.saturating_add(most));
        while self.read < end {
            let wanted = (end - self.read).min(65_536) as usize;
            let read = self.pair.endpoint(Side::B).read(now, self.reader, &mut out[..wanted]);
            let Ok(len @ 1..) = read else { return };
            for b in &out[..len] {
                assert_eq!(*b, byte(self.read), "byte {}", self.read);
                self.read += 1;
            }
        }
    }

    fn buffered(&mut self) -> (u64, u64) {
        let held = |endpoint: &mut marline_core::Endpoint, id| {
            endpoint.info(id).expect("the connection exists").buffered
        };
        let (writer, reader) = (self.writer, self.reader);
        (held(self.pair.endpoint(Side::A), writer), held(self.pair.endpoint(Side::B), reader))
    }
}

fn stall_and_resume(mptcp: bool, checksums: bool, scheduler: &str) {
    let mut stalled = Stalled::new(mptcp, checksums, scheduler);
    for _ in 0..60 {
        stalled.write_all_that_fits();
        stalled.run(Duration::from_secs(1));
    }
    let before = stalled.written;
    let (sent, _) = stalled.run(Duration::from_secs(600));
    stalled.write_all_that_fits();
    assert_eq!(stalled.written, before, "a full buffer takes no more");
    let held = stalled.buffered();
    let payload: usize = sent.iter().sum();
    println!(
        "{scheduler}, mptcp {mptcp}, checksums {checksums}: {} bytes written, {held:?} bytes held; \
         {} segments with {payload} bytes in ten minutes of silence",
        stalled.written,
        sent.len()
    );
    assert!(held.0 <= BUFFERS && held.1 <= BUFFERS, "{held:?}");
    // Ten minutes, with probes at most a minute apart at the end: some, but few.
    assert!((10..100).contains(&sent.len()), "{} segments", sent.len());
    assert!(payload < 100_000);
    let subflows = stalled
        .pair
        .endpoint(Side::A)
        .info(stalled.writer)
        .expect("the connection exists")
        .subflows;
    assert_eq!(subflows.len(), 1, "a closed window is no reason to end a subflow");
    // The application resumes: all data arrives, the first of it immediately.
    stalled.read_all();
    stalled.run(Duration::from_secs(1));
    let at_first = stalled.read;
    stalled.read_all();
    assert!(stalled.read > at_first, "the window update started the sender");
    for _ in 0..60 {
        stalled.run(Duration::from_millis(100));
        stalled.read_all();
    }
    assert_eq!(stalled.read, stalled.written);
}

#[test]
fn a_reader_that_sleeps_stops_the_writer_and_nothing_else() {
    stall_and_resume(true, false, "min-rtt");
}

#[test]
fn a_reader_that_sleeps_with_checksums() {
    stall_and_resume(true, true, "min-rtt");
}

#[test]
fn a_reader_that_sleeps_under_other_schedulers() {
    stall_and_resume(true, false, "redundant");
    stall_and_resume(true, false, "round-robin");
}

#[test]
fn a_reader_that_sleeps_on_plain_tcp() {
    stall_and_resume(false, false, "min-rtt");
}

/// The window update itself may be lost: the probes detect the open window.
#[test]
fn a_lost_window_update_is_found_by_a_probe() {
    let mut stalled = Stalled::new(true, false, "min-rtt");
    for _ in 0..20 {
        stalled.write_all_that_fits();
        stalled.run(Duration::from_secs(1));
    }
    stalled.read_all();
    let _ = stalled.pair.gather(&mut |_| SegmentOutcome::Drop);
    for _ in 0..130 {
        stalled.run(Duration::from_secs(1));
        stalled.read_all();
    }
    assert_eq!(stalled.read, stalled.written);
}

/// After minutes of a closed window the next probe is up to a minute away. The update is repeated earlier.
#[test]
fn a_lost_window_update_is_repeated_before_a_late_probe() {
    let mut stalled = Stalled::new(true, false, "min-rtt");
    for _ in 0..200 {
        stalled.write_all_that_fits();
        stalled.run(Duration::from_secs(1));
    }
    stalled.read_all();
    let mut lost = 0;
    let _ = stalled.pair.gather(&mut |_| {
        lost += 1;
        SegmentOutcome::Drop
    });
    assert_eq!(lost, 1, "the update");
    let before = stalled.read;
    stalled.run(Duration::from_millis(400));
    stalled.read_all();
    assert!(stalled.read > before, "the repeated update started the writer");
    for _ in 0..20 {
        stalled.run(Duration::from_millis(100));
        stalled.read_all();
    }
    assert_eq!(stalled.read, stalled.written);
    // No data is left to send, and the window was never closed again: silence.
    let (sent, _) = stalled.run(Duration::from_secs(20));
    assert_eq!(sent.len(), 0, "{sent:?}");
}

/// For a peer without further data, a few updates are sent.
#[test]
fn a_window_update_is_repeated_at_most_five_times() {
    let (mut script, mut peer, id) = served(listening(), 1);
    // Fill the offered window and a little more: the last segment is cut.
    let is_closed_for_data = |sent: &[marline_testkit::SentSegment]| {
        sent.last().is_some_and(|ack| ack.seg.header.window == 0)
    };
    while !is_closed_for_data(&script.take_sent()) {
        peer.send_data(&mut script, &[3; 1_400]);
        script.advance(Duration::from_millis(50));
    }
    script.advance(Duration::from_secs(1));
    let _ = script.take_sent();
    assert!(!script.read_all(id).is_empty());
    script.run(|_, _| ());
    assert!(!script.take_sent().is_empty(), "an update");
    let mut after = Vec::new();
    let begun = script.now();
    while script.advance_to_send(Duration::from_secs(9)) {
        after.push(script.now().since(begun).as_millis());
        script.take_sent();
    }
    assert_eq!(after.len(), 5, "{after:?}");
    assert!(after.windows(2).all(|two| two[1] >= 2 * two[0]), "{after:?}");
}

/// The path used for the window update has died unnoticed, since nothing is in flight on it: the writer's probe
/// there gets no answer, and the next ones are sent on both.
#[test]
fn a_window_update_that_dies_with_its_path_is_asked_for_on_the_other() {
    const ALL: usize = 16 << 20;
    let (dead, on_second) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (died, counted) = (Rc::clone(&dead), Rc::clone(&on_second));
    let middle = move |packet: &mut Packet<'_>| {
        counted.set(counted.get() + packet.path);
        if packet.path == 0 && died.get() { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    };
    let mut hosts = TwoHosts::new(two_paths(config()), config(), middle, 1);
    hosts.run_ms(1_000);
    assert_eq!(hosts.info(Side::A).subflows.len(), 2);
    hosts.end(Side::B).sleeps = true;
    hosts.write(Side::A, &bytes(ALL, 1));
    hosts.run_ms(3_000);
    on_second.set(0);
    hosts.run_ms(3_000);
    assert_eq!(on_second.get(), 0, "while answers come, the other path may sleep");
    dead.set(true);
    hosts.end(Side::B).sleeps = false;
    hosts.run_ms(6_000);
    let received = hosts.end(Side::B).received.len();
    assert_eq!(received, ALL, "the window opened six seconds ago");
}

#[test]
fn probes_of_a_shut_window_back_off() {
    let (mut script, mut peer, id) = served(listening(), 1);
    // The peer closes its window. The earlier offer cannot be revoked, so fill it.
    let shut = |peer: &marline_testkit::Peer| Seg::ack().data_ack(peer.expected_dsn).window(0);
    let bytes = vec![7; 1 << 20];
    let mut quiet = 0;
    while quiet < 3 {
        let wrote = script.run(|e, now| e.write(now, id, &bytes)).unwrap_or(0);
        script.advance(Duration::from_millis(20));
        let sent = peer.receive_all(&mut script);
        quiet = if wrote == 0 && sent.is_empty() { quiet + 1 } else { 0 };
        peer.send(&mut script, shut(&peer));
    }
    let mut at = Vec::new();
    for _ in 0..14 {
        assert!(script.advance_to_send(Duration::from_secs(61)), "probes continue");
        at.push(script.now());
        let sent = peer.receive_all(&mut script);
        assert_eq!(sent.len(), 1, "one probe at a time: {sent:#?}");
        peer.send(&mut script, shut(&peer));
    }
    let gaps: Vec<f64> = at.windows(2).map(|w| w[1].since(w[0]).as_secs_f64()).collect();
    println!("seconds between probes: {gaps:.1?}");
    for pair in gaps.windows(2) {
        assert!(pair[1] >= pair[0] * 1.9 || pair[1] >= 50.0, "{gaps:.1?}");
    }
    let acked = script.endpoint.info(id).expect("the connection exists").bytes_acked;
    // The window opens: data is sent immediately.
    let open = Seg::ack().data_ack(peer.expected_dsn).window(1_000);
    peer.send(&mut script, open);
    script.advance(Duration::from_millis(1));
    assert!(script.take_sent().iter().any(|s| !s.seg.payload.is_empty()));
    assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, acked);
}

/// If memory is short, the window may end anywhere. A reader that has read all data gets more soon, whatever is left
/// of the window, and however the memory changes while it reads.
#[test]
fn a_reader_that_has_read_everything_gets_more_although_memory_is_short() {
    for seed in 0..200_u64 {
        for scheduler in ["min-rtt", "auto"] {
            reads_with_little_memory(seed, scheduler);
        }
    }
}

fn reads_with_little_memory(seed: u64, scheduler: &str) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    let mut stalled = Stalled::new(true, false, scheduler);
    let budget = MemoryBudget::new(None);
    let account = budget.account(u64::MAX);
    let (now, reader) = (stalled.pair.now(), stalled.reader);
    stalled.pair.endpoint(Side::B).charge_memory_to(now, reader, &account);
    for turn in 0..40 {
        stalled.write_all_that_fits();
        stalled.run(Duration::from_millis(10 + draw(3_000)));
        budget.set_limit(Some(if turn < 2 {
            2_000_000
        } else {
            account.used() / 2 + draw(20_000)
        }));
        let most = 1 + draw(40_000);
        stalled.read_at_most(most);
        if draw(3) == 0 {
            continue;
        }
        // It reads all there is, and waits.
        stalled.read_all();
        stalled.write_all_that_fits();
        let before = stalled.read;
        stalled.run(Duration::from_secs(2));
        stalled.read_all();
        assert!(
            stalled.read > before,
            "{scheduler}, seed {seed}: nothing after {before} bytes in turn {turn}"
        );
    }
}

/// A reader that sleeps while memory is short: what its peer was promised is refused, and answered. The peer asks again
/// at the pace of window probes, and gives up no subflow.
#[test]
fn refused_payload_is_repeated_at_the_pace_of_probes() {
    for (mptcp, scheduler) in [(true, "min-rtt"), (true, "auto"), (false, "min-rtt")] {
        let mut stalled = Stalled::new(mptcp, false, scheduler);
        let budget = MemoryBudget::new(None);
        let account = budget.account(u64::MAX);
        let (now, reader) = (stalled.pair.now(), stalled.reader);
        stalled.pair.endpoint(Side::B).charge_memory_to(now, reader, &account);
        stalled.write_all_that_fits();
        stalled.run(Duration::from_millis(40));
        budget.set_limit(Some(0));
        let (sent, events) = stalled.run(Duration::from_secs(600));
        assert_eq!(events, []);
        let segments = sent.iter().filter(|payload| **payload > 0).count();
        let held =
            stalled.pair.endpoint(Side::A).info(stalled.writer).expect("the connection exists");
        assert_eq!((held.subflows.len(), held.gone.len()), (1, 0), "no reason to end a subflow");
        assert!((10..400).contains(&segments), "{segments}");
        let before = stalled.read;
        stalled.read_all();
        assert!(stalled.read > before);
        for _ in 0..60 {
            stalled.run(Duration::from_millis(100));
            stalled.read_all();
        }
        assert_eq!(
            stalled.read, stalled.written,
            "the transfer continues once there is room, mptcp {mptcp}"
        );
    }
}
