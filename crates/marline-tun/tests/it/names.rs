//! Name resolution through the gateway: queries over UDP become queries over TCP, and answers that are too long are
//! truncated.

use std::net::SocketAddr;

use marline_proxy::client::open::OpenError;
use marline_tun::datagram::{Datagram, DatagramOutcome, DatagramWriter, Datagrams, NoDatagrams};
use marline_wire::{IpPacket, PROTOCOL_UDP, UdpDatagram, verify_udp_checksum};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::support::{World, path, udp};

const RESOLVER: &str = "192.0.2.53:53";
const SERVICE: &str = "198.18.0.1:53";

fn world() -> World {
    World::new(Some(RESOLVER), Box::new(NoDatagrams))
}

fn query(id: u16, name: &[u8]) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, name.len() as u8]);
    bytes.extend(name);
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

async fn ask(world: &World, port: u16, query: &[u8]) {
    let path = path(SERVICE, port);
    world.send(&udp(path.local, path.remote, query)).await;
}

/// Returns the next answer: destination port and payload.
async fn answer(world: &World) -> (u16, Vec<u8>) {
    let packet = world.packet().await;
    let ip = IpPacket::parse(&packet).expect("a packet");
    assert_eq!((ip.protocol, ip.src), (PROTOCOL_UDP, "198.18.0.1".parse().expect("an address")));
    assert!(verify_udp_checksum(ip.src, ip.dst, ip.payload));
    let udp = UdpDatagram::parse(ip.payload).expect("a datagram");
    assert_eq!(udp.src_port, 53);
    (udp.dst_port, udp.payload.to_vec())
}

async fn heard(resolver: &mut DuplexStream) -> Vec<u8> {
    let len = resolver.read_u16().await.expect("a query");
    let mut message = vec![0; usize::from(len)];
    resolver.read_exact(&mut message).await.expect("the whole message");
    message
}

/// Answers with the query itself, extended by `longer` bytes.
async fn reply(resolver: &mut DuplexStream, query: &[u8], longer: usize) {
    let mut answer = query.to_vec();
    answer[2] |= 0x80;
    answer.extend(vec![7; longer]);
    let mut bytes = (answer.len() as u16).to_be_bytes().to_vec();
    bytes.extend(answer);
    // In two parts, because streams have no message boundaries.
    let (head, tail) = bytes.split_at(bytes.len() / 2);
    resolver.write_all(head).await.expect("written");
    tokio::task::yield_now().await;
    resolver.write_all(tail).await.expect("written");
}

#[tokio::test]
async fn queries_share_a_connection_and_are_answered_in_any_order() {
    let mut world = world();
    // Two programs use the same message number.
    ask(&world, 1_000, &query(77, b"first")).await;
    let (target, opened) = world.asked().await;
    assert_eq!(target.to_string(), RESOLVER);
    ask(&world, 2_000, &query(77, b"second")).await;
    let (near, mut resolver) = tokio::io::duplex(1 << 16);
    opened.send(Ok(near)).expect("still requested");
    let first = heard(&mut resolver).await;
    let second = heard(&mut resolver).await;
    assert_ne!(first[..2], second[..2], "the gateway assigns its own numbers");
    reply(&mut resolver, &second, 0).await;
    reply(&mut resolver, &first, 0).await;
    for (port, name) in [(2_000, &b"second"[..]), (1_000, b"first")] {
        let (to, message) = answer(&world).await;
        let mut expected = query(77, name);
        expected[2] |= 0x80;
        assert_eq!((to, message), (port, expected));
    }
    assert!(world.asked.try_recv().is_err(), "one connection");
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_cut_and_says_so() {
    let mut world = world();
    ask(&world, 1_000, &query(5, b"long")).await;
    let mut resolver = world.open().await;
    let asked = heard(&mut resolver).await;
    reply(&mut resolver, &asked, 3_000).await;
    let (_, message) = answer(&world).await;
    assert_eq!(message.len(), query(5, b"long").len());
    assert_ne!(message[2] & 0x02, 0, "truncated");
    assert_eq!(message[6..12], [0; 6]);
}

#[tokio::test]
async fn a_query_lost_with_its_connection_is_retried_once() {
    let mut world = world();
    ask(&world, 1_000, &query(5, b"lost")).await;
    for _ in 0..2 {
        let mut resolver = world.open().await;
        heard(&mut resolver).await;
        drop(resolver);
    }
    let (to, message) = answer(&world).await;
    assert_eq!((to, &message[..2], message[3] & 0xf), (1_000, &5u16.to_be_bytes()[..], 2));
    // The failure has no effect on the next query.
    ask(&world, 1_000, &query(6, b"found")).await;
    let mut resolver = world.open().await;
    let asked = heard(&mut resolver).await;
    reply(&mut resolver, &asked, 0).await;
    assert_eq!(answer(&world).await.1[..2], 6u16.to_be_bytes());
}

#[tokio::test]
async fn a_resolver_that_is_not_reached_fails_all_that_wait() {
    let mut world = world();
    ask(&world, 1_000, &query(1, b"a")).await;
    let (_, opened) = world.asked().await;
    ask(&world, 1_001, &query(2, b"b")).await;
    ask(&world, 1_002, b"no query").await;
    // The gateway has accepted the queries when it answers the packet after them.
    world.send(&udp(path(SERVICE, 9).local, SocketAddr::from(([192, 0, 2, 1], 9)), b"x")).await;
    world.packet().await;
    opened.send(Err(OpenError::Server(anyhow::anyhow!("refused")))).expect("still requested");
    let mut failed = Vec::new();
    for _ in 0..2 {
        let (port, message) = answer(&world).await;
        assert_eq!(message[3] & 0xf, 2, "SERVFAIL");
        failed.push(port);
    }
    failed.sort_unstable();
    assert_eq!(failed, [1_000, 1_001]);
    world.expect_silence().await;
}

#[tokio::test]
async fn queries_over_tcp_are_relayed_to_the_resolver() {
    let mut world = world();
    let syn = marline_testkit::Seg::syn().at(marline_wire::SeqNum(1)).mss(1_460);
    world.send(&super::support::tcp(path(SERVICE, 4_000), syn)).await;
    assert_eq!(world.asked().await.0.to_string(), RESOLVER);
}

/// A carrier that returns each datagram twice.
struct Echo;

impl Datagrams for Echo {
    fn on_datagram(
        &mut self,
        datagram: &Datagram<'_>,
        answers: &DatagramWriter,
    ) -> DatagramOutcome {
        let Datagram { source, destination, payload } = *datagram;
        match destination.port() {
            7 => {}
            9 => return DatagramOutcome::TooBig(1_200),
            _ => return DatagramOutcome::Refused,
        }
        for _ in 0..2 {
            answers.send(destination, source, payload).expect("the packet fits");
        }
        assert!(answers.send(destination, source, &[0; 8_300]).is_err(), "beyond the MTU");
        DatagramOutcome::Carried
    }
}

#[tokio::test]
async fn other_datagrams_reach_their_handler_or_are_unreachable() {
    let world = World::new(Some(RESOLVER), Box::new(Echo));
    for target in ["192.0.2.7:7", "[2001:db8::7]:7"] {
        let path = path(target, 5_000);
        world.send(&udp(path.local, path.remote, b"hello")).await;
        for _ in 0..2 {
            assert_eq!(world.packet().await, udp(path.remote, path.local, b"hello"));
        }
    }
    for (target, kind, code) in [("192.0.2.7:8", 3, 3), ("[2001:db8::7]:8", 1, 4)] {
        let path = path(target, 5_000);
        let sent = udp(path.local, path.remote, b"hello");
        world.send(&sent).await;
        let packet = world.packet().await;
        let ip = IpPacket::parse(&packet).expect("a packet");
        assert_eq!((ip.src, ip.dst), (world.addresses.gateway_for(ip.dst), path.local.ip()));
        assert_eq!((ip.payload[0], ip.payload[1], &ip.payload[8..]), (kind, code, &sent[..]));
    }
}

#[tokio::test]
async fn a_datagram_in_fragments_is_carried_whole() {
    let world = World::new(Some(RESOLVER), Box::new(Echo));
    let path = path("192.0.2.7:7", 5_000);
    let payload: Vec<u8> = (0..8_000u32).map(|at| at as u8).collect();
    let whole = udp(path.local, path.remote, &payload);
    let (header, rest) = whole.split_at(20);
    let parts: Vec<&[u8]> = rest.chunks(1_480).collect();
    for (number, part) in parts.iter().enumerate().rev() {
        let mut packet = [header, part].concat();
        let more = if number + 1 < parts.len() { 0x2000 } else { 0 };
        let field = more | (number * 1_480 / 8) as u16;
        packet[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet[10..12].fill(0);
        let sum = marline_wire::Checksum::of(&packet[..20]).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        world.send(&packet).await;
    }
    for _ in 0..2 {
        assert_eq!(world.packet().await, udp(path.remote, path.local, &payload));
    }
}

#[tokio::test]
async fn a_datagram_that_is_too_long_is_answered_unless_fragments_may_be_made_of_it() {
    let world = World::new(Some(RESOLVER), Box::new(Echo));
    for (target, kind, code, mtu) in
        [("192.0.2.7:9", 3, 4, 1_228u16), ("[2001:db8::7]:9", 2, 0, 1_248)]
    {
        let path = path(target, 5_000);
        let mut sent = udp(path.local, path.remote, &[0; 1_300]);
        if path.local.is_ipv4() {
            dont_fragment(&mut sent, false);
            world.send(&sent).await;
            world.expect_silence().await;
            dont_fragment(&mut sent, true);
        }
        world.send(&sent).await;
        let packet = world.packet().await;
        let ip = IpPacket::parse(&packet).expect("a packet");
        assert_eq!((ip.src, ip.dst), (world.addresses.gateway_for(ip.dst), path.local.ip()));
        assert_eq!(
            (ip.payload[0], ip.payload[1], &ip.payload[6..8]),
            (kind, code, &mtu.to_be_bytes()[..])
        );
        assert!(sent.starts_with(&ip.payload[8..]) && ip.payload.len() > 8 + 28);
    }
}

fn dont_fragment(packet: &mut [u8], set: bool) {
    packet[6] = if set { 0x40 } else { 0 };
    packet[10..12].fill(0);
    let sum = marline_wire::Checksum::of(&packet[..20]).finish();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
