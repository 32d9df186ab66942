//! Tests of every fallback to plain TCP, segment by segment: options that vanish before, in and after the
//! handshake, checksums that fail, infinite mappings; and cases without a permitted fallback (RFC 8684 section
//! 3.7).

use marline_core::{CloseReason, ConnectionConfig, FallbackReason};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{
    KEY, Subflows, capable, multipath, syn, syn_ack, with_sum,
};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{CapableData, MpCapableForm, MpFail, MptcpOption};

fn nothing() -> [&'static str; 0] {
    []
}

/// A server with negotiated checksums, and its client's first data.
fn checked() -> Subflows {
    let mut line = Subflows::listening(multipath()).with_checksums();
    line.open();
    line.data(0, b"hello");
    let _ = line.sent();
    assert_eq!(line.read(), b"hello");
    line
}

/// The next data of the peer, changed on the path.
fn damaged(line: &mut Subflows, on: usize, bytes: &[u8]) {
    let mut seg = line.mapped(on, bytes);
    line.advance_dsn(bytes.len() as u64);
    seg.payload[0] ^= 1;
    line.send(on, seg);
}

#[test]
fn a_syn_without_the_option() {
    let mut line = Subflows::listening(multipath());
    line.send(0, syn());
    assert_eq!(line.sent(), ["a: S ack"]);
    line.send(0, Seg::ack());
    assert_eq!(line.sent(), nothing());
    line.id = line.script.take_incoming();
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P"]);
    assert_eq!(line.fallback(), Some(FallbackReason::SynWithoutOption));
}

#[test]
fn a_third_ack_without_the_option() {
    let mut line = Subflows::listening(multipath());
    line.send(0, syn().mptcp(MptcpOption::Capable(capable(MpCapableForm::Syn))));
    assert_eq!(line.sent(), ["a: S ack capable key"]);
    line.send(0, Seg::ack());
    line.id = line.script.take_incoming();
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P"]);
    line.send(0, Seg::ack().payload(b"plain"));
    assert_eq!(line.read(), b"plain");
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
}

#[test]
fn first_data_without_an_option() {
    let mut line = Subflows::served(multipath());
    line.send(0, Seg::ack().payload(b"plain"));
    assert_eq!(line.read(), b"plain");
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    let _ = line.sent();
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P dsn8 1+inf"], "the client may have read our options");
    line.write(3);
    assert_eq!(line.sent(), ["a: 4:7 P"]);
}

#[test]
fn the_client_s_first_data_is_acknowledged_without_an_option() {
    let mut line = Subflows::called(multipath());
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P capable keys+5"]);
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    line.write(5);
    assert_eq!(line.sent(), ["a: 6:11 P dsn8 1+inf@1"], "starting after the last DATA_ACKed data");
    line.send(0, Seg::ack().payload(b"plain"));
    assert_eq!(line.read(), b"plain");
    line.shutdown();
    let sent = line.sent();
    assert!(sent.last().is_some_and(|words| words == "a: 11 F"), "no DATA_FIN: {sent:?}");
}

/// A middlebox splits segments and leaves the options on the first pieces, which arrive late: the other pieces'
/// acknowledgments without a DATA_ACK prove nothing about options.
#[test]
fn a_cut_segment_without_options_does_not_cause_fallback() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"mapped");
    let _ = line.sent();
    assert_eq!(line.read(), b"mapped");
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P dack8 7 dsn 1+3"]);
    line.send_at(0, 12, Seg::ack().payload(b"piece"));
    assert_eq!(line.fallback(), None);
    let dsn = line.dsn(7);
    let first = Seg::ack().data_ack(line.endpoint_dsn(4)).mapping(dsn, 7, 10);
    line.send_at(0, 7, first.payload(b"first"));
    assert_eq!(line.read(), b"firstpiece");
    assert_eq!((line.fallback(), line.closed()), (None, None));
    // A pure ACK without one is.
    let mut line = Subflows::served(multipath());
    line.data(0, b"mapped");
    let _ = line.sent();
    line.write(3);
    let _ = line.sent();
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
}

/// Pieces without options, and mappings, overtook the keys: they are dropped, without an acknowledgment or a
/// decision. Once the first byte has come without an option, mappings cannot be interpreted.
#[test]
fn mappings_of_a_client_whose_key_was_never_heard_end_nothing() {
    let mut line = Subflows::listening(multipath());
    line.send(0, syn().mptcp(MptcpOption::Capable(capable(MpCapableForm::Syn))));
    assert_eq!(line.sent(), ["a: S ack capable key"]);
    line.send_at(0, 6, Seg::ack().payload(b" piece"));
    assert_eq!((line.sent(), line.script.take_incoming()), (vec![], None));
    let dsn = line.dsn(12);
    let more = Seg::ack().mapping(dsn, 12, 5).payload(b" more");
    line.send_at(0, 12, more.clone());
    line.send_at(0, 1, Seg::ack().payload(b"first"));
    line.id = line.script.take_incoming();
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    line.send_at(0, 12, more);
    line.send_at(0, 6, Seg::ack().payload(b" piece"));
    assert_eq!((line.read(), line.closed()), (b"first piece more".to_vec(), None));
}

/// The first data of the peer with its keys.
fn keyed(line: &mut Subflows, bytes: &[u8]) {
    let MpCapableForm::Ack { initiator_key, listener_key, .. } = line.keys_form() else { return };
    let data = Some(CapableData { length: bytes.len() as u16, checksum: None });
    let form = MpCapableForm::Ack { initiator_key, listener_key, data };
    line.advance_dsn(bytes.len() as u64);
    line.send(0, Seg::ack().mptcp(MptcpOption::Capable(capable(form))).payload(bytes));
}

/// Data sent before the client gave up options waits behind its retransmission without options: its mapping agrees
/// with plain TCP.
#[test]
fn the_first_data_goes_on_without_options_before_a_hole() {
    let mut line = Subflows::served(multipath());
    keyed(&mut line, b"first");
    let dsn = line.dsn(11);
    line.send_at(
        0,
        11,
        Seg::ack().data_ack(line.endpoint_dsn(1)).mapping(dsn, 11, 5).payload(b"third"),
    );
    let _ = line.sent();
    line.send_at(0, 6, Seg::ack().payload(b" two "));
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    assert_eq!((line.read(), line.closed()), (b"first two third".to_vec(), None));
}

/// The endpoint fell back to plain TCP, but its peer did not learn of it: the same data with another mapping would
/// be taken for new data.
#[test]
fn a_mapping_that_says_otherwise_than_plain_tcp_ends_the_connection() {
    let plain = || {
        let mut line = Subflows::served(multipath());
        line.send(0, Seg::ack().payload(b"plain"));
        assert_eq!(line.read(), b"plain");
        assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
        let _ = line.sent();
        line
    };
    let mut line = plain();
    let dsn = line.dsn(6);
    line.send(0, Seg::ack().mapping(dsn, 6, 4).payload(b"same"));
    assert_eq!((line.read(), line.closed()), (b"same".to_vec(), None), "it agrees with plain TCP");
    let dsn = line.dsn(6);
    line.send(0, Seg::ack().mapping(dsn, 10, 4).payload(b"same"));
    assert_eq!(line.read(), b"");
    assert_eq!(line.closed(), Some(CloseReason::PeerMisbehaved));
    assert!(line.sent().last().is_some_and(|words| words.starts_with("a: R")));
}

#[test]
fn an_infinite_mapping_of_the_peer() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"mapped");
    let _ = line.sent();
    line.write(3);
    let _ = line.sent();
    line.ack(0);
    let dsn = line.dsn(7);
    line.send(0, Seg::ack().mapping(dsn, 7, 0).payload(b", plain"));
    assert_eq!(line.read(), b"mapped, plain");
    assert_eq!(line.fallback(), Some(FallbackReason::InfiniteMapping));
    line.send(0, Seg::ack().payload(b" and so on"));
    assert_eq!(line.read(), b" and so on");
    let _ = line.sent();
    line.write(3);
    assert_eq!(line.sent(), ["a: 4:7 P dsn8 4+inf"], "ours ends as well");
    line.send(0, Seg::fin());
    line.shutdown();
    let _ = line.sent();
    line.send(0, Seg::ack());
    assert_eq!(line.closed(), Some(CloseReason::Finished), "FINs end it, as those of TCP do");
}

#[test]
fn an_infinite_mapping_next_to_another_subflow_is_ignored() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    let b = line.join(3);
    let dsn = line.dsn(6);
    line.send(0, Seg::ack().mapping(dsn, 6, 0).payload(b"odd"));
    assert_eq!(line.fallback(), None);
    line.data(b, b"!");
    assert!(line.read().starts_with(b"hello"));
}

#[test]
fn a_damaged_mapping_on_the_only_subflow() {
    let mut line = checked();
    damaged(&mut line, 0, b"damage");
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: ack 12 dack8 6 fail 6"), "{sent:?}");
    assert_eq!(line.read(), b"", "kept, not delivered");
    // MP_FAIL is sent on a pure ACK, so it is repeated.
    line.wait_for_send(5_000).expect("the answer");
    assert_eq!(line.sent(), ["a: ack 12 dack8 6 fail 6"]);
    // The answer, and the infinite mapping.
    let answer = MpFail { dsn: line.endpoint_dsn(1) };
    line.option(0, MptcpOption::Fail(answer));
    assert_eq!(line.fallback(), Some(FallbackReason::ChecksumFailed));
    assert_eq!(line.read(), b"eamage", "the changed bytes continue the stream in plain TCP");
    let _ = line.sent();
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P dsn8 1+inf sum 0"], "plain TCP has no DSS checksum");
}

#[test]
fn a_damaged_mapping_next_to_another_subflow() {
    let mut line = checked();
    let b = line.join(3);
    damaged(&mut line, b, b"damage");
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("b: R 1 fail 6 reset 6"), "{sent:?}");
    assert_eq!(line.fallback(), None);
    // The same data on the other subflow.
    let dsn = line.dsn(6);
    line.send(0, with_sum(Seg::ack().mapping(dsn, 6, 6).payload(b"damage")));
    assert_eq!(line.read(), b"damage");
}

#[test]
fn an_unanswered_mp_fail_ends_with_a_reset() {
    let mut line = checked();
    damaged(&mut line, 0, b"damage");
    let mut fails = 0;
    let mut last = String::new();
    while line.wait_for_send(120_000).is_some() && !last.contains(" R ") {
        for words in line.sent() {
            fails += u32::from(words.ends_with("fail 6"));
            last = words;
        }
        last = last.replace("a: R", "a: R ");
        if last.starts_with("a: R") {
            break;
        }
    }
    assert!((3..=10).contains(&fails), "{fails}");
    assert!(last.contains("fail 6 reset 6"), "{last}");
}

#[test]
fn options_that_vanish_in_mid_stream_end_the_subflow() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    line.write(3);
    let _ = line.sent();
    line.ack(0);
    line.send(0, Seg::ack().payload(b"bare"));
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: R 4 reset 6"), "{sent:?}");
    assert_eq!(line.closed(), None, "another subflow may continue");
    assert_eq!(line.read(), b"hello");
}

#[test]
fn a_joined_subflow_without_options_is_reset() {
    for seg in [Seg::ack().payload(b"bare"), Seg::ack().flag(TcpFlags::PSH).payload(b"bare")] {
        let mut line = Subflows::served(multipath());
        line.data(0, b"hello");
        let b = line.join(3);
        line.send(b, seg);
        let sent = line.sent();
        assert_eq!(sent.last().map(String::as_str), Some("b: R 1 reset 6"), "{sent:?}");
        assert_eq!(line.fallback(), None);
    }
}

#[test]
fn data_mapped_before_the_fallback_stays_mapped() {
    let config = ConnectionConfig { ..multipath() };
    let mut line = Subflows::calling(config);
    let _ = line.sent();
    let key = MpCapableForm::SynAck { listener_key: KEY };
    line.send(0, syn_ack().mptcp(MptcpOption::Capable(capable(key))));
    let _ = line.sent();
    line.write(5);
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P capable keys+5", "a: 6:11 P dack 1 dsn 6+5"]);
    // The server is plain TCP, and the first segment was lost.
    line.peers[0].expected = line.peers[0].irs.add(6);
    line.send(0, Seg::ack());
    assert_eq!(line.fallback(), Some(FallbackReason::FirstDataWithoutOption));
    line.wait_for_send(5_000).expect("the second again");
    assert_eq!(line.sent(), ["a: 6:11 P dsn 6+5"], "what it was mapped as, without a DATA_ACK");
}

/// The endpoint has sent all its data; the peer found "damage" damaged. `shut`: the application has shut down.
fn failed_at_the_end(shut: bool) -> Subflows {
    let mut line = checked();
    line.write(6);
    if shut {
        line.shutdown();
    }
    let _ = line.sent();
    let fail = MpFail { dsn: line.endpoint_dsn(1) };
    line.peers[0].expected_dsn = line.endpoint_dsn(1);
    line.option(0, MptcpOption::Fail(fail));
    assert_eq!(line.fallback(), Some(FallbackReason::PeerFailed));
    line
}

#[test]
fn mp_fail_is_answered_before_the_fin_and_that_has_the_infinite_mapping() {
    let mut line = failed_at_the_end(true);
    let expected = ["a: ack 6 fail 6", "a: 7 F dsn8 1+inf@1 sum 0"];
    assert_eq!(line.sent(), expected);
    // A lost FIN is repeated unchanged.
    line.wait_for_send(5_000).expect("the FIN again");
    assert_eq!(line.sent(), expected[1..]);
}

#[test]
fn a_fin_after_mp_fail_has_the_infinite_mapping_whenever_it_comes() {
    let mut line = failed_at_the_end(false);
    assert_eq!(line.sent(), ["a: ack 6 fail 6"]);
    line.shutdown();
    assert_eq!(line.sent(), ["a: 7 F dsn8 1+inf@1 sum 0"]);
}

#[test]
fn a_fin_with_the_awaited_infinite_mapping_ends_the_stream() {
    let mut line = checked();
    damaged(&mut line, 0, b"damage");
    let _ = line.sent();
    let (dsn, ssn) = (line.dsn(6), 6);
    let mut fin = Seg::fin().mapping(dsn, ssn, 0);
    if let Some(mapping) = fin.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut()) {
        mapping.checksum = Some(0);
    }
    line.send(0, fin);
    assert_eq!(line.fallback(), Some(FallbackReason::ChecksumFailed));
    assert_eq!(line.read(), b"eamage", "delivered unchanged");
    let id = line.id();
    let end = line.script.run(|e, now| e.read(now, id, &mut [0; 10]));
    assert_eq!(end, Ok(0), "and that was all");
}

/// Returns the segments sent within this time, each with the milliseconds since now. No segment reaches the peer.
fn since_last_rx(line: &mut Subflows, within_ms: u64) -> Vec<String> {
    let (mut said, mut passed) = (Vec::new(), 0);
    while let Some(after) = line.wait_for_send(within_ms - passed) {
        passed += after;
        said.extend(line.sent().into_iter().map(|words| format!("{passed} {words}")));
    }
    said
}

/// An answer without options that acknowledges nothing but the SYN.
fn answer_plainly(line: &mut Subflows) {
    let peer = &line.peers[0];
    let answer = Seg::ack().at(peer.iss.add(1)).acking(peer.irs.add(1));
    peer.inject(&mut line.script, answer);
}

/// A client with two addresses that has written five unacknowledged bytes.
fn unanswered() -> Subflows {
    let address = |n: u8| {
        LocalAddress::new(AddressId(n), format!("10.{n}.0.1:0").parse().expect("an address"))
    };
    let local_addresses = vec![address(0), address(2)];
    let mut line = Subflows::called(ConnectionConfig { local_addresses, ..multipath() });
    line.write(5);
    assert_eq!(line.sent(), ["a: 1:6 P capable keys+5"]);
    line
}

/// A path that dies right after the handshake answers nothing, with options or without.
#[test]
fn a_first_path_that_is_silent_for_a_second_stays_multipath_and_is_joined() {
    let mut line = unanswered();
    assert_eq!(
        since_last_rx(&mut line, 1_600),
        [
            "40 a: 1:6 P capable keys+5",
            "250 a: 1:6 P capable keys+5",
            "250 a: ack 1",
            "670 a: 1:6 P capable keys+5",
            "670 a: ack 1",
            "1510 a: 1:6 P capable keys+5",
            "1510 a: ack 1",
        ]
    );
    assert_eq!(line.fallback(), None);
    line.ack(0);
    assert_eq!(line.sent(), ["b: S join 2"]);
    // The answer to the segment without options comes later, and no longer has any effect.
    answer_plainly(&mut line);
    line.write(5);
    assert_eq!(line.sent(), ["a: 6:11 P dack 1 dsn 6+5"]);
    assert_eq!(line.fallback(), None);
}

/// The timer does not back off while segments from the peer arrive: the third timeout comes 420 ms after the first,
/// like the second one of a silent path.
#[test]
fn a_path_that_answers_twice_without_options_is_plain_by_the_time_of_a_second_timeout() {
    let mut line = unanswered();
    assert_eq!(line.wait_for_send(100), Some(40));
    let _ = line.sent();
    for _ in 0..2 {
        line.wait_for_send(1_000).expect("a timeout");
        let asked = line.script.take_sent();
        let probe = &asked.last().expect("a segment without options").seg;
        let peer = &line.peers[0];
        assert_eq!((probe.header.seq, probe.header.ack), (peer.irs, peer.iss.add(1)));
        assert!(probe.payload.is_empty() && !probe.options.has_mptcp(), "{probe:?}");
        line.wait(10);
        answer_plainly(&mut line);
        assert_eq!((line.sent(), line.fallback()), (vec![], None), "the repeated data may be lost");
    }
    assert_eq!(since_last_rx(&mut line, 400), ["200 a: 1:6 P"]);
    assert_eq!(line.fallback(), Some(FallbackReason::OptionsUnanswered));
}

/// One answer may be chance, as on a lossy path that has recovered.
#[test]
fn one_answer_without_options_does_not_cause_fallback() {
    let mut line = unanswered();
    assert_eq!(since_last_rx(&mut line, 250).last().map(String::as_str), Some("250 a: ack 1"));
    line.wait(10);
    answer_plainly(&mut line);
    assert_eq!(since_last_rx(&mut line, 200), ["200 a: 1:6 P capable keys+5", "200 a: ack 1"]);
    line.ack(0);
    assert_eq!((line.sent(), line.fallback()), (vec!["b: S join 2".to_owned()], None));
}

/// It is unknown whether the path is dead or a middlebox drops options in both directions.
#[test]
fn options_are_given_up_after_six_unanswered_timeouts() {
    let mut line = unanswered();
    let said = since_last_rx(&mut line, 20_000);
    assert_eq!(said.iter().filter(|words| words.ends_with("a: ack 1")).count(), 5, "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("13270 a: 1:6 P"));
    assert_eq!(line.fallback(), Some(FallbackReason::OptionsUnanswered));
}

/// The third ACK is lost, and a probe does not replace it.
#[test]
fn a_server_in_syn_received_answers_without_options_and_waits_for_the_keys() {
    let mut line = Subflows::listening(multipath());
    line.send(0, syn().mptcp(MptcpOption::Capable(capable(MpCapableForm::Syn))));
    assert_eq!(line.sent(), ["a: S ack capable key"]);
    for _ in 0..2 {
        line.send_at(0, 0, Seg::ack());
        assert_eq!(line.sent(), ["a: ack 1"]);
    }
    line.send_at(0, 0, Seg::fin());
    assert_eq!(line.sent(), nothing());
    let third = MptcpOption::Capable(capable(line.keys_form()));
    line.send(0, Seg::ack().mptcp(third));
    line.id = line.script.take_incoming();
    let _ = line.sent();
    line.data(0, b"hello");
    assert_eq!((line.read(), line.fallback()), (b"hello".to_vec(), None));
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"]);
}

#[test]
fn a_server_that_was_never_heard_answers_without_options_and_stays_multipath() {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"]);
    line.send_at(0, 0, Seg::ack());
    // An acknowledgment of data without options would mean that they do not pass.
    assert_eq!(line.sent(), ["a: ack 1", "a: ack 6 dack8 6"]);
    assert_eq!(line.fallback(), None);
    line.write(3);
    assert_eq!(line.sent(), ["a: 1:4 P dack8 6 dsn 1+3"]);
    line.ack(0);
    line.wait(1_000);
    line.send_at(0, 0, Seg::ack());
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"], "options are known to pass");
    assert_eq!(line.fallback(), None);
}
