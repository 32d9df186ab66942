//! Mapped ports of clients' sockets, and datagrams between them (RFC 4787 REQ-9, hairpinning).
//!
//! The rules forbid the server's own addresses, because services there trust their own machine. However, clients of one
//! server reach each other at the server's address and their mapped ports. Therefore a client may send to an own
//! address of the server, but only to a port that is mapped at that moment. The kernel delivers the datagram, which
//! leaves from the sender's mapped port and is filtered at the receiver like any other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Family (true for IPv6) and port.
type Key = (bool, u16);

/// The mapped ports of all clients.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct MappedPorts(Arc<Mutex<BTreeSet<Key>>>);

/// A mapped port. Must be dropped before its socket is closed.
#[derive(Debug)]
pub(super) struct MappedPort {
    ports: MappedPorts,
    key: Key,
}

impl MappedPorts {
    /// Adds the port of a socket, which is bound to all addresses of its family.
    pub(super) fn add(&self, socket: SocketAddr) -> MappedPort {
        let key = key_of(socket);
        self.lock().insert(key);
        MappedPort { ports: self.clone(), key }
    }

    /// Returns true if a client's socket is mapped to this port.
    pub(super) fn contains(&self, address: SocketAddr) -> bool {
        self.lock().contains(&key_of(address))
    }

    /// Sends to an own address of the server if the port is a mapped one. The port cannot pass to another program
    /// during the send.
    pub(super) fn send<R>(&self, to: SocketAddr, send: impl FnOnce() -> R) -> Option<R> {
        let ports = self.lock();
        ports.contains(&key_of(to)).then(send)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MappedPort {
    fn drop(&mut self) {
        self.ports.lock().remove(&self.key);
    }
}

const fn key_of(address: SocketAddr) -> Key {
    (address.is_ipv6(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_mapped_in_its_family_until_its_socket_closes() {
        let ports = MappedPorts::default();
        let mapped = ports.add("0.0.0.0:7000".parse().unwrap());
        let at = |text: &str| text.parse().unwrap();
        assert!(ports.contains(at("203.0.113.1:7000")));
        assert!(!ports.contains(at("[2001:db8::1]:7000")) && !ports.contains(at("203.0.113.1:53")));
        assert_eq!(ports.send(at("203.0.113.1:7000"), || 1), Some(1));
        assert_eq!(ports.send(at("203.0.113.1:53"), || 1), None);
        drop(mapped);
        assert!(!ports.contains(at("203.0.113.1:7000")));
    }
}
