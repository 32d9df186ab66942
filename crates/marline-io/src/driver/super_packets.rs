//! Segments of native TCP that leave by one system call as one packet of up to 64 kB (docs/spec/native-carrier.md,
//! section 2).
//!
//! *Problem.* A raw socket takes one packet of the interface's MTU at a time, and each costs as much as one of 64 kB.
//! What takes more is a packet socket: the card, or the kernel on its behalf, cuts the segments. But it goes around
//! everything that the kernel does between a socket and an interface: routes, neighbours, IPsec, the firewall's output.
//!
//! *Solution.* The raw socket stays the ordinary way. Only full segments in sequence go as one, and only where the
//! kernel says what it would do with them ([`OutletFinder`]), for half a second at a time: then the raw socket has its
//! turn again, so that the kernel keeps its neighbour alive, and refuses what it has come to refuse, and it is asked
//! anew. To this machine's own addresses the raw socket itself takes 64 kB, and nothing is gone around.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use marline_time::{Duration, Instant};
use marline_wire::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, Ipv4Header, Ipv6Header, PROTOCOL_TCP};

use super::joining::{CHECKSUM, Group, HEADERS, LONGEST};
use super::send_error::SendError;
use crate::native::Offload;
use crate::net::{ETHERNET_HEADER_LEN, Outlet, OutletFinder};
use crate::sys::raw::{self, RawDestination};
use crate::sys::tun::VirtioHeader;
use crate::sys::{packet, socket};

/// How long an answer of the kernel's holds.
const BELIEVED: Duration = Duration::from_millis(500);
/// Peers whose outlets are known at a time; those above this go by the raw socket.
const MOST_KNOWN: usize = 4_096;
/// TTL of the system's packets (`net.ipv4.ip_default_ttl`, `net.ipv6.conf.*.hop_limit` by default).
const HOP_LIMIT: u8 = 64;
/// Connections that this network namespace's firewall follows.
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// What is there if the file above could be.
const SYSCTLS: &str = "/proc/sys/net";

/// What sends them, and what is known of outlets.
#[derive(Debug)]
pub(super) struct SuperPackets {
    sockets: Offload,
    finder: OutletFinder,
    known: BTreeMap<(IpAddr, SocketAddr), Known>,
}

#[derive(Copy, Clone, Debug)]
struct Known {
    outlet: Option<Outlet>,
    until: Instant,
}

impl SuperPackets {
    pub(super) fn new(sockets: Offload) -> SuperPackets {
        SuperPackets { sockets, finder: OutletFinder::default(), known: BTreeMap::new() }
    }

    /// Further descriptors of its sockets, by name.
    pub(super) fn copies(&self, ipv6: bool) -> io::Result<Vec<(String, OwnedFd)>> {
        self.sockets.copies(ipv6)
    }

    /// How segments of this flow leave, unless the raw socket is to send them: because there is no other way, or
    /// because it is its turn.
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
        if self.known.len() >= MOST_KNOWN {
            self.known.retain(|_, known| known.until > now);
            if self.known.len() >= MOST_KNOWN {
                return None;
            }
        }
        let outlet = self.ask(to, first);
        self.known.insert(key, Known { outlet, until: now + BELIEVED });
        None
    }

    /// It did not work out: the raw socket sends until the kernel is asked again.
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
                tracing::debug!(remote = %to.remote, %error, "no route found");
                return None;
            }
        };
        let Outlet::Ethernet { mtu, .. } = outlet else { return Some(outlet) };
        let free = self.sockets.packets.is_some() && !is_tracked() && !self.is_protected(to, mtu);
        tracing::debug!(remote = %to.remote, free, ?outlet, "route found");
        free.then_some(outlet)
    }

    /// IPsec takes these packets, as far as can be seen: it leaves less of an MTU than the route has. Its policies are
    /// not for everybody to read.
    fn is_protected(&self, to: &RawDestination, mtu: u32) -> bool {
        let seen = match &self.sockets.asker {
            Some(asker) => raw::kernel_mtu(asker.as_fd(), to),
            None => socket::route_mtu_by_index(to.local, to.interface, to.remote),
        };
        seen.is_ok_and(|seen| seen < mtu)
    }

    /// Sends the segments of a batch, which lie `stride` bytes apart: what may go as one does.
    ///
    /// # Errors
    /// The system's, with the bytes that were sent before.
    pub(super) fn send_batch(
        &mut self,
        now: Instant,
        raw: BorrowedFd<'_>,
        to: &RawDestination,
        stride: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let outlet = self.outlet(now, to, bytes);
        let Some((outlet, longest)) = outlet.and_then(|outlet| fits(outlet, to, stride)) else {
            let sent = send_each(raw, to, stride, bytes);
            if sent.as_ref().is_err_and(|failed| !failed.would_block()) {
                self.forget(to);
            }
            return sent;
        };
        // Where those begin that are neither sent nor in the group, and where the next one does.
        let (mut rest, mut next) = (0, 0);
        let mut group = Group::new(0, longest);
        while next < bytes.len() {
            let begin = next;
            while let Some(segment) = bytes.get(next..bytes.len().min(next + stride))
                && !segment.is_empty()
                && group.takes(segment)
            {
                next += segment.len();
            }
            if group.count() > 1 {
                let before = bytes.get(rest..begin).unwrap_or_default();
                send_each(raw, to, stride, before).map_err(|failed| failed.after(rest))?;
                rest = begin;
                match self.send(raw, &outlet, to, &group) {
                    Ok(()) => rest = next,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Err(SendError { error, sent: rest });
                    }
                    // A full queue may have room for some of them, if not for all.
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
        send_each(raw, to, stride, rest_of_all).map_err(|failed| failed.after(rest))
    }

    /// Sends segments that were joined. `raw` sends to this machine's own addresses.
    ///
    /// # Errors
    /// The system's: nothing was sent.
    pub(super) fn send(
        &self,
        raw: BorrowedFd<'_>,
        outlet: &Outlet,
        to: &RawDestination,
        group: &Group<'_>,
    ) -> io::Result<()> {
        let ends = (to.local, to.remote.ip());
        let mut headers = [0; HEADERS];
        match outlet {
            Outlet::Loopback { .. } => {
                let tcp = &mut headers[..group.headers_len()];
                group.finished_header(ends, tcp);
                let (parts, count) = group.parts([&[], tcp]);
                raw::send_parts(raw, to, &parts[..count])
            }
            Outlet::Ethernet { interface, header, hop_limit, .. } => {
                let socket = self.sockets.packets.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let limit = hop_limit.unwrap_or(HOP_LIMIT);
                let ip = write_ip(to, limit, group.segment_len(), &mut headers)?;
                let len = ip + group.headers_len();
                group.unfinished_header(ends, &mut headers[ip..len]);
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
/// As [`SuperPackets::send_batch`].
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
            // The interface's queue is full: the segment is lost, as in any queue on the way.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                sent += if stride > 0 { stride } else { bytes.len() };
            }
            Err(error) => return Err(SendError { error, sent }),
        }
    }
    Ok(())
}

/// The outlet, and the bytes that a TCP segment for many may have there, if it takes segments of `each` bytes.
fn fits(outlet: Outlet, to: &RawDestination, each: usize) -> Option<(Outlet, usize)> {
    let (longest, most) = room(&outlet, to.local.is_ipv6());
    (each <= most).then_some((outlet, longest))
}

/// Bytes of TCP segment that a packet for many may have, and each of them.
fn room(outlet: &Outlet, ipv6: bool) -> (usize, usize) {
    let header = if ipv6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
    match outlet {
        Outlet::Loopback { mtu } => {
            let longest = (*mtu as usize).min(LONGEST).saturating_sub(header);
            (longest, longest)
        }
        Outlet::Ethernet { mtu, .. } => (LONGEST - header, (*mtu as usize).saturating_sub(header)),
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

/// The firewall follows connections here, or it cannot be seen whether. It would take the peer's answers to what went
/// around it for invalid, and translate nothing. Where it follows any, it follows ours, whose SYN it saw.
fn is_tracked() -> bool {
    match std::fs::read_to_string(TRACKED) {
        Ok(count) => count.trim() != "0",
        Err(error) if error.kind() == io::ErrorKind::NotFound => !Path::new(SYSCTLS).exists(),
        Err(_) => true,
    }
}
