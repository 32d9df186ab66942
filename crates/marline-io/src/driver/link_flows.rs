//! Flows of a shard by the links that carry them, and the routes of a client.

use std::collections::{BTreeMap, BTreeSet};

use crate::carrier::{Carried, FlowEnds};
use crate::links::Routes;

/// The links of a shard's flows, and the routes of a client.
#[derive(Debug, Default)]
pub(super) struct Rerouting {
    pub(super) routes: Routes,
    links: BTreeMap<u16, LinkFlows>,
    by_flow: BTreeMap<u64, u16>,
    /// Why no link came about, of the routes whose last try failed.
    failures: BTreeMap<FlowEnds, String>,
}

/// The flows that a link carries.
#[derive(Debug, Default)]
struct LinkFlows {
    flows: BTreeSet<u64>,
    /// It has no room.
    full: bool,
}

impl Rerouting {
    pub(super) fn new(routes: Routes) -> Self {
        Rerouting { routes, ..Rerouting::default() }
    }

    /// Notes what carries a flow now; whether that has no room.
    pub(super) fn carry(&mut self, carried: Carried) -> bool {
        self.forget_flow(carried.flow);
        let Some(index) = carried.link else { return false };
        self.by_flow.insert(carried.flow, index);
        let link = self.links.entry(index).or_default();
        link.flows.insert(carried.flow);
        link.full
    }

    /// The core is done with a flow.
    pub(super) fn forget_flow(&mut self, flow: u64) {
        let Some(index) = self.by_flow.remove(&flow) else { return };
        if let Some(link) = self.links.get_mut(&index) {
            link.flows.remove(&flow);
            if link.flows.is_empty() {
                self.links.remove(&index);
            }
        }
    }

    /// A link has room again, or none any more. Returns its flows if that is news.
    pub(super) fn set_full(&mut self, index: u16, full: bool) -> Vec<u64> {
        let Some(link) = self.links.get_mut(&index) else { return Vec::new() };
        if core::mem::replace(&mut link.full, full) == full {
            return Vec::new();
        }
        link.flows.iter().copied().collect()
    }

    /// A link has ended: whether it had room says nothing of the next one with its index.
    pub(super) fn vacate(&mut self, index: u16) {
        if let Some(link) = self.links.get_mut(&index) {
            link.full = false;
        }
    }

    /// A link has not come about, for this reason.
    pub(super) fn note_failure(&mut self, ends: FlowEnds, why: String) {
        let Rerouting { routes, failures, .. } = self;
        failures.retain(|ends, _| routes.knows(ends));
        failures.insert(ends, why);
    }

    /// One has.
    pub(super) fn forget_failure(&mut self, ends: &FlowEnds) {
        self.failures.remove(ends);
    }

    /// Why no link came about between these addresses, if the last try failed.
    pub(super) fn failure(&self, ends: &FlowEnds) -> Option<&str> {
        self.failures.get(ends).map(String::as_str)
    }
}
