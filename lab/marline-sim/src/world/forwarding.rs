//! Packet forwarding between hosts and links.

use marline_link::Packet as _;

use super::{LinkId, NodeId, World};
use crate::node::{Node, Outbox};
use crate::packet::{ObservationPoint, Packet};

/// Number of bytes of each packet that the digest includes: the header and all its options.
const DIGEST_BYTES: usize = 60;
/// Maximum number of packets that wait for a stopped host.
const SOCKET_BUFFER: usize = 1_000;

impl<N: Node> World<N> {
    /// Delivers a packet to its host, and sends the host's answers.
    pub(super) fn deliver(&mut self, link: LinkId, packet: Box<Packet>) {
        if let Some(NodeId(index)) = self.deliver_to_host(link, packet) {
            self.flush(index);
        }
    }

    /// Delivers a packet to its host, if the host has the address and is running.
    pub(super) fn deliver_to_host(
        &mut self,
        link: LinkId,
        mut packet: Box<Packet>,
    ) -> Option<NodeId> {
        packet.take_ports_from_segment();
        let owner = self.topology.owner(packet.path.remote.ip());
        if let Some(arrived) = owner.and_then(|node| self.stopped.get_mut(&node.0)) {
            if arrived.len() < SOCKET_BUFFER {
                arrived.push((link, packet));
            } else {
                self.stats.undeliverable += 1;
                self.pool.take_back_memory(packet);
            }
            return None;
        }
        let completed = self.pool.complete(&mut packet);
        match owner {
            None => self.stats.undeliverable += 1,
            Some(node) => {
                self.stats.delivered += 1;
                self.digest.time(self.now);
                self.digest.number(u64::from(link.0));
                // The applications that read payloads verify every byte.
                self.digest.bytes(&packet.segment[..packet.segment.len().min(DIGEST_BYTES)]);
                self.pass_to_node(node, link, &packet);
            }
        }
        if completed {
            self.pool.keep_memory(&mut packet);
        }
        self.pool.take_back_memory(packet);
        owner
    }

    /// Passes a packet to a node. Observers see only segments, not routers' messages.
    fn pass_to_node(&mut self, node: NodeId, link: LinkId, packet: &Packet) {
        let host = &mut self.nodes[node.0 as usize].inner;
        if let Some(mtu_bytes) = packet.too_big_mtu {
            return host.handle_too_big(self.now, packet, mtu_bytes);
        }
        for observer in &mut self.observers {
            observer.on_packet(self.now, ObservationPoint::Delivered { node, link }, packet);
        }
        host.handle_packet(self.now, packet);
    }

    /// Takes the packets that a node sends and puts them on links.
    pub(super) fn flush(&mut self, index: u32) {
        if self.stopped.contains_key(&index) {
            return;
        }
        let mut packets = core::mem::take(&mut self.outgoing);
        let watched = !self.observers.is_empty();
        let mut outbox = Outbox { pool: &mut self.pool, packets: &mut packets, watched };
        self.nodes[index as usize].inner.transmit(self.now, &mut outbox);
        for packet in packets.drain(..) {
            self.send(NodeId(index), packet);
        }
        self.outgoing = packets;
        self.schedule_node(index);
    }

    fn send(&mut self, node: NodeId, mut packet: Box<Packet>) {
        self.stats.sent += 1;
        packet.number = self.stats.sent;
        let (from, to) = (packet.path.local.ip(), packet.path.remote.ip());
        let own = self.topology.owner(from) == Some(node);
        let link = if own { self.topology.route(from, to) } else { None };
        for observer in &mut self.observers {
            observer.on_packet(self.now, ObservationPoint::Sent { node, link }, &packet);
        }
        let Some(LinkId(index)) = link else {
            self.stats.unroutable += 1;
            return self.pool.take_back_memory(packet);
        };
        if self.competing_hosts.contains(&node.0) {
            packet.foreign = true;
            *self.competing_bytes.entry(index).or_default() += packet.wire_len() as u64;
        }
        let link = &mut self.links[index as usize].inner;
        link.offer(self.now, packet);
        while let Some(dropped) = link.take_dropped() {
            self.pool.take_back_memory(dropped);
        }
        self.schedule_link(index);
        self.send_answers(index);
    }

    /// Sends answers of middleboxes and routers on a link back to the sender.
    pub(super) fn send_answers(&mut self, index: u32) {
        while let Some(answer) = self.links[index as usize].inner.take_answer() {
            let (from, to) = (answer.path.local.ip(), answer.path.remote.ip());
            let Some(LinkId(back)) = self.topology.route(from, to) else { continue };
            self.links[back as usize].inner.offer(self.now, answer);
            self.schedule_link(back);
        }
    }
}
