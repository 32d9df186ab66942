//! Migration of the peer's end of a subflow to another address, after a NAT rebinding (RFC 9000
//! section 9.4). It does not exist in native TCP; on the UDP carrier it happens.
//!
//! Another port at the same address is most probably the same path, seen through a translator that forgot
//! it: what was measured holds. Another address may be another network altogether, slower or thinner than
//! the one before, and a window that was right there may be a hundred times too large here.

use marline_policy::{CongestionFactory, RttEstimator, SentKind};
use marline_time::Instant;

use super::Subflow;
use super::rto::Frto;
use super::transmission::Probe;

impl Subflow {
    /// Forgets what was measured of the path: the window is the initial one, the round trip unknown, the
    /// segment size the one that passes everywhere.
    pub(crate) fn start_afresh(&mut self, now: Instant, congestion: &dyn CongestionFactory) {
        if self.dead || self.state.is_handshake() {
            return;
        }
        self.mtu.start_again();
        self.apply_mss();
        let window = u64::from(self.config.initial_window) * u64::from(self.tx.mss);
        self.congestion = congestion.build(self.tx.mss, window, now);
        self.pacer = self.config.pacer(window);
        if self.tx.rto.beneath.is_reliable() {
            self.pacer.set_enabled(false);
        }
        self.pacer_wait.set(None);
        self.tx.rtt = RttEstimator::new(self.tx.rtt.shared_config());
        self.tx.undo = None;
        self.tx.frto = Frto::Off;
        self.rearm_rto(now);
    }

    /// What is unacknowledged went to where the peer is no more: asks at once what arrived. A timeout that
    /// has struck already strikes again now; else a probe will tell, without the reduction of a timeout.
    pub(crate) fn repeat_at_once(&mut self, now: Instant) {
        if self.dead || self.state.is_handshake() || self.tx.board.is_empty() {
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
