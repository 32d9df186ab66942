//! Summary of a path: what it is good for, and what the connections do there. `marline status` and the dashboard say
//! the same of it.

use marline_dashboard::{PathState, PathSummary, Radio};

use crate::control::protocol::{self, Connection, Path, Subflow};

/// What a path is good for, and what these connections do on it.
#[must_use]
pub fn summarise(path: &Path, connections: &[Connection]) -> PathSummary {
    summarise_those(path, connections, &|subflow| is_on(subflow, path))
}

/// As [`summarise`], of the subflows that `is_on` it.
#[must_use]
pub fn summarise_those(
    path: &Path,
    connections: &[Connection],
    is_on: &dyn Fn(&Subflow) -> bool,
) -> PathSummary {
    let mut found = PathSummary {
        name: path.name.clone(),
        state: PathState::Usable,
        reason: path.problem.clone(),
        local: path.local.clone(),
        backup: path.backup,
        metered: path.metered,
        heard_ms: path.servers.iter().filter_map(|server| server.heard_ms).min(),
        radio: path.radio.as_ref().map(radio),
        ..PathSummary::default()
    };
    let mut doubted = false;
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
                doubted |= subflow.potentially_failed || subflow.health.starts_with("doubtful");
            }
        }
    }
    judge(&mut found, path, doubted);
    found
}

/// How a network that has only IPv6 reaches the rest.
#[must_use]
pub fn by_nat64(prefix: &str) -> String {
    format!("IPv6 only, by NAT64 prefix {prefix}")
}

fn judge(found: &mut PathSummary, path: &Path, doubted: bool) {
    if path.servers.iter().any(|server| server.by_tcp) && found.reason.is_none() {
        found.reason = Some("by TCP, as UDP gets no answer".to_owned());
    }
    if let Some(prefix) = &path.nat64 {
        let by = by_nat64(prefix);
        found.reason = Some(found.reason.as_ref().map_or(by.clone(), |why| format!("{why}; {by}")));
    }
    found.state = match path.health.as_str() {
        _ if !path.up => PathState::Unreachable,
        "" | "unknown" | "answers" if doubted || path.fading => PathState::Degraded,
        "" | "unknown" | "answers" => PathState::Usable,
        "no-answer" | "down" | "unreachable" => PathState::Unreachable,
        _ => PathState::Degraded,
    };
    if !path.up && found.reason.is_none() {
        found.reason = Some("taken down".to_owned());
    }
    if found.state == PathState::Degraded && found.reason.is_none() {
        let why = match (path.fading, doubted) {
            (true, _) => "its signal fades",
            (false, true) => "answers are overdue",
            (false, false) => &path.health,
        };
        found.reason = Some(why.to_owned());
    }
}

fn radio(radio: &protocol::Radio) -> Radio {
    let protocol::Radio { kind, state, traffic_j, idle_j, promotions } = radio.clone();
    Radio { kind, state, traffic_j, idle_j, promotions }
}

/// Whether a subflow starts at the path's address, `ADDRESS:PORT`, IPv6 in brackets, and leads where the path does.
#[must_use]
pub fn is_on(subflow: &Subflow, path: &Path) -> bool {
    let Some(local) = &path.local else { return false };
    let address = ip(&subflow.local);
    // A path of both families lists both of its addresses.
    path.remote.as_ref().is_none_or(|remote| *remote == subflow.remote)
        && local.split([',', ' ']).any(|one| one == address)
}

/// An end without its port.
#[must_use]
pub fn ip(end: &str) -> &str {
    let address = end.rsplit_once(':').map_or(end, |(address, _)| address);
    let bare = address.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_paths_with_one_address_each_has_the_subflows_that_lead_its_way() {
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
        let sent = |remote| summarise(&path(remote), &connections).bytes_sent;
        assert_eq!(sent(Some("127.0.0.1:7001")), 3);
        assert_eq!(sent(Some("127.0.0.1:7002")), 4);
        assert_eq!(sent(None), 7);
        assert_eq!((ip("[2001:db8::7]:5"), ip("192.0.2.7:5")), ("2001:db8::7", "192.0.2.7"));
    }
}
