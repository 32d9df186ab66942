//! The kill switch: rules that hold by themselves, made before all others and removed by nothing here.

use std::net::IpAddr;

use super::netlink::Routing;
use super::routing::{Facts, RoutingSettings};
use super::{reverse_path, services};
use crate::addresses::Addresses;

/// Lets nothing past from now on but what these settings let leave directly. A switch that is there is completed, and
/// never opened meanwhile. Needs a tokio runtime.
///
/// # Errors
/// The system's.
pub async fn engage(settings: &RoutingSettings, addresses: &Addresses) -> anyhow::Result<()> {
    let routing = Routing::open()?;
    let facts = Facts { inbound: services::inbound_at_most(), ..Facts::default() };
    let mut switch = Switch { routing, settings: settings.clone(), addresses: *addresses, facts };
    switch.complete().await?;
    reverse_path::loosen();
    Ok(())
}

/// The interface's addresses of the families that this machine has.
pub(super) fn families(addresses: &Addresses) -> impl Iterator<Item = IpAddr> {
    let own: [IpAddr; 2] = [addresses.host_v4.into(), addresses.host_v6.into()];
    // A kernel may have no IPv6.
    let has = |own: &IpAddr| !own.is_ipv6() || std::path::Path::new("/proc/net/if_inet6").exists();
    own.into_iter().filter(has)
}

/// The rules that let nothing past, and what they depend on.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) routing: Routing,
    pub(super) settings: RoutingSettings,
    pub(super) addresses: Addresses,
    pub(super) facts: Facts,
}

impl Switch {
    /// Makes what of it is missing.
    pub(super) async fn complete(&mut self) -> anyhow::Result<usize> {
        let mut made = 0;
        for own in families(&self.addresses) {
            let ipv6 = own.is_ipv6();
            made += self.routing.complete(&[RoutingSettings::beyond()], ipv6).await?;
            made += self.routing.complete(&self.settings.switch(own, &self.facts), ipv6).await?;
        }
        // It holds. The routes and the rules by which sockets bound to an interface find them are for more.
        self.add_routes().await;
        for own in families(&self.addresses) {
            let rules = self.settings.switch(own, &self.facts);
            made += self.routing.complete(&rules, own.is_ipv6()).await?;
        }
        Ok(made)
    }

    /// Makes the routes by which the reverse path filter and sockets bound to an interface find that it holds.
    pub(super) async fn add_routes(&mut self) {
        let looked = self.routing.interfaces(&mut self.facts).await;
        if let Err(error) = looked {
            tracing::debug!("interfaces cannot be listed: {error:#}");
        }
        for route in self.settings.routes_of_switch(false, &self.facts) {
            // An interface that is down takes no route; it sends nothing, either.
            if let Err(error) = self.routing.add_route(route, 0).await {
                tracing::debug!("{error:#}");
            }
        }
    }

    /// Removes what an earlier one let leave and this one does not.
    pub(super) async fn tighten(&self) -> anyhow::Result<()> {
        for own in families(&self.addresses) {
            let rules = self.settings.switch(own, &self.facts);
            self.routing.remove_others(&rules, own.is_ipv6()).await?;
        }
        Ok(())
    }
}
