//! Factories built from a name and a closure, so that a policy needs no separate factory type.

use core::fmt;

use marline_policy::{
    CongestionController, CongestionFactory, DatagramPolicy, DatagramPolicyFactory, LossRecovery,
    PathManager, PathManagerFactory, RecoveryFactory, Scheduler, SchedulerFactory,
};
use marline_time::Instant;

/// Defines a factory of one kind from a name and a closure.
macro_rules! named {
    ($doc:literal, $named:ident, $factory:ident, $build:ty, ($($arg:ident: $type:ty),*) -> $made:ty) => {
        #[doc = $doc]
        pub struct $named {
            name: String,
            build: Box<$build>,
        }

        impl $named {
            /// `name` is the name in specs: lowercase letters, digits and `-`.
            pub fn new(
                name: impl Into<String>,
                build: impl Fn($($type),*) -> $made + Send + Sync + 'static,
            ) -> Self {
                $named { name: name.into(), build: Box::new(build) }
            }
        }

        impl $factory for $named {
            fn name(&self) -> &str {
                &self.name
            }

            fn build(&self $(, $arg: $type)*) -> $made {
                (self.build)($($arg),*)
            }
        }

        impl fmt::Debug for $named {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($named)).field("name", &self.name).finish_non_exhaustive()
            }
        }
    };
}

named!(
    "A scheduler factory made of a name and a closure.",
    NamedScheduler,
    SchedulerFactory,
    dyn Fn() -> Box<dyn Scheduler> + Send + Sync,
    () -> Box<dyn Scheduler>
);
named!(
    "A path-manager factory made of a name and a closure.",
    NamedPathManager,
    PathManagerFactory,
    dyn Fn() -> Box<dyn PathManager> + Send + Sync,
    () -> Box<dyn PathManager>
);
named!(
    "A congestion-control factory made of a name and a closure that takes MSS, initial window (bytes) and time.",
    NamedCongestion,
    CongestionFactory,
    dyn Fn(u32, u64, Instant) -> Box<dyn CongestionController> + Send + Sync,
    (mss: u32, initial_window: u64, now: Instant) -> Box<dyn CongestionController>
);
named!(
    "A loss-recovery factory made of a name and a closure.",
    NamedRecovery,
    RecoveryFactory,
    dyn Fn() -> Box<dyn LossRecovery> + Send + Sync,
    () -> Box<dyn LossRecovery>
);
named!(
    "A datagram-policy factory made of a name and a closure.",
    NamedDatagramPolicy,
    DatagramPolicyFactory,
    dyn Fn() -> Box<dyn DatagramPolicy> + Send + Sync,
    () -> Box<dyn DatagramPolicy>
);
