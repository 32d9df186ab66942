//! Receive side of a subflow: reassembly, the peer's FIN, and the decision when to send an ACK.

use marline_policy::Ssn;
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpSegment};

use super::delayed_ack::Arrival;
use super::reorder::ReorderQueue;
use super::{Ingress, Subflow, SubflowEvent};
use crate::SubflowState;

/// Receiving half of a subflow.
#[derive(Debug)]
pub(super) struct Reception {
    /// RCV.NXT: all bytes before it are in order, including held bytes.
    pub(super) nxt: Ssn,
    /// End of the data that the connection has taken, or will take from the current segment.
    pub(super) delivered_to: Ssn,
    /// Highest edge that was offered.
    pub(super) edge: Ssn,
    /// Largest window that was offered.
    pub(super) max_offered: u64,
    /// Our window scale shift.
    pub(super) window_shift: u8,
    /// SND.WL1: sequence number of the segment that last updated the peer's window.
    pub(super) window_seen_at: Ssn,
    pub(super) queue: ReorderQueue,
    /// Number of bytes that the connection still allows in the queue.
    pub(super) room: u64,
    /// Position of the peer's FIN, once known.
    pub(super) fin: Option<Ssn>,
    /// Duplicate range to report by DSACK.
    pub(super) dsack: Option<(Ssn, Ssn)>,
}

impl Reception {
    pub(super) const fn new(out_of_order_ranges: usize, window_shift: u8) -> Self {
        Reception {
            nxt: Ssn(0),
            delivered_to: Ssn(0),
            edge: Ssn(0),
            max_offered: 0,
            window_shift,
            window_seen_at: Ssn(0),
            queue: ReorderQueue::new(out_of_order_ranges),
            room: u64::MAX,
            fin: None,
            dsack: None,
        }
    }
}

/// Result of storing a payload.
#[derive(Copy, Clone, Debug, Default)]
struct StoreOutcome {
    new: u64,
    urgent: bool,
}

impl Subflow {
    /// Accepts payload and FIN of an acceptable segment whose payload begins at `start`; octets at or beyond
    /// `edge` are cut off.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        start: Ssn,
        edge: Ssn,
        ingress: &mut Ingress,
    ) {
        let len = segment.payload.len();
        let has_fin = segment.header.flags.contains(TcpFlags::FIN);
        if len == 0 && !has_fin {
            if start.plus(1) == self.rx.nxt {
                self.ack.demand();
            }
            return;
        }
        if !self.state.may_receive() {
            self.ack.demand();
            return;
        }
        let end = start.plus(len as u64);
        if has_fin {
            self.record_fin(end, edge);
        }
        let mut stored = StoreOutcome::default();
        if len > 0 {
            ingress.start = Some(start);
            stored = self.store(segment.payload, start, edge, ingress);
        }
        let fin = self.take_fin();
        let arrival = Arrival {
            len,
            push: segment.header.flags.contains(TcpFlags::PSH),
            urgent: stored.urgent || has_fin,
            is_reliable: self.tx.rto.carrier.is_reliable(),
        };
        self.ack.on_arrival(now, arrival, self.tx.rtt.srtt());
        self.stats.bytes_received += stored.new;
        self.stats.count_duplicate(ingress.duplicate_bytes);
        if fin {
            self.on_fin_received(now);
        }
    }

    /// Records the end of the stream, unless that contradicts earlier data or is too far away.
    fn record_fin(&mut self, at: Ssn, edge: Ssn) {
        let reached = self.rx.queue.end().map_or(self.rx.nxt, |end| self.rx.nxt.max(Ssn(end)));
        let open = at <= edge || at == self.rx.nxt;
        if self.rx.fin.is_none() && at >= reached && open {
            self.rx.fin = Some(at);
        }
    }

    fn store(
        &mut self,
        payload: &[u8],
        start: Ssn,
        edge: Ssn,
        ingress: &mut Ingress,
    ) -> StoreOutcome {
        let end = start.plus(payload.len() as u64);
        let limit = self.rx.fin.map_or(edge, |fin| edge.min(fin));
        let from = start.max(self.rx.nxt);
        let to = end.min(limit);
        let mut stored = StoreOutcome { new: 0, urgent: to < end };
        let old = from.since(start);
        if old > 0 {
            ingress.duplicate_bytes = old;
            self.rx.dsack = Some((start, from));
            stored.urgent = true;
        }
        if from >= to {
            return stored;
        }
        let part = from.since(start) as usize..to.since(start) as usize;
        // RFC 2883 section 4: the first contiguous part of the repeated octets.
        if old == 0
            && let Some((first, last)) = self.rx.queue.held_within(from.0, to.0)
        {
            self.rx.dsack = Some((Ssn(first), Ssn(last)));
        }
        if from == self.rx.nxt {
            stored.new = to.since(from);
            ingress.in_order = Some((from, part));
            self.rx.delivered_to = to;
            self.rx.nxt = to;
            if !self.rx.queue.is_empty() {
                // The segment fills a gap or part of one, so the sender is waiting for the ACK.
                self.rx.nxt = Ssn(self.rx.queue.advance(to.0));
                stored.urgent = true;
            }
            return stored;
        }
        stored.urgent = true;
        if let Some(new) = self.rx.queue.insert(from.0, &payload[part], self.rx.room) {
            stored.new = new;
            ingress.duplicate_bytes += to.since(from) - new;
        }
        stored
    }

    /// True if RCV.NXT has just reached the peer's FIN.
    fn take_fin(&mut self) -> bool {
        if self.rx.fin != Some(self.rx.nxt) {
            return false;
        }
        self.rx.nxt = self.rx.nxt.plus(1);
        true
    }

    fn on_fin_received(&mut self, now: Instant) {
        self.state.move_on_fin_received();
        self.events.push_back(SubflowEvent::PeerFin);
        self.finish_if_closed(now);
    }

    /// Handles the acknowledgment of our FIN.
    pub(super) fn on_fin_acked(&mut self, now: Instant) {
        self.state.move_on_fin_acked();
        self.finish_if_closed(now);
    }

    fn finish_if_closed(&mut self, now: Instant) {
        match self.state.get() {
            SubflowState::TimeWait => {
                self.start_time_wait(now);
                self.events.push_back(SubflowEvent::Finished);
            }
            SubflowState::Closed => self.events.push_back(SubflowEvent::Finished),
            _ => {}
        }
    }

    /// Held bytes that are now in order. After each segment, handle its `in_order` bytes and then call this until it
    /// returns `None`.
    pub(crate) fn pop_reassembled(&mut self) -> Option<(Ssn, Vec<u8>)> {
        let (popped, dropped) = self.rx.queue.pop(self.rx.delivered_to.0, self.rx.nxt.0);
        self.stats.count_duplicate(dropped);
        self.stats.bytes_received -= dropped.min(self.stats.bytes_received);
        let (start, buffer) = popped?;
        self.rx.delivered_to = Ssn(start + buffer.len() as u64);
        Some((Ssn(start), buffer))
    }

    /// Returns a buffer taken by `pop_reassembled` for reuse.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.rx.queue.recycle(buffer);
    }
}
