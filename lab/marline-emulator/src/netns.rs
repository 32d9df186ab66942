//! Work in another network namespace. Namespaces belong to threads, so the work runs on a separate thread and the
//! caller's namespace does not change. Everything that the work creates (sockets, interfaces, child processes, files
//! of /proc/thread-self/net) stays bound to the namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// File of a namespace that `ip netns` created.
#[must_use]
pub fn namespace_file(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Runs `work` in the namespace with this name in `ip netns`. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// There is no such namespace, entering it is not permitted, or `work` failed.
pub fn run_in<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || -> io::Result<T> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("network namespace {namespace}: {error}"))
        };
        let file = File::open(namespace_file(namespace)).map_err(named)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| named(errno.into()))?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("marline-netns".to_owned());
        let running = thread.spawn_scoped(scope, enter)?;
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
