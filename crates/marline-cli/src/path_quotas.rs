//! Quotas of a client's paths: every packet is counted on its path, including headers, in both directions.
//!
//! Beyond the soft limit a path is treated as metered regardless of its other settings, so that the policy uses it
//! sparingly. When the quota is used up, the path is not used until the month is over. The counts are kept in a ledger
//! ([`marline_proxy::ledger`]) under the path's name in the quota.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline::Client;
use marline::advanced::{
    Direction, ObservedPath, ObservedSegments, PacketObserver, SharedObserver,
};
use marline::paths::{PathRestriction, PathSpec, PathStatus};
use marline::time::Instant;
use marline_proxy::ledger::{Ledger, PendingCounts};
use marline_proxy::quota::QuotaState;
use marline_proxy::server::allowances::{QuotaUse, moment, unix_s};

use crate::config::PathQuota;

/// Interval at which counts are read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of counted paths. Beyond it, removed paths are forgotten.
const PATH_LIMIT: usize = 64;

/// Identity of a path without its flags and number: its name, and its remote address if that is fixed.
type Key = (String, Option<SocketAddr>);

fn key(spec: &PathSpec) -> Key {
    (spec.short_name(), spec.remote)
}

/// State of a path that a quota depends on.
struct PathSample {
    spec: PathSpec,
    interface: Option<String>,
    addresses: Vec<IpAddr>,
}

impl From<&PathStatus> for PathSample {
    fn from(path: &PathStatus) -> Self {
        let (spec, interface) = (path.spec.clone(), path.interface.clone());
        PathSample { spec, interface, addresses: path.addresses.clone() }
    }
}

/// Quotas and their usage. Clones share their state.
#[derive(Clone, Debug)]
pub struct PathQuotas {
    meters: Arc<Mutex<Meters>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    quotas: Vec<PathQuota>,
    file: PathBuf,
    /// Ledger with the usage; opened as soon as there is a quota.
    ledger: Option<Ledger>,
    /// Counts already added to the ledger.
    recorded: BTreeMap<Key, (u64, u64)>,
    /// Restriction applied to each path.
    applied: BTreeMap<Key, QuotaState>,
    /// Usage by path number.
    uses: BTreeMap<usize, QuotaUse>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PathQuotas {
    /// Creates quotas whose usage is stored in `file`.
    #[must_use]
    pub fn new(quotas: Vec<PathQuota>, file: PathBuf) -> PathQuotas {
        let state = State {
            quotas: Vec::new(),
            file,
            ledger: None,
            recorded: BTreeMap::new(),
            applied: BTreeMap::new(),
            uses: BTreeMap::new(),
        };
        let (meters, state) = (Arc::default(), Arc::new(Mutex::new(state)));
        let made = PathQuotas { meters, state };
        made.change(quotas);
        made
    }

    /// Creates an observer for the client's packets.
    #[must_use]
    pub fn observer(&self) -> SharedObserver {
        Arc::clone(&self.meters) as _
    }

    /// Applies these quotas.
    pub fn change(&self, quotas: Vec<PathQuota>) {
        let mut state = lock(&self.state);
        if !quotas.is_empty() && state.ledger.is_none() {
            state.ledger = Some(Ledger::open(state.file.clone()));
        }
        state.quotas = quotas;
    }

    /// Returns the usage of the quota of the path with this number, or `None` if it has no quota.
    #[must_use]
    pub fn quota_use(&self, path: usize) -> Option<QuotaUse> {
        lock(&self.state).uses.get(&path).cloned()
    }

    /// Returns the number of failed ledger writes.
    #[must_use]
    pub fn ledger_failures(&self) -> u64 {
        lock(&self.state).ledger.as_ref().map_or(0, Ledger::failures)
    }

    /// Adds new counts and restricts the client's paths accordingly.
    pub fn add_counts(&self, client: &Client, now_unix_s: u64) {
        let paths: Vec<PathSample> = client.paths().iter().map(PathSample::from).collect();
        let counts = lock(&self.meters).counts();
        let changes = lock(&self.state).apply_counts(&paths, &counts, now_unix_s);
        for (number, restriction) in changes {
            // Paths may have changed in the meantime. The next call corrects this.
            if let Err(error) = client.restrict_path(&number.to_string(), restriction) {
                tracing::debug!("{error}");
            }
        }
    }

    /// Updates the quotas and writes their file until dropped.
    pub async fn update_until_dropped(&self, client: &Client) {
        let mut looks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            looks.tick().await;
            let now_unix_s = unix_s();
            self.add_counts(client, now_unix_s);
            self.write(now_unix_s, false).await;
        }
    }

    /// Adds and writes the remaining counts at shutdown.
    pub async fn close(&self, client: &Client) {
        let now_unix_s = unix_s();
        self.add_counts(client, now_unix_s);
        self.write(now_unix_s, true).await;
    }

    async fn write(&self, now_unix_s: u64, force: bool) {
        let begin = |ledger: &mut Ledger| ledger.begin_write(now_unix_s, force);
        let Some(writing) = lock(&self.state).ledger.as_mut().and_then(begin) else { return };
        // Runs on a blocking thread, because a disk may be slow.
        let written = tokio::task::spawn_blocking(|| writing.run()).await;
        if let (Ok(written), Some(ledger)) = (written, &mut lock(&self.state).ledger) {
            ledger.finish(written);
        }
    }
}

impl State {
    /// Adds new counts. Returns changed restrictions by path number.
    fn apply_counts(
        &mut self,
        paths: &[PathSample],
        counts: &BTreeMap<Key, (u64, u64)>,
        now_unix_s: u64,
    ) -> Vec<(usize, PathRestriction)> {
        let quotas: Vec<Option<PathQuota>> = paths.iter().map(|path| self.quota_of(path)).collect();
        for (path, quota) in paths.iter().zip(&quotas) {
            let (key, now) = (key(&path.spec), counts.get(&key(&path.spec)));
            let now = now.copied().unwrap_or_default();
            let before = self.recorded.insert(key, now).unwrap_or_default();
            let (Some(PathQuota { path, quota }), Some(ledger)) = (quota, &mut self.ledger) else {
                continue;
            };
            let counted = PendingCounts {
                sent_bytes: now.0.saturating_sub(before.0),
                received_bytes: now.1.saturating_sub(before.1),
                seen: now != before,
                ..PendingCounts::default()
            };
            ledger.count(path, counted, moment(Some(quota), now_unix_s));
        }
        self.uses.clear();
        let mut applied = BTreeMap::new();
        let mut changes = Vec::new();
        for (number, (path, quota)) in paths.iter().zip(quotas).enumerate() {
            let used = quota.and_then(|PathQuota { path, quota }| {
                let tally = self.ledger.as_ref()?.tally_of(&path, moment(Some(&quota), now_unix_s));
                Some(QuotaUse::new(quota, &tally, now_unix_s))
            });
            let standing = used.as_ref().map_or(QuotaState::Within, |used| used.state);
            let key = key(&path.spec);
            let before = self.applied.get(&key).copied().unwrap_or_default();
            if before != standing {
                log_change(&key.0, used.as_ref(), standing);
                changes.push((number, restriction(used.as_ref(), standing, now_unix_s)));
            }
            applied.insert(key, standing);
            if let Some(used) = used {
                self.uses.insert(number, used);
            }
        }
        // Removed paths are forgotten, and checked again if they return.
        self.recorded.retain(|key, _| applied.contains_key(key) || counts.contains_key(key));
        self.applied = applied;
        changes
    }

    /// Returns the quota for this path, by its name, its interface, or one of its addresses.
    fn quota_of(&self, path: &PathSample) -> Option<PathQuota> {
        let named = |quota: &&PathQuota| {
            let name = quota.path.as_str();
            path.spec.short_name() == name
                || path.spec.name.as_deref() == Some(name)
                || path.interface.as_deref() == Some(name)
                || path.spec.local.to_string() == name
                || path.addresses.iter().any(|address| address.to_string() == name)
        };
        self.quotas.iter().find(named).cloned()
    }
}

fn restriction(used: Option<&QuotaUse>, standing: QuotaState, now_unix_s: u64) -> PathRestriction {
    match (used, standing) {
        (_, QuotaState::Within) | (None, _) => PathRestriction::None,
        (Some(_), QuotaState::BeyondSoftLimit) => PathRestriction::Metered,
        (Some(used), QuotaState::UsedUp) => {
            PathRestriction::Unusable(used.quota.refusal("its", now_unix_s))
        }
    }
}

fn log_change(path: &str, used: Option<&QuotaUse>, standing: QuotaState) {
    let words = used.map_or_else(String::new, |used| used.words.clone());
    match standing {
        QuotaState::Within => {
            tracing::info!("path {path}: below the soft limit of its quota again")
        }
        QuotaState::BeyondSoftLimit => {
            tracing::warn!("path {path}: beyond the soft limit of its quota ({words}); now metered")
        }
        QuotaState::UsedUp => {
            tracing::warn!("path {path}: quota used up ({words}); not used until the month ends")
        }
    }
}

/// Bytes counted by path.
#[derive(Debug, Default)]
struct Meters {
    paths: BTreeMap<Key, Meter>,
}

#[derive(Debug, Default)]
struct Meter {
    addresses: Vec<IpAddr>,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Meters {
    fn counts(&self) -> BTreeMap<Key, (u64, u64)> {
        let count = |meter: &Meter| (meter.sent_bytes, meter.received_bytes);
        self.paths.iter().map(|(key, meter)| (key.clone(), count(meter))).collect()
    }

    fn add(&mut self, direction: Direction, local: IpAddr, remote: SocketAddr, bytes: u64) {
        let here = |(key, meter): &(&Key, &mut Meter)| {
            meter.addresses.contains(&local) && key.1.is_none_or(|leads_to| leads_to == remote)
        };
        let Some((_, meter)) = self.paths.iter_mut().find(here) else { return };
        match direction {
            Direction::Sent => meter.sent_bytes += bytes,
            Direction::Received => meter.received_bytes += bytes,
        }
    }
}

impl PacketObserver for Meters {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let (local, remote) = (observed.local_ip(), observed.path.remote);
        self.add(observed.direction, local, remote, observed.packet_bytes());
    }

    fn frames(&mut self, direction: Direction, local: IpAddr, remote: SocketAddr, bytes: u64) {
        self.add(direction, local, remote, bytes);
    }

    fn path(&mut self, _at: Instant, path: &ObservedPath<'_>) {
        if self.paths.len() >= PATH_LIMIT {
            self.paths.retain(|_, meter| !meter.addresses.is_empty());
        }
        self.paths.entry(key(path.spec)).or_default().addresses = path.addresses.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-24 12:00 UTC.
    const NOVEMBER: u64 = 1_795_521_600;
    const WEEK_S: u64 = 7 * 86_400;

    fn status(spec: &str, address: &str) -> PathSample {
        let spec: PathSpec = spec.parse().unwrap();
        let interface = Some(spec.local.to_string());
        PathSample { spec, interface, addresses: vec![address.parse().unwrap()] }
    }

    fn quotas(texts: &[&str], file: &std::path::Path) -> PathQuotas {
        let quotas = texts.iter().map(|text| text.parse().unwrap()).collect();
        PathQuotas::new(quotas, file.to_path_buf())
    }

    fn counts(spec: &str, sent: u64, received: u64) -> BTreeMap<Key, (u64, u64)> {
        [(key(&spec.parse().unwrap()), (sent, received))].into()
    }

    #[test]
    fn a_path_is_metered_beyond_the_soft_limit_unused_beyond_the_hard_one_and_free_next_month() {
        let dir = tempfile::tempdir().unwrap();
        let all = quotas(&["lte=1000B,soft=50%"], &dir.path().join("state"));
        let paths = [status("wlan0", "192.0.2.1"), status("wwan0,name=lte", "192.0.2.2")];
        let lte = paths[1].spec.to_string();
        let look = |sent, received, now| {
            let counts = counts(&lte, sent, received);
            lock(&all.state).apply_counts(&paths, &counts, now)
        };
        assert_eq!(look(100, 100, NOVEMBER), []);
        assert_eq!(look(400, 100, NOVEMBER), [(1, PathRestriction::Metered)]);
        assert_eq!(look(500, 100, NOVEMBER), [], "once");
        assert_eq!(all.quota_use(1).unwrap().used_bytes, 600);
        assert_eq!(all.quota_use(0), None);
        let why = "its quota of 1kB is used up until 2026-12-01 UTC".to_owned();
        assert_eq!(look(500, 500, NOVEMBER), [(1, PathRestriction::Unusable(why))]);
        assert_eq!(look(500, 500, NOVEMBER + WEEK_S), [(1, PathRestriction::None)]);
        // The quota is lowered, and then removed.
        all.change(vec!["wwan0=10B".parse().unwrap()]);
        assert_eq!(look(600, 500, NOVEMBER + WEEK_S).len(), 1);
        all.change(Vec::new());
        assert_eq!(look(700, 500, NOVEMBER + WEEK_S), [(1, PathRestriction::None)]);
        assert_eq!(all.quota_use(1), None);
    }

    #[test]
    fn traffic_before_the_quota_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state");
        let all = quotas(&[], &file);
        let paths = [status("wwan0", "192.0.2.2")];
        lock(&all.state).apply_counts(&paths, &counts("wwan0", 5_000, 0), NOVEMBER);
        all.change(vec!["192.0.2.2=1000B".parse().unwrap()]);
        lock(&all.state).apply_counts(&paths, &counts("wwan0", 5_100, 0), NOVEMBER);
        assert_eq!(all.quota_use(0).unwrap().used_bytes, 100);
    }

    #[test]
    fn packets_are_counted_on_their_path() {
        let mut meters = Meters::default();
        let (lte, other): (PathSpec, PathSpec) = (
            "192.0.2.2=198.51.100.1:7".parse().unwrap(),
            "192.0.2.2=198.51.100.9:7".parse().unwrap(),
        );
        let address = IpAddr::from([192, 0, 2, 2]);
        for (number, spec) in [&lte, &other].into_iter().enumerate() {
            let path = ObservedPath { number, spec, interface: None, addresses: &[address] };
            meters.path(Instant::ZERO, &path);
        }
        let remote = |text: &str| text.parse::<SocketAddr>().unwrap();
        meters.frames(Direction::Sent, address, remote("198.51.100.1:7"), 100);
        meters.frames(Direction::Received, address, remote("198.51.100.9:7"), 30);
        meters.frames(Direction::Received, address, remote("203.0.113.1:7"), 1_000);
        let counts = meters.counts();
        assert_eq!((counts[&key(&lte)], counts[&key(&other)]), ((100, 0), (0, 30)));
        for number in 0..200 {
            let spec: PathSpec = format!("eth{number}").parse().unwrap();
            let path = ObservedPath { number, spec: &spec, interface: None, addresses: &[] };
            meters.path(Instant::ZERO, &path);
        }
        assert!(meters.paths.len() <= PATH_LIMIT + 1);
    }
}
