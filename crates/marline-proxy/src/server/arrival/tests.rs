//! Tests of the queue of TLS handshakes.

use std::time::Duration;

use tokio::time::timeout;

use super::*;

const SMALL: AdmissionLimits = AdmissionLimits {
    per_source: 2,
    total: 3,
    waiting_per_source: 1,
    waiting_total: 2,
    silent_per_source: 2,
    silent_total: 3,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns true if the handshake is evicted within 20 ms.
async fn is_evicted(ticket: &mut HandshakePermit) -> bool {
    timeout(Duration::from_millis(20), ticket.evicted()).await.is_ok()
}

#[tokio::test]
async fn a_source_waits_for_its_own_handshakes_and_others_do_not() {
    let queue = HandshakeQueue::new(SMALL);
    let first = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    let _second = queue.wait_for_permission(address("::ffff:192.0.2.1")).await.unwrap();
    let mut waiting = Box::pin(queue.wait_for_permission(address("192.0.2.1")));
    assert!(timeout(Duration::from_millis(20), &mut waiting).await.is_err());
    let _other = queue.wait_for_permission(address("2001:db8::1")).await.unwrap();
    assert_eq!(queue.count(), 3);
    drop(first);
    timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn stalled_handshakes_of_one_source_neither_refuse_a_newcomer_nor_evict_another_source() {
    let queue = HandshakeQueue::new(SMALL);
    let mut honest = queue.wait_for_permission(address("192.0.2.2")).await.unwrap();
    let mut oldest = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    let mut stalled = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    // All places are taken.
    let mut newcomer = queue.wait_for_permission(address("192.0.2.3")).await.unwrap();
    assert!(is_evicted(&mut oldest).await);
    assert!(!is_evicted(&mut honest).await && !is_evicted(&mut newcomer).await);
    drop(oldest);
    assert!(!is_evicted(&mut stalled).await);
    assert_eq!(queue.count(), 3);
    // Now every source has one handshake. A newcomer waits until the oldest has stalled.
    let late = timeout(STALL_TIME / 2, queue.wait_for_permission(address("192.0.2.4"))).await;
    assert!(late.is_err(), "no handshake has stalled yet");
    let _late = timeout(STALL_TIME, queue.wait_for_permission(address("192.0.2.4")))
        .await
        .unwrap()
        .unwrap();
    assert!(is_evicted(&mut honest).await, "the oldest");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_handshake_cedes_its_turn_and_the_oldest_is_evicted() {
    let queue = HandshakeQueue::new(SMALL);
    let mut stalled = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    let _second = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    let evicted = queue.wait_for_permission(address("192.0.2.1"));
    let next = queue.wait_for_permission(address("192.0.2.1"));
    let next = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let next = timeout(2 * STALL_TIME, next);
        tokio::select! {
            next = next => next.unwrap().unwrap(),
            () = async { stalled.evicted().await; drop(stalled); std::future::pending().await } => {
                unreachable!()
            }
        }
    };
    let (evicted, _next) = tokio::join!(evicted, next);
    assert_eq!(evicted.unwrap_err(), Evicted, "one may wait");
}

#[tokio::test]
async fn one_ipv6_network_is_one_source_and_nothing_is_left_behind() {
    let queue =
        HandshakeQueue::new(AdmissionLimits { per_source: 1, waiting_per_source: 1, ..SMALL });
    let ticket = queue.wait_for_permission(address("2001:db8:0:1::1")).await.unwrap();
    let same = queue.wait_for_permission(address("2001:db8:0:1:ffff::2"));
    assert!(timeout(Duration::from_millis(20), same).await.is_err(), "the handshake waits");
    let _other = queue.wait_for_permission(address("2001:db8:0:2::1")).await.unwrap();
    drop(ticket);
    for n in 0..100 {
        queue.wait_for_permission(address(&format!("198.51.100.{n}"))).await.unwrap();
    }
    assert!(lock(&queue.table.sources).len() <= 64);
    assert_eq!(queue.count(), 1);
}

#[tokio::test]
async fn a_canceled_waiter_frees_its_place() {
    let queue = HandshakeQueue::new(AdmissionLimits { per_source: 1, ..SMALL });
    let ticket = queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    for _ in 0..5 {
        let waiting = queue.wait_for_permission(address("192.0.2.1"));
        assert!(timeout(Duration::from_millis(5), waiting).await.is_err());
    }
    drop(ticket);
    queue.wait_for_permission(address("192.0.2.1")).await.unwrap();
    assert_eq!(queue.count(), 0);
}
