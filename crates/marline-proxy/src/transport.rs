//! Byte stream interface of the proxy: tests run over pipes and TCP, the product over Marline.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream};

use crate::session::{BINDING_LABEL, Binding};

/// A byte stream that can also be aborted.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Ends both directions at once so that the peer sees an error, not an orderly end.
    fn abort(self);

    /// The peer has authenticated itself: a path that comes back is worth waiting for.
    fn know_peer(&self) {}

    /// Both directions have ended in good order, and nobody will use it here: what can serve again goes where it
    /// came from, what cannot is dropped.
    fn finish(self)
    where
        Self: Sized,
    {
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

    fn know_peer(&self) {
        marline::Stream::know_peer(self);
    }

    fn binding(&self) -> Option<Binding> {
        self.export_binding(BINDING_LABEL)
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
}

/// A unix socket knows no reset: the peer sees one only if there is something it sent and we did not
/// read, else an end.
impl Transport for UnixStream {
    fn abort(self) {}
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
