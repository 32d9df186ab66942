//! Tests of native TCP against the kernel of this machine, in both roles, over veth with its default offloads: data
//! arrives unchanged, subflows join, and the kernel sends no RST.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::support::machines::{Far, bytes_sent, near_counter, near_ip, on_two_machines};
use super::support::*;
use marline::config::ServerAddress;
use marline::monitor::{FallbackReason, SubflowState};
use marline::{Carrier, Client, Server, ServerBuilder, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BYTES: usize = 6_000_000;

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}

async fn raw_client(paths: &[&str]) -> Client {
    client_with(paths, |client| {
        client.carrier(Carrier::Raw);
    })
    .await
}

async fn raw_server(listen: &str, announce: &[&str]) -> Server {
    raw_server_with(listen, announce, |_| {}).await
}

async fn raw_server_with(
    listen: &str,
    announce: &[&str],
    change: impl FnOnce(&mut ServerBuilder),
) -> Server {
    let mut server = Server::builder();
    server.carrier(Carrier::Raw).listen(listen.parse().unwrap());
    change(&mut server);
    for ip in announce {
        server.announce(ServerAddress::new(SocketAddr::new(ip.parse().unwrap(), 0)));
    }
    server.bind().await.unwrap()
}

/// Sends bytes to an echo server, ends the stream, and compares.
async fn ask(stream: Stream, sent: Vec<u8>) -> Stream {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    let mut got = Vec::new();
    within(reader.read_to_end(&mut got)).await.unwrap();
    assert!(got == expected, "{} bytes came back of {}", got.len(), expected.len());
    reader.unsplit(writing.await.unwrap())
}

/// Returns the number of bytes that a connection has also sent on a second path. After its program has ended, a kernel
/// answers data that arrives twice with a RST, and on a busy machine a path may be silent for long enough to be
/// suspected.
fn sent_twice(stream: &Stream) -> u64 {
    let info = stream.info();
    let subflows = info.iter().flat_map(|info| info.subflows.iter().chain(&info.gone));
    subflows.map(|subflow| subflow.bytes_reinjected).sum()
}

/// Checks that the kernel on the far side has sent no RST.
fn assert_no_resets(far: &Far, sent_twice: u64) {
    let resets = far.counter("TcpOutRsts");
    assert!(resets == 0 || sent_twice > 0, "{resets} resets, but nothing was sent twice");
}

/// Echoes on one connection and returns it after the end.
async fn echo(stream: Stream) -> Stream {
    let (mut reader, mut writer) = tokio::io::split(stream);
    within(tokio::io::copy(&mut reader, &mut writer)).await.unwrap();
    writer.shutdown().await.unwrap();
    reader.unsplit(writer)
}

fn client_asks_kernel(mut far: Far, listen: &str, near: [&str; 2]) {
    far.cable(1);
    far.cable(2);
    let server = far.serve(listen, true);
    let twice = AtomicU64::new(0);
    run(async {
        let client = raw_client(&near).await;
        let mut stream = within(client.connect(server)).await.unwrap();
        assert_eq!(stream.fallback(), None);
        // Round-robin: the amount that min-rtt sends on the second path depends on the load of this machine.
        stream.set_scheduler("round-robin").unwrap();
        stream.write_all(b"!").await.unwrap();
        let mut first = [0; 1];
        within(stream.read_exact(&mut first)).await.unwrap();
        wait_for_subflows(&stream, 2).await;
        let stream = ask(stream, bytes(BYTES, 1)).await;
        twice.store(sent_twice(&stream), Ordering::Relaxed);
        drop(stream);
        assert!(client.drained(Duration::from_secs(10)).await);
        let (_, carrier) = client.counters();
        assert_eq!(carrier.bad_checksums, 0);
        assert!(carrier.unfinished_checksums > 0, "veth leaves checksums unfinished");
    });
    // About half of the bytes. The kernel counts a batch of segments as one packet.
    let sent = bytes_sent("near2");
    assert!(sent > 420_000, "the second path uses near2: {sent} bytes");
    assert_eq!(far.counter("MPTcpExtMPJoinAckRx"), 1);
    assert_eq!(far.counter("MPTcpExtMPCapableFallbackACK"), 0);
    assert_eq!(near_counter("TcpOutRsts"), 0, "our kernel sent no RST");
    assert_no_resets(&far, twice.into_inner());
}

#[test]
fn a_client_joins_a_kernel_server() {
    on_two_machines(|far| {
        client_asks_kernel(far, "10.1.0.2:7000", ["near1", "near2"]);
    });
}

#[test]
fn a_client_joins_a_kernel_server_over_ipv6() {
    on_two_machines(|far| {
        client_asks_kernel(far, "[fd00:1::2]:7000", ["fd00:1::1", "fd00:2::1"]);
    });
}

/// Every SYN is answered with a SYN cookie: the kernel's third ACK contains enough for Multipath TCP, joins, and
/// window scaling.
#[test]
fn a_kernel_client_connects_by_a_cookie() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        far.ip("mptcp limits set subflows 4 add_addr_accepted 4");
        let twice = AtomicU64::new(0);
        run(async {
            let announce = ["10.1.0.1", "10.2.0.1"];
            let always = |server: &mut ServerBuilder| server.limits_mut().syn_queue = 0;
            let listener = raw_server_with("0.0.0.0:0", &announce, always).await;
            let port = listener.local_addr().port();
            for (number, mptcp) in [(1, true), (2, false)] {
                let to = SocketAddr::new(announce[0].parse().unwrap(), port);
                far.start_client(to, BYTES, mptcp);
                let (mut stream, _) = within(listener.accept()).await.unwrap();
                assert_eq!(stream.fallback().is_none(), mptcp);
                let mut first = [0; 1];
                within(stream.read_exact(&mut first)).await.unwrap();
                stream.write_all(&first).await.unwrap();
                if mptcp {
                    wait_for_subflows(&stream, 2).await;
                }
                let stream = echo(stream).await;
                assert_eq!(tokio::task::block_in_place(|| far.client_result()), "ok");
                twice.fetch_add(sent_twice(&stream), Ordering::Relaxed);
                drop(stream);
                let (core, _) = listener.counters()[0];
                assert_eq!(core.syn_cookies_received, number);
            }
            assert!(listener.drained(Duration::from_secs(10)).await);
        });
        assert_no_resets(&far, twice.into_inner());
    });
}

fn kernel_asks_server(mut far: Far, listen: &str, announce: [&str; 2]) {
    far.cable(1);
    far.cable(2);
    far.ip("mptcp limits set subflows 4 add_addr_accepted 4");
    run(async {
        let listener = raw_server(listen, &announce).await;
        let port = listener.local_addr().port();
        far.start_client(SocketAddr::new(announce[0].parse().unwrap(), port), BYTES, true);
        let (mut stream, peer) = within(listener.accept()).await.unwrap();
        assert_eq!(stream.fallback(), None);
        assert_eq!(stream.peer_addr(), peer);
        let mut first = [0; 1];
        within(stream.read_exact(&mut first)).await.unwrap();
        stream.write_all(&first).await.unwrap();
        wait_for_subflows(&stream, 2).await;
        drop(echo(stream).await);
        assert_eq!(tokio::task::block_in_place(|| far.client_result()), "ok");
        assert!(listener.drained(Duration::from_secs(10)).await);
    });
    assert!(far.counter("MPTcpExtMPJoinSynAckRx") >= 1);
    assert!(far.counter("MPTcpExtAddAddr") >= 1, "our announcement was accepted");
    assert_eq!(near_counter("TcpOutRsts"), 0, "our kernel sent no RST");
}

#[test]
fn a_kernel_client_joins_a_server() {
    on_two_machines(|far| {
        kernel_asks_server(far, "0.0.0.0:7000", ["10.1.0.1", "10.2.0.1"]);
    });
}

#[test]
fn a_kernel_client_joins_a_server_over_ipv6() {
    on_two_machines(|far| {
        kernel_asks_server(far, "[::]:7000", ["fd00:1::1", "fd00:2::1"]);
    });
}

#[test]
fn a_peer_without_mptcp_gets_plain_tcp() {
    on_two_machines(|mut far| {
        far.cable(1);
        let server = far.serve("10.1.0.2:7000", false);
        run(async {
            let client = raw_client(&["near1"]).await;
            let stream = within(client.connect(server)).await.unwrap();
            assert_eq!(stream.fallback(), Some(FallbackReason::SynAckWithoutOption));
            drop(ask(stream, bytes(BYTES, 2)).await);

            let listener = raw_server("10.1.0.1:7001", &[]).await;
            far.start_client(listener.local_addr(), BYTES, false);
            let (stream, _) = within(listener.accept()).await.unwrap();
            assert_eq!(stream.fallback(), Some(FallbackReason::SynWithoutOption));
            drop(echo(stream).await);
            assert_eq!(tokio::task::block_in_place(|| far.client_result()), "ok");
        });
        assert_eq!(near_counter("TcpOutRsts"), 0);
    });
}

#[test]
fn ports_are_ours_alone_and_strangers_are_refused_by_us() {
    on_two_machines(|mut far| {
        far.cable(1);
        let server = far.serve("10.1.0.2:7000", true);
        run(async {
            let client = raw_client(&["near1"]).await;
            let stream = within(client.connect(server)).await.unwrap();
            let ours = stream.info().unwrap().subflows[0].path.local;
            assert!(std::net::TcpListener::bind(ours).is_err(), "reserved");
            for mptcp in [false, true] {
                far.start_client(ours, 10, mptcp);
                let result = tokio::task::block_in_place(|| far.client_result());
                assert!(result.contains("refused"), "{result}");
            }
            assert_eq!(near_counter("TcpOutRsts"), 0, "Marline sent the refusal");

            // On an address on which the server does not listen, the port belongs to the kernel.
            let listener = raw_server("127.0.0.1:7003", &[]).await;
            let elsewhere = std::net::TcpListener::bind("10.1.0.1:7003").unwrap();
            far.start_client(elsewhere.local_addr().unwrap(), 10, false);
            let (kernels, _) = tokio::task::block_in_place(|| elsewhere.accept()).unwrap();
            drop((kernels, listener));
            assert_ne!(tokio::task::block_in_place(|| far.client_result()), "ok");
            drop(ask(stream, bytes(100_000, 3)).await);
        });
    });
}

#[test]
fn an_interface_that_goes_and_comes_back_is_followed() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        let server = far.serve("10.1.0.2:7000", true);
        far.ip("route add 10.2.0.0/16 dev far2 metric 50");
        run(async {
            let client = raw_client(&["near1", "near2"]).await;
            let mut stream = within(client.connect(server)).await.unwrap();
            let mut some = [0; 5];
            stream.write_all(b"first").await.unwrap();
            within(stream.read_exact(&mut some)).await.unwrap();
            wait_for_subflows(&stream, 2).await;
            near_ip("link set near2 down");
            within(async {
                while established(&stream) > 1 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            stream.write_all(b"again").await.unwrap();
            within(stream.read_exact(&mut some)).await.unwrap();
            near_ip("link set near2 up");
            near_ip("route add default via 10.2.0.2 dev near2 metric 200");
            wait_for_subflows(&stream, 2).await;
            drop(ask(stream, bytes(1_000_000, 4)).await);
        });
    });
}

fn established(stream: &Stream) -> usize {
    let info = stream.info().expect("the connection lives");
    info.subflows.iter().filter(|s| s.state == SubflowState::Established).count()
}

#[test]
fn an_announced_address_that_goes_is_withdrawn() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        far.ip("mptcp limits set subflows 4 add_addr_accepted 4");
        run(async {
            let listener = raw_server("0.0.0.0:7000", &["10.1.0.1", "10.2.0.1"]).await;
            far.start_client("10.1.0.1:7000".parse().unwrap(), BYTES, true);
            let (mut stream, _) = within(listener.accept()).await.unwrap();
            let mut first = [0; 1];
            within(stream.read_exact(&mut first)).await.unwrap();
            stream.write_all(&first).await.unwrap();
            wait_for_subflows(&stream, 2).await;
            near_ip("link set near2 down");
            within(async {
                while far.counter("MPTcpExtRmAddr") == 0 || established(&stream) > 1 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            drop(echo(stream).await);
            assert_eq!(tokio::task::block_in_place(|| far.client_result()), "ok");
        });
    });
}

#[test]
fn icmp_ends_an_attempt_immediately() {
    on_two_machines(|far| {
        far.cable(1);
        // The far machine is a router without a route.
        far.write("/proc/sys/net/ipv4/ip_forward", "1");
        far.write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        far.ip("route add unreachable 198.51.100.0/24");
        far.ip("-6 route add unreachable 2001:db8::/32");
        run(async {
            let client = raw_client(&["near1"]).await;
            for server in ["198.51.100.1:80", "[2001:db8::1]:80"] {
                let started = std::time::Instant::now();
                let error = within(client.connect(server)).await.unwrap_err();
                // The error is from a router, not from the server: the error names it, and the attempt does not count
                // as refused.
                assert!(
                    matches!(error, marline::ConnectError::Unreachable { .. }),
                    "{server}: {error}"
                );
                assert!(error.to_string().contains("unreachable (ICMP)"), "{server}: {error}");
                // Without ICMP this takes more than a minute.
                assert!(started.elapsed() < Duration::from_secs(20));
            }
        });
    });
}
