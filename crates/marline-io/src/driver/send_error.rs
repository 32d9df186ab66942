//! Send error, with the number of bytes sent before it.

use std::io;

/// Failure to send a batch, or part of it.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: io::Error,
    /// Bytes of the batch that were sent.
    pub(crate) sent: usize,
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        SendError { error, sent: 0 }
    }
}

impl SendError {
    /// Adds `before` bytes of the batch that were sent earlier.
    pub(crate) fn after(self, before: usize) -> SendError {
        SendError { sent: self.sent + before, ..self }
    }

    /// Returns true if the kernel has no room now.
    pub(crate) fn would_block(&self) -> bool {
        self.error.kind() == io::ErrorKind::WouldBlock
    }
}
