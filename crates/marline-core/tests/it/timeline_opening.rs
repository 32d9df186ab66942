//! Tests of opening and closing plain TCP, segment by segment, with the application's requests
//! meanwhile.

use std::time::Duration;

use marline_core::{
    CloseReason, ConnectionConfig, Event, FallbackReason, Hold, Keepalive, SocketOption, WriteError,
};
use marline_testkit::Seg;
use marline_testkit::timeline::{MSS, Timeline, plain};
use marline_wire::TcpFlags;

fn served() -> Timeline {
    Timeline::served(plain(), true, 100)
}

fn closed(line: &mut Timeline) -> Option<CloseReason> {
    line.script.take_events().into_iter().find_map(|event| match event {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn the_third_ack_of_plain_tcp_draws_no_answer() {
    let mut line = served();
    assert_eq!(line.sent(), [""; 0]);
    let mut line = Timeline::served(ConnectionConfig { mptcp: true, ..plain() }, true, 100);
    assert_eq!(line.sent(), [""; 0], "offered none, got none");
}

#[test]
fn a_repeated_syn_gets_its_answer_again_and_an_unanswered_one_too() {
    let mut line = Timeline::listening(plain());
    line.send_at(0, Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"]);
    line.send_at(0, Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"]);
    let first = line.wait_for_send(10_000).expect("the timer");
    assert_eq!(line.sent(), ["S ack"]);
    let second = line.wait_for_send(10_000).expect("the timer");
    assert_eq!((first, second), (1_000, 2_000));
}

#[test]
fn syns_without_an_answer_back_off_and_end() {
    let config = ConnectionConfig { syn_retries: 2, linear_syn_retries: 0, ..plain() };
    assert_eq!(unanswered(config), (vec![1, 3], 7));
}

/// As in Linux since 6.5 (observed with 6.18): the first repeats of a SYN come at equal intervals, and the attempt
/// ends with the first timeout after its duration without them.
#[test]
fn the_first_repeats_of_a_syn_come_at_equal_distances() {
    assert_eq!(unanswered(plain()), (vec![1, 2, 3, 4, 5, 7, 11, 19, 35, 67], 131));
    let short = ConnectionConfig { syn_retries: 2, ..plain() };
    assert_eq!(unanswered(short), (vec![1, 2, 3, 4, 5], 7));
    let shorter = ConnectionConfig { syn_retries: 1, linear_syn_retries: 3, ..plain() };
    assert_eq!(unanswered(shorter), (vec![1, 2], 3));
}

/// The number of allowed repeats does not affect the cost of each.
#[test]
fn a_syn_may_be_repeated_without_end() {
    let retries = u32::MAX;
    let config = ConnectionConfig { syn_retries: retries, mptcp_syn_retries: retries, ..plain() };
    let mut line = Timeline::calling(config);
    let repeats = (0..100).filter(|_| line.wait_for_send(1_000_000).is_some()).count();
    assert_eq!((repeats, closed(&mut line)), (100, None));
}

/// Times in seconds of the repeats of an unanswered SYN, and of its end.
fn unanswered(config: ConnectionConfig) -> (Vec<u64>, u64) {
    let mut line = Timeline::calling(config);
    let (mut repeats, begun) = (Vec::new(), line.now_ms());
    let seconds = |line: &Timeline| (line.now_ms() - begun) / 1_000;
    loop {
        if line.wait_for_send(500).is_some() {
            assert_eq!(line.sent(), ["S"]);
            repeats.push(seconds(&line));
        }
        if let Some(reason) = closed(&mut line) {
            assert_eq!(reason, CloseReason::TimedOut);
            return (repeats, seconds(&line));
        }
    }
}

#[test]
fn a_refusal_ends_it_immediately() {
    let mut line = Timeline::calling(plain());
    line.send_at(0, Seg::rst());
    assert_eq!(closed(&mut line), None, "no ACK: any host could have sent it");
    let ours = 1;
    line.ack_sack(ours, &[]);
    assert_eq!(line.sent(), [""; 0]);
    line.send_at(0, Seg::rst().flag(TcpFlags::ACK));
    assert_eq!(closed(&mut line), Some(CloseReason::Refused));
}

#[test]
fn both_sides_may_call_at_once() {
    let mut line = Timeline::calling(plain());
    line.wait(50);
    line.send(Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"]);
    line.wait(50);
    line.ack(1);
    let events = line.script.take_events();
    let connected = |event: &Event| matches!(event, Event::Connected { fallback: None, .. });
    assert!(events.iter().any(connected), "{events:?}");
}

#[test]
fn a_late_answer_to_a_call_that_was_given_up_draws_a_reset() {
    let mut line = Timeline::calling(plain());
    let id = line.id();
    line.script.run(|e, now| e.release(now, id));
    assert_eq!(line.sent(), [""; 0]);
    assert_eq!(line.script.endpoint.connections(), [], "no data was sent, so no state is kept");
    line.wait(100);
    let answer = Seg::syn_ack().mss(MSS);
    line.answer_syn(answer);
    assert_eq!(line.sent(), ["R 1"]);
}

#[test]
fn without_an_option_of_multipath_tcp_the_call_continues_as_plain_tcp() {
    let mut line = Timeline::calling(ConnectionConfig { mptcp: true, ..plain() });
    line.answer_syn(Seg::syn_ack().mss(MSS));
    let events = line.script.take_events();
    let reason = Some(FallbackReason::SynAckWithoutOption);
    let told = |e: &Event| matches!(e, Event::Connected { fallback, .. } if *fallback == reason);
    assert!(events.iter().any(told), "{events:?}");
}

#[test]
fn a_resent_fin_has_no_push_flag() {
    let mut line = served();
    let id = line.id();
    line.script.run(|e, now| e.shutdown(now, id));
    assert_eq!(line.sent(), ["1 F"]);
    let _ = line.wait_for_send(5_000).expect("it is repeated");
    assert_eq!(line.sent(), ["1 F"]);
}

#[test]
fn the_fin_follows_the_last_data_in_a_segment_of_its_own() {
    let mut line = served();
    line.write(10_500);
    let id = line.id();
    line.script.run(|e, now| e.shutdown(now, id));
    assert_eq!(line.sent().len(), 10, "a window's worth");
    line.wait(100);
    line.ack(10_001);
    assert_eq!(line.sent(), ["10001:10501 P", "10501 F"]);
    line.ack(10_502);
    assert_eq!(line.wait_for_send(5_000), None, "all of it is acknowledged");
}

#[test]
fn unreadable_data_is_refused_once_the_peer_acknowledged_ours() {
    let mut line = served();
    let id = line.id();
    line.script.run(|e, now| e.release(now, id));
    assert_eq!(line.sent(), ["1 F"]);
    line.data(b"hello");
    assert_eq!(line.sent()[0], "ack 6", "the peer has not acknowledged the FIN");
    line.ack(2);
    assert_eq!(line.sent(), ["R 2"]);
}

#[test]
fn data_after_our_end_was_acknowledged_is_refused_immediately() {
    let mut line = served();
    let id = line.id();
    line.write(3);
    line.script.run(|e, now| e.release(now, id));
    let sent = line.sent();
    assert!(sent.last().is_some_and(|last| last.contains('F')), "{sent:?}");
    line.ack(5);
    assert_eq!(line.sent(), [""; 0], "half of it is closed");
    line.data(b"hello");
    assert_eq!(line.sent(), ["R 5"]);
    line.data(b"again");
    assert_eq!(line.sent(), ["R 5"], "and it is remembered for a while");
}

#[test]
fn a_stream_that_ends_on_both_sides_without_late_data_is_not_reset() {
    let mut line = Timeline::served(plain(), true, 100);
    let id = line.id();
    line.script.run(|e, now| e.release(now, id));
    assert_eq!(line.sent(), ["1 F"]);
    line.ack(2);
    line.send(Seg::fin());
    assert_eq!(line.sent(), ["ack 2"]);
}

#[test]
fn an_ack_of_unsent_data_is_answered() {
    let mut line = served();
    line.ack(5_000);
    assert_eq!(line.sent(), ["ack 1"]);
}

#[test]
fn no_segment_has_bytes_of_two_records() {
    let mut line = served();
    let id = line.id();
    line.write(10_000);
    assert_eq!(line.sent().len(), 10, "a window's worth");
    for len in [1_500, 400, 400] {
        line.write(len);
        line.script.run(|e, now| e.end_record(now, id));
    }
    line.write(100);
    line.wait(100);
    line.ack(10_001);
    let records =
        ["10001:11001", "11001:11501 P", "11501:11901 P", "11901:12301 P", "12301:12401 P"];
    assert_eq!(line.sent(), records);
}

#[test]
fn corked_data_leaves_in_full_segments_on_uncork_or_timeout() {
    let mut line = served();
    let id = line.id();
    let hold = |hold| SocketOption::Hold(hold);
    line.script.run(|e, now| e.set(now, id, hold(Hold::Corked)));
    line.write(400);
    assert_eq!(line.sent(), [""; 0]);
    line.write(700);
    assert_eq!(line.sent(), ["1:1001"], "as much as is full");
    line.script.run(|e, now| e.set(now, id, hold(Hold::No)));
    assert_eq!(line.sent(), ["1001:1101 P"]);
    line.ack(1_101);
    line.script.run(|e, now| e.set(now, id, hold(Hold::MoreFollows)));
    line.write(50);
    let waited = line.wait_for_send(5_000).expect("the delay is bounded");
    assert!((200..=500).contains(&waited), "{waited} ms: a retransmission timeout");
    assert_eq!(line.sent(), ["1101:1151 P"]);
}

#[test]
fn a_writer_can_limit_its_unsent_data() {
    let mut line = served();
    let id = line.id();
    line.script.run(|e, now| e.set(now, id, SocketOption::NotSentLowat(Some(4_000))));
    let mut taken = 0;
    while let Ok(len) = line.script.run(|e, now| e.write(now, id, &[b'x'; 3_000])) {
        taken += len;
    }
    assert_eq!(line.sent().len(), 10, "the window's worth is sent");
    assert_eq!(taken, 14_000, "and four thousand wait");
    let _ = line.script.take_events();
    let refused = line.script.run(|e, now| e.write(now, id, b"x"));
    assert_eq!(refused, Err(WriteError::Blocked));
    line.wait(100);
    line.ack(4_001);
    assert!(line.script.take_events().contains(&Event::Writable(id)), "they were sent");
}

#[test]
fn unacknowledged_data_ends_the_connection_after_the_user_timeout() {
    let mut line = served();
    let id = line.id();
    let timeout = Duration::from_secs(3);
    line.script.run(|e, now| e.set(now, id, SocketOption::UserTimeout(Some(timeout))));
    line.wait(10_000);
    assert_eq!(closed(&mut line), None, "silence is not the matter");
    line.write(100);
    line.wait(2_000);
    line.ack(51);
    line.wait(2_900);
    assert_eq!(closed(&mut line), None, "progress restarts it");
    line.wait(200);
    assert_eq!(closed(&mut line), Some(CloseReason::TimedOut));
}

#[test]
fn keepalives_come_when_the_application_wants_them() {
    let mut line = served();
    let id = line.id();
    let seconds = Duration::from_secs;
    let times = Keepalive { idle: seconds(20), interval: seconds(5), probes: 2 };
    line.script.run(|e, now| e.set(now, id, SocketOption::Keepalive(Some(times))));
    let mut gaps = Vec::new();
    for _ in 0..2 {
        gaps.extend(line.wait_for_send(60_000));
        assert_eq!(line.sent(), ["ack 1"]);
    }
    assert_eq!(gaps, [20_000, 5_000]);
    line.send(Seg::ack());
    assert_eq!(line.wait_for_send(60_000), Some(20_000), "an answer restarts the timeout");
    line.wait(10_100);
    assert_eq!(closed(&mut line), Some(CloseReason::TimedOut));
}
