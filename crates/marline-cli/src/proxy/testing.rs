//! A server in memory, for the tests of both ends.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::client::tunnel::Connect;
use super::credentials::Credentials;
use super::rules::Rules;
use super::secret::Secret;
use super::server::{Server, ServerLimits};
use super::shutdown::Stopper;
use super::target::Target;
use super::tls::{ClientStream, ServerKey, connector, server_name};
use super::transport::Transport;

/// A server and what its owner holds.
pub(crate) struct Bench {
    pub(crate) server: Arc<Server>,
    pub(crate) key: ServerKey,
    pub(crate) token: Secret,
    pub(crate) credentials: watch::Sender<Arc<Credentials>>,
    pub(crate) stopper: Stopper,
}

impl Bench {
    /// A server with one client, `laptop`, that may reach loopback.
    pub(crate) fn new(limits: ServerLimits) -> Bench {
        let mut credentials = Credentials::default();
        let token = credentials.add("laptop").unwrap();
        let key = ServerKey::generate().unwrap();
        let (sender, receiver) = watch::channel(Arc::new(credentials));
        let rules = Rules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
        let stopper = Stopper::default();
        let server =
            Server::new(key.acceptor().unwrap(), receiver, rules, limits, stopper.listen());
        Bench { server: Arc::new(server), key, token, credentials: sender, stopper }
    }

    /// A connection from `source` below TLS.
    pub(crate) fn dial_from(&self, source: &str) -> DuplexStream {
        self.dial_over(source, |far| far)
    }

    /// The same, with the server's end wrapped.
    pub(crate) fn dial_over<T: Transport>(
        &self,
        source: &str,
        wrap: impl FnOnce(DuplexStream) -> T,
    ) -> DuplexStream {
        let (near, far) = duplex(64 * 1024);
        let (server, source) = (Arc::clone(&self.server), source.parse::<IpAddr>().unwrap());
        let far = wrap(far);
        tokio::spawn(async move { server.serve(far, source).await });
        near
    }

    /// A connection with TLS, nothing said yet.
    pub(crate) async fn dial_tls(&self) -> ClientStream<DuplexStream> {
        self.tls_over(self.dial_from("192.0.2.1")).await
    }

    /// TLS on a connection.
    pub(crate) async fn tls_over(&self, near: DuplexStream) -> ClientStream<DuplexStream> {
        let tls = connector(self.key.pin()).unwrap();
        ClientStream::new(tls.connect(server_name(), near).await.unwrap())
    }
}

/// Connects to a bench, and counts.
pub(crate) struct ToBench {
    pub(crate) bench: Arc<Bench>,
    pub(crate) connects: Arc<AtomicUsize>,
}

impl Connect for ToBench {
    type Stream = DuplexStream;

    async fn connect(&self) -> anyhow::Result<DuplexStream> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        Ok(self.bench.dial_from("192.0.2.1"))
    }
}

/// A TCP target that sends everything back, and ends when its peer does.
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
