//! Metrics of a process's service: delivery delays, counts of the core and the carrier, refusals, and usage by
//! client.

use std::fmt::Write as _;
use std::time::SystemTime;

use marline::memory::MemoryKind;
use marline::monitor::CarrierCounters;
use marline::time::DelayHistogram;
use marline_proxy::server::ClientCounts;

use super::exposition::{Exposition, Labels, format_labels};
use crate::service_counts::ServiceCounts;

/// Maximum number of clients with their own label: those with the most bytes.
const MAX_CLIENTS: usize = 256;

const CORE: &str = "marline_core_events_total";
const CARRIER: &str = "marline_carrier_events_total";
const REFUSALS: &str = "marline_refusals_total";
const CLIENT_CONNECTIONS: &str = "marline_client_connections_total";
const CLIENT_OPEN: &str = "marline_client_connections";
const CLIENT_BYTES: &str = "marline_client_bytes_total";
const CLIENT_SEEN: &str = "marline_client_last_connection_timestamp_seconds";
const CLIENT_QUOTA: &str = "marline_client_quota_bytes";
const CLIENT_QUOTA_USED: &str = "marline_client_quota_used_bytes";
const CLIENT_MEMORY: &str = "marline_client_memory_bytes";
const CLIENT_MEMORY_WAITS: &str = "marline_client_memory_waits_total";
const MEMORY: &str = "marline_memory_bytes";
const MEMORY_LIMIT: &str = "marline_memory_limit_bytes";
const MEMORY_WAITS: &str = "marline_memory_waits_total";
const STATE_FAILURES: &str = "marline_state_write_failures_total";
const LOG_LOST: &str = "marline_log_lost_lines_total";
const NOT_CAPTURED: &str = "marline_capture_missing_packets_total";
const BUILD: &str = "marline_build_info";

type CarrierCounter = fn(&CarrierCounters) -> u64;

const CARRIER_EVENTS: [(&str, CarrierCounter); 27] = [
    ("malformed", |c| c.malformed),
    ("syns", |c| c.syns),
    ("syns_refused", |c| c.syns_refused),
    ("unknown", |c| c.unknown),
    ("challenges", |c| c.challenges),
    ("bad_responses", |c| c.bad_responses),
    ("moves", |c| c.moves),
    ("withheld", |c| c.withheld),
    ("unroutable", |c| c.unroutable),
    ("resets", |c| c.resets),
    ("bad_resets", |c| c.bad_resets),
    ("retries", |c| c.retries),
    ("agreements", |c| c.agreements),
    ("control_dropped", |c| c.control_dropped),
    ("flows_refused", |c| c.flows_refused),
    ("keepalives", |c| c.keepalives),
    ("bad_checksums", |c| c.bad_checksums),
    ("unfinished_checksums", |c| c.unfinished_checksums),
    ("foreign_joins", |c| c.foreign_joins),
    ("foreign_segments", |c| c.foreign_segments),
    ("links", |c| c.links),
    ("links_refused", |c| c.links_refused),
    ("links_evicted", |c| c.links_evicted),
    ("links_malformed", |c| c.links_malformed),
    ("links_silent", |c| c.links_silent),
    ("links_stalled", |c| c.links_stalled),
    ("link_frames_dropped", |c| c.link_frames_dropped),
];

pub(super) fn describe(counted: &mut Exposition) {
    counted.describe_counter(
        CORE,
        "Events in the protocol core, with the kernel's names where the meaning is the same",
    );
    counted.describe_counter(CARRIER, "Events in the UDP, TCP or native carrier");
    counted.describe_counter(REFUSALS, "Connections and requests that were refused, by reason");
    counted
        .describe_counter(CLIENT_CONNECTIONS, "Connections that authenticated with the credential");
    counted.describe_gauge(CLIENT_OPEN, "Open connections of the credential");
    counted.describe_counter(
        CLIENT_BYTES,
        "Bytes to and from the targets of the credential's connections",
    );
    counted
        .describe_gauge(CLIENT_SEEN, "Time at which the credential's last connection was opened");
    counted.describe_gauge(CLIENT_QUOTA, "Monthly quota of the credential");
    counted.describe_gauge(CLIENT_QUOTA_USED, "Bytes used of the credential's monthly quota");
    counted.describe_gauge(CLIENT_MEMORY, "Memory held by the credential's connections");
    counted
        .describe_counter(CLIENT_MEMORY_WAITS, "Number of times the credential waited for memory");
    counted.describe_gauge(MEMORY, "Memory in use, by kind");
    counted.describe_gauge(MEMORY_LIMIT, "Memory limit");
    counted.describe_counter(
        MEMORY_WAITS,
        "Number of times a writer or a new stream waited for memory",
    );
    counted.describe_counter(STATE_FAILURES, "Failed writes to the usage file");
    counted.describe_counter(LOG_LOST, "Log lines that could not be written");
    counted.describe_counter(NOT_CAPTURED, "Packets missing from captures because of write errors");
    counted.describe_gauge(BUILD, "Always 1, with role and version as labels");
}

/// Sets the metric with version and role, which is always 1.
pub(super) fn build_info(counted: &mut Exposition, role: &'static str) {
    let labels = vec![("version", crate::VERSION.to_owned()), ("role", role.to_owned())];
    counted.set(BUILD, labels, 1.0);
}

/// Sets the metrics to the current counts.
pub(super) fn set(counted: &mut Exposition, service: &ServiceCounts) {
    for (name, count) in service.core.named() {
        counted.raise_counter(CORE, vec![("event", name.to_owned())], count);
    }
    for (name, of) in CARRIER_EVENTS {
        counted.raise_counter(
            CARRIER,
            vec![("event", name.to_owned())],
            service.carrier.iter().map(of).sum(),
        );
    }
    for (reason, count) in &service.refusals {
        counted.raise_counter(REFUSALS, vec![("reason", reason.label().to_owned())], *count);
    }
    counted.raise_counter(LOG_LOST, Vec::new(), crate::log::lost_lines());
    counted.raise_counter(NOT_CAPTURED, Vec::new(), marline_io::packets_not_captured());
    counted.raise_counter(STATE_FAILURES, Vec::new(), service.ledger_failures);
    if let Some(memory) = &service.memory {
        for (kind, bytes) in MemoryKind::ALL.iter().zip(memory.by_kind) {
            counted.set(MEMORY, vec![("kind", kind.name().to_owned())], bytes as f64);
        }
        counted.set(
            MEMORY_LIMIT,
            Vec::new(),
            memory.limit.map_or(f64::INFINITY, |bytes| bytes as f64),
        );
        counted.raise_counter(MEMORY_WAITS, Vec::new(), memory.waits);
    }
    let mut clients: Vec<&ClientCounts> = service.clients.iter().collect();
    clients.sort_by_key(|client| core::cmp::Reverse(client.to_targets + client.from_targets));
    for client in clients.into_iter().take(MAX_CLIENTS) {
        let name = || client.name.to_string();
        counted.raise_counter(CLIENT_CONNECTIONS, vec![("credential", name())], client.connections);
        counted.set(CLIENT_OPEN, vec![("credential", name())], client.open as f64);
        for (way, bytes) in [("to_target", client.to_targets), ("from_target", client.from_targets)]
        {
            let labels = vec![("credential", name()), ("direction", way.to_owned())];
            counted.raise_counter(CLIENT_BYTES, labels, bytes);
        }
        let seen = client.seen_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        counted.set(CLIENT_SEEN, vec![("credential", name())], seen.as_secs_f64());
        counted.set(CLIENT_MEMORY, vec![("credential", name())], client.memory as f64);
        counted.raise_counter(
            CLIENT_MEMORY_WAITS,
            vec![("credential", name())],
            client.memory_waits,
        );
        if let Some(used) = &client.quota {
            counted.set(CLIENT_QUOTA, vec![("credential", name())], used.quota.bytes as f64);
            counted.set(CLIENT_QUOTA_USED, vec![("credential", name())], used.used_bytes as f64);
        }
    }
}

/// Writes a histogram in the Prometheus text format, with its counts for each set of labels.
pub(super) fn write_histogram(
    out: &mut String,
    name: &str,
    about: &str,
    series: &[(Labels, DelayHistogram)],
) {
    // Writing to a string cannot fail.
    let _ = write!(out, "# HELP {name} {about}\n# TYPE {name} histogram\n");
    for (labels, histogram) in series {
        let mut so_far = 0;
        for (bound, count) in histogram.classes() {
            so_far += count;
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.as_secs_f64().to_string());
            let bucket = [labels.as_slice(), &[("le", bound)]].concat();
            let _ = writeln!(out, "{name}_bucket{} {so_far}", format_labels(&bucket));
        }
        let labels = format_labels(labels);
        let _ = writeln!(out, "{name}_sum{labels} {}", histogram.sum_us() as f64 / 1e6);
        let _ = writeln!(out, "{name}_count{labels} {so_far}");
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use marline::time::Duration;

    use super::*;

    #[test]
    fn a_histogram_has_cumulative_buckets_and_a_sum() {
        let mut histogram = DelayHistogram::default();
        for ms in [3, 30, 300_000] {
            histogram.record(Duration::from_millis(ms));
        }
        let mut out = String::new();
        let series = [(vec![("path", "a\"b".to_owned())], histogram), (Vec::new(), histogram)];
        write_histogram(&mut out, "x_seconds", "Something", &series);
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{path=\"a\\\"b\",le=\"0.002\"} 0",
            "x_seconds_bucket{path=\"a\\\"b\",le=\"0.005\"} 1",
            "x_seconds_bucket{path=\"a\\\"b\",le=\"120\"} 2",
            "x_seconds_bucket{path=\"a\\\"b\",le=\"+Inf\"} 3",
            "x_seconds_sum{path=\"a\\\"b\"} 300.033",
            "x_seconds_count 3",
        ] {
            assert!(out.lines().any(|l| l == line), "no {line} in\n{out}");
        }
    }
}
