//! Reports on changed settings and on targets of a client's streams.

use serde::{Deserialize, Serialize};

/// Result of a reload: the names of the changed settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// Settings that are already in force.
    pub at_once: Vec<String>,
    /// Settings applied to new connections, sessions and requests.
    pub for_new: Vec<String>,
    /// Settings that other commands read when they run.
    pub elsewhere: Vec<String>,
    /// Settings that need a restart.
    pub restart: Vec<PendingSetting>,
}

/// A setting whose change needs a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingSetting {
    /// Name of the setting.
    pub setting: String,
    /// Value in force. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<String>,
    /// Value in the configuration. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

impl PendingSetting {
    /// Returns the setting and its two values, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (in_force, wanted) = (shown(&self.in_force), shown(&self.wanted));
        format!("{} (running: {in_force}, configured: {wanted})", self.setting)
    }
}

/// An open stream of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenTarget {
    /// Target of the stream: `HOST:PORT`.
    pub target: String,
    /// Number of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Time since the stream was opened, in seconds.
    pub age_s: u64,
    /// Bytes to the target.
    pub to_target: u64,
    /// Bytes from the target.
    pub from_target: u64,
}

/// Problem between a client and its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// `credential`, `key` or `protocol`: the server rejects this client, and no path is usable. `busy` or
    /// `unreached`: the latest attempt failed.
    pub kind: String,
    /// Description of the failure.
    pub text: String,
    /// Advice for the user.
    pub help: String,
}
