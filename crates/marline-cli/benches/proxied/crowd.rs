//! Echoes on many streams of one client, alone and beside a bulk transfer of another.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::beside::Echo;
use crate::relay::{Bulk, client_of};
use crate::spread::{Spread, ratios};
use crate::support::start_server;
use crate::{ROUNDS, percentile};

const STREAMS: usize = 1_000;
/// Between two messages of a stream.
const INTERVAL: Duration = Duration::from_millis(500);
const MESSAGES: usize = 6;

/// Milliseconds that echoes took, sorted.
async fn echoes(streams: &mut [tokio::net::TcpStream]) -> Vec<f64> {
    let begun = Instant::now();
    let each = streams.iter_mut().enumerate().map(|(number, stream)| async move {
        let mut times = Vec::with_capacity(MESSAGES);
        for round in 0..MESSAGES {
            // Spread over the interval.
            let at = INTERVAL * round as u32 + INTERVAL * number as u32 / STREAMS as u32;
            tokio::time::sleep_until((begun + at).into()).await;
            let sent = Instant::now();
            let mut message = [number as u8; 200];
            stream.write_all(&message).await.expect("written");
            stream.read_exact(&mut message).await.expect("an echo");
            times.push(sent.elapsed().as_secs_f64() * 1e3);
        }
        times
    });
    let mut times = together(each).await;
    times.sort_by(f64::total_cmp);
    times
}

/// All of them at once.
async fn together(each: impl Iterator<Item = impl Future<Output = Vec<f64>>>) -> Vec<f64> {
    let mut running: Vec<_> = each.map(|one| Some(Box::pin(one))).collect();
    let mut times = Vec::new();
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for slot in &mut running {
            let Some(one) = slot else { continue };
            match one.as_mut().poll(cx) {
                std::task::Poll::Ready(some) => {
                    times.extend(some);
                    *slot = None;
                }
                std::task::Poll::Pending => waiting = true,
            }
        }
        if waiting { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
    })
    .await;
    times
}

/// Reads as much as comes, until told.
fn bulk(address: SocketAddr, over: &AtomicBool) -> u64 {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.write_all(b"D").expect("a byte");
    let (mut chunk, mut bytes) = (vec![0; 256 << 10], 0);
    while !over.load(Ordering::Relaxed) {
        bytes += stream.read(&mut chunk).expect("bytes") as u64;
    }
    bytes
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
    let mut streams = runtime.block_on(async {
        let mut streams = Vec::with_capacity(STREAMS);
        for _ in 0..STREAMS {
            streams.push(crate::silent::open(echoing, 1).await.expect("a stream"));
        }
        streams
    });
    let [mut alone, mut beside, mut rates] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        alone.push(percentile(&runtime.block_on(echoes(&mut streams)), 99));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let transfer = scope.spawn(|| bulk(heavy, &over));
            std::thread::sleep(Duration::from_millis(500));
            let begun = Instant::now();
            beside.push(percentile(&runtime.block_on(echoes(&mut streams)), 99));
            over.store(true, Ordering::Relaxed);
            let seconds = begun.elapsed().as_secs_f64() + 0.5;
            let bytes = transfer.join().expect("no panic");
            rates.push(bytes as f64 * 8.0 / seconds / 1e9);
        });
    }
    let ratio = ratios(&beside, &alone);
    println!(
        "echoes on {STREAMS} streams, p99 in ms: alone {}, beside bulk of another client {}",
        Spread::of(alone),
        Spread::of(beside)
    );
    println!("    ratio {ratio}; the bulk had {} Gbit/s", Spread::of(rates));
    println!("figure crowd {:.2}", ratio.median);
}
