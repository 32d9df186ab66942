//! Ledger: what credentials or paths have used, in a small file that outlives the process.
//!
//! *Writing.* What was counted since the last time is added to what the file says then, under a lock, and the file
//! is replaced at once: so two processes that share it for a while (an upgrade; a client and a `marline run`
//! beside it) lose nothing of each other's, and who is killed loses what was not written yet: what was
//! counted in [`SAVE_AFTER_S`] seconds, or [`SAVE_BYTES`] and what one second more brings, whichever is less.
//! Nothing is written while nothing is counted.
//!
//! *Trouble.* A file that cannot be read is moved aside with a warning. One that cannot be written (a full disk) is
//! told of once, and tried again.
//!
//! *Clocks.* A machine without a battery begins in 1970: a time before 2026 begins no month. A month that
//! begins in the future was begun by a clock that was ahead: it is begun anew, and what it has used stays.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::private_file::{self, Version};

/// What was counted is written after so many seconds ...
pub const SAVE_AFTER_S: u64 = 10;
/// ... or when it is so many bytes.
pub const SAVE_BYTES: u64 = 8_000_000;
/// 2026-01-01: no clock that is set shows less.
const PLAUSIBLE_S: u64 = 1_767_225_600;
/// Clocks differ by less.
const AHEAD_S: u64 = 86_400;
/// Names in a file; beyond, those that were not seen for longest go.
pub const MOST_NAMES: usize = 10_000;
/// Largest file that is read.
const LONGEST_FILE: u64 = 8 << 20;
const VERSION: u32 = 1;
const HEAD: &str =
    "# What was used so far; kept by Marline. Without this file, counting starts again.\n\n";

/// What one name has used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Tally {
    /// Connections so far.
    pub connections: u64,
    /// Bytes sent so far: to targets, or by a path.
    pub sent_bytes: u64,
    /// Bytes received so far.
    pub received_bytes: u64,
    /// When it was last seen, in seconds since 1970; 0: never.
    pub seen_unix_s: u64,
    /// Begin of the month that is counted.
    pub period_start_unix_s: u64,
    /// Bytes of that month, both ways.
    pub period_bytes: u64,
}

/// What was counted, to be added.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Connections.
    pub connections: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// It was seen now.
    pub seen: bool,
}

impl Counted {
    const fn bytes(&self) -> u64 {
        self.sent_bytes.saturating_add(self.received_bytes)
    }
}

/// A moment, and the begin of the month that it is in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since 1970.
    pub now_unix_s: u64,
    /// Begin of the month.
    pub period_start_unix_s: u64,
}

impl Tally {
    /// The same as of this moment: of a month that is over, nothing is counted.
    #[must_use]
    pub fn in_period(mut self, at: Moment) -> Tally {
        self.begin_period(at);
        self
    }

    /// Begins the month of this moment, unless it has begun.
    fn begin_period(&mut self, at: Moment) {
        if at.now_unix_s < PLAUSIBLE_S {
            return;
        }
        if at.period_start_unix_s > self.period_start_unix_s {
            (self.period_start_unix_s, self.period_bytes) = (at.period_start_unix_s, 0);
        } else if self.period_start_unix_s > at.now_unix_s + AHEAD_S {
            self.period_start_unix_s = at.period_start_unix_s;
        }
    }

    /// Adds what another has counted in the meantime. `now_unix_s`: for the months of clocks that were ahead.
    fn add(&mut self, more: &Tally, now_unix_s: u64) {
        let sum = |a: &mut u64, b: u64| *a = a.saturating_add(b).min(i64::MAX as u64);
        sum(&mut self.connections, more.connections);
        sum(&mut self.sent_bytes, more.sent_bytes);
        sum(&mut self.received_bytes, more.received_bytes);
        self.seen_unix_s = self.seen_unix_s.max(more.seen_unix_s);
        let start = more.period_start_unix_s;
        let ahead = now_unix_s >= PLAUSIBLE_S && self.period_start_unix_s > now_unix_s + AHEAD_S;
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

/// Reads a file, without changing anything; there is none at first.
///
/// # Errors
/// It cannot be read, or is no ledger.
pub fn read(path: &Path) -> anyhow::Result<Tallies> {
    let shown = path.display();
    let meta = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Tallies::new()),
        meta => meta.with_context(|| format!("cannot read {shown}"))?,
    };
    if !meta.is_file() || meta.len() > LONGEST_FILE {
        bail!("{shown} is not a regular file, or is too large");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("in {shown}"))?;
    if table.version != VERSION {
        bail!("{shown} is of version {}, this program writes {VERSION}", table.version);
    }
    Ok(table.tally.into_iter().map(|row| (row.name, row.tally)).collect())
}

fn write(path: &Path, tallies: &Tallies) -> anyhow::Result<()> {
    let row = |(name, tally): (&String, &Tally)| Row { name: name.clone(), tally: tally.clone() };
    let table = Table { version: VERSION, tally: tallies.iter().map(row).collect() };
    let text = HEAD.to_owned() + &toml::to_string(&table)?;
    private_file::replace(path, text.as_bytes())
}

/// Reads a file, or moves what is none aside.
fn read_or_move(path: &Path) -> Tallies {
    let error = match read(path) {
        Ok(tallies) => return tallies,
        Err(error) => error,
    };
    let aside = private_file::with_suffix(path, ".bad");
    match std::fs::rename(path, &aside) {
        Ok(()) => tracing::warn!("{error:#}: moved to {}, counting starts again", aside.display()),
        Err(moved) => tracing::warn!("{error:#}; nor can it be moved aside ({moved})"),
    }
    Tallies::new()
}

/// Tallies that are counted up, and their file.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// With what is not written yet.
    known: Tallies,
    unwritten: Tallies,
    /// Since when something is unwritten.
    since_unix_s: Option<u64>,
    version: Option<Version>,
    /// Writing failed the last time.
    failing: bool,
    failures: u64,
}

/// A writing of a ledger: it may take a while.
#[derive(Debug)]
pub struct Writing {
    path: PathBuf,
    counted: Tallies,
    now_unix_s: u64,
}

/// What came of a writing.
#[derive(Debug)]
pub struct Written {
    counted: Tallies,
    now_unix_s: u64,
    result: anyhow::Result<(Tallies, Option<Version>)>,
}

impl Ledger {
    /// That in this file; it need not be there.
    #[must_use]
    pub fn open(path: PathBuf) -> Ledger {
        let (known, version) = (read_or_move(&path), private_file::version(&path));
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How often it could not be written.
    #[must_use]
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// Counts for a name. Beyond [`MOST_NAMES`], further ones are not counted.
    pub fn count(&mut self, name: &str, counted: Counted, at: Moment) {
        if counted == Counted::default() {
            return;
        }
        if !self.known.contains_key(name) && self.known.len() >= MOST_NAMES {
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

    /// What a name has used, in the month of this moment.
    #[must_use]
    pub fn tally(&self, name: &str, at: Moment) -> Tally {
        self.known.get(name).cloned().unwrap_or_default().in_period(at)
    }

    /// Begins to write, or to read again, if that is due: `force`, as soon as there is anything.
    pub fn begin(&mut self, now_unix_s: u64, force: bool) -> Option<Writing> {
        let bytes: u64 = self.unwritten.values().map(|tally| tally.period_bytes).sum();
        // A clock that was set back makes it due as well.
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

    /// Takes over what came of it.
    pub fn finish(&mut self, written: Written) {
        let Written { counted, now_unix_s, result } = written;
        match result {
            Ok((tallies, version)) => {
                self.known = tallies;
                for (name, more) in &self.unwritten {
                    self.known.entry(name.clone()).or_default().add(more, now_unix_s);
                }
                self.version = version;
                if std::mem::take(&mut self.failing) {
                    tracing::info!("writing {} again", self.path.display());
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
    /// Does it. Blocks as long as the disk does.
    #[must_use]
    pub fn run(self) -> Written {
        let Writing { path, counted, now_unix_s } = self;
        let result = merge(&path, &counted, now_unix_s);
        Written { counted, now_unix_s, result }
    }
}

fn merge(
    path: &Path,
    counted: &Tallies,
    now_unix_s: u64,
) -> anyhow::Result<(Tallies, Option<Version>)> {
    if counted.is_empty() {
        return Ok((read_or_move(path), private_file::version(path)));
    }
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let shown = directory.display();
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    }
    let _lock = private_file::lock(path)?;
    let mut tallies = read_or_move(path);
    for (name, more) in counted {
        tallies.entry(name.clone()).or_default().add(more, now_unix_s);
    }
    while tallies.len() > MOST_NAMES {
        let oldest = tallies.iter().min_by_key(|(_, tally)| tally.seen_unix_s);
        let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
        tallies.remove(&oldest);
    }
    write(path, &tallies)?;
    Ok((tallies, private_file::version(path)))
}

#[cfg(test)]
mod tests;
