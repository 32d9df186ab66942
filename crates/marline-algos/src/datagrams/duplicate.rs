//! Full duplication: sends every datagram on the two paths with the smallest round trips, regardless of cost.
//!
//! Apart from the queues that this fills, only a sender that knows the future could do better. This policy exists for
//! comparison.

use marline_policy::{DatagramContext, DatagramPolicy, FlowView, Route};

use super::min_rtt::key;

/// Datagram policy that sends every datagram twice.
#[derive(Copy, Clone, Debug, Default)]
pub struct Duplicate;

impl DatagramPolicy for Duplicate {
    fn route(&mut self, context: &DatagramContext<'_>, _: &FlowView) -> Route {
        let order = |path: &&marline_policy::DatagramPathView| {
            (path.health.is_unreachable(), path.srtt.unwrap_or_default(), key(path))
        };
        let best = context.paths.iter().min_by_key(order);
        let path = best.map_or(context.paths[0].id, |path| path.id);
        let other = context.paths.iter().filter(|other| other.id != path).min_by_key(order);
        Route { copy: other.map(|other| other.id), ..Route::only(path) }
    }
}
