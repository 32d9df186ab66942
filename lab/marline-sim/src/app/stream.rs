//! Sending and receiving in all applications: writes verifiable bytes and verifies those read.

use marline_core::{ReadError, WriteError};
use marline_time::Instant;

use super::{Report, Socket, SocketStatus};
use crate::content::MAX_PIECE;
use crate::{Content, Verifier};

/// Both directions of a connection, from the application's point of view.
#[derive(Debug)]
pub(super) struct Stream {
    content: Content,
    verifier: Verifier,
    scratch: Vec<u8>,
    pub(super) report: Report,
    released: bool,
}

impl Stream {
    const SCRATCH_BYTES: usize = 65_536;

    /// Writes the stream of one seed and expects that of the other.
    pub(super) fn new(write_seed: u64, read_seed: u64) -> Self {
        Stream {
            content: Content::new(write_seed),
            verifier: Verifier::new(read_seed),
            scratch: vec![0; Self::SCRATCH_BYTES],
            report: Report::default(),
            released: false,
        }
    }

    /// Records the connection's opening and closing. Returns `false` while there is nothing to do.
    pub(super) fn begin(&mut self, socket: &Socket<'_>) -> bool {
        match socket.status() {
            SocketStatus::Connecting => false,
            SocketStatus::Open => {
                self.report.opened_at.get_or_insert(socket.now());
                !self.released
            }
            SocketStatus::Closed(reason) => {
                self.report.closed.get_or_insert((socket.now(), reason));
                !self.released
            }
        }
    }

    /// Reads at most `limit` bytes. Returns their number.
    pub(super) fn read(&mut self, socket: &mut Socket<'_>, limit: u64) -> u64 {
        let mut total = 0;
        while total < limit && self.report.eof_at.is_none() {
            let room = (limit - total).min(Self::SCRATCH_BYTES as u64) as usize;
            match socket.read(&mut self.scratch[..room]) {
                Ok(0) => self.report.eof_at = Some(socket.now()),
                Ok(count) => {
                    self.verifier.verify(&self.scratch[..count]);
                    total += count as u64;
                }
                Err(ReadError::Blocked | ReadError::Closed(_) | ReadError::Unknown) => break,
            }
        }
        if total > 0 {
            self.report.on_read(socket.now(), total);
            self.report.wrong_at = self.verifier.wrong_at();
        }
        total
    }

    /// Writes until `target` bytes have been written in total. Returns true if they have been.
    pub(super) fn write_to(&mut self, socket: &mut Socket<'_>, target: u64) -> bool {
        const PIECE: u64 = MAX_PIECE as u64;
        while self.report.written < target {
            // Up to the next multiple, so that each chunk of the send buffer is contiguous.
            let piece_left = PIECE - self.report.written % PIECE;
            let length = piece_left.min(target - self.report.written) as usize;
            let piece = self.content.piece(self.report.written, length);
            match socket.write_static(piece) {
                Ok(count) => self.report.written += count as u64,
                Err(WriteError::Blocked) => return false,
                Err(WriteError::Shutdown | WriteError::Closed(_) | WriteError::Unknown) => {
                    return false;
                }
            }
        }
        true
    }

    /// Shuts down the write side, once.
    pub(super) fn shutdown(&mut self, socket: &mut Socket<'_>) {
        if self.report.shutdown_at.is_none() {
            self.report.shutdown_at = Some(socket.now());
            socket.shutdown();
        }
    }

    /// Releases the connection if both directions are finished or it has ended.
    pub(super) fn release_if_finished(&mut self, socket: &mut Socket<'_>) {
        let finished = self.report.eof_at.is_some() && self.report.shutdown_at.is_some();
        if !self.released && (finished || self.report.closed.is_some()) {
            self.released = true;
            socket.release();
        }
    }

    /// Returns `at`, unless the connection has ended or was released.
    pub(super) fn timer(&self, at: Instant) -> Option<Instant> {
        let over = self.released || self.report.closed.is_some();
        (!over && self.report.opened_at.is_some()).then_some(at)
    }
}
