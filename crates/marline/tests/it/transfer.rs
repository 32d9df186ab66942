//! Tests of transfers over loopback: in both directions, over two paths, half closed, aborted, and across shards.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::support::*;
use marline::advanced::{Direction, FastOpen, ObservedPath, ObservedSegments, PacketObserver};
use marline::algos::schedulers::Auto;
use marline::config::TransportConfig;
use marline::monitor::MonitorKind;
use marline::paths::RadioKind;
use marline::policy::Reason;
use tokio::io::{AsyncReadExt, AsyncWrite as _, AsyncWriteExt};

#[tokio::test]
async fn bytes_arrive_equal_in_both_directions_over_two_paths() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (near, far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let (up, down) = (bytes(3 << 20, 1), bytes(2 << 20, 2));
    let (mut near_read, mut near_write) = tokio::io::split(near);
    let (mut far_read, mut far_write) = tokio::io::split(far);
    let ((), (), got_up, got_down) = within(async {
        tokio::join!(
            send(&mut near_write, &up),
            send(&mut far_write, &down),
            receive(&mut far_read),
            receive(&mut near_read)
        )
    })
    .await;
    assert!(got_up == up && got_down == down);
    let near = near_read.unsplit(near_write);
    let info = near.info().unwrap_or_else(|| panic!("still present, because the stream is held"));
    assert_eq!(info.fallback, None);
}

/// First bytes are the stream's first bytes with any state of Fast Open: disabled, without a cookie, with one, for
/// servers with Multipath TCP or without, and with more data than a SYN has room for.
#[tokio::test]
async fn first_bytes_go_with_the_syn_where_that_is_on_and_arrive_once_in_any_case() {
    let sent = bytes(3_000, 7);
    for (server_has, client_has) in [
        (None, None),
        (None, Some(FastOpen::default())),
        (Some(FastOpen::default()), None),
        (Some(FastOpen::default()), Some(FastOpen::default())),
        (
            Some(FastOpen::default()),
            Some(FastOpen { with_multipath: false, ..FastOpen::default() }),
        ),
        (Some(FastOpen::default()), Some(FastOpen { ports: vec![1], ..FastOpen::default() })),
    ] {
        let transport = |fast_open: &Option<FastOpen>| {
            let mut transport = TransportConfig::default();
            transport.fast_open(fast_open.clone());
            transport
        };
        let listener = server_with(1, |s| _ = s.transport(transport(&server_has))).await;
        let client = client_with(&["127.0.0.1"], |c| _ = c.transport(transport(&client_has))).await;
        let servers = [listener.local_addr()];
        let takes = server_has.is_some() && client_has == Some(FastOpen::default());
        for turn in 0..3 {
            let room = client.fast_open_room(&servers);
            assert_eq!(room.is_some(), takes && turn > 0, "{server_has:?} {client_has:?}");
            let connect = client.connect_with(&servers[..], &sent);
            let (near, far) = within(async { tokio::join!(connect, listener.accept()) }).await;
            let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
            let took = near.info().expect("it lives").subflows[0].tcp.took_syn_data;
            assert_eq!(took, takes && turn > 0, "{server_has:?} {client_has:?}, {turn}");
            let write = async {
                near.write_all(b"more").await.unwrap();
                near.shutdown().await.unwrap();
            };
            let ((), got) = within(async { tokio::join!(write, receive(&mut far)) }).await;
            assert!(got == [&sent[..], b"more"].concat());
        }
    }
}

/// Writes pieces of all lengths, with more data than a window holds: each call accepts some from the front, in order.
#[tokio::test]
async fn pieces_written_together_arrive_in_order() {
    let (listener, client) = (server(1).await, client(&["127.0.0.1"]).await);
    let (mut near, mut far) = pair(&client, &listener).await;
    assert!(near.is_write_vectored());
    assert_eq!(near.write_vectored(&[]).await.unwrap(), 0);
    assert_eq!(near.write_vectored(&[IoSlice::new(&[]), IoSlice::new(&[])]).await.unwrap(), 0);
    let sent = bytes(4 << 20, 5);
    let lengths = [0, 1, 16_406, 1_118, 0, 300_000, 7];
    let write = async {
        let mut rest = sent.as_slice();
        while !rest.is_empty() {
            let mut left = rest;
            let pieces = lengths.map(|length| {
                let (piece, behind) = left.split_at(length.min(left.len()));
                left = behind;
                IoSlice::new(piece)
            });
            let count = near.write_vectored(&pieces).await.unwrap();
            assert!(count > 0);
            rest = &rest[count..];
        }
        near.shutdown().await.unwrap();
    };
    let ((), got) = within(async { tokio::join!(write, receive(&mut far)) }).await;
    assert!(got == sent);
    let error = near.write_vectored(&[IoSlice::new(b"more")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn an_application_says_which_latency_it_needs() {
    let (listener, client) = (server(1).await, client(&["127.0.0.1", "127.0.0.2"]).await);
    let (mut near, mut far) = pair(&client, &listener).await;
    let scheduler = |stream: &marline::Stream| stream.info().expect("open").scheduler;
    let usual = scheduler(&near);
    near.set_deadline(Some(Duration::from_millis(80))).unwrap();
    assert_eq!(scheduler(&near), "deadline,within=80000us");
    near.write_all(&bytes(100_000, 1)).await.unwrap();
    let mut read = vec![0; 100_000];
    within(far.read_exact(&mut read)).await.unwrap();
    assert!(read == bytes(100_000, 1));
    near.set_deadline(None).unwrap();
    assert_eq!(scheduler(&near), usual);
}

#[tokio::test]
async fn a_listener_gets_decisions_that_can_be_recomputed() {
    let (listener, client) = (server(2).await, client(&["127.0.0.1", "127.0.0.2"]).await);
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let (mut sender, mut receiver) = (client.decisions(), listener.decisions());
    let id = near.info().expect("open").id;
    near.write_all(&bytes(50_000, 1)).await.unwrap();
    far.write_all(&bytes(50_000, 2)).await.unwrap();
    for (decisions, own) in [(&mut sender, true), (&mut receiver, false)] {
        let event = within(decisions.recv()).await.unwrap();
        let MonitorKind::Decided { reason, missed: 0 } = event.kind else {
            panic!("{event:?}");
        };
        assert!(!own || event.connection == id);
        let read = Reason::parse(&reason.record()).unwrap();
        assert_eq!(Auto::recompute(&read.question, &read.inputs).as_ref(), Some(&*reason));
        assert!(!read.inputs.paths.is_empty());
    }
}

#[tokio::test]
async fn a_half_closed_stream_still_carries_the_other_direction() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1"]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    near.shutdown().await.unwrap();
    let mut buf = [0; 16];
    assert_eq!(within(far.read(&mut buf)).await.unwrap(), 0, "the end of the stream");
    assert_eq!(near.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let late = bytes(100_000, 3);
    let ((), got) = within(async { tokio::join!(send(&mut far, &late), receive(&mut near)) }).await;
    assert!(got == late);
    drop((near, far));
    let patience = Duration::from_secs(5);
    assert!(client.drained(patience).await, "left: {:#?}", client.connections());
    assert!(listener.drained(patience).await, "left: {:#?}", listener.connections());
}

#[tokio::test]
async fn an_abort_is_a_reset_at_the_peer() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    near.write_all(b"hello").await.unwrap();
    let mut buf = [0; 5];
    within(far.read_exact(&mut buf)).await.unwrap();
    near.abort();
    let error = within(far.read(&mut buf)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn dropping_a_stream_with_unread_data_resets_the_peer() {
    let listener = server(1).await;
    let client = client(&["127.0.0.1"]).await;
    let (mut near, far) = pair(&client, &listener).await;
    near.write_all(&bytes(10_000, 4)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(far);
    let mut buf = [0; 1];
    let error = within(near.read(&mut buf)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connect_without_a_listener_is_refused_immediately() {
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let client = client(&["127.0.0.1"]).await;
    let started = std::time::Instant::now();
    let error = within(client.connect(address)).await.unwrap_err();
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    assert!(started.elapsed() < Duration::from_secs(10), "without waiting for timeouts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_and_their_joins_land_in_the_right_shard() {
    let listener = server(2).await;
    let client = client(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]).await;
    let mut held = Vec::new();
    for seed in 0..16 {
        let (mut near, mut far) = pair(&client, &listener).await;
        wait_for_subflows(&near, 3).await;
        let data = bytes(60_000, seed);
        let ((), got) =
            within(async { tokio::join!(send(&mut near, &data), receive(&mut far)) }).await;
        assert!(got == data);
        held.push((near, far));
    }
    let counters = listener.counters();
    let sum =
        |f: fn(&marline::monitor::Counters) -> u64| counters.iter().map(|(c, _)| f(c)).sum::<u64>();
    assert_eq!(
        sum(|c| c.mp_join_no_token),
        0,
        "no join reached a shard that does not know its token"
    );
    assert_eq!(sum(|c| c.mp_join_ack_rx), 32);
    let busy = counters.iter().filter(|(c, _)| c.mp_capable_syn_rx > 0).count();
    assert_eq!(busy, 2, "16 connections are distributed across both shards");
    let ids: std::collections::BTreeSet<_> = held.iter().map(|(_, far)| far.id()).collect();
    assert_eq!(ids.len(), 16, "ids are unique across the shards");
    assert_eq!(listener.connections().len(), 16);
}

#[tokio::test]
async fn captures_are_written_per_path() {
    let dir = std::env::temp_dir().join(format!("marline-capture-{}", std::process::id()));
    {
        let listener = server(1).await;
        let client = client_with(&["127.0.0.1", "127.0.0.2"], |config| {
            config.capture_dir(dir.clone());
        })
        .await;
        let (mut near, mut far) = pair(&client, &listener).await;
        wait_for_subflows(&near, 2).await;
        let data = bytes(50_000, 9);
        within(async { tokio::join!(send(&mut near, &data), receive(&mut far)) }).await;
        drop((near, far));
        client.drained(Duration::from_secs(5)).await;
    }
    // The driver ends in the background and writes its buffers.
    let files = within(async {
        loop {
            let files = ["127.0.0.1", "127.0.0.2"].map(|ip| {
                std::fs::read(dir.join(format!("client-{ip}.pcapng"))).unwrap_or_default()
            });
            if files.iter().all(|file| file.len() > 500) {
                return files;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for file in files {
        assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section header");
    }
    read_by_wireshark(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Wireshark must find Multipath TCP in every file, and nothing malformed.
fn read_by_wireshark(dir: &std::path::Path) {
    let Some(tshark) = marline_testkit::need::program("tshark") else { return };
    let frames = |file: &std::path::Path, filter: &str| {
        let mut command = std::process::Command::new(&tshark);
        command.args(["-o", "tcp.check_checksum:TRUE", "-Y", filter, "-r"]).arg(file);
        let output = command.stderr(std::process::Stdio::null()).output().unwrap();
        output.stdout.iter().filter(|byte| **byte == b'\n').count()
    };
    for (ip, handshake) in [("127.0.0.1", 0), ("127.0.0.2", 1)] {
        let file = dir.join(format!("client-{ip}.pcapng"));
        assert_eq!(frames(&file, "_ws.malformed || tcp.checksum.status == \"Bad\""), 0, "{ip}");
        let subtype = format!("tcp.options.mptcp.subtype == {handshake}");
        assert!(frames(&file, &subtype) >= 3, "the handshake of {ip} is recognized");
        assert!(frames(&file, "tcp.options.mptcp.subtype == 2") > 3, "DSS on {ip} is recognized");
    }
}

/// Both a waiting caller and a later caller learn that no further connection will arrive.
#[tokio::test]
async fn accept_ends_when_the_listener_is_closed() {
    let listener = server(1).await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let listener = listener.clone();
            tokio::spawn(async move { listener.accept().await.map(drop) })
        })
        .collect();
    tokio::task::yield_now().await;
    listener.close();
    for task in waiting {
        assert!(within(task).await.unwrap().is_none());
    }
    assert!(within(listener.accept()).await.is_none());
}

/// A silent server is given up in time, and the error names the server and the attempts.
#[tokio::test]
async fn a_silent_server_is_given_up_when_patience_ends() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let patience = std::time::Duration::from_millis(400);
    let impatient = |client: &mut marline::ClientBuilder| {
        client.connect_timeout(patience);
    };
    let client = client_with(&["127.0.0.1", "127.0.0.2"], impatient).await;
    let error = within(client.connect(at)).await.unwrap_err();
    let marline::ConnectError::Unreachable { attempts } = &error else { panic!("{error}") };
    assert_eq!(attempts.len(), 2, "{error}");
    assert!(attempts.iter().all(|attempt| attempt.reason().contains("no answer")), "{error}");
    assert!(client.connections().is_empty(), "no attempt continues in the background");
}

/// `[::]` stands for all addresses of the machine: clients of both families reach the server.
#[tokio::test]
async fn a_server_on_all_addresses_answers_both_families() {
    for shards in [1, 2] {
        let any = "[::]:0".parse().unwrap();
        let listener = server_with(shards, |server| {
            server.listen(any);
        })
        .await;
        let port = listener.local_addr().port();
        assert!(listener.local_addrs().iter().all(|at| at.port() == port));
        for (local, server) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1")] {
            let client = client(&[local]).await;
            let server = std::net::SocketAddr::new(server.parse().unwrap(), port);
            let (mut near, mut far) = pair_at(&client, &listener, server).await;
            assert_eq!(far.peer_addr().is_ipv4(), server.is_ipv4());
            let (sent, got) = tokio::join!(send(&mut near, b"hello"), receive(&mut far));
            assert_eq!(((), &got[..]), (sent, &b"hello"[..]));
        }
    }
}

/// Observed data.
#[derive(Debug, Default)]
struct Tally {
    /// Segments, their bytes and their packets' bytes, by local address and direction.
    passed: BTreeMap<(IpAddr, bool), [u64; 3]>,
    /// Radio and addresses of each path, as last reported.
    paths: BTreeMap<usize, (Option<RadioKind>, Vec<IpAddr>)>,
}

impl PacketObserver for Tally {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let out = observed.direction == Direction::Sent;
        let [segments, bytes, packets] = self.passed.entry((observed.local_ip(), out)).or_default();
        *segments += observed.segments().count() as u64;
        *bytes += observed.segments().map(<[u8]>::len).sum::<usize>() as u64;
        *packets += observed.packet_bytes();
    }

    fn path(&mut self, _at: marline::time::Instant, path: &ObservedPath<'_>) {
        self.paths.insert(path.number, (path.spec.radio, path.addresses.to_vec()));
    }
}

#[tokio::test]
async fn an_observer_is_shown_every_segment_and_every_path() {
    /// IPv4, UDP, and the carrier's short header.
    const HEADERS: u64 = 20 + 8 + 9;
    const BYTES: usize = 100_000;
    let listener = server(1).await;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let paths = ["127.0.0.1,radio=wifi", "127.0.0.2"];
    let client = client_with(&paths, |client| {
        client.observer(tally.clone());
    })
    .await;
    let [first, second] = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
    let known = [(0, (Some(RadioKind::Wifi), vec![first])), (1, (None, vec![second]))];
    assert_eq!(tally.lock().unwrap().paths, BTreeMap::from(known));
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let sent = bytes(BYTES, 1);
    let (_, got) = within(async { tokio::join!(send(&mut near, &sent), receive(&mut far)) }).await;
    assert!(got == sent);
    let tally = tally.lock().unwrap();
    let both_ways_on_both = [(first, false), (first, true), (second, false), (second, true)];
    assert!(tally.passed.keys().eq(&both_ways_on_both), "{tally:?}");
    for [segments, bytes, packets] in tally.passed.values() {
        assert_eq!(*packets, bytes + segments * HEADERS, "{tally:?}");
    }
    let out: u64 = [first, second].iter().map(|ip| tally.passed[&(*ip, true)][1]).sum();
    assert!(out > BYTES as u64, "{tally:?}");
}
