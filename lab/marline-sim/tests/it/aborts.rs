//! Clients that abort at any moment of a transfer: the server reports an abort, not a protocol violation.

use marline_core::CloseReason;
use marline_sim::{Amount, App, Bulk, Paths, PathsConfig, Report, Socket, UDP_CAPABILITIES};
use marline_time::{Instant, PcgRng, Rng, SeedTree};

use crate::cases::{connection, link, parallel};

/// An application that aborts its connection at a given time.
#[derive(Debug)]
struct Aborting {
    inner: Bulk,
    at: Instant,
    done: bool,
}

impl App for Aborting {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if socket.now() < self.at {
            return self.inner.wake(socket);
        }
        if !self.done {
            self.done = true;
            socket.abort();
            socket.release();
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let own = Some(self.at).filter(|_| !self.done);
        own.into_iter().chain(self.inner.next_timeout()).min()
    }

    fn report(&self) -> &Report {
        self.inner.report()
    }
}

fn amount(rng: &mut PcgRng) -> Amount {
    match rng.below(4) {
        0 => Amount::Nothing,
        1 => Amount::Bytes(1 + rng.below(4_000)),
        2 => Amount::Bytes(1 + rng.below(400_000)),
        _ => Amount::Endless,
    }
}

/// Reason for the end of the server's connection, if there was one, and a description of the world.
fn ends(seed: u64) -> (Option<CloseReason>, String) {
    let mut rng = SeedTree::new(seed).stream("aborts");
    let links: Vec<_> = (0..2)
        .map(|_| {
            let (rate, delay) = (5 + rng.below(45), 1 + rng.below(30));
            let loss = ["0", "0", "0.002", "0.02"][rng.below(4) as usize];
            format!("rate={rate}M,delay={delay}ms,queue=50ms,loss={loss}")
        })
        .collect();
    let scheduler = ["min-rtt", "round-robin", "redundant", "auto"][rng.below(4) as usize];
    let configs = links.iter().map(|text| link(text)).collect();
    let mut config = PathsConfig::new(configs, connection(scheduler));
    if rng.chance(0.5) {
        config.capabilities = UDP_CAPABILITIES;
    }
    let amounts = [amount(&mut rng), amount(&mut rng)];
    let at = Instant::from_millis(rng.below(700));
    let words = format!("{links:?} {scheduler} {amounts:?} {at}");
    let mut paths = Paths::new(&config, SeedTree::new(seed));
    paths.listen(Box::new(move |_| Box::new(Bulk::new(amounts[1], 2, 1))));
    let app = Aborting { inner: Bulk::new(amounts[0], 1, 2), at, done: false };
    paths.connect(0, Box::new(app)).expect("a connection");
    paths.world.run_until(Instant::from_secs(60));
    let closed = paths.server_report(0).and_then(|report| report.closed);
    (closed.map(|(_, why)| why), words)
}

#[test]
fn an_abort_is_reported_as_an_abort() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds: Vec<u64> = (1..=number("ABORTS").unwrap_or(300)).collect();
    let mut counts = std::collections::BTreeMap::new();
    let mut wrong = Vec::new();
    for (seed, (why, words)) in seeds.iter().zip(parallel(&seeds, |seed| ends(*seed))) {
        *counts.entry(format!("{why:?}")).or_insert(0) += 1;
        if why == Some(CloseReason::PeerMisbehaved) {
            wrong.push(format!("{seed}: {words}"));
        }
    }
    println!("{counts:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
