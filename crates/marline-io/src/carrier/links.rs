//! Links in place of datagrams: flows that a TCP connection of the kernel carries (docs/spec/tcp-carrier.md).
//!
//! To the carrier a link is one more socket, with an index of its own range and one peer. A flow goes to a link and
//! back as it goes to another address: the peer challenges the new place and answers there once it has proven itself.
//! The side that opened the flow decides where it goes, so it is not moved by what it hears over another of its own
//! sockets.

use core::net::{IpAddr, SocketAddr};

use marline_time::Instant;

use super::flow::{Flow, Outer};
use super::frame::ControlFrame;
use super::{FlowEnds, UdpCarrier};

/// Sockets from this index on are links.
pub const FIRST_LINK: u16 = 0x8000;

impl Outer {
    /// It is the end of a link.
    #[must_use]
    pub const fn is_link(&self) -> bool {
        self.socket >= FIRST_LINK
    }

    /// Whether the addresses are those of the other one, be the sockets different.
    pub(super) fn same_addresses(&self, other: &Outer) -> bool {
        self.local == other.local && self.remote == other.remote
    }
}

/// What carries a flow from now on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Our id of the flow.
    pub flow: u64,
    /// The index of the link; `None`: datagrams.
    pub link: Option<u16>,
    /// The peer has shown there that it knows the flow.
    pub proven: bool,
}

impl UdpCarrier {
    /// Flows that are opened between these addresses go by this link; `None`: by datagrams.
    pub fn prefer(&mut self, (local, remote): (IpAddr, SocketAddr), link: Option<u16>) {
        match link {
            Some(index) => self.preferred.insert((local, remote), index),
            None => self.preferred.remove(&(local, remote)),
        };
    }

    /// The flows that we opened between these addresses go by another socket from now on, and tell the peer so.
    /// Returns our ids of them; of those whose SYN waits for its answer apart.
    pub fn reroute(
        &mut self,
        now: Instant,
        (local, remote): (IpAddr, SocketAddr),
        socket: u16,
    ) -> (Vec<u64>, Vec<u64>) {
        let to = Outer { socket, local, remote };
        let (mut open, mut opening) = (Vec::new(), Vec::new());
        for id in self.flows_between((local, remote)) {
            // A link that replaces another may have its index, and is another place to the peer.
            let moves = |flow: &&mut Flow| {
                flow.opened_here && (flow.outer.socket != socket || to.is_link())
            };
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
            self.note_carried(id);
        }
        self.changes += 1;
        (open, opening)
    }

    /// Our ids of the flows between these addresses, in order.
    pub fn flows_between(&self, (local, remote): FlowEnds) -> Vec<u64> {
        let here = |flow: &Flow| flow.outer.local == local && flow.outer.remote == remote;
        let flows = self.flows.iter().filter(|(_, flow)| here(flow));
        let mut ids: Vec<u64> = flows.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// Those of them that are at this end of a link.
    pub fn flows_at(&self, outer: &Outer) -> Vec<u64> {
        let mut ids = self.flows_between((outer.local, outer.remote));
        ids.retain(|id| self.flows.get(id).is_some_and(|flow| flow.outer == *outer));
        ids
    }

    /// The socket that datagrams from an address leave by.
    pub fn datagram_socket(&self, local: IpAddr) -> Option<u16> {
        let fits = |bound: &Option<SocketAddr>| bound.is_some_and(|bound| bound.ip() == local);
        self.sockets.iter().position(fits).map(|index| index as u16)
    }

    /// A frame that provokes an answer over the socket it leaves by, and nothing else: it is for an id that nobody
    /// has, so that a server disowns it ([`Received::Disowned`](super::Received::Disowned)).
    pub fn probe(&mut self, outer: Outer, id: u64) {
        self.push_control(outer, ControlFrame::keepalive(id));
    }

    /// The flow whose place or socket has changed, if one has.
    pub fn poll_carried(&mut self) -> Option<Carried> {
        self.carried.pop_front()
    }

    /// Addresses between which something that was expected on a flow that we opened did not come.
    pub fn poll_quiet(&mut self) -> Option<FlowEnds> {
        self.quiet.pop_front()
    }

    /// Says what carries a flow now. Flows that were never on a link say nothing.
    pub(super) fn note_carried(&mut self, id: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let link = flow.outer.is_link().then_some(flow.outer.socket);
        if link.is_none() && !flow.by_link {
            return;
        }
        flow.by_link = link.is_some();
        let proven = flow.validated;
        self.carried.push_back(Carried { flow: id, link, proven });
    }

    /// The port that a flow's reset token is tied to: the one whose datagrams it would answer.
    pub(super) fn token_port(&self, id: u64) -> u16 {
        let Some(flow) = self.flows.get(&id) else { return 0 };
        if !flow.outer.is_link() {
            let bound = self.sockets.get(usize::from(flow.outer.socket)).copied().flatten();
            return bound.map_or(0, |bound| bound.port());
        }
        if !flow.opened_here {
            return flow.path.local.port();
        }
        let fits = |bound: &&SocketAddr| bound.ip() == flow.outer.local;
        self.sockets.iter().flatten().find(fits).map_or(0, SocketAddr::port)
    }
}
