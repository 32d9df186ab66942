//! Tests of Multipath TCP, segment by segment, for faults found by third-party scripts and for
//! choices that the RFC leaves open.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use marline_core::ConnectionConfig;
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::fixtures::{calling, path, serve, served};
use marline_testkit::{Peer, Script, Seg, SentSegment, config, endpoint_config, keys};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{AddAddr, MpCapable, MpCapableForm, MpFastclose, MptcpOption, WireDsn};

fn options(sent: &[SentSegment]) -> Vec<MptcpOption> {
    sent.iter().flat_map(|sent| sent.seg.options.mptcp.iter().collect::<Vec<_>>()).collect()
}

fn is(sent: &SentSegment, flags: TcpFlags) -> bool {
    sent.seg.header.flags.contains(flags)
}

#[test]
fn a_peer_that_closes_its_half_early_does_not_close_ours() {
    let (mut script, mut peer, id) = served(endpoint_config(Some(config())), 1);
    let fin = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.next_dsn += 1;
    peer.send(&mut script, fin);
    peer.receive_all(&mut script);
    // Its subflow's FIN immediately, although it still waits for our answer.
    let early = Seg::fin().data_ack(peer.expected_dsn);
    peer.send(&mut script, early);
    let sent = peer.receive_all(&mut script);
    assert!(sent.iter().all(|sent| !is(sent, TcpFlags::FIN)), "our half is still open");
    script.run(|e, now| e.write(now, id, b"the answer")).expect("room");
    let sent = peer.receive_all(&mut script);
    assert_eq!(sent.last().map(|sent| sent.seg.payload.as_slice()), Some(&b"the answer"[..]));
    peer.acknowledge(&mut script);
    script.run(|e, now| e.shutdown(now, id));
    let sent = peer.receive_all(&mut script);
    assert!(sent.iter().any(|sent| sent.seg.dss().data_fin));
    peer.acknowledge(&mut script);
    let sent = peer.receive_all(&mut script);
    assert!(sent.iter().any(|sent| is(sent, TcpFlags::FIN)), "both sides are done: {sent:?}");
}

#[test]
fn a_mapping_of_nothing_on_a_bare_ack_says_nothing() {
    let (mut script, mut peer, id) = served(endpoint_config(Some(config())), 1);
    let nothing = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 1, 0);
    peer.send(&mut script, nothing);
    script.run(|e, now| e.write(now, id, b"still mapped")).expect("room");
    let sent = peer.receive_all(&mut script);
    assert!(sent.last().is_some_and(|sent| sent.seg.dss().mapping.is_some()), "{sent:?}");
    assert_eq!(script.endpoint.info(id).and_then(|info| info.fallback), None);
}

#[test]
fn keys_of_another_version_in_the_third_ack_are_ignored() {
    for (version, extensibility, hash) in [(0, false, true), (1, true, true), (1, false, false)] {
        let mut script = Script::new(endpoint_config(Some(config())), 1);
        let mut peer = Peer::new(path(0, 2, 40_000), 7);
        peer.timestamps = Some((1, 0));
        let syn = peer.capable_syn();
        peer.send(&mut script, syn);
        let answer = peer.receive_all(&mut script);
        let Some(MpCapableForm::SynAck { listener_key }) =
            answer[0].seg.options.mptcp.capable().map(|capable| capable.form)
        else {
            panic!("no key: {answer:?}");
        };
        script.advance(Duration::from_millis(10));
        let form = MpCapableForm::Ack { initiator_key: peer.key, listener_key, data: None };
        peer.send(
            &mut script,
            Seg::ack().mptcp(MptcpOption::Capable(MpCapable {
                version,
                checksum_required: false,
                extensibility,
                deny_join_id0: false,
                hmac_sha256: hash,
                form,
            })),
        );
        let id = script.take_incoming().expect("a connection nevertheless");
        script.run(|e, now| e.write(now, id, b"plain")).expect("room");
        let sent = script.take_sent();
        let last = sent.last().expect("the data");
        assert!(!last.seg.options.has_mptcp(), "version {version}: {last:?}");
    }
}

#[test]
fn an_announcement_proves_that_the_peer_has_both_keys() {
    let (mut script, mut peer, id) = calling(endpoint_config(None), config());
    script.run(|e, now| e.write(now, id, b"hi")).expect("room");
    peer.receive_all(&mut script);
    let address: IpAddr = "10.9.0.2".parse().expect("an address");
    let IpAddr::V4(v4) = address else { unreachable!("it is one of IPv4") };
    let message = [&[3][..], &v4.octets(), &[0, 0]].concat();
    let hmac = Some(keys::right64(keys::hmac(peer.key, peer.their_key, &message)));
    let add = AddAddr { address_id: 3, address, port: None, hmac };
    // No DSS came yet: this is the first sign of Multipath TCP after the handshake.
    peer.send(&mut script, Seg::ack().mptcp(MptcpOption::AddAddr(add)));
    let sent = script.take_sent();
    let joins = sent.iter().filter(|sent| is(sent, TcpFlags::SYN));
    let to: Vec<SocketAddr> = joins.map(|sent| sent.path.remote).collect();
    assert_eq!(to, [SocketAddr::new(address, 443)], "joined immediately");
    let keys_again = |option: &MptcpOption| matches!(option, MptcpOption::Capable(_));
    assert!(!options(&sent).iter().any(keys_again), "the keys need not be sent again");
}

#[test]
fn resets_that_answer_a_fastclose_say_why() {
    let (mut script, mut peer, _) = served(endpoint_config(Some(config())), 1);
    let receiver_key = peer.their_key;
    let close = MptcpOption::Fastclose(MpFastclose { receiver_key });
    peer.send(&mut script, Seg::ack().mptcp(close));
    let sent = script.take_sent();
    let reset = sent.iter().find(|sent| is(sent, TcpFlags::RST)).expect("a RST");
    let reasons: Vec<MptcpOption> = reset.seg.options.mptcp.iter().collect();
    assert!(
        matches!(reasons[..], [MptcpOption::TcpRst(why)] if why.reason == 0 && !why.transient),
        "{reasons:?}"
    );
    // Later segments are answered as if the connection were unknown.
    peer.send_data(&mut script, b"late");
    let sent = script.take_sent();
    let seg = &sent[0].seg;
    assert_eq!((seg.header.flags, seg.header.seq), (TcpFlags::RST, peer.expected));
}

#[test]
fn a_server_answers_the_third_ack() {
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    peer.connect(&mut script);
    assert_eq!(peer.receive_all(&mut script).len(), 1);
}

#[test]
fn numbers_are_short_at_first() {
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    let id = serve(&mut script, &mut peer);
    script.run(|e, now| e.write(now, id, b"data")).expect("room");
    let sent = peer.receive_all(&mut script);
    let dss = sent.last().expect("data").seg.dss();
    let dsn = dss.mapping.expect("a mapping").dsn;
    assert!(matches!(dsn, WireDsn::Short(_)), "{dsn:?}");
}

fn announcing(config: ConnectionConfig) -> ConnectionConfig {
    let extra = LocalAddress {
        signal: true,
        subflow: false,
        ..LocalAddress::new(AddressId(5), "10.0.0.9:0".parse().expect("an address"))
    };
    ConnectionConfig { local_addresses: vec![extra], ..config }
}

#[test]
fn addresses_are_announced_after_the_first_dss() {
    let mut script = Script::new(endpoint_config(Some(announcing(config()))), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    peer.connect(&mut script);
    let announces = |sent: &&SentSegment| {
        sent.seg.options.mptcp.iter().any(|option| matches!(option, MptcpOption::AddAddr(_)))
    };
    assert!(!peer.receive_all(&mut script).iter().any(|sent| announces(&sent)));
    peer.send_data(&mut script, b"data");
    let sent = peer.receive_all(&mut script);
    assert_eq!(sent.iter().filter(announces).count(), 1, "and once");
}

#[test]
fn only_the_echo_of_an_announcement_ends_its_repetition() {
    let mut script = Script::new(endpoint_config(Some(announcing(config()))), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    let _ = serve(&mut script, &mut peer);
    let mut announcements = |script: &mut Script, echo: Option<AddAddr>| {
        if let Some(echo) = echo {
            peer.send(script, Seg::ack().mptcp(MptcpOption::AddAddr(echo)));
        }
        script.advance(Duration::from_secs(20));
        let found =
            options(&peer.receive_all(script)).into_iter().find_map(|option| match option {
                MptcpOption::AddAddr(add) => Some(add),
                _ => None,
            });
        found.map(|add| AddAddr { hmac: None, ..add })
    };
    let right = announcements(&mut script, None).expect("it is repeated");
    let wrong_address = AddAddr { address: "1.2.3.4".parse().expect("an address"), ..right };
    let wrong_id = AddAddr { address_id: 90, ..right };
    for wrong in [wrong_address, wrong_id] {
        assert_eq!(announcements(&mut script, Some(wrong)), Some(right), "{wrong:?}");
    }
    assert_eq!(announcements(&mut script, Some(right)), None);
}

#[test]
fn an_unanswered_data_fin_is_probed_and_backs_off() {
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    let id = serve(&mut script, &mut peer);
    script.run(|e, now| e.shutdown(now, id));
    let mut times = Vec::new();
    while times.len() < 5 {
        let fins = script.take_sent().into_iter().filter(|sent| sent.seg.dss().data_fin);
        times.extend(fins.map(|sent| sent.at));
        assert!(script.advance_to_send(Duration::from_secs(60)), "{times:?}");
    }
    let gaps: Vec<u128> = times.windows(2).map(|pair| pair[1].since(pair[0]).as_millis()).collect();
    assert!(gaps[0] < gaps[1] / 3, "{gaps:?}");
    let ratio = |n: usize| (gaps[n + 1] as f64 / gaps[n] as f64).round() as u32;
    assert_eq!([ratio(1), ratio(2)], [2, 2], "{gaps:?}");
}

#[test]
fn segments_that_lost_their_timestamps_are_dropped() {
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 7);
    let id = serve(&mut script, &mut peer);
    peer.timestamps = None;
    peer.send_data(&mut script, b"hello");
    assert_eq!(script.read_all(id).len(), 0);
}
