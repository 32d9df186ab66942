//! Request-response application: one request after another, with a think time between them.

use marline_time::{Duration, Instant};

use super::stream::Stream;
use super::{App, Report, Socket};

/// Message sizes of an exchange in bytes. 0 counts as 1.
#[derive(Copy, Clone, Debug)]
pub struct ExchangeSizes {
    /// Size of a request.
    pub request_bytes: u64,
    /// Size of its answer.
    pub answer_bytes: u64,
}

/// Sends a request, waits for the whole response, pauses, and repeats.
#[derive(Debug)]
pub struct RequestResponse {
    requests: u64,
    request_bytes: u64,
    answer_bytes: u64,
    think_time: Duration,
    asked: u64,
    requested_at: Instant,
    next: Option<Instant>,
    stream: Stream,
}

impl RequestResponse {
    /// Sends `requests` requests of `sizes`, with a pause of `think_time` after each answer. The report's latencies
    /// are those of the answers.
    #[must_use]
    pub fn new(
        requests: u64,
        sizes: ExchangeSizes,
        think: Duration,
        write_seed: u64,
        read_seed: u64,
    ) -> Self {
        RequestResponse {
            requests,
            request_bytes: sizes.request_bytes.max(1),
            answer_bytes: sizes.answer_bytes.max(1),
            think_time: think,
            asked: 0,
            requested_at: Instant::ZERO,
            next: None,
            stream: Stream::new(write_seed, read_seed),
        }
    }
}

impl App for RequestResponse {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        let now = socket.now();
        self.stream.read(socket, u64::MAX);
        let answered = self.stream.report.read / self.answer_bytes;
        if answered > self.stream.report.latencies.len() as u64 {
            self.stream.report.latencies.push(now.since(self.requested_at));
            self.next = Some(now + self.think_time);
        }
        let may_ask = answered == self.asked && self.next.is_none_or(|next| next <= now);
        if may_ask && self.asked < self.requests {
            self.asked += 1;
            self.requested_at = now;
            self.next = None;
        }
        self.stream.write_to(socket, self.asked * self.request_bytes);
        if answered == self.requests {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let more = self.asked < self.requests;
        self.next.filter(|_| more).and_then(|next| self.stream.timer(next))
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}

/// Answers each request.
#[derive(Debug)]
pub struct ResponseServer {
    request_bytes: u64,
    answer_bytes: u64,
    stream: Stream,
}

impl ResponseServer {
    /// Creates the counterpart of a [`RequestResponse`] with these sizes.
    #[must_use]
    pub fn new(sizes: ExchangeSizes, write_seed: u64, read_seed: u64) -> Self {
        ResponseServer {
            request_bytes: sizes.request_bytes.max(1),
            answer_bytes: sizes.answer_bytes.max(1),
            stream: Stream::new(write_seed, read_seed),
        }
    }
}

impl App for ResponseServer {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        self.stream.read(socket, u64::MAX);
        let owed = self.stream.report.read / self.request_bytes * self.answer_bytes;
        if self.stream.write_to(socket, owed) && self.stream.report.eof_at.is_some() {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
