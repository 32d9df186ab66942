//! Connections outside the tunnel to the login page of a captive portal, over one interface and with the network's own
//! resolvers.
//!
//! The machine's routing is not changed. Each socket is bound to the interface and marked like Marline's own packets,
//! so this access always ends with the process.

mod names;
mod probe;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline_proxy::client::open::{Open, OpenError};
use marline_proxy::message::{ErrorCode, Failure};
use marline_proxy::target::Target;
use marline_proxy::udp::DNS_PORT;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

pub use probe::{BadProbe, Finding, Probe};
pub use stream::PortalStream;

/// Timeout for connecting to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Opener of connections over one interface.
#[derive(Clone, Debug)]
pub struct PortalOpener {
    interface: String,
    mark: u32,
    resolvers: Vec<SocketAddr>,
}

impl PortalOpener {
    /// Uses this interface, whose network has these resolvers. Packets get this mark if the process has the
    /// permission (CAP_NET_ADMIN).
    #[must_use]
    pub const fn new(interface: String, mark: u32, resolvers: Vec<SocketAddr>) -> PortalOpener {
        PortalOpener { interface, mark, resolvers }
    }

    /// Returns the name of the interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the first resolver.
    #[must_use]
    pub fn resolver(&self) -> Option<SocketAddr> {
        self.resolvers.first().copied()
    }

    fn socket(&self, to: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
        let socket =
            Socket::new(Domain::for_address(to), kind.nonblocking().cloexec(), Some(protocol))?;
        socket.bind_device(Some(self.interface.as_bytes()))?;
        match socket.set_mark(self.mark) {
            // Sending works without a mark, unless a kill switch is active.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
        Ok(socket)
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.socket(to, Type::STREAM, Protocol::TCP)?;
        let connect = TcpSocket::from_std_stream(socket.into()).connect(to);
        timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn datagrams(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.socket(to, Type::DGRAM, Protocol::UDP)?;
        socket.connect(&to.into())?;
        UdpSocket::from_std(socket.into())
    }
}

impl Open for PortalOpener {
    type Stream = PortalStream;

    async fn open(&self, target: &Target) -> Result<PortalStream, OpenError> {
        let Err(ip) = target.host.as_name() else {
            let text = format!("{target}: expected an address, not a name");
            return Err(OpenError::Refused(Failure::new(ErrorCode::DestinationUnreachable, text)));
        };
        let to = SocketAddr::new(ip, target.port);
        // Targets do not include the zone of a link-local address.
        let is_resolver =
            |resolver: &&SocketAddr| resolver.ip() == ip && resolver.port() == target.port;
        if target.port == DNS_PORT || self.resolvers.iter().any(|r| is_resolver(&r)) {
            let first = self.resolvers.iter().find(is_resolver).copied().unwrap_or(to);
            return Ok(names::open_dns_stream(self.clone(), first));
        }
        match self.connect(to).await {
            Ok(stream) => Ok(PortalStream::Tcp(stream)),
            Err(error) => Err(OpenError::Refused(failure(target, &error))),
        }
    }
}

fn failure(target: &Target, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
            ErrorCode::ConnectionReset
        }
        io::ErrorKind::NetworkUnreachable => ErrorCode::NetworkFailure,
        _ => ErrorCode::DestinationUnreachable,
    };
    Failure::new(code, format!("{target}: {error}"))
}
