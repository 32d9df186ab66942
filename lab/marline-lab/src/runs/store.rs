//! Records of runs on disk.

use std::fmt::Write as _;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::{Job, Record, create_directory};
use crate::provenance;

/// Age at which partial files are removed. Records are written quickly, so the partial file of a living process is
/// never this old, even by the clock of another machine.
const PARTIAL_FILE_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Directory of runs, each in a file named by the hash of its inputs.
#[derive(Debug)]
pub struct Store {
    place: PathBuf,
    program: String,
    kernel: String,
    reruns_all: bool,
}

impl Store {
    /// Opens this directory of runs. `reruns_all` ignores the stored runs. Partial files of killed processes are
    /// removed after a day.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn open(place: &Path, fresh: bool) -> anyhow::Result<Store> {
        let store = Store::open_for_program(place, fresh, provenance::program_hash()?)?;
        store.remove_abandoned();
        Ok(store)
    }

    /// Like [`open`](Self::open), for a module of an interpreter instead of a program: `program` is the hash of the
    /// module's file ([`provenance::file_hash`]). Partial files of other processes are not removed, because a sweep
    /// opens its store for each task but removes them only once ([`Store::remove_abandoned`]).
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn open_for_build(place: &Path, fresh: bool, program: String) -> anyhow::Result<Store> {
        Store::open_for_program(place, fresh, program)
    }

    fn open_for_program(place: &Path, fresh: bool, program: String) -> anyhow::Result<Store> {
        create_directory(place)?;
        Ok(Store {
            place: place.to_owned(),
            program,
            kernel: provenance::kernel_release(),
            reruns_all: fresh,
        })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.place
    }

    /// The name of a run: a hash of its inputs.
    #[must_use]
    pub fn key(&self, job: &Job) -> String {
        let Job { experiment, lane, seed, .. } = job;
        // Results of the kernel's stacks are valid for any build of this program.
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

    /// The stored record of a run, if the run did not fail.
    #[must_use]
    pub fn read(&self, job: &Job) -> Option<Record> {
        if self.reruns_all {
            return None;
        }
        self.last(job).filter(|record| record.error.is_none())
    }

    /// The stored record of a run, including a failed one.
    #[must_use]
    pub fn last(&self, job: &Job) -> Option<Record> {
        let text = fs::read_to_string(self.file(job)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Stores a record. Files are written atomically, even if several machines make the same run at the same time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, job: &Job, record: &Record) -> anyhow::Result<()> {
        let file = self.file(job);
        // A random number: the standard library seeds each of these hashers differently.
        let number = RandomState::new().hash_one(std::process::id());
        let partial = file.with_extension(format!("{number:016x}.partial"));
        let kept = || {
            fs::write(&partial, serde_json::to_string(record)?)?;
            anyhow::Ok(fs::rename(&partial, &file)?)
        };
        kept().with_context(|| file.display().to_string())
    }

    /// Removes partial files of killed processes that are at least a day old. A file that cannot be removed only takes
    /// up space.
    pub fn remove_abandoned(&self) {
        for entry in fs::read_dir(&self.place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if Path::new(&name).extension().is_none_or(|extension| extension != "partial") {
                continue;
            }
            let written = entry.metadata().and_then(|file| file.modified());
            // A time in the future has no age, because either clock may be wrong.
            let age = written.ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > PARTIAL_FILE_LIFETIME) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
