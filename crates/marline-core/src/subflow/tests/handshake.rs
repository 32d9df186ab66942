use marline_time::{Duration, Instant};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions};

use super::pair::{Pair, ROOM, WireEffect, config, new_client};
use crate::subflow::{HeaderFor, SubflowEvent};
use crate::{Ecn, SubflowState};

const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn three_segments_open_both_ends_and_give_a_first_rtt() {
    let mut pair = Pair::new(config());
    pair.logging = true;
    pair.run_for(MS(50));
    assert_eq!(pair.log.len(), 3);
    assert!(
        pair.client.saw(SubflowEvent::Established) && pair.server().saw(SubflowEvent::Established)
    );
    assert_eq!(pair.client.tcp.srtt(), Some(MS(20)));
    assert_eq!(pair.server().tcp.srtt(), Some(MS(20)));
    let syn = &pair.log[0].1;
    assert_eq!(syn.options.mss, Some(1_432));
    assert_eq!(syn.options.window_scale, Some(7));
    assert!(syn.options.sack_permitted && syn.options.timestamps.is_some());
    assert_eq!(syn.header.window, u16::MAX);
}

#[test]
fn a_lost_syn_is_repeated_with_backoff_until_the_attempt_ends() {
    let mut pair = Pair::new(config());
    pair.logging = true;
    pair.set_filter(|_, _| WireEffect::Drop);
    pair.run_for(Duration::from_secs(300));
    let start = pair.log[0].0;
    let at: Vec<u64> = pair.log.iter().map(|(t, _)| t.since(start).as_secs()).collect();
    assert_eq!(at, [0, 1, 3, 7, 15, 31, 63]);
    assert!(pair.client.saw(SubflowEvent::ConnectTimeout));
    assert_eq!(pair.client.tcp.state(), SubflowState::Closed);
    assert_eq!(pair.client.tcp.next_timeout(), None);
}

#[test]
fn a_lost_syn_ack_is_repeated_by_the_server() {
    let mut pair = Pair::new(config());
    let mut dropped = 0;
    pair.set_filter(move |_, packet| {
        let syn_ack = TcpFlags::SYN.with(TcpFlags::ACK);
        if packet.has(syn_ack) && dropped < 2 {
            dropped += 1;
            return WireEffect::Drop;
        }
        WireEffect::Pass
    });
    pair.client.written = 1;
    pair.run_for(Duration::from_secs(4));
    assert_eq!(pair.server().received, 1);
}

#[test]
fn data_stands_in_for_a_lost_third_ack() {
    let mut pair = Pair::new(config());
    let mut acks = 0;
    pair.set_filter(move |_, packet| {
        acks += usize::from(packet.to == 1 && !packet.has(TcpFlags::SYN));
        if packet.to == 1 && acks == 1 { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.run_for(MS(30));
    pair.client.written = 5_000;
    pair.run_for(MS(50));
    assert_eq!(pair.server().received, 5_000);
}

#[test]
fn the_server_repeats_its_syn_ack_when_the_third_ack_is_lost() {
    let mut pair = Pair::new(config());
    let mut acks = 0;
    pair.set_filter(move |_, packet| {
        acks += usize::from(packet.to == 1 && !packet.has(TcpFlags::SYN));
        if packet.to == 1 && acks == 1 { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.run_for(Duration::from_secs(2));
    assert!(pair.server().tcp.is_established(), "the challenge ACK to it completes the handshake");
    assert!(pair.client.tcp.is_established());
    // The challenge ACK echoes the first SYN/ACK, a second ago: that is not the path's RTT.
    assert_eq!(pair.server().tcp.srtt(), Some(MS(20)));
}

#[test]
fn refused() {
    let mut pair = Pair::new(config());
    pair.set_filter(|_, _| WireEffect::Drop);
    pair.run_for(MS(1));
    let header = TcpHeader {
        ack: SeqNum(1_001),
        flags: TcpFlags::RST.with(TcpFlags::ACK),
        ..TcpHeader::default()
    };
    assert!(pair.inject(0, TcpHeader { ack: SeqNum(1_002), ..header }, &[]) == Default::default());
    assert_eq!(pair.client.tcp.state(), SubflowState::SynSent);
    pair.inject(0, header, &[]);
    pair.run_for(MS(1));
    assert!(pair.client.saw(SubflowEvent::Refused));
}

#[test]
fn an_ack_of_nothing_in_syn_sent_is_reset_without_harm() {
    let mut pair = Pair::new(config());
    pair.set_filter(
        |_, packet| if packet.has(TcpFlags::RST) { WireEffect::Drop } else { WireEffect::Pass },
    );
    pair.logging = true;
    pair.transmit();
    let header = TcpHeader { ack: SeqNum(77), flags: TcpFlags::ACK, ..TcpHeader::default() };
    pair.inject(0, header, &[]);
    pair.transmit();
    let rst = &pair.log.last().unwrap().1;
    assert!(rst.has(TcpFlags::RST) && !rst.has(TcpFlags::ACK));
    assert_eq!(rst.header.seq, SeqNum(77));
    pair.run_for(MS(50));
    assert!(pair.client.tcp.is_established());
}

#[test]
fn simultaneous_open() {
    let now = Instant::from_secs(5);
    let mut ends = [new_client(config(), SeqNum(7), now), new_client(config(), SeqNum(9), now)];
    for round in 0..6 {
        let mut crossing = Vec::new();
        for end in &mut ends {
            let mut out = Vec::new();
            while let Some(egress) = end.tcp.next_egress(now, ROOM) {
                let mut options = TcpOptions::default();
                let what = HeaderFor::Egress(&egress);
                let (header, _) = end.tcp.fill_header(now, what, 60_000, &mut options);
                out.push((header, options));
            }
            crossing.push(out);
        }
        for (i, segments) in crossing.into_iter().enumerate() {
            for (header, options) in segments {
                let segment =
                    marline_wire::TcpSegment { header, options, payload: &[], raw_options: &[] };
                ends[1 - i].tcp.on_segment(now, &segment, Ecn::NotEct, 60_000);
            }
        }
        let expected =
            if round == 0 { SubflowState::SynReceived } else { SubflowState::Established };
        for end in &ends {
            assert_eq!(end.tcp.state(), expected, "round {round}");
        }
    }
    for end in &mut ends {
        assert_eq!(end.tcp.poll_event(), Some(SubflowEvent::Established));
        assert!(end.tcp.next_egress(now, ROOM).is_none());
    }
}

#[test]
fn options_the_peer_lacks_are_not_used() {
    let mut pair = Pair::new(crate::subflow::SubflowConfig { timestamps: false, ..config() });
    pair.logging = true;
    pair.client.written = 50_000;
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.server().received, 50_000);
    assert!(pair.log.iter().all(|(_, packet)| packet.options.timestamps.is_none()));
    assert!(!pair.client.tcp.uses_timestamps());
}

#[test]
fn closing_before_the_answer_leaves_nothing_behind() {
    let mut pair = Pair::new(config());
    pair.transmit();
    pair.client.tcp.close();
    assert_eq!(pair.client.tcp.state(), SubflowState::Closed);
    assert_eq!(pair.client.tcp.next_timeout(), None);
}
