//! Tests of network faults: failed paths, cut paths, NATs that lose their state.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn via(relay: &Relay, local: &str) -> String {
    format!("{local}={}", relay.address)
}

#[tokio::test]
async fn a_path_cut_in_the_middle_does_not_hurt() {
    let listener = server(1).await;
    let address = listener.local_addr();
    let (one, two) = (Relay::to(address).await, Relay::to(address).await);
    let paths = [via(&one, "127.0.0.1"), via(&two, "127.0.0.2")];
    let client = client(&[&paths[0], &paths[1]]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let data = bytes(8 << 20, 5);
    let sending = async {
        near.write_all(&data[..4 << 20]).await.unwrap();
        one.cut();
        near.write_all(&data[4 << 20..]).await.unwrap();
        near.shutdown().await.unwrap();
    };
    let ((), got) = within(async { tokio::join!(sending, receive(&mut far)) }).await;
    assert!(got == data);
    assert!(one.to_server.load(Ordering::Relaxed) > 100_000, "both paths were used");
    assert!(two.to_server.load(Ordering::Relaxed) > 100_000, "both paths were used");
}

#[tokio::test]
async fn a_nat_rebinding_costs_a_round_trip_not_the_connection() {
    let listener = server(1).await;
    let relay = Relay::to(listener.local_addr()).await;
    let client = client(&[&via(&relay, "127.0.0.1")]).await;
    let (near, far) = pair(&client, &listener).await;
    let (up, down) = (bytes(3 << 20, 6), bytes(3 << 20, 7));
    let (mut near_read, mut near_write) = tokio::io::split(near);
    let (mut far_read, mut far_write) = tokio::io::split(far);
    let rebinding = async {
        for round in 1..=3 {
            while relay.to_server.load(Ordering::Relaxed) < round * 700_000 {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            relay.rebind();
        }
    };
    let ((), (), (), got_up, got_down) = within(async {
        tokio::join!(
            rebinding,
            send(&mut near_write, &up),
            send(&mut far_write, &down),
            receive(&mut far_read),
            receive(&mut near_read)
        )
    })
    .await;
    assert!(got_up == up && got_down == down);
    let (_, carrier) = listener.counters()[0];
    assert!(carrier.moves >= 1, "{carrier:?}");
    assert_eq!(carrier.bad_responses, 0, "{carrier:?}");
}

#[tokio::test]
async fn a_download_survives_a_rebinding_that_loses_all_under_way() {
    let listener = server(1).await;
    let relay = Relay::to(listener.local_addr()).await;
    let client = client(&[&via(&relay, "127.0.0.1")]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    let data = bytes(8 << 20, 13);
    let fault = async {
        while relay.to_client.load(Ordering::Relaxed) < 500_000 {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        // By then, the client has acknowledged everything: it has nothing more to send.
        relay.cut();
        tokio::time::sleep(Duration::from_millis(200)).await;
        relay.rebind();
        relay.restore();
    };
    let ((), (), got) =
        within(async { tokio::join!(fault, send(&mut far, &data), receive(&mut near)) }).await;
    assert!(got == data);
    let (_, carrier) = client.counters();
    // Keepalives are otherwise due only after 15 s of silence: the client sent one because the flow became quiet.
    assert!(carrier.keepalives >= 1, "{carrier:?}");
    assert_eq!(listener.counters()[0].1.moves, 1);
}

#[tokio::test]
async fn an_idle_connection_survives_a_rebinding_by_its_keepalive() {
    let listener = server(1).await;
    let relay = Relay::to(listener.local_addr()).await;
    let path = via(&relay, "127.0.0.1");
    let client = client_with(&[&path], |c| {
        c.udp_keepalive(Duration::from_millis(100));
    })
    .await;
    let (mut near, mut far) = pair(&client, &listener).await;
    near.write_all(b"a").await.unwrap();
    within(far.read_u8()).await.unwrap();
    relay.rebind();
    within(async {
        while listener.counters()[0].1.moves == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // After the silence, the server sends first: its data reaches the client at the new address.
    far.write_all(b"b").await.unwrap();
    assert_eq!(within(near.read_u8()).await.unwrap(), b'b');
}

#[tokio::test]
async fn the_first_path_being_dead_does_not_matter() {
    let listener = server(1).await;
    let address = listener.local_addr();
    let (dead, alive) = (Relay::to(address).await, Relay::to(address).await);
    dead.cut();
    let paths = [via(&dead, "127.0.0.1"), via(&alive, "127.0.0.2")];
    let client = client(&[&paths[0], &paths[1]]).await;
    let started = std::time::Instant::now();
    let (mut near, mut far) = pair(&client, &listener).await;
    let first = started.elapsed();
    assert!(first < Duration::from_secs(1), "it waited for a SYN timeout: {first:?}");
    let data = bytes(200_000, 8);
    let ((), got) = within(async { tokio::join!(send(&mut near, &data), receive(&mut far)) }).await;
    assert!(got == data);
    // The winner is tried first from now on.
    let started = std::time::Instant::now();
    let _second = pair(&client, &listener).await;
    assert!(started.elapsed() < Duration::from_millis(90), "{:?}", started.elapsed());
    let waiting = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(waiting.is_err(), "the losing attempt does not show up at the server");
}

#[tokio::test]
async fn a_path_that_is_not_there_is_waited_for_and_named_in_errors() {
    let listener = server(1).await;
    for path in ["203.0.113.77", "nosuch0"] {
        let mut builder = marline::Client::builder();
        let client = builder.path(path.parse().unwrap()).bind().await.unwrap();
        let status = &client.paths()[0];
        assert!(!status.up && status.cause.as_ref().is_some_and(|why| why.contains(path)));
        let error = client.connect(listener.local_addrs()[0]).await.unwrap_err();
        assert!(matches!(error, marline::ConnectError::NoPath { .. }), "{error:?}");
        assert!(error.to_string().contains(path), "{error}");
    }
}

#[tokio::test]
async fn paths_can_be_taken_down_and_up_by_hand() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    client.set_path("1", marline::paths::PathChange::Down).unwrap();
    within(async {
        while near.info().unwrap().subflows.len() > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let paths = client.paths();
    assert!(paths[0].up && !paths[1].up);
    client.set_path("127.0.0.2", marline::paths::PathChange::Up).unwrap();
    wait_for_subflows(&near, 2).await;
    near.write_all(b"still here").await.unwrap();
    let mut buf = [0; 10];
    within(far.read_exact(&mut buf)).await.unwrap();
    let error = client.set_path("wlan9", marline::paths::PathChange::Down).unwrap_err().to_string();
    assert!(error.contains("wlan9"), "{error}");
}

/// This test keeps a connection without a path for a minute; the proxy keeps it for an hour.
#[tokio::test]
async fn a_server_that_is_asked_for_an_answer_and_stays_silent_is_given_up() {
    let listener = server(1).await;
    let address = listener.local_addr();
    let (one, other) = (Relay::to(address).await, Relay::to(address).await);
    let client = client(&["127.0.0.1"]).await;
    let (mut near, _far) = pair_at(&client, &listener, one.address).await;
    let (mut bystander, mut its_far) = pair_at(&client, &listener, other.address).await;
    let patience = Duration::from_secs(1);
    assert_eq!(client.expect_answer(&[one.address], patience), 1);
    let quiet = tokio::time::timeout(patience * 3 / 2, near.read_u8()).await;
    assert!(quiet.is_err(), "the server answers but has no data to send: {quiet:?}");
    one.cut();
    assert_eq!(client.expect_answer(&[one.address], patience), 1);
    let ended = within(near.read_u8()).await.unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::TimedOut);
    bystander.write_all(b"a").await.unwrap();
    assert_eq!(within(its_far.read_u8()).await.unwrap(), b'a');
}
