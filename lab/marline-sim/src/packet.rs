//! Packet in transit, a pool of packet buffers, and the packet observer interface.

use core::net::IpAddr;

use marline_core::{Ecn, FourTuple};
use marline_time::Instant;

use crate::elision::{Elided, Elider};
use crate::{LinkId, NodeId};

/// A TCP segment with what its carrier knows of it; or what a router says of one.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Which of the packets of its world it is, from 1 in the order of sending; a copy that a link made
    /// has the number of its original. The world sets it.
    pub number: u64,
    /// A router's message (ICMP) to the sender of a packet that a link does not take: the link's MTU,
    /// bytes of IP packet. `segment` holds the beginning of the TCP header it quotes. `None` for a
    /// segment.
    pub too_big_mtu: Option<u32>,
    /// Sender (`local`) and receiver (`remote`) as the sender sees them.
    pub path: FourTuple,
    /// ECN field.
    pub ecn: Ecn,
    /// The receiver's subflow id; 0 if unknown or unused.
    pub flow: u64,
    /// The sender's subflow id, on handshake packets; else 0.
    pub peer_flow: u64,
    /// Bytes of headers below TCP.
    pub overhead: u16,
    /// The sender's own checksum holds, for nothing on the way has had the bytes in its hands: the receiver need not
    /// compute it again, which is a part of what a packet costs.
    pub untouched: bool,
    /// TCP header, options and payload.
    pub segment: Vec<u8>,
    /// The payload, where a link has the packet and it can be named; `segment` is without it then.
    pub(crate) elided: Elided,
}

impl Packet {
    /// A packet without a segment, ids and ECN, as a template for those of a node.
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
            untouched: false,
            segment: Vec::new(),
            elided: Elided::default(),
        }
    }

    /// Bytes of the IP header between such addresses.
    #[must_use]
    pub const fn ip_header_bytes(address: IpAddr) -> u16 {
        if address.is_ipv4() { 20 } else { 40 }
    }
}

impl Packet {
    /// Has all its bytes again.
    fn complete(&mut self) {
        core::mem::take(&mut self.elided).append_to(&mut self.segment);
    }

    /// The same packet with another segment.
    fn with_segment(&self, segment: &[u8]) -> Self {
        let segment = segment.to_vec();
        Packet { untouched: false, segment, elided: Elided::default(), ..self.clone() }
    }

    /// Native segments go by the ports in their header, which a translator may have changed.
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

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.untouched = false;
        self.complete();
        // A router's message has a checksum: who gets a damaged one ignores it, as if it were lost.
        if self.too_big_mtu.is_some() { &mut [] } else { &mut self.segment }
    }

    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        self.untouched = false;
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
        /// Ports and sequence number: what RFC 792 has routers quote of a segment.
        const QUOTED: usize = 8;
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
            ..self.with_segment(self.segment.get(..QUOTED)?)
        })
    }
}

/// Memory of packets that are gone, for those to come.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    #[expect(clippy::vec_box, reason = "packets move through queues: a pointer is cheaper")]
    free: Vec<Box<Packet>>,
    elider: Elider,
    /// Where packets that arrived are put together; while one is, the header that it came with.
    whole: Vec<u8>,
}

impl Pool {
    const MAX_FREE: usize = 4_096;

    /// A packet like `template`, whose segment is `bytes`; if nobody `watches`, perhaps without its payload.
    pub(crate) fn take(&mut self, template: &Packet, bytes: &[u8], watches: bool) -> Box<Packet> {
        let split = if watches { None } else { self.elider.split(bytes) };
        let (header, elided) = split.unwrap_or((bytes.len(), Elided::default()));
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
        packet.untouched = template.untouched;
        packet.elided = elided;
        packet.segment.clear();
        packet.segment.extend_from_slice(&bytes[..header]);
        packet
    }

    /// Gives a packet that arrived its payload again, in memory that all such packets share. Whether it was without;
    /// then [`put_aside`](Self::put_aside) has to follow before the next one.
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
    pub(crate) const fn put_aside(&mut self, packet: &mut Packet) {
        core::mem::swap(&mut self.whole, &mut packet.segment);
    }

    pub(crate) fn give_back(&mut self, packet: Box<Packet>) {
        if self.free.len() < Self::MAX_FREE {
            self.free.push(packet);
        }
    }
}

/// Where a packet was seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Leaving a host, before its link took it.
    Sent {
        /// The host.
        node: NodeId,
        /// The link it is offered to; `None` if there is no route or the interface is gone.
        link: Option<LinkId>,
    },
    /// Arriving at a host.
    Delivered {
        /// The host.
        node: NodeId,
        /// The link it came over.
        link: LinkId,
    },
}

/// Observer of every packet: a capture, a check, a counter.
pub trait Observer: core::fmt::Debug {
    /// A packet was seen.
    fn on_packet(&mut self, now: Instant, sighting: Sighting, packet: &Packet);

    /// What is wrong with what was seen so far, if anything.
    ///
    /// # Errors
    /// Words for a failure message.
    fn verdict(&self) -> Result<(), String> {
        Ok(())
    }

    /// For callers that want their observer back.
    fn as_any(&self) -> &dyn core::any::Any;
}
