//! Stream whose first bytes were read to detect its protocol, and are put back in front.

use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use marline::memory::MemoryAccount;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::session::Binding;
use crate::transport::{PeerState, Transport};

/// A stream and the bytes that were already read from it.
#[derive(Debug)]
pub struct PrefixedStream<T> {
    head: Vec<u8>,
    delivered: usize,
    inner: T,
}

impl<T> PrefixedStream<T> {
    /// Reads `head` first, then the rest of `inner`.
    pub fn new(head: Vec<u8>, inner: T) -> PrefixedStream<T> {
        PrefixedStream { head, delivered: 0, inner }
    }
}

impl<T: Transport> Transport for PrefixedStream<T> {
    fn abort(self) {
        self.inner.abort();
    }

    fn peer_state(&self) -> PeerState {
        self.inner.peer_state()
    }

    fn mark_authenticated(&self, account: &MemoryAccount) {
        self.inner.mark_authenticated(account);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner.socket()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.inner.poll_room(cx)
    }

    fn buffered(&mut self, trim: bool) -> u64 {
        self.inner.buffered(trim)
    }

    fn binding(&self) -> Option<Binding> {
        self.inner.binding()
    }

    fn multipath(&self) -> Option<&marline::Stream> {
        self.inner.multipath()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PrefixedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let rest = &this.head[this.delivered..];
        if rest.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        this.delivered += count;
        if this.delivered == this.head.len() {
            // Freed here; otherwise it would stay for the life of the connection.
            (this.head, this.delivered) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
