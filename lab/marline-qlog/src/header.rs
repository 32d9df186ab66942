//! Header of a trace: its format, its connection, and the origin of its times.

use serde_json::json;

/// End at which the events were observed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Vantage {
    /// The end that opened the connection.
    Client,
    /// The end that accepted the connection.
    Server,
}

impl Vantage {
    /// Name: `client` or `server`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Vantage::Client => "client",
            Vantage::Server => "server",
        }
    }
}

/// Metadata of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The program (`marline client`), or the variant of an experiment.
    pub title: String,
    /// End at which the events were observed.
    pub vantage: Vantage,
    /// Connection number, as in `marline monitor`. The two ends' traces of a connection have different numbers.
    pub connection: u64,
    /// Time of day at the start of the trace (RFC 3339); `None` for virtual time, which starts at zero.
    pub wall_clock: Option<String>,
}

impl Header {
    /// URI of the format: one trace, written sequentially.
    pub const FILE_SCHEMA: &str = "urn:ietf:params:qlog:file:sequential";
    /// URI of our event schema. It must not look like a registered name (section 8.1 of the main schema), so it is a
    /// URL with month and year.
    pub const EVENT_SCHEMA: &str = "https://github.com/marline-net/marline/112026/mptcp";

    /// The first record. `qlog_version` and `qlog_format` are from drafts before 10. Readers of that time, such as
    /// qvis, use them to identify a file, and later ones ignore unknown fields.
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
