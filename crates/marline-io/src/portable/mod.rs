//! Substitutes for `linux` on other Unix systems, with the same functions.
//!
//! UDP, TCP, timers and the list of interfaces work, less precisely. Features that need Linux fail with
//! [`Unsupported`](std::io::ErrorKind::Unsupported) when opened: native carriers, TUN interfaces, setup of interfaces,
//! capabilities, and handover between processes. There is no error queue, so ICMP errors go unnoticed.

pub(crate) mod channel;
pub(crate) mod error_queue;
pub(crate) mod guard;
pub(crate) mod interfaces;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod outlet;
pub(crate) mod packet;
pub(crate) mod port_filter;
pub(crate) mod pref64;
pub(crate) mod privileges;
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod setup;
pub(crate) mod socket;
pub(crate) mod timer;
pub(crate) mod tun;

use std::io;

use tokio::io::Interest;

/// Interest for registering a socket that another process reads. Without handover, there is no such socket.
pub(crate) const WITHOUT_INPUT: Interest = Interest::ERROR;

/// Returns the error for a facility that exists only on Linux.
fn unsupported_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{what} are available on Linux only"))
}
