//! Owners of native TCP paths: the older process, or other shard of this process, that owns the segments of a path
//! or is being asked.

use std::collections::HashMap;

use marline_core::{FourTuple, PacketMeta, SegmentRequest, Shard as Part};
use marline_time::{Duration, Instant};

use crate::edge::network_error::NetworkError;
use crate::native;

/// Maximum number of cached owners. Beyond it, all entries are dropped and found again by asking, because unknown peers
/// can fill the cache.
const PATH_LIMIT: usize = 1 << 16;

/// Age at which an unused entry is dropped; an entry may reach twice this age.
const UNUSED_AGE: Duration = Duration::from_secs(120);

/// Packets of a batch that may belong to other shards.
#[derive(Default)]
pub(super) struct OtherShardPackets<'a> {
    pub(crate) unowned: Vec<Stray<'a>>,
    /// ICMP errors.
    pub(crate) errors: Vec<NetworkError>,
}

/// Segment that the receiving shard does not claim.
pub(super) struct Stray<'a> {
    pub(crate) asks: SegmentRequest,
    pub(crate) meta: PacketMeta,
    pub(crate) segment: &'a [u8],
    /// Index of the shard that is asked now.
    pub(crate) asked: u8,
    /// True if no further shard is asked: this one takes the segment in any case.
    pub(crate) is_last: bool,
}

/// Cache of path owners. Processes and shards are identified by numbers. A dropped entry is found again by asking, so
/// correctness does not depend on the cache.
#[derive(Debug, Default)]
pub(super) struct PathOwners {
    owners: HashMap<FourTuple, u8>,
    /// Entries that were not used recently.
    unused: HashMap<FourTuple, u8>,
    /// Time of the last move to `unused`.
    aged_at: Option<Instant>,
}

impl PathOwners {
    pub(super) fn forget_all(&mut self) {
        *self = PathOwners::default();
    }

    /// Drops entries that have not been used for some time.
    pub(super) fn age(&mut self, now: Instant) {
        let due = self.aged_at.is_none_or(|at| now.since(at) >= UNUSED_AGE);
        if due && !(self.owners.is_empty() && self.unused.is_empty()) {
            self.unused = core::mem::take(&mut self.owners);
            self.aged_at = Some(now);
        }
    }

    /// Returns the number of cached owners.
    pub(super) fn len(&self) -> usize {
        self.owners.len() + self.unused.len()
    }

    /// Returns the owner of a path, if it is cached.
    pub(super) fn known_owner(&mut self, path: &FourTuple) -> Option<u8> {
        if let Some(owner) = self.unused.remove(path) {
            self.keep(*path, Some(owner));
        }
        self.owners.get(path).copied()
    }

    /// Sets the owner of a path; `None` removes it.
    pub(super) fn set(&mut self, path: FourTuple, owner: Option<u8>) {
        self.unused.remove(&path);
        self.keep(path, owner);
    }

    /// Returns the process that receives a segment of this path.
    pub(super) fn owner(&mut self, path: FourTuple, processes: &[u8]) -> Option<u8> {
        let known = self.known_owner(&path).filter(|known| processes.contains(known));
        let owner = known.or_else(|| processes.first().copied());
        self.keep(path, owner)
    }

    /// Returns the process to ask after `asked` has returned a segment.
    pub(super) fn next_owner(
        &mut self,
        path: FourTuple,
        asked: u8,
        processes: &[u8],
    ) -> Option<u8> {
        // Another owner may have been found in the meantime, because several segments may have been in transit.
        let found = self.known_owner(&path).filter(|found| *found != asked);
        let found = found.filter(|found| processes.contains(found));
        let older = || {
            let behind = processes.iter().skip_while(|process| **process != asked).nth(1);
            // `asked` has ended, so its position is unknown: ask the others, starting with the youngest.
            let is_gone = !processes.contains(&asked);
            behind.or_else(|| processes.first().filter(|_| is_gone)).copied()
        };
        let owner = found.or_else(older);
        self.keep(path, owner)
    }

    /// Returns the segment with the shard to ask first; `None` if it belongs to this shard.
    pub(super) fn first_candidate<'a>(
        &mut self,
        now: Instant,
        shard: Part,
        meta: PacketMeta,
        segment: &'a [u8],
    ) -> Option<Stray<'a>> {
        if shard.count <= 1 {
            return None;
        }
        self.age(now);
        let (asks, path) = (SegmentRequest::of(segment), meta.path);
        let home = native::home_shard(path.remote, shard.count);
        let (asked, is_last) = match asks {
            SegmentRequest::ToJoin(token) => {
                let owner = Part::index_for_token(token, shard.count);
                let others = Some(owner).filter(|owner| *owner != shard.index);
                self.set(path, others);
                (owner, true)
            }
            SegmentRequest::ToOpen => {
                self.known_owner(&path).map_or((home, true), |owner| (owner, false))
            }
            SegmentRequest::Nothing => match self.known_owner(&path) {
                Some(owner) => (owner, false),
                None => (self.owner(path, &others(shard, home))?, false),
            },
        };
        if asked == shard.index {
            return None;
        }
        Some(Stray { asks, meta, segment, asked, is_last })
    }

    /// Selects the next shard to ask after one has not claimed the segment.
    pub(super) fn next_shard_to_ask<'a>(&mut self, shard: Part, stray: Stray<'a>) -> Stray<'a> {
        let path = stray.meta.path;
        let home = native::home_shard(path.remote, shard.count);
        let next = match stray.asks {
            SegmentRequest::Nothing => self.next_owner(path, stray.asked, &others(shard, home)),
            SegmentRequest::ToOpen | SegmentRequest::ToJoin(_) => {
                self.set(path, None);
                None
            }
        };
        Stray { asked: next.unwrap_or(home), is_last: next.is_none(), ..stray }
    }

    fn keep(&mut self, path: FourTuple, owner: Option<u8>) -> Option<u8> {
        match owner {
            None => drop(self.owners.remove(&path)),
            Some(owner) => {
                if self.len() >= PATH_LIMIT && !self.owners.contains_key(&path) {
                    self.owners.clear();
                    self.unused.clear();
                }
                self.owners.insert(path, owner);
            }
        }
        owner
    }
}

/// Returns all other shards in the order in which they are asked.
fn others(shard: Part, home: u8) -> Vec<u8> {
    let home_and_other_shards =
        (0..shard.count).map(|more| home.wrapping_add(more) & (shard.count - 1));
    home_and_other_shards.filter(|other| *other != shard.index).collect()
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn path(port: u16) -> FourTuple {
        let local = SocketAddr::new(core::net::Ipv4Addr::LOCALHOST.into(), 80);
        FourTuple { local, remote: SocketAddr::new(local.ip(), port) }
    }

    #[test]
    fn processes_are_asked_from_youngest_to_oldest_and_owners_cached() {
        let mut owners = PathOwners::default();
        let processes = [5, 4, 2];
        assert_eq!(owners.owner(path(1), &processes), Some(5));
        assert_eq!(owners.next_owner(path(1), 5, &processes), Some(4));
        assert_eq!(owners.owner(path(1), &processes), Some(4), "process 4 did not hand it back");
        // A second segment was in transit to process 5.
        assert_eq!(owners.next_owner(path(1), 5, &processes), Some(4));
        assert_eq!(owners.next_owner(path(1), 4, &processes), Some(2));
        assert_eq!(owners.next_owner(path(1), 2, &processes), None, "no process owns it: keep it");
        assert_eq!(owners.owner(path(1), &processes), Some(5), "requested again");
        // Process 4 has ended: the others are asked about its segments.
        assert_eq!(owners.next_owner(path(2), 5, &processes), Some(4));
        assert_eq!(owners.owner(path(2), &[5, 2]), Some(5));
        assert_eq!(
            owners.next_owner(path(3), 9, &[5, 2]),
            Some(5),
            "handed back by an ended process"
        );
        assert_eq!(owners.owner(path(4), &[]), None);
    }

    #[test]
    fn unknown_peers_cannot_grow_the_cache_without_bound() {
        let mut owners = PathOwners::default();
        for port in 0..=u16::MAX {
            owners.owner(path(port), &[1]);
        }
        let mut other = path(1);
        other.local.set_port(81);
        owners.owner(other, &[1]);
        assert!(owners.owners.len() <= PATH_LIMIT);
        assert_eq!(owners.owner(other, &[1, 0]), Some(1));
    }

    #[test]
    fn unused_path_owners_expire_and_used_ones_stay() {
        let mut owners = PathOwners::default();
        let mut now = Instant::from_secs(1);
        owners.set(path(1), Some(3));
        owners.set(path(2), Some(3));
        for _ in 0..1_000 {
            owners.age(now);
            assert_eq!(owners.known_owner(&path(1)), Some(3));
            now += Duration::from_secs(1);
        }
        assert_eq!(owners.known_owner(&path(2)), None);
        assert_eq!((owners.owners.len(), owners.unused.len()), (1, 0));
        owners.set(path(1), None);
        owners.age(now + UNUSED_AGE);
        assert_eq!(owners.known_owner(&path(1)), None);
        // Entries also expire if a long time passes without a call.
        owners.set(path(4), Some(1));
        for later in 1..4u64 {
            owners.age(now + Duration::from_secs(1_000 * later));
        }
        assert_eq!(owners.known_owner(&path(4)), None);
    }
}
