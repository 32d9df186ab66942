//! Stream of a program behind the interface, for the proxy's relay.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use marline_io::Stream;
use marline_proxy::transport::{PeerState, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// TCP connection of a program.
#[derive(Debug)]
pub(crate) struct ProgramStream(pub(crate) Stream);

impl Transport for ProgramStream {
    fn abort(self) {
        self.0.abort();
    }

    fn peer_state(&self) -> PeerState {
        self.0.info().map(|info| PeerState::from_connection(&info)).unwrap_or_default()
    }
}

impl AsyncRead for ProgramStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl AsyncWrite for ProgramStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A write has already sent everything that the windows permit.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shutdown();
        Poll::Ready(Ok(()))
    }
}
