//! Kernel connection as a [`Pipe`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::exchange::Pipe;

/// A connection of the kernel.
pub(super) struct KernelPipe(pub(super) TcpStream);

impl Pipe for KernelPipe {
    fn abort(self) {
        // Applications abort by closing with unsent data and a linger time of zero.
        let _ = SockRef::from(&self.0).set_linger(Some(Duration::ZERO));
    }

    /// Fallbacks are visible in the kernel's counters, which the runner reads.
    fn fallback(&self) -> Option<String> {
        None
    }
}

impl AsyncRead for KernelPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for KernelPipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
