//! Node interface between a world and a host.

use core::net::IpAddr;

use marline_time::Instant;

use crate::Packet;
use crate::packet::Pool;

/// A machine at the edge of the network, driven in virtual time.
pub trait Node {
    /// Processes an arriving packet. Its path is from the sender's point of view: `remote` is this node.
    fn handle_packet(&mut self, now: Instant, packet: &Packet);

    /// Handles a router's report that a segment sent by this node exceeds a link's MTU of `mtu_bytes` (IP packet).
    /// `_quoted` contains the beginning of the segment. The path is that of the message: `remote` is this node.
    fn handle_too_big(&mut self, _now: Instant, _quoted: &Packet, _mtu_bytes: u32) {}

    /// Called when the time of `poll_timeout` has come, or when there may be pending work.
    fn handle_timeout(&mut self, now: Instant);

    /// Returns the time of the next call of `handle_timeout`.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Puts all packets to send now into `outbox`.
    fn transmit(&mut self, now: Instant, outbox: &mut Outbox<'_>);

    /// Called when an address of this node became available or disappeared.
    fn set_address(&mut self, _now: Instant, _address: IpAddr, _up: bool) {}

    /// Returns a hash over the observations of the node's applications.
    fn digest(&self) -> u64 {
        0
    }
}

/// Packets that a node sends.
#[derive(Debug)]
pub struct Outbox<'a> {
    pub(crate) pool: &'a mut Pool,
    #[expect(clippy::vec_box, reason = "packets move through queues, where a pointer is cheaper")]
    pub(crate) packets: &'a mut Vec<Box<Packet>>,
    /// True if observers see the packets.
    pub(crate) watched: bool,
}

impl Outbox<'_> {
    /// Sends a packet with the fields of `template` and this segment.
    pub fn push(&mut self, template: &Packet, segment: &[u8]) {
        let packet = self.pool.take_packet(template, segment, self.watched);
        self.packets.push(packet);
    }
}
