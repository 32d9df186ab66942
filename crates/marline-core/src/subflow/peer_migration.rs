//! Migration of the peer's end of a subflow to another address, after a NAT rebinding (RFC 9000 section 9.4). It
//! happens on the UDP carrier, but not in native TCP.
//!
//! If only the port changed, the path is probably the same, behind a NAT that lost its state, and the measurements
//! remain valid. Another address may be a different network, slower or with less capacity than the previous one, for
//! which the old window may be a hundred times too large.

use marline_policy::{CongestionFactory, RttEstimator, SentKind};
use marline_time::Instant;

use super::Subflow;
use super::loss::Frto;
use super::transmission::Probe;

impl Subflow {
    /// Resets the measurements of the path: initial window, unknown round trip, and the segment size that passes
    /// everywhere.
    pub(crate) fn reset_path_measurements(
        &mut self,
        now: Instant,
        congestion: &dyn CongestionFactory,
    ) {
        if self.is_dead || self.state.is_handshake() {
            return;
        }
        self.mtu.restart_search();
        self.apply_mss();
        let window = u64::from(self.config.initial_window) * u64::from(self.tx.mss);
        self.congestion = congestion.build(self.tx.mss, window, now);
        self.pacer = self.config.pacer(window);
        if self.tx.rto.carrier.is_reliable() {
            self.pacer.set_enabled(false);
        }
        self.pacer_wait.set(None);
        self.tx.rtt = RttEstimator::new(self.tx.rtt.shared_config());
        self.tx.undo = None;
        self.tx.frto = Frto::Off;
        self.rearm_rto(now);
    }

    /// Checks immediately which data arrived, because unacknowledged data was sent to the peer's old address. After a
    /// timeout, the timer fires again now. Otherwise a probe is sent, which does not reduce the window.
    pub(crate) fn retry_after_move(&mut self, now: Instant) {
        if self.is_dead || self.state.is_handshake() || self.tx.board.is_empty() {
            return;
        }
        if self.tx.rto.count > 0 {
            self.retry_now(now);
        } else if self.tx.board.bytes_lost() > 0 {
            self.tx.force = Some(SentKind::ProbeRepeat);
        } else {
            self.tx.probe = Probe::RepeatLast;
        }
    }
}
