//! Tests of handover to a sleeping path: with Fast JOIN to a Marline server on both carriers, and with an ordinary
//! join to the kernel, which does not support HELLO.

use std::net::SocketAddr;
use std::time::Duration;

use super::support::machines::on_two_machines;
use super::support::*;
use marline::advanced::interactive;
use marline::config::InteractiveParameters;
use marline::monitor::{Counters, Extensions};
use marline::paths::PathChange;
use marline::{Carrier, Client, Stream};
use marline_policy::Role;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ROUNDS: usize = 40;

async fn client_that_leaves(paths: [&str; 2], carrier: Carrier) -> Client {
    client_with(&paths, |config| {
        config.carrier(carrier);
        interactive(
            config.transport_mut().as_core_mut(),
            Role::Client,
            InteractiveParameters::Prompt,
        );
    })
    .await
}

async fn ask_and_hear(stream: &mut Stream, round: usize) {
    let (sent, mut got) = (bytes(700, round as u64), vec![0; 700]);
    within(async {
        stream.write_all(&sent).await.unwrap();
        stream.read_exact(&mut got).await.unwrap();
    })
    .await;
    assert!(got == sent, "round {round}");
}

/// Exchanges messages; halfway, the first path's address disappears while a message is in transit.
async fn leave(client: &Client, server: SocketAddr, first: &str, agreed: bool) -> Counters {
    let mut stream = within(client.connect(server)).await.unwrap();
    assert_eq!(stream.fallback(), None);
    for round in 0..ROUNDS / 2 {
        ask_and_hear(&mut stream, round).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let info = stream.info().expect("the connection lives");
    assert_eq!(info.extensions.contains(Extensions::FAST_JOIN), agreed, "{}", info.extensions);
    assert_eq!(info.subflows.len(), 1, "the other path sleeps");
    client.set_path(first, PathChange::Down).unwrap();
    for round in ROUNDS / 2..ROUNDS {
        ask_and_hear(&mut stream, round).await;
    }
    let info = stream.info().expect("the connection lives");
    assert_eq!(info.subflows.len(), 1, "{:?}", info.subflows);
    assert!(info.gone.len() == 1 && stream.fallback().is_none());
    let (counters, _) = client.counters();
    assert_eq!(counters.fast_join_fallback + counters.fast_join_bad_hmac, 0, "{counters:?}");
    counters
}

#[tokio::test]
async fn over_udp() {
    let listener = server(1).await;
    let client = client_that_leaves(["127.0.0.1", "127.0.0.2,backup"], Carrier::Udp).await;
    let echo = async {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    };
    let server = listener.local_addr();
    let counters = tokio::select! {
        counters = leave(&client, server, "127.0.0.1", true) => counters,
        () = echo => panic!("the server's side ended"),
    };
    assert_eq!((counters.fast_join_syn_tx, counters.fast_join_syn_ack_rx), (1, 1));
    let (served, _) = listener.counters()[0];
    assert_eq!(served.fast_join_syn_rx, 1, "{served:?}");
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work);
}

#[test]
fn natively_to_marline() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        let server = far.serve_marline("10.1.0.2:7000");
        run(async {
            let client = client_that_leaves(["near1", "near2,backup"], Carrier::Raw).await;
            let counters = leave(&client, server, "near1", true).await;
            assert_eq!((counters.fast_join_syn_tx, counters.fast_join_syn_ack_rx), (1, 1));
        });
    });
}

#[test]
fn natively_to_the_kernel() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        let server = far.serve("10.1.0.2:7000", true);
        run(async {
            let client = client_that_leaves(["near1", "near2,backup"], Carrier::Raw).await;
            let counters = leave(&client, server, "near1", false).await;
            assert!(counters.hello_tx >= 2, "{counters:?}");
            assert_eq!((counters.hello_rx, counters.fast_join_syn_tx), (0, 0));
            assert_eq!(counters.mp_capable_fallback, 0);
        });
        assert!(far.counter("MPTcpExtMPJoinAckRx") >= 1);
    });
}
