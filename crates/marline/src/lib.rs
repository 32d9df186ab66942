//! Multipath TCP streams for async programs.
//!
//! A [`Client`] opens connections that use several local addresses at once; a [`Server`] accepts them. Both provide
//! [`Stream`]s, which implement [`tokio::io::AsyncRead`] and [`tokio::io::AsyncWrite`]. Segments of Multipath TCP
//! (RFC 8684) are sent in UDP datagrams, so no privileges are needed. With another [`Carrier`] they are native TCP,
//! and the other end may be any stack, such as the Linux kernel's.
//!
//! ```
//! use marline::{Client, Server};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().listen("127.0.0.1:0".parse()?).bind().await?;
//! let address = server.local_addr();
//! let echo = tokio::spawn(async move {
//!     let (mut stream, _peer) = server.accept().await.expect("this server is never closed");
//!     let mut request = Vec::new();
//!     stream.read_to_end(&mut request).await?;
//!     stream.write_all(&request).await?;
//!     stream.shutdown().await?;
//!     // Nothing leaves a process that has ended: wait until the peer has it all.
//!     drop(stream);
//!     server.drained(std::time::Duration::from_secs(5)).await;
//!     std::io::Result::Ok(())
//! });
//!
//! // Two local addresses are two paths. Without any, all interfaces with a default route are used.
//! let client = Client::builder()
//!     .path("127.0.0.1".parse()?)
//!     .path("127.0.0.2".parse()?)
//!     .bind()
//!     .await?;
//! let mut stream = client.connect(address).await?;
//! stream.write_all(b"over two paths").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! assert_eq!(answer, "over two paths");
//! echo.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # Security
//!
//! **A [`Stream`] is plaintext, like a TCP connection.** Any host on one of its paths can read and change its data, and
//! any client can connect to a server. Multipath TCP sends its keys in plaintext: they protect only against attackers
//! that have not seen the first handshake. Use TLS inside the stream: the feature `tls` has `tls::Connector` and
//! `tls::Acceptor` with a pinned key, and any other TLS library works on a `Stream`.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `tls` | TLS 1.3 with a pinned key inside the stream: module `tls` |
//! | `axum` | a [`Server`] that `axum::serve` takes: module `axum` |
//! | `hyper` | a connector for hyper-util's client: module `hyper` |
//! | `serde` | [`paths::PathHealth`] and [`paths::PathChange`] as the words that `marline` prints and takes |
//!
//! None is on by default.
//!
//! # Beyond the defaults
//!
//! [`config`] contains buffers, timers and options, [`paths`] the specification and health of a client's paths,
//! [`monitor`] events and counters, and [`memory`] budgets. Policies are chosen by name ([`ClientBuilder::scheduler`])
//! or provided by the application ([`policy`] contains the traits, [`algos`] the registry and common parts of the
//! built-in policies). [`advanced`] contains interfaces for protocol tools.

#![forbid(unsafe_code)]

pub mod advanced;
#[cfg(feature = "axum")]
pub mod axum;
mod builder;
mod carrier;
mod client;
pub mod config;
pub mod datagrams;
pub mod error;
mod happy_eyeballs;
mod health;
#[cfg(feature = "hyper")]
pub mod hyper;
pub mod memory;
pub mod monitor;
mod multimob;
mod nat64;
mod path_table;
pub mod paths;
mod routes;
mod server;
mod shards;
pub mod stream;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
mod transport_config;

pub use carrier::Carrier;
pub use client::{Client, ClientBuilder};
pub use error::{BindError, ConnectError};
pub use marline_algos as algos;
pub use marline_policy as policy;
pub use server::{Server, ServerBuilder};
pub use stream::Stream;
