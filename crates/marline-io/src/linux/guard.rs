//! Port guards, which keep the kernel's own TCP away from Marline's ports.
//!
//! The kernel sees every segment that the raw socket sees, and answers segments to a port without a socket with RST.
//! With a listening socket on the port, each segment goes to that socket, and its filter drops all of them without an
//! answer. A merely bound socket is not enough: the kernel looks up only listening ones.
//!
//! Kernels since 2026 require CAP_NET_ADMIN for the filter (commit 5d39580f68e6, for TCP sockets only); the rest of a
//! guard needs no privilege, except for ports below 1024. So that ports can also be reserved without capabilities, a
//! guard also refuses all packets with a TTL below 255 (RFC 5082): the kernel drops them silently, and requesting this
//! needs no privilege. Without a filter, only packets from the same network link with an initial TTL of 255 get past
//! this, which no common system sends.
//!
//! When the guard is closed, the kernel sends RSTs again, as for any process that has ended. So the guard stays open
//! until its connections have ended, including TIME-WAIT.
//!
//! A guard also reserves its port: no other program can bind it, and the kernel does not use it for outgoing
//! connections.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::{filter, ttl};

/// Guard of a port, on one address or on all addresses.
#[derive(Debug)]
pub(crate) struct Guard {
    socket: Socket,
    /// Address and port; an unspecified address stands for all addresses of the family.
    pub(crate) local: SocketAddr,
    /// True if it also guards the port on all IPv4 addresses.
    pub(crate) both_families: bool,
}

impl Guard {
    /// Guards a port on one address, or on all addresses of its family. With port 0, the kernel chooses a port.
    pub(crate) fn on_address(local: SocketAddr) -> io::Result<Self> {
        Guard::open(local, local.port() != 0, Some(true))
    }

    /// Guards a port on all addresses of both families, or of IPv4 only if IPv6 is not available.
    pub(crate) fn on_all_addresses(port: u16) -> io::Result<Self> {
        let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        match Guard::open(v6, false, Some(false)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT)) => {}
            other => return other,
        }
        let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
        Guard::open(v4, false, None)
    }

    /// Wraps a guard that another process has opened. The guard lasts until both processes have closed it.
    pub(crate) fn inherited(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        let local = address_of(&socket)?;
        let both_families = local.is_ipv6() && local.ip().is_unspecified() && !socket.only_v6()?;
        Ok(Guard { socket, local, both_families })
    }

    /// Duplicates the descriptor.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Returns true if it guards this address and port.
    pub(crate) fn covers(&self, local: SocketAddr) -> bool {
        let same_port = self.local.port() == local.port();
        same_port && local.port() != 0 && self.local.ip() == local.ip()
    }

    fn open(local: SocketAddr, reuse: bool, only_v6: Option<bool>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
        // Must precede the bind, because segments may arrive after it.
        ttl::require_ttl_255(socket.as_fd(), local.is_ipv6())?;
        let filtered = match filter::attach(socket.as_fd(), &filter::DROP_ALL) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
            Err(error) => return Err(error),
        };
        let only_v6 = only_v6.filter(|_| local.is_ipv6());
        if let Some(only) = only_v6 {
            socket.set_only_v6(only)?;
        }
        // As for any server: the kernel's closed connections on this port must not block it.
        socket.set_reuse_address(reuse)?;
        socket.bind(&local.into())?;
        socket.listen(1)?;
        let local = address_of(&socket)?;
        let both_families = only_v6 == Some(false);
        tracing::debug!(%local, both_families, filtered, "port reserved");
        Ok(Guard { socket, local, both_families })
    }
}

fn address_of(socket: &Socket) -> io::Result<SocketAddr> {
    let bound = socket.local_addr()?.as_socket();
    bound.ok_or_else(|| io::Error::other("the socket has no IP address"))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_guarded_port_is_taken_and_silent() {
        let guard = Guard::on_address("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(TcpListener::bind(guard.local).is_err(), "the port is taken");
        let error = TcpStream::connect_timeout(&guard.local, Duration::from_millis(50));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut, "no answer and no RST");
        let local = guard.local;
        drop(guard);
        let error = TcpStream::connect_timeout(&local, Duration::from_millis(500));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_guard_without_capabilities_is_silent_too() {
        // Capabilities belong to threads: only this thread drops its own.
        let silent = std::thread::spawn(|| {
            let _ = crate::drop_capabilities();
            let guard = Guard::on_all_addresses(0).unwrap();
            let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), guard.local.port());
            TcpStream::connect_timeout(&at, Duration::from_millis(50))
        });
        let error = silent.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "no answer and no RST");
    }

    #[test]
    fn a_guard_lasts_while_one_of_two_processes_has_it() {
        let silent = |at: SocketAddr| {
            let error = TcpStream::connect_timeout(&at, Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "no answer and no RST");
        };
        let first = Guard::on_address("127.0.0.1:0".parse().unwrap()).unwrap();
        let second = Guard::inherited(first.copy().unwrap()).unwrap();
        assert_eq!((second.local, second.both_families), (first.local, false));
        drop(first);
        silent(second.local);
        let everywhere = Guard::on_all_addresses(0).unwrap();
        let copy = Guard::inherited(everywhere.copy().unwrap()).unwrap();
        assert_eq!((copy.local, copy.both_families), (everywhere.local, everywhere.both_families));
    }

    #[test]
    fn a_guard_everywhere_serves_both_families() {
        let guard = Guard::on_all_addresses(0).unwrap();
        let port = guard.local.port();
        let mut ends = vec![format!("127.0.0.1:{port}")];
        if guard.both_families {
            ends.push(format!("[::1]:{port}"));
        }
        for end in ends {
            let error =
                TcpStream::connect_timeout(&end.parse().unwrap(), Duration::from_millis(50));
            let kind = error.unwrap_err().kind();
            assert!(kind != io::ErrorKind::ConnectionRefused, "{end}: {kind}");
        }
    }
}
