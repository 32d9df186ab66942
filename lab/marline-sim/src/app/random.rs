//! Random application: writes, reads, pauses and closes according to its seed.

use marline_time::{Duration, Instant, PcgRng, Rng};

use super::stream::Stream;
use super::{App, Report, Socket};

/// Limits of a random application.
#[derive(Copy, Clone, Debug)]
pub struct RandomPlan {
    /// Number of bytes written before shutdown.
    pub write_bytes: u64,
    /// Maximum number of bytes per write.
    pub write_bytes_max: u64,
    /// Maximum pause between two writes.
    pub write_pause_max: Duration,
    /// Maximum number of bytes read before a pause.
    pub read_bytes_max: u64,
    /// Maximum pause in reading.
    pub read_pause_max: Duration,
}

/// Writes and reads at random.
#[derive(Debug)]
pub struct Random {
    plan: RandomPlan,
    rng: PcgRng,
    stream: Stream,
    target: u64,
    next_write_at: Option<Instant>,
    /// Number of bytes to read before the next pause.
    bytes_until_pause: u64,
    next_read_at: Instant,
}

impl Random {
    /// Creates an application with these limits. `rng` drives its decisions.
    #[must_use]
    pub fn new(plan: RandomPlan, write_seed: u64, read_seed: u64, mut rng: PcgRng) -> Self {
        let appetite = 1 + rng.below(plan.read_bytes_max);
        Random {
            plan,
            rng,
            stream: Stream::new(write_seed, read_seed),
            target: 0,
            next_write_at: None,
            bytes_until_pause: appetite,
            next_read_at: Instant::ZERO,
        }
    }

    fn pause(&mut self, most: Duration) -> Duration {
        let most_us = most.as_micros() as u64;
        // Half of the pauses have no length, so that bursts also occur.
        let none = most_us == 0 || self.rng.chance(0.5);
        if none { Duration::ZERO } else { Duration::from_micros(self.rng.below(most_us)) }
    }

    fn read(&mut self, socket: &mut Socket<'_>) {
        let now = socket.now();
        if self.stream.report.closed.is_some() {
            // Arrived data must be read now, before the connection is released.
            self.stream.read(socket, u64::MAX);
            return;
        }
        while self.next_read_at <= now {
            let got = self.stream.read(socket, self.bytes_until_pause);
            self.bytes_until_pause -= got;
            if self.bytes_until_pause > 0 {
                break;
            }
            self.bytes_until_pause = 1 + self.rng.below(self.plan.read_bytes_max);
            self.next_read_at = now + self.pause(self.plan.read_pause_max);
        }
        self.stream.report.pausing = self.next_read_at > now;
    }

    fn write(&mut self, socket: &mut Socket<'_>) {
        let now = socket.now();
        while self.next_write_at.is_none_or(|at| at <= now) && self.target < self.plan.write_bytes {
            let more = 1 + self.rng.below(self.plan.write_bytes_max);
            self.target = (self.target + more).min(self.plan.write_bytes);
            self.next_write_at = Some(now + self.pause(self.plan.write_pause_max));
            if !self.stream.write_to(socket, self.target) {
                return;
            }
        }
        let all = self.target == self.plan.write_bytes;
        if self.stream.write_to(socket, self.target) && all {
            self.stream.shutdown(socket);
        }
    }
}

impl App for Random {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        self.read(socket);
        self.write(socket);
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let read = self.stream.report.pausing.then_some(self.next_read_at);
        let more = self.target < self.plan.write_bytes;
        let caught_up = self.stream.report.written == self.target;
        let write = self.next_write_at.filter(|_| more && caught_up);
        let due = [read, write].into_iter().flatten().min()?;
        self.stream.timer(due)
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
