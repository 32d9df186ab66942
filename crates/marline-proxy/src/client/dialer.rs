//! Multipath connections to the servers in an invite, and the addresses of those servers.
//!
//! The resolver may be in the network that just became unreachable. Therefore a connection immediately uses an earlier
//! answer, which is renewed in the background. The system queries one resolver at a time. If this takes long, the
//! resolvers of each path's own network are queried over that path as well.
//!
//! A server's address may change while its name stays. If the known addresses do not answer, on a new connection or
//! on all paths of the existing ones, the names are resolved again. Existing connections move to the new addresses,
//! or end if the server there does not know them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context;
use marline::Client;
use marline::paths::{PathEvent, PathHealth};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep, timeout};

use super::tunnel::Connect;
use crate::target::Target;

/// Time after which a server that has not answered on any path counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Time without an answer after which names are resolved again, because their addresses may have passed to another
/// machine.
const RERESOLVE_AFTER: Duration = Duration::from_secs(1);

/// Time for a member of a fleet to answer at its own address before the shared address is tried as well. Reaching
/// another member costs a TLS handshake.
const SHARED_ADDRESS_DELAY: Duration = Duration::from_millis(750);
/// Time for which a member's own address is not tried again after only the shared address has answered.
const MEMBER_RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Time without received data after which connections to such a member end. Without evidence that the network works,
/// they would wait an hour for it (decisions/outages.md).
const MEMBER_IDLE_LIMIT: Duration = Duration::from_secs(120);

/// Age of a DNS answer from which it is renewed when it is used.
const RENEW_AFTER: Duration = Duration::from_secs(60);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a lookup by another resolver: enough for two queries to each of two resolvers that do not answer.
const FALLBACK_LOOKUP_TIMEOUT: Duration = Duration::from_secs(9);
/// Delay after which the paths' own resolvers are queried in addition to the usual resolution.
const PATH_RESOLVER_DELAY: Duration = Duration::from_millis(500);
/// Minimum age of a DNS answer before failed connection attempts cause another lookup.
const MIN_RESOLVE_INTERVAL: Duration = Duration::from_secs(3);
/// Time without received data after which a connection ends if the name no longer has its address.
const GONE_ADDRESS_IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Connects over all paths.
#[derive(Debug)]
pub struct Dialer {
    client: Client,
    /// Protocol that a firewall must allow: `TCP` or `UDP`.
    transport: &'static str,
    names: Arc<ServerNames>,
    /// A member's own addresses that did not answer at the last attempt, and the time of that attempt.
    silent: Mutex<Option<(std::time::Instant, Vec<SocketAddr>)>>,
}

impl Dialer {
    /// Connects to `servers` with `client`. `transport` is the protocol that firewalls see.
    #[must_use]
    pub fn new(client: Client, servers: Vec<Target>, transport: &'static str) -> Dialer {
        let names = ServerNames::new(client.clone(), servers, NameLookup::default());
        Dialer { client, transport, names: Arc::new(names), silent: Mutex::default() }
    }

    /// Resolves server names with `names`.
    #[must_use]
    pub fn resolving(self, names: NameLookup) -> Dialer {
        let servers = self.names.servers.clone();
        let names = ServerNames::new(self.client.clone(), servers, names);
        Dialer { names: Arc::new(names), ..self }
    }

    /// Describes the paths that were tried, for an error.
    fn paths(&self) -> String {
        let word = |path: marline::paths::PathStatus| {
            let cause = path.cause.filter(|_| !path.health.is_usable());
            format!("{}: {}", path.spec, cause.as_deref().unwrap_or("no answer"))
        };
        self.client.paths().into_iter().map(word).collect::<Vec<_>>().join("; ")
    }
}

impl Dialer {
    /// Connects to an address to which the servers' names resolve. If the known addresses do not answer soon, the names
    /// are resolved again, and new addresses are tried in parallel.
    async fn connect_by_name(&self) -> anyhow::Result<marline::Stream> {
        let known = self.names.addresses().await?;
        self.names.watch_silence();
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
        Err(unanswered_error(servers, self.transport, &tried))
    }

    /// Connects by name because a member's own addresses gave no connection. If that succeeds, the network works,
    /// so connections to that member need not wait for it as long as in an outage.
    async fn connect_by_server_name(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        let stream = self.connect_by_name().await?;
        let asked = self.client.expect_answer(own, MEMBER_IDLE_LIMIT);
        tracing::info!(
            "no answer from the server's own address {}: using {} for {} s; {asked} connections to it end \
             unless it answers within {} s",
            own[0],
            names(&self.names.servers),
            MEMBER_RETRY_PAUSE.as_secs(),
            MEMBER_IDLE_LIMIT.as_secs()
        );
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((std::time::Instant::now(), own.to_vec()));
        Ok(stream)
    }

    fn is_silent(&self, own: &[SocketAddr]) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.as_ref().is_some_and(|(at, known)| known == own && at.elapsed() < MEMBER_RETRY_PAUSE)
    }
}

impl Connect for Dialer {
    type Stream = marline::Stream;

    fn record_rejection(&self, reason: Option<String>) {
        self.client.set_rejection(reason);
    }

    /// Connects to the member's own addresses. If the member does not answer, the shared address is tried. A member
    /// that was killed refuses immediately.
    async fn connect(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        if own.is_empty() || self.is_silent(own) {
            return self.connect_by_name().await;
        }
        let mut to_member = pin!(self.client.connect(own));
        match timeout(SHARED_ADDRESS_DELAY, &mut to_member).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(_)) => return self.connect_by_server_name(own).await,
            Err(_) => {}
        }
        // Tries both in parallel. An error of the member's attempt is ignored: that of the attempt by name says more.
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

/// Addresses of a host from a resolver other than the system's.
pub type LookupFuture = Pin<Box<dyn Future<Output = Vec<IpAddr>> + Send>>;

/// Lookup of server names: by another resolver first, if one is set, and then by the system.
#[derive(Clone, Default)]
pub struct NameLookup(Option<Arc<FallbackLookup>>);

type FallbackLookup = dyn Fn(&str) -> LookupFuture + Send + Sync;

impl NameLookup {
    /// Resolves with `way` and, if it finds nothing, with the system.
    pub fn with_lookup(way: impl Fn(&str) -> LookupFuture + Send + Sync + 'static) -> NameLookup {
        NameLookup(Some(Arc::new(way)))
    }

    async fn resolve_with_fallback(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        if let Some(way) = &self.0 {
            let found = timeout(FALLBACK_LOOKUP_TIMEOUT, way(host)).await.unwrap_or_default();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        match timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, 0))).await {
            Ok(found) => Ok(found?.map(|address| address.ip()).collect()),
            Err(_) => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer")),
        }
    }

    /// Returns the addresses of a host from the usual resolution or a path's own resolver, whichever answers first.
    async fn addresses(&self, client: &Client, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let mut usual = pin!(self.resolve_with_fallback(host));
        let failed = match timeout(PATH_RESOLVER_DELAY, &mut usual).await {
            Ok(Ok(found)) if !found.is_empty() => return Ok(found),
            Ok(other) => Some(other),
            Err(_) => None,
        };
        let mut by_paths = pin!(client.resolve(host));
        if let Some(failed) = failed {
            let found = by_paths.await;
            return if found.is_empty() { failed } else { Ok(found) };
        }
        tokio::select! {
            found = &mut by_paths => if found.is_empty() { usual.await } else { Ok(found) },
            usual = &mut usual => match usual {
                Ok(found) if !found.is_empty() => Ok(found),
                failed => {
                    let found = by_paths.await;
                    if found.is_empty() { failed } else { Ok(found) }
                }
            },
        }
    }
}

impl fmt::Debug for NameLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "NameLookup(other)" } else { "NameLookup(system)" })
    }
}

/// Results of resolving the names.
#[derive(Debug, Default)]
struct ResolvedNames {
    /// The latest DNS answer with its time.
    answer: Option<(Instant, Vec<SocketAddr>)>,
    /// The latest failure with its time.
    failure: Option<(Instant, String)>,
    /// True if a task waits for all paths to become silent.
    watched: bool,
}

/// Resolver for the servers' names that tracks address changes.
#[derive(Debug)]
struct ServerNames {
    client: Client,
    servers: Vec<Target>,
    lookup: NameLookup,
    known: Mutex<ResolvedNames>,
    /// Held while the names are resolved.
    resolve_lock: tokio::sync::Mutex<()>,
}

impl ServerNames {
    fn new(client: Client, servers: Vec<Target>, lookup: NameLookup) -> Self {
        let (known, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        ServerNames { client, servers, lookup, known, resolve_lock: asking }
    }

    fn lock(&self) -> MutexGuard<'_, ResolvedNames> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the servers' addresses, immediately if they are known. Otherwise, the names are resolved first.
    ///
    /// # Errors
    /// No name resolves.
    async fn addresses(self: &Arc<Self>) -> anyhow::Result<Vec<SocketAddr>> {
        let known = self.lock().answer.clone();
        match known {
            Some((at, addresses)) => {
                if at.elapsed() >= RENEW_AFTER && self.resolve_lock.try_lock().is_ok() {
                    let names = Arc::clone(self);
                    tokio::spawn(async move { drop(names.resolve_names(Instant::now()).await) });
                }
                Ok(addresses)
            }
            None => self.resolve_names(Instant::now()).await,
        }
    }

    /// Resolves the names again because the known addresses do not answer, unless that was done just now, and
    /// passes the result to the existing connections. Returns `Some` if there are addresses other than `tried`.
    async fn renew(&self, tried: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
        if !self.has_names() {
            return None;
        }
        let recently =
            Instant::now().checked_sub(MIN_RESOLVE_INTERVAL).unwrap_or_else(Instant::now);
        let now = self.resolve_names(recently).await.ok()?;
        if now.iter().all(|address| tried.contains(address)) {
            return None;
        }
        let gone: Vec<SocketAddr> =
            tried.iter().copied().filter(|address| !now.contains(address)).collect();
        let moved = self.client.add_server_addresses(&gone, &now);
        if moved > 0 {
            self.client.expect_answer(&gone, GONE_ADDRESS_IDLE_LIMIT);
        }
        tracing::info!(
            connections = moved,
            "the server does not answer and its name has new addresses; connecting to {}",
            now.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        );
        Some(now)
    }

    fn has_names(&self) -> bool {
        self.servers.iter().any(|server| server.host.as_name().is_ok())
    }

    /// Resolves the names, or waits for a running resolution. An answer or failure since `since` suffices.
    async fn resolve_names(&self, since: Instant) -> anyhow::Result<Vec<SocketAddr>> {
        let _asking = self.resolve_lock.lock().await;
        {
            let known = self.lock();
            if let Some((at, addresses)) = &known.answer
                && *at >= since
            {
                return Ok(addresses.clone());
            }
            if let Some((at, failure)) = &known.failure
                && *at >= since
            {
                anyhow::bail!("{failure}");
            }
        }
        let resolved = self.resolve().await;
        let mut known = self.lock();
        match &resolved {
            Ok(addresses) => known.answer = Some((Instant::now(), addresses.clone())),
            Err(failure) => known.failure = Some((Instant::now(), failure.to_string())),
        }
        resolved
    }

    async fn resolve(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        let mut failure = None;
        for server in &self.servers {
            let host = match server.host.as_name() {
                Ok(name) => name,
                Err(address) => {
                    addresses.push((address, server.port).into());
                    continue;
                }
            };
            match self.lookup.addresses(&self.client, host).await {
                Ok(found) => {
                    addresses.extend(found.into_iter().map(|ip| SocketAddr::new(ip, server.port)));
                }
                Err(error) => failure = Some(format!("{host} does not resolve: {error}")),
            }
        }
        match (addresses.is_empty(), failure) {
            (true, Some(failure)) => Err(anyhow::anyhow!(failure)),
            _ => Ok(addresses),
        }
    }

    /// Starts the task that resolves again when all paths are silent. Needs a runtime.
    fn watch_silence(self: &Arc<Self>) {
        if self.has_names() && !std::mem::replace(&mut self.lock().watched, true) {
            tokio::spawn(watch_silence(Arc::downgrade(self), self.client.path_events()));
        }
    }

    /// Returns true if some paths are up but no server answers on any of them.
    fn is_silent(&self) -> bool {
        let paths = self.client.paths();
        let mut up = paths.iter().filter(|path| path.up).peekable();
        up.peek().is_some() && up.all(|path| path.health == PathHealth::Unreachable)
    }
}

/// Resolves the names whenever all paths are silent, and repeats this while they are.
async fn watch_silence(names: Weak<ServerNames>, mut events: broadcast::Receiver<PathEvent>) {
    loop {
        if let Err(RecvError::Closed) = events.recv().await {
            return;
        }
        loop {
            let Some(names) = names.upgrade() else { return };
            if !names.is_silent() {
                break;
            }
            let tried = names.lock().answer.as_ref().map(|(_, addresses)| addresses.clone());
            names.renew(&tried.unwrap_or_default()).await;
            drop(names);
            sleep(MIN_RESOLVE_INTERVAL).await;
        }
    }
}

fn names(servers: &[Target]) -> String {
    servers.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")
}

fn unanswered_error(servers: &[Target], transport: &str, tried: &str) -> anyhow::Error {
    let ports: Vec<String> = servers.iter().map(|server| server.port.to_string()).collect();
    anyhow::anyhow!(
        "the server {} does not answer over {transport} (tried {tried}): is `marline server` running \
         there with the same --carrier, is {transport} port {} open in its firewall and its \
         provider's, and does this network let {transport} out?",
        names(servers),
        ports.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Returns the resolver that answers only the first lookup, with the number of lookups.
    async fn names() -> (Arc<ServerNames>, Arc<AtomicUsize>) {
        let mut client = Client::builder();
        let client = client.path("127.0.0.1".parse().unwrap()).bind().await.unwrap();
        let lookups = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lookups);
        let lookup = NameLookup::with_lookup(move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match number {
                    0 => vec![IpAddr::from([192, 0, 2, 1])],
                    _ => std::future::pending().await,
                }
            })
        });
        let servers = vec!["server.test:7777".parse().unwrap()];
        (Arc::new(ServerNames::new(client, servers, lookup)), lookups)
    }

    #[tokio::test(start_paused = true)]
    async fn known_addresses_are_used_immediately_while_one_task_retries_a_dead_resolver() {
        let (names, lookups) = names().await;
        let known = names.addresses().await.unwrap();
        assert_eq!(known, ["192.0.2.1:7777".parse().unwrap()]);
        tokio::time::advance(RENEW_AFTER).await;
        let asked_at = Instant::now();
        for _ in 0..20 {
            assert_eq!(names.addresses().await.unwrap(), known);
            tokio::task::yield_now().await;
        }
        assert_eq!(asked_at.elapsed(), Duration::ZERO, "no waiting task");
        assert_eq!(lookups.load(Ordering::Relaxed), 2, "one lookup serves all tasks");
    }
}
