//! Numbers of connections for display: at most six digits, in the order of first use.
//!
//! An id ([`ConnectionId`]) is never reused and therefore has up to nineteen digits. A number is reused after
//! 999,999 others, but not while its connection is open.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline::monitor::ConnectionId;

/// Largest number, unless more than half as many connections are known.
const MAX_NUMBER: u32 = 999_999;
/// Number of ended connections whose numbers are kept, so that late reports about them use the same number.
const MAX_ENDED: usize = 8_192;
/// Maximum number of new connections between two calls that list the open ones. Beyond it, the oldest are forgotten.
const MAX_NEW_CONNECTIONS: usize = 131_072;

/// Numbers of a program's connections. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ConnectionNumbers(Arc<Mutex<Numbers>>);

#[derive(Debug, Default)]
struct Numbers {
    known: HashMap<ConnectionId, u32>,
    holders: HashMap<u32, ConnectionId>,
    /// Known connections, the oldest first.
    order: VecDeque<ConnectionId>,
    last: u32,
    /// Number of open connections at the last call.
    open: usize,
}

impl ConnectionNumbers {
    /// Returns the number of a connection.
    #[must_use]
    pub fn number_of(&self, id: ConnectionId) -> u64 {
        let mut numbers = self.lock();
        let number = numbers.number_of(id);
        if numbers.known.len() > 2 * numbers.open + MAX_NEW_CONNECTIONS {
            numbers.forget_oldest();
        }
        number.into()
    }

    /// Returns the connection that has this number, or was the last to have it.
    #[must_use]
    pub fn holder(&self, number: u64) -> Option<ConnectionId> {
        self.lock().holders.get(&u32::try_from(number).ok()?).copied()
    }

    /// Returns the numbers of these open connections, in the same order. Most ended connections are forgotten.
    #[must_use]
    pub fn numbers_of(&self, open: &[ConnectionId]) -> Vec<u64> {
        let mut numbers = self.lock();
        let all = open.iter().map(|id| numbers.number_of(*id).into()).collect();
        numbers.open = open.len();
        if numbers.known.len() > open.len() + 2 * MAX_ENDED {
            numbers.retain_open(&open.iter().copied().collect());
        }
        all
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Numbers {
    fn number_of(&mut self, id: ConnectionId) -> u32 {
        if let Some(number) = self.known.get(&id) {
            return *number;
        }
        // This guarantees that free numbers exist.
        let largest = MAX_NUMBER.max(u32::try_from(2 * self.known.len()).unwrap_or(u32::MAX));
        loop {
            self.last = self.last % largest + 1;
            if !self.holders.contains_key(&self.last) {
                break;
            }
        }
        self.known.insert(id, self.last);
        self.holders.insert(self.last, id);
        self.order.push_back(id);
        self.last
    }

    fn forget_oldest(&mut self) {
        if let Some(id) = self.order.pop_front() {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: ConnectionId) {
        if let Some(number) = self.known.remove(&id) {
            self.holders.remove(&number);
        }
    }

    /// Forgets all but the open ones and the latest [`MAX_ENDED`] of the others.
    fn retain_open(&mut self, open: &HashSet<ConnectionId>) {
        let mut over = self.order.len().saturating_sub(open.len() + MAX_ENDED);
        let order = std::mem::take(&mut self.order);
        for id in order {
            if over > 0 && !open.contains(&id) {
                over -= 1;
                self.forget(id);
            } else {
                self.order.push_back(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an id in the form that an endpoint creates: shard, use count of the slot, slot.
    fn id(shard: u64, generation: u64, slot: u64) -> ConnectionId {
        ConnectionId(shard << 56 | generation << 32 | slot)
    }

    #[test]
    fn connection_numbers_are_short_and_map_back_to_their_ids() {
        let numbers = ConnectionNumbers::default();
        let ids = [id(0, 0, 0), id(255, 70_000, 5), id(3, u64::from(u32::MAX) >> 8, 9)];
        assert_eq!(numbers.numbers_of(&ids), [1, 2, 3]);
        assert_eq!(ids.map(|id| numbers.number_of(id)), [1, 2, 3]);
        assert_eq!([1, 2, 3].map(|number| numbers.holder(number)), ids.map(Some));
        assert_eq!((numbers.holder(4), numbers.holder(u64::MAX)), (None, None));
    }

    #[test]
    fn numbers_stay_below_seven_digits_and_open_connections_keep_theirs() {
        let numbers = ConnectionNumbers::default();
        let lasting = id(0, 0, 7);
        assert_eq!(numbers.number_of(lasting), 1);
        for generation in 0..1_100_000 {
            let passing = id(0, generation, 8);
            let number = numbers.number_of(passing);
            assert!((2..=999_999).contains(&number), "{number}");
            if generation % 1_000 == 0 {
                assert_eq!(numbers.numbers_of(&[lasting, passing]), [1, number]);
            }
        }
        let held = numbers.lock();
        assert!(held.known.len() <= 2 + 2 * MAX_ENDED + 1_000, "{}", held.known.len());
        assert_eq!((held.holders.len(), held.order.len()), (held.known.len(), held.known.len()));
    }

    #[test]
    fn ended_connections_keep_their_number_for_late_events() {
        let numbers = ConnectionNumbers::default();
        let ended = |generation| id(1, generation, 1);
        let told: Vec<u64> =
            (0..8_000).map(|generation| numbers.number_of(ended(generation))).collect();
        assert_eq!(numbers.numbers_of(&[]), [0; 0]);
        assert_eq!(numbers.number_of(ended(7_999)), told[7_999]);
        // Without calls that list the open connections.
        for generation in 8_000..400_000 {
            let _ = numbers.number_of(ended(generation));
        }
        assert!(numbers.lock().known.len() <= MAX_NEW_CONNECTIONS);
    }
}
