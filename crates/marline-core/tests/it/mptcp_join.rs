//! Tests of MP_JOIN in both roles: loss, errors and refusals (RFC 8684 section 3.2).

use std::time::Duration;

use crate::two_hosts::{
    MiddleboxAction, Packet, TwoHosts, by_turns, bytes, closed, local_address, read, reset_reason,
    served, served_path, two_paths, write,
};
use marline_core::{ConnectionConfig, FourTuple, MonitorKind, NetworkError};
use marline_policy::{AddressId, LocalAddress, PathAction};
use marline_testkit::{Expect, Peer, Script, Seg, Side, config, endpoint_config, keys};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{MpJoin, MptcpOption};

const SIZE: usize = 300_000;
const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0);

fn is(seg: &Seg, flags: TcpFlags) -> bool {
    seg.header.flags.contains(flags)
}

/// Selects a segment.
type Which = fn(&Packet<'_>) -> bool;

/// Loses the first segment for which `which` holds.
fn loses_first(which: Which) -> impl FnMut(&mut Packet<'_>) -> MiddleboxAction {
    let mut lost = false;
    move |p| {
        if !lost && which(p) {
            lost = true;
            return MiddleboxAction::Drop;
        }
        MiddleboxAction::Pass
    }
}

fn third_ack(p: &Packet<'_>) -> bool {
    matches!(p.seg.options.mptcp.join(), Some(MpJoin::Ack { .. }))
}

#[test]
fn any_segment_of_the_handshake_may_be_lost() {
    let cases: [(&str, Which); 5] = [
        ("nothing", |_| false),
        ("SYN", |p| p.path == 1 && is(p.seg, TcpFlags::SYN) && p.to == Side::B),
        ("SYN/ACK", |p| p.path == 1 && is(p.seg, SYN_ACK)),
        ("third ACK", third_ack),
        ("fourth ACK", |p| p.path == 1 && p.to == Side::A && !is(p.seg, TcpFlags::SYN)),
    ];
    for (name, which) in cases {
        let mut hosts = TwoHosts::new(two_paths(config()), config(), loses_first(which), 1);
        hosts.run_ms(5_000);
        for side in [Side::A, Side::B] {
            let info = hosts.info(side);
            assert_eq!(info.subflows.len(), 2, "{name} lost: {side:?}");
        }
        assert_eq!(hosts.count(|c| c.mp_join_bad_hmac + c.mp_join_rejected), 0, "{name}");
        hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
    }
}

fn client_path(n: u8) -> FourTuple {
    FourTuple {
        local: format!("10.{n}.0.1:0").parse().expect("an address"),
        remote: "10.9.0.1:443".parse().expect("an address"),
    }
}

/// An endpoint that opened a connection from the first of these addresses, and the scripted server.
fn client(config: ConnectionConfig) -> (Script, Peer) {
    let mut script = Script::new(endpoint_config(None), 1);
    let path = client_path(0);
    script.connect(config, path.local, path.remote);
    let mut peer = Peer::new(path, 7);
    peer.accept(&mut script);
    peer.acknowledge(&mut script);
    (script, peer)
}

/// Takes the SYN of a join from the script: its content, and a peer for its subflow.
#[track_caller]
fn take_join(script: &mut Script, first: &Peer) -> (MpJoin, Peer) {
    let sent = script.expect(&Expect::any().flags(TcpFlags::SYN));
    let join = sent.seg.options.mptcp.join().expect("MP_JOIN");
    let mut peer = Peer { timestamps: Some((1, 0)), ..Peer::new(sent.path, 7) };
    (peer.their_key, peer.next_dsn, peer.expected_dsn) =
        (first.their_key, first.next_dsn, first.expected_dsn);
    peer.record_received(&sent);
    (join, peer)
}

fn syn_ack(first: &Peer, join: MpJoin, spoil: u64, backup: bool) -> Seg {
    let MpJoin::Syn { nonce, .. } = join else { panic!("not a SYN's: {join:?}") };
    let ours = 0x55aa_55aa;
    let hmac = keys::left64(keys::join_hmac(7, first.their_key, ours, nonce)) ^ spoil;
    let answer = MpJoin::SynAck { backup, address_id: 0, hmac, nonce: ours };
    let seg = Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7);
    seg.mptcp(MptcpOption::Join(answer))
}

#[test]
fn a_join_that_we_open() {
    let (mut script, mut first) = client(two_paths(config()));
    let (join, mut second) = take_join(&mut script, &first);
    let MpJoin::Syn { backup, address_id, token, nonce } = join else { panic!("{join:?}") };
    assert_eq!((backup, address_id, token), (false, 2, keys::token(7)));
    assert_eq!(second.path.local.ip(), client_path(1).local.ip());
    let answer = syn_ack(&first, join, 0, false);
    second.send(&mut script, answer);
    let third = script.take_sent().pop().expect("the third ACK");
    let right = keys::join_hmac(first.their_key, 7, nonce, 0x55aa_55aa);
    let Some(MpJoin::Ack { hmac }) = third.seg.options.mptcp.join() else {
        panic!("no HMAC: {:?}", third.seg);
    };
    assert_eq!(hmac[..], right[..20]);
    // Before the fourth ACK no data is sent there, and the third is repeated, within limits.
    write(&mut script, &bytes(20_000, 1));
    let mut repeats = 0;
    for _ in 0..100 {
        for sent in script.take_sent() {
            if sent.path == second.path {
                assert!(sent.seg.payload.is_empty(), "data in PRE_ESTABLISHED");
                repeats += u32::from(third_ack_of(&sent.seg));
            } else {
                first.record_received(&sent);
            }
        }
        first.acknowledge(&mut script);
        script.advance(Duration::from_millis(20));
    }
    assert!((1..=5).contains(&repeats), "{repeats} repeats in 2 s");
    script.take_sent();
    second.expected_dsn = first.expected_dsn;
    second.acknowledge(&mut script);
    let id = script.endpoint.connections()[0];
    let info = script.endpoint.info(id).expect("a connection");
    assert_eq!(info.subflows.len(), 2);
    second.send_data(&mut script, b"by the second");
    assert_eq!(read(&mut script), b"by the second");
}

/// A path manager may cancel a join before it is answered.
#[test]
fn a_join_closed_before_its_answer_leaves_nothing_behind() {
    let (mut script, first) = client(two_paths(config()));
    let (join, mut second) = take_join(&mut script, &first);
    let id = script.endpoint.connections()[0];
    let info = |script: &Script| script.endpoint.info(id).expect("a connection");
    let joined = info(&script).subflows[1].id;
    script.run(|e, now| e.path_action(now, id, PathAction::CloseSubflow(joined)));
    assert_eq!(info(&script).subflows.len(), 1);
    let answer = syn_ack(&first, join, 0, false);
    second.send(&mut script, answer);
    let sent = script.take_sent();
    assert!(sent.iter().any(|sent| sent.seg.header.flags.contains(TcpFlags::RST)), "{sent:#?}");
}

fn third_ack_of(seg: &Seg) -> bool {
    matches!(seg.options.mptcp.join(), Some(MpJoin::Ack { .. }))
}

/// RFC 8684 section 3.2: a wrong or missing HMAC in the SYN/ACK ends the subflow by a RST with a reason, but not
/// the connection.
#[test]
fn a_syn_ack_without_proof() {
    for stripped in [false, true] {
        let (mut script, mut first) = client(two_paths(config()));
        let (join, mut second) = take_join(&mut script, &first);
        let mut answer = syn_ack(&first, join, 1, false);
        if stripped {
            answer.options.mptcp = Default::default();
        }
        second.send(&mut script, answer);
        let sent = script.take_sent();
        let rst = sent.iter().find(|s| s.path == second.path).expect("a RST");
        assert!(is(&rst.seg, TcpFlags::RST), "{:?}", rst.seg);
        assert!(matches!(reset_reason(&rst.seg), Some(1 | 6)), "{:?}", rst.seg);
        assert_eq!(closed(&mut script), None);
        first.send_data(&mut script, b"goes on");
        assert_eq!(read(&mut script), b"goes on");
    }
}

/// A wrong or missing HMAC in the third ACK of a join that we answer.
#[test]
fn a_third_ack_without_proof() {
    for stripped in [false, true] {
        let (mut script, mut first) = served(config(), 7, 1);
        let mut second = Peer::new(served_path(1), 0);
        second.timestamps = Some((1, 0));
        let syn = second.join_syn(&first, 5, 2);
        second.send(&mut script, syn);
        let answer = script.take_sent().pop().expect("a SYN/ACK");
        second.record_received(&answer);
        let wrong = MptcpOption::Join(MpJoin::Ack { hmac: [9; 20] });
        let ack = if stripped { Seg::ack() } else { Seg::ack().mptcp(wrong) };
        second.send(&mut script, ack);
        let rst = script.take_sent().pop().expect("a RST");
        assert!(is(&rst.seg, TcpFlags::RST) && rst.path == second.path, "{:?}", rst.seg);
        assert_eq!(reset_reason(&rst.seg), Some(if stripped { 6 } else { 1 }));
        first.send_data(&mut script, b"goes on");
        assert_eq!(read(&mut script), b"goes on");
    }
}

/// Data that overtakes the third ACK has no effect.
#[test]
fn data_overtakes_the_third_ack() {
    let (mut script, first) = served(config(), 7, 1);
    let mut second = Peer::new(served_path(1), 0);
    let mut early = second.clone();
    second.join(&mut script, &first, 2);
    // The same handshake with another peer, whose data comes first.
    script.take_sent();
    early.path = served_path(2);
    early.timestamps = Some((1, 0));
    let syn = early.join_syn(&first, 5, 3);
    early.send(&mut script, syn);
    let answer = script.take_sent().pop().expect("a SYN/ACK");
    early.record_received(&answer);
    let Some(MpJoin::SynAck { nonce, .. }) = answer.seg.options.mptcp.join() else {
        panic!("{:?}", answer.seg);
    };
    let (at, data) = (early.next, b"overtakes");
    let seg = Seg::ack().mapping(first.next_dsn, 1, 9).payload(data);
    early.send(&mut script, seg.clone());
    script.expect_nothing();
    early.next = at;
    let mut hmac = [0; 20];
    hmac.copy_from_slice(&keys::join_hmac(7, first.their_key, 5, nonce)[..20]);
    early.send(&mut script, Seg::ack().mptcp(MptcpOption::Join(MpJoin::Ack { hmac })));
    early.send(&mut script, seg);
    assert_eq!(read(&mut script), data);
}

#[test]
fn joins_with_unknown_tokens_or_over_the_limit_are_refused() {
    let (mut script, first) = served(config(), 7, 1);
    let mut stranger = Peer::new(served_path(1), 0);
    let other = Peer { their_key: first.their_key ^ 1, ..first.clone() };
    let syn = stranger.join_syn(&other, 5, 2);
    stranger.send(&mut script, syn);
    let rst = script.take_sent().pop().expect("a RST");
    assert!(is(&rst.seg, TcpFlags::RST));
    assert_eq!(reset_reason(&rst.seg), Some(1));
    let limit = endpoint_config(None).limits.subflows as u8;
    for n in 1..=limit {
        let mut peer = Peer::new(served_path(n), 0);
        if n < limit {
            peer.join(&mut script, &first, n);
            script.take_sent();
            continue;
        }
        let syn = peer.join_syn(&first, 5, n);
        peer.send(&mut script, syn);
        let rst = script.take_sent().pop().expect("a RST");
        assert!(is(&rst.seg, TcpFlags::RST), "subflow {n} of {limit}");
        assert!(matches!(reset_reason(&rst.seg), Some(1 | 3)));
    }
    let id = script.endpoint.connections()[0];
    let info = script.endpoint.info(id).expect("a connection");
    assert_eq!(info.subflows.len(), usize::from(limit));
}

/// Flag C of the peer: no join to the address of the initial subflow.
#[test]
fn no_join_to_an_address_that_forbids_it() {
    let server = ConnectionConfig { deny_join_id0: true, ..config() };
    let pass = |_: &mut Packet<'_>| MiddleboxAction::Pass;
    let mut hosts = TwoHosts::new(two_paths(config()), server, pass, 1);
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
    assert_eq!(hosts.count(|c| c.mp_join_syn_tx), 0);
}

/// Flag C with an announced alternative address, as sent by a server behind a load balancer.
#[test]
fn joins_go_where_a_member_of_a_fleet_is_itself_reached() {
    // Its own address differs from the dialed one, or equals it.
    for own in ["10.0.9.9:8443", "10.9.0.1:443"] {
        let own = own.parse().expect("an address");
        let mut server = ConnectionConfig { deny_join_id0: true, ..config() };
        server.advertised = vec![(AddressId(1), own)];
        let unknown = LocalAddress { subflow: false, signal: true, ..local_address(1, "0.0.0.0") };
        server.local_addresses = vec![unknown];
        let pass = |_: &mut Packet<'_>| MiddleboxAction::Pass;
        let mut hosts = TwoHosts::new(two_paths(config()), server, pass, 1);
        hosts.write(Side::A, b"hello");
        hosts.run_ms(2_000);
        assert_eq!(hosts.count(|c| c.add_addr_tx), 1, "{own}");
        let ends: Vec<_> = hosts
            .info(Side::A)
            .subflows
            .iter()
            .map(|s| (s.path.local.ip(), s.path.remote))
            .collect();
        let from = ["10.0.0.1", "10.1.0.1"].map(|from| from.parse().expect("an address"));
        assert_eq!(ends.len(), 2, "{ends:?}");
        assert!(from.iter().all(|from| ends.contains(&(*from, own))), "{ends:?}");
        hosts.exchange_and_close(Side::A, &bytes(SIZE, 1), &bytes(SIZE, 2));
    }
}

/// Flag B: the subflow carries data only when nothing else can, in both directions.
#[test]
fn a_backup_subflow() {
    let mut client = two_paths(config());
    client.local_addresses[1].backup = true;
    let mut broken = false;
    let middlebox = move |p: &mut Packet<'_>| {
        // The first path breaks with this message.
        broken |= p.seg.payload == b"break";
        if broken && p.path == 0 { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    };
    let mut hosts = TwoHosts::new(client, config(), middlebox, 1);
    hosts.run_ms(500);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.write(Side::B, &bytes(SIZE, 2));
    hosts.run_ms(10_000);
    let info = hosts.info(Side::B);
    let used: Vec<_> = info.subflows.iter().map(|s| (s.backup, s.bytes_sent > 0)).collect();
    assert_eq!(used, [(false, true), (true, false)], "the server");
    let used = hosts.info(Side::A).subflows.iter().map(|s| s.bytes_sent).collect::<Vec<_>>();
    assert_eq!(used[1], 0, "the client");
    hosts.write(Side::A, b"break");
    hosts.run_ms(3_000);
    for end in &mut hosts.ends {
        end.received.clear();
    }
    hosts.exchange_and_close(Side::A, &bytes(SIZE, 3), &bytes(SIZE, 4));
}

/// Break before make: all subflows are gone, both addresses are new, the stream goes on.
#[test]
fn a_join_after_everything_is_gone() {
    let mut client = config();
    client.local_addresses = vec![local_address(1, "10.0.0.1")];
    let pass = |_: &mut Packet<'_>| MiddleboxAction::Pass;
    let mut hosts = TwoHosts::new(client, config(), pass, 1);
    hosts.write(Side::A, &bytes(SIZE, 1));
    hosts.run_ms(60);
    let (now, id) = (hosts.pair.now(), hosts.id(Side::A));
    let gone = LocalAddress { up: false, ..local_address(1, "10.0.0.1") };
    hosts.pair.endpoint(Side::A).set_local_address(now, Some(id), gone);
    hosts.run_ms(5_000);
    assert!(hosts.ends[1].received.len() < SIZE, "the break came too late");
    assert!(hosts.info(Side::A).subflows.is_empty());
    let now = hosts.pair.now();
    let new = local_address(2, "10.1.0.1");
    hosts.pair.endpoint(Side::A).set_local_address(now, Some(id), new);
    hosts.run_ms(5_000);
    assert!(hosts.ends[1].received == bytes(SIZE, 1));
    hosts.exchange_and_close(Side::B, &bytes(SIZE, 3), &bytes(SIZE, 4));
}

/// A router's report, or a single failed send, is a suspicion like any other: a segment received on the subflow
/// revokes it, although no timer of its own fired.
#[test]
fn an_unreachable_path_that_is_heard_is_trusted_again() {
    let mut hosts =
        TwoHosts::new(two_paths(config()), by_turns(config()), |_| MiddleboxAction::Pass, 3);
    hosts.run_ms(500);
    let subflow = &hosts.info(Side::A).subflows[1];
    let (id, path) = (subflow.id, subflow.path);
    let now = hosts.pair.now();
    let error = NetworkError::Unreachable;
    hosts.pair.endpoint(Side::A).send_failed(now, &path, 0, error);
    hosts.write(Side::B, &bytes(SIZE, 1));
    hosts.run_ms(3_000);
    let told: Vec<bool> = hosts
        .end(Side::A)
        .monitor
        .iter()
        .filter_map(|kind| match kind {
            MonitorKind::SubflowReachability { id: of, reachable } if *of == id => {
                Some(!*reachable)
            }
            _ => None,
        })
        .collect();
    assert_eq!(told, [true, false]);
    assert!(hosts.info(Side::A).subflows[1].health.is_usable());
}
