//! Server that accepts encrypted streams.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::task::Poll;

use tokio::task::JoinSet;

use super::{Acceptor, TlsStream};
use crate::Server;

/// Maximum number of handshakes in progress; further clients wait in the server's backlog.
const HANDSHAKES: usize = 256;

/// Server with encrypted streams. It performs handshakes in parallel, so that a client that is slow or does not use TLS
/// does not delay others.
#[derive(Debug)]
pub struct TlsServer {
    server: Server,
    acceptor: Acceptor,
    handshakes: JoinSet<Option<(TlsStream, SocketAddr)>>,
}

impl TlsServer {
    /// Accepts connections on `server` with the key of `acceptor`.
    #[must_use]
    pub fn new(server: Server, acceptor: Acceptor) -> Self {
        TlsServer { server, acceptor, handshakes: JoinSet::new() }
    }

    /// Returns the underlying server.
    #[must_use]
    pub const fn get_ref(&self) -> &Server {
        &self.server
    }

    /// Waits for the next connection with a completed handshake and returns it with the peer's address. Returns `None`
    /// after [`Server::close`], once pending handshakes have finished. Connections whose handshake fails are logged and
    /// dropped. Safe to cancel.
    pub async fn accept(&mut self) -> Option<(TlsStream, SocketAddr)> {
        let TlsServer { server, acceptor, handshakes } = self;
        loop {
            let mut accept = pin!(server.accept());
            let mut closed = false;
            let next = poll_fn(|cx| {
                while let Poll::Ready(Some(done)) = handshakes.poll_join_next(cx) {
                    if let Ok(Some(stream)) = done {
                        return Poll::Ready(WaitOutcome::Stream(Box::new(stream)));
                    }
                }
                if !closed && handshakes.len() < HANDSHAKES {
                    match accept.as_mut().poll(cx) {
                        Poll::Ready(Some(incoming)) => {
                            return Poll::Ready(WaitOutcome::Incoming(incoming));
                        }
                        Poll::Ready(None) => closed = true,
                        Poll::Pending => {}
                    }
                }
                match closed && handshakes.is_empty() {
                    true => Poll::Ready(WaitOutcome::Closed),
                    false => Poll::Pending,
                }
            });
            match next.await {
                WaitOutcome::Closed => return None,
                WaitOutcome::Stream(stream) => return Some(*stream),
                WaitOutcome::Incoming((stream, peer)) => {
                    let acceptor = acceptor.clone();
                    handshakes.spawn(async move {
                        match acceptor.accept(stream).await {
                            Ok(stream) => Some((stream, peer)),
                            Err(error) => {
                                let source = std::error::Error::source(&error);
                                tracing::debug!(%peer, ?source, "{error}");
                                None
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Outcome of a wait.
enum WaitOutcome {
    Closed,
    Stream(Box<(TlsStream, SocketAddr)>),
    Incoming((crate::Stream, SocketAddr)),
}
