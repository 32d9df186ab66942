use core::net::SocketAddr;

use marline_policy::{Clean, Watch};

use super::judge::{Contribution, Judge, Trouble};
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

/// A judge, its clock, and one address pair.
struct Court {
    judge: Judge,
    now: Instant,
    wifi: Netpath,
}

impl Court {
    fn new(config: OracleConfig) -> Self {
        let judge = Judge::new(config);
        let wifi = judge.netpath(&path("192.0.2.7", "198.51.100.1")).expect("a netpath");
        let mut court = Court { judge, now: Instant::from_secs(10), wifi };
        court.judge.advance(court.now);
        court
    }

    fn fault(&self) -> Option<NetpathFault> {
        self.judge.fault(&self.wifi)
    }

    /// A period of the seed's path health monitor in which this many segments were lost, of those
    /// outstanding, and retransmitted, of those sent.
    fn period(&mut self, loss: (u64, u64), repeats: (u64, u64), rto: Duration) {
        let (lost, outstanding) = loss;
        let (retransmitted, sent) = repeats;
        let at_risk = outstanding;
        let part =
            Contribution { members: 1, lost, outstanding, at_risk, retransmitted, sent, rto };
        self.now += ms(1_000);
        self.judge.heard(self.now, self.wifi, self.now);
        self.judge.contribute(self.now, self.wifi, &part);
        self.judge.advance(self.now);
    }

    fn clean_period(&mut self) {
        self.period((0, 10), (0, 10), ms(200));
    }

    /// A member's timer fires; an answer takes 30 ms at most.
    fn timeout(&mut self) {
        self.judge.trouble(self.now, self.wifi, Trouble::TimedOut { wait: ms(30) });
    }

    /// Goes on to the next deadline. Whether it was a question's.
    fn next(&mut self) -> (Duration, bool) {
        let at = self.judge.next_timeout().expect("something is due");
        let slept = at - self.now;
        self.now = at;
        self.judge.heard(self.now, self.wifi, Instant::ZERO);
        self.judge.advance(at);
        (slept, self.judge.take_question(&self.wifi))
    }

    /// A member hears something a little later.
    fn answer(&mut self) {
        self.now += ms(20);
        self.judge.heard(self.now, self.wifi, self.now);
    }

    /// Three questions in vain.
    fn condemn(&mut self) {
        self.timeout();
        while self.fault().is_none() {
            self.next();
        }
    }
}

#[test]
fn the_three_thresholds() {
    let mut court = Court::new(OracleConfig::multimob());
    court.clean_period();
    court.period((10, 10), (0, 10), ms(200));
    // 0.5 x 10 of 0.5 x 10 + 0.25 x 10.
    assert_eq!(court.fault(), Some(NetpathFault::Loss));

    let mut court = Court::new(OracleConfig::multimob());
    court.clean_period();
    court.period((1, 10), (10, 10), ms(200));
    assert_eq!(court.fault(), Some(NetpathFault::Retransmissions));
    let line = &court.judge.table()[0];
    assert!((line.retransmissions - 2.0 / 3.0).abs() < 1e-9, "{line:?}");

    let mut court = Court::new(OracleConfig::multimob());
    court.period((0, 10), (0, 10), ms(1_499));
    assert_eq!(court.fault(), None);
    court.period((0, 10), (0, 10), ms(1_500));
    assert_eq!(court.fault(), Some(NetpathFault::Rto));
    court.period((10, 10), (0, 10), ms(1_500));
    assert_eq!(court.fault(), Some(NetpathFault::Loss), "the graver reason takes over");
    assert_eq!(court.judge.table()[0].times_bad, 1);
}

#[test]
fn shares_that_fall_do_not_trigger_and_thin_ones_neither() {
    let mut court = Court::new(OracleConfig { loss: 0.5, ..OracleConfig::multimob() });
    court.period((9, 20), (0, 20), ms(200));
    assert_eq!(court.fault(), None, "45 %");
    court.judge.contribute(court.now, court.wifi, &Contribution::default());
    court.period((0, 0), (0, 0), ms(200));
    assert_eq!(court.fault(), None, "silence raises nothing");

    let mut court = Court::new(OracleConfig::prompt());
    court.period((1, 2), (1, 2), ms(200));
    assert_eq!(court.fault(), None, "one segment of two is no judgement");
    court.period((8, 10), (8, 10), ms(200));
    assert_eq!(court.fault(), Some(NetpathFault::Loss));
}

#[test]
fn a_timeout_is_asked_about() {
    let mut court = Court::new(OracleConfig::prompt());
    court.timeout();
    assert_eq!((court.fault(), court.judge.table()[0].verdict), (None, Verdict::Watched));
    assert_eq!(court.next(), (ms(50), true));
    assert_eq!(court.next(), (ms(50), true));
    assert_eq!(court.fault(), None);
    court.next();
    assert_eq!(court.fault(), Some(NetpathFault::Unanswered), "150 ms of silence");
}

#[test]
fn one_answer_to_any_member_is_enough() {
    let mut court = Court::new(OracleConfig::prompt());
    court.timeout();
    court.next();
    court.answer();
    court.next();
    assert_eq!(court.fault(), None);
    assert_eq!(court.judge.table()[0].verdict, Verdict::Good);
    assert_eq!(court.judge.next_timeout(), None, "nothing more to wait for");
}

#[test]
fn what_we_overslept_proves_nothing() {
    let mut court = Court::new(OracleConfig::prompt());
    court.timeout();
    for _ in 0..9 {
        court.now = court.judge.next_timeout().expect("a wait") + ms(40);
        court.judge.heard(court.now, court.wifi, Instant::ZERO);
        court.judge.advance(court.now);
        assert!(court.judge.take_question(&court.wifi), "asked again");
    }
    assert_eq!(court.fault(), None);
    for _ in 0..3 {
        court.next();
    }
    assert_eq!(court.fault(), Some(NetpathFault::Unanswered), "three waits of our being awake");
}

#[test]
fn a_long_round_trip_is_waited_for() {
    let mut court = Court::new(OracleConfig::prompt());
    court.judge.trouble(court.now, court.wifi, Trouble::TimedOut { wait: ms(400) });
    assert_eq!(court.next(), (ms(400), true));
}

#[test]
fn the_module_waits_for_its_statistics_but_believes_a_receive_timer() {
    let mut court = Court::new(OracleConfig::multimob());
    court.timeout();
    assert_eq!((court.fault(), court.judge.next_timeout()), (None, None));
    court.judge.trouble(court.now, court.wifi, Trouble::Silent { wait: ms(30) });
    assert_eq!(court.fault(), Some(NetpathFault::Silent));
    assert_eq!(court.judge.next_timeout(), None, "nothing lifts it");
}

#[test]
fn silence_of_one_member_is_no_proof_while_another_hears() {
    let mut court = Court::new(OracleConfig::prompt());
    court.answer();
    court.judge.trouble(court.now, court.wifi, Trouble::Silent { wait: ms(30) });
    assert_eq!(court.judge.table()[0].verdict, Verdict::Watched);
    let mut court = Court::new(OracleConfig::prompt());
    court.answer();
    court.now += ms(500);
    court.judge.trouble(court.now, court.wifi, Trouble::Silent { wait: ms(30) });
    assert_eq!(court.fault(), Some(NetpathFault::Silent));
}

#[test]
fn good_again_after_a_clean_period_only() {
    let mut court = Court::new(OracleConfig::prompt());
    court.condemn();
    let before = court.judge.generation();
    assert_eq!(court.next(), (ms(600), true));
    court.answer();
    assert!(court.next().1);
    court.answer();
    court.timeout();
    let relapse = court.now;
    while court.fault().is_some() {
        court.next();
        court.answer();
        assert!(court.now - relapse < ms(10_000), "for ever");
    }
    assert!(court.now - relapse >= ms(2_000), "a timeout begins the period anew");
    assert_eq!(court.judge.generation(), before + 1);
}

#[test]
fn questions_nobody_answers_become_rare_and_one_missed_spoils_the_period() {
    let mut court = Court::new(OracleConfig::prompt());
    court.condemn();
    let steps: Vec<_> =
        (0..6).map(|_| court.next()).map(|(at, ask)| (at.as_millis(), ask)).collect();
    let (ask, look) = ((600, true), (600, false));
    assert_eq!(steps, [ask, look, ask, look, ask, look], "600 ms, then 1.2 s apart");
    court.next();
    court.answer();
    assert_eq!(court.next(), (ms(580), true), "answered: the next one at once");
    assert_eq!(court.next(), (ms(600), false));
    let missed = court.now;
    while court.fault().is_some() {
        court.answer();
        court.next();
    }
    assert!(court.now - missed >= ms(2_000), "{:?}", court.now - missed);
}

#[test]
fn a_netpath_without_members_is_forgotten() {
    let mut court = Court::new(OracleConfig::prompt());
    court.condemn();
    let generation = court.judge.generation();
    court.now += ms(2_000);
    court.judge.advance(court.now);
    assert!(court.fault().is_some(), "not at once: connections would start there again");
    court.now += ms(1_000);
    court.judge.advance(court.now);
    assert_eq!((court.fault(), court.judge.table().len()), (None, 0));
    assert_eq!(court.judge.generation(), generation + 1, "connections must hear of it");
}

#[test]
fn loopback_is_no_netpath_and_another_interface_another_network() {
    let mut court = Court::new(OracleConfig::prompt());
    assert_eq!(court.judge.netpath(&path("127.0.0.1", "198.51.100.1")), None);
    assert_eq!(court.judge.netpath(&path("192.0.2.7", "::1")), None);
    court.judge.set_interface(ip("192.0.2.7"), 3);
    court.wifi = court.judge.netpath(&path("192.0.2.7", "198.51.100.1")).expect("a netpath");
    assert_eq!(court.wifi.interface, 3);
    court.condemn();
    assert!(court.judge.is_bad(ip("192.0.2.7"), ip("198.51.100.1")));
    court.judge.set_interface(ip("192.0.2.7"), 4);
    assert!(!court.judge.is_bad(ip("192.0.2.7"), ip("198.51.100.1")));
}

#[test]
fn the_table_is_bounded() {
    let config = OracleConfig { netpaths: 3, ..OracleConfig::prompt() };
    let mut court = Court::new(config);
    court.condemn();
    for n in 0..9 {
        let other = format!("198.51.100.{}", n + 10);
        let netpath = court.judge.netpath(&path("192.0.2.7", &other)).expect("a netpath");
        court.now += ms(1);
        court.judge.heard(court.now, netpath, court.now);
    }
    assert_eq!(court.judge.table().len(), 3);
    assert_eq!(court.fault(), None, "the one unused for longest went");
}

#[test]
fn parameters_are_what_the_documentation_says() {
    let seed = OracleConfig::multimob();
    assert_eq!((seed.period, seed.weight, seed.rto), (ms(1_000), 0.5, ms(1_500)));
    assert_eq!((seed.loss, seed.retransmissions), (0.25, 0.5));
    assert_eq!((seed.watch, seed.clean), (None, None));
    let ours = OracleConfig::default();
    assert_eq!(ours.watch, Some(Watch { wait: ms(50), count: 3 }));
    let clean = Clean { period: ms(2_000), probe: ms(600), longest_probe: ms(1_200) };
    assert_eq!(ours.clean, Some(clean));
}
