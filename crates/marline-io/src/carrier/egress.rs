//! The core's batches: where they go, under which headers, and whether they may (spec section 3).

use core::net::SocketAddr;

use marline_core::{FourTuple, Transmit};
use marline_time::Instant;

use super::flow::{Allowance, Flow, Pending};
use super::frame::{self, ControlFrame};
use super::{
    CONTROL_CAPACITY, Framed, HANDSHAKE_HEADER, Outer, SHORT_HEADER, SWEEP_INTERVAL, UdpCarrier,
};

impl UdpCarrier {
    /// Writes the headers of a batch into its headroom and says where it goes. `None`: it must not
    /// or cannot be sent.
    pub fn frame(&mut self, now: Instant, batch: &Transmit, bytes: &mut [u8]) -> Option<Framed> {
        let id = batch.local_flow;
        if id != 0 && !self.flows.contains_key(&id) && batch.handshake && !self.open(now, batch) {
            return None;
        }
        let Some(flow) = self.flows.get_mut(&id) else {
            return self.frame_stray(batch, bytes);
        };
        if flow.peer_flow != batch.peer_flow && batch.peer_flow != 0 {
            self.by_peer.remove(&flow.peer_flow);
            self.by_peer.insert(batch.peer_flow, id);
            flow.peer_flow = batch.peer_flow;
        }
        let extra = if batch.handshake { HANDSHAKE_HEADER - SHORT_HEADER } else { 0 };
        let total = bytes.len() + extra * batch.datagrams;
        if !flow.validated && !flow.allowance.take(total) {
            self.counters.withheld += 1;
            return None;
        }
        flow.sent_at = now;
        let outer = flow.outer;
        if batch.handshake {
            let header = frame::handshake_header(flow.peer_flow, id);
            return Some(Framed::Handshake(outer, header));
        }
        fill(bytes, batch.stride, &frame::data_header(flow.peer_flow));
        Some(Framed::Ready(outer))
    }

    /// A batch that belongs to no flow: a RST to somebody we do not know.
    fn frame_stray(&mut self, batch: &Transmit, bytes: &mut [u8]) -> Option<Framed> {
        if batch.peer_flow != 0 {
            let ip = batch.path.remote.ip();
            if let Some(entry) = self.pending.get_mut(batch.peer_flow, ip) {
                if !entry.allowance.take(bytes.len()) {
                    self.counters.withheld += 1;
                    return None;
                }
                let outer = entry.outer;
                fill(bytes, batch.stride, &frame::data_header(batch.peer_flow));
                return Some(Framed::Ready(outer));
            }
        } else if let Some(at) = self.unknown.iter().rposition(|(id, _)| *id == batch.local_flow)
            && let Some((id, outer)) = self.unknown.remove(at)
        {
            fill(bytes, batch.stride, &frame::reset_header(id));
            return Some(Framed::Ready(outer));
        }
        self.counters.unroutable += 1;
        None
    }

    /// Makes the flow that a SYN or SYN/ACK of the core speaks for.
    fn open(&mut self, now: Instant, batch: &Transmit) -> bool {
        if self.flows.len() >= self.config.max_flows && !self.evict_unproven() {
            self.counters.flows_refused += 1;
            return false;
        }
        let id = batch.local_flow;
        let answered = self.pending.get_mut(batch.peer_flow, batch.path.remote.ip());
        let flow = match answered {
            Some(entry) if batch.peer_flow != 0 => {
                entry.flow = Some(id);
                answering(now, entry)
            }
            _ if batch.peer_flow == 0 && !self.config.accept => {
                let Some(outer) = self.outer_from(batch.path) else {
                    self.counters.unroutable += 1;
                    return false;
                };
                opening(now, batch.path, outer)
            }
            _ => {
                self.counters.unroutable += 1;
                return false;
            }
        };
        if flow.initiated {
            self.initiated += 1;
            let due = now + self.config.keepalive;
            self.next_keepalive = Some(self.next_keepalive.map_or(due, |at| at.min(due)));
        } else {
            self.unproven += 1;
            self.next_sweep.get_or_insert(now + SWEEP_INTERVAL);
            self.by_peer.insert(batch.peer_flow, id);
        }
        let flow = Flow { peer_flow: batch.peer_flow, ..flow };
        self.flows.insert(id, flow);
        true
    }

    fn outer_from(&self, path: FourTuple) -> Option<Outer> {
        let fits = |bound: &SocketAddr| bound.ip() == path.local.ip();
        let socket = self.sockets.iter().position(|s| s.as_ref().is_some_and(fits))?;
        Some(Outer { socket: socket as u16, local: path.local.ip(), remote: path.remote })
    }

    fn evict_unproven(&mut self) -> bool {
        if self.unproven == 0 {
            return false;
        }
        let unproven = self.flows.iter().filter(|(_, flow)| !flow.validated);
        let Some((&id, _)) = unproven.min_by_key(|(id, flow)| (flow.created_at, **id)) else {
            return false;
        };
        self.counters.flows_refused += 1;
        self.forget(id);
        true
    }

    /// The core is done with a flow.
    pub fn forget(&mut self, id: u64) {
        let Some(flow) = self.flows.remove(&id) else { return };
        self.initiated -= usize::from(flow.initiated);
        self.unproven -= usize::from(!flow.validated);
        if self.by_peer.get(&flow.peer_flow) == Some(&id) {
            self.by_peer.remove(&flow.peer_flow);
        }
        if self.initiated == 0 {
            self.next_keepalive = None;
        }
    }

    /// The addresses by which the core knows who is at this outer address: on a client they are the
    /// same, on a server the ports are the inner ones. At most a few are looked up: it is ICMP
    /// that asks.
    pub fn core_addresses(&self, outer: SocketAddr) -> Vec<SocketAddr> {
        const AT_MOST: usize = 16;
        if !self.config.accept {
            return vec![outer];
        }
        let there = self.flows.values().filter(|flow| flow.outer.remote == outer);
        there.map(|flow| flow.path.remote).take(AT_MOST).collect()
    }

    /// The next frame the carrier itself wants sent.
    pub fn poll_control(&mut self) -> Option<(Outer, ControlFrame)> {
        self.control.pop_front()
    }

    pub(super) fn push_control(&mut self, outer: Outer, frame: ControlFrame) {
        if self.control.len() >= CONTROL_CAPACITY {
            self.counters.control_dropped += 1;
            return;
        }
        self.control.push_back((outer, frame));
    }
}

fn answering(now: Instant, entry: &Pending) -> Flow {
    Flow {
        path: entry.path,
        peer_flow: 0,
        outer: entry.outer,
        validated: false,
        allowance: entry.allowance,
        moves: 0,
        challenged: None,
        initiated: false,
        sent_at: now,
        heard_at: now,
        quiet_steps: u8::MAX,
        created_at: now,
    }
}

fn opening(now: Instant, path: FourTuple, outer: Outer) -> Flow {
    Flow {
        path,
        peer_flow: 0,
        outer,
        validated: true,
        allowance: Allowance::default(),
        moves: 0,
        challenged: None,
        initiated: true,
        sent_at: now,
        heard_at: now,
        quiet_steps: u8::MAX,
        created_at: now,
    }
}

/// Writes `header` in front of each segment of a batch.
fn fill(bytes: &mut [u8], stride: usize, header: &[u8; SHORT_HEADER]) {
    for datagram in bytes.chunks_mut(stride.max(SHORT_HEADER)) {
        if let Some(room) = datagram.get_mut(..SHORT_HEADER) {
            room.copy_from_slice(header);
        }
    }
}
