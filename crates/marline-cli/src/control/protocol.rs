//! Messages of the control socket: one JSON object per line, described in docs/operate/monitor.md. Names are the
//! kernel's where it has one (`ip mptcp monitor`, MPTCP_FULL_INFO), and end in their unit. A reader ignores unknown
//! fields, so that either side may be newer.

use crate::memory::Memory;
use std::collections::BTreeMap;

use marline::paths::PathHealth;
use serde::{Deserialize, Serialize};

mod reports;

pub use marline::paths::PathChange;
pub use marline_dashboard::Quota;
pub use reports::{OpenTarget, PendingSetting, Reloaded, Trouble};

/// A request: a command, and a number chosen by the requester that is returned with the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Returned in the [`Response`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Command to execute.
    #[serde(flatten)]
    pub command: Command,
}

/// Commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
pub enum Command {
    /// Identification: role, version, process id.
    Hello,
    /// List of all connections with their subflows.
    Connections,
    /// List of the local addresses or interfaces that serve as paths.
    Paths,
    /// Table of the path health monitor.
    AddressPairs,
    /// Counts of a server per credential, and its refusals.
    Clients,
    /// Targets of a client's open streams.
    Targets,
    /// Subscription to all later events, one line each, until the socket is closed.
    Monitor {
        /// Includes decisions of schedulers with their reasons. There may be thousands per second.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        decisions: bool,
    },
    /// Change of the scheduler, for one connection or (without a number) for all existing ones.
    SetScheduler {
        /// Name of the scheduler in the registry.
        scheduler: String,
        /// Number of the connection.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection: Option<u64>,
    },
    /// Change of a path while connections use it.
    SetPath {
        /// Name of the path as listed by `paths`.
        path: String,
        /// Requested change.
        change: PathChange,
    },
    /// Reload of the configuration.
    Reload,
    /// Replacement of this process by the current program on disk. Existing connections continue here.
    Upgrade {
        /// Path of the program, instead of the path with which this process was started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        /// Time for the new process to become ready, in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patience_s: Option<u64>,
    },
}

/// The answer to a request: exactly one of `ok` and `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Number of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// Result, if the request succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Answer>,
    /// Error message, if the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The answers, one kind per command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Answer to `hello`.
    Hello(Hello),
    /// Answer to `connections`.
    Connections(Vec<Connection>),
    /// Answer to `paths`.
    Paths(Vec<Path>),
    /// Answer to `address-pairs`.
    AddressPairs(Vec<AddressPair>),
    /// Answer to `clients`.
    Clients(Clients),
    /// Answer to `targets`.
    Targets(Vec<OpenTarget>),
    /// Answer to `monitor`. The events follow.
    Monitoring,
    /// Answer to `set-scheduler`: number of changed connections.
    Changed(u64),
    /// Answer to `set-path`.
    Done,
    /// Answer to `reload`.
    Reloaded(Reloaded),
    /// Answer to `upgrade`, once the new process has taken over.
    Upgraded(Upgraded),
}

/// The process that has replaced the answering one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Version of the new process.
    pub version: String,
    /// Process id of the new process.
    pub pid: u32,
    /// Connections that continue in the answering process.
    pub connections: u64,
}

/// The answering process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `client`, `server` or `serve`.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// True if there is a path health monitor.
    #[serde(default)]
    pub path_health: bool,
    /// Reason why this client's latest request for a connection to its server failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// Mode of new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Number of repair segments sent since the process started, from which the peer recovers lost data.
    #[serde(default)]
    pub repairs_sent: u64,
    /// Bytes recovered from the peer's repair segments.
    #[serde(default)]
    pub bytes_repaired: u64,
    /// Use of the memory budget.
    #[serde(default)]
    pub memory: Memory,
}

/// Clients and refusals of a server since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// Clients that have connected, by name.
    pub clients: Vec<Client>,
    /// Number of refusals by reason, without reasons that have none.
    pub refusals: BTreeMap<String, u64>,
}

/// Counts of one credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// Name of the credential.
    pub name: String,
    /// Open connections.
    pub open: u64,
    /// Connections so far.
    pub connections: u64,
    /// Bytes to targets.
    pub to_targets: u64,
    /// Bytes from targets.
    pub from_targets: u64,
    /// Time of the last new connection, in seconds since 1970.
    pub seen_unix_s: u64,
    /// Quota of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Memory in use, in bytes.
    pub memory: u64,
    /// Number of waits for memory.
    pub memory_waits: u64,
}

/// A path: a local address or interface and its use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// Name as given with `--path`, or the interface's name.
    pub name: String,
    /// Local address of the path.
    pub local: Option<String>,
    /// Remote address for this path, if it differs from the server's.
    pub remote: Option<String>,
    /// True if the interface is up, and the path was not taken down manually.
    pub up: bool,
    /// True if the path is used only while no other path works.
    pub backup: bool,
    /// True if traffic on the path costs money.
    pub metered: bool,
    /// True if traffic counts against an allowance, as with mobile data, so that idle capacity is not used for copies.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub limited: bool,
    /// True if the radio signal fades.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fading: bool,
    /// NAT64 prefix through which a network with only IPv6 reaches IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat64: Option<String>,
    /// Health of the path.
    pub health: PathHealth,
    /// Cause if the path is not usable.
    pub cause: Option<String>,
    /// State of each server over this path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Reached>,
    /// Quota of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// State of a server over a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reached {
    /// Address of the server.
    pub server: String,
    /// State of the server: `unknown` (not tried yet, or just now), `answers`, `no-answer`, `refused`, `prohibited` or
    /// `unreachable`.
    pub reach: String,
    /// Time since the last received packet, for `answers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_rx_ms: Option<u64>,
    /// Time since the first unanswered attempt, for `no-answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Number of attempts since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// Sender of the error, for `prohibited` and `unreachable`; absent for this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// True if connections to the server use TCP on this path, because UDP gets no answer there or is slower.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub by_tcp: bool,
    /// Data rate of UDP when TCP was found to be faster. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_bits_per_s: Option<u64>,
    /// Data rate of TCP in that comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_bits_per_s: Option<u64>,
    /// Reason why no TCP connection was made instead of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_failure: Option<String>,
    /// The state as text.
    pub text: String,
}

/// State of an address pair in the path health monitor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// Local address.
    pub local: String,
    /// The peer's address.
    pub remote: String,
    /// Interface index, 0 if unknown.
    pub interface: u32,
    /// Interface name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// Number of subflows and plain TCP connections.
    pub members: u64,
    /// Smoothed share of lost segments, 0 to 1.
    pub loss: f64,
    /// Smoothed share of retransmitted segments, 0 to 1.
    pub retransmissions: f64,
    /// Largest retransmission timeout of the members, including backoff.
    pub rto_us: u64,
    /// `usable`, `degraded` or `unreachable`.
    pub health: PathHealth,
    /// Cause if the pair is not usable: loss, retransmissions, rto, unanswered or silent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// True while a usable pair is probed after a timeout.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub watched: bool,
    /// Number of times the pair became degraded.
    pub times_degraded: u64,
}

/// A snapshot of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Number of the connection in this process, with at most six digits.
    pub connection: u64,
    /// Reason for the fallback to plain TCP. Absent while the connection is Multipath TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Extensions negotiated by both sides, or `none`.
    #[serde(default)]
    pub extensions: String,
    /// Current scheduler.
    pub scheduler: String,
    /// Current path manager.
    pub path_manager: String,
    /// Bytes written by the application.
    pub bytes_written: u64,
    /// Bytes read by the application.
    pub bytes_read: u64,
    /// Bytes acknowledged by the peer's DATA_ACK.
    pub bytes_acked: u64,
    /// Bytes held in buffers.
    pub buffered: u64,
    /// Time at which the peer's acknowledgment of data became due; absent if everything sent is acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_due_since_us: Option<u64>,
    /// Time at which data that the peer has sent was found to be missing; absent if none is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_due_since_us: Option<u64>,
    /// The subflows.
    pub subflows: Vec<Subflow>,
    /// Sums of closed subflows, one entry per pair of addresses.
    pub gone: Vec<Subflow>,
}

/// A snapshot of a subflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subflow {
    /// Slot of the subflow in the connection.
    pub subflow: u64,
    /// Local endpoint.
    pub local: String,
    /// Remote endpoint.
    pub remote: String,
    /// TCP state, with the names of RFC 9293.
    pub state: String,
    /// `open`, `recovery` or `loss`.
    pub phase: String,
    /// True if either side has marked the subflow as backup.
    pub backup: bool,
    /// `usable`, `degraded` or `unreachable`.
    pub health: PathHealth,
    /// Cause if the subflow is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Smoothed RTT.
    pub srtt_us: Option<u64>,
    /// RTT variation.
    pub rttvar_us: u64,
    /// Smallest RTT.
    pub min_rtt_us: Option<u64>,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Delivery rate.
    pub rate_bits_per_s: Option<u64>,
    /// Payload bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes retransmitted on this subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes sent on this subflow that another subflow had sent before.
    pub bytes_reinjected: u64,
    /// Payload bytes received on this subflow that had arrived before.
    pub bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Tail loss probes sent.
    pub probes: u64,
    /// Congestion window reductions reverted as spurious.
    pub undone: u64,
}

/// An event with the kernel's name. Absent fields do not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// CREATED, ESTABLISHED, CLOSED, ANNOUNCED, REMOVED, SF_ESTABLISHED, SF_CLOSED, SF_PRIO. Our own: AGREED,
    /// FALLBACK, SF_ADDRESS_PAIR_DEGRADED, SF_ADDRESS_PAIR_USABLE, SF_SILENT, SF_UNREACHABLE, SF_REACHABLE,
    /// HOLE, PATH_FAILED, PATH_WORKS, DECISION, and LAGGED if the reader was too slow.
    pub event: String,
    /// Time in microseconds since the process started its clock.
    pub at_us: u64,
    /// Number of the connection. Absent for events of paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Names of the paths, for PATH_FAILED and PATH_WORKS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// State of the server as in `reach` of its paths, for PATH_FAILED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<String>,
    /// Start of a HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
    /// Direction of the stream that stalled, for HOLE: `sent` or `received`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// Slot of the subflow. For HOLE, the subflow on which delivery continued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u64>,
    /// A subflow that was unreachable at the end of a HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<u64>,
    /// Local endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Remote endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Address id, for ANNOUNCED and REMOVED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_id: Option<u8>,
    /// Address, for ANNOUNCED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Backup flag, for SF_ESTABLISHED and SF_PRIO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<bool>,
    /// Reason, for CLOSED, SF_CLOSED, SF_ADDRESS_PAIR_DEGRADED, SF_SILENT, FALLBACK and HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Rule that made a DECISION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Text of a DECISION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Inputs of a DECISION: a line from which the decision can be recomputed (`marline::policy::Reason::parse`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Number of skipped events, for LAGGED, or of skipped decisions before a DECISION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
}

impl Event {
    /// Returns the event as a line of text: time, name, and fields in the format of `ip mptcp monitor`.
    #[must_use]
    pub fn to_line(&self) -> String {
        use std::fmt::Write;
        let (seconds, micros) = (self.at_us / 1_000_000, self.at_us % 1_000_000);
        let mut line = format!("[{seconds:>6}.{micros:06}] {:>14}", self.event);
        let mut field = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                // Writing to a String cannot fail.
                let _ = write!(line, " {name}={value}");
            }
        };
        field("conn", self.connection.map(|v| v.to_string()));
        field("paths", self.paths.as_ref().map(|v| v.join(",")));
        field("reach", self.reach.clone());
        let waited = self.since_us.map(|since| self.at_us.saturating_sub(since));
        field("waited", waited.map(|us| format!("{}.{:03}ms", us / 1_000, us % 1_000)));
        field("direction", self.direction.clone());
        field("subflow", self.subflow.map(|v| v.to_string()));
        field("unreachable", self.unreachable.map(|v| v.to_string()));
        field("local", self.local.clone());
        field("remote", self.remote.clone());
        field("addr_id", self.address_id.map(|v| v.to_string()));
        field("addr", self.address.clone());
        field("backup", self.backup.map(|v| u8::from(v).to_string()));
        field("missed", self.missed.map(|v| v.to_string()));
        field("reason", self.reason.as_ref().map(|v| format!("{v:?}")));
        if let Some(text) = &self.text {
            line.push(' ');
            line.push_str(text);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Request {
        serde_json::from_str(text).expect("a request")
    }

    #[test]
    fn documented_requests_parse() {
        let plain = request(r#"{"cmd":"connections"}"#);
        assert_eq!(plain, Request { id: None, command: Command::Connections });
        let all = request(r#"{"id":7,"cmd":"set-scheduler","scheduler":"redundant"}"#);
        let command = Command::SetScheduler { scheduler: "redundant".into(), connection: None };
        assert_eq!(all, Request { id: Some(7), command });
        let path = request(r#"{"cmd":"set-path","path":"wlan0","change":"backup","later":true}"#);
        let command = Command::SetPath { path: "wlan0".into(), change: PathChange::Backup };
        assert_eq!(path.command, command);
        let monitor = request(r#"{"cmd":"monitor"}"#).command;
        assert_eq!(monitor, Command::Monitor { decisions: false });
        assert_eq!(serde_json::to_string(&monitor).expect("text"), r#"{"cmd":"monitor"}"#);
        assert_eq!(request(r#"{"cmd":"targets"}"#).command, Command::Targets);
        let all = request(r#"{"cmd":"monitor","decisions":true}"#).command;
        assert_eq!(all, Command::Monitor { decisions: true });
        assert!(serde_json::from_str::<Request>(r#"{"cmd":"reboot"}"#).is_err());
    }

    #[test]
    fn answers_survive_the_round_trip_and_newer_fields_are_ignored() {
        let subflow = Subflow { subflow: 1, srtt_us: Some(20_000), ..Subflow::default() };
        let connection =
            Connection { connection: 3, subflows: vec![subflow], ..Connection::default() };
        let response =
            Response { id: Some(1), ok: Some(Answer::Connections(vec![connection])), error: None };
        let text = serde_json::to_string(&response).expect("text");
        assert_eq!(serde_json::from_str::<Response>(&text).expect("back"), response);
        let newer = r#"{"ok":{"paths":[{"name":"wlan0","up":true,"color":"red"}]}}"#;
        let Response { ok: Some(Answer::Paths(paths)), .. } =
            serde_json::from_str(newer).expect("newer")
        else {
            panic!("not an answer to the paths request");
        };
        assert_eq!(paths[0].name, "wlan0");
        assert!(paths[0].up && !paths[0].backup);
    }

    #[test]
    fn an_event_prints_only_the_fields_it_has() {
        let event = Event {
            event: "SF_PRIO".into(),
            at_us: 12_000_345,
            connection: Some(2),
            subflow: Some(1),
            backup: Some(true),
            ..Event::default()
        };
        assert_eq!(event.to_line(), "[    12.000345]        SF_PRIO conn=2 subflow=1 backup=1");
        let json = serde_json::to_string(&event).expect("json");
        assert_eq!(
            json,
            r#"{"event":"SF_PRIO","at_us":12000345,"connection":2,"subflow":1,"backup":true}"#
        );
    }
}
