//! One direction of a relay: the link model for datagrams with their flow.

use marline_link::radio::RadioReading;
use marline_link::{Link, LinkConfig, Packet};
use marline_time::{Duration, Instant, SeedTree};
use quinn_udp::EcnCodepoint;

use crate::report::{DirectionReport, Micros};

/// Key of a client's flow; the generation distinguishes it from a later flow in the same slot.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A datagram on the link.
#[derive(Clone, Debug)]
pub(crate) struct LinkDatagram {
    pub(crate) flow: FlowKey,
    pub(crate) ecn: Option<EcnCodepoint>,
    /// Size of the IP and UDP headers below the payload in bytes.
    pub(crate) headers: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Packet for LinkDatagram {
    fn wire_len(&self) -> usize {
        self.headers + self.bytes.len()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn tcp_mut(&mut self) -> Option<&mut [u8]> {
        // A datagram between sockets does not contain its headers, so its bytes are not an IP packet.
        if self.headers == 0 { marline_link::find_tcp(&mut self.bytes) } else { None }
    }

    fn with_tcp(&self, segment: &[u8]) -> Option<Self> {
        let bytes = marline_link::replace_tcp(&self.bytes, segment, false)?;
        Some(LinkDatagram { bytes, ..self.clone() })
    }

    fn answer(&self, segment: &[u8]) -> Option<Self> {
        let bytes = marline_link::replace_tcp(&self.bytes, segment, true)?;
        Some(LinkDatagram { bytes, ..self.clone() })
    }

    fn too_big(&self, mtu_bytes: u32) -> Option<Self> {
        // Between sockets no ICMP error can be sent: the kernel handles ICMP.
        let whole = self.headers == 0;
        let bytes = whole.then(|| marline_link::make_packet_too_big(&self.bytes, mtu_bytes))??;
        Some(LinkDatagram { bytes, ..self.clone() })
    }
}

/// One direction: the link, and timing statistics of the emulating host.
#[derive(Debug)]
pub(crate) struct Lane {
    link: Link<LinkDatagram>,
    /// The latest time passed to the link, whose clock must not go back.
    clock: Instant,
    waited: Micros,
    late: Micros,
    pub(crate) send_errors: u64,
    pub(crate) send_blocked: u64,
}

impl Lane {
    pub(crate) fn new(config: LinkConfig, seeds: &SeedTree, start: Instant) -> Self {
        Lane {
            link: Link::new(config, seeds, start),
            clock: start,
            waited: Micros::new(),
            late: Micros::new(),
            send_errors: 0,
            send_blocked: 0,
        }
    }

    /// Offers a packet to the link. `age` is the time since it reached the machine, if known.
    pub(crate) fn offer(&mut self, now: Instant, age: Option<Duration>, parcel: LinkDatagram) {
        age.iter().for_each(|age| self.waited.record(*age));
        self.clock = self.clock.max(now - age.unwrap_or_default());
        self.link.offer(self.clock, parcel);
    }

    /// Takes a packet that a middlebox on this link, or a router in front of it, sends back.
    pub(crate) fn take_answer(&mut self) -> Option<LinkDatagram> {
        self.link.take_answer()
    }

    /// Takes the next datagram that is due, with its due time.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(Instant, LinkDatagram)> {
        self.clock = self.clock.max(now);
        self.link.poll_timed(self.clock)
    }

    /// Time of the next poll.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.link.next_event()
    }

    /// Takes a dropped datagram, whose memory can be reused.
    pub(crate) fn take_dropped(&mut self) -> Option<LinkDatagram> {
        self.link.take_dropped()
    }

    /// Makes both directions of a link share one radio.
    pub(crate) fn share_radio(&mut self, other: &Lane) {
        self.link.share_radio(&other.link);
    }

    /// Energy drawn by the radio until `now`.
    pub(crate) fn radio(&self, now: Instant) -> Option<RadioReading> {
        Some(self.link.radio()?.reading(now))
    }

    pub(crate) fn set_up(&mut self, now: Instant, up: bool) {
        self.clock = self.clock.max(now);
        self.link.set_up(self.clock, up);
    }

    pub(crate) fn set_config(&mut self, now: Instant, config: LinkConfig) {
        self.clock = self.clock.max(now);
        self.link.set_config(self.clock, config);
    }

    /// Records that a datagram due at `due` was sent at `now`.
    pub(crate) fn sent(&mut self, due: Instant, now: Instant) {
        self.late.record(now.since(due));
    }

    pub(crate) fn report(&self) -> DirectionReport {
        DirectionReport {
            stats: *self.link.stats(),
            up: self.link.is_up(),
            queued_bytes: self.link.queued_bytes(),
            waited: self.waited.summary(),
            late: self.late.summary(),
            send_errors: self.send_errors,
            send_blocked: self.send_blocked,
        }
    }
}
