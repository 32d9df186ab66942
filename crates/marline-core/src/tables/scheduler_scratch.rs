//! Buffers of a scheduler during a call.
//!
//! An endpoint has one instance, which it lends to its connections, so that idle connections need no such memory.

use marline_policy::{Reason, SubflowId, SubflowView};

use crate::on_demand::UnusedState;

/// Buffers of a scheduler during a call.
#[derive(Debug, Default)]
pub(crate) struct SchedulerScratch {
    /// Views of the subflows that carry data, in the current call.
    pub(crate) views: Vec<SubflowView>,
    /// Reasons for decisions in this call; `None` if they are not recorded.
    pub(crate) reasons: Option<Vec<Reason>>,
    /// The subflow whose newest segment the scheduler wants repeated.
    pub(crate) repeat_newest: Option<SubflowId>,
}

impl UnusedState for SchedulerScratch {
    const UNUSED: &'static Self =
        &SchedulerScratch { views: Vec::new(), reasons: None, repeat_newest: None };
}
