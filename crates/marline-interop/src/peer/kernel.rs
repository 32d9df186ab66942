//! The kernel's Multipath TCP as a pipe.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use marline_lab::kernel::Kernel;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::exchange::Pipe;

/// A connection of the kernel's.
pub(super) struct KernelPipe(TcpStream);

fn kernel(buffer: Option<usize>) -> Kernel {
    Kernel { receive_buffer: buffer, ..Kernel::MULTIPATH }
}

/// Connects.
pub(super) async fn connect(to: SocketAddr, buffer: Option<usize>) -> io::Result<KernelPipe> {
    Ok(KernelPipe(kernel(buffer).connect(None, to).await?))
}

/// Listens.
pub(super) fn listen(at: SocketAddr, buffer: Option<usize>) -> io::Result<TcpListener> {
    kernel(buffer).listen(at)
}

/// The next connection.
pub(super) async fn accept(listener: &TcpListener) -> io::Result<KernelPipe> {
    Ok(KernelPipe(listener.accept().await?.0))
}

impl Pipe for KernelPipe {
    fn abort(self) {
        // Closing with unsent data and no time to send it is how applications abort.
        let _ = SockRef::from(&self.0).set_linger(Some(Duration::ZERO));
    }

    /// The kernel says so in its counters, which the runner reads.
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
