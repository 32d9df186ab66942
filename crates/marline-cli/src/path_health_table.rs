//! Table of the path health monitor: address pairs, the connections that use them, and their health.

use std::net::SocketAddr;

use crate::control::protocol::{AddressPair, Connection};
use crate::path_table::align;

const HEADER: [&str; 6] = ["address pair", "loss", "retrans", "rto", "faults", "health"];

/// Maximum number of subflows listed in a line. The remaining ones are only counted.
const MAX_LISTED_SUBFLOWS: usize = 4;

/// Returns the table with a heading, for a process with a path health monitor.
#[must_use]
pub fn render(address_pairs: &[AddressPair], connections: &[Connection]) -> String {
    if address_pairs.is_empty() {
        return "\npath health: no address pair in use yet\n".to_owned();
    }
    let rows = address_pairs.iter().map(row);
    let rows: Vec<_> = std::iter::once(HEADER.map(str::to_owned)).chain(rows).collect();
    let subflows: String = address_pairs
        .iter()
        .map(|pair| format!("{}: {}\n", pair_text(pair), members(pair, connections)))
        .collect();
    format!("\npath health\n{}\nsubflows\n{subflows}", align(&rows, &[0, 5]))
}

fn row(pair: &AddressPair) -> [String; HEADER.len()] {
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let why = match &pair.cause {
        Some(cause) => format!(" ({cause})"),
        None if pair.watched => " (watched)".to_owned(),
        None => String::new(),
    };
    let rto = match pair.rto_us {
        0 => "-".to_owned(),
        us => format!("{:.0}ms", us as f64 / 1e3),
    };
    [
        pair_text(pair),
        percent(pair.loss),
        percent(pair.retransmissions),
        rto,
        pair.times_degraded.to_string(),
        format!("{}{why}", pair.health),
    ]
}

/// Formats an address pair as `LOCAL%INTERFACE -> REMOTE`.
fn pair_text(pair: &AddressPair) -> String {
    let at = match (&pair.interface_name, pair.interface) {
        (Some(name), _) => format!("%{name}"),
        (None, 0) => String::new(),
        (None, number) => format!("%{number}"),
    };
    format!("{}{at} -> {}", pair.local, pair.remote)
}

/// Lists the members of an address pair as `CONNECTION.SUBFLOW`.
fn members(pair: &AddressPair, connections: &[Connection]) -> String {
    let host = |end: &str| end.parse::<SocketAddr>().map(|end| end.ip().to_string()).ok();
    let on = |local: &str, remote: &str| {
        host(local).as_ref() == Some(&pair.local) && host(remote).as_ref() == Some(&pair.remote)
    };
    let mut names = Vec::new();
    for connection in connections {
        let here = connection.subflows.iter().filter(|s| on(&s.local, &s.remote));
        names.extend(here.map(|s| format!("{}.{}", connection.connection, s.subflow)));
    }
    let more = names.len().saturating_sub(MAX_LISTED_SUBFLOWS);
    names.truncate(MAX_LISTED_SUBFLOWS);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    if names.is_empty() { "-".to_owned() } else { names.join(" ") + &rest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline::paths::PathHealth;

    use crate::control::protocol::Subflow;

    #[test]
    fn a_row_shows_members_and_health_of_an_address_pair() {
        let pair = AddressPair {
            local: "192.0.2.7".into(),
            remote: "198.51.100.1".into(),
            interface: 3,
            interface_name: None,
            members: 2,
            loss: 0.254,
            retransmissions: 0.5,
            rto_us: 1_600_000,
            health: PathHealth::Degraded,
            cause: Some("rto".into()),
            watched: false,
            times_degraded: 1,
        };
        let subflow = |slot, local: &str| Subflow {
            subflow: slot,
            local: local.into(),
            remote: "198.51.100.1:443".into(),
            ..Subflow::default()
        };
        let connections = [
            Connection {
                connection: 4,
                subflows: vec![subflow(0, "192.0.2.7:4000"), subflow(1, "10.0.0.2:5")],
                ..Connection::default()
            },
            Connection {
                connection: 5,
                subflows: vec![subflow(0, "192.0.2.7:4001")],
                ..Connection::default()
            },
        ];
        let wlan = AddressPair { interface_name: Some("wlan0".into()), ..pair.clone() };
        for (pair, over) in [(pair, "192.0.2.7%3"), (wlan, "192.0.2.7%wlan0")] {
            let text = render(&[pair], &connections);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            let line = text.lines().nth(3).expect("a row");
            let cells: Vec<&str> =
                line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            let first = format!("{over} -> 198.51.100.1");
            assert_eq!(cells, [&*first, "25%", "50%", "1600ms", "1", "degraded (rto)"]);
            assert!(text.ends_with(&format!("\nsubflows\n{first}: 4.0 5.0\n")), "{text}");
        }
        assert!(render(&[], &connections).contains("no address pair"));
    }

    #[test]
    fn many_members_are_counted() {
        let pair = AddressPair {
            local: "192.0.2.7".into(),
            remote: "1.2.3.4".into(),
            ..AddressPair::default()
        };
        let subflow = Subflow {
            local: "192.0.2.7:9".into(),
            remote: "1.2.3.4:443".into(),
            ..Subflow::default()
        };
        let of = |n| Connection {
            connection: n,
            subflows: vec![subflow.clone()],
            ..Connection::default()
        };
        let all: Vec<Connection> = (0..9).map(of).collect();
        assert!(render(&[pair], &all).contains("0.0 1.0 2.0 3.0 and 5 more"));
    }
}
