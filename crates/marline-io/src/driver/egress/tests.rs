//! Tests of combined sending.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use marline_core::FourTuple;
use marline_time::Duration;

use super::*;
use crate::driver::testing::{Target, shard};

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Batch of one sender, identified by `mark`.
fn of(mark: u8, to: SocketAddr, ecn: Ecn, bytes: &[u8]) -> Outgoing<'_> {
    let path = FourTuple { local: SocketAddr::new(LOCAL, 1), remote: to };
    let outer = Outer { socket: 0, local: LOCAL, remote: to };
    Outgoing { outer, ecn, stride: 0, bytes, sender: Sender::Subflow(path, mark.into()) }
}

/// Receives `count` messages: stride and bytes of each.
async fn receive_messages(target: &Target, count: usize) -> Vec<(usize, Vec<u8>)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (_, stride, bytes) = target.receive().await;
        all.push((stride, bytes));
    }
    all
}

#[tokio::test]
async fn equal_segments_of_several_senders_are_one_message() {
    let ((shard, _), target, other) = (shard(None), Target::new(), Target::new());
    let now = shard.clock().now();
    {
        let mut state = shard.lock();
        for (mark, len) in [(1, 100), (2, 100), (3, 60), (4, 100), (5, 120)] {
            gather(&mut state, now, &of(mark, target.address(), Ecn::Ect0, &vec![mark; len]));
        }
        gather(&mut state, now, &of(6, target.address(), Ecn::NotEct, &[6; 120]));
        gather(&mut state, now, &of(7, other.address(), Ecn::NotEct, &[7; 120]));
        let run = Outgoing { stride: 50, ..of(8, target.address(), Ecn::NotEct, &[8; 120]) };
        gather(&mut state, now, &run);
        gather(
            &mut state,
            now,
            &of(9, target.address(), Ecn::NotEct, &[9; MAX_GATHERED_BYTES + 1]),
        );
        send_gathered(&mut state, now);
    }
    let first = [vec![1; 100], vec![2; 100], vec![3; 60]].concat();
    let rest = [(100, 4, 100), (120, 5, 120), (120, 6, 120), (50, 8, 120), (4_097, 9, 4_097)];
    let mut wanted = vec![(100, first)];
    wanted.extend(rest.map(|(stride, mark, len)| (stride, vec![mark; len])));
    assert!(receive_messages(&target, 6).await == wanted);
    assert_eq!(receive_messages(&other, 1).await, [(120, vec![7; 120])]);
}

#[tokio::test]
async fn segments_the_kernel_cannot_take_wait_and_none_is_lost() {
    let ((shard, _), target) = (shard(None), Target::new());
    let now = shard.clock().now();
    let later = now + Duration::from_secs(1);
    {
        let mut state = shard.lock();
        let outer = Outer { socket: 0, local: LOCAL, remote: target.address() };
        state.sockets().stall(outer, Ecn::Ect0, 0, vec![0; 100]);
        for mark in 1..=40 {
            gather(&mut state, now, &of(mark, target.address(), Ecn::Ect0, &[mark; 100]));
        }
        send_gathered(&mut state, now);
        assert!(state.sockets().next_timeout().is_some(), "the segments wait");
        transmit(&mut state, later);
        assert_eq!(state.sockets().next_timeout(), None);
    }
    let run: Vec<u8> = (1..=40).flat_map(|mark| [mark; 100]).collect();
    assert!(
        receive_messages(&target, 2).await == [(100, vec![0; 100]), (100, run)],
        "all 40 senders"
    );
}

#[tokio::test]
async fn an_earlier_send_error_does_not_stop_other_senders() {
    let ((shard, _), target) = (shard(None), Target::new());
    let nobody = Target::new().address();
    let now = shard.clock().now();
    {
        let mut state = shard.lock();
        gather(&mut state, now, &of(1, nobody, Ecn::Ect0, &[1; 100]));
        // On this machine, the error for the first segment arrives before the next one is sent.
        for mark in 2..=4 {
            gather(&mut state, now, &of(mark, target.address(), Ecn::Ect0, &[mark; 100]));
        }
        send_gathered(&mut state, now);
    }
    let wanted = [2, 3, 4].map(|mark| (100, vec![mark; 100]));
    assert!(
        receive_messages(&target, 3).await == wanted,
        "each separately, so that errors reach the right sender"
    );
}

#[test]
fn an_icmp_quote_names_a_lane_only_in_a_lane_frame() {
    let frame = [0x28, 0, 0, 0, 0, 0, 0, 0, 9, 1];
    assert_eq!(quoted_lane(&frame), Some(9));
    assert_eq!(quoted_lane(&frame[..8]), None);
    assert_eq!(quoted_lane(&[0x20, 0, 0, 0, 0, 0, 0, 0, 9]), None);
}
