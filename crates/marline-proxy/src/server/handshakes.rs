//! Queue of the TLS handshakes of unauthenticated connections.
//!
//! A bounded number of handshakes runs at once, with a limit per source and in total. The others wait, in order of
//! arrival within their source, and can be evicted by newcomers like silent connections. A running handshake is
//! protected, because evicting it wastes the work of both sides: in a crowd of honest clients, all would evict each
//! other. It is evicted only if another source has fewer handshakes running, or if it has stalled.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_io::{PendingId, PendingLimits, PendingPeers, PendingTable, Source};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep};

use super::admission::AdmissionLimits;

/// Duration after which a handshake counts as stalled and can be evicted for any other.
const STALL_TIME: Duration = Duration::from_secs(3);
/// Interval of checks for stalled handshakes while others wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Handshakes that run or wait.
#[derive(Clone, Debug)]
pub(super) struct HandshakeQueue {
    waiting: PendingTable,
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    limits: PendingLimits,
    running: Mutex<PendingPeers<Running>>,
    /// Notified when a running handshake has ended.
    freed: Notify,
    /// Semaphores for running handshakes per source. Only sources with running or waiting handshakes have one.
    sources: Mutex<BTreeMap<Source, Arc<Semaphore>>>,
}

/// A running handshake. Dropping `_evict` evicts it.
#[derive(Debug)]
struct Running {
    since: Instant,
    _evict: oneshot::Sender<()>,
}

/// Permission to make a TLS handshake.
#[derive(Debug)]
pub(super) struct HandshakePermit {
    table: Arc<Table>,
    source: Source,
    id: PendingId,
    evicted: oneshot::Receiver<()>,
    _of_source: OwnedSemaphorePermit,
}

/// A connection was evicted to make room for others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Evicted;

impl HandshakeQueue {
    /// A queue with these limits.
    #[must_use]
    pub(super) fn new(limits: AdmissionLimits) -> HandshakeQueue {
        let total = limits.total.max(1);
        let running = PendingLimits { total, per_source: limits.per_source.max(1) };
        let waiting =
            PendingLimits { total: limits.waiting_total, per_source: limits.waiting_per_source };
        let table = Table {
            limits: running,
            running: Mutex::new(PendingPeers::new(running)),
            freed: Notify::new(),
            sources: Mutex::default(),
        };
        HandshakeQueue { waiting: PendingTable::new(waiting), table: Arc::new(table) }
    }

    /// Waits for permission to run a handshake.
    ///
    /// # Errors
    /// The handshake was evicted while it waited.
    pub(super) async fn enter(&self, address: IpAddr) -> Result<HandshakePermit, Evicted> {
        let source = Source::of(address);
        let places = self.table.places_of(source);
        if let Ok(place) = Arc::clone(&places).try_acquire_owned()
            && let Some(admitted) = self.table.admit(source)
        {
            return Ok(Table::ticket(&self.table, source, admitted, place));
        }
        let mut waiting = self.waiting.admit(address);
        tokio::select! {
            ticket = self.wait(source, places) => Ok(ticket),
            () = waiting.evicted() => Err(Evicted),
        }
    }

    async fn wait(&self, source: Source, places: Arc<Semaphore>) -> HandshakePermit {
        let table = &self.table;
        let place = tokio::select! {
            // The semaphore is never closed.
            Ok(place) = places.acquire_owned() => place,
            () = table.evict_stalled_of(source) => unreachable!("it never ends"),
        };
        loop {
            let freed = table.freed.notified();
            if let Some(admitted) = table.admit(source) {
                return Table::ticket(table, source, admitted, place);
            }
            tokio::select! {
                () = freed => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Number of handshakes under way.
    #[must_use]
    pub(super) fn count(&self) -> usize {
        lock(&self.table.running).len()
    }
}

/// A handshake that may run.
struct Admitted {
    id: PendingId,
    /// Ends when the handshake is evicted.
    evicted: oneshot::Receiver<()>,
}

impl Table {
    fn places_of(&self, source: Source) -> Arc<Semaphore> {
        const FEW: usize = 64;
        let mut sources = lock(&self.sources);
        // Unused entries: the only pointer to them is in this map.
        if sources.len() >= FEW.max(2 * lock(&self.running).len()) {
            sources.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let new = || Arc::new(Semaphore::new(self.limits.per_source));
        Arc::clone(sources.entry(source).or_insert_with(new))
    }

    /// Lets a handshake run if there is room, or if another one can be evicted.
    fn admit(&self, source: Source) -> Option<Admitted> {
        let mut running = lock(&self.running);
        if running.len() >= self.limits.total {
            let (victims, victim) = running.next_victim(source)?;
            let has_more = running.count_of(victims) > running.count_of(source) + 1;
            if !has_more && !victim.is_stalled() {
                return None;
            }
            running.make_room(source);
        }
        let (evict, evicted) = oneshot::channel();
        let (id, _) = running.admit(source, Running { since: Instant::now(), _evict: evict });
        Some(Admitted { id, evicted })
    }

    fn ticket(
        table: &Arc<Table>,
        source: Source,
        admitted: Admitted,
        place: OwnedSemaphorePermit,
    ) -> HandshakePermit {
        let Admitted { id, evicted } = admitted;
        HandshakePermit { table: Arc::clone(table), source, id, evicted, _of_source: place }
    }

    /// Evicts handshakes of a source when they stall. Never returns.
    async fn evict_stalled_of(&self, source: Source) {
        loop {
            sleep(CHECK_INTERVAL).await;
            let mut running = lock(&self.running);
            if running.oldest_of(source).is_some_and(Running::is_stalled) {
                running.evict_oldest_of(source);
            }
        }
    }
}

impl Running {
    fn is_stalled(&self) -> bool {
        self.since.elapsed() >= STALL_TIME
    }
}

impl HandshakePermit {
    /// Resolves when the handshake has to make room for another one. Cancel safe.
    pub(super) async fn evicted(&mut self) {
        // Nothing is ever sent. The sender is dropped.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        lock(&self.table.running).remove(self.source, self.id);
        self.table.freed.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SMALL: AdmissionLimits = AdmissionLimits {
        per_source: 2,
        total: 3,
        waiting_per_source: 1,
        waiting_total: 2,
        silent_per_source: 2,
        silent_total: 3,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// True if the handshake is evicted within 20 ms.
    async fn is_evicted(ticket: &mut HandshakePermit) -> bool {
        timeout(Duration::from_millis(20), ticket.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn a_source_waits_for_its_own_handshakes_and_others_do_not() {
        let queue = HandshakeQueue::new(SMALL);
        let first = queue.enter(address("192.0.2.1")).await.unwrap();
        let _second = queue.enter(address("::ffff:192.0.2.1")).await.unwrap();
        let mut waiting = Box::pin(queue.enter(address("192.0.2.1")));
        assert!(timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        let _other = queue.enter(address("2001:db8::1")).await.unwrap();
        assert_eq!(queue.count(), 3);
        drop(first);
        timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_handshakes_of_one_source_neither_refuse_a_newcomer_nor_evict_another_source() {
        let queue = HandshakeQueue::new(SMALL);
        let mut honest = queue.enter(address("192.0.2.2")).await.unwrap();
        let mut oldest = queue.enter(address("192.0.2.1")).await.unwrap();
        let mut stalled = queue.enter(address("192.0.2.1")).await.unwrap();
        // All places are taken.
        let mut newcomer = queue.enter(address("192.0.2.3")).await.unwrap();
        assert!(is_evicted(&mut oldest).await);
        assert!(!is_evicted(&mut honest).await && !is_evicted(&mut newcomer).await);
        drop(oldest);
        assert!(!is_evicted(&mut stalled).await);
        assert_eq!(queue.count(), 3);
        // Now every source has one handshake. A newcomer waits until the oldest has stalled.
        let late = timeout(STALL_TIME / 2, queue.enter(address("192.0.2.4"))).await;
        assert!(late.is_err(), "a handshake has its time");
        let _late = timeout(STALL_TIME, queue.enter(address("192.0.2.4"))).await.unwrap().unwrap();
        assert!(is_evicted(&mut honest).await, "the oldest");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_handshake_cedes_its_turn_and_the_oldest_is_evicted() {
        let queue = HandshakeQueue::new(SMALL);
        let mut stalled = queue.enter(address("192.0.2.1")).await.unwrap();
        let _second = queue.enter(address("192.0.2.1")).await.unwrap();
        let evicted = queue.enter(address("192.0.2.1"));
        let next = queue.enter(address("192.0.2.1"));
        let next = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let next = timeout(2 * STALL_TIME, next);
            tokio::select! {
                next = next => next.unwrap().unwrap(),
                () = async { stalled.evicted().await; drop(stalled); std::future::pending().await } => {
                    unreachable!()
                }
            }
        };
        let (evicted, _next) = tokio::join!(evicted, next);
        assert_eq!(evicted.unwrap_err(), Evicted, "one may wait");
    }

    #[tokio::test]
    async fn one_ipv6_network_is_one_source_and_nothing_is_left_behind() {
        let queue =
            HandshakeQueue::new(AdmissionLimits { per_source: 1, waiting_per_source: 1, ..SMALL });
        let ticket = queue.enter(address("2001:db8:0:1::1")).await.unwrap();
        let same = queue.enter(address("2001:db8:0:1:ffff::2"));
        assert!(timeout(Duration::from_millis(20), same).await.is_err(), "it waits");
        let _other = queue.enter(address("2001:db8:0:2::1")).await.unwrap();
        drop(ticket);
        for n in 0..100 {
            queue.enter(address(&format!("198.51.100.{n}"))).await.unwrap();
        }
        assert!(lock(&queue.table.sources).len() <= 64);
        assert_eq!(queue.count(), 1);
    }

    #[tokio::test]
    async fn a_canceled_waiter_frees_its_place() {
        let queue = HandshakeQueue::new(AdmissionLimits { per_source: 1, ..SMALL });
        let ticket = queue.enter(address("192.0.2.1")).await.unwrap();
        for _ in 0..5 {
            let waiting = queue.enter(address("192.0.2.1"));
            assert!(timeout(Duration::from_millis(5), waiting).await.is_err());
        }
        drop(ticket);
        queue.enter(address("192.0.2.1")).await.unwrap();
        assert_eq!(queue.count(), 0);
    }
}
