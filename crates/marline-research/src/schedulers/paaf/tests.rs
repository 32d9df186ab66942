use marline_testkit::views::{
    Stream, backup, drain, full, gone, ms, paced, send, unreachable, view,
};
use marline_time::Rate;

use super::*;

/// Creates a scheduler that has seen its primary, subflow 0, at 1 s.
fn paaf() -> Paaf {
    let mut paaf = Paaf::default();
    let decision = paaf.next_send(&Stream::new(0).context(&[steady()]));
    assert_eq!(decision, Decision::Wait);
    paaf
}

/// Builds a path of 20 ms with 8 Mbit/s.
fn steady() -> SubflowView {
    SubflowView {
        delivery_rate: Some(Rate::from_mbit(8)),
        bytes_since_loss: 10_000,
        last_rx_at: Instant::from_millis(1_000),
        ..view(0, 20)
    }
}

/// Returns the subflow and start of each segment sent at this time, with `bytes` new bytes.
fn sent(paaf: &mut Paaf, views: &[SubflowView], bytes: u64, at_ms: u64) -> Vec<(u8, u64)> {
    let mut stream = Stream::new(bytes);
    let mut sent = Vec::new();
    loop {
        let cx = SchedulerContext { now: Instant::from_millis(at_ms), ..stream.context(views) };
        let Some((id, range)) = paaf.next_send(&cx).data() else { return sent };
        sent.push((id.0, stream.apply(id, range).start.0));
        assert!(sent.len() < 100);
    }
}

const ON_FIRST: [(u8, u64); 2] = [(0, 0), (0, 1_000)];

fn is_warned(paaf: &mut Paaf, primary: SubflowView, at_ms: u64) -> bool {
    sent(paaf, &[primary, view(1, 50)], 2_000, at_ms).iter().any(|(id, _)| *id == 1)
}

#[test]
fn the_primary_carries_everything_and_excess_data_waits() {
    let faster = view(1, 5);
    assert_eq!(sent(&mut paaf(), &[steady(), faster], 2_000, 1_001), ON_FIRST);
    for busy in [full(steady()), paced(steady(), 2_000)] {
        assert_eq!(sent(&mut paaf(), &[busy, faster], 2_000, 1_001), []);
    }
}

#[test]
fn every_sign_is_a_warning() {
    let signs = [
        SubflowView { srtt: Some(ms(41)), ..steady() },
        SubflowView { phase: Phase::Recovery, ..steady() },
        SubflowView { bytes_queued: 1, ..steady() },
        SubflowView { bytes_since_loss: 0, ..steady() },
        SubflowView { delivery_rate: Some(Rate::from_bits_per_s(3_900_000)), ..steady() },
    ];
    for sign in signs {
        let sent = sent(&mut paaf(), &[sign, view(1, 50)], 2_000, 1_001);
        assert_eq!(sent, [(0, 0), (1, 0), (0, 1_000), (1, 1_000)], "{sign:?}");
    }
    for still in [
        SubflowView { srtt: Some(ms(40)), ..steady() },
        SubflowView { delivery_rate: Some(Rate::from_bits_per_s(4_100_000)), ..steady() },
        SubflowView { srtt: None, min_rtt: None, delivery_rate: None, ..steady() },
    ] {
        assert!(!is_warned(&mut paaf(), still, 1_001), "{still:?}");
    }
    let zero = SubflowView { delivery_rate: Some(Rate::ZERO), ..view(0, 0) };
    assert!(!is_warned(&mut Paaf::default(), zero, 1_001));
    // A few more milliseconds on a short path are not a sign.
    let short = SubflowView { srtt: Some(ms(6)), min_rtt: Some(ms(2)), ..steady() };
    assert!(!is_warned(&mut paaf(), short, 1_001));
}

#[test]
fn silence_is_a_sign_and_waited_for() {
    let mut paaf = paaf();
    let asked = SubflowView { bytes_in_flight: 1_000, ..steady() };
    let views = [asked, view(1, 50)];
    let mut stream = Stream::new(1_000);
    stream.apply(SubflowId(0), stream.unsent());
    let decide = |paaf: &mut Paaf, at_ms| {
        let now = Instant::from_millis(at_ms);
        paaf.next_send(&SchedulerContext { now, ..stream.context(&views) })
    };
    // 20 ms plus four times 1 ms.
    assert_eq!(decide(&mut paaf, 1_010), Decision::WaitUntil(Instant::from_millis(1_034)));
    assert_eq!(decide(&mut paaf, 1_033), Decision::WaitUntil(Instant::from_millis(1_034)));
    // Then the outstanding data is sent on the second path.
    assert_eq!(decide(&mut paaf, 1_034), send(1, 0, 1_000));
}

#[test]
fn a_warning_lasts_and_ends_at_a_lower_level_than_it_began() {
    let mut paaf = paaf();
    let risen = |srtt_ms| SubflowView { srtt: Some(ms(srtt_ms)), ..steady() };
    assert!(!is_warned(&mut paaf, risen(35), 1_001));
    assert!(is_warned(&mut paaf, risen(45), 1_002));
    assert!(is_warned(&mut paaf, risen(35), 3_000), "not yet halfway back");
    assert!(is_warned(&mut paaf, risen(30), 3_499));
    assert!(!is_warned(&mut paaf, risen(30), 3_500));
    assert!(!is_warned(&mut paaf, risen(35), 3_501));
}

#[test]
fn a_lasting_new_rate_ends_the_warning() {
    let mut paaf = paaf();
    let slow = SubflowView { delivery_rate: Some(Rate::from_mbit(2)), ..steady() };
    let warned: Vec<bool> =
        (0..60).map(|look| is_warned(&mut paaf, slow, 1_001 + look * 20)).collect();
    assert!(warned[0] && !warned[59], "{warned:?}");
}

#[test]
fn a_timeout_is_a_sign_and_a_primary_that_fails_is_replaced() {
    let mut scheduler = paaf();
    let subflows = [steady(), view(1, 50)];
    let stream = Stream::new(0);
    let event = SchedulerEvent::ProbeTimeout(SubflowId(0));
    scheduler.on_event(event, &stream.context(&subflows), &mut Vec::new());
    assert!(is_warned(&mut scheduler, steady(), 1_001));
    let views = [unreachable(steady(), 3), view(1, 50), view(2, 60)];
    assert_eq!(sent(&mut paaf(), &views, 2_000, 1_001), [(1, 0), (1, 1_000)]);
    let views = [unreachable(steady(), 3), unreachable(view(1, 50), 4)];
    assert_eq!(
        sent(&mut paaf(), &views, 1_000, 1_001),
        [(1, 0)],
        "the one that received something last"
    );
}

#[test]
fn a_backup_helps_only_if_it_may() {
    let warned = SubflowView { srtt: Some(ms(100)), ..steady() };
    let views = [warned, backup(view(1, 50))];
    assert_eq!(sent(&mut paaf(), &views, 2_000, 1_001), ON_FIRST);
    let mut may = Paaf::new(PaafConfig { with_backups: true, ..PaafConfig::default() });
    assert_eq!(sent(&mut may, &views, 2_000, 1_001).len(), 4);
    for other in [gone(view(1, 50)), unreachable(view(1, 50), 2)] {
        assert_eq!(sent(&mut paaf(), &[warned, other], 2_000, 1_001), ON_FIRST);
    }
    assert_eq!(sent(&mut paaf(), &[warned], 2_000, 1_001), ON_FIRST, "alone");
    assert_eq!(sent(&mut paaf(), &[], 2_000, 1_001), []);
}

#[test]
fn in_a_warning_the_second_path_also_gets_data_the_first_sent() {
    let warned = SubflowView { phase: Phase::Recovery, ..full(steady()) };
    let mut stream = Stream::new(3_000);
    stream.apply(SubflowId(0), stream.unsent());
    let all = drain(&mut paaf(), &mut stream, &[warned, view(1, 50)]);
    assert_eq!(all, [(1, 0, 1_000), (1, 1_000, 2_000), (1, 2_000, 3_000)]);
}
