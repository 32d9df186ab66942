//! Tests of native TCP between shards.

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
fn two_shards() -> [Arc<ShardHandle>; 2] {
    let accept = ConnectionConfig { syn_retries: 1, ..marline_testkit::config() };
    let shards = [0, 1].map(|index| {
        let part = Part { index, count: 2, generation: None };
        start_one_of_several(CarrierKind::Raw, part, accept.clone())
    });
    Shard::connect_shards(&shards);
    shards
}

/// Returns the path whose home is this shard.
fn path(home: u8, number: u16) -> FourTuple {
    let local = SocketAddr::from(([192, 0, 2, 1], 80));
    let remotes = (number * 1_000..).map(|port| SocketAddr::from(([192, 0, 2, 2], port)));
    let remote = { remotes }.find(|remote| native::home_shard(*remote, 2) == home);
    FourTuple { local, remote: remote.expect("half of the paths belong to each shard") }
}

/// Delivers a segment to the shard. Returns true if other shards were asked.
fn deliver(shard: &Arc<ShardHandle>, path: FourTuple, seg: Seg) -> bool {
    let bytes = seg
        .ports(path.remote.port(), path.local.port())
        .bytes(Some((path.remote.ip(), path.local.ip())));
    let arrived = native::ReceivedSegment {
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
    let asked = !others.unowned.is_empty();
    pass_on(shard, others);
    asked
}

fn join(token: u32) -> Seg {
    let syn = MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 };
    Seg::syn().mss(1_400).mptcp(MptcpOption::Join(syn))
}

/// Returns the counters of both cores: answered stray segments, and joins with an unknown token.
fn refused(shards: &[Arc<ShardHandle>; 2]) -> [(u64, u64); 2] {
    [0, 1].map(|index| {
        let (core, _) = shards[index].counters();
        (core.resets_out, core.mp_join_no_token)
    })
}

#[tokio::test]
async fn a_segment_reaches_the_shard_of_its_token_or_path_once() {
    let shards = two_shards();
    let (here, there) = (path(0, 20), path(1, 20));
    // Connections at their home shards.
    assert!(!deliver(&shards[0], here, Seg::syn().at(SeqNum(5)).mss(1_400)));
    assert_eq!(shards[0].connections().len(), 1);
    // A SYN in the queue of another shard.
    assert!(deliver(&shards[0], there, Seg::syn().at(SeqNum(5)).mss(1_400)));
    assert_eq!((shards[0].connections().len(), shards[1].connections().len()), (1, 1));
    assert_eq!(refused(&shards), [(0, 0); 2]);
    // Later segments find it: first all shards are asked, then the path is known.
    let data = || Seg::ack().at(SeqNum(6)).acking(SeqNum(1)).payload(b"late");
    assert!(deliver(&shards[0], there, data()));
    assert_eq!(shards[0].lock().path_owners().known_owner(&there), Some(1));
    let (_, carrier) = shards[1].counters();
    assert_eq!((carrier.foreign_segments, carrier.foreign_joins), (1, 0));
    // A stray segment is answered only by its home shard and is not remembered.
    for (home, number) in [(0, 30), (1, 31)] {
        let stranger = path(home, number);
        let before = refused(&shards);
        assert!(deliver(&shards[0], stranger, data()));
        let after = refused(&shards);
        for index in [0, 1] {
            let answered = after[index].0 - before[index].0;
            assert_eq!(answered, u64::from(index == usize::from(home)), "{home}: {index}");
        }
        assert_eq!(shards[0].lock().path_owners().known_owner(&stranger), None);
    }
    // A join goes to the shard in the token's bits, from any source.
    let (ours, theirs) = (0x0200_0001, 0x0300_0001);
    assert!(!deliver(&shards[0], path(0, 40), join(ours)));
    assert!(deliver(&shards[0], path(0, 41), join(theirs)));
    assert_eq!(refused(&shards).map(|(_, unknown)| unknown), [1, 1]);
    assert_eq!(shards[0].lock().path_owners().known_owner(&path(0, 41)), Some(1));
    // A new connection between the same addresses: the previous owner does not claim it.
    assert!(deliver(&shards[0], path(0, 41), Seg::syn().at(SeqNum(9)).mss(1_400)));
    assert_eq!(shards[0].connections().len(), 2);
    assert_eq!(shards[0].lock().path_owners().known_owner(&path(0, 41)), None);
}

#[tokio::test]
async fn unused_joins_to_other_shards_are_forgotten() {
    let shards = two_shards();
    for number in 0..500 {
        let mut path = path(0, 20);
        path.local.set_port(1 + number);
        assert!(deliver(&shards[0], path, join(0x0300_0001)));
    }
    let mut state = shards[0].lock();
    assert_eq!(state.path_owners().len(), 500);
    let now = shards[0].clock().now();
    for later in 1..4u64 {
        state.path_owners().age(now + Duration::from_secs(200 * later));
    }
    assert_eq!(state.path_owners().len(), 0);
}
