//! Multipath connections to the servers in an invite.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use marline::Client;
use tokio::time::timeout;

use super::server_names::ServerNames;
pub use super::server_names::{LookupFuture, NameLookup};
use super::tunnel::Connect;
use crate::target::Target;

/// Time after which a server that has not answered on any path counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Addresses that do not answer within this time may have passed to another machine, so their names are resolved
/// again.
const RERESOLVE_AFTER: Duration = Duration::from_secs(1);

/// Time for a member of a fleet to answer at its own address before the shared address is tried as well. Reaching
/// another member costs a TLS handshake.
const HEAD_START: Duration = Duration::from_millis(750);
/// If a member's own address did not answer while the shared one did, it is not tried again for this time.
const MEMBER_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Connections to such a member end when nothing is received on them for this time. Without evidence that the
/// network works, they would wait for it for an hour (decisions/outages.md).
const RECEIVE_IDLE_LIMIT: Duration = Duration::from_secs(120);

/// Connects over all paths.
#[derive(Debug)]
pub struct Dialer {
    client: Client,
    /// Protocol of the carrier, as named in firewalls.
    transport: &'static str,
    names: Arc<ServerNames>,
    /// Own addresses of a member that did not answer last, and the time of the attempt.
    silent: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Dialer {
    /// Connects to `servers` with `client`. `transport` is the protocol that firewalls see.
    #[must_use]
    pub fn new(client: Client, servers: Vec<Target>, transport: &'static str) -> Dialer {
        let names = ServerNames::new(client.clone(), servers, NameLookup::default());
        Dialer { client, transport, names: Arc::new(names), silent: Mutex::default() }
    }

    /// Replaces the resolution of the servers' names.
    #[must_use]
    pub fn resolving(self, names: NameLookup) -> Dialer {
        let servers = self.names.servers.clone();
        let names = ServerNames::new(self.client.clone(), servers, names);
        Dialer { names: Arc::new(names), ..self }
    }

    /// Text about the paths that were tried.
    fn paths(&self) -> String {
        let word = |path: marline::paths::PathStatus| {
            let cause = path.cause.filter(|_| !path.health.works());
            format!("{}: {}", path.spec, cause.as_deref().unwrap_or("no answer"))
        };
        self.client.paths().into_iter().map(word).collect::<Vec<_>>().join("; ")
    }
}

impl Dialer {
    /// Connects to an address of the servers' names. If the known addresses do not answer soon, the names are
    /// resolved again, and new addresses are tried in parallel.
    async fn connect_by_name(&self) -> anyhow::Result<marline::Stream> {
        let known = self.names.addresses().await?;
        self.names.watch();
        let mut to_known = pin!(self.connect_to(&known));
        let failed = match timeout(RERESOLVE_AFTER, &mut to_known).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        let to_others = async {
            match self.names.renew(&known).await {
                Some(others) => Some(self.connect_to(&others).await),
                None => None,
            }
        };
        match failed {
            Some(error) => to_others.await.unwrap_or(Err(error)),
            None => tokio::select! {
                stream = &mut to_known => stream,
                Some(stream) = to_others => stream,
            },
        }
    }

    async fn connect_to(&self, addresses: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        let servers = &self.names.servers;
        let result = timeout(CONNECT_TIMEOUT, self.client.connect(addresses)).await;
        let tried = match result {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(marline::ConnectError::Unreachable { attempts })) => {
                attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }
            Ok(Err(error)) => {
                return Err(error).with_context(|| format!("cannot connect to {}", names(servers)));
            }
            Err(_) => self.paths(),
        };
        Err(unanswered(servers, self.transport, &tried))
    }

    /// Connects by name because a member's own addresses gave no connection. If that succeeds, the network works,
    /// so connections to that member need not wait for it as long as in an outage.
    async fn connect_by_server_name(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        let stream = self.connect_by_name().await?;
        let asked = self.client.expect_answer(own, RECEIVE_IDLE_LIMIT);
        tracing::info!(
            "no answer from the server's own address {}: using {} for {} s; {asked} connections to it end \
             unless it answers within {} s",
            own[0],
            names(&self.names.servers),
            MEMBER_RETRY_PAUSE.as_secs(),
            RECEIVE_IDLE_LIMIT.as_secs()
        );
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), own.to_vec()));
        Ok(stream)
    }

    fn is_silent(&self, own: &[SocketAddr]) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.as_ref().is_some_and(|(at, known)| known == own && at.elapsed() < MEMBER_RETRY_PAUSE)
    }
}

impl Connect for Dialer {
    type Stream = marline::Stream;

    fn note_rejection(&self, reason: Option<String>) {
        self.client.set_rejection(reason);
    }

    /// If the member does not answer, the shared address is tried. A member that was killed refuses at once.
    async fn connect(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        if own.is_empty() || self.is_silent(own) {
            return self.connect_by_name().await;
        }
        let mut to_member = pin!(self.client.connect(own));
        match timeout(HEAD_START, &mut to_member).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(_)) => return self.connect_by_server_name(own).await,
            Err(_) => {}
        }
        // In parallel, and ignoring its failure: that of the names is more informative.
        let late = async {
            match to_member.await {
                Ok(stream) => stream,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            stream = late => Ok(stream),
            stream = self.connect_by_server_name(own) => stream,
        }
    }
}

fn names(servers: &[Target]) -> String {
    servers.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
}

fn unanswered(servers: &[Target], transport: &str, tried: &str) -> anyhow::Error {
    let ports: Vec<String> = servers.iter().map(|server| server.port.to_string()).collect();
    anyhow::anyhow!(
        "the server {} does not answer over {transport} (tried {tried}): is `marline server` running \
         there with the same --carrier, is {transport} port {} open in its firewall and its \
         provider's, and does this network let {transport} out?",
        names(servers),
        ports.join(", ")
    )
}
