//! Performance goals, and their comparison with measured results.
//!
//! A program prints each result as a line `figure NAME VALUE`.

/// Limit on a result.
#[derive(Copy, Clone, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

/// Name of a result, its limit, and its description.
const GOALS: &[(&str, Bound, &str)] = &[
    (
        "one-to-smoltcp",
        AtLeast(0.8),
        "in-memory goodput of one subflow, relative to smoltcp's plain TCP",
    ),
    ("min-rtt-to-one", AtLeast(0.85), "goodput of two subflows with min-rtt, relative to one"),
    ("by-turns-to-one", AtLeast(0.85), "goodput of two subflows with round robin, relative to one"),
    ("allocations-per-segment", AtMost(0.0), "maximum allocations per segment, in-memory transfer"),
    ("idle-bytes", AtMost(3_000.0), "bytes per idle connection at each end"),
    ("relay-down", AtLeast(1.0), "proxy goodput to the application, relative to QUIC"),
    ("relay-up", AtLeast(1.0), "proxy goodput from the application, relative to QUIC"),
    ("redis-one", AtLeast(0.8), "Redis requests, one client, relative to two nginx proxies"),
    ("redis-fifty", AtLeast(0.8), "Redis requests, fifty clients, relative to two nginx proxies"),
    ("websocket-round-trip", AtLeast(0.8), "WebSocket round trips, relative to two nginx proxies"),
    (
        "wrk-keep-alive",
        AtLeast(0.8),
        "HTTP requests with keep-alive, relative to two nginx proxies",
    ),
    ("wrk-close", AtLeast(0.8), "HTTP requests without keep-alive, relative to two nginx proxies"),
    (
        "wrk-close-one",
        AtLeast(0.8),
        "HTTP requests without keep-alive, one client, relative to two nginx proxies",
    ),
    ("churn", AtLeast(0.8), "connections through `serve`, relative to one nginx proxy"),
    ("churn-alike", AtLeast(0.8), "connections through `serve`, relative to MPTCP nginx"),
    (
        "serve-down-gbit-per-core",
        AtLeast(10.0),
        "Gbit/s per core through `serve`, to a kernel client",
    ),
    (
        "serve-up-gbit-per-core",
        AtLeast(10.0),
        "Gbit/s per core through `serve`, from a kernel client",
    ),
    (
        "bulk-to-tcp",
        AtLeast(1.0),
        "goodput over loopback, relative to kernel TCP without segmentation offload",
    ),
    ("bulk-cpu-to-tcp", AtMost(1.5), "CPU time, relative to kernel TCP without offload"),
    ("bulk-to-quinn", AtLeast(1.0), "goodput over loopback, relative to QUIC without encryption"),
    ("echo-p50-over-tcp-us", AtMost(3.0), "median echo latency minus that of TCP, in us"),
    ("echo-p99-to-tcp", AtMost(1.25), "p99 echo latency, relative to TCP"),
    ("echo-to-quinn", AtMost(1.0), "echo latency: highest of the p50, p95 and p99 ratios to QUIC"),
    ("up-to-gbit", AtLeast(8.0), "Gbit/s through `up`, to the far side"),
    ("up-from-gbit", AtLeast(8.0), "Gbit/s through `up`, from the far side"),
    (
        "two-shards-to-one",
        AtLeast(1.8),
        "in-memory goodput per CPU second of two shards, relative to one",
    ),
    ("crowd", AtMost(2.0), "p99 of echoes during another client's bulk transfer, relative to none"),
    ("silent-server", AtMost(8_000.0), "bytes per silent stream of the proxy, server"),
    ("silent-client", AtMost(8_000.0), "bytes per silent stream of the proxy, client"),
    ("streams-lost", AtMost(0.0), "streams lost out of 100,000 in three rounds"),
    ("streams-servers-mb", AtMost(1_200.0), "resident MB of the servers with 100,000 streams"),
    ("streams-clients-mb", AtMost(1_200.0), "resident MB of the clients with 100,000 streams"),
    ("streams-servers-flat", AtMost(1.05), "servers' memory in round 3, relative to round 1"),
    ("streams-clients-flat", AtMost(1.05), "clients' memory in round 3, relative to round 1"),
    ("packetdrill-tcp", AtLeast(83.0), "passing scripts, out of packetdrill's 162 for TCP"),
    ("packetdrill-mptcp", AtLeast(29.0), "passing scripts, out of packetdrill's 78 for MPTCP"),
    ("packetdrill-packetdrill", AtLeast(13.0), "passing scripts, out of the kernel's 24"),
    ("cost-one-path-us", AtMost(1.0), "us of CPU time per simulated data packet, one path"),
    ("cost-two-paths-us", AtMost(1.2), "us of CPU time per simulated data packet, two paths"),
    (
        "two-clean-links-percent",
        AtLeast(99.5),
        "% of the goodput of two clean links, after slow start",
    ),
];

/// The results in a program's output.
pub(crate) fn figures(printed: &str) -> Vec<(String, f64)> {
    let figure = |line: &str| {
        let mut words = line.strip_prefix("figure ")?.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.parse().ok()?))
    };
    printed.lines().filter_map(figure).collect()
}

/// A line for each goal with a measured result.
pub(crate) fn verdict_lines(figures: &[(String, f64)]) -> String {
    let mut lines = String::new();
    for (name, bound, text) in GOALS {
        let Some((_, value)) = figures.iter().find(|(known, _)| known == name) else { continue };
        let (met, wanted) = match bound {
            AtLeast(least) => (value >= least, format!(">= {least}")),
            AtMost(most) => (value <= most, format!("<= {most}")),
        };
        let word = if met { "met" } else { "NOT MET" };
        lines += &format!("{word:12} {value:8} {wanted:8} {text}\n");
    }
    if lines.is_empty() { lines } else { format!("=== goals\n{lines}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goal_with_a_figure_is_judged() {
        let printed = "bulk\nfigure one-to-smoltcp 0.42\nfigure idle-bytes 2900\nfigure x\n";
        let found = figures(printed);
        assert_eq!(found.len(), 2);
        let lines = verdict_lines(&found);
        assert!(lines.contains("NOT MET          0.42 >= 0.8 "), "{lines}");
        assert!(lines.contains("met              2900 <= 3000"), "{lines}");
        assert_eq!(lines.lines().count(), 3);
        assert_eq!(verdict_lines(&[]), "");
    }
}
