//! Multipath TCP streams for async programs.
//!
//! A [`Client`] opens connections that run over several local addresses at once; a [`Listener`]
//! accepts them. Both give [`Stream`]s, which are ordinary [`tokio::io::AsyncRead`] and
//! [`tokio::io::AsyncWrite`]. Inside, segments of Multipath TCP (RFC 8684) travel in UDP datagrams,
//! so nobody needs privileges; or, with another [`Carrier`], as native TCP, and the other end may be
//! any stack, such as the Linux kernel's.
//!
//! ```
//! use marline::{Client, ClientConfig, ConnectionConfig, Listener, ServerConfig, default_policies};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let connection = ConnectionConfig::new(default_policies());
//!
//! let server = ServerConfig::new(vec!["127.0.0.1:0".parse()?], connection.clone());
//! let listener = Listener::bind(server).await?;
//! let address = listener.local_addrs()[0];
//! let echo = tokio::spawn(async move {
//!     let (mut stream, _peer) = listener.accept().await?;
//!     let mut request = Vec::new();
//!     stream.read_to_end(&mut request).await?;
//!     stream.write_all(&request).await?;
//!     stream.shutdown().await?;
//!     // Nothing leaves a process that has ended: wait until the peer has it all.
//!     drop(stream);
//!     listener.drained(std::time::Duration::from_secs(5)).await;
//!     std::io::Result::Ok(())
//! });
//!
//! // Two local addresses are two paths. Without any, all interfaces with a default route are used.
//! let mut client = ClientConfig::new(connection);
//! client.paths = vec!["127.0.0.1".parse()?, "127.0.0.2".parse()?];
//! let client = Client::bind(client).await?;
//! let mut stream = client.connect(&[address]).await?;
//! stream.write_all(b"over two paths").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! assert_eq!(answer, "over two paths");
//! echo.await??;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod client;
mod config;
mod error;
mod happy_eyeballs;
mod health;
mod listener;
mod multimob;
mod native;
mod path_table;
mod routes;
mod stream;

pub use client::Client;
pub use config::{Carrier, ClientConfig, LONGEST_KEEPALIVE, ServerAddress, ServerConfig, TunPath};
pub use error::Error;
pub use health::{PathEvent, Reach, ServerReach};
pub use listener::Listener;
pub use marline_algos::{PolicyError, Registry, default_policies};
pub use marline_core::{
    AddressPairFault, AddressPairHealth, AddressPairInfo, BufferTuning, CloseReason, ConnectError,
    ConnectionConfig, ConnectionId, ConnectionInfo, Counters, Extensions, FallbackReason,
    FourTuple, Limits, Linger, LoneKeepalive, MonitorEvent, MonitorKind, PathHealthMonitor,
    Probing, ReceiveProbes, ReceiveTimer, SubflowInfo, SubflowState,
};
pub use marline_io::carrier::CarrierCounters;
pub use marline_io::{
    DeliveryErrorKind, Direction, LocalSpec, ObservedPath, ObservedSegments, PacketObserver,
    PathSpec, PathSpecError, RadioKind, RawSockets, ResetSeed, SegmentLog, SharedObserver,
    drop_capabilities,
};
pub use marline_policy as policy;
pub use marline_time::{Duration, Instant};
pub use multimob::{Interactive, interactive};
pub use path_table::{PathChange, PathStatus};
pub use stream::Stream;
