//! Path of a lane: its round trip, forecast, losses, congestion window, MTU and health, measured with the lane's own
//! frames.
//!
//! A path is judged only by frames sent on it. Each ack-eliciting frame is recorded, and an ACK names the path whose
//! frames it acknowledges, regardless of the path on which it arrives. Nothing here waits for another path.

mod delivery_rates;
mod lone_losses;
mod losses;
pub(crate) mod mtu;
mod timers;

use core::cell::Cell;

use marline_policy::{
    AckSample, CongestionController, CongestionSignal, DatagramPathView, Forecaster, Health,
    PathCost, PathId, Quantile, RateSample, RttConfig, RttEstimator, SubflowId, UnreachableCause,
};
use marline_time::{Duration, Instant, Rate};

use crate::config::LaneConfig;
use crate::event::PathInfo;
use crate::frame::{Ack, HEADER_BYTES, TAG_BYTES, datagram_overhead};
use crate::outstanding::{OutstandingFrames, Sending, SentFrame};
use crate::pacer::Pacer;
use crate::queue::{Queues, Room};
use crate::received::{ACK_DELAY, ReceivedFrames};
use delivery_rates::DeliveryRates;
use lone_losses::IsolatedLosses;
use losses::Losses;
use mtu::Mtu;

/// Length in bytes of the IPv4 and UDP headers around a frame, for congestion control and forecasts.
pub(crate) const OUTER_BYTES: u32 = 28;
/// Number of bytes of non-bulk data that may be in transit with any window: ten full frames, the initial window of RFC
/// 6928.
const MIN_IN_FLIGHT_LIMIT: u64 = 14_720;
/// Limit while no queue is detected, large enough for a burst of live video, whose sender does not back off.
const IN_FLIGHT_LIMIT_WITHOUT_QUEUE: u64 = 4 * MIN_IN_FLIGHT_LIMIT;
/// Timeout of a frame before the first RTT sample.
const INITIAL_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Excess of the RTT over the minimum RTT above which a queue is assumed, if it also exceeds the minimum RTT.
const MIN_QUEUE_DELAY: Duration = Duration::from_millis(40);
/// Lower bound of four times the RTT variation.
const MIN_VARIATION: Duration = Duration::from_millis(10);
/// Number of bytes of non-bulk data that may be in transit while the path is silent: enough to detect its recovery, but
/// not so much that old data then delays new data.
const UNREACHABLE_BYTES: u64 = 4_096;
/// Number of frames in a packet train that measures the rate.
const TRAIN_FRAMES: u8 = 12;
/// Maximum interval between probes on a silent path while datagrams are sent.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between probes if other components also probe the path.
const SHARED_PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// Share of isolated losses above which an overdue frame is not evidence about later frames.
const ISOLATED_LOSS_SHARE: f32 = 0.005;
/// Overhead of a lane frame in bytes, excluding its items.
const FRAME_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Facts about a path from the machine.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct PathFacts {
    pub(crate) backup: bool,
    pub(crate) cost: PathCost,
    pub(crate) fading: bool,
    /// True if other components probe the path while it is silent, and report answers.
    pub(crate) is_probed: bool,
}

/// Effects of an acknowledgment or a timer.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Numbers that have been acknowledged.
    pub(crate) answered: Vec<u64>,
    /// Numbers of frames that are lost or overdue and may be useful on another path.
    pub(crate) missed: Vec<u64>,
    /// True if the path became silent.
    pub(crate) unreachable: bool,
    /// True if a silent path is acknowledged again.
    pub(crate) answers: bool,
    /// True if the MTU has changed.
    pub(crate) mtu_changed: bool,
}

/// Path of a lane.
#[derive(Debug)]
pub(crate) struct Path {
    id: PathId,
    traits: PathFacts,
    health: Health,
    rtt: RttEstimator,
    forecaster: Forecaster,
    /// Cached timeout for an acknowledgment, until a round trip, loss or frame changes it.
    patience: Cell<Option<Duration>>,
    congestion: Box<dyn CongestionController>,
    pacer: Pacer,
    outstanding: OutstandingFrames,
    received: ReceivedFrames,
    queues: Queues,
    mtu: Mtu,
    /// Position in the sending order at which the current loss episode ends.
    recovers_until: Option<u64>,
    delivery_rate: Option<Rate>,
    last_trouble_at: Option<Instant>,
    last_sent_at: Option<Instant>,
    /// Number of timeouts of the oldest frame since the last acknowledgment.
    unanswered_timeouts: u32,
    /// Time of the next check for losses.
    loss_at: Option<Instant>,
    wants_ping: bool,
    pinged_at: Option<Instant>,
    /// Number of train frames still to be sent, and the time of the last request for a train.
    train: u8,
    train_at: Option<Instant>,
    frames: u64,
    lost_frames: u64,
    lone_losses: IsolatedLosses,
    losses: Losses,
    carried: DeliveryRates,
    /// Position in the sending order below which frames were in transit during a pause of the process.
    untimed_before: u64,
}

/// Creation.
impl Path {
    pub(crate) fn new(id: PathId, config: &LaneConfig, now: Instant) -> Self {
        let (safe, most) = config.frame_bytes;
        let mtu = Mtu::new(safe, most);
        let segment = u32::from(mtu.frame_bytes());
        Path {
            id,
            traits: PathFacts::default(),
            health: Health::Usable,
            rtt: RttEstimator::new(RttConfig::default()),
            forecaster: Forecaster::default(),
            patience: Cell::new(None),
            congestion: config.congestion.build(segment, 10 * u64::from(segment), now),
            pacer: Pacer::new(),
            outstanding: OutstandingFrames::new(config.limits.outstanding),
            received: ReceivedFrames::default(),
            queues: Queues::default(),
            mtu,
            recovers_until: None,
            delivery_rate: None,
            last_trouble_at: None,
            last_sent_at: None,
            unanswered_timeouts: 0,
            loss_at: None,
            // Nothing is known about the path, so it is probed.
            wants_ping: true,
            pinged_at: None,
            train: 0,
            train_at: None,
            frames: 0,
            lost_frames: 0,
            lone_losses: IsolatedLosses::default(),
            losses: Losses::default(),
            carried: DeliveryRates::default(),
            untimed_before: 0,
        }
    }
}

/// State.
impl Path {
    pub(crate) const fn id(&self) -> PathId {
        self.id
    }

    pub(crate) const fn health(&self) -> Health {
        self.health
    }

    pub(crate) const fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    /// Number of bytes that wait to be sent for the first time.
    pub(crate) const fn queued_bytes(&self) -> usize {
        self.queues.bytes()
    }

    pub(crate) const fn received_mut(&mut self) -> &mut ReceivedFrames {
        &mut self.received
    }

    pub(crate) const fn facts(&mut self) -> &mut PathFacts {
        &mut self.traits
    }

    pub(crate) const fn mtu(&mut self) -> &mut Mtu {
        &mut self.mtu
    }

    pub(crate) fn srtt(&self) -> Duration {
        self.rtt.srtt().unwrap_or_default()
    }

    /// Length of the largest frame in bytes.
    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.mtu.frame_bytes()
    }

    /// Length in bytes of the largest datagram of any flow that fits in one frame.
    pub(crate) fn largest_datagram(&self) -> usize {
        usize::from(self.frame_bytes()) - FRAME_BYTES - datagram_overhead(u64::MAX, None)
    }

    pub(crate) fn view(&self, now: Instant) -> DatagramPathView {
        let overdue = |sent: Option<&SentFrame>| {
            let at = sent.and_then(|sent| self.answer_deadline(sent));
            at.map_or(Duration::ZERO, |at| now.since(at))
        };
        DatagramPathView {
            id: self.id,
            backup: self.traits.backup,
            metered: self.traits.cost.metered,
            radio: self.traits.cost.has_radio(),
            health: self.health,
            fading: self.traits.fading,
            largest: self.largest_datagram(),
            cwnd: self.congestion.window(),
            bytes_in_flight: self.outstanding.bytes_in_flight(),
            bytes_queued: self.queues.bytes() as u64,
            srtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min(),
            delivery_rate: self.delivery_rate,
            forecast: self.forecaster.forecast(now),
            overdue: overdue(self.outstanding.oldest()),
            stalled: overdue(self.outstanding.oldest_unanswered()),
            last_trouble_at: self.last_trouble_at,
            lone_losses: self.lone_losses.share(),
            losses: self.losses.share(),
            losses_known: self.losses.is_known(),
            last_sent_at: self.last_sent_at,
        }
    }

    pub(crate) fn info(&self, now: Instant) -> PathInfo {
        PathInfo {
            id: self.id,
            health: self.health,
            srtt: self.rtt.srtt(),
            forecast: self.forecaster.forecast(now),
            cwnd: self.congestion.window(),
            bytes_in_flight: self.outstanding.bytes_in_flight(),
            frame_bytes: self.frame_bytes(),
            frames: self.frames,
            lost_frames: self.lost_frames,
        }
    }

    /// Latest expected time for the acknowledgment of a frame.
    fn answer_deadline(&self, sent: &SentFrame) -> Option<Instant> {
        // The acknowledgment of a frame that was already reported was due earlier.
        sent.overdue_at.or_else(|| Some(sent.at + self.rtt.srtt()? + ACK_DELAY))
    }

    /// Kind of data that may be sent now.
    pub(crate) fn room(&self, now: Instant) -> Option<Room> {
        let in_flight = self.outstanding.bytes_in_flight();
        if self.health.is_unreachable() {
            return (in_flight < UNREACHABLE_BYTES).then_some(Room::Any);
        }
        let window = self.congestion.window();
        if in_flight < window && self.pacer.next_send_at() <= now {
            return Some(Room::Any);
        }
        (in_flight < window.max(self.urgent_bytes())).then_some(Room::Urgent)
    }

    /// Number of bytes of non-bulk data that may be in transit with any window. Without a queue, this is at least the
    /// amount that the path carried recently.
    fn urgent_bytes(&self) -> u64 {
        let Some(srtt) = self.rtt.srtt() else { return IN_FLIGHT_LIMIT_WITHOUT_QUEUE };
        let least = self.rtt.min().unwrap_or(srtt);
        if srtt.saturating_sub(least) > least.max(MIN_QUEUE_DELAY) {
            return MIN_IN_FLIGHT_LIMIT;
        }
        let carried = self.carried.rate().bytes_in(self.usual_ack_time(srtt) + ACK_DELAY);
        (carried + carried / 4 + 2 * u64::from(self.frame_bytes()))
            .max(IN_FLIGHT_LIMIT_WITHOUT_QUEUE)
    }

    /// Usual time until an acknowledgment, including the RTT variation but not the peer's delay.
    fn usual_ack_time(&self, srtt: Duration) -> Duration {
        srtt + (self.rtt.rttvar() * 4).max(MIN_VARIATION)
    }

    /// Returns true if a copy of this length fits: a copy that would have to wait is not sent.
    pub(crate) fn has_room_for_copy(&self, bytes: usize) -> bool {
        let after = self.outstanding.bytes_in_flight() + bytes as u64;
        match self.health.is_unreachable() {
            true => after <= UNREACHABLE_BYTES,
            false => after <= self.congestion.window().max(self.urgent_bytes()),
        }
    }
}

/// Sending.
impl Path {
    /// Records an ack-eliciting frame.
    pub(crate) fn on_sent(
        &mut self,
        number: u64,
        frame_bytes: usize,
        probes_mtu: bool,
        now: Instant,
    ) {
        let bytes = frame_bytes as u32 + OUTER_BYTES;
        let forecast = self.forecaster.forecast(now);
        let p99 = forecast.answer_after(bytes.into(), Quantile::P99);
        let expected = self.forecaster.on_sent(now, bytes.into());
        let in_flight = self.outstanding.bytes_in_flight() + u64::from(bytes);
        let sending = Sending {
            bytes,
            expected,
            overdue_at: p99.map(|p99| now + p99 + ACK_DELAY),
            probes_mtu,
            limited: 2 * in_flight >= self.congestion.window(),
        };
        self.outstanding.on_sent(number, now, &sending);
        self.congestion.on_sent(bytes.into(), now);
        self.pacer.on_sent(now, bytes.into());
        self.last_sent_at = Some(now);
        self.patience.set(None);
        self.frames += 1;
    }

    /// Returns true once if a round-trip probe is due; the caller must then send it.
    pub(crate) fn take_ping(&mut self, now: Instant) -> bool {
        let wanted = core::mem::take(&mut self.wants_ping);
        if wanted {
            self.pinged_at = Some(now);
        }
        wanted
    }

    /// Schedules a packet train to measure the rate, unless one was sent within this time or enough data is in transit
    /// to measure it.
    pub(crate) fn explore_rate(&mut self, every: Duration, now: Instant) {
        if self.is_spared() || self.traits.cost.metered {
            return;
        }
        let due = self.train_at.is_none_or(|at| now.since(at) >= every);
        let known = 2 * self.outstanding.bytes_in_flight() >= self.congestion.window();
        if due && !self.health.is_unreachable() && self.rtt.srtt().is_some() {
            self.train_at = Some(now);
            self.train = if known { 0 } else { TRAIN_FRAMES };
        }
    }

    /// Returns true if a train frame must be sent.
    pub(crate) const fn take_train(&mut self) -> bool {
        let wanted = self.train > 0;
        self.train = self.train.saturating_sub(1);
        wanted
    }

    /// Requests a probe, which also carries pending data.
    pub(crate) const fn request_probe(&mut self) {
        self.wants_ping = true;
    }

    /// Requests a round-trip probe if nothing was sent for this time.
    pub(crate) fn explore(&mut self, every: Duration, now: Instant) {
        let never = self.last_sent_at.max(self.pinged_at).is_none();
        if never || self.explore_at(every).is_some_and(|at| at <= now) {
            self.wants_ping = true;
        }
    }

    /// Time of the next round-trip probe; `None` if nothing was sent yet, or if the path's radio should sleep.
    pub(crate) fn explore_at(&self, every: Duration) -> Option<Instant> {
        let last = self.last_sent_at.max(self.pinged_at)?;
        let is_probed = self.health.is_unreachable() && self.traits.is_probed;
        (!self.is_spared() && !is_probed).then_some(last + every)
    }

    /// Returns true if the path's radio should sleep while other paths suffice.
    const fn is_spared(&self) -> bool {
        self.traits.backup || self.traits.cost.has_radio()
    }
}

/// Acknowledgments.
impl Path {
    /// Handles an acknowledgment of this path's frames, which may arrive on any path.
    pub(crate) fn on_ack(&mut self, ack: &Ack, now: Instant) -> Outcome {
        let prior = self.outstanding.bytes_in_flight();
        let answered = self.outstanding.on_answer(ack.ranges(), now);
        let mut outcome = Outcome::default();
        if answered.frames.is_empty() {
            return outcome;
        }
        self.patience.set(None);
        outcome.answers = self.health.is_unreachable();
        self.health = if outcome.answers { Health::Usable } else { self.health };
        self.unanswered_timeouts = 0;
        for (number, sent) in answered.frames.iter().rev() {
            outcome.mtu_changed |=
                self.mtu.on_answered(*number, sent.place, sent.bytes - OUTER_BYTES);
            outcome.answered.push(*number);
            self.lone_losses.on_answered();
            self.losses.on_frame(false, now);
        }
        let newest = answered.frames.iter().map(|(_, sent)| *sent).max_by_key(|sent| sent.place);
        let rtt = self.sample(answered.largest.as_ref(), ack.delay, now);
        let mut rate = None;
        if let Some(newest) = newest {
            let sample = self.outstanding.rate(&newest, now);
            let timed = newest.place >= self.untimed_before;
            if timed {
                self.carried.on_rate(sample.rate, now);
                self.forecaster.on_delivered(now, newest.at, answered.bytes);
                self.record_rate(&sample);
            }
            if self.recovers_until.is_some_and(|until| newest.place >= until) {
                self.recovers_until = None;
                self.signal(CongestionSignal::RecoveryDone, now);
            }
            rate = timed.then_some(sample);
        }
        let lost = self.detect_losses(now, prior, &mut outcome);
        self.congestion.on_ack(
            &AckSample {
                now,
                delivered: answered.bytes,
                total_delivered: self.outstanding.delivered(),
                lost,
                prior_in_flight: prior,
                bytes_in_flight: self.outstanding.bytes_in_flight(),
                rtt,
                srtt: self.rtt.srtt(),
                min_rtt: self.rtt.min(),
                rate,
                cwnd_limited: prior + u64::from(self.frame_bytes()) >= self.congestion.window(),
                in_recovery: self.recovers_until.is_some(),
            },
            subflow(self.id),
            &[],
        );
        self.pace();
        outcome
    }

    fn record_rate(&mut self, sample: &RateSample) {
        let known = self.delivery_rate.unwrap_or(Rate::ZERO);
        if !sample.app_limited || sample.rate > known {
            self.delivery_rate = Some(smooth_rate(known, sample.rate));
        }
    }

    /// Records that the process was suspended for some time: the acknowledgment times of frames in transit are unknown.
    pub(crate) fn record_pause(&mut self) {
        self.untimed_before = self.outstanding.sent_count();
    }

    /// Measures the RTT of the largest acknowledged number.
    fn sample(
        &mut self,
        sent: Option<&SentFrame>,
        delay: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let sent = sent.filter(|sent| sent.place >= self.untimed_before)?;
        let whole = now.since(sent.at).max(Duration::from_micros(1));
        // RFC 9002 section 5.3: subtracting the peer's delay must not reduce the RTT below the minimum.
        let least = self.rtt.min().unwrap_or(whole).min(whole);
        let rtt = whole.saturating_sub(delay).max(least);
        let own = self.forecaster.own_delay(&sent.expected, sent.bytes.into());
        self.rtt.on_sample(rtt, now);
        self.forecaster.on_answer(now, rtt, own, &sent.expected);
        if self.answer_deadline(sent).is_some_and(|by| now > by) {
            self.last_trouble_at = Some(now);
        }
        Some(rtt)
    }

    fn detect_losses(&mut self, now: Instant, in_flight: u64, outcome: &mut Outcome) -> u64 {
        let rtt = self.rtt.latest().max(self.srtt());
        let (lost, next) = self.outstanding.take_lost(now, rtt);
        self.loss_at = next;
        self.on_lost(&lost, in_flight, now, outcome)
    }

    /// Handles lost frames. Returns the total size of the frames whose loss indicates congestion, in bytes.
    fn on_lost(
        &mut self,
        lost: &[(u64, SentFrame)],
        in_flight: u64,
        now: Instant,
        outcome: &mut Outcome,
    ) -> u64 {
        let mut bytes = 0;
        for (number, sent) in lost {
            if sent.probes_mtu {
                self.mtu.on_probe_lost(*number);
                continue;
            }
            outcome.mtu_changed |= self.mtu.on_lost(sent.place, sent.bytes - OUTER_BYTES);
            outcome.missed.push(*number);
            bytes += u64::from(sent.bytes);
            self.lost_frames += 1;
            self.lone_losses.on_lost(sent.place);
            self.losses.on_frame(true, now);
            if self.recovers_until.is_none_or(|until| sent.place >= until) {
                self.recovers_until = Some(self.outstanding.sent_count());
                self.signal(CongestionSignal::Loss { bytes_in_flight: in_flight }, now);
            }
        }
        if bytes > 0 {
            self.patience.set(None);
            self.forecaster.on_lost(now);
            self.last_trouble_at = Some(now);
        }
        bytes
    }

    fn signal(&mut self, signal: CongestionSignal, now: Instant) {
        self.congestion.on_signal(signal, now, subflow(self.id), &[]);
    }

    fn pace(&mut self) {
        let window = self.congestion.window();
        let slow_start = window < self.congestion.ssthresh();
        self.pacer.set(self.congestion.pacing_rate(), window, self.srtt(), slow_start);
    }

    /// Reports that nothing passes on the path (an ICMP error, or an interface that is gone).
    pub(crate) fn on_unreachable(&mut self, now: Instant) -> bool {
        self.mark_unreachable(UnreachableCause::DeliveryError, now)
    }

    fn mark_unreachable(&mut self, cause: UnreachableCause, now: Instant) -> bool {
        let fell = !self.health.is_unreachable();
        if fell {
            self.health = Health::Unreachable { since: now, cause };
            self.last_trouble_at = Some(now);
            // With isolated losses, two in a row are not evidence about the MTU. Smaller frames would only increase
            // their number, and a datagram in two pieces is lost twice as often.
            if self.lone_losses.share() < ISOLATED_LOSS_SHARE {
                self.mtu.suspect();
            }
        }
        fell
    }
}

/// Smooths a rate: follows increases immediately and decreases slowly.
fn smooth_rate(known: Rate, new: Rate) -> Rate {
    let (known, new) = (known.bits_per_s(), new.bits_per_s());
    Rate::from_bits_per_s(if new > known { new } else { known - (known - new) / 8 })
}

/// Maps a path to the subflow id of its congestion control.
const fn subflow(path: PathId) -> SubflowId {
    SubflowId(path.0 & 31)
}
