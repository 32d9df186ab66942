//! Node interface between a world and a host.

use core::net::IpAddr;

use marline_time::Instant;

use crate::Packet;
use crate::packet::Pool;

/// A machine at the edge of the network, driven in virtual time.
pub trait Node {
    /// A packet arrived. Its path is the sender's: `remote` is this node.
    fn handle_packet(&mut self, now: Instant, packet: &Packet);

    /// A router says that the segment it quotes, which this node sent, is larger than a link takes:
    /// `mtu_bytes` of IP packet. The path is the message's: `remote` is this node.
    fn handle_too_big(&mut self, _now: Instant, _quoted: &Packet, _mtu_bytes: u32) {}

    /// The time of `poll_timeout` has come, or the world wants to know what there is to do.
    fn handle_timeout(&mut self, now: Instant);

    /// When to call `handle_timeout`.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Puts everything that is to be sent now into `outbox`.
    fn transmit(&mut self, now: Instant, outbox: &mut Outbox<'_>);

    /// One of its addresses came up or went away.
    fn set_address(&mut self, _now: Instant, _address: IpAddr, _up: bool) {}

    /// A hash over what its applications saw.
    fn digest(&self) -> u64 {
        0
    }
}

/// Packets that a node sends.
#[derive(Debug)]
pub struct Outbox<'a> {
    pub(crate) pool: &'a mut Pool,
    #[expect(clippy::vec_box, reason = "packets move through queues: a pointer is cheaper")]
    pub(crate) packets: &'a mut Vec<Box<Packet>>,
    /// Observers see what is sent.
    pub(crate) watched: bool,
}

impl Outbox<'_> {
    /// Sends a packet with the fields of `template` (its segment aside) and this segment.
    pub fn push(&mut self, template: &Packet, segment: &[u8]) {
        let packet = self.pool.take(template, segment, self.watched);
        self.packets.push(packet);
    }
}
