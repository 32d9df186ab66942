//! Program that was started inside, and those that it starts in turn, until the last of them ends.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::processes::NamespaceProcesses;

/// While others that the program left behind run on, they are looked for this often.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The program, by a descriptor that names no other process later.
#[derive(Debug)]
pub struct RunningProgram {
    process: OwnedFd,
    processes: NamespaceProcesses,
}

impl RunningProgram {
    pub(super) const fn new(process: OwnedFd, processes: NamespaceProcesses) -> RunningProgram {
        RunningProgram { process, processes }
    }

    /// Waits for the end of the program itself.
    ///
    /// # Errors
    /// The process cannot be watched.
    pub async fn ended(&self) -> io::Result<()> {
        let process = self.process.try_clone()?;
        // SAFETY: an OwnedFd owns its descriptor, always gives the same one, and closes it only when it is dropped.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        drop(process.readable().await?);
        Ok(())
    }

    /// Waits until nobody is left in the namespace: what the program left running may go on using its network, as
    /// it would without us.
    pub async fn left(&self) {
        while self.processes.any() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
