//! Programs behind a TUN interface: their TCP ends in Marline's own core and goes on through the proxy.
//!
//! A [`Gateway`](gateway::Gateway) reads and writes IP packets on the interface. TCP to any address becomes a
//! stream to that target by a [way](marline_proxy::client::open::Open), usually a tunnel to a server; the SYN/ACK
//! is withheld until the target has answered there. DNS queries go the same way, over TCP, to a resolver. Other
//! UDP is handed to whoever [takes it](datagram::Datagrams), usually a
//! [lane](tunnel_datagrams::TunnelDatagrams). [`inside`] makes the namespaces in which a single
//! program has nothing but this interface.

pub mod addresses;
pub mod datagram;
pub mod dns;
pub mod exceptions;
mod fragments;
pub mod gateway;
pub mod icmp;
pub mod inside;
mod interface;
pub mod machine;
pub mod portal;
mod process;
pub mod resolver;
pub mod responder;
mod serve;
mod sink;
mod stream;
pub mod tunnel_datagrams;
mod warning_limit;
