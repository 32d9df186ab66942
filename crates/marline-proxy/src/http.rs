//! HTTP/1 proxy (RFC 9110, RFC 9112), the subset a local proxy needs: CONNECT, requests in
//! absolute-form, and a PAC file that it makes itself.
//!
//! One request per connection, both ways, which are told so by `Connection: close`. Each
//! application connection is a multipath connection of its own, and those are used again, so that
//! keeping the application's connection would save a handshake on loopback only; and an answer
//! whose end is the connection's needs no framing here. What is passed on is parsed and written
//! anew, so that nobody behind reads it otherwise than this does.

pub mod answer;
pub mod body;
pub mod exchange;
mod fields;
pub mod pac;
pub mod request;
pub mod response;
