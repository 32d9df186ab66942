//! Header prediction: a fast path for the segments of a bulk transfer.
//!
//! *Problem.* A receiver of a bulk transfer gets the next segment of an established subflow thousands of times: in
//! order, no data missing, no new acknowledgment. Each check of RFC 9293 section 3.10.7.4 then has the same result,
//! and no special branch is taken.
//!
//! *How.* As in Van Jacobson's TCP (1990; RFC 7323 section 3 adds timestamps): if a short list of conditions holds,
//! the segment is accepted immediately. Its effects are the same as on the regular path, in the same order; the
//! regular path remains the only definition of the protocol.
//!
//! *Differences.* Only data is predicted. An ACK that advances SND.UNA needs the regular path anyway.

use marline_policy::Ssn;
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpSegment};

use super::delayed_ack::Arrival;
use super::{Ingress, Subflow};
use crate::SubflowState;

impl Subflow {
    /// Accepts a segment that is exactly the predicted one: only its payload is new. Returns `None`, without changes,
    /// for any other segment, which [`on_segment`](Self::on_segment) must process. `accept_window` has the same meaning
    /// as there.
    pub(crate) fn take_predicted(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        accept_window: u64,
    ) -> Option<Ingress> {
        let start = self.predicted_start(now, segment, accept_window)?;
        let len = segment.payload.len();
        let end = start.plus(len as u64);
        self.withdrawable = false;
        self.on_valid_segment(now);
        if let Some(timestamps) = segment.options.timestamps.filter(|_| self.timestamps.enabled) {
            self.timestamps.on_accepted(now, timestamps.value, start);
        }
        let window = u64::from(segment.header.window) << self.tx.window_shift;
        if start >= self.rx.window_seen_at {
            self.tx.window = window;
            self.tx.max_window = self.tx.max_window.max(window);
            self.rx.window_seen_at = start;
        }
        self.rx.delivered_to = end;
        self.rx.nxt = end;
        let push = segment.header.flags.contains(TcpFlags::PSH);
        let lazy = self.tx.rto.carrier.is_reliable();
        let arrival = Arrival { len, push, urgent: false, is_reliable: lazy };
        self.ack.on_arrival(now, arrival, self.tx.rtt.srtt());
        self.stats.bytes_received += len as u64;
        Some(Ingress {
            accepted: true,
            window,
            in_order: Some((start, 0..len)),
            start: Some(start),
            ..Ingress::default()
        })
    }

    /// First position of the segment, if it is exactly the predicted one.
    fn predicted_start(
        &self,
        now: Instant,
        segment: &TcpSegment<'_>,
        accept_window: u64,
    ) -> Option<Ssn> {
        let (header, options) = (&segment.header, &segment.options);
        let start = self.rx.nxt;
        let usual = header.flags.without(TcpFlags::PSH) == TcpFlags::ACK
            && !segment.payload.is_empty()
            && header.seq == self.peer_to_wire(start)
            && header.ack == self.to_wire(self.tx.una)
            && options.sack.is_empty();
        let quiet = self.state.matches_state(SubflowState::Established)
            && !self.is_dead
            && !self.health.is_unreachable()
            && !self.ecn.negotiated
            && self.rx.queue.is_empty()
            && self.rx.fin.is_none();
        if !usual || !quiet {
            return None;
        }
        let timely = match options.timestamps {
            Some(timestamps) => {
                !self.timestamps.enabled || !self.timestamps.is_old(now, timestamps.value)
            }
            None => !self.timestamps.enabled,
        };
        let edge = self.rx.edge.max(start.plus(accept_window));
        (timely && start.plus(segment.payload.len() as u64) <= edge).then_some(start)
    }
}
