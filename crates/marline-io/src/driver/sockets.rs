//! Sockets of a shard: their kinds, how each kind sends, and the set of open sockets.

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use marline_core::{Ecn, FourTuple};
use marline_time::{Duration, Instant};
use quinn_udp::{EcnCodepoint, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::combined_packet;
use super::raw_sender::RawSender;
use super::sending::{Outgoing, SendError, StalledBatch, StalledQueue};
use crate::carrier::Outer;
use crate::edge::descriptor::watch;
use crate::edge::network_error::NetworkError;
use crate::edge::raw_packet::RawDestination;
use crate::edge::socket_spec::{PortSharing, SocketSpec};
use crate::native::{OpenedFamily, ecn_bits};
use crate::sys::error_queue;
use crate::sys::socket;
use crate::sys::tun::Tun;

/// Delay before a batch for which the kernel had no room is tried again. Writability would be more precise, but a send
/// buffer of megabytes takes longer than this to drain.
const STALL_RETRY: Duration = Duration::from_micros(500);
/// Options for opening a socket.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Address and port to bind; port 0 lets the system choose.
    pub local: SocketAddr,
    /// Address by which the driver identifies the socket, if it differs from the bound address because another socket
    /// is bound to that address on another interface.
    pub alias: Option<IpAddr>,
    /// Interface to bind to: name and index.
    pub interface: Option<(String, u32)>,
    /// Port sharing with other sockets of the server.
    pub port: PortSharing,
    /// Mark of the packets for routing rules (`fwmark`), which needs CAP_NET_ADMIN; 0 for none.
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

/// Kind of a socket, with the state it needs.
#[derive(Debug)]
pub(crate) enum Kind {
    /// UDP, bound to an address.
    Udp(UdpKind),
    /// Raw IP, for all addresses of a family.
    Raw(RawSender),
    /// TUN interface: `local` is the address of this host.
    Tun,
    /// TUN interface of a gateway: this process answers for all addresses. With `offloads`, up to 64 kB of a connection
    /// form one packet, after a virtio header.
    Gateway {
        /// True if packets have a virtio header.
        offloads: bool,
    },
}

#[derive(Debug)]
pub(crate) struct UdpKind {
    pub(crate) state: UdpSocketState,
    options: SocketOptions,
    /// True if the socket is bound to all addresses: replies must name their source address.
    wildcard: bool,
}

impl Sock {
    pub(crate) fn udp(options: SocketOptions) -> io::Result<Self> {
        Sock::adopt(OwnedFd::from(socket::open(&options.spec())?), options)
    }

    /// Wraps a socket that another process has opened with these options.
    pub(crate) fn adopt(socket: OwnedFd, options: SocketOptions) -> io::Result<Self> {
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

    /// Duplicates the socket with another interest in I/O events.
    pub(crate) fn duplicate_with_interest(&self, interest: Interest) -> io::Result<Self> {
        let copy = self.as_fd().try_clone_to_owned()?;
        let kind = match &self.kind {
            Kind::Udp(udp) => {
                let state = UdpSocketState::new(UdpSockRef::from(&copy))?;
                let (options, wildcard) = (udp.options.clone(), udp.wildcard);
                Kind::Udp(UdpKind { state, options, wildcard })
            }
            Kind::Raw(raw) => Kind::Raw(raw.clone()),
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
        let kind = Kind::Raw(RawSender::new(spare, offload));
        Ok(Sock { fd, local: SocketAddr::new(any, 0), kind })
    }

    /// Opens a TUN interface; with `several`, one of several queues.
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

    /// Wraps the TUN interface of a gateway. It is not bound to an address, because the gateway answers for all
    /// addresses except those behind the interface.
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
            Kind::Tun | Kind::Gateway { .. } => {
                combined_packet::write_each(self.as_fd(), outer, stride, bytes)
            }
        }
    }

    /// Returns true if the kernel takes several datagrams of equal length in one call.
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

    /// Returns the MTU of the route to `remote`, if known.
    pub(crate) fn route_mtu(&self, remote: SocketAddr, local: IpAddr) -> Option<u32> {
        match &self.kind {
            Kind::Udp(udp) => {
                let mut spec = udp.options.spec();
                spec.local = SocketAddr::new(udp.bound_ip(local), 0);
                socket::route_mtu(&spec, remote).ok()
            }
            Kind::Raw(raw) => raw.route_mtu(remote, local),
            Kind::Tun | Kind::Gateway { .. } => None,
        }
    }
}

impl UdpKind {
    /// Returns the options of the socket, with the address that it was assigned.
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

/// Auxiliary task of a shard; dropping this aborts the task.
#[derive(Debug)]
pub(super) struct Watch(AbortHandle);

impl Watch {
    pub(super) const fn new(task: AbortHandle) -> Watch {
        Watch(task)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Socket that this process reads, with its index and address.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(crate) index: u16,
    pub(crate) local: SocketAddr,
    pub(crate) socket: Arc<Sock>,
}

/// Open socket, with its queued batches and its error watch.
#[derive(Debug)]
struct Entry {
    socket: Arc<Sock>,
    stalled: StalledQueue,
    _error_watch: Option<Watch>,
}

/// Sockets of a shard by index.
#[derive(Debug)]
pub(super) struct Sockets {
    entries: Vec<Option<Entry>>,
    stall_retry_at: Option<Instant>,
    /// True while this process reads the sockets.
    receiving: bool,
    /// True if the sockets have changed and the task must update its list.
    changed: bool,
}

/// The set of sockets.
impl Sockets {
    pub(super) const fn new() -> Sockets {
        Sockets { entries: Vec::new(), stall_retry_at: None, receiving: true, changed: true }
    }

    /// Adds a socket at the next free index, or at the index of a closed one. Returns the index.
    pub(super) fn add(&mut self, socket: Arc<Sock>, error_watch: Option<Watch>) -> usize {
        let index = match self.entries.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        let stalled = StalledQueue::default();
        self.entries[index] = Some(Entry { socket, stalled, _error_watch: error_watch });
        self.changed = true;
        index
    }

    /// Closes the socket bound to this address. Returns its index, if there was one.
    pub(super) fn close(&mut self, local: IpAddr) -> Option<usize> {
        let index = self.position(|socket| socket.local.ip() == local)?;
        self.entries[index] = None;
        self.changed = true;
        Some(index)
    }

    /// Closes all sockets.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Sets whether this process reads the sockets, without registering them again.
    pub(super) const fn set_receiving(&mut self, receiving: bool) {
        self.receiving = receiving;
    }

    /// Starts reading.
    pub(super) const fn begin_receiving(&mut self) {
        self.receiving = true;
        self.changed = true;
    }

    /// Registers all sockets again: a socket watched for input would wake this process even if another process reads
    /// it. `watch` starts the error watch of a socket.
    pub(super) fn reregister(
        &mut self,
        receiving: bool,
        watch: impl Fn(&Arc<Sock>) -> Option<Watch>,
    ) {
        let interest = if receiving {
            Interest::READABLE | Interest::ERROR
        } else {
            crate::sys::WITHOUT_INPUT
        };
        for entry in self.entries.iter_mut().flatten() {
            match entry.socket.duplicate_with_interest(interest) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let _error_watch = watch(&socket);
                    let stalled = core::mem::take(&mut entry.stalled);
                    *entry = Entry { socket, stalled, _error_watch };
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot re-register the socket; keeping its old registration");
                }
            }
        }
        self.receiving = receiving;
        self.changed = true;
    }

    /// Returns the sockets that are read, if they have changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<Vec<OpenSocket>> {
        if !core::mem::take(&mut self.changed) {
            return None;
        }
        let open = self.entries.iter().enumerate().filter(|_| self.receiving);
        let open = open.filter_map(|(index, entry)| {
            let socket = Arc::clone(&entry.as_ref()?.socket);
            Some(OpenSocket { index: index as u16, local: socket.local, socket })
        });
        Some(open.collect())
    }

    /// Iterates over the open sockets.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sock> {
        self.entries.iter().flatten().map(|entry| &*entry.socket)
    }

    /// Returns the socket at this index.
    pub(super) fn at(&self, index: usize) -> Option<&Sock> {
        self.entries.get(index)?.as_ref().map(|entry| &*entry.socket)
    }

    /// Returns the index of the first socket for which `fits` is true.
    pub(super) fn position(&self, fits: impl Fn(&Sock) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|e| fits(&e.socket)))
    }

    /// Returns the index of this socket.
    pub(super) fn index_of(&self, socket: &Arc<Sock>) -> Option<usize> {
        self.position(|known| core::ptr::eq(known, Arc::as_ptr(socket)))
    }

    /// Sets the interface of an address in the raw sockets.
    pub(super) fn set_interface(&self, local: IpAddr, interface: Option<u32>) {
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                raw.set_interface(local, interface);
            }
        }
    }

    /// Returns the options of the UDP socket at this index, with the address that it was assigned.
    pub(super) fn udp_options(&self, index: u16) -> Option<SocketOptions> {
        let socket = self.at(usize::from(index))?;
        match &socket.kind {
            Kind::Udp(udp) => Some(udp.options_at(socket.local)),
            _ => None,
        }
    }

    /// Duplicates the descriptors of the UDP sockets.
    pub(super) fn copy_udp(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let udp = self.iter().filter(|socket| matches!(socket.kind, Kind::Udp(_)));
        udp.map(|socket| Ok((socket.local, socket.as_fd().try_clone_to_owned()?))).collect()
    }

    /// Duplicates the sockets for combined packets, each with its name.
    pub(super) fn copy_offload(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut copies = Vec::new();
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                copies.extend(raw.copy_offload(socket.local.is_ipv6())?);
            }
        }
        Ok(copies)
    }

    /// Closes the raw sockets that only send.
    pub(super) fn close_spare(&self) {
        for socket in self.iter() {
            if let Kind::Raw(raw) = &socket.kind {
                raw.close_spare();
            }
        }
    }
}

/// Sending.
impl Sockets {
    /// Finds the socket for native packets of a path.
    pub(super) fn find_native_outer(&self, path: &FourTuple) -> Option<Outer> {
        let socket = self.position(|socket| {
            if matches!(socket.kind, Kind::Gateway { .. }) {
                return true;
            }
            let local = socket.local.ip();
            let family = local.is_unspecified() && local.is_ipv6() == path.local.is_ipv6();
            family || local == path.local.ip()
        })?;
        Some(Outer { socket: socket as u16, local: path.local.ip(), remote: path.remote })
    }

    /// Returns true for a UDP socket on which the kernel takes several datagrams in one call.
    pub(super) fn sends_runs(&self, outer: &Outer) -> bool {
        !outer.is_link() && self.at(usize::from(outer.socket)).is_some_and(Sock::sends_runs)
    }

    /// Hands bytes to the kernel. If the kernel has no room, queues them.
    pub(super) fn send(&mut self, now: Instant, out: &Outgoing<'_>) -> Result<(), SendError> {
        let index = usize::from(out.outer.socket);
        let Some(Some(entry)) = self.entries.get_mut(index) else { return Ok(()) };
        let result = if !entry.stalled.contains_address(out.outer.local) {
            entry.socket.send(now, &out.outer, out.ecn, out.stride, out.bytes)
        } else {
            Err(io::Error::from(io::ErrorKind::WouldBlock).into())
        };
        let Err(failed) = result else { return Ok(()) };
        if !failed.would_block() {
            return Err(failed);
        }
        let bytes = out.bytes.get(failed.sent..).unwrap_or_default().to_vec();
        let (outer, ecn, stride) = (out.outer, out.ecn, out.stride);
        entry.stalled.push(StalledBatch { outer, ecn, stride, bytes });
        self.stall_retry_at = Some(now + STALL_RETRY);
        Ok(())
    }

    /// Sends the rest of a batch again, without waiting. Returns the error, unless the kernel had no room.
    pub(super) fn send_rest(
        &self,
        now: Instant,
        out: &Outgoing<'_>,
        sent: usize,
    ) -> Option<io::Error> {
        let socket = self.at(usize::from(out.outer.socket))?;
        let rest = out.bytes.get(sent..).unwrap_or_default();
        match socket.send(now, &out.outer, out.ecn, out.stride, rest) {
            Err(again) if !again.would_block() => Some(again.error),
            // The kernel has no room: the datagram is lost, as in any queue.
            _ => None,
        }
    }

    /// Retries queued batches when it is time.
    pub(super) fn retry_stalled(&mut self, now: Instant) {
        if self.stall_retry_at.is_none_or(|at| at > now) {
            return;
        }
        let mut still = false;
        for entry in self.entries.iter_mut().flatten() {
            still |= entry.stalled.retry(|batch| {
                entry.socket.send(now, &batch.outer, batch.ecn, batch.stride, &batch.bytes)
            });
        }
        self.stall_retry_at = still.then_some(now + STALL_RETRY);
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.stall_retry_at
    }

    /// Takes the next ICMP error of a socket.
    pub(super) fn next_error(&self, index: usize) -> Option<NetworkError> {
        self.at(index)?.next_error()
    }

    /// Returns the MTU of the route from this socket, if known.
    pub(super) fn route_mtu(&self, outer: &Outer) -> Option<u32> {
        self.at(usize::from(outer.socket))?.route_mtu(outer.remote, outer.local)
    }

    /// Queues a batch until the kernel has room.
    #[cfg(test)]
    pub(super) fn stall(&mut self, outer: Outer, ecn: Ecn, stride: usize, bytes: Vec<u8>) {
        if let Some(Some(entry)) = self.entries.get_mut(usize::from(outer.socket)) {
            entry.stalled.push(StalledBatch { outer, ecn, stride, bytes });
        }
    }
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

/// Removes the flow label, which may differ between datagrams from one peer. The scope of a link-local address is kept,
/// because no answer can be sent without it.
pub(super) fn canonical_address(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.flowinfo() != 0 => {
            core::net::SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => other,
    }
}
