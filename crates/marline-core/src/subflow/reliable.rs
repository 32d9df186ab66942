//! Reliable carrier beneath a subflow: a TCP connection of the kernel, where a network lets no UDP through.
//!
//! *Problem.* TCP over TCP (<http://sites.inka.de/bigred/devel/tcp-tcp.html>): the carrier repeats what was lost, and
//! all that is behind it waits. To the subflow above that looks like a path on which nothing is acknowledged; it
//! repeats what is on its way already, and more so the longer the carrier needs. Besides, its congestion window grows
//! without end, since nothing is ever lost, and what it sends piles up in the carrier's buffer.
//!
//! What the carrier does is therefore left to it. Timers repeat nothing on such a path before a time in which a
//! living TCP has repaired nearly everything; an overdue probe still says that the path is slow, so that others may
//! take over. Detection of losses by what was acknowledged stays: bytes come in their order, so a hole is a hole, left
//! by a change of carrier. The window is as large as the carrier takes, and shut while it takes nothing: its own
//! congestion control governs the path, and its buffer is short (`marline-io`). There is no pacing for the same reason.
//!
//! A change of carrier is met as a move to another network (`moved.rs`): what was measured no longer holds.

use marline_policy::CongestionFactory;
use marline_time::{Duration, Instant};

use super::Subflow;

/// Least retransmission timeout on a reliable carrier. Below it TCP repeats the same bytes after 0.2, 0.6, 1.4 and
/// 3 s (RFC 6298 with Linux' minimum): a later success is rarer than a broken connection.
const LEAST_RTO: Duration = Duration::from_secs(3);
/// Bytes that may be handed to a carrier that takes them, between two looks at whether it does.
const ROOM: u64 = 32 << 10;

/// What carries the segments of a subflow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Beneath {
    /// Datagrams, each for itself.
    #[default]
    Datagrams,
    /// A reliable stream that takes more.
    Stream,
    /// A reliable stream that takes no more for now.
    FullStream,
}

impl Beneath {
    pub(super) const fn is_reliable(self) -> bool {
        !matches!(self, Beneath::Datagrams)
    }

    /// Shortest retransmission timeout.
    pub(super) const fn least_rto(self) -> Duration {
        if self.is_reliable() { LEAST_RTO } else { Duration::ZERO }
    }
}

impl Subflow {
    /// It is carried by a reliable stream from now on, or by datagrams.
    pub(crate) fn set_reliable(
        &mut self,
        now: Instant,
        reliable: bool,
        congestion: &dyn CongestionFactory,
    ) {
        if reliable == self.tx.rto.beneath.is_reliable() {
            return;
        }
        self.tx.rto.beneath = if reliable { Beneath::Stream } else { Beneath::Datagrams };
        self.pacer.set_enabled(self.config.pacing && !reliable);
        self.start_afresh(now, congestion);
    }

    /// The stream that carries it takes nothing now, or does again.
    pub(crate) fn set_carrier_full(&mut self, full: bool) {
        if self.tx.rto.beneath.is_reliable() {
            self.tx.rto.beneath = if full { Beneath::FullStream } else { Beneath::Stream };
        }
    }

    /// The congestion window in force, in bytes.
    pub(crate) fn cwnd(&self) -> u64 {
        let (window, in_flight) = (self.congestion.window(), self.tx.board.bytes_in_flight());
        match self.tx.rto.beneath {
            Beneath::Datagrams => window,
            Beneath::Stream => window.max(in_flight + self.tx.board.bytes_lost() + ROOM),
            Beneath::FullStream => in_flight,
        }
    }
}
