//! Stream to a portal: a connection or DNS queries.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use marline_proxy::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;

/// Stream of an opener.
#[derive(Debug)]
pub enum PortalStream {
    /// Connection of the kernel.
    Tcp(TcpStream),
    /// DNS queries, which are sent over UDP.
    Names(DuplexStream),
}

impl Transport for PortalStream {
    fn abort(self) {
        match self {
            PortalStream::Tcp(stream) => stream.abort(),
            PortalStream::Names(stream) => stream.abort(),
        }
    }
}

impl AsyncRead for PortalStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            PortalStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            PortalStream::Names(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for PortalStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            PortalStream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            PortalStream::Names(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            PortalStream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            PortalStream::Names(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            PortalStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            PortalStream::Names(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
