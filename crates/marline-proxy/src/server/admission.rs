//! Limits on connections: per credential, and on unauthenticated ones.
//!
//! An unauthenticated connection may be an attack. Its cost arises in two stages, each with its own limits. A *silent*
//! connection, which has sent nothing yet, costs some memory. A client with a session passes this stage with its first
//! bytes. When the limit is reached, a silent connection of the source with the most of them is evicted
//! ([`PendingTable`](marline_io::PendingTable)), and never one that has just arrived. A *TLS handshake* costs time, and
//! several times the memory. A few per source and a bounded total run concurrently, and a bounded number waits in the
//! queue (`arrival.rs`). The multipath handshake below has shown that the source answers at its address, so a source's
//! share cannot be spent by forging it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::PendingLimits;

/// Limits on unauthenticated connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Unauthenticated connections per source in their TLS handshake.
    pub per_source: usize,
    /// Unauthenticated connections in total in their TLS handshake.
    pub total: usize,
    /// Additional connections that wait for their TLS handshake, per source.
    pub waiting_per_source: usize,
    /// Additional connections that wait for their TLS handshake, in total.
    pub waiting_total: usize,
    /// Connections per source that have sent nothing yet.
    pub silent_per_source: usize,
    /// Connections in total that have sent nothing yet.
    pub silent_total: usize,
}

impl AdmissionLimits {
    /// Returns the limits on connections that have sent nothing yet.
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

/// Limit on places per key and in total.
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

/// A place in a [`Quota`]. Dropping it frees the place.
#[derive(Debug)]
pub struct Permit<K: Ord> {
    key: K,
    counts: Arc<Mutex<Counts<K>>>,
}

/// The limit that was reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Full {
    /// The limit on the key.
    Key,
    /// The limit on all keys together.
    Total,
}

impl<K: Ord + Clone> Quota<K> {
    /// Creates at most `per_key` places for a key and `total` for all.
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
    /// A limit is reached.
    pub fn take_permit(&self, key: K) -> Result<Permit<K>, Full> {
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

    /// Returns the number of occupied places.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.counts).all
    }

    /// Returns the number of places that this key occupies.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowering_a_limit_evicts_no_connection() {
        let quota = Quota::new(2, 9);
        let first = quota.take_permit("a").unwrap();
        let second = quota.take_permit("a").unwrap();
        quota.bound(1, 9);
        assert_eq!(quota.count(), 2);
        drop(first);
        assert_eq!(quota.take_permit("a").unwrap_err(), Full::Key);
        drop(second);
        let _third = quota.take_permit("a").unwrap();
        quota.bound(9, 1);
        assert_eq!(quota.take_permit("b").unwrap_err(), Full::Total);
    }
}
