//! Private files, readable only by their owner: keys, credentials, configuration with secrets.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const MODE: u32 = 0o600;

/// Creates a file with mode 0600. It must not exist yet.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn create(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let shown = path.display();
    let mut file = reserve(path)?;
    write(&mut file, contents).with_context(|| format!("cannot write {shown}"))
}

/// Creates an empty file with mode 0600. It must not exist yet.
///
/// # Errors
/// The file exists, or cannot be created.
pub fn reserve(path: &Path) -> anyhow::Result<File> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    let made = opened.and_then(|file| {
        // The mode at creation is subject to the umask, but this mode is not.
        file.set_permissions(Permissions::from_mode(MODE))?;
        Ok(file)
    });
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Replaces a file atomically: readers see the old or the new contents, never a part.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let fresh = with_suffix(path, ".new");
    let shown = fresh.display();
    // Left over from an interrupted run; the caller holds the lock.
    let _ = std::fs::remove_file(&fresh);
    let renamed =
        || std::fs::rename(&fresh, path).with_context(|| format!("cannot rename {shown}"));
    create(&fresh, contents).and_then(|()| renamed()).inspect_err(|_| {
        // A partly written file would waste disk space.
        let _ = std::fs::remove_file(&fresh);
    })
}

fn write(file: &mut File, contents: &[u8]) -> std::io::Result<()> {
    file.write_all(contents)?;
    file.sync_all()
}

/// Locks a file against others that call this function, until the result is dropped. The lock is a separate file next
/// to it.
///
/// # Errors
/// The lock file cannot be opened or locked.
pub fn lock(path: &Path) -> anyhow::Result<File> {
    let path = with_suffix(path, ".lock");
    let shown = path.display();
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(MODE).open(&path);
    let file = file.with_context(|| format!("cannot open {shown}"))?;
    file.lock().with_context(|| format!("cannot lock {shown}"))?;
    Ok(file)
}

/// Version of a file, which changes when the file is replaced or written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    written_at: (i64, i64),
    len: u64,
}

/// Returns the version of a file, or `None` if it does not exist.
#[must_use]
pub fn version(path: &Path) -> Option<Version> {
    let meta = std::fs::metadata(path).ok()?;
    let written_at = (meta.mtime(), meta.mtime_nsec());
    Some(Version { inode: meta.ino(), written_at, len: meta.len() })
}

/// Rejects a secret file that other users can read.
///
/// # Errors
/// Other users may read the file, or it does not exist.
pub fn check_mode(path: &Path) -> anyhow::Result<()> {
    check(path, std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).as_deref())
}

/// Checks the mode of a file. `credentials` is the directory in which systemd places the files of the unit's
/// `LoadCredential=`. systemd lets the service's user read these files by an access control list, whose mask appears
/// as the group's bits in the mode (systemd 254 and later: 0440). No other user can enter the directory.
fn check(path: &Path, credentials: Option<&Path>) -> anyhow::Result<()> {
    let shown = path.display();
    let mode = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.mode();
    let handed_over = credentials.is_some_and(|directory| path.parent() == Some(directory));
    let others = if handed_over { 0o037 } else { 0o077 };
    if mode & others != 0 {
        let mode = mode & 0o777;
        bail!("{shown} has mode {mode:o}: others can read it (chmod 600 {shown})");
    }
    Ok(())
}

/// Returns `path` with a suffix appended to its name.
#[must_use]
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_never_overwritten_by_accident() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, b"one").unwrap();
        check_mode(&path).unwrap();
        assert!(create(&path, b"two").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        replace(&path, b"three").unwrap();
        check_mode(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let error = check_mode(&path).unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_systemd_credential_may_have_an_acl_mask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("invite");
        create(&path, b"secret").unwrap();
        let with = |mode, credentials: Option<&Path>| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check(&path, credentials).is_ok()
        };
        assert!(with(0o440, Some(dir.path())));
        assert!(!with(0o460, Some(dir.path())), "the umask lets other users write");
        assert!(!with(0o444, Some(dir.path())));
        assert!(!with(0o440, Some(Path::new("/run/credentials/other.service"))));
        assert!(!with(0o440, None));
    }
}
