//! Tests of the probe timeout formulas.

use marline_policy::{LossRecovery, Phase, RttConfig, RttEstimator, SentKind, TimeoutAction};
use marline_testkit::sender::Sender;
use marline_testkit::views::ms;

use super::*;
use crate::recovery::RackTlp;

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn with_rack(formula: PtoFormula) -> Box<dyn LossRecovery> {
    with_probes(ProbeConfig::new(formula))
}

fn with_probes(probes: ProbeConfig) -> Box<dyn LossRecovery> {
    Box::new(RackTlp::new(probes))
}

/// Probe timeouts after one segment and after two, at this RTT.
fn timeouts(formula: PtoFormula, rtt_ms: u64) -> (Duration, Duration) {
    let after = |segments| {
        let mut sender = Sender::with_recovery(with_rack(formula), rtt_ms);
        sender.send(segments);
        sender.timeout_in().expect("the probe timer runs")
    };
    (after(1), after(2))
}

#[test]
fn each_formula_probes_when_its_source_says() {
    for (formula, rtt_ms, lone, several) in [
        (PtoFormula::Dukkipati, 13, micros(219_500), ms(26)),
        (PtoFormula::Dukkipati, 500, ms(1_000), ms(1_000)),
        (PtoFormula::Dukkipati, 3, micros(204_500), ms(10)),
        (PtoFormula::Linux310, 13, micros(219_500), ms(26)),
        (PtoFormula::Linux310, 3, micros(204_500), ms(10)),
        (PtoFormula::Linux, 13, ms(226), ms(28)),
        (PtoFormula::Linux, 3, ms(206), ms(8)),
        (PtoFormula::Rfc8985, 13, ms(226), ms(26)),
        (PtoFormula::NoAllowance, 13, ms(28), ms(28)),
        // A quarter of a round trip, and, for a lone segment, the allowance for its ACK, which is half a round trip
        // here.
        (PtoFormula::Variation, 100, ms(165), ms(125)),
    ] {
        let found = timeouts(formula, rtt_ms);
        assert_eq!(found, (lone, several), "{formula:?} at {rtt_ms} ms");
    }
}

#[test]
fn every_formula_waits_a_second_without_an_rtt_and_never_longer_than_the_timer() {
    for (name, formula) in PtoFormula::ALL {
        let mut unknown = Sender::with_recovery(with_rack(formula), 13);
        unknown.rtt = RttEstimator::new(RttConfig::default());
        unknown.send(1);
        assert_eq!(unknown.timeout_in(), Some(ms(1_000)), "{name}");
        let mut clamped = Sender::with_recovery(with_rack(formula), 1_000);
        clamped.rto_at = Some(clamped.now + ms(213));
        clamped.send(1);
        assert_eq!(clamped.timeout_in(), Some(ms(213)), "{name}");
    }
}

#[test]
fn off_never_probes() {
    let mut sender = Sender::with_recovery(with_probes(ProbeConfig::OFF), 13);
    sender.send(5);
    assert_eq!(sender.timeout_in(), None);
    sender.ack(3, &[]);
    assert_eq!(sender.timeout_in(), None);
}

#[test]
fn only_our_own_formula_probes_in_recovery() {
    for (name, formula) in PtoFormula::ALL {
        let mut sender = Sender::with_recovery(with_rack(formula), 13);
        sender.phase = Phase::Recovery;
        sender.send(3);
        let expected = formula == PtoFormula::Variation;
        assert_eq!(sender.timeout_in().is_some(), expected, "{name}");
    }
}

#[test]
fn the_drafts_second_probe_follows_the_first_and_no_third_does() {
    let probes = ProbeConfig { most_probes: 2, ..ProbeConfig::new(PtoFormula::Dukkipati) };
    let mut sender = Sender::with_recovery(with_probes(probes), 13);
    sender.send(4);
    assert_eq!(sender.fire().1, TimeoutAction::SendProbe);
    sender.resend(4, SentKind::ProbeRepeat);
    assert_eq!(sender.timeout_in(), Some(ms(26)));
    assert_eq!(sender.fire().1, TimeoutAction::SendProbe);
    sender.resend(4, SentKind::ProbeRepeat);
    assert_eq!(sender.timeout_in(), None, "then the retransmission timer");
    // One answered probe is enough; the outstanding data then waits for the outcome.
    let mut answered = Sender::with_recovery(with_probes(probes), 13);
    answered.send(4);
    answered.fire();
    answered.resend(4, SentKind::ProbeRepeat);
    answered.wait(13);
    let (_, outcome) = answered.ack(4, &[]);
    assert!(outcome.probe_answered);
    assert_eq!(answered.timeout_in(), None);
}

#[test]
fn linux_needs_no_rtt_sample_between_two_episodes() {
    for (formula, probes) in [(PtoFormula::Linux310, true), (PtoFormula::Rfc8985, false)] {
        let mut sender = Sender::with_recovery(with_rack(formula), 100);
        sender.send(2);
        assert_eq!(sender.fire().1, TimeoutAction::SendProbe);
        sender.resend(2, SentKind::ProbeRepeat);
        sender.wait(100);
        sender.ack(3, &[]);
        sender.send(1);
        sender.ack(4, &[]);
        sender.send(2);
        let action = sender.fire().1;
        assert_eq!(action == TimeoutAction::SendProbe, probes, "{formula:?}");
    }
}
