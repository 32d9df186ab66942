//! Destination of a new invite: a file that only its owner can read, or standard output. There is no other copy of
//! the invite, so the file is created before the client.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::Context;

use super::Invite;
use crate::private_file;

/// Destination of an invite.
#[derive(Debug)]
pub enum Destination {
    /// Standard output. Only the invite is printed, so that it can be piped.
    Output,
    /// A new, empty file.
    File(File, PathBuf),
}

impl Destination {
    /// Opens a new file, or standard output if no file is given.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn open(file: Option<PathBuf>) -> anyhow::Result<Destination> {
        let Some(path) = file else { return Ok(Destination::Output) };
        Ok(Destination::File(private_file::reserve(&path)?, path))
    }

    /// Passes `result` on. On failure, the empty file is removed.
    ///
    /// # Errors
    /// Fails if `result` is an error.
    pub fn remove_on_failure<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        if let (Err(_), Destination::File(_, path)) = (&result, self) {
            // The file is still empty.
            let _ = std::fs::remove_file(path);
        }
        result
    }

    /// Writes the invite of `client` and reports this on standard error.
    ///
    /// # Errors
    /// The invite cannot be written.
    pub fn write_invite(self, invite: &Invite, client: &str) -> anyhow::Result<()> {
        let word = invite.to_word();
        match self {
            Destination::File(mut file, path) => {
                let shown = path.display();
                let written = writeln!(file, "{word}").and_then(|()| file.sync_all());
                written.with_context(|| format!("cannot write {shown}"))?;
                eprintln!(
                    "the invite of the client {client:?} is in {shown} (keep it secret: it grants that client's \
                     access)\non the client's machine, run `marline join` and paste the file's line \
                     (or copy the file there: `marline join --file FILE`)"
                );
            }
            Destination::Output => {
                eprintln!(
                    "the invite of the client {client:?} (keep it secret: it grants that client's access);\n\
                     on the client's machine, run `marline join` and paste this line:"
                );
                println!("{word}");
                if is_output_world_readable() {
                    eprintln!(
                        "other users can read the output file: chmod 600 it (otherwise a client refuses it), or \
                         let --invite-out FILE create one"
                    );
                }
            }
        }
        Ok(())
    }
}

/// Returns true if standard output is a file that other users may read.
fn is_output_world_readable() -> bool {
    let file = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let meta = file.and_then(|file| file.metadata());
    meta.is_ok_and(|meta| meta.is_file() && meta.mode() & 0o077 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invite_file_is_private_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("invite");
        let destination = Destination::open(Some(path.clone())).unwrap();
        let failed =
            destination.remove_on_failure::<()>(Err(anyhow::anyhow!("no server"))).unwrap_err();
        assert_eq!(failed.to_string(), "no server");
        assert!(!path.exists());

        let token = crate::secret::Secret::random().unwrap();
        let invite = Invite::new(vec!["a.example:1".parse().unwrap()], [1; 32], token).unwrap();
        Destination::open(Some(path.clone())).unwrap().write_invite(&invite, "first").unwrap();
        private_file::check_mode(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.parse::<Invite>().is_ok_and(|read| read == invite));
        assert!(Destination::open(Some(path.clone())).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}
