//! Integration tests of the gateway, with a datagram socket instead of the interface.

mod gateway;
mod names;
mod packets;
mod support;
