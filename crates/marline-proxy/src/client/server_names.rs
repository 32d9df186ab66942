//! Addresses of the servers in an invite.
//!
//! The resolver may be in the network that just became unreachable. Therefore a connection uses an earlier answer
//! at once, and the answer is renewed in the background. The system's resolution asks one resolver at a time. If it
//! takes long, the resolvers of every path's own network are asked over that path as well.
//!
//! A server's address may change while its name stays. If the known addresses do not answer, on a new connection or
//! on all paths of the existing ones, the names are resolved again. Existing connections move to the new addresses,
//! or end if the server there does not know them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use marline::Client;
use marline::paths::{PathEvent, PathHealth};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep, timeout};

use crate::target::Target;

/// An answer is renewed when it is used after this time.
const FRESH: Duration = Duration::from_secs(60);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Enough for two resolvers that do not answer, each asked twice.
const FALLBACK_LOOKUP_TIMEOUT: Duration = Duration::from_secs(9);
/// Delay after which the paths' own resolvers are asked in addition to the usual resolution.
const HEAD_START: Duration = Duration::from_millis(500);
/// Smallest age of an answer before unanswered connections cause another resolution.
const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Time without received data after which connections to an address end that the name no longer has.
const RECEIVE_IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Addresses of a host from a resolution other than the system's.
pub type LookupFuture = Pin<Box<dyn Future<Output = Vec<IpAddr>> + Send>>;

/// Resolution of the servers' names: by the system, unless another way is set, which is then asked first.
#[derive(Clone, Default)]
pub struct NameLookup(Option<Arc<FallbackLookup>>);

type FallbackLookup = dyn Fn(&str) -> LookupFuture + Send + Sync;

impl NameLookup {
    /// Resolves with `way` and, if it finds nothing, with the system.
    pub fn by(way: impl Fn(&str) -> LookupFuture + Send + Sync + 'static) -> NameLookup {
        NameLookup(Some(Arc::new(way)))
    }

    async fn usual(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
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

    /// Addresses of a host from the usual resolution or a path's own resolver, whichever answers first.
    async fn addresses(&self, client: &Client, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let mut usual = pin!(self.usual(host));
        let failed = match timeout(HEAD_START, &mut usual).await {
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
struct Known {
    /// The latest answer with its time.
    answer: Option<(Instant, Vec<SocketAddr>)>,
    /// The latest failure with its time.
    failure: Option<(Instant, String)>,
    /// True if a task watches for the silence of all paths.
    watched: bool,
}

/// The servers' addresses, now and as they change.
#[derive(Debug)]
pub(super) struct ServerNames {
    client: Client,
    pub(super) servers: Vec<Target>,
    lookup: NameLookup,
    known: Mutex<Known>,
    /// Held while the names are resolved.
    asking: tokio::sync::Mutex<()>,
}

impl ServerNames {
    pub(super) fn new(client: Client, servers: Vec<Target>, lookup: NameLookup) -> Self {
        let (known, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        ServerNames { client, servers, lookup, known, asking }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses. Known ones are returned at once. If there are none, the names are resolved.
    ///
    /// # Errors
    /// No name resolves.
    pub(super) async fn addresses(self: &Arc<Self>) -> anyhow::Result<Vec<SocketAddr>> {
        let known = self.lock().answer.clone();
        match known {
            Some((at, addresses)) => {
                if at.elapsed() >= FRESH && self.asking.try_lock().is_ok() {
                    let names = Arc::clone(self);
                    tokio::spawn(async move { drop(names.ask(Instant::now()).await) });
                }
                Ok(addresses)
            }
            None => self.ask(Instant::now()).await,
        }
    }

    /// Resolves the names again because the known addresses do not answer, unless that was done just now, and
    /// passes the result to the existing connections. `Some`: there are addresses other than `tried`.
    pub(super) async fn renew(&self, tried: &[SocketAddr]) -> Option<Vec<SocketAddr>> {
        if !self.has_names() {
            return None;
        }
        let recently = Instant::now().checked_sub(RENEW_EVERY).unwrap_or_else(Instant::now);
        let now = self.ask(recently).await.ok()?;
        if now.iter().all(|address| tried.contains(address)) {
            return None;
        }
        let gone: Vec<SocketAddr> =
            tried.iter().copied().filter(|address| !now.contains(address)).collect();
        let moved = self.client.add_server_addresses(&gone, &now);
        if moved > 0 {
            self.client.expect_answer(&gone, RECEIVE_IDLE_LIMIT);
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
    async fn ask(&self, since: Instant) -> anyhow::Result<Vec<SocketAddr>> {
        let _asking = self.asking.lock().await;
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

    /// Starts to watch for the silence of all paths. Needs a runtime.
    pub(super) fn watch(self: &Arc<Self>) {
        if self.has_names() && !std::mem::replace(&mut self.lock().watched, true) {
            tokio::spawn(watch_silence(Arc::downgrade(self), self.client.path_events()));
        }
    }

    /// True if there are paths that are up, and no server answers on any of them.
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
            sleep(RENEW_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Names whose first lookup answers and whose later ones do not, with the number of lookups.
    async fn names() -> (Arc<ServerNames>, Arc<AtomicUsize>) {
        let mut client = Client::builder();
        let client = client.path("127.0.0.1".parse().unwrap()).bind().await.unwrap();
        let lookups = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lookups);
        let lookup = NameLookup::by(move |_| {
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
    async fn a_known_address_is_used_at_once_while_a_dead_resolver_is_asked_again_by_one() {
        let (names, lookups) = names().await;
        let known = names.addresses().await.unwrap();
        assert_eq!(known, ["192.0.2.1:7777".parse().unwrap()]);
        tokio::time::advance(FRESH).await;
        let asked_at = Instant::now();
        for _ in 0..20 {
            assert_eq!(names.addresses().await.unwrap(), known);
            tokio::task::yield_now().await;
        }
        assert_eq!(asked_at.elapsed(), Duration::ZERO, "nobody waits");
        assert_eq!(lookups.load(Ordering::Relaxed), 2, "one asks for all");
    }
}
