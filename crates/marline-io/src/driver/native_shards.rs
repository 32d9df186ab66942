//! Segments of native TCP between the shards that share its ports (docs/decisions/upgrades-and-shards.md).
//!
//! *Problem.* A segment has no id of the shard that it belongs to. The kernel distributes packets by their source: a
//! connection belongs to the shard that receives its first SYN, its home shard. But a join belongs to the shard
//! whose connection has the token, from any source address, and so do all later segments on its path. The queues of
//! a TUN interface are chosen by the kernel.
//!
//! A shard that receives a segment which its core does not claim asks the other shards, as processes ask each other
//! (below). First comes the shard that the token names or that owned the path before. Otherwise all
//! are asked, starting with the home shard. The shard that claims the segment takes it. The home shard takes what no
//! shard claims: a new connection, or a stray segment that must be answered. Asking means a lookup in the other
//! shard's tables by the receiving thread. Nothing is copied or queued, and no two shards are locked at the same
//! time.
//!
//! Because each shard receives segments of the others, all of them run until the last one has ended.
//!
//! Between processes, the core of the newest process recognizes its own segments. The others are passed from the
//! youngest of the older processes to the oldest. Each takes what its core claims and returns the rest. Segments that
//! no process claims belong to the newest. The owner of each path is cached, so that this search happens only once.

use std::sync::Arc;

use marline_core::{Asks, Ecn, FourTuple, PacketMeta};

use super::carrier::Carrier;
use super::egress::on_native_error;
use super::ingress;
use super::path_owners::{OtherShardPackets, Stray};
use super::shard::Shard;
use crate::edge::network_error::NetworkError;

/// Passes packets of a batch on to the shards that own them. No shard may be locked.
pub(super) fn pass_on(shard: &Shard, others: OtherShardPackets<'_>) {
    let OtherShardPackets { mut strays, errors } = others;
    while let Some(asked) = strays.first().map(|stray| stray.asked) {
        let (theirs, rest): (Vec<_>, Vec<_>) =
            strays.into_iter().partition(|stray| stray.asked == asked);
        strays = rest;
        let Some(sibling) = shard.sibling(asked) else { continue };
        let left = claim_strays(&sibling, theirs);
        if !left.is_empty() {
            let mut state = shard.lock();
            let part = state.carrier().part();
            let owners = state.path_owners();
            strays.extend(left.into_iter().map(|stray| owners.next_shard_to_ask(part, stray)));
        }
    }
    if !errors.is_empty() {
        pass_errors_to_shards(shard, &errors);
    }
}

/// Returns the shards that depend on each other's reception, including this one; nothing if the ports are not
/// shared.
fn group(shard: &Shard) -> impl Iterator<Item = Arc<Shard>> {
    let is_shared = shard.lock().carrier().part().count > 1;
    shard.siblings().filter(move |_| is_shared)
}

/// Returns true if neither this shard nor one that receives some of its packets has a handle left.
pub(super) fn is_abandoned(shard: &Shard) -> bool {
    shard.is_orphaned() && group(shard).all(|shard| shard.is_orphaned())
}

/// Returns two flags, also for shards that receive some of its packets: connections are left, and connections in
/// TIME-WAIT still answer late segments.
pub(super) fn remains(shard: &Shard) -> (bool, bool) {
    let of = |shard: &Shard| {
        let mut state = shard.lock();
        let stragglers = state.carrier().is_native() && state.endpoint().in_time_wait();
        (!state.endpoint().connections().is_empty(), stragglers)
    };
    group(shard)
        .map(|shard| of(&shard))
        .fold(of(shard), |all, one| (all.0 || one.0, all.1 || one.1))
}

/// Takes the segments that this shard claims or that no other shard is asked for. Returns the rest.
fn claim_strays<'a>(shard: &Shard, strays: Vec<Stray<'a>>) -> Vec<Stray<'a>> {
    let mut left = Vec::new();
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let asked = strays.len();
    for stray in strays {
        let Stray { asks, meta, segment, .. } = &stray;
        if state.endpoint().claims(now, meta, segment) {
            if let Carrier::Native(carrier) = state.carrier() {
                carrier.count_foreign(matches!(asks, Asks::ToJoin(_)));
            }
            ingress::take_segment(&mut state, now, meta, segment);
        } else if stray.is_last {
            ingress::on_unclaimed_segment(&mut state, now, meta, segment);
        } else {
            if stray.asks != Asks::Nothing {
                state.endpoint().release_address_pair(&meta.path);
            }
            left.push(stray);
        }
    }
    if left.len() < asked {
        shard.finish_foreign_access(&mut state, now);
    }
    left
}

/// Passes ICMP errors on: one that arrived in one queue of an interface may concern any shard.
fn pass_errors_to_shards(shard: &Shard, errors: &[NetworkError]) {
    for sibling in shard.siblings() {
        if core::ptr::eq(&raw const *sibling, shard) {
            continue;
        }
        let mut state = sibling.lock();
        let now = sibling.now(&mut state);
        errors.iter().for_each(|error| on_native_error(&mut state, now, error));
        sibling.serve(&mut state, now);
    }
}

const fn meta(path: FourTuple, ecn: Ecn) -> PacketMeta {
    PacketMeta { path, ecn, flow: 0, peer_flow: 0, checksum_verified: true }
}

/// Takes a segment that the newest process passed on. Returns false if the core does not claim it.
pub(super) fn on_passed_segment(shard: &Shard, path: FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
    let meta = meta(path, ecn);
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    if !state.endpoint().claims(now, &meta, segment) {
        return false;
    }
    ingress::take_segment(&mut state, now, &meta, segment);
    shard.finish_foreign_access(&mut state, now);
    true
}

/// Takes a segment that an older process returned and no other shard claims, unless another older process has to
/// be asked.
pub(super) fn on_returned_segment(
    shard: &Shard,
    generation: u8,
    path: FourTuple,
    ecn: Ecn,
    segment: &[u8],
) {
    let meta = meta(path, ecn);
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    // An earlier segment may have made it ours.
    if !state.endpoint().claims(now, &meta, segment)
        && let Some(older) = state.routing().links().connected_older_processes()
        && older.ask_next_process(generation, &path, ecn, segment)
    {
        return;
    }
    ingress::take_segment(&mut state, now, &meta, segment);
    shard.serve(&mut state, now);
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
    use crate::driver::carrier::CarrierKind;
    use crate::driver::shard::ShardHandle;
    use crate::driver::testing::start_one_of_several;
    use crate::native;
    use marline_core::Shard as Part;

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
        if let Carrier::Native(carrier) = state.carrier() {
            carrier.own_address(path.local.ip());
        }
        let now = shard.now(&mut state);
        ingress::on_arrived(&mut state, now, &arrived, &mut others);
        drop(state);
        let asked = !others.strays.is_empty();
        pass_on(shard, others);
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
        assert_eq!(shards[0].lock().path_owners().known(&there), Some(1));
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
            assert_eq!(shards[0].lock().path_owners().known(&stranger), None);
        }
        // A join goes to the shard in the token's bits, from any source.
        let (ours, theirs) = (0x0200_0001, 0x0300_0001);
        assert!(!arrives(&shards[0], path(0, 40), join(ours)));
        assert!(arrives(&shards[0], path(0, 41), join(theirs)));
        assert_eq!(refused(&shards).map(|(_, unknown)| unknown), [1, 1]);
        assert_eq!(shards[0].lock().path_owners().known(&path(0, 41)), Some(1));
        // A new connection between the same addresses: the previous owner does not claim it.
        assert!(arrives(&shards[0], path(0, 41), Seg::syn().at(SeqNum(9)).mss(1_400)));
        assert_eq!(shards[0].connections().len(), 2);
        assert_eq!(shards[0].lock().path_owners().known(&path(0, 41)), None);
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
        assert_eq!(state.path_owners().len(), 500);
        let now = shards[0].clock().now();
        for later in 1..4u64 {
            state.path_owners().age(now + Duration::from_secs(200 * later));
        }
        assert_eq!(state.path_owners().len(), 0);
    }
}
