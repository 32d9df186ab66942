//! State machine of a radio over time, with its power draw.

use marline_time::{Duration, Instant, nanos};

use super::{Energy, RadioParameters, RadioReading};
use crate::Direction;

/// State of a radio.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RadioState {
    /// Asleep, except for short paging intervals.
    Idle,
    /// Waking up, not yet able to send.
    Promotion,
    /// Transferring packets.
    Transfer,
    /// Connected and waiting for more packets, in the tail state with this index.
    Tail(u8),
}

impl RadioState {
    /// The state's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RadioState::Idle => "idle",
            RadioState::Promotion => "promotion",
            RadioState::Transfer => "transfer",
            RadioState::Tail(_) => "tail",
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle { since: Instant },
    Promotion { until: Instant },
    Connected { last_packet: Instant },
}

/// State machine of one radio. For every packet, it computes when the packet can leave and how much energy was drawn.
/// A time in the past is replaced with the latest known time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Radio {
    parameters: RadioParameters,
    phase: Phase,
    /// Energy up to this time is included in `energy`.
    accounted: Instant,
    energy: Energy,
}

impl Radio {
    /// Creates a radio that is idle at `start`.
    #[must_use]
    pub const fn new(parameters: RadioParameters, start: Instant) -> Self {
        let energy = Energy::NONE;
        Radio { parameters, phase: Phase::Idle { since: start }, accounted: start, energy }
    }

    /// Parameters of the radio.
    #[must_use]
    pub const fn parameters(&self) -> &RadioParameters {
        &self.parameters
    }

    /// Wakes the radio for sending. An idle radio starts its promotion, and a radio in its tail restarts the tail.
    /// Returns the time at which a packet can leave (`now` without a wait).
    pub fn wake(&mut self, now: Instant) -> Instant {
        self.advance(now);
        let now = self.accounted;
        match self.phase {
            Phase::Idle { .. } => {
                self.energy.promotions += 1;
                let until = now + self.parameters.promotion.lasts;
                self.phase = Phase::Promotion { until };
                until
            }
            Phase::Promotion { until } => until,
            Phase::Connected { .. } => {
                self.phase = Phase::Connected { last_packet: now };
                now
            }
        }
    }

    /// Records a packet of `bytes` bytes, and calls [`Radio::wake`] if that was not done before.
    pub fn packet(&mut self, now: Instant, direction: Direction, bytes: u64) -> Instant {
        let ready = self.wake(now);
        let per_byte = match direction {
            Direction::Up => self.parameters.up_fj_per_byte,
            Direction::Down => self.parameters.down_fj_per_byte,
        };
        self.energy.bytes_fj += u128::from(bytes) * u128::from(per_byte);
        self.energy.packets += 1;
        ready
    }

    /// The state at `now`, which must not be before the latest packet.
    #[must_use]
    pub fn state(&self, now: Instant) -> RadioState {
        let mut later = *self;
        later.advance(now);
        later.current_state().0
    }

    /// Energy drawn until `now`, or until the latest packet if that is later.
    #[must_use]
    pub fn energy(&self, now: Instant) -> Energy {
        let mut later = *self;
        later.advance(now);
        later.energy
    }

    /// Like [`Radio::energy`], with the radio's kind.
    #[must_use]
    pub fn reading(&self, now: Instant) -> RadioReading {
        let (kind, state) = (self.parameters.kind, self.state(now));
        RadioReading { kind, state, energy: self.energy(now) }
    }

    /// Accounts for everything until `now`.
    fn advance(&mut self, now: Instant) {
        while self.accounted < now {
            let (state, until, power_uw) = self.current_state();
            let to = until.min(now);
            let spent = nanos(to.since(self.accounted));
            let drawn = u128::from(spent) * u128::from(power_uw);
            match state {
                RadioState::Idle => {
                    self.energy.idle_fj += u128::from(self.listening_ns(to)) * u128::from(power_uw);
                    self.energy.idle_time += Duration::from_nanos(spent);
                }
                RadioState::Promotion => self.energy.promotion_fj += drawn,
                RadioState::Transfer => self.energy.transfer_fj += drawn,
                RadioState::Tail(_) => self.energy.tail_fj += drawn,
            }
            self.accounted = to;
            self.enter_phase();
        }
    }

    /// The current state, the time of its end, and its power in microwatts. The idle state has no end, and its power
    /// is that of listening.
    fn current_state(&self) -> (RadioState, Instant, u64) {
        let p = &self.parameters;
        match self.phase {
            Phase::Idle { .. } => (RadioState::Idle, Instant::FAR_FUTURE, p.idle_listen.power_uw),
            Phase::Promotion { until } => (RadioState::Promotion, until, p.promotion.power_uw),
            Phase::Connected { last_packet } => {
                let held = last_packet + p.transfer_hold.min(p.tail());
                let first = last_packet + p.tails[0].lasts;
                if self.accounted < held {
                    (RadioState::Transfer, held, p.transfer_power_uw)
                } else if self.accounted < first {
                    (RadioState::Tail(0), first, p.tails[0].power_uw)
                } else {
                    (RadioState::Tail(1), last_packet + p.tail(), p.tails[1].power_uw)
                }
            }
        }
    }

    /// Enters the phase that begins at `accounted`.
    fn enter_phase(&mut self) {
        match self.phase {
            Phase::Promotion { until } if until <= self.accounted => {
                self.phase = Phase::Connected { last_packet: until };
            }
            Phase::Connected { last_packet } => {
                let end = last_packet + self.parameters.tail();
                if end <= self.accounted {
                    self.phase = Phase::Idle { since: end };
                }
            }
            _ => {}
        }
    }

    /// Nanoseconds for which an idle radio listens between `accounted` and `to`. It listens at the end of each cycle.
    fn listening_ns(&self, to: Instant) -> u64 {
        let Phase::Idle { since } = self.phase else { return 0 };
        let cycle = nanos(self.parameters.idle_cycle).max(1);
        let listens = nanos(self.parameters.idle_listen.lasts).min(cycle);
        let until = |time: Instant| {
            let idle = nanos(time.since(since));
            idle / cycle * listens + (idle % cycle).saturating_sub(cycle - listens)
        };
        until(to) - until(self.accounted)
    }
}
