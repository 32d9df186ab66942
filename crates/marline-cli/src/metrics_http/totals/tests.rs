//! Tests of the totals: ended connections, labels, histograms.

use super::*;

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

/// Returns the value of a line in the text format.
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {line} in\n{text}")).parse().expect("a number")
}

#[test]
fn totals_grow_by_differences_and_outlive_connections() {
    let totals = Totals::new(Side::Client, "client");
    let wifi = "192.0.2.7:1000";
    let wlan = |address: &str| Path {
        local: Some(address.into()),
        ..Path { name: "wlan0".into(), ..Path::default() }
    };
    totals.paths(&[wlan("192.0.2.7"), wlan("10.0.0.2")]);
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
            &format!(
                "marline_path_sent_bytes_total{{path=\"{path}=[2001:db8::1]:443\",interface=\"wlan0\"}}"
            ),
        )
    };
    assert_eq!((sent("192.0.2.7"), sent("10.0.0.2")), (240.0, 8.0));
    assert_eq!(value(&text, "marline_connections_total"), 2.0);
    assert_eq!(value(&text, "marline_connections"), 0.0);
    assert_eq!(
        value(
            &text,
            "marline_path_subflows{path=\"192.0.2.7=[2001:db8::1]:443\",interface=\"wlan0\"}"
        ),
        0.0
    );
    assert_eq!(value(&text, "marline_events_total{event=\"SF_CLOSED\"}"), 3.0);
}

#[test]
fn datagrams_are_counted_once_they_are_carried() {
    let totals = Totals::new(Side::Server, "server");
    assert!(!totals.render().contains("marline_lane"), "a front carries no datagrams");
    let (mut lanes, mut udp) = (LaneCounters::default(), UdpCounts::default());
    (lanes.lanes, lanes.stats.forged, udp.refused) = (2, 7, 3);
    for _ in 0..2 {
        totals.datagrams(&lanes, &udp);
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
fn interfaces_have_their_state() {
    let totals = Totals::new(Side::Client, "client");
    let path = |name: &str, health| Path { name: name.into(), health, ..Path::default() };
    totals.paths(&[path("eth0", PathHealth::Unreachable), path("wwan0", PathHealth::Untried)]);
    let text = totals.render();
    let state = |state| format!("marline_interface_state{{interface=\"eth0\",state=\"{state}\"}}");
    assert_eq!(value(&text, &state("unreachable")), 1.0, "the path is down");
    assert_eq!(value(&text, &state("usable")), 0.0);
    let untried = "marline_interface_state{interface=\"wwan0\",state=\"untried\"}";
    assert_eq!(value(&text, untried), 1.0, "the state of the path is unknown");
}

#[test]
fn address_pairs_have_the_words_of_path_health() {
    let totals = Totals::new(Side::Client, "client");
    let wifi = AddressPair {
        local: "192.0.2.7".into(),
        remote: "198.51.100.1".into(),
        members: 3,
        loss: 0.25,
        rto_us: 1_500_000,
        health: PathHealth::Degraded,
        times_degraded: 2,
        ..AddressPair::default()
    };
    let many = (0..100).map(|n| AddressPair { local: format!("10.0.0.{n}"), ..wifi.clone() });
    let good = many.map(|n| AddressPair { health: PathHealth::Usable, ..n });
    totals.address_pairs(&good.chain([wifi.clone()]).collect::<Vec<_>>());
    let text = totals.render();
    let of = |name: &str| {
        let label = "{address_pair=\"192.0.2.7=198.51.100.1\"}";
        value(&text, &format!("marline_address_pair_{name}{label}"))
    };
    assert_eq!((of("degraded"), of("loss_ratio"), of("members")), (1.0, 0.25, 3.0));
    assert_eq!((of("rto_seconds"), of("degraded_total")), (1.5, 2.0));
    let lines =
        text.lines().filter(|line| line.starts_with("marline_address_pair_degraded{")).count();
    assert_eq!(lines, MAX_PATHS);
}

#[test]
fn a_servers_paths_are_its_own_addresses() {
    let totals = Totals::new(Side::Server, "server");
    let here = |remote: &str| Subflow { remote: remote.into(), ..subflow("10.0.0.1:443", 5) };
    totals.sample(&[connection(1, 0, vec![here("192.0.2.1:9"), here("192.0.2.2:9")])]);
    let line = "marline_path_sent_bytes_total{path=\"10.0.0.1:443\"}";
    assert_eq!(value(&totals.render(), line), 10.0);
}

#[test]
fn labels_are_bounded() {
    let totals = Totals::new(Side::Client, "client");
    let many = (0..200).map(|n| subflow(&format!("10.0.0.{n}:1"), 1)).collect();
    totals.sample(&[connection(1, 0, many)]);
    let text = totals.render();
    let name = "marline_path_sent_bytes_total{";
    let lines = text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(lines, MAX_PATHS + 1);
    let rest = (200 - MAX_PATHS) as f64;
    assert_eq!(value(&text, "marline_path_sent_bytes_total{path=\"other\",interface=\"\"}"), rest);
    assert_eq!(value(&text, "marline_path_subflows{path=\"other\",interface=\"\"}"), rest);
    assert_eq!(
        value(
            &text,
            "marline_path_srtt_seconds{path=\"10.0.0.1=[2001:db8::1]:443\",interface=\"\"}"
        ),
        0.02
    );
}

/// The round-trip time of a path is counted while it is used. Handshakes are timed by their events.
#[test]
fn histograms_count_events_and_used_paths() {
    let totals = Totals::new(Side::Server, "server");
    let used = |sent| connection(1, 0, vec![subflow("10.0.0.1:443", sent)]);
    totals.sample(&[used(5)]);
    totals.sample(&[used(5)]);
    totals.sample(&[used(6)]);
    let path = marline::monitor::FourTuple {
        local: "10.0.0.1:443".parse().unwrap(),
        remote: "192.0.2.7:9".parse().unwrap(),
    };
    let event = |connection, at_ms, kind| MonitorEvent {
        at: Instant::ZERO + Duration::from_millis(at_ms),
        connection: ConnectionId(connection),
        kind,
    };
    totals.on_event(&event(1, 100, MonitorKind::Created(path)));
    totals.on_event(&event(2, 110, MonitorKind::Created(path)));
    totals.on_event(&event(1, 130, MonitorKind::Established(path)));
    totals.on_event(&event(3, 140, MonitorKind::Established(path)));
    totals.on_event(&event(
        1,
        900,
        MonitorKind::Hole {
            direction: StreamDirection::Received,
            since: Instant::ZERO + Duration::from_millis(500),
            ended_by: marline::policy::SubflowId(0),
            unreachable: None,
        },
    ));
    let mut delivery = DelayHistogram::default();
    delivery.record(Duration::from_millis(70));
    totals.service(&ServiceCounts { delivery, ..ServiceCounts::default() });
    let text = totals.render();
    assert_eq!(value(&text, "marline_path_rtt_seconds_count{path=\"10.0.0.1:443\"}"), 2.0);
    assert_eq!(
        value(&text, "marline_handshake_seconds_count"),
        1.0,
        "the start of this handshake was observed"
    );
    assert_eq!(value(&text, "marline_handshake_seconds_sum"), 0.03);
    assert_eq!(value(&text, "marline_hole_seconds_sum{direction=\"received\"}"), 0.4);
    assert_eq!(value(&text, "marline_hole_seconds_count{direction=\"sent\"}"), 0.0);
    assert_eq!(value(&text, "marline_delivery_delay_seconds_bucket{le=\"0.1\"}"), 1.0);
    assert_eq!(value(&text, "marline_delivery_delay_seconds_bucket{le=\"0.05\"}"), 0.0);
}

/// Refusals and clients have counters, but clients beyond the limit have none.
#[test]
fn refusals_and_clients_are_counted() {
    let totals = Totals::new(Side::Server, "server");
    let client = |number: u64| marline_proxy::server::ClientCounts {
        name: format!("client {number}").into(),
        connections: 3,
        open: 1,
        to_targets: number,
        from_targets: 2 * number,
        seen_at: std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(17),
        quota: None,
        memory: 0,
        memory_waits: 0,
    };
    let service = ServiceCounts {
        refusals: vec![(marline_proxy::server::RefusalReason::UnauthenticatedLimit, 10_000)],
        clients: (0..1_000).map(client).collect(),
        ..ServiceCounts::default()
    };
    totals.service(&service);
    let text = totals.render();
    assert_eq!(value(&text, "marline_refusals_total{reason=\"unauthenticated_limit\"}"), 10_000.0);
    let bytes = "marline_client_bytes_total{credential=\"client 999\",direction=\"from_target\"}";
    assert_eq!(value(&text, bytes), 1_998.0);
    let lines = text.lines().filter(|line| line.starts_with("marline_client_connections{"));
    assert_eq!(lines.count(), 256);
    assert!(text.contains("marline_build_info{version="));
}
