//! Native carriers: what a client and a listener do before they can use them.

use core::net::SocketAddr;

use marline_io::{CarrierKind, RawSockets, Shard};
use marline_policy::{AddressId, LocalAddress};
use marline_time::Duration;

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
