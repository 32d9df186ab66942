//! Calibration of forecasts: how often a path's answers met the forecast quantiles.

use marline::monitor::ForecastScore;
use serde::{Deserialize, Serialize};

/// Nominal coverage of p50, p90 and p99.
const NOMINAL_SHARES: [f64; 3] = [0.5, 0.9, 0.99];

/// Accuracy of the forecasts of a path's answers at both ends: a [`ForecastScore`], and values derived from it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration(#[serde(with = "SerializedScore")] pub ForecastScore);

/// Serializes a score, because the core has no serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "ForecastScore")]
struct SerializedScore {
    answers: u64,
    within: [u64; 3],
    within_latest: [u64; 3],
    pinball_ns: [u64; 3],
    within_srtt_4var: u64,
    pinball_srtt_4var_ns: u64,
    lost_segments: u64,
    unforecast: u64,
}

impl core::ops::Deref for Calibration {
    type Target = ForecastScore;

    fn deref(&self) -> &ForecastScore {
        &self.0
    }
}

impl Calibration {
    /// The calibration over the answers of all these scores.
    #[must_use]
    pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Calibration>) -> Calibration {
        let all = parts.into_iter().fold(ForecastScore::default(), |sum, part| sum.plus(part));
        Calibration(all)
    }

    /// The calibration of the answers since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Calibration) -> Calibration {
        Calibration(self.0.since(earlier))
    }

    /// The shares of the answers (0 to 1) that arrived by p50, p90 and p99. NaN without answers.
    #[must_use]
    pub fn shares(&self) -> [f64; 3] {
        self.within.map(|within| within as f64 / self.answers as f64)
    }

    /// Like [`shares`](Self::shares), for the quantiles just before each answer arrived.
    #[must_use]
    pub fn latest_shares(&self) -> [f64; 3] {
        self.within_latest.map(|within| within as f64 / self.answers as f64)
    }

    /// The share of the answers (0 to 1) that arrived by SRTT + 4 RTTVAR.
    #[must_use]
    pub fn srtt_4var_share(&self) -> f64 {
        self.within_srtt_4var as f64 / self.answers as f64
    }

    /// Mean deviation of the three shares from 0.5, 0.9 and 0.99. 0 is perfectly calibrated.
    #[must_use]
    pub fn distance(&self) -> f64 {
        let off =
            self.shares().into_iter().zip(NOMINAL_SHARES).map(|(share, nominal)| share - nominal);
        off.map(f64::abs).sum::<f64>() / NOMINAL_SHARES.len() as f64
    }

    /// Pinball loss of p90 divided by that of SRTT + 4 RTTVAR. Below 1, the forecast is better.
    #[must_use]
    pub fn pinball_ratio(&self) -> f64 {
        self.pinball_ns[1] as f64 / self.pinball_srtt_4var_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_covers_the_answers_since_the_start() {
        let earlier = ForecastScore { answers: 100, within: [0; 3], ..ForecastScore::default() };
        let later = ForecastScore {
            answers: 300,
            within: [100, 160, 198],
            within_latest: [100, 180, 198],
            pinball_ns: [7, 30, 9],
            within_srtt_4var: 200,
            pinball_srtt_4var_ns: 40,
            ..ForecastScore::default()
        };
        let (earlier, later) = (Calibration(earlier), Calibration(later));
        let calibration = later.since(&earlier);
        assert_eq!(calibration.shares(), [0.5, 0.8, 0.99]);
        assert_eq!(calibration.latest_shares(), [0.5, 0.9, 0.99]);
        assert_eq!((calibration.srtt_4var_share(), calibration.pinball_ratio()), (1.0, 0.75));
        assert!((calibration.distance() - 0.1 / 3.0).abs() < 1e-9, "{}", calibration.distance());
        assert_eq!(Calibration::sum([&calibration, &earlier]), later);
        assert!(Calibration::default().shares()[0].is_nan());
    }
}
