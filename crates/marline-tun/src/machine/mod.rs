//! A whole machine behind the interface: its routing while the tunnel runs, and the restored state afterwards.
//!
//! [`Machine::take_over`] routes the machine's traffic to the interface with its own rules and tables ([`routing`]),
//! and [`Machine::restore`] removes them. The changes of a killed process are undone by [another one](UndoProcess), or
//! failing that by the next `up` or `down` ([`clean_up`]), which identify our rules by their mark. Only a [kill
//! switch](engage) stays until the user removes it.

mod cleanup;
mod connections;
mod direct_hosts;
mod netlink;
pub mod records;
mod resolved;
mod resolver_file;
mod reverse_path;
pub mod routing;
mod server_name;
mod services;
mod switch;
mod undo;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use marline_io::{GATEWAY_INTERFACE, Tun};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

pub use self::cleanup::{CleanupExtent, CleanupResult, clean_up};
use self::netlink::{Routing, RuleSet};
use self::resolver_file::ResolverFile;
use self::routing::{InboundConnection, MachineState, Route, RoutingSettings, direct_host};
pub use self::server_name::resolve_server;
pub use self::switch::engage;
use self::switch::{KillSwitch, families};
pub use self::undo::UndoProcess;
use crate::addresses::Addresses;
use crate::dns::{DirectAddresses, TimedAddress};
use crate::interface::ReadyInterface;

/// Interval between checks for changes made by other programs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between a change of an interface and its restoration, which keeps two programs from undoing each other's
/// changes without a pause.
const RESTORE_DELAY: Duration = Duration::from_millis(20);
/// Number of such checks between searches for ended connections.
const CHECKS_PER_SEARCH: u32 = 5;

/// Creates the interface without routing any traffic to it. It exists as long as its descriptor.
///
/// # Errors
/// The permission is missing, or an interface of that name exists.
pub fn make_interface() -> anyhow::Result<OwnedFd> {
    match Tun::open_offloading(GATEWAY_INTERFACE) {
        Ok(tun) => Ok(tun.into()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
            Err(anyhow!(
                "the interface {GATEWAY_INTERFACE} exists: `marline up` is already running (stop it with \
                 `marline down`)"
            ))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            Err(error).context(
                "cannot create a TUN interface: this needs CAP_NET_ADMIN (`sudo marline up`) and access to \
                 /dev/net/tun, which a container or sandbox may deny",
            )
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            Err(anyhow!(
                "cannot create a TUN interface: /dev/net/tun is missing: run `sudo modprobe tun`, or give it to the \
                 container (--device /dev/net/tun)"
            ))
        }
        Err(error) => Err(error).context("cannot create a TUN interface"),
    }
}

/// Reason why a machine is released.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The user's request.
    Requested,
    /// Failure.
    Failed,
}

/// A machine whose traffic is routed to the interface.
#[derive(Debug)]
pub struct Machine {
    switch: KillSwitch,
    undo: UndoProcess,
    interface: ReadyInterface,
    /// Changes of any interface.
    changes: watch::Receiver<()>,
    resolver_file: Option<ResolverFile>,
}

impl Machine {
    /// Routes the machine's traffic to the interface from [`make_interface`]. After an error nothing stays changed,
    /// except for an active kill switch.
    ///
    /// # Errors
    /// The system refuses, or our tables are in use by another program.
    pub async fn take_over(
        settings: RoutingSettings,
        addresses: &Addresses,
        mut undo: UndoProcess,
    ) -> anyhow::Result<Machine> {
        let routing = Routing::open()?;
        if routing.is_taken().await? {
            let tables = routing::TABLES.map(|table| table.to_string()).join(", ");
            bail!(
                "another program uses one of the routing tables {tables} (see ip route show table all)"
            );
        }
        let inbound = services::open_inbound();
        for InboundConnection { port, peer } in &inbound {
            tracing::info!(
                "{peer} is connected to port {port}: that connection continues outside the tunnel"
            );
        }
        let facts = MachineState { inbound, ..MachineState::default() };
        let mut switch = KillSwitch { routing, settings, addresses: *addresses, facts };
        // An existing kill switch stays active until the routes are complete.
        let held = switch.settings.kill_switch || switch.routing.has(RuleSet::KillSwitch).await?;
        undo.arm(held).context("the cleanup process exited")?;
        reverse_path::loosen_filter();
        if switch.settings.kill_switch {
            switch.complete().await?;
            switch.remove_weaker_rules().await?;
            tracing::info!("kill switch on: all traffic outside the tunnel is blocked");
        }
        let changes = netlink::watch_interfaces()?;
        let interface = ReadyInterface::set_up(addresses)
            .with_context(|| format!("{GATEWAY_INTERFACE} cannot be set up"))?;
        let mut machine = Machine { switch, undo, interface, changes, resolver_file: None };
        if let Err(error) = machine.add_tunnel_rules().await {
            machine.restore(ReleaseReason::Failed).await;
            return Err(error);
        }
        Ok(machine)
    }

    async fn add_tunnel_rules(&mut self) -> anyhow::Result<()> {
        let routing = &self.switch.routing;
        let left = routing.clear(RuleSet::Routing).await?;
        if left > 0 {
            tracing::info!("removed {left} leftover rules and routes of an earlier `marline up`");
        }
        if !self.switch.settings.kill_switch {
            self.switch.add_routes().await;
        }
        for own in families(&self.switch.addresses) {
            // Routes precede rules, which without them would make traffic bypass the interface.
            for route in self.routes(own) {
                self.switch.routing.add_route(route, self.interface.index()).await?;
            }
        }
        self.complete_lead().await?;
        if !self.switch.settings.kill_switch {
            // An existing kill switch was active until now, but these settings do not include one.
            self.switch.routing.clear(RuleSet::KillSwitch).await?;
        }
        if self.switch.settings.handles_dns_queries() {
            let gateway = self.switch.addresses.gateway_v4.into();
            let asked = resolved::configure_resolved(GATEWAY_INTERFACE, gateway);
            if asked == Some(false) {
                // The resolver binds its sockets to interfaces.
                self.switch.facts.holds_bound_names = true;
                self.complete_lead().await?;
            }
            if asked != Some(true) || !resolver_file::is_local() {
                self.resolver_file = Some(ResolverFile::install(gateway));
            }
        }
        Ok(())
    }

    /// Returns the lead's routes of the family of this address of ours.
    fn routes(&self, own: IpAddr) -> Vec<Route> {
        let served = !own.is_ipv6() || self.interface.has_ipv6();
        self.switch.settings.routes(own.is_ipv6(), served)
    }

    async fn complete_lead(&self) -> anyhow::Result<usize> {
        let KillSwitch { routing, settings, addresses, facts } = &self.switch;
        let mut made = 0;
        for own in families(addresses) {
            made += routing.complete(&[RoutingSettings::jump_target()], own.is_ipv6()).await?;
            made += routing.complete(&settings.tunnel_rules(own, facts), own.is_ipv6()).await?;
        }
        Ok(made)
    }

    /// Makes hosts direct on request and restores what other programs change, until all senders are dropped or the
    /// interface no longer exists.
    pub async fn maintain(&mut self, asked: &mut mpsc::Receiver<DirectAddresses>) {
        let mut due = interval_at(Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks: u32 = 0;
        loop {
            tokio::select! {
                asked = asked.recv() => {
                    let Some(DirectAddresses { name, addresses, done }) = asked else { return };
                    for address in addresses {
                        self.make_direct(&name, address).await;
                    }
                    // The requester may have given up.
                    let _ = done.send(());
                }
                Ok(()) = self.changes.changed() => {
                    sleep(RESTORE_DELAY).await;
                    if let Err(error) = self.restore_interface().await {
                        tracing::debug!("{GATEWAY_INTERFACE} is not restored yet: {error:#}");
                    }
                }
                _ = due.tick() => {
                    looks = looks.wrapping_add(1);
                    self.end_expired().await;
                    if looks.is_multiple_of(CHECKS_PER_SEARCH) {
                        self.forget_ended().await;
                    }
                    self.restore_removed().await;
                    if self.switch.facts.gateway != Some(self.interface.index()) {
                        tracing::error!("the interface {GATEWAY_INTERFACE} was removed; stopping");
                        return;
                    }
                    if let Err(error) = self.restore_interface().await {
                        tracing::warn!("cannot restore the interface {GATEWAY_INTERFACE}: {error:#}");
                    }
                }
            }
        }
    }

    /// Restores what other programs have removed (some network managers remove unknown rules), and detects new
    /// interfaces.
    async fn restore_removed(&mut self) {
        if let Some(file) = &mut self.resolver_file {
            file.check_file();
        }
        let completed = if self.switch.settings.kill_switch {
            self.switch.complete().await
        } else {
            self.switch.add_routes().await;
            Ok(0)
        };
        if let Err(error) = completed {
            tracing::warn!("cannot complete the kill switch; retrying: {error:#}");
        }
        if let Err(error) = self.complete_lead().await {
            tracing::warn!("cannot restore rules that lead to the tunnel; retrying: {error:#}");
        }
    }

    /// Restores the interface and its routes. Network managers take every interface down when networking is switched
    /// off or the machine sleeps, and the system then removes the routes, so that traffic would bypass the tunnel.
    async fn restore_interface(&self) -> anyhow::Result<()> {
        let KillSwitch { routing, addresses, .. } = &self.switch;
        self.interface.restore(addresses)?;
        let mut restored = false;
        for own in families(addresses) {
            // Routes vanish together, so the last one of the main table stands for the earlier ones.
            for route in self.routes(own).into_iter().rev() {
                let added = routing.add_route(route, self.interface.index()).await?;
                restored |= added;
                if !added && route.is_general() {
                    break;
                }
            }
        }
        if restored {
            tracing::info!("restored {GATEWAY_INTERFACE}, which another program has changed");
        }
        Ok(())
    }

    /// Removes exceptions for connections that have ended.
    async fn forget_ended(&mut self) {
        if self.switch.facts.inbound.is_empty() {
            return;
        }
        let open = services::inbound();
        let (kept, ended): (Vec<InboundConnection>, Vec<InboundConnection>) =
            self.switch.facts.inbound.iter().partition(|inbound| open.contains(inbound));
        self.switch.facts.inbound = kept;
        for inbound in ended {
            let ipv6 = inbound.peer.is_ipv6();
            for rule in routing::direct_reply_rules(inbound) {
                if let Err(error) = self.switch.routing.remove_rule(&rule, ipv6).await {
                    tracing::warn!("{error:#}");
                }
            }
        }
    }

    async fn make_direct(&mut self, name: &str, TimedAddress { address, lifetime }: TimedAddress) {
        let KillSwitch { routing, settings, facts, .. } = &mut self.switch;
        // The address has a permanent route.
        if settings.direct.iter().any(|network| network.contains(address)) {
            return;
        }
        let opening = facts.direct_hosts.open(name, address, Instant::now() + lifetime);
        let made = async {
            if opening.is_new {
                if settings.kill_switch {
                    routing
                        .add_rule(&routing::direct_host_rule(address), address.is_ipv6())
                        .await?;
                }
                routing.add_route(direct_host(address), 0).await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = made.await {
            tracing::warn!("cannot make {address} direct; it still uses the tunnel: {error:#}");
            facts.direct_hosts.remove(address);
        }
        if let Some(evicted) = opening.evicted {
            self.end_direct(evicted).await;
        }
    }

    /// Routes expired hosts through the tunnel again, except for those with open connections.
    async fn end_expired(&mut self) {
        let now = Instant::now();
        if !self.switch.facts.direct_hosts.is_due(now) {
            return;
        }
        for address in self.switch.facts.direct_hosts.expire(now, &connections::peers()) {
            self.end_direct(address).await;
        }
    }

    async fn end_direct(&mut self, address: IpAddr) {
        let routing = &self.switch.routing;
        let removed = async {
            routing.remove_route(direct_host(address)).await?;
            routing.remove_rule(&routing::direct_host_rule(address), address.is_ipv6()).await
        };
        if let Err(error) = removed.await {
            tracing::warn!(
                "cannot end the exception for {address}; it is still reached directly: {error:#}"
            );
        }
    }

    /// Restores the machine's own routing, except for a kill switch that stays active.
    pub async fn restore(mut self, ending: ReleaseReason) {
        let settings = &self.switch.settings;
        let extent = if ending == ReleaseReason::Requested && !settings.lockdown {
            // If we are killed from now on, the other process completes the cleanup.
            self.undo.release();
            CleanupExtent::Everything
        } else {
            CleanupExtent::AllButSwitch
        };
        match clean_up(extent).await {
            Ok(cleaned) => {
                self.undo.disarm();
                if cleaned.held {
                    tracing::warn!(
                        "the kill switch stays on: all traffic outside the tunnel is blocked. `sudo marline \
                         up` restores the tunnel; `sudo marline down` removes the kill switch"
                    );
                }
            }
            Err(error) => {
                tracing::warn!("cannot remove all rules (`marline down` removes them): {error:#}")
            }
        }
    }
}
