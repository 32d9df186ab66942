//! Looks of the dashboard at connections and paths.
//!
//! Snapshots have the counters of connections that are open; those of a connection that ends go with it. The page wants
//! counters that only grow. So each look adds what connections did since the one before, path by path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use marline_dashboard::{About, PathSummary, Sample, Source, Totals};
use marline_io::Clock;

use crate::control::Handle;
use crate::control::protocol::{Connection, Path, Subflow};
use crate::path_summary::{ip, is_on, summarise_those};

/// Connections that are listed, the busiest first.
const LISTED: usize = 100;

/// Peers that a server shows one by one; of more it shows its own addresses.
const PEERS: usize = 8;

/// Delivery that takes so much longer than a round trip waits, microseconds.
const WAITS_US: u64 = 100_000;

/// A program, as its dashboard looks at it.
pub(super) struct Looks {
    handle: Arc<dyn Handle>,
    clock: Clock,
    counted: Mutex<Counted>,
}

/// Payload bytes.
#[derive(Copy, Clone, Debug, Default)]
struct Moved {
    sent: u64,
    repeated: u64,
    copied: u64,
    received: u64,
    duplicate: u64,
}

impl Moved {
    fn since(self, before: Moved) -> Moved {
        Moved {
            sent: self.sent.saturating_sub(before.sent),
            repeated: self.repeated.saturating_sub(before.repeated),
            copied: self.copied.saturating_sub(before.copied),
            received: self.received.saturating_sub(before.received),
            duplicate: self.duplicate.saturating_sub(before.duplicate),
        }
    }

    fn add(&mut self, more: Moved) {
        self.sent += more.sent;
        self.repeated += more.repeated;
        self.copied += more.copied;
        self.received += more.received;
        self.duplicate += more.duplicate;
    }

    fn of(subflow: &Subflow) -> Moved {
        Moved {
            sent: subflow.bytes_sent,
            repeated: subflow.bytes_retransmitted,
            copied: subflow.bytes_reinjected,
            received: subflow.bytes_received,
            duplicate: subflow.bytes_duplicate,
        }
    }
}

/// What was counted until the last look. It has an entry for each path there was and each open connection.
#[derive(Debug, Default)]
struct Counted {
    paths: BTreeMap<String, Moved>,
    connections: BTreeMap<u64, Before>,
}

/// A connection at the last look: path by path, and bytes of its application.
#[derive(Debug, Default)]
struct Before {
    paths: Vec<(String, Moved)>,
    bytes: u64,
}

/// A path, and how it is told which subflows are on it.
struct Lane {
    path: Path,
    by: By,
}

enum By {
    /// The client's list of paths.
    Path,
    /// The peer's address.
    Peer,
    /// Our own.
    Own,
}

impl Lane {
    fn has(&self, subflow: &Subflow) -> bool {
        match self.by {
            By::Path => is_on(subflow, &self.path),
            By::Peer => ip(&subflow.remote) == self.path.name,
            By::Own => ip(&subflow.local) == self.path.name,
        }
    }
}

impl Looks {
    pub(super) fn new(handle: Arc<dyn Handle>) -> Self {
        Looks { handle, clock: Clock::start(), counted: Mutex::default() }
    }

    fn lanes(&self, connections: &[Connection]) -> Vec<Lane> {
        if self.handle.role() == "client" {
            return self
                .handle
                .paths()
                .into_iter()
                .map(|path| Lane { path, by: By::Path })
                .collect();
        }
        // A server has no paths of its own. A few peers are told apart, many are not.
        let ends = |of: fn(&Subflow) -> &str| {
            let mut found = BTreeSet::new();
            for subflow in connections.iter().flat_map(|connection| &connection.subflows) {
                found.insert(of(subflow).to_owned());
                if found.len() > PEERS {
                    break;
                }
            }
            found
        };
        let peers = ends(|subflow| ip(&subflow.remote));
        let lane = |name: String, by| {
            let path = Path { local: None, name, up: true, ..Path::default() };
            Lane { path, by }
        };
        if peers.len() <= PEERS {
            return peers.into_iter().map(|name| lane(name, By::Peer)).collect();
        }
        let own = ends(|subflow| ip(&subflow.local));
        own.into_iter().take(PEERS).map(|name| lane(name, By::Own)).collect()
    }

    /// Adds up what connections did since the last look; how many bytes each of them moved.
    fn count(&self, lanes: &[Lane], connections: &[Connection]) -> (Vec<Moved>, Vec<u64>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let Counted { paths, connections: before } = &mut *counted;
        let mut open = BTreeMap::new();
        let mut news = Vec::with_capacity(connections.len());
        for connection in connections {
            let last = before.remove(&connection.connection).unwrap_or_default();
            let mut now = Before {
                bytes: connection.bytes_written + connection.bytes_read,
                ..Before::default()
            };
            news.push(now.bytes.saturating_sub(last.bytes));
            for lane in lanes {
                let mut sum = Moved::default();
                let all = connection.subflows.iter().chain(&connection.gone);
                all.filter(|subflow| lane.has(subflow)).for_each(|s| sum.add(Moved::of(s)));
                let name = &lane.path.name;
                let then = last.paths.iter().find(|(of, _)| of == name).map(|(_, moved)| *moved);
                paths.entry(name.clone()).or_default().add(sum.since(then.unwrap_or_default()));
                now.paths.push((name.clone(), sum));
            }
            open.insert(connection.connection, now);
        }
        *before = open;
        // Those of a server's peers that are gone are not kept for good.
        paths.retain(|name, _| lanes.iter().any(|lane| lane.path.name == *name));
        let sums = lanes.iter().map(|lane| paths.get(&lane.path.name).copied().unwrap_or_default());
        (sums.collect(), news)
    }
}

impl Source for Looks {
    fn about(&self) -> About {
        About {
            role: self.handle.role().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }
    }

    fn sample(&self, detailed: bool) -> Sample {
        let connections = self.handle.connections();
        let at_us = self.clock.now().as_micros();
        let lanes = self.lanes(&connections);
        let (sums, news) = self.count(&lanes, &connections);
        let summary = |(lane, moved): (&Lane, Moved)| PathSummary {
            bytes_sent: moved.sent,
            bytes_repeated: moved.repeated,
            bytes_copied: moved.copied,
            bytes_received: moved.received,
            bytes_duplicate: moved.duplicate,
            ..summarise_those(&lane.path, &connections, &|subflow| lane.has(subflow))
        };
        let mut totals = totals(&connections, at_us);
        (totals.repairs_sent, totals.bytes_repaired) = self.handle.repairs();
        Sample {
            at_us,
            totals,
            paths: lanes.iter().zip(sums).map(summary).collect(),
            connections: detailed.then(|| busiest(&connections, &news, at_us)),
        }
    }
}

fn totals(connections: &[Connection], at_us: u64) -> Totals {
    let schedulers: BTreeSet<&String> = connections.iter().map(|c| &c.scheduler).collect();
    let waiting = |c: &Connection| Some((waiting_us(c, at_us)?, c.connection));
    Totals {
        connections: connections.len(),
        fallbacks: connections.iter().filter(|c| c.fallback.is_some()).count(),
        schedulers: schedulers.into_iter().take(8).cloned().collect(),
        waiting: connections.iter().filter_map(waiting).max(),
        ..Totals::default()
    }
}

/// For how long delivery has been due in either direction, if that is long.
fn waiting_us(connection: &Connection, at_us: u64) -> Option<u64> {
    let for_us = |since: Option<u64>| Some(at_us.saturating_sub(since?));
    let round_trip = connection.subflows.iter().filter_map(|s| s.srtt_us).min().unwrap_or(0);
    let sent = for_us(connection.ack_due_since_us).filter(|us| *us >= WAITS_US + round_trip);
    let received = for_us(connection.data_due_since_us).filter(|us| *us >= WAITS_US);
    sent.into_iter().chain(received).max()
}

fn busiest(
    connections: &[Connection],
    news: &[u64],
    at_us: u64,
) -> Vec<marline_dashboard::Connection> {
    let mut order: Vec<usize> = (0..connections.len()).collect();
    // The newest first among the idle.
    order.sort_by_key(|at| std::cmp::Reverse((news[*at], connections[*at].connection)));
    order.truncate(LISTED);
    order.into_iter().map(|at| row(&connections[at], at_us)).collect()
}

fn row(connection: &Connection, at_us: u64) -> marline_dashboard::Connection {
    let subflows = &connection.subflows;
    marline_dashboard::Connection {
        connection: connection.connection,
        fallback: connection.fallback.clone(),
        scheduler: connection.scheduler.clone(),
        subflows: subflows.len(),
        silent: subflows.iter().filter(|subflow| subflow.potentially_failed).count(),
        srtt_us: subflows.iter().filter_map(|subflow| subflow.srtt_us).min(),
        bytes_written: connection.bytes_written,
        bytes_read: connection.bytes_read,
        bytes_copied: subflows.iter().chain(&connection.gone).map(|s| s.bytes_reinjected).sum(),
        buffered: connection.buffered,
        waiting_us: waiting_us(connection, at_us),
    }
}
