//! Tests of signaling options, segment by segment: ADD_ADDR and its echo, REMOVE_ADDR, MP_PRIO, MP_FAIL,
//! MP_FASTCLOSE, MP_TCPRST (RFC 8684 sections 3.3.8 and 3.4 to 3.7).

use std::net::IpAddr;

use marline_core::{CloseReason, ConnectionConfig, FallbackReason};
use marline_policy::{AddressId, LocalAddress, PathAction};
use marline_testkit::Seg;
use marline_testkit::timeline::multipath::{Subflows, multipath};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{
    AddAddr, MpFail, MpFastclose, MpPrio, MpTcpRst, MptcpOption, RemoveAddr,
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn local(id: u8, address: &str, signal: bool) -> LocalAddress {
    LocalAddress {
        signal,
        subflow: !signal,
        ..LocalAddress::new(AddressId(id), address.parse().expect("an address"))
    }
}

fn served() -> Subflows {
    let mut line = Subflows::served(multipath());
    line.data(0, b"hello");
    let _ = line.sent();
    let _ = line.read();
    line
}

/// A connection on two subflows.
fn two() -> Subflows {
    let mut line = served();
    line.join(3);
    line
}

fn nothing() -> [&'static str; 0] {
    []
}

#[test]
fn addresses_are_announced_with_the_right_hmac_and_until_the_echo() {
    let cases = [
        ("10.0.0.9:0", "add 5 10.0.0.9"),
        ("10.0.0.9:81", "add 5 10.0.0.9:81"),
        ("[2001:db8::9]:0", "add 5 2001:db8::9"),
        ("[2001:db8::9]:81", "add 5 [2001:db8::9]:81"),
    ];
    for (address, words) in cases {
        let locals = vec![local(5, address, true)];
        let config = ConnectionConfig { local_addresses: locals, ..multipath() };
        let mut line = Subflows::served(config);
        assert_eq!(line.sent(), nothing(), "not before a DSS shows that the peer has the keys");
        line.ack(0);
        let said = line.sent();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("a: ack 1") && said[0].contains(words), "{said:?}");
        line.wait_for_send(10_000).expect("it is repeated");
        let again = line.sent();
        assert!(again[0].contains(words), "{again:?}");
        let address: std::net::SocketAddr = address.parse().expect("an address");
        let port = Some(address.port()).filter(|port| *port != 0);
        let echo = AddAddr { address_id: 5, address: address.ip(), port, hmac: None };
        line.option(0, MptcpOption::AddAddr(echo));
        assert_eq!(line.wait_for_send(60_000), None, "the echo ends it");
    }
}

#[test]
fn an_announced_address_is_echoed_where_it_was_said_and_joined() {
    let cases = [
        (ip("10.0.0.77"), None, "a: ack 1 dack 1 echo 6 10.0.0.77", "10.0.0.77:443"),
        (ip("10.0.0.77"), Some(81), "a: ack 1 dack 1 echo 6 10.0.0.77:81", "10.0.0.77:81"),
        (ip("2001:db8::7"), Some(81), "a: ack 1 echo 6 [2001:db8::7]:81", "[2001:db8::7]:81"),
    ];
    for (address, port, echo, to) in cases {
        let six = address.is_ipv6();
        let own = if six { "[2001:db8::1]:0" } else { "10.0.0.1:0" };
        let locals = vec![local(1, own, false)];
        let config = ConnectionConfig { local_addresses: locals, ..multipath() };
        let mut line = Subflows::called(config);
        line.ack(0);
        let _ = line.sent();
        let add = line.add_addr(6, address, port);
        line.option(0, MptcpOption::AddAddr(add));
        let sent = line.sent();
        assert!(sent.iter().any(|words| words.contains(echo.split(" echo").nth(1).expect("it"))));
        assert!(sent.iter().any(|words| words.contains(" S join ")), "{to}: {sent:?}");
        let joined = line.peers.last().expect("a subflow").path.remote;
        assert_eq!(joined.to_string(), to);
        let again = line.add_addr(6, address, port);
        line.option(0, MptcpOption::AddAddr(again));
        let sent = line.sent();
        assert!(sent.iter().all(|words| !words.contains(" S ")), "no second join: {sent:?}");
        assert!(sent.iter().any(|words| words.contains("echo 6")), "but an echo: {sent:?}");
    }
}

#[test]
fn without_a_port_that_of_the_subflow_that_brought_it_is_meant() {
    let locals = vec![local(1, "10.0.0.1:0", false)];
    let config = ConnectionConfig { local_addresses: locals, ..multipath() };
    let mut line = Subflows::called(config);
    line.ack(0);
    let add = line.add_addr(6, ip("10.0.0.77"), Some(81));
    line.option(0, MptcpOption::AddAddr(add));
    assert!(line.sent().iter().any(|words| words == "b: S join 0"));
    let answer = line.join_syn_ack(1, 6, false);
    line.send(1, answer);
    line.ack(1);
    let _ = line.sent();
    let add = line.add_addr(7, ip("10.0.0.78"), None);
    line.option(1, MptcpOption::AddAddr(add));
    let sent = line.sent();
    assert!(sent.iter().any(|words| words == "c: S join 0"), "{sent:?}");
    assert_eq!(line.peers[2].path.remote.to_string(), "10.0.0.78:81");
}

#[test]
fn an_announcement_without_the_right_hmac_is_as_if_it_had_not_come() {
    let mut line = Subflows::called(multipath());
    line.ack(0);
    let _ = line.sent();
    let right = line.add_addr(6, ip("10.0.0.77"), None);
    let forged = AddAddr { hmac: right.hmac.map(|hmac| hmac ^ 1), ..right };
    let other_port = AddAddr { port: Some(1), ..right };
    let other_id = AddAddr { address_id: 7, ..right };
    let other_address = AddAddr { address: ip("10.0.0.78"), ..right };
    for wrong in [forged, other_port, other_id, other_address] {
        line.option(0, MptcpOption::AddAddr(wrong));
        assert_eq!(line.sent(), nothing(), "{wrong:?}");
    }
}

#[test]
fn a_removed_address_loses_its_subflows_and_unknown_ids_nothing() {
    let mut line = two();
    let remove = |ids: &[u8]| MptcpOption::RemoveAddr(RemoveAddr::new(ids).expect("ids"));
    line.option(0, remove(&[9, 200]));
    assert_eq!(line.sent(), nothing(), "no subflow has this address");
    line.option(0, remove(&[9, 3]));
    assert_eq!(line.sent(), ["b: R 1 reset 0"]);
    line.data(0, b"alive");
    assert_eq!(line.read(), b"alive");
}

#[test]
fn the_subflow_that_says_that_its_address_is_gone_is_there() {
    let mut line = two();
    line.option(1, MptcpOption::RemoveAddr(RemoveAddr::new(&[3]).expect("ids")));
    assert_eq!(line.sent(), nothing());
    line.data(1, b"alive");
    assert_eq!(line.read(), b"alive");
}

#[test]
fn a_lost_address_is_withdrawn_on_a_remaining_subflow() {
    let mut line = served();
    let id = line.id();
    let mut second = local(5, "10.0.0.9:0", true);
    line.script.run(|e, now| e.set_local_address(now, Some(id), second));
    let said = line.sent();
    assert!(said.iter().any(|words| words.contains("add 5 10.0.0.9")), "{said:?}");
    second.up = false;
    line.script.run(|e, now| e.set_local_address(now, Some(id), second));
    let said = line.sent();
    assert!(
        said.iter().all(|words| words.ends_with("dack8 6 remove 5")) && !said.is_empty(),
        "{said:?}"
    );
    line.wait(30_000);
    let later = line.sent();
    assert!(later.iter().all(|words| !words.contains("add 5")), "no announcement: {later:?}");
}

#[test]
fn priority_is_said_once_on_its_subflow_and_obeyed() {
    let mut line = two();
    let id = line.id();
    let subflow = marline_policy::SubflowId(1);
    let set = |line: &mut Subflows, backup| {
        let action = PathAction::SetBackup { id: subflow, backup };
        line.script.run(|e, now| e.path_action(now, id, action));
        line.sent()
    };
    let words = |backup: &str| vec![format!("b: ack 1 dack8 6 {backup}")];
    assert_eq!(set(&mut line, true), words("prio B"));
    assert_eq!(set(&mut line, true), nothing(), "nothing new");
    assert_eq!(set(&mut line, false), words("prio"));

    line.option(0, MptcpOption::Prio(MpPrio { backup: true }));
    line.write(2_000);
    let sent = line.sent();
    assert!(sent.iter().all(|words| words.starts_with("b: ")), "a is a backup: {sent:?}");
    line.ack(1);
    line.option(0, MptcpOption::Prio(MpPrio { backup: false }));
    line.option(1, MptcpOption::Prio(MpPrio { backup: true }));
    line.write(2_000);
    let sent = line.sent();
    assert!(sent.iter().all(|words| words.starts_with("a: ")), "b is a backup: {sent:?}");
}

#[test]
fn mp_fail_on_the_only_subflow_is_answered_by_an_infinite_mapping() {
    let mut line = served();
    line.write(100);
    assert_eq!(line.sent(), ["a: 1:101 P dack8 6 dsn 1+100"]);
    let fail = MpFail { dsn: line.endpoint_dsn(1) };
    line.option(0, MptcpOption::Fail(fail));
    assert_eq!(line.sent(), ["a: ack 6 fail 6"], "the answer");
    assert_eq!(line.fallback(), Some(FallbackReason::PeerFailed));
    line.write(50);
    assert_eq!(line.sent(), ["a: 101:151 P dsn8 1+inf@1"], "one to one from the failed byte");
    line.write(50);
    assert_eq!(line.sent(), ["a: 151:201 P"], "and once");
    line.send(0, Seg::ack().payload(b"plain"));
    assert_eq!(line.read(), b"plain");
}

#[test]
fn mp_fail_of_unsent_data_is_ignored() {
    let mut line = served();
    line.write(100);
    let _ = line.sent();
    for dsn in [line.endpoint_dsn(200), line.endpoint_dsn(0).wrapping_sub(50)] {
        line.option(0, MptcpOption::Fail(MpFail { dsn }));
    }
    assert_eq!(line.fallback(), None);
    line.write(5);
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: 101:106 P dack8 6 dsn 101+5"));
}

#[test]
fn mp_fail_next_to_another_subflow_ends_the_one_it_came_on() {
    let mut line = two();
    line.write(100);
    let sent = line.sent();
    let on = usize::from(sent[0].starts_with("b"));
    let fail = MpFail { dsn: line.endpoint_dsn(1) };
    line.option(on, MptcpOption::Fail(fail));
    let sent = line.sent();
    let [gone, left] = [["a: R 101", "b: 1:101"], ["b: R 101", "a: 1:101"]][on];
    assert!(sent.iter().any(|w| w.starts_with(gone) && w.ends_with("reset 6")), "{sent:?}");
    assert!(sent.iter().any(|w| w.starts_with(left)), "the data is sent on the other: {sent:?}");
    assert_eq!(line.fallback(), None);
}

#[test]
fn a_reset_with_mp_fail_says_from_where_the_data_goes_again() {
    let mut line = two();
    line.option(0, MptcpOption::Prio(MpPrio { backup: true }));
    line.write(300);
    line.ack(1);
    line.write(300);
    assert!(line.sent().iter().all(|words| words.starts_with("b: ")));
    // The peer's subflow has all data, but its connection lacks the last data: a checksum was wrong.
    let (have, failed) = (line.endpoint_dsn(301), line.endpoint_dsn(301));
    line.send(1, Seg::ack().data_ack(have));
    assert_eq!(line.sent(), nothing());
    let why = MptcpOption::TcpRst(MpTcpRst { transient: false, reason: 6 });
    let fail = MptcpOption::Fail(MpFail { dsn: failed });
    line.send(1, Seg::rst().flag(TcpFlags::ACK).mptcp(fail).mptcp(why));
    assert_eq!(line.sent(), ["a: 1:301 P dack8 6 dsn 301+300"], "immediately, and no other data");
}

#[test]
fn fastclose_on_an_ack_or_a_reset_with_our_key_ends_everything() {
    let close = |line: &Subflows| {
        MptcpOption::Fastclose(MpFastclose { receiver_key: line.peers[0].their_key })
    };
    let mut line = two();
    let option = close(&line);
    line.option(1, option);
    let mut sent = line.sent();
    sent.sort();
    assert_eq!(sent, ["a: R 1 reset 0", "b: R 1 reset 0"]);
    assert_eq!(line.closed(), Some(CloseReason::PeerReset));

    let mut line = two();
    let option = close(&line);
    line.send(1, Seg::rst().flag(TcpFlags::ACK).mptcp(option));
    let sent = line.sent();
    assert!(sent.iter().all(|words| words.starts_with("a: R 1")), "{sent:?}");
    assert_eq!(line.closed(), Some(CloseReason::PeerReset));
}

#[test]
fn fastclose_with_another_key_says_nothing() {
    let mut line = two();
    let receiver_key = !line.peers[0].their_key;
    line.option(0, MptcpOption::Fastclose(MpFastclose { receiver_key }));
    assert_eq!((line.sent(), line.closed()), (vec![], None));
    // On a RST only the RST counts, which ends its subflow only.
    let option = MptcpOption::Fastclose(MpFastclose { receiver_key });
    line.send(1, Seg::rst().flag(TcpFlags::ACK).mptcp(option));
    assert_eq!((line.sent(), line.closed()), (vec![], None));
    line.data(0, b"alive");
    assert_eq!(line.read(), b"alive");
}

#[test]
fn a_reset_ends_its_subflow_for_any_reason_code() {
    for reason in [0, 1, 2, 3, 4, 5, 6, 7, 255] {
        for transient in [false, true] {
            let mut line = two();
            let why = MptcpOption::TcpRst(MpTcpRst { transient, reason });
            line.send(1, Seg::rst().flag(TcpFlags::ACK).mptcp(why));
            assert_eq!((line.sent(), line.closed()), (vec![], None), "{reason}");
            line.write(2_000);
            let sent = line.sent();
            assert!(sent.iter().all(|words| words.starts_with("a: ")), "{sent:?}");
        }
    }
}

#[test]
fn a_reset_reason_without_a_reset_is_ignored() {
    let mut line = two();
    line.option(1, MptcpOption::TcpRst(MpTcpRst { transient: false, reason: 3 }));
    line.data(1, b"alive");
    assert_eq!(line.read(), b"alive");
}

#[test]
fn data_of_a_reset_subflow_moves_to_the_other() {
    let mut line = two();
    line.option(0, MptcpOption::Prio(MpPrio { backup: true }));
    line.write(3_000);
    let sent = line.sent();
    assert!(sent.iter().all(|words| words.starts_with("b: ")), "{sent:?}");
    let why = MptcpOption::TcpRst(MpTcpRst { transient: false, reason: 4 });
    line.send(1, Seg::rst().flag(TcpFlags::ACK).mptcp(why));
    let sent = line.sent();
    assert!(sent[0].starts_with("a: 1:") && sent[0].contains(" dsn 1+"), "{sent:?}");
}
