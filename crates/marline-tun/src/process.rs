//! Processes forked from this one, while it has one thread.

use std::io;

use rustix::process::Pid;

/// Return value of a fork.
#[derive(Debug)]
pub(crate) enum Fork {
    /// In the parent, with the child's id.
    Parent(Pid),
    /// In the child.
    Child,
}

/// Forks the process.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the process has one thread, so no lock is held that would never be released in the child. The child
    // shares only descriptors with its parent.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid).map_or(Fork::Child, Fork::Parent))
}

/// Closes the descriptors inherited from the program that started this process, except the standard ones, so that
/// readers of that program's pipes do not wait for this process. Inherited descriptors are those without close-on-exec.
pub(crate) fn close_inherited() -> io::Result<()> {
    const STANDARD: i32 = 2;
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    let numbers: Vec<i32> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > STANDARD) {
        // SAFETY: the number is only an argument. A descriptor closed in the meantime results in an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: descriptors not opened here are unknown to the code here, because those opened here are
            // close-on-exec.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// Ignores the signals that end whole process groups, because another process determines when this one ends.
pub(crate) fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: no handler is installed, and these signals may be ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
