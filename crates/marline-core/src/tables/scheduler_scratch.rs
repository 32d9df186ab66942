//! Buffers of a scheduler during a call.
//!
//! There is one instance for all connections of an endpoint, which lends it: an idle connection holds no such memory.

use marline_policy::{Reason, SubflowView};

use crate::on_demand::Unused;

/// Buffers of a scheduler during a call.
#[derive(Debug, Default)]
pub(crate) struct SchedulerScratch {
    /// Views of the subflows that carry data, in the current call.
    pub(crate) views: Vec<SubflowView>,
    /// Reasons of decisions in this call; `None` if they are not recorded.
    pub(crate) reasons: Option<Vec<Reason>>,
}

impl Unused for SchedulerScratch {
    const UNUSED: &'static Self = &SchedulerScratch { views: Vec::new(), reasons: None };
}
