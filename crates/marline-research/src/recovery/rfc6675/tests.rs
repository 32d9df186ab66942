use marline_algos::recovery::{PtoFormula, RackTlp};
use marline_policy::{RttConfig, RttEstimator, SentKind};
use marline_testkit::sender::{SEGMENT, Sender, numbers};
use marline_testkit::views::ms;

use super::*;

fn sender(change: impl FnOnce(&mut Rfc6675Config)) -> Sender<Rfc6675> {
    let mut config = Rfc6675Config::default();
    change(&mut config);
    Sender::with_recovery(Box::new(Rfc6675::new(config)), 100)
}

/// Creates a sender with the settings of Linux 3.14.
fn linux() -> Sender<Rfc6675> {
    sender(|config| {
        config.probes = ProbeConfig::new(PtoFormula::Linux310);
        config.early_retransmit = EarlyRetransmit::Linux;
        config.fack = true;
    })
}

#[test]
fn three_segments_sacked_above_mark_a_loss() {
    let mut s = sender(|_| {});
    s.app_limited = false;
    s.send(10);
    s.wait(100);
    assert!(s.ack(1, &[2]).0.is_empty());
    assert!(s.ack(1, &[3]).0.is_empty());
    assert_eq!(s.ack(1, &[4]).0, vec![1]);
    s.enter(Phase::Recovery);
    // Segment 5 has two SACKed segments above it, then three. Segment 1 is not reported again.
    assert!(s.ack(1, &[6, 7]).0.is_empty());
    assert_eq!(s.ack(1, &[8]).0, vec![5]);
    s.resend(1, SentKind::Retransmission);
    s.resend(5, SentKind::Retransmission);
    s.wait(100);
    assert!(s.ack(1, &[9, 10]).0.is_empty(), "a lost retransmission waits for the timer");
}

#[test]
fn a_sacked_probe_reveals_losses_only_with_fack() {
    for (fack, lost) in [(false, vec![]), (true, vec![1, 2, 3, 4])] {
        let mut s = sender(|config| {
            config.probes = ProbeConfig::new(PtoFormula::Linux310);
            config.fack = fack;
        });
        // Data is waiting, so nothing beyond the rule is reported.
        s.app_limited = false;
        s.send(7);
        assert_eq!(s.fire().1, TimeoutAction::SendProbe);
        s.resend(7, SentKind::ProbeRepeat);
        s.wait(100);
        assert_eq!(s.ack(1, &[7]).0, lost, "fack {fack}");
    }
}

#[test]
fn with_nothing_to_send_all_holes_below_the_highest_sack_are_repeated() {
    let mut s = linux();
    s.send(7);
    s.fire();
    s.resend(7, SentKind::ProbeRepeat);
    s.wait(100);
    assert_eq!(s.ack(1, &[7]).0, vec![1, 2, 3, 4, 5, 6]);
    let mut waiting = linux();
    waiting.app_limited = false;
    waiting.send(7);
    waiting.wait(100);
    assert_eq!(waiting.ack(1, &[7]).0, vec![1, 2, 3, 4], "new data is the better thing to send");
}

#[test]
fn reordering_raises_the_threshold_and_ends_fack() {
    let mut s = linux();
    s.app_limited = false;
    s.send(30);
    s.wait(100);
    // Three segments overtake segment 1, which arrives before its retransmission.
    assert_eq!(s.ack(1, &[2, 3, 4]).0, vec![1]);
    assert!(s.ack(5, &[]).0.is_empty());
    // Three SACKed segments above are no longer enough; four are, but they must have been SACKed.
    assert!(s.ack(5, &[10]).0.is_empty(), "FACK would report 5 and 6");
    assert!(s.ack(5, &[11, 12]).0.is_empty());
    assert_eq!(s.ack(5, &[13]).0, vec![5, 6, 7, 8, 9]);
}

#[test]
fn early_retransmit_of_one_to_three_segments() {
    // Columns: outstanding segments, SACKed ones, and those finally lost.
    let cases: [(u64, &[u64], &[u64]); 4] =
        [(2, &[2], &[1]), (3, &[3], &[1, 2]), (3, &[2, 3], &[1]), (3, &[2], &[1])];
    for (outstanding, sacked, lost) in cases {
        let mut s = linux();
        s.send(outstanding);
        s.wait(100);
        assert!(s.ack(1, sacked).0.is_empty(), "reordering may settle");
        assert_eq!(s.timeout_in(), Some(ms(25)), "a quarter of the RTT");
        assert_eq!(s.fire(), (lost.to_vec(), TimeoutAction::None), "{outstanding} {sacked:?}");
    }
    let mut four = linux();
    four.send(4);
    four.wait(100);
    four.ack(1, &[2, 3]);
    assert_eq!(four.timeout_in(), None, "of four, three can be SACKed");
    let mut one = linux();
    one.send(1);
    assert_eq!(one.timeout_in(), Some(ms(350)), "a lone segment has only its probe");
}

#[test]
fn early_retransmit_is_not_used_if_a_third_sack_is_expected() {
    let mut busy = linux();
    busy.app_limited = false;
    busy.send(3);
    busy.wait(100);
    busy.ack(1, &[2, 3]);
    assert_eq!(busy.timeout_in(), None, "new data will cause the third SACK");
    let mut late = linux();
    late.rto_at = Some(late.now + ms(110));
    late.send(3);
    late.wait(100);
    assert_eq!(late.ack(1, &[2, 3]).0, vec![1], "the timer would fire before the pause is over");
    let mut settled = linux();
    settled.send(3);
    settled.wait(100);
    settled.ack(1, &[2]);
    assert!(settled.ack(3, &[]).0.is_empty());
    assert_eq!(settled.timeout_in(), Some(ms(350)), "it was reordering: only the probe is left");
}

#[test]
fn rfc5827_needs_all_but_one_sack_and_does_not_wait() {
    let mut s = sender(|config| config.early_retransmit = EarlyRetransmit::Rfc5827);
    s.send(3);
    s.wait(100);
    assert!(s.ack(1, &[3]).0.is_empty());
    assert_eq!(s.timeout_in(), None);
    assert_eq!(s.ack(1, &[2]).0, vec![1]);
    let mut off = sender(|_| {});
    off.send(3);
    off.wait(100);
    assert!(off.ack(1, &[2, 3]).0.is_empty());
    assert_eq!(off.timeout_in(), None);
}

#[test]
fn the_end_of_a_recovery_is_rescued_once() {
    for (rescue, named) in [(true, vec![6]), (false, vec![])] {
        let mut s = sender(|config| config.rescue = rescue);
        s.send(6);
        s.wait(100);
        assert_eq!(s.ack(1, &[2, 3, 4]).0, vec![1], "5 and 6 are also lost, undetected");
        s.enter(Phase::Recovery);
        s.resend(1, SentKind::Retransmission);
        s.wait(100);
        assert_eq!(s.ack(5, &[]).0, named, "rescue {rescue}");
        if rescue {
            s.resend(6, SentKind::Retransmission);
            s.wait(100);
            assert_eq!(s.ack(5, &[6]).0, vec![5], "losses revealed by the rescue");
        }
    }
}

#[test]
fn a_timeout_takes_all_that_was_not_sacked_for_lost() {
    let mut s = sender(|_| {});
    s.app_limited = false;
    s.send(6);
    s.wait(100);
    s.ack(1, &[3]);
    s.wait(300);
    let mut lost = Vec::new();
    s.with(|r, cx| r.on_rto(cx, &mut lost));
    assert_eq!(numbers(&lost), vec![1, 2, 4, 5, 6]);
}

#[test]
fn limited_transmit_follows_sacks_or_duplicates() {
    let mut s = sender(|_| {});
    s.send(6);
    s.wait(100);
    s.ack(1, &[2]);
    assert_eq!(s.recovery.limited_transmit(), LimitedTransmit::BySack);
    let mut off = sender(|config| config.limited_transmit = false);
    off.send(6);
    off.ack(1, &[2]);
    assert_eq!(off.recovery.limited_transmit(), LimitedTransmit::Off);
    // RFC 3042: one segment for each of the first two duplicates.
    let mut old = sender(|_| {});
    old.sack = false;
    old.app_limited = false;
    old.send(6);
    old.wait(100);
    for (lost, segments) in [(vec![], 1), (vec![], 2), (vec![1], 2)] {
        assert_eq!(old.ack(1, &[]).0, lost);
        let beyond = LimitedTransmit::Beyond(segments * SEGMENT);
        assert_eq!(old.recovery.limited_transmit(), beyond);
    }
}

#[test]
fn without_sack_few_segments_need_fewer_duplicates() {
    for (outstanding, duplicates) in [(2, 1), (3, 2), (4, 3)] {
        let mut s = linux();
        s.sack = false;
        s.send(outstanding);
        s.wait(100);
        for n in 1..=duplicates {
            let expected = if n == duplicates { vec![1] } else { vec![] };
            assert_eq!(s.ack(1, &[]).0, expected, "{outstanding} outstanding, duplicate {n}");
        }
    }
}

#[test]
fn without_an_rtt_early_retransmit_does_not_wait() {
    let mut s = linux();
    s.rtt = RttEstimator::new(RttConfig::default());
    s.send(2);
    s.wait(100);
    assert_eq!(s.ack(1, &[2]).0, vec![1]);
}

/// Probes use the same formulas as with RACK; only our own formula probes during recovery.
#[test]
fn counting_probes_when_rack_does() {
    let timeouts = |recovery: fn(ProbeConfig) -> Box<dyn LossRecovery>, formula, rtt_ms| {
        [(1, Phase::Open), (2, Phase::Open), (3, Phase::Recovery)].map(|(segments, phase)| {
            let mut sender = Sender::with_recovery(recovery(ProbeConfig::new(formula)), rtt_ms);
            sender.phase = phase;
            sender.send(segments);
            sender.timeout_in()
        })
    };
    for (name, formula) in PtoFormula::ALL {
        for rtt_ms in [3, 13, 100, 500] {
            let rack = timeouts(|probes| Box::new(RackTlp::new(probes)), formula, rtt_ms);
            let counting = |probes| -> Box<dyn LossRecovery> {
                Box::new(Rfc6675::new(Rfc6675Config { probes, ..Rfc6675Config::default() }))
            };
            assert_eq!(timeouts(counting, formula, rtt_ms), rack, "{name} at {rtt_ms} ms");
            assert_eq!(rack[2].is_some(), formula == PtoFormula::Variation, "{name}");
        }
    }
}
