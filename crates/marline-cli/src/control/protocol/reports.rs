//! Reports on settings that changed, and on where a client's streams lead.

use serde::{Deserialize, Serialize};

/// What became of settings that changed: their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reloaded {
    /// Those in force for all that exists.
    pub at_once: Vec<String>,
    /// Those in force for connections, sessions and requests that begin from now on.
    pub for_new: Vec<String>,
    /// Those that other commands read when they are run.
    pub elsewhere: Vec<String>,
    /// Those that are not in force before a restart.
    pub restart: Vec<PendingSetting>,
}

/// A setting whose change needs a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PendingSetting {
    /// Its name.
    pub setting: String,
    /// The value in force; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force: Option<String>,
    /// The value in the configuration; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
}

impl PendingSetting {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        let (in_force, wanted) = (shown(&self.in_force), shown(&self.wanted));
        format!("{} (in force: {in_force}, in the file: {wanted})", self.setting)
    }
}

/// A stream that is open at a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenTarget {
    /// Where it leads: `HOST:PORT`.
    pub target: String,
    /// The number of its connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// For how long it has been open, seconds.
    pub age_s: u64,
    /// Bytes to the target.
    pub to_target: u64,
    /// Bytes from it.
    pub from_target: u64,
}

/// What keeps a client from its server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// `credential`, `key` or `protocol`: the server turns this client away, and no path is usable; `busy` or
    /// `unreached`: the latest attempt failed.
    pub kind: String,
    /// What happened.
    pub text: String,
    /// What helps.
    pub help: String,
}
