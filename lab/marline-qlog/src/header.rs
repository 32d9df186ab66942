//! Header of a trace: which form it has, whose it is, and what its times count from.

use serde_json::json;

/// Where the events were seen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Vantage {
    /// At the end that opened the connection.
    Client,
    /// At the end that accepted it.
    Server,
}

impl Vantage {
    /// Its name: `client` or `server`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Vantage::Client => "client",
            Vantage::Server => "server",
        }
    }
}

/// What a trace says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What runs: `marline client`, or the variant of an experiment.
    pub title: String,
    /// Where the events were seen.
    pub vantage: Vantage,
    /// The connection, by the number that `marline monitor` shows: traces of one connection at both ends have different
    /// ones.
    pub connection: u64,
    /// The time of day when the trace began, as RFC 3339 has it; `None`: virtual time, of which zero is zero.
    pub wall_clock: Option<String>,
}

impl Header {
    /// URI of the form: one trace, written from front to back.
    pub const FILE_SCHEMA: &str = "urn:ietf:params:qlog:file:sequential";
    /// URI of our events. A name that is not registered must not look like a registered one (section 8.1 of the main
    /// schema), so it is a URL, with month and year.
    pub const EVENT_SCHEMA: &str = "https://github.com/marline-net/marline/112026/mptcp";

    /// The first record. `qlog_version` and `qlog_format` are of drafts before 10: readers of those times, qvis among
    /// them, know a file by them, and later ones ignore what they do not know.
    pub(crate) fn record(&self) -> String {
        let mut reference = json!({ "clock_type": "monotonic", "epoch": "unknown" });
        if let Some(wall_clock) = &self.wall_clock {
            reference["wall_clock_time"] = json!(wall_clock);
        }
        let header = json!({
            "file_schema": Self::FILE_SCHEMA,
            "serialization_format": "application/qlog+json-seq",
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "title": self.title,
            "trace": {
                "title": self.title,
                "vantage_point": { "name": "marline", "type": self.vantage.name() },
                "event_schemas": [Self::EVENT_SCHEMA],
                "common_fields": {
                    "group_id": self.connection.to_string(),
                    "time_format": "relative_to_epoch",
                    "reference_time": reference,
                    "protocol_types": ["MPTCP"],
                },
            },
        });
        format!("\x1e{header}\n")
    }
}
