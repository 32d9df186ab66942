//! Tests of the TCP carrier on loopback: transfers over it alone, several shards, and attacks on the port.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::support::machines::{can_make_machines, done, name_of_test, role, run_this_test};
use super::support::*;
use marline::monitor::{CarrierCounters, CloseReason};
use marline::paths::PathHealth;
use marline::{Carrier, Client, ConnectError, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// First bytes of a Marline client.
const PREAMBLE: &[u8] = b"Marline\x01";
/// Limit on unvalidated links from one address.
const PENDING_OF_ONE: usize = 128;

async fn server_on_both(shards: usize) -> Server {
    Server::builder()
        .carrier(Carrier::Auto)
        .listen("127.0.0.1:0".parse().unwrap())
        .shards(shards)
        .bind()
        .await
        .unwrap()
}

fn counters(server: &Server) -> CarrierCounters {
    server.counters()[0].1
}

/// Waits until the counters fulfill a condition.
async fn wait_for(server: &Server, holds: impl Fn(&CarrierCounters) -> bool) {
    within(async {
        while !holds(&counters(server)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Echoes all data.
fn echo(server: &Server) {
    let server = server.clone();
    tokio::spawn(async move {
        while let Some((stream, _)) = server.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
}

async fn round_trip(client: &Client, server: SocketAddr, length: usize) {
    let stream = within(client.connect(server)).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = bytes(length, length as u64);
    let (copy, mut got) = (sent.clone(), Vec::new());
    let writing = tokio::spawn(async move {
        writer.write_all(&copy).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    within(reader.read_to_end(&mut got)).await.unwrap();
    writing.await.unwrap();
    assert!(got == sent, "{length} bytes come back unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_go_over_tcp_alone_on_every_shard_and_nothing_is_sent_twice() {
    for (shards, paths) in [(1, 1), (1, 2), (4, 1), (4, 2)] {
        let server = server_on_both(shards).await;
        echo(&server);
        let client = client_with(&["127.0.0.1", "127.0.0.2"][..paths], |config| {
            config.carrier(Carrier::Tcp);
        })
        .await;
        for length in [1, 100_000, 3_000_000] {
            round_trip(&client, server.local_addr(), length).await;
        }
        let (ours, theirs) = (client.connections(), server.connections());
        let connections = ours.iter().chain(&theirs);
        let subflows = connections.flat_map(|found| found.subflows.iter().chain(&found.gone));
        // Over two paths, copies may reach the end of a window.
        for subflow in subflows.filter(|_| paths == 1) {
            assert_eq!(subflow.bytes_retransmitted, 0, "{subflow:?}");
        }
        assert!(counters(&server).links >= 1, "{:?}", counters(&server));
        assert_eq!(counters(&server).link_frames_dropped, 0);
    }
}

/// A server answers a limited number of probes per second. With one probe for each of thousands of flows, the last
/// probe got no answer, and the client considered UDP blocked.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_probes_once_a_second_for_many_silent_streams() {
    const STREAMS: usize = 300;
    let server = server_on_both(1).await;
    echo(&server);
    let client = client_with(&["127.0.0.1"], |config| {
        config.carrier(Carrier::Auto);
    })
    .await;
    let begun = std::time::Instant::now();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let mut stream = within(client.connect(server.local_addr())).await.unwrap();
        within(stream.write_all(b"a")).await.unwrap();
        assert_eq!(within(stream.read_u8()).await.unwrap(), b'a');
        streams.push(stream);
    }
    // Each sends a keepalive after a second of silence: all have been silent for that time.
    within(async {
        while client.counters().1.keepalives < STREAMS as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    wait_for(&server, |counters| counters.resets > 0).await;
    let (resets, most) = (counters(&server).resets, 2 + 2 * begun.elapsed().as_secs());
    assert!(resets <= most, "asked {resets} times, but {most} times are enough");
}

/// The machine has eight ports to choose from; programs use all but one of them, some for TCP and some for UDP.
#[test]
fn a_port_that_the_system_chooses_is_free_for_datagrams_and_tcp() {
    let name = name_of_test(&a_port_that_the_system_chooses_is_free_for_datagrams_and_tcp);
    if role().is_some() {
        let run = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(run.unwrap().success());
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40007").unwrap();
        tokio::runtime::Runtime::new().unwrap().block_on(the_port_left_over());
        done();
    }
    if can_make_machines() {
        run_this_test("server", &["-rn"], name);
    }
}

async fn the_port_left_over() {
    let by_tcp = [0, 2, 3, 6].map(|port| TcpListener::bind(("127.0.0.1", 40_000 + port)).unwrap());
    let by_udp = [1, 4, 7].map(|port| UdpSocket::bind(("127.0.0.1", 40_000 + port)).unwrap());
    for shards in [1, 4] {
        let server = server_on_both(shards).await;
        assert_eq!(server.local_addr().port(), 40_005, "with {shards} shards");
        let builder = || Server::builder().listen(server.local_addr()).shards(shards).clone();
        let second = builder().bind().await.map(|server| server.local_addr());
        let error = std::io::Error::from(second.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "with {shards} shards");
        drop(server);
        // The tasks end soon.
        let left = || (UdpSocket::bind("127.0.0.1:40005"), TcpListener::bind("127.0.0.1:40005"));
        while !matches!(left(), (Ok(_), Ok(_))) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    drop((by_tcp, by_udp));
}

#[tokio::test]
async fn a_client_learns_that_the_server_does_not_listen_on_tcp() {
    let server = server_with(1, |config| {
        config.carrier(Carrier::Udp);
    })
    .await;
    let client = client_with(&["127.0.0.1"], |config| {
        config.carrier(Carrier::Tcp).connect_timeout(Duration::from_secs(2));
    })
    .await;
    // The refusal of the server's machine counts immediately, as for a closed port of any other carrier.
    let error = client.connect(server.local_addr()).await.unwrap_err();
    let refused = ConnectError::Closed(CloseReason::Refused).to_string();
    assert_eq!(error.to_string(), refused, "{error:?}");
    let path = client.paths().remove(0);
    let why = path.servers[0].tcp_failure.clone().unwrap_or_default();
    assert!(why.contains("does not listen on TCP"), "{why}");
    within(async {
        while client.paths()[0].health != PathHealth::Unreachable {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_datagram_only_client_needs_no_listener_and_opens_no_link() {
    let server = server_on_both(1).await;
    echo(&server);
    let client = client_with(&["127.0.0.1"], |_| ()).await;
    round_trip(&client, server.local_addr(), 10_000).await;
    assert_eq!(counters(&server).links, 0);
}

/// Reads until the end. Returns the number of bytes, or `None` if there were none and the stream did not end in time.
fn read_to_end(stream: &mut TcpStream, patience: Duration) -> Option<usize> {
    stream.set_read_timeout(Some(patience)).unwrap();
    let (mut buffer, mut count) = ([0; 4096], 0);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Some(count),
            Ok(length) => count += length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return None;
            }
            Err(_) => return Some(count),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_closed_without_a_word() {
    let server = server_on_both(1).await;
    let address = server.local_addr();
    let strangers: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"SSH-2.0-x\r\n",
        &[0; 100],
    ];
    for (number, first) in strangers.into_iter().enumerate() {
        let closed = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(first).unwrap();
            read_to_end(&mut stream, Duration::from_secs(5))
        });
        assert_eq!(closed.await.unwrap(), Some(0), "{first:?}");
        wait_for(&server, |counters| counters.links_malformed == number as u64 + 1).await;
    }
    // The right preamble, followed by a length that no frame has.
    for length in [0u16, 8, 1_473, 0xffff] {
        let closed = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(PREAMBLE).unwrap();
            stream.write_all(&length.to_be_bytes()).unwrap();
            read_to_end(&mut stream, Duration::from_secs(5))
        });
        let came = closed.await.unwrap();
        assert!(came == Some(0) || came == Some(PREAMBLE.len()), "{length}: {came:?}");
    }
    wait_for(&server, |counters| counters.links_malformed == 8).await;
    // Unknown frames are dropped, as with datagrams, and the link remains until its timeout.
    let alive = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(PREAMBLE).unwrap();
        for _ in 0..100 {
            stream.write_all(&[0, 40]).unwrap();
            stream.write_all(&[0xaa; 40]).unwrap();
        }
        read_to_end(&mut stream, Duration::from_secs(1))
    });
    assert_eq!(alive.await.unwrap(), None);
    assert!(counters(&server).malformed >= 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_without_a_valid_flow_in_time_is_closed() {
    let server = server_on_both(1).await;
    let address = server.local_addr();
    // One link is silent, one sends a byte of a frame per second, and one sends frames that belong to no flow.
    let silent = TcpStream::connect(address).unwrap();
    let drip = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(PREAMBLE).unwrap();
        for byte in [0, 200].into_iter().chain([0x20; 100]) {
            if stream.write_all(&[byte]).is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        false
    });
    let noise = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(PREAMBLE).unwrap();
        let frame = [&[0, 25, 0x24], &[9; 24][..]].concat();
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(250));
            stream.write_all(&frame).is_err()
        })
    });
    wait_for(&server, |counters| counters.links_silent == 3).await;
    drop(silent);
    let ended = tokio::task::spawn_blocking(move || (drip.join().unwrap(), noise.join().unwrap()));
    assert_eq!(ended.await.unwrap(), (true, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_links_of_one_address_make_room_for_newcomers_from_it_and_from_elsewhere() {
    let server = server_on_both(1).await;
    echo(&server);
    let address = server.local_addr();
    // This link has a validated flow, so it is not evicted.
    let client = client_with(&["127.0.0.1"], |config| {
        config.carrier(Carrier::Tcp);
    })
    .await;
    round_trip(&client, address, 1_000).await;
    let mut flood = Vec::new();
    for _ in 0..PENDING_OF_ONE + 40 {
        flood.push(TcpStream::connect(address).unwrap());
    }
    wait_for(&server, |counters| counters.links_evicted >= 40).await;
    round_trip(&client, address, 1_000).await;
    for host in ["127.0.0.1", "127.0.0.3"] {
        let newcomer = client_with(&[host], |config| {
            config.carrier(Carrier::Tcp);
        })
        .await;
        round_trip(&newcomer, address, 1_000).await;
    }
    assert_eq!(counters(&server).links_refused, 0);
    drop(flood);
}
