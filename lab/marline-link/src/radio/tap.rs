//! Radio of a link, shared by both directions.

use std::sync::{Arc, Mutex, PoisonError};

use marline_time::Instant;

use super::Radio;
use crate::{Direction, RadioConfig};

/// A link direction's access to its radio.
#[derive(Clone, Debug)]
pub(crate) struct RadioTap {
    config: RadioConfig,
    /// Radio shared with the other direction. One thread calls both, so the lock never blocks.
    radio: Arc<Mutex<Radio>>,
}

impl RadioTap {
    pub(crate) fn new(config: RadioConfig, start: Instant) -> Self {
        RadioTap { config, radio: Arc::new(Mutex::new(Radio::new(config.parameters, start))) }
    }

    /// Makes both directions use the radio of `other`, if it is of the same kind.
    pub(crate) fn share_radio(&mut self, other: &RadioTap) {
        if self.config.parameters == other.config.parameters {
            self.radio = Arc::clone(&other.radio);
        }
    }

    /// Wakes the radio for a packet. Returns the time at which the packet can leave.
    pub(crate) fn wake(&self, now: Instant) -> Instant {
        let ready = self.with_radio(|radio| radio.wake(now));
        if self.config.waits { ready.max(now) } else { now }
    }

    /// Records a departed packet.
    pub(crate) fn record_departure(&self, now: Instant, bytes: u64) {
        let direction: Direction = self.config.direction;
        self.with_radio(|radio| radio.packet(now, direction, bytes));
    }

    /// A copy of the radio's state.
    pub(crate) fn snapshot(&self) -> Radio {
        self.with_radio(|radio| *radio)
    }

    fn with_radio<T>(&self, act: impl FnOnce(&mut Radio) -> T) -> T {
        // The machine's numbers are consistent even if a thread panicked while holding the lock.
        act(&mut self.radio.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
