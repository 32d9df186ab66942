//! Tests of floods of SYNs, joins and segments without a subflow: the memory that they use at an endpoint, and
//! their effect on existing connections. Memory is measured at the allocator instead of table sizes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{ConnectionId, Event, FourTuple, PacketMeta};
use marline_testkit::fixtures::{flow_capabilities, path, serve};
use marline_testkit::{
    Pair, Peer, Script, Seg, SegmentOutcome, Side, config, endpoint_config, keys,
};
use marline_time::{Rng, SeedTree};
use marline_wire::mptcp::{MpJoin, MptcpOption};
use marline_wire::{SeqNum, TcpFlags};

/// Counts allocated bytes per thread: each test is one thread.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends may free after its counter is gone; it is no longer read.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's guarantee about `layout` is the one that `System` requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `memory` came from `alloc` above, that is, from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> i64 {
    LIVE.with(Cell::get)
}

/// Segments of a flood.
const FLOOD: u32 = 100_000;
/// Segments of a flood per millisecond.
const PER_MS: u32 = 50;

/// A connection with a continuous stream from A to B, at most a window of bytes per round trip.
struct Setup {
    pair: Pair,
    sender: ConnectionId,
    receiver: ConnectionId,
    written: u64,
    read: u64,
    /// Keys of both sides, seen on the wire.
    keys: (u64, u64),
    with_ids: bool,
}

fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Setup {
    fn new(with_ids: bool) -> Setup {
        let mut ends = (endpoint_config(None), endpoint_config(Some(config())));
        if with_ids {
            ends.0.capabilities = flow_capabilities();
            ends.1.capabilities = flow_capabilities();
        }
        let mut pair = Pair::new(ends.0, ends.1, 1);
        let now = pair.now();
        let (local, remote) = (([10, 9, 0, 2], 0).into(), ([10, 9, 0, 1], 80).into());
        let sender = pair.endpoint(Side::A).connect(now, config(), local, remote).expect("room");
        let receiver = ConnectionId(0);
        let (written, read, keys) = (0, 0, (0, 0));
        let mut setup = Setup { pair, sender, receiver, written, read, keys, with_ids };
        setup.run(Duration::from_secs(1));
        setup
    }

    fn run(&mut self, time: Duration) {
        let end = self.pair.now() + time;
        loop {
            let keys = &mut self.keys;
            let events = self.pair.gather(&mut |flight| {
                let seg = Seg::parse(&flight.bytes).expect("a segment");
                let capable = seg.options.mptcp.capable().map(|c| c.form);
                if let Some(marline_wire::mptcp::MpCapableForm::Ack {
                    initiator_key,
                    listener_key,
                    ..
                }) = capable
                {
                    *keys = (initiator_key, listener_key);
                }
                SegmentOutcome::Arrive(Duration::from_millis(5))
            });
            for (side, event) in events {
                if let (Side::B, Event::Incoming(id)) = (side, event) {
                    self.receiver = id;
                }
            }
            if !self.pair.step(end) {
                return;
            }
        }
    }

    /// Actions of the application: writes 16 KiB if there is room, reads and compares everything.
    fn transfer(&mut self) {
        let now = self.pair.now();
        let bytes: Vec<u8> = (0..16_384).map(|i| byte(self.written + i)).collect();
        if let Ok(n) = self.pair.endpoint(Side::A).write(now, self.sender, &bytes) {
            self.written += n as u64;
        }
        let mut out = [0; 16_384];
        while let Ok(n @ 1..) = self.pair.endpoint(Side::B).read(now, self.receiver, &mut out) {
            for b in &out[..n] {
                assert_eq!(*b, byte(self.read));
                self.read += 1;
            }
        }
    }

    /// Sends a segment from any address to B.
    fn attack(&mut self, path: FourTuple, told: u64, seg: Seg) {
        let seg = seg.ports(path.remote.port(), path.local.port());
        let covered = (!self.with_ids).then_some((path.remote.ip(), path.local.ip()));
        let bytes = seg.bytes(covered);
        let ecn = marline_core::Ecn::NotEct;
        let meta = PacketMeta { path, ecn, flow: 0, peer_flow: told, checksum_verified: false };
        let now = self.pair.now();
        self.pair.endpoint(Side::B).handle_packet(now, &meta, &bytes);
    }

    /// Two seconds of transfer in parallel with a flood. Returns the bytes that arrived meanwhile, the maximum
    /// memory allocated beyond the start's, and the rest ten minutes later.
    fn under(&mut self, mut flood: impl FnMut(&mut Setup)) -> Measured {
        let (start, read) = (live(), self.read);
        let mut peak = 0;
        let mut answers = 0;
        for _ in 0..FLOOD / PER_MS {
            for _ in 0..PER_MS {
                flood(self);
            }
            let segments = self.pair.endpoint(Side::B).counters().segments_out;
            self.lose_answers();
            answers += self.pair.endpoint(Side::B).counters().segments_out - segments;
            self.run(Duration::from_millis(1));
            self.transfer();
            peak = peak.max(live() - start);
        }
        let bytes = self.read - read;
        self.run(Duration::from_secs(600));
        self.transfer();
        self.run(Duration::from_secs(1));
        self.transfer();
        Measured { bytes, peak, left: live() - start, answers }
    }

    /// Segments to the attackers' addresses are lost; the connection's own segments pass.
    fn lose_answers(&mut self) {
        let _ = self.pair.gather(&mut |flight| {
            let net = flight.meta.path.local;
            let own = net.ip() == std::net::IpAddr::from([10, 9, 0, 2])
                || net.ip() == std::net::IpAddr::from([10, 9, 0, 1]);
            if own {
                SegmentOutcome::Arrive(Duration::from_millis(5))
            } else {
                SegmentOutcome::Drop
            }
        });
    }

    fn connections(&mut self) -> usize {
        self.pair.endpoint(Side::B).connections().len()
    }
}

#[derive(Copy, Clone, Debug)]
struct Measured {
    bytes: u64,
    peak: i64,
    left: i64,
    answers: u64,
}

/// A path from a spoofed source among 2^24 addresses to B.
fn spoofed(rng: &mut dyn Rng) -> FourTuple {
    let [a, b, c, _] = rng.next_u32().to_be_bytes();
    let remote = SocketAddr::from(([172, a, b, c], 1 + rng.below(65_000) as u16));
    FourTuple { local: SocketAddr::from(([10, 9, 0, 1], 80)), remote }
}

fn quiet(with_ids: bool) -> Measured {
    let mut setup = Setup::new(with_ids);
    setup.under(|_| {})
}

/// Checks the limits on memory and on the part of the transfer that is lost to the flood.
fn assert_bounded(name: &str, with_ids: bool, flooded: Measured, bound: i64) {
    let quiet = quiet(with_ids);
    let (extra, left) = (flooded.peak - quiet.peak, flooded.left - quiet.left);
    println!(
        "{FLOOD} {name}, flow ids {with_ids}: {} bytes transferred during it (without: {}), at most {extra} \
         bytes more, {left} bytes more ten minutes later, {} segments out",
        flooded.bytes, quiet.bytes, flooded.answers
    );
    assert!(extra < bound, "{extra} bytes");
    assert!(left < bound / 4, "{left} bytes stay");
    assert_eq!(flooded.bytes, quiet.bytes, "the connection was harmed");
}

#[test]
fn a_flood_of_syns() {
    for with_ids in [false, true] {
        let mut setup = Setup::new(with_ids);
        let mut rng = SeedTree::new(1).stream("syns");
        let flooded = setup.under(|setup| {
            let ends = spoofed(&mut rng);
            let peer = Peer::new(ends, 0);
            let told = if with_ids { rng.next_u64() | 1 } else { 0 };
            setup.attack(ends, told, peer.capable_syn().at(SeqNum(rng.next_u32())));
        });
        let counters = setup.pair.endpoint(Side::B).counters();
        // The carrier with ids requests cookies of its own; in this test it does not.
        let turned_away =
            if with_ids { counters.syn_queue_overflow } else { counters.syn_cookies_sent };
        assert!(turned_away > u64::from(FLOOD) - 2_000);
        assert_eq!(setup.connections(), 1, "half-open ones ended");
        // Limits::syn_queue half-open connections of a few KiB, timers and tables.
        assert_bounded("SYNs", with_ids, flooded, 24 << 20);
    }
}

/// With flow ids the carrier requests cookies; a flood from a real address can return them.
#[test]
fn a_flood_of_syns_from_one_source_evicts_no_handshake_of_another() {
    let mut endpoint = endpoint_config(Some(config()));
    endpoint.capabilities.flow_ids = true;
    endpoint.limits.syn_queue = 8;
    let mut script = Script::new(endpoint, 1);
    let mut syn_from = |host: u8, port: u16, id: u64| {
        let peer = Peer::new(path(0, host, port), 0);
        script.inject_to(peer.path, 0, id, peer.capable_syn().at(SeqNum(1)));
        script.endpoint.connections()
    };
    let slow = syn_from(2, 7_000, 1)[0];
    for n in 0..1_000 {
        assert!(syn_from(9, 1_000 + n, 1_000 + u64::from(n)).len() <= 8);
    }
    assert!(syn_from(3, 7_000, 2).contains(&slow), "the slow client's handshake continues");
    let path_of = |id| script.endpoint.info(id).map(|info| info.subflows[0].path);
    let newcomer = path(0, 3, 7_000);
    let admitted =
        script.endpoint.connections().into_iter().any(|id| path_of(id) == Some(newcomer));
    assert!(admitted, "a newcomer is not refused");
}

#[test]
fn a_flood_of_syns_does_not_keep_others_out_afterwards() {
    let mut setup = Setup::new(false);
    let mut rng = SeedTree::new(2).stream("syns");
    for _ in 0..5_000 {
        let ends = spoofed(&mut rng);
        setup.attack(ends, 0, Seg::syn().mss(1_400).at(SeqNum(rng.next_u32())));
    }
    setup.lose_answers();
    let now = setup.pair.now();
    let (local, remote) = (([10, 9, 0, 2], 0).into(), ([10, 9, 0, 1], 80).into());
    let newcomer =
        setup.pair.endpoint(Side::A).connect(now, config(), local, remote).expect("room");
    setup.run(Duration::from_millis(200));
    let info = setup.pair.endpoint(Side::A).info(newcomer).expect("the connection exists");
    assert_eq!(info.subflows[0].state, marline_core::SubflowState::Established);
    assert_eq!(info.fallback, None);
}

fn join_syn(token: u32, nonce: u32) -> Seg {
    let join = MpJoin::Syn { backup: false, address_id: 3, token, nonce };
    let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
    syn.mptcp(MptcpOption::Join(join))
}

#[test]
fn a_flood_of_joins_with_wrong_tokens() {
    for with_ids in [false, true] {
        let mut setup = Setup::new(with_ids);
        let mut rng = SeedTree::new(3).stream("joins");
        let flooded = setup.under(|setup| {
            let ends = spoofed(&mut rng);
            let told = if with_ids { rng.next_u64() | 1 } else { 0 };
            setup.attack(ends, told, join_syn(rng.next_u32(), rng.next_u32()));
        });
        let counters = setup.pair.endpoint(Side::B).counters();
        assert_eq!(counters.mp_join_no_token, u64::from(FLOOD));
        // Resets: at most 1,000 a second.
        assert!(counters.resets_out <= 3_000, "{}", counters.resets_out);
        assert_bounded("joins with wrong tokens", with_ids, flooded, 1 << 20);
    }
}

#[test]
fn a_flood_of_joins_with_the_right_token() {
    for with_ids in [false, true] {
        let mut setup = Setup::new(with_ids);
        let token = keys::token(setup.keys.1);
        let mut rng = SeedTree::new(4).stream("joins");
        let flooded = setup.under(|setup| {
            let ends = spoofed(&mut rng);
            let told = if with_ids { rng.next_u64() | 1 } else { 0 };
            setup.attack(ends, told, join_syn(token, rng.next_u32()));
        });
        let counters = setup.pair.endpoint(Side::B).counters();
        assert!(counters.mp_join_rejected > u64::from(FLOOD) - 1_000);
        let receiver = setup.receiver;
        let info = setup.pair.endpoint(Side::B).info(receiver).expect("the connection exists");
        assert_eq!((info.subflows.len(), info.gone.len()), (1, 0));
        assert_bounded("joins with the right token", with_ids, flooded, 1 << 20);
    }
}

#[test]
fn a_flood_of_strays() {
    for with_ids in [false, true] {
        let mut setup = Setup::new(with_ids);
        let mut rng = SeedTree::new(5).stream("strays");
        let flooded = setup.under(|setup| {
            let flags = TcpFlags(rng.below(512) as u16).without(TcpFlags::SYN);
            let seg = Seg::new(flags).at(SeqNum(rng.next_u32())).payload(&[1; 100]);
            setup.attack(spoofed(&mut rng), 0, seg);
        });
        assert_bounded("segments of no subflow", with_ids, flooded, 1 << 20);
    }
}

#[test]
fn handshakes_completed_and_left_alone_are_bounded_by_the_limit_of_connections() {
    let mut listening = endpoint_config(Some(config()));
    listening.limits.connections = 500;
    let mut script = marline_testkit::Script::new(listening, 6);
    let mut peers = Vec::new();
    let start = live();
    for port in 0..2_000u16 {
        let mut peer = Peer::new(path(0, 2, 10_000 + port), u64::from(port) + 1);
        if port < 500 {
            peer.connect(&mut script);
            peers.push(peer);
        } else {
            let syn = peer.capable_syn();
            peer.send(&mut script, syn);
        }
        let _ = script.take_sent();
    }
    let held = live() - start;
    println!("500 connections and 1500 SYNs beyond the limit: {held} bytes");
    assert_eq!(script.endpoint.connections().len(), 500);
    assert_eq!(script.endpoint.counters().connections_refused, 1_500);
    assert!(held < 500 * 24 * 1024, "{held} bytes");
    // After one ends, the next one may come.
    script.run(|e, now| {
        let first = e.connections()[0];
        e.abort(now, first);
        e.release(now, first);
    });
    let _ = script.take_sent();
    let mut next = Peer::new(path(0, 2, 60_000), 7);
    next.connect(&mut script);
}

/// Short messages with pauses, for hours: timers, ended flows and similar state must not pile up.
#[test]
fn a_connection_that_talks_now_and_then_grows_no_memory() {
    let mut setup = Setup::new(false);
    let mut at = Vec::new();
    for _ in 0..8 {
        for _ in 0..1_000 {
            setup.transfer();
            setup.run(Duration::from_secs(3));
        }
        setup.transfer();
        setup.run(Duration::from_secs(3));
        at.push(live());
    }
    let growth = at[7] - at[1];
    println!("6000 messages at intervals of 3 s: {growth} bytes more than before");
    assert!(growth.abs() < 10_000, "{at:?}");
}

/// A listening endpoint with half of its slots for half-open connections in use.
fn pressed() -> Script {
    let mut endpoint = endpoint_config(Some(config()));
    endpoint.limits.syn_queue = 8;
    let mut script = Script::new(endpoint, 1);
    for port in 0..20 {
        let nobody = Peer::new(path(0, 9, 1_000 + port), 0);
        nobody.inject(&mut script, nobody.capable_syn().at(SeqNum(1)).timestamps(5, 0));
    }
    assert_eq!(script.endpoint.connections().len(), 4);
    assert_eq!(script.endpoint.counters().syn_cookies_sent, 16);
    let _ = script.take_sent();
    script
}

#[test]
fn beside_a_flood_others_connect_by_cookies_with_all_their_options() {
    let mut script = pressed();
    for port in 0..50 {
        let mut peer = Peer::new(path(0, 2, 40_000 + port), 0x1111_2222_3333_4444);
        let id = serve(&mut script, &mut peer);
        let info = script.endpoint.info(id).expect("the connection exists");
        assert!(info.fallback.is_none(), "Multipath TCP");
        // Window scale, SACK and segment size: more than an unscaled window is sent, in segments that the peer
        // accepts.
        assert_eq!(script.run(|e, now| e.write(now, id, &[7; 100_000])), Ok(100_000));
        let mut got = 0;
        while got < 100_000 {
            script.advance(Duration::from_millis(10));
            let sent = peer.receive_all(&mut script);
            assert!(
                sent.iter()
                    .all(|s| s.seg.payload.len() <= 1_400 && s.seg.options.timestamps.is_some())
            );
            got += sent.iter().map(|s| s.seg.payload.len()).sum::<usize>();
            peer.acknowledge(&mut script);
        }
        assert_eq!(got, 100_000);
        script.run(|e, now| e.abort(now, id));
        script.run(|e, now| e.release(now, id));
        let _ = script.take_sent();
    }
    let counters = script.endpoint.counters();
    assert_eq!((counters.syn_cookies_received, counters.mp_capable_fallback), (50, 0));
    assert_eq!(counters.syn_queue_overflow, 0);
}

#[test]
fn a_cookie_is_good_for_its_ends_its_number_and_a_minute() {
    let cookie_for = |script: &mut Script, peer: &mut Peer| {
        let syn = Seg::syn().mss(1_000);
        peer.send(script, syn);
        let sent = script.take_sent();
        let [answer] = &sent[..] else { panic!("one SYN/ACK: {sent:?}") };
        peer.record_received(answer);
        assert!(answer.seg.options.window_scale.is_none() && !answer.seg.options.sack_permitted);
    };
    let accepted = |script: &mut Script| {
        let events = script.take_events();
        events.iter().any(|event| matches!(event, Event::Incoming(_)))
    };
    for (wrong, wait_s, taken) in [
        ("", 0, true),
        ("", 40, true),
        ("", 90, false),
        ("port", 0, false),
        ("ack", 0, false),
        ("seq", 0, false),
    ] {
        let mut script = pressed();
        let mut peer = Peer::new(path(0, 2, 40_000), 0);
        cookie_for(&mut script, &mut peer);
        script.advance(Duration::from_secs(wait_s));
        let (_, _) = (script.take_events(), script.take_sent());
        match wrong {
            "port" => peer.path.remote.set_port(40_001),
            "ack" => peer.expected = peer.expected.add(1),
            "seq" => peer.next = peer.next.add(1),
            _ => {}
        }
        peer.send(&mut script, Seg::ack());
        assert_eq!(accepted(&mut script), taken, "{wrong} {wait_s}");
        let reset = script.take_sent().iter().any(|s| s.seg.header.flags.contains(TcpFlags::RST));
        assert_eq!(reset, !taken, "{wrong} {wait_s}");
        // Plain TCP, with the requested segment size.
        if taken {
            let id = *script.endpoint.connections().last().expect("the connection exists");
            assert_eq!(script.run(|e, now| e.write(now, id, &[7; 5_000])), Ok(5_000));
            let sent = script.take_sent();
            assert!(!sent.is_empty() && sent.iter().all(|s| s.seg.payload.len() <= 1_000));
        }
    }
    // A probe without options, one octet before the first, ends no handshake.
    let mut script = pressed();
    let mut peer = Peer::new(path(0, 2, 40_000), 0);
    cookie_for(&mut script, &mut peer);
    let (_, _) = (script.take_events(), script.take_sent());
    let probe = Seg::ack().at(peer.next.add(u32::MAX)).acking(peer.expected);
    peer.inject(&mut script, probe);
    assert!(script.take_sent().is_empty() && !accepted(&mut script));
    peer.send(&mut script, Seg::ack());
    assert!(accepted(&mut script));
    // A peer without a pending request gets nothing by guessing.
    let mut script = Script::new(endpoint_config(Some(config())), 1);
    let mut peer = Peer::new(path(0, 2, 40_000), 0);
    peer.send(&mut script, Seg::ack());
    assert_eq!(script.endpoint.counters().syn_cookies_received, 0);
}
