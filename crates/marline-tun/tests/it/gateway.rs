//! Connections of a host through the gateway are opened, refused and ended in the same way as those to their target.

use std::time::Duration;

use marline_core::{CloseReason, ConnectionId, Event, ReadError, WriteError};
use marline_proxy::client::open::OpenError;
use marline_proxy::message::{ErrorCode, Failure};
use marline_testkit::Seg;
use marline_tun::datagram::NoDatagrams;
use marline_wire::{IpPacket, PROTOCOL_TCP, SeqNum, TcpFlags, TcpSegment};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::support::{CONNECTIONS, Host, World, path, tcp};

const TARGETS: [&str; 2] = ["192.0.2.80:443", "[2001:db8::80]:443"];

fn world() -> World {
    World::new(None, Box::new(NoDatagrams))
}

fn syn() -> Seg {
    Seg::syn().at(SeqNum(7_000)).mss(1_460)
}

/// Returns a connection of the host from this port, with the target's end of it.
async fn connected(
    world: &mut World,
    host: &mut Host,
    target: &str,
    port: u16,
) -> (ConnectionId, DuplexStream) {
    let id = host.connect(path(target, port));
    host.run(world, Duration::from_millis(20), |_| false).await;
    let far = world.open().await;
    host.run_until(world, |event| matches!(event, Event::Connected { .. })).await;
    (id, far)
}

fn refused(code: ErrorCode) -> OpenError {
    OpenError::Refused(Failure::new(code, "no"))
}

#[tokio::test]
async fn the_syn_ack_waits_until_the_target_is_open() {
    for target in TARGETS {
        let mut world = world();
        for _ in 0..3 {
            world.send(&tcp(path(target, 40_000), syn())).await;
        }
        let (asked, answer) = world.asked().await;
        assert_eq!(asked.to_string(), target);
        world.expect_silence().await;
        let (near, _far) = tokio::io::duplex(100);
        answer.send(Ok(near)).expect("still requested");
        let packet = world.packet().await;
        let ip = IpPacket::parse(&packet).expect("a packet");
        let segment = TcpSegment::parse(ip.payload).expect("a segment");
        assert_eq!(segment.header.flags, TcpFlags::SYN.with(TcpFlags::ACK));
        assert_eq!((ip.src, segment.header.ack), (path(target, 1).remote.ip(), SeqNum(7_001)));
        assert!(world.asked.try_recv().is_err(), "requested once");
    }
}

#[tokio::test]
async fn a_refusal_is_answered_with_a_reset_or_icmp_error() {
    // Flags of a RST, or type and code of ICMP and of ICMPv6 (RFC 792, RFC 4443).
    for (code, v4, v6) in [
        (ErrorCode::ConnectionReset, None, None),
        (ErrorCode::NotAuthorized, Some((3, 13)), Some((1, 1))),
        (ErrorCode::DestinationUnreachable, Some((3, 1)), Some((1, 3))),
        (ErrorCode::NetworkFailure, Some((3, 0)), Some((1, 0))),
        (ErrorCode::ResourceExceeded, Some((3, 0)), Some((1, 0))),
    ] {
        for (target, expected) in TARGETS.into_iter().zip([v4, v6]) {
            let mut world = world();
            let path = path(target, 41_000);
            world.send(&tcp(path, syn())).await;
            let (_, answer) = world.asked().await;
            answer.send(Err(refused(code))).expect("still requested");
            let packet = world.packet().await;
            let ip = IpPacket::parse(&packet).expect("a packet");
            assert_eq!(ip.dst, path.local.ip());
            let Some((kind, code)) = expected else {
                assert_eq!((ip.protocol, ip.src), (PROTOCOL_TCP, path.remote.ip()));
                let header = TcpSegment::parse(ip.payload).expect("a segment").header;
                assert_eq!(header.flags, TcpFlags::RST.with(TcpFlags::ACK));
                assert_eq!(header.ack, SeqNum(7_001));
                continue;
            };
            assert_eq!(ip.src, world.addresses.gateway_for(ip.dst));
            assert_eq!(ip.payload[..2], [kind, code], "{target}");
            // The message quotes the SYN's ports and sequence number.
            let quoted = &ip.payload[8 + if ip.src.is_ipv6() { 40 } else { 20 }..];
            assert_eq!(quoted[..2], 41_000u16.to_be_bytes());
            assert_eq!(quoted[2..4], 443u16.to_be_bytes());
            assert_eq!(quoted[4..8], 7_000u32.to_be_bytes());
            // A repeated SYN causes another request.
            world.send(&tcp(path, syn())).await;
            world.asked().await;
        }
    }
}

#[tokio::test]
async fn the_gateway_itself_serves_only_dns() {
    let mut world = world();
    world.send(&tcp(path("198.18.0.1:80", 40_000), syn())).await;
    let packet = world.packet().await;
    let ip = IpPacket::parse(&packet).expect("a packet");
    let header = TcpSegment::parse(ip.payload).expect("a segment").header;
    assert!(header.flags.contains(TcpFlags::RST));
    assert!(world.asked.try_recv().is_err());
}

#[tokio::test]
async fn an_end_of_one_direction_leaves_the_other() {
    let mut world = world();
    let mut host = Host::new();
    let (id, mut far) = connected(&mut world, &mut host, TARGETS[0], 40_000).await;
    assert_eq!(host.write(id, b"question"), Ok(8));
    host.shutdown(id);
    let mut question = String::new();
    let (_, read) = tokio::join!(
        host.run(&world, Duration::from_millis(300), |_| false),
        far.read_to_string(&mut question)
    );
    read.expect("to the end");
    assert_eq!(question, "question");
    far.write_all(b"answer").await.expect("still open");
    host.run_until(&world, |event| matches!(event, Event::Readable(_))).await;
    let mut answer = [0; 10];
    assert_eq!(host.read(id, &mut answer), Ok(6));
    drop(far);
}

#[tokio::test]
async fn a_reset_of_the_host_breaks_the_targets_stream_and_the_other_way_round() {
    let mut world = world();
    let mut host = Host::new();
    let (id, mut far) = connected(&mut world, &mut host, TARGETS[1], 40_000).await;
    host.abort(id);
    let gone = async { far.read(&mut [0; 10]).await };
    let (_, read) = tokio::join!(host.run(&world, Duration::from_millis(300), |_| false), gone);
    assert_eq!(read.expect("the dropped pipe reports an error"), 0);

    let (id, far) = connected(&mut world, &mut host, TARGETS[1], 40_001).await;
    // Everything must end immediately, without a graceful close.
    world.stopper.end();
    host.run_until(&world, |event| matches!(event, Event::Closed { .. })).await;
    assert_eq!(host.read(id, &mut [0; 10]), Err(ReadError::Closed(CloseReason::PeerReset)));
    drop(far);
}

/// The window depends on the target: data that it does not read stays in the program, except for a bounded part.
#[tokio::test]
async fn a_target_that_takes_nothing_closes_the_window() {
    let mut world = world();
    let mut host = Host::new();
    let (id, mut far) = connected(&mut world, &mut host, TARGETS[0], 40_000).await;
    /// The host's send buffer, the gateway's receive buffer, the relay's, and the pipe.
    const MOST: usize = (256 << 10) + (1 << 20) + (32 << 10) + super::support::PIPE + 65_536;
    let mut written = 0;
    for _ in 0..400 {
        while let Ok(count) = host.write(id, &[9; 16_384]) {
            written += count;
        }
        host.run(&world, Duration::from_millis(2), |_| false).await;
        assert!(written <= MOST, "{written} bytes were accepted");
    }
    assert_eq!(host.write(id, b"x"), Err(WriteError::Blocked));
    host.shutdown(id);
    let mut read = 0;
    let all = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = far.read(&mut buffer).await {
            read += count;
        }
    };
    let run = host.run(&world, Duration::from_secs(20), |_| false);
    tokio::pin!(run);
    tokio::select! {
        () = all => {}
        _ = &mut run => panic!("the write continues"),
    }
    assert_eq!(read, written);
}

/// At the limit, a program is notified within seconds and does not wait for its own timeout.
#[tokio::test]
async fn beyond_the_limit_a_connection_is_refused() {
    let mut world = world();
    let mut waiting = Vec::new();
    for number in 0..=CONNECTIONS {
        world.send(&tcp(path(TARGETS[0], 40_000 + number), syn())).await;
        if number < CONNECTIONS {
            waiting.push(world.asked().await);
        }
    }
    let packet = world.packet().await;
    let ip = IpPacket::parse(&packet).expect("a packet");
    // Destination unreachable for the network (RFC 792).
    assert_eq!((ip.protocol, ip.payload[0], ip.payload[1]), (1, 3, 0));
    assert!(world.asked.try_recv().is_err(), "the other connections are unchanged");
}
