//! State of a path, in a word and with its reason: usable, degraded or unreachable.

use serde::Serialize;

use crate::control::protocol::{Connection, Path, Subflow};
use crate::path_table::radio;

/// What a path is good for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// It answers.
    Usable,
    /// It answers some, or is doubted.
    Degraded,
    /// Nothing comes, or it is not there.
    Unreachable,
}

impl PathState {
    /// All of them.
    pub const ALL: [PathState; 3] =
        [PathState::Usable, PathState::Degraded, PathState::Unreachable];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            PathState::Usable => "usable",
            PathState::Degraded => "degraded",
            PathState::Unreachable => "unreachable",
        }
    }
}

/// One path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathStatus {
    /// As configured, or its interface.
    pub name: String,
    /// What it is good for.
    pub state: PathState,
    /// Why it is not usable, or what it is besides.
    pub reason: Option<String>,
    /// Its address.
    pub local: Option<String>,
    /// Used only while no other works.
    pub backup: bool,
    /// Milliseconds since a server's last answer.
    pub heard_ms: Option<u64>,
    /// Smoothed round trip of the subflow that is fastest now, microseconds.
    pub srtt_us: Option<u64>,
    /// Share of the bytes that were sent again, by the open connections.
    pub retransmitted: Option<f64>,
    /// Bytes of the open connections: sent.
    pub bytes_sent: u64,
    /// Of those, copies of what another path had carried.
    pub bytes_copied: u64,
    /// Received.
    pub bytes_received: u64,
    /// What its radio drew, in words.
    pub radio: Option<String>,
}

/// What the path is good for, by what is known of it and of the connections that use it.
#[must_use]
pub fn of_path(path: &Path, connections: &[Connection]) -> PathStatus {
    let mut found = PathStatus {
        name: path.name.clone(),
        state: PathState::Usable,
        reason: path.problem.clone(),
        local: path.local.clone(),
        backup: path.backup,
        heard_ms: path.servers.iter().filter_map(|server| server.heard_ms).min(),
        srtt_us: None,
        retransmitted: None,
        bytes_sent: 0,
        bytes_copied: 0,
        bytes_received: 0,
        radio: path.radio.as_ref().map(radio),
    };
    let mut again = 0;
    let mut doubted = false;
    for connection in connections {
        let live = connection.subflows.iter().map(|subflow| (subflow, true));
        let gone = connection.gone.iter().map(|subflow| (subflow, false));
        for (subflow, is_live) in live.chain(gone).filter(|(subflow, _)| is_on(subflow, path)) {
            found.bytes_sent += subflow.bytes_sent;
            found.bytes_copied += subflow.bytes_reinjected;
            found.bytes_received += subflow.bytes_received;
            again += subflow.bytes_retransmitted;
            if is_live {
                found.srtt_us = found.srtt_us.into_iter().chain(subflow.srtt_us).min();
                doubted |= subflow.potentially_failed || subflow.health.starts_with("doubtful");
            }
        }
    }
    if found.bytes_sent > 0 {
        found.retransmitted = Some(again as f64 / found.bytes_sent as f64);
    }
    if path.servers.iter().any(|server| server.by_tcp) && found.reason.is_none() {
        found.reason = Some("by TCP, as UDP gets no answer".to_owned());
    }
    found.state = match path.health.as_str() {
        _ if !path.up => PathState::Unreachable,
        "" | "unknown" | "answers" if doubted => PathState::Degraded,
        "" | "unknown" | "answers" => PathState::Usable,
        "no-answer" | "down" | "unreachable" => PathState::Unreachable,
        _ => PathState::Degraded,
    };
    if !path.up && found.reason.is_none() {
        found.reason = Some("taken down".to_owned());
    }
    if found.state == PathState::Degraded && found.reason.is_none() {
        found.reason = Some(if doubted { "answers are overdue" } else { &path.health }.to_owned());
    }
    found
}

/// Whether a subflow starts at the path's address: `ADDRESS:PORT`, IPv6 in brackets.
fn is_on(subflow: &Subflow, path: &Path) -> bool {
    let Some(local) = &path.local else { return false };
    let address = subflow.local.rsplit_once(':').map_or(&*subflow.local, |(address, _)| address);
    let bare = address.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    // A path of both families lists both of its addresses.
    local.split([',', ' ']).any(|one| one == bare.unwrap_or(address))
}
