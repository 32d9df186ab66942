//! Memory of idle connections: bytes held by an established connection without traffic, averaged over both ends.
//!
//! This is a separate program, because it counts all allocations of its process.

#[path = "../benches/counting.rs"]
mod counting;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use counting::LIVE_BYTES;
use marline_core::{ConnectionConfig, ConnectionId, Event, ReadError};
use marline_testkit::{Pair, SegmentOutcome, Side, config, endpoint_config};

/// This number leaves the same spare room in doubling lists as ten thousand do, and all are open before the first
/// is idle for long.
const CONNECTIONS: usize = 310;
/// Bytes that each connection carries in each direction before it becomes idle.
const BURDEN: usize = 100_000;
/// Longer than the idle time after which a connection releases memory.
const REST: Duration = Duration::from_secs(21);

/// Goals in bytes per connection and end: just after a message each way, and after a transfer and an idle time.
/// With the lists of ten thousand connections (`benches/memory`) it is 73 bytes more, with a goal of at most 3,000.
const FRESH: u64 = 2_945;
/// Includes 13 bytes for the NAT64 prefix of its local address.
const RESTED: u64 = 2_771;

struct Bench {
    pair: Pair,
    client: Arc<ConnectionConfig>,
    connections: Vec<(ConnectionId, ConnectionId)>,
    chunk: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let mut client = config();
        client.local_addresses = vec![marline_policy::LocalAddress::new(
            marline_policy::AddressId(0),
            "192.0.2.1:0".parse().expect("an address"),
        )];
        Bench {
            pair: Pair::new(endpoint_config(None), endpoint_config(Some(config())), 7),
            client: Arc::new(client),
            connections: Vec::with_capacity(2 * CONNECTIONS),
            chunk: vec![7; BURDEN],
        }
    }

    /// Opens a connection, with a message from each side.
    fn open(&mut self) {
        let (local, remote) = ("192.0.2.1:0", "198.51.100.1:443");
        let (local, remote) = (local.parse().expect("an end"), remote.parse().expect("an end"));
        let (now, config) = (self.pair.now(), Arc::clone(&self.client));
        let client = self.pair.endpoint(Side::A).connect(now, config, local, remote);
        let mut server = None;
        self.run(Duration::from_millis(8), |event| {
            if let (Side::B, Event::Incoming(id)) = event {
                server = Some(id);
            }
        });
        self.connections.push((client.expect("room"), server.expect("a connection")));
        self.carry(self.connections.len() - 1, 200);
    }

    /// Transfers this many bytes each way.
    fn carry(&mut self, at: usize, bytes: usize) {
        let (client, server) = self.connections[at];
        for (from, writer, to, reader) in
            [(Side::A, client, Side::B, server), (Side::B, server, Side::A, client)]
        {
            let (mut written, mut read) = (0, 0);
            let mut buffer = [0; 4_096];
            while read < bytes {
                let now = self.pair.now();
                let rest = &self.chunk[written..bytes];
                written += self.pair.endpoint(from).write(now, writer, rest).unwrap_or(0);
                self.run(Duration::from_millis(5), |_| {});
                let now = self.pair.now();
                loop {
                    match self.pair.endpoint(to).read(now, reader, &mut buffer) {
                        Ok(got) => read += got,
                        Err(ReadError::Blocked) => break,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            }
        }
    }

    /// Lets time pass; every segment takes a millisecond.
    fn run(&mut self, time: Duration, mut hear: impl FnMut((Side, Event))) {
        let end = self.pair.now() + time;
        loop {
            let events =
                self.pair.gather(&mut |_| SegmentOutcome::Arrive(Duration::from_millis(1)));
            events.into_iter().for_each(&mut hear);
            if !self.pair.step(end) {
                return;
            }
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the harness is not of virtual time")]
fn an_idle_connection_is_small_before_and_after_it_was_busy() {
    let mut bench = Bench::new();
    // Shared memory of endpoints: buffers, free chunks.
    bench.open();
    bench.carry(0, BURDEN);
    bench.run(REST, |_| {});
    // The harness's own thread may still be recording the start of this test: 900 bytes, 1.5 bytes for each end.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let before = LIVE_BYTES.load(Relaxed);
    (0..CONNECTIONS).for_each(|_| bench.open());
    let each = |bytes: u64| bytes / (2 * CONNECTIONS as u64);
    let fresh = each(LIVE_BYTES.load(Relaxed) - before);
    (0..CONNECTIONS).for_each(|at| bench.carry(at, BURDEN));
    bench.run(REST, |_| {});
    let rested = each(LIVE_BYTES.load(Relaxed) - before);
    println!("{fresh} bytes per connection and end, {rested} after a transfer and idle time");
    assert!(fresh <= FRESH, "{fresh} bytes after a message each way");
    assert!(rested <= RESTED, "{rested} bytes after {BURDEN} bytes each way and idle time");
}
