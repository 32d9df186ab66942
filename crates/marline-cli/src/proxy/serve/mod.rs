//! A front for a service that knows nothing of Multipath TCP: clients connect to Marline, over
//! several paths or as plain TCP, and each connection goes on to the service.
//!
//! What one side does, the other sees: an end of a direction is passed on as such, a reset as a
//! reset (MP_FASTCLOSE towards multipath clients), a reader that is slow makes the other side's writer
//! wait. Between the two lie one buffer per direction and the connection's own send and receive
//! buffers, all of them bounded.

mod backend;
mod header;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

pub use backend::Backend;
use backend::Connected;
pub use header::HeaderVersion;

use crate::proxy::relay::{Traffic, relay};
use crate::proxy::server::gate::{Full, Quota, source_of};
use crate::proxy::shutdown::Stop;
use crate::proxy::transport::Transport;

/// Bounds of a front.
#[derive(Copy, Clone, Debug)]
pub struct FrontLimits {
    /// Connections in all.
    pub total: usize,
    /// Connections of one source.
    pub per_source: usize,
    /// Silence after which a connection is ended.
    pub idle: Option<Duration>,
    /// Time for the service to accept.
    pub connect: Duration,
}

impl Default for FrontLimits {
    fn default() -> Self {
        let connect = Duration::from_secs(10);
        FrontLimits { total: 4_096, per_source: 256, idle: None, connect }
    }
}

/// What serves connections.
#[derive(Debug)]
pub struct ServiceFront {
    backend: Backend,
    header: Option<HeaderVersion>,
    limits: FrontLimits,
    places: Quota<IpAddr>,
    stop: Stop,
}

impl ServiceFront {
    /// A front for `backend`.
    #[must_use]
    pub fn new(
        backend: Backend,
        header: Option<HeaderVersion>,
        limits: FrontLimits,
        stop: Stop,
    ) -> ServiceFront {
        let places = Quota::new(limits.per_source, limits.total);
        ServiceFront { backend, header, limits, places, stop }
    }

    /// Connections that are served now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.count()
    }

    /// Serves one connection, which `peer` opened to our address `local`, to its end.
    pub async fn serve<T: Transport>(&self, stream: T, peer: SocketAddr, local: SocketAddr) {
        let _place = match self.places.enter(source_of(peer.ip())) {
            Ok(place) => place,
            Err(full) => {
                let scope = if full == Full::Key { "from this source" } else { "in all" };
                tracing::warn!(%peer, "too many connections {scope}: reset");
                return stream.abort();
            }
        };
        let connect = timeout(self.limits.connect, self.backend.connect());
        let connected = tokio::select! {
            connected = connect => connected,
            () = self.stop.over() => return stream.abort(),
        };
        match connected {
            Ok(Ok(Connected::Tcp(service))) => self.carry(service, stream, peer, local).await,
            Ok(Ok(Connected::Unix(service))) => self.carry(service, stream, peer, local).await,
            Ok(Err(error)) => {
                tracing::warn!(%peer, service = %self.backend, "the service: {error}");
                stream.abort();
            }
            Err(_) => {
                tracing::warn!(%peer, service = %self.backend, "the service does not accept");
                stream.abort();
            }
        }
    }

    async fn carry<L: Transport, R: Transport>(
        &self,
        mut service: L,
        stream: R,
        peer: SocketAddr,
        local: SocketAddr,
    ) {
        if let Some(version) = self.header {
            // A fresh socket has room for it.
            if let Err(error) = service.write_all(&version.header(peer, local)).await {
                tracing::warn!(%peer, service = %self.backend, "the service: {error}");
                return stream.abort();
            }
        }
        tracing::debug!(%peer, %local, "connected");
        let traffic = Arc::new(Traffic::default());
        let cancel = async {
            tokio::select! {
                () = self.stop.over() => {}
                () = silence(&traffic, self.limits.idle) => {
                    tracing::info!(%peer, "ended after silence");
                }
            }
        };
        let result = relay(service, stream, &traffic, cancel).await;
        let (up_bytes, down_bytes) = traffic.counts();
        match result {
            Ok(()) => tracing::debug!(%peer, up_bytes, down_bytes, "done"),
            Err(error) => tracing::debug!(%peer, up_bytes, down_bytes, "broken: {error}"),
        }
    }
}

/// Resolves when nothing was carried for `limit`, at most an eighth later.
async fn silence(traffic: &Traffic, limit: Option<Duration>) {
    const LOOKS: u32 = 8;
    let Some(limit) = limit else { return std::future::pending().await };
    let (mut seen, mut same) = (traffic.counts(), 0);
    while same < LOOKS {
        sleep(limit / LOOKS).await;
        let now = traffic.counts();
        same = if now == seen { same + 1 } else { 0 };
        seen = now;
    }
}

#[cfg(test)]
mod tests;
