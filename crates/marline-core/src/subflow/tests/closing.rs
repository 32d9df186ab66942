use marline_time::Duration;
use marline_wire::TcpFlags;

use super::pair::{Pair, WireEffect, config};
use crate::SubflowState;
use crate::subflow::SubflowEvent;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn assert_finished(pair: &mut Pair) {
    assert!(pair.client.saw(SubflowEvent::Finished), "{:?}", pair.client.tcp.state());
    assert!(pair.server().saw(SubflowEvent::Finished), "{:?}", pair.server().tcp.state());
    assert!(pair.client.saw(SubflowEvent::PeerFin) && pair.server().saw(SubflowEvent::PeerFin));
}

#[test]
fn the_first_to_close_waits_in_time_wait() {
    let mut pair = Pair::established(config());
    pair.client.written = 30_000;
    pair.client.close_after = true;
    pair.run_for(MS(200));
    assert_eq!(pair.client.tcp.state(), SubflowState::FinWait2);
    assert_eq!(pair.server().tcp.state(), SubflowState::CloseWait);
    assert_eq!(pair.server().received, 30_000);
    // the other direction still works
    pair.server().written = 10_000;
    pair.run_for(MS(100));
    assert_eq!(pair.client.received, 10_000);
    pair.server().tcp.close();
    pair.run_for(MS(100));
    assert_finished(&mut pair);
    assert_eq!(pair.client.tcp.state(), SubflowState::TimeWait);
    assert_eq!(pair.server().tcp.state(), SubflowState::Closed);
    pair.run_for(Duration::from_secs(61));
    assert_eq!(pair.client.tcp.state(), SubflowState::Closed);
    assert_eq!(pair.client.tcp.next_timeout(), None);
}

#[test]
fn simultaneous_close() {
    let mut pair = Pair::established(config());
    pair.client.tcp.close();
    pair.server().tcp.close();
    pair.transmit();
    assert_eq!(pair.client.tcp.state(), SubflowState::FinWait1);
    pair.run_for(MS(15));
    assert_eq!(pair.client.tcp.state(), SubflowState::Closing);
    pair.run_for(MS(50));
    assert_finished(&mut pair);
    assert_eq!(pair.client.tcp.state(), SubflowState::TimeWait);
    assert_eq!(pair.server().tcp.state(), SubflowState::TimeWait);
}

#[test]
fn lost_fins_and_acks_are_repeated() {
    for lost in 0..4 {
        let mut pair = Pair::established(config());
        let mut n = 0;
        pair.set_filter(move |_, _| {
            n += 1;
            if n == lost + 1 { WireEffect::Drop } else { WireEffect::Pass }
        });
        pair.client.tcp.close();
        pair.run_for(MS(5));
        pair.server().tcp.close();
        pair.run_for(Duration::from_secs(3));
        assert_finished(&mut pair);
    }
}

#[test]
fn a_fin_ahead_of_its_data_waits_for_it() {
    let mut pair = Pair::established(config());
    let mut dropped = false;
    pair.set_filter(move |_, packet| {
        if !packet.payload.is_empty() && !dropped {
            dropped = true;
            return WireEffect::Drop;
        }
        WireEffect::Pass
    });
    pair.client.written = 3_000;
    pair.client.close_after = true;
    pair.run_for(MS(15));
    assert!(!pair.server().saw(SubflowEvent::PeerFin));
    assert_eq!(pair.server().tcp.state(), SubflowState::Established);
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.server().received, 3_000);
    assert_eq!(pair.server().tcp.state(), SubflowState::CloseWait);
}

#[test]
fn a_repeated_fin_in_time_wait_is_answered() {
    let mut pair = Pair::established(config());
    pair.client.tcp.close();
    pair.run_for(MS(50));
    pair.server().tcp.close();
    let mut acks = 0;
    pair.set_filter(move |_, packet| {
        acks += usize::from(packet.to == 1);
        if packet.to == 1 && acks == 1 { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.run_for(Duration::from_secs(2));
    assert_finished(&mut pair);
}

#[test]
fn data_after_the_end_is_not_taken() {
    let mut pair = Pair::established(config());
    pair.server().tcp.close();
    pair.run_for(MS(50));
    assert_eq!(pair.client.tcp.state(), SubflowState::CloseWait);
    let header = pair.header_of(1);
    let ingress = pair.inject(0, header, b"more");
    assert!(ingress.in_order.is_none());
    assert!(pair.client.tcp.has_pending_ack());
}

#[test]
fn a_second_fin_elsewhere_changes_nothing() {
    let mut pair = Pair::established(config());
    let mut header = pair.header_of(1);
    header.seq = header.seq.add(1_000);
    header.flags = TcpFlags::ACK.with(TcpFlags::FIN);
    pair.inject(0, header, &[]);
    header.seq = header.seq.add(500);
    pair.inject(0, header, &[]);
    pair.server().written = 1_000;
    pair.run_for(MS(100));
    assert_eq!(pair.client.tcp.state(), SubflowState::CloseWait);
    assert_eq!(pair.client.received, 1_000);
}

#[test]
fn reset_says_so_once_and_is_heard() {
    let mut pair = Pair::established(config());
    pair.client.written = 10_000;
    pair.transmit();
    pair.client.tcp.reset();
    assert!(!pair.client.tcp.is_established());
    pair.run_for(MS(100));
    assert_eq!(pair.client.tcp.state(), SubflowState::Closed);
    assert!(pair.server().saw(SubflowEvent::Reset));
}

#[test]
fn close_before_the_handshake_ends_closes_after_it() {
    let mut pair = Pair::new(config());
    pair.run_for(MS(15));
    pair.server().tcp.close();
    pair.run_for(MS(100));
    assert_eq!(pair.client.tcp.state(), SubflowState::CloseWait);
    assert!(pair.client.saw(SubflowEvent::PeerFin));
}
