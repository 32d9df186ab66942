//! One path: sends all datagrams on the path with a fixed number, like a tunnel over one network. It exists for
//! comparison. If there is no such path, it uses the first path that answers.

use marline_policy::{DatagramContext, DatagramPolicy, FlowView, PathId, Route};

use super::candidates;

/// Datagram policy that uses a single path.
#[derive(Copy, Clone, Debug)]
pub struct SinglePath {
    path: PathId,
}

impl SinglePath {
    /// Creates a policy that uses the path with this number.
    #[must_use]
    pub const fn new(path: PathId) -> Self {
        SinglePath { path }
    }
}

impl DatagramPolicy for SinglePath {
    fn route(&mut self, context: &DatagramContext<'_>, _: &FlowView) -> Route {
        if context.path(self.path).is_some() {
            return Route::only(self.path);
        }
        Route::only(candidates::best_paths(context).next().map_or(self.path, |path| path.id))
    }
}
