//! Opaque bulk flow with its own congestion control, like a QUIC download through a tunnel.
//!
//! The outer lane only sees datagrams, some of 1,200 bytes and some of a few bytes. They are the frames of another
//! lane with one path: a sender with a window, a pacer, and loss recovery by packet numbers and acknowledgments, as in
//! RFC 9002. Lost data is counted but not sent again. New data is as good as repeated data here, so goodput is all
//! data that arrives.

use core::any::Any;

use marline_datagram::{Event, FlowId, Lane, LaneConfig, LaneIds, PathId, TestCipher};
use marline_policy::FlowClass;
use marline_time::Instant;

use super::app::DatagramApp;

const PATH: PathId = PathId(0);
const STREAM: FlowId = FlowId(0);
/// UDP payload of a full packet in bytes: the minimum that QUIC requires of a path.
const PACKET_BYTES: u16 = 1_200;
/// Payload of a full packet in bytes, and the number of queued bytes that keeps the window full.
const PAYLOAD_BYTES: usize = 1_150;
const QUEUED_BYTES: usize = 4 * PAYLOAD_BYTES;

/// Observations of one end.
#[derive(Clone, Debug, Default)]
pub struct QuicReport {
    /// Time and number of bytes of each payload arrival.
    pub arrived: Vec<(Instant, u32)>,
    /// Number of packets that the outer lane rejected.
    pub refused: u64,
}

/// One end of the flow.
#[derive(Debug)]
pub struct QuicLikeFlow {
    flow: FlowId,
    inner: Lane,
    /// Start and end of sending.
    sends: Option<(Instant, Instant)>,
    report: QuicReport,
    packet: Vec<u8>,
    payload: Vec<u8>,
}

impl QuicLikeFlow {
    /// Creates both ends of a flow, the sender first. The policy in `config` is not used.
    #[must_use]
    pub fn pair(
        flow: FlowId,
        config: &LaneConfig,
        from: Instant,
        until: Instant,
    ) -> [QuicLikeFlow; 2] {
        let mut config = config.clone();
        config.frame_bytes = (PACKET_BYTES, PACKET_BYTES);
        let [there, back] = TestCipher::pair(flow.0 ^ 0x71c9);
        let end = |ids, keys, sends| {
            let mut inner = Lane::new(config.clone(), ids, keys, from);
            inner.add_path(PATH, from);
            inner.set_flow_class(STREAM, FlowClass::Bulk, from);
            let (packet, payload) = (Vec::new(), vec![0; PAYLOAD_BYTES]);
            QuicLikeFlow { flow, inner, sends, report: QuicReport::default(), packet, payload }
        };
        let near = LaneIds { local: 1, peers: 2 };
        let far = LaneIds { local: 2, peers: 1 };
        [end(near, there, Some((from, until))), end(far, back, None)]
    }

    /// Observations so far.
    #[must_use]
    pub const fn report(&self) -> &QuicReport {
        &self.report
    }
}

impl DatagramApp for QuicLikeFlow {
    fn flow(&self) -> FlowId {
        self.flow
    }

    fn on_datagram(&mut self, now: Instant, payload: &[u8]) {
        self.packet.clear();
        self.packet.extend_from_slice(payload);
        self.inner.handle(now, PATH, &mut self.packet);
        while let Some(event) = self.inner.poll_event() {
            if let Event::Datagram { payload, .. } = event {
                self.report.arrived.push((now, payload.len() as u32));
            }
        }
    }

    fn run(&mut self, now: Instant, lane: &mut Lane) {
        if self.inner.poll_timeout().is_some_and(|at| at <= now) {
            self.inner.handle_timeout(now);
        }
        let sends = self.sends.is_some_and(|(from, until)| from <= now && now < until);
        loop {
            while sends && self.inner.queued_bytes() < QUEUED_BYTES {
                self.inner.send(now, STREAM, &self.payload).ok();
            }
            if self.inner.poll_transmit(now, &mut self.packet).is_none() {
                return;
            }
            let taken = lane.send(now, self.flow, &self.packet);
            self.report.refused += u64::from(taken.is_err());
        }
    }

    fn wakes_at(&self) -> Option<Instant> {
        let begins =
            self.sends.map(|(from, _)| from).filter(|_| self.inner.stats().sent_bytes == 0);
        self.inner.poll_timeout().into_iter().chain(begins).min()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
