//! Directory apart: tables are written there and moved into place when all of them are whole, so that tables of earlier
//! are not lost to ones that come to nothing.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::make_directory;

/// Beginning and ending of its name.
const NAME: (&str, &str) = ("tables.", ".partial");

/// A directory beside the tables of earlier, which goes when this does.
#[derive(Debug)]
pub(super) struct Apart {
    place: PathBuf,
    apart: PathBuf,
}

impl Apart {
    /// A new one in `place`.
    pub(super) fn create(place: &Path) -> anyhow::Result<Apart> {
        // A number that no other process draws: the standard library seeds each of these differently.
        let number = RandomState::new().hash_one(std::process::id());
        let (begin, end) = NAME;
        let apart = place.join(format!("{begin}{number:016x}{end}"));
        make_directory(&apart)?;
        Ok(Apart { place: place.to_owned(), apart })
    }

    /// Where files are written.
    pub(super) fn path(&self) -> &Path {
        &self.apart
    }

    /// Moves all files into place.
    pub(super) fn keep(self) -> anyhow::Result<()> {
        let named = || self.apart.display().to_string();
        for entry in fs::read_dir(&self.apart).with_context(named)? {
            let entry = entry.with_context(named)?;
            let to = self.place.join(entry.file_name());
            fs::rename(entry.path(), &to).with_context(|| to.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // What stays does no harm but take room.
        let _ = fs::remove_dir_all(&self.apart);
    }
}
