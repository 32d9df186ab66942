//! Connection as a byte stream.

mod split;

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use marline_core::{ConnectionId, ConnectionInfo, FallbackReason, MemoryAccount, SocketOption};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{PolicyError, Registry, default_policies};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};

/// A connection: an ordinary [`AsyncRead`] and [`AsyncWrite`].
///
/// Reading ends (0 bytes) after the peer has shut its side down (DATA_FIN); `shutdown` shuts ours.
/// Dropping a stream lets go of the connection: what was written is still delivered; if the peer has
/// sent, or still sends, what nobody read, it is aborted.
///
/// Bytes are **not encrypted**: see the [first page](crate#security).
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

    /// Its id within its client or server.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.inner.id()
    }

    /// The peer's address on the first subflow. On the UDP carrier a client's port is the inner TCP
    /// port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// The local address of the oldest subflow that exists. On the UDP carrier a client's port is the
    /// inner TCP port.
    ///
    /// # Errors
    /// [`NotConnected`](io::ErrorKind::NotConnected): the connection has no subflow, or is over.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let info = self.info().ok_or(io::ErrorKind::NotConnected)?;
        let oldest = info.subflows.first().ok_or(io::ErrorKind::NotConnected)?;
        Ok(oldest.path.local)
    }

    /// A snapshot of the connection; `None` when it is over.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.inner.info()
    }

    /// Why the connection is plain TCP; `None`: it is Multipath TCP, or over.
    #[must_use]
    pub fn fallback(&self) -> Option<FallbackReason> {
        self.info().and_then(|info| info.fallback)
    }

    /// A value that names this connection to a protocol inside it, the same on both sides:
    /// HMAC-SHA-256 over `label` under both MPTCP keys, of which each side drew one afresh. It is no
    /// secret, for the keys travel in clear, but it never comes again. `None` on plain TCP.
    #[must_use]
    pub fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.inner.export_binding(label)
    }

    /// Ends the connection at once, on both sides (MP_FASTCLOSE, RFC 8684 section 3.5).
    pub fn abort(self) {
        self.inner.abort();
    }

    /// Notes that the peer has authenticated itself: if its last path ends, it is waited for as long as
    /// configured, instead of the shorter time that unknown peers get
    /// ([`Linger::stranger`](crate::Linger)).
    pub fn know_peer(&self) {
        self.inner.command(|endpoint, now, id| endpoint.set(now, id, SocketOption::KnownPeer));
    }

    /// Charges another account of a [`MemoryBudget`](crate::MemoryBudget) for what the connection holds, from now on:
    /// the peer is authenticated, say, and its window may grow.
    pub fn charge_memory_to(&self, account: &MemoryAccount) {
        self.inner.command(|endpoint, now, id| endpoint.charge_memory_to(now, id, account));
    }

    /// Changes the scheduler.
    ///
    /// # Errors
    /// The text names no scheduler, or a parameter is wrong.
    pub fn set_scheduler(&self, spec: &str) -> Result<(), PolicyError> {
        let factory = self.registry.scheduler(spec)?;
        self.inner.command(|endpoint, now, id| endpoint.set_scheduler(now, id, factory));
        Ok(())
    }

    /// Says within which time data should reach the peer from when a path takes it (RFC 6897 leaves open how an
    /// application says so): the scheduler is `deadline` from now on, which sends on a second path at once what is
    /// likelier than one in a hundred to be late and could not be saved later. `None`: the library's default
    /// scheduler again. It is a wish: a path that brings nothing in time is used all the same. Whole microseconds
    /// count, and less than one counts as none.
    ///
    /// # Errors
    /// The registry of this connection's library lacks the scheduler.
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
    /// The text names no path manager, or a parameter is wrong.
    pub fn set_path_manager(&self, spec: &str) -> Result<(), PolicyError> {
        let factory = self.registry.path_manager(spec)?;
        self.inner.command(|endpoint, now, id| endpoint.set_path_manager(now, id, factory));
        Ok(())
    }

    /// Splits the stream into halves that tasks can own, without a lock between them beyond the
    /// connection's own.
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
        // A write has been sent, as far as windows allow, before it returned, or leaves at the end of the runtime's
        // turn together with those of other connections.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.shutdown();
        Poll::Ready(Ok(()))
    }
}
