//! Links instead of datagrams: flows carried over a TCP connection of the kernel (docs/spec/tcp-carrier.md).
//!
//! To the carrier, a link is another socket with one peer and an index in a separate range. A flow moves to a link and
//! back in the same way as to another address: the peer challenges the new address and answers there once it is
//! validated. The side that opened the flow decides its carrier, so packets on another of its own sockets do not move
//! it.

use core::net::{IpAddr, SocketAddr};

use marline_time::Instant;

use super::flow::{Flow, Outer};
use super::frame::ControlFrame;
use super::{FlowEnds, UdpCarrier};

/// First socket index of links.
pub const FIRST_LINK: u16 = 0x8000;

impl Outer {
    /// Returns true if this is one end of a link.
    #[must_use]
    pub const fn is_link(&self) -> bool {
        self.socket >= FIRST_LINK
    }

    /// Returns true if the addresses are equal, even if the sockets differ.
    pub(super) fn has_same_addresses(&self, other: &Outer) -> bool {
        self.local == other.local && self.remote == other.remote
    }
}

/// Change of a flow's carrier.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CarrierChange {
    /// Our flow id.
    pub flow: u64,
    /// Index of the link; `None` for datagrams.
    pub link: Option<u16>,
    /// True if the peer has proven at this address that it knows the flow.
    pub proven: bool,
}

impl UdpCarrier {
    /// Sets the link for flows that are opened between these addresses; `None` for datagrams.
    pub fn prefer(&mut self, ends: FlowEnds, link: Option<u16>) {
        match link {
            Some(index) => self.preferred.insert(ends, index),
            None => self.preferred.remove(&ends),
        };
    }

    /// Moves the flows that we opened between these addresses to another socket, and notifies the peer. Returns our
    /// flow ids: established flows, and those whose SYN has not been answered.
    pub fn reroute(&mut self, now: Instant, ends: FlowEnds, socket: u16) -> (Vec<u64>, Vec<u64>) {
        let to = Outer { socket, local: ends.local, remote: ends.remote };
        let (mut open, mut opening) = (Vec::new(), Vec::new());
        for id in self.flows_between(ends) {
            // A link that replaces another may reuse its index, but to the peer its address is different.
            let moves =
                |flow: &&mut Flow| flow.is_opener && (flow.outer.socket != socket || to.is_link());
            let Some(flow) = self.flows.get_mut(&id).filter(moves) else { continue };
            flow.outer = to;
            flow.sent_at = now;
            let peer = flow.peer_flow;
            if peer == 0 {
                opening.push(id);
            } else {
                open.push(id);
                self.push_control(to, ControlFrame::keepalive(peer));
            }
            self.record_carrier(id);
        }
        self.changes += 1;
        (open, opening)
    }

    /// Returns our ids of the flows between these addresses, in order.
    pub fn flows_between(&self, FlowEnds { local, remote }: FlowEnds) -> Vec<u64> {
        let here = |flow: &Flow| flow.outer.local == local && flow.outer.remote == remote;
        let flows = self.flows.iter().filter(|(_, flow)| here(flow));
        let mut ids: Vec<u64> = flows.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns our ids of the flows at this end of a link.
    pub fn flows_at(&self, outer: &Outer) -> Vec<u64> {
        let mut ids = self.flows_between(FlowEnds::new(outer.local, outer.remote));
        ids.retain(|id| self.flows.get(id).is_some_and(|flow| flow.outer == *outer));
        ids
    }

    /// Returns the socket that sends datagrams from an address.
    pub fn datagram_socket(&self, local: IpAddr) -> Option<u16> {
        let fits = |bound: &Option<SocketAddr>| bound.is_some_and(|bound| bound.ip() == local);
        self.sockets.iter().position(fits).map(|index| index as u16)
    }

    /// Sends a frame whose only purpose is to elicit an answer on this socket: its id does not exist, so a server
    /// answers with a RESET ([`ReceivedDatagram::UnknownFlow`](super::ReceivedDatagram::UnknownFlow)).
    pub fn probe(&mut self, outer: Outer, id: u64) {
        self.push_control(outer, ControlFrame::keepalive(id));
    }

    /// Takes the next flow whose address or socket has changed.
    pub fn poll_carrier_change(&mut self) -> Option<CarrierChange> {
        self.carried.pop_front()
    }

    /// Takes the next address pair for which a flow that we opened lacks an expected packet.
    pub fn poll_quiet(&mut self) -> Option<FlowEnds> {
        self.quiet.pop_front()
    }

    /// Records the current carrier of a flow. Flows that were never on a link are skipped.
    pub(super) fn record_carrier(&mut self, id: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let link = flow.outer.is_link().then_some(flow.outer.socket);
        if link.is_none() && !flow.by_link {
            return;
        }
        flow.by_link = link.is_some();
        let proven = flow.validated;
        self.carried.push_back(CarrierChange { flow: id, link, proven });
    }

    /// Returns the port to which a flow's reset token is bound: the port that receives the datagrams to which the
    /// token responds.
    pub(super) fn token_port(&self, id: u64) -> u16 {
        let Some(flow) = self.flows.get(&id) else { return 0 };
        if !flow.outer.is_link() {
            let bound = self.sockets.get(usize::from(flow.outer.socket)).copied().flatten();
            return bound.map_or(0, |bound| bound.port());
        }
        if !flow.is_opener {
            return flow.path.local.port();
        }
        let fits = |bound: &&SocketAddr| bound.ip() == flow.outer.local;
        self.sockets.iter().flatten().find(fits).map_or(0, SocketAddr::port)
    }
}
