//! Parameters from which a connection or a subflow is created.

use marline_wire::{SeqNum, TcpSegment};

use super::fast_open::FastOpenVerdict;
use crate::crypto::Key;
use crate::{ConnectionId, Ecn, FourTuple};

/// Identity, first path and key of a new connection.
pub(crate) struct Origin {
    pub(crate) id: ConnectionId,
    pub(crate) slot: u32,
    pub(crate) path: FourTuple,
    pub(crate) key: Key,
}

/// A received SYN that opens a subflow.
pub(crate) struct AcceptedSyn<'a> {
    pub(crate) segment: &'a TcpSegment<'a>,
    pub(crate) ecn: Ecn,
    pub(crate) peer_flow: u64,
    /// End of our sequence space in a previous connection between these addresses, which was in TIME-WAIT.
    pub(crate) after: Option<SeqNum>,
    /// Prescribed initial sequence number: a cookie.
    pub(crate) isn: Option<SeqNum>,
    /// Fast Open decision.
    pub(crate) fast_open: FastOpenVerdict,
}
