//! Error of a send, with what left before it.

use std::io;

/// A batch that did not leave, or not all of it.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: io::Error,
    /// Bytes of the batch that did.
    pub(crate) sent: usize,
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        SendError { error, sent: 0 }
    }
}

impl SendError {
    /// The same where `before` bytes of the batch were sent before.
    pub(crate) fn after(self, before: usize) -> SendError {
        SendError { sent: self.sent + before, ..self }
    }

    /// The kernel has no room now.
    pub(crate) fn would_block(&self) -> bool {
        self.error.kind() == io::ErrorKind::WouldBlock
    }
}
