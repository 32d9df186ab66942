//! Client side of the proxy: accepts applications' connections and opens streams to their targets.

mod admission;
mod answers;
mod backoff;
pub mod current;
pub mod dialer;
pub mod direct;
pub mod early_bytes;
pub mod echo_sources;
mod failed;
mod http_listener;
mod leased_connection;
mod listening;
pub mod open;
pub mod open_targets;
mod patience;
pub mod places;
pub mod pool;
pub mod remote;
pub mod socks_listener;
mod target_request;
pub mod transparent;
pub mod trouble;
pub mod tunnel;
pub mod udp_keeper;
pub mod udp_ports;
pub mod udp_sources;
pub mod udp_tunnel;

#[cfg(test)]
mod http_listener_tests;
#[cfg(test)]
mod remote_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod socks_listener_tests;
#[cfg(test)]
mod tests;
