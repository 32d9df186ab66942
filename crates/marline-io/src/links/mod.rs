//! Links: frames of the UDP carrier inside TCP connections of the kernel, for networks that block UDP
//! (docs/spec/tcp-carrier.md, docs/decisions/wire-and-carriers.md).
//!
//! This module contains the parts without sockets: the encoding of frames in a stream, and the choice between datagrams
//! and a link. The driver owns the sockets (`driver/link_tasks.rs`).

mod fallback;
mod framing;
mod pace;

pub use fallback::{CarrierRates, UdpUse};
pub(crate) use fallback::{Failure, LeaveReason, Order, Routes};
pub(crate) use framing::{ForeignData, FrameDecoder, FramedBytes, PREAMBLE, enclose};
pub(crate) use pace::{DataDirection, LaneBytes};
