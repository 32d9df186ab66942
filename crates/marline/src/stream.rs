//! Connection as a byte stream.

mod split;

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use marline_algos::{PolicyError, Registry, default_policies};
use marline_core::{ConnectionId, ConnectionInfo, FallbackReason, MemoryAccount, SocketOption};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use split::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};

/// Multipath TCP connection with [`AsyncRead`] and [`AsyncWrite`].
///
/// Reading ends (0 bytes) after the peer has shut down its side (DATA_FIN); `shutdown` shuts down ours. Dropping a
/// stream releases the connection: written data is still delivered, but unread or further incoming data of the peer
/// aborts it.
///
/// Data is **not encrypted**: see [Security](crate#security).
#[derive(Debug)]
pub struct Stream {
    inner: marline_io::Stream,
    registry: Arc<Registry>,
}

impl Stream {
    pub(crate) fn new(inner: marline_io::Stream, registry: Arc<Registry>) -> Self {
        Stream { inner, registry }
    }

    pub(crate) const fn inner(&self) -> &marline_io::Stream {
        &self.inner
    }

    /// Returns the connection id within its client or server.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.inner.id()
    }

    /// Returns the peer's address on the first subflow. On the UDP carrier, a client's port is the inner TCP port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Returns the local address of the oldest existing subflow. On the UDP carrier, a client's port is the inner TCP
    /// port.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected): the connection has no subflow, or is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let info = self.info().ok_or(io::ErrorKind::NotConnected)?;
        let oldest = info.subflows.first().ok_or(io::ErrorKind::NotConnected)?;
        Ok(oldest.path.local)
    }

    /// Returns a snapshot of the connection; `None` once it is closed.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.inner.info()
    }

    /// Returns the reason why the connection is plain TCP; `None` if it is Multipath TCP, or closed.
    #[must_use]
    pub fn fallback(&self) -> Option<FallbackReason> {
        self.info().and_then(|info| info.fallback)
    }

    /// Returns the value that identifies this connection to an inner protocol, equal on both sides: HMAC-SHA-256 over
    /// `label` with both MPTCP keys, each of which one side generated at random. The value is unique but not secret,
    /// because the keys are sent in plaintext. Returns `None` for plain TCP.
    #[must_use]
    pub fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.inner.export_binding(label)
    }

    /// Immediately ends the connection on both sides (MP_FASTCLOSE, RFC 8684 section 3.5).
    pub fn abort(self) {
        self.inner.abort();
    }

    /// Records that the peer is authenticated: after the last path ends, the connection waits for the peer as long as
    /// configured, instead of the shorter time for unknown peers ([`Linger::stranger`](crate::config::Linger)).
    pub fn mark_authenticated(&self) {
        self.inner.command(|endpoint, now, id| endpoint.set(now, id, SocketOption::KnownPeer));
    }

    /// Charges the memory of the connection to another account of a [`MemoryBudget`](crate::memory::MemoryBudget) from
    /// now on, for example because the peer is authenticated and its window may grow.
    pub fn charge_memory_to(&self, account: &MemoryAccount) {
        self.inner.command(|endpoint, now, id| endpoint.charge_memory_to(now, id, account));
    }

    /// Changes the scheduler.
    ///
    /// # Errors
    /// There is no such scheduler, or a parameter is invalid.
    pub fn set_scheduler(&self, spec: &str) -> Result<(), PolicyError> {
        let factory = self.registry.scheduler(spec)?;
        self.inner.command(|endpoint, now, id| endpoint.set_scheduler(now, id, factory));
        Ok(())
    }

    /// Sets the time within which data should reach the peer after a path has accepted it (RFC 6897 does not define
    /// such an interface). The scheduler becomes `deadline`: it also sends data on a second path if the probability of
    /// lateness exceeds one percent and a later copy could not help. `None` restores the library's default scheduler.
    /// The deadline is not strict: a path that cannot meet it is still used. The time is rounded down to microseconds;
    /// less than one microsecond counts as `None`.
    ///
    /// # Errors
    /// The registry for this connection does not contain the scheduler.
    pub fn set_deadline(&self, within: Option<Duration>) -> Result<(), PolicyError> {
        match within {
            Some(within) => {
                self.set_scheduler(&format!("deadline,within={}us", within.as_micros()))
            }
            None => self.set_scheduler(default_policies().scheduler.name()),
        }
    }

    /// Changes the path manager.
    ///
    /// # Errors
    /// There is no such path manager, or a parameter is invalid.
    pub fn set_path_manager(&self, spec: &str) -> Result<(), PolicyError> {
        let factory = self.registry.path_manager(spec)?;
        self.inner.command(|endpoint, now, id| endpoint.set_path_manager(now, id, factory));
        Ok(())
    }

    /// Splits the stream into owned halves for separate tasks. The halves share no lock except the connection's own.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split::split(self)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner.poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written data has been sent, as far as the windows allow, or will be sent at the end of the runtime's turn,
        // together with data of other connections.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.shutdown();
        Poll::Ready(Ok(()))
    }
}
