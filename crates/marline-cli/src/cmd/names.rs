//! Resolvers for programs behind an interface.

use marline_proxy::target::Target;
use marline_tun::resolver::{self, Resolvers};

use crate::config::client::{ClientPlan, Route};

/// Returns the resolvers for programs behind the interface: the configured one, or else the server's own, followed by
/// the first of this machine's resolvers, reached through the server, in case the server refuses its own.
///
/// # Errors
/// There is no server, and the resolver is reachable only from this machine.
pub(super) fn resolvers(plan: &ClientPlan) -> anyhow::Result<Resolvers> {
    let first_of_host = || resolver::first_of_host().map(Target::from);
    match (plan.dns, &plan.route) {
        (Some(resolver), _) => Ok(Resolvers::new(resolver.into(), [])),
        (None, Route::Direct) => Ok(Resolvers::new(first_of_host()?, [])),
        (None, Route::Through(_)) => {
            Ok(Resolvers::new(Target::server_resolver(), first_of_host().ok()))
        }
    }
}
