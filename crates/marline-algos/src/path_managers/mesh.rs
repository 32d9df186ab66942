//! Mesh of address pairs, shared by several path managers: which pairs should have a subflow, which have one, and when
//! a missing subflow is retried.
//!
//! *Retries.* The most frequent complaint about the kernel's managers is a subflow that timed out and is never
//! reopened. Here a missing subflow is retried while both addresses exist: 1 s after the first failure, and then after
//! 2, 4, 8 and 15 s. While the connection has no established subflow at all, the wait is at most 2 s, because nothing
//! else carries the connection. An address that becomes available again (interface up, announced again) is tried
//! immediately. The backoff is reset after a subflow has been established for 10 s. A path that fails sooner each time
//! (for example at a middlebox that drops unknown options) keeps backing off.
//!
//! *Stuck subflows.* A NAT that has lost a connection's state and drops unknown packets looks like a dead path, but new
//! ports get through. So if a pair's subflow is the connection's only one and has had two timeouts without an answer,
//! the pair gets a second subflow, retried like any other. If the path has actually failed, this costs an occasional
//! SYN, which is often the first packet to pass again.
//!
//! *Which pairs.* Each local address that is up and has the `subflow` flag is combined with each remote address of its
//! family, or only with the remote address to which it is pinned. The initial subflow's remote address is excluded if
//! the peer forbade joins to it. If there may be fewer subflows than pairs, every local address gets its first subflow
//! before any gets its second.
//!
//! *Interfaces.* The addresses of one interface share its radio or line. Where a subflow from one of them works, none
//! is opened from an address of the other family, because both would fail together.
//!
//! *Load balancers.* A peer that forbade joins to the initial subflow's remote address has a load balancer there. The
//! load balancer would send joins to the wrong server, and also the initial subflow once the client's address changes.
//! So that subflow is closed when another one from the same local address goes to an address that the peer announced,
//! unless the other one is a backup.
//!
//! *Roles.* The client opens subflows. A server can rarely reach its clients' addresses (NAT), so it announces its own
//! `signal` addresses and waits.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use marline_policy::{
    AddressId, Health, LocalAddress, PathAction, PathContext, PathEvent, Role, SubflowId,
    SubflowPath, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

/// Delay after the first failure; it doubles after each further failure.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(15);
/// Maximum delay while no subflow is established.
const MAX_RETRY_DELAY_WITHOUT_SUBFLOW: Duration = Duration::from_secs(2);
/// Time for which a subflow must have been established so that earlier failures no longer count.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Interval between two checks whether a subflow that still carries data can be closed.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

type Pair = (AddressId, AddressId);

/// Attempts to open a subflow on an address pair.
#[derive(Copy, Clone, Debug)]
struct Attempt {
    /// Number of attempts since the last stable subflow.
    count: u32,
    /// Time of the last attempt or of its failure.
    at: Instant,
    /// Time at which the pair's subflow was established.
    up_at: Option<Instant>,
}

impl Attempt {
    fn due_at(&self, longest: Duration) -> Instant {
        let doublings = self.count.saturating_sub(1).min(16);
        self.at + (FIRST_RETRY_DELAY * 2u32.pow(doublings)).min(longest)
    }
}

/// Settings with which subflows from a local address are opened.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Set the backup flag.
    pub(super) backup: bool,
    /// Use Fast JOIN.
    pub(super) fast: bool,
}

/// How long subflows that replace others stay open once the others work again.
#[derive(Copy, Clone, Debug)]
pub(super) struct Hold {
    /// Time for which another subflow must have worked.
    pub(super) settle: Duration,
    /// Time for which the replacements must have carried no new data.
    pub(super) quiet: Duration,
}

impl Hold {
    /// Returns the time at which to close the replacements, or to check again. Others have worked since `since`.
    pub(super) fn end<'a>(
        self,
        since: Instant,
        mut replacements: impl Iterator<Item = &'a SubflowView> + Clone,
        now: Instant,
    ) -> Instant {
        let newest = replacements.clone().map(|view| view.last_new_at).max().unwrap_or(since);
        let at = (since + self.settle).max(newest + self.quiet);
        let is_busy = replacements.any(|view| view.bytes_in_flight + view.bytes_queued > 0);
        // By then, the data in flight has had time to arrive.
        if is_busy { at.max(now + BUSY_CHECK_INTERVAL) } else { at }
    }
}

/// Address pair that should have a subflow.
struct WantedPair<'a> {
    local: &'a LocalAddress,
    remote: AddressId,
    to: SocketAddr,
    /// Rank; pairs with lower ranks are opened first.
    rank: usize,
}

/// Attempts so far, and pending actions.
#[derive(Clone, Debug, Default)]
struct Work {
    actions: VecDeque<PathAction>,
    attempts: BTreeMap<Pair, Attempt>,
    announced: BTreeSet<AddressId>,
    /// Subflows that were closed because they used a load balancer.
    left: SubflowSet,
    /// Time of an extra check after a subflow has ended, because it may still have been listed at that time.
    recheck_at: Option<Instant>,
}

impl Work {
    fn is_done(&self) -> bool {
        let is_empty = self.actions.is_empty() && self.attempts.is_empty();
        is_empty && self.announced.is_empty() && self.recheck_at.is_none()
    }
}

/// Address mesh of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Mesh {
    established: bool,
    /// Subflows on which nothing passes. Their address pairs may get a second subflow.
    stuck: SubflowSet,
    /// State that most connections do not need, because they have one subflow and nothing to do.
    work: Option<Box<Work>>,
    wake_at: Option<Instant>,
}

impl Mesh {
    pub(super) fn push(&mut self, action: PathAction) {
        self.work().actions.push_back(action);
    }

    pub(super) fn poll_action(&mut self) -> Option<PathAction> {
        let work = self.work.as_deref_mut()?;
        let action = work.actions.pop_front();
        if work.is_done() {
            self.work = None;
        }
        action
    }

    fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Drops the history of all pairs for which `holds` is false.
    fn retain_pairs(&mut self, holds: impl Fn(Pair) -> bool) {
        if let Some(work) = &mut self.work {
            work.attempts.retain(|pair, _| holds(*pair));
        }
    }

    /// Returns true if joins are possible.
    pub(super) const fn is_established(&self) -> bool {
        self.established
    }

    pub(super) const fn next_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Records an event. The caller must call [`update`](Self::update) afterwards.
    pub(super) fn record_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        match *event {
            PathEvent::Established => self.established = true,
            PathEvent::LocalUp(id) => self.retain_pairs(|pair| pair.0 != id),
            PathEvent::LocalDown(id) => {
                self.retain_pairs(|pair| pair.0 != id);
                if self.work.as_mut().is_some_and(|work| work.announced.remove(&id)) {
                    self.push(PathAction::Withdraw(id));
                }
            }
            PathEvent::Announced(id) | PathEvent::Removed(id) => {
                self.retain_pairs(|pair| pair.1 != id);
            }
            PathEvent::SubflowUp(id) => {
                let path = cx.paths.iter().find(|path| path.id == id);
                let tried = self.work.as_mut().zip(path);
                let attempt =
                    tried.and_then(|(work, p)| work.attempts.get_mut(&(p.local_id, p.remote_id)));
                if let Some(attempt) = attempt {
                    attempt.up_at = Some(cx.now);
                }
            }
            PathEvent::Stuck(id) => self.stuck.insert(id),
            PathEvent::Reachable(id) => self.stuck.remove(id),
            PathEvent::SubflowDown { id, local, remote, .. } => {
                self.stuck.remove(id);
                self.work().left.remove(id);
                let fresh = Attempt { count: 1, at: cx.now, up_at: None };
                let attempt = self.work().attempts.entry((local, remote)).or_insert(fresh);
                if attempt.up_at.take().is_some_and(|up| cx.now.since(up) >= STABLE_AFTER) {
                    attempt.count = 1;
                }
                attempt.at = cx.now;
                self.work().recheck_at = Some(cx.now + FIRST_RETRY_DELAY);
            }
            _ => {}
        }
    }

    /// Requests the actions that the mesh needs. `backup` selects the local addresses whose subflows are opened with
    /// the backup flag.
    pub(super) fn update(&mut self, cx: &PathContext<'_>, backup: impl Fn(&LocalAddress) -> bool) {
        self.update_where(cx, |local| Some(Plan { backup: backup(local), fast: false }));
    }

    /// Like [`update`](Self::update), but opens subflows only from local addresses for which `plan` returns a plan.
    pub(super) fn update_where(
        &mut self,
        cx: &PathContext<'_>,
        plan: impl Fn(&LocalAddress) -> Option<Plan>,
    ) {
        let recheck_at = self.work.as_mut().map(|work| &mut work.recheck_at);
        self.wake_at = recheck_at.and_then(|at| {
            *at = at.filter(|at| *at > cx.now);
            *at
        });
        if !self.established {
            return;
        }
        self.announce(cx);
        if cx.role == Role::Client {
            self.open(cx, plan);
            self.close_balanced_subflows(cx);
        }
    }

    /// Drops the history of all pairs of a local address.
    pub(super) fn forget_address(&mut self, local: AddressId) {
        self.retain_pairs(|pair| pair.0 != local);
    }

    fn announce(&mut self, cx: &PathContext<'_>) {
        for local in cx.local.iter().filter(|local| local.signal && local.up) {
            let known = cx
                .paths
                .iter()
                .any(|path| path.local_id == AddressId(0) && is_end(path.local, local.address));
            if !known && self.work().announced.insert(local.id) {
                self.push(PathAction::Announce(local.id));
            }
        }
    }

    /// Closes subflows to the address that the peer forbade, if another subflow replaces them: behind a load balancer,
    /// both lead to the same server.
    fn close_balanced_subflows(&mut self, cx: &PathContext<'_>) {
        let denied = cx.remote.iter().find(|r| r.id == AddressId(0)).filter(|_| cx.deny_join_id0);
        let Some(denied) = denied.map(|r| r.address) else { return };
        let leads_there = |path: &SubflowPath| {
            let local = cx.local.iter().find(|local| starts_at(path, local));
            local.map_or(path.remote, |local| local.remote_for(path.remote)) == denied
        };
        for path in cx.paths.iter().filter(|path| path.established && leads_there(path)) {
            let serves = |other: &SubflowPath| {
                let same_start = other.local.ip() == path.local.ip();
                other.established
                    && same_start
                    && !leads_there(other)
                    && !self.stuck.contains(other.id)
                    && can_replace_subflow(other.id, path.id, cx.subflows)
            };
            if cx.paths.iter().any(serves) && !self.work().left.contains(path.id) {
                self.work().left.insert(path.id);
                self.push(PathAction::CloseSubflow(path.id));
            }
        }
    }

    /// Restricts each interface to one family: that of the initial subflow, or the other family once the initial one
    /// has failed.
    fn choose_families(&self, wanted: &mut Vec<WantedPair<'_>>, cx: &PathContext<'_>) {
        let initial = cx.remote.iter().find(|remote| remote.id == AddressId(0));
        let Some(prefers_ipv4) = initial.map(|remote| remote.address.is_ipv4()) else { return };
        let has_failed = |pair: &WantedPair<'_>| {
            let work = self.work.as_deref();
            work.is_some_and(|work| work.attempts.contains_key(&(pair.local.id, pair.remote)))
        };
        let preferred: Vec<LocalAddress> = wanted
            .iter()
            .filter(|pair| pair.to.is_ipv4() == prefers_ipv4 && !has_failed(pair))
            .map(|pair| *pair.local)
            .collect();
        wanted.retain(|pair| {
            let is_other = pair.to.is_ipv4() != prefers_ipv4;
            !(is_other && preferred.iter().any(|other| is_sibling(pair.local, other)))
        });
    }

    fn open(&mut self, cx: &PathContext<'_>, plan: impl Fn(&LocalAddress) -> Option<Plan>) {
        let mut wanted = wanted_pairs(cx, self.stuck);
        wanted.retain(|pair| plan(pair.local).is_some());
        self.retain_pairs(|(local, remote)| {
            cx.local.iter().any(|l| l.id == local)
                && (remote == AddressId(0) || cx.remote.iter().any(|r| r.id == remote))
        });
        if wanted.is_empty() {
            return;
        }
        self.choose_families(&mut wanted, cx);
        wanted.sort_by_key(|pair| pair.rank);
        let opens = |a: &&PathAction| matches!(a, PathAction::OpenSubflow { .. });
        let queued = self.work().actions.iter().filter(opens).count();
        let mut room = cx.max_subflows.saturating_sub(cx.paths.len() + queued);
        let alone = !cx.paths.iter().any(|path| path.established);
        let longest = if alone { MAX_RETRY_DELAY_WITHOUT_SUBFLOW } else { MAX_RETRY_DELAY };
        for pair in wanted {
            if room == 0 {
                // Room becomes available through an event, not over time.
                return;
            }
            let key = (pair.local.id, pair.remote);
            if let Some(due) =
                self.work().attempts.get(&key).map(|a| a.due_at(longest)).filter(|d| *d > cx.now)
            {
                self.wake_at = Some(self.wake_at.map_or(due, |at| at.min(due)));
                continue;
            }
            let attempt = self.work().attempts.entry(key).or_insert(Attempt {
                count: 0,
                at: cx.now,
                up_at: None,
            });
            attempt.count = attempt.count.saturating_add(1);
            attempt.at = cx.now;
            let again = attempt.due_at(longest);
            self.wake_at = Some(self.wake_at.map_or(again, |at| at.min(again)));
            if let Some(Plan { backup, fast }) = plan(pair.local) {
                let (local, remote) = key;
                self.push(PathAction::OpenSubflow { local, remote, backup, fast });
            }
            room -= 1;
        }
    }
}

/// Returns the pairs that should have a subflow but have none, except those made unnecessary by a subflow of the same
/// interface.
fn wanted_pairs<'a>(cx: &PathContext<'a>, stuck: SubflowSet) -> Vec<WantedPair<'a>> {
    let mut wanted = Vec::new();
    let works = |path: &SubflowPath| !stuck.contains(path.id);
    let works_for = |local: &LocalAddress| {
        let other = |path: &SubflowPath| cx.local.iter().find(|other| starts_at(path, other));
        let sibling =
            |path: &SubflowPath| other(path).is_some_and(|other| is_sibling(local, other));
        let is_healthy = |path: &SubflowPath| {
            let view = cx.subflows.iter().find(|view| view.id == path.id);
            works(path)
                && view.is_none_or(|view| !matches!(view.health, Health::Unreachable { .. }))
        };
        cx.paths.iter().any(|path| sibling(path) && is_healthy(path))
    };
    for local in cx.local.iter().filter(|local| local.subflow && local.up && !works_for(local)) {
        let mut rank = cx.paths.iter().filter(|path| starts_at(path, local)).count();
        for (remote, to) in targets(local, cx) {
            let serves =
                |path: &SubflowPath| starts_at(path, local) && path.remote == to && works(path);
            if !cx.paths.iter().any(serves) {
                wanted.push(WantedPair { local, remote, to, rank });
                rank += 1;
            }
        }
    }
    wanted.dedup_by(|a, b| a.local.id == b.local.id && a.to == b.to);
    wanted
}

/// Returns true if two addresses are the IPv4 and the IPv6 address of one interface.
fn is_sibling(one: &LocalAddress, other: &LocalAddress) -> bool {
    one.link != 0 && one.link == other.link && one.address.is_ipv4() != other.address.is_ipv4()
}

/// Returns the possible remote ends of subflows from a local address.
fn targets(local: &LocalAddress, cx: &PathContext<'_>) -> Vec<(AddressId, SocketAddr)> {
    let allowed = |id: AddressId| !(cx.deny_join_id0 && id == AddressId(0));
    let Some(pin) = local.remote else {
        return cx
            .remote
            .iter()
            .filter(|r| allowed(r.id))
            .filter_map(|r| Some((r.id, local.destination_for(r.address)?)))
            .collect();
    };
    match cx.remote.iter().find(|r| r.address == pin) {
        Some(known) if allowed(known.id) => vec![(known.id, pin)],
        Some(_) => Vec::new(),
        // The pin was configured, not announced. The core connects to it regardless of the id.
        None => vec![(AddressId(0), pin)],
    }
}

/// Returns true if a subflow starts at a local address. The initial subflow has address id 0 regardless of its
/// address's id in the configuration, so addresses are compared as well.
#[must_use]
pub fn starts_at(path: &SubflowPath, local: &LocalAddress) -> bool {
    path.local_id == local.id || is_same_host(path.local.ip(), local.address.ip())
}

fn is_same_host(a: IpAddr, b: IpAddr) -> bool {
    a == b && !a.is_unspecified()
}

/// Returns true if a subflow's end is this address; port 0 matches any port.
fn is_end(end: SocketAddr, address: SocketAddr) -> bool {
    is_same_host(end.ip(), address.ip()) && (address.port() == 0 || address.port() == end.port())
}

/// Returns true if one subflow can replace another: a backup cannot replace a regular subflow.
fn can_replace_subflow(other: SubflowId, than: SubflowId, views: &[SubflowView]) -> bool {
    let view = |id| views.iter().find(|view| view.id == id);
    let (Some(other), Some(than)) = (view(other), view(than)) else { return true };
    !other.backup || than.backup
}

#[cfg(test)]
mod tests {
    use marline_testkit::views::{backup, view};

    use super::*;

    #[test]
    fn a_backup_does_not_replace_a_regular_subflow() {
        let stands_in =
            |other, than| can_replace_subflow(SubflowId(1), SubflowId(0), &[than, other]);
        assert!(stands_in(view(1, 20), view(0, 20)));
        assert!(!stands_in(backup(view(1, 20)), view(0, 20)));
        assert!(stands_in(backup(view(1, 20)), backup(view(0, 20))));
    }
}
