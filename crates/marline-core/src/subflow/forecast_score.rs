//! Score of the forecast: how often answers arrive within its quantiles, and how narrow the quantiles are.
//!
//! *Problem.* A forecast of quantiles is correct if one answer in ten is later than its p90, and useful if that p90
//! is close to the answers. A single answer shows neither, and a forecast made after its answer proves nothing.
//!
//! *How.* The forecast at the time when a segment was sent is kept until no segment sent at that time is outstanding.
//! Each RTT sample is compared with it before the forecaster learns from the sample. The forecast time is a quantile
//! plus the expected delay from the sender's own bytes ahead of the segment, which the forecaster also subtracts. The
//! score counts answers that were no later (calibration; three points of the reliability diagram) and the *pinball
//! loss*: time above the forecast is weighted with the quantile's share, and time below it with the complement, so that
//! the true quantile has the smallest expected loss and a wide one is penalized for its width. SRTT + 4 RTTVAR (RFC
//! 6298), with its value when the segment was sent, is scored with the loss of a p90, because a sender without a
//! forecast would use it.
//!
//! Answers within the quantiles just before they arrived are also counted. The forecaster learns from these. If they
//! are right and the forecast at the time of sending is not, the difference was learned while the segment was in
//! flight.
//!
//! *Lost segments* are excluded, and counted separately. The quantiles describe answers that arrive. A lost segment
//! has none, the answer to its retransmission belongs to the retransmission, and the rate of losses is forecast
//! separately, as risk. Counting lost segments as later than every quantile would give p99 two meanings.
//!
//! *Limits.* All segments sent at one instant are scored with the forecast of the first. If only a timestamp shows
//! which repeat was answered, the first transmission within its millisecond is used. An ACK is one sample, that of
//! the newest segment that it delivers and that was sent once, as for the forecaster. Answers are not independent of
//! each other: a confidence interval of a share must be based on runs instead of answers.
//!
//! *Sources.* Pinball loss: Koenker and Bassett, *Regression Quantiles*, Econometrica 1978. Calibration and
//! sharpness: Gneiting, Balabdaoui and Raftery, J. R. Stat. Soc. B, 2007.

use core::ops::RangeInclusive;
use std::collections::VecDeque;

use marline_policy::{Forecast, Quantile, RttEstimator};
use marline_time::{Duration, Instant};

use crate::ForecastScore;

/// Limit on send times with a kept forecast; beyond it, the oldest is dropped.
const MAX_PENDING_FORECASTS: usize = 8_192;
/// Quantiles that are scored, and the percentage of answers that each should cover.
const QUANTILES: [(Quantile, u64); 3] =
    [(Quantile::P50, 50), (Quantile::P90, 90), (Quantile::P99, 99)];
/// Percentage of answers that SRTT + 4 RTTVAR should cover, for its score.
const SRTT_4VAR_PERCENT: u64 = 90;

/// Forecast made at a send time.
#[derive(Copy, Clone, Debug)]
struct PendingForecast {
    sent_at: Instant,
    /// Forecast by quantile, excluding the delay of own bytes ahead of the segment.
    forecast: Forecast,
    srtt_4var: Duration,
}

/// Forecasts of segments in flight, scored when the segments are answered.
#[derive(Debug, Default)]
pub(super) struct Scorer {
    /// Sorted by time.
    pending: VecDeque<PendingForecast>,
    score: ForecastScore,
}

impl Scorer {
    /// Handles the transmission of a segment; the oldest outstanding one was first sent at `oldest`.
    pub(super) fn on_sent(
        &mut self,
        now: Instant,
        oldest: Option<Instant>,
        forecast: &Forecast,
        rtt: &RttEstimator,
    ) {
        let oldest = oldest.unwrap_or(now);
        while self.pending.front().is_some_and(|front| front.sent_at < oldest) {
            self.pending.pop_front();
        }
        if self.pending.back().is_some_and(|last| last.sent_at == now) {
            return;
        }
        let Some(srtt) = rtt.srtt().filter(|_| forecast.is_known()) else { return };
        if self.pending.len() == MAX_PENDING_FORECASTS {
            self.pending.pop_front();
        }
        let srtt_4var = srtt + 4 * rtt.rttvar();
        self.pending.push_back(PendingForecast { sent_at: now, forecast: *forecast, srtt_4var });
    }

    /// Handles an answer after `rtt` to a segment sent within `sent`; `queued` is the expected delay of the bytes
    /// ahead of it. `latest` is the forecast before the forecaster learns from this answer.
    pub(super) fn on_answer(
        &mut self,
        sent: RangeInclusive<Instant>,
        rtt: Duration,
        queued: Duration,
        latest: &Forecast,
    ) {
        let first = self.pending.partition_point(|pending| pending.sent_at < *sent.start());
        let found = self.pending.get(first).filter(|pending| pending.sent_at <= *sent.end());
        let score = &mut self.score;
        let Some(PendingForecast { forecast, srtt_4var, .. }) = found else {
            score.unforecast += 1;
            return;
        };
        score.answers += 1;
        for (index, (quantile, percent)) in QUANTILES.into_iter().enumerate() {
            let latest = latest.time_to_answer_after(queued, quantile).unwrap_or_default();
            score.within_latest[index] += u64::from(rtt <= latest);
            let forecast = forecast.time_to_answer_after(queued, quantile).unwrap_or_default();
            score.within[index] += u64::from(rtt <= forecast);
            score.pinball_ns[index] += pinball_ns(rtt, forecast, percent);
        }
        score.within_srtt_4var += u64::from(rtt <= *srtt_4var);
        score.pinball_srtt_4var_ns += pinball_ns(rtt, *srtt_4var, SRTT_4VAR_PERCENT);
    }

    /// Counts segments marked lost.
    pub(super) fn on_lost(&mut self, segments: u32) {
        self.score.lost_segments += u64::from(segments);
    }

    /// Uncounts segments whose loss mark was removed.
    pub(super) fn on_loss_unmarked(&mut self, segments: u32) {
        self.score.lost_segments = self.score.lost_segments.saturating_sub(segments.into());
    }

    /// Score so far.
    pub(super) const fn score(&self) -> ForecastScore {
        self.score
    }
}

/// Pinball loss in ns of a forecast that should cover this percentage of the answers.
fn pinball_ns(answer: Duration, forecast: Duration, percent: u64) -> u64 {
    let (off, weight) = match answer.checked_sub(forecast) {
        Some(later) => (later, percent),
        None => (forecast - answer, 100 - percent),
    };
    u64::try_from(off.as_nanos() * u128::from(weight) / 100).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use marline_policy::RttConfig;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + MS(ms)
    }

    /// A path of 40 ms: SRTT + 4 RTTVAR of its first sample are 120 ms.
    fn rtt() -> RttEstimator {
        let mut rtt = RttEstimator::new(Arc::new(RttConfig::default()));
        rtt.on_sample(MS(40), at(0));
        assert_eq!(rtt.srtt().map(|srtt| srtt + 4 * rtt.rttvar()), Some(MS(120)));
        rtt
    }

    fn forecast() -> Forecast {
        Forecast::with_quantiles([MS(40), MS(50), MS(80)], 0.0, None)
    }

    #[test]
    fn shares_and_losses_are_those_of_the_answers() {
        let (mut scorer, rtt) = (Scorer::default(), rtt());
        // Answers of 31, 32, ..., 130 ms, of which 10 are within p50, 20 within p90, 50 within p99, and 90
        // within 120 ms.
        for number in 1..=100 {
            let sent_at = at(1_000 * number);
            scorer.on_sent(sent_at, None, &forecast(), &rtt);
            let latest = Forecast::with_quantiles([MS(130); 3], 0.0, None);
            scorer.on_answer(sent_at..=sent_at, MS(30 + number), Duration::ZERO, &latest);
        }
        let score = scorer.score();
        assert_eq!((score.answers, score.within, score.within_srtt_4var), (100, [10, 20, 50], 90));
        assert_eq!((score.unforecast, score.lost_segments), (0, 0));
        assert_eq!(score.within_latest, [100; 3]);
        // 9 + ... + 0 ms early and 1 + ... + 90 ms late.
        let ms = |early: u64, late: u64, percent: u64| {
            ((100 - percent) * early + percent * late) * 1_000_000 / 100
        };
        let sum = |last: u64| last * (last + 1) / 2;
        let losses = [ms(sum(9), sum(90), 50), ms(sum(19), sum(80), 90), ms(sum(49), sum(50), 99)];
        assert_eq!(score.pinball_ns, losses);
        assert_eq!(score.pinball_srtt_4var_ns, ms(sum(89), sum(10), 90));
    }

    #[test]
    fn an_answer_is_scored_with_the_forecast_and_queue_at_sending() {
        let (mut scorer, rtt) = (Scorer::default(), rtt());
        let slow = Forecast::with_quantiles([MS(140), MS(150), MS(180)], 0.0, None);
        scorer.on_sent(at(0), None, &forecast(), &rtt);
        // Of several forecasts made at one instant, the first is kept.
        scorer.on_sent(at(0), Some(at(0)), &slow, &rtt);
        scorer.on_sent(at(10), Some(at(0)), &slow, &rtt);
        scorer.on_answer(at(0)..=at(0), MS(45), Duration::ZERO, &slow);
        assert_eq!(scorer.score().within, [0, 1, 1]);
        scorer.on_answer(at(0)..=at(0), MS(145), MS(60), &slow);
        // The queue delay is 60 ms. The p90 expects 90 ms and the p99 135 ms.
        assert_eq!(scorer.score().within, [0, 1, 2]);
        scorer.on_answer(at(10)..=at(10), MS(145), Duration::ZERO, &slow);
        assert_eq!(scorer.score().within, [0, 2, 3]);
        // A timestamp has millisecond resolution.
        scorer.on_answer(at(9)..=at(10), MS(145), Duration::ZERO, &slow);
        assert_eq!((scorer.score().within, scorer.score().answers), ([0, 3, 4], 4));
    }

    #[test]
    fn unforecast_and_lost_segments_are_counted_but_not_judged() {
        let (mut scorer, rtt) = (Scorer::default(), rtt());
        scorer.on_sent(at(0), None, &Forecast::default(), &rtt);
        scorer.on_answer(at(0)..=at(0), MS(40), Duration::ZERO, &forecast());
        scorer.on_lost(3);
        scorer.on_loss_unmarked(1);
        let counted = ForecastScore { unforecast: 1, lost_segments: 2, ..ForecastScore::default() };
        assert_eq!(scorer.score(), counted);
        // Forecasts older than the oldest outstanding segment are dropped, and those beyond the limit.
        for ms in 1..=3 {
            scorer.on_sent(at(ms), Some(at(1)), &forecast(), &rtt);
        }
        scorer.on_sent(at(4), Some(at(3)), &forecast(), &rtt);
        assert_eq!(scorer.pending.len(), 2);
        for ms in 5..20_000 {
            scorer.on_sent(at(ms), Some(at(3)), &forecast(), &rtt);
        }
        assert_eq!(scorer.pending.len(), MAX_PENDING_FORECASTS);
        assert_eq!(scorer.score(), counted);
    }
}
