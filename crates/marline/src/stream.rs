//! A connection as a byte stream.

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use marline_core::{ConnectionId, ConnectionInfo, FallbackReason, SocketOption};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{PolicyError, Registry};

/// A connection. Reading ends (0 bytes) after the peer's DATA_FIN; `shutdown` sends ours; dropping
/// lets go of it: what was written still goes out, unread or further incoming data aborts it.
#[derive(Debug)]
pub struct Stream {
    inner: marline_io::Stream,
    registry: Arc<Registry>,
}

impl Stream {
    pub(crate) fn new(inner: marline_io::Stream, registry: Arc<Registry>) -> Self {
        Stream { inner, registry }
    }

    /// Its id within its client or listener.
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

    /// A picture of the connection; `None` when it is over.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        self.inner.info()
    }

    /// Plain TCP, and why.
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

    /// Ends the connection at once, on both sides (MP_FASTCLOSE).
    pub fn abort(self) {
        self.inner.abort();
    }

    /// The peer has shown who it is: if its last path ends, it is waited for as long as any
    /// ([`Linger::stranger`](crate::Linger)).
    pub fn know_peer(&self) {
        self.inner.command(|endpoint, now, id| endpoint.set(now, id, SocketOption::KnownPeer));
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

    /// Changes the path manager.
    ///
    /// # Errors
    /// The text names no path manager, or a parameter is wrong.
    pub fn set_path_manager(&self, spec: &str) -> Result<(), PolicyError> {
        let factory = self.registry.path_manager(spec)?;
        self.inner.command(|endpoint, now, id| endpoint.set_path_manager(now, id, factory));
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
