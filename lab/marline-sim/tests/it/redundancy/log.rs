//! Log of a host's segments: time, path, position in the stream.

use core::any::Any;

use marline_sim::{LinkId, NodeId, ObservationPoint, Observer, Packet, Placement};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;

use super::START;

/// A segment with data.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Time after the start.
    pub(crate) at: Duration,
    /// Index of the path.
    pub(crate) path: usize,
    /// First byte of the stream.
    pub(crate) start: u64,
    /// One past the last.
    pub(crate) end: u64,
}

/// Records every data segment that a host offers to its links.
#[derive(Debug)]
pub(crate) struct Log {
    node: NodeId,
    links: Vec<LinkId>,
    /// Low half of the first DSN.
    first: Option<u32>,
    placement: Placement<usize>,
    sent: Vec<Sent>,
}

impl Log {
    pub(crate) fn of(node: NodeId, links: &[LinkId]) -> Self {
        Log {
            node,
            links: links.to_vec(),
            first: None,
            placement: Placement::default(),
            sent: Vec::new(),
        }
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.clone()
    }
}

impl Observer for Log {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        let ObservationPoint::Sent { node, link: Some(link) } = sighting else { return };
        let Some(path) = self.links.iter().position(|id| *id == link) else { return };
        if node != self.node {
            return;
        }
        let segment = TcpSegment::parse(&packet.segment).expect("a segment");
        let Some(dsn) = self.placement.place_segment(path, &segment) else { return };
        let start = u64::from(dsn.wrapping_sub(*self.first.get_or_insert(dsn)));
        let end = start + segment.payload.len() as u64;
        self.sent.push(Sent { at: now.since(START), path, start, end });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
