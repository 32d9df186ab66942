//! Packet in transit, a pool of packet buffers, and the packet observer interface.

use core::net::IpAddr;

use marline_core::{Ecn, FourTuple};
use marline_time::Instant;

use crate::elision::{ElidedPayload, Elider};
use crate::{LinkId, NodeId};

/// A TCP segment with its metadata, or a router's message about one.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Packet number in its world, from 1 in the order of sending. A copy made by a link has the number of its
    /// original. Set by the world.
    pub number: u64,
    /// For a router's message (ICMP) to the sender of a packet that exceeds a link's MTU: that MTU in bytes, including
    /// the IP header. `segment` then contains the beginning of the quoted TCP header. `None` for a segment.
    pub too_big_mtu: Option<u32>,
    /// Sender (`local`) and receiver (`remote`).
    pub path: FourTuple,
    /// ECN field.
    pub ecn: Ecn,
    /// The receiver's subflow id; 0 if unknown or unused.
    pub flow: u64,
    /// The sender's subflow id on handshake packets; otherwise 0.
    pub peer_flow: u64,
    /// Size of the headers below TCP in bytes.
    pub overhead: u16,
    /// True for competing traffic of other hosts on the link.
    pub foreign: bool,
    /// True if the sender's checksum is still valid, because nothing on the path has modified the bytes. The receiver
    /// need not verify it, which saves part of the cost per packet.
    pub is_unmodified: bool,
    /// TCP header, options and payload.
    pub segment: Vec<u8>,
    /// The payload, if it is elided while the packet is on a link. `segment` then ends before it.
    pub(crate) elided: ElidedPayload,
}

impl Packet {
    /// A packet without segment, ids and ECN, as a template for a node's packets.
    #[must_use]
    pub fn new(path: FourTuple, overhead: u16) -> Self {
        Packet {
            number: 0,
            too_big_mtu: None,
            path,
            ecn: Ecn::NotEct,
            flow: 0,
            peer_flow: 0,
            overhead,
            foreign: false,
            is_unmodified: false,
            segment: Vec::new(),
            elided: ElidedPayload::default(),
        }
    }

    /// Length of the IP header between these addresses.
    #[must_use]
    pub const fn ip_header_bytes(address: IpAddr) -> u16 {
        if address.is_ipv4() { 20 } else { 40 }
    }
}

impl Packet {
    /// Restores an elided payload.
    fn complete(&mut self) {
        core::mem::take(&mut self.elided).append_to(&mut self.segment);
    }

    /// Returns the same packet with another segment.
    fn with_segment(&self, segment: &[u8]) -> Self {
        let segment = segment.to_vec();
        Packet { is_unmodified: false, segment, elided: ElidedPayload::default(), ..self.clone() }
    }

    /// Takes the ports from the native segment's header, which a NAT may have changed.
    pub(crate) fn take_ports_from_segment(&mut self) {
        if self.too_big_mtu.is_some() {
            return;
        }
        let [a, b, c, d, ..] = self.segment[..] else { return };
        if self.flow == 0 && self.peer_flow == 0 {
            self.path.local.set_port(u16::from_be_bytes([a, b]));
            self.path.remote.set_port(u16::from_be_bytes([c, d]));
        }
    }
}

impl marline_link::Packet for Packet {
    fn wire_len(&self) -> usize {
        self.segment.len() + self.elided.len() + usize::from(self.overhead)
    }

    fn is_foreign(&self) -> bool {
        self.foreign
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.is_unmodified = false;
        self.complete();
        // A router's message has a checksum. A receiver ignores a damaged one, as if it were lost.
        if self.too_big_mtu.is_some() { &mut [] } else { &mut self.segment }
    }

    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        self.is_unmodified = false;
        self.complete();
        self.too_big_mtu.is_none().then_some(&mut self.segment)
    }

    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        Some(self.with_segment(segment))
    }

    fn answer(&self, segment: &[u8]) -> Option<Self> {
        let path = FourTuple { local: self.path.remote, remote: self.path.local };
        Some(Packet { path, flow: 0, peer_flow: 0, ..self.with_segment(segment) })
    }

    fn too_big(&self, mtu_bytes: u32) -> Option<Self> {
        /// Ports and sequence number: the part of a segment that routers quote according to RFC 792.
        const QUOTED_LEN: usize = 8;
        const ICMP_HEADER: u16 = 8;
        if self.too_big_mtu.is_some() {
            return None;
        }
        let ip_header = Packet::ip_header_bytes(self.path.local.ip());
        Some(Packet {
            too_big_mtu: Some(mtu_bytes),
            path: FourTuple { local: self.path.remote, remote: self.path.local },
            ecn: Ecn::NotEct,
            overhead: ip_header + ICMP_HEADER + ip_header,
            ..self.with_segment(self.segment.get(..QUOTED_LEN)?)
        })
    }
}

/// Memory of delivered packets, for reuse.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    #[expect(clippy::vec_box, reason = "packets move through queues, where a pointer is cheaper")]
    free: Vec<Box<Packet>>,
    elider: Elider,
    /// Buffer for restored packets. While it is in use, it holds the header with which the packet arrived.
    whole: Vec<u8>,
}

impl Pool {
    const MAX_FREE: usize = 4_096;

    /// Creates a packet like `template` with the segment `bytes`. Its payload may be elided if no observer `watches`.
    pub(crate) fn take_packet(
        &mut self,
        template: &Packet,
        bytes: &[u8],
        watches: bool,
    ) -> Box<Packet> {
        let split = if watches { None } else { self.elider.split(bytes) };
        let (header, elided) = split.unwrap_or((bytes.len(), ElidedPayload::default()));
        let mut packet = self.free.pop().unwrap_or_else(|| {
            Box::new(Packet { segment: Vec::with_capacity(header), ..template.clone() })
        });
        packet.number = 0;
        packet.too_big_mtu = template.too_big_mtu;
        packet.path = template.path;
        packet.ecn = template.ecn;
        packet.flow = template.flow;
        packet.peer_flow = template.peer_flow;
        packet.overhead = template.overhead;
        packet.foreign = template.foreign;
        packet.is_unmodified = template.is_unmodified;
        packet.elided = elided;
        packet.segment.clear();
        packet.segment.extend_from_slice(&bytes[..header]);
        packet
    }

    /// Restores the payload of an arrived packet in memory shared by all such packets. Returns true if it was elided;
    /// in that case, [`keep_memory`](Self::keep_memory) must be called before the next packet.
    pub(crate) fn complete(&mut self, packet: &mut Packet) -> bool {
        let was_without = packet.elided.len() > 0;
        if was_without {
            self.whole.clear();
            self.whole.extend_from_slice(&packet.segment);
            core::mem::swap(&mut self.whole, &mut packet.segment);
            packet.complete();
        }
        was_without
    }

    /// Takes back the memory that [`complete`](Self::complete) lent.
    pub(crate) const fn keep_memory(&mut self, packet: &mut Packet) {
        core::mem::swap(&mut self.whole, &mut packet.segment);
    }

    pub(crate) fn take_back_memory(&mut self, packet: Box<Packet>) {
        if self.free.len() < Self::MAX_FREE {
            self.free.push(packet);
        }
    }
}

/// Point at which a packet was seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ObservationPoint {
    /// Leaving a host, before its link accepts it.
    Sent {
        /// The host.
        node: NodeId,
        /// The link to which it is offered. `None` if there is no route or the interface was removed.
        link: Option<LinkId>,
    },
    /// Arriving at a host.
    Delivered {
        /// The host.
        node: NodeId,
        /// The link over which it arrived.
        link: LinkId,
    },
}

/// Observer of every packet: a capture, a check, a counter.
pub trait Observer: core::fmt::Debug {
    /// Processes a sighting of a packet.
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet);

    /// Reports an error in the packets seen so far, if any.
    ///
    /// # Errors
    /// If there is one; the text is for a failure message.
    fn verdict(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns self for access to the concrete type.
    fn as_any(&self) -> &dyn core::any::Any;
}
