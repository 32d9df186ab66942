//! Credentials of the server's clients: one per client, by name, stored as the SHA-256 of its
//! token.
//!
//! The file is TOML, has mode 0600, and is managed by the program (`marline server credential add | list |
//! revoke`). A running server reloads it when it changes: within a second, a new client can connect and a revoked
//! one is disconnected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::private_file;
use crate::secret::{Digest, Secret};

/// Maximum number of credentials in a file.
pub const MAX_CREDENTIALS: usize = 10_000;
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
const FILE_HEADER: &str =
    "# Clients of this Marline server; maintained by `marline server credential`.\n\n";

/// One client.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Unique name of letters, digits, `-`, `_` and `.`.
    pub name: Arc<str>,
    /// SHA-256 of the token.
    pub token_sha256: Digest,
    /// Time of creation, in seconds since 1970.
    pub created_unix_s: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    name: String,
    token_sha256: String,
    created_unix_s: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    credential: Vec<Row>,
}

/// All clients.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    list: Vec<Credential>,
    suspended: Arc<SuspensionReasons>,
}

/// Reasons for suspension, by name of the suspended client.
pub type SuspensionReasons = BTreeMap<Arc<str>, Arc<str>>;

/// The currently suspended clients. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Suspensions(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    now: Mutex<Arc<SuspensionReasons>>,
    changed: Notify,
}

impl Suspensions {
    /// Replaces the set of suspended clients.
    pub fn set(&self, suspended: SuspensionReasons) {
        let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
        if **now != suspended {
            *now = Arc::new(suspended);
            self.0.changed.notify_one();
        }
    }

    /// Returns the currently suspended clients.
    #[must_use]
    pub fn now(&self) -> Arc<SuspensionReasons> {
        Arc::clone(&self.0.now.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Credentials {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The text is invalid. The error contains the position.
    pub fn parse(text: &str) -> anyhow::Result<Credentials> {
        let table: Table = toml::from_str(text)?;
        let mut credentials = Credentials::default();
        for row in table.credential {
            let token_sha256 = Digest::from_hex(&row.token_sha256).with_context(|| {
                format!("credential {:?}: token-sha256 is not 64 hexadecimal digits", row.name)
            })?;
            credentials.insert(&row.name, token_sha256, row.created_unix_s)?;
        }
        Ok(credentials)
    }

    fn to_text(&self) -> anyhow::Result<String> {
        let row = |c: &Credential| Row {
            name: c.name.to_string(),
            token_sha256: c.token_sha256.to_hex(),
            created_unix_s: c.created_unix_s,
        };
        let table = Table { credential: self.list.iter().map(row).collect() };
        Ok(FILE_HEADER.to_owned() + &toml::to_string(&table)?)
    }

    fn insert(&mut self, name: &str, digest: Digest, created_unix_s: u64) -> anyhow::Result<()> {
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(fine) {
            bail!("{name:?} is not a valid name: 1 to 64 letters, digits, '-', '_' or '.'");
        }
        if self.list.iter().any(|c| &*c.name == name) {
            bail!("the credential {name:?} already exists");
        }
        if self.list.len() >= MAX_CREDENTIALS {
            bail!("credential limit reached ({MAX_CREDENTIALS})");
        }
        let name = Arc::from(name);
        self.list.push(Credential { name, token_sha256: digest, created_unix_s });
        Ok(())
    }

    /// Creates a client and its token. The token is only returned, not stored.
    ///
    /// # Errors
    /// The name is invalid or exists already, or there is no randomness.
    pub fn add(&mut self, name: &str) -> anyhow::Result<Secret> {
        let token = Secret::random()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.insert(name, token.digest(), now.as_secs())?;
        Ok(token)
    }

    /// Removes a client.
    ///
    /// # Errors
    /// No client has this name.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<()> {
        let before = self.list.len();
        self.list.retain(|c| &*c.name != name);
        if self.list.len() == before {
            bail!("no credential {name:?}");
        }
        Ok(())
    }

    /// Finds the credential of this token. All credentials are compared, each in constant time.
    #[must_use]
    pub fn find(&self, digest: &Digest) -> Option<&Credential> {
        // No early return: the time must not reveal the matching credential.
        let mut found = None;
        for credential in &self.list {
            if credential.token_sha256.matches(digest) {
                found = Some(credential);
            }
        }
        found
    }

    /// Returns these credentials with some clients suspended. A suspended client is known but not served.
    #[must_use]
    pub fn with_suspended(self, suspended: Arc<SuspensionReasons>) -> Credentials {
        Credentials { suspended, ..self }
    }

    /// Returns the reason why this client is suspended, if it is.
    #[must_use]
    pub fn suspension(&self, name: &str) -> Option<&Arc<str>> {
        self.suspended.get(name)
    }

    /// Returns all credentials, in order of creation.
    #[must_use]
    pub fn list(&self) -> &[Credential] {
        &self.list
    }
}

/// The file that holds the credentials.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// Creates a store that uses this file.
    #[must_use]
    pub fn in_file(path: PathBuf) -> Store {
        Store { path }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates an empty file.
    ///
    /// # Errors
    /// The file exists already or cannot be written.
    pub fn create(&self) -> anyhow::Result<()> {
        private_file::create(&self.path, FILE_HEADER.as_bytes())
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file does not exist, is readable by others, or is invalid.
    pub fn load(&self) -> anyhow::Result<Credentials> {
        let shown = self.path.display();
        private_file::check_mode(&self.path)?;
        let text =
            std::fs::read_to_string(&self.path).with_context(|| format!("cannot read {shown}"))?;
        Credentials::parse(&text).with_context(|| format!("cannot parse {shown}"))
    }

    /// Changes the file. Concurrent changes wait for each other.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if `change` fails.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Credentials) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let _lock = private_file::lock(&self.path)?;
        let mut credentials = self.load()?;
        let result = change(&mut credentials)?;
        private_file::replace(&self.path, credentials.to_text()?.as_bytes())?;
        Ok(result)
    }

    /// Returns the credentials, updated until all receivers are dropped. The file is read again when it changes and
    /// when `again` is notified. If the file becomes invalid, the error is logged and the last valid version stays in
    /// force. Suspended clients follow `suspensions`.
    ///
    /// # Errors
    /// Fails if the current file cannot be [loaded](Self::load).
    pub fn watch_file(
        self,
        again: Arc<Notify>,
        suspensions: Suspensions,
    ) -> anyhow::Result<watch::Receiver<Arc<Credentials>>> {
        let mut version = private_file::version(&self.path);
        let changed = suspensions.clone();
        let with_suspended =
            move |credentials: Credentials| Arc::new(credentials.with_suspended(suspensions.now()));
        let (sender, receiver) = watch::channel(with_suspended(self.load()?));
        tokio::spawn(async move {
            while !sender.is_closed() {
                let told = tokio::select! {
                    () = again.notified() => true,
                    () = tokio::time::sleep(RELOAD_INTERVAL) => false,
                    () = changed.0.changed.notified() => {
                        let known = sender.borrow().as_ref().clone();
                        sender.send_replace(with_suspended(known));
                        continue;
                    }
                };
                let now = private_file::version(&self.path);
                if now == version && !told {
                    continue;
                }
                version = now;
                match self.load() {
                    Ok(credentials) => {
                        tracing::info!(clients = credentials.list.len(), "credentials reloaded");
                        sender.send_replace(with_suspended(credentials));
                    }
                    Err(error) => tracing::error!(
                        "cannot reload credentials; keeping current ones: {error:#}"
                    ),
                }
            }
        });
        Ok(receiver)
    }
}

#[cfg(test)]
mod tests;
