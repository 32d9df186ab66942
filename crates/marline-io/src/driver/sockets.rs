//! Sockets of a shard, which are opened and closed while it runs.

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::sync::Arc;

use super::error_watch;
use super::shard::Shard;
use super::socket::{Kind, Sock, SocketOptions};
use super::stalled::StalledQueue;
use super::state::SocketEntry;
use super::streams::wake;

impl Shard {
    /// Opens a socket at the next free index, or at the index of a closed one. On native carriers, whose sockets
    /// serve all addresses, this only records the interface of the address.
    ///
    /// # Errors
    /// The system's.
    pub fn open_socket(&self, options: SocketOptions) -> io::Result<SocketAddr> {
        if let (Some((_, index)), Some(monitor)) =
            (&options.interface, self.lock().endpoint.path_health_monitor())
        {
            monitor.set_interface(options.alias.unwrap_or(options.local.ip()), *index);
        }
        if self.lock().carrier.is_native() {
            if options.alias.is_some() {
                // The segments carry the address, and the paths differ in nothing else.
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "another interface has the same address: only the carriers auto, udp and tcp can use both",
                ));
            }
            let interface = options.interface.map_or(0, |(_, index)| index);
            self.set_interface(options.local.ip(), Some(interface));
            return Ok(options.local);
        }
        self.add_socket(Sock::udp(options)?)
    }

    pub(super) fn add_socket(&self, socket: Sock) -> io::Result<SocketAddr> {
        let socket = Arc::new(socket);
        let local = socket.local;
        let handle = self.handle().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let watched = socket.has_errors();
        let _error_watch = watched.then(|| error_watch::start(&handle.shard, &socket));
        let mut state = self.lock();
        let index = match state.sockets.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                state.sockets.push(None);
                state.sockets.len() - 1
            }
        };
        let stalled = StalledQueue::default();
        state.sockets[index] = Some(SocketEntry { socket, stalled, _error_watch });
        state.carrier.set_socket(index, Some(local));
        state.sockets_changed = true;
        wake(state.driver.take());
        Ok(local)
    }

    /// Sets the interface of an address in the raw sockets.
    fn set_interface(&self, local: IpAddr, interface: Option<u32>) {
        for entry in self.lock().sockets.iter().flatten() {
            if let Kind::Raw(raw) = &entry.socket.kind {
                raw.set_interface(local, interface);
            }
        }
    }

    /// Closes the socket bound to this address.
    pub fn close_socket(&self, local: IpAddr) {
        self.set_interface(local, None);
        let mut state = self.lock();
        state.observers.contacts.forget(local);
        state.rerouting.routes.forget(local);
        let found = |entry: &Option<SocketEntry>| {
            entry.as_ref().is_some_and(|entry| entry.socket.local.ip() == local)
        };
        if let Some(index) = state.sockets.iter().position(found) {
            state.sockets[index] = None;
            state.carrier.set_socket(index, None);
            state.sockets_changed = true;
            wake(state.driver.take());
        }
    }

    /// Local addresses of the sockets.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.lock().sockets.iter().flatten().map(|entry| entry.socket.local).collect()
    }

    /// Makes the kernel distribute datagrams over all shards that share the ports.
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn distribute_over_shards(&self, shards: u8) -> io::Result<()> {
        for entry in self.lock().sockets.iter().flatten() {
            crate::sys::socket::spread_by_flow_id(entry.socket.as_fd(), shards)?;
        }
        Ok(())
    }
}
