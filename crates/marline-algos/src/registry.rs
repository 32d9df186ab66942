//! Policy registry: factories by spec. Built-in and user-defined policies have equal status.

mod built_in;
mod kind;
mod named_factory;
mod parameters;
mod probes;
mod spec;
mod table;

use std::sync::Arc;

use marline_policy::{
    CongestionController, CongestionFactory, DatagramPolicy, DatagramPolicyFactory, LossRecovery,
    PathManager, PathManagerFactory, PolicySet, RecoveryFactory, Scheduler, SchedulerFactory,
};
use marline_time::Instant;

pub use kind::{PolicyKind, RegisterError, UnknownPolicy};
pub use named_factory::{
    NamedCongestion, NamedDatagramPolicy, NamedPathManager, NamedRecovery, NamedScheduler,
};
pub use parameters::{ParameterError, ParameterInfo, ParameterProblem, Parameters};
pub use spec::PolicyError;
use table::Table;

use crate::congestion::{Cubic, CubicWestwood};
use crate::path_managers::FullMesh;
use crate::recovery::RackTlp;
use crate::schedulers::copies::{CopyRule, CopyingScheduler};
use crate::schedulers::{Auto, MinRtt};
use crate::slow_start::SlowStartKind;

/// Policies by spec: `name` or `name,key=value,...`. Schedulers and congestion controls also accept wrappers:
/// `name+wrapper,key=value`. [`Registry::default`] contains the built-in policies.
#[derive(Clone, Debug)]
pub struct Registry {
    schedulers: Table<dyn SchedulerFactory>,
    path_managers: Table<dyn PathManagerFactory>,
    congestion_controllers: Table<dyn CongestionFactory>,
    loss_recoveries: Table<dyn RecoveryFactory>,
    datagrams: Table<dyn DatagramPolicyFactory>,
}

/// Registration of policies without parameters.
impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub const fn empty() -> Self {
        Registry {
            schedulers: Table::new(PolicyKind::Scheduler, Some(PolicyKind::SchedulerWrapper)),
            path_managers: Table::new(PolicyKind::PathManager, None),
            congestion_controllers: Table::new(
                PolicyKind::Congestion,
                Some(PolicyKind::CongestionWrapper),
            ),
            loss_recoveries: Table::new(PolicyKind::Recovery, None),
            datagrams: Table::new(PolicyKind::Datagrams, None),
        }
    }
}

/// Defines the two methods that register policies of a kind: one without and one with parameters.
macro_rules! registration {
    ($(#[$doc:meta])* $what:literal, $table:ident, $plain:ident($factory:ident),
     $with:ident($named:ident), Fn($($argument:ty),*) -> $made:ty) => {
        impl Registry {
            #[doc = concat!("Adds a ", $what, " under its factory's name.")]
            ///
            /// # Errors
            /// Another policy has this name, or the name is invalid.
            pub fn $plain(&mut self, factory: impl $factory + 'static) -> Result<(), RegisterError> {
                let name = factory.name().to_owned();
                self.$table.insert(&name, Arc::new(factory))
            }

            #[doc = concat!("Adds a ", $what, " with parameters. `read` is called when a spec is looked up. It reads")]
            /// the parameters and returns a closure that builds one policy per connection or subflow.
            ///
            $(#[$doc])*
            /// # Errors
            /// Another policy has this name, or the name is invalid.
            pub fn $with<B>(
                &mut self,
                name: &str,
                read: impl Fn(&mut Parameters<'_>) -> B + Send + Sync + 'static,
            ) -> Result<(), RegisterError>
            where
                B: Fn($($argument),*) -> $made + Send + Sync + 'static,
            {
                self.$table.insert_parametric(name, move |parameters| {
                    let build = read(parameters);
                    Box::new(|text| Arc::new($named::new(text, build)))
                })
            }
        }
    };
}

registration!(
    /// ```
    /// # use marline_algos::Registry;
    /// # use marline_algos::schedulers::MinRtt;
    /// # let mut registry = Registry::default();
    /// registry.register_scheduler_with("patient", |parameters| {
    ///     let patient = parameters.on_off("patient", true);
    ///     move || {
    ///         assert!(!patient, "chosen as `patient,patient=off`");
    ///         Box::<MinRtt>::default()
    ///     }
    /// })?;
    /// registry.scheduler("patient,patient=off").expect("known").build();
    /// # Ok::<(), marline_algos::RegisterError>(())
    /// ```
    ///
    "scheduler", schedulers, register_scheduler(SchedulerFactory),
    register_scheduler_with(NamedScheduler), Fn() -> Box<dyn Scheduler>
);
registration!(
    "path manager", path_managers, register_path_manager(PathManagerFactory),
    register_path_manager_with(NamedPathManager), Fn() -> Box<dyn PathManager>
);
registration!(
    /// The closure's arguments are MSS, initial window (bytes) and time.
    ///
    "congestion control", congestion_controllers, register_congestion(CongestionFactory),
    register_congestion_with(NamedCongestion), Fn(u32, u64, Instant) -> Box<dyn CongestionController>
);
registration!(
    "loss recovery", loss_recoveries, register_recovery(RecoveryFactory),
    register_recovery_with(NamedRecovery), Fn() -> Box<dyn LossRecovery>
);
registration!(
    "datagram policy", datagrams, register_datagram_policy(DatagramPolicyFactory),
    register_datagram_policy_with(NamedDatagramPolicy), Fn() -> Box<dyn DatagramPolicy>
);

/// Registration of wrappers, and of rules for copies.
impl Registry {
    /// Adds a wrapper, which builds a scheduler around another one. Users choose it with `scheduler+name,key=value`.
    ///
    /// # Errors
    /// Another wrapper has this name, or the name is invalid.
    pub fn register_scheduler_wrapper<B>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Parameters<'_>) -> B + Send + Sync + 'static,
    ) -> Result<(), RegisterError>
    where
        B: Fn(Box<dyn Scheduler>) -> Box<dyn Scheduler> + Send + Sync + 'static,
    {
        self.schedulers.insert_wrapper(name, move |parameters| {
            let wrap = read(parameters);
            Box::new(|inner, text| Arc::new(NamedScheduler::new(text, move || wrap(inner.build()))))
        })
    }

    /// Adds a rule for copies twice under the same name: as a scheduler, on top of the rule's default scheduler for new
    /// data, and as a wrapper around any scheduler.
    ///
    /// # Errors
    /// Another scheduler or wrapper has this name, or the name is invalid.
    pub fn register_copies<R: CopyRule + 'static>(
        &mut self,
        name: &str,
        read: fn(&mut Parameters<'_>) -> R::Config,
    ) -> Result<(), RegisterError>
    where
        R::Config: 'static,
    {
        self.register_scheduler_with(name, move |parameters| {
            let config = read(parameters);
            move || Box::new(CopyingScheduler::<R>::new(config))
        })?;
        self.register_scheduler_wrapper(name, move |parameters| {
            let config = read(parameters);
            move |inner| Box::new(CopyingScheduler::<R>::wrap(inner, config))
        })
    }

    /// Adds a wrapper around congestion controls. `read` returns a closure that takes the inner congestion control and
    /// the MSS. Users choose the wrapper with `cubic+name,key=value`.
    ///
    /// # Errors
    /// Another wrapper has this name, or the name is invalid.
    pub fn register_congestion_wrapper<B>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Parameters<'_>) -> B + Send + Sync + 'static,
    ) -> Result<(), RegisterError>
    where
        B: Fn(Box<dyn CongestionController>, u32) -> Box<dyn CongestionController>
            + Send
            + Sync
            + 'static,
    {
        self.congestion_controllers.insert_wrapper(name, move |parameters| {
            let wrap = read(parameters);
            Box::new(|inner, text| {
                Arc::new(NamedCongestion::new(text, move |mss, window, now| {
                    wrap(inner.build(mss, window, now), mss)
                }))
            })
        })
    }
}

/// Lookup by spec.
impl Registry {
    /// Returns the scheduler that a spec describes.
    ///
    /// # Errors
    /// A name, key or value is unknown; the error lists the known ones.
    pub fn scheduler(&self, spec: &str) -> Result<Arc<dyn SchedulerFactory>, PolicyError> {
        self.schedulers.get(spec)
    }

    /// Returns the path manager that a spec describes.
    ///
    /// # Errors
    /// A name, key or value is unknown; the error lists the known ones.
    pub fn path_manager(&self, spec: &str) -> Result<Arc<dyn PathManagerFactory>, PolicyError> {
        self.path_managers.get(spec)
    }

    /// Returns the congestion control that a spec describes.
    ///
    /// # Errors
    /// A name, key or value is unknown; the error lists the known ones.
    pub fn congestion(&self, spec: &str) -> Result<Arc<dyn CongestionFactory>, PolicyError> {
        self.congestion_controllers.get(spec)
    }

    /// Returns the loss recovery that a spec describes.
    ///
    /// # Errors
    /// A name, key or value is unknown; the error lists the known ones.
    pub fn recovery(&self, spec: &str) -> Result<Arc<dyn RecoveryFactory>, PolicyError> {
        self.loss_recoveries.get(spec)
    }

    /// Returns the datagram policy that a spec describes.
    ///
    /// # Errors
    /// A name, key or value is unknown; the error lists the known ones.
    pub fn datagram_policy(
        &self,
        spec: &str,
    ) -> Result<Arc<dyn DatagramPolicyFactory>, PolicyError> {
        self.datagrams.get(spec)
    }

    /// All policy names of a kind, sorted.
    #[must_use]
    pub fn names(&self, kind: PolicyKind) -> Vec<&str> {
        match kind {
            PolicyKind::Scheduler => self.schedulers.names(),
            PolicyKind::SchedulerWrapper => self.schedulers.wrapper_names(),
            PolicyKind::PathManager => self.path_managers.names(),
            PolicyKind::Congestion => self.congestion_controllers.names(),
            PolicyKind::CongestionWrapper => self.congestion_controllers.wrapper_names(),
            PolicyKind::Recovery => self.loss_recoveries.names(),
            PolicyKind::Datagrams => self.datagrams.names(),
        }
    }

    /// Parameters of a policy, in the order in which it reads them; `None` if the name is unknown.
    #[must_use]
    pub fn parameters(&self, kind: PolicyKind, name: &str) -> Option<Vec<ParameterInfo>> {
        match kind {
            PolicyKind::Scheduler => self.schedulers.parameters(name),
            PolicyKind::SchedulerWrapper => self.schedulers.wrapper_parameters(name),
            PolicyKind::PathManager => self.path_managers.parameters(name),
            PolicyKind::Congestion => self.congestion_controllers.parameters(name),
            PolicyKind::CongestionWrapper => self.congestion_controllers.wrapper_parameters(name),
            PolicyKind::Recovery => self.loss_recoveries.parameters(name),
            PolicyKind::Datagrams => self.datagrams.parameters(name),
        }
    }

    /// Builds the policies of a connection from specs.
    ///
    /// # Errors
    /// The first spec that is not valid is reported.
    pub fn policy_set(
        &self,
        scheduler: &str,
        path_manager: &str,
        congestion: &str,
        recovery: &str,
    ) -> Result<PolicySet, PolicyError> {
        Ok(PolicySet {
            scheduler: self.scheduler(scheduler)?,
            path_manager: self.path_manager(path_manager)?,
            congestion: self.congestion(congestion)?,
            recovery: self.recovery(recovery)?,
        })
    }
}

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Registry::empty();
        let added = built_in::add(&mut registry);
        debug_assert!(added.is_ok(), "duplicate name of a built-in policy: {added:?}");
        registry
    }
}

/// Default policies of a connection: `auto`, `full-mesh`, `cubic-westwood`, `rack-tlp`.
#[must_use]
pub fn default_policies() -> PolicySet {
    PolicySet {
        scheduler: Arc::new(NamedScheduler::new("auto", || Box::<Auto>::default())),
        congestion: Arc::new(NamedCongestion::new("cubic-westwood", |mss, window, _| {
            Box::new(CubicWestwood::new(mss, window, SlowStartKind::HyStart))
        })),
        ..reference_policies()
    }
}

/// The policies of typical Multipath TCP stacks: `min-rtt`, `full-mesh`, `cubic` (with HyStart++), `rack-tlp`.
///
/// They send each byte once and depend only on round trips and windows, so a script of segments can predict what
/// follows. Protocol tests use them, and comparisons run them next to the default.
#[must_use]
pub fn reference_policies() -> PolicySet {
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
