use marline_policy::{Ssn, UnreachableCause};
use marline_time::Duration;
use marline_wire::TcpFlags;

use super::pair::{Pair, WireEffect, byte_at, config};
use crate::Ecn;
use crate::subflow::SubflowConfig;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn bytes(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(byte_at).collect()
}

/// Injects stream bytes `from..to` into the client, regardless of the server.
fn give(pair: &mut Pair, from: u64, to: u64, flags: TcpFlags) -> crate::subflow::Ingress {
    let mut header = pair.header_of(1);
    header.seq = pair.server().tcp.to_wire(Ssn(1 + from));
    header.flags = TcpFlags::ACK.with(flags);
    pair.inject(0, header, &bytes(from, to))
}

#[test]
fn overlaps_are_trimmed_and_reported() {
    let mut pair = Pair::established(config());
    let ingress = give(&mut pair, 0, 100, TcpFlags(0));
    assert_eq!(ingress.in_order, Some((Ssn(1), 0..100)));
    let ingress = give(&mut pair, 50, 180, TcpFlags(0));
    assert_eq!(ingress.in_order, Some((Ssn(101), 50..130)));
    assert_eq!((ingress.duplicate_bytes, ingress.start), (50, Some(Ssn(51))));
    pair.logging = true;
    pair.transmit();
    let ack = &pair.log[0].1;
    let dsack = ack.options.sack.as_slice()[0];
    assert_eq!(dsack.right.offset_from(dsack.left), 50);
    assert_eq!(dsack.right, pair.server().tcp.to_wire(Ssn(101)));
    let ingress = give(&mut pair, 20, 60, TcpFlags(0));
    assert!(!ingress.accepted && ingress.repeated && ingress.duplicate_bytes == 40);
    assert_eq!(pair.client.received, 180);
}

#[test]
fn a_duplicate_segment_counts_as_a_sign_of_life() {
    let mut pair = Pair::established(config());
    give(&mut pair, 0, 100, TcpFlags(0));
    pair.client.tcp.health_mut().on_overdue(pair.now, UnreachableCause::ProbeTimeout);
    pair.run_for(MS(500));
    give(&mut pair, 0, 100, TcpFlags(0));
    assert!(pair.client.tcp.health.is_usable() && pair.client.tcp.last_rx_at() == pair.now);
    // A segment that acknowledges data never sent is not from the peer.
    pair.client.tcp.health_mut().on_overdue(pair.now, UnreachableCause::ProbeTimeout);
    let mut header = pair.header_of(1);
    header.seq = pair.server().tcp.to_wire(Ssn(1));
    header.ack = pair.client.tcp.to_wire(pair.client.tcp.tx.nxt.plus(1));
    let ingress = pair.inject(0, header, &bytes(0, 100));
    assert!(!ingress.repeated && pair.client.tcp.health.is_unreachable());
}

#[test]
fn a_filled_hole_releases_held_segments() {
    let mut pair = Pair::established(config());
    for (from, to) in [(300, 400), (100, 200), (500, 600), (200, 350)] {
        let ingress = give(&mut pair, from, to, TcpFlags(0));
        assert!(ingress.accepted && ingress.in_order.is_none());
        assert!(pair.client.tcp.has_pending_ack(), "out-of-order data is acknowledged immediately");
    }
    pair.logging = true;
    pair.transmit();
    let blocks = pair.log[0].1.options.sack;
    let edges: Vec<u64> = blocks
        .as_slice()
        .iter()
        .flat_map(|b| [b.left, b.right])
        .map(|seq| pair.client.tcp.position_of(seq).unwrap().0 - 1)
        .collect();
    assert_eq!(edges, [300, 350, 100, 400, 500, 600], "the duplicate part comes first");
    let ingress = give(&mut pair, 0, 120, TcpFlags(0));
    assert_eq!(ingress.in_order, Some((Ssn(1), 0..120)));
    assert_eq!(pair.client.received, 400);
    assert_eq!(pair.client.tcp.rcv_nxt(), Ssn(401));
    give(&mut pair, 400, 500, TcpFlags(0));
    assert_eq!(pair.client.received, 600);
    let info = pair.client.tcp.info(marline_policy::SubflowId(0), false);
    assert_eq!((info.bytes_received, info.bytes_duplicate), (600, 70));
}

#[test]
fn nothing_is_kept_beyond_the_window_but_the_ack_at_its_edge_is_read() {
    let mut pair = Pair::new(SubflowConfig { window_scale: 0, ..config() });
    pair.client.window = 1_000;
    pair.run_for(MS(50));
    let ingress = give(&mut pair, 0, 1_500, TcpFlags(0));
    assert_eq!(ingress.in_order, Some((Ssn(1), 0..1_000)));
    pair.client.window = 0;
    pair.transmit();
    let ingress = give(&mut pair, 1_000, 1_100, TcpFlags(0));
    assert!(ingress.accepted && ingress.in_order.is_none(), "{ingress:?}");
    assert!(pair.client.tcp.has_pending_ack());
    assert_eq!(pair.client.received, 1_000);
}

#[test]
fn the_highest_window_edge_offered_stays_valid() {
    let mut pair = Pair::new(SubflowConfig { window_scale: 0, ..config() });
    pair.client.window = 10_000;
    pair.run_for(MS(50));
    pair.client.window = 100;
    assert_eq!(give(&mut pair, 0, 5_000, TcpFlags(0)).in_order, Some((Ssn(1), 0..5_000)));
}

#[test]
fn too_many_holes_drop_segments_not_the_subflow() {
    let mut pair = Pair::established(SubflowConfig { out_of_order_ranges: 8, ..config() });
    for i in 1..100 {
        give(&mut pair, i * 200, i * 200 + 100, TcpFlags(0));
    }
    assert_eq!(pair.client.tcp.rx.queue.recent().count(), 4);
    pair.server().written = 50_000;
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.client.received, 50_000);
}

#[test]
fn a_mark_is_echoed_until_the_sender_says_it_slowed_down() {
    let mut pair = Pair::established(SubflowConfig { ecn: true, ..config() });
    let mut n = 0;
    pair.set_filter(move |_, packet| {
        n += usize::from(packet.to == 1 && !packet.payload.is_empty());
        if packet.to == 1 && (n == 20 || n == 21) { WireEffect::Mark } else { WireEffect::Pass }
    });
    pair.logging = true;
    pair.client.written = 200_000;
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.server().received, 200_000);
    assert_eq!(pair.client.reductions(), 1, "{:?}", pair.client.signals());
    let echoes = pair.log.iter().filter(|(_, p)| p.to == 0 && p.has(TcpFlags::ECE)).count();
    let slowed = pair.log.iter().filter(|(_, p)| p.to == 1 && p.has(TcpFlags::CWR)).count();
    assert!(echoes > 0 && echoes < 40, "{echoes}");
    assert_eq!(slowed, 1);
    for (_, packet) in &pair.log {
        let expected = if packet.payload.is_empty() { Ecn::NotEct } else { Ecn::Ect0 };
        assert_eq!(packet.ecn, expected);
    }
}

#[test]
fn a_mark_in_the_round_trip_of_a_loss_reduces_once() {
    let mut pair = Pair::established(SubflowConfig { ecn: true, ..config() });
    let mut n = 0;
    pair.set_filter(move |_, packet| {
        n += usize::from(packet.to == 1 && !packet.payload.is_empty());
        match n {
            30 if packet.to == 1 => WireEffect::Drop,
            31..=36 if packet.to == 1 => WireEffect::Mark,
            _ => WireEffect::Pass,
        }
    });
    pair.logging = true;
    pair.client.written = 200_000;
    pair.run_for(Duration::from_secs(2));
    assert_eq!(pair.server().received, 200_000);
    assert_eq!(pair.client.reductions(), 1, "{:?}", pair.client.signals());
    let echoes = pair.log.iter().filter(|(_, p)| p.to == 0 && p.has(TcpFlags::ECE)).count();
    assert!(echoes > 0 && echoes < 80, "CWR ends the echo: {echoes}");
}

#[test]
fn ecn_needs_both_sides() {
    let mut pair = Pair::new(SubflowConfig { ecn: true, ..config() });
    pair.config.ecn = false;
    pair.logging = true;
    pair.client.written = 20_000;
    pair.run_for(Duration::from_secs(1));
    assert!(pair.log[0].1.has(TcpFlags::ECE.with(TcpFlags::CWR)));
    assert!(!pair.log[1].1.has(TcpFlags::ECE));
    assert!(pair.log.iter().all(|(_, packet)| packet.ecn == Ecn::NotEct));
}

#[test]
fn a_probe_is_answered_immediately_and_moves_nothing() {
    let mut pair = Pair::established(config());
    pair.client.tcp.request_probe();
    pair.logging = true;
    pair.run_for(MS(25));
    assert_eq!(pair.log.len(), 2, "{:?}", pair.log);
    let probe = &pair.log[0].1;
    assert_eq!(probe.header.seq, pair.client.tcp.to_wire(Ssn(0)));
    assert_eq!(pair.client.tcp.last_rx_at(), pair.log[1].0 + MS(10));
    pair.client.tcp.request_probe();
    pair.run_for(MS(25));
    assert_eq!(pair.log.len(), 4, "probes are answered each time");
}
