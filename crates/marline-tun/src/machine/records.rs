//! Files below `/run` by which one `marline up` knows what another one has left on this machine.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Readable by root alone.
const DIRECTORY: &str = "/run/marline";

/// The file of this kind (`pid`) for the network namespace of the calling thread. Its directory is there afterwards.
///
/// # Errors
/// `/proc` is not mounted, or the right to make the directory is missing.
pub fn file(kind: &str) -> io::Result<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    match fs::DirBuilder::new().mode(0o700).create(DIRECTORY) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    Ok(Path::new(DIRECTORY).join(format!("up-{namespace}.{kind}")))
}
