//! Tests of ADD_ADDR, its echo, REMOVE_ADDR and MP_PRIO (RFC 8684 sections 3.3.8 and 3.4).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::two_hosts::{
    MiddleboxAction, Packet, TwoHosts, by_turns, bytes, closed, local_address, read, served,
    served_path, two_paths, two_subflows, write,
};
use marline_core::ConnectionConfig;
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::fixtures::calling;
use marline_testkit::{
    Expect, Peer, Script, Seg, SentSegment, Side, config, endpoint_config, keys,
};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{AddAddr, MpPrio, MptcpOption, RemoveAddr};

/// HMAC of an announcement, from the RFC's text: id, address, port (two octets, zero if none).
fn hmac(own_key: u64, other_key: u64, id: u8, address: IpAddr, port: Option<u16>) -> u64 {
    let mut message = vec![id];
    match address {
        IpAddr::V4(a) => message.extend(a.octets()),
        IpAddr::V6(a) => message.extend(a.octets()),
    }
    message.extend(port.unwrap_or(0).to_be_bytes());
    keys::right64(keys::hmac(own_key, other_key, &message))
}

fn announced(sent: &[SentSegment]) -> Vec<AddAddr> {
    let options = sent.iter().flat_map(|s| s.seg.options.mptcp.iter());
    let add = options.filter_map(|o| match o {
        MptcpOption::AddAddr(add) => Some(add),
        _ => None,
    });
    add.collect()
}

/// A server that announces one more address; returns it with the confirmed connection.
fn announcing(address: &str, port: u16) -> (Script, Peer) {
    let mut accept = config();
    let mut extra = local_address(5, address);
    extra.address.set_port(port);
    extra.signal = true;
    extra.subflow = false;
    accept.local_addresses = vec![local_address(1, "10.9.0.1"), extra];
    let (mut script, mut peer) = served(accept, 7, 1);
    peer.acknowledge(&mut script);
    (script, peer)
}

#[test]
fn announcements_carry_a_right_hmac_and_fit_their_segment() {
    for (address, port) in
        [("10.8.0.1", 0), ("10.8.0.1", 8_443), ("2001:db8::8", 0), ("2001:db8::8", 8_443)]
    {
        let (mut script, peer) = announcing(address, port);
        let sent = script.take_sent();
        let add = announced(&sent);
        assert_eq!(add.len(), 1, "{address} {port}");
        let (address, port) = (address.parse().expect("an address"), Some(port).filter(|p| *p > 0));
        assert_eq!((add[0].address, add[0].port, add[0].address_id), (address, port, 5));
        let right = hmac(peer.their_key, peer.key, 5, address, port);
        assert_eq!(add[0].hmac, Some(right));
        let carrier = sent.iter().find(|s| !announced(std::slice::from_ref(*s)).is_empty());
        let seg = &carrier.expect("just seen").seg;
        assert!(seg.payload.is_empty(), "announcements are sent on separate ACKs");
    }
}

#[test]
fn an_announcement_is_repeated_until_its_echo_or_a_limit() {
    let (mut script, mut peer) = announcing("10.8.0.1", 0);
    let mut times = Vec::new();
    for _ in 0..1_200 {
        let sent = script.take_sent();
        times.extend(
            sent.iter().filter(|s| !announced(std::slice::from_ref(*s)).is_empty()).map(|s| s.at),
        );
        script.advance(Duration::from_millis(500));
    }
    assert!((4..=12).contains(&times.len()), "{} in ten minutes", times.len());
    assert!(times.windows(3).all(|w| w[2] - w[1] >= w[1] - w[0]), "pauses grow: {times:?}");
    drop(script);
    let (mut script, mut again) = announcing("10.8.0.1", 0);
    std::mem::swap(&mut peer, &mut again);
    let add = announced(&script.take_sent())[0];
    let echo = AddAddr { hmac: None, ..add };
    peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(echo)));
    script.advance(Duration::from_secs(60));
    assert!(announced(&script.take_sent()).is_empty(), "repeated after the echo");
}

/// A client with one address, and the scripted server it is connected to.
fn client(config: ConnectionConfig) -> (Script, Peer) {
    let (mut script, mut peer, _) = calling(endpoint_config(None), config);
    peer.acknowledge(&mut script);
    script.take_sent();
    (script, peer)
}

fn add_addr(peer: &Peer, address: &str, port: Option<u16>) -> AddAddr {
    let address = address.parse().expect("an address");
    let hmac = Some(hmac(peer.key, peer.their_key, 3, address, port));
    AddAddr { address_id: 3, address, port, hmac }
}

#[test]
fn an_announced_address_is_echoed_and_joined() {
    for port in [None, Some(8_443)] {
        let (mut script, mut peer) = client(config());
        let add = add_addr(&peer, "10.9.0.2", port);
        peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(add)));
        let sent = script.take_sent();
        assert_eq!(announced(&sent), [AddAddr { hmac: None, ..add }], "the echo");
        let syn = sent.iter().find(|s| s.seg.header.flags.contains(TcpFlags::SYN)).expect("a SYN");
        let to = SocketAddr::new(add.address, port.unwrap_or(443));
        assert_eq!(syn.path.remote, to);
        // Again: another echo, but no other subflow.
        peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(add)));
        let sent = script.take_sent();
        assert_eq!(announced(&sent).len(), 1);
        assert!(!sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::SYN)));
    }
}

/// With an IPv6 address, a port and an HMAC the option fills 30 of 40 bytes: no room for timestamps.
#[test]
fn the_longest_announcement_comes_without_timestamps() {
    let (mut script, mut peer) = client(config());
    assert!(peer.timestamps.is_some());
    let add = add_addr(&peer, "2001:db8::9", Some(8_443));
    peer.timestamps = None;
    peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(add)));
    assert_eq!(announced(&script.take_sent()), [AddAddr { hmac: None, ..add }]);
}

#[test]
fn a_wrong_hmac_is_ignored() {
    let (mut script, mut peer) = client(config());
    let mut add = add_addr(&peer, "10.9.0.2", None);
    add.hmac = add.hmac.map(|h| h ^ 1);
    peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(add)));
    script.advance(Duration::from_secs(1));
    let sent = script.take_sent();
    assert!(announced(&sent).is_empty(), "no echo");
    assert!(!sent.iter().any(|s| s.seg.header.flags.contains(TcpFlags::SYN)), "no join");
    assert_eq!(closed(&mut script), None);
}

fn remove(id: u8) -> MptcpOption {
    let mut ids = [0; 37];
    ids[0] = id;
    MptcpOption::RemoveAddr(RemoveAddr { ids, len: 1 })
}

#[test]
fn a_removed_address_loses_its_subflows_and_their_data() {
    let (mut script, mut first, second) = two_subflows(by_turns(config()));
    write(&mut script, &bytes(8_000, 1));
    let sent = script.take_sent();
    let on_second: usize =
        sent.iter().filter(|s| s.path == second.path).map(|s| s.seg.payload.len()).sum();
    assert!(on_second > 0);
    sent.iter().filter(|s| s.path == served_path(0)).for_each(|s| first.record_received(s));
    first.send(&mut script, Seg::ack().mptcp(remove(9)));
    assert!(script.take_sent().iter().all(|s| s.path != second.path), "an unknown id");
    first.send(&mut script, Seg::ack().data_ack(first.expected_dsn).mptcp(remove(2)));
    let sent = script.take_sent();
    let rst =
        |s: &&SentSegment| s.path == second.path && s.seg.header.flags.contains(TcpFlags::RST);
    assert_eq!(sent.iter().filter(rst).count(), 1, "RFC 8684 section 3.4.2: SHOULD send RST");
    let again: usize =
        sent.iter().filter(|s| s.path == first.path).map(|s| s.seg.payload.len()).sum();
    assert_eq!(again, on_second, "its data is sent on the other subflow immediately");
    let id = script.endpoint.connections()[0];
    assert_eq!(script.endpoint.info(id).expect("a connection").subflows.len(), 1);
}

/// Our own address goes away: REMOVE_ADDR is sent to the peer on a remaining subflow.
#[test]
fn an_address_that_goes_away_is_withdrawn() {
    let pass = |_: &mut Packet<'_>| MiddleboxAction::Pass;
    let mut hosts = TwoHosts::new(by_turns(two_paths(config())), config(), pass, 1);
    hosts.run_ms(300);
    hosts.write(Side::A, &bytes(1_000_000, 1));
    hosts.run_ms(100);
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    let gone = LocalAddress { up: false, ..local_address(2, "10.1.0.1") };
    hosts.pair.endpoint(Side::A).set_local_address(now, Some(id), gone);
    hosts.run_ms(200);
    assert!(hosts.count(|c| c.rm_addr_rx) > 0);
    assert_eq!(hosts.info(Side::B).subflows.len(), 1);
    hosts.run_ms(10_000);
    assert!(hosts.ends[1].received == bytes(1_000_000, 1));
    hosts.exchange_and_close(Side::B, &bytes(1_000, 3), &bytes(1_000, 4));
}

#[test]
fn priority_is_obeyed_in_both_directions() {
    let (mut script, mut first, mut second) = two_subflows(by_turns(config()));
    let prio = |backup| Seg::ack().mptcp(MptcpOption::Prio(MpPrio { backup }));
    for backup in [true, false] {
        second.send(&mut script, prio(backup));
        write(&mut script, &bytes(12_000, 1));
        let mut on_second = 0;
        for _ in 0..20 {
            for sent in script.take_sent() {
                let peer = if sent.path == first.path { &mut first } else { &mut second };
                on_second += usize::from(sent.path == served_path(1)) * sent.seg.payload.len();
                peer.record_received(&sent);
            }
            let newest = first.expected_dsn.max(second.expected_dsn);
            // Both acknowledge all data received on either subflow.
            (first.expected_dsn, second.expected_dsn) = (newest, newest);
            first.acknowledge(&mut script);
            second.acknowledge(&mut script);
            script.advance(Duration::from_millis(10));
        }
        assert_eq!(on_second == 0, backup, "{on_second} bytes on the second");
    }
    let id = script.endpoint.connections()[0];
    script.take_sent();
    script.run(|e, now| e.set_backup(now, id, AddressId(0), true));
    let said = script.take_sent();
    let says = Expect::any()
        .mptcp("MP_PRIO with B", |o| matches!(o, MptcpOption::Prio(MpPrio { backup: true })));
    assert!(said.iter().any(|s| says.missing(&s.seg).is_none()), "{said:?}");
    first.send_data(&mut script, b"still read");
    assert_eq!(read(&mut script), b"still read");
}
