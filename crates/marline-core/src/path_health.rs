//! Path health monitor: the state of address pairs, as observed by all connections of a process together.
//!
//! *Problem.* Ten connections of a phone use the same WiFi. When it dies, a connection that is sending detects this
//! with its timers. Each of the others detects it separately, later, when its user needs it. A connection that is
//! opened in between starts on the dead path.
//!
//! *How.* Statistics are kept per *address pair*: local address, remote address, and interface. All subflows and plain
//! TCP connections on it are its members, except on loopback. Every period, two shares are smoothed, each weighted by
//! its number of segments: lost segments (those that were waiting for repair when the period began or were marked lost
//! since) as a share of those at risk, and retransmissions as a share of those sent. An address pair becomes degraded
//! when the newest period raises one of the shares to its threshold, or when a member's retransmission timeout reaches
//! its own threshold. In addition (`watch`), after a timeout on a member the address pair is probed immediately, a few
//! times in quick succession: if no member receives anything, the pair is degraded; if the peer answers, a single
//! segment was lost. An expired receive timer or unanswered keepalives have the same effect as unanswered probes.
//!
//! *Consequences.* Every member on a degraded address pair is unreachable until it receives something, and then
//! degraded (`Health`): its outstanding data is reinjected on other subflows, path managers open their reserve paths,
//! schedulers avoid it, clients open new connections on other paths first. A retransmission timeout alone has less
//! effect, as in the source: it makes members degraded, which keeps new data off them.
//!
//! *Recovery* (`clean`). While an address pair is degraded, it is probed periodically, on one member. When every
//! probe of a whole clean period was answered and there was no timeout, the verdict is lifted. The original module
//! never clears its flag: a subflow once suspected is used last for the rest of its lifetime, so a phone that returns
//! to its WiFi would stay on cellular. A verdict also ends when the address pair has had no members for a clean
//! period, because no member is left to confirm it.
//!
//! *Source.* MultiMob's kernel module (De Coninck and Bonaventure), reimplemented from its behavior;
//! [`PathHealthConfig::multimob`] has its values. In that module, the first timeout of 1.5 s also hides later
//! triggers until a clean second; here no trigger hides another. Its rule for idle paths is
//! `ConnectionConfig::lone_keepalive`, off by default as in the module, and on in `--mode interactive`.
//!
//! The monitor is deterministic: time is an argument, maps are ordered, and the number of address pairs is bounded. All
//! endpoints of a process share one handle and must use one clock. Each visits the monitor once per period, when a
//! timer expired, and when a probe is due, but never per packet.

mod average;
mod table;

use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_policy::{AddressPair, AddressPairFault, PathHealth, PathHealthConfig};
use marline_time::Duration;

pub(crate) use table::{HealthTable, MemberActivity, PathTrouble};

/// Path health monitor, which several endpoints may share. Clones refer to the same monitor.
#[derive(Clone, Debug)]
pub struct PathHealthMonitor {
    table: Arc<Mutex<HealthTable>>,
    /// Increases with each change of a verdict.
    generation: Arc<AtomicU64>,
}

/// One address pair in the path health monitor's table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AddressPairInfo {
    /// Address pair.
    pub address_pair: AddressPair,
    /// Members: established subflows and plain TCP connections.
    pub members: u64,
    /// Smoothed share of lost segments, 0 to 1.
    pub loss: f64,
    /// Smoothed share of retransmitted segments, 0 to 1.
    pub retransmissions: f64,
    /// Largest retransmission timeout of the members, with backoff.
    pub rto: Duration,
    /// Health of the pair: usable; degraded, so that it carries new data only if no other can; or unreachable, if
    /// nothing has been received since the pair became degraded.
    pub health: PathHealth,
    /// Fault of the pair, if it is not usable.
    pub cause: Option<AddressPairFault>,
    /// A timeout occurred on the pair, which is now being probed.
    pub watched: bool,
    /// Number of times the pair became degraded.
    pub times_degraded: u64,
}

impl PathHealthMonitor {
    /// A path health monitor without any observations.
    #[must_use]
    pub fn new(config: PathHealthConfig) -> Self {
        let table = Arc::new(Mutex::new(HealthTable::new(config)));
        PathHealthMonitor { table, generation: Arc::new(AtomicU64::new(0)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HealthTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes changed verdicts.
    pub(crate) fn publish(&self, table: &HealthTable) {
        self.generation.store(table.generation(), Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// State of all address pairs.
    #[must_use]
    pub fn table(&self) -> Vec<AddressPairInfo> {
        self.lock().table()
    }

    /// True if a connection from `local` to `remote` would start on a degraded address pair.
    #[must_use]
    pub fn is_degraded(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.lock().is_degraded(local, remote)
    }

    /// Sets the interface of an address. Observations of the address on another interface are dropped.
    pub fn set_interface(&self, local: IpAddr, interface: u32) {
        let mut table = self.lock();
        table.set_interface(local, interface);
        self.publish(&table);
    }
}

#[cfg(test)]
mod tests;
