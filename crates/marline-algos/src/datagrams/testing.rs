//! Views for the tests of policies.

use marline_policy::{
    DatagramContext, DatagramPathView, FlowClass, FlowView, Forecast, Health, PathId,
};
use marline_time::{Duration, Instant, Rate};

pub(super) const NOW: Instant = Instant::from_secs(100);

/// Builds a path with this answer time; the p90 and p99 are longer by a tenth and a third.
pub(super) fn path(id: u8, rtt_ms: u64) -> DatagramPathView {
    let ms = Duration::from_millis;
    let answers = [ms(rtt_ms), ms(rtt_ms * 11 / 10), ms(rtt_ms * 4 / 3)];
    DatagramPathView {
        id: PathId(id),
        backup: false,
        metered: false,
        radio: false,
        health: Health::Usable,
        fading: false,
        largest: 1_200,
        cwnd: 100_000,
        bytes_in_flight: 0,
        bytes_queued: 0,
        srtt: Some(ms(rtt_ms)),
        rttvar: ms(1),
        min_rtt: Some(ms(rtt_ms)),
        delivery_rate: None,
        forecast: Forecast::with_quantiles(answers, 0.0, Some(Rate::from_mbit(20))),
        overdue: Duration::ZERO,
        stalled: Duration::ZERO,
        last_trouble_at: None,
        lone_losses: 0.0,
        losses_known: true,
        losses: 0.0,
        last_sent_at: None,
    }
}

pub(super) fn context(paths: &[DatagramPathView]) -> DatagramContext<'_> {
    DatagramContext { now: NOW, paths, repairs: true }
}

/// Builds the flow of a call.
pub(super) fn flow() -> FlowView {
    FlowView {
        id: 1,
        class: FlowClass::Steady,
        rate: Rate::from_mbit(1),
        mean_bytes: 1_000,
        burst: 1.0,
        bytes: 1_000,
        deadline: NOW + Duration::from_millis(150),
        last: None,
    }
}
