//! Fuzz-like tests: random and mutated segments into every state of a subflow. There is no panic, busy loop,
//! unparsable output (the script checks each segment) or unbounded growth; and after silence every remaining
//! subflow ends or becomes idle.

use std::time::Duration;

use marline_core::{ConnectionConfig, ConnectionId, EndpointConfig, SubflowState};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::fixtures::{flow_capabilities, listening, path, serve, served};
use marline_testkit::{Peer, Script, Seg, config, endpoint_config};
use marline_time::{Rng, SeedTree};
use marline_wire::mptcp::{
    AddAddr, DataAck, Dss, MpFail, MpFastclose, MpJoin, MpPrio, MpTcpRst, MptcpOption, RemoveAddr,
    WireDsn, WireMapping,
};
use marline_wire::{SackBlock, TcpFlags, Timestamps};

/// Memory limit of one connection: the largest buffers of both directions, and the same amount again on each of
/// eight subflows.
const BOUND: u64 = 9 * (8 << 20) + (8 << 20);
/// Segments into each state, unless `MARLINE_HOSTILE_RUNS` asks for more.
const SEGMENTS: u64 = 2_000;

/// A state: the script in it, the peer, and the endpoint's connection.
type Setup = (Script, Peer, Option<ConnectionId>);
/// Brings a script into a state, with a seed.
type Opening = fn(u64) -> Setup;

fn with_ids(mut config: EndpointConfig) -> EndpointConfig {
    config.capabilities = flow_capabilities();
    config
}

fn accepting(change: impl FnOnce(&mut ConnectionConfig)) -> EndpointConfig {
    let mut accept = config();
    change(&mut accept);
    endpoint_config(Some(accept))
}

fn listen(seed: u64) -> Setup {
    let peer = Peer::new(path(0, 2, 40_000), 0x1111_2222_3333_4444);
    (Script::new(listening(), seed), peer, None)
}

fn syn_sent(seed: u64) -> Setup {
    let mut script = Script::new(endpoint_config(None), seed);
    let ends = path(0, 2, 443);
    let id = script.connect(two_addresses(), ends.local, ends.remote);
    let mut peer = Peer::new(ends, 0x9999);
    peer.take_syn(&mut script);
    (script, peer, Some(id))
}

fn two_addresses() -> ConnectionConfig {
    let mut config = config();
    let local = [0u8, 1].map(|net| LocalAddress {
        signal: net == 1,
        ..LocalAddress::new(AddressId(net), ([10, net, 0, 1], 0).into())
    });
    config.local_addresses = local.to_vec();
    config
}

fn syn_received(seed: u64) -> Setup {
    let (mut script, mut peer, _) = listen(seed);
    let syn = peer.capable_syn();
    peer.send(&mut script, syn);
    peer.receive_all(&mut script);
    (script, peer, None)
}

fn client_established(seed: u64) -> Setup {
    let mut script = Script::new(endpoint_config(None), seed);
    let ends = path(0, 2, 443);
    let id = script.connect(two_addresses(), ends.local, ends.remote);
    let mut peer = Peer::new(ends, 0x9999);
    peer.accept(&mut script);
    (script, peer, Some(id))
}

/// The client's own join is in progress.
fn client_joining(seed: u64) -> Setup {
    let (mut script, mut first, id) = client_established(seed);
    first.send_data(&mut script, b"hello");
    script.advance(Duration::from_millis(100));
    let sent = script.take_sent();
    let syn = sent.iter().find(|s| s.path != first.path).expect("a join");
    let mut second = Peer::new(syn.path, first.key);
    second.their_key = first.their_key;
    second.timestamps = Some((1, 0));
    second.record_received(syn);
    (script, second, id)
}

fn established(seed: u64) -> Setup {
    let (script, peer, id) = served(listening(), seed);
    (script, peer, Some(id))
}

fn established_with_ids(seed: u64) -> Setup {
    let (script, peer, id) = served(with_ids(listening()), seed);
    (script, peer, Some(id))
}

fn unacknowledged_data(seed: u64) -> Setup {
    let (mut script, peer, id) = served(listening(), seed);
    script.run(|e, now| e.write(now, id, &[3; 50_000]).expect("room"));
    (script, peer, Some(id))
}

fn with_checksums(seed: u64) -> Setup {
    let mut script = Script::new(accepting(|c| c.dss_checksum = true), seed);
    let mut peer = Peer::new(path(0, 2, 40_000), 0x1111_2222_3333_4444);
    peer.connect(&mut script);
    let id = script.take_incoming();
    peer.receive_all(&mut script);
    (script, peer, id)
}

fn plain(seed: u64) -> Setup {
    let (mut script, mut peer, _) = listen(seed);
    let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
    peer.send(&mut script, syn);
    peer.receive_all(&mut script);
    peer.send(&mut script, Seg::ack());
    let id = script.take_incoming().expect("a connection");
    script.run(|e, now| e.write(now, id, &[3; 5_000]).expect("room"));
    (script, peer, Some(id))
}

fn join_pending(seed: u64) -> Setup {
    let (mut script, first, id) = served(listening(), seed);
    let mut second = Peer::new(path(1, 2, 40_000), first.key);
    second.timestamps = Some((1, 0));
    let syn = second.join_syn(&first, 7, 1);
    second.send(&mut script, syn);
    second.receive_all(&mut script);
    second.their_key = first.their_key;
    (script, second, Some(id))
}

fn joined(seed: u64) -> Setup {
    let (mut script, first, id) = served(listening(), seed);
    let mut second = Peer::new(path(1, 2, 40_000), 0);
    second.join(&mut script, &first, 1);
    second.receive_all(&mut script);
    (script, second, Some(id))
}

/// Our DATA_FIN was sent; with `acked`, it was acknowledged.
fn shut_down(seed: u64, acked: bool) -> Setup {
    let (mut script, mut peer, id) = served(listening(), seed);
    script.run(|e, now| e.shutdown(now, id));
    peer.receive_all(&mut script);
    if acked {
        peer.acknowledge(&mut script);
    }
    (script, peer, Some(id))
}

/// Both DATA_FINs are acknowledged: FIN-WAIT-1. With `acked`, FIN-WAIT-2.
fn fin_wait(seed: u64, acked: bool) -> Setup {
    let (mut script, mut peer, id) = shut_down(seed, true);
    let end = Seg::ack().data_ack(peer.expected_dsn).mapping(peer.next_dsn, 0, 1).data_fin();
    peer.send(&mut script, end);
    script.advance(Duration::from_millis(10));
    peer.receive_all(&mut script);
    if acked {
        peer.send(&mut script, Seg::ack());
    }
    (script, peer, id)
}

/// CLOSING, and TIME-WAIT if our FIN is acknowledged as well.
fn closing(seed: u64, acked: bool) -> Setup {
    let (mut script, mut peer, id) = fin_wait(seed, false);
    let our_fin = peer.expected;
    let number = if acked { our_fin } else { our_fin.add(u32::MAX) };
    let fin = Seg::fin().timestamps(1, peer.timestamps.map_or(0, |t| t.1));
    peer.inject(&mut script, fin.at(peer.next).acking(number));
    peer.next = peer.next.add(1);
    peer.receive_all(&mut script);
    (script, peer, id)
}

fn close_wait_plain(seed: u64, closed: bool) -> Setup {
    let (mut script, mut peer, id) = plain(seed);
    peer.send(&mut script, Seg::fin());
    if let Some(id) = id.filter(|_| closed) {
        script.run(|e, now| e.shutdown(now, id));
    }
    peer.receive_all(&mut script);
    (script, peer, id)
}

fn pick<T: Copy>(rng: &mut dyn Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

/// Mostly a small offset, sometimes a large one.
fn shift(rng: &mut dyn Rng) -> u32 {
    match rng.below(8) {
        0..=3 => 0,
        4 | 5 => (rng.below(40) as u32).wrapping_sub(20),
        6 => rng.below(200_000) as u32,
        _ => rng.next_u32(),
    }
}

fn random_dss(rng: &mut dyn Rng, peer: &Peer) -> Dss {
    let long = rng.below(2) == 0;
    let dsn = peer.next_dsn.wrapping_add_signed(i64::from(shift(rng) as i32));
    let ack = peer.expected_dsn.wrapping_add_signed(i64::from(shift(rng) as i32));
    let data_ack = if long { DataAck::Long(ack) } else { DataAck::Short(ack as u32) };
    let mapping = WireMapping {
        dsn: if rng.below(2) == 0 { WireDsn::Long(dsn) } else { WireDsn::Short(dsn as u32) },
        ssn: peer.next.offset_from(peer.iss).wrapping_add(shift(rng)),
        length: rng.below(100) as u16,
        checksum: (rng.below(3) == 0).then(|| rng.next_u32() as u16),
    };
    let mapping = (rng.below(3) > 0).then_some(mapping);
    Dss {
        data_ack: (rng.below(4) > 0).then_some(data_ack),
        mapping,
        data_fin: mapping.is_some() && rng.below(8) == 0,
    }
}

fn random_option(rng: &mut dyn Rng, peer: &Peer) -> MptcpOption {
    let word = rng.next_u64();
    match rng.below(9) {
        0 => MptcpOption::Fail(MpFail { dsn: peer.expected_dsn.wrapping_sub(rng.below(50)) }),
        1 => MptcpOption::Prio(MpPrio { backup: word & 1 == 0 }),
        2 => {
            let right = if rng.below(20) == 0 { peer.their_key } else { word };
            MptcpOption::Fastclose(MpFastclose { receiver_key: right })
        }
        3 => MptcpOption::TcpRst(MpTcpRst { transient: word & 1 == 0, reason: word as u8 }),
        4 => {
            let mut ids = [0; 37];
            ids[0] = word as u8 & 3;
            ids[1] = word as u8 >> 6;
            MptcpOption::RemoveAddr(RemoveAddr { ids, len: 2 })
        }
        5 => MptcpOption::AddAddr(AddAddr {
            address_id: word as u8 & 3,
            address: [10, 3, 0, word as u8].into(),
            port: None,
            hmac: (word & 4 == 0).then_some(word),
        }),
        6 => MptcpOption::Join(MpJoin::Ack { hmac: [word as u8; 20] }),
        7 => MptcpOption::Join(MpJoin::Syn {
            backup: false,
            address_id: word as u8,
            token: marline_testkit::keys::token(peer.their_key),
            nonce: word as u32,
        }),
        _ => {
            let hmac = word;
            MptcpOption::Join(MpJoin::SynAck { backup: false, address_id: 1, hmac, nonce: 5 })
        }
    }
}

/// A segment with small or large errors.
fn mutated(rng: &mut dyn Rng, peer: &Peer) -> Seg {
    let ack = TcpFlags::ACK;
    let (syn, fin, rst) = (TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST);
    let flags = match rng.below(20) {
        0 => TcpFlags(rng.below(512) as u16),
        _ => pick(rng, &[ack, ack, ack, ack, ack, ack.with(fin), ack.with(syn), syn, rst]),
    };
    let mut seg = peer.stamp(Seg::ack());
    // A RST that hits would end the run immediately, so it is rare.
    let exact_reset = flags.contains(rst) && rng.below(200) > 0;
    seg.header.flags = flags;
    seg.header.seq = seg.header.seq.add(shift(rng).wrapping_add(u32::from(exact_reset)));
    seg.header.ack = seg.header.ack.add(shift(rng));
    let any = rng.next_u32() as u16;
    seg.header.window = pick(rng, &[0, 1, 1_000, u16::MAX, any]);
    if rng.below(10) == 0 {
        let value = rng.next_u32();
        seg.options.timestamps = pick(rng, &[None, Some(Timestamps { value, echo: value })]);
    }
    if rng.below(3) > 0 {
        seg.options.dss = Some(random_dss(rng, peer));
    }
    if rng.below(3) == 0 {
        let _ = seg.options.mptcp.push(random_option(rng, peer));
    }
    if rng.below(6) == 0 {
        let left = peer.expected.add(shift(rng));
        let block = SackBlock { left, right: left.add(rng.below(3_000) as u32) };
        let _ = seg.options.sack.push(block);
    }
    if flags.contains(syn) {
        seg.options.mss = Some(rng.next_u32() as u16);
        seg.options.window_scale = Some(rng.next_u32() as u8 & 15);
        seg.options.sack_permitted = rng.below(2) == 0;
    }
    if !seg.options.fits_header() {
        seg.options.dss = None;
        seg.options.sack = marline_wire::SackBlocks::default();
    }
    if !seg.options.fits_header() {
        seg.options.mptcp = marline_wire::mptcp::MptcpOptions::default();
    }
    if rng.below(2) == 0 {
        seg.payload = vec![0x42; rng.below(100) as usize];
    }
    seg
}

/// Sends segments into one state; returns how often the state was set up again.
fn attack(name: &str, setup: Opening, segments: u64) {
    let mut rng = SeedTree::new(1).branch("every state").stream(name);
    let (mut left, mut rounds, mut peak) = (segments, 0, 0);
    while left > 0 {
        rounds += 1;
        let (mut script, mut peer, id) = setup(rounds);
        let _ = script.take_sent();
        for _ in 0..10 + rng.below(30) {
            left = left.saturating_sub(1);
            let seg = mutated(&mut rng, &peer);
            peer.inject(&mut script, seg);
            if rng.below(4) == 0 {
                script.advance(Duration::from_millis(rng.below(300)));
            }
            peer.receive_all(&mut script);
            peak = peak.max(check(&mut script, id));
        }
        script.advance(Duration::from_secs(900));
        check(&mut script, id);
        let sent = script.take_sent().len();
        assert!(sent < 1_000, "{name}: {sent} segments in 15 minutes of silence");
        // No subflow stays half open (but a client's own joins are tried again and again).
        let endpoint = &script.endpoint;
        for known in endpoint.connections() {
            let states = endpoint.info(known).expect("the connection exists").subflows;
            let half_open = states.iter().any(|s| s.state == SubflowState::SynReceived);
            assert!(!half_open, "{name}: {states:#?}");
        }
    }
    println!("{name}: {segments} segments in {rounds} rounds, at most {peak} bytes held");
}

fn check(script: &mut Script, id: Option<ConnectionId>) -> u64 {
    let mut most = 0;
    for known in script.endpoint.connections() {
        let info = script.endpoint.info(known).expect("the connection exists");
        assert!(info.buffered <= BOUND && info.subflows.len() <= 8, "{info:#?}");
        assert!(info.bytes_acked <= info.bytes_written);
        most = most.max(info.buffered);
    }
    if let Some(id) = id {
        let _ = script.read_all(id);
    }
    let _ = script.take_events();
    most
}

#[test]
fn nonsense_into_every_state() {
    let runs = std::env::var("MARLINE_HOSTILE_RUNS").ok().and_then(|n| n.parse().ok());
    let segments = runs.unwrap_or(SEGMENTS);
    let states: [(&str, Opening); 20] = [
        ("listen", listen),
        ("SYN-SENT", syn_sent),
        ("SYN-RECEIVED", syn_received),
        ("established client, unconfirmed", client_established),
        ("client joining", client_joining),
        ("established", established),
        ("established, flow ids", established_with_ids),
        ("data in flight", unacknowledged_data),
        ("checksums", with_checksums),
        ("plain TCP", plain),
        ("join pending", join_pending),
        ("joined", joined),
        ("DATA_FIN sent", |seed| shut_down(seed, false)),
        ("DATA_FIN acknowledged", |seed| shut_down(seed, true)),
        ("FIN-WAIT-1", |seed| fin_wait(seed, false)),
        ("FIN-WAIT-2", |seed| fin_wait(seed, true)),
        ("CLOSING", |seed| closing(seed, false)),
        ("TIME-WAIT", |seed| closing(seed, true)),
        ("CLOSE-WAIT, plain", |seed| close_wait_plain(seed, false)),
        ("LAST-ACK, plain", |seed| close_wait_plain(seed, true)),
    ];
    for (name, setup) in states {
        attack(name, setup, segments);
    }
}

/// The setups reach the states in their names.
#[test]
fn test_setups_reach_the_state_they_are_named_after() {
    let state = |(script, _, id): Setup| {
        let info = script.endpoint.info(id?)?;
        info.subflows.last().map(|s| s.state)
    };
    assert_eq!(state(syn_sent(1)), Some(SubflowState::SynSent));
    assert_eq!(state(established(1)), Some(SubflowState::Established));
    assert_eq!(state(established_with_ids(1)), Some(SubflowState::Established));
    assert_eq!(state(client_joining(1)), Some(SubflowState::SynSent));
    assert_eq!(state(join_pending(1)), Some(SubflowState::SynReceived));
    assert_eq!(state(joined(1)), Some(SubflowState::Established));
    assert_eq!(state(fin_wait(1, false)), Some(SubflowState::FinWait1));
    assert_eq!(state(fin_wait(1, true)), Some(SubflowState::FinWait2));
    assert_eq!(state(closing(1, false)), Some(SubflowState::Closing));
    assert_eq!(state(closing(1, true)), None, "in the endpoint's TIME-WAIT table");
    assert_eq!(state(close_wait_plain(1, false)), Some(SubflowState::CloseWait));
    assert_eq!(state(close_wait_plain(1, true)), Some(SubflowState::LastAck));
    let (mut script, mut peer, _) = listen(1);
    serve(&mut script, &mut peer);
}
