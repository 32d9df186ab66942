//! Local ports of connections on native carriers, which are reserved before the core may use them.

use core::net::SocketAddr;
use std::io;
use std::sync::Arc;

use marline_core::{ConnectError, ConnectionConfig, ConnectionId};
use marline_time::Instant;

use super::carrier::Carrier;
use super::state::State;

/// Declares that no connections are opened, so that no ports are reserved for them.
pub(super) fn disable_port_pool(state: &mut State) {
    if let Carrier::Native(carrier) = state.carrier() {
        carrier.disable_port_pool();
        state.endpoint().set_local_ports(Some(Vec::new()));
    }
}

/// Reserves more local ports. First come the guards, then the filter, and then the core may use them.
pub(super) fn grow_pool(state: &mut State) -> io::Result<bool> {
    let Carrier::Native(carrier) = state.carrier() else { return Ok(false) };
    if !carrier.needs_pool() {
        return Ok(false);
    }
    let grown = carrier.grow_pool();
    let ports = carrier.pool().to_vec();
    state.install_port_filter()?;
    state.endpoint().set_local_ports(Some(ports));
    grown
}

/// Reserves local ports after a join found none, for its next attempt.
pub(super) fn reserve_missing_ports(state: &mut State) {
    if state.carrier().is_native() && state.endpoint().take_port_shortage() {
        // If this fails, the shortage is reported again.
        let _ = grow_pool(state);
    }
}

/// Opens a connection, and reserves more local ports if none is free.
pub(super) fn connect(
    state: &mut State,
    now: Instant,
    config: Arc<ConnectionConfig>,
    local: SocketAddr,
    remote: SocketAddr,
) -> Result<ConnectionId, ConnectError> {
    loop {
        match state.endpoint().connect(now, Arc::clone(&config), local, remote) {
            Err(ConnectError::AddressInUse) => match grow_pool(state) {
                Ok(true) => {}
                Ok(false) => return Err(ConnectError::AddressInUse),
                Err(error) => {
                    tracing::warn!(%error, "no more local ports can be reserved");
                    return Err(ConnectError::AddressInUse);
                }
            },
            other => return other,
        }
    }
}
