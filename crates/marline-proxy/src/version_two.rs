//! Compatibility tests with version 2 of the protocol, which has sessions and no remote forwards.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::open::Open;
use super::client::tunnel::{Patience, Tunnel};
use super::server::ServerLimits;
use super::testing::{Bench, Bound, echo_target, is_served};

const ALPN: &[u8] = b"marline/2";

#[tokio::test]
async fn a_server_of_version_2_gives_sessions_and_is_not_asked_to_listen() {
    let bench = Arc::new(Bench::speaking(ServerLimits::default(), Some(ALPN)));
    bench.server.allow_remote(vec!["127.0.0.1:0".parse().unwrap()]);
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let connect = Bound { bench: Arc::clone(&bench), connects: Arc::default() };
    let way = Tunnel::new(connect, pin, token, Patience::default(), 0).unwrap();
    let target = echo_target().await;
    for is_session in [false, true] {
        let mut stream = way.open(&target).await.unwrap();
        assert_eq!(stream.is_session(), is_session);
        stream.write_all(b"as ever").await.unwrap();
        stream.flush().await.unwrap();
        let mut back = [0; 7];
        stream.read_exact(&mut back).await.unwrap();
        // Both by TLS and by the session that came of it.
        let refused = way.listen("127.0.0.1:0".parse().unwrap()).await.err().unwrap().to_string();
        assert!(refused.contains("older than remote forwards"), "{refused}");
    }
}

#[tokio::test]
async fn a_client_of_version_2_is_served() {
    is_served(2, &[ALPN, b"marline/1"]).await;
}
