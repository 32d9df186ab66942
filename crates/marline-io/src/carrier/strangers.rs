//! Room for newcomers in a full table of flows: those of strangers make it.
//!
//! A peer is a stranger until its address has proven that it receives. A proof ages: a peer that has not been heard
//! for long is a stranger again. This costs nothing per datagram, because ages are checked only when the table is full.

use marline_core::Source;
use marline_time::Instant;

use super::{SWEEP_INTERVAL, UdpCarrier};

impl UdpCarrier {
    /// Makes room for a flow of this source. `false`: there is none, because all flows belong to peers that have proven
    /// their address and were heard lately.
    pub(super) fn make_room(&mut self, now: Instant, newcomer: Source) -> bool {
        if self.flows.len() < self.config.max_flows {
            return true;
        }
        self.counters.flows_refused += 1;
        if now >= self.proofs_checked_next {
            self.proofs_checked_next = now + SWEEP_INTERVAL;
            self.check_proofs(now);
        }
        while let Some(id) = self.strangers.make_room(newcomer) {
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            flow.is_stranger = false;
            // Its peer may have been heard after its age was checked.
            if flow.makes_room(now) {
                if flow.validated && !flow.has_ended {
                    self.evicted.push_back(id);
                }
                self.forget(id);
                return true;
            }
        }
        false
    }

    /// Counts flows among the strangers whose proof is too old.
    fn check_proofs(&mut self, now: Instant) {
        let UdpCarrier { flows, strangers, .. } = self;
        let aged = flows.iter_mut().filter(|(_, flow)| !flow.is_stranger && flow.makes_room(now));
        // In any order: each has its place among the others already.
        aged.for_each(|(id, flow)| {
            if let Some(pending) = flow.pending {
                flow.is_stranger = true;
                strangers.readmit(flow.source(), pending, *id);
            }
        });
    }

    /// The address of a flow has proven that it receives. Called before the flow moves there.
    pub(super) fn prove(&mut self, id: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if let Some(pending) = flow.pending.filter(|_| flow.is_stranger) {
            flow.is_stranger = false;
            self.strangers.remove(flow.source(), pending);
        }
        if !flow.validated {
            flow.validated = true;
            self.changes += 1;
            self.unproven = self.unproven.saturating_sub(1);
        }
    }

    /// A flow that made room for others although its peer had proven its address once: the core may still have it.
    pub fn poll_evicted(&mut self) -> Option<u64> {
        self.evicted.pop_front()
    }
}
