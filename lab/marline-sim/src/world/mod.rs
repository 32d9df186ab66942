//! World: hosts, links, and the event loop over them.

mod forwarding;
#[cfg(test)]
mod tests;
mod topology;

use core::fmt;
use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};

use marline_link::{Link, LinkConfig};
use marline_time::{Duration, Instant, SeedTree};

use crate::event_queue::EventQueue;
use crate::node::Node;
use crate::packet::{Observer, Packet, Pool};
use crate::{Digest, Host};
use topology::Topology;

/// Identifies a host of a world.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Identifies one direction of a link of a world.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Target of an event.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventTarget {
    Node(u32),
    Link(u32),
    Action(u32),
}

/// Time of an object's next event, and of its earliest queue entry.
#[derive(Debug)]
struct Slot<T> {
    inner: T,
    scheduled: Instant,
}

impl<T> Slot<T> {
    const fn new(inner: T) -> Self {
        Slot { inner, scheduled: Instant::FAR_FUTURE }
    }
}

/// Counters of a world.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WorldStats {
    /// Packets sent by hosts.
    pub sent: u64,
    /// Packets delivered to hosts.
    pub delivered: u64,
    /// Packets from a removed address, or between addresses without a link.
    pub unroutable: u64,
    /// Packets to an address that was removed before they arrived.
    pub undeliverable: u64,
    /// Events that were handled.
    pub events: u64,
}

/// Packets waiting for a stopped host, with their links.
type WaitingPackets = Vec<(LinkId, Box<Packet>)>;

type Action<N> = Box<dyn FnOnce(&mut World<N>)>;

/// A network in virtual time.
pub struct World<N = Host> {
    now: Instant,
    seeds: SeedTree,
    turns: EventQueue<EventTarget>,
    nodes: Vec<Slot<N>>,
    links: Vec<Slot<Link<Box<Packet>>>>,
    topology: Topology,
    actions: Vec<Option<Action<N>>>,
    pool: Pool,
    #[expect(clippy::vec_box, reason = "packets move through queues, where a pointer is cheaper")]
    outgoing: Vec<Box<Packet>>,
    observers: Vec<Box<dyn Observer>>,
    /// Hosts of competing traffic, and the bytes that they have offered to each link.
    competing_hosts: BTreeSet<u32>,
    competing_bytes: BTreeMap<u32, u64>,
    /// Stopped hosts, and the packets that have arrived for them.
    stopped: BTreeMap<u32, WaitingPackets>,
    digest: Digest,
    stats: WorldStats,
    /// Number of events at the current instant, so that a host that never becomes idle fails instead of hanging.
    events_now: u64,
}

impl<N> fmt::Debug for World<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("nodes", &self.nodes.len())
            .field("links", &self.links.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl<N: Node> World<N> {
    /// Maximum number of events at one instant.
    const MAX_SIMULTANEOUS_EVENTS: u64 = 1_000_000;

    /// Creates an empty world. All its random streams are derived from `seeds`.
    #[must_use]
    pub fn new(seeds: SeedTree) -> Self {
        World {
            now: Instant::ZERO,
            seeds,
            turns: EventQueue::new(),
            nodes: Vec::new(),
            links: Vec::new(),
            topology: Topology::default(),
            actions: Vec::new(),
            pool: Pool::default(),
            outgoing: Vec::new(),
            observers: Vec::new(),
            competing_hosts: BTreeSet::new(),
            competing_bytes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            digest: Digest::default(),
            stats: WorldStats::default(),
            events_now: 0,
        }
    }

    // ---- construction

    /// Adds a host with these addresses.
    pub fn add_node(&mut self, node: N, addresses: &[IpAddr]) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Slot::new(node));
        for address in addresses {
            self.topology.set_owner(*address, Some(id));
        }
        id
    }

    /// Marks a host as a source of competing traffic, which is counted separately and wakes no radio.
    pub fn mark_competing_host(&mut self, node: NodeId) {
        self.competing_hosts.insert(node.0);
    }

    /// Adds one direction of a link. Its index determines its random streams.
    pub fn add_link(&mut self, config: LinkConfig) -> LinkId {
        let seeds = self.seeds.branch(&format!("link/{}", self.links.len()));
        self.add_seeded_link(config, &seeds)
    }

    /// Like [`add_link`](Self::add_link), with random streams from `seeds`, such as those of a live link or of a link
    /// in another world.
    pub fn add_seeded_link(&mut self, config: LinkConfig, seeds: &SeedTree) -> LinkId {
        let id = LinkId(self.links.len() as u32);
        self.links.push(Slot::new(Link::new(config, seeds, self.now)));
        id
    }

    /// Sends packets between these addresses over this link. A link may serve several routes, and the last route for a
    /// pair of addresses applies. Both directions share a radio, if they have one.
    pub fn route(&mut self, from: IpAddr, to: IpAddr, link: LinkId) {
        self.topology.set_route(from, to, link);
        if let Some(back) = self.topology.route(to, from) {
            self.share_radio(link, back);
        }
    }

    fn share_radio(&mut self, link: LinkId, with: LinkId) {
        let pair = [link.0 as usize, with.0 as usize];
        if let Ok([link, with]) = self.links.get_disjoint_mut(pair) {
            link.inner.share_radio(&with.inner);
        }
    }

    /// Adds both directions of a link between two addresses and returns them (there, back).
    pub fn connect(
        &mut self,
        a: IpAddr,
        b: IpAddr,
        there: LinkConfig,
        back: LinkConfig,
    ) -> (LinkId, LinkId) {
        let (there, back) = (self.add_link(there), self.add_link(back));
        self.route(a, b, there);
        self.route(b, a, back);
        (there, back)
    }

    /// Adds an observer of every packet.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Runs an action at a later time.
    pub fn run_at(&mut self, when: Instant, action: impl FnOnce(&mut Self) + 'static) {
        let number = self.actions.len() as u32;
        self.actions.push(Some(Box::new(action)));
        self.turns.push(when.max(self.now), EventTarget::Action(number));
    }

    // ---- execution

    /// Handles all events up to `until`, and advances the time to it.
    ///
    /// # Panics
    /// If a host never becomes idle at some instant.
    pub fn run_until(&mut self, until: Instant) {
        self.run_until_watched(until, |_, _| {});
    }

    /// Like [`run_until`](Self::run_until). Before each event and at the end, `watch` gets the world and the time until
    /// which it stays unchanged. The run is the same, bit for bit.
    ///
    /// # Panics
    /// If a host never becomes idle at some instant.
    pub fn run_until_watched(&mut self, until: Instant, mut watch: impl FnMut(&Self, Instant)) {
        self.wake_all();
        while let Some((at, turn)) = self.turns.pop_due(until) {
            watch(self, at);
            self.step(at, turn);
        }
        watch(self, until);
        self.now = self.now.max(until);
    }

    /// Runs until no events are left, at most until `limit`. Returns true if none are left.
    ///
    /// # Panics
    /// If a host never becomes idle at some instant.
    pub fn run_to_idle(&mut self, limit: Instant) -> bool {
        self.wake_all();
        while let Some((at, turn)) = self.turns.pop_due(limit) {
            self.step(at, turn);
        }
        self.turns.next_time().is_none()
    }

    /// Runs while `go_on` returns true, which is called before each event, at most until `limit`. Returns true if
    /// `go_on` ended the run.
    ///
    /// # Panics
    /// If a host never becomes idle at some instant.
    pub fn run_while(&mut self, limit: Instant, mut go_on: impl FnMut(&Self) -> bool) -> bool {
        self.wake_all();
        while go_on(self) {
            let Some((at, turn)) = self.turns.pop_due(limit) else { return false };
            self.step(at, turn);
        }
        true
    }

    fn step(&mut self, at: Instant, turn: EventTarget) {
        self.stats.events += 1;
        self.events_now = if at > self.now { 0 } else { self.events_now + 1 };
        assert!(
            self.events_now < Self::MAX_SIMULTANEOUS_EVENTS,
            "hosts never become idle at {at:?}: a million events at one instant, last {turn:?}"
        );
        self.now = self.now.max(at);
        match turn {
            EventTarget::Link(index) => self.run_link(index, at),
            EventTarget::Node(index) => self.run_node(index, at),
            EventTarget::Action(number) => {
                if let Some(action) = self.actions[number as usize].take() {
                    action(self);
                    self.wake_all();
                }
            }
        }
    }

    fn run_link(&mut self, index: u32, at: Instant) {
        let slot = &mut self.links[index as usize];
        if slot.scheduled != at {
            return;
        }
        slot.scheduled = Instant::FAR_FUTURE;
        while let Some(packet) = self.links[index as usize].inner.poll(self.now) {
            self.deliver(LinkId(index), packet);
        }
        self.schedule_link(index);
        self.send_answers(index);
    }

    fn run_node(&mut self, index: u32, at: Instant) {
        let slot = &mut self.nodes[index as usize];
        if slot.scheduled != at {
            return;
        }
        slot.scheduled = Instant::FAR_FUTURE;
        if self.stopped.contains_key(&index) {
            return;
        }
        if slot.inner.poll_timeout().is_some_and(|due| due <= self.now) {
            slot.inner.handle_timeout(self.now);
            self.flush(index);
        } else {
            self.schedule_node(index);
        }
    }

    fn schedule_link(&mut self, index: u32) {
        let slot = &mut self.links[index as usize];
        let Some(next) = slot.inner.next_event() else { return };
        let next = next.max(self.now);
        if next < slot.scheduled {
            slot.scheduled = next;
            self.turns.push(next, EventTarget::Link(index));
        }
    }

    fn schedule_node(&mut self, index: u32) {
        let slot = &mut self.nodes[index as usize];
        let Some(next) = slot.inner.poll_timeout() else { return };
        let next = next.max(self.now);
        if next < slot.scheduled {
            slot.scheduled = next;
            self.turns.push(next, EventTarget::Node(index));
        }
    }

    /// Checks all hosts after an external change, because any of them may have something to send.
    fn wake_all(&mut self) {
        for index in 0..self.nodes.len() as u32 {
            self.flush(index);
        }
        for index in 0..self.links.len() as u32 {
            self.schedule_link(index);
        }
    }

    // ---- changes

    /// Gives an address to a host (`up`) or removes it, and notifies the host. Packets from or to a removed address are
    /// lost.
    pub fn set_address(&mut self, node: NodeId, address: IpAddr, up: bool) {
        self.topology.set_owner(address, up.then_some(node));
        let now = self.now;
        self.nodes[node.0 as usize].inner.set_address(now, address, up);
    }

    /// Takes a link down or brings it up, without notifying any host.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) {
        self.links[link.0 as usize].inner.set_up(self.now, up);
        self.schedule_link(link.0);
    }

    /// Changes a link's settings.
    pub fn set_link(&mut self, link: LinkId, config: LinkConfig) {
        let slot = &mut self.links[link.0 as usize];
        let other_radio = slot.inner.config().radio != config.radio;
        slot.inner.set_config(self.now, config);
        if other_radio {
            let reverse_links: Vec<LinkId> = self.topology.reverse_links(link).collect();
            reverse_links.into_iter().for_each(|back| self.share_radio(link, back));
        }
        self.schedule_link(link.0);
    }

    /// Stops a host now and resumes it after `time`. Until then, its timers do not fire, it sends nothing, and
    /// arriving packets wait, up to the size of a socket buffer.
    pub fn stop_node(&mut self, node: NodeId, time: Duration)
    where
        N: 'static,
    {
        self.stopped.entry(node.0).or_default();
        self.run_at(self.now + time, move |world| {
            // The host reads everything that has arrived before it answers.
            for (link, packet) in world.stopped.remove(&node.0).unwrap_or_default() {
                world.deliver_to_host(link, packet);
            }
        });
    }

    // ---- state

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The seeds of this world.
    #[must_use]
    pub const fn seeds(&self) -> &SeedTree {
        &self.seeds
    }

    /// A host.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &N {
        &self.nodes[id.0 as usize].inner
    }

    /// A host, for commands. Its packets are sent with the next `run_*` call or at the end of the current action.
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id.0 as usize].inner
    }

    /// A link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link<Box<Packet>> {
        &self.links[id.0 as usize].inner
    }

    /// Bytes that competing traffic has offered to a link, including headers.
    #[must_use]
    pub fn cross_traffic_bytes(&self, link: LinkId) -> u64 {
        self.competing_bytes.get(&link.0).copied().unwrap_or(0)
    }

    /// Counters of the world.
    #[must_use]
    pub const fn stats(&self) -> &WorldStats {
        &self.stats
    }

    /// A hash over every delivered packet with its time and link, and over the applications' observations.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = self.digest;
        for slot in &self.nodes {
            digest.number(slot.inner.digest());
        }
        digest.value()
    }

    /// The first observer of this type.
    #[must_use]
    pub fn observer<O: 'static>(&self) -> Option<&O> {
        self.observers().next()
    }

    /// Every observer of this type, in the order in which they were added.
    pub fn observers<O: 'static>(&self) -> impl Iterator<Item = &O> {
        self.observers.iter().filter_map(|observer| observer.as_any().downcast_ref())
    }

    /// Returns the first error reported by an observer.
    ///
    /// # Errors
    /// The observer's error.
    pub fn verdict(&self) -> Result<(), String> {
        self.observers.iter().try_for_each(|observer| observer.verdict())
    }
}
