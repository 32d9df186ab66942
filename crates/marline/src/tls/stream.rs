//! Encrypted stream.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Stream;

/// Encrypted [`Stream`] of a client or server.
#[derive(Debug)]
pub struct TlsStream {
    inner: tokio_rustls::TlsStream<Stream>,
}

impl TlsStream {
    pub(super) const fn new(inner: tokio_rustls::TlsStream<Stream>) -> Self {
        TlsStream { inner }
    }

    /// Returns the underlying stream.
    #[must_use]
    pub fn get_ref(&self) -> &Stream {
        self.inner.get_ref().0
    }

    /// Immediately ends the connection on both sides (MP_FASTCLOSE).
    pub fn abort(self) {
        match self.inner {
            tokio_rustls::TlsStream::Client(stream) => stream.into_inner().0.abort(),
            tokio_rustls::TlsStream::Server(stream) => stream.into_inner().0.abort(),
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsStream {
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
