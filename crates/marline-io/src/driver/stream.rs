//! Connection as a byte stream. It locks its shard itself: the writing thread sends the data immediately, or together
//! with the data of other connections at the end of the runtime's turn.
//!
//! A gateway's streams begin as requests. The hosts behind a TUN interface treat the gateway as the whole network. A
//! SYN to any address and port becomes a [`Request`], which must be admitted or refused before the SYN is answered. All
//! other packets go to a [`PacketSink`], which writes its answers to the interface itself.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::task::{Context, Poll, ready};
use std::io::{self, IoSlice};
use std::sync::Arc;

use marline_core::{
    CloseReason, ConnectionId, ConnectionInfo, FallbackReason, FourTuple, ReadError, WriteError,
};
use marline_wire::SeqNum;
use tokio::io::ReadBuf;
use tokio::sync::mpsc;

use super::shard::{Shard, ShardHandle};
use super::sockets::Sock;
use super::state::State;
use super::streams::{AwaitedEvent, Handshake, Incoming, PacketSink};
use crate::error_kind;
use crate::sys::tun::Tun;

/// Connection of the application. Dropping it releases the connection: written data is still sent; unread or further
/// incoming data aborts it.
#[derive(Debug)]
pub struct Stream {
    shard: Arc<ShardHandle>,
    id: ConnectionId,
    peer: SocketAddr,
}

impl Stream {
    /// Creates the stream of an accepted connection. The queue returns each connection once.
    #[must_use]
    pub fn accepted(shard: Arc<ShardHandle>, incoming: Incoming) -> Self {
        let (_, id) = Shard::split_id(incoming.id);
        Stream { shard, id, peer: incoming.peer }
    }

    /// Creates the stream of an admitted connection; the handshake continues.
    pub(super) const fn admitted(
        shard: Arc<ShardHandle>,
        id: ConnectionId,
        peer: SocketAddr,
    ) -> Self {
        Stream { shard, id, peer }
    }

    /// Returns the connection id, unique over all shards of a listener.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.shard.public_id(self.id)
    }

    /// Returns the peer's address on the first subflow.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Waits for the handshake. Returns the reason for the fallback if the connection runs as plain TCP.
    ///
    /// # Errors
    /// Fails if the connection ends before it is established.
    pub async fn connected(&self) -> Result<Option<FallbackReason>, CloseReason> {
        poll_fn(|cx| self.poll_connected(cx)).await
    }

    /// Poll version of [`connected`](Self::connected), for waiting on several connections.
    ///
    /// # Errors
    /// Fails if the connection ends before it is established.
    pub fn poll_connected(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<FallbackReason>, CloseReason>> {
        let mut state = self.shard.lock();
        let stopped = state.wakeups().is_stopped();
        match state.streams().handshake(self.id) {
            None => Poll::Ready(Err(CloseReason::Aborted)),
            Some(Handshake::Done(fallback)) => Poll::Ready(Ok(fallback)),
            Some(Handshake::Failed(reason)) => Poll::Ready(Err(reason)),
            Some(Handshake::Pending) if stopped => Poll::Ready(Err(CloseReason::Aborted)),
            Some(Handshake::Pending) => {
                state.streams().wait(self.id, AwaitedEvent::Connecting, cx);
                Poll::Pending
            }
        }
    }

    /// Returns the shard of the connection.
    pub(super) const fn shard(&self) -> &Arc<ShardHandle> {
        &self.shard
    }

    /// Returns the id within the shard.
    pub(super) const fn own_id(&self) -> ConnectionId {
        self.id
    }

    /// Returns a snapshot of the connection; `None` once its state is gone.
    #[must_use]
    pub fn info(&self) -> Option<ConnectionInfo> {
        let mut info = self.shard.lock().endpoint().info(self.id)?;
        info.id = self.id();
        Some(info)
    }

    /// Returns the value that identifies this connection to an inner protocol; it is equal on both sides
    /// ([`Endpoint::export_binding`](marline_core::Endpoint::export_binding)).
    #[must_use]
    pub fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.shard.lock().endpoint().export_binding(self.id, label)
    }

    /// Immediately ends the connection on both sides (MP_FASTCLOSE).
    pub fn abort(self) {
        self.shard.with_endpoint(|endpoint, now| endpoint.abort(now, self.id));
    }

    /// Runs a command on the endpoint of this connection.
    pub fn command<R>(
        &self,
        command: impl FnOnce(&mut marline_core::Endpoint, marline_time::Instant, ConnectionId) -> R,
    ) -> R {
        self.shard.with_endpoint(|endpoint, now| command(endpoint, now, self.id))
    }

    fn closed_error(&self, state: &mut State) -> io::Error {
        match state.streams().close_reason(self.id) {
            Some(reason) => to_io_error(reason),
            None => io::ErrorKind::NotConnected.into(),
        }
    }
}

fn to_io_error(reason: CloseReason) -> io::Error {
    io::Error::new(error_kind(reason), reason)
}

fn stopped_error() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the network driver has stopped")
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shard.drive_if_late();
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        state.streams().remove(self.id);
        state.endpoint().release(now, self.id);
        self.shard.serve(&mut state, now);
    }
}

impl Stream {
    /// Reads like [`AsyncRead::poll_read`](tokio::io::AsyncRead::poll_read). Only the task of the last call is
    /// woken.
    ///
    /// # Errors
    /// Fails if the connection ends before its end of stream.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        self.shard.drive_if_late();
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        match state.endpoint().read(now, self.id, buf.initialize_unfilled()) {
            Ok(len) => {
                buf.advance(len);
                // New space in the receive buffer may have to be announced.
                if !state.wakeups().defers_writes(now) {
                    self.shard.serve(&mut state, now);
                }
                budget.made_progress();
                Poll::Ready(Ok(()))
            }
            Err(ReadError::Blocked) => {
                if state.wakeups().is_stopped() {
                    return Poll::Ready(Err(stopped_error()));
                }
                state.streams().wait(self.id, AwaitedEvent::Reading, cx);
                Poll::Pending
            }
            Err(ReadError::Closed(reason)) => Poll::Ready(Err(to_io_error(reason))),
            Err(ReadError::Unknown) => Poll::Ready(Err(self.closed_error(&mut state))),
        }
    }

    /// Writes like [`AsyncWrite::poll_write`](tokio::io::AsyncWrite::poll_write). Data that fits the windows is sent
    /// before this returns, or at the end of this turn of the runtime, together with the writes of other connections.
    /// Only the task of the last call is woken.
    ///
    /// # Errors
    /// Fails if the connection has ended or was shut down.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// Writes several pieces in order, like one [`poll_write`](Self::poll_write) of all of them, so that TLS records
    /// are sent as one batch.
    ///
    /// # Errors
    /// See [`poll_write`](Self::poll_write); an error is returned only if nothing was written.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut pieces = pieces.iter().filter(|piece| !piece.is_empty());
        let Some(first) = pieces.next() else { return Poll::Ready(Ok(0)) };
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        self.shard.drive_if_late();
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        let mut piece = first;
        let mut written = 0;
        let refused = loop {
            match state.endpoint().write(now, self.id, piece) {
                Ok(len) => {
                    written += len;
                    match pieces.next() {
                        Some(next) if len == piece.len() => piece = next,
                        _ => break None,
                    }
                }
                Err(error) => break Some(error),
            }
        };
        match refused {
            Some(error) if written == 0 => self.refused(&mut state, cx, error),
            _ => {
                self.shard.serve_write(&mut state, now, self.id, written);
                budget.made_progress();
                Poll::Ready(Ok(written))
            }
        }
    }

    /// Returns the result of a write that accepted no bytes.
    fn refused(
        &self,
        state: &mut State,
        cx: &Context<'_>,
        error: WriteError,
    ) -> Poll<io::Result<usize>> {
        match error {
            WriteError::Blocked => {
                if state.wakeups().is_stopped() {
                    return Poll::Ready(Err(stopped_error()));
                }
                state.streams().wait(self.id, AwaitedEvent::Writing, cx);
                Poll::Pending
            }
            WriteError::Shutdown => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            WriteError::Closed(reason) => Poll::Ready(Err(to_io_error(reason))),
            WriteError::Unknown => Poll::Ready(Err(self.closed_error(state))),
        }
    }

    /// Shuts down our side: the peer reads the end of the stream (DATA_FIN) after everything that was written.
    pub fn shutdown(&self) {
        self.shard.with_endpoint(|endpoint, now| endpoint.shutdown(now, self.id));
    }
}

/// Connection requests from hosts behind a gateway, in order of arrival.
///
/// The endpoint limits their number ([`Limits::syn_queue`](marline_core::Limits)). Each request is reported once.
#[derive(Debug)]
pub struct Requests {
    shard: Arc<ShardHandle>,
    waiting: mpsc::UnboundedReceiver<FourTuple>,
}

/// Connection request from a host behind the gateway. Dropping it without an answer refuses it.
#[derive(Debug)]
pub struct Request {
    shard: Arc<ShardHandle>,
    path: FourTuple,
    answered: bool,
}

impl ShardHandle {
    /// Becomes the gateway of the hosts behind this interface; all packets other than TCP go to `sink`. The shard
    /// must have been started with [`CarrierKind::Gateway`](super::CarrierKind) and accept connections with
    /// [`withhold_syn_ack`](marline_core::ConnectionConfig::withhold_syn_ack).
    ///
    /// # Errors
    /// Fails if the interface cannot be watched.
    pub fn open_gateway(
        self: &Arc<Self>,
        tun: Tun,
        sink: Box<dyn PacketSink>,
    ) -> io::Result<Requests> {
        let (asked, waiting) = mpsc::unbounded_channel();
        let socket = Sock::gateway(tun)?;
        let mut state = self.lock();
        state.streams().set_gateway(asked, sink);
        drop(state);
        self.add_socket(socket)?;
        Ok(Requests { shard: Arc::clone(self), waiting })
    }
}

impl Requests {
    /// Waits for the next request. Returns `None` once the driver has stopped. Safe to cancel.
    pub async fn next(&mut self) -> Option<Request> {
        let path = self.waiting.recv().await?;
        Some(Request { shard: Arc::clone(&self.shard), path, answered: false })
    }
}

impl Request {
    /// Returns the ends of the connection: `local` is the target, `remote` is the requesting host.
    #[must_use]
    pub const fn path(&self) -> FourTuple {
        self.path
    }

    /// Answers with a SYN/ACK; [`Stream::connected`] reports whether the handshake succeeds. Returns `None` if the
    /// request is no longer current or there is no room for another connection.
    #[must_use]
    pub fn admit(mut self) -> Option<Stream> {
        self.answered = true;
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        let id = state.endpoint().admit(now, &self.path);
        if let Some(id) = id {
            state.streams().add(id);
        }
        self.shard.serve(&mut state, now);
        drop(state);
        id.map(|id| Stream::admitted(Arc::clone(&self.shard), id, self.path.remote))
    }

    /// Refuses the request with an RST.
    pub fn refuse(self) {
        // `drop` sends the refusal.
        drop(self);
    }

    /// Withdraws the request without notifying the requesting host. Returns the sequence number that an ICMP message
    /// must quote, or `None` if the request is no longer current.
    #[must_use]
    pub fn forget(mut self) -> Option<SeqNum> {
        self.answered = true;
        self.shard.with_endpoint(|endpoint, _| endpoint.forget_request(&self.path))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            self.shard.with_endpoint(|endpoint, now| endpoint.refuse(now, &self.path));
        }
    }
}
