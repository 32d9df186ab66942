//! Lane: unordered datagrams alongside the streams of a session.
//!
//! A stream delivers in order, so speech would wait for a packet that was lost a second ago, and become useless. So
//! datagrams of a session (mainly tunneled UDP) are never sent inside a subflow. They are sent in separate frames,
//! which are sealed and numbered across all paths, and are passed to the application as they arrive. The format is
//! specified in docs/spec/datagrams.md.
//!
//! A [`Lane`] is one end. It is a state machine without I/O, driven like the endpoint of the streams:
//!
//! ```text
//! send(now, flow, bytes)          the application has a datagram; one that is too large is refused, as by IP
//! poll_transmit(now, buffer)      the next frame, and its path
//! handle(now, path, bytes)        a frame arrived on a path
//! poll_event()                    results: a datagram, a path that became silent or answers again
//! poll_timeout(), handle_timeout(now)
//! ```
//!
//! ```text
//! send -> flow table (class, rate, deadline) -> policy names paths -> queue of the path -> frame: number, seal ->
//! path(s) path -> open -> replay window (dedupe) -> application;   ACK frames -> RTT, forecast, losses, congestion
//! window of the path
//! ```
//!
//! The crate contains no cipher: the driver provides a [`Seal`] and an [`Open`]. It also contains no policy and no
//! congestion control: their factories are passed in [`LaneConfig`].

#![forbid(unsafe_code)]

mod config;
mod event;
mod flows;
mod frame;
mod lane;
mod outstanding;
mod pacer;
mod path;
mod queue;
mod received;
mod replay;
mod seal;
mod stand_in;

pub use config::{LaneConfig, LaneIds, Limits};
pub use event::{Event, LaneStats, PathInfo};
pub use frame::{FRAME_TYPE, HEADER_BYTES, Header, LARGEST_FRAME, SMALLEST_FRAME, TAG_BYTES};
pub use lane::{FlowId, Lane, SendError, Transmit};
pub use marline_policy::PathId;
pub use replay::ReplayWindow;
pub use seal::{Keys, Open, Seal};
pub use stand_in::TestCipher;
