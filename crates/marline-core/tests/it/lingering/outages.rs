//! Tests of outages of all paths at once: which of them a connection survives, and when its application gets the
//! error otherwise.

use std::time::Duration;

use marline_core::{CloseReason, ConnectionConfig, Linger, ReceiveProbes, SocketOption};
use marline_testkit::{Side, config};

use crate::two_hosts::{Dice, MiddleboxAction, TwoHosts, two_paths};

/// Maximum pause between two probes on silent subflows plus the answer time, in seconds.
const ASKED_WITHIN_S: u64 = 16;

fn lingering(linger_s: u64) -> ConnectionConfig {
    ConnectionConfig { linger: Linger::new(Duration::from_secs(linger_s)), ..config() }
}

/// A client with two open paths.
fn connected(linger_s: u64) -> TwoHosts {
    let client = two_paths(lingering(linger_s));
    let mut hosts = TwoHosts::new(client, lingering(linger_s), |_| MiddleboxAction::Pass, 1);
    begin(&mut hosts);
    hosts
}

/// Both paths are open, and both sides know that the other speaks Multipath TCP.
fn begin(hosts: &mut TwoHosts) {
    hosts.write(Side::A, b"hello");
    hosts.write(Side::B, b"hello");
    hosts.run_ms(500);
    assert_eq!(hosts.info(Side::A).subflows.len(), 2);
    for end in &mut hosts.ends {
        assert_eq!(std::mem::take(&mut end.received), b"hello");
    }
}

/// From now on, a path passes either all packets or none.
fn paths_pass(hosts: &mut TwoHosts, passes: [bool; 2]) {
    hosts.middlebox = Box::new(move |packet| match passes[packet.path] {
        true => MiddleboxAction::Pass,
        false => MiddleboxAction::Drop,
    });
}

/// Time in seconds until this side's connection ended, and the reason.
fn end_of(hosts: &mut TwoHosts, side: Side, within_s: u64) -> Option<(u64, CloseReason)> {
    (1..=within_s).find_map(|second| {
        hosts.run_ms(1_000);
        hosts.end(side).closed.map(|why| (second, why))
    })
}

/// Subflows are given up after 102 s of silence. An application does not wait for that plus `linger`.
#[test]
fn linger_begins_with_the_silence_of_the_last_path_and_not_with_its_end() {
    for (writer, linger_s) in [(Side::A, 60), (Side::A, 300), (Side::B, 60), (Side::B, 300)] {
        let mut hosts = connected(linger_s);
        paths_pass(&mut hosts, [false, false]);
        hosts.write(writer, b"anybody there?");
        let (after_s, why) = end_of(&mut hosts, writer, 2 * linger_s).expect("an end");
        assert_eq!(why, CloseReason::TimedOut);
        assert!((linger_s..=linger_s + 3).contains(&after_s), "{writer:?}: {after_s} s");
    }
}

/// The outage may or may not be long enough for the subflows to be given up and reopened, and either side may write
/// meanwhile.
#[test]
fn an_outage_of_all_paths_that_is_shorter_than_linger_is_outlived() {
    for outage_s in [5, 30, 90, 110, 600, 3_000] {
        for writers in [&[Side::A][..], &[Side::A, Side::B]] {
            let mut hosts = connected(3_600);
            paths_pass(&mut hosts, [false, false]);
            writers.iter().for_each(|side| hosts.write(*side, b"before "));
            hosts.run_ms(outage_s * 1_000);
            paths_pass(&mut hosts, [true, true]);
            hosts.run_ms(ASKED_WITHIN_S * 1_000);
            writers.iter().for_each(|side| hosts.write(*side, b"and after"));
            hosts.run_ms(1_000);
            for side in writers {
                let read = &hosts.end(side.other()).received;
                let read = String::from_utf8_lossy(read).into_owned();
                let ends = [hosts.ends[0].closed, hosts.ends[1].closed];
                assert_eq!(read, "before and after", "{outage_s} s, {writers:?}, {ends:?}");
            }
        }
    }
}

/// The server's subflows are gone by then, and the client has no data to send: its probes detect the return.
#[test]
fn server_data_written_during_an_outage_arrives() {
    for outage_s in [30, 600] {
        let probes = Some(ReceiveProbes::default());
        let client = ConnectionConfig { receive_probes: probes, ..two_paths(lingering(3_600)) };
        let mut hosts = TwoHosts::new(client, lingering(3_600), |_| MiddleboxAction::Pass, 2);
        begin(&mut hosts);
        paths_pass(&mut hosts, [false, false]);
        hosts.write(Side::B, b"news");
        hosts.run_ms(outage_s * 1_000);
        paths_pass(&mut hosts, [true, true]);
        hosts.run_ms(130_000);
        let ends = [hosts.ends[0].closed, hosts.ends[1].closed];
        assert_eq!(hosts.ends[0].received, b"news", "{outage_s} s, {ends:?}");
    }
}

/// The path's own backoff would probe only after 51 s, and data sent on the other path is never requested on this one.
#[test]
fn the_first_path_to_return_resumes_soon() {
    for passes in [[true, false], [false, true]] {
        let mut hosts = connected(3_600);
        paths_pass(&mut hosts, [false, false]);
        hosts.write(Side::A, b"up");
        hosts.write(Side::B, b"down");
        hosts.run_ms(28_000);
        paths_pass(&mut hosts, passes);
        hosts.run_ms(ASKED_WITHIN_S * 1_000);
        assert_eq!(hosts.ends[1].received, b"up", "{passes:?}");
        assert_eq!(hosts.ends[0].received, b"down", "{passes:?}");
    }
}

fn expect_answer(hosts: &mut TwoHosts, within_s: u64) {
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    let option = SocketOption::AnswerWithin(Duration::from_secs(within_s));
    hosts.pair.endpoint(Side::A).set(now, id, option);
}

#[test]
fn a_peer_that_does_not_answer_within_the_time_it_was_given_ends_the_connection() {
    for (silent_s, writes) in [(0, false), (0, true), (300, false), (300, true)] {
        let mut hosts = connected(3_600);
        paths_pass(&mut hosts, [false, false]);
        if writes {
            hosts.write(Side::A, b"anybody there?");
        }
        hosts.run_ms(silent_s * 1_000);
        expect_answer(&mut hosts, 120);
        let (after_s, why) = end_of(&mut hosts, Side::A, 600).expect("an end");
        assert_eq!(why, CloseReason::TimedOut);
        assert!((119..=121).contains(&after_s), "after {silent_s} s, {writes}: {after_s} s");
    }
}

/// The peer had no data so far, or half of its answers are lost.
#[test]
fn a_peer_that_answers_once_stays_however_long_it_was_silent() {
    for (passes, once_in) in
        [([true, true], 1), ([true, false], 1), ([false, true], 1), ([true, true], 2)]
    {
        let mut hosts = connected(3_600);
        hosts.run_ms(600_000);
        let mut dice = Dice(7);
        hosts.middlebox =
            Box::new(move |packet| match passes[packet.path] && dice.once_in(once_in) {
                true => MiddleboxAction::Pass,
                false => MiddleboxAction::Drop,
            });
        expect_answer(&mut hosts, 120);
        assert_eq!(end_of(&mut hosts, Side::A, 600), None, "{passes:?}, one of {once_in}");
        paths_pass(&mut hosts, [true, true]);
        hosts.write(Side::B, b"still here");
        hosts.run_ms(5_000);
        assert_eq!(hosts.ends[0].received, b"still here");
    }
}
