//! Links: frames of the UDP carrier inside TCP connections of the kernel, for networks that let no UDP through
//! (docs/spec/tcp-carrier.md, docs/decisions/wire-and-carriers.md).
//!
//! Here are the parts without sockets: how frames become bytes of a stream and back, and when a client goes from
//! datagrams to a link and back. The driver brings the sockets (`driver/links.rs`).

mod fallback;
mod framing;
mod pace;

pub use fallback::{CarrierRates, UdpUse};
pub(crate) use fallback::{Failure, Leaving, Order, Routes};
pub(crate) use framing::{Alien, Enclosed, PREAMBLE, Unpacker, enclose};
pub(crate) use pace::{Heading, LaneBytes};
