//! Break-before-make path manager (MultiMob): opens the cellular subflow only when it is needed.
//!
//! *Problem.* A standby subflow costs energy. On LTE, a join alone wakes the radio for about twelve seconds, about as
//! much as the traffic of a voice assistant in a minute. `backup` opens it anyway. And when WiFi fails, the server does
//! not notice and keeps sending over WiFi.
//!
//! *How.* Subflows from addresses without the `backup` flag (*primary*: WiFi) are kept as a mesh (`mesh.rs`). Nothing
//! is sent from an address flagged `backup` until no primary subflow works anymore:
//! - immediately, if each has a degraded address pair according to the path health monitor, fades, is silent (receive
//!   timer, keepalives), or was made a backup by the peer (MP_PRIO);
//! - immediately, if the last one disappeared with its address (ours was lost or the peer's was withdrawn), or if data
//!   waits and there is no primary subflow;
//! - after `patience`, if each is silent or none is left.
//!
//! Then the first backup address that is up is used (the next one if a join from it fails), with a Fast JOIN if
//! negotiated. If the peer does not follow the client's choice, MP_PRIO marks the new subflow as regular, which is all
//! that an ordinary server understands.
//!
//! *Return.* Potentially failed subflows are probed at an interval that starts at `probe` and doubles up to sixteen
//! times that. The path health monitor probes degraded address pairs. When an address becomes available again, a join
//! from it is sent immediately. Data returns as soon as the schedulers see a healthy regular subflow. A degraded
//! address pair becomes healthy only after the monitor's clean period, which provides the hysteresis. When a primary
//! subflow has been healthy for `settle` without interruption, and the backup subflow has carried nothing new for
//! `quiet`, the backup subflow is closed. A shorter `quiet` saves battery: the two packets that close the subflow
//! restart the radio's tail.
//!
//! *Source.* De Coninck and Bonaventure's MultiMob: the behavior of its kernel module with `open_bup=0`, reimplemented.
//! Users of the kernel stack have asked for a return to WiFi that lets the cellular radio sleep again.
//!
//! *Differences.* The module never closes what it opened (`close=off`). It has no `patience` (equivalent to
//! `patience=1h`: it waits for the path health monitor, the receive timer, keepalives, or the end of the last subflow).
//! It probes a failed path only by retransmissions (`probe=1h`). These three together are the preset `multimob`. The
//! module opens each backup address at most once; this manager opens it as often as necessary.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use marline_policy::{
    AddressId, LocalAddress, PathAction, PathContext, PathEvent, PathManager, Role, SubflowId,
    SubflowPath, SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant};

use super::mesh::{Hold, Mesh, Plan, starts_at};

/// Maximum number of times that the interval between two probes doubles.
const PROBE_DOUBLINGS: u32 = 4;

/// Minimum time for which a failed path must answer to count as recovered. If it fails again sooner, the trouble
/// continues.
const MIN_RECOVERY: Duration = Duration::from_millis(200);

/// Determines when a backup subflow is opened and closed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BreakBeforeMakeConfig {
    /// Time for which all primary subflows may be silent or absent before that alone causes a backup subflow to be
    /// opened.
    pub patience: Duration,
    /// First interval between two probes of a silent primary subflow.
    pub probe: Duration,
    /// Time for which a primary subflow must have been healthy before backup subflows are closed.
    pub settle: Duration,
    /// Time for which backup subflows must have carried no new data before they are closed.
    pub quiet: Duration,
    /// True if backup subflows are closed when they are no longer needed.
    pub closes: bool,
}

impl Default for BreakBeforeMakeConfig {
    fn default() -> Self {
        BreakBeforeMakeConfig {
            patience: Duration::from_millis(150),
            probe: Duration::from_millis(200),
            settle: Duration::from_secs(1),
            quiet: Duration::from_secs(2),
            closes: true,
        }
    }
}

impl BreakBeforeMakeConfig {
    /// Settings that reproduce MultiMob's kernel module.
    #[must_use]
    pub const fn multimob() -> Self {
        BreakBeforeMakeConfig {
            patience: Duration::from_secs(3_600),
            probe: Duration::from_secs(3_600),
            settle: Duration::from_secs(1),
            quiet: Duration::from_secs(2),
            closes: false,
        }
    }
}

/// Path manager that opens backup subflows only while they are needed.
#[derive(Clone, Debug, Default)]
pub struct BreakBeforeMake {
    config: BreakBeforeMakeConfig,
    mesh: Mesh,
    /// True if a backup subflow is needed.
    needed: bool,
    /// Backup address in use.
    chosen: Option<AddressId>,
    /// Time at which the last primary subflow became unhealthy, minus the duration of the preceding trouble.
    trouble_since: Option<Instant>,
    /// Duration of the last trouble.
    last_trouble: Duration,
    /// Time at which a primary subflow became healthy.
    healthy_since: Option<Instant>,
    /// Subflows that were reported silent and have received nothing since then.
    silent: SubflowSet,
    /// Probes of silent subflows: the number sent, and the time of the next.
    probes: BTreeMap<SubflowId, (u32, Instant)>,
    /// Priorities already requested. The peer may keep its own priorities.
    asked: BTreeMap<SubflowId, bool>,
    wake_at: Option<Instant>,
}

/// Number of subflows of one kind.
#[derive(Copy, Clone, Debug, Default)]
struct Tally {
    /// Established and not closing.
    established: usize,
    healthy: usize,
    /// Subflows known to fail now or soon: on a degraded address pair, fading, silent, or made a backup by the peer.
    out: usize,
}

impl BreakBeforeMake {
    /// Creates a manager with this configuration.
    #[must_use]
    pub fn new(config: BreakBeforeMakeConfig) -> Self {
        BreakBeforeMake { config, ..BreakBeforeMake::default() }
    }

    fn update(&mut self, cx: &PathContext<'_>, address_lost: bool) {
        self.wake_at = None;
        let all_backup = !cx.local.iter().any(|local| local.subflow && !local.backup);
        if cx.role != Role::Client || all_backup {
            self.mesh.update(cx, |local| local.backup);
            return;
        }
        let primary = self.count_paths(cx);
        self.record_health(cx, &primary);
        if cx.paths.iter().any(|path| backup_of(path, cx).is_some()) {
            self.needed = true;
        } else if primary.healthy > 0 {
            self.needed = false;
        } else if self.mesh.is_established() && self.is_due(cx, &primary, address_lost) {
            self.needed = true;
        }
        if self.needed {
            self.update_backups(cx, primary.healthy > 0);
        } else {
            self.chosen = None;
        }
        self.probe(cx);
        let (chosen, hurry) = (self.chosen.filter(|_| self.needed), primary.healthy == 0);
        self.mesh.update_where(cx, |local| {
            let wanted = !local.backup || Some(local.id) == chosen;
            wanted.then_some(Plan { backup: local.backup, fast: local.backup && hurry })
        });
    }

    fn count_paths(&self, cx: &PathContext<'_>) -> Tally {
        let mut tally = Tally::default();
        for view in primaries(cx) {
            let bad = view.health.has_degraded_address_pair() || view.health.is_degraded();
            let out = bad || view.backup || self.silent.contains(view.id);
            tally.established += 1;
            tally.out += usize::from(out);
            tally.healthy += usize::from(!out && !view.health.is_unreachable());
        }
        tally
    }

    fn record_health(&mut self, cx: &PathContext<'_>, primary: &Tally) {
        if primary.healthy > 0 {
            if let Some(since) = self.trouble_since.take() {
                self.last_trouble = cx.now.since(since);
            }
            self.healthy_since.get_or_insert(cx.now);
            return;
        }
        // A path that answered only for a moment, perhaps late, has not recovered. But two short troubles of one lost
        // segment each are not one long trouble: the time between them does not count.
        if self.healthy_since.take().is_some_and(|since| cx.now.since(since) >= MIN_RECOVERY) {
            self.last_trouble = Duration::ZERO;
        }
        let begun = Instant::from_nanos(cx.now.as_nanos() - self.last_trouble.as_nanos() as u64);
        self.trouble_since.get_or_insert(begun);
    }

    /// Returns true if a backup subflow is needed now. If it may be needed later, sets the timer.
    fn is_due(&mut self, cx: &PathContext<'_>, primary: &Tally, address_lost: bool) -> bool {
        let hopeless = primary.established > 0 && primary.out == primary.established;
        let gone = primary.established == 0 && (cx.has_unacked_data || address_lost);
        let Some(since) = self.trouble_since else { return false };
        let at = since + self.config.patience;
        if hopeless || gone || at <= cx.now {
            return true;
        }
        self.wake(at);
        false
    }

    /// Chooses the backup address, notifies the peer, and closes backup subflows that are no longer needed.
    fn update_backups(&mut self, cx: &PathContext<'_>, healthy: bool) {
        let used = cx.paths.iter().find_map(|path| backup_of(path, cx)).map(|local| local.id);
        let up = |id: AddressId| backups(cx).any(|local| local.id == id);
        if self.chosen.filter(|id| up(*id)).is_none() {
            self.chosen = used.or_else(|| backups(cx).next().map(|local| local.id));
            if let Some(id) = self.chosen {
                self.mesh.forget_address(id);
            }
        }
        if !cx.followed {
            self.set_priorities(cx, healthy);
        }
        let Some(since) = self.healthy_since.filter(|_| self.config.closes) else { return };
        let spares = cx.subflows.iter().filter(|view| !is_primary(view, cx));
        let BreakBeforeMakeConfig { settle, quiet, .. } = self.config;
        let at = Hold { settle, quiet }.end(since, spares, cx.now);
        if at > cx.now {
            self.wake(at);
            return;
        }
        let open = cx.paths.iter().filter(|path| backup_of(path, cx).is_some());
        open.for_each(|path| self.mesh.push(PathAction::CloseSubflow(path.id)));
        (self.needed, self.chosen) = (false, None);
    }

    /// Sets priorities for a peer that decides by itself and uses regular subflows.
    fn set_priorities(&mut self, cx: &PathContext<'_>, healthy: bool) {
        for view in cx.subflows.iter().filter(|view| !is_primary(view, cx)) {
            if view.backup != healthy && self.asked.insert(view.id, healthy) != Some(healthy) {
                self.mesh.push(PathAction::SetBackup { id: view.id, backup: healthy });
            }
        }
    }

    /// Probes failed primary subflows, both before a backup subflow is opened and while it replaces them. Degraded
    /// address pairs are probed by the path health monitor.
    fn probe(&mut self, cx: &PathContext<'_>) {
        let failed = |view: &&SubflowView| {
            view.health.is_unreachable() && !view.health.has_degraded_address_pair()
        };
        let mut probes = core::mem::take(&mut self.probes);
        probes.retain(|id, _| primaries(cx).filter(failed).any(|view| view.id == *id));
        let BreakBeforeMakeConfig { patience, probe, .. } = self.config;
        // Probe once before `patience` has passed, so that an answer reveals that only a single segment was lost.
        let first = if self.needed { probe } else { probe.min(patience / 2) };
        for view in primaries(cx).filter(failed) {
            let (count, at) = probes.entry(view.id).or_insert((0, cx.now + first));
            if *at <= cx.now {
                *count += 1;
                *at = cx.now + probe * (1 << (*count).min(PROBE_DOUBLINGS));
                self.mesh.push(PathAction::Probe(view.id));
            }
            self.wake(*at);
        }
        self.probes = probes;
    }

    fn wake(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |wake| wake.min(at)));
    }

    fn record_event(&mut self, event: &PathEvent) {
        match *event {
            PathEvent::Silent { id, .. } => self.silent.insert(id),
            PathEvent::Reachable(id) | PathEvent::SubflowUp(id) => self.silent.remove(id),
            PathEvent::SubflowDown { id, local, was_established, .. } => {
                self.silent.remove(id);
                self.asked.remove(&id);
                if !was_established && Some(local) == self.chosen {
                    self.chosen = None;
                }
            }
            _ => {}
        }
    }

    /// After a failed join from one backup address, tries the next one.
    fn try_next_backup(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        let PathEvent::SubflowDown { local, was_established: false, .. } = *event else { return };
        if self.needed && self.chosen.is_none() && is_backup(local, cx) {
            let after = backups(cx).find(|other| other.id > local).map(|other| other.id);
            self.chosen = after.or_else(|| backups(cx).next().map(|other| other.id));
        }
    }
}

/// Local addresses flagged as backup from which a subflow can start now.
fn backups<'a>(cx: &PathContext<'a>) -> impl Iterator<Item = &'a LocalAddress> {
    cx.local.iter().filter(|local| local.backup && local.subflow && local.up)
}

fn is_backup(id: AddressId, cx: &PathContext<'_>) -> bool {
    cx.local.iter().any(|local| local.id == id && local.backup)
}

/// The address flagged as backup from which a subflow starts, if any.
fn backup_of<'a>(path: &SubflowPath, cx: &PathContext<'a>) -> Option<&'a LocalAddress> {
    cx.local.iter().find(|local| starts_at(path, local)).filter(|local| local.backup)
}

/// Returns true if a subflow starts at an address without the backup flag.
fn is_primary(view: &SubflowView, cx: &PathContext<'_>) -> bool {
    let path = cx.paths.iter().find(|path| path.id == view.id);
    path.is_none_or(|path| backup_of(path, cx).is_none())
}

/// Primary subflows that are established and not closing.
fn primaries<'a>(cx: &PathContext<'a>) -> impl Iterator<Item = &'a SubflowView> {
    let here = |view: &&SubflowView| view.is_active() && is_primary(view, cx);
    cx.subflows.iter().filter(here).collect::<Vec<_>>().into_iter()
}

impl PathManager for BreakBeforeMake {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        self.record_event(event);
        self.mesh.record_event(event, cx);
        self.try_next_backup(event, cx);
        let lost = matches!(event, PathEvent::LocalDown(_) | PathEvent::Removed(_));
        self.update(cx, lost);
    }

    fn accepts_join(&mut self, _from: SocketAddr, cx: &PathContext<'_>) -> bool {
        cx.paths.len() < cx.max_subflows
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.mesh.poll_action()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.mesh.next_timeout().into_iter().chain(self.wake_at).min()
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        self.update(cx, false);
    }
}

#[cfg(test)]
mod tests;
