//! Bytes on their way to the kernel, and the sender to notify if they are not sent.

use marline_core::{Ecn, FourTuple};
use marline_datagram::PathId;

use crate::carrier::Outer;

/// Bytes for the kernel.
#[derive(Copy, Clone)]
pub(super) struct Outgoing<'a> {
    pub(super) outer: Outer,
    pub(super) ecn: Ecn,
    /// Offset from one datagram to the next; 0 for a single datagram.
    pub(super) stride: usize,
    pub(super) bytes: &'a [u8],
    pub(super) sender: Sender,
}

/// Sender that is notified if bytes are not sent.
#[derive(Copy, Clone, Debug)]
pub(super) enum Sender {
    /// The carrier itself, which needs no notification.
    Carrier,
    /// Subflow: path, and our flow id.
    Subflow(FourTuple, u64),
    /// Path of a lane, with our id of the lane.
    Lane(u64, PathId),
}
