//! Summary of a path: its state, and its use by connections, identical in `marline status` and the dashboard.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use marline_dashboard::PathSummary;

use crate::control::protocol::{self, Connection, Path, Subflow};

/// Returns the state of a path, and its use by these connections.
#[must_use]
pub fn summarize(path: &Path, connections: &[Connection]) -> PathSummary {
    summarize_where(path, connections, &|subflow| is_on(subflow, path))
}

/// Like [`summarize`], for the subflows for which `is_on` returns true.
#[must_use]
pub fn summarize_where(
    path: &Path,
    connections: &[Connection],
    is_on: &dyn Fn(&Subflow) -> bool,
) -> PathSummary {
    let mut found = PathSummary {
        name: path.name.clone(),
        state: path.health,
        reason: reason(path),
        local: path.local.clone(),
        backup: path.backup,
        metered: path.metered,
        last_rx_ms: path.servers.iter().filter_map(|server| server.last_rx_ms).min(),
        quota: path.quota.clone(),
        ..PathSummary::default()
    };
    for connection in connections {
        let live = connection.subflows.iter().map(|subflow| (subflow, true));
        let gone = connection.gone.iter().map(|subflow| (subflow, false));
        for (subflow, is_live) in live.chain(gone).filter(|(subflow, _)| is_on(subflow)) {
            found.bytes_sent += subflow.bytes_sent;
            found.bytes_repeated += subflow.bytes_retransmitted;
            found.bytes_copied += subflow.bytes_reinjected;
            found.bytes_received += subflow.bytes_received;
            found.bytes_duplicate += subflow.bytes_duplicate;
            if is_live {
                found.srtt_us = found.srtt_us.into_iter().chain(subflow.srtt_us).min();
            }
        }
    }
    found.retransmitted = retransmitted_share(found.bytes_sent, found.bytes_repeated);
    found
}

/// Returns the share of the sent bytes that were retransmissions, or `None` if none were sent.
#[must_use]
pub fn retransmitted_share(sent: u64, repeated: u64) -> Option<f64> {
    (sent > 0).then(|| repeated as f64 / sent as f64)
}

/// Maximum number of our addresses listed for a wildcard address at which a server listens. The remaining ones share a
/// row.
const ADDRESS_LIMIT: usize = 16;

/// Returns the rows of an address at which a server listens: one, or for a wildcard (`0.0.0.0`, `[::]`) one per local
/// address that connections use.
#[must_use]
pub fn summarize_listener(path: &Path, connections: &[Connection]) -> Vec<PathSummary> {
    let listens: Option<SocketAddr> = path.local.as_deref().and_then(|local| local.parse().ok());
    let Some(listens) = listens.filter(|address| address.ip().is_unspecified()) else {
        return vec![summarize(path, connections)];
    };
    let arrives = |subflow: &Subflow| {
        let local: SocketAddr = subflow.local.parse().ok()?;
        // The IPv6 wildcard also accepts IPv4.
        let fits = local.port() == listens.port() && (listens.is_ipv6() || local.is_ipv4());
        fits.then_some(local)
    };
    let subflows = connections.iter().flat_map(|c| c.subflows.iter().chain(&c.gone));
    let addresses: BTreeSet<SocketAddr> = subflows.filter_map(arrives).collect();
    let listed: Vec<SocketAddr> = addresses.into_iter().take(ADDRESS_LIMIT).collect();
    let row = |address: &SocketAddr| {
        let path = Path { local: Some(address.to_string()), ..path.clone() };
        summarize_where(&path, connections, &|subflow| arrives(subflow) == Some(*address))
    };
    let mut rows: Vec<PathSummary> = listed.iter().map(row).collect();
    let rest = |subflow: &Subflow| arrives(subflow).is_some_and(|local| !listed.contains(&local));
    if rows.is_empty() || rows.len() == ADDRESS_LIMIT {
        rows.push(summarize_where(path, connections, &rest));
    }
    rows
}

/// Returns the description of a network with only IPv6 that reaches IPv4 through NAT64.
#[must_use]
pub fn nat64_text(prefix: &str) -> String {
    format!("IPv6 only, with NAT64 prefix {prefix}")
}

/// Returns the cause if the path is not usable, and additional remarks.
fn reason(path: &Path) -> Option<String> {
    let by_tcp = path.servers.iter().find(|server| server.by_tcp).map(tcp_reason);
    let translated = path.nat64.as_deref().map(nat64_text);
    let words: Vec<String> = path.cause.clone().or(by_tcp).into_iter().chain(translated).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Returns the reason why connections to a server use TCP.
fn tcp_reason(server: &protocol::Reached) -> String {
    let megabits = |bits: u64| bits as f64 / 1e6;
    match (server.udp_bits_per_s, server.tcp_bits_per_s) {
        (Some(udp), Some(tcp)) => {
            let (udp, tcp) = (megabits(udp), megabits(tcp));
            format!("over TCP, as UDP is slower ({udp:.1} against {tcp:.1} Mbit/s)")
        }
        _ => "over TCP, as UDP gets no answer".to_owned(),
    }
}

/// Returns true if a subflow starts at the path's address and leads to the path's remote address. A client's path has
/// an address for each family, a server's path includes its port. Subflows have `ADDRESS:PORT`, with IPv6 in brackets.
#[must_use]
pub fn is_on(subflow: &Subflow, path: &Path) -> bool {
    let Some(local) = &path.local else { return false };
    let address = ip(&subflow.local);
    path.remote.as_ref().is_none_or(|remote| *remote == subflow.remote)
        && local.split([',', ' ']).any(|one| one == address || one == subflow.local)
}

/// Returns an endpoint without its port.
#[must_use]
pub fn ip(end: &str) -> &str {
    let address = end.rsplit_once(':').map_or(end, |(address, _)| address);
    let bare = address.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use marline::paths::PathHealth;

    use super::*;

    #[test]
    fn paths_that_share_an_address_are_distinguished_by_server() {
        let subflow = |remote: &str, bytes_sent| Subflow {
            local: "127.0.0.1:5".into(),
            remote: remote.into(),
            bytes_sent,
            ..Subflow::default()
        };
        let subflows = vec![subflow("127.0.0.1:7001", 3), subflow("127.0.0.1:7002", 4)];
        let connections = [Connection { subflows, ..Connection::default() }];
        let path = |remote: Option<&str>| Path {
            local: Some("127.0.0.1".into()),
            remote: remote.map(str::to_owned),
            up: true,
            ..Path::default()
        };
        let sent = |remote| summarize(&path(remote), &connections).bytes_sent;
        assert_eq!(sent(Some("127.0.0.1:7001")), 3);
        assert_eq!(sent(Some("127.0.0.1:7002")), 4);
        assert_eq!(sent(None), 7);
        assert_eq!((ip("[2001:db8::7]:5"), ip("192.0.2.7:5")), ("2001:db8::7", "192.0.2.7"));
    }

    #[test]
    fn a_wildcard_has_a_row_for_each_address_up_to_a_bound_and_all_bytes_are_counted() {
        let subflow = |local: String| Subflow { local, bytes_sent: 5, ..Subflow::default() };
        let many = |count: u8| {
            let mut subflows: Vec<Subflow> =
                (1..=count).map(|n| subflow(format!("10.0.0.{n}:443"))).collect();
            subflows.push(subflow("[fd00::1]:443".to_owned()));
            subflows.push(subflow("10.0.0.1:80".to_owned()));
            [Connection { subflows, ..Connection::default() }]
        };
        let listening = |local: &str| Path {
            name: local.to_owned(),
            local: Some(local.to_owned()),
            health: PathHealth::Usable,
            ..Path::default()
        };
        let rows = |local: &str, count| {
            let rows = summarize_listener(&listening(local), &many(count));
            assert!(rows.iter().all(|row| row.state == PathHealth::Usable && row.name == local));
            let sent = rows.iter().map(|row| row.bytes_sent).sum::<u64>();
            (rows.len(), sent, rows[0].local.clone().unwrap_or_default())
        };
        assert_eq!(rows("0.0.0.0:443", 2), (2, 10, "10.0.0.1:443".to_owned()));
        assert_eq!(rows("[::]:443", 2), (3, 15, "10.0.0.1:443".to_owned()));
        assert_eq!(rows("0.0.0.0:443", 200), (ADDRESS_LIMIT + 1, 1_000, "10.0.0.1:443".to_owned()));
        assert_eq!(rows("0.0.0.0:8443", 2), (1, 0, "0.0.0.0:8443".to_owned()));
        assert_eq!(rows("10.0.0.1:443", 2), (1, 5, "10.0.0.1:443".to_owned()));
    }

    #[test]
    fn tcp_and_nat64_are_shown_for_usable_paths_and_causes_for_others() {
        let by_tcp = protocol::Reached { by_tcp: true, ..protocol::Reached::default() };
        let path = |health: PathHealth, cause: Option<&str>| Path {
            health,
            cause: cause.map(str::to_owned),
            servers: vec![by_tcp.clone()],
            ..Path::default()
        };
        let said = |path: &Path| {
            let summary = summarize(path, &[]);
            (summary.state.name(), summary.reason.unwrap_or_default())
        };
        let tcp = "over TCP, as UDP gets no answer".to_owned();
        assert_eq!(said(&path(PathHealth::Usable, None)), ("usable", tcp.clone()));
        let mut policed = path(PathHealth::Usable, None);
        let server = &mut policed.servers[0];
        (server.udp_bits_per_s, server.tcp_bits_per_s) = (Some(1_040_000), Some(45_200_000));
        assert_eq!(said(&policed).1, "over TCP, as UDP is slower (1.0 against 45.2 Mbit/s)");
        let overdue = ("degraded", "answers are overdue".to_owned());
        assert_eq!(said(&path(PathHealth::Degraded, Some("answers are overdue"))), overdue);
        let translated =
            Path { nat64: Some("64:ff9b::/96".to_owned()), ..path(PathHealth::Usable, None) };
        let both = format!("{tcp}; IPv6 only, with NAT64 prefix 64:ff9b::/96");
        assert_eq!(said(&translated), ("usable", both));
        assert_eq!(
            said(&Path { servers: Vec::new(), ..path(PathHealth::Untried, None) }),
            ("untried", String::new())
        );
    }
}
