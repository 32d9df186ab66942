//! MultiMob as one setting: break before make, the path health monitor, a server that follows the
//! client, and the extensions that both agree on.
//!
//! Each part is a policy or setting that can also be chosen separately. This module combines them, with the parameters
//! of MultiMob's authors or with ours.

use std::sync::Arc;

use marline_algos::Registry;
use marline_core::{ConnectionConfig, Extensions, LoneKeepalive, PathHealthMonitor, ReceiveTimer};
use marline_policy::{PathHealthConfig, PathManagerFactory, Role, SchedulerFactory};

/// Extensions that a client requests.
const EXTENSIONS: Extensions = Extensions::FAST_JOIN
    .union(Extensions::COUNTED_JOIN)
    .union(Extensions::IDLE)
    .union(Extensions::RTO)
    .union(Extensions::FOLLOW_CLIENT);

/// Choice of parameters.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InteractiveParameters {
    /// Our parameters: decisions based on events, and cellular paths are closed again. Used by `--mode interactive`.
    #[default]
    Prompt,
    /// Parameters of the kernel module with which MultiMob was measured.
    Multimob,
}

impl InteractiveParameters {
    /// Returns the specs of the client's scheduler, the server's scheduler, and the client's path manager.
    #[must_use]
    pub const fn specs(self) -> [&'static str; 3] {
        match self {
            InteractiveParameters::Prompt => ["auto", "follow-client", "break-before-make"],
            InteractiveParameters::Multimob => {
                ["lowest-rtt", "follow-client,spill=on,reinject=rto", "multimob"]
            }
        }
    }

    /// Returns the parameters of the process's path health monitor.
    #[must_use]
    pub const fn path_health_config(self) -> PathHealthConfig {
        match self {
            InteractiveParameters::Prompt => PathHealthConfig::prompt(),
            InteractiveParameters::Multimob => PathHealthConfig::multimob(),
        }
    }

    /// Creates a path health monitor for all endpoints of a process.
    #[must_use]
    pub fn path_health_monitor(self) -> PathHealthMonitor {
        PathHealthMonitor::new(self.path_health_config())
    }

    const fn receive_timer(self) -> ReceiveTimer {
        match self {
            InteractiveParameters::Prompt => ReceiveTimer::with_probes(),
            InteractiveParameters::Multimob => ReceiveTimer::multimob(),
        }
    }

    /// Returns the keepalives of a connection's only subflow. Without them, data that a server sends after a pause in
    /// which WiFi failed would never arrive. MultiMob has none.
    fn lone_keepalive(self) -> Option<LoneKeepalive> {
        (self == InteractiveParameters::Prompt).then(LoneKeepalive::default)
    }
}

/// Configures MultiMob for connections of this side. The scheduler and path manager are replaced. The client requests
/// that the server follow it, and the other extensions that both support. Addresses flagged `backup` sleep until they
/// are needed. The path health monitor is set separately
/// ([`ClientBuilder::path_health_monitor`](crate::ClientBuilder::path_health_monitor)).
pub fn interactive(config: &mut ConnectionConfig, role: Role, parameters: InteractiveParameters) {
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

/// Allows clients to request that this server follow them, unless this is already configured.
pub(crate) fn allow_following(config: &mut ConnectionConfig) {
    if config.follow_client.is_none() {
        config.follow_client = Some(scheduler("follow-client"));
    }
}

fn scheduler(spec: &str) -> Arc<dyn SchedulerFactory> {
    match Registry::default().scheduler(spec) {
        Ok(factory) => factory,
        Err(error) => unreachable!("invalid built-in spec: {error}"),
    }
}

fn manager(spec: &str) -> Arc<dyn PathManagerFactory> {
    match Registry::default().path_manager(spec) {
        Ok(factory) => factory,
        Err(error) => unreachable!("invalid built-in spec: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_their_parts() {
        for parameters in [InteractiveParameters::Prompt, InteractiveParameters::Multimob] {
            let [scheduler, follower, path_manager] = parameters.specs();
            let mut config = ConnectionConfig::new(marline_algos::default_policies());
            interactive(&mut config, Role::Client, parameters);
            assert_eq!(config.policies.scheduler.name(), scheduler);
            assert_eq!(config.policies.path_manager.name(), path_manager);
            assert!(config.receive_timer.is_some() && config.follow_client.is_none());
            assert!(config.extensions.contains(EXTENSIONS));
            assert_eq!(
                config.lone_keepalive.is_some(),
                parameters == InteractiveParameters::Prompt
            );
            let mut config = ConnectionConfig::new(marline_algos::default_policies());
            interactive(&mut config, Role::Server, parameters);
            assert_eq!(config.policies.scheduler.name(), follower);
            assert_eq!(config.policies.path_manager.name(), "full-mesh");
            assert!(config.follow_client.is_some() && config.receive_timer.is_none());
        }
    }
}
