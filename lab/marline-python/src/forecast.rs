//! Forecast of a path for Python: the core's own, with the arithmetic that the built-in schedulers use.

use marline::policy::{Forecast as Core, Quantile};
use marline_time::{Duration, Rate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Forecast of the time until data sent now is answered.
#[pyclass(frozen, module = "marline._native")]
pub(crate) struct Forecast {
    pub(crate) core: Core,
}

/// Converts a time from microseconds. Negative values and NaN mean none.
pub(crate) fn duration(us: f64) -> Duration {
    Duration::try_from_secs_f64(us / 1e6).unwrap_or(Duration::ZERO)
}

/// Converts a time to microseconds.
pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

fn quantile(share: f64) -> PyResult<Quantile> {
    [(0.5, Quantile::P50), (0.9, Quantile::P90), (0.99, Quantile::P99)]
        .into_iter()
        .find_map(|(known, quantile)| (known == share).then_some(quantile))
        .ok_or_else(|| {
            PyValueError::new_err(format!("quantile {share}: expected 0.5, 0.9 or 0.99"))
        })
}

#[pymethods]
impl Forecast {
    /// Creates a forecast for policy tests from answer times, the number of fault episodes per second, and a rate.
    #[new]
    #[pyo3(signature = (p50_us=0.0, p90_us=0.0, p99_us=0.0, troubles_per_s=0.0, rate_bits_per_s=None))]
    fn new(
        p50_us: f64,
        p90_us: f64,
        p99_us: f64,
        troubles_per_s: f32,
        rate_bits_per_s: Option<u64>,
    ) -> Forecast {
        let answers = [p50_us, p90_us, p99_us].map(duration);
        Forecast {
            core: Core::with_quantiles(
                answers,
                troubles_per_s,
                rate_bits_per_s.map(Rate::from_bits_per_s),
            ),
        }
    }

    #[getter]
    fn known(&self) -> bool {
        self.core.is_known()
    }

    #[getter]
    fn queued_us(&self) -> f64 {
        micros(self.core.queued())
    }

    #[pyo3(signature = (quantile_share=0.5))]
    fn answer_us(&self, quantile_share: f64) -> PyResult<Option<f64>> {
        Ok(self.core.answer(quantile(quantile_share)?).map(micros))
    }

    #[pyo3(signature = (bytes, quantile_share=0.5))]
    fn answer_after_us(&self, bytes: u64, quantile_share: f64) -> PyResult<Option<f64>> {
        Ok(self.core.answer_after(bytes, quantile(quantile_share)?).map(micros))
    }

    fn chance_later(&self, than_us: f64) -> f32 {
        self.core.late_probability(duration(than_us))
    }

    fn risk(&self, within_us: f64) -> f32 {
        self.core.risk(duration(within_us))
    }

    fn passing_us(&self, bytes: u64) -> f64 {
        micros(self.core.transit_time(bytes))
    }

    fn __repr__(&self) -> String {
        let shown = [Quantile::P50, Quantile::P90, Quantile::P99].map(|quantile| {
            self.core.answer(quantile).map_or("unknown".to_owned(), |t| format!("{t:?}"))
        });
        format!("Forecast(p50={}, p90={}, p99={})", shown[0], shown[1], shown[2])
    }
}
