//! Packet observer of the server's bursts: the position of the first loss, and the segments on 4G.

use std::collections::BTreeMap;

use marline_sim::{LinkId, NodeId, Observer, Packet, Paths, Sighting};
use marline_time::Instant;
use marline_wire::TcpSegment;
use marline_wire::mptcp::WireDsn;

use super::traffic::{LTE, WLAN};

/// Watches data towards the client from a moment on at which nothing is under way: the first data seen
/// begins a burst.
#[derive(Debug)]
pub(super) struct Watch {
    server: NodeId,
    down: Vec<LinkId>,
    start: Option<u32>,
    /// Segments of WLAN that did not arrive (so far): place and how many of its copies are out.
    lost: BTreeMap<u64, u32>,
    sent: Vec<Sent>,
}

/// A segment with data.
#[derive(Copy, Clone, Debug)]
pub(super) struct Sent {
    pub(super) path: usize,
    /// Place in the stream from the first burst that was watched.
    pub(super) place: u64,
    pub(super) bytes: u64,
}

/// What was sent of a burst.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct OfBurst {
    /// Place in it of the first byte that WLAN lost; its length if it lost nothing.
    pub(super) first_lost: u64,
    /// Payload that went on 4G.
    pub(super) lte_bytes: u64,
}

impl Watch {
    pub(super) fn of(paths: &Paths) -> Watch {
        let (server, down) = (paths.server, paths.down.clone());
        Watch { server, down, start: None, lost: BTreeMap::new(), sent: Vec::new() }
    }

    /// Of the burst that begins so many bytes after the first one watched.
    pub(super) fn of_burst(&self, from: u64, bytes: u64) -> OfBurst {
        let within = from..from + bytes;
        let first_lost = self.lost.range(within.clone()).find(|(_, copies)| **copies > 0);
        let first_lost = first_lost.map_or(bytes, |(place, _)| place - from);
        let on_lte = self.sent.iter().filter(|s| s.path == LTE && within.contains(&s.place));
        OfBurst { first_lost, lte_bytes: on_lte.map(|sent| sent.bytes).sum() }
    }

    /// All that was sent, in order.
    pub(super) fn sent(&self) -> &[Sent] {
        &self.sent
    }

    fn place(&mut self, packet: &Packet) -> Option<(u64, u64)> {
        let segment = TcpSegment::parse(&packet.segment).ok()?;
        let mapping = segment.options.dss?.mapping.filter(|_| !segment.payload.is_empty())?;
        let dsn = match mapping.dsn {
            WireDsn::Short(low) => low,
            WireDsn::Long(all) => all as u32,
        };
        let start = *self.start.get_or_insert(dsn);
        Some((u64::from(dsn.wrapping_sub(start)), segment.payload.len() as u64))
    }
}

impl Observer for Watch {
    fn on_packet(&mut self, _: Instant, sighting: Sighting, packet: &Packet) {
        match sighting {
            Sighting::Sent { node, link: Some(link) } if node == self.server => {
                let Some(path) = self.down.iter().position(|down| *down == link) else { return };
                let Some((place, bytes)) = self.place(packet) else { return };
                self.sent.push(Sent { path, place, bytes });
                if path == WLAN {
                    *self.lost.entry(place).or_default() += 1;
                }
            }
            Sighting::Delivered { link, .. } if link == self.down[WLAN] => {
                if let Some((place, _)) = self.place(packet) {
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
