//! Echo application: small messages at a steady rate, as from typing or a game. Measures the time until each one
//! returns.

use marline_time::{Duration, Instant};

use super::stream::Stream;
use super::{App, Report, Socket};

/// Sends a message every interval, whether or not earlier ones have returned.
#[derive(Debug)]
pub struct Echo {
    message_bytes: u64,
    interval: Duration,
    messages: u64,
    sent_at: Vec<Instant>,
    next: Option<Instant>,
    stream: Stream,
}

impl Echo {
    /// Sends `messages` messages of `message_bytes` (at least 1), one every `interval`, the first on connecting. A
    /// message's latency counts from the time at which it was due, so that a blocked connection does not hide its
    /// delay.
    #[must_use]
    pub fn new(message_bytes: u64, interval: Duration, messages: u64, seed: u64) -> Self {
        Echo {
            message_bytes: message_bytes.max(1),
            interval,
            messages,
            sent_at: Vec::new(),
            next: None,
            stream: Stream::new(seed, seed),
        }
    }
}

impl App for Echo {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        let now = socket.now();
        self.stream.read(socket, u64::MAX);
        let complete = (self.stream.report.read / self.message_bytes) as usize;
        for index in self.stream.report.latencies.len()..complete.min(self.sent_at.len()) {
            self.stream.report.latencies.push(now.since(self.sent_at[index]));
        }
        let mut next = self.next.unwrap_or(now);
        while next <= now && (self.sent_at.len() as u64) < self.messages {
            self.sent_at.push(next);
            next += self.interval.max(Duration::from_nanos(1));
        }
        self.next = Some(next);
        self.stream.write_to(socket, self.sent_at.len() as u64 * self.message_bytes);
        if complete as u64 == self.messages {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let more = (self.sent_at.len() as u64) < self.messages;
        self.next.filter(|_| more).and_then(|next| self.stream.timer(next))
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}

/// Sends back what it reads.
#[derive(Debug)]
pub struct EchoServer {
    stream: Stream,
}

impl EchoServer {
    /// Expects and writes the bytes of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        EchoServer { stream: Stream::new(seed, seed) }
    }
}

impl App for EchoServer {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        self.stream.read(socket, u64::MAX);
        let owed = self.stream.report.read;
        if self.stream.write_to(socket, owed) && self.stream.report.eof_at.is_some() {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
