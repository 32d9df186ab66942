//! Candidates among the paths: a regular path that answers before a backup, any that answers before one that is
//! silent.
//!
//! The order is that of the schedulers of streams: a backup carries datagrams only while no regular path answers,
//! and a path that is about to fade is as good as a degraded one.

use marline_policy::{DatagramContext, DatagramPathView, PathId};

/// Returns true if its use costs more than time: money, or the sleep of a radio.
pub(super) const fn is_costly(path: &DatagramPathView) -> bool {
    path.metered || path.radio
}

/// Rank of a path by its problems; lower is better.
fn rank(path: &DatagramPathView) -> u8 {
    match (path.health.is_unreachable(), path.backup) {
        (false, false) if path.is_usable() && !path.fading => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, false) => 3,
        (true, true) => 4,
    }
}

/// The paths of the best available rank.
pub(super) fn best_paths<'a>(
    context: &DatagramContext<'a>,
) -> impl Iterator<Item = &'a DatagramPathView> + Clone {
    let paths = context.paths;
    let least = paths.iter().map(rank).min().unwrap_or(0);
    paths.iter().filter(move |path| rank(path) == least)
}

/// Paths that may carry a copy of a datagram on this path: regular paths that answer. Those that cost money or keep a
/// radio awake qualify only while this path is in trouble. A backup qualifies if the datagram itself goes on an
/// unusable path.
pub(super) fn for_copies<'a>(
    context: &DatagramContext<'a>,
    on: PathId,
    trouble: bool,
) -> impl Iterator<Item = &'a DatagramPathView> {
    let paths = context.paths;
    let lost = paths.iter().find(|path| path.id == on).is_none_or(|path| rank(path) > 1);
    paths.iter().filter(move |path| {
        let answers = !path.health.is_unreachable() && path.id != on;
        answers && (!is_costly(path) || trouble) && (!path.backup || lost)
    })
}
