//! Eviction from a full table of flows: flows of peers without a recently validated address make room.
//!
//! A peer is a stranger until its address is validated. A validation ages: a peer that has been silent for a long time
//! is a stranger again. This costs nothing per datagram, because ages are checked only when the table is full.

use marline_core::Source;
use marline_time::Instant;

use super::{SWEEP_INTERVAL, UdpCarrier};

impl UdpCarrier {
    /// Makes room for a flow of this source. Returns false if all flows belong to peers with a validated address
    /// that were active recently.
    pub(super) fn make_room(&mut self, now: Instant, newcomer: Source) -> bool {
        if self.flows.len() < self.config.max_flows {
            return true;
        }
        self.counters.flows_refused += 1;
        if now >= self.proofs_checked_next {
            self.proofs_checked_next = now + SWEEP_INTERVAL;
            self.check_proofs(now);
        }
        while let Some(id) = self.unvalidated.make_room(newcomer) {
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            flow.is_evictable = false;
            // The peer may have become active after the check.
            if flow.is_evictable(now) {
                if flow.validated && !flow.has_ended {
                    self.evicted.push_back(id);
                }
                self.forget(id);
                return true;
            }
        }
        false
    }

    /// Adds flows whose validation has expired to the evictable ones.
    fn check_proofs(&mut self, now: Instant) {
        let UdpCarrier { flows, unvalidated: strangers, .. } = self;
        let aged =
            flows.iter_mut().filter(|(_, flow)| !flow.is_evictable && flow.is_evictable(now));
        // The order does not matter: each flow keeps its entry.
        aged.for_each(|(id, flow)| {
            if let Some(pending) = flow.pending {
                flow.is_evictable = true;
                strangers.readmit(flow.source(), pending, *id);
            }
        });
    }

    /// Records that the address of a flow is validated. Called before the flow moves to the new address.
    pub(super) fn mark_validated(&mut self, id: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if let Some(pending) = flow.pending.filter(|_| flow.is_evictable) {
            flow.is_evictable = false;
            self.unvalidated.remove(flow.source(), pending);
        }
        if !flow.validated {
            flow.validated = true;
            self.changes += 1;
            self.unproven = self.unproven.saturating_sub(1);
        }
    }

    /// Takes an evicted flow whose peer was validated once: the core may still have it.
    pub fn poll_evicted(&mut self) -> Option<u64> {
        self.evicted.pop_front()
    }
}
