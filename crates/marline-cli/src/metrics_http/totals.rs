//! Monotonic totals, computed from snapshots and events of connections that open and close.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline::datagrams::LaneCounters;
use marline::monitor::{ConnectionId, MonitorEvent, MonitorKind, StreamDirection};
use marline::paths::PathHealth;
use marline::time::{DelayHistogram, Instant};
use marline_proxy::udp::UdpCounts;

use super::datagrams;
use super::exposition::{Exposition, Labels};
use super::service::{self, write_histogram};
use crate::control::protocol::{AddressPair, Connection, Path, Subflow};
use crate::service_counts::ServiceCounts;

/// Maximum number of distinct values of the label `path`.
pub const MAX_PATHS: usize = 32;

/// Label of all paths beyond [`MAX_PATHS`].
const OTHER: &str = "other";

/// Maximum number of handshakes timed concurrently.
const MAX_HANDSHAKES: usize = 8_192;

/// The totals of a process.
#[derive(Debug)]
pub struct Totals {
    state: Mutex<State>,
}

/// Side of the process, which determines the stable name of a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server's address is stable; local ports are not.
    Client,
    /// The local address and port are stable; those of clients are not.
    Server,
}

#[derive(Debug)]
struct State {
    side: Side,
    counted: Exposition,
    /// Last seen counts of each connection.
    seen: BTreeMap<u64, SeenCounts>,
    paths: Vec<String>,
    /// Interfaces of a client by address.
    interfaces: BTreeMap<IpAddr, String>,
    /// Start of each running handshake.
    started_at: BTreeMap<ConnectionId, Instant>,
    handshakes: DelayHistogram,
    /// Delivery gaps in sent data, and in received data.
    holes: [DelayHistogram; 2],
    /// Delay from writing to the DATA_ACK.
    delivery: DelayHistogram,
    /// Delay of datagrams from sending to the acknowledgment; `None` if there are no lanes.
    datagram_delivery: Option<DelayHistogram>,
    /// Smoothed RTTs by path.
    rtts: BTreeMap<String, DelayHistogram>,
}

/// Last seen counts of a connection, so that only differences are added.
#[derive(Debug, Default)]
struct SeenCounts {
    written: u64,
    read: u64,
    paths: BTreeMap<String, [u64; COUNTERS.len()]>,
}

type CountFn = fn(&Subflow) -> u64;

/// Counters per path: name, help text, source.
const COUNTERS: [(&str, &str, CountFn); 7] = [
    (
        "marline_path_sent_bytes_total",
        "Payload bytes sent, including retransmissions and copies",
        |s| s.bytes_sent,
    ),
    ("marline_path_received_bytes_total", "Payload bytes received", |s| s.bytes_received),
    ("marline_path_retransmitted_bytes_total", "Payload bytes sent again on the same path", |s| {
        s.bytes_retransmitted
    }),
    (
        "marline_path_reinjected_bytes_total",
        "Payload bytes sent that another path had already carried",
        |s| s.bytes_reinjected,
    ),
    ("marline_path_duplicate_bytes_total", "Duplicate payload bytes received", |s| {
        s.bytes_duplicate
    }),
    ("marline_path_rtos_total", "Retransmission timeouts", |s| s.rtos),
    ("marline_path_probes_total", "Tail loss probes sent", |s| s.probes),
];

/// Gauges per path, summed over its subflows: name, help text, source.
const GAUGES: [(&str, &str, CountFn); 5] = [
    ("marline_path_subflows", "Subflows", |_| 1),
    (
        "marline_path_unreachable_subflows",
        "Subflows that have received nothing since a timeout",
        |s| (s.health == PathHealth::Unreachable).into(),
    ),
    ("marline_path_cwnd_bytes", "Congestion windows", |s| s.cwnd),
    ("marline_path_in_flight_bytes", "Bytes in flight", |s| s.in_flight),
    ("marline_path_rate_bytes_per_second", "Delivery rates", |s| {
        s.rate_bits_per_s.unwrap_or(0) / 8
    }),
];

type AddressPairCounter = fn(&AddressPair) -> f64;

/// Gauges of the path health monitor per address pair: name, help text, source.
const ADDRESS_PAIRS: [(&str, &str, AddressPairCounter); 5] = [
    ("marline_address_pair_members", "Subflows and plain TCP connections", |n| n.members as f64),
    ("marline_address_pair_loss_ratio", "Smoothed segment loss ratio", |n| n.loss),
    ("marline_address_pair_retransmission_ratio", "Smoothed segment retransmission ratio", |n| {
        n.retransmissions
    }),
    ("marline_address_pair_rto_seconds", "Largest retransmission timeout", |n| {
        n.rto_us as f64 / 1e6
    }),
    ("marline_address_pair_degraded", "1 while the pair is degraded or unreachable", |n| {
        f64::from(u8::from(n.health != PathHealth::Usable))
    }),
];
const DEGRADED_PAIRS: &str = "marline_address_pair_degraded_total";
const SRTT: &str = "marline_path_srtt_seconds";
/// Name of the gauge that is 1 for the current state of a path, and 0 for the other states.
const STATE: &str = "marline_interface_state";
const PATH_QUOTA: &str = "marline_path_quota_bytes";
const PATH_QUOTA_USED: &str = "marline_path_quota_used_bytes";
const EVENTS: &str = "marline_events_total";
const OPENED: &str = "marline_connections_total";
const OPEN: &str = "marline_connections";
const FALLBACK: &str = "marline_fallback_connections";
const WRITTEN: &str = "marline_written_bytes_total";
const READ: &str = "marline_read_bytes_total";

impl Totals {
    /// Creates totals that are all zero.
    #[must_use]
    pub fn new(side: Side, role: &'static str) -> Self {
        let mut counted = Exposition::default();
        service::describe(&mut counted);
        service::build_info(&mut counted, role);
        for (name, meaning, _) in COUNTERS {
            counted.describe_counter(name, meaning);
        }
        for (name, meaning, _) in GAUGES {
            counted.describe_gauge(name, meaning);
        }
        for (name, meaning, _) in ADDRESS_PAIRS {
            counted.describe_gauge(name, meaning);
        }
        counted
            .describe_counter(DEGRADED_PAIRS, "Number of times the address pair became degraded");
        counted.describe_gauge(SRTT, "Smoothed RTT, mean over the path's subflows");
        counted.describe_gauge(STATE, "1 for the path's current state, 0 for the others");
        counted.describe_gauge(PATH_QUOTA, "Monthly quota of the path");
        counted.describe_gauge(PATH_QUOTA_USED, "Bytes used of the path's monthly quota");
        counted.describe_counter(EVENTS, "Events, by the names of `marline monitor`");
        counted.describe_counter(OPENED, "Connections opened since the process started");
        counted.describe_gauge(OPEN, "Open connections");
        counted.describe_gauge(FALLBACK, "Connections that run as plain TCP");
        counted.describe_counter(WRITTEN, "Bytes written by applications");
        counted.describe_counter(READ, "Bytes read by applications");
        counted.describe_gauge(datagrams::LANES, "Open lanes for datagrams");
        for (name, meaning, _) in datagrams::COUNTERS {
            counted.describe_counter(name, meaning);
        }
        let state = State {
            side,
            counted,
            seen: BTreeMap::new(),
            paths: Vec::new(),
            interfaces: BTreeMap::new(),
            started_at: BTreeMap::new(),
            handshakes: DelayHistogram::default(),
            holes: [DelayHistogram::default(); 2],
            delivery: DelayHistogram::default(),
            datagram_delivery: None,
            rtts: BTreeMap::new(),
        };
        Totals { state: Mutex::new(state) }
    }

    /// Adds a snapshot of all connections. Connections that are missing have ended.
    pub fn sample(&self, connections: &[Connection]) {
        let mut state = self.state();
        for connection in connections {
            state.add(connection);
        }
        let alive: BTreeSet<u64> = connections.iter().map(|c| c.connection).collect();
        state.seen.retain(|number, _| alive.contains(number));
        state.gauges(connections);
    }

    /// Returns the names of all counters and gauges, with or without a value.
    #[cfg(test)]
    pub(crate) fn described_names(&self) -> Vec<&'static str> {
        self.state().counted.described_names()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the paths: their interfaces, health and quotas.
    pub fn paths(&self, paths: &[Path]) {
        let named = |path: &Path| Some((path.local.as_ref()?.parse().ok()?, path.name.clone()));
        let mut state = self.state();
        if state.side == Side::Client {
            state.interfaces = paths.iter().filter_map(named).collect();
        }
        let is_client = state.side == Side::Client;
        let counted = &mut state.counted;
        for path in paths.iter().filter(|_| is_client) {
            let interface = || ("interface", path.name.clone());
            for state in PathHealth::ALL {
                let labels = vec![interface(), ("state", state.name().into())];
                counted.set(STATE, labels, f64::from(u8::from(state == path.health)));
            }
            if let Some(quota) = &path.quota {
                counted.set(PATH_QUOTA, vec![interface()], quota.bytes as f64);
                counted.set(PATH_QUOTA_USED, vec![interface()], quota.used_bytes as f64);
            }
        }
    }

    /// Updates the path health monitor's table: first the degraded address pairs, then those with the most members, up
    /// to the limit of labels.
    pub fn address_pairs(&self, address_pairs: &[AddressPair]) {
        let mut address_pairs: Vec<&AddressPair> = address_pairs.iter().collect();
        address_pairs
            .sort_by_key(|n| (n.health == PathHealth::Usable, core::cmp::Reverse(n.members)));
        let counted = &mut self.state().counted;
        for pair in address_pairs.into_iter().take(MAX_PATHS) {
            let label = vec![("address_pair", format!("{}={}", pair.local, pair.remote))];
            for (name, _, of) in ADDRESS_PAIRS {
                counted.set(name, label.clone(), of(pair));
            }
            counted.raise_counter(DEGRADED_PAIRS, label, pair.times_degraded);
        }
    }

    /// Updates the counts of datagrams.
    pub fn datagrams(&self, lanes: &LaneCounters, udp: &UdpCounts) {
        let mut state = self.state();
        state.datagram_delivery = Some(lanes.stats.delays);
        state.counted.set(datagrams::LANES, Vec::new(), lanes.lanes as f64);
        for (name, _, of) in datagrams::COUNTERS {
            state.counted.raise_counter(name, Vec::new(), of(lanes, udp));
        }
    }

    /// Updates the counts of the process.
    pub fn service(&self, service: &ServiceCounts) {
        let mut state = self.state();
        state.delivery = service.delivery;
        service::set(&mut state.counted, service);
    }

    /// Handles an event of a connection.
    pub fn on_event(&self, event: &MonitorEvent) {
        self.state().on_event(event);
    }

    /// Adds the last snapshot of an ending connection.
    pub fn observe(&self, connection: &Connection) {
        self.state().add(connection);
    }

    /// Counts events with this name.
    pub fn count_event(&self, name: &str, count: u64) {
        self.state().counted.add(EVENTS, vec![("event", name.to_owned())], count);
    }

    /// Returns all metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        let state = self.state();
        let mut text = state.counted.render();
        state.write_histograms(&mut text);
        text
    }
}

impl State {
    /// Adds the changes since the connection was last seen.
    fn add(&mut self, connection: &Connection) {
        let mut now: BTreeMap<String, [u64; COUNTERS.len()]> = BTreeMap::new();
        for subflow in connection.subflows.iter().chain(&connection.gone) {
            let sums = now.entry(label(&mut self.paths, self.side, subflow)).or_default();
            for (sum, (_, _, of)) in sums.iter_mut().zip(COUNTERS) {
                *sum += of(subflow);
            }
        }
        let is_new = !self.seen.contains_key(&connection.connection);
        let seen = self.seen.entry(connection.connection).or_default();
        if is_new {
            self.counted.add(OPENED, Vec::new(), 1);
        }
        let written = take_growth(&mut seen.written, connection.bytes_written);
        self.counted.add(WRITTEN, Vec::new(), written);
        self.counted.add(READ, Vec::new(), take_growth(&mut seen.read, connection.bytes_read));
        for (path, sums) in now {
            let before = seen.paths.entry(path.clone()).or_default();
            // The first two counters are sent and received bytes.
            let is_used = before[..2] != sums[..2];
            for ((before, now), (name, _, _)) in before.iter_mut().zip(sums).zip(COUNTERS) {
                let labels = labels(self.side, &self.interfaces, &path);
                self.counted.add(name, labels, take_growth(before, now));
            }
            if is_used {
                let of_path = |s: &&Subflow| label(&mut self.paths, self.side, s) == path;
                let known = connection.subflows.iter().filter(of_path).filter_map(|s| s.srtt_us);
                let rtts = self.rtts.entry(path.clone()).or_default();
                known.for_each(|us| rtts.record(Duration::from_micros(us)));
            }
        }
    }

    fn on_event(&mut self, event: &MonitorEvent) {
        match &event.kind {
            MonitorKind::Created(_) if self.started_at.len() < MAX_HANDSHAKES => {
                self.started_at.insert(event.connection, event.at);
            }
            MonitorKind::Established(_) => {
                if let Some(begun) = self.started_at.remove(&event.connection) {
                    self.handshakes.record(event.at.since(begun));
                }
            }
            MonitorKind::Closed(_) => {
                self.started_at.remove(&event.connection);
            }
            MonitorKind::Hole { direction, since, .. } => {
                let received = usize::from(*direction == StreamDirection::Received);
                self.holes[received].record(event.at.since(*since));
            }
            _ => {}
        }
    }

    fn write_histograms(&self, text: &mut String) {
        const DELIVERY: &str = "marline_delivery_delay_seconds";
        const DATAGRAMS: &str = "marline_datagram_delay_seconds";
        const HANDSHAKE: &str = "marline_handshake_seconds";
        const RTT: &str = "marline_path_rtt_seconds";
        let alone = |histogram| [(Vec::new(), histogram)];
        let about = "Time from a write to its DATA_ACK, for one write of a connection at a time";
        write_histogram(text, DELIVERY, about, &alone(self.delivery));
        if let Some(delays) = self.datagram_delivery {
            let about =
                "Time from sending to the first acknowledgment, for datagrams that may be copied";
            write_histogram(text, DATAGRAMS, about, &alone(delays));
        }
        let about = "Delivery gaps: times of 100 ms or more in which due data was not delivered";
        let [sent, received] = self.holes;
        let named = [("sent", sent), ("received", received)];
        let holes = named.map(|(way, holes)| (vec![("direction", way.to_owned())], holes));
        write_histogram(text, "marline_hole_seconds", about, &holes);
        let about = "Time from the first SYN to the established connection";
        write_histogram(text, HANDSHAKE, about, &alone(self.handshakes));
        let labeled = |(path, rtts): (&String, &DelayHistogram)| {
            (labels(self.side, &self.interfaces, path), *rtts)
        };
        let named: Vec<_> = self.rtts.iter().map(labeled).collect();
        let about = "Smoothed RTTs of subflows that carried data, sampled about once a second";
        write_histogram(text, RTT, about, &named);
    }

    fn gauges(&mut self, connections: &[Connection]) {
        self.counted.set(OPEN, Vec::new(), connections.len() as f64);
        let fallen = connections.iter().filter(|c| c.fallback.is_some()).count();
        self.counted.set(FALLBACK, Vec::new(), fallen as f64);
        let mut by_path: BTreeMap<String, Vec<&Subflow>> = BTreeMap::new();
        for subflow in connections.iter().flat_map(|c| &c.subflows) {
            by_path.entry(label(&mut self.paths, self.side, subflow)).or_default().push(subflow);
        }
        // A path without subflows has zeros instead of its last values.
        let with_other = self.paths.iter().cloned().chain([OTHER.to_owned()]);
        for path in with_other.filter(|p| p != OTHER || by_path.contains_key(OTHER)) {
            let subflows = by_path.get(&path).map_or(&[][..], Vec::as_slice);
            for (name, _, of) in GAUGES {
                let sum: u64 = subflows.iter().map(|subflow| of(subflow)).sum();
                let labels = labels(self.side, &self.interfaces, &path);
                self.counted.set(name, labels, sum as f64);
            }
            let known: Vec<u64> = subflows.iter().filter_map(|s| s.srtt_us).collect();
            let mean = known.iter().sum::<u64>() as f64 / known.len().max(1) as f64;
            self.counted.set(SRTT, labels(self.side, &self.interfaces, &path), mean / 1e6);
        }
    }
}

/// Returns the labels of a path: its name and, for a client, the interface with the path's address, empty if unknown.
fn labels(side: Side, interfaces: &BTreeMap<IpAddr, String>, path: &str) -> Labels {
    let address = path.split_once('=').and_then(|(local, _)| local.parse().ok());
    let interface = address.and_then(|address: IpAddr| interfaces.get(&address)).cloned();
    let named = [("path", path.to_owned())].into_iter();
    let interface = (side == Side::Client).then(|| ("interface", interface.unwrap_or_default()));
    named.chain(interface).collect()
}

/// Stores the value and returns the increase since the last one. A decrease is ignored.
fn take_growth(before: &mut u64, now: u64) -> u64 {
    let more = now.saturating_sub(*before);
    *before = (*before).max(now);
    more
}

/// Returns the path label of a subflow: our address, and for a client also the server's. `other` if there are too many
/// paths.
fn label(paths: &mut Vec<String>, side: Side, subflow: &Subflow) -> String {
    let local: Option<SocketAddr> = subflow.local.parse().ok();
    let name = match (local, side) {
        (None, _) => OTHER.to_owned(),
        // Omits the local port, which belongs to the connection and not to the path.
        (Some(local), Side::Client) => format!("{}={}", local.ip(), subflow.remote),
        (Some(local), Side::Server) => local.to_string(),
    };
    if paths.contains(&name) {
        return name;
    }
    if name == OTHER || paths.len() >= MAX_PATHS {
        return OTHER.to_owned();
    }
    paths.push(name.clone());
    name
}

#[cfg(test)]
mod tests;
