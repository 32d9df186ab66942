//! eMPTCP: uses the interfaces with the lowest energy per byte (Lim, Chen, Nahum, Towsley, Gibbens, 2015).
//!
//! *Problem.* A second path makes a download faster, but a cellular radio draws ten times the power of WiFi while it
//! carries data, and nearly as much for ten seconds afterward. Whether it saves or wastes energy depends on the rates.
//! Power is drawn for as long as a transfer lasts, so a slow WiFi transfer of several minutes costs more than a
//! cellular one that takes seconds. A small transfer never justifies the tail.
//!
//! *How.* This applies at the client. A path whose address is flagged `backup`, or which has a radio whose sleep
//! matters, is cellular; any other is WiFi.
//! - *Meters.* The bytes transferred on each interface are sampled every 50 ms and smoothed with their trend
//!   (`meter.rs`). Pauses of more than 200 ms are attributed to the application, and bytes around them are not counted.
//! - *Energy information base* (`energy_base.rs`). For the expected rates, it gives the joules per byte over WiFi
//!   alone, cellular alone, and both. The current choice changes only if another is cheaper by `margin`, and only after
//!   at least two seconds.
//! - *Delayed establishment.* A transfer (bytes without a pause of half a second) starts over WiFi alone. No other
//!   choice is considered before `bytes` have been transferred or `time` has elapsed. Only then may a cellular subflow
//!   be opened.
//! - *Suspension.* MP_PRIO makes an unwanted subflow a backup and a wanted one regular again. At the end of a transfer,
//!   the cellular one is suspended.
//! - *Failure.* If no WiFi subflow is healthy (all are silent, degraded, or gone), energy does not matter: the cellular
//!   subflow is opened or resumed immediately.
//! - *Re-evaluation.* A suspended WiFi subflow is not measured. After the time `again`, it is resumed for two seconds.
//!
//! *Source.* The published description: an energy information base, a bandwidth predictor, delayed establishment by
//! bytes or time, and suspension by MP_PRIO. The paper's powers, formulas and constants were not available: **all of
//! them are ours.** The powers are those of the lab's energy meter (docs/research/link.md, Radios). Reimplemented.
//!
//! *What differs.* The radio's wake-up (promotion and tail, 12.6 J for LTE) is part of the cost. It is divided by the
//! bytes of the transfer so far, because a transfer that has lasted longer will probably also continue longer. A radio
//! that is still awake costs the share of a wake-up that corresponds to the time since its last use. The delay applies
//! to each transfer, not only to the first.
//!
//! *Limits.* A receiver cannot distinguish a slow path from a server that sends slowly without pauses. Such a transfer
//! wakes the radio once it is long enough, and lets it sleep again when the cellular rate shows no gain.

mod energy_base;
mod meter;

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};

use marline_algos::path_managers::{FullMesh, starts_at};
use marline_link::radio::RadioKind;
use marline_policy::{
    LocalAddress, PathAction, PathContext, PathEvent, PathManager, Role, SubflowId, SubflowView,
};
use marline_time::{Duration, Instant};

pub use energy_base::{EnergyBase, InterfaceSet, Rates};
use meter::Meter;

/// Minimum and maximum time between two samples while bytes are transferred.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Pause that ends a transfer.
const PAUSE: Duration = Duration::from_millis(500);
/// Minimum duration of a choice.
const MIN_STAY: Duration = Duration::from_secs(2);

/// Settings of eMPTCP.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct EmptcpConfig {
    /// Number of bytes of a transfer after which other interfaces are considered.
    pub bytes: u64,
    /// Duration of a transfer after which other interfaces are considered, regardless of the number of bytes.
    pub time: Duration,
    /// Share by which another choice must be cheaper; 0 to 0.9.
    pub margin: f64,
    /// Assumed cellular rate before the first measurement, in bytes per second; more than zero.
    pub supposed: u64,
    /// Time after which a suspended WiFi subflow is retried.
    pub retry_after: Duration,
    /// Kind of the cellular radio.
    pub radio: RadioKind,
}

impl Default for EmptcpConfig {
    fn default() -> Self {
        EmptcpConfig {
            bytes: 1_000_000,
            time: Duration::from_secs(3),
            margin: 0.1,
            supposed: 1_250_000,
            retry_after: Duration::from_secs(10),
            radio: RadioKind::Lte,
        }
    }
}

/// Transfer: bytes without a pause longer than [`PAUSE`].
#[derive(Copy, Clone, Debug)]
struct Transfer {
    since: Instant,
    bytes: u64,
    /// Bytes that this side sent.
    sent: u64,
}

/// Path manager that opens, suspends and resumes subflows according to the energy per byte.
#[derive(Clone, Debug)]
pub struct Emptcp {
    config: EmptcpConfig,
    base: EnergyBase,
    mesh: FullMesh,
    established: bool,
    set: InterfaceSet,
    set_at: Instant,
    wifi: Meter,
    cellular: Meter,
    transfer: Option<Transfer>,
    last_moved_at: Option<Instant>,
    /// Counters of bytes sent and received at the last sample.
    counters: BTreeMap<SubflowId, [u32; 2]>,
    /// Priorities already requested. The peer may keep its own priorities, so they are requested only once.
    asked: BTreeMap<SubflowId, bool>,
    actions: VecDeque<PathAction>,
    check_at: Option<Instant>,
}

impl Emptcp {
    /// Creates a manager with these settings.
    #[must_use]
    pub fn new(config: EmptcpConfig) -> Self {
        Emptcp {
            config,
            base: EnergyBase::new(config.radio),
            mesh: FullMesh::with_radios_awake(),
            established: false,
            set: InterfaceSet::Wifi,
            set_at: Instant::ZERO,
            wifi: Meter::default(),
            cellular: Meter::with_assumed_rate(config.supposed as f64),
            transfer: None,
            last_moved_at: None,
            counters: BTreeMap::new(),
            asked: BTreeMap::new(),
            actions: VecDeque::new(),
            check_at: None,
        }
    }

    /// Returns true if there is a choice: this is a client that has both kinds of addresses.
    fn has_choice(cx: &PathContext<'_>) -> bool {
        let any = |wanted: bool| cx.local.iter().any(|l| l.subflow && is_cellular(l) == wanted);
        cx.role == Role::Client && any(true) && any(false)
    }

    /// Counts the bytes transferred, and reconsiders the choice.
    fn measure_and_decide(&mut self, cx: &PathContext<'_>) {
        let mut moved = [0, 0];
        let mut sent_now = 0;
        for view in cx.subflows {
            let counters = [view.bytes_sent, view.bytes_received];
            let before = self.counters.insert(view.id, counters).unwrap_or(counters);
            let [sent, received] = [0, 1].map(|n| u64::from(counters[n].wrapping_sub(before[n])));
            moved[usize::from(is_on_cellular(view, cx))] += sent + received;
            sent_now += sent;
        }
        self.wifi.add_bytes(cx.now, moved[0]);
        self.cellular.add_bytes(cx.now, moved[1]);
        let bytes = moved[0] + moved[1];
        if bytes > 0 {
            self.last_moved_at = Some(cx.now);
            let fresh = Transfer { since: cx.now, bytes: 0, sent: 0 };
            let transfer = self.transfer.get_or_insert(fresh);
            transfer.bytes += bytes;
            transfer.sent += sent_now;
        } else if self.idle_time(cx.now) > PAUSE {
            self.transfer = None;
        }
        self.check_at = Some(
            cx.now + (self.idle_time(cx.now) / 8).clamp(MIN_SAMPLE_INTERVAL, MAX_SAMPLE_INTERVAL),
        );
    }

    fn idle_time(&self, now: Instant) -> Duration {
        self.last_moved_at.map_or(MAX_SAMPLE_INTERVAL * 8, |at| now.since(at))
    }

    fn decide(&mut self, cx: &PathContext<'_>) {
        let wifi_works =
            cx.subflows.iter().any(|view| !is_on_cellular(view, cx) && is_working(view));
        let set = if !wifi_works {
            InterfaceSet::Both
        } else if cx.now.since(self.set_at) < MIN_STAY {
            self.set
        } else {
            self.choose_interfaces(cx.now)
        };
        if set != self.set {
            (self.set, self.set_at) = (set, cx.now);
        }
    }

    /// Returns the choice for the current transfer while WiFi works.
    fn choose_interfaces(&self, now: Instant) -> InterfaceSet {
        let Some(transfer) = self.transfer else { return InterfaceSet::Wifi };
        let EmptcpConfig { bytes, time, margin, retry_after: again, .. } = self.config;
        if transfer.bytes < bytes && now.since(transfer.since) < time {
            return self.set;
        }
        if self.set == InterfaceSet::Cellular && now.since(self.set_at) >= again {
            return InterfaceSet::Both;
        }
        // The transfer is too slow for a sample, so use its mean rate.
        let mean = transfer.bytes as f64 / now.since(transfer.since).as_secs_f64().max(1e-3);
        let wifi = self.wifi.rate().unwrap_or(mean);
        let cellular = self.cellular.rate().unwrap_or(self.config.supposed as f64);
        let sent_share = transfer.sent as f64 / transfer.bytes.max(1) as f64;
        let rates = Rates { wifi, cellular, sent_share };
        let ahead = transfer.bytes.max(bytes) as f64;
        let unused = self.cellular.last_at().map(|at| now.since(at));
        self.base.cheapest(self.set, &rates, ahead, unused, margin)
    }

    /// Returns the addresses passed to the mesh: cellular addresses only while wanted, and then as regular addresses.
    fn locals(&self, cx: &PathContext<'_>) -> Vec<LocalAddress> {
        let open = self.set.has_cellular();
        let seen = |local: &LocalAddress| match is_cellular(local) {
            true => LocalAddress { backup: false, subflow: local.subflow && open, ..*local },
            false => *local,
        };
        cx.local.iter().map(seen).collect()
    }

    fn set_priorities(&mut self, cx: &PathContext<'_>) {
        // WiFi is given up only for an existing subflow.
        let serves = |view: &SubflowView| is_on_cellular(view, cx) && is_working(view);
        let spared = !self.set.has_wifi() && cx.subflows.iter().any(serves);
        for view in cx.subflows.iter().filter(|view| view.is_active()) {
            let backup = if is_on_cellular(view, cx) { !self.set.has_cellular() } else { spared };
            if self.asked.get(&view.id).copied().unwrap_or(view.backup) != backup {
                self.asked.insert(view.id, backup);
                self.actions.push_back(PathAction::SetBackup { id: view.id, backup });
            }
        }
    }

    fn update(&mut self, cx: &PathContext<'_>) {
        self.decide(cx);
        let local = self.locals(cx);
        self.mesh.on_timeout(&PathContext { local: &local, ..*cx });
        self.set_priorities(cx);
    }
}

impl Default for Emptcp {
    fn default() -> Self {
        Emptcp::new(EmptcpConfig::default())
    }
}

/// Returns true if a local address belongs to a radio that should sleep.
const fn is_cellular(local: &LocalAddress) -> bool {
    local.backup || local.cost.has_radio()
}

/// Returns true if data sent on a subflow is expected to arrive.
const fn is_working(view: &SubflowView) -> bool {
    let health = view.health;
    let bad = health.is_unreachable() || health.is_degraded() || health.has_degraded_address_pair();
    view.is_active() && !bad
}

/// Returns true if a subflow starts at a cellular address.
fn is_on_cellular(view: &SubflowView, cx: &PathContext<'_>) -> bool {
    let path = cx.paths.iter().find(|path| path.id == view.id);
    path.is_some_and(|path| {
        cx.local.iter().any(|local| is_cellular(local) && starts_at(path, local))
    })
}

impl PathManager for Emptcp {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        if let PathEvent::SubflowDown { id, .. } = *event {
            self.counters.remove(&id);
            self.asked.remove(&id);
        }
        if !Self::has_choice(cx) {
            self.check_at = None;
            self.mesh.on_event(event, cx);
            return;
        }
        let local = self.locals(cx);
        self.mesh.on_event(event, &PathContext { local: &local, ..*cx });
        self.established |= matches!(event, PathEvent::Established);
        if self.established {
            self.check_at.get_or_insert(cx.now + MIN_SAMPLE_INTERVAL);
            self.update(cx);
        }
    }

    fn accepts_join(&mut self, from: SocketAddr, cx: &PathContext<'_>) -> bool {
        self.mesh.accepts_join(from, cx)
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.mesh.poll_action().or_else(|| self.actions.pop_front())
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.mesh.next_timeout().into_iter().chain(self.check_at).min()
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        if !Self::has_choice(cx) {
            self.check_at = None;
            self.mesh.on_timeout(cx);
            return;
        }
        if self.check_at.is_some_and(|at| at <= cx.now) {
            self.measure_and_decide(cx);
        }
        self.update(cx);
    }
}

#[cfg(test)]
mod tests;
