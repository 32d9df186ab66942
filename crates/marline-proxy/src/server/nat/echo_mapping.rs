//! Mapping of the identifiers in a client's echo requests (ICMP) to ICMP sockets of the server.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use marline_io::EchoSocket;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::server::admission::Permit;
use crate::udp::{ECHO_IDLE, MAX_ECHOES};

/// True if the missing permission has been logged.
pub(in crate::server) type PermissionLogged = Arc<AtomicBool>;

/// A socket, and the task that reads it.
#[derive(Debug)]
pub(super) struct EchoReader {
    socket: Arc<EchoSocket>,
    reader: AbortHandle,
}

impl EchoReader {
    /// Creates a socket and the task that reads it.
    pub(super) const fn new(socket: Arc<EchoSocket>, reader: AbortHandle) -> EchoReader {
        EchoReader { socket, reader }
    }

    pub(super) fn socket(&self) -> &EchoSocket {
        &self.socket
    }
}

impl Drop for EchoReader {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The sockets of one identifier.
#[derive(Debug)]
struct Mapping {
    ipv4: Option<EchoReader>,
    ipv6: Option<EchoReader>,
    used_at: Instant,
    _place: Permit<Arc<str>>,
}

/// The identifiers of a client.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    by_socket: BTreeMap<u32, Mapping>,
}

impl Echoes {
    /// Removes an identifier.
    pub(super) fn remove(&mut self, socket: u32) {
        self.by_socket.remove(&socket);
    }

    /// Removes idle identifiers.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.by_socket.retain(|_, mapping| now.duration_since(mapping.used_at) < ECHO_IDLE);
    }

    /// Returns true if this identifier is mapped.
    pub(super) fn has(&self, socket: u32) -> bool {
        self.by_socket.contains_key(&socket)
    }

    /// Returns true if no further identifier fits.
    pub(super) fn is_full(&self) -> bool {
        self.by_socket.len() >= MAX_ECHOES
    }

    /// Adds an identifier without sockets.
    pub(super) fn insert(&mut self, socket: u32, now: Instant, place: Permit<Arc<str>>) {
        let mapping = Mapping { ipv4: None, ipv6: None, used_at: now, _place: place };
        self.by_socket.insert(socket, mapping);
    }

    /// Returns the socket for an identifier and family. Counts as a use.
    pub(super) fn socket_for(
        &mut self,
        socket: u32,
        now: Instant,
        ipv6: bool,
    ) -> Option<&mut Option<EchoReader>> {
        let mapping = self.by_socket.get_mut(&socket)?;
        mapping.used_at = now;
        Some(if ipv6 { &mut mapping.ipv6 } else { &mut mapping.ipv4 })
    }

    /// Removes the least recently used identifier. Returns `false` if there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let oldest = self.by_socket.iter().min_by_key(|(_, mapping)| mapping.used_at);
        let Some(oldest) = oldest.map(|(socket, _)| *socket) else { return false };
        self.by_socket.remove(&oldest).is_some()
    }
}

/// An echo request from a client.
#[derive(Copy, Clone, Debug)]
pub(super) struct Request<'a> {
    pub(super) socket: u32,
    pub(super) hops: u8,
    pub(super) sequence: u16,
    pub(super) to: IpAddr,
    pub(super) payload: &'a [u8],
}
