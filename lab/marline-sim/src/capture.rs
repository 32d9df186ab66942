//! Packet captures: all packets of a host as pcapng, with one interface per address. Wireshark shows them as native
//! TCP.

use core::net::IpAddr;

use marline_core::Ecn;
use marline_time::Instant;
use marline_wire::pcapng::{self, CapturedSegment, Direction, PacketInfo, SegmentChecksum};

use crate::{NodeId, ObservationPoint, Observer, Packet};

/// Captures the packets that one host sends and receives.
#[derive(Debug)]
pub struct Capture {
    node: NodeId,
    interfaces: Vec<IpAddr>,
    writer: pcapng::Capture,
    bytes: Vec<u8>,
    max_bytes: usize,
    left_out: u64,
}

impl Capture {
    /// Captures packets of `node` at these addresses, in a file of at most `max_bytes`. Keys are written unchanged,
    /// because a simulation has no secrets.
    #[must_use]
    pub fn new(node: NodeId, addresses: &[IpAddr], max_bytes: usize) -> Self {
        let mut bytes = Vec::new();
        let names: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let writer = pcapng::Capture::begin(&mut bytes, "marline-sim", &names, true);
        let interfaces = addresses.to_vec();
        Capture { node, interfaces, writer, bytes, max_bytes, left_out: 0 }
    }

    /// The captured host.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The contents of the file so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of packets left out because the file was full or their address had no interface.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn write(&mut self, now: Instant, own: IpAddr, direction: Direction, packet: &Packet) {
        let interface = self.interfaces.iter().position(|address| *address == own);
        let full = self.bytes.len() + packet.segment.len() > self.max_bytes;
        let Some(interface) = interface.filter(|_| !full) else {
            self.left_out += 1;
            return;
        };
        let info = PacketInfo {
            interface: interface as u32,
            time_ns: now.as_nanos(),
            direction,
            comment: None,
        };
        let segment = CapturedSegment {
            src: packet.path.local.ip(),
            dst: packet.path.remote.ip(),
            ecn: match packet.ecn {
                Ecn::NotEct => 0,
                Ecn::Ect1 => 1,
                Ecn::Ect0 => 2,
                Ecn::Ce => 3,
            },
            checksum: SegmentChecksum::WithAddresses,
            bytes: &packet.segment,
        };
        let written = self.writer.segment(&mut self.bytes, &info, &segment);
        self.left_out += u64::from(written.is_err());
    }
}

impl Observer for Capture {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        match sighting {
            ObservationPoint::Sent { node, .. } if node == self.node => {
                self.write(now, packet.path.local.ip(), Direction::Outbound, packet);
            }
            ObservationPoint::Delivered { node, .. } if node == self.node => {
                self.write(now, packet.path.remote.ip(), Direction::Inbound, packet);
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
