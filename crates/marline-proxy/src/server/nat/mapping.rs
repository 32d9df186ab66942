//! Mapping of an application's socket to UDP sockets of the server, one per address family.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use socket2::{Domain, Socket, Type};
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::mapped_ports::{MappedPort, MappedPorts};
use crate::server::admission::Permit;
use crate::udp::{DNS_PORT, idle_limit, send_to};

/// A UDP socket of one family, and the task that reads it.
#[derive(Debug)]
struct FamilySocket {
    /// First field: dropped before the socket.
    _port: MappedPort,
    socket: Arc<UdpSocket>,
    reader: AbortHandle,
}

/// How a peer is reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerRoute {
    /// At an address that the rules allow.
    Allowed,
    /// At an address of the server itself, while its port is mapped to a client's socket.
    Hairpin,
}

/// A peer, by its address.
#[derive(Copy, Clone, Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) way: PeerRoute,
}

impl Drop for FamilySocket {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Sockets of the server for one socket of an application.
#[derive(Debug)]
pub(super) struct Mapping {
    ipv4: Option<FamilySocket>,
    ipv6: Option<FamilySocket>,
    used_at: Instant,
    only_dns: bool,
    ports: MappedPorts,
    _place: Permit<Arc<str>>,
}

impl Mapping {
    /// A mapping without sockets that occupies `place`.
    pub(super) fn new(now: Instant, ports: MappedPorts, place: Permit<Arc<str>>) -> Mapping {
        Mapping { ipv4: None, ipv6: None, used_at: now, only_dns: true, ports, _place: place }
    }

    /// Time of the last use.
    pub(super) const fn used_at(&self) -> Instant {
        self.used_at
    }

    /// Records an answer of a peer.
    pub(super) const fn answered(&mut self, now: Instant) {
        self.used_at = now;
    }

    /// True if the mapping has not been used for its idle limit.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.used_at + idle_limit(self.only_dns) <= now
    }

    fn sends(&mut self, now: Instant, to: SocketAddr) {
        self.used_at = now;
        self.only_dns &= to.port() == DNS_PORT;
    }

    /// Sends a datagram. `read` starts a task that reads a new socket.
    ///
    /// # Errors
    /// The error of the system: no socket could be opened, or sending failed. `ConnectionRefused`: a port of the
    /// server itself that is no longer mapped.
    pub(super) fn send(
        &mut self,
        now: Instant,
        peer: Peer,
        payload: &[u8],
        read: impl FnOnce(Arc<UdpSocket>) -> AbortHandle,
    ) -> io::Result<()> {
        let Peer { address: to, way } = peer;
        self.sends(now, to);
        let half = if to.is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 };
        let half = match half {
            Some(half) => half,
            None => {
                let socket = Arc::new(open(to.is_ipv6())?);
                let _port = self.ports.add(socket.local_addr()?);
                let reader = read(Arc::clone(&socket));
                half.insert(FamilySocket { _port, socket, reader })
            }
        };
        let send = || send_to(&half.socket, payload, to).map(drop);
        match way {
            PeerRoute::Allowed => send(),
            PeerRoute::Hairpin => {
                self.ports.send(to, send).unwrap_or(Err(io::ErrorKind::ConnectionRefused.into()))
            }
        }
    }
}

fn open(ipv6: bool) -> io::Result<UdpSocket> {
    let (domain, any) = match ipv6 {
        true => (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        false => (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if ipv6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&any.into())?;
    UdpSocket::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::server::admission::Quota;

    #[test]
    fn a_mapping_lasts_five_minutes_and_half_a_minute_while_it_is_for_dns_alone() {
        let place = Quota::new(1, 1).enter(Arc::from("laptop")).unwrap();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut mapping = Mapping::new(start, MappedPorts::default(), place);
        mapping.sends(start, "192.0.2.1:53".parse().unwrap());
        assert!(!mapping.is_idle(after(29)) && mapping.is_idle(after(30)));
        mapping.sends(after(20), "192.0.2.2:53".parse().unwrap());
        assert!(!mapping.is_idle(after(49)) && mapping.is_idle(after(50)));
        mapping.sends(after(49), "192.0.2.1:443".parse().unwrap());
        assert!(!mapping.is_idle(after(348)) && mapping.is_idle(after(349)));
        mapping.sends(after(300), "192.0.2.1:53".parse().unwrap());
        assert!(!mapping.is_idle(after(599)), "once it was used for more, it is no resolver's");
        mapping.answered(after(550));
        assert!(!mapping.is_idle(after(849)) && mapping.is_idle(after(850)));
    }
}
