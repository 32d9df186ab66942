//! Dialogue application: requests at given times, each written in pieces, as a voice assistant sends what it hears.
//! While too many requests are unanswered, due requests are skipped and counted.

use std::collections::VecDeque;

use marline_time::Instant;

use super::stream::Stream;
use super::{App, ExchangeSizes, Report, Socket};

/// A planned request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it is due.
    pub at: Instant,
    /// Lengths of its writes. Their sum must be the size of a request.
    pub pieces: Vec<u64>,
}

/// The requesting end; a [`ResponseServer`](super::ResponseServer) answers.
#[derive(Debug)]
pub struct Dialogue {
    requests: VecDeque<Request>,
    request_bytes: u64,
    answer_bytes: u64,
    /// Limit on unanswered bytes above which no request is made.
    unanswered_bytes: u64,
    /// Ends of writes that were not accepted completely.
    unwritten: VecDeque<u64>,
    /// Bytes of all requests made.
    asked: u64,
    stream: Stream,
}

impl Dialogue {
    /// Sends requests at the times in `requests`, and expects an answer of `sizes` to each. In the
    /// report, `sent` contains the time at which writing of each request began, `received` the time at which the last
    /// byte of each answer had been read, and `skipped` the number of skipped requests. Never shuts down by itself.
    #[must_use]
    pub fn new(
        requests: Vec<Request>,
        sizes: ExchangeSizes,
        unanswered_bytes: u64,
        write_seed: u64,
        read_seed: u64,
    ) -> Self {
        Dialogue {
            requests: requests.into(),
            request_bytes: sizes.request_bytes.max(1),
            answer_bytes: sizes.answer_bytes.max(1),
            unanswered_bytes,
            unwritten: VecDeque::new(),
            asked: 0,
            stream: Stream::new(write_seed, read_seed),
        }
    }

    fn ask(&mut self, request: &Request, now: Instant) {
        let answered = self.stream.report.read / self.answer_bytes * self.request_bytes;
        if self.asked - answered.min(self.asked) > self.unanswered_bytes {
            self.stream.report.skipped += 1;
            return;
        }
        self.stream.report.sent.push(now);
        for piece in &request.pieces {
            self.asked += piece;
            self.unwritten.push_back(self.asked);
        }
    }

    /// Writes pending data. Returns whether all of it was accepted.
    fn write(&mut self, socket: &mut Socket<'_>) -> bool {
        while let Some(end) = self.unwritten.front() {
            if !self.stream.write_to(socket, *end) {
                return false;
            }
            self.unwritten.pop_front();
        }
        true
    }
}

impl App for Dialogue {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        let now = socket.now();
        self.stream.read(socket, u64::MAX);
        let complete = (self.stream.report.read / self.answer_bytes) as usize;
        self.stream.report.received.resize(complete, now);
        while self.write(socket) {
            let Some(request) = self.requests.pop_front_if(|request| request.at <= now) else {
                break;
            };
            self.ask(&request, now);
        }
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let next = self.requests.front().filter(|_| self.unwritten.is_empty());
        next.and_then(|request| self.stream.timer(request.at))
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
