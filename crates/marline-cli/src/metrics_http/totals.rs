//! Monotonic totals computed from snapshots of connections that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use marline::datagrams::LaneCounters;
use marline_proxy::udp::UdpCounts;
use metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::datagrams;
use crate::control::protocol::{AddressPair, Connection, Path, Subflow};

/// Distinct values of the label `path`.
pub const MAX_PATHS: usize = 32;

/// The label of the paths beyond.
const OTHER: &str = "other";

/// The totals of a process.
pub struct Totals {
    recorder: PrometheusRecorder,
    state: Mutex<State>,
}

/// Whose totals: what names a path without being a connection's own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// Its own ports come and go, the server's address stays.
    Client,
    /// Its own address and port stay, clients' come and go.
    Server,
}

#[derive(Debug)]
struct State {
    side: Side,
    /// What was seen last of each connection.
    seen: BTreeMap<u64, Seen>,
    paths: Vec<String>,
}

/// What was seen of a connection, so that only the difference is added next time.
#[derive(Debug, Default)]
struct Seen {
    written: u64,
    read: u64,
    paths: BTreeMap<String, [u64; COUNTERS.len()]>,
}

type Of = fn(&Subflow) -> u64;

/// Counters per path: name, meaning, where from.
const COUNTERS: [(&str, &str, Of); 7] = [
    ("marline_path_sent_bytes_total", "Payload bytes sent, repeats included", |s| s.bytes_sent),
    ("marline_path_received_bytes_total", "Payload bytes received", |s| s.bytes_received),
    ("marline_path_retransmitted_bytes_total", "Payload bytes sent again on the same path", |s| {
        s.bytes_retransmitted
    }),
    ("marline_path_reinjected_bytes_total", "Payload bytes another path had carried before", |s| {
        s.bytes_reinjected
    }),
    ("marline_path_duplicate_bytes_total", "Payload bytes received that were there already", |s| {
        s.bytes_duplicate
    }),
    ("marline_path_rtos_total", "Retransmission timeouts", |s| s.rtos),
    ("marline_path_probes_total", "Tail loss probes sent", |s| s.probes),
];

/// Gauges per path, sums over its subflows: name, meaning, where from.
const GAUGES: [(&str, &str, Of); 5] = [
    ("marline_path_subflows", "Subflows", |_| 1),
    ("marline_path_suspected_subflows", "Subflows suspected dead", |s| s.potentially_failed.into()),
    ("marline_path_cwnd_bytes", "Congestion windows", |s| s.cwnd),
    ("marline_path_in_flight_bytes", "Bytes in flight", |s| s.in_flight),
    ("marline_path_rate_bits_per_second", "Delivery rates", |s| s.rate_bits_per_s.unwrap_or(0)),
];

type OfAddressPair = fn(&AddressPair) -> f64;

/// Gauges of the path health monitor per address pair: name, meaning, where from.
const ADDRESS_PAIRS: [(&str, &str, OfAddressPair); 5] = [
    ("marline_address_pair_members", "Subflows and plain TCP connections", |n| n.members as f64),
    ("marline_address_pair_loss_ratio", "Smoothed share of lost segments", |n| n.loss),
    ("marline_address_pair_retransmission_ratio", "Smoothed share of retransmissions", |n| {
        n.retransmissions
    }),
    ("marline_address_pair_rto_seconds", "Largest retransmission timeout", |n| {
        n.rto_us as f64 / 1e6
    }),
    ("marline_address_pair_bad", "1 while path health monitoring holds it to be bad", |n| {
        f64::from(u8::from(n.health == "bad"))
    }),
];
const TIMES_BAD: &str = "marline_address_pair_bad_total";
const SRTT: &str = "marline_path_srtt_seconds";
/// Grows like a counter; those of this library hold whole numbers only.
const ENERGY: &str = "marline_path_radio_joules";
const PROMOTIONS: &str = "marline_path_radio_promotions_total";
const EVENTS: &str = "marline_events_total";
const OPENED: &str = "marline_connections_total";
const OPEN: &str = "marline_connections";
const FALLBACK: &str = "marline_fallback_connections";
const WRITTEN: &str = "marline_written_bytes_total";
const READ: &str = "marline_read_bytes_total";

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Totals").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Totals {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(side: Side) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            for (name, meaning, _) in COUNTERS {
                describe_counter!(name, meaning);
            }
            for (name, meaning, _) in GAUGES {
                describe_gauge!(name, meaning);
            }
            for (name, meaning, _) in ADDRESS_PAIRS {
                describe_gauge!(name, meaning);
            }
            describe_counter!(
                TIMES_BAD,
                "How often path health monitoring came to hold it to be bad"
            );
            describe_gauge!(SRTT, "Smoothed RTT, mean over the path's subflows");
            describe_gauge!(ENERGY, "Energy of the path's radio since the path was opened");
            describe_counter!(PROMOTIONS, "Times the path's radio was woken");
            describe_counter!(EVENTS, "Events, by the names of `marline monitor`");
            describe_counter!(OPENED, "Connections seen");
            describe_gauge!(OPEN, "Connections that exist");
            describe_gauge!(FALLBACK, "Connections that run as plain TCP");
            describe_counter!(WRITTEN, "Bytes applications wrote");
            describe_counter!(READ, "Bytes applications read");
            describe_gauge!(datagrams::LANES, "Lanes for datagrams that exist");
            for (name, meaning, _) in datagrams::COUNTERS {
                describe_counter!(name, meaning);
            }
        });
        let state = State { side, seen: BTreeMap::new(), paths: Vec::new() };
        Totals { recorder, state: Mutex::new(state) }
    }

    /// Takes in all connections there are: those not among them have ended.
    pub fn sample(&self, connections: &[Connection]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        with_local_recorder(&self.recorder, || {
            for connection in connections {
                state.add(connection);
            }
            let alive: BTreeSet<u64> = connections.iter().map(|c| c.connection).collect();
            state.seen.retain(|number, _| alive.contains(number));
            state.gauges(connections);
        });
    }

    /// Takes in what the radios of the paths drew.
    pub fn radios(&self, paths: &[Path]) {
        with_local_recorder(&self.recorder, || {
            for (path, radio) in paths.iter().filter_map(|path| Some((path, path.radio.as_ref()?)))
            {
                for (cause, joules) in [("traffic", radio.traffic_j), ("idle", radio.idle_j)] {
                    let labels = [("path", path.name.clone()), ("cause", cause.to_owned())];
                    gauge!(ENERGY, &labels).set(joules);
                }
                counter!(PROMOTIONS, "path" => path.name.clone()).absolute(radio.promotions);
            }
        });
    }

    /// Takes in the path health monitor's table: the bad address pairs, then those with most
    /// members, as far as
    /// labels go.
    pub fn address_pairs(&self, address_pairs: &[AddressPair]) {
        let mut address_pairs: Vec<&AddressPair> = address_pairs.iter().collect();
        address_pairs.sort_by_key(|n| (n.health != "bad", core::cmp::Reverse(n.members)));
        with_local_recorder(&self.recorder, || {
            for pair in address_pairs.into_iter().take(MAX_PATHS) {
                let label = format!("{}={}", pair.local, pair.remote);
                for (name, _, of) in ADDRESS_PAIRS {
                    gauge!(name, "address_pair" => label.clone()).set(of(pair));
                }
                counter!(TIMES_BAD, "address_pair" => label).absolute(pair.times_bad);
            }
        });
    }

    /// Takes in the counts of datagrams.
    pub fn datagrams(&self, (lanes, udp): &(LaneCounters, UdpCounts)) {
        with_local_recorder(&self.recorder, || {
            gauge!(datagrams::LANES).set(lanes.lanes as f64);
            for (name, _, of) in datagrams::COUNTERS {
                counter!(name).absolute(of(lanes, udp));
            }
        });
    }

    /// Adds the last snapshot of a connection that ends.
    pub fn observe(&self, connection: &Connection) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        with_local_recorder(&self.recorder, || state.add(connection));
    }

    /// Counts events of a name.
    pub fn count_event(&self, name: &str, count: u64) {
        with_local_recorder(&self.recorder, || {
            counter!(EVENTS, "event" => name.to_owned()).increment(count);
        });
    }

    /// Everything in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.recorder.handle().render()
    }
}

impl State {
    /// Adds what is new since the connection was last seen.
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
            counter!(OPENED).increment(1);
        }
        counter!(WRITTEN).increment(grown(&mut seen.written, connection.bytes_written));
        counter!(READ).increment(grown(&mut seen.read, connection.bytes_read));
        for (path, sums) in now {
            let before = seen.paths.entry(path.clone()).or_default();
            for ((before, now), (name, _, _)) in before.iter_mut().zip(sums).zip(COUNTERS) {
                counter!(name, "path" => path.clone()).increment(grown(before, now));
            }
        }
    }

    fn gauges(&mut self, connections: &[Connection]) {
        gauge!(OPEN).set(connections.len() as f64);
        let fallen = connections.iter().filter(|c| c.fallback.is_some()).count();
        gauge!(FALLBACK).set(fallen as f64);
        let mut by_path: BTreeMap<String, Vec<&Subflow>> = BTreeMap::new();
        for subflow in connections.iter().flat_map(|c| &c.subflows) {
            by_path.entry(label(&mut self.paths, self.side, subflow)).or_default().push(subflow);
        }
        // A path without subflows has zeros, not the values it had last.
        let with_other = self.paths.iter().cloned().chain([OTHER.to_owned()]);
        for path in with_other.filter(|p| p != OTHER || by_path.contains_key(OTHER)) {
            let subflows = by_path.get(&path).map_or(&[][..], Vec::as_slice);
            for (name, _, of) in GAUGES {
                let sum: u64 = subflows.iter().map(|subflow| of(subflow)).sum();
                gauge!(name, "path" => path.clone()).set(sum as f64);
            }
            let known: Vec<u64> = subflows.iter().filter_map(|s| s.srtt_us).collect();
            let mean = known.iter().sum::<u64>() as f64 / known.len().max(1) as f64;
            gauge!(SRTT, "path" => path.clone()).set(mean / 1e6);
        }
    }
}

/// How much more it is than it was; what became less is not counted back.
fn grown(before: &mut u64, now: u64) -> u64 {
    let more = now.saturating_sub(*before);
    *before = (*before).max(now);
    more
}

/// The subflow's path: at a client our address and the server's, at a server ours; `other` if there
/// are too many.
fn label(paths: &mut Vec<String>, side: Side, subflow: &Subflow) -> String {
    let local: Option<SocketAddr> = subflow.local.parse().ok();
    let name = match (local, side) {
        (None, _) => OTHER.to_owned(),
        // Its port is the connection's, not the path's.
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
mod tests {
    use super::*;
    use crate::control::protocol::Radio;

    fn subflow(local: &str, sent: u64) -> Subflow {
        Subflow {
            local: local.into(),
            remote: "[2001:db8::1]:443".into(),
            bytes_sent: sent,
            srtt_us: Some(20_000),
            ..Subflow::default()
        }
    }

    fn connection(number: u64, written: u64, subflows: Vec<Subflow>) -> Connection {
        Connection { connection: number, bytes_written: written, subflows, ..Connection::default() }
    }

    /// The value of a line of the text format.
    fn value(text: &str, line: &str) -> f64 {
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse().expect("a number")
    }

    #[test]
    fn totals_grow_by_differences_and_outlive_connections() {
        let totals = Totals::new(Side::Client);
        let wifi = "192.0.2.7:1000";
        totals.sample(&[connection(1, 100, vec![subflow(wifi, 150)])]);
        totals.sample(&[
            connection(1, 130, vec![subflow(wifi, 200)]),
            connection(2, 10, vec![subflow(wifi, 10), subflow("10.0.0.2:5", 7)]),
        ]);
        totals.observe(&connection(2, 40, vec![subflow(wifi, 40), subflow("10.0.0.2:5", 8)]));
        totals.sample(&[]);
        totals.count_event("SF_CLOSED", 3);
        let text = totals.render();
        assert_eq!(value(&text, "marline_written_bytes_total"), 170.0);
        let sent = |path| {
            value(
                &text,
                &format!("marline_path_sent_bytes_total{{path=\"{path}=[2001:db8::1]:443\"}}"),
            )
        };
        assert_eq!((sent("192.0.2.7"), sent("10.0.0.2")), (240.0, 8.0));
        assert_eq!(value(&text, "marline_connections_total"), 2.0);
        assert_eq!(value(&text, "marline_connections"), 0.0);
        assert_eq!(
            value(&text, "marline_path_subflows{path=\"192.0.2.7=[2001:db8::1]:443\"}"),
            0.0
        );
        assert_eq!(value(&text, "marline_events_total{event=\"SF_CLOSED\"}"), 3.0);
    }

    #[test]
    fn datagrams_are_counted_once_they_are_carried() {
        let totals = Totals::new(Side::Server);
        assert!(!totals.render().contains("marline_lane"), "a front carries none");
        let (mut lanes, mut udp) = (LaneCounters::default(), UdpCounts::default());
        (lanes.lanes, lanes.stats.forged, udp.refused) = (2, 7, 3);
        for _ in 0..2 {
            totals.datagrams(&(lanes, udp));
        }
        let text = totals.render();
        for (name, count) in [
            ("marline_lanes", 2.0),
            ("marline_lane_forged_total", 7.0),
            ("marline_udp_refused_total", 3.0),
        ] {
            assert_eq!(value(&text, name), count, "{name}");
        }
    }

    #[test]
    fn radios_have_their_joules() {
        let totals = Totals::new(Side::Client);
        let radio = Radio { traffic_j: 12.5, idle_j: 0.25, promotions: 2, ..Radio::default() };
        let lte = Path { name: "wwan0".into(), radio: Some(radio), ..Path::default() };
        totals.radios(&[Path { name: "eth0".into(), ..Path::default() }, lte]);
        let text = totals.render();
        let of = |cause| format!("marline_path_radio_joules{{path=\"wwan0\",cause=\"{cause}\"}}");
        assert_eq!((value(&text, &of("traffic")), value(&text, &of("idle"))), (12.5, 0.25));
        let woken = "marline_path_radio_promotions_total{path=\"wwan0\"}";
        assert_eq!((value(&text, woken), text.contains("eth0")), (2.0, false));
    }

    #[test]
    fn address_pairs_have_the_words_of_path_health() {
        let totals = Totals::new(Side::Client);
        let wifi = AddressPair {
            local: "192.0.2.7".into(),
            remote: "198.51.100.1".into(),
            members: 3,
            loss: 0.25,
            rto_us: 1_500_000,
            health: "bad".into(),
            times_bad: 2,
            ..AddressPair::default()
        };
        let many = (0..100).map(|n| AddressPair { local: format!("10.0.0.{n}"), ..wifi.clone() });
        let good = many.map(|n| AddressPair { health: "good".into(), ..n });
        totals.address_pairs(&good.chain([wifi.clone()]).collect::<Vec<_>>());
        let text = totals.render();
        let of = |name: &str| {
            let label = "{address_pair=\"192.0.2.7=198.51.100.1\"}";
            value(&text, &format!("marline_address_pair_{name}{label}"))
        };
        assert_eq!((of("bad"), of("loss_ratio"), of("members")), (1.0, 0.25, 3.0));
        assert_eq!((of("rto_seconds"), of("bad_total")), (1.5, 2.0));
        let lines =
            text.lines().filter(|line| line.starts_with("marline_address_pair_bad{")).count();
        assert_eq!(lines, MAX_PATHS);
    }

    #[test]
    fn a_servers_paths_are_its_own_addresses() {
        let totals = Totals::new(Side::Server);
        let here = |remote: &str| Subflow { remote: remote.into(), ..subflow("10.0.0.1:443", 5) };
        totals.sample(&[connection(1, 0, vec![here("192.0.2.1:9"), here("192.0.2.2:9")])]);
        let line = "marline_path_sent_bytes_total{path=\"10.0.0.1:443\"}";
        assert_eq!(value(&totals.render(), line), 10.0);
    }

    #[test]
    fn labels_are_bounded() {
        let totals = Totals::new(Side::Client);
        let many = (0..200).map(|n| subflow(&format!("10.0.0.{n}:1"), 1)).collect();
        totals.sample(&[connection(1, 0, many)]);
        let text = totals.render();
        let name = "marline_path_sent_bytes_total{";
        let lines = text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(lines, MAX_PATHS + 1);
        let rest = (200 - MAX_PATHS) as f64;
        assert_eq!(value(&text, "marline_path_sent_bytes_total{path=\"other\"}"), rest);
        assert_eq!(value(&text, "marline_path_subflows{path=\"other\"}"), rest);
        assert_eq!(
            value(&text, "marline_path_srtt_seconds{path=\"10.0.0.1=[2001:db8::1]:443\"}"),
            0.02
        );
    }
}
