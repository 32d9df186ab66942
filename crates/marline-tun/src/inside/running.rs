//! Program started in the namespace, with its descendants, until the last of them ends.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::processes::NamespaceProcesses;

/// Poll interval for processes that the program left behind.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The program, identified by a descriptor that never refers to another process.
#[derive(Debug)]
pub struct RunningProgram {
    process: OwnedFd,
    processes: NamespaceProcesses,
}

impl RunningProgram {
    pub(super) const fn new(process: OwnedFd, processes: NamespaceProcesses) -> RunningProgram {
        RunningProgram { process, processes }
    }

    /// Waits until the program itself ends.
    ///
    /// # Errors
    /// The process cannot be watched.
    pub async fn wait_for_program(&self) -> io::Result<()> {
        let process = self.process.try_clone()?;
        // SAFETY: an OwnedFd owns its descriptor, always returns the same one, and closes it only when it is
        // dropped.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        drop(process.readable().await?);
        Ok(())
    }

    /// Waits until the namespace has no processes: those that the program left behind may continue to use its
    /// network, as they would without the tunnel.
    pub async fn wait_for_descendants(&self) {
        while self.processes.has_any() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
