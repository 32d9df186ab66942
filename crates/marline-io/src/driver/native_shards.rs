//! Segments of native TCP between the shards that share its ports (docs/decisions/upgrades-and-shards.md).
//!
//! *Problem.* A segment has no id of the shard that it belongs to. The kernel distributes packets by their source: a
//! connection belongs to the shard that receives its first SYN, its home shard. But a join belongs to the shard
//! whose connection has the token, from any source address, and so do all later segments on its path. The queues of
//! a TUN interface are chosen by the kernel.
//!
//! A shard that receives a segment which its core does not claim asks the other shards, as processes ask each other
//! (`native_succession.rs`). First comes the shard that the token names or that owned the path before. Otherwise all
//! are asked, starting with the home shard. The shard that claims the segment takes it. The home shard takes what no
//! shard claims: a new connection, or a stray segment that must be answered. Asking means a lookup in the other
//! shard's tables by the receiving thread. Nothing is copied or queued, and no two shards are locked at the same
//! time.
//!
//! Because each shard receives segments of the others, all of them run until the last one has ended.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use marline_core::{Asks, PacketMeta, Shard as Part};
use marline_time::Instant;

use super::carrier::Carrier;
use super::shard::Shard;
use super::state::State;
use super::streams::wake;
use crate::native;
use crate::sys::error_queue::NetworkError;

/// Packets of a batch that may belong to other shards.
#[derive(Default)]
pub(super) struct OtherShardPackets<'a> {
    pub(super) strays: Vec<Stray<'a>>,
    /// ICMP errors.
    pub(super) errors: Vec<NetworkError>,
}

/// Segment that the receiving shard does not claim.
pub(super) struct Stray<'a> {
    asks: Asks,
    meta: PacketMeta,
    segment: &'a [u8],
    /// Shard that is asked now.
    asked: u8,
    /// No other shard is asked: this one takes the segment in any case.
    is_last: bool,
}

impl State {
    /// Returns the segment with the first shard to ask for it; `None` if it belongs to this shard.
    pub(super) fn first_shard_to_ask<'a>(
        &mut self,
        now: Instant,
        shard: Part,
        meta: PacketMeta,
        segment: &'a [u8],
    ) -> Option<Stray<'a>> {
        if shard.count <= 1 {
            return None;
        }
        self.owners.age(now);
        let (asks, path) = (Asks::of(segment), meta.path);
        let home = native::home(path.remote, shard.count);
        let (asked, is_last) = match asks {
            Asks::ToJoin(token) => {
                let owner = Part::of_token(token, shard.count);
                let others = Some(owner).filter(|owner| *owner != shard.index);
                self.owners.set(path, others);
                (owner, true)
            }
            Asks::ToOpen => self.owners.known(&path).map_or((home, true), |owner| (owner, false)),
            Asks::Nothing => match self.owners.known(&path) {
                Some(owner) => (owner, false),
                None => (self.owners.owner(path, &others(shard, home))?, false),
            },
        };
        if asked == shard.index {
            return None;
        }
        if asks != Asks::Nothing {
            self.endpoint.release_address_pair(&path);
        }
        Some(Stray { asks, meta, segment, asked, is_last })
    }

    /// Selects the next shard after the asked one has not claimed the segment.
    fn next_shard_to_ask<'a>(&mut self, shard: Part, stray: Stray<'a>) -> Stray<'a> {
        let path = stray.meta.path;
        let home = native::home(path.remote, shard.count);
        let next = match stray.asks {
            Asks::Nothing => self.owners.next_owner(path, stray.asked, &others(shard, home)),
            Asks::ToOpen | Asks::ToJoin(_) => {
                self.owners.set(path, None);
                None
            }
        };
        Stray { asked: next.unwrap_or(home), is_last: next.is_none(), ..stray }
    }
}

/// All other shards, in the order in which they are asked.
fn others(shard: Part, home: u8) -> Vec<u8> {
    let home_and_other_shards =
        (0..shard.count).map(|more| home.wrapping_add(more) & (shard.count - 1));
    home_and_other_shards.filter(|other| *other != shard.index).collect()
}

impl Shard {
    /// Passes packets of a batch on to the shards that own them. No shard may be locked.
    pub(super) fn pass_on(&self, others: OtherShardPackets<'_>) {
        let OtherShardPackets { mut strays, errors } = others;
        while let Some(asked) = strays.first().map(|stray| stray.asked) {
            let (theirs, rest): (Vec<_>, Vec<_>) =
                strays.into_iter().partition(|stray| stray.asked == asked);
            strays = rest;
            let Some(sibling) = self.sibling(asked) else { continue };
            let left = sibling.claim_strays(theirs);
            if !left.is_empty() {
                let mut state = self.lock();
                let shard = state.part();
                strays.extend(left.into_iter().map(|stray| state.next_shard_to_ask(shard, stray)));
            }
        }
        if !errors.is_empty() {
            self.pass_errors_to_shards(&errors);
        }
    }

    /// Returns the shards that depend on each other's reception, including this one; nothing if the ports are not
    /// shared.
    fn group(&self) -> impl Iterator<Item = Arc<Shard>> {
        let is_shared = self.lock().part().count > 1;
        let others = self.siblings.get().filter(|_| is_shared);
        others.into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Returns true if neither this shard nor one that receives some of its packets has a handle left.
    pub(super) fn is_abandoned(&self) -> bool {
        let orphaned = |shard: &Shard| shard.orphaned.load(Ordering::Acquire);
        orphaned(self) && self.group().all(|shard| orphaned(&shard))
    }

    /// Returns two flags, also for shards that receive some of its packets: connections are left, and connections in
    /// TIME-WAIT still answer late segments.
    pub(super) fn remains(&self) -> (bool, bool) {
        let remains = |shard: &Shard| {
            let state = shard.lock();
            let stragglers = state.carrier.is_native() && state.endpoint.in_time_wait();
            (!state.endpoint.connections().is_empty(), stragglers)
        };
        self.group()
            .map(|shard| remains(&shard))
            .fold(remains(self), |all, one| (all.0 || one.0, all.1 || one.1))
    }

    fn sibling(&self, index: u8) -> Option<Arc<Shard>> {
        self.siblings.get()?.get(usize::from(index))?.upgrade()
    }

    /// Takes the segments that this shard claims or that no other shard is asked for. Returns the rest.
    fn claim_strays<'a>(&self, strays: Vec<Stray<'a>>) -> Vec<Stray<'a>> {
        let mut left = Vec::new();
        let mut state = self.lock();
        let now = self.now(&mut state);
        let asked = strays.len();
        for stray in strays {
            let Stray { asks, meta, segment, .. } = &stray;
            if state.endpoint.claims(now, meta, segment) {
                if let Carrier::Native(carrier) = &mut state.carrier {
                    carrier.count_foreign(matches!(asks, Asks::ToJoin(_)));
                }
                state.take_segment(now, meta, segment);
            } else if stray.is_last {
                state.on_unclaimed_segment(now, meta, segment);
            } else {
                if stray.asks != Asks::Nothing {
                    state.endpoint.release_address_pair(&meta.path);
                }
                left.push(stray);
            }
        }
        if left.len() < asked {
            self.finish_foreign_access(&mut state, now);
        }
        left
    }

    /// Passes ICMP errors on: one that arrived in one queue of an interface may concern any shard.
    fn pass_errors_to_shards(&self, errors: &[NetworkError]) {
        for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            if core::ptr::eq(&raw const *sibling, self) {
                continue;
            }
            let mut state = sibling.lock();
            let now = sibling.now(&mut state);
            errors.iter().for_each(|error| state.on_native_error(now, error));
            sibling.serve(&mut state, now);
        }
    }

    /// Finishes an access by a thread other than the shard's own that delivered segments.
    pub(super) fn finish_foreign_access(&self, state: &mut State, now: Instant) {
        if self.tell(state, now) {
            wake(state.driver.take());
        } else {
            self.serve(state, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use marline_core::{ConnectionConfig, Ecn, FourTuple};
    use marline_testkit::Seg;
    use marline_time::Duration;
    use marline_wire::SeqNum;
    use marline_wire::mptcp::{MpJoin, MptcpOption};

    use super::*;
    use crate::driver::shard::ShardHandle;
    use crate::driver::state::CarrierKind;
    use crate::driver::testing::start_one_of_several;

    /// Two shards that accept connections and have no sockets.
    fn two() -> [Arc<ShardHandle>; 2] {
        let accept = ConnectionConfig { syn_retries: 1, ..marline_testkit::config() };
        let shards = [0, 1].map(|index| {
            let part = Part { index, count: 2, generation: None };
            start_one_of_several(CarrierKind::Raw, part, accept.clone())
        });
        Shard::connect_shards(&shards);
        shards
    }

    /// Path whose home is this shard.
    fn path(home: u8, number: u16) -> FourTuple {
        let local = SocketAddr::from(([192, 0, 2, 1], 80));
        let remotes = (number * 1_000..).map(|port| SocketAddr::from(([192, 0, 2, 2], port)));
        let remote = { remotes }.find(|remote| native::home(*remote, 2) == home);
        FourTuple { local, remote: remote.expect("half of them are") }
    }

    /// Delivers a segment to the shard. Returns true if others were asked.
    fn arrives(shard: &Arc<ShardHandle>, path: FourTuple, seg: Seg) -> bool {
        let bytes = seg
            .ports(path.remote.port(), path.local.port())
            .bytes(Some((path.remote.ip(), path.local.ip())));
        let arrived = native::Arrived {
            source: path.remote,
            destination: path.local.ip(),
            ecn: Ecn::NotEct,
            segment: &bytes,
        };
        let mut others = OtherShardPackets::default();
        let mut state = shard.lock();
        if let Carrier::Native(carrier) = &mut state.carrier {
            carrier.own_address(path.local.ip());
        }
        let now = shard.now(&mut state);
        state.on_arrived(now, &arrived, &mut others);
        drop(state);
        let asked = !others.strays.is_empty();
        shard.pass_on(others);
        asked
    }

    fn join(token: u32) -> Seg {
        let syn = MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 };
        Seg::syn().mss(1_400).mptcp(MptcpOption::Join(syn))
    }

    /// Counters of both cores: answered stray segments, and joins with an unknown token.
    fn refused(shards: &[Arc<ShardHandle>; 2]) -> [(u64, u64); 2] {
        [0, 1].map(|index| {
            let (core, _) = shards[index].counters();
            (core.resets_out, core.mp_join_no_token)
        })
    }

    #[tokio::test]
    async fn a_segment_reaches_the_shard_of_its_token_or_path_once() {
        let shards = two();
        let (here, there) = (path(0, 20), path(1, 20));
        // Connections at their home shards.
        assert!(!arrives(&shards[0], here, Seg::syn().at(SeqNum(5)).mss(1_400)));
        assert_eq!(shards[0].connections().len(), 1);
        // A SYN in a queue of another shard.
        assert!(arrives(&shards[0], there, Seg::syn().at(SeqNum(5)).mss(1_400)));
        assert_eq!((shards[0].connections().len(), shards[1].connections().len()), (1, 1));
        assert_eq!(refused(&shards), [(0, 0); 2]);
        // Later segments find it: first all shards are asked, then the path is known.
        let data = || Seg::ack().at(SeqNum(6)).acking(SeqNum(1)).payload(b"late");
        assert!(arrives(&shards[0], there, data()));
        assert_eq!(shards[0].lock().owners.known(&there), Some(1));
        let (_, carrier) = shards[1].counters();
        assert_eq!((carrier.foreign_segments, carrier.foreign_joins), (1, 0));
        // A stray segment is answered only by its home shard and is not remembered.
        for (home, number) in [(0, 30), (1, 31)] {
            let stranger = path(home, number);
            let before = refused(&shards);
            assert!(arrives(&shards[0], stranger, data()));
            let after = refused(&shards);
            for index in [0, 1] {
                let answered = after[index].0 - before[index].0;
                assert_eq!(answered, u64::from(index == usize::from(home)), "{home}: {index}");
            }
            assert_eq!(shards[0].lock().owners.known(&stranger), None);
        }
        // A join goes to the shard in the token's bits, from any source.
        let (ours, theirs) = (0x0200_0001, 0x0300_0001);
        assert!(!arrives(&shards[0], path(0, 40), join(ours)));
        assert!(arrives(&shards[0], path(0, 41), join(theirs)));
        assert_eq!(refused(&shards).map(|(_, unknown)| unknown), [1, 1]);
        assert_eq!(shards[0].lock().owners.known(&path(0, 41)), Some(1));
        // A new connection between the same addresses: the previous owner does not claim it.
        assert!(arrives(&shards[0], path(0, 41), Seg::syn().at(SeqNum(9)).mss(1_400)));
        assert_eq!(shards[0].connections().len(), 2);
        assert_eq!(shards[0].lock().owners.known(&path(0, 41)), None);
    }

    #[tokio::test]
    async fn joins_to_other_shards_that_are_used_no_more_are_forgotten() {
        let shards = two();
        for number in 0..500 {
            let mut path = path(0, 20);
            path.local.set_port(1 + number);
            assert!(arrives(&shards[0], path, join(0x0300_0001)));
        }
        let mut state = shards[0].lock();
        assert_eq!(state.owners.len(), 500);
        let now = shards[0].clock.now();
        for later in 1..4u64 {
            state.owners.age(now + Duration::from_secs(200 * later));
        }
        assert_eq!(state.owners.len(), 0);
    }
}
