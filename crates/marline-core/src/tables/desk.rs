//! Desk of a scheduler: what it works with during a call.
//!
//! There is one for all connections of an endpoint, which lends it: a connection that rests holds none of it.

use marline_policy::{Reason, SubflowView};

use crate::on_demand::Unused;

/// What a scheduler works with during a call.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Views of the subflows that carry data, as of the current call.
    pub(crate) views: Vec<SubflowView>,
    /// Reasons of what was decided in this call; `None`: nobody wants to know.
    pub(crate) reasons: Option<Vec<Reason>>,
}

impl Unused for Desk {
    const UNUSED: &'static Self = &Desk { views: Vec::new(), reasons: None };
}
