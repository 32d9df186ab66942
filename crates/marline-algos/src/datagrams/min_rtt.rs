//! Smallest round trip first: uses the path with the smallest SRTT that has room in its window.
//!
//! *Source.* The default scheduler of multipath QUIC implementations (`minrtt` of xquic, and so of mqvpn) and of Linux.
//! It exists for comparison. *Differs:* the round trip of an idle path is probed every second, so that an old long
//! round trip does not count forever; a path without a sample comes first, so that it gets a sample.

use marline_policy::{DatagramContext, DatagramPathView, DatagramPolicy, FlowView, Route};
use marline_time::Duration;

use super::candidates;

/// Datagram policy that prefers the smallest SRTT.
#[derive(Copy, Clone, Debug, Default)]
pub struct MinRtt;

/// Sort key: room in the window, then the SRTT.
pub(super) fn key(path: &DatagramPathView) -> (bool, Duration) {
    let full = path.bytes_in_flight + path.bytes_queued >= path.cwnd;
    (full, path.srtt.unwrap_or_default())
}

impl DatagramPolicy for MinRtt {
    fn route(&mut self, context: &DatagramContext<'_>, _: &FlowView) -> Route {
        let best = candidates::best_paths(context).min_by_key(|path| key(path));
        Route::only(best.map_or(context.paths[0].id, |path| path.id))
    }

    fn exploration_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagrams::testing::{context, flow, path};

    #[test]
    fn the_smallest_round_trip_that_has_room_goes_first() {
        let mut paths = [path(0, 30), path(1, 20)];
        let chosen = |paths: &[DatagramPathView]| MinRtt.route(&context(paths), &flow()).path.0;
        assert_eq!(chosen(&paths), 1);
        paths[1].bytes_in_flight = paths[1].cwnd;
        assert_eq!(chosen(&paths), 0);
        paths[0].backup = true;
        assert_eq!(chosen(&paths), 1);
    }
}
