use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};

use super::open::{Open, OpenError};
use super::tunnel::{Connect, Timeouts, Tunnel};
use crate::channel::Channel;
use crate::message::{ErrorCode, Message};
use crate::secret::Secret;
use crate::server::ServerLimits;
use crate::testing::{Bench, BenchConnector, echo_target};
use crate::tls::ServerKey;
use crate::transport::Transport;

fn tunnel_to(bench: &Arc<Bench>, warm: usize) -> (Arc<Tunnel<BenchConnector>>, Arc<AtomicUsize>) {
    let connects = Arc::new(AtomicUsize::new(0));
    let connect = BenchConnector { bench: Arc::clone(bench), connects: Arc::clone(&connects) };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    (Tunnel::new(connect, pin, token, Timeouts::default(), warm).unwrap(), connects)
}

async fn echo(stream: &mut impl Transport) {
    stream.write_all(b"around").await.unwrap();
    stream.flush().await.unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"around");
}

#[tokio::test]
async fn a_cold_tunnel_opens_with_one_connection() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (tunnel, connects) = tunnel_to(&bench, 0);
    let mut stream = tunnel.open(&echo_target().await).await.unwrap();
    echo(&mut stream).await;
    assert_eq!(connects.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_warm_tunnel_uses_a_waiting_connection_and_refills() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let (tunnel, connects) = tunnel_to(&bench, 2);
    while bench.server.authenticated() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The server notices a little earlier than the pool.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut stream = tunnel.open(&echo_target().await).await.unwrap();
    echo(&mut stream).await;
    while bench.server.authenticated() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        connects.load(Ordering::Relaxed),
        3,
        "two at first, and one that replaces the used one"
    );
}

#[tokio::test]
async fn refusals_come_through_with_code_and_text_and_are_not_tried_twice() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    for warm in [0, 1] {
        let (tunnel, connects) = tunnel_to(&bench, warm);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let error = tunnel.open(&"192.168.7.7:80".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotAuthorized);
        assert!(error.to_string().contains("--allow 192.168.7.7"), "{error}");
        assert!(connects.load(Ordering::Relaxed) <= 1 + warm);
    }
}

#[tokio::test]
async fn a_wrong_token_says_so() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let connect = BenchConnector { bench: Arc::clone(&bench), connects: Arc::default() };
    let token = Secret::random().unwrap();
    let tunnel = Tunnel::new(connect, bench.key.pin(), token, Timeouts::default(), 0).unwrap();
    let error = tunnel.open(&echo_target().await).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAuthorized);
    assert!(error.to_string().contains("new invite"), "{error}");
}

/// A server with another key that counts the application bytes it receives.
struct Impostor {
    key: ServerKey,
    application_bytes: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
}

impl Connect for Impostor {
    type Stream = DuplexStream;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<DuplexStream> {
        let (near, far) = duplex(64 * 1024);
        let accept = self.key.acceptor()?.accept(far);
        let (bytes, failed) = (Arc::clone(&self.application_bytes), Arc::clone(&self.failed));
        tokio::spawn(async move {
            let Ok(mut stream) = accept.await else {
                failed.fetch_add(1, Ordering::SeqCst);
                return;
            };
            let mut buf = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut buf).await {
                bytes.fetch_add(read, Ordering::SeqCst);
            }
        });
        Ok(near)
    }
}

#[tokio::test]
async fn an_invite_of_another_server_fails_before_the_token_is_sent() {
    let bench = Bench::new(ServerLimits::default());
    let (application_bytes, failed) = (Arc::default(), Arc::default());
    let impostor = Impostor {
        key: ServerKey::generate().unwrap(),
        application_bytes: Arc::clone(&application_bytes),
        failed: Arc::clone(&failed),
    };
    let (pin, token) = (bench.key.pin(), bench.token.clone());
    let tunnel = Tunnel::new(impostor, pin, token, Timeouts::default(), 0).unwrap();
    let error = tunnel.open(&echo_target().await).await.unwrap_err();
    assert!(matches!(error, OpenError::Pin), "{error}");
    assert!(error.to_string().contains("key differs"), "{error}");
    while failed.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(application_bytes.load(Ordering::SeqCst), 0);
}

/// The first connection sends a greeting and then fails. Later ones lead to a bench.
struct BadFirst {
    bench: Arc<Bench>,
    connects: Arc<AtomicUsize>,
    /// Ends the connection when the request arrives, instead of staying silent.
    ends: bool,
}

impl Connect for BadFirst {
    type Stream = DuplexStream;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<DuplexStream> {
        if self.connects.fetch_add(1, Ordering::SeqCst) > 0 {
            return Ok(self.bench.dial_from("192.0.2.1"));
        }
        let (near, far) = duplex(64 * 1024);
        let (accept, ends) = (self.bench.key.acceptor()?.accept(far), self.ends);
        tokio::spawn(async move {
            let mut stream = Channel::tls(accept.await.unwrap());
            Message::read(&mut stream).await.unwrap();
            let welcome = Message::Welcome { idle_limit_s: 600, session: None, own: Vec::new() };
            stream.write_all(&welcome.to_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            Message::read(&mut stream).await.unwrap();
            if !ends {
                std::future::pending::<()>().await;
            }
        });
        Ok(near)
    }
}

#[tokio::test]
async fn a_warm_connection_that_turns_out_dead_is_replaced_by_a_fresh_one() {
    for ends in [true, false] {
        let bench = Arc::new(Bench::new(ServerLimits::default()));
        let connects = Arc::new(AtomicUsize::new(0));
        let connect = BadFirst { bench: Arc::clone(&bench), connects: Arc::clone(&connects), ends };
        let patience = Timeouts { warm: Duration::from_millis(200), ..Timeouts::default() };
        let token = bench.token.clone();
        let tunnel = Tunnel::new(connect, bench.key.pin(), token, patience, 1).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(connects.load(Ordering::SeqCst), 1, "one waits");
        let mut stream = tunnel.open(&echo_target().await).await.unwrap();
        echo(&mut stream).await;
    }
}

/// A stream whose local address may disappear in the first round trip. Only that property is read from it.
struct Handover {
    stream: DuplexStream,
    lost: bool,
}

impl AsyncRead for Handover {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.lost {
            return Poll::Ready(Err(io::ErrorKind::HostUnreachable.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Handover {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Transport for Handover {
    fn abort(self) {}
}

/// Connections of which the first ones lose their path.
struct LostFirst {
    bench: Arc<Bench>,
    connects: Arc<AtomicUsize>,
    lost: usize,
}

impl Connect for LostFirst {
    type Stream = Handover;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<Handover> {
        let lost = self.connects.fetch_add(1, Ordering::SeqCst) < self.lost;
        Ok(Handover { stream: self.bench.dial_from("192.0.2.1"), lost })
    }
}

#[tokio::test]
async fn a_connection_whose_path_is_lost_before_the_welcome_is_dialed_again() {
    let bench = Arc::new(Bench::new(ServerLimits::default()));
    let connects = Arc::new(AtomicUsize::new(0));
    let connect = LostFirst { bench: Arc::clone(&bench), connects: Arc::clone(&connects), lost: 2 };
    let token = bench.token.clone();
    let tunnel = Tunnel::new(connect, bench.key.pin(), token, Timeouts::default(), 0).unwrap();
    let mut stream = tunnel.open(&echo_target().await).await.unwrap();
    echo(&mut stream).await;
    assert_eq!(connects.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_keeps_silent_is_given_up() {
    struct Silent;
    impl Connect for Silent {
        type Stream = DuplexStream;
        async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<DuplexStream> {
            let (near, far) = duplex(1024);
            tokio::spawn(async move {
                let _far = far;
                std::future::pending::<()>().await;
            });
            Ok(near)
        }
    }
    let token = Secret::random().unwrap();
    let tunnel = Tunnel::new(Silent, [0; 32], token, Timeouts::default(), 0).unwrap();
    let error = tunnel.open(&"example.org:80".parse().unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 20 s"), "{error}");
    assert_eq!(error.code(), ErrorCode::NetworkFailure);
}
