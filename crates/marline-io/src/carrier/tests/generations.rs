//! Tests of ids of processes that share a port.

use super::*;

/// Returns the id of this generation.
const fn id_of(generation: u8) -> u64 {
    0x0700_0000_0000_0001 | (generation as u64) << 48
}

#[test]
fn the_newest_speaks_for_those_that_have_ended_and_an_older_one_only_for_itself() {
    let now = Instant::from_secs(1);
    let shard = Shard { generation: Some(3), ..ALONE };
    let mut server = carrier(true, shard);
    let resets = |server: &mut UdpCarrier, generation: u8| {
        let before = server.counters().resets;
        let unknown = data(id_of(generation), 40);
        let got = server.receive(now, &datagram(outer(1, 9, 7000), &unknown));
        assert!(matches!(got, ReceivedDatagram::Nothing));
        let keepalive = ControlFrame::keepalive(id_of(generation));
        let from = outer(1, 9, 7000);
        let got = server.receive(now, &datagram(from, keepalive.as_bytes()));
        assert!(matches!(got, ReceivedDatagram::Nothing));
        server.counters().resets - before
    };
    assert_eq!([resets(&mut server, 3), resets(&mut server, 2)], [2, 2]);
    server.ignore_foreign_ids();
    assert_eq!([resets(&mut server, 3), resets(&mut server, 2)], [2, 0]);
}

#[test]
fn an_id_contains_shard_and_generation_and_random_bits() {
    let shard = Shard { index: 1, count: 4, generation: Some(9) };
    for drawn in [0x0122_3344_5566_7788, u64::MAX, 0x0100_0000_0000_0001] {
        let id = shard.with_generation(drawn);
        assert_eq!(Shard::generation_of_flow(id), 9);
        assert_eq!(Shard::of_flow(id, 4), Shard::of_flow(drawn, 4));
        assert_eq!((id ^ drawn) & !(0xf << 48), 0);
        assert_eq!(ALONE.with_generation(drawn), drawn, "a lone process ignores foreign ids");
    }
}
