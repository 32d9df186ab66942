//! Messages to the page, as JSON. Names end in their units, except for bytes and counts. Counters are those of the
//! process and only grow, so a missed message only reduces the resolution.

use marline::paths::PathHealth;
use serde::{Deserialize, Serialize};

/// Description of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Description {
    /// `client`, `server` or `serve`.
    pub role: String,
    /// Version.
    pub version: String,
    /// Process id.
    pub pid: u32,
}

/// Use of a monthly quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Permitted bytes.
    pub bytes: u64,
    /// Used bytes.
    pub used_bytes: u64,
    /// Percentage beyond which the path is used sparingly.
    pub soft_percent: u8,
    /// End of the month, in seconds since 1970.
    pub until_unix_s: u64,
    /// State: `within`, `soft` (beyond that percentage) or `hard` (used up).
    pub state: String,
    /// State as text.
    pub text: String,
}

impl Quota {
    /// Returns the text that includes the state.
    #[must_use]
    pub fn text(&self) -> String {
        let more = match self.state.as_str() {
            "soft" => ": beyond the soft limit",
            "hard" => ": used up",
            _ => "",
        };
        format!("{}{more}", self.text)
    }
}

/// Current state of a path, with totals of its connections since they were opened, as shown by the dashboard and
/// `marline status --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathSummary {
    /// Name of the path: a configured name, the interface, or the address.
    pub name: String,
    /// Health.
    pub state: PathHealth,
    /// Reason why the path is not usable, or further information.
    pub reason: Option<String>,
    /// Local address.
    pub local: Option<String>,
    /// True if the path is used only while no other path works.
    pub backup: bool,
    /// True if traffic on the path costs money.
    pub metered: bool,
    /// Time since a server last answered, in milliseconds.
    pub last_rx_ms: Option<u64>,
    /// Smoothed RTT of the currently fastest subflow, in microseconds.
    pub srtt_us: Option<u64>,
    /// Fraction of the sent bytes that were retransmissions on this path. `None` if none were sent.
    pub retransmitted: Option<f64>,
    /// Payload bytes sent, including retransmissions and copies.
    pub bytes_sent: u64,
    /// Sent bytes that were retransmissions on this path.
    pub bytes_repeated: u64,
    /// Sent bytes that another path had carried before.
    pub bytes_copied: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Received bytes that were duplicates.
    pub bytes_duplicate: u64,
    /// Quota, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// Current state of a connection, excluding its destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// Number of the connection in the process.
    pub connection: u64,
    /// Reason for a fallback to plain TCP, if there was one.
    pub fallback: Option<String>,
    /// Scheduler.
    pub scheduler: String,
    /// Number of subflows, including unreachable ones.
    pub subflows: usize,
    /// Number of subflows with overdue data.
    pub unreachable: usize,
    /// Smoothed RTT of the fastest subflow, in microseconds.
    pub srtt_us: Option<u64>,
    /// Bytes written by the application.
    pub bytes_written: u64,
    /// Bytes read by the application.
    pub bytes_read: u64,
    /// Sent bytes that another path had carried before.
    pub bytes_copied: u64,
    /// Memory in buffers, in bytes.
    pub buffered: u64,
    /// Time for which delivery has been overdue, in either direction, in microseconds.
    pub waiting_us: Option<u64>,
}

/// Totals of all connections, including those that are not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of open connections.
    pub connections: usize,
    /// Number of open connections that are plain TCP.
    pub fallbacks: usize,
    /// Schedulers in use.
    pub schedulers: Vec<String>,
    /// Number of repair segments sent, from which the peer can recover lost data.
    pub repairs_sent: u64,
    /// Bytes recovered from the peer's repair segments.
    pub bytes_repaired: u64,
    /// Used memory of the budget, in bytes.
    pub memory_bytes: u64,
    /// Memory budget in bytes. `None` means no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Number of waits for memory since the process started.
    pub memory_waits: u64,
    /// Longest time for which delivery is currently overdue, in microseconds, with the connection.
    pub waiting: Option<(u64, u64)>,
}

/// Sample of the program's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Time of the sample, in microseconds on the process's clock.
    pub at_us: u64,
    /// Totals.
    pub totals: Totals,
    /// Paths.
    pub paths: Vec<PathSummary>,
    /// Connections in a detailed sample, the busiest first.
    pub connections: Option<Vec<Connection>>,
}

/// Kind of transmission for bytes of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransmissionKind {
    /// First transmission, as far as this end knows.
    New,
    /// Copy sent immediately at the scheduler's request.
    Copy,
    /// Sent again on another path because of a problem on the first one.
    Reinjection,
    /// Retransmission on the same path.
    Repeat,
    /// Received again although already present.
    Duplicate,
}

/// Transmitted bytes of a stream.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CarriedBytes {
    /// Time, in microseconds on the process's clock.
    pub at_us: u64,
    /// Slot of the subflow.
    pub subflow: u8,
    /// True if sent by this end, false if received.
    pub sent: bool,
    /// Kind of transmission.
    pub manner: TransmissionKind,
    /// Sequence number of the first byte in the stream.
    pub dsn: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Events in the streams of one connection since the last message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Places {
    /// Time of the message, in microseconds on the process's clock.
    pub at_us: u64,
    /// Transmitted bytes.
    pub carried: Vec<CarriedBytes>,
    /// Cumulative acknowledgments by the peer: time and position in the sent stream.
    pub acked: Vec<(u64, u64)>,
    /// Slots and path names of subflows that are new to the viewer.
    pub paths: Vec<(u8, String)>,
    /// Number of omitted events.
    pub missed: u64,
}

/// Event at a point in time, such as a path's change of state or a stall in delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimedEvent {
    /// Name of the event.
    pub event: String,
    /// Time of the event's end, in microseconds on the process's clock.
    pub at_us: u64,
    /// Time of the event's start, for a delivery gap.
    pub since_us: Option<u64>,
    /// Affected connection.
    pub connection: Option<u64>,
    /// `sent` or `received`, for a delivery gap.
    pub direction: Option<String>,
    /// Affected paths. For a delivery gap, the path on which delivery continued.
    pub paths: Vec<String>,
    /// Cause.
    pub cause: Option<String>,
    /// Action of the policy, if it reported one.
    pub policy: Option<String>,
    /// Number of similar events that were omitted.
    pub more: u64,
}
