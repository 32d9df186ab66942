//! Opening handshake: SYN-SENT and SYN-RECEIVED (RFC 9293 sections 3.5 and 3.10.7).

use std::sync::Arc;

use marline_policy::{CongestionFactory, Expected, RecoveryFactory, Ssn};
use marline_time::{Duration, Instant};
use marline_wire::{TcpFlags, TcpSegment};

use super::ecn::EcnState;
use super::loss::RtoTimer;
use super::state::State;
use super::{Ingress, InitialValues, Rst, Subflow, SubflowConfig, SubflowEvent};
use crate::{Ecn, FourTuple, SubflowState};

/// MSS of a peer without an MSS option (RFC 9293 section 3.7.1, IPv4).
pub(crate) const DEFAULT_MSS: u16 = 536;
/// Smallest MSS accepted: room for all options and 8 bytes of payload (Linux: `tcp_min_snd_mss`). A host has to
/// accept 536 bytes (RFC 9293 section 3.7.1), so a request for segments without payload is an attack.
const MIN_MSS: u16 = 48;

impl Subflow {
    /// Opens a subflow with a pending SYN.
    pub(crate) fn connect(
        now: Instant,
        config: Arc<SubflowConfig>,
        path: FourTuple,
        start: InitialValues,
        congestion: &dyn CongestionFactory,
        recovery: &dyn RecoveryFactory,
    ) -> Subflow {
        let mut subflow = Subflow::new(now, config, path, start, congestion, recovery);
        subflow.pending.syn = true;
        subflow
    }

    /// Answers a SYN with a pending SYN/ACK.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parameters of connect, plus the SYN and its ECN field"
    )]
    pub(crate) fn accept(
        now: Instant,
        config: Arc<SubflowConfig>,
        path: FourTuple,
        start: InitialValues,
        syn: &TcpSegment<'_>,
        ecn: Ecn,
        congestion: &dyn CongestionFactory,
        recovery: &dyn RecoveryFactory,
    ) -> Subflow {
        let mut subflow = Subflow::new(now, config, path, start, congestion, recovery);
        subflow.state = State::syn_received();
        subflow.take_syn(now, syn);
        subflow.ecn.negotiated =
            subflow.config.ecn && EcnState::offered(syn.header.flags) && ecn == Ecn::NotEct;
        subflow.pending.syn = true;
        subflow
    }

    /// Reads the peer's SYN or SYN/ACK.
    fn take_syn(&mut self, now: Instant, segment: &TcpSegment<'_>) {
        let options = &segment.options;
        self.peer_scales = options.window_scale.is_some();
        self.irs = segment.header.seq;
        self.rx.nxt = Ssn(1);
        self.rx.delivered_to = Ssn(1);
        self.rx.edge = Ssn(1);
        let mss = options.mss.unwrap_or(DEFAULT_MSS).max(MIN_MSS);
        self.mtu.limit(mss.saturating_add(super::segment::HEADER_BYTES as u16));
        match options.window_scale {
            Some(shift) => {
                self.tx.window_shift = shift.min(super::config::MAX_WINDOW_SCALE);
                self.rx.window_shift = self.config.window_scale;
            }
            None => {
                self.tx.window_shift = 0;
                self.rx.window_shift = 0;
            }
        }
        self.tx.sack_enabled = options.sack_permitted;
        self.timestamps.start(now, options.timestamps);
        self.tx.window = u64::from(segment.header.window);
        self.tx.max_window = self.tx.max_window.max(self.tx.window);
        self.apply_mss();
        self.on_valid_segment(now);
    }

    /// Handles a segment in SYN-SENT, which may answer our SYN.
    pub(super) fn on_segment_in_syn_sent(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
    ) -> Ingress {
        let header = &segment.header;
        let has_ack = header.flags.contains(TcpFlags::ACK);
        let is_reset = header.flags.contains(TcpFlags::RST);
        if has_ack && !self.acks_syn(header.ack) {
            if !is_reset {
                self.pending.rst = Some(Rst::Answer(header.ack));
            }
            return Ingress::default();
        }
        if is_reset {
            if has_ack && self.tx.nxt > Ssn(0) {
                self.finish(SubflowEvent::Refused);
                return Ingress { accepted: true, ..Ingress::default() };
            }
            return Ingress::default();
        }
        if !header.flags.contains(TcpFlags::SYN) || has_ack && self.tx.nxt == Ssn(0) {
            return Ingress::default();
        }
        self.take_syn(now, segment);
        if has_ack {
            self.ecn.negotiated = self.config.ecn && EcnState::agreed(header.flags);
            self.establish(now, segment);
            self.record_syn_data_ack(header.ack);
            self.ack.demand();
        } else {
            self.ecn.negotiated = self.config.ecn && EcnState::offered(header.flags);
            self.state.move_to_syn_received();
            self.tx.rto.count = 0;
            self.tx.rto.deadline = None;
            self.pending.syn = true;
        }
        Ingress {
            accepted: true,
            una_advanced: has_ack,
            window: self.tx.window,
            ..Ingress::default()
        }
    }

    /// Completes the handshake: our SYN is acknowledged and the peer's was received.
    pub(super) fn establish(&mut self, now: Instant, segment: &TcpSegment<'_>) {
        self.state.move_to_established();
        self.pending.syn = false;
        self.tx.una = Ssn(1);
        self.tx.recovery_point = Ssn(1);
        self.tx.rto.deadline = None;
        self.sample_handshake(now, segment);
        self.tx.rto.count = 0;
        // Starts the timer for data sent earlier by Fast Open.
        self.arm_rto(now);
        self.set_pace();
        self.events.push_back(SubflowEvent::Established);
    }

    fn sample_handshake(&mut self, now: Instant, segment: &TcpSegment<'_>) {
        if self.handshake.untimed {
            return;
        }
        let last_sent_at = self.handshake.sent_at;
        let echoed = if self.handshake.transmissions == 1 {
            Some(last_sent_at)
        } else if self.timestamps.enabled {
            let timestamps = segment.options.timestamps;
            timestamps.and_then(|timestamps| self.timestamps.sent_at(now, timestamps.echo))
        } else {
            None
        };
        // The answer to a repeat may echo the first transmission: a peer that received the first one, and whose ACK
        // was lost, ignores the timestamp of the repeat (RFC 7323, 5.3: it is outside the window). The sample would
        // be the timeout plus a round trip, and a scheduler that uses the RTT would avoid the path, which would then
        // never be measured again. On a path with a round trip longer than the timeout, the limited sample is too
        // short until data is acknowledged.
        let Some(echoed) = echoed else { return };
        let rtt = now.since(echoed.max(last_sent_at));
        if rtt.is_zero() {
            return;
        }
        // A client also repeats the end of the handshake if it is not answered: an ACK after a timeout, data also as
        // a probe.
        let least_repeat =
            if segment.payload.is_empty() { self.tx.rtt.config().min_rto } else { Duration::ZERO };
        let may_be_repeated = !segment.header.flags.contains(TcpFlags::SYN) && rtt >= least_repeat;
        if may_be_repeated || echoed < last_sent_at {
            self.tx.rtt.on_ambiguous_handshake(rtt, now);
        } else {
            self.tx.rtt.on_sample(rtt, now);
        }
        self.tx.forecaster.on_answer(now, rtt, Duration::ZERO, &Expected::default());
    }

    /// Handles the transmission of the SYN or SYN/ACK.
    pub(super) fn on_syn_sent(&mut self, now: Instant) {
        self.pending.syn = false;
        self.handshake.transmissions += 1;
        self.handshake.sent_at = now;
        self.tx.nxt = self.tx.nxt.max(Ssn(1));
        self.tx.last_sent_at = now;
        // Answering a repeated SYN does not prolong the attempt.
        if self.tx.rto.deadline.is_none() {
            self.tx.rto.deadline = Some(now + self.syn_timeout());
        }
    }

    /// Number of transmissions of our SYN.
    pub(crate) const fn syns_sent(&self) -> u32 {
        self.handshake.transmissions
    }

    /// Excludes from the round trip the time during which this SYN/ACK was kept.
    pub(crate) fn record_answer_kept(&mut self, time: Duration) {
        self.handshake.sent_at += time;
    }

    /// Repeats our SYN on request. It does not prolong the attempt.
    pub(crate) fn repeat_syn(&mut self) {
        self.pending.syn |=
            self.state.matches_state(SubflowState::SynSent) && self.handshake.transmissions > 0;
    }

    /// Handles a missing answer to our SYN or SYN/ACK.
    pub(super) fn on_handshake_timeout(&mut self, now: Instant) {
        self.tx.rto.deadline = None;
        if self.is_attempt_over() {
            self.finish(SubflowEvent::ConnectTimeout);
            return;
        }
        self.tx.rto.count += 1;
        self.pending.syn = true;
        // Even if the SYN was not sent, the attempt ends in time.
        self.tx.rto.deadline = Some(now + self.syn_timeout());
    }

    /// True if the time of all repeats with backoff has passed, regardless of the number of SYNs sent.
    fn is_attempt_over(&self) -> bool {
        let linear = self.linear_retries();
        let waits = (0..=self.tx.rto.count).map(|count| self.syn_wait(count, linear));
        let spent = waits.fold(Duration::ZERO, Duration::saturating_add);
        let mut granted = Duration::ZERO;
        (0..=self.config.syn.most).all(|count| {
            granted = granted.saturating_add(self.syn_wait(count, 0));
            granted <= spent
        })
    }

    /// Time to wait for an answer to the SYN or SYN/ACK.
    fn syn_timeout(&self) -> Duration {
        self.syn_wait(self.tx.rto.count, self.linear_retries())
    }

    /// Time to wait after this many repeats, the first of which are linear.
    fn syn_wait(&self, count: u32, linear: u32) -> Duration {
        let rto = RtoTimer { count: count.saturating_sub(linear), ..RtoTimer::default() };
        rto.rto_with_backoff(self.tx.rtt.rto(), self.tx.rtt.config().max_rto)
    }

    /// Number of linear repeats. Only a SYN may have any.
    fn linear_retries(&self) -> u32 {
        if self.state.matches_state(SubflowState::SynSent) { self.config.syn.linear } else { 0 }
    }
}

/// Transmission count and times of our SYN or SYN/ACK.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Handshake {
    pub(super) transmissions: u32,
    /// The process was suspended while the SYN or SYN/ACK was in flight.
    pub(super) untimed: bool,
    pub(super) sent_at: Instant,
}
