//! Header prediction: the segments that most segments are, without the questions that the others ask.
//!
//! *Problem.* A receiver of a bulk transfer gets the next segment of an established subflow, thousands of times
//! over: in order, nothing missing, nothing new in its ACK. Each check of RFC 9293 section 3.10.7.4 has one answer
//! for it, and none of the branches behind them is taken.
//!
//! *How.* As in Van Jacobson's TCP (1990; RFC 7323 section 3 says where timestamps fit in): if all of a short list
//! of conditions hold, the segment is taken at once. What it changes is what the long way would change, in the
//! same order; the long way stays the only definition of the protocol.
//!
//! *Differences.* Only data is predicted. An ACK that moves SND.UNA has work to do that no prediction spares.

use marline_policy::Ssn;
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpSegment};

use super::delayed_ack::Arrival;
use super::{Ingress, Subflow};
use crate::SubflowState;

impl Subflow {
    /// Takes a segment that is the next one in every respect: payload, and nothing else that is news. `None`: it
    /// is not, nothing was changed, and [`on_segment`](Self::on_segment) must see it. `accept_window` as there.
    pub(crate) fn take_predicted(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        accept_window: u64,
    ) -> Option<Ingress> {
        let start = self.predicts(now, segment, accept_window)?;
        let len = segment.payload.len();
        let end = start.plus(len as u64);
        self.withdrawable = false;
        self.heard(now);
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
        let lazy = self.tx.rto.beneath.is_reliable();
        let arrival = Arrival { len, push, urgent: false, lazy };
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

    /// Its first position, if the segment is the next one and only that.
    fn predicts(&self, now: Instant, segment: &TcpSegment<'_>, accept_window: u64) -> Option<Ssn> {
        let (header, options) = (&segment.header, &segment.options);
        let start = self.rx.nxt;
        let usual = header.flags.without(TcpFlags::PSH) == TcpFlags::ACK
            && !segment.payload.is_empty()
            && header.seq == self.peer_to_wire(start)
            && header.ack == self.to_wire(self.tx.una)
            && options.sack.is_empty();
        let quiet = self.state.is(SubflowState::Established)
            && !self.dead
            && !self.health.is_silent()
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
