//! A connection as a byte stream.

use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use marline_core::{ConnectionId, ConnectionInfo, FallbackReason};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::UnknownPolicy;

/// A connection. Reading ends (0 bytes) after the peer's DATA_FIN; `shutdown` sends ours; dropping
/// lets go of it: what was written still goes out, unread or further incoming data aborts it.
#[derive(Debug)]
pub struct Stream {
    id: ConnectionId,
    peer: SocketAddr,
}

impl Stream {
    /// Its id within its client or listener.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The peer's address on the first subflow. On the UDP carrier its port is the inner TCP port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// A picture of the connection; `None` when it is over.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        None
    }

    /// Plain TCP, and why.
    #[must_use]
    pub fn fallback(&self) -> Option<FallbackReason> {
        None
    }

    /// Ends the connection at once, on both sides (MP_FASTCLOSE).
    pub fn abort(self) {}

    /// Changes the scheduler.
    ///
    /// # Errors
    /// No scheduler has this name.
    pub fn set_scheduler(&self, _name: &str) -> Result<(), UnknownPolicy> {
        Ok(())
    }

    /// Changes the path manager.
    ///
    /// # Errors
    /// No path manager has this name.
    pub fn set_path_manager(&self, _name: &str) -> Result<(), UnknownPolicy> {
        Ok(())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
