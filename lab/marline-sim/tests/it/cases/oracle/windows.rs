//! Window check: the end of every mapping is within the furthest edge that the receiver ever announced (DATA_ACK +
//! window, RFC 8684 section 3.3.1).
//!
//! Numbers are compared modulo 2^32, which windows below 2^31 allow. Mappings are checked only after the other side's
//! first DATA_ACK, because the edge announced by a SYN/ACK is relative to a number derived from keys. One connection
//! per world.

use std::collections::BTreeMap;

use marline_core::FourTuple;
use marline_time::Instant;
use marline_wire::mptcp::{DataAck, Dss, ExperimentalMessage, WireDsn};
use marline_wire::{TcpFlags, TcpSegment};

use marline_sim::{NodeId, ObservationPoint, Observer, Packet};

/// Watches one connection between two hosts.
#[derive(Debug, Default)]
pub struct Windows {
    /// Window scale each sender announced on each subflow.
    scales: BTreeMap<FourTuple, u8>,
    /// Furthest edge (low 32 bits) that each host announced.
    edges: BTreeMap<NodeId, u32>,
    mappings: u64,
    complaint: Option<String>,
}

impl Windows {
    /// A new check.
    #[must_use]
    pub fn new() -> Self {
        Windows::default()
    }

    /// Number of mappings checked so far. A check without mappings proves nothing.
    #[must_use]
    pub const fn mappings(&self) -> u64 {
        self.mappings
    }

    fn on_sent(&mut self, now: Instant, node: NodeId, packet: &Packet) {
        let Ok(segment) = TcpSegment::parse(&packet.segment) else {
            self.complain(format!("{now:?}: {node:?} sent an unparsable segment"));
            return;
        };
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::SYN) {
            let scale = segment.options.window_scale.unwrap_or(0).min(14);
            self.scales.insert(packet.path, scale);
            return;
        }
        if flags.contains(TcpFlags::RST) {
            return;
        }
        let scale = self.scales.get(&packet.path).copied().unwrap_or(0);
        let window = u32::from(segment.header.window) << scale;
        if let Some(dss) = segment.options.dss {
            self.on_dss(now, node, &dss, window);
        }
        for message in segment.options.mptcp.experimental() {
            // It maps nothing onto the stream, and acknowledges it like a DSS.
            if let ExperimentalMessage::Repair(repair) = message {
                self.note_edge(node, repair.data_ack.wrapping_add(window));
            }
        }
    }

    fn on_dss(&mut self, now: Instant, node: NodeId, dss: &Dss, window: u32) {
        if let Some(mapping) = dss.mapping.filter(|mapping| mapping.length > 0) {
            let start = match mapping.dsn {
                WireDsn::Short(low) => low,
                WireDsn::Long(all) => all as u32,
            };
            // The octet of a DATA_FIN needs no buffer space.
            let length = u32::from(mapping.length) - u32::from(dss.data_fin);
            self.judge(now, node, start.wrapping_add(length));
        }
        if let Some(ack) = dss.data_ack {
            let low = match ack {
                DataAck::Short(low) => low,
                DataAck::Long(all) => all as u32,
            };
            self.note_edge(node, low.wrapping_add(window));
        }
    }

    fn note_edge(&mut self, node: NodeId, edge: u32) {
        let furthest = self.edges.entry(node).or_insert(edge);
        if edge.wrapping_sub(*furthest) as i32 > 0 {
            *furthest = edge;
        }
    }

    fn judge(&mut self, now: Instant, sender: NodeId, end: u32) {
        let Some((_, edge)) = self.edges.iter().find(|(node, _)| **node != sender) else { return };
        self.mappings += 1;
        let beyond = end.wrapping_sub(*edge) as i32;
        if beyond > 0 {
            self.complain(format!("{now:?}: {sender:?} sent {beyond} bytes past the window"));
        }
    }

    fn complain(&mut self, words: String) {
        self.complaint.get_or_insert(words);
    }
}

impl Observer for Windows {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        if let ObservationPoint::Sent { node, .. } = sighting {
            self.on_sent(now, node, packet);
        }
    }

    fn verdict(&self) -> Result<(), String> {
        self.complaint.clone().map_or(Ok(()), Err)
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
