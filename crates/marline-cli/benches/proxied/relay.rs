//! Bulk transfers through the proxy, compared with the relay over QUIC.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ROUNDS;
use crate::beside::Quic;
use crate::spread::{Spread, ratios};
use crate::support::{Running, ServerSide, processor_time, start_server};

/// Duration of a transfer's start, which is not measured, and of the measured part.
const BEGINNING: Duration = Duration::from_millis(500);
const COUNTED: Duration = Duration::from_secs(3);

/// A client and a server in front of a target. Dropping this ends both.
pub(crate) struct Proxied {
    server: ServerSide,
    client: Running,
    /// Address for applications.
    pub(crate) address: SocketAddr,
}

impl Proxied {
    pub(crate) fn to(dir: &Path, target: SocketAddr) -> Proxied {
        let server = start_server(dir, &["--allow", "127.0.0.0/8"]);
        let (client, address) = client_of(dir, &server, target);
        Proxied { server, client, address }
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        vec![self.client.id(), self.server.process.id()]
    }
}

/// Returns a client with a forward to a target.
pub(crate) fn client_of(
    dir: &Path,
    server: &ServerSide,
    target: SocketAddr,
) -> (Running, SocketAddr) {
    let (path, forward) = (format!("127.0.0.1={}", server.address), format!("0:{target}"));
    let invite = server.invite_file.to_str().expect("text");
    let args = ["client", "--invite-file", invite, "--path", &path, "-L", &forward];
    let mut client = Running::start(dir, &args);
    let address = client.address_after("forward listening on ");
    (client, address)
}

#[derive(Copy, Clone, Debug)]
pub(crate) enum Direction {
    Down,
    Up,
}

/// A target that sends until the connection is closed, or counts the bytes it reads. The first byte of each
/// connection selects which.
pub(crate) struct Bulk {
    pub(crate) address: SocketAddr,
    taken: Arc<AtomicU64>,
}

impl Bulk {
    pub(crate) fn start() -> Bulk {
        Bulk::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"))
    }

    pub(crate) fn on(listener: TcpListener) -> Bulk {
        let address = listener.local_addr().expect("its address");
        let taken = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&taken);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || serve(stream, &counter));
            }
        });
        Bulk { address, taken }
    }
}

fn serve(mut stream: TcpStream, taken: &AtomicU64) {
    let mut asked = [0];
    if stream.read_exact(&mut asked).is_err() {
        return;
    }
    let mut chunk = vec![0; 256 << 10];
    if asked == [b'D'] {
        while stream.write_all(&chunk).is_ok() {}
        return;
    }
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        taken.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Returns the rate of this connection in Gbit/s, and the CPU seconds of these processes per GB.
pub(crate) fn transfer(
    bulk: &Bulk,
    mut stream: TcpStream,
    processes: &[u32],
    direction: Direction,
) -> (f64, f64) {
    let used = || processes.iter().map(|process| processor_time(*process)).sum::<Duration>();
    let mut chunk = vec![0; 256 << 10];
    let mut read = 0;
    let first: &[u8] = if matches!(direction, Direction::Down) { b"D" } else { b"U" };
    stream.write_all(first).expect("a byte");
    let mut step = |read: &mut u64| match direction {
        Direction::Down => {
            let count = stream.read(&mut chunk).expect("bytes");
            assert!(count > 0, "the transfer ended");
            *read += count as u64;
            *read
        }
        Direction::Up => {
            stream.write_all(&chunk).expect("room");
            bulk.taken.load(Ordering::Relaxed)
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < BEGINNING {
        step(&mut read);
    }
    let (start, bytes, cpu) = (Instant::now(), step(&mut read), used());
    let mut now = bytes;
    while start.elapsed() < COUNTED {
        now = step(&mut read);
    }
    let (bytes, seconds) = ((now - bytes) as f64, start.elapsed().as_secs_f64());
    (bytes * 8.0 / seconds / 1e9, (used() - cpu).as_secs_f64() / (bytes / 1e9))
}

pub(crate) fn measure() {
    let dir = tempfile::tempdir().expect("a folder");
    let bulk = Bulk::start();
    let (ours, quic) = (Proxied::to(dir.path(), bulk.address), Quic::to(bulk.address));
    for direction in [Direction::Down, Direction::Up] {
        let [mut rate, mut anchor, mut cost, mut anchor_cost] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let to = |address: SocketAddr| TcpStream::connect(address).expect("a connection");
            let one = transfer(&bulk, to(ours.address), &ours.processes(), direction);
            let other = transfer(&bulk, to(quic.address), &quic.processes(), direction);
            rate.push(one.0);
            cost.push(one.1);
            anchor.push(other.0);
            anchor_cost.push(other.1);
        }
        let (ratio, costs) = (ratios(&rate, &anchor), ratios(&cost, &anchor_cost));
        println!(
            "bulk through the proxy, {direction:?}: Gbit/s {}, QUIC {}",
            Spread::of(rate),
            Spread::of(anchor)
        );
        println!(
            "    ratio {ratio}; CPU seconds per GB {}, QUIC {}, ratio {costs}",
            Spread::of(cost),
            Spread::of(anchor_cost)
        );
        println!("figure relay-{} {:.2}", format!("{direction:?}").to_lowercase(), ratio.median);
    }
}
