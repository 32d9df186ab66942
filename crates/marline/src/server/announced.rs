//! Addresses of a server on a native carrier: its reserved ports, and what it announces.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use marline_io::succession::NativePart;
use marline_io::{Interfaces, Shard, ShardHandle, Watcher};
use marline_policy::{AddressId, LocalAddress};
use tokio::task::AbortHandle;

use super::builder::{ServerAddress, ServerBuilder, same_port};
use super::succession::{self, adopt_tuns};
use crate::{BindError, Carrier, PathChange, UnknownPath, carrier};

/// Address ids: 0 is the initial subflow's, 255 of one byte remain.
const MAX_ADDRESSES: usize = 254;

/// Opens what a listener needs and reserves its ports; returns where it listens.
pub(super) fn listen(
    config: &ServerBuilder,
    shards: &[&Shard],
    inherited: Option<Vec<(NativePart, SocketAddr, OwnedFd)>>,
) -> Result<Vec<SocketAddr>, BindError> {
    match (&config.carrier, inherited) {
        (Carrier::Tun(paths), Some(parts)) => adopt_tuns(paths, shards, parts)?,
        (Carrier::Opened(sockets), Some(_)) if sockets.shards() != shards.len() => {
            return Err(succession::changed(config));
        }
        (Carrier::Raw, Some(_)) => {
            let text = "the raw sockets of the process before are to be reserved from first";
            return Err(BindError::Config(text.to_owned()));
        }
        (carrier, _) => carrier::open(carrier, shards)?,
    }
    shards.iter().for_each(|shard| shard.never_connect());
    let mut listen: Vec<SocketAddr> = Vec::new();
    for &address in &config.own.listen {
        let address = same_port(address, listen.last().copied());
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

/// What a listener announces: as its machine has it, and as it was told by hand.
#[derive(Debug)]
pub(super) struct Announced {
    /// As the configuration names it.
    named: SocketAddr,
    /// As the core knows it.
    local: LocalAddress,
    /// The machine has it.
    present: bool,
    taken_down: bool,
}

impl Announced {
    /// The addresses of a configuration that went through [`announce`].
    pub(super) fn of(config: &ServerBuilder) -> Vec<Announced> {
        let locals = &config.transport.as_core().local_addresses;
        let first = locals.len() - config.own.addresses.len() - config.own.advertised.len();
        let pairs = config.own.addresses.iter().zip(&locals[first..]);
        let announced = |(named, local): (&ServerAddress, &LocalAddress)| Announced {
            named: named.address,
            local: *local,
            present: true,
            taken_down: false,
        };
        pairs.map(announced).collect()
    }

    /// Tells the cores, if they do not know yet.
    fn tell(&mut self, shards: &[Arc<ShardHandle>], backup: bool) {
        let up = self.present && !self.taken_down;
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
    addresses: &Mutex<Vec<Announced>>,
    named: SocketAddr,
    change: PathChange,
) -> Result<(), UnknownPath> {
    let mut addresses = lock(addresses);
    let Some(announced) = addresses.iter_mut().find(|known| known.named == named) else {
        return Err(UnknownPath::new(named, "none of the addresses to announce"));
    };
    let mut backup = announced.local.backup;
    match change {
        PathChange::Up => announced.taken_down = false,
        PathChange::Down => announced.taken_down = true,
        PathChange::Backup => backup = true,
        PathChange::Primary => backup = false,
        // What its bytes cost is the client's to say.
        PathChange::Metered | PathChange::Unmetered => {}
        PathChange::Fading | PathChange::Steady => {}
    }
    announced.tell(shards, backup);
    Ok(())
}

/// Tells the core when addresses that are announced go away and come back with their interfaces.
/// Does not keep the shards running. `None`: there is nothing to follow.
pub(super) fn follow_addresses(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
    addresses: &Arc<Mutex<Vec<Announced>>>,
) -> Option<AbortHandle> {
    if config.own.addresses.is_empty() || matches!(config.carrier, Carrier::Tun(_)) {
        return None;
    }
    let watcher = match Watcher::start() {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "cannot watch interfaces");
            return None;
        }
    };
    let shards = shards.iter().map(Arc::downgrade).collect();
    let task = tokio::spawn(follow(shards, watcher, Arc::clone(addresses)));
    Some(task.abort_handle())
}

async fn follow(
    shards: Vec<Weak<ShardHandle>>,
    mut watcher: Watcher,
    addresses: Arc<Mutex<Vec<Announced>>>,
) {
    let mut interfaces = Interfaces::now();
    loop {
        let now = match interfaces {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::warn!(%error, "no longer watching interfaces");
                return;
            }
        };
        let alive: Vec<_> = shards.iter().filter_map(Weak::upgrade).collect();
        if alive.is_empty() {
            return;
        }
        for announced in lock(&addresses).iter_mut() {
            let interface = now.by_address(announced.local.address.ip());
            announced.present = interface.is_some_and(|found| found.up || found.loopback);
            let backup = announced.local.backup;
            announced.tell(&alive, backup);
        }
        drop(alive);
        interfaces = watcher.changed().await;
    }
}

fn lock(addresses: &Mutex<Vec<Announced>>) -> MutexGuard<'_, Vec<Announced>> {
    addresses.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the addresses to announce into the connections' configuration.
pub(super) fn announce(config: &mut ServerBuilder) -> Result<(), BindError> {
    let count = config.own.addresses.len() + config.own.advertised.len();
    if count > MAX_ADDRESSES {
        let what = format!("{count} addresses to announce; at most {MAX_ADDRESSES} have an id");
        return Err(BindError::Config(what));
    }
    let port = config.own.listen.first().map_or(0, SocketAddr::port);
    for (at, further) in config.own.addresses.iter().enumerate() {
        let id = AddressId(at as u8 + 1);
        let mut address = further.address;
        if address.port() == port {
            // The port of the connection goes without saying.
            address.set_port(0);
        }
        if let Some(other) = further.advertised {
            if other.is_ipv4() != address.is_ipv4() {
                let what = format!("{address} cannot be announced as {other}: different families");
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

/// Has connections say where this server is itself reached, and that what they were opened to is no place to join.
fn advertise(config: &mut ServerBuilder) {
    let first = config.own.addresses.len() + 1;
    let core = config.transport.as_core_mut();
    core.deny_join_id0 |= !config.own.advertised.is_empty();
    for (at, own) in config.own.advertised.iter().enumerate() {
        let id = AddressId((first + at) as u8);
        // Which of this machine's addresses a balancer or translator makes of it is not known here. It is announced
        // also on connections that came that way: they may be joined then (`Connection::on_add_addr`).
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
