use super::*;

const T: fn(u64) -> Instant = Instant::from_millis;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// Health after a retransmission timeout at this time.
fn timed_out(ms: u64) -> SubflowHealth {
    let mut health = SubflowHealth::default();
    health.on_overdue(T(ms), UnreachableCause::RetransmissionTimeout);
    health
}

#[test]
fn the_first_cause_sets_the_silence_and_a_segment_ends_it() {
    let mut health = timed_out(5);
    health.on_overdue(T(9), UnreachableCause::ReceiveTimer);
    let cause = UnreachableCause::RetransmissionTimeout;
    assert_eq!(health.get(), Health::Unreachable { since: T(5), cause });
    assert_eq!(
        health.on_valid_segment(MS(3)),
        Some(EndOfSilence { was_rescued: false, silence: MS(3) })
    );
    assert!(health.is_usable() && health.on_valid_segment(MS(5)).is_none());
    assert!(health.facts.get_used().is_none(), "a usable one needs no memory");
}

#[test]
fn a_rescue_starts_once_until_something_is_heard() {
    let mut health = timed_out(5);
    assert!(!health.is_rescued() && !health.needs_rescue());
    assert!(health.start_rescue() && !health.start_rescue());
    assert!(health.is_rescued() && health.needs_rescue());
    assert_eq!(
        health.on_valid_segment(MS(4)),
        Some(EndOfSilence { was_rescued: true, silence: MS(4) })
    );
    assert!(!health.start_rescue(), "it is not silent");
}

#[test]
fn the_scheduler_patience_limits_a_probe_timeout() {
    let mut health = SubflowHealth::default();
    health.on_probe_timeout(T(10), Duration::ZERO);
    assert!(health.is_unreachable() && health.next_timeout().is_none());
    health.on_probe_timeout(T(20), MS(7));
    health.on_probe_timeout(T(25), MS(7));
    assert_eq!(health.next_timeout(), Some(T(27)), "the first deadline applies");
    assert!(!health.is_patience_over(T(26)) && health.is_patience_over(T(27)));
    assert!(!health.is_patience_over(T(28)) && health.is_unreachable(), "once");
    health.on_probe_timeout(T(30), MS(7));
    health.on_valid_segment(MS(5));
    assert!(health.next_timeout().is_none() && !health.is_patience_over(T(99)));
}

#[test]
fn a_scheduler_verdict_waits_for_its_rescue() {
    let mut health = SubflowHealth::default();
    health.on_suspected_dead(T(3));
    let cause = UnreachableCause::Scheduler;
    assert_eq!(health.get(), Health::Unreachable { since: T(3), cause });
    assert!(health.awaits_rescue() && !health.is_rescued());
    assert!(health.start_rescue() && !health.awaits_rescue());
    health.on_suspected_dead(T(4));
    health.on_valid_segment(MS(5));
    assert!(!health.awaits_rescue(), "a subflow that receives segments is not dead");
}

#[test]
fn degraded_lasts_as_long_as_the_path_health_verdict() {
    let (rto, loss) = (AddressPairFault::Rto, AddressPairFault::Loss);
    let mut health = SubflowHealth::default();
    assert_eq!(health.on_verdict(T(1), None), None);
    let change = health.on_verdict(T(2), Some(rto)).expect("news");
    assert!(change.has_changed && !change.reinjects_outstanding());
    assert_eq!(health.on_verdict(T(3), Some(rto)), None);
    let change = health.on_verdict(T(4), Some(loss)).expect("news");
    assert!(!change.has_changed && change.reinjects_outstanding());
    assert_eq!(health.on_valid_segment(MS(5)), None);
    assert_eq!(health.get(), Health::Degraded { since: T(2), cause: loss });
    assert!(health.needs_rescue());
    let change = health.on_verdict(T(5), None).expect("news");
    assert!(change.has_changed && !change.reinjects_outstanding() && change.fault.is_none());
    assert!(health.facts.get_used().is_none(), "a usable one needs no memory");
}

#[test]
fn unreachable_outranks_degraded_and_names_the_monitor_as_cause() {
    let mut health = timed_out(5);
    health.on_verdict(T(6), Some(AddressPairFault::Rto));
    let silent = |since, cause| Health::Unreachable { since: T(since), cause };
    assert_eq!(health.get(), silent(5, UnreachableCause::DegradedAddressPair));
    assert!(health.get().has_degraded_address_pair());
    health.on_verdict(T(7), None);
    assert_eq!(health.get(), silent(5, UnreachableCause::RetransmissionTimeout));
    assert!(!health.get().has_degraded_address_pair());

    let mut health = SubflowHealth::default();
    health.on_verdict(T(6), Some(AddressPairFault::Unanswered));
    health.on_overdue(T(8), UnreachableCause::DegradedAddressPair);
    assert_eq!(health.get(), silent(8, UnreachableCause::DegradedAddressPair));
    health.on_verdict(T(9), None);
    assert_eq!(health.get(), silent(8, UnreachableCause::NoDataSinceRecovery));
    assert!(!health.get().has_degraded_address_pair());
}
