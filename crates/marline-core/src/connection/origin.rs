//! Parameters from which a connection or a subflow is created.

use marline_wire::{SeqNum, TcpSegment};

use super::fast_open::FastOpenVerdict;
use crate::crypto::Key;
use crate::{ConnectionId, Ecn, FourTuple};

/// Where a connection starts from.
pub(crate) struct Origin {
    pub(crate) id: ConnectionId,
    pub(crate) slot: u32,
    pub(crate) path: FourTuple,
    pub(crate) key: Key,
}

/// A SYN that opens a subflow here.
pub(crate) struct Accepted<'a> {
    pub(crate) segment: &'a TcpSegment<'a>,
    pub(crate) ecn: Ecn,
    pub(crate) peer_flow: u64,
    /// Our end of a connection between the same ends that was in TIME-WAIT until now.
    pub(crate) after: Option<SeqNum>,
    /// Our initial sequence number, where it is given: a cookie.
    pub(crate) isn: Option<SeqNum>,
    /// What Fast Open makes of it.
    pub(crate) fast_open: FastOpenVerdict,
}
