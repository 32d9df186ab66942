//! Live per-path table: one row per subflow, in human-readable units.

use marline::paths::PathHealth;

use crate::control::protocol::{Connection, Path, Subflow};

/// Columns of the first table, which shows states.
const STATES: [&str; 4] = ["conn", "sf", "path", "state"];

/// Columns of the second table, which shows numbers. The rate is in bits per second.
const NUMBERS: [&str; 10] =
    ["conn", "sf", "srtt", "rttvar", "cwnd", "flight", "bit/s", "retrans", "reinject", "dup rx"];

/// Columns with text, aligned left. Numbers are aligned right.
const LEFT_ALIGNED: [usize; 2] = [2, 3];

/// Returns two tables of all subflows of all connections: states and numbers, each in at most 80 columns for IPv4
/// addresses. A connection without subflows has a row that says so.
#[must_use]
pub fn render(connections: &[Connection]) -> String {
    let mut states = vec![STATES.map(str::to_owned)];
    let mut numbers = vec![NUMBERS.map(str::to_owned)];
    for connection in connections {
        let live = connection.subflows.iter().map(|subflow| (subflow, false));
        for (subflow, gone) in live.chain(connection.gone.iter().map(|gone| (gone, true))) {
            states.push(state_row(connection, subflow, gone));
            numbers.push(number_row(connection, subflow, gone));
        }
        if connection.subflows.is_empty() && connection.gone.is_empty() {
            let number = connection.connection.to_string();
            states.push([&*number, "", "(no path)", ""].map(str::to_owned));
        }
    }
    let numbers =
        if numbers.len() > 1 { format!("\n{}", align(&numbers, &[])) } else { String::new() };
    format!("{}{numbers}{}", align(&states, &LEFT_ALIGNED), totals(connections))
}

/// Returns an empty line, then one line per path that is not usable, with the cause. Empty if all are usable.
#[must_use]
pub fn list_unusable(paths: &[Path]) -> String {
    let line = |path: &Path| {
        let cause = path.cause.as_deref().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}: {}{cause}\n", path.name, path.health)
    };
    let lines: String =
        paths.iter().filter(|path| path.health != PathHealth::Usable).map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Pads the cells so that columns line up, with two blanks between columns and none at the end of a line.
#[must_use]
pub fn align<const N: usize>(rows: &[[String; N]], left: &[usize]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = " ".repeat(width - cell.chars().count());
            let (before, after) =
                if left.contains(&column) { ("", gap) } else { (&*gap, String::new()) };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn state_row(connection: &Connection, subflow: &Subflow, gone: bool) -> [String; STATES.len()] {
    [
        connection.connection.to_string(),
        if gone { "-".to_owned() } else { subflow.subflow.to_string() },
        format!("{} > {}", subflow.local, subflow.remote),
        if gone { "gone".to_owned() } else { state(subflow) },
    ]
}

fn number_row(connection: &Connection, subflow: &Subflow, gone: bool) -> [String; NUMBERS.len()] {
    let dash = || "-".to_owned();
    let live = |text: String| if gone { dash() } else { text };
    [
        connection.connection.to_string(),
        live(subflow.subflow.to_string()),
        live(subflow.srtt_us.map_or_else(dash, format_time)),
        live(format_time(subflow.rttvar_us)),
        live(bytes(subflow.cwnd)),
        live(bytes(subflow.in_flight)),
        live(subflow.rate_bits_per_s.map_or_else(dash, |rate| format_scaled(rate, ""))),
        bytes(subflow.bytes_retransmitted),
        bytes(subflow.bytes_reinjected),
        bytes(subflow.bytes_duplicate),
    ]
    // The row fits only without blanks.
    .map(|cell| cell.replace(' ', ""))
}

/// Returns the TCP state, followed by flags of the subflow.
fn state(subflow: &Subflow) -> String {
    let mut text = match subflow.state.as_str() {
        "ESTABLISHED" => "up".to_owned(),
        other => other.to_owned(),
    };
    if subflow.backup {
        text.push_str(",backup");
    }
    if let PathHealth::Degraded | PathHealth::Unreachable = subflow.health {
        text.push(',');
        text.push_str(subflow.health.name());
    }
    match subflow.phase.as_str() {
        "" | "open" => {}
        phase => {
            text.push(',');
            text.push_str(phase);
        }
    }
    text
}

/// Returns the line below the table with the schedulers and byte counts of the connections.
fn totals(connections: &[Connection]) -> String {
    let sum = |of: fn(&Connection) -> u64| connections.iter().map(of).sum::<u64>();
    let mut schedulers: Vec<&str> = connections.iter().map(|c| c.scheduler.as_str()).collect();
    schedulers.sort_unstable();
    schedulers.dedup();
    let fallen = connections.iter().filter(|c| c.fallback.is_some()).count();
    let mut line = format!(
        "{} connections ({}), written {}, read {}, buffered {}",
        connections.len(),
        if schedulers.is_empty() { "none".to_owned() } else { schedulers.join(", ") },
        bytes(sum(|c| c.bytes_written)),
        bytes(sum(|c| c.bytes_read)),
        bytes(sum(|c| c.buffered)),
    );
    if fallen > 0 {
        line.push_str(&format!(", {fallen} as plain TCP"));
    }
    line.push('\n');
    line
}

/// Formats bytes in SI units with three significant digits: `999 B`, `1.23 MB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    format_scaled(count, "B")
}

/// Formats bits per second in SI units.
#[must_use]
pub fn rate(bits_per_s: u64) -> String {
    format_scaled(bits_per_s, "bit/s")
}

fn format_scaled(count: u64, unit: &str) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut power) = (count as f64, 0);
    // 999.5 would be printed as 1000.
    while value >= 999.5 && power + 1 < PREFIXES.len() {
        value /= 1_000.0;
        power += 1;
    }
    let digits = match value {
        _ if power == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}{unit}", PREFIXES[power])
}

/// Formats a time given in microseconds: `850 us`, `20.3 ms`, `1.50 s`.
#[must_use]
pub fn format_time(micros: u64) -> String {
    match micros {
        0..=999 => format!("{micros} us"),
        1_000..=999_949 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subflow(slot: u64, local: &str) -> Subflow {
        Subflow {
            subflow: slot,
            local: local.into(),
            remote: "198.51.100.1:443".into(),
            state: "ESTABLISHED".into(),
            phase: "open".into(),
            srtt_us: Some(20_312),
            rttvar_us: 850,
            cwnd: 48_000,
            in_flight: 0,
            rate_bits_per_s: Some(19_400_000),
            bytes_retransmitted: 1_448,
            ..Subflow::default()
        }
    }

    #[test]
    fn the_table_is_aligned_and_names_path_faults() {
        let suspect = Subflow {
            health: PathHealth::Unreachable,
            backup: true,
            phase: "loss".into(),
            srtt_us: None,
            rate_bits_per_s: None,
            ..subflow(1, "10.0.0.2:4433")
        };
        let connections = [
            Connection {
                connection: 3,
                scheduler: "min-rtt".into(),
                subflows: vec![subflow(0, "192.0.2.7:50000"), suspect],
                gone: vec![subflow(0, "192.0.2.9:50000")],
                bytes_written: 1_234_567,
                ..Connection::default()
            },
            Connection { connection: 12, scheduler: "redundant".into(), ..Connection::default() },
        ];
        let text = render(&connections);
        let expected = "\
conn  sf  path                                state
   3   0  192.0.2.7:50000 > 198.51.100.1:443  up
   3   1  10.0.0.2:4433 > 198.51.100.1:443    up,backup,unreachable,loss
   3   -  192.0.2.9:50000 > 198.51.100.1:443  gone
  12      (no path)

conn  sf    srtt  rttvar    cwnd  flight  bit/s  retrans  reinject  dup rx
   3   0  20.3ms   850us  48.0kB      0B  19.4M   1.45kB        0B      0B
   3   1       -   850us  48.0kB      0B      -   1.45kB        0B      0B
   3   -       -       -       -       -      -   1.45kB        0B      0B
2 connections (min-rtt, redundant), written 1.23 MB, read 0 B, buffered 0 B
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_widest_rows_with_ipv4_fit_eighty_columns() {
        let subflow = Subflow {
            remote: "255.255.255.255:65535".into(),
            state: "ESTABLISHED".into(),
            phase: "open".into(),
            backup: true,
            health: PathHealth::Unreachable,
            srtt_us: Some(999_900),
            rttvar_us: 999_900,
            cwnd: 12_300_000,
            in_flight: 12_300_000,
            rate_bits_per_s: Some(123_000_000),
            bytes_retransmitted: 12_300_000,
            bytes_reinjected: 12_300_000,
            bytes_duplicate: 12_300_000,
            ..subflow(9, "255.255.255.255:65535")
        };
        let subflows = vec![subflow];
        let text = render(&[Connection { connection: 99_999, subflows, ..Connection::default() }]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits_at_the_borders_of_units() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_995, "10.0 kB"),
            (99_949, "99.9 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (u64::MAX, "18447 PB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(format_time(0), "0 us");
        assert_eq!(format_time(999_949), "999.9 ms");
        assert_eq!(format_time(999_950), "1.00 s");
    }
}
