//! The kernel's stack: an ordinary socket but for the protocol's number.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::exchange::Pipe;

/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;

/// A connection of the kernel's.
pub(super) struct KernelPipe(TcpStream);

fn socket(address: SocketAddr, buffer: Option<usize>) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::from(MPTCP)))?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(socket)
}

/// Connects.
pub(super) async fn connect(to: SocketAddr, buffer: Option<usize>) -> io::Result<KernelPipe> {
    let socket = TcpSocket::from_std_stream(socket(to, buffer)?.into());
    Ok(KernelPipe(socket.connect(to).await?))
}

/// Listens.
pub(super) fn listen(at: SocketAddr, buffer: Option<usize>) -> io::Result<TcpListener> {
    let socket = socket(at, buffer)?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(16)?;
    TcpListener::from_std(socket.into())
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
