//! Table of flows, by number and by key. Its size is bounded: a new flow replaces the least recently used one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use tokio::time::Instant;

use crate::target::{Host, Target};

/// Key of a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    /// Number of the application's socket.
    pub(crate) socket: u32,
    /// Address or name of the peer.
    pub(crate) peer: Target,
}

#[derive(Debug)]
struct Entry<T> {
    key: FlowKey,
    /// Alternative key of a flow whose peer was given by name: its resolved address.
    alias: Option<FlowKey>,
    /// Position in the order of use.
    used: u64,
    used_at: Instant,
    state: T,
}

/// Flows of one end, each with a state.
#[derive(Debug)]
pub(crate) struct FlowTable<T> {
    entries: BTreeMap<u64, Entry<T>>,
    by_key: BTreeMap<FlowKey, u64>,
    /// Flow numbers by position in the order of use.
    order: BTreeMap<u64, u64>,
    uses: u64,
    next: u64,
    most: usize,
}

impl<T> FlowTable<T> {
    /// Creates an empty table of at most `most` flows, which assigns the numbers `first`, `first + 2`, and so on.
    pub(crate) const fn new(first: u64, most: usize) -> Self {
        FlowTable {
            entries: BTreeMap::new(),
            by_key: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            next: first,
            most,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of the flow with this key.
    pub(crate) fn find(&self, key: &FlowKey) -> Option<u64> {
        self.by_key.get(key).copied()
    }

    /// Returns true if a flow of this socket leads to `address`, at any port.
    pub(crate) fn has_peer(&self, socket: u32, address: IpAddr) -> bool {
        let at = |port| {
            let peer = Target { host: address.into(), port };
            FlowKey { socket, peer }
        };
        self.by_key.range(at(0)..=at(u16::MAX)).next().is_some()
    }

    /// Returns the key and state of a flow.
    pub(crate) fn get(&mut self, number: u64) -> Option<(&FlowKey, &mut T)> {
        self.entries.get_mut(&number).map(|entry| (&entry.key, &mut entry.state))
    }

    /// Marks a flow as used now. Returns its key, its state and the time of its previous use.
    pub(crate) fn mark_used(
        &mut self,
        number: u64,
        now: Instant,
    ) -> Option<(&FlowKey, &mut T, Instant)> {
        let entry = self.entries.get_mut(&number)?;
        self.order.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.order.insert(self.uses, number);
        let before = std::mem::replace(&mut entry.used_at, now);
        Some((&entry.key, &mut entry.state, before))
    }

    /// Opens a flow with the next number. Returns `true` if another flow was removed for it.
    pub(crate) fn open(&mut self, key: FlowKey, state: T, now: Instant) -> (u64, bool) {
        let number = self.next;
        self.next += 2;
        (number, self.insert(number, key, state, now))
    }

    /// Adds a flow under the number that the other end assigned. It replaces any flow with the same number or key.
    /// Returns `true` if another flow was removed for it.
    pub(crate) fn insert(&mut self, number: u64, key: FlowKey, state: T, now: Instant) -> bool {
        self.remove(number);
        if let Some(twin) = self.find(&key) {
            self.remove(twin);
        }
        let full = self.entries.len() >= self.most;
        if full && let Some((_, oldest)) = self.order.first_key_value() {
            self.remove(*oldest);
        }
        self.uses += 1;
        self.by_key.insert(key.clone(), number);
        self.order.insert(self.uses, number);
        let entry = Entry { key, alias: None, used: self.uses, used_at: now, state };
        self.entries.insert(number, entry);
        full
    }

    /// Adds a second key with another peer, unless a flow has that key already.
    pub(crate) fn alias(&mut self, number: u64, peer: Target) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let key = FlowKey { socket: entry.key.socket, peer };
        if !self.by_key.contains_key(&key) {
            self.by_key.insert(key.clone(), number);
            if let Some(before) = entry.alias.replace(key) {
                self.by_key.remove(&before);
            }
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.order.remove(&entry.used);
        for key in [Some(entry.key), entry.alias].into_iter().flatten() {
            if self.by_key.get(&key) == Some(&number) {
                self.by_key.remove(&key);
            }
        }
    }

    /// Removes all flows of a socket.
    pub(crate) fn remove_socket(&mut self, socket: u32) {
        let least = Target { host: Host::V4(Ipv4Addr::UNSPECIFIED), port: 0 };
        let of_socket = self.by_key.range(FlowKey { socket, peer: least }..);
        let of_socket = of_socket.take_while(|(key, _)| key.socket == socket);
        let numbers: Vec<u64> = of_socket.map(|(_, number)| *number).collect();
        numbers.into_iter().for_each(|number| self.remove(number));
    }

    /// Returns the state of each flow.
    pub(crate) fn states(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.values_mut().map(|entry| &mut entry.state)
    }

    #[cfg(test)]
    fn is_consistent(&self) -> bool {
        let keys = self.entries.values().map(|e| 1 + usize::from(e.alias.is_some())).sum::<usize>();
        self.by_key.len() <= keys
            && self.order.len() == self.entries.len()
            && self.by_key.values().all(|number| self.entries.contains_key(number))
            && self.entries.len() <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(socket: u32, port: u16) -> FlowKey {
        let peer = Target { host: Host::V4(Ipv4Addr::new(192, 0, 2, 1)), port };
        FlowKey { socket, peer }
    }

    #[test]
    fn the_least_recently_used_flow_is_evicted() {
        let now = Instant::now();
        let mut table = FlowTable::new(2, 3);
        for port in 1..=3 {
            assert_eq!(table.open(key(0, port), (), now), (2 * u64::from(port), false));
        }
        assert!(table.mark_used(2, now).is_some());
        assert_eq!(table.open(key(0, 4), (), now), (8, true));
        assert_eq!((table.find(&key(0, 1)), table.find(&key(0, 2))), (Some(2), None));
        assert!(table.is_consistent());
    }

    #[test]
    fn a_hundred_thousand_flows_use_bounded_memory() {
        let now = Instant::now();
        let mut table = FlowTable::new(2, MOST);
        const MOST: usize = 4_096;
        let mut forgotten = 0;
        for number in 0..100_000u32 {
            let (_, full) = table.open(key(number / 60_000, (number % 60_000) as u16 + 1), (), now);
            forgotten += usize::from(full);
        }
        assert_eq!((table.len(), forgotten), (MOST, 100_000 - MOST));
        assert!(table.is_consistent());
    }

    #[test]
    fn reused_flow_numbers_replace_their_entries() {
        let now = Instant::now();
        let mut table = FlowTable::new(1, 8);
        table.insert(2, key(0, 1), 'a', now);
        table.insert(2, key(0, 2), 'b', now);
        assert_eq!((table.find(&key(0, 1)), table.find(&key(0, 2))), (None, Some(2)));
        table.insert(4, key(0, 2), 'c', now);
        assert_eq!((table.get(2).is_none(), table.find(&key(0, 2))), (true, Some(4)));
        assert!(table.is_consistent());
    }

    #[test]
    fn a_named_peer_is_found_by_its_address_until_its_flow_is_removed() {
        let now = Instant::now();
        let mut table = FlowTable::new(2, 8);
        let name: Target = "example.org:7".parse().unwrap();
        let (number, _) = table.open(FlowKey { socket: 3, peer: name }, (), now);
        table.alias(number, key(0, 7).peer);
        assert_eq!(table.find(&key(3, 7)), Some(number));
        let (other, _) = table.open(key(4, 7), (), now);
        table.remove_socket(3);
        assert_eq!((table.find(&key(3, 7)), table.find(&key(4, 7))), (None, Some(other)));
        assert!(table.is_consistent() && table.len() == 1);
    }
}
