//! Routing of flows: the links of a driver, the flows that they carry, and the routes of a client. A task closes links
//! whose peer does not acknowledge data.
//!
//! *Problem.* When a network fails, everything that a link sends is lost, and the kernel on both sides retransmits a
//! full segment per second until TCP_USER_TIMEOUT. If only large packets are lost, because the path MTU has decreased
//! without an ICMP error, the kernel retransmits them forever.
//!
//! *Solution.* While sent data is unanswered, the kernel's statistics are checked a few times per second (`link.rs`). A
//! link without progress is reset. Its data is sent on other paths, and a client connects again, with one SYN of 60
//! bytes per second, which is answered within a second after the network recovers. An immediate answer means that
//! segments were too large (`link_tasks.rs`).

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use marline_core::{PendingId, PendingLimits, PendingPeers, Source};
use marline_time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::link::{Link, LinkStream, SendOutcome, lock};
use super::older_processes::OlderProcesses;
use super::sending::{Outgoing, Sender};
use crate::carrier::{CarrierChange, CarrierCounters, FIRST_LINK, FlowEnds, Outer, SHORT_HEADER};
use crate::edge::tcp::TcpInfo;
use crate::links::Routes;

/// Maximum number of links.
const MAX_LINKS: usize = 8_192;
/// Limits on accepted links without a validated flow. A link whose last validated flow has ended is pending again.
const PENDING_LIMITS: PendingLimits = PendingLimits { total: 512, per_source: 128 };
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum length of a frame without payload. Longer frames elicit an answer.
const MAX_ACK_FRAME: usize = SHORT_HEADER + 60;

#[derive(Debug)]
struct Table {
    slots: Vec<Option<Slot>>,
    /// Accepted links without a validated flow, by index.
    pending: PendingPeers<u16>,
    /// True while another process handles TCP connections.
    is_tcp_handed_over: bool,
}

#[derive(Debug)]
struct Slot {
    link: Arc<Link>,
    /// True if another process or a client's own shard opened the link, which is then never evicted.
    trusted: bool,
    /// Entry among the pending links.
    pending: Option<PendingId>,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            slots: Vec::new(),
            pending: PendingPeers::new(PENDING_LIMITS),
            is_tcp_handed_over: false,
        }
    }
}

impl Table {
    /// Returns the index of a free slot, or `None` if all links are in use.
    fn free_slot(&mut self) -> Option<usize> {
        match self.slots.iter().position(Option::is_none) {
            Some(free) => Some(free),
            None if self.slots.len() < MAX_LINKS => {
                self.slots.push(None);
                Some(self.slots.len() - 1)
            }
            None => None,
        }
    }

    fn slot_of(&mut self, link: &Link) -> Option<&mut Slot> {
        let index = usize::from(link.outer().socket.checked_sub(FIRST_LINK)?);
        let slot = self.slots.get_mut(index)?.as_mut()?;
        core::ptr::eq(Arc::as_ptr(&slot.link), link).then_some(slot)
    }

    /// Adds a link to the pending ones. Returns the link that must be closed to make room.
    fn add_pending_link(&mut self, link: &Link) -> Option<Arc<Link>> {
        let index = link.outer().socket;
        let source = Source::of(link.outer().remote.ip());
        if self.slot_of(link).is_none_or(|slot| slot.trusted || slot.pending.is_some()) {
            return None;
        }
        let (id, evicted) = self.pending.admit(source, index);
        if let Some(slot) = self.slot_of(link) {
            slot.pending = Some(id);
        }
        let slot = self.slots.get_mut(usize::from(evicted? - FIRST_LINK))?.as_mut()?;
        slot.pending = None;
        Some(Arc::clone(&slot.link))
    }

    /// Removes a link from the pending ones.
    fn settle(&mut self, link: &Link) {
        let Some(id) = self.slot_of(link).and_then(|slot| slot.pending.take()) else { return };
        self.pending.remove(Source::of(link.outer().remote.ip()), id);
    }
}

/// Counters of links.
#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) silent: AtomicU64,
    pub(crate) stuck: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

/// Links of all shards that share a port.
#[derive(Debug, Default)]
pub struct Links {
    table: Mutex<Table>,
    counters: LinkCounters,
    /// Older processes of this server.
    older: OnceLock<Arc<OlderProcesses>>,
    /// Wakes the task that resets stalled links.
    watch: Arc<Notify>,
    /// Handle of this task, which ends with the links.
    watcher: OnceLock<AbortHandle>,
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.abort();
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Links {
    pub(super) const fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    pub(super) fn set_older_processes(&self, older: &Arc<OlderProcesses>) {
        // This is called only once, so an error cannot occur.
        let _ = self.older.set(Arc::clone(older));
    }

    /// Returns the older processes of this server. The set may be empty.
    pub(super) fn older_processes(&self) -> Option<&Arc<OlderProcesses>> {
        self.older.get()
    }

    /// Returns the older processes, if there are any.
    pub(super) fn connected_older_processes(&self) -> Option<&Arc<OlderProcesses>> {
        self.older.get().filter(|older| older.has_any())
    }

    /// Adds a connection. A link that is not `trusted` is pending until a flow is validated on it, and may replace
    /// another pending link. Returns `None` if all links are in use or another process handles TCP connections.
    pub(super) fn insert(
        &self,
        stream: LinkStream,
        local: IpAddr,
        remote: SocketAddr,
        port: u16,
        trusted: bool,
    ) -> Option<Arc<Link>> {
        let mut table = lock(&self.table);
        if table.is_tcp_handed_over && matches!(stream, LinkStream::Tcp(_)) {
            return None;
        }
        let slot = table.free_slot()?;
        let outer = Outer { socket: FIRST_LINK + slot as u16, local, remote };
        let link = Arc::new(Link::new(stream, outer, port, trusted, &self.watch));
        table.slots[slot] = Some(Slot { link: Arc::clone(&link), trusted, pending: None });
        let evicted = table.add_pending_link(&link);
        drop(table);
        self.evict(evicted);
        Some(link)
    }

    fn evict(&self, evicted: Option<Arc<Link>>) {
        if let Some(link) = evicted {
            count(&self.counters.evicted);
            tracing::debug!(remote = %link.outer().remote, "idle link evicted to make room for a new one");
            link.close();
        }
    }

    /// Finds a link by index.
    pub(super) fn link_by_index(&self, index: u16) -> Option<Arc<Link>> {
        let slot = usize::from(index.checked_sub(FIRST_LINK)?);
        let table = lock(&self.table);
        table.slots.get(slot)?.as_ref().map(|slot| Arc::clone(&slot.link))
    }

    /// Finds the link with exactly these ends, because another link may use the index by now.
    pub(super) fn at(&self, outer: &Outer) -> Option<Arc<Link>> {
        self.link_by_index(outer.socket).filter(|link| *link.outer() == *outer)
    }

    /// Records that a shard's first flow was validated on the link.
    pub(super) fn mark_proven(&self, link: &Link) {
        let mut table = lock(&self.table);
        link.add_user();
        table.settle(link);
    }

    /// Records the end of a shard's last validated flow on the link.
    pub(super) fn remove_validated_flow(&self, link: &Link) {
        let mut table = lock(&self.table);
        if link.remove_user() {
            let evicted = table.add_pending_link(link);
            drop(table);
            self.evict(evicted);
        }
    }

    /// Returns the links on which data was sent after the last read.
    pub(super) fn unanswered_links(&self) -> Vec<Arc<Link>> {
        let table = lock(&self.table);
        let links = table.slots.iter().flatten().map(|slot| &slot.link);
        links.filter(|link| link.progress().has_unanswered_data()).map(Arc::clone).collect()
    }

    /// Removes a link that has ended.
    pub(super) fn remove(&self, link: &Link) {
        let mut table = lock(&self.table);
        table.settle(link);
        if table.slot_of(link).is_some() {
            table.slots[usize::from(link.outer().socket - FIRST_LINK)] = None;
        }
    }

    /// Hands TCP connections over to another process, or takes them back. Existing links are closed; clients
    /// immediately open new ones.
    pub(super) fn hand_over_tcp(&self, elsewhere: bool) {
        lock(&self.table).is_tcp_handed_over = elsewhere;
        if elsewhere {
            self.close_all();
        }
    }

    /// Closes all links.
    pub(super) fn close_all(&self) {
        for slot in lock(&self.table).slots.iter().flatten() {
            slot.link.close();
        }
    }

    /// Adds these counters to those of the carrier.
    pub(super) fn add_to(&self, counters: &mut CarrierCounters) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.links = of(&self.counters.accepted);
        counters.links_refused = of(&self.counters.refused);
        counters.links_evicted = of(&self.counters.evicted);
        counters.links_malformed = of(&self.counters.malformed);
        counters.links_silent = of(&self.counters.silent);
        counters.links_stalled = of(&self.counters.stuck);
        counters.link_frames_dropped = of(&self.counters.dropped);
    }
}

/// Starts the task that resets stalled links, unless it already runs.
pub(super) fn start_watch(links: &Arc<Links>) {
    links.watcher.get_or_init(|| {
        tokio::spawn(watch(Arc::downgrade(links), Arc::clone(&links.watch))).abort_handle()
    });
}

async fn watch(links: Weak<Links>, sent: Arc<Notify>) {
    loop {
        sent.notified().await;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let Some(links) = links.upgrade() else { return };
            if !end_stalled(&links) {
                break;
            }
        }
    }
}

/// Closes stalled links. Returns true if other links may still stall.
fn end_stalled(links: &Links) -> bool {
    let mut waiting = false;
    for link in links.unanswered_links() {
        let LinkStream::Tcp(stream) = link.stream() else { continue };
        // Data sent after this point counts as unanswered again.
        link.progress().on_read();
        let Ok(info) = TcpInfo::of(stream) else { continue };
        if link.progress().is_stalled(tokio::time::Instant::now(), &info) {
            count(&links.counters.silent);
            link.abort();
        } else if info.unacknowledged > 0 {
            link.progress().on_sent();
            waiting = true;
        }
    }
    waiting
}

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
    /// Reason why the last link attempt failed, by route.
    failures: BTreeMap<FlowEnds, String>,
}

/// Flows that a link carries.
#[derive(Debug, Default)]
struct LinkFlows {
    flows: BTreeSet<u64>,
    /// Flows that have been validated on this link.
    proven: BTreeSet<u64>,
    /// Link that counts this shard among its users.
    proven_link: Option<Arc<Link>>,
    /// True while the link is full.
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

    /// Returns the routes of a client.
    pub(super) const fn routes(&mut self) -> &mut Routes {
        &mut self.routes
    }

    /// Sends bytes on a link. Returns the flows that must pause because the link is now full.
    pub(super) fn send(&mut self, out: &Outgoing<'_>) -> Vec<u64> {
        let dropped = &self.all.counters().dropped;
        // A link that has ended has notified its flows. Its index may now belong to another link.
        let Some(link) = self.all.at(&out.outer) else {
            count(dropped);
            return Vec::new();
        };
        let lane = matches!(out.sender, Sender::Lane(..));
        match link.send(self.index, lane, out.stride, out.bytes) {
            SendOutcome::All => return Vec::new(),
            SendOutcome::Full => {}
            SendOutcome::Dropped => count(dropped),
        }
        self.set_full(out.outer.socket, true)
    }

    /// Records that a client sends a datagram. Returns false if the datagram must not be sent.
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
    pub(super) fn link_carries(&self, flow: u64, link: Option<u16>) -> bool {
        self.by_flow.get(&flow).copied() == link
    }

    /// Records what carries a flow now. Returns true if it is a link that is full.
    pub(super) fn carry(&mut self, carried: CarrierChange) -> bool {
        let Some(index) = carried.link else { return false };
        self.by_flow.insert(carried.flow, index);
        let link = self.links.entry(index).or_default();
        link.flows.insert(carried.flow);
        link.full
    }

    /// Records that a flow was validated on the link with this index.
    pub(super) fn mark_proven(&mut self, flow: u64, index: u16) {
        let Some(link) = self.all.link_by_index(index) else { return };
        let Some(flows) = self.links.get_mut(&link.outer().socket) else { return };
        flows.proven.insert(flow);
        // `proven_link` may be an earlier link with this index that has ended.
        let known = flows.proven_link.as_ref().is_some_and(|known| Arc::ptr_eq(known, &link));
        if !known {
            flows.proven_link = Some(Arc::clone(&link));
            self.all.mark_proven(&link);
        }
    }

    /// Removes a flow that has ended or now has another carrier from its link.
    pub(super) fn forget_flow(&mut self, flow: u64) {
        if let Some(link) = self.remove_flow(flow) {
            self.all.remove_validated_flow(&link);
        }
    }

    /// Removes a flow. If it was the last validated flow of this shard on a link, returns that link.
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

    /// Records whether a link is full. Returns its flows if this has changed.
    pub(super) fn set_full(&mut self, index: u16, full: bool) -> Vec<u64> {
        let Some(link) = self.links.get_mut(&index) else { return Vec::new() };
        if core::mem::replace(&mut link.full, full) == full {
            return Vec::new();
        }
        link.flows.iter().copied().collect()
    }

    /// Handles the end of a link: its state does not apply to the next link with this index.
    pub(super) fn on_link_ended(&mut self, outer: &Outer) {
        let Some(link) = self.links.get_mut(&outer.socket) else { return };
        // The next link may already have validated flows.
        if link.proven_link.as_ref().is_none_or(|proven| proven.outer() == outer) {
            link.full = false;
            link.proven.clear();
            link.proven_link = None;
        }
    }

    /// Records why a link was not established.
    pub(super) fn record_failure(&mut self, ends: FlowEnds, why: String) {
        let Routing { routes, failures, .. } = self;
        failures.retain(|ends, _| routes.is_tracked(ends));
        failures.insert(ends, why);
    }

    /// Discards a failure once a link is established.
    pub(super) fn forget_failure(&mut self, ends: &FlowEnds) {
        self.failures.remove(ends);
    }

    /// Returns why the last link attempt between these addresses failed, if it did.
    pub(super) fn failure(&self, ends: &FlowEnds) -> Option<&str> {
        self.failures.get(ends).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    /// Accepts a link from `remote` and returns it with its other end.
    fn accept(links: &Links, remote: [u8; 4]) -> (Arc<Link>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let (local, remote) = (IpAddr::from([192, 0, 2, 1]), SocketAddr::from((remote, 1_000)));
        (links.insert(LinkStream::Unix(near), local, remote, 443, false).unwrap(), far)
    }

    #[tokio::test]
    async fn a_link_is_evictable_only_without_a_validated_flow() {
        let links = Links::default();
        let (used, _used_end) = accept(&links, [198, 51, 100, 1]);
        links.mark_proven(&used);
        let of_one = PENDING_LIMITS.per_source;
        let first = (0..of_one).map(|_| accept(&links, [198, 51, 100, 1])).collect::<Vec<_>>();
        assert!(first.iter().all(|(link, _)| !link.is_broken()) && !used.is_broken());
        // A second shard's flow is validated and the first shard's flow ends: the link is still in use.
        links.mark_proven(&used);
        links.remove_validated_flow(&used);
        assert_eq!(lock(&links.table).pending.len(), of_one);
        links.remove_validated_flow(&used);
        assert!(first[0].0.is_broken() && !used.is_broken(), "the newest unvalidated link is kept");
        let next = (0..of_one).map(|_| accept(&links, [198, 51, 100, 1])).collect::<Vec<_>>();
        assert!(used.is_broken());
        for (link, _) in first.iter().chain(&next) {
            links.remove(link);
        }
        links.remove(&used);
        let table = lock(&links.table);
        assert!(table.pending.is_empty() && table.slots.iter().all(Option::is_none));
    }

    #[tokio::test]
    async fn a_flood_from_one_network_does_not_evict_the_links_of_others() {
        let links = Links::default();
        let (honest, _honest_end) = accept(&links, [203, 0, 113, 1]);
        let mut kept = Vec::new();
        for network in 1..=8 {
            for _ in 0..PENDING_LIMITS.per_source {
                kept.push(accept(&links, [198, 51, 100, network]));
            }
        }
        assert!(!honest.is_broken());
        assert_eq!(lock(&links.table).pending.len(), PENDING_LIMITS.total);
        assert_eq!(links.counters.refused.load(Ordering::Relaxed), 0);
    }
}
