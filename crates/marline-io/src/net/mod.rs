//! What this machine's network looks like: interfaces, addresses, routes, and how they change.

mod interfaces;
mod message;
mod netlink;

pub use interfaces::{Interface, Interfaces, Watcher};
pub(crate) use netlink::route_exists;
