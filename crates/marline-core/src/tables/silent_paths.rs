//! Silent paths of an endpoint: pairs of addresses on which subflows wait for an answer, the schedule of their
//! probes, and the connections to wake after an answer.
//!
//! *Problem.* A subflow without an answer retransmits after a timeout that doubles each time. When its path works
//! again after half a minute, it detects this only half a minute later, and each connection does so separately.
//!
//! *How.* Connections register the pairs of addresses on which they have a silent subflow. Each pair is probed at a
//! fixed rate, for all connections together: they take turns. The first answer wakes the others, a few at a time. If
//! no connection has data to send or to receive, the rate is low. The cost of probing therefore depends on the number
//! of paths instead of connections, and the number of probes per second is also limited.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use marline_time::{Duration, Instant};

use crate::{ConnectionId, FourTuple, PathAddresses};

/// Interval of a client's probes on a path in use. With empty segments of 81 bytes, both sides send 193 B/s, which
/// leaves room for the probes of lanes, including those of another shard.
const CLIENT_INTERVAL: Duration = Duration::from_millis(600);
/// Interval of a server's probes: longer, because the client also probes.
const SERVER_INTERVAL: Duration = Duration::from_millis(1_400);
/// Minimum of the server's interval per shard, because every shard probes for its own connections.
const SHARD_INTERVAL: Duration = Duration::from_millis(650);
/// Interval on a path that has been silent for [`LONG_SILENCE`].
const LONG_SILENCE_INTERVAL: Duration = Duration::from_secs(5);
const LONG_SILENCE: Duration = Duration::from_secs(300);
/// Interval while no connection that waits for the path is in use.
const IDLE_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between any two probes of the endpoint: if a server's own network fails, all its clients are silent.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Number of connections woken together.
const WAKE_BATCH: u32 = 16;
/// Time from one batch of woken connections to the next.
const WAKE_INTERVAL: Duration = Duration::from_millis(5);
/// Limit on silent paths. Connections on further paths use their retransmission timers.
const MAX_PATHS: usize = 4_096;

/// Address pair that sorts before all others.
const FIRST_PATH: PathAddresses = PathAddresses {
    local: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    remote: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
};

/// A due action.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum DueAction {
    /// One of the connections that wait for this path must probe it.
    Probe(PathAddresses),
    /// The path answered, so this connection must retry its pending transmissions there.
    Wake(PathAddresses, ConnectionId),
}

/// Sender of a probe.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prober {
    pub(crate) connection: ConnectionId,
    pub(crate) is_client: bool,
    /// There is data to send, or data was transferred recently.
    pub(crate) in_use: bool,
}

/// One silent path.
#[derive(Debug)]
struct SilentPath {
    since: Instant,
    /// Connections that wait for the path.
    members: BTreeSet<ConnectionId>,
    /// Member that probed last.
    last_prober: Option<ConnectionId>,
    probed_at: Instant,
    probe_at: Instant,
    /// True if no member was in use at the last check.
    is_idle: bool,
}

/// Silent paths of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct SilentPaths {
    /// Number of shards whose connections may wait for a path; 0 counts as 1.
    shards: u32,
    paths: BTreeMap<PathAddresses, SilentPath>,
    schedule: BTreeSet<(Instant, PathAddresses)>,
    /// Members of all paths, by connection.
    waits: BTreeSet<(ConnectionId, PathAddresses)>,
    /// Number of paths that are probed slowly.
    idle_paths: usize,
    /// Earliest time of the next probe.
    gap_ends: Instant,
    woken: VecDeque<(PathAddresses, ConnectionId)>,
    wake_at: Instant,
    woken_now: u32,
    /// Paths that answered since the driver's last call.
    answered: BTreeSet<PathAddresses>,
}

impl SilentPaths {
    /// Silent paths of one of `shards` shards.
    pub(crate) fn of_shard(shards: u8) -> Self {
        SilentPaths { shards: shards.into(), ..SilentPaths::default() }
    }

    /// Registers a connection with a silent subflow on this path. Returns true if the path is probed.
    pub(crate) fn on_silent(&mut self, now: Instant, path: &FourTuple, id: ConnectionId) -> bool {
        let addresses = path.addresses();
        if self.join_path_waiters(path, id) {
            return true;
        }
        if self.paths.len() >= MAX_PATHS {
            return false;
        }
        let probe_at = now + CLIENT_INTERVAL;
        let new = SilentPath {
            since: now,
            members: BTreeSet::from([id]),
            last_prober: None,
            probed_at: now,
            probe_at,
            is_idle: false,
        };
        self.paths.insert(addresses, new);
        self.waits.insert((id, addresses));
        self.schedule.insert((probe_at, addresses));
        true
    }

    /// True if this path is probed as often as a path in use.
    pub(crate) fn is_probed(&self, addresses: PathAddresses) -> bool {
        self.paths.get(&addresses).is_some_and(|known| !known.is_idle)
    }

    /// Registers a connection for this path if others wait for it. Returns true if they do.
    pub(crate) fn join_path_waiters(&mut self, path: &FourTuple, id: ConnectionId) -> bool {
        let addresses = path.addresses();
        let Some(known) = self.paths.get_mut(&addresses) else { return false };
        known.members.insert(id);
        self.waits.insert((id, addresses));
        true
    }

    /// Handles an answer on this path.
    pub(crate) fn on_answer(&mut self, now: Instant, addresses: PathAddresses) {
        let Some(known) = self.remove(addresses) else { return };
        if self.woken.is_empty() {
            self.wake_at = self.wake_at.max(now);
        }
        self.woken.extend(known.members.into_iter().map(|id| (addresses, id)));
        if self.answered.len() < MAX_PATHS {
            self.answered.insert(addresses);
        }
    }

    fn remove(&mut self, addresses: PathAddresses) -> Option<SilentPath> {
        let known = self.paths.remove(&addresses)?;
        self.schedule.remove(&(known.probe_at, addresses));
        self.idle_paths -= usize::from(known.is_idle);
        for id in &known.members {
            self.waits.remove(&(*id, addresses));
        }
        Some(known)
    }

    /// Paths that answered since the last call.
    pub(crate) fn take_answered(&mut self) -> BTreeSet<PathAddresses> {
        core::mem::take(&mut self.answered)
    }

    /// Time of the next due action.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let probe = self.schedule.first().map(|(at, _)| (*at).max(self.gap_ends));
        let wake = (!self.woken.is_empty()).then_some(self.wake_at);
        [probe, wake].into_iter().flatten().min()
    }

    /// Next due action. A probe must be followed by [`on_probed`](Self::on_probed).
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<DueAction> {
        if self.wake_at <= now
            && let Some((path, id)) = self.woken.pop_front()
        {
            self.woken_now += 1;
            if self.woken_now >= WAKE_BATCH {
                (self.woken_now, self.wake_at) = (0, now + WAKE_INTERVAL);
            }
            return Some(DueAction::Wake(path, id));
        }
        self.woken_now = 0;
        let due = self.schedule.first().filter(|(at, _)| (*at).max(self.gap_ends) <= now);
        due.map(|(_, path)| DueAction::Probe(*path))
    }

    /// Connections that wait for the path, in the order in which they probe it.
    pub(crate) fn members(&self, path: PathAddresses) -> Vec<ConnectionId> {
        let Some(known) = self.paths.get(&path) else { return Vec::new() };
        let members: Vec<_> = known.members.iter().copied().collect();
        let last = known.last_prober;
        let next = members.partition_point(|id| last.is_some_and(|last| *id <= last));
        let (before, after) = members.split_at(next);
        [after, before].concat()
    }

    /// Removes a connection from the path.
    pub(crate) fn remove_connection(&mut self, path: PathAddresses, id: ConnectionId) {
        if let Some(known) = self.paths.get_mut(&path) {
            known.members.remove(&id);
            self.waits.remove(&(id, path));
        }
    }

    /// Records a probe. `None` means that no probe was sent, because no waiting connection is in use and it is too
    /// early.
    pub(crate) fn on_probed(&mut self, now: Instant, path: PathAddresses, prober: Option<Prober>) {
        let Some(known) = self.paths.get_mut(&path) else { return };
        if known.members.is_empty() {
            self.remove(path);
            return;
        }
        self.schedule.remove(&(known.probe_at, path));
        if let Some(prober) = prober {
            known.last_prober = Some(prober.connection);
            known.probed_at = now;
            self.gap_ends = now + MIN_PROBE_INTERVAL;
        }
        let pause = match prober {
            Some(Prober { in_use: true, .. }) if now.since(known.since) >= LONG_SILENCE => {
                LONG_SILENCE_INTERVAL
            }
            Some(Prober { in_use: true, is_client: true, .. }) => CLIENT_INTERVAL,
            Some(Prober { in_use: true, .. }) => SERVER_INTERVAL.max(SHARD_INTERVAL * self.shards),
            _ => IDLE_INTERVAL,
        };
        let is_idle = pause == IDLE_INTERVAL;
        self.idle_paths -= usize::from(core::mem::replace(&mut known.is_idle, is_idle));
        self.idle_paths += usize::from(is_idle);
        known.probe_at = (known.probed_at + pause).max(now + CLIENT_INTERVAL);
        self.schedule.insert((known.probe_at, path));
    }

    /// True if a probe of a path that is not in use is due.
    pub(crate) fn is_idle_probe_due(&self, now: Instant, path: PathAddresses) -> bool {
        self.paths.get(&path).is_some_and(|known| now.since(known.probed_at) >= IDLE_INTERVAL)
    }

    /// True if there are paths that are probed slowly.
    pub(crate) const fn has_idle_paths(&self) -> bool {
        self.idle_paths > 0
    }

    /// Handles a transmission of a connection: the paths that it waits for may be in use again.
    pub(crate) fn on_sent(&mut self, now: Instant, id: ConnectionId) {
        let waits = self.waits.range((id, FIRST_PATH)..).take_while(|(of, _)| *of == id);
        for (_, addresses) in waits {
            let Some(known) = self.paths.get_mut(addresses).filter(|known| known.is_idle) else {
                continue;
            };
            let at = now.max(known.probed_at + CLIENT_INTERVAL);
            if at < known.probe_at {
                self.schedule.remove(&(known.probe_at, *addresses));
                known.probe_at = at;
                self.schedule.insert((at, *addresses));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    const START: Instant = Instant::from_secs(1);
    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn path(number: u8) -> FourTuple {
        FourTuple {
            local: SocketAddr::from(([10, 0, 0, number], 40_000)),
            remote: SocketAddr::from(([192, 0, 2, 1], 443)),
        }
    }

    fn prober(id: u64, in_use: bool) -> Option<Prober> {
        Some(Prober { connection: ConnectionId(id), is_client: true, in_use })
    }

    /// Lets the first member probe whenever a probe is due, until `until`. Returns the connections that probed.
    fn probes(silent: &mut SilentPaths, until: Instant, in_use: bool) -> Vec<ConnectionId> {
        let mut probers = Vec::new();
        while let Some(now) = silent.next_timeout().filter(|at| *at <= until) {
            let Some(DueAction::Probe(path)) = silent.take_due(now) else { panic!("{silent:?}") };
            let first = silent.members(path)[0];
            probers.push(first);
            silent.on_probed(now, path, prober(first.0, in_use));
        }
        probers
    }

    #[test]
    fn a_thousand_connections_probe_in_turn_at_the_rate_of_one() {
        let mut silent = SilentPaths::default();
        for id in 0..1_000 {
            assert!(silent.on_silent(START, &path(1), ConnectionId(id)));
        }
        let probers = probes(&mut silent, START + Duration::from_secs(60), true);
        assert_eq!(probers.len(), 100);
        assert_eq!(probers[..3], [0, 1, 2].map(ConnectionId));
    }

    #[test]
    fn the_shards_of_a_server_together_probe_hardly_more_often_than_one() {
        let per_minute = |shards: u8| {
            let mut silent = SilentPaths::of_shard(shards);
            silent.on_silent(START, &path(1), ConnectionId(1));
            let mut sent = 0;
            let end = START + Duration::from_secs(60);
            while let Some(now) = silent.next_timeout().filter(|at| *at <= end) {
                let prober = prober(1, true).map(|prober| Prober { is_client: false, ..prober });
                silent.on_probed(now, path(1).addresses(), prober);
                sent += usize::from(shards);
            }
            sent
        };
        assert_eq!((per_minute(1), per_minute(2), per_minute(4)), (43, 86, 92));
    }

    #[test]
    fn an_idle_path_is_probed_slowly_until_a_connection_sends() {
        let mut silent = SilentPaths::default();
        silent.on_silent(START, &path(1), ConnectionId(1));
        let later = START + Duration::from_secs(61);
        assert_eq!(probes(&mut silent, later, false).len(), 3);
        assert!(silent.has_idle_paths());
        silent.on_sent(later, ConnectionId(2));
        assert!(silent.next_timeout().is_some_and(|at| at > later + MS(5_000)));
        silent.on_sent(later, ConnectionId(1));
        // The last probe was 400 ms ago.
        assert_eq!(silent.next_timeout(), Some(later + MS(200)));
    }

    #[test]
    fn an_answer_wakes_all_that_wait_for_that_path_a_few_at_a_time() {
        let mut silent = SilentPaths::default();
        for id in 0..100 {
            silent.on_silent(START, &path(1), ConnectionId(id));
        }
        silent.on_silent(START, &path(2), ConnectionId(500));
        silent.on_answer(START + MS(100), path(1).addresses());
        let mut woken = Vec::new();
        let mut at_once = 0;
        while let Some(now) = silent.next_timeout().filter(|at| *at < START + MS(500)) {
            let before = woken.len();
            while let Some(DueAction::Wake(_, id)) = silent.take_due(now) {
                woken.push(id.0);
            }
            at_once = at_once.max(woken.len() - before);
        }
        assert_eq!(woken, (0..100).collect::<Vec<_>>());
        assert_eq!(at_once, WAKE_BATCH as usize);
        assert_eq!(silent.take_answered().into_iter().collect::<Vec<_>>(), [path(1).addresses()]);
    }

    #[test]
    fn paths_and_probes_are_bounded() {
        let mut silent = SilentPaths::default();
        for number in 0..=MAX_PATHS {
            let [high, low] = (number as u16).to_be_bytes();
            let local = SocketAddr::from(([10, 1, high, low], 1));
            let path = FourTuple { local, ..path(1) };
            assert_eq!(silent.on_silent(START, &path, ConnectionId(7)), number < MAX_PATHS);
        }
        let sent = probes(&mut silent, START + CLIENT_INTERVAL + Duration::from_secs(1), true);
        assert_eq!(sent.len(), 201);
    }
}
