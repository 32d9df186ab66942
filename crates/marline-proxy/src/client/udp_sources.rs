//! Sources of a UDP entry point: addresses of applications, each with a socket of the tunnel.
//!
//! A source has one socket at the server for all its peers, as behind an endpoint-independent NAT (RFC 4787).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, interval};

use super::udp_tunnel::{TooBig, UdpInbox, UdpSender, UdpTunnel};
use crate::target::Target;
use crate::udp::{DNS_PORT, idle_limit};

/// Maximum number of sources with a socket. A new source replaces the one that was silent longest.
const MAX_SOURCES: usize = 512;
/// Interval between checks for silent sources.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// State of a source.
#[derive(Debug)]
struct Source<S> {
    socket: S,
    /// Time of the last datagram sent or answered.
    used_at: Instant,
    only_dns: bool,
}

/// Sources by address.
#[derive(Debug)]
pub(super) struct Table<S> {
    capacity: usize,
    by_address: BTreeMap<SocketAddr, Source<S>>,
}

impl<S> Table<S> {
    const fn new(capacity: usize) -> Table<S> {
        Table { capacity, by_address: BTreeMap::new() }
    }

    /// Records a datagram from a source to this port. Returns its socket.
    fn sends(&mut self, from: SocketAddr, port: u16, now: Instant) -> Option<&S> {
        let source = self.by_address.get_mut(&from)?;
        source.used_at = now;
        source.only_dns &= port == DNS_PORT;
        Some(&source.socket)
    }

    /// Returns the socket of a source.
    pub(super) fn get(&self, from: &SocketAddr) -> Option<&S> {
        self.by_address.get(from).map(|source| &source.socket)
    }

    /// Records an answer to a source.
    fn record_peer_answer(&mut self, address: SocketAddr, now: Instant) {
        if let Some(source) = self.by_address.get_mut(&address) {
            source.used_at = now;
        }
    }

    fn insert(&mut self, address: SocketAddr, socket: S, now: Instant) {
        if self.by_address.len() >= self.capacity {
            self.forget_oldest();
        }
        self.by_address.insert(address, Source { socket, used_at: now, only_dns: true });
    }

    fn forget_oldest(&mut self) {
        let oldest = self.by_address.iter().min_by_key(|(_, source)| source.used_at);
        if let Some(oldest) = oldest.map(|(address, _)| *address) {
            self.by_address.remove(&oldest);
        }
    }

    fn close_silent(&mut self, now: Instant) {
        self.by_address
            .retain(|_, source| now.duration_since(source.used_at) < idle_limit(source.only_dns));
    }
}

/// Sources of one entry point. Dropping them closes all their sockets.
#[derive(Debug)]
pub struct UdpSources {
    udp: Arc<UdpTunnel>,
    /// Locked before the tunnel, never while the tunnel is locked.
    table: Mutex<Table<UdpSender>>,
}

impl UdpSources {
    /// Returns an empty set of sources. Silent ones are removed on the current tokio runtime.
    #[must_use]
    pub fn start(udp: Arc<UdpTunnel>) -> Arc<UdpSources> {
        let sources = Arc::new(UdpSources { udp, table: Mutex::new(Table::new(MAX_SOURCES)) });
        tokio::spawn(sweep(Arc::downgrade(&sources)));
        sources
    }

    /// Returns the tunnel of the sources.
    #[must_use]
    pub const fn tunnel(&self) -> &Arc<UdpTunnel> {
        &self.udp
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table<UdpSender>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ensures that an address that sends to this port has a socket. The inbox of a new one is passed to `serve`.
    /// Returns `false` if there are too many.
    pub fn admit(&self, from: SocketAddr, port: u16, serve: impl FnOnce(UdpInbox)) -> bool {
        let now = Instant::now();
        if self.lock().sends(from, port, now).is_some() {
            return true;
        }
        let opened = self.udp.socket().or_else(|| {
            self.lock().forget_oldest();
            self.udp.socket()
        });
        let Some((sender, inbox)) = opened else { return false };
        let mut table = self.lock();
        table.insert(from, sender, now);
        table.sends(from, port, now);
        drop(table);
        serve(inbox);
        true
    }

    /// Sends a datagram from an admitted address.
    ///
    /// # Errors
    /// Same as [`UdpSender::send`].
    pub fn send(&self, from: SocketAddr, to: &Target, payload: &[u8]) -> Result<(), TooBig> {
        // For a source that was removed in the meantime, the datagram is lost.
        self.lock().get(&from).map_or(Ok(()), |sender| sender.send(to, payload))
    }

    /// Records an answer from a peer to which this address had sent.
    pub fn record_peer_answer(&self, address: SocketAddr) {
        self.lock().record_peer_answer(address, Instant::now());
    }
}

/// Closes the sockets of silent sources until the sources are dropped.
async fn sweep(sources: Weak<UdpSources>) {
    let mut look = interval(SWEEP_INTERVAL);
    loop {
        look.tick().await;
        let Some(sources) = sources.upgrade() else { return };
        sources.lock().close_silent(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_longest_silent_port_is_evicted_for_a_new_one() {
        let begun = Instant::now();
        let mut sources = Table::new(3);
        for number in 1..=3 {
            sources.insert(port(number), number, begun + secs(number.into()));
        }
        assert_eq!(sources.sends(port(1), 443, begun + secs(4)), Some(&1));
        sources.record_peer_answer(port(2), begun + secs(5));
        sources.insert(port(4), 4, begun + secs(6));
        let left: Vec<u16> = sources.by_address.keys().map(SocketAddr::port).collect();
        assert_eq!(left, [1, 2, 4]);
    }

    #[test]
    fn a_silent_port_closes_after_five_minutes_and_a_dns_only_port_after_thirty_seconds() {
        let begun = Instant::now();
        let mut sources = Table::new(9);
        for number in 1..=3 {
            sources.insert(port(number), number, begun);
        }
        sources.sends(port(1), DNS_PORT, begun);
        sources.sends(port(2), DNS_PORT, begun);
        sources.sends(port(2), 443, begun);
        sources.sends(port(3), 443, begun);
        // Later DNS queries do not make the port a DNS-only source again.
        sources.sends(port(2), DNS_PORT, begun);
        sources.close_silent(begun + secs(29));
        assert_eq!(sources.by_address.len(), 3);
        sources.close_silent(begun + secs(30));
        assert!(!sources.by_address.contains_key(&port(1)));
        sources.record_peer_answer(port(3), begun + secs(299));
        sources.close_silent(begun + secs(300));
        let left: Vec<u16> = sources.by_address.keys().map(SocketAddr::port).collect();
        assert_eq!(left, [3]);
        sources.close_silent(begun + secs(599));
        assert!(sources.by_address.is_empty());
    }
}
