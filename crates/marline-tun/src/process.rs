//! Processes made from this one, while it has one thread.

use std::io;

use rustix::process::Pid;

/// Where a fork returns.
#[derive(Debug)]
pub(crate) enum Fork {
    /// In this process; the child's id.
    Parent(Pid),
    /// In the child.
    Child,
}

/// Splits the process in two.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the process has one thread, so that no lock is held that nobody releases in the child, and what the
    // child shares with its parent are descriptors alone.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid).map_or(Fork::Child, Fork::Parent))
}

/// Closes the descriptors that this process was started with, standard ones apart: whoever reads from a pipe of the
/// program must not wait for us. They are those that would be handed on again; what was opened here is not.
pub(crate) fn close_inherited() -> io::Result<()> {
    const STANDARD: i32 = 2;
    let open = std::fs::read_dir("/proc/self/fd")?.flatten();
    let numbers: Vec<i32> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > STANDARD) {
        // SAFETY: the number is an argument; a descriptor that is closed meanwhile is an error.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: nobody here knows of a descriptor that was not opened here, for those are close-on-exec.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// Ignores the signals that end whole groups of processes: another process says when this one is to end.
pub(crate) fn ignore_signals() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: no handler is installed, and the numbers are those of signals that may be ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
