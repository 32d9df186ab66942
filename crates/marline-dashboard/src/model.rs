//! Messages to the page, as JSON. Units are last in a name; bytes and counts have none. Counters are those of the
//! process and only grow, so that whoever misses a message loses nothing but resolution.

use serde::Serialize;

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

/// What a path is good for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// A server answers over it.
    Usable,
    /// A server answers over it, but answers are overdue or its signal fades.
    Degraded,
    /// It leads to no server that serves this client.
    Unreachable,
    /// No server has been asked over it yet.
    #[default]
    Untried,
}

impl PathState {
    /// All of them.
    pub const ALL: [PathState; 4] =
        [PathState::Usable, PathState::Degraded, PathState::Unreachable, PathState::Untried];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            PathState::Usable => "usable",
            PathState::Degraded => "degraded",
            PathState::Unreachable => "unreachable",
            PathState::Untried => "untried",
        }
    }

    /// The state that has this word; a word that is not known says nothing.
    #[must_use]
    pub fn of_word(word: &str) -> PathState {
        Self::ALL.into_iter().find(|state| state.word() == word).unwrap_or_default()
    }

    /// Whether data gets through.
    #[must_use]
    pub const fn works(self) -> bool {
        matches!(self, PathState::Usable | PathState::Degraded)
    }
}

/// One path now, with what its connections did there since they were opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathSummary {
    /// Its name: the interface's, the address, or what it was given.
    pub name: String,
    /// What it is good for.
    pub state: PathState,
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
    /// What its radio does and drew, if it is known to have one.
    pub radio: Option<Radio>,
}

/// A radio.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Radio {
    /// `lte`, `umts` or `wifi`.
    pub kind: String,
    /// `idle`, `promotion`, `transfer` or `tail`.
    pub state: String,
    /// Caused by traffic, joules.
    pub traffic_j: f64,
    /// While idle, joules.
    pub idle_j: f64,
    /// Times it was woken.
    pub promotions: u64,
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
