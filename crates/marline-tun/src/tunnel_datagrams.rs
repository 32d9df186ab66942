//! Carrier of the programs' datagrams through a server: a socket of the UDP tunnel for each of their ports.
//!
//! A program's port is one socket at the server, whomever it speaks to, and whoever sends to that one is passed on to
//! the program: a NAT that is independent of endpoints (RFC 4787), as the server's is.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use marline_proxy::client::udp_tunnel::{Inbound, UdpInbox, UdpSender, UdpTunnel};
use marline_proxy::target::Target;
use marline_proxy::udp::{DNS_PORT, idle_limit};
use tokio::time::{Instant, interval};

use crate::addresses::Addresses;
use crate::datagram::{Datagram, DatagramWriter, Datagrams, Fate};

/// Ports of programs that have a socket at a time; the one that was silent for longest goes for a new one.
const MOST_SOURCES: usize = 512;
/// Between two looks for those that are silent.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// A program's port.
#[derive(Debug)]
struct Source<S> {
    socket: S,
    /// Its answers count.
    used_at: Instant,
    only_dns: bool,
}

/// The programs' ports, and what stands for each.
#[derive(Debug)]
struct Sources<S> {
    most: usize,
    by_address: BTreeMap<SocketAddr, Source<S>>,
}

impl<S> Sources<S> {
    const fn new(most: usize) -> Sources<S> {
        Sources { most, by_address: BTreeMap::new() }
    }

    /// What stands for a port that sends to one of DNS, or to another.
    fn sends(&mut self, from: SocketAddr, dns: bool, now: Instant) -> Option<&S> {
        let source = self.by_address.get_mut(&from)?;
        source.used_at = now;
        source.only_dns &= dns;
        Some(&source.socket)
    }

    /// A port was answered.
    fn is_answered(&mut self, address: SocketAddr, now: Instant) {
        if let Some(source) = self.by_address.get_mut(&address) {
            source.used_at = now;
        }
    }

    fn insert(&mut self, address: SocketAddr, socket: S, now: Instant) {
        if self.by_address.len() >= self.most {
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

    fn sweep(&mut self, now: Instant) {
        self.by_address
            .retain(|_, source| now.duration_since(source.used_at) < idle_limit(source.only_dns));
    }
}

type Shared = Mutex<Sources<UdpSender>>;

fn lock(sources: &Shared) -> MutexGuard<'_, Sources<UdpSender>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The carrier; dropping it closes all sockets.
#[derive(Debug)]
pub struct TunnelDatagrams {
    udp: Arc<UdpTunnel>,
    addresses: Addresses,
    sources: Arc<Shared>,
}

impl TunnelDatagrams {
    /// Starts on the current tokio runtime. Somebody must keep a
    /// [lane](marline_proxy::client::udp_keeper::keep_lane) for `udp`; `addresses` are the interface's.
    #[must_use]
    pub fn start(udp: Arc<UdpTunnel>, addresses: Addresses) -> TunnelDatagrams {
        let sources = Arc::new(Mutex::new(Sources::new(MOST_SOURCES)));
        tokio::spawn(sweep(Arc::downgrade(&sources)));
        TunnelDatagrams { udp, addresses, sources }
    }

    /// Opens a socket for a program's port.
    fn admit(&self, from: SocketAddr, answers: &DatagramWriter) -> bool {
        let opened = self.udp.socket().or_else(|| {
            lock(&self.sources).forget_oldest();
            self.udp.socket()
        });
        let Some((sender, inbox)) = opened else { return false };
        lock(&self.sources).insert(from, sender, Instant::now());
        let answers =
            Answers { writer: answers.clone(), to: from, sources: Arc::downgrade(&self.sources) };
        tokio::spawn(answers.pass(inbox));
        true
    }
}

impl Datagrams for TunnelDatagrams {
    fn on_datagram(&mut self, datagram: &Datagram<'_>, answers: &DatagramWriter) -> Fate {
        let Datagram { source: from, destination, payload } = *datagram;
        if !may_pass(&self.addresses, from, destination) || self.udp.is_refused() {
            return Fate::Refused;
        }
        for _ in 0..2 {
            let dns = destination.port() == DNS_PORT;
            if let Some(sender) = lock(&self.sources).sends(from, dns, Instant::now()) {
                return match sender.send(&Target::from(destination), payload) {
                    Ok(()) => Fate::Carried,
                    Err(too_big) => Fate::TooBig(too_big.most),
                };
            }
            if !self.admit(from, answers) {
                break;
            }
        }
        Fate::Refused
    }
}

/// Whether a datagram is one of the programs' own to a host elsewhere.
fn may_pass(addresses: &Addresses, from: SocketAddr, to: SocketAddr) -> bool {
    let elsewhere = match to.ip() {
        IpAddr::V4(v4) => !v4.is_broadcast(),
        // An IPv4 address that is mapped into IPv6 is on no wire.
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_none(),
    };
    let host = !to.ip().is_multicast() && !to.ip().is_unspecified() && !to.ip().is_loopback();
    let ports = from.port() != 0 && to.port() != 0;
    addresses.is_program(from.ip()) && ports && elsewhere && host && !addresses.is_near(to.ip())
}

/// Closes the sockets of silent ports, as long as there is a carrier.
async fn sweep(sources: Weak<Shared>) {
    let mut look = interval(SWEEP_EVERY);
    loop {
        look.tick().await;
        let Some(sources) = sources.upgrade() else { return };
        lock(&sources).sweep(Instant::now());
    }
}

/// Passes what comes for a program's port, until its socket is closed.
struct Answers {
    writer: DatagramWriter,
    to: SocketAddr,
    sources: Weak<Shared>,
}

impl Answers {
    async fn pass(self, mut inbox: UdpInbox) {
        while let Some(inbound) = inbox.recv().await {
            // Those whom nobody asked do not keep a port open (RFC 4787 section 4.3).
            if inbound.asked
                && let Some(sources) = self.sources.upgrade()
            {
                lock(&sources).is_answered(self.to, Instant::now());
            }
            if let Some(from) = address(&inbound)
                && let Err(error) = self.writer.send(from, self.to, &inbound.payload)
            {
                // For want of room it is lost, as on any link.
                tracing::debug!(%from, "a datagram is lost: {error}");
            }
        }
    }
}

/// Whom a datagram is from. Programs send to addresses only, so it is from one.
fn address(inbound: &Inbound) -> Option<SocketAddr> {
    let ip = inbound.from.host.as_name().err()?;
    Some(SocketAddr::new(ip.to_canonical(), inbound.from.port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16) -> SocketAddr {
        SocketAddr::new(Addresses::default().host_v4.into(), port)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_port_that_was_silent_for_longest_goes_for_a_new_one() {
        let begun = Instant::now();
        let mut sources = Sources::new(3);
        for number in 1..=3 {
            sources.insert(port(number), number, begun + secs(number.into()));
        }
        assert_eq!(sources.sends(port(1), false, begun + secs(4)), Some(&1));
        sources.is_answered(port(2), begun + secs(5));
        sources.insert(port(4), 4, begun + secs(6));
        let left: Vec<u16> = sources.by_address.keys().map(SocketAddr::port).collect();
        assert_eq!(left, [1, 2, 4]);
    }

    #[test]
    fn a_silent_port_is_closed_in_five_minutes_and_one_that_only_asked_for_names_in_half_of_one() {
        let begun = Instant::now();
        let mut sources = Sources::new(9);
        for number in 1..=3 {
            sources.insert(port(number), number, begun);
        }
        sources.sends(port(1), true, begun);
        sources.sends(port(2), true, begun);
        sources.sends(port(2), false, begun);
        sources.sends(port(3), false, begun);
        // What it asks for later does not make it a port of DNS again.
        sources.sends(port(2), true, begun);
        sources.sweep(begun + secs(29));
        assert_eq!(sources.by_address.len(), 3);
        sources.sweep(begun + secs(30));
        assert!(!sources.by_address.contains_key(&port(1)));
        sources.is_answered(port(3), begun + secs(299));
        sources.sweep(begun + secs(300));
        let left: Vec<u16> = sources.by_address.keys().map(SocketAddr::port).collect();
        assert_eq!(left, [3]);
        sources.sweep(begun + secs(599));
        assert!(sources.by_address.is_empty());
    }

    #[test]
    fn only_the_programs_own_datagrams_to_hosts_elsewhere_pass() {
        let addresses = Addresses::default();
        let (v4, v6) = ("198.18.0.2:9", "[fd6d:6172:6c69:6e65::2]:9");
        let passes =
            |from: &str, to: &str| may_pass(&addresses, from.parse().unwrap(), to.parse().unwrap());
        assert!(passes(v4, "203.0.113.7:443") && passes(v6, "[2001:db8::1]:443"));
        for to in [
            "127.0.0.1:9",
            "224.0.0.251:5353",
            "255.255.255.255:67",
            "0.0.0.0:9",
            "198.18.0.1:9",
            "198.18.0.3:9",
            "203.0.113.7:0",
        ] {
            assert!(!passes(v4, to), "{to}");
        }
        for to in ["[::1]:9", "[ff02::fb]:5353", "[::]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(!passes(v6, to), "{to}");
        }
        for from in ["198.18.0.1:9", "192.0.2.1:9", "198.18.0.2:0"] {
            assert!(!passes(from, "203.0.113.7:443"), "{from}");
        }
        assert!(!passes("[fe80::1]:9", "[2001:db8::1]:443"));
    }
}
