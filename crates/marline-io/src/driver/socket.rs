//! Socket of a shard, and the results of sending on it.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_core::Ecn;
use marline_time::Instant;
use marline_wire::{IPV6_HEADER_LEN, ip_header_len};
use quinn_udp::{EcnCodepoint, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::combined_packet;
use super::combined_sender::{CombinedSender, send_each};
use super::sending::SendError;
use crate::carrier::Outer;
use crate::edge::descriptor::watch;
use crate::edge::network_error::NetworkError;
use crate::edge::raw_packet::RawDestination;
use crate::edge::socket_spec::{PortSharing, SocketSpec};
use crate::native::{OpenedFamily, ecn_bits};
use crate::sys::error_queue;
use crate::sys::raw;
use crate::sys::socket;
use crate::sys::tun::Tun;

/// Options for opening a socket.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Address and port to bind; port 0 lets the system choose.
    pub local: SocketAddr,
    /// Address by which the driver identifies the socket, if it differs from the bound one: another socket is bound
    /// to the same address on another interface.
    pub alias: Option<IpAddr>,
    /// Interface to bind to: name and index.
    pub interface: Option<(String, u32)>,
    /// Port sharing with other sockets of the server.
    pub port: PortSharing,
    /// Mark of the packets for the machine's routing rules (`fwmark`), which needs CAP_NET_ADMIN; 0 for none.
    pub mark: u32,
}

impl SocketOptions {
    pub(super) fn spec(&self) -> SocketSpec<'_> {
        SocketSpec {
            local: self.local,
            interface: self.interface.as_ref().map(|(name, index)| (name.as_str(), *index)),
            port: self.port,
            mark: self.mark,
        }
    }
}

/// Open socket.
#[derive(Debug)]
pub(crate) struct Sock {
    pub(crate) fd: AsyncFd<OwnedFd>,
    /// Bound address, or its alias.
    pub(crate) local: SocketAddr,
    pub(crate) kind: Kind,
}

/// Kind of a socket, with the state that its carrier needs.
#[derive(Debug)]
pub(crate) enum Kind {
    /// UDP, bound to an address.
    Udp(UdpKind),
    /// Raw IP, for all addresses of a family.
    Raw(RawKind),
    /// TUN interface: `local` is the address of this host.
    Tun,
    /// TUN interface of a gateway: this process answers for all addresses. With `offloads`, up to 64 kB of a
    /// connection are one packet, with a virtio header in front.
    Gateway {
        /// True if packets have a virtio header.
        offloads: bool,
    },
}

#[derive(Debug)]
pub(crate) struct UdpKind {
    pub(crate) state: UdpSocketState,
    options: SocketOptions,
    /// Set if the socket is bound to all addresses: replies must name their source address.
    wildcard: bool,
}

#[derive(Debug)]
pub(crate) struct RawKind {
    ways: Arc<Mutex<Ways>>,
}

/// Outgoing interfaces and sockets of native packets.
#[derive(Debug)]
struct Ways {
    /// Outgoing interface by source address.
    interfaces: BTreeMap<IpAddr, u32>,
    /// Sockets bound to an interface. Each has its own send buffer, so that a slow network does not hold up the
    /// others. On IPv6, the interface given with a packet would also yield to a more specific route through another
    /// one.
    senders: BTreeMap<u32, OwnedFd>,
    /// Sockets that are not bound yet.
    spare: Vec<OwnedFd>,
    /// Sender of combined packets, if there is one.
    combined: Option<CombinedSender>,
}

impl Sock {
    pub(crate) fn udp(options: SocketOptions) -> io::Result<Self> {
        Sock::adopted(OwnedFd::from(socket::open(&options.spec())?), options)
    }

    /// Wraps a socket with these options that another process has opened.
    pub(crate) fn adopted(socket: OwnedFd, options: SocketOptions) -> io::Result<Self> {
        let socket = std::net::UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let mut local = socket.local_addr()?;
        let wildcard = local.ip().is_unspecified();
        if let Some(alias) = options.alias {
            local.set_ip(alias);
        }
        let fd = watch(OwnedFd::from(socket), Interest::READABLE | Interest::ERROR)?;
        Ok(Sock { fd, local, kind: Kind::Udp(UdpKind { state, options, wildcard }) })
    }

    /// Duplicates the socket, with another interest.
    pub(crate) fn duplicate_with_interest(&self, interest: Interest) -> io::Result<Self> {
        let copy = self.as_fd().try_clone_to_owned()?;
        let kind = match &self.kind {
            Kind::Udp(udp) => {
                let state = UdpSocketState::new(UdpSockRef::from(&copy))?;
                let (options, wildcard) = (udp.options.clone(), udp.wildcard);
                Kind::Udp(UdpKind { state, options, wildcard })
            }
            Kind::Raw(raw) => Kind::Raw(RawKind { ways: Arc::clone(&raw.ways) }),
            Kind::Tun => Kind::Tun,
            Kind::Gateway { offloads } => Kind::Gateway { offloads: *offloads },
        };
        let fd = watch(copy, interest)?;
        Ok(Sock { fd, local: self.local, kind })
    }

    pub(crate) fn raw(opened: OpenedFamily, ipv6: bool) -> io::Result<Self> {
        let OpenedFamily { receiver, senders: spare, offload } = opened;
        let any: IpAddr = if ipv6 {
            core::net::Ipv6Addr::UNSPECIFIED.into()
        } else {
            core::net::Ipv4Addr::UNSPECIFIED.into()
        };
        let fd = watch(receiver, Interest::READABLE | Interest::ERROR)?;
        let combined = offload.map(CombinedSender::new);
        let (interfaces, senders) = (BTreeMap::new(), BTreeMap::new());
        let ways = Ways { interfaces, senders, spare, combined };
        let kind = Kind::Raw(RawKind { ways: Arc::new(Mutex::new(ways)) });
        Ok(Sock { fd, local: SocketAddr::new(any, 0), kind })
    }

    /// With `several`, opens one of several queues of the interface.
    pub(crate) fn tun(interface: &str, local: IpAddr, several: bool) -> io::Result<Self> {
        let open = if several { Tun::open_queue } else { Tun::open };
        let tun = OwnedFd::from(open(interface)?);
        let fd = watch(tun, Interest::READABLE)?;
        Ok(Sock { fd, local: SocketAddr::new(local, 0), kind: Kind::Tun })
    }

    /// Wraps a TUN interface that another process has opened.
    pub(crate) fn adopted_tun(tun: OwnedFd, local: IpAddr) -> io::Result<Self> {
        let fd = watch(tun, Interest::READABLE)?;
        Ok(Sock { fd, local: SocketAddr::new(local, 0), kind: Kind::Tun })
    }

    /// A gateway is not bound to an address: it has all except those behind it.
    pub(crate) fn gateway(tun: Tun) -> io::Result<Self> {
        let offloads = tun.offloads();
        let fd = watch(OwnedFd::from(tun), Interest::READABLE)?;
        let any = core::net::Ipv4Addr::UNSPECIFIED.into();
        Ok(Sock { fd, local: SocketAddr::new(any, 0), kind: Kind::Gateway { offloads } })
    }

    /// Returns true for sockets with an error queue; TUN interfaces have none.
    pub(crate) const fn has_errors(&self) -> bool {
        !matches!(self.kind, Kind::Tun | Kind::Gateway { .. })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// Sends one batch. `stride` 0 means a single datagram.
    pub(crate) fn send(
        &self,
        now: Instant,
        outer: &Outer,
        ecn: Ecn,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        match &self.kind {
            Kind::Udp(udp) => Ok(udp.send(self.as_fd(), outer, ecn, stride, bytes)?),
            Kind::Raw(raw) => raw.send(
                now,
                self.as_fd(),
                RawDestination {
                    local: outer.local,
                    remote: outer.remote,
                    interface: 0,
                    ecn: ecn_bits(ecn),
                },
                stride,
                bytes,
            ),
            Kind::Gateway { offloads: true } => {
                combined_packet::write_batch(self.as_fd(), outer.local.is_ipv6(), stride, bytes)
            }
            Kind::Tun | Kind::Gateway { .. } => send_to_tun(self.as_fd(), outer, stride, bytes),
        }
    }

    /// Returns true if the kernel takes several datagrams of one length in one call.
    pub(crate) fn sends_runs(&self) -> bool {
        matches!(&self.kind, Kind::Udp(udp) if udp.state.max_gso_segments() > 1)
    }

    /// Takes the next ICMP error from the kernel's queue.
    pub(crate) fn next_error(&self) -> Option<NetworkError> {
        if !self.has_errors() {
            return None;
        }
        error_queue::next(self.as_fd())
    }

    /// MTU of the route to `remote`, if known.
    pub(crate) fn route_mtu(&self, remote: SocketAddr, local: IpAddr) -> Option<u32> {
        match &self.kind {
            Kind::Udp(udp) => {
                let mut spec = udp.options.spec();
                spec.local = SocketAddr::new(udp.bound_ip(local), 0);
                socket::route_mtu(&spec, remote).ok()
            }
            Kind::Raw(raw) => {
                let interface = raw.lock().interfaces.get(&local).copied();
                socket::route_mtu_by_index(local, interface.unwrap_or(0), remote).ok()
            }
            Kind::Tun | Kind::Gateway { .. } => None,
        }
    }
}

/// Writes packets one by one. Their headers are in the room in front of each segment; an IPv4 header is at the end
/// of that room.
fn send_to_tun(
    fd: BorrowedFd<'_>,
    outer: &Outer,
    stride: usize,
    bytes: &[u8],
) -> Result<(), SendError> {
    let free = IPV6_HEADER_LEN - ip_header_len(outer.local);
    let mut sent = 0;
    for datagram in bytes.chunks(if stride == 0 { bytes.len().max(1) } else { stride }) {
        let packet = datagram.get(free..).unwrap_or_default();
        if let Err(error) = rustix::io::write(fd, packet) {
            return Err(SendError { error: error.into(), sent });
        }
        sent += datagram.len();
    }
    Ok(())
}

impl UdpKind {
    /// Options of the socket, with the address that it got.
    pub(super) fn options_at(&self, local: SocketAddr) -> SocketOptions {
        let local = SocketAddr::new(self.bound_ip(local.ip()), local.port());
        SocketOptions { local, ..self.options.clone() }
    }

    /// Returns the bound address for an address by which the driver identifies the socket.
    fn bound_ip(&self, local: IpAddr) -> IpAddr {
        if self.options.alias.is_some() { self.options.local.ip() } else { local }
    }

    fn send(
        &self,
        fd: BorrowedFd<'_>,
        outer: &Outer,
        ecn: Ecn,
        stride: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let mut transmit = quinn_udp::Transmit {
            destination: outer.remote,
            ecn: codepoint(ecn),
            contents: bytes,
            segment_size: (stride > 0 && stride < bytes.len()).then_some(stride),
            src_ip: self.wildcard.then_some(outer.local),
        };
        if transmit.segment_size.is_none() || self.state.max_gso_segments() > 1 {
            return self.state.try_send(UdpSockRef::from(&fd), &transmit);
        }
        transmit.segment_size = None;
        for datagram in bytes.chunks(stride) {
            transmit.contents = datagram;
            self.state.try_send(UdpSockRef::from(&fd), &transmit)?;
        }
        Ok(())
    }
}

impl RawKind {
    fn lock(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the sockets that are not bound to an interface yet: for each TCP packet, the kernel checks all of
    /// them.
    pub(crate) fn close_spare(&self) {
        self.lock().spare = Vec::new();
    }

    /// Number of these sockets.
    #[cfg(test)]
    pub(crate) fn spare(&self) -> usize {
        self.lock().spare.len()
    }

    /// Duplicates the sockets for combined packets.
    pub(super) fn copy_offload(&self, ipv6: bool) -> io::Result<Vec<(String, OwnedFd)>> {
        let ways = self.lock();
        ways.combined.as_ref().map_or(Ok(Vec::new()), |combined| combined.copies(ipv6))
    }

    /// Sets the outgoing interface for packets from this address (0: according to the routing table), or removes the
    /// address.
    pub(crate) fn set_interface(&self, local: IpAddr, interface: Option<u32>) {
        let mut ways = self.lock();
        let Some(index) = interface else {
            ways.interfaces.remove(&local);
            return;
        };
        ways.interfaces.insert(local, index);
        if index != 0 {
            ways.add_sender(index, local.is_ipv6());
        }
    }

    fn send(
        &self,
        now: Instant,
        fd: BorrowedFd<'_>,
        to: RawDestination,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let mut ways = self.lock();
        let Ways { interfaces, senders, combined, .. } = &mut *ways;
        let interface = interfaces.get(&to.local).copied().unwrap_or(0);
        let fd = senders.get(&interface).map_or(fd, AsFd::as_fd);
        let to = RawDestination { interface, ..to };
        match combined {
            Some(combined) if stride > 0 && bytes.len() > stride => {
                combined.send_batch(now, fd, &to, stride, bytes)
            }
            _ => send_each(fd, &to, stride, bytes),
        }
    }
}

impl Ways {
    /// Adds a socket for this interface. If that fails, the shared socket is used.
    fn add_sender(&mut self, index: u32, ipv6: bool) {
        if self.senders.contains_key(&index) {
            return;
        }
        let socket = self.spare.pop().map_or_else(|| raw::open_sender(ipv6), Ok);
        let bound = socket.and_then(|socket| {
            raw::bind_to_interface(socket.as_fd(), index)?;
            Ok(socket)
        });
        match bound {
            Ok(socket) => {
                // Keep one socket per interface in use. Indices are not reused.
                let in_use = &self.interfaces;
                self.senders.retain(|known, _| in_use.values().any(|index| index == known));
                self.senders.insert(index, socket);
            }
            Err(error) => tracing::warn!(
                index,
                %error,
                "this interface shares a socket with others"
            ),
        }
    }
}

/// Maximum UDP payload of an IP packet of `mtu` bytes.
pub(crate) fn payload_of_mtu(mtu: u32, remote: SocketAddr) -> Option<u16> {
    const UDP_HEADER: u32 = 8;
    let ip_header = if remote.is_ipv6() { 40 } else { 20 };
    let payload = mtu.checked_sub(ip_header + UDP_HEADER)?;
    Some(u16::try_from(payload).unwrap_or(u16::MAX))
}

fn codepoint(ecn: Ecn) -> Option<EcnCodepoint> {
    match ecn {
        Ecn::NotEct => None,
        Ecn::Ect0 => Some(EcnCodepoint::Ect0),
        Ecn::Ect1 => Some(EcnCodepoint::Ect1),
        Ecn::Ce => Some(EcnCodepoint::Ce),
    }
}

/// Converts an ECN codepoint of `quinn_udp`.
pub(crate) fn ecn_of(codepoint: Option<EcnCodepoint>) -> Ecn {
    match codepoint {
        None => Ecn::NotEct,
        Some(EcnCodepoint::Ect0) => Ecn::Ect0,
        Some(EcnCodepoint::Ect1) => Ecn::Ect1,
        Some(EcnCodepoint::Ce) => Ecn::Ce,
    }
}

/// Removes the flow label, which may differ between datagrams of one peer. The scope of a link-local address is
/// kept: without it no answer can be sent.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => {
            core::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => other,
    }
}
