//! Resolvers for those behind an interface.

use marline_proxy::target::Target;
use marline_tun::resolver::{self, Resolvers};

use crate::config::client::{ClientPlan, Route};

/// Whom those behind the interface ask: who was configured; else the server's own resolver and, where a server does not
/// let it be asked, the first of this machine's, as the server reaches it.
///
/// # Errors
/// There is no server, and nobody but this machine can reach its resolver.
pub(super) fn resolvers(plan: &ClientPlan) -> anyhow::Result<Resolvers> {
    let first_of_host = || resolver::first_of_host().map(Target::from);
    match (plan.dns, &plan.route) {
        (Some(resolver), _) => Ok(Resolvers::new(resolver.into(), [])),
        (None, Route::Direct) => Ok(Resolvers::new(first_of_host()?, [])),
        (None, Route::Through(_)) => {
            Ok(Resolvers::new(Target::servers_resolver(), first_of_host().ok()))
        }
    }
}
