//! Segment log of a simulated run: path, time, contents and fate of each segment.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;

use marline_sim::{LinkId, ObservationPoint, Observer, Packet, Paths};
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpHeader, TcpOptions, TcpSegment};

use crate::stream_places::StreamPositions;

/// Arrival or loss of a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Arrived at this time.
    Arrived(Instant),
    /// Not arrived when the run ended: lost or in transit.
    Lost,
}

/// A segment of a run.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Index of the path in the scene.
    pub path: usize,
    /// True if the client sent it.
    pub from_client: bool,
    /// Send time.
    pub sent: Instant,
    /// Fate.
    pub delivery: Delivery,
    /// TCP header, as sent.
    pub header: TcpHeader,
    /// TCP options.
    pub options: TcpOptions,
    /// Payload length in bytes.
    pub payload: u32,
    /// Position of the payload's first byte in its subflow, from 0.
    pub subflow_offset: u32,
    /// Position of the payload's first byte in the connection's stream, from 0. `None` without a mapping.
    pub stream_offset: Option<u64>,
    /// Acknowledged position in the peer's subflow in bytes.
    pub acked: u32,
    /// Acknowledged position in the peer's stream in bytes.
    pub data_acked: Option<u64>,
}

impl Segment {
    /// Short description: `SYN`, `2800+1400` (position in the stream and length), `ack 4200` (of the subflow) with `
    /// sack` if the ACK reports a gap.
    #[must_use]
    pub fn describe(&self) -> String {
        let flags = self.header.flags;
        if flags.contains(TcpFlags::RST) {
            return "RST".to_owned();
        }
        if flags.contains(TcpFlags::SYN) {
            let ack = if flags.contains(TcpFlags::ACK) { "SYN ACK" } else { "SYN" };
            return ack.to_owned();
        }
        let mut text = match (self.payload, self.stream_offset) {
            (0, _) => format!("ack {}", self.acked),
            (bytes, Some(offset)) => format!("{offset}+{bytes}"),
            (bytes, None) => format!("({}+{bytes})", self.subflow_offset),
        };
        if self.payload == 0 && !self.options.sack.as_slice().is_empty() {
            text.push_str(" sack");
        }
        if flags.contains(TcpFlags::FIN) {
            text.push_str(" FIN");
        }
        text
    }
}

/// Records every segment of a scene while it runs.
///
/// ```
/// use marline_lab::experiment::{Experiment, Variant, stage};
/// use marline_lab::figure::SegmentLog;
/// use marline_lab::workload::{Gap, Workload};
/// let gap = Gap { least_ms: 100.0, most_ms: 100.0 };
/// let bursts = Workload::Bursts { bytes: 5_000, gap, count: 1 };
/// let experiment = Experiment::over(&[("wlan", "rate=20M,delay=6ms")], bursts);
/// let mut paths = stage(&experiment, &Variant::new("default"), 1).unwrap();
/// let log = SegmentLog::for_paths(&paths);
/// paths.world.observe(Box::new(log));
/// paths.world.run_until(marline_time::Instant::from_secs(2));
/// let log = paths.world.observer::<SegmentLog>().unwrap();
/// assert!(log.segments().iter().any(|segment| segment.describe() == "SYN"));
/// ```
#[derive(Debug)]
pub struct SegmentLog {
    /// Path of a link, and true if the link leads away from the client.
    links: BTreeMap<LinkId, (usize, bool)>,
    segments: Vec<Segment>,
    /// Segments in transit, per link: hash of the bytes, and index of the segment.
    pending: BTreeMap<LinkId, VecDeque<(u64, usize)>>,
    places: StreamPositions,
}

impl SegmentLog {
    /// Creates a log for this scene, which has one connection.
    #[must_use]
    pub fn for_paths(paths: &Paths) -> SegmentLog {
        let up = paths.up.iter().enumerate().map(|(path, link)| (*link, (path, true)));
        let down = paths.down.iter().enumerate().map(|(path, link)| (*link, (path, false)));
        SegmentLog {
            links: up.chain(down).collect(),
            segments: Vec::new(),
            pending: BTreeMap::new(),
            places: StreamPositions::default(),
        }
    }

    /// The segments in the order of sending.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    fn sent(&mut self, now: Instant, link: LinkId, packet: &Packet) {
        let Some((path, from_client)) = self.links.get(&link).copied() else { return };
        let Ok(tcp) = TcpSegment::parse(&packet.segment) else { return };
        let place = self.places.place_segment(from_client, &packet.path, &tcp);
        let segment = Segment {
            path,
            from_client,
            sent: now,
            delivery: Delivery::Lost,
            header: tcp.header,
            options: tcp.options.clone(),
            payload: tcp.payload.len() as u32,
            subflow_offset: place.subflow_offset,
            stream_offset: place.stream_offset,
            acked: place.acked,
            data_acked: place.data_acked,
        };
        let pending = self.pending.entry(link).or_default();
        pending.push_back((hash(&packet.segment), self.segments.len()));
        self.segments.push(segment);
    }

    fn delivered(&mut self, now: Instant, link: LinkId, packet: &Packet) {
        let Some(pending) = self.pending.get_mut(&link) else { return };
        let wanted = hash(&packet.segment);
        // Links reorder and lose packets, but segments with the same bytes are interchangeable.
        if let Some(at) = pending.iter().position(|(hash, _)| *hash == wanted) {
            let index = pending[at].1;
            pending.remove(at);
            self.segments[index].delivery = Delivery::Arrived(now);
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    // This hasher has fixed keys, so hashes are the same in every run.
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl Observer for SegmentLog {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        match sighting {
            ObservationPoint::Sent { link: Some(link), .. } => self.sent(now, link, packet),
            ObservationPoint::Delivered { link, .. } => self.delivered(now, link, packet),
            ObservationPoint::Sent { link: None, .. } => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
