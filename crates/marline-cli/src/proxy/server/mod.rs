//! The far end of the proxy: authenticates clients and connects to their targets.
//!
//! A connection's life: a place at the gate -> TLS -> Hello (all within ten seconds) -> Welcome -> it
//! waits, warm, for Connect -> the rules -> the target -> bytes. One multipath connection carries one
//! application connection: nothing waits behind somebody else's loss, and each can have its own
//! scheduler.

pub mod dial;
pub mod gate;
pub mod setup;

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use gate::{Full, Gate, GateLimits, Quota};

use crate::proxy::credentials::Credentials;
use crate::proxy::message::{ErrorCode, Failure, Message, VERSION};
use crate::proxy::relay::{Traffic, relay};
use crate::proxy::rules::Rules;
use crate::proxy::secret::{Digest, Secret};
use crate::proxy::shutdown::Stop;
use crate::proxy::target::Target;
use crate::proxy::tls::ServerStream;
use crate::proxy::transport::Transport;

/// Bounds of a server.
#[derive(Copy, Clone, Debug)]
pub struct ServerLimits {
    /// On unauthenticated connections.
    pub gate: GateLimits,
    /// Time to authenticate.
    pub authentication: Duration,
    /// Time an authenticated connection may wait for its request.
    pub idle: Duration,
    /// Connections per credential.
    pub per_client: usize,
    /// Authenticated connections in all.
    pub clients_total: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            gate: GateLimits::default(),
            authentication: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            per_client: 4_096,
            clients_total: 16_384,
        }
    }
}

/// What serves connections.
#[derive(Debug)]
pub struct Server {
    acceptor: Acceptor,
    credentials: watch::Receiver<Arc<Credentials>>,
    rules: RwLock<Arc<Rules>>,
    limits: ServerLimits,
    gate: Gate,
    clients: Quota<Arc<str>>,
    stop: Stop,
    /// Bytes from and to all targets.
    pub traffic: Traffic,
}

struct Acceptor(TlsAcceptor);

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// An authenticated connection's owner.
struct Client {
    name: Arc<str>,
    digest: Digest,
}

impl Server {
    /// A server with this key (in `acceptor`), these clients and rules.
    #[must_use]
    pub fn new(
        acceptor: TlsAcceptor,
        credentials: watch::Receiver<Arc<Credentials>>,
        rules: Rules,
        limits: ServerLimits,
        stop: Stop,
    ) -> Server {
        Server {
            acceptor: Acceptor(acceptor),
            credentials,
            rules: RwLock::new(Arc::new(rules)),
            gate: Gate::new(limits.gate),
            clients: Quota::new(limits.per_client, limits.clients_total),
            limits,
            stop,
            traffic: Traffic::default(),
        }
    }

    /// New requests are judged by these rules from now on, and a client may have so many connections.
    /// Those that run go on.
    pub fn change(&self, rules: Rules, per_client: usize) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        self.clients.bound(per_client, self.limits.clients_total);
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Connections that have not authenticated yet.
    #[must_use]
    pub fn unauthenticated(&self) -> usize {
        self.gate.count()
    }

    /// Connections that have.
    #[must_use]
    pub fn authenticated(&self) -> usize {
        self.clients.count()
    }

    /// Serves one connection from `peer` to its end.
    pub async fn serve<T: Transport>(&self, stream: T, peer: IpAddr) {
        let ticket = match self.gate.enter(peer) {
            Ok(ticket) => ticket,
            Err(full) => {
                let scope = if full == Full::Key { "from this source" } else { "in all" };
                tracing::warn!(%peer, "too many unauthenticated connections {scope}: refused");
                return stream.abort();
            }
        };
        // Boxed, for a handshake takes several times the room that a relay takes for hours.
        let hello = Box::pin(self.hello(stream));
        let (mut stream, token) = match timeout(self.limits.authentication, hello).await {
            Ok(Ok(heard)) => heard,
            Ok(Err(why)) => return tracing::info!(%peer, "not a client of ours: {why}"),
            Err(_) => return tracing::info!(%peer, "did not authenticate in time"),
        };
        let client = match self.authenticate(token) {
            Ok(client) => client,
            Err(failure) => {
                tracing::warn!(%peer, "refused: {}", failure.text);
                return refuse(stream, failure).await;
            }
        };
        // Only here: until the refusal above is over, it counts as unauthenticated.
        drop(ticket);
        let Ok(_place) = self.clients.enter(Arc::clone(&client.name)) else {
            tracing::warn!(client = %client.name, "too many connections: refused");
            let text = "this client has too many connections";
            return refuse(stream, Failure::new(ErrorCode::ResourceExceeded, text)).await;
        };
        stream.know_peer();
        tracing::debug!(%peer, client = %client.name, "authenticated");
        let target = tokio::select! {
            target = self.request(&mut stream) => target,
            () = self.stop.draining() => None,
            () = self.revoked(&client) => return stream.abort(),
        };
        match target {
            Some(Ok(target)) => self.carry(stream, &client, &target).await,
            Some(Err(failure)) => refuse(stream, failure).await,
            // Unused to its end: good order on both sides.
            None => drop(stream.shutdown().await),
        }
    }

    /// TLS and the client's greeting.
    async fn hello<T: Transport>(
        &self,
        stream: T,
    ) -> Result<(ServerStream<T>, Result<Secret, Failure>), std::io::Error> {
        let mut stream = ServerStream::new(self.acceptor.0.accept(stream).await?);
        let token = match Message::read(&mut stream).await? {
            Message::Hello { version: VERSION, token } => Ok(token),
            Message::Hello { version, .. } => {
                let text = format!("version {version} is not spoken here, {VERSION} is");
                Err(Failure::new(ErrorCode::UnsupportedVersion, text))
            }
            other => {
                let text = format!("expected Hello, not {other}");
                Err(Failure::new(ErrorCode::UnsupportedMessage, text))
            }
        };
        Ok((stream, token))
    }

    fn authenticate(&self, token: Result<Secret, Failure>) -> Result<Client, Failure> {
        let digest = token?.digest();
        let credentials = self.credentials.borrow();
        let found = credentials.find(&digest);
        let name = found.map(|credential| Arc::clone(&credential.name));
        match name {
            Some(name) => Ok(Client { name, digest }),
            None => {
                let text =
                    "this credential is unknown here (was it revoked?): ask for a new invite";
                Err(Failure::new(ErrorCode::NotAuthorized, text))
            }
        }
    }

    /// Greets, and waits for the client's wish; `None` is an end without one.
    async fn request<T: Transport>(
        &self,
        stream: &mut ServerStream<T>,
    ) -> Option<Result<Target, Failure>> {
        let idle_limit_s = self.limits.idle.as_secs().min(u64::from(u16::MAX)) as u16;
        send(stream, &Message::Welcome { idle_limit_s }).await.ok()?;
        match timeout(self.limits.idle, Message::read(stream)).await.ok()? {
            Ok(Message::Connect(target)) => Some(Ok(target)),
            Ok(other) => {
                let text = format!("expected Connect, not {other}");
                Some(Err(Failure::new(ErrorCode::UnsupportedMessage, text)))
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Some(Err(Failure::new(ErrorCode::Malformed, error.to_string())))
            }
            Err(_) => None,
        }
    }

    async fn carry<T: Transport>(
        &self,
        mut stream: ServerStream<T>,
        client: &Client,
        target: &Target,
    ) {
        let name = &client.name;
        if send(&mut stream, &Message::Working).await.is_err() {
            return stream.abort();
        }
        let socket = match Box::pin(dial::dial(&self.rules(), target)).await {
            Ok(socket) => socket,
            Err(failure) => {
                tracing::warn!(client = %name, %target, "{}", failure.text);
                return refuse(stream, failure).await;
            }
        };
        if send(&mut stream, &Message::Connected).await.is_err() {
            socket.abort();
            return stream.abort();
        }
        tracing::debug!(client = %name, %target, "connected");
        let cancel = async {
            tokio::select! {
                () = self.stop.over() => {}
                () = self.revoked(client) => {}
            }
        };
        match relay(socket, stream, &self.traffic, cancel).await {
            Ok(()) => tracing::debug!(client = %name, %target, "done"),
            Err(error) => tracing::debug!(client = %name, %target, "broken: {error}"),
        }
    }

    /// Resolves when the client's credential is taken away.
    async fn revoked(&self, client: &Client) {
        let mut credentials = self.credentials.clone();
        let gone = credentials.wait_for(|now| now.find(&client.digest).is_none()).await.is_ok();
        if !gone {
            // Nobody follows the file any more: what is in force stays.
            std::future::pending::<()>().await;
        }
        tracing::info!(client = %client.name, "credential revoked: connection ended");
    }
}

async fn send<T: Transport>(
    stream: &mut ServerStream<T>,
    message: &Message,
) -> Result<(), std::io::Error> {
    stream.write_all(&message.to_bytes()).await?;
    stream.flush().await
}

/// Tells the client why not, and ends so that it can read it: what it sent ahead is read, or closing
/// would reset the connection and the answer with it.
async fn refuse<T: Transport>(mut stream: ServerStream<T>, failure: Failure) {
    const PATIENCE: Duration = Duration::from_secs(5);
    const MOST: u64 = 256 * 1_024;
    let _ = timeout(PATIENCE, async {
        send(&mut stream, &Message::Failed(failure)).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(MOST), &mut tokio::io::sink()).await
    })
    .await;
}

#[cfg(test)]
mod tests;
