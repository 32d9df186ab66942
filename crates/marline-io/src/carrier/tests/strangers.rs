//! Tests of eviction from a full table of flows.

use super::*;

/// Answers a SYN from port `port` of 192.0.2.`host`, which opens flow `id`. Returns false if there is no room.
fn open_from(server: &mut UdpCarrier, now: Instant, host: u8, port: u16, id: u64) -> bool {
    let sender = CLIENT_FLOW + id;
    let bytes = syn(sender, 44);
    let from = outer(1, host, port);
    let ReceivedDatagram::Segment(meta, _) = server.receive(now, &datagram(from, &bytes)) else {
        panic!("a SYN goes to the core");
    };
    let mut out = vec![0; SHORT_HEADER + 60];
    let syn_ack = batch(meta.path, id, sender, true, &out);
    server.frame(now, &syn_ack, &mut out).is_some()
}

/// Sends on a flow from its peer. Returns true if the flow is still known.
fn receive_from_peer(server: &mut UdpCarrier, now: Instant, host: u8, port: u16, id: u64) -> bool {
    let known = server.table_sizes().0;
    let bytes = data(id, 20);
    let got = server.receive(now, &datagram(outer(1, host, port), &bytes));
    assert_eq!(server.table_sizes().0, known);
    matches!(got, ReceivedDatagram::Segment(..))
}

#[test]
fn a_flood_from_one_source_evicts_only_flows_of_that_source() {
    let mut now = Instant::from_secs(1);
    let mut server = carrier(true, ALONE);
    // A slow client, whose third ACK takes longer than the flood.
    assert!(open_from(&mut server, now, 9, 7000, 1));
    for id in 2..2_000 {
        now += Duration::from_micros(100);
        assert!(open_from(&mut server, now, 7, id as u16, id));
    }
    assert_eq!(server.table_sizes().0, 16);
    assert!(open_from(&mut server, now, 8, 7000, 2_000), "a newcomer is not refused");
    assert!(receive_from_peer(&mut server, now, 9, 7000, 1), "the slow client's handshake goes on");
    assert!(receive_from_peer(&mut server, now, 8, 7000, 2_000));
}

#[test]
fn a_flood_of_syns_leaves_the_syns_of_other_sources_known() {
    let now = Instant::from_secs(1);
    let mut server = half_open(now);
    for n in 0..2 * PENDING_CAPACITY as u64 {
        server.receive(now, &datagram(outer(1, 7, 1), &syn(0x5000 + n, 44)));
    }
    assert!(server.pending.contains(CLIENT_FLOW, ip(9)));
    assert_eq!(server.table_sizes().1, PENDING_CAPACITY);
}

#[test]
fn validations_expire_and_only_silent_peers_are_evicted() {
    let start = Instant::from_secs(1);
    let mut server = carrier(true, ALONE);
    for id in 1..=16 {
        assert!(open_from(&mut server, start, 9, 7000 + id as u16, id));
        assert!(receive_from_peer(&mut server, start, 9, 7000 + id as u16, id));
    }
    // All of them are validated and were active recently: the limit is for this case.
    assert!(!open_from(&mut server, start + Duration::from_secs(30), 8, 7000, 17));
    // An hour later, all but one have been silent.
    let later = start + Duration::from_secs(3_600);
    assert!(receive_from_peer(&mut server, later, 9, 7001, 1));
    for id in 17..32 {
        assert!(open_from(&mut server, later, 8, 7000 + id as u16, id), "{id}");
        assert!(receive_from_peer(&mut server, later, 8, 7000 + id as u16, id));
    }
    assert!(receive_from_peer(&mut server, later, 9, 7001, 1), "the active peer stays");
    assert!(!open_from(&mut server, later, 8, 6000, 32));
}
