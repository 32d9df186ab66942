//! Sockets of the kernel's TCP and Multipath TCP, which differ only in the protocol number.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;
/// Length of the accept queue.
const BACKLOG: i32 = 16;

/// Options of the kernel's sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// True for Multipath TCP instead of TCP.
    pub mptcp: bool,
    /// Congestion control instead of the host's default.
    pub congestion: Option<String>,
    /// SO_SNDBUF in bytes. The kernel doubles it for its overhead. `None`: tuned automatically.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes. The kernel also doubles it. `None`: tuned automatically.
    pub receive_buffer: Option<usize>,
}

impl Kernel {
    /// Multipath TCP with automatically tuned buffers.
    pub const MULTIPATH: Kernel =
        Kernel { mptcp: true, congestion: None, send_buffer: None, receive_buffer: None };

    fn socket(&self, address: SocketAddr) -> io::Result<Socket> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let protocol = if self.mptcp { Protocol::from(MPTCP) } else { Protocol::TCP };
        let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
        self.prepare(SockRef::from(&socket))?;
        Ok(socket)
    }

    fn prepare(&self, socket: SockRef<'_>) -> io::Result<()> {
        if let Some(name) = &self.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        Ok(())
    }

    /// Connects, from a local address if one is given.
    ///
    /// # Errors The system call failed.
    pub async fn connect(&self, from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(to)?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        TcpSocket::from_std_stream(socket.into()).connect(to).await
    }

    /// Listens.
    ///
    /// # Errors The system call failed.
    pub fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.socket(at)?;
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    }

    /// Accepts the next connection.
    ///
    /// # Errors The system call failed.
    pub async fn accept(&self, listener: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = listener.accept().await?;
        self.prepare(SockRef::from(&stream))?;
        Ok(stream)
    }
}
