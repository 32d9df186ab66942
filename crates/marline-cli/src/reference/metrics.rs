//! Metrics page: the result of scraping a client and a server that have every kind of metric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use marline::datagrams::LaneCounters;
use marline::memory::MemoryBudget;
use marline_proxy::quota::{ByteQuota, QuotaState};
use marline_proxy::server::allowances::QuotaUse;
use marline_proxy::server::{ClientCounts, RefusalReason};
use marline_proxy::udp::UdpCounts;

use crate::control::protocol::{AddressPair, Connection, Path, Quota, Subflow};
use crate::metrics_http::{Side, Totals};
use crate::service_counts::ServiceCounts;

/// Labels whose few, known values are listed.
const LISTED_LABELS: [&str; 6] = ["cause", "direction", "event", "kind", "reason", "state"];

/// Description of a metric on the page.
#[derive(Debug, Default)]
struct MetricDescription {
    kind: String,
    about: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Scrapes a process that has every kind of metric.
fn scrape(side: Side, role: &'static str) -> String {
    let totals = Totals::new(side, role);
    let path = Path {
        name: "wwan0".into(),
        local: Some("192.0.2.7".into()),
        quota: Some(Quota::default()),
        ..Path::default()
    };
    totals.paths(&[path]);
    let subflow = Subflow {
        local: "192.0.2.7:1000".into(),
        remote: "198.51.100.1:443".into(),
        bytes_sent: 1,
        srtt_us: Some(1),
        ..Subflow::default()
    };
    totals.sample(&[Connection { subflows: vec![subflow], ..Connection::default() }]);
    totals.address_pairs(&[AddressPair::default()]);
    totals.datagrams(&LaneCounters::default(), &UdpCounts::default());
    let carrier = vec![Default::default()];
    let service = ServiceCounts {
        carrier,
        memory: Some(MemoryBudget::new(None).usage()),
        refusals: RefusalReason::ALL.map(|reason| (reason, 1)).to_vec(),
        clients: vec![client()],
        ..ServiceCounts::default()
    };
    totals.service(&service);
    // Names of connection events are listed with `marline monitor`: docs/operate/monitor.md.
    totals.count_event("", 1);
    totals.render()
}

fn client() -> ClientCounts {
    let quota = QuotaUse {
        quota: ByteQuota { bytes: 1, soft_percent: 80, day: 1 },
        used_bytes: 0,
        until_unix_s: 0,
        state: QuotaState::Within,
        words: String::new(),
    };
    ClientCounts {
        name: "phone".into(),
        connections: 1,
        open: 1,
        to_targets: 1,
        from_targets: 1,
        seen_at: SystemTime::UNIX_EPOCH,
        quota: Some(quota),
        memory: 0,
        memory_waits: 0,
    }
}

/// Adds the metrics of a scrape by name.
fn read(metrics: &mut BTreeMap<String, MetricDescription>, text: &str) {
    let mut current = String::new();
    for line in text.lines() {
        if let Some((name, about)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            current = name.to_owned();
            metrics.entry(current.clone()).or_default().about = about.to_owned();
            continue;
        }
        let metric = metrics.entry(current.clone()).or_default();
        if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            metric.kind = kind.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.rsplit_once('}').map_or(labels, |(labels, _)| labels);
            for (label, value) in labels.split("\",").filter_map(|pair| pair.split_once("=\"")) {
                let values = metric.labels.entry(label.to_owned()).or_default();
                values.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
}

/// Returns ` {label, label: value value}`, or nothing.
fn labels(metric: &MetricDescription) -> String {
    let shown = metric.labels.iter().filter(|(label, _)| *label != "le").map(|(label, values)| {
        let words: Vec<&str> =
            values.iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
        match LISTED_LABELS.contains(&label.as_str()) && !words.is_empty() {
            true => format!("{label}: {}", words.join(" ")),
            false => label.clone(),
        }
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    if shown.is_empty() { shown } else { format!(" `{{{shown}}}`") }
}

pub(super) fn page() -> String {
    let mut metrics = BTreeMap::new();
    read(&mut metrics, &scrape(Side::Client, "client"));
    read(&mut metrics, &scrape(Side::Server, "server"));
    for name in Totals::new(Side::Server, "server").described_names() {
        assert!(metrics.contains_key(name), "nothing in `scrape` has {name}");
    }
    let mut text =
        "# Metrics\n\nWritten by `cargo xtask reference` from the program. Scraping and labels: \
        [monitor](../operate/monitor.md#metrics).\n\n"
            .to_owned();
    for (name, metric) in metrics {
        text += &format!("- `{name}` {}{}: {}.\n", metric.kind, labels(&metric), metric.about);
    }
    text
}
