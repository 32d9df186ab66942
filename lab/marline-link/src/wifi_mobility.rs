//! WiFi mobility: rate and loss of a link whose phone moves, drawn from a seed.
//!
//! [`WalkCycle`] leaves the access point's range and returns, repeatedly. [`PhoneMobility`] is one run of eighty
//! seconds, which leaves the range or stays within it.

mod phone;
mod walk_cycle;

use std::sync::Arc;

use marline_time::Duration;

pub use phone::{PhoneMobility, PhoneMobilityProfile};
pub use walk_cycle::{WalkCycle, WalkCycleProfile};

use crate::Steps;

/// Steps with ascending times; equal neighbors are merged.
fn steps<T: Copy + PartialEq>(
    mut points: Vec<(Duration, T)>,
    period: Option<Duration>,
) -> Arc<Steps<T>> {
    points.dedup_by(|next, before| next.1 == before.1);
    Arc::new(Steps::new(points, period).expect("samples ascend and end before the period"))
}
