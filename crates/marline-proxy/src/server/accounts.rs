//! Accounts of a server's clients: counts per credential since the start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use marline::memory::{MemoryAccount, MemoryBudget};

use super::allowances::QuotaUse;
use crate::relay::Traffic;
use crate::relay::turns::{AccountTurns, FairTurns};

/// Counts of one credential.
#[derive(Debug)]
pub(super) struct Account {
    /// Bytes from and to the client's targets.
    pub(super) traffic: Arc<Traffic>,
    connections: AtomicU64,
    /// Time of the last new connection, in seconds since 1970.
    seen_at_s: AtomicU64,
}

impl Account {
    /// Creates an account with this memory account, and with these turns for its relays.
    fn new(memory: MemoryAccount, turns: AccountTurns) -> Account {
        Account {
            traffic: Arc::new(Traffic::with_turns(memory, turns)),
            connections: AtomicU64::new(0),
            seen_at_s: AtomicU64::new(0),
        }
    }

    /// Returns the memory account of the client.
    pub(super) fn memory(&self) -> &MemoryAccount {
        self.traffic.memory()
    }

    /// Counts a new connection.
    pub(super) fn on_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.seen_at_s.store(now.as_secs(), Ordering::Relaxed);
    }
}

/// Snapshot of the counts of one credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCounts {
    /// Name of the credential.
    pub name: Arc<str>,
    /// Connections that authenticated with it.
    pub connections: u64,
    /// Number of these connections that are open.
    pub open: u64,
    /// Bytes to targets.
    pub to_targets: u64,
    /// Bytes from targets.
    pub from_targets: u64,
    /// Time of the last new connection.
    pub seen_at: SystemTime,
    /// Usage of the quota.
    pub quota: Option<QuotaUse>,
    /// Memory in use, in bytes.
    pub memory: u64,
    /// Number of waits for memory.
    pub memory_waits: u64,
}

/// The accounts by name. Only credentials of the server's own file have one.
#[derive(Debug)]
pub(super) struct Accounts {
    by_name: Mutex<BTreeMap<Arc<str>, Arc<Account>>>,
    budget: MemoryBudget,
    turns: FairTurns,
}

impl Accounts {
    /// Creates an empty table whose accounts will share this budget.
    pub(super) fn new(budget: MemoryBudget) -> Accounts {
        Accounts { by_name: Mutex::default(), budget, turns: FairTurns::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Account>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the account of this credential.
    pub(super) fn account_of(&self, name: &Arc<str>) -> Arc<Account> {
        let new = || Arc::new(Account::new(self.budget.account(u64::MAX), self.turns.account()));
        Arc::clone(self.lock().entry(Arc::clone(name)).or_insert_with(new))
    }

    /// Returns the counts of all clients so far, by name. `open` gives the current number of a client's connections.
    pub(super) fn counts(&self, open: impl Fn(&Arc<str>) -> usize) -> Vec<ClientCounts> {
        let accounts = self.lock().clone();
        let shown = accounts.into_iter().map(|(name, account)| {
            let (to_targets, from_targets) = account.traffic.counts();
            let seen_at = Duration::from_secs(account.seen_at_s.load(Ordering::Relaxed));
            ClientCounts {
                open: open(&name) as u64,
                connections: account.connections.load(Ordering::Relaxed),
                to_targets,
                from_targets,
                seen_at: SystemTime::UNIX_EPOCH + seen_at,
                quota: None,
                memory: account.memory().used(),
                memory_waits: account.memory().wait_count(),
                name,
            }
        });
        shown.filter(|counts| counts.connections > 0).collect()
    }
}
