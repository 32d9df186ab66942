//! Report of an emulated link, as text and as JSON.

use std::fmt::Write;

use marline_link::radio::RadioReading;
use serde_json::{Value, json};

use crate::{DirectionReport, Lateness, RelayReport};

/// The report as several lines of text.
#[must_use]
pub fn text(report: &RelayReport) -> String {
    let seconds = report.running.as_secs_f64();
    // Writing to a String cannot fail.
    let mut text = format!("link {}: {seconds:.1} s", report.name);
    if report.flows > 0 || report.rebinds > 0 {
        let _ = write!(text, ", {} clients, {} rebinds", report.flows, report.rebinds);
    }
    text.push('\n');
    for (way, name) in [(&report.up, "up  "), (&report.down, "down")] {
        let _ = writeln!(text, "  {name} {}", counts(way, seconds));
        let _ = write!(text, "       sent late: {}", way.late);
        if way.waited.count > 0 {
            let _ = write!(text, "; read late: {}", way.waited);
        }
        text.push('\n');
    }
    if let Some(RadioReading { kind, energy, .. }) = &report.radio {
        let [promotion, transfer, tail] = energy.energy_by_state_j();
        let _ = writeln!(
            text,
            "  radio {kind}: {:.3} J by traffic (promotion {promotion:.3}, transfer {transfer:.3}, \
             tail {tail:.3}), {:.3} J idle; woken {} times",
            energy.traffic_j(),
            energy.idle_j(),
            energy.promotions,
        );
    }
    if report.flows_refused > 0 {
        let _ = writeln!(
            text,
            "  {} datagrams refused because there were too many clients",
            report.flows_refused
        );
    }
    for doubt in report.doubts() {
        let _ = writeln!(text, "  WARNING: unreliable results: {doubt}");
    }
    text
}

fn counts(way: &DirectionReport, seconds: f64) -> String {
    let stats = &way.stats;
    let rate = stats.delivered_bytes as f64 * 8.0 / seconds.max(1e-9) / 1e6;
    let mut text = format!(
        "offered {} ({} B), delivered {} ({} B, {rate:.2} Mbit/s), dropped: queue {}, loss {}, \
         outage {}; queue at most {} B",
        stats.offered_packets,
        stats.offered_bytes,
        stats.delivered_packets,
        stats.delivered_bytes,
        stats.dropped_queue,
        stats.dropped_loss,
        stats.dropped_outage,
        stats.queue_max_bytes,
    );
    for (count, what) in [
        (stats.dropped_mtu, "larger than the MTU"),
        (stats.dropped_blocked, "blocked by a middlebox"),
        (stats.stripped, "stripped of options"),
        (stats.dropped_swallowed, "acknowledged by a middlebox and dropped"),
        (stats.dropped_thinned, "acknowledgments dropped"),
        (stats.dropped_forgotten, "sent to an expired NAT mapping"),
        (stats.split, "cut"),
        (stats.coalesced, "coalesced"),
        (stats.duplicated, "duplicated"),
        (stats.corrupted, "corrupted"),
        (stats.rewritten, "rewritten"),
        (stats.reordered, "reordered"),
        (way.send_errors, "refused by the system"),
        (way.send_blocked, "lost because a socket buffer was full"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if !way.up {
        text.push_str("; DOWN now");
    }
    text
}

/// The report as a JSON object.
#[must_use]
pub fn to_json(report: &RelayReport) -> Value {
    json!({
        "name": report.name,
        "running_ms": u64::try_from(report.running.as_millis()).unwrap_or(u64::MAX),
        "clients": report.flows,
        "refused": report.flows_refused,
        "rebinds": report.rebinds,
        "kernel_drops": report.kernel_drops,
        "lost_interfaces": report.lost_interfaces,
        "starved_us": report.starved.total_us,
        "starved_longest_us": report.starved.longest_us,
        "up": direction_json(&report.up),
        "down": direction_json(&report.down),
        "radio": report.radio.as_ref().map(radio_json),
        "doubts": report.doubts(),
    })
}

/// Energy of a radio, joules.
#[must_use]
pub fn radio_json(RadioReading { kind, energy, .. }: &RadioReading) -> Value {
    let [promotion_j, transfer_j, tail_j] = energy.energy_by_state_j();
    json!({
        "kind": kind.name(),
        "traffic_j": energy.traffic_j(),
        "promotion_j": promotion_j,
        "transfer_j": transfer_j,
        "tail_j": tail_j,
        "idle_j": energy.idle_j(),
        "promotions": energy.promotions,
    })
}

fn direction_json(way: &DirectionReport) -> Value {
    let stats = &way.stats;
    json!({
        "is_up": way.up,
        "offered_packets": stats.offered_packets,
        "offered_bytes": stats.offered_bytes,
        "delivered_packets": stats.delivered_packets,
        "delivered_bytes": stats.delivered_bytes,
        "dropped_queue": stats.dropped_queue,
        "dropped_loss": stats.dropped_loss,
        "dropped_outage": stats.dropped_outage,
        "dropped_mtu": stats.dropped_mtu,
        "dropped_blocked": stats.dropped_blocked,
        "stripped": stats.stripped,
        "dropped_swallowed": stats.dropped_swallowed,
        "dropped_thinned": stats.dropped_thinned,
        "dropped_forgotten": stats.dropped_forgotten,
        "split": stats.split,
        "coalesced": stats.coalesced,
        "duplicated": stats.duplicated,
        "corrupted": stats.corrupted,
        "rewritten": stats.rewritten,
        "reordered": stats.reordered,
        "queue_max_bytes": stats.queue_max_bytes,
        "queued_bytes": way.queued_bytes,
        "send_errors": way.send_errors,
        "send_blocked": way.send_blocked,
        "late": lateness_json(&way.late),
        "read_late": lateness_json(&way.waited),
    })
}

fn lateness_json(late: &Lateness) -> Value {
    json!({
        "count": late.count,
        "p50_us": late.p50_us,
        "p95_us": late.p95_us,
        "p99_us": late.p99_us,
        "max_us": late.max_us,
    })
}
