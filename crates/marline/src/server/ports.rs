//! Sockets of a server with datagrams: one for each address and shard, and a TCP listener on each address.
//!
//! A port that the kernel chooses for datagrams may be in use by another program for TCP, even if only for a connection
//! that was closed a minute ago. Clients whose network blocks UDP cannot reach a server without the TCP listener. So a
//! port is chosen that is free for both: for TCP first, because TCP ports are in use for more reasons.

use core::net::SocketAddr;
use std::io;
use std::sync::Arc;

use marline_io::{LinkListener, PortSharing, Shard, ShardHandle, SocketOptions};

use super::ServerBuilder;
use super::builder::with_previous_port;
use crate::BindError;

/// Maximum number of attempts to find a port that is free for both.
const PORT_CHOICES: usize = 32;

/// Opens the addresses of a server and returns them with their ports.
pub(super) fn open(
    config: &ServerBuilder,
    shards: &[Arc<ShardHandle>],
) -> Result<(Vec<SocketAddr>, Vec<LinkListener>), BindError> {
    let (mut listen, mut listeners) = (Vec::new(), Vec::new());
    for address in &config.own.listen {
        let address = with_previous_port(*address, listen.last().copied());
        let opened = if address.port() == 0 && config.carrier.has_links() {
            open_chosen(shards, address)
        } else {
            open_datagrams(shards, address).map(|address| {
                let listener = config.carrier.has_links().then(|| listen_on_tcp(shards, address));
                (address, listener.flatten())
            })
        };
        let (address, listener) = opened.map_err(|source| BindError::Bind { address, source })?;
        listen.push(address);
        listeners.extend(listener);
    }
    if config.own.shards > 1
        && let Err(error) = shards[0].distribute_over_shards(config.own.shards as u8)
    {
        tracing::warn!(%error, "no flow steering; shards forward datagrams");
    }
    Ok((listen, listeners))
}

/// Opens an address with a port that is free for datagrams and for TCP.
fn open_chosen(
    shards: &[Arc<ShardHandle>],
    address: SocketAddr,
) -> io::Result<(SocketAddr, Option<LinkListener>)> {
    for _ in 0..PORT_CHOICES {
        let Some(listener) = listen_on_tcp(shards, address) else { break };
        match open_datagrams(shards, listener.local) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            opened => return opened.map(|address| (address, Some(listener))),
        }
    }
    Ok((open_datagrams(shards, address)?, None))
}

/// Opens an address on every shard. All use the port that the kernel chooses for the first.
fn open_datagrams(shards: &[Arc<ShardHandle>], mut address: SocketAddr) -> io::Result<SocketAddr> {
    let mut port = if shards.len() > 1 { PortSharing::First } else { PortSharing::Alone };
    for shard in shards {
        let options = SocketOptions { local: address, alias: None, interface: None, port, mark: 0 };
        address = shard.open_socket(options)?;
        port = PortSharing::Additional;
    }
    Ok(address)
}

/// Accepts TCP connections in addition to datagrams. If another program uses the port, this affects only clients in
/// networks that block UDP.
fn listen_on_tcp(shards: &[Arc<ShardHandle>], address: SocketAddr) -> Option<LinkListener> {
    let listener = Shard::listen_links(shards, address);
    let warn = |error: &io::Error| {
        tracing::warn!(
            %address,
            %error,
            "cannot listen on TCP; clients whose network blocks UDP cannot connect"
        );
    };
    listener.inspect_err(warn).ok()
}
