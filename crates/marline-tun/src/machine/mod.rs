//! A whole machine behind the interface: its routing while the tunnel stands, and as it was afterwards.
//!
//! [`Machine::take_over`] leads the machine's traffic to the interface by rules and a table of its own
//! ([`routing`]); [`Machine::give_back`] removes them. What a process that is killed leaves behind is undone by
//! [another one](UndoProcess), and else by the next `up` or `down` ([`clean_up`]), which know our rules by their mark.

mod connections;
mod direct_hosts;
mod netlink;
mod resolved;
mod reverse_path;
pub mod routing;
mod services;
mod undo;

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context, anyhow, bail};
use marline_io::{GATEWAY_INTERFACE, Tun};
use marline_proxy::rules::Cidr;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::direct_hosts::DirectHosts;
use self::netlink::Routing;
use self::reverse_path::ReversePath;
use self::routing::{Leads, Route, RoutingSettings, TABLE};
pub use self::undo::UndoProcess;
use crate::addresses::Addresses;
use crate::dns::{DirectAddresses, TimedAddress};
use crate::interface::ReadyInterface;

/// Makes the interface, which nobody is led to yet. It goes with its descriptor.
///
/// # Errors
/// The right is missing, or there is an interface of that name.
pub fn make_interface() -> anyhow::Result<OwnedFd> {
    match Tun::open_offloading(GATEWAY_INTERFACE) {
        Ok(tun) => Ok(tun.into()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
            Err(anyhow!(
                "there is an interface {GATEWAY_INTERFACE}: `marline up` runs already (`marline down` ends it)"
            ))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            Err(error).context(
                "cannot make a TUN interface: it takes CAP_NET_ADMIN (`sudo marline up`), and a /dev/net/tun that a \
                 container or a sandbox does not close",
            )
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            Err(anyhow!(
                "cannot make a TUN interface: /dev/net/tun is not there: type `sudo modprobe tun`, or give it to the \
                 container (--device /dev/net/tun)"
            ))
        }
        Err(error) => Err(error).context("cannot make a TUN interface"),
    }
}

/// Removes the rules and routes of ours that are there. Returns how many there were. Needs a tokio runtime.
///
/// # Errors
/// The system's.
pub async fn clean_up() -> anyhow::Result<usize> {
    Routing::open()?.clear().await
}

/// A machine whose traffic is led to the interface.
#[derive(Debug)]
pub struct Machine {
    routing: Routing,
    undo: UndoProcess,
    reverse_path: Option<ReversePath>,
    /// Networks that are reached directly for as long as it lasts.
    direct_networks: Vec<Cidr>,
    direct_hosts: DirectHosts,
}

impl Machine {
    /// Leads the machine's traffic to the interface, which [`make_interface`] has made. On an error nothing stays
    /// changed.
    ///
    /// # Errors
    /// The system refuses, or our table is somebody else's.
    pub async fn take_over(
        mut settings: RoutingSettings,
        addresses: &Addresses,
        mut undo: UndoProcess,
    ) -> anyhow::Result<Machine> {
        let routing = Routing::open()?;
        if routing.is_taken().await? {
            bail!(
                "the routing table {TABLE} has routes of somebody else (ip route show table {TABLE})"
            );
        }
        let left = routing.clear().await?;
        if left > 0 {
            tracing::info!("removed {left} rules and routes that were left of an earlier one");
        }
        for port in services::in_use() {
            if !settings.reachable.contains(&port) {
                tracing::info!("port {port} stays reachable from outside: somebody is connected");
                settings.reachable.push(port);
            }
        }
        let interface = ReadyInterface::set_up(addresses)
            .with_context(|| format!("{GATEWAY_INTERFACE} cannot be set up"))?;
        let reverse_path = ReversePath::loosen();
        undo.arm(reverse_path).context("the process that would undo the changes is gone")?;
        let machine = Machine {
            routing,
            undo,
            reverse_path,
            direct_networks: settings.direct.clone(),
            direct_hosts: DirectHosts::default(),
        };
        match machine.lead(&settings, &interface, addresses).await {
            Ok(()) => {}
            Err(error) => {
                machine.give_back().await;
                return Err(error);
            }
        }
        if settings.takes_names() {
            resolved::tell(GATEWAY_INTERFACE, addresses.gateway_v4.into());
        }
        Ok(machine)
    }

    async fn lead(
        &self,
        settings: &RoutingSettings,
        interface: &ReadyInterface,
        addresses: &Addresses,
    ) -> anyhow::Result<()> {
        for own in [addresses.host_v4.into(), addresses.host_v6.into()] {
            let ipv6 = IpAddr::is_ipv6(&own);
            let served = !ipv6 || interface.has_ipv6();
            let led = self.lead_family(settings, interface.index(), own, served).await;
            match led {
                // A kernel without it.
                Err(error) if ipv6 && !std::path::Path::new("/proc/net/if_inet6").exists() => {
                    tracing::debug!("no IPv6: {error:#}");
                }
                other => other?,
            }
        }
        Ok(())
    }

    async fn lead_family(
        &self,
        settings: &RoutingSettings,
        interface: u32,
        own: IpAddr,
        served: bool,
    ) -> anyhow::Result<()> {
        let ipv6 = own.is_ipv6();
        // Routes first: rules without them would lead past the interface.
        for route in settings.routes(ipv6, served) {
            self.routing.add_route(route, interface).await?;
        }
        for rule in settings.rules(own) {
            self.routing.add_rule(rule, ipv6).await?;
        }
        Ok(())
    }

    /// Makes hosts direct as they are asked for, each for its time, until nobody can ask any more.
    pub async fn keep_direct(&mut self, asked: &mut mpsc::Receiver<DirectAddresses>) {
        loop {
            let expiry = self.direct_hosts.next_expiry();
            let expired = async {
                match expiry {
                    Some(expiry) => sleep_until(expiry).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                asked = asked.recv() => {
                    let Some(DirectAddresses { name, addresses, done }) = asked else { return };
                    for address in addresses {
                        self.make_direct(&name, address).await;
                    }
                    // Who asked may have given up.
                    let _ = done.send(());
                }
                () = expired => self.end_expired().await,
            }
        }
    }

    async fn make_direct(&mut self, name: &str, TimedAddress { address, lifetime }: TimedAddress) {
        // Its route is there for good.
        if self.direct_networks.iter().any(|network| network.contains(address)) {
            return;
        }
        let opening = self.direct_hosts.open(name, address, Instant::now() + lifetime);
        if opening.is_new
            && let Err(error) = self.routing.add_route(direct_host(address), 0).await
        {
            tracing::warn!("{address} goes through the tunnel: {error:#}");
            self.direct_hosts.forget(address);
        }
        if let Some(evicted) = opening.evicted {
            self.end_direct(evicted).await;
        }
    }

    /// Hosts whose time is over go through the tunnel again, but for those that somebody is connected to.
    async fn end_expired(&mut self) {
        for address in self.direct_hosts.expire(Instant::now(), &connections::peers()) {
            self.end_direct(address).await;
        }
    }

    async fn end_direct(&mut self, address: IpAddr) {
        if let Err(error) = self.routing.remove_route(direct_host(address)).await {
            tracing::warn!("{address} is still reached directly: {error:#}");
        }
    }

    /// Gives the machine its own routing back.
    pub async fn give_back(mut self) {
        if let Some(before) = self.reverse_path {
            before.restore();
        }
        match self.routing.clear().await {
            Ok(_) => self.undo.disarm(),
            Err(error) => tracing::warn!("rules stay (marline down removes them): {error:#}"),
        }
    }
}

/// The route of a host that is reached directly.
fn direct_host(address: IpAddr) -> Route {
    Route { to: Cidr::around(address, u8::MAX), leads: Leads::Elsewhere }
}
