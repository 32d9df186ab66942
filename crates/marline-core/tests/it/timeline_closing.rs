//! Tests of the end of plain TCP connections, segment by segment: FIN from either side, crossing,
//! with data, ahead of data, lost; half-closed connections; RST in and out; TIME-WAIT (RFC 9293
//! sections 3.6 and 3.10, RFC 5961).

use marline_core::{CloseReason, ConnectionConfig, Event, ReadError};
use marline_testkit::Seg;
use marline_testkit::timeline::{MSS, Timeline, full_segments, plain};
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

fn shutdown(line: &mut Timeline) {
    let id = line.id();
    line.script.run(|e, now| e.shutdown(now, id));
}

fn nothing() -> [&'static str; 0] {
    []
}

#[test]
fn we_close_first() {
    let mut line = served();
    shutdown(&mut line);
    assert_eq!(line.sent(), ["1 F"]);
    line.ack(2);
    line.data(b"still");
    assert_eq!(line.sent(), ["ack 6"], "FIN-WAIT-2: the peer's half is open");
    line.send(Seg::fin());
    assert_eq!(line.sent(), ["ack 7"]);
    let id = line.id();
    assert_eq!(line.script.read_all(id), b"still");
    assert_eq!(closed(&mut line), Some(CloseReason::Finished));
    // TIME-WAIT: a repeated FIN is answered, a bare ACK is not, and the state expires.
    line.send_at(6, Seg::fin());
    assert_eq!(line.sent(), ["ack 7"]);
    line.send_at(7, Seg::ack());
    assert_eq!(line.sent(), nothing());
    assert!(line.script.endpoint.in_time_wait());
    line.wait(61_000);
    assert!(!line.script.endpoint.in_time_wait());
    line.send_at(6, Seg::fin());
    assert_eq!(line.sent(), ["R 2"], "the connection is unknown");
}

#[test]
fn a_shutdown_before_the_syn_ack_still_allows_reading() {
    let mut line = Timeline::calling(plain());
    shutdown(&mut line);
    assert_eq!(closed(&mut line), None, "the connection has not ended");
    line.answer_syn(Seg::syn_ack().mss(MSS));
    assert_eq!(line.sent(), ["1 F"], "our half ends with the handshake");
    line.ack(2);
    line.data(b"a greeting");
    line.send(Seg::fin());
    let id = line.id();
    assert_eq!(line.script.read_all(id), b"a greeting");
    assert_eq!(closed(&mut line), Some(CloseReason::Finished));

    let mut line = Timeline::calling(plain());
    shutdown(&mut line);
    while line.wait_for_send(600_000).is_some() {
        assert_eq!(line.sent(), ["S"]);
    }
    assert_eq!(closed(&mut line), Some(CloseReason::TimedOut), "there is no answer");
}

#[test]
fn a_release_before_the_syn_ack_without_data_opens_nothing() {
    let mut line = Timeline::calling(plain());
    let id = line.id();
    shutdown(&mut line);
    line.script.run(|e, now| e.release(now, id));
    assert_eq!(line.wait_for_send(600_000), None);
    assert!(line.script.endpoint.connections().is_empty());
}

#[test]
fn the_peer_closes_first() {
    let mut line = served();
    line.send(Seg::fin());
    assert_eq!(line.sent(), ["ack 2"]);
    line.write(1_500);
    assert_eq!(line.sent(), ["1:1001", "1001:1501 P"], "CLOSE-WAIT: our half is open");
    line.ack(1_501);
    shutdown(&mut line);
    assert_eq!(line.sent(), ["1501 F"]);
    assert_eq!(closed(&mut line), None, "LAST-ACK");
    line.ack(1_502);
    assert_eq!(closed(&mut line), Some(CloseReason::Finished));
    assert!(!line.script.endpoint.in_time_wait(), "the side that closes last does not wait");
    line.send_at(1, Seg::fin());
    assert_eq!(line.sent(), ["R 1502"]);
}

#[test]
fn both_close_at_once() {
    let mut line = served();
    shutdown(&mut line);
    assert_eq!(line.sent(), ["1 F"]);
    line.send(Seg::fin());
    assert_eq!(line.sent(), ["ack 2"], "CLOSING");
    assert_eq!(closed(&mut line), None);
    line.ack(2);
    assert_eq!(closed(&mut line), Some(CloseReason::Finished));
    assert!(line.script.endpoint.in_time_wait());
}

#[test]
fn a_fin_that_acknowledges_ours_ends_it_in_one() {
    let mut line = served();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack_sack(2, &[]);
    line.send(Seg::fin());
    assert_eq!(line.sent(), ["ack 2"]);
    assert_eq!(closed(&mut line), Some(CloseReason::Finished));
}

#[test]
fn a_fin_comes_with_data_or_ahead_of_it() {
    let mut line = served();
    line.send(Seg::fin().payload(b"last"));
    assert_eq!(line.sent(), ["ack 6"]);
    let id = line.id();
    assert_eq!(line.script.read_all(id), b"last");
    assert_eq!(line.script.run(|e, now| e.read(now, id, &mut [0; 9])), Ok(0));

    let mut line = served();
    let id = line.id();
    line.send_at(5, Seg::fin());
    assert_eq!(line.sent(), ["ack 1"], "it waits behind the gap");
    assert_eq!(line.script.run(|e, now| e.read(now, id, &mut [0; 9])), Err(ReadError::Blocked));
    line.send_at(1, Seg::ack().payload(b"last"));
    assert_eq!(line.sent(), ["ack 6"]);
    assert_eq!(line.script.read_all(id), b"last");
    assert_eq!(line.script.run(|e, now| e.read(now, id, &mut [0; 9])), Ok(0));
}

#[test]
fn data_after_a_fin_is_not_accepted() {
    let mut line = served();
    let id = line.id();
    line.send(Seg::fin());
    let _ = line.sent();
    line.send_at(2, Seg::ack().payload(b"more"));
    assert_eq!(line.sent(), ["ack 2"]);
    line.send_at(6, Seg::fin());
    assert_eq!(line.sent(), ["ack 2"], "nor a second end");
    assert_eq!(line.script.run(|e, now| e.read(now, id, &mut [0; 9])), Ok(0));
}

#[test]
fn a_fin_waits_for_the_data_before_it_and_backs_off_like_data() {
    let mut line = served();
    line.write(12_000);
    shutdown(&mut line);
    assert_eq!(line.sent(), full_segments(1, 10), "the window");
    line.wait(100);
    line.ack(10_001);
    assert_eq!(line.sent(), ["10001:11001", "11001:12001 P", "12001 F"]);
    let mut gaps = Vec::new();
    for _ in 0..4 {
        gaps.push(line.wait_for_send(60_000).expect("it is repeated"));
        let sent = line.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
    }
    assert!(gaps[2..].windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{gaps:?}");
    line.ack(12_002);
    assert_eq!(line.wait_for_send(60_000), None);
}

#[test]
fn an_abort_resets_immediately_with_data_in_flight_or_unread() {
    let mut line = served();
    line.write(3_000);
    let _ = line.sent();
    let id = line.id();
    line.script.run(|e, now| e.abort(now, id));
    assert_eq!(line.sent(), ["R 3001"]);
    assert_eq!(closed(&mut line), Some(CloseReason::Aborted));
    line.data(b"late");
    assert_eq!(line.sent(), ["R 1"], "reset again, at the number that the peer acknowledges");

    let mut line = served();
    line.data(b"unread");
    let _ = line.sent();
    let id = line.id();
    line.script.run(|e, now| e.release(now, id));
    assert_eq!(line.sent(), ["R 1"], "RFC 9293 3.10.4, RFC 1122 4.2.2.13: the peer must learn it");
}

#[test]
fn a_reset_counts_in_every_state_and_exactly_at_the_next_number() {
    let states: [fn(&mut Timeline); 4] = [
        |_| {},
        |line| {
            shutdown(line);
            let _ = line.sent();
        },
        |line| {
            shutdown(line);
            let _ = line.sent();
            line.ack(2);
        },
        |line| {
            line.send(Seg::fin());
            let _ = line.sent();
        },
    ];
    for (name, enter) in states.iter().enumerate() {
        let mut line = served();
        enter(&mut line);
        let next = if name == 3 { 2 } else { 1 };
        line.send_at(next + 1, Seg::rst());
        assert_eq!(line.sent(), [format!("ack {next}")], "{name}: a challenge");
        assert_eq!(closed(&mut line), None);
        line.send_at(next.wrapping_sub(2), Seg::rst());
        assert_eq!(line.sent(), nothing(), "{name}: outside");
        line.send_at(next, Seg::rst());
        assert_eq!(line.sent(), nothing());
        assert_eq!(closed(&mut line), Some(CloseReason::PeerReset), "{name}");
    }
}

#[test]
fn a_reset_after_both_fins_does_not_cut_time_wait_short() {
    let mut line = served();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack(2);
    line.send(Seg::fin());
    let _ = line.sent();
    line.send_at(2, Seg::rst());
    assert!(line.script.endpoint.in_time_wait(), "RFC 1337");
    assert_eq!(line.sent(), nothing());
}

#[test]
fn a_new_syn_beyond_the_end_opens_a_new_connection_out_of_time_wait() {
    let mut line = served();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack(2);
    line.send(Seg::fin());
    let _ = line.sent();
    line.send_at(1_000, Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"], "RFC 9293 3.10.7.4, RFC 6191");
}

/// A connection with timestamps that ended here first; the peer's last timestamp was 1,000.
fn in_time_wait_with_timestamps() -> Timeline {
    let mut line = Timeline::listening(ConnectionConfig { timestamps: true, ..plain() });
    line.send(Seg::syn().mss(MSS).timestamps(1_000, 0));
    assert_eq!(line.sent(), ["S ack"]);
    line.ack_with(1, Seg::ack().timestamps(1_000, line.stamp));
    line.id = line.script.take_incoming();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack_with(2, Seg::ack().timestamps(1_000, line.stamp));
    line.send(Seg::fin().timestamps(1_000, line.stamp));
    assert_eq!(line.sent(), ["ack 2"]);
    line
}

#[test]
fn an_old_syn_in_time_wait_is_answered_with_an_ack_and_ends_nothing() {
    let mut line = served();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack(2);
    line.send(Seg::fin());
    let _ = line.sent();
    line.send_at(0u32.wrapping_sub(5_000), Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["ack 2"], "RFC 9293 section 3.10.7.4");
    assert!(line.script.endpoint.in_time_wait());
    line.send_at(2, Seg::rst());
    assert!(line.script.endpoint.in_time_wait(), "whatever the other end makes of it");
}

#[test]
fn in_time_wait_a_timestamp_says_more_than_a_number() {
    let old = 0u32.wrapping_sub(5_000);
    for (at, stamp, opens) in [
        (old, 1_001, true),
        (1_000, 1_001, true),
        (1_000, 999, false),
        (1_000, 1_000, true),
        (old, 1_000, false),
    ] {
        let mut line = in_time_wait_with_timestamps();
        line.send_at(at, Seg::syn().mss(MSS).timestamps(stamp, 0));
        let answer = if opens { "S ack" } else { "ack 2" };
        assert_eq!(line.sent(), [answer], "{at} {stamp}");
        assert_eq!(line.script.endpoint.in_time_wait(), !opens);
    }
    let mut line = in_time_wait_with_timestamps();
    line.send_at(1_000, Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"], "without one the number decides");
}

#[test]
fn a_connection_out_of_time_wait_starts_beyond_the_old_numbers() {
    for bytes in [0, 2_000_000] {
        let mut line = Timeline::served(plain(), true, 1);
        let mut end = 2;
        while end < bytes + 2 {
            line.write(4_000);
            line.wait(1);
            end += 4_000;
            line.ack(end - 1);
        }
        shutdown(&mut line);
        line.ack(end);
        line.send(Seg::fin());
        let last = line.script.take_sent().pop().expect("the last ACK").seg.header.seq;
        line.send_at(1_000, Seg::syn().mss(MSS));
        let answer = line.script.take_sent().pop().expect("an answer").seg;
        assert!(answer.header.flags.contains(TcpFlags::SYN));
        let ahead = answer.header.seq.offset_from(last);
        assert!((1..1 << 24).contains(&ahead), "{bytes}: {ahead}");
    }
}

#[test]
fn after_a_reset_any_syn_but_the_one_that_was_refused_opens() {
    let mut line = served();
    let id = line.id();
    line.script.run(|e, now| e.abort(now, id));
    assert_eq!(line.sent(), ["R 1"]);
    line.send_at(0, Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["R 1"], "the same again");
    line.send_at(0u32.wrapping_sub(5_000), Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"]);
}

#[test]
fn a_half_closed_connection_stays_open() {
    let mut line = served();
    shutdown(&mut line);
    let _ = line.sent();
    line.ack(2);
    let id = line.id();
    for n in 0..20u32 {
        line.wait(10_000);
        line.data(b"tick");
        let sent = line.sent();
        assert!(sent.is_empty() || sent == [format!("ack {}", 1 + 4 * (n + 1))], "{sent:?}");
    }
    assert_eq!(line.script.read_all(id).len(), 80);
    assert_eq!(closed(&mut line), None);
}

#[test]
fn a_listener_s_half_open_connection_is_reset_without_a_word_to_the_application() {
    let config = ConnectionConfig { ..plain() };
    let mut line = Timeline::listening(config);
    line.send(Seg::syn().mss(MSS));
    assert_eq!(line.sent(), ["S ack"]);
    line.send(Seg::rst());
    assert_eq!(line.sent(), nothing());
    let told = |event: &Event| !matches!(event, Event::FlowEnded { .. } | Event::FlowGone { .. });
    assert!(!line.script.take_events().iter().any(told));
    assert_eq!(line.script.endpoint.connections(), []);
    line.send_at(1, Seg::ack().flag(TcpFlags::ACK));
    assert_eq!(line.sent().len(), 1, "an ACK of unsent data causes a reset");
}
