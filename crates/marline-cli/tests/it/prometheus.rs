//! Tests of the metrics with a real Prometheus: promtool reports no errors, every panel of the board has data, the
//! alerts for a failed path fire, and `marline status` reports the same to scripts. Needs root, Prometheus and
//! promtool.

use super::support::{self, SERVICES};
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};
use marline_lab::scenario::Side;
use marline_testkit::need;
use serde_json::Value;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
const BOARD: &str = include_str!("../../../../packaging/grafana/marline.json");
const SCENARIO: &str = include_str!("support/phone.toml");
const PROMETHEUS: &str = "127.0.0.1:9090";

/// A user of the proxy during the test: pages, datagrams, and requests for a closed port.
const USER: &str = "bash -c 'echo begins; while true; do \
    curl -s --max-time 5 --socks5-hostname 127.0.0.1:1080 -o page http://127.0.0.1:8080/page; \
    curl -s --max-time 5 --socks5-hostname 127.0.0.1:1080 http://127.0.0.1:9/ ; \
    echo over there > /dev/udp/127.0.0.1/5353; sleep 0.1; done'";

/// Returns the answer of Prometheus to an API request.
fn ask(hosts: &TwoUplinks, what: &str, query: Option<&str>) -> Value {
    let query = query.map(|query| {
        std::fs::write(hosts.dir.join("query"), query).expect("write");
        "--data-urlencode query@query"
    });
    let query = query.unwrap_or_default();
    let url = format!("curl -sS --max-time 10 -G http://{PROMETHEUS}/api/v1/{what} {query}");
    let said = hosts.shell(Side::Client, &url);
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(answer["status"], "success", "{what} {query}: {answer}");
    answer["data"].clone()
}

/// Repeats a check until it succeeds.
fn await_answer(mut is_good: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(why) = is_good() {
        assert!(begun.elapsed() < PATIENCE, "{why}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Returns the queries of a board's panels, with Grafana's variables filled in.
fn queries() -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(BOARD).expect("JSON");
    let mut found = Vec::new();
    for panel in board["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let query =
                target["expr"].as_str().expect("a query").replace("$__rate_interval", "20s");
            let query = query.replace("$job", ".*").replace("$instance", ".*");
            found.push((panel["title"].as_str().expect("a title").to_owned(), query));
        }
    }
    assert!(found.len() > 15, "{}", found.len());
    found
}

/// Configuration for the test: seconds instead of minutes, and both ends.
fn configure(dir: &Path) {
    let read = |name: &str| std::fs::read_to_string(format!("{PACKAGING}/prometheus/{name}"));
    let config = read("prometheus.yml").expect("read").replace("15s", "1s");
    let targets = "[\"127.0.0.1:9100\", \"10.0.2.1:9100\"]";
    let config = config.replace("[\"127.0.0.1:9100\"]", targets);
    std::fs::write(dir.join("prometheus.yml"), config).expect("write");
    let rules = read("marline.rules.yml").expect("read");
    assert!(rules.matches("for: ").count() >= 6);
    let lines = rules.lines().map(|line| match line.trim_start().starts_with("for: ") {
        true => "        for: 1s",
        false => line,
    });
    let rules = lines.collect::<Vec<_>>().join("\n");
    std::fs::write(dir.join("marline.rules.yml"), rules).expect("write");
}

/// Starts both ends, a service, its user, and Prometheus.
fn start(hosts: &mut TwoUplinks) {
    std::fs::write(hosts.dir.join("page"), vec![7; 100_000]).expect("write");
    hear(&hosts.program(Side::Server, SERVICES), "ready");
    hosts.marline_server("auto --metrics 0.0.0.0:9100");
    let client = "marline client --invite-file invite --path wifi,radio=wifi --path lte --warm 0 \
         --control client.sock --socks5 127.0.0.1:1080 -U 5353:127.0.0.1:8053 --metrics 127.0.0.1:9100";
    hear(&hosts.program(Side::Client, client), "socks5 listening on");
    hear(&hosts.program(Side::Client, USER), "begins");
    let prometheus = format!(
        "prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address={PROMETHEUS}"
    );
    hear(&hosts.program(Side::Client, &prometheus), "Server is ready");
}

/// Returns the exit status of `marline status`, for scripts.
fn status(hosts: &TwoUplinks) -> String {
    let line = "marline status --control client.sock > status && echo 0 || echo $?";
    hosts.shell(Side::Client, line).trim().to_owned()
}

/// Returns an error with the alerts that fire instead of the expected one, and the client's status meanwhile.
fn others_fire(hosts: &TwoUplinks, fires: &[String]) -> Result<(), String> {
    let told = hosts.shell(Side::Client, "marline status --json --control client.sock || true");
    Err(format!("firing: {fires:?}, while the client says {told}"))
}

/// Every alert fires at the right time, with the right text, and not earlier. promtool simulates the time.
#[test]
fn each_alert_fires_when_it_should() {
    let Some(promtool) = need::program("promtool") else { return };
    let output = std::process::Command::new(promtool)
        .args(["test", "rules", "marline.rules.test.yml"])
        .current_dir(format!("{PACKAGING}/prometheus"))
        .output()
        .expect("promtool");
    let (out, err) = support::texts(&output);
    assert!(output.status.success() && out.contains("SUCCESS"), "{out}{err}");
    let rules = include_str!("../../../../packaging/prometheus/marline.rules.yml");
    let tests = include_str!("../../../../packaging/prometheus/marline.rules.test.yml");
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let tested = format!("alertname: {alert}\n        exp_alerts:\n");
        assert!(tests.contains(&tested), "no test has {alert} fire");
    }
}

#[test]
fn every_panel_has_data_and_a_dead_path_raises_an_alert() {
    let _others = support::among_others();
    if !two_uplinks::possible(&["prometheus", "promtool", "curl", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    configure(dir.path());
    let mut hosts = TwoUplinks::set(SCENARIO, "prom", dir.path());
    hosts.shell(Side::Client, "promtool check config prometheus.yml");
    start(&mut hosts);

    let mut missing = queries();
    await_answer(|| {
        missing.retain(|(_, query)| {
            ask(&hosts, "query", Some(query))["result"].as_array().is_none_or(Vec::is_empty)
        });
        if missing.is_empty() { Ok(()) } else { Err(format!("no data for {missing:#?}")) }
    });
    for at in ["127.0.0.1:9100", "10.0.2.1:9100"] {
        let check = format!("curl -sS http://{at}/metrics | promtool check metrics 2>&1");
        assert_eq!(hosts.shell(Side::Client, &check), "", "promtool of {at}");
    }
    let firing = |hosts: &TwoUplinks| -> Vec<String> {
        let alerts = ask(hosts, "alerts", None)["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"].to_string()).collect()
    };
    let path = |alert: &String| alert.contains("Path") && alert.contains("wifi");
    assert!(!firing(&hosts).iter().any(path), "{:?}", firing(&hosts));
    assert_eq!(status(&hosts), "0");

    hosts.net.command("wifi", "down").expect("WiFi dies");
    await_answer(|| match firing(&hosts) {
        fires if fires.iter().any(path) => Ok(()),
        fires => others_fire(&hosts, &fires),
    });
    assert!(!firing(&hosts).iter().any(|alert| alert.contains("MarlineNoPath")));
    assert_eq!(status(&hosts), "0", "LTE works");
    hosts.net.command("lte", "down").expect("LTE dies");
    await_answer(|| match firing(&hosts) {
        fires if fires.iter().any(|alert| alert.contains("MarlineNoPath")) => Ok(()),
        fires => others_fire(&hosts, &fires),
    });
    assert_eq!(status(&hosts), "2", "no path works");
    for link in ["wifi", "lte"] {
        hosts.net.command(link, "up").expect("it returns");
    }
    await_answer(|| match firing(&hosts) {
        fires if fires.iter().any(|alert| alert.contains("Path")) => Err(format!("{fires:?}")),
        _ => Ok(()),
    });
}
