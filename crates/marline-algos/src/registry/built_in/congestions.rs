//! Congestion controls and their wrappers.

use super::{RegisterError, Registry};
use crate::NamedCongestion;
use crate::congestion::{
    Balia, Bbr, BbrConfig, Capped, Cubic, KeepWindow, Lia, Olia, Reno, RenoEstimate,
};
use crate::slow_start::SlowStartKind;

pub(super) fn add(registry: &mut Registry) -> Result<(), RegisterError> {
    for (name, slow_start) in
        [("cubic", SlowStartKind::HyStart), ("cubic-classic", SlowStartKind::Classic)]
    {
        registry.register_congestion_with(name, move |parameters| {
            let sources = [("rfc9438", RenoEstimate::Rfc9438), ("linux", RenoEstimate::Linux)];
            let estimate = parameters.word("reno", "rfc9438", &sources);
            move |mss, window, _| Box::new(Cubic::new(mss, window, slow_start).estimating(estimate))
        })?;
    }
    for (name, slow_start) in
        [("reno", SlowStartKind::Classic), ("reno-hystart", SlowStartKind::HyStart)]
    {
        registry.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
            Box::new(Reno::new(mss, window, slow_start))
        }))?;
    }
    add_coupled(registry)?;
    registry.register_congestion_with("bbr", |parameters| {
        let default = BbrConfig::default();
        let config = BbrConfig {
            rate_rounds: parameters.count("rate-rounds", default.rate_rounds.into(), 1..=1_000)
                as u32,
            rtt_window: parameters.duration("rtt-window", default.rtt_window),
            probe_rtt: parameters.duration("probe-rtt", default.probe_rtt),
            window_gain: parameters.number("window-gain", default.window_gain, 1.0..=10.0),
        };
        move |mss, window, now| Box::new(Bbr::new(mss, window, now, config))
    })?;
    registry.register_congestion_wrapper("keep-window", |_| {
        |inner, _| Box::new(KeepWindow::new(inner))
    })?;
    registry.register_congestion_wrapper("cap", |parameters| {
        let ratio = parameters.number("ratio", 2.0, 1.1..=100.0);
        move |inner, mss| Box::new(Capped::new(inner, ratio, mss))
    })
}

fn add_coupled(registry: &mut Registry) -> Result<(), RegisterError> {
    registry.register_congestion(NamedCongestion::new("lia", |mss, window, _| {
        Box::new(Lia::new(mss, window))
    }))?;
    registry.register_congestion(NamedCongestion::new("olia", |mss, window, _| {
        Box::new(Olia::new(mss, window))
    }))?;
    registry.register_congestion(NamedCongestion::new("balia", |mss, window, _| {
        Box::new(Balia::new(mss, window))
    }))
}
