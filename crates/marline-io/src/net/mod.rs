//! Network configuration of this machine: interfaces, addresses, routes, and their changes.

mod interfaces;
mod message;
mod netlink;

pub use interfaces::{Interface, Interfaces, Watcher};
pub(crate) use netlink::route_exists;
