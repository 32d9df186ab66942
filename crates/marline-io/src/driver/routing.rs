//! Routing of a shard's flows: the links that carry them, and the routes of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use marline_time::Instant;

use super::link::{Link, Sent};
use super::link_table::{Links, count};
use super::sending::{Outgoing, Sender};
use crate::carrier::{Carried, FlowEnds, Outer, SHORT_HEADER};
use crate::links::Routes;

/// Maximum length of a frame without payload. Longer ones elicit an answer.
const MAX_ACK_FRAME: usize = SHORT_HEADER + 60;

/// Links of a shard's flows, and the routes of a client.
#[derive(Debug, Default)]
pub(super) struct Routing {
    /// Links of all shards that share the ports.
    all: Arc<Links>,
    /// Index of the shard.
    index: u8,
    routes: Routes,
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

impl Routing {
    pub(super) fn new(all: Arc<Links>, index: u8, routes: Routes) -> Self {
        Routing { all, index, routes, ..Routing::default() }
    }

    /// Links of all shards that share the ports.
    pub(super) const fn links(&self) -> &Arc<Links> {
        &self.all
    }

    /// Routes of a client.
    pub(super) const fn routes(&mut self) -> &mut Routes {
        &mut self.routes
    }

    /// Sends bytes on a link. Returns the flows that must pause because the link is full now.
    pub(super) fn send(&mut self, out: &Outgoing<'_>) -> Vec<u64> {
        let dropped = &self.all.counters().dropped;
        // A link that has ended has notified its flows. Its index may belong to another link now.
        let Some(link) = self.all.at(&out.outer) else {
            count(dropped);
            return Vec::new();
        };
        let lane = matches!(out.sender, Sender::Lane(..));
        match link.send(self.index, lane, out.stride, out.bytes) {
            Sent::All => return Vec::new(),
            Sent::Full => {}
            Sent::Dropped => count(dropped),
        }
        self.set_full(out.outer.socket, true)
    }

    /// Records that a client sends a datagram. Returns false if it must not be sent.
    pub(super) fn may_send_datagram(&mut self, now: Instant, out: &Outgoing<'_>) -> bool {
        if !self.routes.uses_links() {
            return true;
        }
        let length = if out.stride == 0 { out.bytes.len() } else { out.stride };
        if length > MAX_ACK_FRAME {
            self.routes.sent(now, FlowEnds::new(out.outer.local, out.outer.remote));
        }
        self.routes.sends_datagrams()
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

    /// Records that a flow has validated itself on the link of this index.
    pub(super) fn prove(&mut self, flow: u64, index: u16) {
        let Some(link) = self.all.by_index(index) else { return };
        let Some(flows) = self.links.get_mut(&link.outer().socket) else { return };
        flows.proven.insert(flow);
        // `proven_link` may be an earlier link of this index, which has ended.
        let known = flows.proven_link.as_ref().is_some_and(|known| Arc::ptr_eq(known, &link));
        if !known {
            flows.proven_link = Some(Arc::clone(&link));
            self.all.prove(&link);
        }
    }

    /// Removes a flow that has ended or is carried otherwise now from its link.
    pub(super) fn forget_flow(&mut self, flow: u64) {
        if let Some(link) = self.remove_flow(flow) {
            self.all.remove_validated_flow(&link);
        }
    }

    /// Removes a flow. Returns the link on which it was the last validated flow of this shard, if it was.
    fn remove_flow(&mut self, flow: u64) -> Option<Arc<Link>> {
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
        let Routing { routes, failures, .. } = self;
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
