//! A whole machine behind the interface: its routing while the tunnel stands, and as it was afterwards.
//!
//! [`Machine::take_over`] leads the machine's traffic to the interface by rules and a table of its own
//! ([`routing`]); [`Machine::give_back`] removes them. What a process that is killed leaves behind is undone by
//! [another one](UndoProcess), and else by the next `up` or `down` ([`clean_up`]), which know our rules by their mark.

mod netlink;
mod resolved;
mod reverse_path;
pub mod routing;
mod services;
mod undo;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use anyhow::{Context, anyhow, bail};
use marline_io::{GATEWAY_INTERFACE, Tun};
use marline_proxy::rules::Cidr;
use tokio::sync::mpsc;

use self::netlink::Routing;
use self::reverse_path::ReversePath;
use self::routing::{Leads, Route, RoutingSettings, TABLE};
pub use self::undo::UndoProcess;
use crate::addresses::Addresses;
use crate::dns::DirectAddresses;
use crate::interface::ReadyInterface;

/// Hosts that are reached directly because of their names, at a time; beyond, the oldest goes through the tunnel.
const DIRECT_HOSTS: usize = 4_096;

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
    direct: VecDeque<IpAddr>,
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
        let machine = Machine { routing, undo, reverse_path, direct: VecDeque::new() };
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

    /// Makes hosts direct as they are asked for, until nobody can ask any more.
    pub async fn keep_direct(&mut self, asked: &mut mpsc::Receiver<DirectAddresses>) {
        while let Some(DirectAddresses { addresses, done }) = asked.recv().await {
            for address in addresses {
                self.make_direct(address).await;
            }
            // Who asked may have given up.
            let _ = done.send(());
        }
    }

    async fn make_direct(&mut self, address: IpAddr) {
        if self.direct.contains(&address) {
            return;
        }
        let route = |address| Route { to: Cidr::around(address, u8::MAX), leads: Leads::Elsewhere };
        if let Err(error) = self.routing.add_route(route(address), 0).await {
            tracing::warn!("{address} goes through the tunnel: {error:#}");
            return;
        }
        self.direct.push_back(address);
        if self.direct.len() > DIRECT_HOSTS
            && let Some(oldest) = self.direct.pop_front()
            && let Err(error) = self.routing.remove_route(route(oldest)).await
        {
            tracing::debug!("{error:#}");
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
