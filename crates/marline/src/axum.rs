//! Server adapters for `axum::serve`.
//!
//! [`Server`], and with the feature `tls` [`TlsServer`](crate::tls::TlsServer), are
//! [`axum::serve::Listener`]s. Handlers get the peer's address as `ConnectInfo<PeerAddr>`.
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = marline::Server::builder().listen("127.0.0.1:4500".parse()?).bind().await?;
//! let router = Router::new().route("/", get(async || "over all paths"));
//! axum::serve(server, router).await?;
//! # Ok(())
//! # }
//! ```

use core::future::pending;
use core::net::SocketAddr;
use std::io;

use ::axum::extract::connect_info::Connected;
use ::axum::serve::{IncomingStream, Listener};

use crate::{Server, Stream};

/// Address of a connection's peer, on its first subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl Listener for Server {
    type Io = Stream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Stream, SocketAddr) {
        match Server::accept(self).await {
            Some(accepted) => accepted,
            // `axum` cannot handle a closed listener. Accepted connections are still served.
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(Server::local_addr(self))
    }
}

impl Connected<IncomingStream<'_, Server>> for PeerAddr {
    fn connect_info(stream: IncomingStream<'_, Server>) -> Self {
        PeerAddr(*stream.remote_addr())
    }
}

#[cfg(feature = "tls")]
mod tls {
    use super::{Connected, IncomingStream, Listener, PeerAddr, Server, SocketAddr, io, pending};
    use crate::tls::{TlsServer, TlsStream};

    impl Listener for TlsServer {
        type Io = TlsStream;
        type Addr = SocketAddr;

        async fn accept(&mut self) -> (TlsStream, SocketAddr) {
            match TlsServer::accept(self).await {
                Some(accepted) => accepted,
                None => pending().await,
            }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(Server::local_addr(self.get_ref()))
        }
    }

    impl Connected<IncomingStream<'_, TlsServer>> for PeerAddr {
        fn connect_info(stream: IncomingStream<'_, TlsServer>) -> Self {
            PeerAddr(*stream.remote_addr())
        }
    }
}
