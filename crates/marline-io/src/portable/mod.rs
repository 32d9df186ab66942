//! Substitutes for `linux` on other Unix systems, with the same functions.
//!
//! UDP, TCP, timers and the list of interfaces work, less precisely. What needs a facility of Linux fails with
//! [`Unsupported`](std::io::ErrorKind::Unsupported) when it is opened: native carriers, TUN interfaces, setup of
//! interfaces, capabilities, handover between processes. There is no error queue: ICMP errors are not seen.

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

/// Interest with which a socket that another process reads is registered. Without handover there is none.
pub(crate) const WITHOUT_INPUT: Interest = Interest::ERROR;

/// Error of a facility that only Linux has.
fn unsupported_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{what} are available on Linux only"))
}
