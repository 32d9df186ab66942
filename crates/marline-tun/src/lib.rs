//! Programs behind a TUN interface, whose TCP connections end in Marline's core and are relayed by the proxy.
//!
//! A [`Gateway`](gateway::Gateway) reads and writes IP packets on the interface. TCP to any address becomes a stream
//! to that target with an [opener](marline_proxy::client::open::Open), usually a tunnel to a server. The SYN/ACK is
//! withheld until the target has answered there. DNS queries are sent in the same way, over TCP, to a resolver.
//! Other UDP is passed to a [carrier](datagram::Datagrams), usually a [lane](tunnel_datagrams::TunnelDatagrams).
//! [`inside`] creates the namespaces in which a single program has only this interface.

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
