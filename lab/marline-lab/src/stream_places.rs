//! Places of a connection's segments, in their subflows and in the stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use marline::FourTuple;
use marline_sim::Placement;
use marline_wire::mptcp::{DataAck, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

/// Sender and receiver.
type Flow = (SocketAddr, SocketAddr);

/// Where a segment belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the payload's first byte in its subflow, from 0.
    pub(crate) subflow_offset: u32,
    /// Of the payload's first byte in the connection's stream, from 0; `None`: nothing maps it.
    pub(crate) stream_offset: Option<u64>,
    /// What it acknowledges of the other side's subflow, bytes.
    pub(crate) acked: u32,
    /// What it acknowledges of the other side's stream, bytes.
    pub(crate) data_acked: Option<u64>,
}

/// One direction of the connection. Numbers are followed by their low 32 bits, which every option has.
#[derive(Debug)]
struct Stream {
    /// DSN of its first byte.
    start: u32,
    /// The last place seen.
    seen: u64,
}

impl Stream {
    /// The place in the stream that a DSN means.
    fn offset(&mut self, dsn: u32) -> Option<u64> {
        let offset = marline_wire::unwrap32(dsn.wrapping_sub(self.start), self.seen)?;
        self.seen = offset;
        Some(offset)
    }
}

/// Follows the mappings of one connection, seen where its segments are sent.
#[derive(Debug, Default)]
pub(crate) struct StreamPlaces {
    /// Sequence number of the first byte.
    subflow_starts: BTreeMap<Flow, SeqNum>,
    /// The stream of each direction; true: from the client.
    streams: BTreeMap<bool, Stream>,
    placement: Placement<Flow>,
}

impl StreamPlaces {
    /// Takes the next segment that is sent on `path`, as its sender sees it.
    pub(crate) fn place(
        &mut self,
        from_client: bool,
        path: &FourTuple,
        tcp: &TcpSegment<'_>,
    ) -> Place {
        let flow = (path.local, path.remote);
        if tcp.header.flags.contains(TcpFlags::SYN) {
            let first = SeqNum(tcp.header.seq.0.wrapping_add(1));
            self.subflow_starts.insert(flow, first);
        }
        let relative =
            |from: Option<&SeqNum>, to: SeqNum| from.map_or(0, |first| to.0.wrapping_sub(first.0));
        let subflow_offset = relative(self.subflow_starts.get(&flow), tcp.header.seq);
        let acked = relative(self.subflow_starts.get(&(flow.1, flow.0)), tcp.header.ack);
        let placed = self.placement.place(flow, tcp);
        let (stream_offset, data_acked) = self.data(from_client, (subflow_offset, placed), tcp);
        Place { subflow_offset, stream_offset, acked, data_acked }
    }

    /// Where its payload belongs in the stream, and what it acknowledges of the other.
    /// `placed` is what its DSN is by the mappings so far.
    fn data(
        &mut self,
        from_client: bool,
        (offset, placed): (u32, Option<u32>),
        tcp: &TcpSegment<'_>,
    ) -> (Option<u64>, Option<u64>) {
        let capable = |option: MptcpOption| matches!(option, MptcpOption::Capable(_));
        if !tcp.payload.is_empty() && tcp.options.mptcp.iter().any(capable) {
            // The first bytes of all: mapped by MP_CAPABLE itself.
            return (Some(u64::from(offset)), None);
        }
        let mapped = placed.and_then(|dsn| {
            // The first mapping there is tells where the stream starts: nothing but what
            // MP_CAPABLE mapped is before it on its subflow.
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
