//! Throughput benchmark of native Multipath TCP over a veth pair, with kernel TCP in the same run for comparison:
//! `cargo bench -p marline --bench native`.
//!
//! An echo keeps both directions busy. With default offloads, the kernel moves segments of 64 kB without cutting or
//! checksumming them, which a user-space stack cannot do; the second table uses segments as on a wire. Both ends share
//! this machine's processors.

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use marline::Carrier;
use support::machines::{Far, kernel_socket, near_ip, on_two_machines};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 3;

fn main() {
    on_two_machines(|mut far| {
        far.cable(1);
        let plain = far.serve("10.1.0.2:7000", false);
        let mptcp = far.serve("10.1.0.2:7001", true);
        let marline = far.serve_marline("10.1.0.2:7002");
        for (title, segments) in [("default offloads", None), ("one segment at a time", Some(1))] {
            if let Some(segments) = segments {
                one_segment_at_a_time(&far, segments);
            }
            println!("echo of {} MiB over veth, {title}; medians of {ROUNDS}", BYTES >> 20);
            let tcp = median(|| through_kernel(plain, false));
            row("kernel TCP", tcp, tcp);
            row("kernel MPTCP, 1 subflow", median(|| through_kernel(mptcp, true)), tcp);
            row("Marline - kernel MPTCP", median(|| through_marline(mptcp)), tcp);
            row("Marline - Marline", median(|| through_marline(marline)), tcp);
        }
    });
}

fn one_segment_at_a_time(far: &Far, segments: u32) {
    near_ip(&format!("link set near1 gso_max_segs {segments}"));
    far.ip(&format!("link set far1 gso_max_segs {segments}"));
}

fn row(what: &str, took: Duration, tcp: Duration) {
    let gbit_per_s = BYTES as f64 * 8.0 / took.as_secs_f64() / 1e9;
    let ratio = tcp.as_secs_f64() / took.as_secs_f64();
    println!("{what:>26} {gbit_per_s:>6.2} Gbit/s each way, {ratio:.2} of kernel TCP");
}

fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut all: Vec<Duration> = (0..ROUNDS).map(|_| measure()).collect();
    all.sort();
    all[ROUNDS / 2]
}

fn through_kernel(server: SocketAddr, mptcp: bool) -> Duration {
    let socket = kernel_socket(server, mptcp);
    socket.connect(&server.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let sent = bytes(BYTES, 1);
    let mut writer = stream.try_clone().unwrap();
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::with_capacity(BYTES);
        stream.read_to_end(&mut got).unwrap();
        let took = started.elapsed();
        assert!(got == sent, "the echo differs");
        took
    })
}

fn through_marline(server: SocketAddr) -> Duration {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = client_with(&["near1"], |client| {
            client.carrier(Carrier::Raw);
        })
        .await;
        let stream = client.connect(server).await.unwrap();
        assert_eq!(stream.fallback(), None);
        let sent = bytes(BYTES, 1);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let started = Instant::now();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let mut got = Vec::with_capacity(BYTES);
        reader.read_to_end(&mut got).await.unwrap();
        let took = started.elapsed();
        writing.await.unwrap();
        assert!(got == expected, "the echo differs");
        took
    })
}
