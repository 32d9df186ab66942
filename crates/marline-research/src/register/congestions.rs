//! Registration of congestion controls and their wrappers.

use marline_algos::{NamedCongestion, RegisterError, Registry};

use crate::congestion::{Balia, Capped, KeepWindow, Lia, Olia};

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_congestion(NamedCongestion::new("lia", |mss, window, _| {
        Box::new(Lia::new(mss, window))
    }))?;
    registry.register_congestion(NamedCongestion::new("olia", |mss, window, _| {
        Box::new(Olia::new(mss, window))
    }))?;
    registry.register_congestion(NamedCongestion::new("balia", |mss, window, _| {
        Box::new(Balia::new(mss, window))
    }))?;
    registry.register_congestion_wrapper("keep-window", |_| {
        |inner, _| Box::new(KeepWindow::new(inner))
    })?;
    registry.register_congestion_wrapper("cap", |parameters| {
        let ratio = parameters.number("ratio", 2.0, 1.1..=100.0);
        move |inner, mss| Box::new(Capped::new(inner, ratio, mss))
    })
}
