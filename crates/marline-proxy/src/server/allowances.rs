//! Allowances of a server's clients: byte quotas and limits on sessions.
//!
//! Once a second the new counts are added to the ledger. A client that has used up its quota is suspended: its
//! connections end, and new ones are refused with the reason until the month is over or the quota is raised.
//!
//! A *session* counts while it has connections, and only for three quarters of its lifetime. By then a program that
//! is still running has begun another session, which counts instead.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, interval};

use super::{ClientCounts, Server};
use crate::credentials::{SuspensionReasons, Suspensions};
use crate::ledger::{Ledger, Moment, PendingCounts, Tally};
use crate::quota::{ByteQuota, PerClient, QuotaState, period};
use crate::session::SessionId;

/// Interval at which counts are read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Limits per client.
#[derive(Clone, Debug, Default)]
pub struct ClientAllowances {
    /// Byte quotas per month, both directions together.
    pub quotas: Vec<PerClient<ByteQuota>>,
    /// Limits on concurrent sessions.
    pub sessions: Vec<PerClient<usize>>,
}

/// A client's quota and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Configured quota.
    pub quota: ByteQuota,
    /// Bytes used this month.
    pub used_bytes: u64,
    /// End of this month, in seconds since 1970.
    pub until_unix_s: u64,
    /// Usage relative to the quota.
    pub state: QuotaState,
    /// Usage as text.
    pub words: String,
}

impl QuotaUse {
    /// Computes the usage of this quota from a tally.
    #[must_use]
    pub fn new(quota: ByteQuota, tally: &Tally, now_unix_s: u64) -> QuotaUse {
        let used_bytes = tally.period_bytes;
        QuotaUse {
            quota,
            used_bytes,
            until_unix_s: quota.period(now_unix_s).end_unix_s,
            state: quota.state(used_bytes),
            words: quota.text(used_bytes, now_unix_s),
        }
    }
}

/// Returns this time with the start of the quota's month, or of the calendar month if there is no quota.
#[must_use]
pub fn moment(quota: Option<&ByteQuota>, now_unix_s: u64) -> Moment {
    let day = quota.map_or(1, |quota| quota.day);
    Moment { now_unix_s, period_start_unix_s: period(day, now_unix_s).start_unix_s }
}

/// Returns the current time, in seconds since 1970.
#[must_use]
pub fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Allowances and their usage.
#[derive(Debug, Default)]
pub(super) struct Allowances {
    state: Mutex<State>,
    places: SessionPlaces,
}

#[derive(Debug, Default)]
struct State {
    may: ClientAllowances,
    bookkeeping: Option<(Ledger, Suspensions)>,
    /// Counts already added to the ledger: connections, bytes to targets, bytes from targets.
    recorded: BTreeMap<Arc<str>, (u64, u64, u64)>,
    /// Last logged state of each client's quota.
    last_logged: BTreeMap<Arc<str>, QuotaState>,
}

impl Allowances {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, may: ClientAllowances) {
        self.lock().may = may;
    }

    /// Adds the usage of its quota to each client.
    pub(super) fn add_quotas(&self, clients: &mut [ClientCounts], now_unix_s: u64) {
        let state = self.lock();
        for client in clients {
            client.quota = state.quota_use(&client.name, now_unix_s);
        }
    }

    /// Takes a place for a connection of this session. The error holds the limit and the current number of sessions.
    pub(super) fn take_place(
        &self,
        name: &Arc<str>,
        session: SessionId,
        lifetime: Duration,
    ) -> Result<Option<Box<ConnectionPlace>>, usize> {
        let Some(most) = PerClient::find(&self.lock().may.sessions, name).copied() else {
            return Ok(None);
        };
        let counts_for = lifetime * 3 / 4;
        let seat = self.places.take_place(name, session, most, counts_for).ok_or(most)?;
        Ok(Some(Box::new(seat)))
    }
}

impl State {
    fn record_counts(&mut self, counts: &[ClientCounts], now_unix_s: u64) {
        let Some((ledger, _)) = &mut self.bookkeeping else { return };
        for client in counts {
            let noted = self.recorded.entry(Arc::clone(&client.name)).or_default();
            let now = (client.connections, client.to_targets, client.from_targets);
            if *noted == now {
                continue;
            }
            let counted = PendingCounts {
                connections: now.0.saturating_sub(noted.0),
                sent_bytes: now.1.saturating_sub(noted.1),
                received_bytes: now.2.saturating_sub(noted.2),
                seen: true,
            };
            *noted = now;
            let quota = PerClient::find(&self.may.quotas, &client.name);
            ledger.count(&client.name, counted, moment(quota, now_unix_s));
        }
    }

    fn quota_use(&self, name: &str, now_unix_s: u64) -> Option<QuotaUse> {
        let quota = PerClient::find(&self.may.quotas, name)?;
        let (ledger, _) = self.bookkeeping.as_ref()?;
        let tally = ledger.tally_of(name, moment(Some(quota), now_unix_s));
        Some(QuotaUse::new(*quota, &tally, now_unix_s))
    }

    /// Suspends exactly the clients that have used up their quota.
    fn suspend_exceeding(&mut self, names: &[Arc<str>], now_unix_s: u64) {
        let mut suspended = SuspensionReasons::new();
        for name in names {
            let used = self.quota_use(name, now_unix_s);
            let standing = used.as_ref().map_or(QuotaState::Within, |used| used.state);
            if let (Some(used), QuotaState::UsedUp) = (&used, standing) {
                let why = used.quota.refusal("this client's", now_unix_s);
                suspended.insert(Arc::clone(name), why.into());
            }
            let before = match standing {
                QuotaState::Within => self.last_logged.remove(name).unwrap_or_default(),
                _ => self.last_logged.insert(Arc::clone(name), standing).unwrap_or_default(),
            };
            match (&used, standing) {
                _ if before == standing => {}
                (Some(used), QuotaState::BeyondSoftLimit) => {
                    tracing::warn!(client = %name, "quota beyond the soft limit: {}", used.words);
                }
                (Some(used), QuotaState::UsedUp) => {
                    let used = &used.words;
                    tracing::warn!(client = %name, "quota used up; refusing the client until the month ends ({used})");
                }
                _ => tracing::info!(client = %name, "quota below the soft limit again"),
            }
        }
        if let Some((_, suspensions)) = &self.bookkeeping {
            suspensions.set(suspended);
        }
    }
}

impl Server {
    /// Applies these allowances immediately, also to connected clients.
    pub fn allow_clients(&self, may: ClientAllowances) {
        self.allowances.change(may);
        self.update_accounts(unix_s());
    }

    /// Records usage in this ledger from now on, and suspends clients that exceed their quota. `suspensions` must be a
    /// clone of the value passed to the credentials' `watch_file`.
    pub fn use_ledger(&self, ledger: Ledger, suspensions: Suspensions) {
        self.allowances.lock().bookkeeping = Some((ledger, suspensions));
    }

    /// Returns the number of failed writes of the ledger.
    #[must_use]
    pub fn ledger_failures(&self) -> u64 {
        self.allowances.lock().bookkeeping.as_ref().map_or(0, |(ledger, _)| ledger.failures())
    }

    /// Returns a client's usage of its quota, or `None` if it has no quota.
    #[must_use]
    pub fn quota_use(&self, name: &str, now_unix_s: u64) -> Option<QuotaUse> {
        self.allowances.lock().quota_use(name, now_unix_s)
    }

    /// Adds the traffic since the last call to the ledger, and updates the suspensions.
    pub fn update_accounts(&self, now_unix_s: u64) {
        let counts = self.clients();
        let names: Vec<Arc<str>> = {
            let credentials = self.credentials.borrow();
            credentials.list().iter().map(|credential| Arc::clone(&credential.name)).collect()
        };
        let mut state = self.allowances.lock();
        state.record_counts(&counts, now_unix_s);
        if !state.may.quotas.is_empty() || !state.last_logged.is_empty() {
            state.suspend_exceeding(&names, now_unix_s);
        }
    }

    /// Updates the accounts and writes their file until dropped.
    pub async fn run_account_updates(&self) {
        let mut looks = interval(CHECK_INTERVAL);
        loop {
            looks.tick().await;
            let now_unix_s = unix_s();
            self.update_accounts(now_unix_s);
            self.write_ledger(now_unix_s, false).await;
        }
    }

    /// Adds and writes the remaining counts at shutdown.
    pub async fn close_ledger(&self) {
        let now_unix_s = unix_s();
        self.update_accounts(now_unix_s);
        self.write_ledger(now_unix_s, true).await;
    }

    async fn write_ledger(&self, now_unix_s: u64, force: bool) {
        let writing = match &mut self.allowances.lock().bookkeeping {
            Some((ledger, _)) => ledger.begin_write(now_unix_s, force),
            None => None,
        };
        let Some(writing) = writing else { return };
        // Runs on a blocking thread, because a disk may be slow.
        let written = tokio::task::spawn_blocking(|| writing.run()).await;
        if let (Ok(written), Some((ledger, _))) = (written, &mut self.allowances.lock().bookkeeping)
        {
            ledger.finish(written);
        }
    }
}

/// Connections by session, of clients whose sessions are limited.
#[derive(Debug, Default)]
struct SessionPlaces(Arc<Mutex<OccupiedPlaces>>);

type OccupiedPlaces = BTreeMap<Arc<str>, BTreeMap<SessionId, OccupiedPlace>>;

#[derive(Debug)]
struct OccupiedPlace {
    connections: usize,
    /// Time until which the session counts.
    counts_until: Instant,
}

/// Place of a connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    name: Arc<str>,
    session: SessionId,
    occupied_places: Arc<Mutex<OccupiedPlaces>>,
}

fn lock_places(places: &Mutex<OccupiedPlaces>) -> MutexGuard<'_, OccupiedPlaces> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionPlaces {
    /// Takes a place in a session that already has connections, or in a new one if there are fewer than `most`
    /// sessions.
    fn take_place(
        &self,
        name: &Arc<str>,
        session: SessionId,
        most: usize,
        counts_for: Duration,
    ) -> Option<ConnectionPlace> {
        let now = Instant::now();
        let mut seated = lock_places(&self.0);
        let sessions = seated.entry(Arc::clone(name)).or_default();
        let others = sessions.values().filter(|occupied| occupied.counts_until > now).count();
        if let Some(occupied) = sessions.get_mut(&session) {
            occupied.connections += 1;
        } else if others < most {
            let occupied = OccupiedPlace { connections: 1, counts_until: now + counts_for };
            sessions.insert(session, occupied);
        } else {
            return None;
        }
        Some(ConnectionPlace {
            name: Arc::clone(name),
            session,
            occupied_places: Arc::clone(&self.0),
        })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut seated = lock_places(&self.occupied_places);
        let Some(sessions) = seated.get_mut(&self.name) else { return };
        if let Some(occupied) = sessions.get_mut(&self.session) {
            occupied.connections -= 1;
            if occupied.connections == 0 {
                sessions.remove(&self.session);
            }
        }
        if sessions.is_empty() {
            seated.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_young_sessions_with_connections_are_counted() {
        let (occupied_places, name) = (SessionPlaces::default(), Arc::<str>::from("laptop"));
        let id = |number| SessionId::from_bytes([number; SessionId::LEN]);
        let counts_for = Duration::from_secs(2_700);
        let enter =
            |name: &Arc<str>, session| occupied_places.take_place(name, session, 2, counts_for);
        let first = enter(&name, id(1)).unwrap();
        let again = enter(&name, id(1)).unwrap();
        let second = enter(&name, id(2)).unwrap();
        assert!(enter(&name, id(3)).is_none());
        assert!(enter(&Arc::from("phone"), id(3)).is_some(), "limits apply per client");
        drop(first);
        assert!(enter(&name, id(3)).is_none(), "another connection of the session is open");
        drop(again);
        let third = enter(&name, id(3)).unwrap();
        // By now both would have begun other sessions.
        tokio::time::advance(counts_for).await;
        let renewed = [4, 5].map(|number| enter(&name, id(number)).unwrap());
        assert!(enter(&name, id(6)).is_none());
        drop((second, third, renewed));
        assert!(lock_places(&occupied_places.0).is_empty(), "no entry remains");
    }
}
