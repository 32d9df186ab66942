mod pieces;
mod repairs;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use marline_algos::Registry;
use marline_time::{Rng, SeedTree};

use super::*;
use crate::config::Limits;
use crate::event::Event;
use crate::seal::Seal;
use crate::{SMALLEST_FRAME, TestCipher};

const A: PathId = PathId(0);
const B: PathId = PathId(1);
const FLOW: FlowId = FlowId(7);

fn at(ms: u64) -> Instant {
    Instant::from_millis(1_000 + ms)
}

fn config(policy: &str) -> LaneConfig {
    let registry = Registry::default();
    let policy = registry.datagram_policy(policy).unwrap();
    LaneConfig::new(policy, registry.congestion("cubic-westwood").unwrap())
}

/// Creates two lanes with two paths each.
fn lanes_of(config: &LaneConfig, keys: [Keys; 2]) -> [Lane; 2] {
    let [ours, theirs] = keys;
    let mut both = [
        Lane::new(config.clone(), LaneIds { local: 0x0101, peers: 0x0202 }, ours, at(0)),
        Lane::new(config.clone(), LaneIds { local: 0x0202, peers: 0x0101 }, theirs, at(0)),
    ];
    for lane in &mut both {
        assert!(lane.add_path(A, at(0)) && lane.add_path(B, at(0)));
    }
    both
}

fn lanes(policy: &str) -> [Lane; 2] {
    lanes_of(&config(policy), TestCipher::pair(3))
}

/// Takes all frames that a lane sends now.
fn frames(lane: &mut Lane, now: Instant) -> Vec<(PathId, Vec<u8>)> {
    let mut frame = Vec::new();
    let mut all = Vec::new();
    while let Some(transmit) = lane.poll_transmit(now, &mut frame) {
        assert_eq!(transmit.bytes, frame.len());
        all.push((transmit.path, frame.clone()));
    }
    all
}

/// Takes all received datagrams.
fn datagrams(lane: &mut Lane) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(event) = lane.poll_event() {
        if let Event::Datagram { flow, payload } = event {
            all.push((flow.0, payload.to_vec()));
        }
    }
    all
}

fn hand_over(to: &mut Lane, now: Instant, frames: &[(PathId, Vec<u8>)]) {
    for (path, frame) in frames {
        to.handle(now, *path, &mut frame.clone());
    }
}

/// Creates lanes that know the round trips and maximum frame sizes of all paths, which take 10 ms each way.
fn lanes_with_known_paths(policy: &str) -> [Lane; 2] {
    let [mut a, mut b] = lanes(policy);
    for lane in [&mut a, &mut b] {
        lane.send(at(0), FLOW, b"?").unwrap();
    }
    exchange(&mut a, &mut b, 0, 200);
    for lane in [&mut a, &mut b] {
        assert_eq!(datagrams(lane).len(), 1);
        assert!(lane.paths(at(200)).all(|path| path.frame_bytes == 1_472));
    }
    [a, b]
}

/// Runs both lanes over paths of 10 ms.
fn exchange(a: &mut Lane, b: &mut Lane, from_ms: u64, until_ms: u64) {
    exchange_over([a, b], from_ms..until_ms, |_, _, _| {}, |_, _, _| true);
}

/// Runs both lanes over paths of 10 ms that deliver a frame if `passes(ms, path, bytes)`.
fn exchange_over(
    lanes: [&mut Lane; 2],
    span_ms: Range<u64>,
    mut each_ms: impl FnMut(u64, &mut Lane, &mut Lane),
    passes: impl Fn(u64, PathId, usize) -> bool,
) {
    let [a, b] = lanes;
    let mut under_way: Vec<(u64, bool, PathId, Vec<u8>)> = Vec::new();
    for ms in span_ms {
        let (due, later): (Vec<_>, Vec<_>) =
            under_way.drain(..).partition(|(arrives, ..)| *arrives <= ms);
        under_way = later;
        for (_, to_b, path, mut frame) in due {
            let to = if to_b { &mut *b } else { &mut *a };
            to.handle(at(ms), path, &mut frame);
        }
        each_ms(ms, a, b);
        for (to_b, lane) in [(true, &mut *a), (false, &mut *b)] {
            if lane.poll_timeout().is_some_and(|due| due <= at(ms)) {
                lane.handle_timeout(at(ms));
            }
            let sent = frames(lane, at(ms)).into_iter();
            assert!(
                lane.poll_timeout().is_none_or(|due| due > at(ms)),
                "the lanes never become idle"
            );
            let sent = sent.filter(|(path, frame)| passes(ms, *path, frame.len()));
            under_way.extend(sent.map(|(path, frame)| (ms + 10, to_b, path, frame)));
        }
    }
}

#[test]
fn both_copies_are_the_same_bytes_and_one_of_them_is_delivered() {
    let [mut a, mut b] = lanes_with_known_paths("duplicate");
    a.send(at(200), FLOW, b"hello").unwrap();
    let sent = frames(&mut a, at(200));
    assert_eq!(sent.len(), 2);
    assert!(sent[0].0 != sent[1].0 && sent[0].1 == sent[1].1);
    hand_over(&mut b, at(210), &sent);
    assert_eq!(datagrams(&mut b), [(7, b"hello".to_vec())]);
    assert_eq!((b.stats().duplicates, b.stats().delivered_datagrams), (2, 2));
    // The copy on each path is acknowledged on that path.
    b.handle_timeout(at(215));
    let acks: BTreeSet<PathId> = frames(&mut b, at(215)).iter().map(|(path, _)| *path).collect();
    assert_eq!(acks, BTreeSet::from([A, B]));
}

#[test]
fn datagrams_that_are_there_at_the_same_moment_share_a_frame_and_others_do_not_wait() {
    let [mut a, mut b] = lanes_with_known_paths("one-path");
    for text in [&b"one"[..], b"", b"three"] {
        a.send(at(200), FLOW, text).unwrap();
    }
    let sent = frames(&mut a, at(200));
    assert_eq!(sent.len(), 1);
    a.send(at(200), FlowId(1 << 40), &[9; 1_200]).unwrap();
    let later = frames(&mut a, at(200));
    hand_over(&mut b, at(201), &later);
    assert_eq!(datagrams(&mut b), [(1 << 40, vec![9; 1_200])]);
    hand_over(&mut b, at(230), &sent);
    let expected = [(7, b"one".to_vec()), (7, Vec::new()), (7, b"three".to_vec())];
    assert_eq!(datagrams(&mut b), expected);
}

#[test]
fn a_million_replayed_or_changed_frames_are_ignored() {
    let [mut a, mut b] = lanes_with_known_paths("duplicate");
    let mut rng = SeedTree::new(5).stream("attack");
    let mut seen = Vec::new();
    for number in 0..200u64 {
        a.send(at(200 + number), FLOW, &number.to_be_bytes()).unwrap();
        let sent = frames(&mut a, at(200 + number));
        hand_over(&mut b, at(200 + number), &sent);
        seen.extend(sent);
        let acks = frames(&mut b, at(200 + number));
        hand_over(&mut a, at(200 + number), &acks);
    }
    let delivered = datagrams(&mut b).len();
    assert_eq!(delivered, 200);
    b.handle_timeout(at(500));
    frames(&mut b, at(500));
    let mut frame = Vec::new();
    for _ in 0..1_000_000u32 {
        let (path, original) = &seen[rng.below(seen.len() as u64) as usize];
        frame.clone_from(original);
        match rng.below(4) {
            // Unchanged, on the original path or on the other one.
            0 => {}
            // Another number or id, or a changed body.
            1 => frame[rng.below(17) as usize] ^= 1 << rng.below(8),
            2 => {
                let place = rng.below(frame.len() as u64) as usize;
                frame[place] ^= 1 << rng.below(8);
            }
            _ => frame.truncate(rng.below(frame.len() as u64) as usize),
        }
        let path = if rng.chance(0.5) { *path } else { PathId(1 - path.0) };
        b.handle(at(500), path, &mut frame);
    }
    assert_eq!(datagrams(&mut b), []);
    let stats = b.stats();
    assert_eq!(stats.delivered_datagrams, 1 + 200);
    let counted = [stats.replays, stats.forged, stats.foreign];
    assert!(counted.iter().all(|count| *count > 100_000), "{counted:?}");
    // None of these frames was answered.
    b.handle_timeout(at(510));
    assert_eq!(frames(&mut b, at(510)), []);
}

#[test]
fn no_bytes_make_a_lane_panic_or_deliver() {
    let [_, mut b] = lanes("auto");
    let mut rng = SeedTree::new(6).stream("bytes");
    for round in 0..50_000u64 {
        let mut bytes = vec![0; rng.below(1_600) as usize];
        bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        if round % 2 == 0 && bytes.len() >= SMALLEST_FRAME {
            let header = Header { lane: 0x0202, packet_number: rng.next_u64() };
            bytes[..HEADER_BYTES].copy_from_slice(&header.bytes());
        }
        b.handle(at(round / 100), PathId(rng.below(4) as u8), &mut bytes);
    }
    assert_eq!(datagrams(&mut b), []);
    assert!(b.stats().forged > 5_000);
    // Invalid frames have not changed the replay window.
    let [mut a, _] = lanes("auto");
    a.send(at(600), FLOW, b"the last datagram still arrives").unwrap();
    let sent = frames(&mut a, at(600));
    hand_over(&mut b, at(610), &sent);
    assert_eq!(datagrams(&mut b).len(), 1);
}

/// Builds a sealed frame with any body, as a peer with the key may send it.
fn frame_of(number: u64, body: &[u8]) -> Vec<u8> {
    let header = Header { lane: 0x0202, packet_number: number }.bytes();
    let [mut keys, _] = TestCipher::pair(3);
    let mut sealed = body.to_vec();
    let tag = keys.seal.seal(number, &header, &mut sealed);
    [&header[..], &sealed, &tag].concat()
}

#[test]
fn malformed_frames_of_a_peer_are_counted_and_harmless() {
    let [_, mut b] = lanes_with_known_paths("auto");
    let mut rng = SeedTree::new(8).stream("bodies");
    for round in 0..50_000u64 {
        let mut body = vec![0; 1 + rng.below(120) as usize];
        body.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        // Most begin like an item.
        body[0] = rng.below(10) as u8;
        let number = match rng.below(3) {
            0 => rng.below(100 + round),
            _ => 100 + round,
        };
        b.handle(at(200 + round / 50), PathId((round % 2) as u8), &mut frame_of(number, &body));
        b.send(at(200 + round / 50), FLOW, b"x").ok();
        frames(&mut b, at(200 + round / 50));
        if round % 50 == 0 {
            b.handle_timeout(at(200 + round / 50));
            datagrams(&mut b);
        }
    }
    assert!(b.stats().malformed > 1_000);
    b.handle(at(2_000), A, &mut frame_of(u64::MAX - 1, &[4]));
    b.handle(at(2_000), A, &mut frame_of(u64::MAX, &[4]));
    for path in b.paths(at(2_000)) {
        assert!(path.frame_bytes <= 1_472 && path.bytes_in_flight < 1 << 40, "{path:?}");
    }
}

#[test]
fn a_driver_that_does_not_poll_has_a_bounded_inbox() {
    let limits = Limits { inbox_bytes: 10_000, ..Limits::default() };
    let [mut a, mut b] =
        lanes_of(&LaneConfig { limits, ..config("one-path") }, TestCipher::pair(3));
    for ms in 0..100 {
        a.send(at(ms), FLOW, &[1; 1_000]).unwrap();
        let sent = frames(&mut a, at(ms));
        hand_over(&mut b, at(ms), &sent);
        let acks = frames(&mut b, at(ms));
        hand_over(&mut a, at(ms), &acks);
    }
    let came = datagrams(&mut b).len() as u64;
    assert!((5..10).contains(&came) && b.stats().dropped_inbox == 100 - came, "{came}");
}

#[test]
fn an_oversized_datagram_is_refused_with_the_largest_size() {
    let [mut a, mut b] = lanes_with_known_paths("auto");
    let most_bytes = a.largest_datagram();
    assert_eq!(
        a.send(at(200), FLOW, &vec![0; most_bytes + 1]),
        Err(SendError::TooBig { most_bytes })
    );
    exchange(&mut a, &mut b, 220, 1_000);
    // Both sides are notified when a path becomes narrower.
    a.set_path_mtu(B, 1_300, at(1_000));
    exchange(&mut a, &mut b, 1_001, 1_100);
    let told = core::iter::from_fn(|| match b.poll_event()? {
        Event::PathMtu { path, frame_bytes } => Some(Some((path, frame_bytes))),
        _ => Some(None),
    });
    assert!(told.flatten().any(|news| news == (B, 1_300)));
}

#[test]
fn a_hundred_thousand_flows_of_one_client_take_bounded_room() {
    let [mut a, _] = lanes_with_known_paths("auto");
    for flow in 0..100_000u64 {
        a.send(at(200 + flow / 100), FlowId(flow), &[0; 50]).ok();
        frames(&mut a, at(200 + flow / 100));
    }
    assert_eq!(a.flow_count(), Limits::default().flows);
    assert!(a.queued_bytes() <= 2 * Limits::default().queue_bytes);
    assert_eq!(a.send(at(2_000), FlowId(1 << 62), b"x"), Err(SendError::BadFlow));
}

/// Cipher that records every sealed number.
#[derive(Debug)]
struct RecordingCipher(TestCipher, Arc<Mutex<Vec<u64>>>);

impl Seal for RecordingCipher {
    fn seal(&mut self, number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        self.1.lock().unwrap().push(number);
        self.0.seal(number, header, body)
    }

    fn max_packets(&self) -> u64 {
        500
    }
}

#[test]
fn numbers_are_sealed_once_and_a_spent_key_seals_no_more() {
    let numbers = Arc::<Mutex<Vec<u64>>>::default();
    let [mut ours, _] = TestCipher::pair(3);
    ours.seal = Box::new(RecordingCipher(TestCipher::new(1), Arc::clone(&numbers)));
    let [_, mut same] = TestCipher::pair(3);
    same.open = Box::new(TestCipher::new(1));
    let [mut a, mut b] = lanes_of(&config("duplicate"), [ours, same]);
    let mut refused = None;
    for ms in 0..2_000 {
        if let Err(error) = a.send(at(ms), FLOW, b"x") {
            refused = Some(error);
        }
        let sent = frames(&mut a, at(ms));
        hand_over(&mut b, at(ms), &sent);
        let acks = frames(&mut b, at(ms));
        hand_over(&mut a, at(ms), &acks);
        a.handle_timeout(at(ms));
    }
    assert_eq!(refused, Some(SendError::KeyLimitReached));
    assert_eq!(*numbers.lock().unwrap(), (0..500).collect::<Vec<u64>>());
    let told = core::iter::from_fn(|| a.poll_event().map(|event| event == Event::KeyLimitNear));
    assert_eq!(told.filter(|spent| *spent).count(), 1);
    assert_eq!(a.poll_timeout(), None);
}

#[test]
fn a_lane_that_carries_nothing_lets_radios_sleep() {
    let [mut a, mut b] = lanes_with_known_paths("auto");
    a.send(at(100), FLOW, b"x").unwrap();
    exchange(&mut a, &mut b, 100, 12_000);
    let counted = (a.stats().control_frame_bytes, b.stats().control_frame_bytes);
    exchange(&mut a, &mut b, 12_000, 60_000);
    assert_eq!((a.stats().control_frame_bytes, b.stats().control_frame_bytes), counted);
    assert_eq!((a.poll_timeout(), b.poll_timeout()), (None, None));
}

#[test]
fn datagrams_waiting_for_a_removed_path_use_another() {
    let [mut a, mut b] = lanes_with_known_paths("one-path");
    // This is more than the window allows.
    for _ in 0..80 {
        a.send(at(200), FLOW, &[1; 1_200]).unwrap();
    }
    let sent = frames(&mut a, at(200));
    assert!(sent.len() < 80 && sent.iter().all(|(path, _)| *path == A));
    a.remove_path(A, at(201));
    let rest = frames(&mut a, at(201));
    assert!(rest.iter().all(|(path, _)| *path == B));
    hand_over(&mut b, at(210), &[sent, rest].concat());
    exchange(&mut a, &mut b, 210, 300);
    assert_eq!(datagrams(&mut b).len(), 80);
    a.remove_path(B, at(300));
    assert_eq!(a.send(at(300), FLOW, b"x"), Err(SendError::NoPath));
}

#[test]
fn a_silent_path_is_reported_once_and_can_answer_again() {
    let [mut a, mut b] = lanes_with_known_paths("auto");
    let mut silent = 0;
    let mut answers = 0;
    let mut came = 0;
    for ms in 200..3_000 {
        if ms % 20 == 0 {
            a.send(at(ms), FLOW, b"x").unwrap();
        }
        a.handle_timeout(at(ms));
        // Between 500 and 1,500 ms, the first path delivers nothing.
        let alive = |(path, _): &(PathId, Vec<u8>)| *path == B || !(500..1_500).contains(&ms);
        let sent: Vec<_> = frames(&mut a, at(ms)).into_iter().filter(alive).collect();
        hand_over(&mut b, at(ms), &sent);
        b.handle_timeout(at(ms));
        let back: Vec<_> = frames(&mut b, at(ms)).into_iter().filter(alive).collect();
        hand_over(&mut a, at(ms), &back);
        while let Some(event) = a.poll_event() {
            silent += u32::from(event == Event::PathUnreachable(A));
            answers += u32::from(event == Event::PathReachable(A));
        }
        came += datagrams(&mut b).len();
    }
    assert_eq!((silent, answers, came), (1, 1, 140));
}

#[test]
fn a_lane_becomes_idle_while_its_paths_are_silent_and_full() {
    for policy in ["auto", "min-rtt", "duplicate", "one-path"] {
        let [mut a, mut b] = lanes_with_known_paths(policy);
        for ms in 200..3_000 {
            for _ in 0..3 {
                a.send(at(ms), FLOW, &[0; 1_000]).ok();
            }
            a.handle_timeout(at(ms));
            let sent = frames(&mut a, at(ms));
            assert!(a.poll_timeout().is_none_or(|due| due > at(ms)), "{policy} at {ms} ms");
            // Everything is lost for a second.
            if !(1_000..2_000).contains(&ms) {
                hand_over(&mut b, at(ms), &sent);
                let acks = frames(&mut b, at(ms));
                hand_over(&mut a, at(ms), &acks);
                frames(&mut a, at(ms));
            }
        }
        assert!(a.queued_bytes() < 1 << 20 && a.stats().dropped_late > 0, "{policy}");
    }
}
