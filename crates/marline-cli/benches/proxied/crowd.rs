//! Echoes on many streams of one client, alone and with a concurrent bulk transfer of another.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::beside::Echo;
use crate::relay::{Bulk, client_of};
use crate::spread::{Spread, ratios};
use crate::support::start_server;
use crate::{ROUNDS, percentile};

const STREAMS: usize = 1_000;
/// Interval between two messages of a stream.
const INTERVAL: Duration = Duration::from_millis(500);
const MESSAGES: usize = 6;

/// Times of echoes in milliseconds, sorted, and the streams for the next round.
async fn echoes(streams: Vec<TcpStream>) -> (Vec<f64>, Vec<TcpStream>) {
    let begun = Instant::now();
    // One task each, because futures polled together would all be checked for each echo.
    let mut running = JoinSet::new();
    for (number, mut stream) in streams.into_iter().enumerate() {
        running.spawn(async move {
            let mut times = Vec::with_capacity(MESSAGES);
            for round in 0..MESSAGES {
                // Spread evenly over the interval.
                let at = INTERVAL * round as u32 + INTERVAL * number as u32 / STREAMS as u32;
                tokio::time::sleep_until((begun + at).into()).await;
                let sent = Instant::now();
                let mut message = [number as u8; 200];
                stream.write_all(&message).await.expect("written");
                stream.read_exact(&mut message).await.expect("an echo");
                times.push(sent.elapsed().as_secs_f64() * 1e3);
            }
            (times, stream)
        });
    }
    let mut times = Vec::with_capacity(STREAMS * MESSAGES);
    let mut streams = Vec::with_capacity(STREAMS);
    for (some, stream) in running.join_all().await {
        times.extend(some);
        streams.push(stream);
    }
    times.sort_by(f64::total_cmp);
    (times, streams)
}

/// Reads as fast as data arrives, until `over` is set.
fn bulk(address: SocketAddr, over: &AtomicBool) -> u64 {
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    stream.write_all(b"D").expect("a byte");
    let (mut chunk, mut bytes) = (vec![0; 256 << 10], 0);
    while !over.load(Ordering::Relaxed) {
        bytes += stream.read(&mut chunk).expect("bytes") as u64;
    }
    bytes
}

/// Opens the streams one after another.
async fn opened(address: SocketAddr) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        streams.push(crate::silent::open(address, 1).await.expect("a stream"));
    }
    streams
}

/// p99 of the rounds without and with the bulk transfer, in milliseconds.
#[derive(Default)]
struct Measured {
    alone: Vec<f64>,
    beside: Vec<f64>,
}

impl Measured {
    fn say(self, by: &str) -> f64 {
        let ratio = ratios(&self.beside, &self.alone);
        let (alone, beside) = (Spread::of(self.alone), Spread::of(self.beside));
        println!(
            "echoes on {STREAMS} streams {by}, p99 in ms: alone {alone}, during a bulk transfer \
             of another client {beside}"
        );
        println!("    ratio {ratio}");
        ratio.median
    }
}

pub(crate) fn measure() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    let target = Echo::start();
    let source = Bulk::start();
    let most = ["--max-connections", "2000"];
    let server = start_server(dir.path(), &["--allow", "127.0.0.0/8", most[0], most[1]]);
    let (_many, echoing) = client_of(dir.path(), &server, target.address);
    let (_other, heavy) = client_of(dir.path(), &server, source.address);
    let mut through = runtime.block_on(opened(echoing));
    let mut directly = runtime.block_on(opened(target.address));
    // The same echoes without a proxy show the machine's share.
    let [mut proxied, mut direct] = [Measured::default(), Measured::default()];
    let mut rates = Vec::new();
    let step = |streams: &mut Vec<TcpStream>, into: &mut Vec<f64>| {
        let (times, kept) = runtime.block_on(echoes(core::mem::take(streams)));
        *streams = kept;
        into.push(percentile(&times, 99));
    };
    for _ in 0..ROUNDS {
        step(&mut through, &mut proxied.alone);
        step(&mut directly, &mut direct.alone);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let transfer = scope.spawn(|| bulk(heavy, &over));
            std::thread::sleep(Duration::from_millis(500));
            step(&mut through, &mut proxied.beside);
            step(&mut directly, &mut direct.beside);
            over.store(true, Ordering::Relaxed);
            let seconds = begun.elapsed().as_secs_f64();
            let bytes = transfer.join().expect("no panic");
            rates.push(bytes as f64 * 8.0 / seconds / 1e9);
        });
    }
    let ratio = proxied.say("through the proxy");
    direct.say("directly");
    println!("    the bulk transfer had {} Gbit/s", Spread::of(rates));
    println!("figure crowd {ratio:.2}");
}
