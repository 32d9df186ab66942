use super::*;
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Experiment, Variant, simulate, simulate_captured};
use crate::scenario::Event;
use crate::what_if::{Delay, Sending, what_if};
use crate::workload::{Gap, Workload};

const fn file<'a>(name: &'a str, bytes: &'a [u8]) -> CaptureFile<'a> {
    CaptureFile { name, bytes }
}

const WORKLOAD: &str = "\n[workload]\nkind = 'bulk'\nlasts = '6s'\n";

#[test]
fn a_csv_becomes_a_path_that_behaves_as_measured() {
    let text = "timestamp,cell,rate_mbit_per_s,rtt_ms,up_loss_percent\n\
                1000,7,20,40,0\n1002,7,20,60,\n1003,8,2,60,2.5\n1005,8,0,,0\n1005.5,8,2,,\n";
    let renamed = [("timestamp".to_owned(), "time_s".to_owned())];
    let reading = ReadOptions { renamed: renamed.to_vec(), every: None };
    let measured = read_csv("x.csv", text, &reading).expect("a measurement");
    assert_eq!(measured.ignored, ["cell"]);
    let toml = measured.toml("lte", Some("100ms")).expect("a path");
    for wanted in [
        "link = \"rate=20000000,delay=20000us,up.loss=0%,queue=100ms,outage=suspend\"",
        "at = \"2000000us\"\npath = \"lte\"\ncommand = \"set delay=30000us\"",
        "at = \"3000000us\"\npath = \"lte\"\ncommand = \"set rate=2000000,up.loss=2.5%\"",
        "at = \"5000000us\"\npath = \"lte\"\ncommand = \"down\"",
        "at = \"5000000us\"\npath = \"lte\"\ncommand = \"set up.loss=0%\"",
        "at = \"5500000us\"\npath = \"lte\"\ncommand = \"up\"",
    ] {
        assert!(toml.contains(wanted), "{wanted} in {toml}");
    }
    let file = ExperimentFile::from_toml("x.toml", &format!("{toml}{WORKLOAD}")).expect("a file");
    let outcome = simulate(&file.experiment, &Variant::new("auto"), 1).expect("a run");
    let workload = file.experiment.workload();
    let goodput = |from, to| outcome.goodput_mbit_per_s(workload, from, to);
    let [fast, slow, dead] = [goodput(1e3, 3e3), goodput(3.5e3, 5e3), goodput(5.1e3, 5.5e3)];
    assert!((16.0..20.0).contains(&fast), "{fast}");
    assert!((1.3..2.1).contains(&slow) && dead < 0.01, "{slow} {dead}");
    assert!(goodput(5.6e3, 6e3) > 0.5, "delayed data continues");
}

#[test]
fn all_errors_of_a_csv_are_reported_at_once() {
    let wrong = |text: &str| {
        format!("{:#}", read_csv("x.csv", text, &ReadOptions::default()).expect_err("wrong"))
    };
    let said = wrong("time_s,delay_ms,loss\n0,10,0\n1,ten,0\n2,10,3\n1,10,0\n3,10\n");
    for wanted in [
        "line 3: `ten` in column `delay_ms` is not a number",
        "line 4: 3 in column `loss`: must be 0 to 1",
        "line 6: 2 fields, but the header has 3",
    ] {
        assert!(said.contains(wanted), "{wanted} in {said}");
    }
    let said = wrong("when,delay_ms\n0,10\n");
    assert!(
        said.contains("a time column (time_s,") && said.contains("it has when, delay_ms"),
        "{said}"
    );
    assert!(wrong("time_s,loss\n1,0\n0,0\n").contains("line 3: the time is earlier than"));
    assert!(wrong("").contains("is empty") && wrong("time_s,loss\n").contains("no sample"));
    let many = format!("time_s,loss\n{}", "x,0\n".repeat(30));
    assert!(wrong(&many).contains("and 22 more"), "{}", wrong(&many));
    let renamed = [("nowhere".to_owned(), "time_s".to_owned())];
    let reading = ReadOptions { renamed: renamed.to_vec(), every: None };
    let said = read_csv("x.csv", "time_s,loss\n0,0\n", &reading).expect_err("no such column");
    assert!(said.to_string().contains("no column `nowhere`; it has time_s, loss"), "{said}");
}

#[test]
fn an_iperf3_measurement_sets_the_rate_of_its_direction() {
    let interval = |start: f64, rate: f64, omitted: bool| {
        format!(
            "{{\"sum\":{{\"start\":{start},\"end\":0,\"bits_per_second\":{rate},\"omitted\":{omitted}}}}}"
        )
    };
    let intervals =
        [interval(0.0, 9e9, true), interval(1.0, 20e6, false), interval(2.00001, 5e6, false)];
    let text = format!(
        "{{\"start\":{{\"test_start\":{{\"protocol\":\"TCP\",\"reverse\":1}}}},\"intervals\":[{}]}}",
        intervals.join(",")
    );
    let toml = read_iperf3("x.json", &text).and_then(|measured| measured.toml("wifi", None));
    let toml = toml.expect("a path");
    assert!(toml.contains("link = \"down.rate=20000000\""), "{toml}");
    assert!(
        toml.contains("at = \"1000010us\"") && toml.contains("set down.rate=5000000"),
        "{toml}"
    );
    // A datagram sender's own counts do not measure the link; the server's results do.
    let sums = |more: &str| format!("[{{\"sum\":{{\"start\":0,\"bits_per_second\":{more}}}}}]");
    let sent = format!(
        "{{\"start\":{{\"test_start\":{{\"protocol\":\"UDP\"}}}},\"intervals\":{}",
        sums("90e6,\"sender\":true")
    );
    let refused = read_iperf3("x.json", &format!("{sent}}}")).expect_err("data sent");
    assert!(refused.to_string().contains("not received"), "{refused}");
    let seen = sums("20e6,\"lost_percent\":5.0,\"sender\":false");
    let whole = format!("{sent},\"server_output_json\":{{\"intervals\":{seen}}}}}");
    let toml = read_iperf3("x.json", &whole).and_then(|measured| measured.toml("wifi", None));
    let toml = toml.expect("a path");
    assert!(toml.contains("up.rate=20000000") && toml.contains("up.loss=5%"), "{toml}");
    let failed = read_iperf3("x.json", "{\"intervals\":[],\"error\":\"unable to connect\"}");
    assert!(failed.expect_err("failed").to_string().contains("iperf3 failed: unable to connect"));
    assert!(read_iperf3("x.json", "time_s,loss").is_err());
    let none = read_iperf3("x.json", "{\"intervals\":[]}").expect_err("nothing");
    assert!(none.to_string().contains("no sample"), "{none}");
}

#[test]
fn rows_may_be_evenly_apart() {
    let reading = ReadOptions { every: Some(Duration::from_secs(1)), ..ReadOptions::default() };
    let measured =
        read_csv("x.csv", "down_rate_kbit_per_s\n20000\n5000\n", &reading).expect("rows");
    let toml = measured.toml("nr", None).expect("a path");
    assert!(toml.contains("down.rate=20000000\"") && toml.contains("at = \"1000000us\""), "{toml}");
    assert!(read_csv("x.csv", "time_s,loss\n0,0\n", &reading).is_err(), "two kinds of times");
}

/// Captures at both ends of a simulated path show its delays and losses.
#[test]
fn captures_at_both_ends_yield_delay_and_loss() {
    let gap = Gap { least_ms: 10.0, most_ms: 10.0 };
    let workload = Workload::Ask { request_bytes: 300, answer_bytes: 300, gap, count: 1_000 };
    let links = [("wifi", "up.delay=12ms,down.delay=20ms,down.loss=8%,rate=50M")];
    let mut experiment = Experiment::over(&links, workload);
    experiment.scenario.events = vec![Event {
        at: "5s".to_owned(),
        path: "wifi".to_owned(),
        command: "set up.delay=30ms".to_owned(),
    }];
    let captured =
        simulate_captured(&experiment, &Variant::single_path("wifi", "wifi"), 3, 64 << 20);
    let [client, server] = &captured.expect("a run").1[..] else { panic!("two ends") };
    let read = |ahead_ns| {
        let (client, server) = (file("client", &client.bytes), file("server", &server.bytes));
        read_pcaps(client, server, Duration::from_secs(1), ahead_ns)
    };
    let measured = read(0).expect("a measurement");
    let value = |at: usize, way, quantity| {
        let of = |value: &&Value| (value.0, value.1) == (way, quantity);
        measured.samples[at].values.iter().find(of).map(|value| value.2)
    };
    // The workload begins after a second.
    assert_eq!(value(3, PathDirection::Up, Quantity::Delay), Some(12.0));
    assert_eq!(value(8, PathDirection::Up, Quantity::Delay), Some(30.0));
    assert_eq!(value(3, PathDirection::Down, Quantity::Delay), Some(20.1));
    let lost: f64 =
        (2..10).filter_map(|at| value(at, PathDirection::Down, Quantity::Loss)).sum::<f64>() / 8.0;
    assert!((0.05..0.11).contains(&lost), "{lost}");
    assert!(
        (2..10).all(|at| value(at, PathDirection::Up, Quantity::Loss) == Some(0.0)),
        "{measured:?}"
    );
    let toml = measured.toml("wifi", None).expect("a path");
    assert!(toml.contains("up.delay=12000us") && toml.contains("up.delay=30000us"), "{toml}");
    // Clocks that differ by more than the delay, and captures that do not match.
    let said = read(1_000_000_000).expect_err("a second").to_string();
    assert!(said.contains("--clock-ahead"), "{said}");
    let of = |bytes: &[u8]| {
        read_pcaps(file("a", bytes), file("b", &server.bytes), Duration::from_secs(1), 0)
    };
    assert!(of(b"time_s,loss\n").expect_err("text").to_string().contains("a: not a valid pcap"));
    let cut = of(&client.bytes[..client.bytes.len() / 2 + 1]).expect_err("cut");
    assert!(cut.to_string().contains("a: the file is truncated"), "{cut}");
}

/// Captures of two paths, each used alone, predict a redundant run over both.
#[test]
fn captures_of_two_paths_predict_a_redundant_run() {
    let gap = Gap { least_ms: 40.0, most_ms: 40.0 };
    let workload = Workload::Ask { request_bytes: 300, answer_bytes: 300, gap, count: 1_500 };
    let link = "delay=10ms,jitter=8ms,loss=3%,rate=50M";
    let experiment = Experiment::over(&[("wifi", link), ("lte", link)], workload);
    let captured =
        |variant: &Variant| simulate_captured(&experiment, variant, 3, 64 << 20).expect("a run");
    let alone = ["wifi", "lte"].map(|name| captured(&Variant::single_path(name, name)));
    let ways = [&alone[0], &alone[1]].map(|(_, ends)| {
        let [client, server] = &ends[..] else { panic!("two ends") };
        path_packets(file("client", &client.bytes), file("server", &server.bytes), 0)
            .expect("passages")
    });
    // Answers are sent when their requests have arrived: over one path up to 8 ms later than over the other.
    let [up, down] = [(0, 1), (1, 17)].map(|(way, within_ms)| {
        let within = Duration::from_millis(within_ms);
        what_if(&ways[0][way], &ways[1][way], within, Delay::OneWay).expect("pairs")
    });
    let lost = Sending::ALL.map(|way| up.lost(way).value);
    assert!(lost[..3].iter().all(|lost| (0.02..0.05).contains(lost)), "{lost:?}");
    assert!(lost[3] < 0.005, "{lost:?}");
    let redundant = Variant::new("both").scheduler("redundant");
    let (outcome, _) = captured(&redundant);
    let messages = outcome.messages(experiment.workload());
    let latencies: Vec<f64> = messages.iter().map(|message| message.latency_ms).collect();
    let happened = marline_sim::median(&latencies);
    let foretold = |way| up.quantile(way, 0.5).value + down.quantile(way, 0.5).value;
    println!(
        "{happened} ms; foretold {}, one path {}",
        foretold(Sending::Both),
        foretold(Sending::First)
    );
    // The median of a sum is not the sum of medians for skewed delays, such as the minimum of two delays.
    assert!((foretold(Sending::Both) / happened - 1.0).abs() < 0.1);
    assert!(foretold(Sending::First) > 1.08 * happened, "the test proves nothing");
}

/// One capture per path at the client: round trips and losses are those of the links, and the results of the
/// lowest round trip and of duplication follow from them.
#[test]
fn one_capture_at_the_sender_yields_rtts_and_losses() {
    let gap = Gap { least_ms: 40.0, most_ms: 40.0 };
    let workload = Workload::Ask { request_bytes: 300, answer_bytes: 300, gap, count: 1_500 };
    let [wifi, lte] = ["delay=10ms,jitter=8ms,rate=50M,up.loss=3%", "delay=30ms,rate=50M"];
    let experiment = Experiment::over(&[("wifi", wifi), ("lte", lte)], workload);
    let ends = ["wifi", "lte"].map(|name| {
        let variant = Variant::single_path(name, name);
        let (_, ends) = simulate_captured(&experiment, &variant, 3, 64 << 20).expect("a run");
        ends
    });
    let read = |path: usize, end: usize| round_trips("x", &ends[path][end].bytes).expect("read");
    let [wifi, lte] = [read(0, 0), read(1, 0)];
    let result = what_if(&wifi.sent, &lte.sent, Duration::from_millis(5), Delay::RoundTrip);
    let result = result.expect("pairs");
    let median = |way| result.quantile(way, 0.5).value;
    let lost = Sending::ALL.map(|way| result.lost(way).value);
    println!("{lost:?}, {} and {} unknown", wifi.ambiguous, lte.ambiguous);
    println!("medians {:?}", Sending::ALL.map(median));
    assert!((0.02..0.04).contains(&lost[0]) && lost[1] == 0.0 && lost[3] == 0.0, "{lost:?}");
    // 20 ms and twice up to 8 ms more; constant 60 ms.
    assert!((20.0..36.0).contains(&median(Sending::First)), "{}", median(Sending::First));
    assert!((median(Sending::Second) - 60.1).abs() < 0.5, "{}", median(Sending::Second));
    assert!(median(Sending::Both) < 36.0 && median(Sending::LowestRtt) < 36.0);
    let drops = wifi.sent.iter().filter(|passage| passage.took_ns.is_none()).count();
    // Both ends for comparison: some losses are those of acknowledgments, or cannot be determined.
    let [client, server] = &ends[0][..] else { panic!("two ends") };
    let [up, _] = path_packets(file("client", &client.bytes), file("server", &server.bytes), 0)
        .expect("passages");
    let truth = up.iter().filter(|passage| passage.took_ns.is_none()).count();
    println!("{drops} losses reported of {truth}");
    assert!(drops.abs_diff(truth) * 10 <= truth, "{drops} of {truth}");
    // At the server: its answers, over a direction without losses.
    let server = read(0, 1);
    let lost = server.sent.iter().filter(|passage| passage.took_ns.is_none()).count();
    assert!(server.sent.len() > 1_000 && lost * 50 < server.sent.len(), "{lost}");
}

#[test]
fn a_capture_without_a_round_trip_is_refused() {
    let gap = Gap { least_ms: 40.0, most_ms: 40.0 };
    let workload = Workload::Ask { request_bytes: 300, answer_bytes: 300, gap, count: 20 };
    let experiment = Experiment::over(&[("wifi", "delay=10ms")], workload);
    let variant = Variant::single_path("wifi", "wifi");
    let (_, ends) = simulate_captured(&experiment, &variant, 1, 1 << 20).expect("a run");
    // Interface and section only.
    let said = round_trips("x", &ends[0].bytes[..0]).expect_err("nothing").to_string();
    assert!(said.contains("x: not a valid pcap"), "{said}");
    let mut late = Vec::new();
    let mut rest = &ends[0].bytes[..];
    let mut packets = 0;
    // Without its first three packets: a capture that began too late.
    while rest.len() >= 12 {
        let kind = u32::from_le_bytes(rest[..4].try_into().expect("four bytes"));
        let length = u32::from_le_bytes(rest[4..8].try_into().expect("four bytes")) as usize;
        packets += usize::from(kind == 6);
        if kind != 6 || packets > 3 {
            late.extend_from_slice(&rest[..length]);
        }
        rest = &rest[length..];
    }
    let said = round_trips("x", &late).expect_err("too late").to_string();
    assert!(said.contains("x: no TCP handshake, so it is unknown"), "{said}");
}
