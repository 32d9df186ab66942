//! Compatibility tests with version 2 of the protocol, which has sessions and no remote forwards.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;

use super::channel::Channel;
use super::client::open::Open;
use super::client::tunnel::{Patience, Tunnel};
use super::message::Message;
use super::server::ServerLimits;
use super::testing::{Bench, Bound, echo_target};
use super::tls::{connector, server_name};

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
    let bench = Bench::new(ServerLimits::default());
    let mut config = (**connector(bench.key.pin()).unwrap().config()).clone();
    config.alpn_protocols = vec![ALPN.to_vec(), b"marline/1".to_vec()];
    let tls = TlsConnector::from(Arc::new(config));
    let below = bench.dial_from("192.0.2.1");
    let mut stream = Channel::tls(tls.connect(server_name(), below).await.unwrap());
    let mut bytes = Message::Hello { version: 2, token: bench.token.clone() }.to_bytes();
    Message::Connect(echo_target().await).encode(&mut bytes);
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    let welcome = Message::read(&mut stream).await.unwrap();
    assert!(matches!(welcome, Message::Welcome { session: Some(_), .. }), "{welcome}");
    assert_eq!(Message::read(&mut stream).await.unwrap(), Message::Working);
    assert_eq!(Message::read(&mut stream).await.unwrap(), Message::Connected);
}
