use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use marline_core::{Ecn, FourTuple, Shard, Transmit};
use marline_time::{Duration, Instant};

use super::frame::{Frame, HandshakeBody, SenderInfo};
use super::*;

mod generations;
mod lanes;
mod observer;
mod strangers;

const CLIENT_FLOW: u64 = 0xc000_0000_0000_0001;
/// Length of the header before the segment of a HANDSHAKE without a cookie.
const HANDSHAKE_LEN: usize = 66;
const SERVER_FLOW: u64 = 0x0100_0000_0000_0002;

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn carrier(accept: bool, shard: Shard) -> UdpCarrier {
    let mut carrier = UdpCarrier::new(CarrierConfig {
        shard,
        accept,
        max_flows: 16,
        keepalive: Duration::from_secs(15),
        secret: [if accept { 3 } else { 4 }; 32],
        reset_seed: [if accept { 5 } else { 6 }; 32],
    });
    let bound = SocketAddr::new(ip(if accept { 1 } else { 2 }), if accept { 443 } else { 5000 });
    carrier.set_socket(0, Some(bound));
    carrier
}

const ALONE: Shard = Shard::SINGLE;

fn outer(local: u8, host: u8, port: u16) -> Outer {
    Outer { socket: 0, local: ip(local), remote: SocketAddr::new(ip(host), port) }
}

fn segment(flags: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(20)];
    bytes[..2].copy_from_slice(&4242u16.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = flags;
    bytes
}

fn datagram(outer: Outer, bytes: &[u8]) -> Datagram<'_> {
    Datagram {
        outer,
        local_port: 443,
        ecn: Ecn::NotEct,
        handed_over: false,
        requires_cookie: false,
        bytes,
    }
}

fn batch(
    path: FourTuple,
    local_flow: u64,
    peer_flow: u64,
    handshake: bool,
    bytes: &[u8],
) -> Transmit {
    Transmit {
        path,
        ecn: Ecn::NotEct,
        local_flow,
        peer_flow,
        handshake,
        datagrams: 1,
        stride: bytes.len(),
    }
}

fn server_path() -> FourTuple {
    FourTuple { local: SocketAddr::new(ip(1), 443), remote: SocketAddr::new(ip(9), 4242) }
}

/// Keys of a client.
fn client_handshake_body() -> HandshakeBody {
    let mut key = [0; 32];
    key[0] = 9;
    HandshakeBody { introduction: SenderInfo { key, commitment: [2; 16] }, cookie: None }
}

fn syn(sender: u64, len: usize) -> Vec<u8> {
    [HandshakeHeader::new(0, sender, &client_handshake_body()).as_bytes(), &segment(0x02, len)]
        .concat()
}

fn data(flow: u64, len: usize) -> Vec<u8> {
    let mut bytes = frame::data_header(flow).to_vec();
    bytes.extend(segment(0x10, len));
    bytes
}

/// Carrier of a server that has answered a SYN from 192.0.2.9 port 7000.
fn half_open(now: Instant) -> UdpCarrier {
    let mut server = carrier(true, ALONE);
    let syn = syn(CLIENT_FLOW, 44);
    let ReceivedDatagram::Segment(meta, _) =
        server.receive(now, &datagram(outer(1, 9, 7000), &syn))
    else {
        panic!("a SYN goes to the core");
    };
    assert_eq!((meta.path, meta.flow, meta.peer_flow), (server_path(), 0, CLIENT_FLOW));
    let framed = answer(&mut server, now, 60).expect("one answer fits three times the SYN");
    let FramedBatch::Handshake { outer: to, header, .. } = framed else {
        panic!("SYN/ACK has the long header")
    };
    assert_eq!(to, outer(1, 9, 7000));
    assert_eq!(header.as_bytes().len(), HANDSHAKE_LEN);
    server
}

fn answer(server: &mut UdpCarrier, now: Instant, segment_len: usize) -> Option<FramedBatch> {
    let mut bytes = vec![0; SHORT_HEADER + segment_len];
    let syn_ack = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, true, &bytes);
    server.frame(now, &syn_ack, &mut bytes)
}

fn established(now: Instant) -> UdpCarrier {
    let mut server = half_open(now);
    let ack = data(SERVER_FLOW, 20);
    assert!(matches!(
        server.receive(now, &datagram(outer(1, 9, 7000), &ack)),
        ReceivedDatagram::Segment(meta, _) if meta.path == server_path() && meta.flow == SERVER_FLOW
    ));
    server
}

#[test]
fn an_unproven_address_gets_at_most_three_times_what_it_sent() {
    let now = Instant::from_secs(1);
    let mut server = half_open(now);
    let syn_bytes = HANDSHAKE_LEN + 44;
    let mut sent = HANDSHAKE_LEN + 60;
    let mut received = syn_bytes;
    for round in 0..50 {
        while answer(&mut server, now, 60).is_some() {
            sent += HANDSHAKE_LEN + 60;
        }
        assert!(sent <= 3 * received, "{sent} of {received}");
        assert!(sent + HANDSHAKE_LEN + 60 > 3 * received, "the allowance is used");
        let again = syn(CLIENT_FLOW, 44);
        server.receive(now + Duration::from_secs(round), &datagram(outer(1, 9, 7000), &again));
        received += syn_bytes;
    }
    assert_eq!(server.counters().withheld, 50);
    // Once the client is validated, nothing is withheld.
    server.receive(now, &datagram(outer(1, 9, 7000), &data(SERVER_FLOW, 20)));
    for _ in 0..100 {
        let mut bytes = vec![0; 1400];
        let batch = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, false, &bytes);
        assert!(server.frame(now, &batch, &mut bytes).is_some());
    }
}

#[test]
fn a_syn_from_another_port_moves_the_answer_and_its_allowance() {
    let now = Instant::from_secs(1);
    let mut server = half_open(now);
    let again = syn(CLIENT_FLOW, 44);
    server.receive(now, &datagram(outer(1, 9, 7001), &again));
    assert!(matches!(
        answer(&mut server, now, 60),
        Some(FramedBatch::Handshake { outer: to, .. }) if to == outer(1, 9, 7001)
    ));
    assert!(answer(&mut server, now, 60).is_some());
    assert!(answer(&mut server, now, 60).is_none(), "bytes from the old port do not count");
}

#[test]
fn a_client_keeps_its_mapping_open() {
    let mut now = Instant::from_secs(1);
    let mut client = carrier(false, ALONE);
    let path =
        FourTuple { local: SocketAddr::new(ip(2), 4242), remote: SocketAddr::new(ip(1), 443) };
    let mut bytes = vec![0; SHORT_HEADER + 40];
    let first = batch(path, CLIENT_FLOW, 0, true, &bytes);
    let Some(FramedBatch::Handshake { outer: to, .. }) = client.frame(now, &first, &mut bytes)
    else {
        panic!("a SYN opens a flow");
    };
    let here = outer(2, 1, 443);
    assert_eq!(to, here);
    let third = batch(path, CLIENT_FLOW, SERVER_FLOW, false, &bytes);
    assert!(client.frame(now, &third, &mut bytes).is_some());

    let mut last = now;
    for _ in 0..100 {
        now = client.next_timeout().expect("a keepalive is due some time");
        client.on_timeout(now);
        while let Some((to, frame)) = client.poll_control() {
            assert_eq!((to, frame), (here, ControlFrame::keepalive(SERVER_FLOW)));
            assert!(now.since(last) <= Duration::from_secs(20));
            last = now;
        }
    }
    assert!(client.counters().keepalives > 40);

    // A flow whose subflow has ended sends no keepalives, and late packets do not change that.
    client.retire(CLIENT_FLOW);
    let asked = client.counters().keepalives;
    for second in 1..60 {
        let now = now + Duration::from_secs(second);
        client.receive(now, &datagram(here, &data(CLIENT_FLOW, 20)));
        client.on_timeout(now);
    }
    assert_eq!((client.poll_control(), client.counters().keepalives), (None, asked));
    client.forget(CLIENT_FLOW);
    assert_eq!(client.next_timeout(), None, "no connections, no keepalives");
}

#[test]
fn a_receiving_client_sends_a_keepalive_after_silence() {
    let start = Instant::from_secs(1);
    let mut client = carrier(false, ALONE);
    let path =
        FourTuple { local: SocketAddr::new(ip(2), 4242), remote: SocketAddr::new(ip(1), 443) };
    let mut bytes = vec![0; SHORT_HEADER + 40];
    client.frame(start, &batch(path, CLIENT_FLOW, 0, true, &bytes), &mut bytes);
    client.frame(start, &batch(path, CLIENT_FLOW, SERVER_FLOW, false, &bytes), &mut bytes);
    let heard = start + Duration::from_secs(5);
    client.receive(heard, &datagram(outer(2, 1, 443), &data(CLIENT_FLOW, 20)));
    let mut asked = Vec::new();
    while asked.len() < 6 {
        let now = client.next_timeout().expect("a keepalive is due some time");
        client.on_timeout(now);
        while client.poll_control().is_some() {
            asked.push(now.since(heard).as_secs());
        }
    }
    assert_eq!(asked, [1, 2, 4, 8, 23, 38], "soon after it grew quiet, then as before");

    // TCP segments serve the same purpose: no keepalive then.
    let heard = heard + Duration::from_secs(60);
    client.receive(heard, &datagram(outer(2, 1, 443), &data(CLIENT_FLOW, 20)));
    for tenth in 1..40 {
        let now = heard + Duration::from_millis(100 * tenth);
        client.frame(now, &batch(path, CLIENT_FLOW, SERVER_FLOW, false, &bytes), &mut bytes);
        client.on_timeout(now);
        assert!(client.poll_control().is_none());
    }
}

#[test]
fn joins_and_foreign_ids_are_handed_to_the_shard_that_owns_them() {
    let now = Instant::from_secs(1);
    let mut shard = carrier(true, Shard { index: 0, count: 2, generation: None });
    let mut join = HandshakeHeader::new(0, 77, &client_handshake_body()).as_bytes().to_vec();
    let mut tcp = segment(0x02, 32);
    tcp[12] = 8 << 4;
    tcp[20..32].copy_from_slice(&[30, 12, 0x10, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
    join.extend(&tcp);
    let mut arrived = datagram(outer(1, 9, 7000), &join);
    assert!(matches!(shard.receive(now, &arrived), ReceivedDatagram::OtherShard(1)));
    arrived.handed_over = true;
    assert!(
        matches!(shard.receive(now, &arrived), ReceivedDatagram::Nothing),
        "no endless forwarding"
    );
    let mut owner = carrier(true, Shard { index: 1, count: 2, generation: None });
    assert!(matches!(owner.receive(now, &arrived), ReceivedDatagram::Segment(..)));
    let foreign = data(SERVER_FLOW, 20);
    let arrived = datagram(outer(1, 9, 7000), &foreign);
    assert!(matches!(shard.receive(now, &arrived), ReceivedDatagram::OtherShard(1)));
    assert!(matches!(owner.receive(now, &arrived), ReceivedDatagram::Nothing));
    assert_eq!((shard.counters().resets, owner.counters().resets), (0, 1), "the owner disowns it");
}

#[test]
fn a_flood_of_syns_leaves_tables_bounded_and_proven_flows_alone() {
    let mut now = Instant::from_secs(1);
    let mut server = established(now);
    for n in 0..20_000u64 {
        now += Duration::from_micros(100);
        let sender = 0x5000 + n;
        let bytes = syn(sender, 44);
        let from = outer(1, (n % 200) as u8, 1000 + n as u16);
        let ReceivedDatagram::Segment(meta, _) = server.receive(now, &datagram(from, &bytes))
        else {
            panic!("a SYN goes to the core, which has limits of its own");
        };
        let mut out = vec![0; SHORT_HEADER + 60];
        let syn_ack = batch(meta.path, 0x9000_0000 + n, sender, true, &out);
        assert!(server.frame(now, &syn_ack, &mut out).is_some());
        let (flows, pending) = server.table_sizes();
        assert!(flows <= 16 && pending <= PENDING_CAPACITY, "{flows} {pending}");
    }
    let ack = data(SERVER_FLOW, 20);
    let got = server.receive(now, &datagram(outer(1, 9, 7000), &ack));
    assert!(matches!(got, ReceivedDatagram::Segment(meta, _) if meta.path == server_path()));
    // Minutes later, only the validated flow is left, and no timer runs.
    for _ in 0..100 {
        if let Some(at) = server.next_timeout() {
            server.on_timeout(at.max(now));
            now = now.max(at);
        }
    }
    assert_eq!(server.table_sizes(), (1, 0));
    assert_eq!(server.next_timeout(), None);
}

#[test]
fn noise_never_panics_and_is_never_answered_by_more() {
    let now = Instant::from_secs(1);
    let mut server = carrier(true, ALONE);
    let mut rng = marline_time::PcgRng::new(1, 1);
    use marline_time::Rng as _;
    for _ in 0..50_000 {
        let len = rng.below(80) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u32() as u8).collect();
        if let Some(first) = bytes.first_mut() {
            *first = ((1 + (*first >> 7)) << 4) | (*first & 7);
        }
        server.receive(now, &datagram(outer(1, 9, 7000), &bytes));
        let answered = core::iter::from_fn(|| server.poll_control());
        let answered: usize = answered.map(|(_, frame)| frame.as_bytes().len()).sum();
        assert!(answered <= len);
    }
}
