//! Multipath connections to the servers that an invite names.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use marline::Client;
use tokio::time::timeout;

use super::tunnel::Connect;
use crate::target::Target;

/// Answers of the resolver are used this long, and for ever while it gives none: the network that
/// answers may be the one that just went away.
const FRESH: Duration = Duration::from_secs(60);
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Two resolvers that do not answer, each asked twice.
const OTHER_WAY_TIMEOUT: Duration = Duration::from_secs(9);

/// A server that has not answered on any path within this time does not.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A member of a fleet has so long to answer at its own address, before the one that leads to all is tried beside:
/// that of another costs a TLS handshake.
const HEAD_START: Duration = Duration::from_millis(750);
/// A member's own address that did not answer, while the common one did, is not tried again for so long.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// Connections that are with such a member end when nothing is heard on them for so long. Without a reason to
/// believe that the network is there, they would wait for it for an hour (decisions/outages.md).
const GONE_AFTER: Duration = Duration::from_secs(120);

/// Addresses of a host, by something other than the system's resolution.
pub type LookupFuture = Pin<Box<dyn Future<Output = Vec<IpAddr>> + Send>>;

/// How the servers' names are resolved: by the system unless there is another way, which is asked first.
#[derive(Clone, Default)]
pub struct NameLookup(Option<Arc<OtherWay>>);

type OtherWay = dyn Fn(&str) -> LookupFuture + Send + Sync;

impl NameLookup {
    /// By this way and, where it finds nothing, by the system.
    pub fn by(way: impl Fn(&str) -> LookupFuture + Send + Sync + 'static) -> NameLookup {
        NameLookup(Some(Arc::new(way)))
    }

    async fn addresses(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        if let Some(way) = &self.0 {
            let found = timeout(OTHER_WAY_TIMEOUT, way(host)).await.unwrap_or_default();
            if !found.is_empty() {
                return Ok(found.into_iter().map(|address| (address, port).into()).collect());
            }
        }
        match timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, port))).await {
            Ok(found) => Ok(found?.collect()),
            Err(_) => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer")),
        }
    }
}

impl fmt::Debug for NameLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "NameLookup(other)" } else { "NameLookup(system)" })
    }
}

/// Connects over all paths.
#[derive(Debug)]
pub struct Dialer {
    client: Client,
    servers: Vec<Target>,
    /// Protocol name of the carrier, as firewalls know it.
    transport: &'static str,
    names: NameLookup,
    known: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    /// Own addresses of a member that did not answer last, and when.
    silent: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
}

impl Dialer {
    /// Connects with `client`, whose packets firewalls know as `transport`, to `servers`.
    #[must_use]
    pub fn new(client: Client, servers: Vec<Target>, transport: &'static str) -> Dialer {
        Dialer {
            client,
            servers,
            transport,
            names: NameLookup::default(),
            known: Mutex::default(),
            silent: Mutex::default(),
        }
    }

    /// The same, with the servers' names resolved so.
    #[must_use]
    pub fn resolving(self, names: NameLookup) -> Dialer {
        Dialer { names, ..self }
    }

    /// The paths that were tried, in words.
    fn paths(&self) -> String {
        let word = |path: marline::PathStatus| {
            let cause = path.cause.filter(|_| !path.health.works());
            format!("{}: {}", path.spec, cause.as_deref().unwrap_or("no answer"))
        };
        self.client.paths().into_iter().map(word).collect::<Vec<_>>().join("; ")
    }

    async fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, addresses)) = &known
            && at.elapsed() < FRESH
        {
            return Ok(addresses.clone());
        }
        match self.resolve().await {
            Ok(addresses) => {
                let answer = Some((Instant::now(), addresses.clone()));
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = answer;
                Ok(addresses)
            }
            Err(error) => match known {
                Some((_, addresses)) => Ok(addresses),
                None => Err(error),
            },
        }
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
            match self.names.addresses(host, server.port).await {
                Ok(found) => addresses.extend(found),
                Err(error) => failure = Some(format!("{host} does not resolve: {error}")),
            }
        }
        match (addresses.is_empty(), failure) {
            (true, Some(failure)) => Err(anyhow::anyhow!(failure)),
            _ => Ok(addresses),
        }
    }
}

impl Dialer {
    async fn connect_by_name(&self) -> anyhow::Result<marline::Stream> {
        let addresses = self.addresses().await?;
        let result = timeout(CONNECT_TIMEOUT, self.client.connect(&addresses[..])).await;
        let tried = match result {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(marline::ConnectError::Unreachable { attempts })) => {
                attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }
            Ok(Err(error)) => {
                let names = names(&self.servers);
                return Err(error).with_context(|| format!("cannot connect to {names}"));
            }
            Err(_) => self.paths(),
        };
        Err(unanswered(&self.servers, self.transport, &tried))
    }

    /// Connects by name since a member's own addresses gave nothing. If that succeeds, it was not the network, and
    /// what is still with that member need not wait for a path as long as if it were.
    async fn connect_instead(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        let stream = self.connect_by_name().await?;
        let asked = self.client.expect_answer(own, GONE_AFTER);
        tracing::info!(
            "the server's own address {} does not answer: through {} for {} s; connections to it: {asked}, which end \
             if it stays silent for {} s",
            own[0],
            names(&self.servers),
            SILENT_FOR.as_secs(),
            GONE_AFTER.as_secs()
        );
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), own.to_vec()));
        Ok(stream)
    }

    fn is_silent(&self, own: &[SocketAddr]) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.as_ref().is_some_and(|(at, known)| known == own && at.elapsed() < SILENT_FOR)
    }
}

impl Connect for Dialer {
    type Stream = marline::Stream;

    fn note_rejection(&self, reason: Option<String>) {
        self.client.set_rejection(reason);
    }

    /// Where the member does not answer, the address that leads to all is asked: one that was killed refuses at once.
    async fn connect(&self, own: &[SocketAddr]) -> anyhow::Result<marline::Stream> {
        if own.is_empty() || self.is_silent(own) {
            return self.connect_by_name().await;
        }
        let mut to_member = pin!(self.client.connect(own));
        match timeout(HEAD_START, &mut to_member).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(_)) => return self.connect_instead(own).await,
            Err(_) => {}
        }
        // Beside it, and without its failure: the names' says more.
        let late = async {
            match to_member.await {
                Ok(stream) => stream,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            stream = late => Ok(stream),
            stream = self.connect_instead(own) => stream,
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
