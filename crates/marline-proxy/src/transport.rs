//! Byte stream interface of the proxy. Tests run over pipes and TCP, the product over Marline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use marline::memory::MemoryAccount;
use marline::monitor::{ConnectionInfo, SubflowInfo};
use marline::policy::Health;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, Interest};
use tokio::net::{TcpStream, UnixStream};

use crate::session::{BINDING_LABEL, Binding};
use crate::sys;

/// State of the peer of a stream that makes no progress.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// True if the peer has finished sending. Some of its data may still be unread.
    pub finished: bool,
    /// True if the peer answers but accepts no data; false if it accepts data or nothing is received from it.
    pub refuses_data: bool,
    /// Written bytes that the peer has not acknowledged.
    pub unacknowledged: u64,
    /// True if written bytes are not acknowledged and no path to the peer answers.
    pub unreachable: bool,
}

impl PeerState {
    /// Creates the state of a multipath connection's peer.
    #[must_use]
    pub fn from_connection(info: &ConnectionInfo) -> PeerState {
        let unacknowledged = info.bytes_written.saturating_sub(info.bytes_acked);
        let silent = |subflow: &SubflowInfo| matches!(subflow.health, Health::Unreachable { .. });
        PeerState {
            finished: info.peer_finished,
            refuses_data: info.unsent > 0 && info.ack_due_since.is_none(),
            unacknowledged,
            unreachable: unacknowledged > 0 && info.subflows.iter().all(silent),
        }
    }
}

/// A byte stream that can also be aborted.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Ends both directions immediately, so that the peer sees an error and not an orderly end.
    fn abort(self);

    /// Marks the peer as authenticated. The connection then waits longer for a path to return, and the memory of the
    /// stream is charged to this account.
    fn mark_authenticated(&self, _account: &MemoryAccount) {}

    /// Returns the socket below this stream, with its buffers in the kernel, or `None` if there is none, or if other
    /// streams share it.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ready while a write would be accepted. Unlike a write, this needs no bytes. Where the kernel limits unsent
    /// bytes, this follows the limit more closely.
    fn poll_room(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Returns the number of bytes in buffers of this stream, which may stay unchanged for long. If `trim` is true,
    /// unused space is freed first.
    fn buffered(&mut self, _trim: bool) -> u64 {
        0
    }

    /// Called when both directions have ended properly and the stream is no longer needed. A reusable stream goes back
    /// to its pool, any other is dropped.
    fn finish(self)
    where
        Self: Sized,
    {
    }

    /// Returns the current state of the peer.
    fn peer_state(&self) -> PeerState {
        PeerState::default()
    }

    /// Returns the multipath stream below this one, or `None` if there is none, and then no datagram lane either.
    fn multipath(&self) -> Option<&marline::Stream> {
        None
    }

    /// Returns the value that uniquely identifies this connection to both ends, or `None` if there is none, and then
    /// no session can be bound to it.
    fn binding(&self) -> Option<Binding> {
        None
    }
}

impl Transport for marline::Stream {
    fn abort(self) {
        marline::Stream::abort(self);
    }

    fn mark_authenticated(&self, account: &MemoryAccount) {
        marline::Stream::mark_authenticated(self);
        self.charge_memory_to(account);
    }

    fn binding(&self) -> Option<Binding> {
        self.export_binding(BINDING_LABEL)
    }

    fn peer_state(&self) -> PeerState {
        self.info().map(|info| PeerState::from_connection(&info)).unwrap_or_default()
    }

    fn multipath(&self) -> Option<&marline::Stream> {
        Some(self)
    }
}

/// Aborts with a reset instead of a FIN.
impl Transport for TcpStream {
    fn abort(self) {
        // If the option cannot be set, the peer sees an orderly end, and nothing better is possible.
        let _ = self.set_zero_linger();
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            // Within `try_io`, so that room that appears after the check is not missed.
            if self.try_io(Interest::WRITABLE, || request_writability(self.as_fd())).is_ok() {
                return Poll::Ready(());
            }
            // The next write reports any error.
            let _ = ready!(self.poll_write_ready(cx));
        }
    }

    /// Queries the kernel, which reports whether a FIN arrived, even an unread one. A peer that accepts nothing for
    /// minutes counts as refusing: the kernel's own timeouts end a connection from which nothing is received.
    fn peer_state(&self) -> PeerState {
        PeerState { finished: sys::has_finished(self), refuses_data: true, ..PeerState::default() }
    }
}

/// A Unix socket has no reset: the peer sees one only if some of its data is unread here, and otherwise an end.
impl Transport for UnixStream {
    fn abort(self) {}

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.try_io(Interest::WRITABLE, || request_writability(self.as_fd())).is_ok() {
                return Poll::Ready(());
            }
            let _ = ready!(self.poll_write_ready(cx));
        }
    }
}

/// Asks the kernel whether a socket has room now. If it has none, the kernel will report when it has room again, which
/// it does only after a check or a refused write.
fn request_writability(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        // After an error, the socket also counts as writable; the next write reports the error.
        _ => Ok(()),
    }
}

/// A dropped pipe ends without close_notify, which TLS reports as an error.
impl Transport for DuplexStream {
    fn abort(self) {}
}

/// Returns true if an error means that the peer aborted the stream.
#[must_use]
pub fn is_reset(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}
