//! Verdicts of the path health monitor, and the evidence for each address pair on which they are based.

use core::net::IpAddr;
use std::collections::BTreeMap;

use marline_policy::{AddressPair, AddressPairFault, LossBase, PathHealth, PathHealthConfig};
use marline_time::{Duration, Instant};

use super::AddressPairInfo;
use super::average::Average;
use crate::FourTuple;

/// Maximum number of local addresses whose interfaces are remembered.
const MAX_INTERFACES: usize = 256;

/// Delay of a wake-up beyond which a wait does not count: the process was suspended, so segments missing during the
/// wait are not evidence about the path.
const MAX_WAKEUP_LATENESS: Duration = Duration::from_millis(10);

/// Activity of an address pair's members during a period, as counted by one endpoint.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberActivity {
    pub(crate) members: u64,
    /// Segments that were waiting for repair when the period began, or were marked lost later.
    pub(crate) lost: u64,
    /// Outstanding segments, plus segments that were lost and have been repaired.
    pub(crate) outstanding: u64,
    /// Segments outstanding when the period began, or sent later.
    pub(crate) at_risk: u64,
    pub(crate) retransmitted: u64,
    pub(crate) sent: u64,
    /// Largest retransmission timeout, with backoff, of members that are waiting for an ACK.
    pub(crate) rto: Duration,
}

impl MemberActivity {
    const NONE: MemberActivity = MemberActivity {
        members: 0,
        lost: 0,
        outstanding: 0,
        at_risk: 0,
        retransmitted: 0,
        sent: 0,
        rto: Duration::ZERO,
    };

    pub(crate) fn add(&mut self, other: &MemberActivity) {
        self.members += other.members;
        self.lost += other.lost;
        self.outstanding += other.outstanding;
        self.at_risk += other.at_risk;
        self.retransmitted += other.retransmitted;
        self.sent += other.sent;
        self.rto = self.rto.max(other.rto);
    }
}

/// Evidence of a member against its path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathTrouble {
    /// The probe or retransmission timer fired. `wait` is the maximum time until an answer.
    TimedOut { wait: Duration },
    /// The receive timer or keepalives expired: probes were not answered.
    Silent { wait: Duration },
}

impl PathTrouble {
    /// Returns the more serious of two: silence, or else the one whose wait ends earlier.
    pub(crate) fn worst(self, other: PathTrouble) -> PathTrouble {
        match (self, other) {
            (PathTrouble::Silent { wait: a }, PathTrouble::Silent { wait: b }) => {
                PathTrouble::Silent { wait: a.min(b) }
            }
            (PathTrouble::Silent { .. }, _) => self,
            (_, PathTrouble::Silent { .. }) => other,
            _ => self,
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    Usable,
    Watched { since: Instant, waits: u32, wait: Duration, next: Instant },
    Degraded(Degraded),
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Degraded {
    fault: AddressPairFault,
    since: Instant,
    /// Time of the first answer in the current clean period.
    clean_since: Option<Instant>,
    probed_at: Option<Instant>,
    /// Consecutive unanswered probes.
    misses: u32,
    /// Time to check for the answer, or to send the next probe.
    next: Instant,
}

impl Degraded {
    /// State before the first probe.
    const fn new(fault: AddressPairFault, since: Instant, next: Instant) -> Self {
        Degraded { fault, since, clean_since: None, probed_at: None, misses: 0, next }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    loss: Average,
    retransmissions: Average,
    /// Activity that endpoints reported since the period began.
    current: MemberActivity,
    /// Activity in the previous period.
    last: MemberActivity,
    state: State,
    /// Last valid segment received on a member.
    last_rx_at: Instant,
    /// Last time at which the pair had members.
    used_at: Instant,
    /// A probe is due, which any endpoint with a member may send.
    probe_due: bool,
    times_degraded: u64,
}

impl Entry {
    fn new(now: Instant) -> Self {
        Entry {
            loss: Average::EMPTY,
            retransmissions: Average::EMPTY,
            current: MemberActivity::NONE,
            last: MemberActivity::NONE,
            state: State::Usable,
            last_rx_at: Instant::ZERO,
            used_at: now,
            probe_due: false,
            times_degraded: 0,
        }
    }

    fn members(&self) -> u64 {
        self.last.members.max(self.current.members)
    }

    const fn fault(&self) -> Option<AddressPairFault> {
        match self.state {
            State::Degraded(degraded) => Some(degraded.fault),
            State::Usable | State::Watched { .. } => None,
        }
    }

    /// Health for observers. Unlike the verdict, it depends on whether a segment has been received since the fault.
    fn health(&self) -> PathHealth {
        match self.state {
            State::Usable | State::Watched { .. } => PathHealth::Usable,
            State::Degraded(Degraded { fault: AddressPairFault::Rto, .. }) => PathHealth::Degraded,
            State::Degraded(Degraded { since, .. }) if self.last_rx_at <= since => {
                PathHealth::Unreachable
            }
            State::Degraded(_) => PathHealth::Degraded,
        }
    }
}

/// All address pairs, and the configuration.
#[derive(Clone, Debug)]
pub(crate) struct HealthTable {
    config: PathHealthConfig,
    address_pairs: BTreeMap<AddressPair, Entry>,
    interfaces: BTreeMap<IpAddr, u32>,
    period_ends: Instant,
    generation: u64,
}

impl HealthTable {
    pub(super) fn new(config: PathHealthConfig) -> Self {
        HealthTable {
            config,
            address_pairs: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            period_ends: Instant::ZERO,
            generation: 0,
        }
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) const fn period(&self) -> Duration {
        self.config.period
    }

    /// Address pair of a subflow; `None` if it does not leave this machine.
    pub(crate) fn address_pair(&self, path: &FourTuple) -> Option<AddressPair> {
        let (local, remote) = (path.local.ip(), path.remote.ip());
        if local.is_loopback() || remote.is_loopback() || remote.is_unspecified() {
            return None;
        }
        let interface = self.interfaces.get(&local).copied().unwrap_or(0);
        Some(AddressPair { local, remote, interface })
    }

    pub(super) fn set_interface(&mut self, local: IpAddr, interface: u32) {
        if self.interfaces.len() >= MAX_INTERFACES && !self.interfaces.contains_key(&local) {
            return;
        }
        let before = self.interfaces.insert(local, interface);
        if before.is_some_and(|before| before != interface) {
            self.address_pairs.retain(|pair, _| pair.local != local);
            self.generation += 1;
        }
    }

    pub(super) fn is_degraded(&self, local: IpAddr, remote: IpAddr) -> bool {
        let interface = self.interfaces.get(&local).copied().unwrap_or(0);
        self.fault(&AddressPair { local, remote, interface }).is_some()
    }

    /// Fault of an address pair; `None` if it has none.
    pub(crate) fn fault(&self, pair: &AddressPair) -> Option<AddressPairFault> {
        self.address_pairs.get(pair)?.fault()
    }

    /// Degraded address pairs, in order.
    pub(crate) fn degraded(&self) -> impl Iterator<Item = (AddressPair, AddressPairFault)> {
        self.address_pairs.iter().filter_map(|(pair, entry)| Some((*pair, entry.fault()?)))
    }

    /// True if any address pair is under observation between periods.
    pub(crate) fn is_watching(&self) -> bool {
        self.next_timeout().is_some()
    }

    /// Time of the next probe or check for an answer.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.address_pairs.values().filter_map(|entry| self.deadline(entry)).min()
    }

    fn deadline(&self, entry: &Entry) -> Option<Instant> {
        match entry.state {
            State::Usable => None,
            State::Watched { next, .. } => Some(next),
            State::Degraded(degraded) => self.config.recovery.map(|_| degraded.next),
        }
    }

    fn entry(&mut self, now: Instant, pair: AddressPair) -> &mut Entry {
        if self.address_pairs.len() >= self.config.address_pairs.max(1)
            && !self.address_pairs.contains_key(&pair)
        {
            let oldest = self.address_pairs.iter().min_by_key(|(_, entry)| entry.used_at);
            if let Some(oldest) = oldest.map(|(pair, _)| *pair) {
                self.generation += u64::from(self.fault(&oldest).is_some());
                self.address_pairs.remove(&oldest);
            }
        }
        self.address_pairs.entry(pair).or_insert_with(|| Entry::new(now))
    }

    /// Records when a member of the address pair last received a segment.
    pub(crate) fn record_last_rx(&mut self, now: Instant, pair: AddressPair, at: Instant) {
        let entry = self.entry(now, pair);
        entry.used_at = now;
        entry.last_rx_at = entry.last_rx_at.max(at);
    }

    /// Adds the activity of an endpoint's members since its last call.
    pub(crate) fn contribute(&mut self, now: Instant, pair: AddressPair, part: &MemberActivity) {
        self.entry(now, pair).current.add(part);
    }

    /// Handles evidence of a member against its path.
    pub(crate) fn record_trouble(&mut self, now: Instant, pair: AddressPair, trouble: PathTrouble) {
        let Some(watch) = self.config.watch else {
            if matches!(trouble, PathTrouble::Silent { .. }) {
                self.entry(now, pair);
                self.mark_degraded(now, pair, AddressPairFault::Silent);
            }
            return;
        };
        let entry = self.entry(now, pair);
        let (PathTrouble::TimedOut { wait } | PathTrouble::Silent { wait }) = trouble;
        let wait = wait.max(watch.wait);
        // A segment that another member received in the meantime outweighs one member's silence.
        let silent =
            matches!(trouble, PathTrouble::Silent { .. }) && entry.last_rx_at + wait <= now;
        match &mut entry.state {
            State::Degraded(degraded) => degraded.clean_since = None,
            _ if silent => self.mark_degraded(now, pair, AddressPairFault::Silent),
            State::Watched { .. } => {}
            State::Usable => {
                // The probe or retransmission sent now is the first probe.
                entry.state = State::Watched { since: now, waits: 0, wait, next: now + wait };
            }
        }
    }

    fn mark_degraded(&mut self, now: Instant, pair: AddressPair, fault: AddressPairFault) {
        let first = self.config.recovery.map_or(Duration::ZERO, |clean| clean.probe);
        let Some(entry) = self.address_pairs.get_mut(&pair) else { return };
        if let State::Degraded(degraded) = &mut entry.state {
            degraded.clean_since = None;
            // The most serious cause is kept: a lone timeout is the least serious.
            if degraded.fault == AddressPairFault::Rto && fault != AddressPairFault::Rto {
                degraded.fault = fault;
                self.generation += 1;
            }
            return;
        }
        entry.state = State::Degraded(Degraded::new(fault, now, now + first));
        entry.times_degraded += 1;
        self.generation += 1;
    }

    /// Handles due actions: end of the period, probes, verdicts.
    pub(crate) fn advance(&mut self, now: Instant) {
        if now >= self.period_ends {
            self.end_period(now);
        }
        let due: Vec<AddressPair> = self
            .address_pairs
            .iter()
            .filter(|(_, entry)| self.deadline(entry).is_some_and(|at| at <= now))
            .map(|(pair, _)| *pair)
            .collect();
        for pair in due {
            self.schedule_probe(now, pair);
        }
    }

    fn schedule_probe(&mut self, now: Instant, pair: AddressPair) {
        let Some(entry) = self.address_pairs.get_mut(&pair) else { return };
        let heard = entry.last_rx_at;
        match &mut entry.state {
            State::Usable => {}
            State::Watched { since, .. } if heard > *since => entry.state = State::Usable,
            State::Watched { wait, next, .. } if now.since(*next) > MAX_WAKEUP_LATENESS => {
                // The process was suspended, so received segments have not been processed yet.
                *next = now + *wait;
                entry.probe_due = true;
            }
            State::Watched { waits, wait, next, .. } => {
                *waits += 1;
                if *waits >= self.config.watch.map_or(1, |watch| watch.count) {
                    self.mark_degraded(now, pair, AddressPairFault::Unanswered);
                    return;
                }
                *next = now + *wait;
                entry.probe_due = true;
            }
            State::Degraded(degraded) => {
                let Some(clean) = self.config.recovery else { return };
                if now.since(degraded.next) > MAX_WAKEUP_LATENESS
                    && degraded.probed_at.is_some_and(|at| heard <= at)
                {
                    degraded.next = now + clean.probe;
                    return;
                }
                if let Some(asked) = degraded.probed_at.take() {
                    if heard > asked {
                        degraded.misses = 0;
                        degraded.clean_since.get_or_insert(now);
                    } else {
                        degraded.misses = degraded.misses.saturating_add(1);
                        degraded.clean_since = None;
                        let pause = clean.probe * (1 << degraded.misses.min(16));
                        degraded.next = asked + pause.min(clean.max_probe_interval);
                        if degraded.next > now {
                            return;
                        }
                    }
                }
                if degraded.clean_since.is_some_and(|since| now.since(since) >= clean.period) {
                    entry.state = State::Usable;
                    self.generation += 1;
                    return;
                }
                degraded.probed_at = Some(now);
                degraded.next = now + clean.probe;
                entry.probe_due = true;
            }
        }
    }

    fn end_period(&mut self, now: Instant) {
        self.period_ends = now + self.config.period;
        let config = self.config;
        let forget = config.recovery.map_or(Duration::ZERO, |clean| clean.period) + config.period;
        let mut faults = Vec::new();
        for (pair, entry) in &mut self.address_pairs {
            let period = core::mem::take(&mut entry.current);
            let w = config.weight;
            let base = match config.loss_base {
                LossBase::AtRisk => period.at_risk,
                LossBase::Outstanding => period.outstanding,
            };
            entry.loss.add(period.lost, base, w);
            entry.retransmissions.add(period.retransmitted, period.sent, w);
            entry.last = period;
            let least = config.least as f64;
            let fault = if entry.loss.has_risen_to(config.loss, least, w) {
                Some(AddressPairFault::Loss)
            } else if entry.retransmissions.has_risen_to(config.retransmissions, least, w) {
                Some(AddressPairFault::Retransmissions)
            } else if period.rto >= config.rto {
                Some(AddressPairFault::Rto)
            } else {
                None
            };
            faults.extend(fault.map(|fault| (*pair, fault)));
        }
        for (pair, fault) in faults {
            self.mark_degraded(now, pair, fault);
        }
        let before = self.degraded().count();
        self.address_pairs.retain(|_, entry| now.since(entry.used_at) <= forget);
        self.generation += (before - self.degraded().count()) as u64;
    }

    /// True if the address pair must be probed now. The caller must send the probe.
    pub(crate) fn take_due_probe(&mut self, pair: &AddressPair) -> bool {
        self.address_pairs.get_mut(pair).is_some_and(|entry| core::mem::take(&mut entry.probe_due))
    }

    pub(super) fn table(&self) -> Vec<AddressPairInfo> {
        let line = |(pair, entry): (&AddressPair, &Entry)| AddressPairInfo {
            address_pair: *pair,
            members: entry.members(),
            loss: entry.loss.value(),
            retransmissions: entry.retransmissions.value(),
            rto: entry.last.rto,
            health: entry.health(),
            cause: entry.fault(),
            watched: matches!(entry.state, State::Watched { .. }),
            times_degraded: entry.times_degraded,
        };
        self.address_pairs.iter().map(line).collect()
    }
}
