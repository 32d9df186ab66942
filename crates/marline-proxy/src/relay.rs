//! Bidirectional relay between an application's socket and its encrypted stream.
//!
//! An end of one direction is passed on as an end of that direction (FIN, close_notify, DATA_FIN are
//! the same thing here); the other direction goes on. An error ends both directions at once, and
//! badly: an application must never take a broken transfer for a complete one.

mod pump;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::pump::Pump;
use crate::memory_trim::Carried;
use crate::transport::Transport;

/// Bytes relayed, for metrics.
#[derive(Debug, Default)]
pub struct Traffic {
    /// From the application (on the server: from the target; in front of a service: from it).
    pub from_local: AtomicU64,
    /// To it.
    pub to_local: AtomicU64,
}

impl Traffic {
    /// Bytes to the local side and from it.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.to_local.load(Ordering::Relaxed), self.from_local.load(Ordering::Relaxed))
    }
}

/// Relays bytes between `local` and `remote` until both directions ended, or `cancel` resolves.
/// Returns `remote` after a clean end.
///
/// # Errors
/// The first error of either side, or `ConnectionAborted` after `cancel`; both sides are aborted
/// then.
pub async fn relay<L, R>(
    local: L,
    mut remote: R,
    traffic: &Traffic,
    cancel: impl Future<Output = ()>,
) -> io::Result<R>
where
    L: Transport,
    R: Transport,
{
    let _carried = Carried;
    let mut local = Counted { inner: local, traffic };
    let copy = both_ways(&mut local, &mut remote);
    let result = tokio::select! {
        result = copy => result,
        () = cancel => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    match result {
        Ok(()) => Ok(remote),
        Err(error) => {
            local.inner.abort();
            remote.abort();
            Err(error)
        }
    }
}

/// Passes bytes in both directions until both have ended.
async fn both_ways<L, R>(local: &mut L, remote: &mut R) -> io::Result<()>
where
    L: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (mut out, mut back) = (Pump::default(), Pump::default());
    poll_fn(|cx| {
        let out = out.poll(cx, local, remote)?;
        let back = back.poll(cx, remote, local)?;
        ready!(out);
        ready!(back);
        Poll::Ready(Ok(()))
    })
    .await
}

struct Counted<'a, S> {
    inner: S,
    traffic: &'a Traffic,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        self.traffic.from_local.fetch_add(read, Ordering::Relaxed);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = result {
            self.traffic.to_local.fetch_add(written as u64, Ordering::Relaxed);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
