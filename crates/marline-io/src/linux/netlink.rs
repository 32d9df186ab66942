//! Netlink socket: requests to the kernel, and change notifications.

use core::net::IpAddr;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::message::{self, Message, RouteRequest};
use crate::edge::descriptor::Owned;

/// Maximum number of bytes per read; the kernel fills at most 32 KiB per message of a dump.
const READ_BYTES: usize = 64 << 10;
/// Buffer for the answer to a single request, in bytes. Longer answers lose only attributes that this code does not
/// use.
const ANSWER_BYTES: usize = 8 << 10;
/// The kernel answers immediately: after a second without an answer, none will come.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Sequence number of our requests; one is enough, because a socket has only one request at a time.
const SEQUENCE: u32 = 1;

/// NETLINK_ROUTE socket.
#[derive(Debug)]
pub(super) struct Netlink {
    fd: OwnedFd,
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Owned for Netlink {}

impl Netlink {
    /// Opens a socket for requests (`groups` 0, blocking) or for change notifications (non-blocking).
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        let blocking = if groups == 0 { SocketFlags::empty() } else { SocketFlags::NONBLOCK };
        let flags = SocketFlags::CLOEXEC | blocking;
        // `None` selects NETLINK_ROUTE.
        let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Without a timeout, a missing answer would block forever.
        let _ = sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT));
        net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Netlink { fd })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        net::send(&self.fd, bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads one datagram.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (read, _) = net::recv(&self.fd, buffer, RecvFlags::empty())?;
        Ok(read)
    }

    /// Requests a change and waits for the acknowledgment.
    pub(super) fn change(&self, request: &[u8]) -> io::Result<()> {
        self.send(request)?;
        let mut buffer = vec![0; READ_BYTES];
        let len = self.read(&mut buffer)?;
        match message::parse(&buffer[..len]).into_iter().next() {
            Some((_, Message::Error(0))) => Ok(()),
            Some((_, Message::Error(errno))) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends a request and returns the body of an answer of this type.
    pub(super) fn query(&self, request: &[u8], answer: u16) -> io::Result<Vec<u8>> {
        self.send(request)?;
        let mut buffer = [0; ANSWER_BYTES];
        let len = self.read(&mut buffer)?;
        message::message_body(&buffer[..len], answer)
    }

    /// Dumps all objects of a type: RTM_GETLINK, RTM_GETADDR or RTM_GETROUTE.
    pub(super) fn dump(&self, kind: u16) -> io::Result<Vec<Message>> {
        self.send(&message::dump_request(kind, SEQUENCE))?;
        let mut buffer = vec![0; READ_BYTES];
        let mut answers = Vec::new();
        loop {
            let len = self.read(&mut buffer)?;
            for (_, message) in message::parse(&buffer[..len]) {
                match message {
                    Message::Done => return Ok(answers),
                    Message::Error(0) => {}
                    Message::Error(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    message => answers.push(message),
                }
            }
        }
    }
}

/// Checks that the routing tables contain a route to `dst` from `src` through the interface with index `oif` (0 for
/// any), for packets with this mark.
///
/// Connecting a UDP socket is not sufficient: for a socket bound to an interface, IPv4 assumes that a destination
/// without a route is on the local link.
///
/// # Errors
/// Fails if there is no such route, for example with ENETUNREACH or EHOSTUNREACH.
pub(crate) fn route_exists(
    dst: IpAddr,
    src: Option<IpAddr>,
    oif: u32,
    mark: u32,
) -> io::Result<()> {
    let netlink = Netlink::open(0)?;
    netlink.send(&message::route_request(&RouteRequest { dst, src, oif, mark }, SEQUENCE))?;
    let mut buffer = vec![0; READ_BYTES];
    let len = netlink.read(&mut buffer)?;
    match message::parse(&buffer[..len]).into_iter().next() {
        Some((_, Message::Error(errno))) if errno != 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(()),
    }
}

/// Returns true if packets to an address are delivered to this machine: it is an address of an interface (first, second
/// or anycast), a broadcast address, or in a network that is entirely routed to this machine (`ip route add local
/// ...`).
///
/// The kernel's routing decides, not the source address that it would choose: for a second address of a subnet it
/// chooses the first.
///
/// # Errors
/// Fails if the kernel cannot be queried (for example, because no file descriptor is left) or gives no answer; the
/// address may then belong to this machine. A missing route is not an error but a negative answer.
pub fn is_local_address(address: IpAddr) -> io::Result<bool> {
    let answer = Netlink::open(0).and_then(|netlink| {
        let request = RouteRequest { dst: address, src: None, oif: 0, mark: 0 };
        let request = message::route_request(&request, SEQUENCE);
        netlink.query(&request, libc::RTM_NEWROUTE)
    });
    match answer {
        Ok(route) => {
            let kind = message::route_kind(&route).ok_or(io::ErrorKind::InvalidData)?;
            Ok(kind != libc::RTN_UNICAST)
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_an_address_without_a_route_is_not() {
        for own in ["127.0.0.1", "127.1.2.3"] {
            assert!(is_local_address(own.parse().unwrap()).unwrap(), "{own}");
        }
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            assert!(is_local_address("::1".parse().unwrap()).unwrap());
        }
        assert!(!is_local_address("203.0.113.9".parse().unwrap()).unwrap());
    }

    #[test]
    fn loopback_has_a_route_to_itself_and_none_to_the_world() {
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let world: IpAddr = "203.0.113.9".parse().unwrap();
        route_exists(here, Some(here), 1, 0).unwrap();
        let error = route_exists(world, None, 1, 0).unwrap_err();
        let unreachable = [libc::ENETUNREACH, libc::EHOSTUNREACH];
        assert!(error.raw_os_error().is_some_and(|e| unreachable.contains(&e)), "{error}");
    }
}
