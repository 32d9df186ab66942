//! Network configuration of this machine: interfaces, addresses, routes, and their changes.

mod interfaces;
mod message;
mod netlink;
mod setup;

pub use interfaces::{GATEWAY_INTERFACE, Interface, Interfaces, Watcher};
pub(crate) use netlink::route_exists;
pub use setup::InterfaceSetup;
