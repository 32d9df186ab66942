//! Kill switch: rules that work without a process, added before all others and never removed here.

use std::net::IpAddr;

use super::netlink::Routing;
use super::routing::{MachineState, RoutingSettings};
use super::{reverse_path, services};
use crate::addresses::Addresses;

/// Blocks all traffic that these settings do not let leave directly. An existing switch is completed without opening it
/// in the meantime. Needs a tokio runtime.
///
/// # Errors
/// A system call fails.
pub async fn engage(settings: &RoutingSettings, addresses: &Addresses) -> anyhow::Result<()> {
    let routing = Routing::open()?;
    let facts = MachineState { inbound: services::open_inbound(), ..MachineState::default() };
    let mut switch =
        KillSwitch { routing, settings: settings.clone(), addresses: *addresses, facts };
    switch.complete().await?;
    reverse_path::loosen_filter();
    Ok(())
}

/// Returns the interface's addresses of the families that this machine supports.
pub(super) fn families(addresses: &Addresses) -> impl Iterator<Item = IpAddr> {
    let own: [IpAddr; 2] = [addresses.host_v4.into(), addresses.host_v6.into()];
    // A kernel may lack IPv6.
    let has = |own: &IpAddr| !own.is_ipv6() || std::path::Path::new("/proc/net/if_inet6").exists();
    own.into_iter().filter(has)
}

/// The rules of the switch with their inputs.
#[derive(Debug)]
pub(super) struct KillSwitch {
    pub(super) routing: Routing,
    pub(super) settings: RoutingSettings,
    pub(super) addresses: Addresses,
    pub(super) facts: MachineState,
}

impl KillSwitch {
    /// Adds the missing parts.
    pub(super) async fn complete(&mut self) -> anyhow::Result<usize> {
        let mut made = 0;
        for own in families(&self.addresses) {
            let ipv6 = own.is_ipv6();
            made += self.routing.complete(&[RoutingSettings::jump_target()], ipv6).await?;
            made += self.routing.complete(&self.settings.switch(own, &self.facts), ipv6).await?;
        }
        // The switch is effective. The routes, and the rules with which sockets bound to an interface use them, are
        // additions.
        self.add_routes().await;
        for own in families(&self.addresses) {
            let rules = self.settings.switch(own, &self.facts);
            made += self.routing.complete(&rules, own.is_ipv6()).await?;
        }
        Ok(made)
    }

    /// Adds the routes for the reverse path filter and for sockets bound to an interface.
    pub(super) async fn add_routes(&mut self) {
        let looked = self.routing.interfaces(&mut self.facts).await;
        if let Err(error) = looked {
            tracing::debug!("cannot list interfaces: {error:#}");
        }
        for route in self.settings.kill_switch_routes(false, &self.facts) {
            // An interface that is down accepts no route, but it does not send either.
            if let Err(error) = self.routing.add_route(route, 0).await {
                tracing::debug!("{error:#}");
            }
        }
    }

    /// Removes rules of an earlier switch that this one does not have and that may let out more traffic.
    pub(super) async fn remove_weaker_rules(&self) -> anyhow::Result<()> {
        for own in families(&self.addresses) {
            let rules = self.settings.switch(own, &self.facts);
            self.routing.remove_others(&rules, own.is_ipv6()).await?;
        }
        Ok(())
    }
}
