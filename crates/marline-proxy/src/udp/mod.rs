//! UDP of applications in the datagrams of a session.
//!
//! A *socket* is an application's UDP socket, numbered by the client. The server has a socket of its own for each.
//! A *flow* is the exchange between one socket and one peer. Every datagram starts with the number of its flow, and
//! the first datagrams also contain the key of the flow, until the other end has confirmed it. So no datagram waits
//! for a round trip, and a lost key is repeated with the next datagram. docs/spec/proxy-protocol.md is the
//! specification.

mod flows;
mod item;
mod outbox;

pub(crate) use flows::{FlowKey, FlowTable};
pub use item::{BadItem, EchoError, Item};
pub(crate) use item::{ECHO_OVERHEAD, SOCKET_NUMBERS};
pub(crate) use outbox::Outbox;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;

/// Time after which an unused socket is removed (RFC 4787 REQ-5).
pub(crate) const SOCKET_IDLE: Duration = Duration::from_secs(300);
/// Time after which an unused socket is removed if it was used only for DNS.
pub(crate) const DNS_SOCKET_IDLE: Duration = Duration::from_secs(30);
/// Time after which an unused mapping of an echo identifier (ICMP) is removed (RFC 5508 REQ-2).
pub(crate) const ECHO_IDLE: Duration = Duration::from_secs(60);
/// Maximum number of concurrent echo identifiers, at either end.
pub(crate) const MAX_ECHOES: usize = 64;
/// Largest datagram of an application that is carried, in bytes. Real networks carry longer ones in fragments that
/// may be lost individually, and applications hardly send any.
pub const MAX_APPLICATION_DATAGRAM: usize = 8_192;
/// Port of DNS.
pub const DNS_PORT: u16 = 53;
/// Maximum number of flows that an end remembers.
pub(crate) const MAX_FLOWS: usize = 4_096;
/// Maximum number of flows that a server opened, for peers that sent first.
pub(crate) const MAX_UNSOLICITED_FLOWS: usize = 256;

/// Returns the time for which an unused socket of this kind is kept.
#[must_use]
pub(crate) const fn idle_limit(only_dns: bool) -> Duration {
    if only_dns { DNS_SOCKET_IDLE } else { SOCKET_IDLE }
}

macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// Counts of the UDP that one end carries, since its start.
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct UdpCounts {
            $($(#[$meta])* pub $name: u64,)*
        }

        /// The counters behind [`UdpCounts`].
        #[derive(Debug, Default)]
        pub(crate) struct UdpCounters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl UdpCounters {
            pub(crate) fn now(&self) -> UdpCounts {
                UdpCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counts! {
    /// Datagrams from applications, or on a server from targets.
    from_local,
    /// Datagrams to applications, or on a server to targets.
    to_local,
    /// Opened sockets.
    sockets,
    /// Sockets removed to make room for others.
    sockets_forgotten,
    /// Opened flows.
    flows,
    /// Flows removed to make room for others.
    flows_forgotten,
    /// Flows whose peer the rules refuse, whose name has no address, or for which there was no socket.
    refused,
    /// Datagrams dropped because their peer may not send here, or sent too many.
    filtered,
    /// Datagrams dropped because they do not fit the paths.
    too_big,
    /// Datagrams dropped because too many waited, or because they could not be sent.
    dropped,
    /// Datagrams that were malformed or belonged to an unknown flow.
    unknown,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Sends a datagram immediately or not at all. (tokio would check for room first, and considers a new socket full.)
pub(crate) fn send_to(socket: &UdpSocket, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
    socket2::SockRef::from(socket).send_to(payload, &to.into())
}
