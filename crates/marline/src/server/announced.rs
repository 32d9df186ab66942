//! Addresses of a server on a native carrier: reserved ports and announced addresses.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use marline_io::succession::NativePart;
use marline_io::{Interfaces, Shard, ShardHandle, Watcher};
use marline_policy::{AddressId, LocalAddress};
use tokio::task::AbortHandle;

use super::builder::{ServerAddress, ServerBuilder, with_previous_port};
use super::succession::{self, adopt_tuns};
use crate::error::UnknownPath;
use crate::path_table::PathChange;
use crate::{BindError, Carrier, carrier};

/// Maximum number of announced addresses: an id is one byte, and 0 belongs to the initial subflow.
const MAX_ADDRESSES: usize = 254;

/// Opens a listener's sockets and reserves its ports. Returns the listening addresses.
pub(super) fn listen(
    config: &ServerBuilder,
    shards: &[&Shard],
    inherited: Option<Vec<(NativePart, SocketAddr, OwnedFd)>>,
) -> Result<Vec<SocketAddr>, BindError> {
    match (&config.carrier, inherited) {
        (Carrier::Tun(paths), Some(parts)) => adopt_tuns(paths, shards, parts)?,
        (Carrier::Opened(sockets), Some(_)) if sockets.shards() != shards.len() => {
            return Err(succession::changed_setting_error(config));
        }
        (Carrier::Raw, Some(_)) => {
            let text = "call `reserve` with the predecessor's raw sockets first";
            return Err(BindError::Config(text.to_owned()));
        }
        (carrier, _) => carrier::open(carrier, shards)?,
    }
    shards.iter().for_each(|shard| shard.disable_connecting());
    let mut listen: Vec<SocketAddr> = Vec::new();
    for &address in &config.own.listen {
        let address = with_previous_port(address, listen.last().copied());
        let bound = Shard::guard(shards, address);
        listen.push(bound.map_err(|source| BindError::Bind { address, source })?);
    }
    let port = listen.first().map_or(0, SocketAddr::port);
    for further in &config.own.addresses {
        let mut address = further.address;
        if address.port() == 0 {
            address.set_port(port);
        }
        let covers = |at: &SocketAddr| {
            let everywhere = at.ip().is_unspecified() && at.is_ipv6() == address.is_ipv6();
            at.port() == address.port() && (everywhere || at.ip() == address.ip())
        };
        if !listen.iter().any(covers) {
            let guarded = Shard::guard(shards, address);
            guarded.map_err(|source| BindError::Bind { address, source })?;
        }
    }
    Ok(listen)
}

/// Announced address, with its presence on this machine and manual changes.
#[derive(Debug)]
pub(super) struct AnnouncedAddress {
    /// Address in the configuration.
    named: SocketAddr,
    /// Address in the core.
    local: LocalAddress,
    /// True if the machine has this address.
    present: bool,
    is_disabled: bool,
}

impl AnnouncedAddress {
    /// Returns the addresses of a configuration that was processed by [`announce`].
    pub(super) fn from_config(config: &ServerBuilder) -> Vec<AnnouncedAddress> {
        let locals = &config.transport.as_core().local_addresses;
        let first = locals.len() - config.own.addresses.len() - config.own.advertised.len();
        let pairs = config.own.addresses.iter().zip(&locals[first..]);
        let announced = |(named, local): (&ServerAddress, &LocalAddress)| AnnouncedAddress {
            named: named.address,
            local: *local,
            present: true,
            is_disabled: false,
        };
        pairs.map(announced).collect()
    }

    /// Updates the cores if the state has changed.
    fn update_cores(&mut self, shards: &[Arc<ShardHandle>], backup: bool) {
        let up = self.present && !self.is_disabled;
        if (up, backup) != (self.local.up, self.local.backup) {
            (self.local.up, self.local.backup) = (up, backup);
            let local = self.local;
            for shard in shards {
                shard.with_endpoint(|endpoint, at| endpoint.set_local_address(at, None, local));
            }
        }
    }
}

/// Changes an announced address by hand.
pub(super) fn change(
    shards: &[Arc<ShardHandle>],
    addresses: &Mutex<Vec<AnnouncedAddress>>,
    named: SocketAddr,
    change: PathChange,
) -> Result<(), UnknownPath> {
    let mut addresses = lock(addresses);
    let Some(announced) = addresses.iter_mut().find(|known| known.named == named) else {
        return Err(UnknownPath::new(named, "not a configured address to announce"));
    };
    let mut backup = announced.local.backup;
    match change {
        PathChange::Up => announced.is_disabled = false,
        PathChange::Down => announced.is_disabled = true,
        PathChange::Backup => backup = true,
        PathChange::Primary => backup = false,
        // The client determines the cost of traffic.
        PathChange::Metered | PathChange::Unmetered | PathChange::Limited => {}
        PathChange::Fading | PathChange::Steady => {}
    }
    announced.update_cores(shards, backup);
    Ok(())
}

/// Starts a task that updates the core when announced addresses disappear and return with their interfaces. The task
/// does not keep the shards running. Returns `None` if there are no addresses to follow.
pub(super) fn follow_addresses(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    addresses: &Arc<Mutex<Vec<AnnouncedAddress>>>,
) -> Option<AbortHandle> {
    if config.own.addresses.is_empty() || matches!(config.carrier, Carrier::Tun(_)) {
        return None;
    }
    let watcher = match Watcher::start() {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "cannot monitor interfaces: announced addresses will not be updated");
            return None;
        }
    };
    let shards = shards.iter().map(Arc::downgrade).collect();
    let task = tokio::spawn(watch_addresses(shards, watcher, Arc::clone(addresses)));
    Some(task.abort_handle())
}

async fn watch_addresses(
    shards: Vec<Weak<ShardHandle>>,
    mut watcher: Watcher,
    addresses: Arc<Mutex<Vec<AnnouncedAddress>>>,
) {
    let mut interfaces = Interfaces::now();
    loop {
        let now = match interfaces {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::warn!(%error, "interface monitoring failed: announced addresses will not be updated");
                return;
            }
        };
        let alive: Vec<_> = shards.iter().filter_map(Weak::upgrade).collect();
        if alive.is_empty() {
            return;
        }
        for announced in lock(&addresses).iter_mut() {
            let interface = now.find_by_address(announced.local.address.ip());
            announced.present = interface.is_some_and(|found| found.up || found.loopback);
            let backup = announced.local.backup;
            announced.update_cores(&alive, backup);
        }
        drop(alive);
        interfaces = watcher.changed().await;
    }
}

fn lock(addresses: &Mutex<Vec<AnnouncedAddress>>) -> MutexGuard<'_, Vec<AnnouncedAddress>> {
    addresses.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the addresses to announce into the connections' configuration.
pub(super) fn announce(config: &mut ServerBuilder) -> Result<(), BindError> {
    let count = config.own.addresses.len() + config.own.advertised.len();
    if count > MAX_ADDRESSES {
        let what = format!("too many addresses to announce: {count} (maximum: {MAX_ADDRESSES})");
        return Err(BindError::Config(what));
    }
    let port = config.own.listen.first().map_or(0, SocketAddr::port);
    for (at, further) in config.own.addresses.iter().enumerate() {
        let id = AddressId(at as u8 + 1);
        let mut address = further.address;
        if address.port() == port {
            // Port 0 stands for the connection's port.
            address.set_port(0);
        }
        if let Some(other) = further.advertised {
            if other.is_ipv4() != address.is_ipv4() {
                let what = format!("{address} cannot be announced as {other}: the families differ");
                return Err(BindError::Config(what));
            }
            config.transport.as_core_mut().advertised.push((id, other));
        }
        config.transport.as_core_mut().local_addresses.push(LocalAddress {
            backup: further.backup,
            signal: further.signal,
            subflow: false,
            ..LocalAddress::new(id, address)
        });
    }
    advertise(config);
    Ok(())
}

/// Makes connections announce the addresses that lead to exactly this server, and forbid joins to the address to which
/// they were opened.
fn advertise(config: &mut ServerBuilder) {
    let first = config.own.addresses.len() + 1;
    let core = config.transport.as_core_mut();
    core.deny_join_id0 |= !config.own.advertised.is_empty();
    for (at, own) in config.own.advertised.iter().enumerate() {
        let id = AddressId((first + at) as u8);
        // This machine does not know to which of its addresses a load balancer or NAT translates this one. So it is
        // also announced on connections that arrived through it, which allows joins to them
        // (`Connection::on_add_addr`).
        let unknown = match own {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        core.advertised.push((id, *own));
        core.local_addresses.push(LocalAddress {
            signal: true,
            subflow: false,
            ..LocalAddress::new(id, SocketAddr::new(unknown, 0))
        });
    }
}
