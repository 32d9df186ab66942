//! Native carriers: what a client and a listener do before they can use them.

use core::net::SocketAddr;
use std::sync::{Arc, Weak};

use marline_io::{CarrierKind, Interfaces, RawSockets, Shard, ShardHandle, Watcher};
use marline_policy::{AddressId, LocalAddress};
use marline_time::Duration;
use tokio::task::AbortHandle;

use crate::client::io_error;
use crate::{Carrier, Error, ServerConfig, TunPath};

/// Address ids: 0 is the initial subflow's, 255 of one byte remain.
const MAX_ADDRESSES: usize = 254;

pub(crate) const fn kind(carrier: &Carrier, keepalive: Duration) -> CarrierKind {
    match carrier {
        Carrier::Udp => CarrierKind::Udp { keepalive },
        Carrier::Raw | Carrier::Opened(_) => CarrierKind::Raw,
        Carrier::Tun(_) => CarrierKind::Tun,
    }
}

/// Gives a shard its sockets.
pub(crate) fn open(carrier: &Carrier, shard: &Shard) -> Result<(), Error> {
    let in_use = |error| io_error("use the raw sockets", error);
    match carrier {
        Carrier::Udp => Ok(()),
        Carrier::Raw => {
            let what = "open raw sockets (this needs CAP_NET_RAW)";
            let sockets = RawSockets::open().map_err(|error| io_error(what, error))?;
            shard.use_raw(&sockets).map_err(in_use)
        }
        Carrier::Opened(sockets) => shard.use_raw(sockets).map_err(in_use),
        Carrier::Tun(paths) => {
            for TunPath { interface, address } in paths {
                let what = format!("open TUN interface `{interface}`");
                shard.open_tun(interface, *address).map_err(|error| io_error(&what, error))?;
            }
            Ok(())
        }
    }
}

/// Opens what a listener needs and reserves its ports; returns where it listens.
pub(crate) fn listen(config: &ServerConfig, shard: &Shard) -> Result<Vec<SocketAddr>, Error> {
    open(&config.carrier, shard)?;
    shard.never_connect();
    let mut listen = Vec::new();
    for &address in &config.listen {
        let bound = shard.guard(address).map_err(|source| Error::Bind { address, source })?;
        listen.push(bound);
    }
    let port = listen.first().map_or(0, SocketAddr::port);
    for further in &config.addresses {
        let mut address = further.address;
        if address.port() == 0 {
            address.set_port(port);
        }
        let covers = |at: &SocketAddr| {
            let everywhere = at.ip().is_unspecified() && at.is_ipv6() == address.is_ipv6();
            at.port() == address.port() && (everywhere || at.ip() == address.ip())
        };
        if !listen.iter().any(covers) {
            shard.guard(address).map_err(|source| Error::Bind { address, source })?;
        }
    }
    Ok(listen)
}

/// Tells the core when addresses that are announced go away and come back with their interfaces.
/// Does not keep the shard running. `None`: there is nothing to follow.
pub(crate) fn follow_addresses(
    config: &ServerConfig,
    shard: &Arc<ShardHandle>,
) -> Option<AbortHandle> {
    if config.addresses.is_empty() || matches!(config.carrier, Carrier::Tun(_)) {
        return None;
    }
    let watcher = match Watcher::start() {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "interfaces are not followed");
            return None;
        }
    };
    let addresses = config.connection.local_addresses.clone();
    let task = tokio::spawn(follow(Arc::downgrade(shard), watcher, addresses));
    Some(task.abort_handle())
}

async fn follow(shard: Weak<ShardHandle>, mut watcher: Watcher, mut known: Vec<LocalAddress>) {
    let mut interfaces = Interfaces::now();
    loop {
        let now = match interfaces {
            Ok(interfaces) => interfaces,
            Err(error) => {
                tracing::warn!(%error, "interfaces are no longer followed");
                return;
            }
        };
        let Some(shard) = shard.upgrade() else { return };
        for local in &mut known {
            let interface = now.by_address(local.address.ip());
            let up = interface.is_some_and(|interface| interface.up || interface.loopback);
            if up != local.up {
                local.up = up;
                shard.with_endpoint(|endpoint, at| endpoint.set_local_address(at, None, *local));
            }
        }
        drop(shard);
        interfaces = watcher.changed().await;
    }
}

/// Writes the addresses to announce into the connections' configuration.
pub(crate) fn announce(config: &mut ServerConfig) -> Result<(), Error> {
    if config.addresses.len() > MAX_ADDRESSES {
        let count = config.addresses.len();
        let what = format!("{count} addresses to announce; at most {MAX_ADDRESSES} have an id");
        return Err(Error::Config(what));
    }
    let port = config.listen.first().map_or(0, SocketAddr::port);
    for (at, further) in config.addresses.iter().enumerate() {
        let id = AddressId(at as u8 + 1);
        let mut address = further.address;
        if address.port() == port {
            // The port of the connection goes without saying.
            address.set_port(0);
        }
        if let Some(other) = further.advertised {
            if other.is_ipv4() != address.is_ipv4() {
                let what = format!("{address} cannot be announced as {other}: different families");
                return Err(Error::Config(what));
            }
            config.connection.advertised.push((id, other));
        }
        config.connection.local_addresses.push(LocalAddress {
            id,
            address,
            remote: None,
            backup: further.backup,
            signal: further.signal,
            subflow: false,
            up: true,
        });
    }
    Ok(())
}
