use super::*;

#[test]
fn probe_timeouts() {
    let mut lone = rfc_sender(100);
    lone.send(1);
    assert_eq!(lone.timeout_in(), Some(ms(240)), "two RTTs and the peer's ACK delay");
    let mut several = rfc_sender(100);
    several.send(2);
    assert_eq!(several.timeout_in(), Some(ms(200)));
    let mut rfc = rfc_sender(100);
    *rfc.recovery = RackTlp::rfc8985();
    rfc.send(1);
    assert_eq!(rfc.timeout_in(), Some(ms(400)));
    let mut known = rfc_sender(100);
    known.recovery.set_peer_ack_delay(ms(5));
    known.send(1);
    assert_eq!(known.timeout_in(), Some(ms(205)));
    let mut short = rfc_sender(1);
    short.send(2);
    assert_eq!(short.timeout_in(), Some(MIN_PTO));
    let mut unknown = rfc_sender(100);
    unknown.rtt = RttEstimator::new(RttConfig::default());
    unknown.send(1);
    assert_eq!(unknown.timeout_in(), Some(ms(1_000)));
    let mut clamped = rfc_sender(100);
    clamped.rto_at = Some(clamped.now + ms(150));
    clamped.send(1);
    assert_eq!(clamped.timeout_in(), Some(ms(150)), "never after the retransmission timer");
}

#[test]
fn every_ack_restarts_the_probe_timer() {
    let mut s = rfc_sender(100);
    s.send(3);
    s.wait(100);
    s.ack(3, &[]);
    assert_eq!(s.timeout_in(), Some(ms(240)), "one is left, so the timer restarts now");
    s.wait(50);
    s.ack(4, &[]);
    assert_eq!(s.timeout_in(), None, "nothing is outstanding");
}

#[test]
fn at_most_one_probe_per_episode_outside_recovery_and_without_sacks() {
    let mut s = rfc_sender(100);
    s.send(3);
    assert_eq!(s.fire(), (vec![], TimeoutAction::SendProbe));
    s.send_one(SentKind::ProbeNew);
    assert_eq!(s.recovery.next_timeout(), None);
    s.send(1);
    assert_eq!(s.recovery.next_timeout(), None, "the outcome is open");
    s.wait(100);
    let (_, outcome) = s.ack(3, &[]);
    assert_eq!(outcome, AckOutcome { probe_answered: true, probe_repaired_loss: false });
    assert_eq!(s.recovery.next_timeout(), None, "the probe itself is not acknowledged");
    s.ack(5, &[]);
    assert!(s.recovery.next_timeout().is_some(), "the next episode may begin");

    let mut sacked = rfc_sender(100);
    sacked.send(3);
    sacked.ack(1, &[2]);
    assert!(sacked.timeout_in().is_some_and(|t| t < ms(100)), "only the reordering timer runs");
    assert!(!matches!(sacked.fire().1, TimeoutAction::SendProbe));
    let mut recovering = rfc_sender(100);
    recovering.phase = Phase::Recovery;
    recovering.send(3);
    assert_eq!(recovering.recovery.next_timeout(), None);
}

fn probed_by_repetition() -> Sender {
    let mut s = rfc_sender(100);
    s.send(2);
    assert_eq!(s.fire().1, TimeoutAction::SendProbe);
    s.resend(2, SentKind::ProbeRepeat);
    s.wait(100);
    s
}

#[test]
fn the_next_ack_shows_that_a_probe_repaired_the_tail() {
    let mut s = probed_by_repetition();
    let (_, outcome) = s.ack(3, &[]);
    assert!(
        outcome.probe_answered && !outcome.probe_repaired_loss,
        "original or probe may have arrived"
    );
    s.send(1);
    s.wait(100);
    let (_, outcome) = s.ack(4, &[]);
    assert!(outcome.probe_repaired_loss && !outcome.probe_answered);
    assert!(!s.ack(4, &[]).1.probe_repaired_loss, "once");
}

#[test]
fn a_dsack_or_a_plain_duplicate_says_that_both_arrived() {
    let mut s = probed_by_repetition();
    let both = |ack: &mut AckSummary<'_>| ack.dsack = Some((seq(2), seq(3)));
    s.ack(3, &[]);
    s.ack_with(3, &[], both);
    s.send(1);
    assert!(!s.ack(4, &[]).1.probe_repaired_loss);
    // The DSACK may arrive with the ACK that covers the probe.
    let mut at_once = probed_by_repetition();
    at_once.ack_with(3, &[], both);
    at_once.send(1);
    assert!(!at_once.ack(4, &[]).1.probe_repaired_loss);
    let mut plain = probed_by_repetition();
    plain.ack(3, &[]);
    plain.ack_with(3, &[], |ack| ack.duplicate = true);
    plain.send(1);
    assert!(!plain.ack(4, &[]).1.probe_repaired_loss);
}

#[test]
fn a_sacked_probe_reveals_the_loss_of_earlier_segments() {
    let mut s = rfc_sender(100);
    s.send(3);
    s.fire();
    s.resend(3, SentKind::ProbeRepeat);
    s.wait(100);
    // Only the probe arrived: 1 and 2 were sent long before it.
    let (lost, outcome) = s.ack(1, &[3]);
    assert_eq!(lost, vec![1, 2]);
    assert!(outcome.probe_answered);
    s.enter(Phase::Recovery);
    assert_eq!(s.recovery.next_timeout(), None);
}

#[test]
fn leaving_recovery_starts_the_probe_timer() {
    let mut s = rfc_sender(100);
    s.send(2);
    s.enter(Phase::Recovery);
    assert_eq!(s.recovery.next_timeout(), None);
    s.enter(Phase::Open);
    assert_eq!(s.timeout_in(), Some(ms(200)));
}

#[test]
fn a_second_probe_needs_an_rtt_sample_since_the_first() {
    let mut s = probed_by_repetition();
    s.ack(3, &[]);
    s.ack_with(3, &[], |ack| ack.dsack = Some((seq(2), seq(3))));
    s.send(1);
    assert_eq!(s.fire(), (vec![], TimeoutAction::None), "the retransmission timer takes over");
    s.rtt.on_sample(ms(300), s.now);
    s.send(1);
    assert_eq!(s.fire(), (vec![], TimeoutAction::SendProbe));
}

#[test]
fn an_eager_prober_follows_the_variation_but_is_never_later_than_the_rfc() {
    let timeouts = |rule: PtoFormula, samples: &[u64]| {
        [1, 2].map(|segments| {
            let mut s = by_rule(rule, samples[0]);
            samples.iter().for_each(|rtt| s.rtt.on_sample(ms(*rtt), Instant::ZERO));
            s.send(segments);
            s.recovery.next_timeout().expect("a probe").since(s.now)
        })
    };
    // With a constant RTT of 100 ms: a quarter of a round trip more, and half a round trip for a lone segment.
    assert_eq!(timeouts(PtoFormula::Variation, &[100]), [ms(165), ms(125)]);
    // With large jitter: the RFC's two round trips.
    let wild = [20, 180, 20, 180, 20, 180, 20, 180];
    let eager = timeouts(PtoFormula::Variation, &wild);
    assert_eq!(eager, timeouts(PtoFormula::Rfc8985, &wild));
}

#[test]
fn an_eager_prober_watches_over_repairs_too() {
    let mut s = by_rule(PtoFormula::Variation, 100);
    s.send(1);
    s.send(1);
    s.phase = Phase::Recovery;
    s.with(|recovery, cx| recovery.on_recovery(true, cx));
    assert_eq!(s.recovery.next_timeout(), None);
    let notice = SentNotice { start: seq(1), end: seq(2), kind: SentKind::Retransmission };
    s.with(|recovery, cx| recovery.on_sent(&notice, cx));
    assert!(s.recovery.next_timeout().is_some());
}

#[test]
fn an_eager_prober_learns_how_soon_lone_segments_are_acknowledged() {
    let mut s = by_rule(PtoFormula::Variation, 100);
    let mut probe_after = |late_ms: u64, rounds: u64| {
        let mut left = Duration::ZERO;
        for _ in 0..rounds {
            s.send(1);
            left = s.recovery.next_timeout().expect("a probe").since(s.now);
            s.wait(100 + late_ms);
            s.ack((s.snd_nxt - 1) / SEGMENT + 1, &[]);
        }
        left
    };
    // The ACK delay of lone segments is used after four samples; before that, 40 ms are allowed.
    assert_eq!(probe_after(0, 1), ms(165));
    assert_eq!(probe_after(0, 4), ms(125));
    // One ACK is late: its delay is allowed immediately, and decays over time.
    assert_eq!(probe_after(10, 2), ms(135));
    assert_eq!(probe_after(0, 400), ms(125));
}

#[test]
fn further_writes_do_not_delay_an_eager_prober() {
    for (rule, due) in [(PtoFormula::Variation, ms(85)), (PtoFormula::Rfc8985, ms(200))] {
        let mut s = by_rule(rule, 100);
        s.send(2);
        s.wait(40);
        s.send(1);
        assert_eq!(s.recovery.next_timeout().map(|at| at.since(s.now)), Some(due), "{rule:?}");
    }
}
