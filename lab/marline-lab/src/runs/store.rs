//! Records of runs on disk.

use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::{Job, Record, make_directory};
use crate::keep;

/// A record is written in a moment: the partial file of a process that lives is never as old as this, not even by the
/// clock of another machine.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Where runs are kept, each in a file named by what made it.
#[derive(Debug)]
pub struct Store {
    place: PathBuf,
    program: String,
    kernel: String,
    fresh: bool,
}

impl Store {
    /// Runs in this directory; `fresh`: what is there of earlier is not looked at. Files that processes left half
    /// written when they were killed, a day ago or earlier, are removed.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(place: &Path, fresh: bool) -> anyhow::Result<Store> {
        let store = Store::by(place, fresh, keep::program()?)?;
        store.remove_abandoned();
        Ok(store)
    }

    /// The same for what is not a program of its own, as a module of an interpreter is not: what tells this one from
    /// one that was built of other sources ([`keep::file`]). What others left half written is not looked for: a
    /// sweep opens its store for each of its tasks, and looks through a million runs once
    /// ([`Store::remove_abandoned`]).
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open_as(place: &Path, fresh: bool, program: String) -> anyhow::Result<Store> {
        Store::by(place, fresh, program)
    }

    fn by(place: &Path, fresh: bool, program: String) -> anyhow::Result<Store> {
        make_directory(place)?;
        Ok(Store { place: place.to_owned(), program, kernel: keep::kernel_release(), fresh })
    }

    /// Its directory.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The name of a run: the same for the same, another for anything else.
    #[must_use]
    pub fn key(&self, job: &Job) -> String {
        let Job { experiment, lane, seed, .. } = job;
        // The kernel's results hold for any build of this program.
        let by = if lane.stack.is_marline() { &self.program } else { &self.kernel };
        let all = format!("{:?}", (experiment, lane, seed, by));
        let mut key = String::new();
        for byte in &Sha256::digest(all.as_bytes())[..12] {
            // Writing to a String cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    fn file(&self, job: &Job) -> PathBuf {
        self.place.join(format!("{}.json", self.key(job)))
    }

    /// What a run showed, if it was made and did not fail.
    #[must_use]
    pub fn read(&self, job: &Job) -> Option<Record> {
        if self.fresh {
            return None;
        }
        self.last(job).filter(|record| record.error.is_none())
    }

    /// What a run showed when it was last made, whether it failed or not.
    #[must_use]
    pub fn last(&self, job: &Job) -> Option<Record> {
        let text = fs::read_to_string(self.file(job)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Keeps it. A file is there whole or not at all, also where several processes, on several machines, make the
    /// same run at the same time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, job: &Job, record: &Record) -> anyhow::Result<()> {
        let file = self.file(job);
        // A number that no other process draws: the standard library seeds each of these differently.
        let number = RandomState::new().hash_one(std::process::id());
        let partial = file.with_extension(format!("{number:016x}.partial"));
        let kept = || {
            fs::write(&partial, serde_json::to_string(record)?)?;
            anyhow::Ok(fs::rename(&partial, &file)?)
        };
        kept().with_context(|| file.display().to_string())
    }

    /// Removes what processes left half written when they were killed, a day ago or earlier. One that cannot be removed
    /// does no harm but take room.
    pub fn remove_abandoned(&self) {
        for entry in fs::read_dir(&self.place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if Path::new(&name).extension().is_none_or(|extension| extension != "partial") {
                continue;
            }
            let written = entry.metadata().and_then(|file| file.modified());
            // A time in the future has no age: whose clock is right is not known.
            let age = written.ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > ABANDONED_AFTER) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
