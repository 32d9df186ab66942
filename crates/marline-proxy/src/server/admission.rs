//! Limits on connections: per credential, and on unauthenticated ones.
//!
//! An unauthenticated connection may be an attack. Its cost arises in two stages, each with its own
//! limits. A *silent* connection, which has sent nothing yet, costs some memory. A client with a
//! session passes this stage with its first bytes. When the limit is reached, a silent connection of
//! the source that has most of them is evicted ([`PendingTable`](marline_io::PendingTable)), and
//! never one that has just arrived. A *TLS handshake* costs time, and several times the memory. Few
//! per source and a bounded number in all run at once, and a bounded number waits in the queue. The
//! multipath handshake below has shown that the source answers at its address, so a source's share
//! cannot be spent by forging it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::{PendingLimits, Source};
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

/// The bound on TLS handshakes, by source and in all, and on those that wait for theirs.
#[derive(Debug)]
pub struct HandshakeQueue {
    limits: AdmissionLimits,
    /// Admitted or waiting.
    queue: Quota<Source>,
    /// Places per source, where somebody is inside or waits.
    sources: Mutex<BTreeMap<Source, Arc<Semaphore>>>,
    places: Arc<Semaphore>,
}

/// Permission to make a TLS handshake.
#[derive(Debug)]
pub struct Ticket {
    // Given back in this order: who waits for the last must find the first free.
    _of_all: OwnedSemaphorePermit,
    _of_source: OwnedSemaphorePermit,
    _counted: Permit<Source>,
}

impl HandshakeQueue {
    /// A queue with these limits.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> HandshakeQueue {
        let per_source = limits.per_source + limits.waiting_per_source;
        HandshakeQueue {
            limits,
            queue: Quota::new(per_source, limits.total + limits.waiting_total),
            sources: Mutex::default(),
            places: Arc::new(Semaphore::new(limits.total)),
        }
    }

    /// Admits one, in order of arrival.
    ///
    /// # Errors
    /// Too many are waiting already.
    pub async fn enter(&self, address: IpAddr) -> Result<Ticket, Full> {
        let source = Source::of(address);
        let counted = self.queue.enter(source)?;
        let of_source = {
            let mut sources = lock(&self.sources);
            // Those that nobody uses: all their permits are here, and so is the only pointer.
            if sources.len() > self.queue.count() {
                sources.retain(|_, places| Arc::strong_count(places) > 1);
            }
            let new = || Arc::new(Semaphore::new(self.limits.per_source));
            Arc::clone(sources.entry(source).or_insert_with(new))
        };
        // Nobody closes these semaphores.
        let _of_source = of_source.acquire_owned().await.map_err(|_| Full::Key)?;
        let _of_all = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Full::Total)?;
        Ok(Ticket { _of_all, _of_source, _counted: counted })
    }

    /// Number of admitted ones.
    #[must_use]
    pub fn count(&self) -> usize {
        self.limits.total - self.places.available_permits()
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

    #[tokio::test]
    async fn both_bounds_hold_and_leaving_lets_the_next_one_in() {
        let queue = HandshakeQueue::new(SMALL);
        let first = queue.enter(address("192.0.2.1")).await.unwrap();
        let _second = queue.enter(address("::ffff:192.0.2.1")).await.unwrap();
        let mut waiting = Box::pin(queue.enter(address("192.0.2.1")));
        assert!(timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        // One is all that may wait, and it does.
        assert_eq!(queue.enter(address("192.0.2.1")).await.unwrap_err(), Full::Key);
        let _third = queue.enter(address("2001:db8::1")).await.unwrap();
        assert_eq!(queue.count(), 3);
        let mut other = Box::pin(queue.enter(address("192.0.2.2")));
        assert!(timeout(Duration::from_millis(20), &mut other).await.is_err());
        assert_eq!(queue.enter(address("192.0.2.3")).await.unwrap_err(), Full::Total);
        // For the place that both need, the other one has waited longer.
        drop(first);
        let came = timeout(Duration::from_secs(1), other).await.unwrap().unwrap();
        assert!(timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        assert_eq!(queue.count(), 3);
        drop(came);
        timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn one_ipv6_network_is_one_source_and_nothing_is_left_behind() {
        let queue =
            HandshakeQueue::new(AdmissionLimits { per_source: 1, waiting_per_source: 0, ..SMALL });
        let ticket = queue.enter(address("2001:db8:0:1::1")).await.unwrap();
        assert!(queue.enter(address("2001:db8:0:1:ffff::2")).await.is_err());
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
