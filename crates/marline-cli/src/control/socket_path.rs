//! Location of control sockets, and their discovery by tools.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Returns the directory for this user's sockets: the service's runtime directory, the session's, or one in the
/// temporary directory.
#[must_use]
pub fn directory() -> PathBuf {
    // systemd separates several directories by colons. The first is the service's own.
    let service = std::env::var("RUNTIME_DIRECTORY").ok();
    let first = service.as_deref().and_then(|all| all.split(':').next());
    if let Some(first) = first.filter(|first| !first.is_empty()) {
        return PathBuf::from(first);
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    if let Some(session) = session {
        return Path::new(&session).join("marline");
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return PathBuf::from("/run/marline");
    }
    std::env::temp_dir().join(format!("marline-{}", user.as_raw()))
}

/// Returns the default path: `<directory>/<role>-<pid>.sock`.
#[must_use]
pub fn default_path(role: &str) -> PathBuf {
    directory().join(format!("{role}-{}.sock", std::process::id()))
}

/// Creates the directory of a socket, private to this user. Where others can write, an existing directory is accepted
/// only if it belongs to this user and is closed to others.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() {
        return Ok(());
    }
    match std::fs::DirBuilder::new().recursive(false).mode(0o700).create(directory) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = std::fs::symlink_metadata(directory)?;
    let ours = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    if directory == self::directory() && !ours {
        let text = format!("{} belongs to another user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mode = found.mode() & 0o7777;
    if !is_closed(mode, directory == self::directory()) {
        let text = format!(
            "{} is writable by other users (mode {mode:04o}), who could replace the control socket: run \
             chmod go-w on it, or choose another path with --control",
            directory.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Returns true if no other user can replace our socket: others cannot write to the directory, or it is one like /tmp,
/// in which everyone may write but only owners may remove (the sticky bit). A directory that the user named may be
/// writable for a group, but the default one may not.
const fn is_closed(mode: u32, unasked: bool) -> bool {
    const ALL_WRITE: u32 = 0o002;
    const GROUP_WRITES: u32 = 0o020;
    const STICKY_BIT: u32 = 0o1000;
    if unasked {
        return mode & (ALL_WRITE | GROUP_WRITES) == 0;
    }
    mode & ALL_WRITE == 0 || mode & STICKY_BIT != 0
}

/// Returns the only existing socket, for commands without --control.
///
/// # Errors
/// There is none, or there are several. The message lists them.
pub fn find() -> Result<PathBuf, String> {
    find_socket_in(&directory())
}

/// Returns the only socket of a running process in this directory.
///
/// # Errors
/// There is none, or there are several. The message lists them.
pub fn find_socket_in(directory: &Path) -> Result<PathBuf, String> {
    let mut live = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let named = path.extension().is_some_and(|end| end == "sock");
        if named && std::os::unix::net::UnixStream::connect(&path).is_ok() {
            live.push(path);
        }
    }
    live.sort();
    match live.len() {
        1 => Ok(live.remove(0)),
        0 => Err(format!(
            "no running marline client or server found in {}; name its control socket with --control",
            directory.display()
        )),
        _ => {
            let all: Vec<String> = live.iter().map(|p| format!("  {}", p.display())).collect();
            Err(format!(
                "several processes are running; choose one with --control:\n{}",
                all.join("\n")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("marline-open-{}", std::process::id()));
        prepare(&dir).expect("make");
        for (mode, fine) in [(0o777, false), (0o1777, true), (0o775, true), (0o755, true)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&dir, permissions).expect("ours");
            let prepared = prepare(&dir);
            assert_eq!(prepared.is_ok(), fine, "{mode:o}: {prepared:?}");
            assert_eq!(is_closed(mode, true), mode == 0o755, "{mode:o}");
        }
        std::fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    fn the_only_live_socket_is_found_and_two_are_listed() {
        let dir = std::env::temp_dir().join(format!("marline-place-{}", std::process::id()));
        prepare(&dir).expect("make");
        prepare(&dir).expect("the directory may exist already");
        let mode = std::fs::metadata(&dir).expect("directory").mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(find_socket_in(&dir).expect_err("none").contains("--control"));
        let _first = UnixListener::bind(dir.join("client-1.sock")).expect("bind");
        drop(UnixListener::bind(dir.join("client-2.sock")).expect("bind"));
        assert_eq!(find_socket_in(&dir).expect("one process runs"), dir.join("client-1.sock"));
        let _third = UnixListener::bind(dir.join("server-3.sock")).expect("bind");
        let error = find_socket_in(&dir).expect_err("two processes run");
        assert!(error.contains("client-1.sock") && error.contains("server-3.sock"), "{error}");
        std::fs::remove_dir_all(&dir).expect("clean up");
    }
}
