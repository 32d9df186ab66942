//! Stateless replies: segments sent without a connection.

use marline_wire::{TcpHeader, TcpOptions};

use super::demux::FlowKey;

/// A segment without a connection: a RST or a last ACK.
#[derive(Debug)]
pub(crate) struct StatelessReply {
    pub(crate) header: TcpHeader,
    pub(crate) options: TcpOptions,
    pub(crate) key: FlowKey,
}
