//! Owned halves of a stream for two tasks.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;

/// Reading half of a [`Stream`], from [`Stream::into_split`].
///
/// The connection is released when both halves are dropped.
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Arc<Stream>,
}

/// Writing half of a [`Stream`], from [`Stream::into_split`].
///
/// Dropping it shuts down our side of the connection; [`forget`](Self::forget) does not.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<Stream>,
    shuts_down: bool,
}

/// Error of `reunite` for halves of different streams. Contains both.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

pub(super) fn split(stream: Stream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    let read = OwnedReadHalf { stream: Arc::clone(&stream) };
    (read, OwnedWriteHalf { stream, shuts_down: true })
}

impl OwnedReadHalf {
    /// Reunites the two halves of a stream.
    ///
    /// # Errors
    /// The halves belong to different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<Stream, ReuniteError> {
        if !Arc::ptr_eq(&self.stream, &write.stream) {
            return Err(ReuniteError(self, write));
        }
        write.forget();
        match Arc::try_unwrap(self.stream) {
            Ok(stream) => Ok(stream),
            Err(_) => unreachable!("the other half of the stream was dropped"),
        }
    }

    /// Returns the underlying stream, for queries and settings.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl OwnedWriteHalf {
    /// Drops the half without shutting down our side of the connection.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }

    /// Returns the underlying stream, for queries and settings.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shuts_down {
            self.stream.inner.shutdown();
        }
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream.inner.poll_read(cx, buf)
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream.inner.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.inner.poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.inner.shutdown();
        Poll::Ready(Ok(()))
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves belong to different streams")
    }
}

impl std::error::Error for ReuniteError {}
