//! Congestion controls and their wrappers.

use super::{RegisterError, Registry};
use crate::NamedCongestion;
use crate::congestion::{Cubic, Reno};
use crate::slow_start::SlowStartKind;

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    for (name, slow_start) in
        [("cubic", SlowStartKind::HyStart), ("cubic-classic", SlowStartKind::Classic)]
    {
        registry.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
            Box::new(Cubic::new(mss, window, slow_start))
        }))?;
    }
    for (name, slow_start) in
        [("reno", SlowStartKind::Classic), ("reno-hystart", SlowStartKind::HyStart)]
    {
        registry.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
            Box::new(Reno::new(mss, window, slow_start))
        }))?;
    }
    Ok(())
}
