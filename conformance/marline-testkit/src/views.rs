//! Hand-built views, mappings and ACKs for unit tests of policies, in virtual time only.

use marline_policy::{
    AckSample, AddressId, AddressPairFault, DataRange, Decision, Dsn, Eligibility, Forecast,
    Health, Mapping, MappingIndex, Phase, SchedulerContext, SubflowId, SubflowSet, SubflowView,
    UnreachableCause,
};
use marline_time::{Duration, Instant};

/// The MSS of every subflow here, in bytes.
pub const MSS: u32 = 1_000;

/// A duration of `n` milliseconds.
#[must_use]
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A healthy regular subflow with plenty of room.
#[must_use]
pub fn view(id: u8, srtt_ms: u64) -> SubflowView {
    SubflowView {
        id: SubflowId(id),
        local_id: AddressId(id),
        remote_id: AddressId(0),
        backup: false,
        metered: false,
        limited: false,
        wake_share: 0.0,
        health: Health::Usable,
        phase: Phase::Open,
        eligibility: Eligibility::Ready { room: 100 * u64::from(MSS) },
        mss: MSS,
        cwnd: 100 * u64::from(MSS),
        ssthresh: u64::MAX,
        bytes_in_flight: 0,
        bytes_queued: 0,
        bytes_copied: 0,
        bytes_sent: 0,
        bytes_received: 0,
        srtt: Some(ms(srtt_ms)),
        rttvar: ms(1),
        min_rtt: Some(ms(srtt_ms)),
        delivery_rate: None,
        forecast: Forecast::with_quantiles([ms(srtt_ms), ms(srtt_ms), ms(srtt_ms)], 0.0, None),
        overdue_at: None,
        newest_sent_at: None,
        bytes_since_loss: 0,
        bytes_between_losses: 0,
        last_sent_at: Instant::ZERO,
        last_rx_at: Instant::ZERO,
        last_new_at: Instant::ZERO,
    }
}

/// The view with a full window.
#[must_use]
pub fn full(view: SubflowView) -> SubflowView {
    SubflowView { eligibility: Eligibility::CwndLimited, ..view }
}

/// The view while its pacer delays sending.
#[must_use]
pub fn paced(view: SubflowView, until_ms: u64) -> SubflowView {
    let until = Instant::from_millis(until_ms);
    SubflowView { eligibility: Eligibility::PacingLimited(until), ..view }
}

/// The view when it can no longer carry data.
#[must_use]
pub fn gone(view: SubflowView) -> SubflowView {
    SubflowView { eligibility: Eligibility::NotActive, ..view }
}

/// The view as a backup.
#[must_use]
pub fn backup(view: SubflowView) -> SubflowView {
    SubflowView { backup: true, ..view }
}

/// Health after a timeout.
pub const UNREACHABLE: Health =
    Health::Unreachable { since: Instant::ZERO, cause: UnreachableCause::RetransmissionTimeout };

/// Health on a degraded address pair that still receives.
pub const DEGRADED: Health =
    Health::Degraded { since: Instant::ZERO, cause: AddressPairFault::Unanswered };

/// Health on a degraded address pair that has received nothing since a timeout.
pub const UNREACHABLE_ON_DEGRADED_PAIR: Health =
    Health::Unreachable { since: Instant::ZERO, cause: UnreachableCause::DegradedAddressPair };

/// The view after a timeout that last received data at this time.
#[must_use]
pub fn unreachable(view: SubflowView, heard_ms: u64) -> SubflowView {
    let last_rx_at = Instant::from_millis(heard_ms);
    SubflowView { health: UNREACHABLE, last_rx_at, ..view }
}

/// The view on a degraded address pair that still receives.
#[must_use]
pub fn degraded(view: SubflowView) -> SubflowView {
    SubflowView { health: DEGRADED, ..view }
}

/// The range `start..end`.
#[must_use]
pub fn range(start: u64, end: u64) -> DataRange {
    DataRange::new(Dsn(start), Dsn(end))
}

/// The set of these subflows.
#[must_use]
pub fn set(ids: &[u8]) -> SubflowSet {
    let mut set = SubflowSet::EMPTY;
    ids.iter().for_each(|id| set.insert(SubflowId(*id)));
    set
}

/// The decision to send this range on this subflow.
#[must_use]
pub fn send(id: u8, start: u64, end: u64) -> Decision {
    Decision::Send { subflow: SubflowId(id), range: range(start, end) }
}

/// A connection's stream: written, acknowledged and outstanding data.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Outstanding data and the subflows that carried it.
    pub mappings: Vec<Mapping>,
    /// All data before this is acknowledged.
    pub data_una: u64,
    /// All data before this was written by the application.
    pub written: u64,
    /// Size of the peer's window and of the send buffer.
    pub window: u64,
    /// True if the peer supports repairs.
    pub repairs: bool,
}

impl Stream {
    /// A stream of `written` bytes, none of which has been sent.
    #[must_use]
    pub fn new(written: u64) -> Self {
        Stream { written, window: 100 << 20, ..Stream::default() }
    }

    /// End of the data sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.mappings.last().map_or(self.data_una, |m| m.range.end.0)
    }

    /// Data that may be sent for the first time.
    #[must_use]
    pub fn unsent(&self) -> DataRange {
        range(self.sent(), self.written.min(self.data_una + self.window))
    }

    /// A scheduler's input for this stream.
    #[must_use]
    pub fn context<'a>(&'a self, subflows: &'a [SubflowView]) -> SchedulerContext<'a> {
        SchedulerContext {
            now: Instant::from_secs(1),
            subflows,
            unsent: self.unsent(),
            written: Dsn(self.written),
            data_una: Dsn(self.data_una),
            window_end: Dsn(self.data_una + self.window),
            send_limit: self.window,
            repeated: 0,
            repairs: self.repairs,
            mappings: self,
        }
    }

    /// Receives a DATA_ACK up to `una`.
    pub fn ack(&mut self, una: u64) {
        self.data_una = self.data_una.max(una.min(self.sent()));
        self.mappings.retain(|m| m.range.end.0 > self.data_una);
        if let Some(first) = self.mappings.first_mut() {
            first.range.start = Dsn(first.range.start.0.max(self.data_una));
        }
    }

    /// Marks a range as acknowledged or SACKed by a subflow that carried it.
    ///
    /// # Panics
    /// If the range covers only part of a mapping, because views deliver whole ones.
    pub fn deliver(&mut self, range: DataRange) {
        for mapping in &mut self.mappings {
            if !mapping.range.intersection(&range).is_empty() {
                assert_eq!(
                    mapping.range.intersection(&range),
                    mapping.range,
                    "the range covers only part of a mapping"
                );
                mapping.delivered = true;
            }
        }
    }

    /// Checks a decision as the core does and applies one segment of it. Returns the bytes sent.
    ///
    /// # Panics
    /// If the core would reject the decision.
    pub fn apply(&mut self, id: SubflowId, wanted: DataRange) -> DataRange {
        assert!(!wanted.is_empty(), "the decision names an empty range");
        if wanted.start == self.unsent().start {
            let cut = wanted.intersection(&self.unsent()).prefix(u64::from(MSS));
            self.mappings.push(Mapping {
                range: cut,
                carried_by: SubflowSet::single(id),
                delivered: false,
            });
            return cut;
        }
        assert!(
            wanted.start.0 >= self.data_una,
            "the decision sends acknowledged data: {wanted:?}"
        );
        let index = self.mappings.iter().position(|m| m.range.end > wanted.start);
        let index = index.expect("the decision's data is neither new nor already sent");
        let mapping = self.mappings[index];
        assert!(!mapping.carried_by.contains(id), "{id:?} has already carried {wanted:?}");
        let cut = wanted.intersection(&mapping.range).prefix(u64::from(MSS));
        let (head, tail) = (
            DataRange::new(mapping.range.start, cut.start),
            DataRange::new(cut.end, mapping.range.end),
        );
        let mut carried_by = mapping.carried_by;
        carried_by.insert(id);
        let parts = [
            Mapping { range: head, ..mapping },
            Mapping { range: cut, carried_by, ..mapping },
            Mapping { range: tail, ..mapping },
        ];
        let parts = parts.into_iter().filter(|part| !part.range.is_empty());
        self.mappings.splice(index..=index, parts);
        cut
    }
}

impl MappingIndex for Stream {
    fn oldest(&self) -> Option<Mapping> {
        self.mappings.first().copied()
    }

    fn mapping_at(&self, at: Dsn) -> Option<Mapping> {
        let mapping = self.mappings.iter().find(|m| m.range.start <= at && at < m.range.end)?;
        Some(Mapping { range: DataRange::new(at, mapping.range.end), ..*mapping })
    }

    fn next_not_on(&self, subflow: SubflowId, from: Dsn) -> Option<Mapping> {
        let mapping =
            self.mappings.iter().find(|m| m.range.end > from && !m.carried_by.contains(subflow))?;
        let start = mapping.range.start.max(from);
        Some(Mapping { range: DataRange::new(start, mapping.range.end), ..*mapping })
    }

    fn last_not_on(&self, subflow: SubflowId, before: Dsn) -> Option<Mapping> {
        let open = |m: &&Mapping| m.range.start < before && !m.carried_by.contains(subflow);
        let mapping = self.mappings.iter().rev().find(open)?;
        let end = mapping.range.end.min(before);
        Some(Mapping { range: DataRange::new(mapping.range.start, end), ..*mapping })
    }

    fn newest(&self) -> Option<Mapping> {
        self.mappings.last().copied()
    }
}

/// Calls the scheduler until it waits, and returns the data and subflow of each decision in order.
///
/// # Panics
/// If the scheduler never waits, or the core would reject a decision.
pub fn drain(
    scheduler: &mut dyn marline_policy::Scheduler,
    stream: &mut Stream,
    subflows: &[SubflowView],
) -> Vec<(u8, u64, u64)> {
    let mut sent = Vec::new();
    while let Some((subflow, range)) = scheduler.next_send(&stream.context(subflows)).data() {
        let cut = stream.apply(subflow, range);
        sent.push((subflow.0, cut.start.0, cut.end.0));
        assert!(sent.len() < 10_000, "the scheduler never waits");
    }
    sent
}

/// An ACK of `delivered` bytes for a sender limited by its window.
#[must_use]
pub fn ack(now: Instant, delivered: u64, in_flight: u64, rtt: Duration) -> AckSample {
    AckSample {
        now,
        delivered,
        total_delivered: 0,
        lost: 0,
        prior_in_flight: in_flight + delivered,
        bytes_in_flight: in_flight,
        rtt: Some(rtt),
        srtt: Some(rtt),
        min_rtt: Some(rtt),
        rate: None,
        cwnd_limited: true,
        in_recovery: false,
    }
}

/// A sender that always fills its window: one ACK per segment in each round trip.
#[derive(Debug)]
pub struct BulkSender {
    /// Virtual time of the latest ACK.
    pub now: Instant,
    /// The round trip time.
    pub rtt: Duration,
    /// Bytes delivered so far.
    pub total: u64,
}

impl BulkSender {
    /// A sender with this round trip time.
    #[must_use]
    pub fn new(rtt_ms: u64) -> Self {
        BulkSender { now: Instant::from_secs(1), rtt: ms(rtt_ms), total: 0 }
    }

    /// One round trip with the window that `cc` has at its start.
    pub fn round(&mut self, cc: &mut dyn marline_policy::CongestionController) {
        let window = cc.window();
        let segments = (window / u64::from(MSS)).max(1);
        for _ in 0..segments {
            self.now += self.rtt / segments as u32;
            self.total += u64::from(MSS);
            let mut sample = ack(self.now, u64::from(MSS), window - u64::from(MSS), self.rtt);
            sample.total_delivered = self.total;
            cc.on_ack(&sample, SubflowId(0), &[]);
        }
    }
}
