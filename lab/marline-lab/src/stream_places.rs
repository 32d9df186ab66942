//! Positions of a connection's segments, in their subflows and in the stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use marline::monitor::FourTuple;
use marline_sim::Placement;
use marline_wire::mptcp::{DataAck, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

/// Sender and receiver.
type Flow = (SocketAddr, SocketAddr);

/// Position of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPosition {
    /// Position of the payload's first byte in its subflow, from 0.
    pub(crate) subflow_offset: u32,
    /// Position of the payload's first byte in the connection's stream, from 0. `None` without a mapping.
    pub(crate) stream_offset: Option<u64>,
    /// Acknowledged position in the peer's subflow in bytes.
    pub(crate) acked: u32,
    /// Acknowledged position in the peer's stream in bytes.
    pub(crate) data_acked: Option<u64>,
}

/// One direction of the connection. Sequence numbers are tracked by their low 32 bits, which are in every option.
#[derive(Debug)]
struct Stream {
    /// DSN of the first byte.
    start: u32,
    /// The last position seen.
    seen: u64,
}

impl Stream {
    /// Position of a DSN in the stream.
    fn offset(&mut self, dsn: u32) -> Option<u64> {
        let offset = marline_wire::unwrap32(dsn.wrapping_sub(self.start), self.seen)?;
        self.seen = offset;
        Some(offset)
    }
}

/// Tracks the mappings of one connection, from its segments as they are sent.
#[derive(Debug, Default)]
pub(crate) struct StreamPositions {
    /// Sequence number of the first byte.
    subflow_starts: BTreeMap<Flow, SeqNum>,
    /// The stream of each direction. The key is true for data from the client.
    streams: BTreeMap<bool, Stream>,
    placement: Placement<Flow>,
}

impl StreamPositions {
    /// Returns the position of the next segment that is sent on `path`.
    pub(crate) fn place_segment(
        &mut self,
        from_client: bool,
        path: &FourTuple,
        tcp: &TcpSegment<'_>,
    ) -> SegmentPosition {
        let flow = (path.local, path.remote);
        if tcp.header.flags.contains(TcpFlags::SYN) {
            let first = SeqNum(tcp.header.seq.0.wrapping_add(1));
            self.subflow_starts.insert(flow, first);
        }
        let relative =
            |from: Option<&SeqNum>, to: SeqNum| from.map_or(0, |first| to.0.wrapping_sub(first.0));
        let subflow_offset = relative(self.subflow_starts.get(&flow), tcp.header.seq);
        let acked = relative(self.subflow_starts.get(&(flow.1, flow.0)), tcp.header.ack);
        let placed = self.placement.place_segment(flow, tcp);
        let (stream_offset, data_acked) = self.data(from_client, subflow_offset, placed, tcp);
        SegmentPosition { subflow_offset, stream_offset, acked, data_acked }
    }

    /// Position of the payload in the stream, and the acknowledged position in the other stream. `placed` is the
    /// position of the payload's DSN according to earlier mappings.
    fn data(
        &mut self,
        from_client: bool,
        offset: u32,
        placed: Option<u32>,
        tcp: &TcpSegment<'_>,
    ) -> (Option<u64>, Option<u64>) {
        let capable = |option: MptcpOption| matches!(option, MptcpOption::Capable(_));
        if !tcp.payload.is_empty() && tcp.options.mptcp.iter().any(capable) {
            // The stream's first bytes, mapped by MP_CAPABLE itself.
            return (Some(u64::from(offset)), None);
        }
        let mapped = placed.and_then(|dsn| {
            // The first mapping shows where the stream starts, because only data mapped by MP_CAPABLE precedes it on
            // its subflow.
            let start = dsn.wrapping_sub(offset);
            let stream = self.streams.entry(from_client).or_insert(Stream { start, seen: 0 });
            stream.offset(dsn)
        });
        let acked = tcp.options.dss.and_then(|dss| dss.data_ack).and_then(|ack| {
            let ack = match ack {
                DataAck::Long(ack) => ack as u32,
                DataAck::Short(ack) => ack,
            };
            self.streams.get_mut(&!from_client)?.offset(ack)
        });
        (mapped, acked)
    }
}
