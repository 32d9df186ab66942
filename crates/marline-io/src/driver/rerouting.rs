//! Rerouting of a shard's flows from datagrams to links and back, and handling of link events.

use core::net::SocketAddr;
use std::sync::Arc;

use marline_core::{Ecn, NetworkError};
use marline_time::Instant;

use super::carrier::Carrier;
use super::ingress::Origin;
use super::link::{Link, Sent};
use super::link_table::count;
use super::link_tasks::{self, LinkOpenError};
use super::outgoing::{Outgoing, Sender};
use super::shard::Shard;
use super::socket::Kind;
use super::state::State;
use super::streams::wake;
use crate::carrier::{FlowEnds, Outer};
use crate::links::{CarrierRates, Failure, Leaving, Order};

/// Maximum length of a frame without payload. Longer ones elicit an answer.
const MAX_ACK_FRAME: usize = crate::carrier::SHORT_HEADER + 60;

/// Sending on links.
impl State {
    /// Hands bytes to a link.
    pub(super) fn send_by_link(&mut self, now: Instant, out: &Outgoing<'_>) {
        let sent = match self.links.at(&out.outer) {
            Some(link) => {
                let lane = matches!(out.sender, Sender::Lane(..));
                link.send(self.index, lane, out.stride, out.bytes)
            }
            // The link has ended and its flows have been notified. Its index may belong to another link now.
            None => {
                count(&self.links.counters().dropped);
                return;
            }
        };
        match sent {
            Sent::All => return,
            Sent::Full => {}
            Sent::Dropped => count(&self.links.counters().dropped),
        }
        for flow in self.rerouting.set_full(out.outer.socket, true) {
            self.endpoint.set_flow_full(now, flow, true);
        }
    }

    /// Records that a client sends a datagram. Returns false if it must not be sent.
    pub(super) fn may_send_datagram(&mut self, now: Instant, out: &Outgoing<'_>) -> bool {
        let routes = &mut self.rerouting.routes;
        if !routes.uses_links() {
            return true;
        }
        let length = if out.stride == 0 { out.bytes.len() } else { out.stride };
        if length > MAX_ACK_FRAME {
            routes.sent(now, (out.outer.local, out.outer.remote));
        }
        routes.sends_datagrams()
    }

    /// Notifies the core of changed carriers of flows and of evicted flows.
    pub(super) fn apply_carrier_changes(&mut self, now: Instant) {
        while let Carrier::Udp(carrier) = &mut self.carrier
            && let Some(flow) = carrier.poll_evicted()
        {
            self.endpoint.flow_reset(now, flow);
        }
        while let Carrier::Udp(carrier) = &mut self.carrier
            && let Some(carried) = carrier.poll_carried()
        {
            let flow = carried.flow;
            if !self.rerouting.is_carried_by(flow, carried.link) {
                self.forget_link_flow(flow);
            }
            let full = self.rerouting.carry(carried);
            self.endpoint.set_flow_reliable(now, flow, carried.link.is_some());
            if carried.link.is_some() {
                self.endpoint.set_flow_full(now, flow, full);
            }
            if let Some(link) = carried.link.filter(|_| carried.proven)
                && let Some(link) = self.links.by_index(link)
                && self.rerouting.prove(flow, &link)
            {
                self.links.prove(&link);
            }
        }
    }

    /// Removes a flow that has ended or is carried otherwise now from its link.
    pub(super) fn forget_link_flow(&mut self, flow: u64) {
        if let Some(link) = self.rerouting.forget_flow(flow) {
            self.links.remove_validated_flow(&link);
        }
    }

    /// Moves the flows between these addresses to another socket.
    fn reroute(&mut self, now: Instant, ends: FlowEnds, socket: u16) -> usize {
        let Carrier::Udp(carrier) = &mut self.carrier else { return 0 };
        let (open, opening) = carrier.reroute(now, ends, socket);
        self.apply_carrier_changes(now);
        for flow in &open {
            self.endpoint.path_moved(now, *flow, false);
        }
        for flow in &opening {
            self.endpoint.repeat_syn(now, *flow);
        }
        open.len() + opening.len()
    }

    /// Moves the flows between these addresses to a link. New flows there use it, too.
    fn move_flows_to_link(&mut self, now: Instant, ends: FlowEnds, link: u16) {
        if let Carrier::Udp(carrier) = &mut self.carrier {
            carrier.prefer(ends, Some(link));
        }
        self.reroute(now, ends, link);
    }

    fn probe(&mut self, ends: FlowEnds) -> Option<u64> {
        let id = self.lanes.draw_id();
        let Carrier::Udp(carrier) = &mut self.carrier else { return None };
        let socket = carrier.datagram_socket(ends.0)?;
        carrier.probe(Outer { socket, local: ends.0, remote: ends.1 }, id);
        Some(id)
    }

    fn leave_link(&mut self, now: Instant, ends: FlowEnds) {
        let Carrier::Udp(carrier) = &mut self.carrier else { return };
        carrier.prefer(ends, None);
        let socket = carrier.datagram_socket(ends.0);
        if self.rerouting.routes.sends_datagrams() {
            let Some(socket) = socket else { return };
            if self.reroute(now, ends, socket) == 0 {
                return;
            }
        }
        // Data waits for the peer here: either datagrams are answered, or another link is opened.
        self.rerouting.routes.sent(now, ends);
    }
}

/// Orders of the routes, and link events.
impl Shard {
    /// Carries out the orders of a client's routes.
    pub(super) fn execute_route_orders(&self, state: &mut State, now: Instant) {
        state.apply_carrier_changes(now);
        if !state.rerouting.routes.uses_links() {
            return;
        }
        while let Carrier::Udp(carrier) = &mut state.carrier
            && let Some(ends) = carrier.poll_quiet()
        {
            // A server that has stopped sending may have nothing to send, or its packets may be lost: probe it.
            if state.rerouting.routes.is_quiet(now, &ends) && state.probe(ends).is_some() {
                state.rerouting.routes.sent(now, ends);
            }
        }
        while let Some(order) = state.rerouting.routes.poll_order() {
            match order {
                Order::Open(ends) => self.open_link(state, now, ends),
                Order::Use(ends, link) => {
                    tracing::warn!(
                        local = %ends.0,
                        server = %ends.1,
                        "no answer over UDP: connections use TCP until UDP is answered"
                    );
                    state.move_flows_to_link(now, ends, link);
                }
                Order::Compare(ends, link) => {
                    tracing::debug!(local = %ends.0, server = %ends.1, "UDP appears rate-limited: trying TCP");
                    state.move_flows_to_link(now, ends, link);
                }
                Order::Keep(ends, CarrierRates { udp_bits_per_s, tcp_bits_per_s }) => {
                    tracing::warn!(
                        local = %ends.0,
                        server = %ends.1,
                        udp_bits_per_s,
                        tcp_bits_per_s,
                        "UDP is rate-limited and slower than TCP: connections use TCP"
                    );
                }
                Order::Leave(ends, why) => {
                    match why {
                        Leaving::DatagramsWork => tracing::info!(
                            local = %ends.0,
                            server = %ends.1,
                            "UDP is answered again: connections use it"
                        ),
                        Leaving::NextComparison => tracing::info!(
                            local = %ends.0,
                            server = %ends.1,
                            "UDP was slower than TCP; trying UDP again"
                        ),
                        Leaving::LinkEnded | Leaving::NotFaster => {}
                    }
                    state.leave_link(now, ends);
                }
                Order::Close(link) => link_tasks::close_later(&self.links, link),
                Order::Probe(ends) => {
                    if let Some(id) = state.probe(ends) {
                        state.rerouting.routes.probes(ends, id);
                    }
                }
            }
        }
    }

    fn open_link(&self, state: &mut State, now: Instant, ends: FlowEnds) {
        let Carrier::Udp(carrier) = &state.carrier else { return };
        let socket = carrier.datagram_socket(ends.0);
        let entry = socket.and_then(|index| state.sockets.get(usize::from(index))?.as_ref());
        let options = entry.and_then(|entry| match &entry.socket.kind {
            Kind::Udp(udp) => Some(udp.options_at(entry.socket.local)),
            _ => None,
        });
        match (options, self.handle()) {
            (Some(options), Some(handle)) => {
                let shard = Arc::downgrade(&handle.shard);
                let stalled = state.rerouting.routes.take_stall(now, &ends);
                tokio::spawn(link_tasks::open(shard, options, ends, stalled));
            }
            _ => drop(state.rerouting.routes.on_link_failure(now, ends, Failure::Answered)),
        }
    }

    pub(super) fn on_link_opened(&self, ends: FlowEnds, link: u16) {
        // The answers may be in the sockets already.
        self.catch_up();
        let mut state = self.lock();
        let now = self.now(&mut state);
        state.rerouting.forget_failure(&ends);
        state.rerouting.routes.opened(now, ends, link);
        self.serve(&mut state, now);
    }

    pub(super) fn on_link_not_opened(&self, ends: FlowEnds, why: &LinkOpenError) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        let mut refused = state.rerouting.routes.take_held_error(&ends);
        if !state.rerouting.routes.sends_datagrams() && why.is_refusal() {
            // Without datagrams, this reset is the server's answer, as an ICMP error is for datagrams.
            state.observers.contacts.refused(now, ends.0, ends.1);
            refused = true;
        }
        if state.rerouting.routes.on_link_failure(now, ends, why.kind()) {
            tracing::warn!(local = %ends.0, server = %ends.1, "no answer over UDP, and {why}");
        }
        let rerouting = &mut state.rerouting;
        rerouting.note_failure(ends, why.to_string());
        if let (true, Carrier::Udp(carrier)) = (refused, &state.carrier) {
            // ICMP errors about the datagrams were held back. They count now.
            for flow in carrier.flows_between(ends) {
                state.endpoint.flow_error(now, flow, NetworkError::Unreachable);
            }
        }
        if let Carrier::Udp(carrier) = &state.carrier
            && !state.rerouting.routes.sends_datagrams()
            && !carrier.flows_between(ends).is_empty()
        {
            // These flows cannot send without a link, so the request for one is repeated.
            state.rerouting.routes.sent(now, ends);
        }
        self.serve(&mut state, now);
    }

    /// Handles the end of a link. `stalled` means that nothing sent on it was acknowledged.
    pub(super) fn on_link_closed(&self, outer: &Outer, stalled: bool) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        let ends = (outer.local, outer.remote);
        if stalled {
            state.rerouting.routes.stalled(now, ends, outer.socket);
        }
        state.rerouting.routes.closed(now, ends, outer.socket);
        // The next link may have the same index, and room.
        state.rerouting.vacate(outer);
        let cut_off = match &state.carrier {
            Carrier::Udp(carrier) => carrier.flows_at(outer),
            Carrier::Native(_) => Vec::new(),
        };
        // A client moves its flows to another carrier; a server waits for the client to do so.
        let waits = !state.rerouting.routes.uses_links();
        for flow in cut_off {
            state.endpoint.set_flow_full(now, flow, true);
            if waits {
                state.endpoint.flow_error(now, flow, NetworkError::Unreachable);
            }
        }
        self.serve(&mut state, now);
    }

    pub(super) fn on_link_room(&self, outer: &Outer) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        for flow in state.rerouting.set_full(outer.socket, false) {
            state.endpoint.set_flow_full(now, flow, false);
        }
        self.serve(&mut state, now);
    }

    /// Gives frames of a link to the carrier and the core.
    pub(super) fn on_link_frames(&self, link: &Link, frames: &[&[u8]]) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        if state.stopped {
            link.close();
            return;
        }
        let origin = Origin { outer: *link.outer(), local_port: link.port(), ecn: Ecn::NotEct };
        self.on_frames(&mut state, now, &origin, frames.iter().copied());
        if self.tell(&mut state, now) {
            wake(state.driver.take());
        } else {
            self.serve(&mut state, now);
        }
    }

    /// Returns why the last link attempt from this address to this server failed, if it did.
    #[must_use]
    pub fn link_failure(&self, local: core::net::IpAddr, server: SocketAddr) -> Option<String> {
        self.lock().rerouting.failure(&(local, server)).map(str::to_owned)
    }

    /// Returns the address pairs whose connections use TCP because it is faster there, with the measured rates.
    #[must_use]
    pub fn routes_faster_by_tcp(&self) -> Vec<(FlowEnds, CarrierRates)> {
        self.lock().rerouting.routes.routes_faster_by_tcp()
    }

    /// Returns the address pairs whose connections use TCP now.
    #[must_use]
    pub fn routes_by_link(&self) -> Vec<FlowEnds> {
        self.lock().rerouting.routes.by_link()
    }
}
