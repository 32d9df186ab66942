//! Temporary directory for tables, which are moved into place when all are complete, so that a failure does not
//! destroy earlier tables.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::create_directory;

/// Prefix and suffix of the directory's name.
const NAME: (&str, &str) = ("tables.", ".partial");

/// A temporary directory next to the earlier tables, removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryTables {
    place: PathBuf,
    directory: PathBuf,
}

impl TemporaryTables {
    /// Creates a temporary directory in `place`.
    pub(super) fn create(place: &Path) -> anyhow::Result<TemporaryTables> {
        // A random number: the standard library seeds each of these hashers differently.
        let number = RandomState::new().hash_one(std::process::id());
        let (begin, end) = NAME;
        let directory = place.join(format!("{begin}{number:016x}{end}"));
        create_directory(&directory)?;
        Ok(TemporaryTables { place: place.to_owned(), directory })
    }

    /// The directory for new files.
    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    /// Moves all files into place.
    pub(super) fn move_into_place(self) -> anyhow::Result<()> {
        let named = || self.directory.display().to_string();
        for entry in fs::read_dir(&self.directory).with_context(named)? {
            let entry = entry.with_context(named)?;
            let to = self.place.join(entry.file_name());
            fs::rename(entry.path(), &to).with_context(|| to.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for TemporaryTables {
    fn drop(&mut self) {
        // A directory that cannot be removed only takes up space.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
