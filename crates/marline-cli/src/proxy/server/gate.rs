//! Bounds on connections: per credential, and on those that have not shown one yet.
//!
//! Until a connection is authenticated it is somebody's whim: a TLS handshake's worth of memory and
//! time. Few per source and a bounded number in all are let in; a source is an IPv4 address or an
//! IPv6 /64 (one host owns that many addresses). The multipath handshake below has shown that the
//! source answers at its address, so a source's share cannot be spent by forging it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The bounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Unauthenticated connections per source.
    pub per_source: usize,
    /// Unauthenticated connections in all.
    pub total: usize,
}

impl Default for GateLimits {
    fn default() -> Self {
        GateLimits { per_source: 16, total: 512 }
    }
}

/// Counts by key and in all, within bounds.
#[derive(Debug)]
pub struct Quota<K: Ord> {
    per_key: AtomicUsize,
    total: AtomicUsize,
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// One place in a [`Quota`]; dropping it makes room.
#[derive(Debug)]
pub struct Place<K: Ord> {
    key: K,
    counts: Arc<Mutex<BTreeMap<K, usize>>>,
}

/// Which bound is reached.
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
        Quota { per_key, total, counts: Arc::default() }
    }

    /// Changes the bounds. Who is in stays.
    pub fn bound(&self, per_key: usize, total: usize) {
        self.per_key.store(per_key, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Takes a place.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn enter(&self, key: K) -> Result<Place<K>, Full> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.values().sum::<usize>() >= self.total.load(Ordering::Relaxed) {
            return Err(Full::Total);
        }
        let count = counts.entry(key.clone()).or_default();
        if *count >= self.per_key.load(Ordering::Relaxed) {
            return Err(Full::Key);
        }
        *count += 1;
        Ok(Place { key, counts: Arc::clone(&self.counts) })
    }

    /// How many places are taken.
    #[must_use]
    pub fn count(&self) -> usize {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// The bound on unauthenticated connections, by source.
#[derive(Debug)]
pub struct Gate(Quota<IpAddr>);

/// Leave to be unauthenticated.
pub type Ticket = Place<IpAddr>;

impl Gate {
    /// A gate with these bounds.
    #[must_use]
    pub fn new(limits: GateLimits) -> Gate {
        Gate(Quota::new(limits.per_source, limits.total))
    }

    /// Lets one in.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn enter(&self, address: IpAddr) -> Result<Ticket, Full> {
        self.0.enter(source_of(address))
    }

    /// How many are inside.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }
}

/// What counts as one source: an IPv4 address, or an IPv6 /64.
#[must_use]
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_and_leaving_makes_room() {
        let gate = Gate::new(GateLimits { per_source: 2, total: 3 });
        let enter = |address: &str| gate.enter(address.parse().unwrap());
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("::ffff:192.0.2.1").unwrap();
        assert_eq!(enter("192.0.2.1").unwrap_err(), Full::Key);
        let _third = enter("2001:db8::1").unwrap();
        assert_eq!(enter("192.0.2.2").unwrap_err(), Full::Total);
        drop(first);
        let _fourth = enter("2001:db8::ffff").unwrap();
        assert_eq!(gate.count(), 3);
        assert!(enter("192.0.2.2").is_err());
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

    #[test]
    fn one_ipv6_network_is_one_source_and_nothing_is_left_behind() {
        let gate = Gate::new(GateLimits { per_source: 1, total: 9 });
        let ticket = gate.enter("2001:db8:0:1::1".parse().unwrap()).unwrap();
        assert!(gate.enter("2001:db8:0:1:ffff::2".parse().unwrap()).is_err());
        let other = gate.enter("2001:db8:0:2::1".parse().unwrap()).unwrap();
        drop((ticket, other));
        assert_eq!(gate.count(), 0);
        assert!(gate.0.counts.lock().unwrap().is_empty());
    }
}
