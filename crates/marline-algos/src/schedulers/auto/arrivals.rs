//! Arrival forecasts with risk: the median of the forecast plus the expected cost of trouble on the path.

use marline_policy::{Quantile, SubflowView};
use marline_time::Duration;

use super::{TAIL_WEIGHT, TROUBLE_COST};
use crate::schedulers::delivery::arrival_by;

/// Returns the time until `bytes` sent now have arrived, as part of a message of which `left` bytes remain: the
/// forecast median plus the delay that trouble on the path would add to the message's tail.
pub(super) fn cautious_arrival_time(view: &SubflowView, bytes: u64, left: u64) -> Duration {
    let arrives = arrival_by(view, bytes, Quantile::P50);
    let Some(arrives) = arrives else { return Duration::MAX };
    arrives.saturating_add(trouble_delay(view, arrives + view.forecast.transit_time(left)))
}

/// Returns the time that trouble on the path contributes to the tail of data that is in flight for this long.
pub(super) fn trouble_delay(view: &SubflowView, under_way: Duration) -> Duration {
    let Some(answer) = view.forecast.answer(Quantile::P90) else { return Duration::ZERO };
    let weight = (view.forecast.risk(under_way) * TAIL_WEIGHT).min(1.0);
    (answer * TROUBLE_COST).mul_f32(weight)
}
