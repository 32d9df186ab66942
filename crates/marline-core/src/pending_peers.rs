//! Unauthenticated peers: a bounded table, used for every port open to unauthenticated peers and for half-open
//! connections.
//!
//! A full table must not refuse newcomers, because a few idle connections would then keep all others out. Nor must it
//! evict the oldest entry overall, because a flood from one source would then evict all honest peers. So the table is
//! shared per *source* (an IPv4 address, or an IPv6 /64, which one host owns completely): in a full table the oldest
//! entry of the source with the most entries is evicted, and the newcomer counts as an entry of its own source. A
//! source that floods the table therefore evicts its own entries, and age alone decides only if no source has more
//! than one entry.
//!
//! An authentication may expire: [`PendingPeers::readmit`] makes a peer pending again, with its original age.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet};

/// Source of peers that share a part of the table: an IPv4 address or an IPv6 /64.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(IpAddr);

impl Source {
    /// Source of `address`. An IPv4-mapped address belongs to its IPv4 address.
    #[must_use]
    pub fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V6(v6) => Source(Ipv6Addr::from(u128::from(v6) >> 64 << 64).into()),
            v4 => Source(v4),
        }
    }
}

/// Limits of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PendingLimits {
    /// Maximum total entries.
    pub total: usize,
    /// Maximum entries of one source.
    pub per_source: usize,
}

/// Number of an entry; later entries have larger numbers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingId(u64);

/// Unauthenticated peers, each with a value of type `T`. Every operation takes logarithmic time.
#[derive(Clone, Debug)]
pub struct PendingPeers<T> {
    limits: PendingLimits,
    next: u64,
    len: usize,
    by_source: BTreeMap<Source, BTreeMap<PendingId, T>>,
    /// Each source once, sorted by its number of entries, then by the age of its oldest entry.
    ranking: BTreeSet<(usize, Reverse<PendingId>, Source)>,
}

impl<T> PendingPeers<T> {
    /// An empty table. A limit of 0 counts as 1: a newcomer is never refused.
    #[must_use]
    pub const fn new(limits: PendingLimits) -> Self {
        let by_source = BTreeMap::new();
        PendingPeers { limits, next: 0, len: 0, by_source, ranking: BTreeSet::new() }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of entries of one source.
    #[must_use]
    pub fn count_of(&self, source: Source) -> usize {
        self.by_source.get(&source).map_or(0, BTreeMap::len)
    }

    /// Adds an entry. Returns its number, and the value of the entry that was evicted for it, if any.
    pub fn admit(&mut self, source: Source, value: T) -> (PendingId, Option<T>) {
        let evicted = self.evict_for(source);
        let id = PendingId(self.next);
        self.next += 1;
        self.change(source, |entries| entries.insert(id, value));
        self.len += 1;
        (id, evicted)
    }

    /// Removes an entry. `None` if it was evicted or removed before.
    pub fn remove(&mut self, source: Source, id: PendingId) -> Option<T> {
        let value = self.change(source, |entries| entries.remove(&id));
        self.len -= usize::from(value.is_some());
        value
    }

    /// Adds a removed entry again, with its original age. Evicts nothing.
    pub fn readmit(&mut self, source: Source, id: PendingId, value: T) {
        let before = self.change(source, |entries| entries.insert(id, value));
        self.len += usize::from(before.is_none());
    }

    /// Evicts the entry that a newcomer would replace in a full table, even if the table is not full: for tables that
    /// share a limit with other data. `None` if it is empty.
    pub fn make_room(&mut self, newcomer: Source) -> Option<T> {
        self.evict_oldest_of(self.next_victim(newcomer)?.0)
    }

    /// Entry that [`make_room`](Self::make_room) would evict, and its source.
    #[must_use]
    pub fn next_victim(&self, newcomer: Source) -> Option<(Source, &T)> {
        let (most, _, largest) = *self.ranking.last()?;
        let source = if self.count_of(newcomer) >= most { newcomer } else { largest };
        Some((source, self.oldest_of(source)?))
    }

    /// The oldest entry of a source.
    #[must_use]
    pub fn oldest_of(&self, source: Source) -> Option<&T> {
        self.by_source.get(&source)?.first_key_value().map(|(_, value)| value)
    }

    fn evict_for(&mut self, newcomer: Source) -> Option<T> {
        if self.count_of(newcomer) >= self.limits.per_source.max(1) {
            return self.evict_oldest_of(newcomer);
        }
        if self.len < self.limits.total.max(1) { None } else { self.make_room(newcomer) }
    }

    /// Evicts the oldest entry of a source. `None` if there is none.
    pub fn evict_oldest_of(&mut self, source: Source) -> Option<T> {
        let value = self.change(source, BTreeMap::pop_first).map(|(_, value)| value);
        self.len -= usize::from(value.is_some());
        value
    }

    /// Changes the entries of a source and updates its position in the ranking.
    fn change<R>(
        &mut self,
        source: Source,
        change: impl FnOnce(&mut BTreeMap<PendingId, T>) -> R,
    ) -> R {
        let entries = self.by_source.entry(source).or_default();
        let rank = |entries: &BTreeMap<PendingId, T>| {
            let (oldest, _) = entries.first_key_value()?;
            Some((entries.len(), Reverse(*oldest), source))
        };
        if let Some(before) = rank(entries) {
            self.ranking.remove(&before);
        }
        let result = change(entries);
        match rank(entries) {
            Some(after) => {
                self.ranking.insert(after);
            }
            None => {
                self.by_source.remove(&source);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: PendingLimits = PendingLimits { total: 4, per_source: 3 };

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_source_and_so_is_a_mapped_address() {
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1:ffff::2"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }

    #[test]
    fn a_source_at_its_limit_evicts_its_own_oldest() {
        let mut peers = PendingPeers::new(SMALL);
        assert_eq!(peers.admit(source("192.0.2.2"), "honest").1, None);
        for name in ["a", "b", "c"] {
            assert_eq!(peers.admit(source("192.0.2.1"), name).1, None);
        }
        assert_eq!(peers.admit(source("192.0.2.1"), "d").1, Some("a"));
        assert_eq!(peers.admit(source("192.0.2.1"), "e").1, Some("b"));
        assert_eq!(peers.count_of(source("192.0.2.2")), 1);
        assert_eq!(peers.len(), 4);
    }

    #[test]
    fn a_full_table_evicts_from_the_source_with_most_entries() {
        let mut peers = PendingPeers::new(SMALL);
        let _ = peers.admit(source("192.0.2.2"), "honest");
        for name in ["a", "b", "c"] {
            let _ = peers.admit(source("192.0.2.1"), name);
        }
        assert_eq!(
            peers.admit(source("192.0.2.3"), "newcomer").1,
            Some("a"),
            "not the oldest in the whole table"
        );
        assert_eq!(peers.admit(source("192.0.2.4"), "another").1, Some("b"));
        // All have one entry now: age decides, and a newcomer is still admitted.
        assert_eq!(peers.admit(source("192.0.2.5"), "last").1, Some("honest"));
    }

    #[test]
    fn removed_and_evicted_entries_leave_nothing_behind() {
        let mut peers = PendingPeers::new(SMALL);
        let (first, _) = peers.admit(source("192.0.2.1"), 1);
        assert_eq!(peers.remove(source("192.0.2.1"), first), Some(1));
        assert_eq!(peers.remove(source("192.0.2.1"), first), None);
        assert!(peers.is_empty() && peers.by_source.is_empty() && peers.ranking.is_empty());
        for number in 0..1_000_u32 {
            let address = IpAddr::from(core::net::Ipv4Addr::from(0xc000_0200 + number));
            let _ = peers.admit(Source::of(address), 2);
        }
        assert_eq!((peers.len(), peers.by_source.len(), peers.ranking.len()), (4, 4, 4));
    }

    /// Checks that any sequence of arrivals and departures stays within the limits, refuses no newcomer, and never
    /// evicts from a source that has less than its share while another one has more.
    #[test]
    fn random_arrivals_keep_the_bounds_and_the_shares() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let limits = PendingLimits { total: 20, per_source: 9 };
        let mut peers = PendingPeers::new(limits);
        let mut known: Vec<(Source, PendingId)> = Vec::new();
        for step in 0..20_000 {
            if !known.is_empty() && random(4) == 0 {
                let (source, id) = known.swap_remove(random(known.len() as u64) as usize);
                let _ = peers.remove(source, id);
                continue;
            }
            let number = if random(3) == 0 { random(30) } else { random(3) };
            let newcomer = Source::of(core::net::Ipv4Addr::from(number as u32).into());
            let before: BTreeMap<Source, usize> =
                peers.by_source.iter().map(|(source, entries)| (*source, entries.len())).collect();
            let (id, evicted) = peers.admit(newcomer, newcomer);
            known.push((newcomer, id));
            assert!(peers.len() <= limits.total && peers.count_of(newcomer) <= limits.per_source);
            assert_eq!(peers.len(), peers.by_source.values().map(BTreeMap::len).sum::<usize>());
            if let Some(victim) = evicted {
                let most = before.values().copied().max().unwrap_or(0);
                let own = before.get(&newcomer).copied().unwrap_or(0);
                let fair = before[&victim] == most || victim == newcomer && own + 1 > most;
                assert!(fair || own == limits.per_source, "after step {step}");
            }
        }
    }

    #[test]
    fn a_readmitted_entry_keeps_its_age() {
        let mut peers = PendingPeers::new(SMALL);
        let (old, _) = peers.admit(source("192.0.2.1"), "old");
        let _ = peers.admit(source("192.0.2.1"), "new");
        assert_eq!(peers.remove(source("192.0.2.1"), old), Some("old"));
        // It has moved to another address, which already has an entry.
        let _ = peers.admit(source("192.0.2.2"), "there");
        peers.readmit(source("192.0.2.2"), old, "old");
        assert_eq!((peers.len(), peers.count_of(source("192.0.2.2"))), (3, 2));
        assert_eq!(peers.make_room(source("192.0.2.3")), Some("old"));
        assert_eq!(peers.make_room(source("192.0.2.3")), Some("new"));
        assert_eq!(peers.make_room(source("192.0.2.3")), Some("there"));
        assert_eq!(peers.make_room(source("192.0.2.3")), None);
        assert!(peers.is_empty() && peers.by_source.is_empty() && peers.ranking.is_empty());
    }
}
