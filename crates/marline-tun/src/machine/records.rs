//! Files below `/run` that record changes to this machine for later `marline up` processes.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Directory readable only by root.
const DIRECTORY: &str = "/run/marline";

/// Returns the path of the file of this kind (`pid`) for the calling thread's network namespace. Creates its
/// directory.
///
/// # Errors
/// `/proc` is not mounted, or the permission to create the directory is missing.
pub fn file(kind: &str) -> io::Result<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    match fs::DirBuilder::new().mode(0o700).create(DIRECTORY) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    Ok(Path::new(DIRECTORY).join(format!("up-{namespace}.{kind}")))
}
