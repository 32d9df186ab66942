//! Work in another network namespace. A namespace belongs to a thread, so the work gets a thread of
//! its own and the caller stays where it is. What is made there (sockets, interfaces, child
//! processes, files of /proc/thread-self/net) stays bound to the namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where `ip netns` keeps the namespaces it made.
#[must_use]
pub fn place(namespace: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace)
}

/// Runs `work` in the namespace that `ip netns` knows by this name. Needs CAP_SYS_ADMIN.
///
/// # Errors
/// There is no such namespace, it may not be entered, or `work` failed.
pub fn within<T: Send>(
    namespace: &str,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let enter = || -> io::Result<T> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("network namespace {namespace}: {error}"))
        };
        let file = File::open(place(namespace)).map_err(named)?;
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
