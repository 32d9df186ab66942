//! Watcher of this machine's network interfaces.

use std::io;

use super::Interfaces;
use crate::sys::interfaces::Changes;

/// Watches for changes to interfaces, addresses and routes.
#[derive(Debug)]
pub struct Watcher {
    changes: Changes,
}

impl Watcher {
    /// Starts the watcher. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// Fails if change notifications are not available.
    pub fn start() -> io::Result<Self> {
        Ok(Watcher { changes: Changes::watch()? })
    }

    /// Waits until a change has settled, then returns the new state.
    ///
    /// # Errors
    /// Fails if the notifications end or the interfaces cannot be listed.
    pub async fn changed(&mut self) -> io::Result<Interfaces> {
        self.changes.wait_until_settled().await?;
        Interfaces::now()
    }
}
