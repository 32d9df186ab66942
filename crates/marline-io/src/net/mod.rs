//! Network configuration of this machine: interfaces, addresses, routes, and their changes.

mod interfaces;
mod lookup;
mod message;
mod nat64;
mod netlink;
mod outlet;
mod pref64;
pub mod resolv_conf;
mod resolvers;
mod setup;

pub use interfaces::{GATEWAY_INTERFACE, Interface, Interfaces, Watcher};
pub use lookup::{dns_query, lookup_over};
pub use nat64::{PrefixAnswer, discover_nat64};
pub use netlink::is_local_address;
pub(crate) use netlink::route_exists;
pub(crate) use outlet::{ETHERNET_HEADER_LEN, Outlet, OutletFinder};
pub use pref64::Pref64Listener;
pub use resolvers::resolvers_of;
pub use setup::InterfaceSetup;
