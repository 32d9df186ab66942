//! Sends native TCP segments: the interface and the socket per source address, and the combination of up to 64 kB of
//! segments into one packet and one system call (docs/spec/native-carrier.md, section 2).
//!
//! *Problem.* A raw socket takes one packet of at most the interface's MTU at a time, and each costs as much as a
//! packet of 64 kB. A packet socket takes larger packets: the network card, or the kernel on its behalf, cuts them into
//! segments. But a packet socket bypasses everything that the kernel does between a socket and an interface: routing,
//! the neighbor cache, IPsec and the output chain of the firewall.
//!
//! *Solution.* The raw socket remains the default. Only full segments in sequence are combined, and only where the
//! kernel reports how it would route them ([`OutletFinder`]). Such a route is valid for half a second. Then one batch
//! uses the raw socket, so that the kernel keeps the neighbor entry alive and can apply new rules that reject packets,
//! and the route is queried again. For this machine's own addresses, the raw socket itself takes 64 kB, so nothing is
//! bypassed.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_time::{Duration, Instant};
use marline_wire::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, Ipv4Header, Ipv6Header, PROTOCOL_TCP};

use super::combined_packet::{CHECKSUM, Group, HEADERS, MAX_PACKET_BYTES};
use super::sending::SendError;
use crate::edge::outlet::{ETHERNET_HEADER_LEN, Outlet};
use crate::edge::raw_packet::RawDestination;
use crate::edge::virtio::VirtioHeader;
use crate::native::Offload;
use crate::sys::outlet::OutletFinder;
use crate::sys::raw;
use crate::sys::{packet, socket};

/// Time for which a route reported by the kernel is used.
const ROUTE_VALIDITY: Duration = Duration::from_millis(500);
/// Maximum number of cached outlets; further peers use the raw socket.
const MAX_CACHED_OUTLETS: usize = 4_096;
/// The system's default TTL (`net.ipv4.ip_default_ttl`, `net.ipv6.conf.*.hop_limit`).
const HOP_LIMIT: u8 = 64;
/// File with the number of connections that the firewall of this network namespace tracks.
const TRACKED_COUNT_FILE: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Directory of the kernel's network settings. If it exists without [`TRACKED_COUNT_FILE`], there is no connection
/// tracking.
const SYSCTL_DIR: &str = "/proc/sys/net";

/// Sockets that send native TCP packets. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RawSender {
    ways: Arc<Mutex<Outlets>>,
}

/// Outgoing interfaces and sockets of native packets.
#[derive(Debug)]
struct Outlets {
    /// Outgoing interface by source address.
    interfaces: BTreeMap<IpAddr, u32>,
    /// Sockets bound to an interface. Each has its own send buffer, so that a slow network does not delay the others.
    /// On IPv6, a more specific route through another interface would also override the interface given with a packet.
    senders: BTreeMap<u32, OwnedFd>,
    /// Sockets that are not yet bound to an interface.
    spare: Vec<OwnedFd>,
    /// Sender of combined packets, if there is one.
    combined: Option<CombinedSender>,
}

impl RawSender {
    /// Creates the sender. `spare` are sockets that are not yet bound; `offload` are the sockets for combined packets.
    pub(super) fn new(spare: Vec<OwnedFd>, offload: Option<Offload>) -> RawSender {
        let combined = offload.map(CombinedSender::new);
        let (interfaces, senders) = (BTreeMap::new(), BTreeMap::new());
        let ways = Outlets { interfaces, senders, spare, combined };
        RawSender { ways: Arc::new(Mutex::new(ways)) }
    }

    fn lock(&self) -> MutexGuard<'_, Outlets> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the sockets that are not yet bound to an interface, because the kernel checks all of them for each TCP
    /// packet.
    pub(crate) fn close_spare(&self) {
        self.lock().spare = Vec::new();
    }

    /// Returns the number of sockets that are not yet bound.
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

    /// Returns the MTU of the route to `remote`, if known.
    pub(super) fn route_mtu(&self, remote: SocketAddr, local: IpAddr) -> Option<u32> {
        let interface = self.lock().interfaces.get(&local).copied();
        socket::route_mtu_by_index(local, interface.unwrap_or(0), remote).ok()
    }

    /// Sends one batch. `fd` is used if no socket is bound to the interface.
    pub(super) fn send(
        &self,
        now: Instant,
        fd: BorrowedFd<'_>,
        to: RawDestination,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let mut ways = self.lock();
        let Outlets { interfaces, senders, combined, .. } = &mut *ways;
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

impl Outlets {
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
                // Keep one socket per interface that is still used. Interface indices are not reused.
                let in_use = &self.interfaces;
                self.senders.retain(|known, _| in_use.values().any(|index| index == known));
                self.senders.insert(index, socket);
            }
            Err(error) => tracing::warn!(
                index,
                %error,
                "cannot bind a socket to the interface; it shares a socket with others"
            ),
        }
    }
}

/// Sockets for combined packets, and a cache of outlets.
#[derive(Debug)]
pub(super) struct CombinedSender {
    sockets: Offload,
    finder: OutletFinder,
    known: BTreeMap<(IpAddr, SocketAddr), CachedOutlet>,
}

#[derive(Copy, Clone, Debug)]
struct CachedOutlet {
    outlet: Option<Outlet>,
    until: Instant,
}

impl CombinedSender {
    fn new(sockets: Offload) -> CombinedSender {
        CombinedSender { sockets, finder: OutletFinder::default(), known: BTreeMap::new() }
    }

    /// Duplicates the descriptors of the sockets, each with its name.
    pub(super) fn copies(&self, ipv6: bool) -> io::Result<Vec<(String, OwnedFd)>> {
        self.sockets.copies(ipv6)
    }

    /// Returns the outlet of this flow. `None` means that the raw socket must be used: there is no outlet, or one batch
    /// has to use it before the next query.
    pub(super) fn outlet(
        &mut self,
        now: Instant,
        to: &RawDestination,
        first: &[u8],
    ) -> Option<Outlet> {
        let key = (to.local, to.remote);
        if let Some(known) = self.known.get(&key).filter(|known| known.until > now) {
            return known.outlet;
        }
        if self.known.len() >= MAX_CACHED_OUTLETS {
            self.known.retain(|_, known| known.until > now);
            if self.known.len() >= MAX_CACHED_OUTLETS {
                return None;
            }
        }
        let outlet = self.ask(to, first);
        self.known.insert(key, CachedOutlet { outlet, until: now + ROUTE_VALIDITY });
        None
    }

    /// After a failure, makes the raw socket send until the next query.
    pub(super) fn forget(&mut self, to: &RawDestination) {
        if let Some(known) = self.known.get_mut(&(to.local, to.remote)) {
            known.outlet = None;
        }
    }

    fn ask(&mut self, to: &RawDestination, first: &[u8]) -> Option<Outlet> {
        let port = u16::from_be_bytes([*first.first()?, *first.get(1)?]);
        let local = SocketAddr::new(to.local, port);
        let outlet = match self.finder.find(local, to.remote, to.interface) {
            Ok(outlet) => outlet?,
            Err(error) => {
                tracing::debug!(remote = %to.remote, %error, "no route found; using the raw socket");
                return None;
            }
        };
        let Outlet::Ethernet { mtu, .. } = outlet else { return Some(outlet) };
        let free = self.sockets.packets.is_some() && !is_tracked() && !self.is_protected(to, mtu);
        tracing::debug!(remote = %to.remote, free, ?outlet, "route found");
        free.then_some(outlet)
    }

    /// Returns true if IPsec seems to handle these packets: the usable MTU is then less than the route's. IPsec
    /// policies cannot be read without privileges.
    fn is_protected(&self, to: &RawDestination, mtu: u32) -> bool {
        let seen = match &self.sockets.mtu_socket {
            Some(asker) => raw::kernel_mtu(asker.as_fd(), to),
            None => socket::route_mtu_by_index(to.local, to.interface, to.remote),
        };
        seen.is_ok_and(|seen| seen < mtu)
    }

    /// Sends the segments of a batch, which lie `stride` bytes apart, and combines those that can be combined.
    ///
    /// # Errors
    /// Fails if the kernel rejects a packet. The error contains the number of bytes sent before it.
    pub(super) fn send_batch(
        &mut self,
        now: Instant,
        raw: BorrowedFd<'_>,
        to: &RawDestination,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let outlet = self.outlet(now, to, bytes);
        let Some((outlet, longest)) = outlet.and_then(|outlet| fitting_outlet(outlet, to, stride))
        else {
            let sent = send_each(raw, to, stride, bytes);
            if sent.as_ref().is_err_and(|failed| !failed.would_block()) {
                self.forget(to);
            }
            return sent;
        };
        // `rest`: start of the segments that are neither sent nor in the group. `next`: start of the next segment.
        let (mut rest, mut next) = (0, 0);
        let mut group = Group::new(0, longest);
        while next < bytes.len() {
            let begin = next;
            while let Some(segment) = bytes.get(next..bytes.len().min(next + stride))
                && !segment.is_empty()
                && group.try_add(segment)
            {
                next += segment.len();
            }
            if group.count() > 1 {
                let before = bytes.get(rest..begin).unwrap_or_default();
                send_each(raw, to, stride, before)
                    .map_err(|failed| failed.with_sent_before(rest))?;
                rest = begin;
                match self.send(raw, &outlet, to, &group) {
                    Ok(()) => rest = next,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Err(SendError { error, sent: rest });
                    }
                    // A full queue may still have room for some of the segments.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => break,
                    Err(error) => {
                        tracing::debug!(remote = %to.remote, %error, "segmentation offload disabled");
                        self.forget(to);
                        break;
                    }
                }
            }
            group.clear();
        }
        let rest_of_all = bytes.get(rest..).unwrap_or_default();
        send_each(raw, to, stride, rest_of_all).map_err(|failed| failed.with_sent_before(rest))
    }

    /// Sends the segments of a group as one packet. `raw` is used for this machine's own addresses.
    ///
    /// # Errors
    /// Fails if the kernel rejects the packet. Nothing was sent then.
    pub(super) fn send(
        &self,
        raw: BorrowedFd<'_>,
        outlet: &Outlet,
        to: &RawDestination,
        group: &Group<'_>,
    ) -> io::Result<()> {
        let (local, remote) = (to.local, to.remote.ip());
        let mut headers = [0; HEADERS];
        match outlet {
            Outlet::Loopback { .. } => {
                let tcp = &mut headers[..group.headers_len()];
                group.write_finished_header(local, remote, tcp);
                let (parts, count) = group.parts([&[], tcp]);
                raw::send_parts(raw, to, &parts[..count])
            }
            Outlet::Ethernet { interface, header, hop_limit, .. } => {
                let socket = self.sockets.packets.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let limit = hop_limit.unwrap_or(HOP_LIMIT);
                let ip = write_ip(to, limit, group.segment_len(), &mut headers)?;
                let len = ip + group.headers_len();
                group.write_unfinished_header(local, remote, &mut headers[ip..len]);
                let virtio = VirtioHeader {
                    checksum: ((ETHERNET_HEADER_LEN + ip) as u16, CHECKSUM as u16),
                    segments: Some((group.size() as u16, ip == IPV6_HEADER_LEN)),
                    header_len: (ETHERNET_HEADER_LEN + len) as u16,
                };
                let mut front = [0; VirtioHeader::LEN + ETHERNET_HEADER_LEN];
                front[..VirtioHeader::LEN].copy_from_slice(&virtio.to_bytes());
                front[VirtioHeader::LEN..].copy_from_slice(header);
                let (parts, count) = group.parts([&front, &headers[..len]]);
                packet::send(socket.as_fd(), *interface, to.local.is_ipv6(), &parts[..count])
            }
        }
    }
}

/// Sends segments one by one.
///
/// # Errors
/// See [`CombinedSender::send_batch`].
pub(super) fn send_each(
    raw: BorrowedFd<'_>,
    to: &RawDestination,
    stride: usize,
    bytes: &[u8],
) -> Result<(), SendError> {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        match raw::send(raw, to, stride, rest) {
            Ok(count) if stride > 0 => sent += count * stride,
            Ok(_) => return Ok(()),
            // The interface's queue is full: the segment is lost, as in any queue.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                sent += if stride > 0 { stride } else { bytes.len() };
            }
            Err(error) => return Err(SendError { error, sent }),
        }
    }
    Ok(())
}

/// Returns the outlet and the maximum length of a combined TCP segment on it, if the outlet accepts segments of `each`
/// bytes.
fn fitting_outlet(outlet: Outlet, to: &RawDestination, each: usize) -> Option<(Outlet, usize)> {
    let (longest, most) = room(&outlet, to.local.is_ipv6());
    (each <= most).then_some((outlet, longest))
}

/// Returns the maximum length of a combined TCP segment, and of each segment in it.
fn room(outlet: &Outlet, ipv6: bool) -> (usize, usize) {
    let header = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    match outlet {
        Outlet::Loopback { mtu } => {
            let longest = (*mtu as usize).min(MAX_PACKET_BYTES).saturating_sub(header);
            (longest, longest)
        }
        Outlet::Ethernet { mtu, .. } => {
            (MAX_PACKET_BYTES - header, (*mtu as usize).saturating_sub(header))
        }
    }
}

fn write_ip(to: &RawDestination, limit: u8, len: usize, out: &mut [u8]) -> io::Result<usize> {
    let written = match (to.local, to.remote.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header::new(source, destination, PROTOCOL_TCP);
            Ipv4Header { ecn: to.ecn, ttl: limit, ..header }.emit(len, out)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header::new(source, destination, PROTOCOL_TCP);
            Ipv6Header { ecn: to.ecn, hop_limit: limit, ..header }.emit(len, out)
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    written.map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Returns true if the firewall tracks connections, or if this is unknown. Connection tracking would consider the
/// peer's answers to bypassing packets invalid and would not translate addresses. A firewall that tracks any
/// connections also tracks ours, because it saw the SYN.
fn is_tracked() -> bool {
    match std::fs::read_to_string(TRACKED_COUNT_FILE) {
        Ok(count) => count.trim() != "0",
        Err(error) if error.kind() == io::ErrorKind::NotFound => !Path::new(SYSCTL_DIR).exists(),
        Err(_) => true,
    }
}
