//! Benchmark of the real-time link: one-way delay errors as an outside observer measures them, and the highest
//! rate that the link sustains.
//!
//! `cargo bench -p marline-emulator --bench emulator`

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use marline_emulator::{DEFAULT_SPIN, Emulator, RelayConfig};
use marline_link::DuplexSpec;
use marline_time::SeedTree;

const PAYLOAD: usize = 1_400;

fn main() -> io::Result<()> {
    println!("one-way delay error: measured minus delay and serialization, {PAYLOAD} B datagrams");
    for (spec, packets, gap_us) in [
        ("rate=100M,delay=10ms", 4_000, 500),
        ("rate=20M,delay=10ms", 2_000, 1_000),
        ("rate=20M,delay=35ms", 1_000, 5_000),
    ] {
        for spin in [Duration::ZERO, DEFAULT_SPIN] {
            precision(spec, packets, Duration::from_micros(gap_us), spin)?;
        }
    }
    for rate in ["200M", "500M", "1G", "unlimited"] {
        throughput(rate)?;
    }
    Ok(())
}

fn start(spec: &str, server: &UdpSocket, spin: Duration) -> io::Result<(Emulator, UdpSocket)> {
    let spec: DuplexSpec = spec.parse().map_err(io::Error::other)?;
    let link = spec.resolve(&SeedTree::new(1), &mut |_| None).map_err(io::Error::other)?;
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let config = RelayConfig::new("bench", listen, server.local_addr()?, link);
    let emulator = Emulator::start(vec![config], spin)?;
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    client.connect(emulator.local_addr(0).ok_or(io::ErrorKind::NotFound)?)?;
    Ok((emulator, client))
}

fn precision(spec: &str, packets: u32, gap: Duration, spin: Duration) -> io::Result<()> {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    server.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (emulator, client) = start(spec, &server, spin)?;
    let origin = Instant::now();
    let sender = std::thread::spawn(move || -> io::Result<()> {
        let mut datagram = [0; PAYLOAD];
        for _ in 0..packets {
            // Sent at least one gap apart, because a sender that overslept would measure the link's queue.
            std::thread::sleep(gap);
            let now = origin.elapsed().as_nanos() as u64;
            datagram[..8].copy_from_slice(&now.to_be_bytes());
            client.send(&datagram)?;
        }
        Ok(())
    });
    let parsed: DuplexSpec = spec.parse().map_err(io::Error::other)?;
    let rate = match parsed.up.rate {
        marline_link::RateSpec::Constant(rate) => rate,
        _ => return Err(io::Error::other("a constant rate is needed")),
    };
    let expected = parsed.up.delay + rate.time_for(PAYLOAD as u64 + 28);
    let mut errors_us = Vec::new();
    let mut datagram = [0; PAYLOAD];
    while errors_us.len() < packets as usize && server.recv(&mut datagram).is_ok() {
        let sent = u64::from_be_bytes(datagram[..8].try_into().map_err(io::Error::other)?);
        let took = origin.elapsed().as_nanos() as i64 - sent as i64;
        errors_us.push((took - expected.as_nanos() as i64) as f64 / 1e3);
    }
    sender.join().map_err(|_| io::Error::other("the sender panicked"))??;
    errors_us.sort_by(f64::total_cmp);
    let at = |q: f64| errors_us[((errors_us.len() - 1) as f64 * q) as usize];
    println!(
        "{spec:24} spin {:3} us, {} packets: p50 {:+.0} us, p95 {:+.0} us, p99 {:+.0} us, max {:+.0} us",
        spin.as_micros(),
        errors_us.len(),
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0),
    );
    let report = emulator.stop()?.remove(0);
    println!("{:24}   its own figure: {}; read {}", "", report.up.late, report.up.waited);
    Ok(())
}

/// A blocking sender in bursts of ten, limited by the link's rate.
fn throughput(rate: &str) -> io::Result<()> {
    const TIME: Duration = Duration::from_secs(2);
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    server.set_read_timeout(Some(Duration::from_millis(200)))?;
    let (emulator, client) =
        start(&format!("rate={rate},delay=5ms,queue=50ms"), &server, DEFAULT_SPIN)?;
    let offered: f64 = match rate {
        "200M" => 210e6,
        "500M" => 520e6,
        "1G" => 1.04e9,
        _ => 3e9,
    };
    let receiver = std::thread::spawn(move || {
        let (mut bytes, mut buffer) = (0, [0; 2_048]);
        while let Ok(length) = server.recv(&mut buffer) {
            bytes += length;
        }
        bytes
    });
    let (begin, mut sent) = (Instant::now(), 0u64);
    while begin.elapsed() < TIME {
        let due = (begin.elapsed().as_secs_f64() * offered / 8.0 / PAYLOAD as f64) as u64;
        let burst = due.saturating_sub(sent).min(64);
        for _ in 0..burst {
            client.send(&[7; PAYLOAD])?;
        }
        sent += burst;
        if sent >= due {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let bytes = receiver.join().map_err(|_| io::Error::other("the receiver panicked"))?;
    let report = emulator.stop()?.remove(0);
    let mbit = |bytes: usize| bytes as f64 * 8.0 / TIME.as_secs_f64() / 1e6;
    println!(
        "rate {rate:9}: offered {:.0} Mbit/s, delivered {:.0} (the bench's own receiver got {:.0}) of payload, {} \
         dropped by the queue, {} by the kernel, late {}",
        mbit(sent as usize * PAYLOAD),
        mbit(report.up.stats.delivered_packets as usize * PAYLOAD),
        mbit(bytes),
        report.up.stats.dropped_queue,
        report.kernel_drops,
        report.up.late,
    );
    for doubt in report.doubts() {
        println!("          unreliable: {doubt}");
    }
    Ok(())
}
