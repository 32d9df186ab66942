//! Policies that replace the configured ones of a running connection.

use std::sync::Arc;

use marline_policy::{PathManagerFactory, SchedulerFactory};

use crate::on_demand::UnusedState;

/// Replacements for the policies of a running connection.
#[derive(Debug, Default)]
pub(super) struct ReplacedPolicies {
    scheduler: Option<Arc<dyn SchedulerFactory>>,
    path_manager: Option<Arc<dyn PathManagerFactory>>,
}

impl UnusedState for ReplacedPolicies {
    const UNUSED: &'static Self = &ReplacedPolicies { scheduler: None, path_manager: None };
}

impl ReplacedPolicies {
    pub(super) const fn scheduler(&self) -> Option<&Arc<dyn SchedulerFactory>> {
        self.scheduler.as_ref()
    }

    pub(super) const fn path_manager(&self) -> Option<&Arc<dyn PathManagerFactory>> {
        self.path_manager.as_ref()
    }

    pub(super) fn set_scheduler(&mut self, factory: Arc<dyn SchedulerFactory>) {
        self.scheduler = Some(factory);
    }

    pub(super) fn set_path_manager(&mut self, factory: Arc<dyn PathManagerFactory>) {
        self.path_manager = Some(factory);
    }
}
