//! Messages to the page, as JSON. Units are last in a name; bytes and counts have none. Counters are those of the
//! process and only grow, so that whoever misses a message loses nothing but resolution.

use marline::PathHealth;
use serde::{Deserialize, Serialize};

/// The program that is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct About {
    /// `client`, `server` or `serve`.
    pub role: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// How much of a quota is used this month.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// Bytes that may be used.
    pub bytes: u64,
    /// Bytes that are.
    pub used_bytes: u64,
    /// Share beyond which it is spared, percent.
    pub soft_percent: u8,
    /// End of the month, in seconds since 1970.
    pub until_unix_s: u64,
    /// `within`, `soft` (beyond that share) or `hard` (used up).
    pub standing: String,
    /// The same in words.
    pub text: String,
}

impl Quota {
    /// In words, with what follows from it.
    #[must_use]
    pub fn words(&self) -> String {
        let more = match self.standing.as_str() {
            "soft" => ": beyond the soft limit",
            "hard" => ": used up",
            _ => "",
        };
        format!("{}{more}", self.text)
    }
}

/// One path now, with what its connections did there since they were opened: as the dashboard and
/// `marline status --json` have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathSummary {
    /// Its name: the interface's, the address, or what it was given.
    pub name: String,
    /// What it is good for.
    pub state: PathHealth,
    /// Why it is not usable, or what it is besides.
    pub reason: Option<String>,
    /// Our address.
    pub local: Option<String>,
    /// Used only while no other works.
    pub backup: bool,
    /// Bytes on it cost money.
    pub metered: bool,
    /// Milliseconds since a server's last answer.
    pub heard_ms: Option<u64>,
    /// Smoothed round trip of the subflow that is fastest now, microseconds.
    pub srtt_us: Option<u64>,
    /// Share of the bytes sent that were sent again on this path; `None`: none was sent.
    pub retransmitted: Option<f64>,
    /// Payload bytes sent, repeats and copies included.
    pub bytes_sent: u64,
    /// Of those: sent again on this path.
    pub bytes_repeated: u64,
    /// Of those: another path had carried them before.
    pub bytes_copied: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Of those: they were there already.
    pub bytes_duplicate: u64,
    /// How much of its quota is used, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// One connection now. Where it leads is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// Its number in the process.
    pub connection: u64,
    /// Why it is plain TCP, if it is.
    pub fallback: Option<String>,
    /// The scheduler.
    pub scheduler: String,
    /// Subflows, and those of them that are silent.
    pub subflows: usize,
    /// Subflows on which something is overdue.
    pub silent: usize,
    /// Smoothed round trip of the fastest subflow, microseconds.
    pub srtt_us: Option<u64>,
    /// Bytes the application wrote.
    pub bytes_written: u64,
    /// Bytes the application read.
    pub bytes_read: u64,
    /// Bytes that another path had carried before.
    pub bytes_copied: u64,
    /// Bytes of memory in buffers.
    pub buffered: u64,
    /// Microseconds for which delivery has been due, in either direction.
    pub waiting_us: Option<u64>,
}

/// Sums over all connections, those that are not listed included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Open connections.
    pub connections: usize,
    /// Of them: plain TCP.
    pub fallbacks: usize,
    /// Schedulers in use.
    pub schedulers: Vec<String>,
    /// Segments of sums sent, from which the peer computes what is lost.
    pub repairs_sent: u64,
    /// Bytes computed from the peer's.
    pub bytes_repaired: u64,
    /// Bytes held of the memory budget.
    pub memory_bytes: u64,
    /// Bytes of that budget; `None`: it has no limit.
    pub memory_limit_bytes: Option<u64>,
    /// How often somebody had to wait for memory, since the start.
    pub memory_waits: u64,
    /// Longest time for which delivery has been due now, microseconds, and the connection.
    pub waiting: Option<(u64, u64)>,
}

/// A look at the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When: microseconds on the process' clock.
    pub at_us: u64,
    /// Sums.
    pub totals: Totals,
    /// The paths.
    pub paths: Vec<PathSummary>,
    /// The busiest connections first, in a detailed look.
    pub connections: Option<Vec<Connection>>,
}

/// In which manner bytes of a stream were carried.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// For the first time, as far as this end knows.
    New,
    /// Twice at once, since the scheduler wanted it.
    Copy,
    /// On another path, since the first was in trouble.
    Reinjection,
    /// Again on the same path.
    Repeat,
    /// Received, and here before.
    Duplicate,
}

/// Bytes of a stream that were carried.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Carried {
    /// When, microseconds on the process' clock.
    pub at_us: u64,
    /// Slot of the subflow.
    pub subflow: u8,
    /// Sent by this end, or received.
    pub sent: bool,
    /// In which manner.
    pub manner: Manner,
    /// Place of the first in the stream.
    pub dsn: u64,
    /// How many.
    pub bytes: u64,
}

/// What happened to the streams of one connection since the last message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Places {
    /// When it is told, microseconds on the process' clock.
    pub at_us: u64,
    /// What was carried.
    pub carried: Vec<Carried>,
    /// When the peer had everything before which place, of what this end sent.
    pub acked: Vec<(u64, u64)>,
    /// Names of the paths of subflows that are new to the viewer, by slot.
    pub paths: Vec<(u8, String)>,
    /// Of so many events nothing is told.
    pub missed: u64,
}

/// Something that happened at a moment: a path's state changed, delivery stood still.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Happening {
    /// The event's name.
    pub event: String,
    /// When it was over, microseconds on the process' clock.
    pub at_us: u64,
    /// When it began, of a hole.
    pub since_us: Option<u64>,
    /// The connection.
    pub connection: Option<u64>,
    /// `sent` or `received`, of a hole.
    pub direction: Option<String>,
    /// The paths that it is about; of a hole, the one on which delivery went on.
    pub paths: Vec<String>,
    /// Why.
    pub cause: Option<String>,
    /// What the policy did, if it said so.
    pub policy: Option<String>,
    /// Of so many more like it nothing is told.
    pub more: u64,
}
