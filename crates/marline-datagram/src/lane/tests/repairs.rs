use marline_policy::{DatagramPolicyFactory, Group, Repairs};

use super::*;
use crate::frame::{LEN_BYTES, MAX_GROUP_FRAMES, Repair};

/// Policy that uses only the first path, with this number of repairs on the second, on which overdue frames are sent
/// again.
#[derive(Clone, Debug)]
struct Grouping(u8);

impl DatagramPolicy for Grouping {
    fn route(&mut self, _: &DatagramContext<'_>, _: &FlowView) -> Route {
        Route { grouped: true, ..Route::only(A) }
    }

    fn repairs(&mut self, _: &DatagramContext<'_>, _: &FlowView, group: Group) -> Option<Repairs> {
        assert_eq!(group.on, A);
        (self.0 > 0).then_some(Repairs { path: B, count: self.0 })
    }

    fn rescue(&mut self, _: &DatagramContext<'_>, _: &FlowView, on: PathId) -> Option<PathId> {
        (on == A).then_some(B)
    }
}

impl DatagramPolicyFactory for Grouping {
    fn name(&self) -> &'static str {
        "grouping"
    }

    fn build(&self) -> Box<dyn DatagramPolicy> {
        Box::new(self.clone())
    }
}

fn grouping(repairs: u8) -> [Lane; 2] {
    let policy = Arc::new(Grouping(repairs));
    let [mut a, mut b] = lanes_of(&LaneConfig { policy, ..config("auto") }, TestCipher::pair(3));
    for lane in [&mut a, &mut b] {
        lane.send(at(0), FLOW, b"?").unwrap();
    }
    exchange(&mut a, &mut b, 0, 200);
    assert!(a.peer_repairs && b.peer_repairs, "a PING announces what its sender understands");
    datagrams(&mut b);
    [a, b]
}

/// Sends a burst of datagrams of different lengths. Returns their frames, and then the repairs.
fn burst(a: &mut Lane, ms: u64, count: u8) -> [Vec<(PathId, Vec<u8>)>; 2] {
    for number in 0..count {
        a.send(at(ms), FLOW, &vec![number; 740 + 8 * usize::from(number)]).unwrap();
    }
    let mut sent = frames(a, at(ms));
    // A full group ends immediately.
    let ends = a.poll_timeout().unwrap();
    assert!(ends <= at(ms + 1) || usize::from(count) == MAX_GROUP_FRAMES, "{ends:?}");
    a.handle_timeout(at(ms + 1));
    sent.extend(frames(a, at(ms + 1)));
    let (sent, again) =
        sent.into_iter().filter(|(_, frame)| large(frame)).partition(|(path, _)| *path == A);
    [sent, again]
}

/// Returns true for frames with datagrams, and false for ACKs and probes.
fn large(frame: &[u8]) -> bool {
    (401..1_400).contains(&frame.len())
}

/// First byte of each received datagram, sorted.
fn firsts(lane: &mut Lane) -> Vec<u8> {
    let mut firsts: Vec<u8> =
        datagrams(lane).iter().map(|(_, payload)| payload.first().copied().unwrap_or(99)).collect();
    firsts.sort_unstable();
    firsts
}

/// Exchanges acknowledgments and their effects for 85 ms without delay. Returns the number of frames with datagrams.
fn settle(a: &mut Lane, b: &mut Lane, from_ms: u64) -> usize {
    let mut copies = 0;
    for ms in from_ms..from_ms + 85 {
        b.handle_timeout(at(ms));
        let acks = frames(b, at(ms));
        hand_over(a, at(ms), &acks);
        a.handle_timeout(at(ms));
        let rescued = frames(a, at(ms));
        copies += rescued.iter().filter(|(_, frame)| large(frame)).count();
        hand_over(b, at(ms), &rescued);
    }
    copies
}

#[test]
fn repairs_recover_as_many_lost_frames_of_a_group() {
    for (repairs, count) in [(1u8, 2u8), (1, 4), (2, 5), (3, 7), (4, 16)] {
        let [mut a, mut b] = grouping(repairs);
        let mut rng = SeedTree::new(u64::from(count)).stream("losses");
        for round in 0..20u64 {
            let ms = 200 + 100 * round;
            let [mut sent, again] = burst(&mut a, ms, count);
            assert_eq!((sent.len(), again.len()), (count.into(), repairs.into()));
            // No frames are kept before the first repair arrives, and a path that constantly loses frames gets less
            // data.
            let lost = if round % 3 == 1 { repairs } else { 0 };
            for _ in 0..lost {
                sent.remove(rng.below(sent.len() as u64) as usize);
            }
            hand_over(&mut b, at(ms + 10), &sent);
            assert_eq!(firsts(&mut b).len(), sent.len());
            hand_over(&mut b, at(ms + 11), &again);
            assert_eq!(firsts(&mut b).len(), usize::from(lost), "{repairs} of {count}");
            assert_eq!(settle(&mut a, &mut b, ms + 11), 0);
        }
        assert_eq!(b.stats().repaired_datagrams, 7 * u64::from(repairs));
        assert_eq!((b.stats().malformed, b.stats().dropped_inbox), (0, 0));
    }
}

#[test]
fn a_frame_that_comes_after_it_was_repaired_is_not_delivered_again() {
    let [mut a, mut b] = grouping(1);
    let [sent, again] = burst(&mut a, 200, 3);
    hand_over(&mut b, at(210), &[sent, again].concat());
    assert_eq!(firsts(&mut b), [0, 1, 2]);
    let [sent, again] = burst(&mut a, 240, 3);
    hand_over(&mut b, at(250), &[&sent[..1], &again, &sent[2..]].concat());
    assert_eq!(firsts(&mut b), [0, 1, 2]);
    let duplicates = b.stats().duplicates;
    hand_over(&mut b, at(260), &sent[1..2]);
    assert_eq!((firsts(&mut b), b.stats().duplicates), (Vec::new(), duplicates + 1));
    // A repair that arrives again, or after everything else, has no effect either.
    hand_over(&mut b, at(261), &again);
    assert_eq!(firsts(&mut b), [0; 0]);
}

#[test]
fn only_unrepaired_frames_are_sent_again() {
    for (lost, again_bytes) in [(1, false), (2, true)] {
        let [mut a, mut b] = grouping(1);
        for round in 0..6u64 {
            let ms = 200 + 100 * round;
            let [sent, again] = burst(&mut a, ms, 4);
            // From the second round on, the first frames of each group are lost.
            let lost = if round == 0 { 0 } else { lost };
            hand_over(&mut b, at(ms + 10), &[&sent[lost..], &again].concat());
            let copies = settle(&mut a, &mut b, ms + 10);
            assert_eq!(firsts(&mut b), [0, 1, 2, 3], "round {round}");
            assert!(again_bytes || copies == 0, "round {round}: {copies} copies");
        }
        assert_eq!(a.stats().rescued_frame_bytes > 0, again_bytes);
    }
}

#[test]
fn a_group_of_one_is_copied() {
    let [mut a, mut b] = grouping(1);
    let [sent, again] = burst(&mut a, 200, 1);
    assert!(again.len() == 1 && again[0].1 == sent[0].1);
    hand_over(&mut b, at(210), &again);
    assert_eq!(firsts(&mut b), [0]);
    assert_eq!(a.stats().repair_frame_bytes, 0);
}

#[test]
fn a_peer_without_repair_support_gets_no_repairs() {
    let [mut a, _] = grouping(1);
    a.peer_repairs = false;
    for number in 0..4 {
        a.send(at(200), FLOW, &[number; 900]).unwrap();
    }
    frames(&mut a, at(200));
    a.handle_timeout(at(205));
    assert_eq!(frames(&mut a, at(205)), []);
}

#[test]
fn repairs_of_a_peer_that_breaks_the_rules_deliver_nothing_twice_and_stay_bounded() {
    let [_, mut b] = lanes_with_known_paths("auto");
    let mut rng = SeedTree::new(9).stream("repairs");
    let mut delivered = 0;
    for round in 0..20_000u64 {
        let mut sum = vec![0; LEN_BYTES + 1 + rng.below(60) as usize];
        sum.iter_mut().for_each(|byte| *byte = rng.below(6) as u8);
        let first = 1_000 + rng.below(200);
        let numbers: Vec<u64> = (0..2 + rng.below(3)).map(|more| first + more).collect();
        let mut body = Vec::new();
        Repair::new(rng.below(8) as u8, &numbers, &sum).write(&mut body);
        b.handle(
            at(200 + round / 50),
            PathId((round % 2) as u8),
            &mut frame_of(2_000 + round, &body),
        );
        let mut body = vec![2, 7];
        body.extend_from_slice(&sum);
        b.handle(at(200 + round / 50), A, &mut frame_of(1_000 + rng.below(200), &body));
        if round % 50 == 0 {
            b.handle_timeout(at(200 + round / 50));
            frames(&mut b, at(200 + round / 50));
        }
        delivered += datagrams(&mut b).len();
    }
    // There are 210 numbers, each of which counts only once, whatever the datagrams in a forged sum.
    assert!(delivered < 210 * 64, "{delivered}");
}
