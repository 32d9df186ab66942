//! Built-in congestion controls.

use super::{RegisterError, Registry};
use crate::NamedCongestion;
use crate::congestion::{Bbr, Cubic, CubicWestwood, Reno, RenoEstimate};
use crate::slow_start::SlowStartKind;

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    for (name, slow_start) in
        [("cubic", SlowStartKind::HyStart), ("cubic-classic", SlowStartKind::Classic)]
    {
        registry.register_congestion_with(name, move |parameters| {
            let sources = [("rfc9438", RenoEstimate::Rfc9438), ("linux", RenoEstimate::Linux)];
            let estimate = parameters.word("reno", "rfc9438", &sources);
            move |mss, window, _| {
                Box::new(Cubic::new(mss, window, slow_start).with_reno_estimate(estimate))
            }
        })?;
    }
    registry.register_congestion(NamedCongestion::new("cubic-westwood", |mss, window, _| {
        Box::new(CubicWestwood::new(mss, window, SlowStartKind::HyStart))
    }))?;
    for (name, slow_start) in
        [("reno", SlowStartKind::Classic), ("reno-hystart", SlowStartKind::HyStart)]
    {
        registry.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
            Box::new(Reno::new(mss, window, slow_start))
        }))?;
    }
    registry.register_congestion(NamedCongestion::new("bbr", |mss, window, now| {
        Box::new(Bbr::new(mss, window, now))
    }))
}
