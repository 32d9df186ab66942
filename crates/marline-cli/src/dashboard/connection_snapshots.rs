//! Snapshots of connections and paths for the dashboard.
//!
//! Snapshots contain the counters of open connections, which are lost when a connection ends. The page needs counters
//! that only grow. Therefore each sample adds the changes since the previous one, path by path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use marline::paths::PathHealth;
use marline_dashboard::{Description, PathSummary, Places, Sample, Source, Totals};
use marline_io::Clock;
use tokio::sync::mpsc;

use super::places;
use crate::control::Handle;
use crate::control::protocol::{Connection, Path, Subflow};
use crate::memory;
use crate::path_summary::{ip, is_on, retransmitted_share, summarize_where};

/// Maximum number of connections listed, the busiest first.
const MAX_LISTED: usize = 100;

/// Maximum number of peers that a server shows one by one. Beyond it, the server shows its own addresses.
const MAX_PEERS: usize = 8;

/// Minimum delay of delivery beyond a round trip that counts as waiting, in microseconds.
const MIN_WAIT_US: u64 = 100_000;

/// Number of connections at the last sample. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Dashboard's view of a program.
pub(super) struct DashboardSource {
    handle: Arc<dyn Handle>,
    clock: Clock,
    open: OpenConnections,
    counted: Mutex<SampleTotals>,
}

/// Payload bytes.
#[derive(Copy, Clone, Debug, Default)]
struct PayloadBytes {
    sent: u64,
    repeated: u64,
    copied: u64,
    received: u64,
    duplicate: u64,
}

impl PayloadBytes {
    fn since(self, before: PayloadBytes) -> PayloadBytes {
        PayloadBytes {
            sent: self.sent.saturating_sub(before.sent),
            repeated: self.repeated.saturating_sub(before.repeated),
            copied: self.copied.saturating_sub(before.copied),
            received: self.received.saturating_sub(before.received),
            duplicate: self.duplicate.saturating_sub(before.duplicate),
        }
    }

    fn add(&mut self, more: PayloadBytes) {
        self.sent += more.sent;
        self.repeated += more.repeated;
        self.copied += more.copied;
        self.received += more.received;
        self.duplicate += more.duplicate;
    }

    fn from_subflow(subflow: &Subflow) -> PayloadBytes {
        PayloadBytes {
            sent: subflow.bytes_sent,
            repeated: subflow.bytes_retransmitted,
            copied: subflow.bytes_reinjected,
            received: subflow.bytes_received,
            duplicate: subflow.bytes_duplicate,
        }
    }
}

/// Counts up to the last sample, with an entry for each displayed path and each open connection.
#[derive(Debug, Default)]
struct SampleTotals {
    paths: BTreeMap<String, PayloadBytes>,
    connections: BTreeMap<u64, PreviousSample>,
}

/// State of a connection at the last sample: bytes by path, and bytes of its application.
#[derive(Debug, Default)]
struct PreviousSample {
    paths: Vec<(String, PayloadBytes)>,
    bytes: u64,
}

/// Traffic of a path since the last sample.
#[derive(Copy, Clone, Debug, Default)]
struct DisplayedPathTraffic {
    sum: PayloadBytes,
    /// Bytes and round-trip time of the busiest subflow since the last sample. The measurements of other subflows may
    /// be old.
    busiest: (u64, Option<u64>),
}

impl DisplayedPathTraffic {
    fn add_bytes(&mut self, bytes: u64, connection: &Connection, lane: &DisplayedPath) {
        if bytes > self.busiest.0 {
            let mut there = connection.subflows.iter().filter(|subflow| lane.has(subflow));
            self.busiest = (bytes, there.find_map(|subflow| subflow.srtt_us));
        }
    }
}

/// A path, and the rule that assigns subflows to it.
struct DisplayedPath {
    path: Path,
    by: LookupKey,
}

enum LookupKey {
    /// The path of the client's list that contains the subflow.
    Path,
    /// The subflow's remote address.
    Peer,
    /// The subflow's local address.
    Own,
}

impl DisplayedPath {
    fn has(&self, subflow: &Subflow) -> bool {
        match self.by {
            LookupKey::Path => is_on(subflow, &self.path),
            LookupKey::Peer => ip(&subflow.remote) == self.path.name,
            LookupKey::Own => ip(&subflow.local) == self.path.name,
        }
    }
}

impl DashboardSource {
    pub(super) fn new(handle: Arc<dyn Handle>) -> Self {
        DashboardSource {
            handle,
            clock: Clock::start(),
            open: OpenConnections::default(),
            counted: Mutex::default(),
        }
    }

    /// Returns the number of connections, updated by each sample.
    pub(super) fn open(&self) -> OpenConnections {
        self.open.clone()
    }

    fn lanes(&self, connections: &[Connection]) -> Vec<DisplayedPath> {
        if self.handle.role() == "client" {
            return self
                .handle
                .paths()
                .into_iter()
                .map(|path| DisplayedPath { path, by: LookupKey::Path })
                .collect();
        }
        // A server has no paths of its own. It shows up to eight peers one by one.
        let ends = |of: fn(&Subflow) -> &str| {
            let mut found = BTreeSet::new();
            for subflow in connections.iter().flat_map(|connection| &connection.subflows) {
                found.insert(of(subflow).to_owned());
                if found.len() > MAX_PEERS {
                    break;
                }
            }
            found
        };
        let peers = ends(|subflow| ip(&subflow.remote));
        let lane = |name: String, by| {
            let health = PathHealth::Usable;
            let path = Path { local: None, name, up: true, health, ..Path::default() };
            DisplayedPath { path, by }
        };
        if peers.len() <= MAX_PEERS {
            return peers.into_iter().map(|name| lane(name, LookupKey::Peer)).collect();
        }
        let own = ends(|subflow| ip(&subflow.local));
        own.into_iter().take(MAX_PEERS).map(|name| lane(name, LookupKey::Own)).collect()
    }

    /// Adds the changes since the last sample: sums for each path, and bytes moved for each connection.
    fn count(
        &self,
        lanes: &[DisplayedPath],
        connections: &[Connection],
    ) -> (Vec<DisplayedPathTraffic>, Vec<u64>) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let SampleTotals { paths, connections: before } = &mut *counted;
        let mut open = BTreeMap::new();
        let mut news = Vec::with_capacity(connections.len());
        let mut on_lanes = vec![DisplayedPathTraffic::default(); lanes.len()];
        for connection in connections {
            let last = before.remove(&connection.connection).unwrap_or_default();
            let mut now = PreviousSample {
                bytes: connection.bytes_written + connection.bytes_read,
                ..PreviousSample::default()
            };
            news.push(now.bytes.saturating_sub(last.bytes));
            for (lane, on) in lanes.iter().zip(&mut on_lanes) {
                let mut sum = PayloadBytes::default();
                let all = connection.subflows.iter().chain(&connection.gone);
                all.filter(|subflow| lane.has(subflow))
                    .for_each(|s| sum.add(PayloadBytes::from_subflow(s)));
                let name = &lane.path.name;
                let then = last.paths.iter().find(|(of, _)| of == name).map(|(_, moved)| *moved);
                let fresh = sum.since(then.unwrap_or_default());
                on.add_bytes(fresh.sent + fresh.received, connection, lane);
                paths.entry(name.clone()).or_default().add(fresh);
                now.paths.push((name.clone(), sum));
            }
            open.insert(connection.connection, now);
        }
        *before = open;
        // Paths of peers that have left are removed.
        paths.retain(|name, _| lanes.iter().any(|lane| lane.path.name == *name));
        for (lane, on) in lanes.iter().zip(&mut on_lanes) {
            on.sum = paths.get(&lane.path.name).copied().unwrap_or_default();
        }
        (on_lanes, news)
    }
}

impl Source for DashboardSource {
    fn describe(&self) -> Description {
        Description {
            role: self.handle.role().to_owned(),
            version: crate::VERSION.to_owned(),
            pid: std::process::id(),
        }
    }

    fn watch_places(&self, connection: u64) -> Option<mpsc::Receiver<Places>> {
        places::start_reporting(Arc::clone(&self.handle), connection)
    }

    fn sample(&self, detailed: bool) -> Sample {
        let connections = self.handle.connections();
        self.open.0.store(connections.len(), Ordering::Relaxed);
        let at_us = self.clock.now().as_micros();
        let lanes = self.lanes(&connections);
        let (sums, news) = self.count(&lanes, &connections);
        let summary = |(lane, DisplayedPathTraffic { sum, busiest }): (
            &DisplayedPath,
            DisplayedPathTraffic,
        )| {
            let all = summarize_where(&lane.path, &connections, &|subflow| lane.has(subflow));
            PathSummary {
                srtt_us: busiest.1.or(all.srtt_us),
                retransmitted: retransmitted_share(sum.sent, sum.repeated),
                bytes_sent: sum.sent,
                bytes_repeated: sum.repeated,
                bytes_copied: sum.copied,
                bytes_received: sum.received,
                bytes_duplicate: sum.duplicate,
                ..all
            }
        };
        let mut totals = totals(&connections, at_us);
        (totals.repairs_sent, totals.bytes_repaired) = self.handle.repairs();
        let memory = memory::budget().usage();
        (totals.memory_bytes, totals.memory_limit_bytes) = (memory.used, memory.limit);
        totals.memory_waits = memory.waits;
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

/// Returns the time for which delivery has been due in either direction, if that is long.
fn waiting_us(connection: &Connection, at_us: u64) -> Option<u64> {
    let for_us = |since: Option<u64>| Some(at_us.saturating_sub(since?));
    let round_trip = connection.subflows.iter().filter_map(|s| s.srtt_us).min().unwrap_or(0);
    let sent = for_us(connection.ack_due_since_us).filter(|us| *us >= MIN_WAIT_US + round_trip);
    let received = for_us(connection.data_due_since_us).filter(|us| *us >= MIN_WAIT_US);
    sent.into_iter().chain(received).max()
}

fn busiest(
    connections: &[Connection],
    news: &[u64],
    at_us: u64,
) -> Vec<marline_dashboard::Connection> {
    let mut order: Vec<usize> = (0..connections.len()).collect();
    // The newest first among idle connections.
    order.sort_by_key(|at| std::cmp::Reverse((news[*at], connections[*at].connection)));
    order.truncate(MAX_LISTED);
    order.into_iter().map(|at| row(&connections[at], at_us)).collect()
}

fn row(connection: &Connection, at_us: u64) -> marline_dashboard::Connection {
    let subflows = &connection.subflows;
    marline_dashboard::Connection {
        connection: connection.connection,
        fallback: connection.fallback.clone(),
        scheduler: connection.scheduler.clone(),
        subflows: subflows.len(),
        unreachable: subflows
            .iter()
            .filter(|subflow| subflow.health == PathHealth::Unreachable)
            .count(),
        srtt_us: subflows.iter().filter_map(|subflow| subflow.srtt_us).min(),
        bytes_written: connection.bytes_written,
        bytes_read: connection.bytes_read,
        bytes_copied: subflows.iter().chain(&connection.gone).map(|s| s.bytes_reinjected).sum(),
        buffered: connection.buffered,
        waiting_us: waiting_us(connection, at_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline::monitor::MonitorEvent;
    use tokio::sync::broadcast;

    use crate::control::protocol::PathChange;

    /// A server with these connections.
    struct Server(Mutex<Vec<Connection>>);

    impl Handle for Server {
        fn role(&self) -> &'static str {
            "server"
        }

        fn connections(&self) -> Vec<Connection> {
            self.0.lock().expect("unpoisoned").clone()
        }

        fn paths(&self) -> Vec<Path> {
            Vec::new()
        }

        fn address_pairs(&self) -> Option<Vec<crate::control::protocol::AddressPair>> {
            None
        }

        fn events(&self) -> broadcast::Receiver<MonitorEvent> {
            broadcast::channel(1).1
        }

        fn set_scheduler(&self, _: Option<u64>, _: &str) -> Result<u64, String> {
            Err(String::new())
        }

        fn set_path(&self, _: &str, _: PathChange) -> Result<(), String> {
            Err(String::new())
        }
    }

    fn connection(number: u64, peer: &str, bytes: u64) -> Connection {
        let subflow = Subflow {
            local: "192.0.2.1:443".into(),
            remote: format!("{peer}:9"),
            srtt_us: Some(1_000 * number),
            bytes_sent: bytes,
            ..Subflow::default()
        };
        Connection {
            connection: number,
            bytes_written: bytes,
            subflows: vec![subflow],
            ..Connection::default()
        }
    }

    fn looks(connections: Vec<Connection>) -> (Arc<Server>, DashboardSource) {
        let server = Arc::new(Server(Mutex::new(connections)));
        (Arc::clone(&server), DashboardSource::new(server))
    }

    #[test]
    fn counters_grow_although_connections_end() {
        let (server, looks) =
            looks(vec![connection(1, "10.0.0.1", 500), connection(2, "10.0.0.1", 70)]);
        let sent = |looks: &DashboardSource| {
            looks.sample(false).paths.iter().map(|p| p.bytes_sent).sum::<u64>()
        };
        assert_eq!(sent(&looks), 570);
        *server.0.lock().expect("unpoisoned") = vec![connection(2, "10.0.0.1", 100)];
        assert_eq!(sent(&looks), 600);
        *server.0.lock().expect("unpoisoned") =
            vec![connection(2, "10.0.0.1", 100), connection(3, "10.0.0.1", 5)];
        assert_eq!(sent(&looks), 605);
        assert_eq!(looks.open().count(), 2);
    }

    #[test]
    fn a_few_peers_are_shown_separately_and_many_as_one() {
        let peers =
            |count: u64| (0..count).map(|n| connection(n, &format!("10.0.0.{n}"), n)).collect();
        let (_, few) = looks(peers(8));
        let sample = few.sample(true);
        assert_eq!(sample.paths.len(), 8);
        assert_eq!((sample.paths[3].name.as_str(), sample.paths[3].bytes_sent), ("10.0.0.3", 3));
        let (_, many) = looks(peers(250));
        let sample = many.sample(true);
        assert_eq!(sample.paths.len(), 1);
        assert_eq!(
            (sample.paths[0].name.as_str(), sample.paths[0].bytes_sent),
            ("192.0.2.1", 249 * 125)
        );
        // The round-trip time of the busiest subflow is shown.
        assert_eq!(sample.paths[0].srtt_us, Some(249_000));
        let listed = sample.connections.expect("a detailed sample");
        assert_eq!(
            (listed.len(), listed[0].connection, sample.totals.connections),
            (MAX_LISTED, 249, 250)
        );
    }

    #[test]
    fn overdue_data_and_acks_count_as_waiting() {
        let mut one = connection(1, "10.0.0.1", 1);
        one.ack_due_since_us = Some(1_000_000);
        // 100 ms beyond a round trip of 1 ms.
        assert_eq!(waiting_us(&one, 1_100_999), None);
        assert_eq!(waiting_us(&one, 1_101_000), Some(101_000));
        one.data_due_since_us = Some(900_000);
        assert_eq!(waiting_us(&one, 1_101_000), Some(201_000));
        assert_eq!(
            totals(&[connection(2, "10.0.0.1", 1), one], 1_101_000).waiting,
            Some((201_000, 1))
        );
    }
}
