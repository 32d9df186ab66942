//! Smallest round trip first: the path with the smallest SRTT that has room in its window.
//!
//! *Source.* The default scheduler of multipath QUIC implementations (xquic's and so mqvpn's `minrtt`), and of
//! Linux. Here for comparison. *Differs:* a path that carries nothing is asked for its round trip each second, so
//! that a round trip that was long once is not believed forever; a path without a sample goes first, so that it
//! gets one.

use marline_policy::{DatagramContext, DatagramPathView, DatagramPolicy, FlowView, Route};
use marline_time::Duration;

use super::candidates;

/// The smallest SRTT.
#[derive(Copy, Clone, Debug, Default)]
pub struct MinRtt;

/// Order: room in the window, then the SRTT.
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
