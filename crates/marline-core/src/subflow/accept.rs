//! Acceptability of a segment: RFC 9293 section 3.10.7.4, with the stricter rules of RFC 5961
//! against blind attackers and PAWS (RFC 7323).
//!
//! ```text
//!    last ACK sent    RCV.NXT                    edge
//!          v             v                         v
//!   -------+=============+=========================+--------
//!   old    | seen: ACKs  | window: everything      | never
//!          | that overtook each other are fine     |
//! ```
//!
//! The edge is the highest one that was ever offered, or the edge that the connection accepts now if that is higher. A
//! RST counts only exactly at RCV.NXT, and a SYN never counts. Other RSTs and all SYNs cause a challenge ACK. Rejected
//! segments change nothing and end no suspicion of the path. A repetition of received data is from the peer, and ends
//! the suspicion.

use marline_policy::Ssn;
use marline_time::{Duration, Instant};
use marline_wire::{TcpFlags, TcpSegment};

use super::ack::AckInput;
use super::{Ingress, Rst, Subflow, SubflowEvent};
use crate::{Ecn, SubflowState};

/// Minimum time between answers to unacceptable segments without payload, so that two hosts that disagree do not
/// exchange ACKs forever (Linux: tcp_invalid_ratelimit).
const MIN_ANSWER_INTERVAL: Duration = Duration::from_millis(500);

/// Position of a segment in sequence space.
#[derive(Copy, Clone, Debug)]
struct SegmentSpan {
    /// First octet, including SYN.
    start: Ssn,
    /// One past the last octet, including FIN.
    end: Ssn,
    /// One past the last octet that may be accepted.
    edge: Ssn,
}

/// Treatment of a segment.
enum Check {
    Accept,
    /// Send no answer.
    Drop,
    /// Answer with an ACK.
    Challenge,
    /// The whole payload was already received.
    Duplicate,
    Reset,
}

impl Subflow {
    /// Processes a segment of this subflow. `accept_window` is the number of bytes beyond RCV.NXT that may be
    /// accepted.
    pub(crate) fn on_segment(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
        accept_window: u64,
    ) -> Ingress {
        self.withdrawable = false;
        if self.is_dead {
            return Ingress::default();
        }
        match self.state.get() {
            SubflowState::Closed => Ingress::default(),
            SubflowState::SynSent => self.on_segment_in_syn_sent(now, segment),
            _ => self.on_segment_in_window(now, segment, ecn, accept_window),
        }
    }

    fn on_segment_in_window(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
        accept_window: u64,
    ) -> Ingress {
        let Some(span) = self.span(segment, accept_window) else {
            // The segment is before the stream's first octet, so a RST is outside the window.
            let is_reset = segment.header.flags.contains(TcpFlags::RST);
            return if is_reset { Ingress::default() } else { self.challenge(now, segment) };
        };
        match self.check(now, segment, &span) {
            Check::Accept => {}
            Check::Drop => return Ingress::default(),
            Check::Challenge => return self.challenge(now, segment),
            Check::Duplicate => return self.on_duplicate(now, segment, &span),
            Check::Reset => return self.accept_reset(),
        }
        let ack = match self.check_ack(segment) {
            Ok(ack) => ack,
            Err(Check::Challenge) => return self.challenge(now, segment),
            Err(_) => return Ingress::default(),
        };
        self.take_accepted(now, segment, ecn, span, ack)
    }

    /// Accepts a reset that is known to be from the peer.
    pub(crate) fn accept_reset(&mut self) -> Ingress {
        self.finish(SubflowEvent::Reset);
        Ingress { accepted: true, ..Ingress::default() }
    }

    fn take_accepted(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
        span: SegmentSpan,
        ack: Ssn,
    ) -> Ingress {
        let header = &segment.header;
        let is_syn = header.flags.contains(TcpFlags::SYN);
        let since_last_rx = now.since(self.last_rx_at);
        self.on_valid_segment(now);
        if let Some(timestamps) = segment.options.timestamps.filter(|_| self.timestamps.enabled) {
            self.timestamps.on_accepted(now, timestamps.value, span.start);
        }
        let (prior_una, prior_window) = (self.tx.una, self.tx.window);
        let prior_sacked = self.tx.highest_sacked;
        if self.state.matches_state(SubflowState::SynReceived) {
            self.establish(now, segment);
            if is_syn {
                self.ack.demand();
            }
        }
        self.update_window(segment, span.start, ack);
        if ack >= self.tx.una && !is_syn {
            let sack = self.read_sack(ack, &segment.options.sack);
            let is_bare = span.start == span.end && self.tx.window == prior_window;
            let input = AckInput {
                ack,
                flags: header.flags,
                sack,
                echo: self.echo_of(segment),
                duplicate: is_bare && !sack.reports_early_repeat(),
            };
            self.on_ack(now, &input);
            if prior_window == 0 && self.tx.window > 0 && self.tx.rto.count > 0 {
                self.on_window_returned(now);
            }
        }
        if ack < prior_una && !is_syn {
            self.false_acks.on_old_ack(now, ack);
        }
        if ack < self.tx.una && !is_syn && !segment.options.sack.is_empty() {
            // The ACK was reordered with another one, but its SACK blocks may be new.
            let input = AckInput {
                ack: self.tx.una,
                flags: header.flags,
                sack: self.read_sack(ack, &segment.options.sack),
                echo: None,
                duplicate: false,
            };
            self.on_ack(now, &input);
        }
        if self.health.is_unreachable()
            && (self.tx.una > prior_una || self.tx.highest_sacked > prior_sacked)
        {
            self.end_silence(since_last_rx);
        }
        if self.ecn.on_received(header.flags, ecn, !segment.payload.is_empty()) {
            self.ack.demand();
        }
        let mut ingress = Ingress {
            accepted: true,
            una_advanced: self.tx.una > prior_una,
            newly_acked: self.tx.una.since(prior_una),
            window: self.window_of(segment),
            ..Ingress::default()
        };
        let start = if is_syn { span.start.plus(1) } else { span.start };
        self.receive(now, segment, start, span.edge, &mut ingress);
        ingress
    }

    fn span(&self, segment: &TcpSegment<'_>, accept_window: u64) -> Option<SegmentSpan> {
        let flags = segment.header.flags;
        let start = segment.header.seq.unwrap_near(self.irs, self.rx.nxt.0)?;
        let len = segment.payload.len() as u64
            + u64::from(flags.contains(TcpFlags::SYN))
            + u64::from(flags.contains(TcpFlags::FIN));
        let edge = self.rx.edge.max(self.rx.nxt.plus(accept_window));
        Some(SegmentSpan { start: Ssn(start), end: Ssn(start + len), edge })
    }

    fn check(&mut self, now: Instant, segment: &TcpSegment<'_>, span: &SegmentSpan) -> Check {
        let flags = segment.header.flags;
        let nxt = self.rx.nxt;
        if flags.contains(TcpFlags::RST) {
            return match span.start {
                start if start == nxt => Check::Reset,
                start if start > nxt && start < span.edge => Check::Challenge,
                _ => Check::Drop,
            };
        }
        if flags.contains(TcpFlags::SYN) {
            let opening =
                self.state.matches_state(SubflowState::SynReceived) && span.start == Ssn(0);
            return match (opening, flags.contains(TcpFlags::ACK)) {
                (true, true) => Check::Accept,
                (true, false) => {
                    // The peer did not get our SYN/ACK.
                    self.pending.syn = true;
                    Check::Drop
                }
                (false, _) => Check::Challenge,
            };
        }
        if self.timestamps.enabled {
            match segment.options.timestamps {
                // RFC 7323 section 3.2 would drop it, but the longest ADD_ADDR leaves no room for timestamps. The
                // segment carries no data.
                None if span.start == span.end && segment.options.has_mptcp() => {}
                None => return Check::Drop,
                Some(timestamps) if self.timestamps.is_old(now, timestamps.value) => {
                    // For TCP, a reordered pure ACK contains nothing new. But its Multipath TCP options may be the
                    // only copy: a DATA_FIN, an address, a HELLO.
                    let tells = span.start == span.end && segment.options.has_mptcp();
                    if !tells || !self.timestamps.is_reordered(timestamps.value, self.tx.rtt.rto())
                    {
                        return Check::Challenge;
                    }
                }
                Some(_) => {}
            }
        }
        // Octets that a segment may repeat: those of the last window.
        let known = nxt.0.saturating_sub(self.rx.max_offered.max(1 << 16));
        if span.start == span.end {
            let ends_data = segment.options.dss.is_some_and(|dss| dss.data_fin);
            return match () {
                () if span.start > span.edge => Check::Challenge,
                () if span.start >= self.timestamps.last_ack_sent() => Check::Accept,
                // Later data was received first, and does not contain the DATA_FIN.
                () if ends_data && span.start.0 >= known => Check::Accept,
                () if span.start.plus(1) == nxt => Check::Duplicate,
                () => Check::Challenge,
            };
        }
        if span.end <= nxt {
            return if span.start.0 >= known { Check::Duplicate } else { Check::Challenge };
        }
        // At RCV.NXT a segment is processed even if the window is closed: its ACK counts, its payload is cut off.
        if span.start < span.edge || span.start == nxt { Check::Accept } else { Check::Challenge }
    }

    /// Checks the ACK field: RFC 5961 section 5 allows it to be at most a window below SND.UNA.
    fn check_ack(&mut self, segment: &TcpSegment<'_>) -> Result<Ssn, Check> {
        if !segment.header.flags.contains(TcpFlags::ACK) {
            return Err(Check::Drop);
        }
        let ack = segment.header.ack.unwrap_near(self.iss, self.tx.una.0).map(Ssn);
        if self.state.matches_state(SubflowState::SynReceived) {
            return match ack {
                Some(ack) if ack >= Ssn(1) && ack <= self.tx.nxt => Ok(ack),
                _ => {
                    self.pending.rst = Some(Rst::Answer(segment.header.ack));
                    Err(Check::Drop)
                }
            };
        }
        match ack {
            Some(ack) if ack > self.tx.nxt => Err(Check::Challenge),
            Some(ack) if ack.0 + self.tx.max_window < self.tx.una.0 => Err(Check::Challenge),
            Some(ack) => Ok(ack),
            None => Err(Check::Challenge),
        }
    }

    /// Rejects a segment with an ACK.
    fn challenge(&mut self, now: Instant, segment: &TcpSegment<'_>) -> Ingress {
        let flags = segment.header.flags;
        let loud = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST);
        if segment.payload.is_empty() && !loud {
            if self.answered_at.is_some_and(|at| now.since(at) < MIN_ANSWER_INTERVAL) {
                return Ingress::default();
            }
            self.answered_at = Some(now);
        }
        self.withdrawable = !self.ack.is_owed();
        self.ack.demand();
        Ingress { challenge: true, ..Ingress::default() }
    }

    /// Handles a segment without new content: a repetition or a probe. The answer informs the peer of our position.
    fn on_duplicate(
        &mut self,
        now: Instant,
        segment: &TcpSegment<'_>,
        span: &SegmentSpan,
    ) -> Ingress {
        let bytes = segment.payload.len() as u64;
        self.ack.demand();
        self.stats.count_duplicate(bytes);
        if bytes > 0 {
            self.rx.dsack = Some((span.start, span.start.plus(bytes)));
        }
        if self.state.matches_state(SubflowState::TimeWait) {
            self.start_time_wait(now);
        }
        // A peer that repeats received data did not get our ACK, but its segments arrive.
        let repeated = self.check_ack(segment).is_ok();
        if repeated {
            self.on_valid_segment(now);
        }
        Ingress { duplicate_bytes: bytes, repeated, ..Ingress::default() }
    }

    fn update_window(&mut self, segment: &TcpSegment<'_>, start: Ssn, ack: Ssn) {
        let newer = ack > self.tx.una || (ack == self.tx.una && start >= self.rx.window_seen_at);
        if !newer {
            return;
        }
        self.tx.window = self.window_of(segment);
        self.tx.max_window = self.tx.max_window.max(self.tx.window);
        self.rx.window_seen_at = start;
    }

    fn window_of(&self, segment: &TcpSegment<'_>) -> u64 {
        let is_syn = segment.header.flags.contains(TcpFlags::SYN);
        let shift = if is_syn { 0 } else { self.tx.window_shift };
        u64::from(segment.header.window) << shift
    }

    fn echo_of(&self, segment: &TcpSegment<'_>) -> Option<u32> {
        let timestamps = segment.options.timestamps.filter(|_| self.timestamps.enabled)?;
        Some(timestamps.echo)
    }
}
