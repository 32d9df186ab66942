//! Flows of a shard and the links that carry them, and the routes of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::link::Link;
use crate::carrier::{Carried, FlowEnds, Outer};
use crate::links::Routes;

/// Links of a shard's flows, and the routes of a client.
#[derive(Debug, Default)]
pub(super) struct Rerouting {
    pub(super) routes: Routes,
    links: BTreeMap<u16, LinkFlows>,
    by_flow: BTreeMap<u64, u16>,
    /// Reasons of failed link attempts, for routes whose last attempt failed.
    failures: BTreeMap<FlowEnds, String>,
}

/// Flows that a link carries.
#[derive(Debug, Default)]
struct LinkFlows {
    flows: BTreeSet<u64>,
    /// Flows that have validated themselves on this link.
    proven: BTreeSet<u64>,
    /// Link that counts this shard among its users.
    proven_link: Option<Arc<Link>>,
    /// Set while the link has no room.
    full: bool,
}

impl Rerouting {
    pub(super) fn new(routes: Routes) -> Self {
        Rerouting { routes, ..Rerouting::default() }
    }

    /// Returns true if this link carries the flow; `None` stands for datagrams.
    pub(super) fn is_carried_by(&self, flow: u64, link: Option<u16>) -> bool {
        self.by_flow.get(&flow).copied() == link
    }

    /// Records what carries a flow now. Returns true if that link has no room.
    pub(super) fn carry(&mut self, carried: Carried) -> bool {
        let Some(index) = carried.link else { return false };
        self.by_flow.insert(carried.flow, index);
        let link = self.links.entry(index).or_default();
        link.flows.insert(carried.flow);
        link.full
    }

    /// Records that a flow has validated itself on a link. Returns true if it is the first of this shard there.
    pub(super) fn prove(&mut self, flow: u64, link: &Arc<Link>) -> bool {
        let Some(flows) = self.links.get_mut(&link.outer().socket) else { return false };
        flows.proven.insert(flow);
        // `proven_link` may be an earlier link of this index, which has ended.
        let known = flows.proven_link.as_ref().is_some_and(|known| Arc::ptr_eq(known, link));
        if !known {
            flows.proven_link = Some(Arc::clone(link));
        }
        !known
    }

    /// Removes a flow that the core no longer needs or that is carried otherwise now. Returns the link on which it
    /// was the last validated flow of this shard, if it was.
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

    /// Records if a link has room. Returns its flows if that has changed.
    pub(super) fn set_full(&mut self, index: u16, full: bool) -> Vec<u64> {
        let Some(link) = self.links.get_mut(&index) else { return Vec::new() };
        if core::mem::replace(&mut link.full, full) == full {
            return Vec::new();
        }
        link.flows.iter().copied().collect()
    }

    /// Handles the end of a link: its state does not apply to the next link of this index.
    pub(super) fn vacate(&mut self, outer: &Outer) {
        let Some(link) = self.links.get_mut(&outer.socket) else { return };
        // The next link may have validated flows already.
        if link.proven_link.as_ref().is_none_or(|proven| proven.outer() == outer) {
            link.full = false;
            link.proven.clear();
            link.proven_link = None;
        }
    }

    /// Records why a link was not established.
    pub(super) fn note_failure(&mut self, ends: FlowEnds, why: String) {
        let Rerouting { routes, failures, .. } = self;
        failures.retain(|ends, _| routes.knows(ends));
        failures.insert(ends, why);
    }

    /// Discards a failure after a link was established.
    pub(super) fn forget_failure(&mut self, ends: &FlowEnds) {
        self.failures.remove(ends);
    }

    /// Returns why the last link attempt between these addresses failed, if it did.
    pub(super) fn failure(&self, ends: &FlowEnds) -> Option<&str> {
        self.failures.get(ends).map(String::as_str)
    }
}
