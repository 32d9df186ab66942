//! Tests of unauthenticated traffic: floods of SYNs and joins, spoofed sources, noise.

use std::time::Duration;

use super::support::*;
use marline_testkit::fixtures::first_packet;
use marline_wire::mptcp::{MpCapableForm, MpJoin, MptcpOption};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

fn capable() -> MptcpOption {
    marline_testkit::capable(MpCapableForm::Syn)
}

fn join(token: u32) -> MptcpOption {
    MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 })
}

#[tokio::test]
async fn a_spoofed_source_gets_at_most_three_times_the_bytes_sent() {
    let listener = server(1).await;
    let victim = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut sent = 0;
    for flow in 1..=20u64 {
        let frame = first_packet(flow << 40 | 77, 9_000 + flow as u16, capable());
        sent += frame.len();
        victim.send_to(&frame, listener.local_addr()).await.unwrap();
    }
    // The victim never answers: the server's SYN/ACKs are retransmitted after timeouts of one second.
    let mut received = 0;
    let mut answers = 0;
    let mut buf = [0; 2_048];
    let listening = async {
        loop {
            received += victim.recv_from(&mut buf).await.unwrap().0;
            answers += 1;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(4_000), listening).await;
    assert!(answers >= 20, "the server answers SYNs: {answers}");
    assert!(received <= 3 * sent, "{received} bytes for {sent}");
    assert!(listener.counters()[0].1.withheld > 0, "retransmissions were withheld");
}

#[tokio::test]
async fn floods_leave_memory_bounded_and_connections_unharmed() {
    const SYN_QUEUE: usize = 64;
    let listener = server_with(1, |c| c.limits_mut().syn_queue = SYN_QUEUE).await;
    let address = listener.local_addr();
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let data = bytes(4 << 20, 11);
    let flood = async {
        let stranger = UdpSocket::bind("127.0.0.3:0").await.unwrap();
        let mut noise = bytes(400, 12);
        for n in 0..20_000u64 {
            let option = if n % 2 == 0 { capable() } else { join(n as u32) };
            let frame = first_packet(n << 32 | 5, n as u16, option);
            stranger.send_to(&frame, address).await.unwrap();
            noise[0] = if n % 2 == 0 { 0x10 } else { 0x20 } | (n as u8 & 7);
            noise[1..9].copy_from_slice(&n.to_be_bytes());
            stranger.send_to(&noise[..(n % 400) as usize], address).await.unwrap();
            if n % 64 == 0 {
                tokio::task::yield_now().await;
                assert!(listener.connections().len() <= SYN_QUEUE + 1);
            }
        }
    };
    let sending = async {
        near.write_all(&data).await.unwrap();
        near.shutdown().await.unwrap();
    };
    let ((), (), got) = within(async { tokio::join!(flood, sending, receive(&mut far)) }).await;
    assert!(got == data);
    let (core, carrier) = listener.counters()[0];
    assert!(core.mp_join_no_token > 1_000, "{core:?}");
    assert!(carrier.retries > 2_000, "{carrier:?}");
    assert!(carrier.malformed > 1_000, "{carrier:?}");
    // New connections are accepted.
    let (mut near, mut far) = pair(&client, &listener).await;
    near.write_all(b"!").await.unwrap();
    assert_eq!(within(far.read_u8()).await.unwrap(), b'!');
}

/// While an attacker floods the server from addresses that never answer, every honest client can connect.
#[tokio::test]
async fn honest_clients_connect_during_a_flood_of_syns() {
    const SYN_QUEUE: usize = 64;
    let listener = server_with(1, |c| c.limits_mut().syn_queue = SYN_QUEUE).await;
    let address = listener.local_addr();
    let stranger = UdpSocket::bind("127.0.0.3:0").await.unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let flood = async {
        let mut n = 0u64;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            for _ in 0..16 {
                n += 1;
                let frame = first_packet(n << 32 | 5, n as u16, capable());
                stranger.send_to(&frame, address).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
        n
    };
    let honest = async {
        // By then, the queue is full of the attacker's requests.
        while listener.counters()[0].1.retries == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..100 {
            let client = client(&["127.0.0.1"]).await;
            let (mut near, mut far) = pair(&client, &listener).await;
            near.write_all(b"!").await.unwrap();
            assert_eq!(within(far.read_u8()).await.unwrap(), b'!');
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (sent, ()) = within(async { tokio::join!(flood, honest) }).await;
    let (core, carrier) = listener.counters()[0];
    assert!(sent > 1_000 && carrier.retries > 500, "{sent} {carrier:?}");
    assert_eq!(core.syn_queue_overflow, 0, "no honest client was evicted");
}

/// A server is killed and replaced by another with the same seed: a client that only waits for data immediately notices
/// that none will arrive.
#[tokio::test]
async fn a_restarted_server_resets_its_old_clients() {
    let seed = marline::advanced::ResetSeed::new([3; 32]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (first, address) = runtime
        .spawn(async move {
            let listener = server_with(1, |c| {
                c.reset_seed(seed);
            })
            .await;
            let address = listener.local_addr();
            (listener, address)
        })
        .await
        .unwrap();
    let client = client(&["127.0.0.1"]).await;
    let (mut near, far) = pair(&client, &first).await;
    near.write_all(b"!").await.unwrap();
    // Killed without closing anything.
    runtime.shutdown_background();
    core::mem::forget((first, far));
    let again = async {
        loop {
            match marline::Server::builder().listen(address).reset_seed(seed).bind().await {
                Ok(listener) => return listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let second = within(again).await;
    let waiting = async {
        loop {
            if near.info().is_none_or(|info| info.subflows.is_empty()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(waiting).await;
    assert!(second.counters()[0].1.resets >= 1);
}
