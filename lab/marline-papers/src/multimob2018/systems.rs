//! Systems under comparison.

use marline::advanced::{ConnectionConfig, interactive};
use marline::config::{InteractiveParameters, LoneKeepalive};
use marline::monitor::Extensions;
use marline::policy::Role;
use marline_lab::experiment::Variant;
use marline_sim::Paths;
use marline_time::Duration;

use crate::mechanism::Mechanism;
use crate::plain::mptcp;

/// A configuration of both ends for WiFi and LTE.
#[derive(Clone, Debug)]
pub(super) struct System {
    /// Name in tables.
    pub(super) name: &'static str,
    client: End,
    server: End,
    /// True if there is a cellular path.
    pub(super) cellular: bool,
    /// True if the cellular path has the backup flag.
    pub(super) backup: bool,
    /// True for MultiMob.
    pub(super) multimob: bool,
    /// True if the connections of the client share a path health monitor.
    shared_path_health: bool,
    /// Extensions that the server allows.
    allowed: Extensions,
    /// Keepalives of the client's idle lone subflow, instead of those in its parameters.
    keepalive: Option<Option<LoneKeepalive>>,
}

/// Stack at one end.
#[derive(Clone, Debug)]
enum End {
    MultiMob(InteractiveParameters),
    Other(Box<Variant>),
}

impl End {
    fn connection(&self, role: Role) -> anyhow::Result<ConnectionConfig> {
        match self {
            End::Other(variant) => variant.connection(),
            End::MultiMob(parameters) => {
                let mut config = mptcp("").connection()?;
                let plain = config.policies.scheduler.clone();
                interactive(&mut config, role, *parameters);
                if *parameters == InteractiveParameters::Prompt && role == Role::Client {
                    // The study compares paths and path selection. Copies would change the results.
                    config.policies.scheduler = plain;
                }
                Ok(config)
            }
        }
    }
}

impl System {
    fn with_both_ends(name: &'static str, variant: Variant) -> System {
        System {
            name,
            client: End::Other(Box::new(variant.clone())),
            server: End::Other(Box::new(variant)),
            cellular: true,
            backup: false,
            multimob: false,
            shared_path_health: false,
            allowed: Extensions::NONE,
            keepalive: None,
        }
    }

    fn multimob(name: &'static str, parameters: InteractiveParameters) -> System {
        System {
            client: End::MultiMob(parameters),
            server: End::MultiMob(parameters),
            backup: !Mechanism::BreakBeforeMake.is_off(),
            multimob: true,
            shared_path_health: !Mechanism::Oracle.is_off(),
            allowed: Extensions::ALL,
            ..System::with_both_ends(name, mptcp(""))
        }
    }

    /// Configurations of the client's and of the server's connections.
    ///
    /// # Errors
    /// Unknown policy.
    pub(super) fn configs(&self) -> anyhow::Result<(ConnectionConfig, ConnectionConfig)> {
        let mut client = self.client.connection(Role::Client)?;
        client.lone_keepalive = self.keepalive.unwrap_or(client.lone_keepalive);
        let mut server = self.server.connection(Role::Server)?;
        server.allow_extensions = self.allowed;
        if self.multimob {
            switch_off_mechanism(&mut client, &mut server)?;
        }
        Ok((client, server))
    }

    /// Sets the shared path health monitors of the MultiMob hosts.
    pub(super) fn set_up_hosts(&self, paths: &mut Paths) {
        let ends = [(&self.client, paths.client), (&self.server, paths.server)];
        for (end, host) in ends.into_iter().filter(|_| self.shared_path_health) {
            if let End::MultiMob(parameters) = end {
                paths
                    .world
                    .node_mut(host)
                    .endpoint_mut()
                    .set_path_health_monitor(parameters.path_health_monitor());
            }
        }
    }
}

/// Takes the mechanism that is switched off, if any, out of MultiMob's configurations.
fn switch_off_mechanism(
    client: &mut ConnectionConfig,
    server: &mut ConnectionConfig,
) -> anyhow::Result<()> {
    let vanilla = mptcp("").scheduler("lowest-rtt").connection()?.policies;
    match Mechanism::switched_off() {
        Some(Mechanism::BreakBeforeMake) => client.policies.path_manager = vanilla.path_manager,
        Some(Mechanism::FastJoin) => {
            server.allow_extensions = server.allow_extensions.difference(Extensions::FAST_JOIN);
        }
        Some(Mechanism::FollowClient) => {
            server.policies.scheduler = vanilla.scheduler;
            server.allow_extensions = server.allow_extensions.difference(Extensions::FOLLOW_CLIENT);
        }
        _ => {}
    }
    Ok(())
}

/// All systems, [`multipath`] first.
pub(super) fn all() -> Vec<System> {
    multipath().into_iter().chain([plain_tcp()]).collect()
}

/// Index of a system in [`all`].
pub(super) fn index_of(of: &System) -> usize {
    let all = all();
    all.iter().position(|system| system.name == of.name).unwrap_or(all.len())
}

/// Systems with two paths.
pub(super) fn multipath() -> Vec<System> {
    let others = [vanilla_full_mesh(), vanilla_backup(), kernel_backup()];
    multimob().into_iter().chain(others).collect()
}

/// MultiMob with the authors' parameters, and tuned.
pub(super) fn multimob() -> Vec<System> {
    vec![authors(), tuned()]
}

/// MultiMob with the authors' parameters.
pub(super) fn authors() -> System {
    System::multimob("MultiMob, authors' parameters", InteractiveParameters::Multimob)
}

/// MultiMob, driven by events.
pub(super) fn tuned() -> System {
    System::multimob("MultiMob, tuned", InteractiveParameters::Prompt)
}

/// Tuned MultiMob without a shared path health monitor.
pub(super) fn tuned_uncoupled() -> System {
    System { shared_path_health: false, name: "MultiMob, tuned, no path health monitor", ..tuned() }
}

/// Tuned MultiMob with keepalives of an idle lone subflow after this time. `None`: no keepalives.
pub(super) fn tuned_with_keepalive(idle: Option<Duration>) -> System {
    let keepalive = idle.map(|idle| LoneKeepalive { idle, ..LoneKeepalive::default() });
    System { keepalive: Some(keepalive), ..tuned() }
}

/// Extensions without Fast JOIN, so that joins are as in RFC 8684.
const PLAIN_JOIN: Extensions =
    Extensions::IDLE.union(Extensions::RTO).union(Extensions::FOLLOW_CLIENT);

/// Tuned MultiMob with plain joins.
pub(super) fn tuned_with_plain_join() -> System {
    System { allowed: PLAIN_JOIN, name: "MultiMob, tuned, plain JOIN", ..tuned() }
}

/// MultiMob with the authors' parameters and plain joins.
pub(super) fn authors_with_plain_join() -> System {
    System { allowed: PLAIN_JOIN, name: "MultiMob, authors' parameters, plain JOIN", ..authors() }
}

/// Today's kernel, with the cellular path as backup.
pub(super) fn kernel_backup() -> System {
    let variant = Variant { path_manager: Some("backup".to_owned()), ..mptcp("") };
    let variant = variant.scheduler("linux");
    System { backup: true, ..System::with_both_ends("kernel, backup flag", variant) }
}

/// Multipath TCP at the time of the study. It has the kernel's scheduler without additions, which leaves a silent
/// path to its retransmission timer, and joins all paths at the start.
pub(super) fn vanilla_full_mesh() -> System {
    System::with_both_ends("vanilla, full mesh", mptcp("").scheduler("lowest-rtt"))
}

/// Multipath TCP at the time of the study, with the cellular path as backup.
pub(super) fn vanilla_backup() -> System {
    let variant = Variant { path_manager: Some("backup".to_owned()), ..mptcp("") };
    let variant = variant.scheduler("lowest-rtt");
    System { backup: true, ..System::with_both_ends("vanilla, backup flag", variant) }
}

/// Plain TCP over WiFi.
pub(super) fn plain_tcp() -> System {
    let variant = Variant { plain: true, ..mptcp("") };
    System { cellular: false, ..System::with_both_ends("WiFi alone", variant) }
}
