//! Front for a service without Multipath TCP: clients connect to Marline over several paths or with plain TCP, and
//! each connection is relayed to the service.
//!
//! Events on one side are passed to the other: the end of a direction as an end, a reset as a reset (MP_FASTCLOSE
//! toward multipath clients), and a slow reader makes the writer on the other side wait. Between the two there are one
//! buffer per direction and the send and receive buffers of the connection, all of them bounded.

mod backend;
mod header;
mod places;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use marline::memory::MemoryAccount;
use marline_io::{PendingLimits, Source};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

pub use backend::Backend;
use backend::Connected;
pub use header::HeaderVersion;
use places::{Place, Places};

use crate::memory_wait::wait_for_memory;
use crate::relay::{Traffic, log_end, relay};
use crate::server::admission::Full;
use crate::shutdown::Stop;
use crate::transport::Transport;

/// Limits of a front.
#[derive(Copy, Clone, Debug)]
pub struct FrontLimits {
    /// Connections in total.
    pub total: usize,
    /// Connections per source.
    pub per_source: usize,
    /// Idle time after which a connection is closed.
    pub idle: Option<Duration>,
    /// Time limit for connecting to the service.
    pub connect: Duration,
}

impl FrontLimits {
    const fn pending_limits(&self) -> PendingLimits {
        PendingLimits { total: self.total, per_source: self.per_source }
    }
}

impl Default for FrontLimits {
    fn default() -> Self {
        let connect = Duration::from_secs(10);
        FrontLimits { total: 4_096, per_source: 256, idle: None, connect }
    }
}

/// The front of a service.
#[derive(Debug)]
pub struct ServiceFront {
    service: RwLock<Arc<Service>>,
    places: Places,
    stop: Stop,
    /// Traffic of all connections.
    traffic: Arc<Traffic>,
}

/// Configuration of a connection from its start to its end.
#[derive(Debug)]
struct Service {
    backend: Backend,
    header: Option<HeaderVersion>,
    limits: FrontLimits,
}

impl ServiceFront {
    /// Creates a front for `backend`.
    #[must_use]
    pub fn new(
        backend: Backend,
        header: Option<HeaderVersion>,
        limits: FrontLimits,
        stop: Stop,
    ) -> ServiceFront {
        let places = Places::new(limits.pending_limits());
        let service = RwLock::new(Arc::new(Service { backend, header, limits }));
        ServiceFront { service, places, stop, traffic: Arc::default() }
    }

    /// Charges this account for the memory of connections.
    #[must_use]
    pub fn charge_to(self, memory: &MemoryAccount) -> ServiceFront {
        ServiceFront { traffic: Arc::new(Traffic::with_account(memory.clone())), ..self }
    }

    /// Applies this configuration to new connections. Existing ones are not affected.
    pub fn change(&self, backend: Backend, header: Option<HeaderVersion>, limits: FrontLimits) {
        let service = Arc::new(Service { backend, header, limits });
        *self.service.write().unwrap_or_else(PoisonError::into_inner) = service;
        self.places.bound(limits.pending_limits());
    }

    fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of current connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.count()
    }

    /// Serves one connection that `peer` opened to the local address `local`, to its end.
    pub async fn serve<T: Transport>(&self, stream: T, peer: SocketAddr, local: SocketAddr) {
        let traffic = Arc::new(Traffic::part_of(&self.traffic));
        let mut place = match self.places.take_place(Source::of(peer.ip()), &traffic) {
            Ok(place) => place,
            Err(full) => {
                let scope = if full == Full::Key { "from this source" } else { "in total" };
                tracing::warn!(%peer, "connection reset: too many connections {scope}");
                return stream.abort();
            }
        };
        let service = self.service();
        let connect = async {
            let _room = wait_for_memory(self.traffic.memory()).await;
            timeout(service.limits.connect, service.backend.connect(self.traffic.memory())).await
        };
        let connected = tokio::select! {
            connected = connect => connected,
            () = self.stop.wait_for_end() => return stream.abort(),
            () = place.evicted() => return evict(stream, peer),
        };
        let admitted = AdmittedConnection { service: &service, traffic, place, peer, local };
        match connected {
            Ok(Ok(Connected::Tcp(socket))) => {
                self.relay_connection(socket, stream, admitted).await;
            }
            Ok(Ok(Connected::Unix(socket))) => {
                self.relay_connection(socket, stream, admitted).await;
            }
            Ok(Err(error)) => {
                tracing::warn!(%peer, service = %service.backend, "cannot reach the service: {error}");
                stream.abort();
            }
            Err(_) => {
                tracing::warn!(%peer, service = %service.backend, "timed out connecting to the service; client reset");
                stream.abort();
            }
        }
    }

    async fn relay_connection<L: Transport, R: Transport>(
        &self,
        mut socket: L,
        stream: R,
        admitted: AdmittedConnection<'_>,
    ) {
        let AdmittedConnection { service, traffic, mut place, peer, local } = admitted;
        if let Some(version) = service.header {
            // The header fits in the empty send buffer of a new socket.
            if let Err(error) = socket.write_all(&version.header(peer, local)).await {
                tracing::warn!(%peer, service = %service.backend, "cannot reach the service: {error}");
                return stream.abort();
            }
        }
        tracing::debug!(%peer, %local, "connected");
        let cancel = pin!(async {
            tokio::select! {
                () = self.stop.wait_for_end() => {}
                () = silence(&traffic, service.limits.idle) => {
                    tracing::info!(%peer, "idle connection closed");
                }
                () = place.evicted() => log_eviction(peer),
            }
        });
        let begun = Instant::now();
        let result = relay(socket, stream, &traffic, cancel).await;
        log_end(&peer, begun, &traffic, &result);
        let (up_bytes, down_bytes) = traffic.counts();
        match result {
            Ok(_) => tracing::debug!(%peer, up_bytes, down_bytes, "connection closed"),
            Err(error) => {
                tracing::debug!(%peer, up_bytes, down_bytes, "connection failed: {error}")
            }
        }
    }
}

/// A connection that has a place.
struct AdmittedConnection<'a> {
    service: &'a Service,
    traffic: Arc<Traffic>,
    place: Place,
    peer: SocketAddr,
    local: SocketAddr,
}

fn evict(stream: impl Transport, peer: SocketAddr) {
    log_eviction(peer);
    stream.abort();
}

fn log_eviction(peer: SocketAddr) {
    tracing::info!(%peer, "idle connection evicted: others are waiting");
}

/// Resolves when nothing was relayed for `limit`, up to an eighth of it later.
async fn silence(traffic: &Traffic, limit: Option<Duration>) {
    const CHECKS_PER_LIMIT: u32 = 8;
    let Some(limit) = limit else { return std::future::pending().await };
    let (mut seen, mut same) = (traffic.counts(), 0);
    while same < CHECKS_PER_LIMIT {
        sleep(limit / CHECKS_PER_LIMIT).await;
        let now = traffic.counts();
        same = if now == seen { same + 1 } else { 0 };
        seen = now;
    }
}

#[cfg(test)]
mod tests;
