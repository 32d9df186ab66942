//! Messages of the control socket: one JSON object per line, described in docs/operate/monitor.md.
//!
//! The names are the kernel's where it has one (`ip mptcp monitor`, MPTCP_FULL_INFO), units are last in a name,
//! and an unknown field is ignored by the reader, so that either side may be newer.

use crate::memory::Memory;
use std::collections::BTreeMap;

use marline::PathHealth;
use serde::{Deserialize, Serialize};

mod reports;

pub use marline::PathChange;
pub use marline_dashboard::Quota;
pub use reports::{OpenTarget, PendingSetting, Reloaded, Trouble};

/// A request: a command, and a number chosen by the requester that is returned with the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Comes back in the [`Response`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// Commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "kebab-case")]
pub enum Command {
    /// Identification: role, version, process id.
    Hello,
    /// Every connection with its subflows.
    Connections,
    /// The local addresses or interfaces that serve as paths.
    Paths,
    /// The path health monitor's table.
    AddressPairs,
    /// What came by each credential, of a server, and what it refused.
    Clients,
    /// Where the streams lead that are open at a client.
    Targets,
    /// From now on: every event, one line each, until the socket is closed.
    Monitor {
        /// What schedulers decide as well, and why: there may be thousands a second.
        #[serde(default, skip_serializing_if = "core::ops::Not::not")]
        decisions: bool,
    },
    /// Another scheduler, for one connection or (without a number) for all that exist.
    SetScheduler {
        /// Its name in the registry.
        scheduler: String,
        /// The connection's number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connection: Option<u64>,
    },
    /// Change a path while connections use it.
    SetPath {
        /// Its name as `paths` lists it.
        path: String,
        /// What to do with it.
        change: PathChange,
    },
    /// Read the configuration again.
    Reload,
    /// Another process of the program as it is on disk now takes the place of this one, whose connections go on.
    Upgrade {
        /// The program, instead of the one at the path that this one was started by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
        /// Time for it to become ready, seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patience_s: Option<u64>,
    },
}

/// The answer to a request: exactly one of `ok` and `error`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Answer>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The answers, one kind per command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To `hello`.
    Hello(Hello),
    /// To `connections`.
    Connections(Vec<Connection>),
    /// To `paths`.
    Paths(Vec<Path>),
    /// To `address-pairs`.
    AddressPairs(Vec<AddressPair>),
    /// To `clients`.
    Clients(Clients),
    /// To `targets`.
    Targets(Vec<OpenTarget>),
    /// To `monitor`: the events follow.
    Monitoring,
    /// To `set-scheduler`: how many connections changed.
    Changed(u64),
    /// To `set-path`.
    Done,
    /// To `reload`.
    Reloaded(Reloaded),
    /// To `upgrade`, once the other process has begun.
    Upgraded(Upgraded),
}

/// A process that has taken the place of the one that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgraded {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Connections that go on in the process that answers.
    pub connections: u64,
}

/// The answering process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `client`, `server` or `serve`.
    pub role: String,
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// It has a path health monitor.
    #[serde(default)]
    pub path_health: bool,
    /// Why this client's latest request for a connection to its server failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
    /// The mode of connections that begin now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Segments of sums sent, from which the peer computes what is lost, of connections since the start.
    #[serde(default)]
    pub repairs_sent: u64,
    /// Bytes computed from the peer's.
    #[serde(default)]
    pub bytes_repaired: u64,
    /// Use of the memory budget.
    #[serde(default)]
    pub memory: Memory,
}

/// A server's clients and refusals, since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// Those that came, by name.
    pub clients: Vec<Client>,
    /// How many were refused, by reason, where there were any.
    pub refusals: BTreeMap<String, u64>,
}

/// What came by one credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// The credential's name.
    pub name: String,
    /// Connections that exist.
    pub open: u64,
    /// Connections so far.
    pub connections: u64,
    /// Bytes to its targets.
    pub to_targets: u64,
    /// Bytes from them.
    pub from_targets: u64,
    /// When its last connection was opened, in seconds since 1970.
    pub seen_unix_s: u64,
    /// Its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Bytes of memory that it holds.
    pub memory: u64,
    /// How often it had to wait for memory.
    pub memory_waits: u64,
}

/// A path: a local address or interface and what it is used for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Path {
    /// As given with `--path`, or the interface's name.
    pub name: String,
    /// The address it resolved to.
    pub local: Option<String>,
    /// The server's address over this path, where it differs.
    pub remote: Option<String>,
    /// Its interface is up, and the path was not taken down manually.
    pub up: bool,
    /// It is used only while no other works.
    pub backup: bool,
    /// Bytes on it cost money.
    pub metered: bool,
    /// Its radio's signal fades.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fading: bool,
    /// The prefix below which its network, which has only IPv6, reaches IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nat64: Option<String>,
    /// What it is good for.
    pub health: PathHealth,
    /// Why it is not usable.
    pub cause: Option<String>,
    /// State of each server over it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Reached>,
    /// Its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// State of a server over a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reached {
    /// The server's address.
    pub server: String,
    /// Whether it answers: `unknown` (it was not asked yet, or only just), `answers`, `no-answer`, `refused`,
    /// `prohibited` or `unreachable`.
    pub health: String,
    /// Time since it was last heard, of `answers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
    /// Time since the first question without an answer, of `no-answer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Number of attempts since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// Sender of the error, for `prohibited` and `unreachable`; absent: this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Connections to it go by TCP over this path, as UDP gets no answer there or is slower.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub by_tcp: bool,
    /// Rate of data that UDP had when TCP was found to be faster; absent: it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_bits_per_s: Option<u64>,
    /// Rate that TCP had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_bits_per_s: Option<u64>,
    /// Why no TCP connection came about in place of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_failure: Option<String>,
    /// The same as text.
    pub text: String,
}

/// State of an address pair in the path health monitor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// Our address.
    pub local: String,
    /// The peer's address.
    pub remote: String,
    /// The interface's number, 0 if it is not known.
    pub interface: u32,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<String>,
    /// Subflows and plain TCP connections on it.
    pub members: u64,
    /// Smoothed share of lost segments, 0 to 1.
    pub loss: f64,
    /// Smoothed share of retransmissions, 0 to 1.
    pub retransmissions: f64,
    /// The largest retransmission timeout of its members, backed off.
    pub rto_us: u64,
    /// `good`, `watched` or `bad`.
    pub health: String,
    /// Why it is bad: loss, retransmissions, rto, unanswered or silent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Number of times it became bad.
    pub times_bad: u64,
}

/// A snapshot of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// Its number in this process, of at most six digits.
    pub connection: u64,
    /// Plain TCP, and why; absent while it is Multipath TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Extensions that both sides agreed on, or `none`.
    #[serde(default)]
    pub extensions: String,
    /// The scheduler in force.
    pub scheduler: String,
    /// The path manager in force.
    pub path_manager: String,
    /// Bytes the application wrote.
    pub bytes_written: u64,
    /// Bytes the application read.
    pub bytes_read: u64,
    /// Bytes the peer DATA_ACKed.
    pub bytes_acked: u64,
    /// Bytes of memory held in buffers.
    pub buffered: u64,
    /// Since when the peer owes an acknowledgement of data; absent: all that was sent is acknowledged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_due_since_us: Option<u64>,
    /// Since when data is known to be on its way that does not come; absent: nothing is known of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_due_since_us: Option<u64>,
    /// The subflows.
    pub subflows: Vec<Subflow>,
    /// Sums of the subflows that are gone, one entry per pair of addresses.
    pub gone: Vec<Subflow>,
}

/// A snapshot of a subflow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subflow {
    /// Its slot in the connection.
    pub subflow: u64,
    /// Our end.
    pub local: String,
    /// The peer's end.
    pub remote: String,
    /// TCP state, by RFC 9293's names.
    pub state: String,
    /// `open`, `recovery` or `loss`.
    pub phase: String,
    /// Backup, by either side's wish.
    pub backup: bool,
    /// Silent: something timed out or was overdue, and nothing was heard since.
    pub potentially_failed: bool,
    /// `fine`, or `doubtful` or `silent` with the cause in brackets.
    pub health: String,
    /// Smoothed RTT.
    pub srtt_us: Option<u64>,
    /// RTT variation.
    pub rttvar_us: u64,
    /// Smallest RTT.
    pub min_rtt_us: Option<u64>,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Delivery rate.
    pub rate_bits_per_s: Option<u64>,
    /// Payload bytes sent, repeats included.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes this subflow sent again.
    pub bytes_retransmitted: u64,
    /// Payload bytes it carried that another subflow had carried before.
    pub bytes_reinjected: u64,
    /// Payload bytes received on it that were there already.
    pub bytes_duplicate: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Tail loss probes sent.
    pub probes: u64,
    /// Congestion window reductions taken back as spurious.
    pub undone: u64,
}

/// An event: the kernel's name and what belongs to it. Absent fields do not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// CREATED, ESTABLISHED, CLOSED, ANNOUNCED, REMOVED, SF_ESTABLISHED, SF_CLOSED, SF_PRIO; ours: AGREED,
    /// FALLBACK, SF_ADDRESS_PAIR_BAD, SF_ADDRESS_PAIR_GOOD, SF_SILENT, SF_SUSPECTED, SF_RECOVERED, HOLE, PATH_FAILED,
    /// PATH_WORKS, DECISION, and LAGGED where the reader was too slow.
    pub event: String,
    /// When: microseconds since the process started its clock.
    pub at_us: u64,
    /// The connection; none, of what concerns paths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// The paths, of PATH_FAILED and PATH_WORKS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// Their state, for PATH_FAILED: as a path's `health`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// When it began, of a HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_us: Option<u64>,
    /// Which direction of the stream stood still, of a HOLE: `sent` or `received`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<String>,
    /// The subflow's slot; of a HOLE, that on which delivery went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subflow: Option<u64>,
    /// A subflow that was silent at the end of a HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<u64>,
    /// Our end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// The peer's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The address id of ANNOUNCED and REMOVED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_id: Option<u8>,
    /// The address of ANNOUNCED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Backup, of SF_ESTABLISHED and SF_PRIO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<bool>,
    /// Why, of CLOSED, SF_CLOSED, SF_ADDRESS_PAIR_BAD, SF_SILENT, FALLBACK and HOLE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The rule by which a DECISION was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// A DECISION in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What a DECISION followed from: a line from which it can be computed again (`marline::policy::Reason::parse`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Number of skipped events, for LAGGED; of skipped decisions before a DECISION.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
}

impl Event {
    /// One line of text: time, name, fields as `ip mptcp monitor` prints them.
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
        field("health", self.health.clone());
        let waited = self.since_us.map(|since| self.at_us.saturating_sub(since));
        field("waited", waited.map(|us| format!("{}.{:03}ms", us / 1_000, us % 1_000)));
        field("direction", self.direction.clone());
        field("subflow", self.subflow.map(|v| v.to_string()));
        field("silent", self.silent.map(|v| v.to_string()));
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
    fn requests_are_what_the_documentation_shows() {
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
        let newer = r#"{"ok":{"paths":[{"name":"wlan0","up":true,"colour":"red"}]}}"#;
        let Response { ok: Some(Answer::Paths(paths)), .. } =
            serde_json::from_str(newer).expect("newer")
        else {
            panic!("not an answer to paths");
        };
        assert_eq!(paths[0].name, "wlan0");
        assert!(paths[0].up && !paths[0].backup);
    }

    #[test]
    fn an_event_prints_only_what_applies() {
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
