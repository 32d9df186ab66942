//! Limits on connections: per credential, and on unauthenticated ones.
//!
//! An unauthenticated connection may be an attack. Its cost arises in two stages, each with its own
//! limits. A *silent* connection, which has sent nothing yet, costs some memory. A client with a
//! session passes this stage with its first bytes. When the limit is reached, a silent connection of
//! the source that has most of them is evicted ([`PendingTable`](marline_io::PendingTable)), and
//! never one that has just arrived. A *TLS handshake* costs time, and several times the memory. Few
//! per source and a bounded number in all run at once, and a bounded number waits in the queue. The
//! same rule of eviction applies to both bounds ([`HandshakeQueue`]). The multipath handshake below
//! has shown that the source answers at its address, so a source's share cannot be spent by forging it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::{PendingLimits, PendingPlace, PendingTable, Source};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits on unauthenticated connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Unauthenticated connections per source in their TLS handshake.
    pub per_source: usize,
    /// Unauthenticated connections in all in their TLS handshake.
    pub total: usize,
    /// More that wait for it, per source.
    pub waiting_per_source: usize,
    /// More that wait for it, in all.
    pub waiting_total: usize,
    /// Connections per source that have said nothing yet.
    pub silent_per_source: usize,
    /// Connections in all that have said nothing yet.
    pub silent_total: usize,
}

impl AdmissionLimits {
    /// Bounds on connections that have sent nothing yet.
    #[must_use]
    pub const fn silent(&self) -> PendingLimits {
        PendingLimits { total: self.silent_total, per_source: self.silent_per_source }
    }
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        AdmissionLimits {
            per_source: 16,
            total: 512,
            waiting_per_source: 512,
            waiting_total: 2_048,
            silent_per_source: 1_024,
            silent_total: 4_096,
        }
    }
}

/// Quota by key and in total.
#[derive(Debug)]
pub struct Quota<K: Ord> {
    per_key: AtomicUsize,
    total: AtomicUsize,
    counts: Arc<Mutex<Counts<K>>>,
}

#[derive(Debug)]
struct Counts<K> {
    by_key: BTreeMap<K, usize>,
    all: usize,
}

/// One place in a [`Quota`]; dropping it makes room.
#[derive(Debug)]
pub struct Permit<K: Ord> {
    key: K,
    counts: Arc<Mutex<Counts<K>>>,
}

/// The limit that was reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Full {
    /// That of the key.
    Key,
    /// That of all keys together.
    Total,
}

impl<K: Ord + Clone> Quota<K> {
    /// At most `per_key` places for a key and `total` for all.
    #[must_use]
    pub fn new(per_key: usize, total: usize) -> Self {
        let (per_key, total) = (AtomicUsize::new(per_key), AtomicUsize::new(total));
        let counts = Counts { by_key: BTreeMap::new(), all: 0 };
        Quota { per_key, total, counts: Arc::new(Mutex::new(counts)) }
    }

    /// Changes the limits. Existing places are kept.
    pub fn bound(&self, per_key: usize, total: usize) {
        self.per_key.store(per_key, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Takes a place.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn enter(&self, key: K) -> Result<Permit<K>, Full> {
        let mut counts = lock(&self.counts);
        if counts.all >= self.total.load(Ordering::Relaxed) {
            return Err(Full::Total);
        }
        let count = counts.by_key.get(&key).copied().unwrap_or_default();
        if count >= self.per_key.load(Ordering::Relaxed) {
            return Err(Full::Key);
        }
        counts.by_key.insert(key.clone(), count + 1);
        counts.all += 1;
        Ok(Permit { key, counts: Arc::clone(&self.counts) })
    }

    /// How many places are taken.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.counts).all
    }

    /// How many of them this key has.
    #[must_use]
    pub fn count_of(&self, key: &K) -> usize {
        lock(&self.counts).by_key.get(key).copied().unwrap_or_default()
    }
}

impl<K: Ord> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.all -= 1;
        if let Some(count) = counts.by_key.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.by_key.remove(&self.key);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bounds on TLS handshakes, and on the connections that wait for theirs.
///
/// A newcomer is never refused. Where the table of all is full, or as many handshakes run as may, the oldest entry of
/// the source that has most of them is evicted. A source that has as many handshakes under way as it may waits for its
/// own.
#[derive(Debug)]
pub struct HandshakeQueue {
    per_source: usize,
    /// Those that wait, and those that run.
    all: PendingTable,
    running: PendingTable,
    /// Handshakes that may run per source, of sources that have some or wait.
    sources: Mutex<BTreeMap<Source, Arc<Semaphore>>>,
}

/// Permission to make a TLS handshake.
#[derive(Debug)]
pub struct Ticket {
    running: PendingPlace,
    all: PendingPlace,
    _of_source: OwnedSemaphorePermit,
}

/// A connection that had to make room for others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Evicted;

impl HandshakeQueue {
    /// A queue with these limits.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> HandshakeQueue {
        let all = PendingLimits {
            total: limits.total + limits.waiting_total,
            per_source: limits.per_source + limits.waiting_per_source,
        };
        let running = PendingLimits { total: limits.total, per_source: limits.per_source };
        HandshakeQueue {
            per_source: limits.per_source.max(1),
            all: PendingTable::new(all),
            running: PendingTable::new(running),
            sources: Mutex::default(),
        }
    }

    /// Admits one, in the order in which those of its source arrived.
    ///
    /// # Errors
    /// It was evicted while it waited.
    pub async fn enter(&self, address: IpAddr) -> Result<Ticket, Evicted> {
        let mut all = self.all.admit(address);
        let of_source = self.of_source(Source::of(address));
        let permit = tokio::select! {
            permit = of_source.acquire_owned() => permit,
            () = all.evicted() => return Err(Evicted),
        };
        // Nobody closes these semaphores.
        let _of_source = permit.map_err(|_| Evicted)?;
        Ok(Ticket { running: self.running.admit(address), all, _of_source })
    }

    fn of_source(&self, source: Source) -> Arc<Semaphore> {
        let mut sources = lock(&self.sources);
        // Those that nobody uses: the only pointer to them is here.
        if sources.len() > self.all.count() {
            sources.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let new = || Arc::new(Semaphore::new(self.per_source));
        Arc::clone(sources.entry(source).or_insert_with(new))
    }

    /// Number of handshakes under way.
    #[must_use]
    pub fn count(&self) -> usize {
        self.running.count()
    }
}

impl Ticket {
    /// Resolves when the handshake has to make room for another one. Cancel safe.
    pub async fn evicted(&mut self) {
        tokio::select! {
            () = self.running.evicted() => {}
            () = self.all.evicted() => {}
        }
    }
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

    #[test]
    fn a_bound_that_falls_throws_nobody_out() {
        let quota = Quota::new(2, 9);
        let first = quota.enter("a").unwrap();
        let second = quota.enter("a").unwrap();
        quota.bound(1, 9);
        assert_eq!(quota.count(), 2);
        drop(first);
        assert_eq!(quota.enter("a").unwrap_err(), Full::Key);
        drop(second);
        let _third = quota.enter("a").unwrap();
        quota.bound(9, 1);
        assert_eq!(quota.enter("b").unwrap_err(), Full::Total);
    }

    /// Whether it is evicted within a moment.
    async fn is_evicted(ticket: &mut Ticket) -> bool {
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

    #[tokio::test]
    async fn stalled_handshakes_of_one_source_neither_refuse_a_newcomer_nor_evict_another_source() {
        let queue = HandshakeQueue::new(SMALL);
        let mut honest = queue.enter(address("192.0.2.2")).await.unwrap();
        let mut oldest = queue.enter(address("192.0.2.1")).await.unwrap();
        let mut stalled = queue.enter(address("192.0.2.1")).await.unwrap();
        // One of its connections may wait. It makes room for the next.
        let waiting = queue.enter(address("192.0.2.1"));
        let crowd = async {
            for _ in 0..20 {
                let next = queue.enter(address("192.0.2.1"));
                assert!(timeout(Duration::from_millis(5), next).await.is_err(), "it waits");
            }
        };
        let (waited, ()) = tokio::join!(timeout(Duration::from_secs(5), waiting), crowd);
        assert!(matches!(waited, Err(_) | Ok(Err(Evicted))));
        // As many run as may.
        let mut newcomer = queue.enter(address("192.0.2.3")).await.unwrap();
        assert!(is_evicted(&mut oldest).await);
        assert!(!is_evicted(&mut honest).await && !is_evicted(&mut newcomer).await);
        drop(oldest);
        assert!(!is_evicted(&mut stalled).await);
        assert_eq!(queue.count(), 3);
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
        assert!(lock(&queue.sources).len() <= 3);
        assert_eq!(queue.count(), 1);
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_its_place() {
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
