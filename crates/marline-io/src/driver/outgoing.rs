//! Bytes on their way to the kernel, the sender to notify if they are not sent, and the error.

use std::io;

use marline_core::{Ecn, FourTuple};
use marline_datagram::PathId;

use crate::carrier::Outer;

/// Bytes for the kernel.
#[derive(Copy, Clone)]
pub(crate) struct Outgoing<'a> {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    /// Offset from one datagram to the next; 0 for a single datagram.
    pub(crate) stride: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) sender: Sender,
}

/// Sender that is notified if bytes are not sent.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Sender {
    /// The carrier itself, which needs no notification.
    Carrier,
    /// Subflow: path, and our flow id.
    Subflow(FourTuple, u64),
    /// Path of a lane, with our id of the lane.
    Lane(u64, PathId),
}

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
