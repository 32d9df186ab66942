//! CUBIC that asks of each loss whether it was congestion, and keeps its window over pauses.
//!
//! *Problem.* CUBIC takes every loss for congestion: on a radio link that loses one packet in a
//! hundred it carries a fifth of what the link could. And a sender of bursts begins each of them
//! with its initial window, though it knew the path a second ago. Both decide about interactive
//! traffic more than the scheduler does. BBR does neither, but fills its place beside loss-based
//! flows badly, and spreads a burst over a measured rate that a sender with pauses never reaches.
//!
//! *How.* Five rules around [`Cubic`]; where none of them applies it is CUBIC to the byte.
//! - *A loss without a queue is no congestion.* A queue that overflows shows before it does: the
//!   smoothed RTT at the loss is above the smallest one by as much as the queue holds, and more is in flight than
//!   the path delivered in a smallest RTT when it was fastest in the last [`RATE_ROUNDS`] round trips. If either is
//!   not so ([`QUEUE_SHARE`] of the smallest RTT, [`LEAST_QUEUE`] at least), and no more than
//!   [`MOST_LOSS`] of what was sent lately was lost, the window stays as it is, grows as if nothing
//!   had happened, and holds during recovery. A further loss in the same episode is judged anew.
//!   The RTT alone would not do: a radio's varies by itself, with no queue behind it. By Little's law a smoothed rate
//!   says no more than the RTT does; the largest of some round trips does, for it was measured when the RTT was small.
//! - *A reduction stops at what the path delivers.* Where there is a queue the window falls to 0.7
//!   of itself, but not below rate x smallest RTT, the rate being smoothed over the last
//!   deliveries (Westwood+). Behind a buffer of one bandwidth-delay product or more 0.7 of the
//!   window is the larger of the two, so that beside CUBIC this is CUBIC.
//! - *A recovery does not stop at what ACKs let go.* As much as rate x smallest RTT, and
//!   [`LEAST_IN_RECOVERY`] segments, may be in flight whatever PRR says. PRR is a sending rate measured in
//!   ACKs: where a burst ends with a loss there are hardly any left, the last twenty segments are repeated
//!   one, two, four and eight at a time, and a small message written meanwhile waits for them.
//! - *Pauses.* A window that was used is kept for [`KEPT_FOR`] (RFC 7661's five minutes) instead of
//!   one timeout; one of which less than half was in flight lately is cut to twice what was (its
//!   `pipeACK`). The first burst is paced, over half a round trip where no queue is.
//! - *Subflows that share a bottleneck share one TCP's growth*, once the delays of their queues show that they do
//!   ([`shared_bottleneck`](super::shared_bottleneck)).
//!
//! *Sources.* Westwood+ (Grieco and Mascolo, ACM CCR 2004) for the floor; RFC 7661 for the pauses; the
//! test for a queue is that of Veno (Fu and Liew, IEEE JSAC 2003), with time for packets.
//!
//! *What differs.* Westwood+ sets the window to rate x RTT whatever it was, which is less than half
//! of it behind a large buffer; here that is the lower limit only. Veno reduces to 0.8 on a random
//! loss; here nothing is taken, since one loss per round trip would still halve the window every
//! third. RFC 7661 has a loss after a pause reduce the window to what was in flight; here it is met as any other.
//!
//! *p99 of a small message:* behind a long queue as with CUBIC. After a pause a burst leaves within
//! about one round trip.

use marline_policy::{AckSample, CongestionController, CongestionSignal, SubflowId, SubflowView};
use marline_time::{Duration, Instant, Rate};

use super::Cubic;
use super::filter::{MaxRate, Rounds};
use super::shared_bottleneck::{SharedBottleneck, look_again_after};
use crate::slow_start::SlowStartKind;

/// A queue is there if the smoothed RTT exceeds the smallest by this share of it.
const QUEUE_SHARE: u32 = 8;
/// Whatever the smallest RTT: less is jitter.
const LEAST_QUEUE: Duration = Duration::from_millis(3);
/// Round trips whose largest delivery rate is what the path can do. More would hide a queue behind a link that
/// became slower.
const RATE_ROUNDS: u64 = 4;
/// Of what was sent, in the memory of [`LOSS_MEMORY`]: what loses more is congested or dying.
const MOST_LOSS: f64 = 0.1;
/// Segments over which the share of losses is smoothed.
const LOSS_MEMORY: f64 = 300.0;
/// A validated window outlasts pauses of this length (RFC 7661 section 4.4).
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Segments that may be under way in a recovery, and what the path holds if that is more.
const LEAST_IN_RECOVERY: f64 = 4.0;
/// Weight of the newest delivery in the smoothed rate.
const RATE_GAIN: f64 = 1.0 / 8.0;
/// The bytes that were in flight are remembered for one to two of these.
const PIPE_SPAN: Duration = Duration::from_secs(15);

/// Whether the losses of the running episode are taken for congestion.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Episode {
    /// None runs.
    #[default]
    None,
    /// Nothing was reduced for it.
    Random,
    /// The window was.
    Congestion,
}

/// CUBIC with tolerance for losses that no queue explains.
#[derive(Debug)]
pub struct CubicWestwood {
    cubic: Cubic,
    mss: f64,
    episode: Episode,
    /// Smoothed delivery rate, bytes a second; 0 before the first sample.
    rate: f64,
    rounds: Rounds,
    /// The largest delivery rate of the last [`RATE_ROUNDS`].
    fastest: MaxRate,
    /// Bytes in flight before the last ACK.
    in_flight: u64,
    srtt: Duration,
    min_rtt: Duration,
    /// Smoothed share of lost segments.
    lost: f64,
    /// Most bytes in flight in this span and the one before (`pipeACK`), and when this one began.
    pipe: [u64; 2],
    pipe_began: Instant,
    last_ack: Instant,
    /// What siblings there are behind the same bottleneck; `None` while nobody asked.
    shared: Option<Box<SharedBottleneck>>,
    /// Views of the siblings are wanted with the next ACK, and not before.
    looks: bool,
    next_look: Instant,
}

impl CubicWestwood {
    /// A controller that starts with `initial_window` bytes.
    #[must_use]
    pub fn new(mss: u32, initial_window: u64, slow_start: SlowStartKind) -> Self {
        CubicWestwood {
            cubic: Cubic::new(mss, initial_window, slow_start),
            mss: f64::from(mss.max(1)),
            episode: Episode::None,
            rate: 0.0,
            rounds: Rounds::default(),
            fastest: MaxRate::new(RATE_ROUNDS),
            in_flight: 0,
            srtt: Duration::ZERO,
            min_rtt: Duration::ZERO,
            lost: 0.0,
            pipe: [0; 2],
            pipe_began: Instant::ZERO,
            last_ack: Instant::ZERO,
            shared: None,
            looks: false,
            next_look: Instant::ZERO,
        }
    }

    /// Whether a loss now is taken for congestion.
    fn is_congested(&self) -> bool {
        self.min_rtt.is_zero() || self.lost > MOST_LOSS || (self.queues() && self.is_overfull())
    }

    /// Whether packets wait in a queue on their way.
    fn queues(&self) -> bool {
        self.srtt > self.min_rtt + (self.min_rtt / QUEUE_SHARE).max(LEAST_QUEUE)
    }

    /// Whether more is in flight than fits on the path without a queue, by the fastest of the last round trips.
    fn is_overfull(&self) -> bool {
        let fits = self.fastest.get().bytes_in(self.min_rtt + self.min_rtt / QUEUE_SHARE);
        self.in_flight > fits
    }

    /// What the path holds without a queue, by what it delivered lately, bytes.
    fn delivered_per_rtt(&self) -> f64 {
        self.rate * self.min_rtt.as_nanos() as f64 / 1e9
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

    fn measure(&mut self, ack: &AckSample) {
        if let Some(srtt) = ack.srtt {
            self.srtt = srtt;
        }
        if let Some(min_rtt) = ack.min_rtt {
            self.min_rtt = min_rtt;
        }
        self.in_flight = ack.prior_in_flight;
        if let Some(sample) = ack.rate {
            self.rounds.on_sample(&sample, ack.total_delivered);
            // A shorter one is of ACKs that came together.
            if sample.interval >= self.min_rtt {
                self.fastest.on_sample(self.rounds.count(), sample.rate);
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
    }

    /// A pause: the window goes on if it was used, else what of it was.
    fn on_pause(&mut self, now: Instant, me: SubflowId) {
        if now.since(self.last_ack) > KEPT_FOR {
            self.cubic.on_signal(CongestionSignal::Idle, now, me, &[]);
            return;
        }
        let used = self.pipe[0].max(self.pipe[1]);
        self.cubic.keep_at_most(2.0 * used as f64);
    }
}

impl CubicWestwood {
    /// Looks at the siblings now and then while the window is what limits the subflow.
    fn look_at_siblings(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        if self.looks {
            self.next_look = ack.now + look_again_after(group);
            if group.len() > 1 {
                let shared = self.shared.get_or_insert_with(|| Box::new(SharedBottleneck::new()));
                shared.look(me, group);
                self.cubic.take_share(shared.share());
            }
        }
        self.looks = ack.cwnd_limited
            && ack.now >= self.next_look
            && self.cubic.window() >= self.cubic.ssthresh();
    }
}

impl CongestionController for CubicWestwood {
    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]) {
        self.measure(ack);
        self.look_at_siblings(ack, me, group);
        if self.episode == Episode::Random {
            if ack.lost > 0 && self.is_congested() {
                self.episode = Episode::Congestion;
                let bytes_in_flight = ack.bytes_in_flight;
                self.reduce(CongestionSignal::Loss { bytes_in_flight }, ack.now, me);
            } else {
                // Growth goes on.
                self.cubic.on_ack(&AckSample { in_recovery: false, ..*ack }, me, &[]);
                return;
            }
        }
        self.cubic.on_ack(ack, me, &[]);
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
        self.cubic.window()
    }

    fn wants_group(&self) -> bool {
        self.looks
    }

    fn ssthresh(&self) -> u64 {
        self.cubic.ssthresh()
    }

    /// As the core paces by itself, but where no queue is: there twice the window a round trip, for a burst to leave
    /// in half of one.
    fn pacing_rate(&self) -> Option<Rate> {
        if self.srtt.is_zero() || self.cubic.window() < self.cubic.ssthresh() / 2 || self.queues() {
            return None;
        }
        Some(Rate::over(2 * self.cubic.window(), self.srtt))
    }

    fn on_mss_change(&mut self, mss: u32) {
        self.mss = f64::from(mss.max(1));
        self.cubic.on_mss_change(mss);
    }

    fn holds_window_in_recovery(&self) -> bool {
        self.episode == Episode::Random
    }

    fn recovery_floor(&self) -> u64 {
        let floor = self.delivered_per_rtt().max(LEAST_IN_RECOVERY * self.mss);
        (floor as u64).min(self.cubic.window())
    }
}

#[cfg(test)]
mod tests;
