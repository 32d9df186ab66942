//! UDP of applications in a session's datagrams: what the two ends say to each other in them.
//!
//! A *socket* is an application's UDP socket, numbered by the client; the server has one of its own for each. A *flow*
//! is what one socket exchanges with one peer. Its number stands in front of every datagram, and the first datagrams
//! say what it stands for, until the other end has said that it knows: so nothing waits for a round trip, and what is
//! lost is made up for by the next datagram. docs/spec/proxy-protocol.md is the specification.

mod flows;
mod item;
mod outbox;

pub(crate) use flows::FlowTable;
pub use item::{BadItem, EchoError, Item};
pub(crate) use item::{ECHO_OVERHEAD, SOCKET_NUMBERS};
pub(crate) use outbox::Outbox;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UdpSocket;

/// A socket that was not used for so long is forgotten (RFC 4787 REQ-5) ...
pub(crate) const SOCKET_IDLE: Duration = Duration::from_secs(300);
/// ... and one that was used for nothing but DNS after so long.
pub(crate) const DNS_SOCKET_IDLE: Duration = Duration::from_secs(30);
/// What stands for an identifier of echo requests (ICMP) lasts so long unused (RFC 5508 REQ-2).
pub(crate) const ECHO_IDLE: Duration = Duration::from_secs(60);
/// Identifiers of echo requests at a time, at either end.
pub(crate) const MOST_ECHOES: usize = 64;
/// Bytes of the longest datagram of an application that is carried. Real networks carry longer ones in fragments of
/// which each may be lost; hardly anything sends them.
pub const LONGEST_DATAGRAM: usize = 8_192;
/// Port of DNS.
pub const DNS_PORT: u16 = 53;
/// Flows that an end remembers.
pub(crate) const MOST_FLOWS: usize = 4_096;
/// Those of them that a server opened, for peers that nobody had sent anything to.
pub(crate) const MOST_UNASKED_FLOWS: usize = 256;

/// How long a socket of this kind lives unused.
#[must_use]
pub(crate) const fn idle_limit(only_dns: bool) -> Duration {
    if only_dns { DNS_SOCKET_IDLE } else { SOCKET_IDLE }
}

macro_rules! counts {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// Counts of the UDP that an end carries, since its start.
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct UdpCounts {
            $($(#[$meta])* pub $name: u64,)*
        }

        /// The counts while they grow.
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
    /// Datagrams to them.
    to_local,
    /// Sockets that were opened.
    sockets,
    /// Sockets that were forgotten for others.
    sockets_forgotten,
    /// Flows that were opened.
    flows,
    /// Flows that were forgotten for others.
    flows_forgotten,
    /// Flows whose peer the rules refuse, whose name has no address, or for which there was no socket.
    refused,
    /// Datagrams dropped since they came from peers that may not send here, or sent too many.
    filtered,
    /// Datagrams dropped since they do not fit the paths.
    too_big,
    /// Datagrams dropped since too many waited, or since there was no way to send them.
    dropped,
    /// Datagrams that were not understood, or of a flow that is not known.
    unknown,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Sends a datagram at once, or not at all. (tokio would ask first whether there is room, and takes a new socket for
/// full.)
pub(crate) fn send_to(socket: &UdpSocket, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
    socket2::SockRef::from(socket).send_to(payload, &to.into())
}
