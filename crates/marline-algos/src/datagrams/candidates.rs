//! Candidates among the paths: regular paths that answer come before backups, and all paths that answer come before
//! silent ones.
//!
//! The order is the one used by the stream schedulers: a backup carries datagrams only while no regular path answers,
//! and a fading path ranks with a degraded one.

use marline_policy::{DatagramContext, DatagramPathView, PathId};

/// Returns true if using the path costs money or wakes a radio.
pub(super) const fn is_costly(path: &DatagramPathView) -> bool {
    path.metered || path.radio
}

/// Returns the rank of a path by its problems; lower is better.
fn rank(path: &DatagramPathView) -> u8 {
    match (path.health.is_unreachable(), path.backup) {
        (false, false) if path.is_usable() && !path.fading => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, false) => 3,
        (true, true) => 4,
    }
}

/// Returns the paths of the best available rank.
pub(super) fn best_paths<'a>(
    context: &DatagramContext<'a>,
) -> impl Iterator<Item = &'a DatagramPathView> + Clone {
    let paths = context.paths;
    let least = paths.iter().map(rank).min().unwrap_or(0);
    paths.iter().filter(move |path| rank(path) == least)
}

/// Returns the paths that may carry a copy of a datagram sent on this path: regular paths that answer. Costly paths
/// qualify only while this path is in trouble. A backup qualifies if the datagram itself uses an unusable path.
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
