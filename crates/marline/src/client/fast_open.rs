//! Connections by TCP Fast Open (RFC 7413), beside those that are opened as ever.

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_core::{ConnectionConfig, FourTuple};
use marline_policy::LocalAddress;
use marline_time::Duration;

use super::{Client, lock};
use crate::{ConnectError, Stream};

/// What connections are opened with: one configuration for all, as long as the local addresses stay the same, and one
/// for those with Fast Open once there are any.
#[derive(Debug)]
pub(super) struct OpenedWith {
    usual: Arc<ConnectionConfig>,
    fast: Option<Arc<ConnectionConfig>>,
}

impl OpenedWith {
    pub(super) fn new(config: ConnectionConfig) -> OpenedWith {
        OpenedWith { usual: Arc::new(config), fast: None }
    }

    /// The configuration of a connection that begins now.
    pub(super) fn config(
        &mut self,
        local_addresses: Vec<LocalAddress>,
        fast_open: bool,
    ) -> Arc<ConnectionConfig> {
        if self.usual.local_addresses != local_addresses {
            Arc::make_mut(&mut self.usual).local_addresses = local_addresses;
            self.fast = None;
        }
        if !fast_open {
            return Arc::clone(&self.usual);
        }
        let fast = self.fast.get_or_insert_with(|| {
            let mut config = ConnectionConfig::clone(&self.usual);
            config.fast_open.get_or_insert_default();
            Arc::new(config)
        });
        Arc::clone(fast)
    }
}

impl Client {
    /// As [`connect`](Self::connect), with TCP Fast Open (RFC 7413): where the server gave a cookie before, as much of
    /// `first` goes with the SYN as fits, and elsewhere a cookie is asked for. Gives the stream, and how many bytes of
    /// `first` were written to it: the caller writes the rest.
    ///
    /// *Whoever saw such a SYN can send it again*, and if another address answers sooner than the one that the data
    /// went to, both may have it: only for requests that may be carried out more than once.
    ///
    /// # Errors
    /// As of [`connect`](Self::connect).
    pub async fn connect_early(
        &self,
        servers: &[SocketAddr],
        first: &[u8],
    ) -> Result<(Stream, usize), ConnectError> {
        self.connect_to(servers, self.inner.config.patience, Some(first)).await
    }

    /// Bytes that [`connect_early`](Self::connect_early) would send with the SYN now; `None`: none, as the server that
    /// would be tried first has given no cookie, or its network swallows such SYNs.
    #[must_use]
    pub fn fast_open_room(&self, servers: &[SocketAddr]) -> Option<usize> {
        let winner = *lock(&self.inner.winner);
        let (candidates, local_addresses) = {
            let paths = lock(&self.inner.paths);
            (paths.candidates(servers, winner), paths.local_addresses())
        };
        let config = lock(&self.inner.connection).config(local_addresses, true);
        let first = self.inner.schedule(candidates).take(Duration::ZERO, true)?;
        let (local, remote): (IpAddr, _) = (first.end.address, first.remote);
        let path = FourTuple { local: SocketAddr::new(local, 0), remote };
        self.inner.shard.with_endpoint(|endpoint, now| endpoint.fast_open_room(now, &config, &path))
    }
}
