//! Byte stream interface of the proxy: tests run over pipes and TCP, the product over Marline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use marline::MemoryAccount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, Interest};
use tokio::net::{TcpStream, UnixStream};

use crate::session::{BINDING_LABEL, Binding};

/// What is known of the peer of a stream that makes no progress.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    /// The peer has finished sending; what it sent may still be unread.
    pub finished: bool,
    /// The peer answers, but takes no data. `false`: it takes data, or nothing is heard of it.
    pub refuses_data: bool,
    /// Written bytes that the peer has not acknowledged.
    pub unacknowledged: u64,
}

impl PeerState {
    /// That of a multipath connection.
    #[must_use]
    pub fn of_multipath(info: &marline::ConnectionInfo) -> PeerState {
        PeerState {
            finished: info.peer_finished,
            refuses_data: info.unsent > 0 && info.ack_due_since.is_none(),
            unacknowledged: info.bytes_written.saturating_sub(info.bytes_acked),
        }
    }
}

/// A byte stream that can also be aborted.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Ends both directions at once so that the peer sees an error, not an orderly end.
    fn abort(self);

    /// The peer has authenticated itself: a path that comes back is worth waiting for, and this account is charged for
    /// the memory of the stream.
    fn know_peer(&self, _account: &MemoryAccount) {}

    /// The socket that it is, whose buffers the kernel has; `None`: there is none, or it is shared with other streams.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ready while a write would be taken. Unlike a write, it tells so without bytes at hand; and where the kernel
    /// has a limit of unsent bytes, it keeps to that limit more closely.
    fn poll_room(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Bytes of its own buffers, which may stay as they are for long. `trim`: unused room is returned first.
    fn buffered(&mut self, _trim: bool) -> u64 {
        0
    }

    /// Both directions have ended in good order, and nobody will use it here: what can serve again goes where it
    /// came from, what cannot is dropped.
    fn finish(self)
    where
        Self: Sized,
    {
    }

    /// What the peer is doing.
    fn peer_state(&self) -> PeerState {
        PeerState::default()
    }

    /// The multipath stream that it is, or stands on; `None`: there is none, and no lane for datagrams beside it.
    fn multipath(&self) -> Option<&marline::Stream> {
        None
    }

    /// What names this connection and no other, to both of its ends; `None` where nothing does: then no
    /// session can be bound to it.
    fn binding(&self) -> Option<Binding> {
        None
    }
}

impl Transport for marline::Stream {
    fn abort(self) {
        marline::Stream::abort(self);
    }

    fn know_peer(&self, account: &MemoryAccount) {
        marline::Stream::know_peer(self);
        self.charge_memory_to(account);
    }

    fn binding(&self) -> Option<Binding> {
        self.export_binding(BINDING_LABEL)
    }

    fn peer_state(&self) -> PeerState {
        self.info().map(|info| PeerState::of_multipath(&info)).unwrap_or_default()
    }

    fn multipath(&self) -> Option<&marline::Stream> {
        Some(self)
    }
}

/// A reset instead of a FIN.
impl Transport for TcpStream {
    fn abort(self) {
        // Without the option the peer sees an orderly end; nothing else can be done then.
        let _ = self.set_zero_linger();
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            // Within `try_io`, so that room that comes after the look is not missed.
            if self.try_io(Interest::WRITABLE, || look_for_room(self.as_fd())).is_ok() {
                return Poll::Ready(());
            }
            // An error is the next write's.
            let _ = ready!(self.poll_write_ready(cx));
        }
    }

    /// The kernel says whether a FIN came, read or not. Whoever takes nothing for minutes counts as one that refuses:
    /// a connection of which nothing is heard at all ends by the kernel's own timeouts.
    fn peer_state(&self) -> PeerState {
        let mut polled = [PollFd::new(self, PollFlags::RDHUP)];
        let ready = poll(&mut polled, Some(&Timespec::default()));
        let finished = ready.is_ok() && polled[0].revents().contains(PollFlags::RDHUP);
        PeerState { finished, refuses_data: true, unacknowledged: 0 }
    }
}

/// A unix socket knows no reset: the peer sees one only if there is something it sent and we did not
/// read, else an end.
impl Transport for UnixStream {
    fn abort(self) {}

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.try_io(Interest::WRITABLE, || look_for_room(self.as_fd())).is_ok() {
                return Poll::Ready(());
            }
            let _ = ready!(self.poll_write_ready(cx));
        }
    }
}

/// Asks the kernel whether a socket has room now. If not, the kernel will report when it has, which it does only
/// after somebody asked or was refused.
fn look_for_room(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        // Also an error of the socket: the write that follows reports it.
        _ => Ok(()),
    }
}

/// A dropped pipe is an end without close_notify, which TLS reports as an error.
impl Transport for DuplexStream {
    fn abort(self) {}
}

/// Whether an error means that the peer aborted the stream.
#[must_use]
pub fn is_reset(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}
