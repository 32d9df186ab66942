//! Delayed acknowledgments (RFC 9293 section 3.8.6.3, RFC 5681 section 4.2).
//!
//! ACKs are immediate for data that is out of order, fills a gap, is a duplicate, or ends the stream; for more than
//! one full segment since the last ACK; and for the first [`QUICK_ACKS`] segments of a subflow and after a pause,
//! because a starting sender uses them to grow its window.
//!
//! A segment with PSH ends a message: waiting for a second one is useless, and the sender's probe timer runs. It is
//! acknowledged immediately, unless the application usually answers quickly. Then the ACK waits a short time (a
//! quarter of the RTT, at least four milliseconds, which a busy server needs for a request to another one) to be sent
//! with the answer. All other data waits half an RTT for a second segment, within 5 ms and `max`: on a fast path the
//! sender's window may be too small to send that second segment, and its ACK clock would stall during the wait.
//!
//! On a reliable carrier, an ACK opens no window and stops no timer that would expire soon, but a lost ACK delays the
//! rest of the stream. There an ACK waits at most `max` for data to be sent with it, or for [`LAZY_SEGMENTS`].
//!
//! A carrier may deliver many segments that the kernel merged. The number of full segments in them counts, and a full
//! segment is never larger than the MSS that we announced.

use marline_time::{Duration, Instant};

/// Number of segments acknowledged immediately at the start (Linux's maximum).
const QUICK_ACKS: u8 = 16;
/// Minimum wait for a second segment.
const MIN_SEGMENT_WAIT: Duration = Duration::from_millis(5);
/// Minimum wait for an answer. Shorter than any sender's probe timeout for a single segment.
const MIN_ANSWER_WAIT: Duration = Duration::from_millis(4);
/// Silence after which the sender restarts from its initial window.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Number of full segments that are acknowledged together on a reliable carrier.
const LAZY_SEGMENTS: u64 = 8;
/// Number of consecutive quick answers that indicate a dialog.
const DIALOG_ANSWERS: u8 = 3;

/// Properties of received data that matter for acknowledgments.
#[derive(Copy, Clone, Debug)]
pub(super) struct Arrival {
    /// Payload size in bytes.
    pub(super) len: usize,
    /// PSH was set.
    pub(super) push: bool,
    /// The data is out of order, fills a gap, is a duplicate or ends the stream, so the sender needs an immediate
    /// ACK.
    pub(super) urgent: bool,
    /// Received over a reliable carrier.
    pub(super) is_reliable: bool,
}

/// State of the pending ACK.
#[derive(Copy, Clone, Debug)]
pub(super) struct DelayedAck {
    /// Maximum delay in nanoseconds.
    max_nanos: u64,
    /// MSS that we announced.
    mss: u16,
    owed: bool,
    deadline: Option<Instant>,
    quick: u8,
    /// Payload bytes since the last ACK.
    pending: u64,
    /// Largest payload seen, within our MSS: the peer's full segment.
    full: u16,
    last_arrival: Option<Instant>,
    /// No data was sent since the last arrival.
    unanswered: bool,
    answered: u8,
}

impl DelayedAck {
    pub(super) fn new(max: Duration, mss: u16) -> Self {
        DelayedAck {
            max_nanos: u64::try_from(max.as_nanos()).unwrap_or(u64::MAX),
            mss,
            owed: false,
            deadline: None,
            quick: QUICK_ACKS,
            pending: 0,
            full: 0,
            last_arrival: None,
            unanswered: false,
            answered: 0,
        }
    }

    /// Largest payload seen, in bytes, within our MSS.
    pub(super) const fn full_segment(&self) -> u32 {
        self.full as u32
    }

    /// Time of the last payload (or FIN) received.
    pub(super) const fn last_arrival(&self) -> Option<Instant> {
        self.last_arrival
    }

    /// Requests an ACK as soon as possible.
    pub(super) const fn demand(&mut self) {
        self.owed = true;
    }

    /// Requests an ACK, alone or with data, within the minimum wait for an answer.
    pub(super) fn request_ack_soon(&mut self, now: Instant) {
        self.owed = false;
        self.set_deadline_at_most(now + self.short_delay(None));
    }

    fn set_deadline_at_most(&mut self, at: Instant) {
        self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
    }

    /// Handles received payload (or a FIN).
    pub(super) fn on_arrival(&mut self, now: Instant, arrival: Arrival, srtt: Option<Duration>) {
        let paused = self.last_arrival.is_some_and(|last| now.since(last) > RESTART_AFTER);
        if paused && self.answered < DIALOG_ANSWERS {
            self.quick = QUICK_ACKS;
        }
        self.last_arrival = Some(now);
        self.unanswered = true;
        self.full = self.full.max(arrival.len.min(usize::from(self.mss)) as u16);
        self.pending += arrival.len as u64;
        let dialogue = self.answered >= DIALOG_ANSWERS;
        let message_end = arrival.push;
        if arrival.is_reliable
            && !arrival.urgent
            && self.pending <= LAZY_SEGMENTS * u64::from(self.full)
        {
            self.set_deadline_at_most(now + self.max());
            return;
        }
        if arrival.urgent || self.pending > u64::from(self.full) && !(dialogue && message_end) {
            self.owed = true;
        } else if self.quick > 0 && !dialogue {
            self.quick -= 1;
            self.owed = true;
        } else if message_end && !dialogue {
            self.owed = true;
        } else {
            let wait = if message_end { self.short_delay(srtt) } else { self.long_delay(srtt) };
            self.set_deadline_at_most(now + wait);
        }
    }

    fn long_delay(&self, srtt: Option<Duration>) -> Duration {
        srtt.map_or(self.max(), |srtt| (srtt / 2).max(MIN_SEGMENT_WAIT)).min(self.max())
    }

    fn short_delay(&self, srtt: Option<Duration>) -> Duration {
        let quarter = srtt.map_or(Duration::ZERO, |srtt| srtt / 4);
        quarter.max(MIN_ANSWER_WAIT).min(self.max())
    }

    const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanos)
    }

    /// Handles the transmission of a segment with an ACK.
    pub(super) fn on_ack_sent(&mut self) {
        self.owed = false;
        self.deadline = None;
        self.pending = 0;
    }

    /// Handles the transmission of data, which may answer received data.
    pub(super) fn on_data_sent(&mut self, now: Instant, srtt: Option<Duration>) {
        let Some(last) = self.last_arrival else { return };
        if core::mem::take(&mut self.unanswered) && now.since(last) <= self.short_delay(srtt) {
            self.answered = (self.answered + 1).min(2 * DIALOG_ANSWERS);
        }
    }

    /// Handles the end of the delay without data that could carry the ACK.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.owed = true;
            self.answered = self.answered.saturating_sub(2);
        }
    }

    pub(super) const fn is_owed(&self) -> bool {
        self.owed
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.owed { None } else { self.deadline }
    }

    /// Withdraws the request for an immediate ACK (rate limit). A running delayed-ACK timer continues.
    pub(super) const fn withdraw(&mut self) {
        self.owed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(40);
    const SRTT: Option<Duration> = Some(Duration::from_millis(20));
    const WAIT: Duration = Duration::from_millis(10);

    fn arrival(len: usize, push: bool) -> Arrival {
        Arrival { len, push, urgent: false, is_reliable: false }
    }

    #[test]
    fn on_a_reliable_carrier_acks_wait_for_data() {
        let mut ack = past_quick();
        let now = Instant::from_millis(100);
        let lazy = |len, push| Arrival { is_reliable: true, ..arrival(len, push) };
        ack.on_arrival(now, lazy(200, true), SRTT);
        assert!(!ack.is_owed(), "even at the end of a message");
        assert_eq!(ack.deadline(), Some(now + MAX));
        for _ in 0..LAZY_SEGMENTS {
            ack.on_arrival(now, lazy(1_400, false), SRTT);
        }
        assert!(ack.is_owed(), "the delay is bounded");
        ack.on_ack_sent();
        ack.on_arrival(now, Arrival { urgent: true, ..lazy(200, true) }, SRTT);
        assert!(ack.is_owed(), "a duplicate may precede a change of carrier");
    }

    fn past_quick() -> DelayedAck {
        let mut ack = DelayedAck::new(MAX, 1_460);
        for i in 0..16 {
            ack.on_arrival(Instant::from_millis(i), arrival(1_400, false), SRTT);
            assert!(ack.is_owed(), "segment {i}");
            ack.on_ack_sent();
        }
        ack
    }

    #[test]
    fn every_second_full_segment_after_the_quick_start() {
        let mut ack = past_quick();
        let now = Instant::from_millis(20);
        ack.on_arrival(now, arrival(1_400, false), SRTT);
        assert!(!ack.is_owed());
        assert_eq!(ack.deadline(), Some(now + WAIT));
        ack.on_arrival(now, arrival(1_400, false), SRTT);
        assert!(ack.is_owed());
    }

    #[test]
    fn joined_segments_count_as_many() {
        let mut ack = past_quick();
        let now = Instant::from_millis(20);
        ack.on_arrival(now, arrival(43_800, false), SRTT);
        assert!(ack.is_owed(), "thirty full segments in one packet");
        ack.on_ack_sent();
        ack.on_arrival(now, arrival(1_460, false), SRTT);
        assert!(!ack.is_owed());
        ack.on_arrival(now, arrival(1_460, false), SRTT);
        assert!(
            ack.is_owed(),
            "a full segment never exceeds our MSS, even after coalesced segments"
        );
    }

    #[test]
    fn a_lone_segment_waits_no_longer_than_the_limit() {
        let mut ack = past_quick();
        let now = Instant::from_millis(20);
        for srtt in [None, Some(Duration::from_secs(2))] {
            let mut ack = past_quick();
            ack.on_arrival(now, arrival(1_400, false), srtt);
            assert_eq!(ack.deadline(), Some(now + MAX));
        }
        ack.on_arrival(now, arrival(1_400, false), SRTT);
        ack.on_timeout(now + WAIT - Duration::from_nanos(1));
        assert!(!ack.is_owed());
        ack.on_timeout(now + WAIT);
        assert!(ack.is_owed());
        assert_eq!(ack.deadline(), None);
    }

    #[test]
    fn a_message_is_acknowledged_immediately_unless_the_application_answers() {
        let mut ack = past_quick();
        let mut now = Instant::from_millis(100);
        for _ in 0..3 {
            ack.on_arrival(now, arrival(200, true), SRTT);
            assert!(ack.is_owed());
            ack.on_data_sent(now + Duration::from_millis(2), SRTT);
            ack.on_ack_sent();
            now += Duration::from_millis(50);
        }
        ack.on_arrival(now, arrival(200, true), SRTT);
        assert!(!ack.is_owed(), "request and response: wait for the response");
        assert_eq!(ack.deadline(), Some(now + Duration::from_millis(5)));
        for _ in 0..3 {
            ack.on_timeout(now + Duration::from_millis(5));
            assert!(ack.is_owed());
            ack.on_ack_sent();
            now += Duration::from_millis(50);
            ack.on_arrival(now, arrival(200, true), SRTT);
        }
        assert!(ack.is_owed(), "the exchange has ended");
    }

    #[test]
    fn urgent_data_and_data_after_pauses_is_acknowledged_immediately() {
        let mut ack = past_quick();
        ack.on_arrival(
            Instant::from_millis(20),
            Arrival { urgent: true, ..arrival(1_400, false) },
            SRTT,
        );
        assert!(ack.is_owed());
        ack.on_ack_sent();
        ack.on_arrival(Instant::from_secs(10), arrival(1_400, false), SRTT);
        assert!(ack.is_owed());
    }
}
