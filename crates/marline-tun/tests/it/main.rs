//! Integration tests of the gateway, over a socket of packets in the interface's place.

mod gateway;
mod names;
mod packets;
mod support;
