//! Exponential backoff with jitter between attempts.

use std::time::Duration;

use ring::rand::SecureRandom;
use tokio::time::{Instant, sleep};

const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);

/// Pauses between the attempts of one request.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: Duration,
    until: Instant,
}

impl Backoff {
    /// Allows attempts for `patience`, starting now.
    pub(super) fn new(patience: Duration) -> Backoff {
        Backoff { pause: FIRST_DELAY, until: Instant::now() + patience }
    }

    /// Waits until the next attempt. Returns `false` if that would be too late.
    pub(super) async fn wait_for_next(&mut self) -> bool {
        // Waits between half the pause and all of it, so that requests refused together are not retried together.
        let mut random = [0];
        // Without randomness, all wait equally long.
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        let pause = self.pause.mul_f64(0.5 + f64::from(random[0]) / 512.0);
        self.pause = (self.pause * 2).min(MAX_DELAY);
        if Instant::now() + pause >= self.until {
            return false;
        }
        sleep(pause).await;
        true
    }
}
