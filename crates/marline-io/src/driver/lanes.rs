//! Lanes of a shard: the datagram channels of sessions, each of which uses the subflows of one connection.
//!
//! The paths of a lane are the subflows of one connection. The carrier is always asked for a path's address, so that it
//! moves with its subflow. A lane causes work only when the application sends, a frame arrives or a timer fires.

use core::task::{Context, Waker};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use marline_core::{
    ConnectionId, MemoryAccount, MemoryCharge, MemoryKind, PathAddresses, Shard, SubflowLocation,
};
use marline_datagram::{Event, Lane, PathId, Transmit};
use marline_time::{Duration, Instant, Rng};

use super::lane_traffic::{Arrivals, LaneCounters, LanePath, LaneTraffic, NamedPath, PathNumbers};
use super::streams::{register, wake};
use crate::carrier::IdHasher;
use crate::links::{DataDirection, LaneBytes};
use crate::random::SecretRng;

/// Maximum number of lanes of a shard; each belongs to an authenticated peer.
const MAX_LANES: usize = 16_384;
/// Maximum number of paths numbered by the peer whose subflow is not yet established.
const MAX_NAMED_PATHS: usize = 32;
/// Upper bound (exclusive) on path numbers.
const PATH_NUMBERS: u8 = 32;
/// Interval at which an active lane checks the connection's subflows and their cost.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of these checks while the subflow of a numbered path is missing.
const MISSING_PATH_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time to wait for the subflow of a numbered path.
const PATH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum timer delay: a bug in one lane must not stop the others.
const MIN_TIMER_DELAY: Duration = Duration::from_micros(100);

/// Granularity of the memory charge, in bytes: an active lane rarely needs to update its account.
const CHARGE_STEP_BYTES: u64 = 16 << 10;
/// Minimum queue limit, in bytes, even if little memory is free.
const MIN_QUEUE_LIMIT_BYTES: u64 = 16 << 10;

type LaneMap<T> = HashMap<u64, T, BuildHasherDefault<IdHasher>>;

#[derive(Debug)]
struct Entry {
    lane: Lane,
    connection: ConnectionId,
    /// The peer's id of the lane.
    peer: u64,
    numbers: PathNumbers,
    paths: Vec<LanePath>,
    /// Addresses of the subflows that are paths, by our flow ids.
    addresses: Vec<(u64, PathAddresses)>,
    /// Paths that were silent when the lane was last served.
    silent: Vec<(PathId, PathAddresses)>,
    /// Bytes carried since the last check, if carriers are compared.
    carried: Option<LaneTraffic>,
    /// Paths numbered by the peer that are not yet established, with the time until which they are awaited.
    awaited_paths: Vec<(LanePath, Instant)>,
    /// Paths that this side has numbered but not yet announced.
    named: Vec<NamedPath>,
    reader: Option<Waker>,
    /// Memory charge of the lane.
    charge: Option<MemoryCharge>,
    deadline: Option<Instant>,
    /// Time of the next subflow check.
    check_at: Instant,
    was_checked: bool,
    is_ready: bool,
}

/// Lanes by our ids.
pub(super) struct Lanes {
    shard: Shard,
    rng: SecretRng,
    entries: LaneMap<Entry>,
    /// Our ids by the peers' ids, which ICMP errors quote.
    by_peer: LaneMap<u64>,
    /// Lane ids by our ids of the subflows that are paths.
    by_flow: LaneMap<u64>,
    /// Lanes whose paths this side numbers.
    locally_numbered: Vec<u64>,
    /// Lanes with pending work.
    ready: VecDeque<u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    /// Lanes with an unreachable path between these addresses.
    silent: BTreeSet<(PathAddresses, u64)>,
    /// Address pairs on which an unreachable path of a lane received an answer.
    answered: BTreeSet<PathAddresses>,
    /// The carrier's change counter at the last check.
    seen_changes: u64,
    /// Buffer for the frame being decrypted.
    arrived: Vec<u8>,
    counters: LaneCounters,
}

/// Creation and removal.
impl Lanes {
    pub(super) fn new(shard: Shard, rng: SecretRng) -> Self {
        Lanes {
            shard,
            rng,
            entries: LaneMap::default(),
            by_peer: LaneMap::default(),
            by_flow: LaneMap::default(),
            locally_numbered: Vec::new(),
            ready: VecDeque::new(),
            deadlines: BTreeSet::new(),
            silent: BTreeSet::new(),
            answered: BTreeSet::new(),
            seen_changes: 0,
            arrived: Vec::new(),
            counters: LaneCounters::default(),
        }
    }

    /// Generates the id of a future lane; its top byte contains the shard.
    pub(super) fn draw_id(&mut self) -> u64 {
        loop {
            let id = self.shard.with_generation(self.rng.next_u64());
            let ours = Shard::of_flow(id, self.shard.count) == self.shard.index;
            if id != 0 && ours && !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns true if a lane with these ids, ours and the peer's, may be added.
    pub(super) fn admits(&self, id: u64, peer: u64) -> bool {
        let known = self.entries.contains_key(&id) || self.by_peer.contains_key(&peer);
        !known && id != 0 && peer != 0 && self.entries.len() < MAX_LANES
    }

    /// Adds a lane that [`admits`](Self::admits) accepts.
    pub(super) fn insert(
        &mut self,
        id: u64,
        peer: u64,
        lane: Lane,
        connection: ConnectionId,
        numbers: PathNumbers,
    ) {
        self.by_peer.insert(peer, id);
        if numbers == PathNumbers::Local {
            self.locally_numbered.push(id);
        }
        let entry = Entry {
            lane,
            connection,
            peer,
            numbers,
            paths: Vec::new(),
            addresses: Vec::new(),
            silent: Vec::new(),
            carried: None,
            awaited_paths: Vec::new(),
            named: Vec::new(),
            reader: None,
            charge: None,
            deadline: None,
            check_at: Instant::ZERO,
            was_checked: false,
            is_ready: false,
        };
        self.entries.insert(id, entry);
        self.touch(id);
    }

    pub(super) fn remove(&mut self, id: u64) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.by_peer.remove(&entry.peer);
        self.locally_numbered.retain(|ours| *ours != id);
        for path in &entry.paths {
            self.by_flow.remove(&path.flow);
        }
        for (_, addresses) in &entry.silent {
            self.silent.remove(&(*addresses, id));
        }
        if let Some(at) = entry.deadline {
            self.deadlines.remove(&(at, id));
        }
        self.counters.stats += entry.lane.stats();
        wake(entry.reader);
    }

    /// Wakes all readers when the shard stops.
    pub(super) fn wake_all(&mut self) {
        #[expect(clippy::iter_over_hash_type, reason = "wakes all; the order does not matter")]
        for entry in self.entries.values_mut() {
            wake(entry.reader.take());
        }
    }

    pub(super) fn counters(&self) -> LaneCounters {
        let mut counters = LaneCounters { lanes: self.entries.len() as u64, ..self.counters };
        #[expect(clippy::iter_over_hash_type, reason = "the order does not affect a sum")]
        for entry in self.entries.values() {
            counters.stats += entry.lane.stats();
        }
        counters
    }
}

/// Paths.
impl Lanes {
    /// Assigns the peer's path number to the subflow with our id `path.flow`. The path is used once the subflow is
    /// established.
    pub(super) fn assign_path_number(&mut self, id: u64, path: LanePath, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if path.id.0 < PATH_NUMBERS && entry.awaited_paths.len() < MAX_NAMED_PATHS {
            entry.awaited_paths.retain(|(other, _)| other.id != path.id);
            entry.awaited_paths.push((path, now + PATH_TIMEOUT));
        }
        entry.check_at = Instant::ZERO;
        self.touch(id);
    }

    /// Handles the end of a subflow.
    pub(super) fn on_flow_ended(&mut self, flow: u64) {
        if let Some(id) = self.by_flow.remove(&flow) {
            self.schedule_check(id);
        }
    }

    /// Checks the carrier's change counter: after a change, lanes whose paths this side numbers check their subflows
    /// immediately.
    pub(super) fn on_changes(&mut self, changes: u64) {
        if core::mem::replace(&mut self.seen_changes, changes) == changes {
            return;
        }
        for at in 0..self.locally_numbered.len() {
            self.schedule_check(self.locally_numbered[at]);
        }
    }

    fn schedule_check(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.check_at = Instant::ZERO;
            self.touch(id);
        }
    }

    /// Returns the connection whose subflows the lane has to check now.
    pub(super) fn connection_to_check(&self, id: u64, now: Instant) -> Option<ConnectionId> {
        let entry = self.entries.get(&id)?;
        (entry.check_at <= now).then_some(entry.connection)
    }

    /// Updates the paths from these subflows. Either the peer or this side numbers them. Of several subflows that
    /// `place` maps to the same addresses, this side uses only one.
    pub(super) fn look<P: PartialEq>(
        &mut self,
        id: u64,
        now: Instant,
        subflows: &[SubflowLocation],
        place: impl Fn(u64) -> Option<P>,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let known = |flow: u64| subflows.iter().find(|subflow| subflow.local_flow == flow);
        for path in entry.paths.extract_if(.., |path| known(path.flow).is_none()) {
            entry.lane.remove_path(path.id, now);
            self.by_flow.remove(&path.flow);
        }
        if entry.numbers == PathNumbers::Peers
            && !core::mem::replace(&mut entry.was_checked, true)
            && let Some(first) = subflows.first()
        {
            // The first datagram must not wait until the peer has numbered a path.
            let first = LanePath { id: PathId(0), flow: first.local_flow };
            entry.awaited_paths.push((first, now + PATH_TIMEOUT));
        }
        let ready = |flow: u64| known(flow).is_some() && place(flow).is_some();
        let new: Vec<LanePath> = match entry.numbers {
            PathNumbers::Peers => {
                entry.awaited_paths.retain(|(_, until)| now < *until);
                let come = entry.awaited_paths.extract_if(.., |(path, _)| ready(path.flow));
                come.map(|(path, _)| path).collect()
            }
            PathNumbers::Local => {
                let ready = subflows.iter().map(|s| s.local_flow).filter(|flow| ready(*flow));
                entry.number(ready, &place)
            }
        };
        for path in new {
            if entry.add(path, known(path.flow), now) {
                self.by_flow.insert(path.flow, id);
            }
        }
        entry.addresses.clear();
        for path in &entry.paths {
            if let Some(subflow) = known(path.flow) {
                entry.addresses.push((path.flow, subflow.path.addresses()));
                entry.lane.set_path_cost(path.id, subflow.backup, subflow.cost);
                entry.lane.set_path_fading(path.id, subflow.cost.fading);
            }
        }
        let pause =
            if entry.awaited_paths.is_empty() { CHECK_INTERVAL } else { MISSING_PATH_INTERVAL };
        entry.check_at = now + pause;
    }

    /// Returns the paths of a lane.
    pub(super) fn paths(&self, id: u64) -> &[LanePath] {
        self.entries.get(&id).map_or(&[], |entry| &entry.paths)
    }

    /// Finds a lane by the peer's id.
    pub(super) fn find_by_peer(&self, peer: u64) -> Option<u64> {
        self.by_peer.get(&peer).copied()
    }
}

impl Entry {
    /// Assigns numbers to new paths. Two subflows between the same addresses could not be distinguished, so only one of
    /// them becomes a path.
    fn number<P: PartialEq>(
        &self,
        subflows: impl Iterator<Item = u64>,
        place: impl Fn(u64) -> Option<P>,
    ) -> Vec<LanePath> {
        let mut flows: Vec<u64> = self.paths.iter().map(|path| path.flow).collect();
        for flow in subflows {
            if flows.iter().all(|other| place(*other) != place(flow)) {
                flows.push(flow);
            }
        }
        let free = (0..PATH_NUMBERS).map(PathId);
        let free = free.filter(|id| self.paths.iter().all(|path| path.id != *id));
        let new = flows.into_iter().skip(self.paths.len());
        free.zip(new).map(|(id, flow)| LanePath { id, flow }).collect()
    }

    /// Makes a subflow a path, replacing any path with this number.
    fn add(&mut self, path: LanePath, subflow: Option<&SubflowLocation>, now: Instant) -> bool {
        self.paths.retain(|other| other.id != path.id && other.flow != path.flow);
        self.lane.remove_path(path.id, now);
        if !self.lane.add_path(path.id, now) {
            return false;
        }
        self.paths.push(path);
        if let Some(subflow) = subflow.filter(|_| self.numbers == PathNumbers::Local) {
            self.named.push(NamedPath { path: path.id, peer_flow: subflow.peer_flow });
        }
        true
    }

    fn has_updates(&self) -> bool {
        self.lane.has_events() || !self.named.is_empty()
    }
}

/// Service of lanes.
impl Lanes {
    /// Queues a lane for service.
    pub(super) fn touch(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id)
            && !core::mem::replace(&mut entry.is_ready, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Takes the next lane with pending work.
    pub(super) fn next_ready(&mut self) -> Option<u64> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.is_ready = false;
                return Some(id);
            }
        }
    }

    /// Builds a lane's next frame and returns its path.
    pub(super) fn transmit(
        &mut self,
        id: u64,
        now: Instant,
        frame: &mut Vec<u8>,
    ) -> Option<LanePath> {
        let entry = self.entries.get_mut(&id)?;
        let Transmit { path, .. } = entry.lane.poll_transmit(now, frame)?;
        if let Some(carried) = &mut entry.carried {
            carried.on_sent(path, frame.len());
        }
        entry.paths.iter().find(|known| known.id == path).copied()
    }

    /// Applies a command to a lane and queues the lane for service. Returns `None` if there is no such lane.
    pub(super) fn with<R>(&mut self, id: u64, command: impl FnOnce(&mut Lane) -> R) -> Option<R> {
        let result = command(&mut self.entries.get_mut(&id)?.lane);
        self.touch(id);
        Some(result)
    }

    /// Finishes the service of a lane: sets its timer and wakes its reader.
    pub(super) fn settle(&mut self, id: u64, now: Instant) {
        self.update_silent_paths(id);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.update_charge();
        let look = (!entry.awaited_paths.is_empty()).then_some(entry.check_at);
        let next = [entry.lane.poll_timeout(), look].into_iter().flatten().min();
        let next = next.map(|at| at.max(now + MIN_TIMER_DELAY));
        if entry.has_updates() {
            wake(entry.reader.take());
        }
        if next == entry.deadline {
            return;
        }
        if let Some(at) = core::mem::replace(&mut entry.deadline, next) {
            self.deadlines.remove(&(at, id));
        }
        if let Some(at) = next {
            self.deadlines.insert((at, id));
        }
    }

    /// Handles a frame for a lane. `from` identifies the path by its flow id.
    pub(super) fn arrive(
        &mut self,
        id: u64,
        now: Instant,
        frame: &[u8],
        from: impl Fn(u64) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            self.counters.unknown += 1;
            return;
        };
        let Some(path) = entry.paths.iter().find(|path| from(path.flow)) else {
            self.counters.frames_unvalidated += 1;
            return;
        };
        self.arrived.clear();
        self.arrived.extend_from_slice(frame);
        if let Some(carried) = &mut entry.carried {
            carried.on_arrived(path.id, frame.len());
        }
        entry.lane.handle(now, path.id, &mut self.arrived);
        self.touch(id);
    }

    /// Counts a frame whose path has no address.
    pub(super) fn on_unroutable(&mut self) {
        self.counters.unroutable += 1;
    }

    /// Takes the data received on a lane. If there is none, the next data wakes `cx`. Returns the subflows of paths
    /// that became unreachable, or `None` if there is no such lane.
    pub(super) fn take(
        &mut self,
        id: u64,
        cx: &Context<'_>,
        arrivals: &mut Arrivals,
    ) -> Option<Vec<u64>> {
        arrivals.clear();
        let mut silent = Vec::new();
        let entry = self.entries.get_mut(&id)?;
        arrivals.add_paths(&mut entry.named);
        while !arrivals.is_full() {
            match entry.lane.poll_event() {
                Some(Event::Datagram { flow, payload }) => {
                    arrivals.push(flow, payload);
                }
                Some(Event::PathUnreachable(path)) => {
                    arrivals.set_silent();
                    silent.extend(entry.paths.iter().find(|p| p.id == path).map(|p| p.flow));
                }
                Some(Event::KeyLimitNear | Event::Forged) => arrivals.set_spent(),
                Some(Event::PathReachable(_) | Event::PathMtu { .. }) => {}
                None => break,
            }
        }
        if arrivals.is_empty() {
            register(&mut entry.reader, cx);
        }
        Some(silent)
    }
}

/// Memory, comparison of carriers, silent paths, and timers.
impl Lanes {
    /// Charges the memory of a lane to this account, which also limits it.
    pub(super) fn charge_to(&mut self, id: u64, account: &MemoryAccount) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let charged = entry.charge.as_ref().map(|charge| charge.account());
        if charged.is_none_or(|charged| !charged.is_same(account)) {
            entry.charge = Some(account.charge(MemoryKind::Datagram, 0));
            entry.update_charge();
        }
        let most = account.allowance().max(MIN_QUEUE_LIMIT_BYTES);
        entry.lane.limit_memory(usize::try_from(most).unwrap_or(usize::MAX));
    }

    /// Takes the bytes that a lane carried since the last check, by our ids of its subflows. Returns an empty list if
    /// that check was recent.
    pub(super) fn take_carried(
        &mut self,
        id: u64,
        now: Instant,
    ) -> Vec<(u64, DataDirection, LaneBytes)> {
        let Some(entry) = self.entries.get_mut(&id) else { return Vec::new() };
        if entry.carried.as_ref().is_some_and(|carried| carried.is_recent(now)) {
            return Vec::new();
        }
        let next = LaneTraffic::new(now, &entry.lane);
        let Some(last) = entry.carried.replace(next) else { return Vec::new() };
        let flow = |id: PathId| Some(entry.paths.iter().find(|path| path.id == id)?.flow);
        let carried = last.carried_until(now, &entry.lane).into_iter();
        carried.filter_map(|(id, heading, bytes)| Some((flow(id)?, heading, bytes))).collect()
    }

    /// Marks the silent paths of a lane that connections of the shard already probe.
    pub(super) fn record_probed(&mut self, id: u64, is_probed: impl Fn(PathAddresses) -> bool) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        for (path, addresses) in &entry.silent {
            entry.lane.set_path_probed(*path, is_probed(*addresses));
        }
    }

    /// Handles an answer between these addresses: lanes with a silent path there probe immediately.
    pub(super) fn on_path_answer(&mut self, addresses: PathAddresses) {
        let waiting = self.silent.range((addresses, 0)..=(addresses, u64::MAX));
        let waiting: Vec<u64> = waiting.map(|(_, id)| *id).collect();
        for id in waiting {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            for (path, _) in entry.silent.iter().filter(|(_, there)| *there == addresses) {
                entry.lane.on_path_answer(*path);
            }
            self.touch(id);
        }
    }

    /// Takes the addresses of silent paths that have been answered since the last call.
    pub(super) fn take_answered(&mut self) -> BTreeSet<PathAddresses> {
        core::mem::take(&mut self.answered)
    }

    /// Updates the set of silent paths after a lane is served.
    fn update_silent_paths(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let silent = entry.current_silent_paths();
        if silent != entry.silent {
            let before = core::mem::replace(&mut entry.silent, silent);
            let known = |path: &PathId| entry.paths.iter().any(|known| known.id == *path);
            for (path, addresses) in &before {
                self.silent.remove(&(*addresses, id));
                let is_silent = entry.silent.iter().any(|(silent, _)| silent == path);
                if !is_silent && known(path) {
                    self.answered.insert(*addresses);
                }
            }
            self.silent.extend(entry.silent.iter().map(|(_, addresses)| (*addresses, id)));
        }
    }

    /// Records that the process did not run for some time.
    pub(super) fn record_pause(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.lane.record_pause());
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn on_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.deadline = None;
                entry.lane.handle_timeout(now);
                self.touch(id);
            }
        }
    }
}

impl Entry {
    /// Updates the memory charge to what the lane holds.
    fn update_charge(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.resize_in_steps(self.lane.held_bytes() as u64, CHARGE_STEP_BYTES);
        }
    }

    /// Returns the silent paths of the lane, with their addresses.
    fn current_silent_paths(&self) -> Vec<(PathId, PathAddresses)> {
        let with_addresses = |id: PathId| {
            let path = self.paths.iter().find(|path| path.id == id)?;
            let known = self.addresses.iter().find(|(flow, _)| *flow == path.flow)?;
            Some((id, known.1))
        };
        self.lane.unreachable_paths().filter_map(with_addresses).collect()
    }
}

#[cfg(test)]
mod tests;
