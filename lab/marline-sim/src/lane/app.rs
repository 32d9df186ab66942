//! Datagram applications, which send at their own pace and record arriving datagrams.

use core::any::Any;
use core::fmt::Debug;

use marline_datagram::{FlowId, Lane};
use marline_time::{Duration, Instant, PcgRng, Rng};

/// An application with one flow of datagrams.
pub trait DatagramApp: Debug {
    /// Flow id, which the other end also uses.
    fn flow(&self) -> FlowId;

    /// Processes a datagram of its flow.
    fn on_datagram(&mut self, now: Instant, payload: &[u8]);

    /// Called after a possible change or at [`wakes_at`](Self::wakes_at). May send datagrams.
    fn run(&mut self, now: Instant, lane: &mut Lane);

    /// Time at which the application must run next.
    fn wakes_at(&self) -> Option<Instant>;

    /// Returns self for access to the concrete type and its report.
    fn as_any(&self) -> &dyn Any;
}

/// Traffic pattern of a call or a game: groups of datagrams of one size at random intervals.
#[derive(Copy, Clone, Debug)]
pub struct PulsePlan {
    /// Start of sending.
    pub from: Instant,
    /// End of sending.
    pub until: Instant,
    /// Minimum and maximum of the random time between two groups.
    pub gap: (Duration, Duration),
    /// Minimum and maximum of the random number of datagrams in a group.
    pub group: (u32, u32),
    /// Size of a datagram in bytes, at least 8.
    pub bytes: usize,
}

/// Record of sent and received datagrams.
#[derive(Clone, Debug, Default)]
pub struct PulseReport {
    /// Time at which each datagram was passed to the lane.
    pub sent: Vec<Instant>,
    /// Time at which each of the other end's datagrams first arrived, by number.
    pub arrived: Vec<Option<Instant>>,
    /// Number of datagrams delivered a second time.
    pub twice: u64,
    /// Number of received datagrams that had never been sent.
    pub wrong: u64,
}

/// Sends at its own pace and records datagrams from the other end.
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
    /// Creates one end. Pace and groups are drawn from `rng`.
    #[must_use]
    pub fn new(flow: FlowId, plan: PulsePlan, rng: PcgRng) -> Self {
        let report = PulseReport::default();
        Pulse { flow, plan, rng, next_at: plan.from, report, payload: Vec::new() }
    }

    /// Record of the datagrams so far.
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
        // A rejected datagram is lost, as in any network.
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
