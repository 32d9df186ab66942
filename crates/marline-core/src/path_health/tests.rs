use core::net::SocketAddr;

use marline_policy::{PairProbing, RecoveryRule};
use marline_time::Instant;

use super::table::{HealthTable, MemberActivity, PathTrouble};
use super::*;
use crate::FourTuple;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn path(local: &str, remote: &str) -> FourTuple {
    FourTuple { local: SocketAddr::new(ip(local), 9), remote: SocketAddr::new(ip(remote), 443) }
}

/// A number of segments, and the total of which they are a part.
#[derive(Copy, Clone)]
struct Share(u64, u64);

/// A table, its clock, and one address pair.
struct Fixture {
    table: HealthTable,
    now: Instant,
    wifi: AddressPair,
}

impl Fixture {
    fn new(config: PathHealthConfig) -> Self {
        let table = HealthTable::new(config);
        let wifi = table.address_pair(&path("192.0.2.7", "198.51.100.1")).expect("an address pair");
        let mut fixture = Fixture { table, now: Instant::from_secs(10), wifi };
        fixture.table.advance(fixture.now);
        fixture
    }

    fn fault(&self) -> Option<AddressPairFault> {
        self.table.fault(&self.wifi)
    }

    /// A period of MultiMob's monitor with this many segments lost, of those outstanding, and retransmitted, of
    /// those sent.
    fn period(&mut self, loss: Share, repeats: Share, rto: Duration) {
        let Share(lost, outstanding) = loss;
        let Share(retransmitted, sent) = repeats;
        let at_risk = outstanding;
        let part =
            MemberActivity { members: 1, lost, outstanding, at_risk, retransmitted, sent, rto };
        self.now += ms(1_000);
        self.table.record_last_rx(self.now, self.wifi, self.now);
        self.table.contribute(self.now, self.wifi, &part);
        self.table.advance(self.now);
    }

    fn clean_period(&mut self) {
        self.period(Share(0, 10), Share(0, 10), ms(200));
    }

    /// A member's timer fires; the maximum answer time is 30 ms.
    fn timeout(&mut self) {
        self.table.record_trouble(self.now, self.wifi, PathTrouble::TimedOut { wait: ms(30) });
    }

    /// Advances to the next deadline. Returns true if a probe was due.
    fn next(&mut self) -> (Duration, bool) {
        let at = self.table.next_timeout().expect("something is due");
        let slept = at - self.now;
        self.now = at;
        self.table.record_last_rx(self.now, self.wifi, Instant::ZERO);
        self.table.advance(at);
        (slept, self.table.take_due_probe(&self.wifi))
    }

    /// A member receives a segment a little later.
    fn answer(&mut self) {
        self.now += ms(20);
        self.table.record_last_rx(self.now, self.wifi, self.now);
    }

    /// Three unanswered probes.
    fn mark_degraded(&mut self) {
        self.timeout();
        while self.fault().is_none() {
            self.next();
        }
    }
}

#[test]
fn the_three_thresholds() {
    let mut fixture = Fixture::new(PathHealthConfig::multimob());
    fixture.clean_period();
    fixture.period(Share(10, 10), Share(0, 10), ms(200));
    // 0.5 x 10 of 0.5 x 10 + 0.25 x 10.
    assert_eq!(fixture.fault(), Some(AddressPairFault::Loss));

    let mut fixture = Fixture::new(PathHealthConfig::multimob());
    fixture.clean_period();
    fixture.period(Share(1, 10), Share(10, 10), ms(200));
    assert_eq!(fixture.fault(), Some(AddressPairFault::Retransmissions));
    let line = &fixture.table.table()[0];
    assert!((line.retransmissions - 2.0 / 3.0).abs() < 1e-9, "{line:?}");

    let mut fixture = Fixture::new(PathHealthConfig::multimob());
    fixture.period(Share(0, 10), Share(0, 10), ms(1_499));
    assert_eq!(fixture.fault(), None);
    fixture.period(Share(0, 10), Share(0, 10), ms(1_500));
    assert_eq!(fixture.fault(), Some(AddressPairFault::Rto));
    fixture.period(Share(10, 10), Share(0, 10), ms(1_500));
    assert_eq!(
        fixture.fault(),
        Some(AddressPairFault::Loss),
        "the more serious cause replaces the first"
    );
    assert_eq!(fixture.table.table()[0].times_degraded, 1);
}

#[test]
fn shares_that_fall_do_not_trigger_and_thin_ones_neither() {
    let mut fixture = Fixture::new(PathHealthConfig { loss: 0.5, ..PathHealthConfig::multimob() });
    fixture.period(Share(9, 20), Share(0, 20), ms(200));
    assert_eq!(fixture.fault(), None, "45 %");
    fixture.table.contribute(fixture.now, fixture.wifi, &MemberActivity::default());
    fixture.period(Share(0, 0), Share(0, 0), ms(200));
    assert_eq!(fixture.fault(), None, "silence raises nothing");

    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.period(Share(1, 2), Share(1, 2), ms(200));
    assert_eq!(fixture.fault(), None, "one segment of two is not enough evidence");
    fixture.period(Share(8, 10), Share(8, 10), ms(200));
    assert_eq!(fixture.fault(), Some(AddressPairFault::Loss));
}

#[test]
fn a_timeout_is_followed_by_probes() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.timeout();
    assert_eq!((fixture.fault(), fixture.table.table()[0].watched), (None, true));
    assert_eq!(fixture.next(), (ms(50), true));
    assert_eq!(fixture.next(), (ms(50), true));
    assert_eq!(fixture.fault(), None);
    fixture.next();
    assert_eq!(fixture.fault(), Some(AddressPairFault::Unanswered), "150 ms of silence");
}

#[test]
fn a_pair_with_a_fault_is_unreachable_until_a_segment_arrives_and_then_degraded() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.mark_degraded();
    assert_eq!(fixture.table.table()[0].health, PathHealth::Unreachable);
    fixture.answer();
    let line = &fixture.table.table()[0];
    let fault = Some(AddressPairFault::Unanswered);
    assert_eq!((line.health, line.cause), (PathHealth::Degraded, fault));
}

#[test]
fn one_answer_to_any_member_is_enough() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.timeout();
    fixture.next();
    fixture.answer();
    fixture.next();
    assert_eq!(fixture.fault(), None);
    assert!(!fixture.table.table()[0].watched);
    assert_eq!(fixture.table.next_timeout(), None, "nothing more to wait for");
}

#[test]
fn a_timer_that_fires_late_proves_nothing() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.timeout();
    for _ in 0..9 {
        fixture.now = fixture.table.next_timeout().expect("a wait") + ms(40);
        fixture.table.record_last_rx(fixture.now, fixture.wifi, Instant::ZERO);
        fixture.table.advance(fixture.now);
        assert!(fixture.table.take_due_probe(&fixture.wifi), "probed again");
    }
    assert_eq!(fixture.fault(), None);
    for _ in 0..3 {
        fixture.next();
    }
    assert_eq!(
        fixture.fault(),
        Some(AddressPairFault::Unanswered),
        "three waits while the process ran"
    );
}

#[test]
fn a_long_round_trip_is_waited_for() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.table.record_trouble(
        fixture.now,
        fixture.wifi,
        PathTrouble::TimedOut { wait: ms(400) },
    );
    assert_eq!(fixture.next(), (ms(400), true));
}

#[test]
fn the_module_waits_for_statistics_but_trusts_a_receive_timer() {
    let mut fixture = Fixture::new(PathHealthConfig::multimob());
    fixture.timeout();
    assert_eq!((fixture.fault(), fixture.table.next_timeout()), (None, None));
    fixture.table.record_trouble(fixture.now, fixture.wifi, PathTrouble::Silent { wait: ms(30) });
    assert_eq!(fixture.fault(), Some(AddressPairFault::Silent));
    assert_eq!(fixture.table.next_timeout(), None, "nothing lifts it");
}

#[test]
fn one_silent_member_proves_nothing_while_another_hears() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.answer();
    fixture.table.record_trouble(fixture.now, fixture.wifi, PathTrouble::Silent { wait: ms(30) });
    assert!(fixture.table.table()[0].watched);
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.answer();
    fixture.now += ms(500);
    fixture.table.record_trouble(fixture.now, fixture.wifi, PathTrouble::Silent { wait: ms(30) });
    assert_eq!(fixture.fault(), Some(AddressPairFault::Silent));
}

#[test]
fn usable_again_only_after_a_clean_period() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.mark_degraded();
    let before = fixture.table.generation();
    assert_eq!(fixture.next(), (ms(600), true));
    fixture.answer();
    assert!(fixture.next().1);
    fixture.answer();
    fixture.timeout();
    let relapse = fixture.now;
    while fixture.fault().is_some() {
        fixture.next();
        fixture.answer();
        assert!(fixture.now - relapse < ms(10_000), "forever");
    }
    assert!(fixture.now - relapse >= ms(2_000), "a timeout restarts the period");
    assert_eq!(fixture.table.generation(), before + 1);
}

#[test]
fn unanswered_probes_become_rare_and_one_miss_spoils_the_period() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.mark_degraded();
    let steps: Vec<_> =
        (0..6).map(|_| fixture.next()).map(|(at, ask)| (at.as_millis(), ask)).collect();
    let (ask, look) = ((600, true), (600, false));
    assert_eq!(steps, [ask, look, ask, look, ask, look], "600 ms, then 1.2 s apart");
    fixture.next();
    fixture.answer();
    assert_eq!(fixture.next(), (ms(580), true), "answered: the next probe is sent immediately");
    assert_eq!(fixture.next(), (ms(600), false));
    let missed = fixture.now;
    while fixture.fault().is_some() {
        fixture.answer();
        fixture.next();
    }
    assert!(fixture.now - missed >= ms(2_000), "{:?}", fixture.now - missed);
}

#[test]
fn an_address_pair_without_members_is_forgotten() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    fixture.mark_degraded();
    let generation = fixture.table.generation();
    fixture.now += ms(2_000);
    fixture.table.advance(fixture.now);
    assert!(
        fixture.fault().is_some(),
        "not immediately, because connections would start there again"
    );
    fixture.now += ms(1_000);
    fixture.table.advance(fixture.now);
    assert_eq!((fixture.fault(), fixture.table.table().len()), (None, 0));
    assert_eq!(fixture.table.generation(), generation + 1, "connections must be informed");
}

#[test]
fn loopback_has_no_address_pair_and_interfaces_are_separate() {
    let mut fixture = Fixture::new(PathHealthConfig::prompt());
    assert_eq!(fixture.table.address_pair(&path("127.0.0.1", "198.51.100.1")), None);
    assert_eq!(fixture.table.address_pair(&path("192.0.2.7", "::1")), None);
    fixture.table.set_interface(ip("192.0.2.7"), 3);
    fixture.wifi =
        fixture.table.address_pair(&path("192.0.2.7", "198.51.100.1")).expect("an address pair");
    assert_eq!(fixture.wifi.interface, 3);
    fixture.mark_degraded();
    assert!(fixture.table.is_degraded(ip("192.0.2.7"), ip("198.51.100.1")));
    fixture.table.set_interface(ip("192.0.2.7"), 4);
    assert!(!fixture.table.is_degraded(ip("192.0.2.7"), ip("198.51.100.1")));
}

#[test]
fn the_table_is_bounded() {
    let config = PathHealthConfig { address_pairs: 3, ..PathHealthConfig::prompt() };
    let mut fixture = Fixture::new(config);
    fixture.mark_degraded();
    for n in 0..9 {
        let other = format!("198.51.100.{}", n + 10);
        let pair = fixture.table.address_pair(&path("192.0.2.7", &other)).expect("an address pair");
        fixture.now += ms(1);
        fixture.table.record_last_rx(fixture.now, pair, fixture.now);
    }
    assert_eq!(fixture.table.table().len(), 3);
    assert_eq!(fixture.fault(), None, "the least recently used one was evicted");
}

#[test]
fn path_health_defaults_match_the_documentation() {
    let seed = PathHealthConfig::multimob();
    assert_eq!((seed.period, seed.weight, seed.rto), (ms(1_000), 0.5, ms(1_500)));
    assert_eq!((seed.loss, seed.retransmissions), (0.25, 0.5));
    assert_eq!((seed.watch, seed.recovery), (None, None));
    let ours = PathHealthConfig::default();
    assert_eq!(ours.watch, Some(PairProbing { wait: ms(50), count: 3 }));
    let clean = RecoveryRule { period: ms(2_000), probe: ms(600), max_probe_interval: ms(1_200) };
    assert_eq!(ours.recovery, Some(clean));
}
