//! Signals that the client has received, which are its only evidence. Two conditions excuse it from detecting a dead
//! path:
//!
//! - It has not received a DSS. Until then it must not open another subflow (RFC 8684 section 3.1), and the connection
//!   ends with its only subflow.
//! - It was notified that nothing follows (MP_IDLE) and has all data. Then no receive timer runs, because silence is
//!   expected, and only its own keepalives could detect a dead path.

use marline_sim::{LinkId, NodeId, ObservationPoint, Observer, Packet};
use marline_time::Instant;
use marline_wire::mptcp::{ExperimentalMessage, MptcpOption, WireDsn};
use marline_wire::{TcpFlags, TcpSegment};

/// Observes the segments of a world's only connection that arrive at the client.
#[derive(Debug)]
pub(super) struct Heard {
    client: NodeId,
    dss: bool,
    /// The first byte that was mapped.
    first: Option<u32>,
    newest: Option<Newest>,
    /// The client's last SYN.
    asked_at: Instant,
}

/// End of the newest data that arrived.
#[derive(Copy, Clone, Debug)]
struct Newest {
    end: u32,
    /// True if it was marked as the last.
    idle: bool,
    /// Time and link of the last mapped data.
    at: Instant,
    link: LinkId,
}

impl Heard {
    pub(super) fn new(client: NodeId) -> Self {
        Heard { client, dss: false, first: None, newest: None, asked_at: Instant::ZERO }
    }

    /// True if the server showed that it supports Multipath TCP.
    pub(super) const fn confirmed(&self) -> bool {
        self.dss
    }

    /// The link of a client that has read this many bytes, was notified that these are all, and has not tried another
    /// path since.
    pub(super) fn promised_silence_on(&self, read: u64) -> Option<LinkId> {
        let newest = self.newest.filter(|newest| newest.idle && self.asked_at <= newest.at)?;
        (newest.end.wrapping_sub(self.first?) == read as u32).then_some(newest.link)
    }

    fn on_mapping(&mut self, start: u32, mut newest: Newest) {
        let is_after = |a: u32, b: u32| (a.wrapping_sub(b) as i32) > 0;
        self.first = Some(self.first.filter(|first| !is_after(*first, start)).unwrap_or(start));
        if let Some(known) = self.newest.filter(|known| !is_after(newest.end, known.end)) {
            newest.idle = known.idle || newest.idle && known.end == newest.end;
            newest.end = known.end;
        }
        self.newest = Some(newest);
    }
}

impl Observer for Heard {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        let Ok(segment) = TcpSegment::parse(&packet.segment) else { return };
        match sighting {
            ObservationPoint::Sent { node, .. }
                if node == self.client && segment.header.flags.contains(TcpFlags::SYN) =>
            {
                self.asked_at = now;
            }
            ObservationPoint::Delivered { node, link } if node == self.client => {
                let Some(dss) = segment.options.dss else { return };
                self.dss = true;
                let Some(mapping) = dss.mapping else { return };
                let length = u32::from(mapping.length).saturating_sub(u32::from(dss.data_fin));
                if length > 0 {
                    let start = match mapping.dsn {
                        WireDsn::Short(low) => low,
                        WireDsn::Long(full) => full as u32,
                    };
                    let mark = MptcpOption::Experimental(ExperimentalMessage::Idle.option());
                    let idle = segment.options.mptcp.iter().any(|option| option == mark);
                    let end = start.wrapping_add(length);
                    self.on_mapping(start, Newest { end, idle, at: now, link });
                }
            }
            _ => {}
        }
    }

    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
