//! Bulk transfer application: as many bytes as the connection accepts, in one or both directions.

use marline_time::Instant;

use super::stream::Stream;
use super::{App, Report, Socket};

/// Amount of data sent by one side.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Nothing: it shuts down the write side immediately.
    Nothing,
    /// This many bytes, then it shuts down.
    Bytes(u64),
    /// As much as the connection accepts until this time, then it shuts down.
    Until(Instant),
    /// As much as the connection accepts, without end.
    Endless,
}

/// Sends an amount and reads to the end.
#[derive(Debug)]
pub struct Bulk {
    amount: Amount,
    stream: Stream,
}

impl Bulk {
    /// Sends `amount` of the bytes of `write_seed`, and expects those of `read_seed`.
    #[must_use]
    pub fn new(amount: Amount, write_seed: u64, read_seed: u64) -> Self {
        Bulk { amount, stream: Stream::new(write_seed, read_seed) }
    }
}

impl App for Bulk {
    fn wake(&mut self, socket: &mut Socket<'_>) {
        if !self.stream.begin(socket) {
            return;
        }
        self.stream.read(socket, u64::MAX);
        let done = match self.amount {
            Amount::Nothing => true,
            Amount::Bytes(bytes) => self.stream.write_to(socket, bytes),
            Amount::Until(end) if socket.now() >= end => true,
            Amount::Until(_) | Amount::Endless => self.stream.write_to(socket, u64::MAX),
        };
        if done {
            self.stream.shutdown(socket);
        }
        self.stream.release_if_finished(socket);
    }

    fn next_timeout(&self) -> Option<Instant> {
        match self.amount {
            Amount::Until(end) if self.stream.report.shutdown_at.is_none() => {
                self.stream.timer(end)
            }
            _ => None,
        }
    }

    fn report(&self) -> &Report {
        &self.stream.report
    }
}
