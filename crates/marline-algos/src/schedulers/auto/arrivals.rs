//! Arrivals with what may come between: the middle of the forecast, and what trouble on the path would add to the tail.

use marline_policy::{Quantile, SubflowView};
use marline_time::Duration;

use super::{TAIL_WEIGHT, TROUBLE_ANSWERS};
use crate::schedulers::delivery::arrival_by;

/// Time until so many bytes have arrived that leave now, of a message of which so many are left: as often later as
/// sooner, and with what trouble on the path would add to the message's tail.
pub(super) fn careful_arrival(view: &SubflowView, bytes: u64, left: u64) -> Duration {
    let arrives = arrival_by(view, bytes, Quantile::P50);
    let Some(arrives) = arrives else { return Duration::MAX };
    arrives.saturating_add(trouble(view, arrives + view.forecast.passing(left)))
}

/// What trouble on the path would add to the tail of what is under way for so long.
pub(super) fn trouble(view: &SubflowView, under_way: Duration) -> Duration {
    let Some(answer) = view.forecast.answer(Quantile::P90) else { return Duration::ZERO };
    let weight = (view.forecast.risk(under_way) * TAIL_WEIGHT).min(1.0);
    (answer * TROUBLE_ANSWERS).mul_f32(weight)
}
