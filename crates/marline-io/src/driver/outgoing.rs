//! Bytes on their way to the kernel, and who is told if they do not leave.

use marline_core::{Ecn, FourTuple};
use marline_datagram::PathId;

use crate::carrier::Outer;

/// Bytes for the kernel.
#[derive(Copy, Clone)]
pub(super) struct Outgoing<'a> {
    pub(super) outer: Outer,
    pub(super) ecn: Ecn,
    /// Bytes from one datagram to the next; 0: there is one.
    pub(super) stride: usize,
    pub(super) bytes: &'a [u8],
    pub(super) sender: Sender,
}

/// Who is to know if bytes do not leave.
#[derive(Copy, Clone, Debug)]
pub(super) enum Sender {
    /// Nobody: they are the carrier's own.
    Carrier,
    /// A subflow: its ends, and our id of it.
    Subflow(FourTuple, u64),
    /// A path of a lane, by our id of that.
    Lane(u64, PathId),
}
