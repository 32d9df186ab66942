//! Tests of blind attacks (RFC 5961), old duplicates (PAWS) and malformed segments.

use marline_time::Duration;
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps};

use super::pair::{Pair, ROOM, config};
use crate::subflow::{Ingress, SubflowEvent};
use crate::{Ecn, SubflowState};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn ready() -> (Pair, TcpHeader) {
    let mut pair = Pair::established(config());
    pair.client.written = 50_000;
    pair.server().written = 50_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.client.received, 50_000);
    let header = pair.header_of(1);
    (pair, header)
}

fn moved(header: TcpHeader, seq: u32, flags: TcpFlags) -> TcpHeader {
    TcpHeader { seq: header.seq.add(seq), flags, ..header }
}

/// ACKs that the client sends in answer.
fn answers(pair: &mut Pair) -> usize {
    pair.log.clear();
    pair.logging = true;
    pair.transmit();
    pair.log.iter().filter(|(_, p)| p.to == 1 && p.has(TcpFlags::ACK)).count()
}

#[test]
fn a_reset_counts_only_at_rcv_nxt() {
    let (mut pair, header) = ready();
    let far = moved(header, 1 << 30, TcpFlags::RST);
    assert_eq!(pair.inject(0, far, &[]), Ingress::default());
    assert_eq!(answers(&mut pair), 0, "outside the window: silence");
    let near = moved(header, 1, TcpFlags::RST);
    assert!(pair.inject(0, near, &[]).challenge);
    assert_eq!(answers(&mut pair), 1);
    let old = moved(header, u32::MAX, TcpFlags::RST);
    assert_eq!(pair.inject(0, old, &[]), Ingress::default());
    assert_eq!(pair.client.tcp.state(), SubflowState::Established);
    assert!(pair.inject(0, moved(header, 0, TcpFlags::RST), &[]).accepted);
    pair.run_for(MS(1));
    assert!(pair.client.saw(SubflowEvent::Reset));
    assert_eq!(pair.client.tcp.state(), SubflowState::Closed);
}

#[test]
fn a_syn_draws_a_challenge_wherever_it_lies() {
    let (mut pair, header) = ready();
    for seq in [0, 1, 5_000, 1 << 30, u32::MAX - 70_000] {
        assert!(pair.inject(0, moved(header, seq, TcpFlags::SYN), &[]).challenge);
        assert_eq!(answers(&mut pair), 1);
    }
    assert_eq!(pair.client.tcp.state(), SubflowState::Established);
}

#[test]
fn data_with_an_impossible_ack_is_not_taken() {
    let (mut pair, header) = ready();
    for ack in [1, 1_000_000, 1 << 31] {
        let header = TcpHeader { ack: header.ack.add(ack), ..header };
        let ingress = pair.inject(0, header, b"evil");
        assert!(ingress.challenge && !ingress.accepted, "{ack}");
    }
    let far_below = TcpHeader { ack: SeqNum(header.ack.0.wrapping_sub(1 << 29)), ..header };
    assert!(!pair.inject(0, far_below, b"evil").accepted);
    assert_eq!(pair.client.received, 50_000);
}

#[test]
fn an_old_ack_within_a_window_is_fine_and_changes_nothing() {
    let (mut pair, header) = ready();
    let header = TcpHeader { ack: SeqNum(header.ack.0.wrapping_sub(10_000)), ..header };
    let ingress = pair.inject(0, header, &[]);
    assert!(ingress.accepted && !ingress.una_advanced && ingress.newly_acked == 0);
}

#[test]
fn data_beyond_the_window_is_answered_not_taken() {
    let (mut pair, header) = ready();
    let ingress = pair.inject(0, moved(header, 60 << 20, TcpFlags::ACK), &[0; 100]);
    assert!(ingress.challenge && !ingress.accepted);
    assert!(!pair.client.tcp.has_sack_blocks());
}

#[test]
fn segments_without_ack_are_dropped() {
    let (mut pair, header) = ready();
    assert_eq!(pair.inject(0, moved(header, 0, TcpFlags(0)), b"x"), Ingress::default());
    assert_eq!(pair.inject(0, moved(header, 0, TcpFlags::FIN), b""), Ingress::default());
}

#[test]
fn an_old_timestamp_is_answered_and_dropped() {
    let (mut pair, header) = ready();
    let now = pair.now;
    let value = pair.server().tcp.timestamps.value(now);
    let mut send = |value: u32| {
        let options =
            TcpOptions { timestamps: Some(Timestamps { value, echo: 0 }), ..TcpOptions::default() };
        let segment = TcpSegment {
            header,
            options,
            payload: &[super::pair::byte_at(50_000)],
            raw_options: &[],
        };
        pair.client.tcp.on_segment(now, &segment, Ecn::NotEct, 100_000)
    };
    assert!(send(value.wrapping_sub(30_000)).challenge);
    assert!(send(value).accepted);
    let bare =
        TcpSegment { header, options: TcpOptions::default(), payload: &[], raw_options: &[] };
    assert_eq!(pair.client.tcp.on_segment(now, &bare, Ecn::NotEct, 100_000), Ingress::default());
}

#[test]
fn rejected_segments_do_not_end_silence() {
    let (mut pair, header) = ready();
    pair.set_filter(|_, _| super::pair::WireEffect::Drop);
    pair.client.written += 1_000;
    pair.run_for(MS(400));
    assert!(pair.client.tcp.health().is_unreachable());
    pair.inject(0, moved(header, 7, TcpFlags::RST), &[]);
    pair.inject(0, moved(header, 1 << 30, TcpFlags::ACK), &[1; 50]);
    pair.inject(0, TcpHeader { ack: header.ack.add(1 << 20), ..header }, &[]);
    assert!(pair.client.tcp.health().is_unreachable());
    pair.inject(0, header, &[]);
    assert!(!pair.client.tcp.health().is_unreachable());
}

#[test]
fn ends_that_disagree_exchange_a_bounded_number_of_acks() {
    let (mut pair, header) = ready();
    pair.client.tcp.skip(1 << 26, 0);
    pair.server().tcp.skip(1 << 26, 0);
    let before = pair.sent;
    pair.inject(0, moved(header, 1 << 26, TcpFlags::ACK), &[]);
    pair.run_for(Duration::from_secs(10));
    assert!(pair.sent[0] - before[0] < 25 && pair.sent[1] - before[1] < 25, "{:?}", pair.sent);
}

#[test]
fn a_challenge_can_be_taken_back_without_losing_a_real_ack() {
    let (mut pair, header) = ready();
    assert!(pair.inject(0, moved(header, 0, TcpFlags::SYN), &[]).challenge);
    pair.client.tcp.withdraw_challenge();
    assert_eq!(answers(&mut pair), 0);
    pair.inject(0, header, &[super::pair::byte_at(50_000)]);
    pair.client.tcp.ack_now();
    assert!(pair.inject(0, moved(header, 1, TcpFlags::SYN), &[]).challenge);
    pair.client.tcp.withdraw_challenge();
    assert_eq!(answers(&mut pair), 1);
}

/// Any header and any option in any state: no panic, and an established subflow that was not reset still works.
#[test]
fn nonsense_in_every_state() {
    let mut seed = 0x1234_5678_9abc_def0_u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 32) as u32
    };
    let payload = vec![0x55; 3_000];
    for round in 0..4_000_u32 {
        let mut pair = Pair::new(config());
        if round % 8 > 0 {
            pair.run_for(MS(u64::from(round % 8) * 6));
            pair.client.written = 5_000;
            pair.client.close_after = round % 3 == 0;
            pair.run_for(MS(u64::from(next() % 40)));
        }
        for _ in 0..20 {
            let base = if pair.server.is_some() { pair.header_of(1) } else { TcpHeader::default() };
            let near = |r: u32, x: u32| match r % 4 {
                0 => x,
                1 => x.wrapping_add(r % 5_000),
                2 => x.wrapping_sub(r % 5_000),
                _ => r,
            };
            let mut options = TcpOptions {
                timestamps: (next() % 2 == 0).then(|| Timestamps { value: next(), echo: next() }),
                mss: (next() % 4 == 0).then(|| next() as u16),
                window_scale: (next() % 4 == 0).then(|| next() as u8),
                ..TcpOptions::default()
            };
            for _ in 0..next() % 5 {
                let left = SeqNum(near(next(), base.ack.0));
                let right = left.add(next() % 4_000);
                options.sack.push(marline_wire::SackBlock { left, right });
            }
            let header = TcpHeader {
                seq: SeqNum(near(next(), base.seq.0)),
                ack: SeqNum(near(next(), base.ack.0)),
                flags: TcpFlags((next() % 256) as u16),
                window: next() as u16,
                ..base
            };
            let len = (next() % 3_000) as usize * (next() % 2) as usize;
            let segment =
                TcpSegment { header, options, payload: &payload[..len], raw_options: &[] };
            let (now, window) = (pair.now, u64::from(next() % 100_000));
            pair.client.tcp.on_segment(now, &segment, Ecn::Ce, window);
            while pair.client.tcp.pop_reassembled().is_some() {}
            pair.client.tcp.on_timeout(now + MS(u64::from(next() % 2_000)));
            while pair.client.tcp.next_egress(now, ROOM).is_some() {
                if !pair.client.tcp.has_pending_ack() {
                    continue;
                }
                let what = crate::subflow::HeaderFor::Egress(&crate::subflow::Egress::Ack);
                pair.client.tcp.fill_header(now, what, 1_000, &mut TcpOptions::default());
            }
        }
    }
}
