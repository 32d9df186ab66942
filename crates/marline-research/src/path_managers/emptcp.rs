//! eMPTCP: the interfaces over which a byte costs the least energy (Lim, Chen, Nahum, Towsley, Gibbens, 2015).
//!
//! *Problem.* A second path makes a download faster, and a cellular radio draws ten times the power of WiFi while it
//! carries anything, and nearly that for ten seconds afterwards. Whether it saves energy or wastes it depends on the
//! rates: power is paid by the second, so a slow WiFi that takes minutes costs more than a fast cellular link that is
//! done in seconds. A small transfer never pays for the tail.
//!
//! *How.* At the client; a path whose address is flagged `backup`, or has a radio whose sleep matters, is cellular,
//! any other one WiFi.
//! - *Meters.* What passes on each interface is looked at each 50 ms, and smoothed with its trend (`meter.rs`). Pauses
//!   of more than 200 ms are the application's, and what passes around them is not counted.
//! - *Energy information base* (`energy_base.rs`). For the expected rates: joules per byte over WiFi alone, cellular
//!   alone, both. One in use is left only for what is cheaper by `margin`, and after two seconds at the least.
//! - *Delayed establishment.* A transfer (bytes without a pause of half a second) begins over WiFi alone. Nothing is
//!   weighed before it brought `bytes`, or went on for `time`. Only then a cellular subflow is opened.
//! - *Suspension.* MP_PRIO makes a subflow a backup that is not wanted, and a regular one that is wanted again. When
//!   a transfer is over, the cellular one is suspended.
//! - *Failure.* If no WiFi subflow is well (silent, doubtful, or gone), energy does not count: the cellular subflow is
//!   opened or resumed at once.
//! - *Another look.* A suspended WiFi is not measured. After `again` it takes part for two seconds.
//!
//! *Source.* The published description: an energy information base, a predictor of bandwidths, delayed establishment
//! by bytes or time, suspension by MP_PRIO. The paper's powers, formulas and constants could not be had: **all of them
//! are ours.** The powers are those of the energy meter of the lab (docs/research/link.md, Radios). Written anew.
//!
//! *What differs.* The wake-up of the radio (promotion and tail, 12.6 J for LTE) is part of the price: it is shared
//! among as many bytes as the transfer has brought so far, for the longer a transfer went on, the longer it will. What
//! is still awake costs that share of a wake-up for which it has not been used. The delay holds for each transfer, not
//! only for the first.
//!
//! *What it can not know.* A receiver can not tell a path that is slow from a server that sends slowly without
//! pauses. Such a transfer wakes the radio once it is long enough, and lets it sleep when the rate there shows that
//! nothing is gained.

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

/// From one look to the next while bytes pass, and at most.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_MOST: Duration = Duration::from_secs(1);
/// A longer pause ends a transfer.
const PAUSE: Duration = Duration::from_millis(500);
/// A choice stays for this time.
const STAY: Duration = Duration::from_secs(2);

/// When cellular is thought of, and what is supposed of it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct EmptcpConfig {
    /// Bytes of a transfer after which interfaces are weighed.
    pub bytes: u64,
    /// Time of a transfer after which they are weighed, however little it brought.
    pub time: Duration,
    /// The share by which another set must be cheaper; 0 to 0.9.
    pub margin: f64,
    /// The cellular rate before it was measured, bytes a second; more than zero.
    pub supposed: u64,
    /// Time after which a suspended WiFi is looked at again.
    pub again: Duration,
    /// The cellular radio.
    pub radio: RadioKind,
}

impl Default for EmptcpConfig {
    fn default() -> Self {
        EmptcpConfig {
            bytes: 1_000_000,
            time: Duration::from_secs(3),
            margin: 0.1,
            supposed: 1_250_000,
            again: Duration::from_secs(10),
            radio: RadioKind::Lte,
        }
    }
}

/// Bytes without a longer pause.
#[derive(Copy, Clone, Debug)]
struct Transfer {
    since: Instant,
    bytes: u64,
    /// Those that this side sent.
    sent: u64,
}

/// Opens, suspends and resumes subflows by the energy of a byte.
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
    /// Counters of bytes sent and received, as of the last look.
    counters: BTreeMap<SubflowId, [u32; 2]>,
    /// What priority was asked for: the peer may insist on its own view.
    asked: BTreeMap<SubflowId, bool>,
    actions: VecDeque<PathAction>,
    look_at: Option<Instant>,
}

impl Emptcp {
    /// With these settings.
    #[must_use]
    pub fn new(config: EmptcpConfig) -> Self {
        Emptcp {
            config,
            base: EnergyBase::new(config.radio),
            mesh: FullMesh::default(),
            established: false,
            set: InterfaceSet::Wifi,
            set_at: Instant::ZERO,
            wifi: Meter::default(),
            cellular: Meter::supposing(config.supposed as f64),
            transfer: None,
            last_moved_at: None,
            counters: BTreeMap::new(),
            asked: BTreeMap::new(),
            actions: VecDeque::new(),
            look_at: None,
        }
    }

    /// Whether there is anything to choose: a client with both kinds of addresses.
    fn chooses(cx: &PathContext<'_>) -> bool {
        let any = |wanted: bool| cx.local.iter().any(|l| l.subflow && is_cellular(l) == wanted);
        cx.role == Role::Client && any(true) && any(false)
    }

    /// Counts what passed, and decides again.
    fn look(&mut self, cx: &PathContext<'_>) {
        let mut moved = [0, 0];
        let mut sent_now = 0;
        for view in cx.subflows {
            let counters = [view.bytes_sent, view.bytes_received];
            let before = self.counters.insert(view.id, counters).unwrap_or(counters);
            let [sent, received] = [0, 1].map(|n| u64::from(counters[n].wrapping_sub(before[n])));
            moved[usize::from(on_cellular(view, cx))] += sent + received;
            sent_now += sent;
        }
        self.wifi.look(cx.now, moved[0]);
        self.cellular.look(cx.now, moved[1]);
        let bytes = moved[0] + moved[1];
        if bytes > 0 {
            self.last_moved_at = Some(cx.now);
            let fresh = Transfer { since: cx.now, bytes: 0, sent: 0 };
            let transfer = self.transfer.get_or_insert(fresh);
            transfer.bytes += bytes;
            transfer.sent += sent_now;
        } else if self.idle_for(cx.now) > PAUSE {
            self.transfer = None;
        }
        self.look_at = Some(cx.now + (self.idle_for(cx.now) / 8).clamp(LOOK, LOOK_MOST));
    }

    fn idle_for(&self, now: Instant) -> Duration {
        self.last_moved_at.map_or(LOOK_MOST * 8, |at| now.since(at))
    }

    fn decide(&mut self, cx: &PathContext<'_>) {
        let wifi_works = cx.subflows.iter().any(|view| !on_cellular(view, cx) && is_well(view));
        let set = if !wifi_works {
            InterfaceSet::Both
        } else if cx.now.since(self.set_at) < STAY {
            self.set
        } else {
            self.weigh(cx.now)
        };
        if set != self.set {
            (self.set, self.set_at) = (set, cx.now);
        }
    }

    /// The set for what is under way, while WiFi works.
    fn weigh(&self, now: Instant) -> InterfaceSet {
        let Some(transfer) = self.transfer else { return InterfaceSet::Wifi };
        let EmptcpConfig { bytes, time, margin, again, .. } = self.config;
        if transfer.bytes < bytes && now.since(transfer.since) < time {
            return self.set;
        }
        if self.set == InterfaceSet::Cellular && now.since(self.set_at) >= again {
            return InterfaceSet::Both;
        }
        // Too slow for a sample: what it brought on the whole.
        let mean = transfer.bytes as f64 / now.since(transfer.since).as_secs_f64().max(1e-3);
        let wifi = self.wifi.rate().unwrap_or(mean);
        let cellular = self.cellular.rate().unwrap_or(self.config.supposed as f64);
        let sent_share = transfer.sent as f64 / transfer.bytes.max(1) as f64;
        let rates = Rates { wifi, cellular, sent_share };
        let ahead = transfer.bytes.max(bytes) as f64;
        let unused = self.cellular.last_at().map(|at| now.since(at));
        self.base.cheapest(self.set, &rates, ahead, unused, margin)
    }

    /// What the mesh is to see: cellular addresses only while they are wanted, and then as regular ones.
    fn locals(&self, cx: &PathContext<'_>) -> Vec<LocalAddress> {
        let open = self.set.has_cellular();
        let seen = |local: &LocalAddress| match is_cellular(local) {
            true => LocalAddress { backup: false, subflow: local.subflow && open, ..*local },
            false => *local,
        };
        cx.local.iter().map(seen).collect()
    }

    fn set_priorities(&mut self, cx: &PathContext<'_>) {
        // WiFi is given up only for a subflow that is there.
        let serves = |view: &SubflowView| on_cellular(view, cx) && is_well(view);
        let spared = !self.set.has_wifi() && cx.subflows.iter().any(serves);
        for view in cx.subflows.iter().filter(|view| view.is_usable()) {
            let backup = if on_cellular(view, cx) { !self.set.has_cellular() } else { spared };
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

/// Whether a local address is that of a radio to be spared.
const fn is_cellular(local: &LocalAddress) -> bool {
    local.backup || local.cost.tail_ms > 0
}

/// Whether what is sent on a subflow is expected to arrive.
const fn is_well(view: &SubflowView) -> bool {
    let health = view.health;
    let bad = health.is_silent() || health.is_doubtful() || health.has_bad_address_pair();
    view.is_usable() && !bad
}

/// Whether a subflow starts at such an address.
fn on_cellular(view: &SubflowView, cx: &PathContext<'_>) -> bool {
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
        if !Self::chooses(cx) {
            self.look_at = None;
            self.mesh.on_event(event, cx);
            return;
        }
        let local = self.locals(cx);
        self.mesh.on_event(event, &PathContext { local: &local, ..*cx });
        self.established |= matches!(event, PathEvent::Established);
        if self.established {
            self.look_at.get_or_insert(cx.now + LOOK);
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
        self.mesh.next_timeout().into_iter().chain(self.look_at).min()
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        if !Self::chooses(cx) {
            self.look_at = None;
            self.mesh.on_timeout(cx);
            return;
        }
        if self.look_at.is_some_and(|at| at <= cx.now) {
            self.look(cx);
        }
        self.update(cx);
    }
}

#[cfg(test)]
mod tests;
