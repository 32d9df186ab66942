//! Packet observer of the server's bursts: the position of the first loss, the packets on the air, and the
//! progress over time.

use std::collections::{BTreeMap, BTreeSet};

use marline_sim::{LinkId, NodeId, ObservationPoint, Observer, Packet, Paths, Placement};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;
use serde::{Deserialize, Serialize};

use super::traffic::{LTE, WLAN};

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
    /// Offsets of the segments that WLAN delivered.
    delivered: BTreeSet<u64>,
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

/// When the server sent data of a burst again, ms after WLAN died and the burst was written. `None`: not observed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Repeats {
    /// First retransmission on WLAN: the probe, if WLAN died before the burst.
    pub(super) probe_ms: Option<f64>,
    /// Second retransmission on WLAN: by the timer, if WLAN died before the burst.
    pub(super) timer_ms: Option<f64>,
    /// First segment on 4G that WLAN had carried.
    pub(super) copy_ms: Option<f64>,
    /// Second such segment.
    pub(super) rest_ms: Option<f64>,
    /// Bytes of all such segments, including headers.
    pub(super) copied_bytes: u64,
    /// Retransmissions on WLAN after the first copy on 4G.
    pub(super) wlan_after_copy: u64,
}

/// Milliseconds, rounded to a microsecond.
pub(super) fn rounded(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl Repeats {
    fn add(&mut self, sent: &SentSegment, ms: f64) {
        let (first, second) = match sent.path {
            WLAN => (&mut self.probe_ms, &mut self.timer_ms),
            _ => (&mut self.copy_ms, &mut self.rest_ms),
        };
        if first.is_some() {
            second.get_or_insert(ms);
        }
        first.get_or_insert(ms);
        match sent.path {
            WLAN => self.wlan_after_copy += u64::from(self.copy_ms.is_some()),
            _ => self.copied_bytes += sent.wire_bytes,
        }
    }
}

impl BurstObserver {
    pub(super) fn new(paths: &Paths) -> BurstObserver {
        BurstObserver {
            server: paths.server,
            down: paths.down.clone(),
            start: None,
            placement: Placement::default(),
            lost: BTreeMap::new(),
            delivered: BTreeSet::new(),
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

    /// Like [`first_lost`](Self::first_lost), without repeats of data that WLAN had delivered.
    pub(super) fn first_undelivered(&self, from: u64, bytes: u64) -> u64 {
        let mut lost = self.lost.range(from..from + bytes).map(|(place, _)| *place);
        lost.find(|place| !self.delivered.contains(place)).map_or(bytes, |place| place - from)
    }

    /// Packets with data of this burst, and their bytes, that the server sent until then on any path.
    pub(super) fn sent_on_air_until(&self, from: u64, bytes: u64, until: Instant) -> (u64, u64) {
        let within = from..from + bytes;
        let of_burst =
            self.sent.iter().filter(|sent| within.contains(&sent.place) && sent.at <= until);
        of_burst.fold((0, 0), |(packets, bytes), sent| (packets + 1, bytes + sent.wire_bytes))
    }

    /// Repetitions of a burst's data between `after` and `until`.
    pub(super) fn repeats(&self, from: u64, bytes: u64, after: Instant, until: Instant) -> Repeats {
        let mut repeats = Repeats::default();
        let (mut on_wlan, mut on_lte) = (BTreeSet::new(), BTreeSet::new());
        let within = from..from + bytes;
        let of_burst =
            self.sent.iter().filter(|sent| within.contains(&sent.place) && sent.at <= until);
        for sent in of_burst {
            let again = match sent.path {
                WLAN => !on_wlan.insert(sent.place),
                _ => on_wlan.contains(&sent.place) && on_lte.insert(sent.place),
            };
            if again && sent.at >= after {
                repeats.add(sent, rounded(sent.at.since(after)));
            }
        }
        repeats
    }

    /// Share of the packets with data that were sent on 4G, until then.
    pub(super) fn lte_share_until(&self, until: Instant) -> f64 {
        let sent = || self.sent.iter().filter(move |sent| sent.at < until);
        let on_lte = sent().filter(|sent| sent.path == LTE).count();
        on_lte as f64 / sent().count().max(1) as f64
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
                    self.delivered.insert(place);
                }
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
