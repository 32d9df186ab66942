//! Packet observer of the server's bursts: the position of the first loss, the packets on the air, and the
//! progress over time.

use std::collections::{BTreeMap, BTreeSet};

use marline_sim::{LinkId, NodeId, ObservationPoint, Observer, Packet, Paths, Placement};
use marline_time::Instant;
use marline_wire::TcpSegment;

use super::traffic::WLAN;

/// Observes data towards the client. It starts when nothing is in flight, so that the first observed data begins a
/// burst.
#[derive(Debug)]
pub(super) struct BurstObserver {
    server: NodeId,
    down: Vec<LinkId>,
    start: Option<u32>,
    placement: Placement<usize>,
    /// Segments that WLAN has not delivered so far, by offset, with their number of copies sent.
    lost: BTreeMap<u64, u32>,
    sent: Vec<SentSegment>,
    arrived: Vec<(Instant, u64, u64)>,
}

/// A segment with data.
#[derive(Copy, Clone, Debug)]
pub(super) struct SentSegment {
    pub(super) at: Instant,
    pub(super) path: usize,
    /// Offset in the stream from the start of the first observed burst.
    pub(super) place: u64,
    /// Size including all headers.
    pub(super) wire_bytes: u64,
}

impl BurstObserver {
    pub(super) fn new(paths: &Paths) -> BurstObserver {
        BurstObserver {
            server: paths.server,
            down: paths.down.clone(),
            start: None,
            placement: Placement::default(),
            lost: BTreeMap::new(),
            sent: Vec::new(),
            arrived: Vec::new(),
        }
    }

    /// Offset in a burst of the first byte that WLAN lost, or the length of the burst if it lost nothing. The
    /// burst starts `from` bytes after the first observed one.
    pub(super) fn first_lost(&self, from: u64, bytes: u64) -> u64 {
        let first = self.lost.range(from..from + bytes).find(|(_, copies)| **copies > 0);
        first.map_or(bytes, |(place, _)| place - from)
    }

    /// Packets with data of this burst, and their bytes, that the server sent until then on any path.
    pub(super) fn sent_on_air_until(&self, from: u64, bytes: u64, until: Instant) -> (u64, u64) {
        let within = from..from + bytes;
        let of_burst =
            self.sent.iter().filter(|sent| within.contains(&sent.place) && sent.at <= until);
        of_burst.fold((0, 0), |(packets, bytes), sent| (packets + 1, bytes + sent.wire_bytes))
    }

    /// Time at which this many bytes of the first observed burst had arrived.
    pub(super) fn time_of(&self, bytes: u64) -> Option<Instant> {
        let mut seen = BTreeSet::new();
        let mut sum = 0;
        let mut first = self.arrived.iter().filter(|(_, place, _)| seen.insert(*place));
        first.find_map(|(at, _, payload)| {
            sum += payload;
            (sum >= bytes).then_some(*at)
        })
    }

    /// All sent segments, in order.
    pub(super) fn sent(&self) -> &[SentSegment] {
        &self.sent
    }

    fn place_packet(&mut self, path: usize, packet: &Packet) -> Option<(u64, u64)> {
        let segment = TcpSegment::parse(&packet.segment).ok()?;
        let dsn = self.placement.place_segment(path, &segment)?;
        let start = *self.start.get_or_insert(dsn);
        Some((u64::from(dsn.wrapping_sub(start)), segment.payload.len() as u64))
    }
}

impl Observer for BurstObserver {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        match sighting {
            ObservationPoint::Sent { node, link: Some(link) } if node == self.server => {
                let Some(path) = self.down.iter().position(|down| *down == link) else { return };
                let Some((place, _)) = self.place_packet(path, packet) else { return };
                let wire_bytes = packet.segment.len() as u64 + u64::from(packet.overhead);
                self.sent.push(SentSegment { at: now, path, place, wire_bytes });
                if path == WLAN {
                    *self.lost.entry(place).or_default() += 1;
                }
            }
            ObservationPoint::Delivered { link, .. } => {
                let Some(path) = self.down.iter().position(|down| *down == link) else { return };
                let Some((place, bytes)) = self.place_packet(path, packet) else { return };
                self.arrived.push((now, place, bytes));
                if link == self.down[WLAN] {
                    self.lost.remove(&place);
                }
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
