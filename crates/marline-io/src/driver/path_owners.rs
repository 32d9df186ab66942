//! Owners of paths of native TCP: which older process has what comes by a path, or is being asked for it.

use std::collections::HashMap;

use marline_core::FourTuple;

/// Paths whose owner is kept. With more, all are forgotten and asked for again: strangers can make it grow.
const MOST_PATHS: usize = 1 << 16;

/// Which elder has a path, or is being asked for it. Elders are given as numbers, the youngest first.
#[derive(Debug, Default)]
pub(super) struct PathOwners(HashMap<FourTuple, u8>);

impl PathOwners {
    pub(super) fn forget_all(&mut self) {
        self.0 = HashMap::new();
    }

    /// Who is to have a segment that came by this path.
    pub(super) fn owner(&mut self, path: FourTuple, elders: &[u8]) -> Option<u8> {
        let known = self.0.get(&path).copied().filter(|known| elders.contains(known));
        let owner = known.or_else(|| elders.first().copied());
        self.keep(path, owner)
    }

    /// Who is to have one that was none of this elder's.
    pub(super) fn owner_after(&mut self, path: FourTuple, asked: u8, elders: &[u8]) -> Option<u8> {
        // Whoever was found meanwhile; segments may have been under way to several.
        let found = self.0.get(&path).copied().filter(|found| *found != asked);
        let found = found.filter(|found| elders.contains(found));
        let older = || {
            let behind = elders.iter().skip_while(|elder| **elder != asked).nth(1);
            // One that has ended meanwhile had to be asked after: the others are, from the youngest on.
            let is_gone = !elders.contains(&asked);
            behind.or_else(|| elders.first().filter(|_| is_gone)).copied()
        };
        let owner = found.or_else(older);
        self.keep(path, owner)
    }

    fn keep(&mut self, path: FourTuple, owner: Option<u8>) -> Option<u8> {
        match owner {
            None => drop(self.0.remove(&path)),
            Some(owner) => {
                if self.0.len() >= MOST_PATHS && !self.0.contains_key(&path) {
                    self.0.clear();
                }
                self.0.insert(path, owner);
            }
        }
        owner
    }
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
    fn the_way_goes_from_the_youngest_to_the_oldest_and_is_kept() {
        let mut owners = PathOwners::default();
        let elders = [5, 4, 2];
        assert_eq!(owners.owner(path(1), &elders), Some(5));
        assert_eq!(owners.owner_after(path(1), 5, &elders), Some(4));
        assert_eq!(owners.owner(path(1), &elders), Some(4), "4 did not give it back");
        // A second segment that was under way to 5.
        assert_eq!(owners.owner_after(path(1), 5, &elders), Some(4));
        assert_eq!(owners.owner_after(path(1), 4, &elders), Some(2));
        assert_eq!(owners.owner_after(path(1), 2, &elders), None, "nobody's: ours");
        assert_eq!(owners.owner(path(1), &elders), Some(5), "asked for again");
        // 4 has ended; what it had is asked for among the others.
        assert_eq!(owners.owner_after(path(2), 5, &elders), Some(4));
        assert_eq!(owners.owner(path(2), &[5, 2]), Some(5));
        assert_eq!(
            owners.owner_after(path(3), 9, &[5, 2]),
            Some(5),
            "given back by one that has ended"
        );
        assert_eq!(owners.owner(path(4), &[]), None);
    }

    #[test]
    fn strangers_do_not_make_it_grow_without_bound() {
        let mut owners = PathOwners::default();
        for port in 0..=u16::MAX {
            owners.owner(path(port), &[1]);
        }
        let mut other = path(1);
        other.local.set_port(81);
        owners.owner(other, &[1]);
        assert!(owners.0.len() <= MOST_PATHS);
        assert_eq!(owners.owner(other, &[1, 0]), Some(1));
    }
}
