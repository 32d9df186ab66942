//! Carrier of a shard. It hides the differences between carriers from the rest of the driver.

use core::net::SocketAddr;

use marline_core::{Capabilities, ChecksumScope, FourTuple, Shard as Part};
use marline_time::Instant;

use crate::carrier::{BASE_DATAGRAM, CarrierCounters, LARGEST_DATAGRAM, SHORT_HEADER, UdpCarrier};
use crate::links::UdpUse;
use crate::native::{self, NativeCarrier, native_capabilities};

const UDP_HEADER: usize = 8;

/// Carrier of a shard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CarrierKind {
    /// UDP datagrams.
    Udp {
        /// Idle time after which a flow that we opened sends a keepalive.
        keepalive: marline_time::Duration,
        /// Condition for moving our flows to links (TCP connections).
        udp: UdpUse,
    },
    /// IP packets on raw sockets.
    Raw,
    /// IP packets on TUN interfaces.
    Tun,
    /// IP packets on a TUN interface, as the gateway of the hosts behind it.
    Gateway,
}

/// Returns the capabilities of the UDP carrier.
#[must_use]
pub const fn udp_capabilities() -> Capabilities {
    Capabilities {
        base_segment: BASE_DATAGRAM - SHORT_HEADER as u16,
        max_segment: LARGEST_DATAGRAM - SHORT_HEADER as u16,
        checksum: ChecksumScope::WithoutAddresses,
        flow_ids: true,
        ecn: true,
    }
}

/// Carrier that encapsulates a shard's segments.
pub(super) enum Carrier {
    /// UDP datagrams.
    Udp(Box<UdpCarrier>),
    /// IP packets.
    Native(Box<NativeCarrier>),
}

impl Carrier {
    /// Returns this shard's part of the ports or ids that the shards share.
    pub(super) const fn part(&self) -> Part {
        match self {
            Carrier::Native(carrier) => carrier.shard(),
            Carrier::Udp(_) => Part::SINGLE,
        }
    }

    pub(super) const fn is_native(&self) -> bool {
        matches!(self, Carrier::Native(_))
    }

    pub(super) const fn capabilities(&self) -> Capabilities {
        match self {
            Carrier::Udp(_) => udp_capabilities(),
            Carrier::Native(_) => native_capabilities(),
        }
    }

    /// Returns the number of bytes that the core leaves free in front of each segment.
    pub(super) const fn headroom(&self) -> usize {
        match self {
            Carrier::Udp(_) => SHORT_HEADER,
            Carrier::Native(native) => native.headroom(),
        }
    }

    /// Returns the number of bytes between the IP header and the segment.
    pub(super) const fn header(&self) -> usize {
        match self {
            Carrier::Udp(_) => UDP_HEADER + SHORT_HEADER,
            Carrier::Native(_) => 0,
        }
    }

    pub(super) fn set_socket(&mut self, index: usize, local: Option<SocketAddr>) {
        if let Carrier::Udp(udp) = self {
            udp.set_socket(index as u16, local);
        }
    }

    /// Marks the subflow of a flow as ended; late segments are still answered.
    pub(super) fn retire(&mut self, local_flow: u64) {
        if let Carrier::Udp(udp) = self {
            udp.retire(local_flow);
        }
    }

    /// Drops a flow that the core no longer needs.
    pub(super) fn forget(&mut self, local_flow: u64) {
        if let Carrier::Udp(udp) = self {
            udp.forget(local_flow);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match self {
            Carrier::Udp(udp) => udp.next_timeout(),
            Carrier::Native(_) => None,
        }
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        if let Carrier::Udp(udp) = self {
            udp.on_timeout(now);
        }
    }

    pub(super) fn counters(&self) -> CarrierCounters {
        match self {
            Carrier::Udp(udp) => udp.counters(),
            Carrier::Native(native) => native.counters(),
        }
    }

    /// Returns the TCP segment length for an MTU that a router reported. Such a report may be forged, so the result
    /// is never less than the size that passes on nearly all paths.
    pub(super) fn trusted_segment_len(&self, mtu: u32, path: &FourTuple) -> u16 {
        self.segment_of_mtu(Some(mtu), path).max(self.capabilities().base_segment)
    }

    /// Returns the TCP segment length for a route of this MTU. An unknown MTU counts as the smallest permitted one.
    pub(super) fn segment_of_mtu(&self, mtu: Option<u32>, path: &FourTuple) -> u16 {
        let ipv6 = path.remote.is_ipv6();
        match self {
            Carrier::Udp(_) => {
                let payload = mtu.and_then(|mtu| payload_for_mtu(mtu, path.remote));
                let payload = payload.unwrap_or(BASE_DATAGRAM).min(LARGEST_DATAGRAM);
                payload.saturating_sub(SHORT_HEADER as u16)
            }
            Carrier::Native(_) => {
                let segment = mtu.and_then(|mtu| native::segment_of_mtu(mtu, ipv6));
                segment.unwrap_or(native_capabilities().base_segment)
            }
        }
    }
}

/// Returns the maximum UDP payload of an IP packet of `mtu` bytes.
pub(super) fn payload_for_mtu(mtu: u32, remote: SocketAddr) -> Option<u16> {
    let ip_header = if remote.is_ipv6() { 40 } else { 20 };
    let payload = mtu.checked_sub(ip_header + UDP_HEADER as u32)?;
    Some(u16::try_from(payload).unwrap_or(u16::MAX))
}
