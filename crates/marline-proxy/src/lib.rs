//! Proxy over Multipath TCP: client, server, and the protocol between them.
//!
//! Route of an application's connection: SOCKS5 or forward -> tunnel (a multipath stream for this connection alone) ->
//! TLS, or the keys of a session -> request -> rules of the server -> TCP to the target. Everything in this crate is
//! generic over the [`Transport`](transport::Transport) below TLS, so that tests run over pipes.

#![forbid(unsafe_code)]

pub mod channel;
pub mod client;
pub mod credentials;
pub mod deadlines;
pub mod http;
pub mod invite;
pub mod ledger;
#[cfg(target_os = "linux")]
mod linux;
pub mod memory_trim;
mod memory_wait;
pub mod message;
mod outgoing;
#[cfg(not(target_os = "linux"))]
mod portable;
pub mod prefixed_stream;
pub mod private_file;
pub mod quota;
pub mod rate;
pub mod record;
pub mod relay;
pub mod remote_rules;
pub mod rules;
pub mod secret;
pub mod serve;
pub mod server;
pub mod session;
pub mod shutdown;
pub mod signals;
pub mod socks;
pub mod target;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod transport;
pub mod udp;

// Functions of the operating system: the only modules that depend on the system.
#[cfg(target_os = "linux")]
use linux as sys;
#[cfg(not(target_os = "linux"))]
use portable as sys;
