//! Multipath TCP streams for async programs.
//!
//! A [`Client`] opens connections that run over several local addresses at once; a [`Listener`]
//! accepts them. Both give [`Stream`]s, which are ordinary [`tokio::io::AsyncRead`] and
//! [`tokio::io::AsyncWrite`].

#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod listener;
mod stream;

pub use client::{Client, PathChange, PathStatus};
pub use config::{ClientConfig, LONGEST_KEEPALIVE, ServerConfig};
pub use error::{Error, UnknownPolicy};
pub use listener::Listener;
pub use marline_core::{
    CloseReason, ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, Counters,
    FallbackReason, FourTuple, Limits, Linger, MonitorEvent, MonitorKind, SubflowInfo,
    SubflowState,
};
pub use marline_io::{LocalSpec, PathSpec, PathSpecError};
pub use marline_policy as policy;
pub use marline_time::{Duration, Instant};
pub use stream::Stream;
