//! Transports of a neutral client to the neutral server through a system.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// A byte stream of any system.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A byte stream of any system.
pub type Stream = Box<dyn Duplex>;

/// Transport to the server, as written on the command line: `KIND[,KEY=VALUE]..`.
#[derive(Clone)]
pub enum Dial {
    /// Kernel socket, optionally with Multipath TCP, an interface, and a congestion control.
    Kernel {
        to: SocketAddr,
        multipath: bool,
        interface: Option<String>,
        congestion: Option<String>,
    },
    /// SOCKS5 proxy.
    Socks { proxy: SocketAddr, to: SocketAddr },
    /// Marline's library.
    Library { client: std::sync::Arc<marline::Client>, to: SocketAddr },
}

impl Dial {
    /// Parses a transport.
    ///
    /// # Errors
    /// The text is invalid, or the library cannot be started.
    pub async fn parse(text: &str) -> anyhow::Result<Dial> {
        let mut items = text.split(',');
        let kind = items.next().unwrap_or_default();
        let value = |key: &str| {
            let item = text.split(',').find_map(|item| item.strip_prefix(key)?.strip_prefix('='));
            item.map(str::to_owned)
        };
        let to: SocketAddr = value("to").context("missing to=ADDRESS:PORT")?.parse()?;
        Ok(match kind {
            "tcp" | "mptcp" => Dial::Kernel {
                to,
                multipath: kind == "mptcp",
                interface: value("interface"),
                congestion: value("congestion"),
            },
            "socks" => Dial::Socks {
                proxy: value("proxy").context("missing proxy=ADDRESS:PORT")?.parse()?,
                to,
            },
            "library" => {
                let mut builder = marline::Client::builder();
                for path in items.filter_map(|item| item.strip_prefix("path=")) {
                    builder.path(path.parse()?);
                }
                Dial::Library { client: std::sync::Arc::new(builder.bind().await?), to }
            }
            _ => bail!("unknown transport `{kind}`"),
        })
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn stream(&self) -> anyhow::Result<Stream> {
        let opened = tokio::time::timeout(Duration::from_secs(30), self.open()).await;
        opened.context("cannot connect within 30 s")?
    }

    async fn open(&self) -> anyhow::Result<Stream> {
        Ok(match self {
            Dial::Kernel { to, multipath, interface, congestion } => {
                let socket = tcp_socket(*multipath)?;
                if let Some(name) = interface {
                    socket.bind_device(Some(name.as_bytes()))?;
                }
                if let Some(name) = congestion {
                    socket.set_tcp_congestion(name.as_bytes())?;
                }
                Box::new(tokio_socket(socket)?.connect(*to).await?)
            }
            Dial::Socks { proxy, to } => Box::new(socks_connect(*proxy, *to).await?),
            Dial::Library { client, to } => Box::new(client.connect(*to).await?),
        })
    }

    /// Opens a UDP socket that is connected to the server's address.
    ///
    /// # Errors
    /// The system does not support datagrams, or no socket can be opened.
    pub async fn datagrams(&self) -> anyhow::Result<UdpSocket> {
        let Dial::Kernel { to, interface, .. } = self else {
            bail!("datagrams are supported only over the kernel stack")
        };
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.bind_device(interface.as_ref().map(|name| name.as_bytes()))?;
        socket.connect(to).await?;
        Ok(socket)
    }
}

/// Creates a kernel TCP socket with TCP_NODELAY.
///
/// # Errors A system call failed.
pub fn tcp_socket(multipath: bool) -> anyhow::Result<Socket> {
    let protocol = if multipath { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Converts the socket for use with tokio.
///
/// # Errors
/// Never for sockets of [`tcp_socket`].
pub fn tokio_socket(socket: Socket) -> anyhow::Result<tokio::net::TcpSocket> {
    Ok(tokio::net::TcpSocket::from_std_stream(std::net::TcpStream::from(socket)))
}

async fn socks_connect(proxy: SocketAddr, to: SocketAddr) -> anyhow::Result<TcpStream> {
    let SocketAddr::V4(to) = to else { bail!("only IPv4 addresses are supported") };
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&[5, 1, 0]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    ensure!(chosen == [5, 0], "the proxy requires another authentication method: {chosen:?}");
    let mut request = vec![5, 1, 0, 1];
    request.extend(to.ip().octets());
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request).await?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await?;
    ensure!(answer[1] == 0 && answer[3] == 1, "the proxy refused: {answer:?}");
    Ok(stream)
}
