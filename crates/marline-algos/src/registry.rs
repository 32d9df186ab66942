//! Policies by name: the built-in ones and everybody's own, on the same footing.

mod named;

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use marline_policy::{
    CongestionFactory, PathManagerFactory, PolicySet, RecoveryFactory, SchedulerFactory,
};

pub use named::{NamedCongestion, NamedPathManager, NamedRecovery, NamedScheduler};

use crate::congestion::{Cubic, Reno};
use crate::path_managers::{Backup, FullMesh, Manual};
use crate::recovery::RackTlp;
use crate::schedulers::{MinRtt, Redundant, RoundRobin};
use crate::slow_start::SlowStartKind;

/// The four kinds of policy.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Which data on which subflow.
    Scheduler,
    /// Which subflows exist.
    PathManager,
    /// How much in flight.
    Congestion,
    /// What is lost.
    Recovery,
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyKind::Scheduler => "scheduler",
            PolicyKind::PathManager => "path manager",
            PolicyKind::Congestion => "congestion control",
            PolicyKind::Recovery => "loss recovery",
        })
    }
}

/// Nothing of this kind has that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// What was looked for.
    pub kind: PolicyKind,
    /// The name that is not known.
    pub name: String,
    /// The names that are, sorted.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownPolicy { kind, name, known } = self;
        write!(f, "unknown {kind} `{name}`; known: {}", known.join(", "))
    }
}

impl core::error::Error for UnknownPolicy {}

/// A policy cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Another one of its kind has the name.
    NameTaken {
        /// What was registered.
        kind: PolicyKind,
        /// The name.
        name: String,
    },
    /// Names are made of lower-case letters, digits and `-`, and begin with a letter.
    BadName {
        /// What was registered.
        kind: PolicyKind,
        /// The name.
        name: String,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NameTaken { kind, name } => {
                write!(f, "a {kind} named `{name}` is registered already")
            }
            RegisterError::BadName { kind, name } => write!(
                f,
                "`{name}` cannot name a {kind}: use lower-case letters, digits and `-`, and begin \
                 with a letter"
            ),
        }
    }
}

impl core::error::Error for RegisterError {}

/// The factories of one kind by name.
#[derive(Debug)]
struct Table<F: ?Sized> {
    kind: PolicyKind,
    by_name: BTreeMap<String, Arc<F>>,
}

// Not derived: that would ask for `F: Clone`.
impl<F: ?Sized> Clone for Table<F> {
    fn clone(&self) -> Self {
        Table { kind: self.kind, by_name: self.by_name.clone() }
    }
}

impl<F: ?Sized> Table<F> {
    const fn new(kind: PolicyKind) -> Self {
        Table { kind, by_name: BTreeMap::new() }
    }

    fn insert(&mut self, name: &str, factory: Arc<F>) -> Result<(), RegisterError> {
        let (kind, name) = (self.kind, name.to_owned());
        let good = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !good {
            return Err(RegisterError::BadName { kind, name });
        }
        if self.by_name.contains_key(&name) {
            return Err(RegisterError::NameTaken { kind, name });
        }
        self.by_name.insert(name, factory);
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Arc<F>, UnknownPolicy> {
        self.by_name.get(name).map(Arc::clone).ok_or_else(|| UnknownPolicy {
            kind: self.kind,
            name: name.to_owned(),
            known: self.by_name.keys().cloned().collect(),
        })
    }
}

/// Policies by name. [`Registry::default`] knows the built-in ones; cloning is cheap.
#[derive(Clone, Debug)]
pub struct Registry {
    schedulers: Table<dyn SchedulerFactory>,
    path_managers: Table<dyn PathManagerFactory>,
    congestions: Table<dyn CongestionFactory>,
    recoveries: Table<dyn RecoveryFactory>,
}

impl Registry {
    /// A registry that knows nothing.
    #[must_use]
    pub const fn empty() -> Self {
        Registry {
            schedulers: Table::new(PolicyKind::Scheduler),
            path_managers: Table::new(PolicyKind::PathManager),
            congestions: Table::new(PolicyKind::Congestion),
            recoveries: Table::new(PolicyKind::Recovery),
        }
    }

    /// Adds a scheduler under its factory's name.
    ///
    /// # Errors
    /// If another scheduler has the name, or if it is no good name.
    pub fn register_scheduler(
        &mut self,
        factory: impl SchedulerFactory + 'static,
    ) -> Result<(), RegisterError> {
        let name = factory.name().to_owned();
        self.schedulers.insert(&name, Arc::new(factory))
    }

    /// Adds a path manager under its factory's name.
    ///
    /// # Errors
    /// If another path manager has the name, or if it is no good name.
    pub fn register_path_manager(
        &mut self,
        factory: impl PathManagerFactory + 'static,
    ) -> Result<(), RegisterError> {
        let name = factory.name().to_owned();
        self.path_managers.insert(&name, Arc::new(factory))
    }

    /// Adds a congestion control under its factory's name.
    ///
    /// # Errors
    /// If another congestion control has the name, or if it is no good name.
    pub fn register_congestion(
        &mut self,
        factory: impl CongestionFactory + 'static,
    ) -> Result<(), RegisterError> {
        let name = factory.name().to_owned();
        self.congestions.insert(&name, Arc::new(factory))
    }

    /// Adds a loss recovery under its factory's name.
    ///
    /// # Errors
    /// If another loss recovery has the name, or if it is no good name.
    pub fn register_recovery(
        &mut self,
        factory: impl RecoveryFactory + 'static,
    ) -> Result<(), RegisterError> {
        let name = factory.name().to_owned();
        self.recoveries.insert(&name, Arc::new(factory))
    }

    /// The scheduler of this name.
    ///
    /// # Errors
    /// If there is none; the error lists those that exist.
    pub fn scheduler(&self, name: &str) -> Result<Arc<dyn SchedulerFactory>, UnknownPolicy> {
        self.schedulers.get(name)
    }

    /// The path manager of this name.
    ///
    /// # Errors
    /// If there is none; the error lists those that exist.
    pub fn path_manager(&self, name: &str) -> Result<Arc<dyn PathManagerFactory>, UnknownPolicy> {
        self.path_managers.get(name)
    }

    /// The congestion control of this name.
    ///
    /// # Errors
    /// If there is none; the error lists those that exist.
    pub fn congestion(&self, name: &str) -> Result<Arc<dyn CongestionFactory>, UnknownPolicy> {
        self.congestions.get(name)
    }

    /// The loss recovery of this name.
    ///
    /// # Errors
    /// If there is none; the error lists those that exist.
    pub fn recovery(&self, name: &str) -> Result<Arc<dyn RecoveryFactory>, UnknownPolicy> {
        self.recoveries.get(name)
    }

    /// All names of a kind, sorted.
    pub fn names(&self, kind: PolicyKind) -> Vec<&str> {
        fn keys<F: ?Sized>(table: &Table<F>) -> Vec<&str> {
            table.by_name.keys().map(String::as_str).collect()
        }
        match kind {
            PolicyKind::Scheduler => keys(&self.schedulers),
            PolicyKind::PathManager => keys(&self.path_managers),
            PolicyKind::Congestion => keys(&self.congestions),
            PolicyKind::Recovery => keys(&self.recoveries),
        }
    }

    /// The four choices of a connection, by name.
    ///
    /// # Errors
    /// The first name that is not known.
    pub fn policy_set(
        &self,
        scheduler: &str,
        path_manager: &str,
        congestion: &str,
        recovery: &str,
    ) -> Result<PolicySet, UnknownPolicy> {
        Ok(PolicySet {
            scheduler: self.scheduler(scheduler)?,
            path_manager: self.path_manager(path_manager)?,
            congestion: self.congestion(congestion)?,
            recovery: self.recovery(recovery)?,
        })
    }

    fn add_built_in(&mut self) -> Result<(), RegisterError> {
        self.register_scheduler(NamedScheduler::new("min-rtt", || Box::<MinRtt>::default()))?;
        self.register_scheduler(NamedScheduler::new("round-robin", || {
            Box::<RoundRobin>::default()
        }))?;
        self.register_scheduler(NamedScheduler::new("redundant", || Box::<Redundant>::default()))?;
        self.register_path_manager(NamedPathManager::new("full-mesh", || {
            Box::<FullMesh>::default()
        }))?;
        self.register_path_manager(NamedPathManager::new("backup", || Box::<Backup>::default()))?;
        self.register_path_manager(NamedPathManager::new("manual", || Box::new(Manual)))?;
        for (name, slow_start) in
            [("cubic", SlowStartKind::HyStart), ("cubic-classic", SlowStartKind::Classic)]
        {
            self.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
                Box::new(Cubic::new(mss, window, slow_start))
            }))?;
        }
        for (name, slow_start) in
            [("reno", SlowStartKind::Classic), ("reno-hystart", SlowStartKind::HyStart)]
        {
            self.register_congestion(NamedCongestion::new(name, move |mss, window, _| {
                Box::new(Reno::new(mss, window, slow_start))
            }))?;
        }
        self.register_recovery(NamedRecovery::new("rack-tlp", || Box::<RackTlp>::default()))?;
        self.register_recovery(NamedRecovery::new("rack-tlp-rfc", || Box::new(RackTlp::rfc8985())))
    }
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Registry::empty();
        let added = registry.add_built_in();
        debug_assert!(added.is_ok(), "two built-in policies have one name: {added:?}");
        registry
    }
}

/// What a connection runs with unless told otherwise: `min-rtt`, `full-mesh`, `cubic` (with
/// HyStart++), `rack-tlp`.
#[must_use]
pub fn default_policies() -> PolicySet {
    PolicySet {
        scheduler: Arc::new(NamedScheduler::new("min-rtt", || Box::<MinRtt>::default())),
        path_manager: Arc::new(NamedPathManager::new("full-mesh", || Box::<FullMesh>::default())),
        congestion: Arc::new(NamedCongestion::new("cubic", |mss, window, _| {
            Box::new(Cubic::new(mss, window, SlowStartKind::HyStart))
        })),
        recovery: Arc::new(NamedRecovery::new("rack-tlp", || Box::<RackTlp>::default())),
    }
}

#[cfg(test)]
mod tests;
