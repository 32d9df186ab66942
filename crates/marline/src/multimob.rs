//! MultiMob as one setting: break before make, the path health monitor, a server that follows the
//! client, and the extensions that both agree on.
//!
//! Each part is a policy or setting that can also be chosen by itself. They are combined here, once with
//! the parameters of MultiMob's authors and once with ours.

use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Extensions, LoneKeepalive, PathHealthMonitor, ReceiveTimer};
use marline_policy::{PathHealthConfig, PathManagerFactory, Role, SchedulerFactory};

/// The extensions that a client asks for.
const EXTENSIONS: Extensions = Extensions::FAST_JOIN
    .with(Extensions::COUNTED_JOIN)
    .with(Extensions::IDLE)
    .with(Extensions::RTO)
    .with(Extensions::FOLLOW_CLIENT);

/// Which parameters.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Interactive {
    /// Ours: judged by events, cellular closed again. What `--mode interactive` runs with.
    #[default]
    Prompt,
    /// Those of the kernel module that MultiMob was measured with.
    Multimob,
}

impl Interactive {
    /// Specs of the client's scheduler, the server's, and the client's path manager.
    #[must_use]
    pub const fn specs(self) -> [&'static str; 3] {
        match self {
            Interactive::Prompt => ["auto", "follow-client", "break-before-make"],
            Interactive::Multimob => {
                ["lowest-rtt", "follow-client,spill=on,reinject=rto", "multimob"]
            }
        }
    }

    /// What the path health monitor of a process goes by.
    #[must_use]
    pub const fn path_health_config(self) -> PathHealthConfig {
        match self {
            Interactive::Prompt => PathHealthConfig::prompt(),
            Interactive::Multimob => PathHealthConfig::multimob(),
        }
    }

    /// A path health monitor for all endpoints of a process.
    #[must_use]
    pub fn path_health_monitor(self) -> PathHealthMonitor {
        PathHealthMonitor::new(self.path_health_config())
    }

    const fn receive_timer(self) -> ReceiveTimer {
        match self {
            Interactive::Prompt => ReceiveTimer::probing(),
            Interactive::Multimob => ReceiveTimer::multimob(),
        }
    }

    /// A server's word after a pause in which WiFi died would never arrive. MultiMob leaves them off.
    fn lone_keepalive(self) -> Option<LoneKeepalive> {
        (self == Interactive::Prompt).then(LoneKeepalive::default)
    }
}

/// Makes the connections of this side MultiMob's. Scheduler and path manager are replaced; the client
/// asks the server to follow, and for the rest of what both can do; addresses flagged `backup` sleep until
/// they are needed. The path health monitor is set elsewhere
/// ([`ClientBuilder::path_health_monitor`](crate::ClientBuilder::path_health_monitor)).
pub fn interactive(config: &mut ConnectionConfig, role: Role, parameters: Interactive) {
    let [client, server, path_manager] = parameters.specs();
    match role {
        Role::Client => {
            config.policies.scheduler = scheduler(client);
            config.policies.path_manager = manager(path_manager);
            config.extensions = EXTENSIONS;
            config.receive_timer = Some(parameters.receive_timer());
            config.lone_keepalive = config.lone_keepalive.or_else(|| parameters.lone_keepalive());
        }
        Role::Server => {
            config.policies.scheduler = scheduler(server);
            allow_following(config);
        }
    }
}

/// A server grants a client's wish to be followed, if nothing else was configured for it.
pub(crate) fn allow_following(config: &mut ConnectionConfig) {
    if config.follow_client.is_none() {
        config.follow_client = Some(scheduler("follow-client"));
    }
}

fn scheduler(spec: &str) -> Arc<dyn SchedulerFactory> {
    match Registry::default().scheduler(spec) {
        Ok(factory) => factory,
        Err(error) => unreachable!("a built-in spec, tested below: {error}"),
    }
}

fn manager(spec: &str) -> Arc<dyn PathManagerFactory> {
    match Registry::default().path_manager(spec) {
        Ok(factory) => factory,
        Err(error) => unreachable!("a built-in spec, tested below: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_their_parts() {
        for parameters in [Interactive::Prompt, Interactive::Multimob] {
            let [scheduler, follower, path_manager] = parameters.specs();
            let mut config = ConnectionConfig::new(marline_algos::default_policies());
            interactive(&mut config, Role::Client, parameters);
            assert_eq!(config.policies.scheduler.name(), scheduler);
            assert_eq!(config.policies.path_manager.name(), path_manager);
            assert!(config.receive_timer.is_some() && config.follow_client.is_none());
            assert!(config.extensions.contains(EXTENSIONS));
            assert_eq!(config.lone_keepalive.is_some(), parameters == Interactive::Prompt);
            let mut config = ConnectionConfig::new(marline_algos::default_policies());
            interactive(&mut config, Role::Server, parameters);
            assert_eq!(config.policies.scheduler.name(), follower);
            assert_eq!(config.policies.path_manager.name(), "full-mesh");
            assert!(config.follow_client.is_some() && config.receive_timer.is_none());
        }
    }
}
