//! In-memory server for tests of the client and the server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use marline::datagrams::LaneConfig;
use marline::memory::MemoryAccount;
use socket2::{Domain, Socket, Type};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::channel::Channel;
use super::client::tunnel::Connect;
use super::credentials::Credentials;
use super::rules::Rules;
use super::secret::Secret;
use super::server::{Server, ServerLimits};
use super::session::Binding;
use super::shutdown::Stopper;
use super::target::Target;
use super::tls::{ServerKey, connector, server_name};
use super::transport::{PeerState, Transport};

/// A server with its key, its credentials and a client's token.
pub(crate) struct Bench {
    pub(crate) server: Arc<Server>,
    pub(crate) key: ServerKey,
    pub(crate) token: Secret,
    pub(crate) credentials: watch::Sender<Arc<Credentials>>,
    pub(crate) stopper: Stopper,
}

impl Bench {
    /// Creates a server with one client, `laptop`, that may reach loopback.
    pub(crate) fn new(limits: ServerLimits) -> Bench {
        let mut credentials = Credentials::default();
        let token = credentials.add("laptop").unwrap();
        let key = ServerKey::generate().unwrap();
        let (sender, receiver) = watch::channel(Arc::new(credentials));
        let rules = Rules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
        let stopper = Stopper::default();
        let acceptor = key.acceptor().unwrap();
        let server = Server::new(acceptor, receiver, rules, limits, stopper.listen());
        Bench { server: Arc::new(server), key, token, credentials: sender, stopper }
    }

    /// Returns a bench whose server advertises these addresses of its own.
    pub(crate) fn advertising(own: Vec<SocketAddr>) -> Bench {
        let bench = Bench::new(ServerLimits::default());
        let server = Arc::into_inner(bench.server).expect("no other owner").advertise(own);
        Bench { server: Arc::new(server), ..bench }
    }

    /// Returns a connection from `source` below TLS.
    pub(crate) fn dial_from(&self, source: &str) -> DuplexStream {
        self.dial_bound(source, None, None).inner
    }

    /// Returns a connection from `source` whose ends have these bindings.
    pub(crate) fn dial_bound(
        &self,
        source: &str,
        near: Option<Binding>,
        far: Option<Binding>,
    ) -> Pipe {
        let (inner, there) = duplex(64 * 1024);
        let (server, source) = (Arc::clone(&self.server), source.parse::<IpAddr>().unwrap());
        let there = Pipe::new(there, far);
        let peer_known = Arc::clone(&there.peer_known);
        tokio::spawn(async move { server.serve(there, source).await });
        Pipe { peer_known, ..Pipe::new(inner, near) }
    }

    /// Returns a connection with TLS and no message yet.
    pub(crate) async fn dial_tls(&self) -> Channel<DuplexStream> {
        self.tls_over(self.dial_from("192.0.2.1")).await
    }

    /// TLS on a connection.
    pub(crate) async fn tls_over(&self, near: DuplexStream) -> Channel<DuplexStream> {
        let tls = connector(self.key.pin()).unwrap();
        Channel::tls(tls.connect(server_name(), near).await.unwrap())
    }
}

/// A pipe with the additional state of multipath streams: a binding, and a flag that the peer is known.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) inner: DuplexStream,
    pub(crate) binding: Option<Binding>,
    /// Set by the server's end, which shares the flag.
    pub(crate) peer_known: Arc<AtomicBool>,
    pub(crate) peer_state: PeerState,
}

impl Pipe {
    pub(crate) fn new(inner: DuplexStream, binding: Option<Binding>) -> Pipe {
        Pipe { inner, binding, peer_known: Arc::default(), peer_state: PeerState::default() }
    }
}

impl Transport for Pipe {
    fn abort(self) {}

    fn mark_authenticated(&self, _account: &MemoryAccount) {
        self.peer_known.store(true, Ordering::Relaxed);
    }

    fn binding(&self) -> Option<Binding> {
        self.binding
    }

    fn peer_state(&self) -> PeerState {
        self.peer_state
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Connects to a bench over pipes, each with a binding of its own.
pub(crate) struct Bound {
    pub(crate) bench: Arc<Bench>,
    pub(crate) connects: Arc<AtomicUsize>,
}

impl Connect for Bound {
    type Stream = Pipe;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<Pipe> {
        let number = self.connects.fetch_add(1, Ordering::Relaxed);
        let mut binding = [0; 32];
        binding[..8].copy_from_slice(&number.to_be_bytes());
        Ok(self.bench.dial_bound("192.0.2.1", Some(binding), Some(binding)))
    }
}

/// Connects to a bench and counts the connections.
pub(crate) struct BenchConnector {
    pub(crate) bench: Arc<Bench>,
    pub(crate) connects: Arc<AtomicUsize>,
}

impl Connect for BenchConnector {
    type Stream = DuplexStream;

    async fn connect(&self, _: &[SocketAddr]) -> anyhow::Result<DuplexStream> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        Ok(self.bench.dial_from("192.0.2.1"))
    }
}

/// Returns a TCP target that echoes all data, and ends when its peer does.
pub(crate) async fn echo_target() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buf = vec![0; 16 * 1024];
                while let Ok(read @ 1..) = stream.read(&mut buf).await {
                    if stream.write_all(&buf[..read]).await.is_err() {
                        return;
                    }
                }
                let _ = stream.shutdown().await;
            });
        }
    });
    address.into()
}

/// Returns settings of a lane.
pub(crate) fn lane_config() -> LaneConfig {
    let registry = marline::algos::Registry::default();
    let policy = registry.datagram_policy("auto").unwrap();
    LaneConfig::new(policy, registry.congestion("cubic-westwood").unwrap())
}

/// A TCP listener that does not answer: its queue is full.
pub(crate) struct Silent {
    listener: Socket,
    pub(crate) address: SocketAddr,
    _queue: Vec<Socket>,
}

impl Silent {
    pub(crate) fn start() -> Silent {
        let listener = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        while queue.len() < 8 {
            let next = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
            let _ = next.connect(&address.into());
            if next.peer_addr().is_err() {
                return Silent { listener, address, _queue: queue };
            }
            queue.push(next);
        }
        panic!("a queue of length 0 accepted {} connections", queue.len());
    }

    /// Accepts all queued connections, so that the next ones are answered.
    pub(crate) fn accept_all(&self) {
        while self.listener.accept().is_ok() {}
    }
}
