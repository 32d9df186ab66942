//! Native carriers as a state machine without I/O: TCP segments in ordinary IP packets.
//!
//! *Problem.* The kernel of this machine also implements TCP. This module decides which ports belong to Marline and
//! which traffic it receives, and makes sure that the kernel does not answer this traffic; the sockets are in `sys`.
//! The solution is specified in docs/spec/native-carrier.md: guards reserve ports, a filter accepts only these ports,
//! and received segments are checked before the core sees them.

mod icmp;
mod ports;
mod receive;
mod received_segment;
pub(crate) mod spread;

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use marline_core::{Capabilities, ChecksumScope, Ecn, Shard, Transmit};
use marline_wire::{IPV6_HEADER_LEN, PROTOCOL_TCP, emit_ip, ip_header_len};

pub(crate) use self::icmp::parse_icmp_error;
use self::ports::PortSet;
pub(crate) use self::received_segment::{ReceivedSegment, ecn_of_bits, parse_tcp};
pub(crate) use self::spread::home_shard;
use crate::carrier::CarrierCounters;
use crate::succession::NativePart;
use crate::sys::guard::Guard;
use crate::sys::{packet, port_filter, raw};

/// Length of a segment that passes on nearly all paths, in bytes (the minimum IPv6 MTU minus its header).
const BASE_SEGMENT: u16 = 1_240;
/// Length of a segment that fills an Ethernet frame with IPv4, in bytes.
const ETHERNET_SEGMENT: u16 = 1_480;
/// Names under which a successor gets the sockets of an [`Offload`], IPv4 first.
const OFFLOAD_NAMES: [[&str; 2]; 2] =
    [["native-packets-v4", "native-asker-v4"], ["native-packets-v6", "native-asker-v6"]];
/// Number of send-only sockets, and so of interfaces to which a client without privileges can bind over time.
const SEND_SOCKETS: usize = 16;
/// Number of local ports reserved at a time.
const POOL_STEP: usize = 32;
/// Maximum number of local ports of a client. Each allows one connection per minute to each server and port, because a
/// port cannot be reused between two ends during TIME-WAIT.
const POOL_LIMIT: usize = 512;

/// Returns the capabilities of native carriers.
#[must_use]
pub const fn native_capabilities() -> Capabilities {
    Capabilities {
        base_segment: BASE_SEGMENT,
        max_segment: ETHERNET_SEGMENT,
        checksum: ChecksumScope::WithAddresses,
        flow_ids: false,
        ecn: true,
    }
}

/// Raw sockets, opened while the process has the privilege, and the guards of its ports.
///
/// Opening them needs CAP_NET_RAW, and a port below 1024 needs CAP_NET_BIND_SERVICE; using them needs no privilege. One
/// client or one listener uses them; each shard of a listener has its own.
#[derive(Debug)]
pub struct RawSockets {
    opened: Mutex<Option<OpenedSockets>>,
}

#[derive(Debug)]
pub(crate) struct OpenedSockets {
    /// IPv4 sockets, one set per shard.
    v4: Vec<OpenedFamily>,
    /// IPv6 sockets, one set per shard; empty if the machine has no IPv6.
    v6: Vec<OpenedFamily>,
    guards: Vec<Arc<Guard>>,
    /// Guards of another process that are not yet reserved here, in the order in which it reserved them.
    inherited: VecDeque<Guard>,
}

/// Sockets of an address family.
#[derive(Debug)]
pub(crate) struct OpenedFamily {
    /// Socket that receives, and that sends if there is no other socket.
    pub(crate) receiver: OwnedFd,
    /// Send-only sockets, which are bound to interfaces as these appear.
    pub(crate) senders: Vec<OwnedFd>,
    /// Sockets for combined packets; `None` if each segment is sent alone.
    pub(crate) offload: Option<Offload>,
}

/// Sockets that send many segments as one packet.
#[derive(Debug, Default)]
pub(crate) struct Offload {
    /// Packet socket; `None` if only packets to this machine's own addresses are combined, on the raw socket.
    pub(crate) packets: Option<OwnedFd>,
    /// Raw socket that sends nothing, for querying a path's MTU.
    pub(crate) mtu_socket: Option<OwnedFd>,
}

impl RawSockets {
    /// Opens one socket per address family. At first, both reject everything.
    ///
    /// # Errors
    /// Fails without CAP_NET_RAW, or if a socket cannot be opened.
    pub fn open() -> io::Result<Self> {
        RawSockets::open_for(1)
    }

    /// Opens sockets for a listener with this many shards: one per family and shard.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn open_for(shards: usize) -> io::Result<Self> {
        let shards = shards.max(1);
        // With several shards, packets follow the routing table: no socket is bound to an interface.
        let senders = if shards > 1 { 0 } else { SEND_SOCKETS };
        let family = |ipv6| (0..shards).map(|_| open_family(ipv6, senders)).collect();
        let v4 = family(false)?;
        let v6 = match family(true) {
            Ok(sockets) => sockets,
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Vec::new(),
            Err(error) => return Err(error),
        };
        let inherited = VecDeque::new();
        let opened = Mutex::new(Some(OpenedSockets { v4, v6, guards: Vec::new(), inherited }));
        Ok(RawSockets { opened })
    }

    /// Returns the number of shards for which the sockets were opened; 0 if they are already in use.
    #[must_use]
    pub fn shards(&self) -> usize {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map_or(0, OpenedSockets::shards)
    }

    /// Returns true if [`inherit`](Self::inherit) accepts a socket of this name.
    #[must_use]
    pub fn accepts_name(name: &str) -> bool {
        OFFLOAD_NAMES.iter().flatten().any(|known| *known == name)
    }

    /// Takes over the sockets of another process, which had the privileges to open them. Returns `None` if `parts`
    /// contains no socket. `named` are the sockets from [`Shard::copy_offload`](crate::Shard::copy_offload); without
    /// them, fewer segments are combined.
    ///
    /// # Errors
    /// Fails if a guard is not valid or the families have different numbers of receivers.
    pub fn inherit(
        parts: Vec<(NativePart, SocketAddr, OwnedFd)>,
        named: Vec<(String, OwnedFd)>,
    ) -> io::Result<Option<Self>> {
        let mut named = named;
        let (mut v4, mut v6, mut inherited) = (Vec::new(), Vec::new(), VecDeque::new());
        for (part, local, fd) in parts {
            match part {
                NativePart::Guard => inherited.push_back(Guard::inherited(fd)?),
                NativePart::Receiver => {
                    let ipv6 = local.is_ipv6();
                    let offload = Offload::take_named(&mut named, ipv6);
                    let family = if ipv6 { &mut v6 } else { &mut v4 };
                    // A listener answers according to the routing table, so it binds no sender to an interface.
                    family.push(OpenedFamily::receiving(fd, offload));
                }
                NativePart::Tun => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        if !v6.is_empty() && v6.len() != v4.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if v4.is_empty() {
            return Ok(None);
        }
        let opened = OpenedSockets { v4, v6, guards: Vec::new(), inherited };
        Ok(Some(RawSockets { opened: Mutex::new(Some(opened)) }))
    }

    /// Returns an address that another process has guarded and that is not yet [reserved](Self::reserve) here.
    #[must_use]
    pub fn unreserved_address(&self) -> Option<SocketAddr> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().and_then(|opened| Some(opened.inherited.front()?.local))
    }

    /// Reserves a port for a listener and keeps the kernel's TCP away from it. Returns the address with its port; for
    /// port 0, the kernel chooses the port.
    ///
    /// # Errors
    /// Fails if the port cannot be reserved, for example because it is in use.
    pub fn reserve(&self, local: SocketAddr) -> io::Result<SocketAddr> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = opened.as_mut().ok_or_else(in_use_error)?;
        let guard = match opened.take_inherited(local) {
            Some(guard) => guard,
            None => Guard::on_address(local)?,
        };
        let local = guard.local;
        opened.guards.push(Arc::new(guard));
        Ok(local)
    }

    /// Disables combined packets (docs/decisions/wire-and-carriers.md), unless the sockets are already in use.
    pub fn without_offload(&self) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &mut *opened {
            opened.v4.iter_mut().chain(&mut opened.v6).for_each(|family| family.offload = None);
        }
    }

    /// Takes the sockets for this number of shards.
    pub(crate) fn take(&self, shards: usize) -> io::Result<OpenedSockets> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let there = opened.as_ref().ok_or_else(in_use_error)?.shards();
        if there != shards {
            let text = format!("these raw sockets are for {there} shards, not for {shards}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        opened.take().ok_or_else(in_use_error)
    }
}

fn open_family(ipv6: bool, senders: usize) -> io::Result<OpenedFamily> {
    let receiver = raw::open(ipv6)?;
    let senders = (0..senders).map(|_| raw::open_sender(ipv6)).collect::<io::Result<_>>()?;
    let packets = packet::open();
    if let Err(error) = &packets {
        tracing::debug!(%error, "no packet socket: segmentation offload disabled");
    }
    let offload = Offload { packets: packets.ok(), mtu_socket: Some(raw::open_sender(ipv6)?) };
    Ok(OpenedFamily { receiver, senders, offload: Some(offload) })
}

impl OpenedFamily {
    const fn receiving(receiver: OwnedFd, offload: Offload) -> OpenedFamily {
        OpenedFamily { receiver, senders: Vec::new(), offload: Some(offload) }
    }
}

impl Offload {
    /// Duplicates the sockets, with the names under which a successor gets them.
    pub(crate) fn copies(&self, ipv6: bool) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets =
            OFFLOAD_NAMES[usize::from(ipv6)].into_iter().zip([&self.packets, &self.mtu_socket]);
        let there = sockets.filter_map(|(name, socket)| Some((name, socket.as_ref()?)));
        there.map(|(name, socket)| Ok((name.to_owned(), socket.try_clone()?))).collect()
    }

    /// Takes the sockets of one shard and family from `named`.
    fn take_named(named: &mut Vec<(String, OwnedFd)>, ipv6: bool) -> Offload {
        let mut take = |wanted: &str| {
            let at = named.iter().position(|(name, _)| name == wanted)?;
            Some(named.swap_remove(at).1)
        };
        let [packets, asker] = OFFLOAD_NAMES[usize::from(ipv6)];
        Offload { packets: take(packets), mtu_socket: take(asker) }
    }
}

fn in_use_error() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "these raw sockets are already in use")
}

/// Ports that belong to this carrier, and counters.
#[derive(Debug)]
pub(crate) struct NativeCarrier {
    /// This shard's part of the ports that the shards share.
    shard: Shard,
    /// Guards, shared by all shards that use them.
    guards: Vec<Arc<Guard>>,
    ports: PortSet,
    /// Local ports of connections that we open.
    pool: Vec<u16>,
    pool_limit: usize,
    /// True on TUN interfaces, where Marline acts as a separate host.
    tun: bool,
    /// Ports that accept SYNs, if only some of our ports do (TUN).
    listening: Option<PortSet>,
    /// True once another process has succeeded this one. Unknown segments may then belong to that process.
    only_own: bool,
    counters: CarrierCounters,
}

impl NativeCarrier {
    /// Creates a carrier on raw sockets, which shares the ports with the kernel.
    pub(crate) fn raw(shard: Shard) -> Self {
        NativeCarrier {
            shard,
            guards: Vec::new(),
            ports: PortSet::default(),
            pool: Vec::new(),
            pool_limit: POOL_LIMIT,
            tun: false,
            listening: None,
            only_own: false,
            counters: CarrierCounters::default(),
        }
    }

    /// Creates a carrier on TUN interfaces, which does not share its addresses.
    pub(crate) fn tun(accept: bool, shard: Shard) -> Self {
        let listening = accept.then(PortSet::default);
        NativeCarrier { tun: true, listening, pool_limit: 0, ..NativeCarrier::raw(shard) }
    }

    /// Creates the carrier of a gateway on a TUN interface, to which all addresses and ports belong.
    pub(crate) fn gateway() -> Self {
        let mut ports = PortSet::default();
        ports.add_everything();
        NativeCarrier { tun: true, ports, pool_limit: 0, ..NativeCarrier::raw(Shard::SINGLE) }
    }

    /// Returns the maximum number of bytes that this carrier writes in front of each segment.
    pub(crate) const fn headroom(&self) -> usize {
        if self.tun { IPV6_HEADER_LEN } else { 0 }
    }

    /// Writes the headers that the kernel does not write.
    pub(crate) fn frame(&self, batch: &Transmit, bytes: &mut [u8]) {
        if !self.tun {
            return;
        }
        let ends = (batch.path.local.ip(), batch.path.remote.ip());
        let free = IPV6_HEADER_LEN - ip_header_len(ends.0);
        for datagram in bytes.chunks_mut(batch.stride.max(1)) {
            let len = datagram.len().saturating_sub(IPV6_HEADER_LEN);
            let header = datagram.get_mut(free..).unwrap_or_default();
            // The core's segments fit, and their addresses belong to one family.
            let written = emit_ip(ends.0, ends.1, PROTOCOL_TCP, ecn_bits(batch.ecn), len, header);
            debug_assert!(written.is_ok(), "{written:?}");
        }
    }

    /// This shard's part of the ports that the shards share.
    pub(crate) const fn shard(&self) -> Shard {
        self.shard
    }

    /// Takes over the guards of the sockets.
    pub(crate) fn adopt(&mut self, opened: &OpenedSockets) {
        for guard in &opened.guards {
            self.add(Arc::clone(guard));
        }
    }

    /// Reserves a port, unless it is already reserved. Returns the address with its port, and the guard, which must be
    /// passed as `shared` to the other shards together with that port.
    pub(crate) fn guard(
        &mut self,
        local: SocketAddr,
        shared: Option<Arc<Guard>>,
    ) -> io::Result<(SocketAddr, Option<Arc<Guard>>)> {
        if let Some(listening) = &mut self.listening {
            listening.add(local);
            return Ok((local, None));
        }
        let known = self.guards.iter().find(|guard| guard.covers(local));
        if let Some(known) = known {
            let local = SocketAddr::new(local.ip(), known.local.port());
            return Ok((local, Some(Arc::clone(known))));
        }
        let guard = shared.map_or_else(|| Guard::on_address(local).map(Arc::new), Ok)?;
        let local = guard.local;
        self.add(Arc::clone(&guard));
        Ok((local, Some(guard)))
    }

    /// Adds an address that belongs to Marline alone (TUN): all its ports are ours, and no kernel answers.
    pub(crate) fn own_address(&mut self, address: core::net::IpAddr) {
        self.ports.add_address(address);
    }

    /// Returns true if local ports have to be reserved.
    pub(crate) const fn needs_pool(&self) -> bool {
        self.pool_limit > 0
    }

    /// Reserves more local ports for connections that we open. Returns false at the limit.
    pub(crate) fn grow_pool(&mut self) -> io::Result<bool> {
        if self.pool.len() >= self.pool_limit {
            return Ok(false);
        }
        for _ in 0..POOL_STEP {
            let guard = Guard::on_all_addresses(0)?;
            self.pool.push(guard.local.port());
            self.add(Arc::new(guard));
        }
        Ok(true)
    }

    /// Disables reservation because no connections are opened here.
    pub(crate) const fn disable_port_pool(&mut self) {
        self.pool_limit = 0;
    }

    /// Returns the local ports of connections that we open.
    pub(crate) fn pool(&self) -> &[u16] {
        &self.pool
    }

    /// Stops answering segments for unknown connections.
    pub(crate) const fn ignore_unknown(&mut self) {
        self.only_own = true;
    }

    pub(crate) const fn ignores_unknown(&self) -> bool {
        self.only_own
    }

    /// Duplicates the descriptors of the guards.
    pub(crate) fn copy_guards(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        self.guards.iter().map(|guard| Ok((guard.local, guard.copy()?))).collect()
    }

    fn add(&mut self, guard: Arc<Guard>) {
        self.ports.add(guard.local);
        if guard.both_families {
            let v4 = core::net::Ipv4Addr::UNSPECIFIED.into();
            self.ports.add(SocketAddr::new(v4, guard.local.port()));
        }
        self.guards.push(guard);
    }

    /// Installs a filter that passes only our ports.
    pub(crate) fn install_port_filter(&self, socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
        port_filter::install(socket, ipv6, self.shard, self.ports.ports_of_family(ipv6))
    }

    /// Counts a segment of this shard that another shard received.
    pub(crate) const fn count_foreign(&mut self, joins: bool) {
        self.counters.foreign_segments += 1;
        self.counters.foreign_joins += joins as u64;
    }

    pub(crate) const fn counters(&self) -> CarrierCounters {
        self.counters
    }
}

impl OpenedSockets {
    /// Takes the inherited guard of this address; port 0 matches any port.
    fn take_inherited(&mut self, local: SocketAddr) -> Option<Guard> {
        let same = |guard: &Guard| match local.port() {
            0 => guard.local.ip() == local.ip(),
            _ => guard.covers(local),
        };
        self.inherited.remove(self.inherited.iter().position(same)?)
    }

    /// Returns the number of shards.
    const fn shards(&self) -> usize {
        self.v4.len()
    }

    /// Returns true if segments may be combined into one packet.
    pub(crate) fn combines_segments(&self) -> bool {
        self.v4.iter().any(|family| family.offload.is_some())
    }

    /// Returns the sockets of each shard, IPv4 first.
    pub(crate) fn sockets(self) -> impl Iterator<Item = [Option<OpenedFamily>; 2]> {
        let v6 = self.v6.into_iter().map(Some).chain(core::iter::repeat_with(|| None));
        self.v4.into_iter().zip(v6).map(|(v4, v6)| [Some(v4), v6])
    }
}

/// Returns the ECN bits of the IP header.
pub(crate) const fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotEct => 0,
        Ecn::Ect1 => 1,
        Ecn::Ect0 => 2,
        Ecn::Ce => 3,
    }
}

/// Returns the length of a TCP segment in an IP packet of `mtu` bytes.
pub(crate) fn segment_of_mtu(mtu: u32, ipv6: bool) -> Option<u16> {
    let header = if ipv6 { 40 } else { 20 };
    // A value below the minimum that every path must support (RFC 791: 576; RFC 8200: 1280) is not credible.
    let least = if ipv6 { u32::from(BASE_SEGMENT) } else { 556 };
    let segment = mtu.checked_sub(header)?.max(least);
    Some(u16::try_from(segment).unwrap_or(u16::MAX).min(ETHERNET_SEGMENT))
}
