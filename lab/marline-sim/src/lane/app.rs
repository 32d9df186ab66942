//! Applications of datagrams: what sends at a pace of its own, and notes what arrives.

use core::any::Any;
use core::fmt::Debug;

use marline_datagram::{FlowId, Lane};
use marline_time::{Duration, Instant, PcgRng, Rng};

/// An application of one flow of datagrams.
pub trait DatagramApp: Debug {
    /// Its flow; that of its counterpart has the same number.
    fn flow(&self) -> FlowId;

    /// A datagram of its flow came in.
    fn on_datagram(&mut self, now: Instant, payload: &[u8]);

    /// Something may have changed, or its time has come: it may send.
    fn run(&mut self, now: Instant, lane: &mut Lane);

    /// When it wants to run.
    fn wakes_at(&self) -> Option<Instant>;

    /// For callers that want its report.
    fn as_any(&self) -> &dyn Any;
}

/// Plan of a call, or of a game: groups of datagrams of one size at a pace.
#[derive(Copy, Clone, Debug)]
pub struct PulsePlan {
    /// When it begins and ends.
    pub from: Instant,
    /// When it ends.
    pub until: Instant,
    /// Time between two groups: drawn between these.
    pub gap: (Duration, Duration),
    /// Datagrams of a group: drawn between these, ends included.
    pub group: (u32, u32),
    /// Bytes of a datagram, 8 at least.
    pub bytes: usize,
}

/// What was sent and what came.
#[derive(Clone, Debug, Default)]
pub struct PulseReport {
    /// When each datagram was handed to the lane.
    pub sent: Vec<Instant>,
    /// When each of the other end's arrived first, by number.
    pub arrived: Vec<Option<Instant>>,
    /// Datagrams that were delivered a second time.
    pub twice: u64,
    /// Datagrams that nobody sent.
    pub wrong: u64,
}

/// Sends at a pace of its own, and notes what comes from the other end.
#[derive(Debug)]
pub struct Pulse {
    flow: FlowId,
    plan: PulsePlan,
    rng: PcgRng,
    next_at: Instant,
    report: PulseReport,
    payload: Vec<u8>,
}

impl Pulse {
    /// One end; pace and groups are drawn from `rng`.
    #[must_use]
    pub fn new(flow: FlowId, plan: PulsePlan, rng: PcgRng) -> Self {
        let report = PulseReport::default();
        Pulse { flow, plan, rng, next_at: plan.from, report, payload: Vec::new() }
    }

    /// What it saw.
    #[must_use]
    pub const fn report(&self) -> &PulseReport {
        &self.report
    }

    fn send(&mut self, now: Instant, lane: &mut Lane) {
        let number = self.report.sent.len() as u64;
        self.payload.clear();
        self.payload.extend_from_slice(&number.to_be_bytes());
        self.payload.resize(self.plan.bytes.max(8), filler(number));
        self.report.sent.push(now);
        // One that is not taken is lost, as in any network.
        lane.send(now, self.flow, &self.payload).ok();
    }
}

const fn filler(number: u64) -> u8 {
    number as u8 ^ 0x5a
}

impl DatagramApp for Pulse {
    fn flow(&self) -> FlowId {
        self.flow
    }

    fn on_datagram(&mut self, now: Instant, payload: &[u8]) {
        let genuine = payload.split_first_chunk::<8>().and_then(|(number, rest)| {
            let number = u64::from_be_bytes(*number);
            let right = rest.iter().all(|byte| *byte == filler(number));
            (right && number < 1 << 24).then_some(number as usize)
        });
        let Some(number) = genuine else {
            self.report.wrong += 1;
            return;
        };
        if self.report.arrived.len() <= number {
            self.report.arrived.resize(number + 1, None);
        }
        let place = &mut self.report.arrived[number];
        self.report.twice += u64::from(place.is_some());
        *place = Some(place.unwrap_or(now));
    }

    fn run(&mut self, now: Instant, lane: &mut Lane) {
        while self.next_at <= now && now < self.plan.until {
            let (least, most) = self.plan.group;
            for _ in 0..u64::from(least) + self.rng.below(u64::from(most - least) + 1) {
                self.send(now, lane);
            }
            let (least, most) = self.plan.gap;
            self.next_at += least + (most - least).mul_f64(self.rng.unit());
        }
    }

    fn wakes_at(&self) -> Option<Instant> {
        (self.next_at < self.plan.until).then_some(self.next_at)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
