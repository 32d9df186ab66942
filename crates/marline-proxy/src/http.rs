//! HTTP/1 proxy (RFC 9110, RFC 9112) with the subset that a local proxy needs: CONNECT, requests in absolute-form,
//! and a generated PAC file.
//!
//! Each connection carries one request in both directions, as `Connection: close` announces to both ends. Each
//! application connection uses a multipath connection of its own, and those are reused, so keeping the application's
//! connection would only save a handshake on loopback. In addition, responses that end with the connection need no
//! framing here. Forwarded heads are parsed and written again, so that the next recipient cannot interpret them
//! differently.

pub mod answer;
pub mod body;
pub mod exchange;
mod fields;
pub mod pac;
pub mod request;
pub mod response;
