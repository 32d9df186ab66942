//! Flows of a shard by the links that carry them, and the routes of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::links::Link;
use crate::carrier::{Carried, FlowEnds, Outer};
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
    /// Of these, flows that have proven themselves here, ...
    proven: BTreeSet<u64>,
    /// ... and the link that counts this shard among those that have some.
    proven_link: Option<Arc<Link>>,
    /// It has no room.
    full: bool,
}

impl Rerouting {
    pub(super) fn new(routes: Routes) -> Self {
        Rerouting { routes, ..Rerouting::default() }
    }

    /// Whether this link carries the flow.
    pub(super) fn is_carried_by(&self, flow: u64, link: Option<u16>) -> bool {
        self.by_flow.get(&flow).copied() == link
    }

    /// Notes what carries a flow now; whether that has no room.
    pub(super) fn carry(&mut self, carried: Carried) -> bool {
        let Some(index) = carried.link else { return false };
        self.by_flow.insert(carried.flow, index);
        let link = self.links.entry(index).or_default();
        link.flows.insert(carried.flow);
        link.full
    }

    /// A flow has proven itself on a link. Whether it is the first of this shard there.
    pub(super) fn prove(&mut self, flow: u64, link: &Arc<Link>) -> bool {
        let Some(flows) = self.links.get_mut(&link.outer.socket) else { return false };
        flows.proven.insert(flow);
        // After another link of this index, which has ended.
        let known = flows.proven_link.as_ref().is_some_and(|known| Arc::ptr_eq(known, link));
        if !known {
            flows.proven_link = Some(Arc::clone(link));
        }
        !known
    }

    /// The core is done with a flow, or something else carries it. Returns the link on which it was the last proven
    /// flow of this shard, if it was.
    #[must_use]
    pub(super) fn forget_flow(&mut self, flow: u64) -> Option<Arc<Link>> {
        let index = self.by_flow.remove(&flow)?;
        let link = self.links.get_mut(&index)?;
        link.flows.remove(&flow);
        let was_last = link.proven.remove(&flow) && link.proven.is_empty();
        let lost = if was_last { link.proven_link.take() } else { None };
        if link.flows.is_empty() {
            self.links.remove(&index);
        }
        lost
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
    pub(super) fn vacate(&mut self, outer: &Outer) {
        let Some(link) = self.links.get_mut(&outer.socket) else { return };
        // The next one may have proven flows already.
        if link.proven_link.as_ref().is_none_or(|proven| proven.outer == *outer) {
            link.full = false;
            link.proven.clear();
            link.proven_link = None;
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
