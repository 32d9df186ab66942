//! Packets in transit without payloads: runs are the same as with payloads.

use core::any::Any;

use crate::cases::oracle::stream;
use marline_sim::{Amount, Bulk, ObservationPoint, Observer, Packet, Paths, WorldStats};
use marline_time::Instant;

use crate::cases::{connection, scene};

/// An observer without effect, because observed packets keep their payloads.
#[derive(Debug)]
struct Onlooker;

impl Observer for Onlooker {
    fn on_packet(&mut self, _now: Instant, _sighting: ObservationPoint, _packet: &Packet) {}

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A transfer in each direction over this link and a plain one: the digest, and the counters of the world and its
/// links.
fn run(link: &str, seed: u64, watched: bool) -> (u64, WorldStats, Vec<String>) {
    let mut connection = connection("lowest-rtt");
    // Without checksums, a middlebox that rewrites payloads goes unnoticed.
    connection.dss_checksum = seed.is_multiple_of(2) || link.contains("rewrite");
    let mut paths: Paths = scene(&[link, "rate=10M,delay=30ms"], connection, seed);
    if watched {
        paths.world.observe(Box::new(Onlooker));
    }
    let amount = Amount::Bytes(1_500_000);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(amount, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(amount, 2, 1))).expect("a connection");
    paths.world.run_until(Instant::from_secs(60));
    let (client, server) = (paths.client_report(0), paths.server_report(0));
    let (client, server) = (client.expect("one"), server.expect("one"));
    let complete = stream::complete(client, server).and(stream::complete(server, client));
    // Subflows with rewritten payloads end.
    assert!(complete.is_ok() || link.contains("rewrite"), "{link}: {complete:?}");
    assert_eq!((client.wrong_at, server.wrong_at), (None, None), "{link}");
    let links = paths.up.iter().chain(&paths.down);
    let counts = links.map(|link| format!("{:?}", paths.world.link(*link).stats()));
    (paths.world.digest(), *paths.world.stats(), counts.collect())
}

#[test]
fn payloads_that_are_left_out_change_nothing() {
    for link in [
        "rate=20M,delay=10ms",
        "rate=20M,delay=10ms,loss=2%,jitter=2ms",
        "rate=20M,delay=10ms,duplicate=2%,reorder=2%:5ms",
        "rate=20M,delay=10ms,corrupt=1%",
        "rate=20M,delay=10ms,mtu=1400B",
        "rate=20M,delay=10ms,split=500B",
        "rate=20M,delay=10ms,coalesce=5ms",
        "rate=20M,delay=10ms,strip=sack",
        "rate=20M,delay=10ms,renumber=yes,thin=3",
        "rate=20M,delay=10ms,rewrite=0.3%",
    ] {
        for seed in 1..=2 {
            assert_eq!(run(link, seed, false), run(link, seed, true), "{link}, seed {seed}");
        }
    }
}
