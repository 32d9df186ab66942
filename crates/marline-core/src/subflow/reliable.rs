//! Reliable carrier beneath a subflow: a kernel TCP connection, for networks that block UDP.
//!
//! *Problem.* TCP over TCP (<http://sites.inka.de/bigred/devel/tcp-tcp.html>): the carrier retransmits lost data, and
//! all later data waits. To the subflow above that looks like a path on which nothing is acknowledged. It retransmits
//! data that is already in flight, and retransmits more the longer the carrier takes. In addition, its congestion
//! window grows without limit, because nothing is ever lost, and its data accumulates in the carrier's buffer.
//!
//! Retransmission is therefore left to the carrier. On such a path, timers retransmit nothing until a working TCP would
//! have repaired nearly all losses. An overdue probe still shows that the path is slow, so that other paths may take
//! over. Losses are still detected from acknowledgments: bytes arrive in order, so a gap is real, and was left by a
//! change of carrier. The window is as large as the carrier accepts, and closed while it accepts nothing, because the
//! carrier's congestion control governs the path, and its buffer is short (`marline-io`). For this reason, there is no
//! pacing either.
//!
//! A change of carrier is handled like a move to another network (`peer_migration.rs`): the measurements no longer
//! hold.

use marline_policy::CongestionFactory;
use marline_time::{Duration, Instant};

use super::Subflow;

/// Minimum retransmission timeout on a reliable carrier. The carrier's TCP repeats the bytes after 0.2, 0.6, 1.4 and
/// 3 s (RFC 6298 with Linux's minimum). After that, a broken connection is more likely than a late success.
const MIN_RELIABLE_RTO: Duration = Duration::from_secs(3);
/// Number of bytes that may be passed, between two checks, to a carrier that accepts data.
const CARRIER_ROOM: u64 = 32 << 10;

/// Carrier of a subflow's segments.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SegmentCarrier {
    /// Independent datagrams.
    #[default]
    Datagrams,
    /// A reliable stream that accepts more data.
    Stream,
    /// A reliable stream that currently accepts no more data.
    FullStream,
}

impl SegmentCarrier {
    pub(super) const fn is_reliable(self) -> bool {
        !matches!(self, SegmentCarrier::Datagrams)
    }

    /// Minimum retransmission timeout.
    pub(super) const fn least_rto(self) -> Duration {
        if self.is_reliable() { MIN_RELIABLE_RTO } else { Duration::ZERO }
    }
}

impl Subflow {
    /// Switches to a reliable stream, or to datagrams.
    pub(crate) fn set_reliable(
        &mut self,
        now: Instant,
        reliable: bool,
        congestion: &dyn CongestionFactory,
    ) {
        if reliable == self.tx.rto.carrier.is_reliable() {
            return;
        }
        self.tx.rto.carrier =
            if reliable { SegmentCarrier::Stream } else { SegmentCarrier::Datagrams };
        self.pacer.set_enabled(self.config.pacing && !reliable);
        self.reset_path_measurements(now, congestion);
    }

    /// Records whether the stream accepts data.
    pub(crate) fn set_carrier_full(&mut self, full: bool) {
        if self.tx.rto.carrier.is_reliable() {
            self.tx.rto.carrier =
                if full { SegmentCarrier::FullStream } else { SegmentCarrier::Stream };
        }
    }

    /// Congestion window in bytes.
    pub(crate) fn cwnd(&self) -> u64 {
        let (window, in_flight) = (self.congestion.window(), self.tx.board.bytes_in_flight());
        match self.tx.rto.carrier {
            SegmentCarrier::Datagrams => window,
            SegmentCarrier::Stream => {
                window.max(in_flight + self.tx.board.bytes_lost() + CARRIER_ROOM)
            }
            SegmentCarrier::FullStream => in_flight,
        }
    }
}
