//! Compatibility tests with version 1 of the protocol, as the first release speaks it: a client and
//! a server written against the specification, byte by byte, and frozen. They must interoperate
//! with the current program, both ways.
//!
//! Nothing here is to follow a change elsewhere: if this file has to be changed for a test to pass, old
//! clients and servers would have to be changed, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::client::open::Open;
use super::client::tunnel::{Connect, Patience, Tunnel};
use super::secret::Secret;
use super::server::ServerLimits;
use super::target::{Host, Target};
use super::testing::{Bench, Pipe, echo_target};
use super::tls::{ServerKey, connector, server_name};

const ALPN: &[u8] = b"marline/1";

fn old_connector(pin: [u8; 32]) -> TlsConnector {
    let mut config = (**connector(pin).unwrap().config()).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    TlsConnector::from(Arc::new(config))
}

fn old_acceptor(key: &ServerKey) -> TlsAcceptor {
    let mut config = (**key.acceptor().unwrap().config()).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// One message: type, and body.
async fn message(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let kind = stream.read_u8().await.unwrap();
    let mut body = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut body).await.unwrap();
    (kind, body)
}

/// A client of the first release asks for an IPv4 target: Hello and Connect in one go.
async fn old_client(bench: &Bench, target: &Target) {
    let Host::V4(address) = target.host else { panic!("tests use IPv4") };
    let below = bench.dial_bound("192.0.2.1", Some([7; 32]), Some([7; 32]));
    let tls = old_connector(bench.key.pin());
    let mut stream = tls.connect(server_name(), below).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(ALPN));
    let mut bytes = vec![1, 0, 33, 1];
    bytes.extend_from_slice(bench.token.expose());
    bytes.extend_from_slice(&[3, 0, 7]);
    bytes.extend_from_slice(&target.port.to_be_bytes());
    bytes.push(1);
    bytes.extend_from_slice(&address.octets());
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(message(&mut stream).await, (2, vec![2, 88]), "Welcome: 600 s, and nothing else");
    assert_eq!(message(&mut stream).await, (4, vec![]), "Working");
    assert_eq!(message(&mut stream).await, (5, vec![]), "Connected");
    stream.write_all(b"as ever").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.unwrap();
    assert_eq!(back, b"as ever");
}

/// A server of the first release, whose every target sends everything back.
struct OldServer {
    key: ServerKey,
    token: Secret,
    connects: Arc<AtomicUsize>,
}

async fn serve(acceptor: TlsAcceptor, token: Secret, below: Pipe) {
    let mut stream = acceptor.accept(below).await.unwrap();
    let (kind, body) = message(&mut stream).await;
    assert_eq!((kind, body[0]), (1, 1), "Hello, version 1");
    assert_eq!(body[1..], token.expose()[..]);
    stream.write_all(&[2, 0, 2, 2, 88]).await.unwrap();
    let (kind, _) = message(&mut stream).await;
    assert_eq!(kind, 3, "Connect");
    stream.write_all(&[4, 0, 0]).await.unwrap();
    stream.write_all(&[5, 0, 0]).await.unwrap();
    stream.flush().await.unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).await.unwrap();
    stream.write_all(&said).await.unwrap();
    stream.shutdown().await.unwrap();
}

impl Connect for OldServer {
    type Stream = Pipe;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<Pipe> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let (near, far) = duplex(64 * 1024);
        let pipe = |inner| Pipe::new(inner, Some([9; 32]));
        let below = pipe(far);
        tokio::spawn(serve(old_acceptor(&self.key), self.token.clone(), below));
        Ok(pipe(near))
    }
}

#[tokio::test]
async fn a_client_of_the_first_release_is_served() {
    let bench = Bench::new(ServerLimits::default());
    let target = echo_target().await;
    for _ in 0..2 {
        old_client(&bench, &target).await;
    }
    assert_eq!(bench.server.sessions_known(), 0, "it has no use for one");
}

#[tokio::test]
async fn a_server_of_the_first_release_is_spoken_to_as_ever() {
    let (key, token) = (ServerKey::generate().unwrap(), Secret::random().unwrap());
    let (pin, connects) = (key.pin(), Arc::new(AtomicUsize::new(0)));
    let old = OldServer { key, token: token.clone(), connects: Arc::clone(&connects) };
    let way = Tunnel::new(old, pin, token, Patience::default(), 0).unwrap();
    let all: Vec<_> = (0..30)
        .map(|_| {
            let way = Arc::clone(&way);
            tokio::spawn(async move {
                let mut stream = way.open(&"example.org:80".parse().unwrap()).await.unwrap();
                assert!(!stream.is_session());
                stream.write_all(b"as ever").await.unwrap();
                stream.shutdown().await.unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).await.unwrap();
                assert_eq!(back, b"as ever");
            })
        })
        .collect();
    for each in all {
        each.await.unwrap();
    }
    assert_eq!(connects.load(Ordering::Relaxed), 30, "each a handshake of its own, none in vain");
}
