//! One path: all datagrams on the path of one number, whatever happens. What a tunnel over one network does, for
//! comparisons; where there is no such path, on the first that answers.

use marline_policy::{DatagramContext, DatagramPolicy, FlowView, PathId, Route};

use super::candidates;

/// All on one path.
#[derive(Copy, Clone, Debug)]
pub struct SinglePath {
    path: PathId,
}

impl SinglePath {
    /// On the path of this number.
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
