//! CUBIC that checks whether each loss was congestion and keeps its window across pauses.
//!
//! *Problem.* CUBIC treats every loss as congestion: on a radio link with 1 % loss, it achieves a fifth of the link's
//! rate. And it starts each burst with the initial window, even if it measured the path a second ago. Both affect
//! interactive traffic more than the scheduler does. BBR has neither problem, but it competes badly with loss-based
//! flows, and spreads a burst over a measured rate that a sender with pauses never reaches.
//!
//! *How.* Six rules modify [`Cubic`]. Where none of them applies, the behavior is exactly that of CUBIC.
//! - *A loss without a queue is not congestion.* A queue shows before it overflows: the smoothed RTT exceeds the
//!   smallest one by the queueing delay (1/[`QUEUE_SHARE`] of the smallest RTT, at least [`MIN_QUEUE_DELAY`], and more
//!   than jitter explains), and more is in flight than the path delivers within the smallest RTT plus jitter at its
//!   highest rate of the last [`RATE_ROUNDS`] round trips. If either condition fails at the loss, and at most
//!   [`MAX_LOSS`] of recent data was lost, the window is not reduced, continues to grow, and also applies during
//!   recovery. Another loss in the episode is judged again. The RTT alone is not enough, because a radio's RTT varies
//!   without a queue. By Little's law, a smoothed rate adds nothing to the RTT. The largest rate of several round trips
//!   adds information, because it was measured when the RTT was small.
//! - *A reduction stops at what the path delivers.* Where there is a queue, the window falls to 0.7 of itself, but not
//!   below rate x (smallest RTT + jitter), with the rate smoothed over the last deliveries (Westwood+). With a buffer
//!   of at least one bandwidth-delay product, 0.7 of the window is the larger of the two, so in competition with CUBIC
//!   flows this is CUBIC.
//! - *A recovery is not limited by ACKs alone.* Rate x smallest RTT, and at least [`MIN_RECOVERY_FLIGHT`] segments, may
//!   be in flight regardless of PRR. PRR sends in response to ACKs. Where a burst ends with a loss, hardly any ACKs are
//!   left: the last twenty segments are retransmitted one, two, four and eight at a time, and a small message written
//!   in the meantime waits for them.
//! - *Pauses.* A window that was used is kept for [`WINDOW_VALIDITY`] (five minutes, as in RFC 7661) instead of one
//!   timeout. If less than half of it was in flight recently, it is cut to twice that amount (the RFC's `pipeACK`). The
//!   first burst is paced over half a round trip if there is no queue.
//! - *A queue of our own stays short* ([`PathQueue`]): a bulk sender that fills a queue alone, or together with other
//!   connections of its process, limits its window to what the path holds plus a small queue. While that queue is
//!   short, a loss is not congestion.
//! - *Subflows that share a bottleneck share one TCP's growth*, once their queueing delays show that they do
//!   ([`shared_bottleneck`](super::shared_bottleneck)).
//!
//! *Jitter* is measured by the RTT's mean deviation. If it were ignored, WiFi with jitter of 4 ms and 0.5 % random loss
//! would carry two fifths of its rate: each loss would count as congestion, and rate x smallest RTT is less than the
//! path needs at its average RTT.
//!
//! *Sources.* Westwood+ (Grieco and Mascolo, ACM CCR 2004) for the lower limit; RFC 7661 for the pauses. The queue test
//! is from Veno (Fu and Liew, IEEE JSAC 2003), but with times instead of packets.
//!
//! *What differs.* Westwood+ always sets the window to rate x RTT, which is less than half the window if the buffer is
//! large. Here this is only the lower limit. Veno reduces the window to 0.8 on a random loss. Here it is not reduced,
//! because one loss per round trip would still halve it every three round trips. RFC 7661 reduces the window to the
//! bytes in flight on a loss after a pause. Here such a loss is treated like any other.
//!
//! *p99 of a small message:* behind a queue of others, as with CUBIC; next to our own bulk data some 10 ms later.
//! After a pause, a burst is sent within about one round trip.

use marline_policy::{
    AckSample, CongestionController, CongestionSignal, PathQueue, QueueLimit, SenderRound,
    SubflowId, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use super::Cubic;
use super::filter::{MaxRateFilter, Rounds};
use super::shared_bottleneck::{SharedBottleneck, sampling_interval};
use crate::slow_start::SlowStartKind;

/// There is a queue if the smoothed RTT exceeds the smallest RTT by this fraction of it (divisor).
const QUEUE_SHARE: u32 = 8;
/// Minimum for that excess, because a smaller excess is jitter.
const MIN_QUEUE_DELAY: Duration = Duration::from_millis(3);
/// Another minimum is this multiple of the RTT's mean deviation, at most [`MAX_JITTER`]. Jitter alone exceeds the
/// smallest RTT by some four deviations. A queue that overflows varies little: its excess is some twenty.
const QUEUE_DEVIATIONS: u32 = 8;
/// Multiple of the mean deviation by which jitter makes the average RTT larger than the smallest one.
const JITTER_DEVIATIONS: u32 = 4;
/// Largest excess that counts as jitter. On a mobile network the RTT varies more, because its queues vary.
const MAX_JITTER: Duration = Duration::from_millis(15);
/// Weight of the newest sample in the mean deviation (divisor).
const DEVIATION_SAMPLES: u32 = 16;
/// Number of round trips whose largest delivery rate counts as the path's rate. More would hide a queue on a link that
/// became slower.
const RATE_ROUNDS: u64 = 4;
/// The same for the limit on our own queue. Fewer would let the limit shrink with our share while others fill the
/// queue.
const QUEUE_ROUNDS: u64 = 8;
/// Largest share of losses, smoothed over [`LOSS_MEMORY`], that counts as random. A path that loses more is congested
/// or failing.
const MAX_LOSS: f64 = 0.1;
/// Number of segments over which the share of losses is smoothed.
const LOSS_MEMORY: f64 = 300.0;
/// Length of the pause across which a validated window is kept (RFC 7661 section 4.4).
const WINDOW_VALIDITY: Duration = Duration::from_secs(300);
/// Number of segments that may always be in flight during recovery; more if the path holds more.
const MIN_RECOVERY_FLIGHT: f64 = 4.0;
/// Smallest limit on our own queue in segments, so that a loss is still detected without a timeout.
const MIN_QUEUE_WINDOW: f64 = 4.0;
/// Weight of the newest delivery in the smoothed rate.
const RATE_GAIN: f64 = 1.0 / 8.0;
/// Length of a span. The maximum number of bytes in flight covers one to two spans.
const PIPE_SPAN: Duration = Duration::from_secs(15);

/// Classification of the losses of the current episode.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Episode {
    /// There is no loss episode.
    #[default]
    None,
    /// Losses are random: the window was not reduced.
    Random,
    /// Losses mean congestion: the window was reduced.
    Congestion,
}

/// Limit on a queue that only our own data fills.
#[derive(Debug, Default)]
struct OwnQueue {
    /// The path's queue; `None` until this sender fills it.
    path: Option<PathQueue>,
    /// True if this sender should share the path's queue.
    is_wanted: bool,
    limit: QueueLimit,
    /// Largest useful window in bytes, as of the last ACK, if there is a limit.
    window: Option<u64>,
    /// True if the window limited the sender in the current round trip.
    is_bulk: bool,
    /// Bytes delivered before the current round trip.
    delivered_before: u64,
}

/// CUBIC that tolerates losses without a queue.
#[derive(Debug)]
pub struct CubicWestwood {
    cubic: Cubic,
    mss: f64,
    episode: Episode,
    /// Smoothed delivery rate in bytes per second; 0 before the first sample.
    rate: f64,
    rounds: Rounds,
    /// Largest delivery rate in the last [`RATE_ROUNDS`] round trips.
    fastest: MaxRateFilter,
    /// Largest delivery rate in the last [`QUEUE_ROUNDS`] round trips.
    lasting: MaxRateFilter,
    own_queue: OwnQueue,
    /// Bytes in flight before the last ACK.
    in_flight: u64,
    srtt: Duration,
    min_rtt: Duration,
    /// Mean deviation of the RTT from the smoothed one.
    deviation: Duration,
    /// Smoothed share of lost segments.
    lost: f64,
    /// Largest number of bytes in flight in the current span and the previous one (`pipeACK`).
    pipe: [u64; 2],
    pipe_began: Instant,
    last_ack: Instant,
    /// Detects subflows behind one bottleneck; `None` until first requested.
    shared: Option<Box<SharedBottleneck>>,
    /// True if the next ACK should include the views of all subflows.
    wants_views: bool,
    next_sample_at: Instant,
}

impl CubicWestwood {
    /// Creates a controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, slow_start: SlowStartKind) -> Self {
        CubicWestwood {
            cubic: Cubic::new(mss, initial_window, slow_start),
            mss: f64::from(mss.max(1)),
            episode: Episode::None,
            rate: 0.0,
            rounds: Rounds::default(),
            fastest: MaxRateFilter::new(RATE_ROUNDS),
            lasting: MaxRateFilter::new(QUEUE_ROUNDS),
            own_queue: OwnQueue::default(),
            in_flight: 0,
            srtt: Duration::ZERO,
            min_rtt: Duration::ZERO,
            deviation: Duration::ZERO,
            lost: 0.0,
            pipe: [0; 2],
            pipe_began: Instant::ZERO,
            last_ack: Instant::ZERO,
            shared: None,
            wants_views: false,
            next_sample_at: Instant::ZERO,
        }
    }

    /// Returns true if a loss would now count as congestion.
    fn is_congested(&self) -> bool {
        self.min_rtt.is_zero()
            || self.lost > MAX_LOSS
            || (self.has_queue() && self.exceeds_path_capacity() && !self.keeps_queue_short())
    }

    /// Returns true if the window is limited and the queue is short. The link has room for more, so a loss is random.
    fn keeps_queue_short(&self) -> bool {
        match self.own_queue.limit {
            QueueLimit::Rtt { target, .. } => {
                self.queue() <= target * 2 + self.jitter(JITTER_DEVIATIONS)
            }
            QueueLimit::None | QueueLimit::Others => false,
        }
    }

    /// Returns the smoothed queueing delay.
    fn queue(&self) -> Duration {
        self.srtt.saturating_sub(self.min_rtt)
    }

    /// Returns true if packets wait in a queue on the path.
    fn has_queue(&self) -> bool {
        self.queue() > self.ordinary_excess().max(MIN_QUEUE_DELAY)
    }

    /// Returns the time by which an RTT may exceed the smallest one without a queue.
    fn ordinary_excess(&self) -> Duration {
        (self.min_rtt / QUEUE_SHARE).max(self.jitter(QUEUE_DEVIATIONS))
    }

    /// Returns a multiple of the mean deviation of the RTT, limited to what may be jitter.
    fn jitter(&self, deviations: u32) -> Duration {
        (self.deviation * deviations).min(MAX_JITTER)
    }

    /// Returns true if more is in flight than fits on the path without a queue, at the largest rate of the last round
    /// trips.
    fn exceeds_path_capacity(&self) -> bool {
        let fits = self.fastest.get().bytes_in(self.min_rtt + self.ordinary_excess());
        self.in_flight > fits
    }

    /// Returns the number of bytes that the path holds without a queue, at the smoothed delivery rate.
    fn delivered_per_rtt(&self) -> f64 {
        // Where most losses are congestion, nothing more than the path holds may be in flight.
        let jitter = self.jitter(if self.lost > MAX_LOSS { 0 } else { JITTER_DEVIATIONS });
        self.rate * (self.min_rtt + jitter).as_secs_f64()
    }

    fn reduce(&mut self, signal: CongestionSignal, now: Instant, me: SubflowId) {
        let before = self.cubic.window() as f64;
        self.cubic.on_signal(signal, now, me, &[]);
        self.cubic.stop_reduction_at(self.delivered_per_rtt().min(before));
    }

    fn on_loss(&mut self, signal: CongestionSignal, now: Instant, me: SubflowId) {
        if self.is_congested() {
            self.episode = Episode::Congestion;
            self.reduce(signal, now, me);
        } else {
            self.episode = Episode::Random;
        }
    }

    /// Takes the measurements of an ACK. Returns true if a round trip has ended.
    fn measure(&mut self, ack: &AckSample) -> bool {
        let mut new_round = false;
        if let Some(rtt) = ack.rtt.filter(|_| !self.srtt.is_zero()) {
            let difference = rtt.max(self.srtt) - rtt.min(self.srtt);
            let before = self.deviation - self.deviation / DEVIATION_SAMPLES;
            self.deviation = before + difference / DEVIATION_SAMPLES;
        }
        if let Some(srtt) = ack.srtt {
            self.srtt = srtt;
        }
        if let Some(min_rtt) = ack.min_rtt {
            self.min_rtt = min_rtt;
        }
        self.in_flight = ack.prior_in_flight;
        if let Some(sample) = ack.rate {
            new_round = self.rounds.on_sample(&sample, ack.total_delivered);
            // A shorter interval means that ACKs arrived together.
            if sample.interval >= self.min_rtt {
                self.fastest.on_sample(self.rounds.count(), sample.rate);
                self.lasting.on_sample(self.rounds.count(), sample.rate);
            }
            let rate = sample.rate.bits_per_s() as f64 / 8.0;
            if self.rate == 0.0 {
                self.rate = rate;
            } else if !sample.app_limited || rate > self.rate {
                self.rate += (rate - self.rate) * RATE_GAIN;
            }
        }
        let (delivered, lost) = (ack.delivered as f64 / self.mss, ack.lost as f64 / self.mss);
        let total = delivered + lost;
        if total > 0.0 {
            let weight = (total / LOSS_MEMORY).min(1.0);
            self.lost += (lost / total - self.lost) * weight;
        }
        if ack.now.since(self.pipe_began) > PIPE_SPAN {
            self.pipe = [0, self.pipe[0]];
            self.pipe_began = ack.now;
        }
        self.pipe[0] = self.pipe[0].max(ack.prior_in_flight);
        self.last_ack = ack.now;
        new_round
    }

    /// Updates the limit on our own queue.
    fn limit_own_queue(&mut self, ack: &AckSample, new_round: bool) {
        self.own_queue.is_bulk |= ack.cwnd_limited;
        if new_round {
            self.report_round(ack);
        }
        self.own_queue.window = match self.own_queue.limit {
            QueueLimit::Rtt { rtt, .. } => {
                let useful = self.lasting.get().bytes_in(rtt);
                Some(useful.max((MIN_QUEUE_WINDOW * self.mss) as u64))
            }
            QueueLimit::None | QueueLimit::Others => None,
        };
    }

    /// Reports a round trip to the senders that share the path's queue.
    fn report_round(&mut self, ack: &AckSample) {
        let has_queue = self.has_queue();
        let jitter = self.jitter(JITTER_DEVIATIONS);
        let queue = &mut self.own_queue;
        let is_bulk = core::mem::take(&mut queue.is_bulk);
        let delivered = ack.total_delivered - queue.delivered_before;
        queue.delivered_before = ack.total_delivered;
        let Some(path) = &queue.path else {
            queue.is_wanted = is_bulk && has_queue;
            return;
        };
        let before = core::mem::replace(
            &mut queue.limit,
            path.report(&SenderRound {
                now: ack.now,
                rtt: self.srtt,
                min_rtt: self.min_rtt,
                jitter,
                smoothed_rate: Rate::from_bytes_per_s(self.rate as u64),
                largest_rate: self.lasting.get(),
                delivered,
                is_bulk,
            }),
        );
        match (before, queue.limit) {
            (QueueLimit::None | QueueLimit::Others, QueueLimit::Rtt { .. }) => {
                self.cubic.end_slow_start();
            }
            // The application sends less. CUBIC grows from the limit if there is bulk data again.
            (QueueLimit::Rtt { .. }, QueueLimit::None) => {
                self.cubic.bound_window(queue.window.unwrap_or(u64::MAX) as f64);
            }
            _ => {}
        }
    }

    /// Returns true if the limit on our own queue is smaller than CUBIC's window.
    fn is_limited(&self) -> bool {
        self.own_queue.window.is_some_and(|limit| limit < self.cubic.window())
    }

    /// Lets CUBIC's window grow, except while the limit on our own queue applies.
    fn grow(&mut self, ack: &AckSample, me: SubflowId) {
        if !self.is_limited() {
            self.cubic.on_ack(ack, me, &[]);
        }
    }

    /// Handles a pause: keeps the window if it was used, otherwise only the used part.
    fn on_pause(&mut self, now: Instant, me: SubflowId) {
        if now.since(self.last_ack) > WINDOW_VALIDITY {
            self.cubic.on_signal(CongestionSignal::Idle, now, me, &[]);
            return;
        }
        let used = self.pipe[0].max(self.pipe[1]);
        self.cubic.limit_window_to(2.0 * used as f64);
    }
}

impl CubicWestwood {
    /// Samples the other subflows at intervals while the window limits this one.
    fn sample_siblings(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        if self.wants_views {
            self.next_sample_at = ack.now + sampling_interval(group);
            if group.len() > 1 {
                let shared = self.shared.get_or_insert_with(|| Box::new(SharedBottleneck::new()));
                shared.take_samples(me, group);
                self.cubic.set_growth_share(shared.growth_share());
            }
        }
        self.wants_views = ack.cwnd_limited
            && ack.now >= self.next_sample_at
            && self.cubic.window() >= self.cubic.ssthresh();
    }
}

impl CongestionController for CubicWestwood {
    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        let new_round = self.measure(ack);
        self.sample_siblings(ack, me, group);
        if self.episode == Episode::Random {
            if ack.lost > 0 && self.is_congested() {
                self.episode = Episode::Congestion;
                let bytes_in_flight = ack.bytes_in_flight;
                self.reduce(CongestionSignal::Loss { bytes_in_flight }, ack.now, me);
            } else {
                // Growth continues.
                self.grow(&AckSample { in_recovery: false, ..*ack }, me);
                self.limit_own_queue(ack, new_round);
                return;
            }
        }
        self.grow(ack, me);
        self.limit_own_queue(ack, new_round);
    }

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        now: Instant,
        me: SubflowId,
        _group: &[SubflowView],
    ) {
        match signal {
            CongestionSignal::Loss { .. } => self.on_loss(signal, now, me),
            CongestionSignal::Rto { .. } => {
                self.episode = Episode::Congestion;
                let before = self.cubic.window() as f64;
                self.cubic.on_signal(signal, now, me, &[]);
                self.cubic.raise_threshold_to(self.delivered_per_rtt().min(before));
            }
            CongestionSignal::RecoveryDone | CongestionSignal::Spurious => {
                if self.episode != Episode::Random {
                    self.cubic.on_signal(signal, now, me, &[]);
                }
                if signal == CongestionSignal::RecoveryDone {
                    self.episode = Episode::None;
                }
            }
            CongestionSignal::Idle => self.on_pause(now, me),
            CongestionSignal::Ecn { .. } | CongestionSignal::Penalty(_) => {
                self.cubic.on_signal(signal, now, me, &[]);
            }
        }
    }

    fn window(&self) -> u64 {
        self.cubic.window().min(self.own_queue.window.unwrap_or(u64::MAX))
    }

    fn wants_group(&self) -> bool {
        self.wants_views
    }

    fn wants_queue(&self) -> bool {
        self.own_queue.is_wanted
    }

    fn share_queue(&mut self, queue: PathQueue) {
        self.own_queue.is_wanted = false;
        self.own_queue.path = Some(queue);
    }

    fn ssthresh(&self) -> u64 {
        self.cubic.ssthresh().min(self.own_queue.window.unwrap_or(u64::MAX))
    }

    /// Leaves pacing to the core, except where there is no queue. In that case, it paces at twice the window per round
    /// trip, so that a burst is sent in half a round trip.
    fn pacing_rate(&self) -> Option<Rate> {
        if self.srtt.is_zero() || self.window() < self.ssthresh() / 2 || self.has_queue() {
            return None;
        }
        Some(Rate::over(2 * self.window(), self.srtt))
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.mss = f64::from(mss.max(1));
        self.cubic.on_mss_change(mss);
    }

    fn holds_window_in_recovery(&self) -> bool {
        self.episode == Episode::Random
    }

    fn recovery_floor(&self) -> u64 {
        let floor = self.delivered_per_rtt().max(MIN_RECOVERY_FLIGHT * self.mss);
        (floor as u64).min(self.window())
    }
}

#[cfg(test)]
mod tests;
