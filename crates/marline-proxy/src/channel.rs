//! Encrypted stream between client and server: TLS, or the records of a session.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use marline::memory::MemoryAccount;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use crate::record::RecordStream;
use crate::session::Binding;
use crate::session::sealed::SealedStream;
use crate::transport::{PeerState, Transport};

/// An encrypted stream of the client or the server.
pub enum Channel<T> {
    /// Fully authenticated on this connection. Boxed, since it is several times as large as the
    /// other variant.
    Tls(Box<RecordStream<TlsStream<T>>>),
    /// Authenticated by a session.
    Session(Box<SealedStream<T>>),
}

impl<T> fmt::Debug for Channel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Channel::Tls(_) => "Channel::Tls",
            Channel::Session(_) => "Channel::Session",
        })
    }
}

impl<T> Channel<T> {
    /// Wraps a stream after its TLS handshake.
    pub fn tls(stream: impl Into<TlsStream<T>>) -> Channel<T> {
        Channel::Tls(Box::new(RecordStream::new(stream.into())))
    }

    /// Returns the client's TLS connection, if this is one.
    pub fn client_tls(&self) -> Option<&rustls::ClientConnection> {
        match self {
            Channel::Tls(stream) => match stream.get_ref() {
                TlsStream::Client(stream) => Some(stream.get_ref().1),
                TlsStream::Server(_) => None,
            },
            Channel::Session(_) => None,
        }
    }

    /// Keeps the connection open after the current request, if possible ([`SealedStream::keep`]). A session can do
    /// this; a TLS connection ends with its stream.
    pub fn keep_open(&mut self) {
        if let Channel::Session(stream) = self {
            stream.keep();
        }
    }

    /// Prepares the connection for another request once both directions have ended
    /// ([`SealedStream::renew`]). Returns true if it can be reused.
    pub fn renew(&mut self) -> bool {
        match self {
            Channel::Tls(_) => false,
            Channel::Session(stream) => stream.renew(),
        }
    }

    /// Returns true if the peer has ended its direction properly and that end has been read. Known only for the stream
    /// of a session.
    pub fn has_ended(&self) -> bool {
        match self {
            Channel::Tls(_) => false,
            Channel::Session(stream) => stream.has_ended(),
        }
    }

    /// Returns the stream below the encryption.
    fn inner(&self) -> &T {
        match self {
            Channel::Tls(stream) => stream.get_ref().get_ref().0,
            Channel::Session(stream) => stream.get_ref(),
        }
    }

    /// Wraps a stream of a session.
    pub fn session(stream: SealedStream<T>) -> Channel<T> {
        Channel::Session(Box::new(stream))
    }
}

impl<T: Transport> Transport for Channel<T> {
    fn abort(self) {
        match self {
            Channel::Tls(stream) => match stream.into_inner() {
                TlsStream::Client(stream) => stream.into_inner().0.abort(),
                TlsStream::Server(stream) => stream.into_inner().0.abort(),
            },
            Channel::Session(stream) => stream.into_inner().abort(),
        }
    }

    fn peer_state(&self) -> PeerState {
        self.inner().peer_state()
    }

    fn mark_authenticated(&self, account: &MemoryAccount) {
        self.inner().mark_authenticated(account);
    }

    /// Returns 0 for TLS, whose buffers are unknown. Only the first connections to a server use TLS.
    fn buffered(&mut self, trim: bool) -> u64 {
        match self {
            Channel::Tls(_) => 0,
            Channel::Session(stream) => stream.buffered(trim),
        }
    }

    fn binding(&self) -> Option<Binding> {
        self.inner().binding()
    }

    fn multipath(&self) -> Option<&marline::Stream> {
        self.inner().multipath()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Channel<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Channel::Session(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Channel<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Channel::Session(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Channel::Session(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Channel::Session(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
