//! Session table of a server: by id, with few sessions per credential, each for at most an hour.
//!
//! Sessions live in memory only. They are removed, with their secrets overwritten, when they expire, when their
//! credential is revoked, when newer ones need the space, and when the server ends. A client that names an unknown
//! session has to use TLS.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::credentials::Credentials;
use crate::server::Client;
use crate::session::{LIFETIME, Session, SessionId};

/// Maximum number of sessions per credential. Beyond it, the oldest is removed. A program needs only one, but several
/// programs may share a credential.
const MAX_PER_CLIENT: usize = 64;
/// Maximum number of sessions in total. Beyond it, the oldest is removed.
const MAX_TOTAL: usize = 16_384;

/// A known session.
#[derive(Clone, Debug)]
struct KnownSession {
    session: Arc<Session>,
    client: Client,
    ends: Instant,
}

#[derive(Debug, Default)]
struct Table {
    known: BTreeMap<SessionId, KnownSession>,
    /// Session ids in order of creation, which is the order of expiry. Includes some removed ids.
    order: VecDeque<SessionId>,
    /// Session ids by credential name, in order of creation.
    by_client: BTreeMap<Arc<str>, VecDeque<SessionId>>,
    /// The credentials that all sessions were last checked against.
    checked: Option<Arc<Credentials>>,
    /// True if a task waits for the next expiry.
    watched: bool,
}

impl Table {
    fn remove(&mut self, id: SessionId) {
        let Some(gone) = self.known.remove(&id) else { return };
        if let Some(ids) = self.by_client.get_mut(&gone.client.name) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_client.remove(&gone.client.name);
            }
        }
    }

    /// Removes expired sessions and those whose credential was removed.
    fn sweep(&mut self, now: Instant, credentials: &Arc<Credentials>) {
        while let Some(id) = self.order.front().copied() {
            if self.known.get(&id).is_some_and(|known| known.ends > now) {
                break;
            }
            self.order.pop_front();
            self.remove(id);
        }
        if self.checked.as_ref().is_some_and(|checked| Arc::ptr_eq(checked, credentials)) {
            return;
        }
        self.checked = Some(Arc::clone(credentials));
        let revoked = |known: &&KnownSession| credentials.find(&known.client.digest).is_none();
        let gone: Vec<_> = self.known.values().filter(revoked).map(|k| k.session.id()).collect();
        gone.into_iter().for_each(|id| self.remove(id));
    }

    fn make_room(&mut self, name: &Arc<str>) {
        let of_client = self.by_client.get(name);
        let oldest = of_client.filter(|ids| ids.len() >= MAX_PER_CLIENT).and_then(VecDeque::front);
        if let Some(id) = oldest.copied() {
            self.remove(id);
        }
        while self.known.len() >= MAX_TOTAL {
            let Some(id) = self.order.pop_front() else { return };
            self.remove(id);
        }
        // A removed id stays in the order until it reaches the front. This bounds how many do.
        if self.order.len() >= 2 * MAX_TOTAL {
            let known = &self.known;
            self.order.retain(|id| known.contains_key(id));
        }
    }
}

/// The sessions of a server.
#[derive(Debug)]
pub(super) struct Sessions {
    table: Arc<Mutex<Table>>,
    credentials: watch::Receiver<Arc<Credentials>>,
    lifetime: Duration,
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    /// Creates an empty table. Sessions last `lifetime`, at most an hour.
    pub(super) fn new(
        credentials: watch::Receiver<Arc<Credentials>>,
        lifetime: Duration,
    ) -> Sessions {
        Sessions { table: Arc::default(), credentials, lifetime: lifetime.min(LIFETIME) }
    }

    /// Returns the lifetime of a session.
    pub(super) fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Returns the session with this id, and its client.
    pub(super) fn find(&self, id: SessionId) -> Option<(Arc<Session>, Client)> {
        let mut table = lock(&self.table);
        table.sweep(Instant::now(), &self.credentials.borrow());
        table.known.get(&id).map(|known| (Arc::clone(&known.session), known.client.clone()))
    }

    /// Adds a session of `client`.
    pub(super) fn add_session(&self, session: Arc<Session>, client: &Client) {
        let now = Instant::now();
        let mut table = lock(&self.table);
        table.sweep(now, &self.credentials.borrow());
        table.make_room(&client.name);
        let id = session.id();
        let client = client.clone();
        table.order.push_back(id);
        table.by_client.entry(Arc::clone(&client.name)).or_default().push_back(id);
        table.known.insert(id, KnownSession { session, client, ends: now + self.lifetime });
        if !std::mem::replace(&mut table.watched, true) {
            tokio::spawn(expire_sessions(Arc::downgrade(&self.table), self.credentials.clone()));
        }
    }

    /// Removes all sessions.
    #[cfg(test)]
    pub(super) fn clear(&self) {
        let mut table = lock(&self.table);
        let ids: Vec<_> = table.known.keys().copied().collect();
        ids.into_iter().for_each(|id| table.remove(id));
    }

    /// Returns the number of sessions.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.table).known.len()
    }
}

/// Removes sessions when they expire or their credential is removed, until none is left.
async fn expire_sessions(
    table: Weak<Mutex<Table>>,
    mut credentials: watch::Receiver<Arc<Credentials>>,
) {
    let mut followed = true;
    while let Some(table) = table.upgrade() {
        let next = {
            let mut table = lock(&table);
            let now_known = Arc::clone(&credentials.borrow_and_update());
            table.sweep(Instant::now(), &now_known);
            let next = table.order.front().and_then(|id| table.known.get(id));
            let next = next.map(|known| known.ends);
            table.watched = next.is_some();
            next
        };
        drop(table);
        let Some(next) = next else { return };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            changed = credentials.changed(), if followed => followed = changed.is_ok(),
        }
    }
}
