//! Compatibility tests with version 3 of the protocol, which has remote forwards and no datagrams.

use std::sync::Arc;

use super::client::tunnel::{Patience, Tunnel};
use super::server::ServerLimits;
use super::session::datagram_keys::LaneEnd;
use super::testing::{Bench, Bound, echoed, is_served};

const ALPN: &[u8] = b"marline/3";

fn tunnel(bench: &Arc<Bench>) -> Arc<Tunnel<Bound>> {
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let connect = Bound { bench: Arc::clone(bench), connects: Arc::default() };
    Tunnel::new(connect, pin, token, Patience::default(), 0).unwrap()
}

#[tokio::test]
async fn a_server_of_version_3_listens_and_is_not_asked_for_datagrams() {
    let bench = Arc::new(Bench::speaking(ServerLimits::default(), Some(ALPN)));
    bench.server.allow_remote(vec!["127.0.0.1:0".parse().unwrap()]);
    let way = tunnel(&bench);
    for _ in 0..2 {
        // Both by TLS and by the session that came of it.
        let refused = way.datagrams(|_| panic!("asked")).await.err().unwrap().to_string();
        assert!(refused.contains("older than datagrams"), "{refused}");
    }
    echoed(&*way).await;
    assert!(way.listen("127.0.0.1:0".parse().unwrap()).await.is_ok());
}

#[tokio::test]
async fn a_client_of_version_3_is_served() {
    is_served(3, &[ALPN, b"marline/2", b"marline/1"]).await;
}

#[tokio::test]
async fn a_connection_that_can_have_no_lane_is_told_so_and_others_go_on() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let way = tunnel(&bench);
    let end = LaneEnd { generation: [1; 16], lane: 1 };
    // The server offers none, ...
    let refused = way.datagrams(|_| Ok(end)).await.err().unwrap().to_string();
    assert!(refused.contains("carries no datagrams"), "{refused}");
    // ... or the connection is no multipath stream in UDP.
    bench.server.offer_datagrams(crate::testing::lane_config(), Default::default());
    let refused = way.datagrams(|_| Ok(end)).await.err().unwrap().to_string();
    assert!(refused.contains("need the UDP carrier"), "{refused}");
    echoed(&*way).await;
}
