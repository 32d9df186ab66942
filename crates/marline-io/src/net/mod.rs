//! Network configuration of this machine: interfaces, addresses, routes, and their changes.

mod interfaces;
mod lookup;
mod nat64;
pub mod resolv_conf;
mod resolvers;
mod watcher;

pub use interfaces::{GATEWAY_INTERFACE, Interfaces};
pub use lookup::{dns_query, lookup_over};
pub use nat64::{PrefixAnswer, discover_nat64};
pub use resolvers::interface_resolvers;
pub use watcher::Watcher;
