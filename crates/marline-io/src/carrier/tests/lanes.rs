//! Tests of frames for lanes: their owner, and their effect on addresses.

use super::observer::Pair;
use super::*;

/// Frame of a lane, as far as the carrier parses it.
fn lane_frame(lane: u64) -> Vec<u8> {
    let header = marline_datagram::Header { lane, packet_number: 7 }.bytes();
    [&header[..], &[0; 40]].concat()
}

#[test]
fn a_frame_is_its_lanes_or_another_shards() {
    let now = Instant::from_secs(1);
    let mut carrier = carrier(true, Shard { index: 1, count: 4, generation: None });
    let ours = lane_frame(0x0500_0000_0000_0009);
    let got = carrier.receive(now, &datagram(outer(1, 9, 7000), &ours));
    assert!(matches!(got, ReceivedDatagram::Lane(0x0500_0000_0000_0009)), "{got:?}");
    let other = lane_frame(0x0600_0000_0000_0009);
    let mut datagram = datagram(outer(1, 9, 7000), &other);
    assert!(matches!(carrier.receive(now, &datagram), ReceivedDatagram::OtherShard(2)));
    datagram.handed_over = true;
    let got = carrier.receive(now, &datagram);
    assert!(matches!(got, ReceivedDatagram::Lane(_)), "it is not handed on again: {got:?}");
    // Too short for a tag, too long, or of another version.
    let mut old = ours.clone();
    old[0] = 0x18;
    for bad in [&ours[..33], &[&ours[..], &[0; 1_472]].concat(), &old] {
        let got = carrier.receive(now, &Datagram { bytes: bad, ..datagram });
        assert!(matches!(got, ReceivedDatagram::Nothing));
    }
    assert_eq!(carrier.counters().malformed, 3);
    assert!(carrier.poll_control().is_none(), "no answer is sent");
}

#[test]
fn the_address_of_a_flow_changes_only_after_validation() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let (here, there) = (outer(1, 9, 7000), outer(1, 8, 7001));
    assert_eq!(pair.server.place(SERVER_FLOW), Some(here));
    assert_eq!(pair.server.place(CLIENT_FLOW), None, "not a flow of the server");
    let changes = pair.server.changes();
    // A frame of a lane from another address validates nothing and causes no packet.
    pair.server.receive(now, &datagram(there, &lane_frame(9)));
    assert_eq!((pair.server.place(SERVER_FLOW), pair.server.changes()), (Some(here), changes));
    assert!(pair.server.poll_control().is_none());
    // A keepalive of the flow, sent because a path became silent, causes the challenge.
    pair.client.keep_open(now, CLIENT_FLOW);
    let (_, keepalive) = pair.client.poll_control().expect("a keepalive");
    pair.server.receive(now, &datagram(there, keepalive.as_bytes()));
    let (to, challenge) = pair.server.poll_control().expect("a challenge");
    assert_eq!((to, pair.server.place(SERVER_FLOW)), (there, Some(here)));
    pair.client.receive(now, &datagram(super::observer::at_client(), challenge.as_bytes()));
    let (_, response) = pair.client.poll_control().expect("a response");
    pair.server.receive(now, &datagram(there, response.as_bytes()));
    assert_eq!(pair.server.place(SERVER_FLOW), Some(there));
    pair.server.forget(SERVER_FLOW);
    assert!(pair.server.place(SERVER_FLOW).is_none() && pair.server.changes() > changes);
}

#[test]
fn an_unproven_address_is_not_recorded_for_its_flow() {
    let now = Instant::from_secs(1);
    let mut server = carrier(true, ALONE);
    server.receive(now, &datagram(outer(1, 9, 7000), &syn(CLIENT_FLOW, 44)));
    let mut bytes = vec![0; SHORT_HEADER + 60];
    let answer = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, true, &bytes);
    assert!(server.frame(now, &answer, &mut bytes).is_some());
    assert_eq!(server.place(SERVER_FLOW), None);
    server.receive(now, &datagram(outer(1, 9, 7000), &data(SERVER_FLOW, 20)));
    assert_eq!(server.place(SERVER_FLOW), Some(outer(1, 9, 7000)));
}
