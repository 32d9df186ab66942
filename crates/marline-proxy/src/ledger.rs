//! Ledger: usage of credentials or paths, in a small file that outlives the process.
//!
//! *Writing.* The counts since the last write are added to the current contents of the file, under a lock, and the
//! file is replaced atomically. Two processes that share a file for a while (during an upgrade, or a client and a
//! `marline run`) therefore lose none of each other's counts. A process that is killed loses its unwritten counts:
//! at most those of [`SAVE_AFTER_S`] seconds, or [`SAVE_BYTES`] and the traffic of one more second, whichever is
//! less. Nothing is written while nothing is counted.
//!
//! *Failures.* An unreadable file is moved aside with a warning. If the file cannot be written (a full disk), this
//! is logged once and writing is retried.
//!
//! *Clocks.* A machine without a battery starts in 1970, so a time before 2026 starts no month. A month that starts in
//! the future was recorded while the clock was ahead. The current month replaces it and keeps its usage.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::private_file::{self, Version};

/// Age at which unwritten counts are written, in seconds.
pub const SAVE_AFTER_S: u64 = 10;
/// Number of counted bytes at which unwritten counts are written.
pub const SAVE_BYTES: u64 = 8_000_000;
/// Earliest plausible time, 2026-01-01: a clock that shows an earlier one has not been set.
const MIN_PLAUSIBLE_TIME_S: u64 = 1_767_225_600;
/// Largest difference that is expected between clocks.
const MAX_CLOCK_AHEAD_S: u64 = 86_400;
/// Maximum number of names in a file. Beyond it, the names that were seen least recently are removed.
pub const MAX_LEDGER_NAMES: usize = 10_000;
/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;
const VERSION: u32 = 1;
const FILE_HEADER: &str = "# Data usage so far, maintained by Marline. If this file is deleted, counting restarts \
                           from zero.\n\n";

/// Usage of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Tally {
    /// Connections so far.
    pub connections: u64,
    /// Bytes sent so far, to targets or on a path.
    pub sent_bytes: u64,
    /// Bytes received so far.
    pub received_bytes: u64,
    /// Time of the last use, in seconds since 1970, or 0 if never used.
    pub seen_unix_s: u64,
    /// Start of the current month.
    pub period_start_unix_s: u64,
    /// Bytes of that month, in both directions.
    pub period_bytes: u64,
}

/// Counts to be added to a tally.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingCounts {
    /// Connections.
    pub connections: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// True if the name is in use now.
    pub seen: bool,
}

impl PendingCounts {
    const fn bytes(&self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }
}

/// A point in time, and the start of the month that contains it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since 1970.
    pub now_unix_s: u64,
    /// Start of the month.
    pub period_start_unix_s: u64,
}

impl Tally {
    /// Returns the tally at this moment, with a new month started if the old one is over.
    #[must_use]
    pub fn counts_in_period(mut self, at: Moment) -> Tally {
        self.begin_period(at);
        self
    }

    /// Starts the month of this moment, unless it has started already.
    fn begin_period(&mut self, at: Moment) {
        if at.now_unix_s < MIN_PLAUSIBLE_TIME_S {
            return;
        }
        if at.period_start_unix_s > self.period_start_unix_s {
            (self.period_start_unix_s, self.period_bytes) = (at.period_start_unix_s, 0);
        } else if self.period_start_unix_s > at.now_unix_s + MAX_CLOCK_AHEAD_S {
            self.period_start_unix_s = at.period_start_unix_s;
        }
    }

    /// Adds the counts of another tally. `now_unix_s` detects months that were started by a clock that was ahead.
    fn add(&mut self, more: &Tally, now_unix_s: u64) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b).min(i64::MAX as u64);
        sum(&mut self.connections, more.connections);
        sum(&mut self.sent_bytes, more.sent_bytes);
        sum(&mut self.received_bytes, more.received_bytes);
        self.seen_unix_s = self.seen_unix_s.max(more.seen_unix_s);
        let start = more.period_start_unix_s;
        let ahead = now_unix_s >= MIN_PLAUSIBLE_TIME_S
            && self.period_start_unix_s > now_unix_s + MAX_CLOCK_AHEAD_S;
        if start > self.period_start_unix_s {
            (self.period_start_unix_s, self.period_bytes) = (start, more.period_bytes);
        } else {
            sum(&mut self.period_bytes, more.period_bytes);
            if ahead && start > 0 {
                self.period_start_unix_s = start;
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    #[serde(flatten)]
    tally: Tally,
}

#[derive(Serialize, Deserialize)]
struct Table {
    version: u32,
    #[serde(default)]
    tally: Vec<Row>,
}

/// Tallies by name.
pub type Tallies = BTreeMap<String, Tally>;

/// Reads a file without changing it. A missing file gives no tallies.
///
/// # Errors
/// The file cannot be read, or is not a ledger.
pub fn read(path: &Path) -> anyhow::Result<Tallies> {
    let shown = path.display();
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Tallies::new()),
        meta => meta.with_context(|| format!("cannot read {shown}"))?,
    };
    if !meta.is_file() || meta.len() > MAX_FILE_BYTES {
        bail!("{shown} is not a regular file, or is too large");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("cannot parse {shown}"))?;
    if table.version != VERSION {
        bail!("{shown} has version {}, but this program writes version {VERSION}", table.version);
    }
    Ok(table.tally.into_iter().map(|row| (row.name, row.tally)).collect())
}

fn write(path: &Path, tallies: &Tallies) -> anyhow::Result<()> {
    let row = |(name, tally): (&String, &Tally)| Row { name: name.clone(), tally: tally.clone() };
    let table = Table { version: VERSION, tally: tallies.iter().map(row).collect() };
    let text = FILE_HEADER.to_owned() + &toml::to_string(&table)?;
    private_file::replace(path, text.as_bytes())
}

/// Reads a file. An unreadable file is moved aside.
fn read_or_set_aside(path: &Path) -> Tallies {
    let error = match read(path) {
        Ok(tallies) => return tallies,
        Err(error) => error,
    };
    let aside = private_file::with_suffix(path, ".bad");
    match std::fs::rename(path, &aside) {
        Ok(()) => {
            tracing::warn!("{error:#}: moved to {}; counting restarts from zero", aside.display())
        }
        Err(moved) => {
            tracing::warn!("{error:#}; cannot move the file aside ({moved}); counting from zero")
        }
    }
    Tallies::new()
}

/// Tallies with the file that stores them.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// Tallies, including unwritten counts.
    known: Tallies,
    unwritten: Tallies,
    /// Time of the oldest unwritten count.
    since_unix_s: Option<u64>,
    version: Option<Version>,
    /// True if the last write failed.
    failing: bool,
    failures: u64,
}

/// A pending write of a ledger. It may block.
#[derive(Debug)]
pub struct Writing {
    path: PathBuf,
    counted: Tallies,
    now_unix_s: u64,
}

/// Result of a write.
#[derive(Debug)]
pub struct WriteResult {
    counted: Tallies,
    now_unix_s: u64,
    result: anyhow::Result<(Tallies, Option<Version>)>,
}

impl Ledger {
    /// Opens the ledger in this file, which need not exist.
    #[must_use]
    pub fn open(path: PathBuf) -> Ledger {
        let (known, version) = (read_or_set_aside(&path), private_file::version(&path));
        Ledger {
            path,
            known,
            unwritten: Tallies::new(),
            since_unix_s: None,
            version,
            failing: false,
            failures: 0,
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of failed writes.
    #[must_use]
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// Adds counts to a name. A new name beyond [`MAX_LEDGER_NAMES`] is not counted.
    pub fn count(&mut self, name: &str, counted: PendingCounts, at: Moment) {
        if counted == PendingCounts::default() {
            return;
        }
        if !self.known.contains_key(name) && self.known.len() >= MAX_LEDGER_NAMES {
            return;
        }
        let more = Tally {
            connections: counted.connections,
            sent_bytes: counted.sent_bytes,
            received_bytes: counted.received_bytes,
            seen_unix_s: if counted.seen { at.now_unix_s } else { 0 },
            ..Tally::default()
        };
        for tallies in [&mut self.known, &mut self.unwritten] {
            let tally = tallies.entry(name.to_owned()).or_default();
            tally.begin_period(at);
            let period_start_unix_s = tally.period_start_unix_s;
            let period_bytes = counted.bytes();
            tally.add(&Tally { period_start_unix_s, period_bytes, ..more.clone() }, at.now_unix_s);
        }
        self.since_unix_s.get_or_insert(at.now_unix_s);
    }

    /// Returns the usage of a name in the month of this moment.
    #[must_use]
    pub fn tally_of(&self, name: &str, at: Moment) -> Tally {
        self.known.get(name).cloned().unwrap_or_default().counts_in_period(at)
    }

    /// Starts a write, or a read of a changed file, if one is due. With `force`, any unwritten count is due.
    pub fn begin_write(&mut self, now_unix_s: u64, force: bool) -> Option<Writing> {
        let bytes: u64 = self.unwritten.values().map(|tally| tally.period_bytes).sum();
        // A clock that was set back also makes it due.
        let old = |since: u64| now_unix_s.abs_diff(since) >= SAVE_AFTER_S;
        let due = self
            .since_unix_s
            .is_some_and(|since| old(since) || force || (bytes >= SAVE_BYTES && !self.failing));
        let changed = private_file::version(&self.path) != self.version;
        if !due && !changed {
            return None;
        }
        self.since_unix_s = None;
        let counted = std::mem::take(&mut self.unwritten);
        Some(Writing { path: self.path.clone(), counted, now_unix_s })
    }

    /// Applies the result of a write.
    pub fn finish(&mut self, written: WriteResult) {
        let WriteResult { counted, now_unix_s, result } = written;
        match result {
            Ok((tallies, version)) => {
                self.known = tallies;
                for (name, more) in &self.unwritten {
                    self.known.entry(name.clone()).or_default().add(more, now_unix_s);
                }
                self.version = version;
                if std::mem::take(&mut self.failing) {
                    tracing::info!("usage saved to {} again", self.path.display());
                }
            }
            Err(error) => {
                for (name, more) in counted {
                    self.unwritten.entry(name).or_default().add(&more, now_unix_s);
                }
                self.since_unix_s = Some(now_unix_s);
                self.version = private_file::version(&self.path);
                self.failures += 1;
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!("cannot save usage; still counting in memory: {error:#}");
                }
            }
        }
    }
}

impl Writing {
    /// Writes the counts. Blocks until the disk has finished.
    #[must_use]
    pub fn run(self) -> WriteResult {
        let Writing { path, counted, now_unix_s } = self;
        let result = merge(&path, &counted, now_unix_s);
        WriteResult { counted, now_unix_s, result }
    }
}

fn merge(
    path: &Path,
    counted: &Tallies,
    now_unix_s: u64,
) -> anyhow::Result<(Tallies, Option<Version>)> {
    if counted.is_empty() {
        return Ok((read_or_set_aside(path), private_file::version(path)));
    }
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let shown = directory.display();
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    }
    let _lock = private_file::lock(path)?;
    let mut tallies = read_or_set_aside(path);
    for (name, more) in counted {
        tallies.entry(name.clone()).or_default().add(more, now_unix_s);
    }
    while tallies.len() > MAX_LEDGER_NAMES {
        let oldest = tallies.iter().min_by_key(|(_, tally)| tally.seen_unix_s);
        let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
        tallies.remove(&oldest);
    }
    write(path, &tallies)?;
    Ok((tallies, private_file::version(path)))
}

#[cfg(test)]
mod tests;
