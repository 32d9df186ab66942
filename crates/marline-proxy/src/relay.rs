//! Bidirectional relay between an application's socket and its encrypted stream.
//!
//! The end of one direction is passed on as the end of that direction (FIN, close_notify and DATA_FIN are
//! equivalent here), and the other direction continues. An error aborts both directions at once, because an
//! application must never mistake a broken transfer for a complete one. A standstill after an end also aborts both:
//! the sender has finished, and the receiver has accepted nothing for minutes.

mod pump;
pub(crate) mod socket_buffers;
mod standstill;
pub(crate) mod turns;

use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use marline::memory::MemoryAccount;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::pump::Pump;
use self::socket_buffers::{BlockedDirections, SocketBuffers};
use self::standstill::Standstill;
use self::turns::{AccountTurns, Turn};
use crate::memory_trim::Carried;
use crate::transport::Transport;

/// Log target of the lines on closed connections, by which a log can include or omit them.
pub const CONNECTIONS: &str = "marline::connections";

/// Bytes relayed, for metrics, and the account that is charged for them.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes from the local side: the application, on the server the target, and in front of a service the service.
    pub from_local: AtomicU64,
    /// Bytes to the local side.
    pub to_local: AtomicU64,
    of: Of,
}

/// Owner of the counts. Kept small, as every stream has one for its whole life.
#[derive(Debug)]
enum Of {
    /// All connections of an account.
    All {
        memory: MemoryAccount,
        /// Set where several accounts share a runtime.
        turns: Option<AccountTurns>,
    },
    /// One connection, whose bytes are also added to the whole.
    One(Arc<Traffic>),
}

impl Default for Of {
    fn default() -> Of {
        Of::All { memory: MemoryAccount::default(), turns: None }
    }
}

impl Traffic {
    /// Traffic of one connection that is also added to `whole`.
    #[must_use]
    pub fn part_of(whole: &Arc<Traffic>) -> Traffic {
        Traffic::of(Of::One(Arc::clone(whole)))
    }

    /// Traffic of an account whose memory is charged to `memory`.
    #[must_use]
    pub fn charged_to(memory: MemoryAccount) -> Traffic {
        Traffic::of(Of::All { memory, turns: None })
    }

    /// Traffic of an account whose relays take turns with those of other accounts.
    pub(crate) fn with_turns(memory: MemoryAccount, turns: AccountTurns) -> Traffic {
        Traffic::of(Of::All { memory, turns: Some(turns) })
    }

    const fn of(of: Of) -> Traffic {
        Traffic { from_local: AtomicU64::new(0), to_local: AtomicU64::new(0), of }
    }

    /// The account that is charged for the memory of relaying.
    #[must_use]
    pub fn memory(&self) -> &MemoryAccount {
        match &self.of {
            Of::All { memory, .. } => memory,
            Of::One(whole) => whole.memory(),
        }
    }

    fn turns(&self) -> Option<&AccountTurns> {
        match &self.of {
            Of::All { turns, .. } => turns.as_ref(),
            Of::One(whole) => whole.turns(),
        }
    }

    /// Counts bytes from the local side and to it.
    pub(crate) fn count(&self, from_local: u64, to_local: u64) {
        self.from_local.fetch_add(from_local, Ordering::Relaxed);
        self.to_local.fetch_add(to_local, Ordering::Relaxed);
        if let Of::One(whole) = &self.of {
            whole.count(from_local, to_local);
        }
    }

    /// Bytes to the local side and from it.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.to_local.load(Ordering::Relaxed), self.from_local.load(Ordering::Relaxed))
    }
}

/// Relays bytes between `local` and `remote` until both directions have ended, or `cancel` resolves. Returns
/// `remote` after a clean end.
///
/// `cancel` should be pinned by the caller: a future that is an argument of another takes its space twice for the
/// life of the connection.
///
/// # Errors
/// The first error of either side, or `ConnectionAborted` after `cancel`. Both sides are then aborted.
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

/// Logs the end of a connection, if the log includes that: its owner, duration and bytes. The target is never
/// logged.
pub(crate) fn log_end<R>(
    who: &dyn Display,
    begun: Instant,
    traffic: &Traffic,
    end: &io::Result<R>,
) {
    let (to_local_bytes, from_local_bytes) = traffic.counts();
    let seconds = begun.elapsed().as_secs_f64();
    let how = match end {
        Ok(_) => "normally".to_owned(),
        Err(error) => format!("with an error: {error}"),
    };
    tracing::info!(
        target: CONNECTIONS, %who, seconds, from_local_bytes, to_local_bytes, "connection closed {how}"
    );
}

/// Relays bytes in both directions until both have ended.
async fn both_ways<L, R>(local: &mut Counted<'_, L>, remote: &mut R) -> io::Result<()>
where
    L: Transport,
    R: Transport,
{
    let (mut out, mut back) = (Pump::default(), Pump::default());
    let mut standstill = Standstill::default();
    let mut buffers = SocketBuffers::begin(local.inner.socket(), local.traffic.memory());
    let mut turn = Turn::default();
    // Moved into the closure, because references would make the task of a stream larger.
    poll_fn(move |cx| {
        if let Some(turns) = local.traffic.turns() {
            ready!(turn.poll(cx, turns));
        }
        let memory = local.traffic.memory();
        // Bytes buffered in the encryption of the remote side are flushed first, so only this side needs a check.
        let has_room = !pump::is_short(memory) || local.inner.poll_room(cx).is_ready();
        let out_ended = out.poll(cx, local, remote, memory, true)?;
        let back_ended = back.poll(cx, remote, local, memory, has_room)?;
        let blocked = BlockedDirections { from: out.is_blocked(), to: back.is_blocked() };
        buffers.note_blocked(local.inner.socket(), memory, blocked);
        // Independent of blocking: the rest of a record may take long to arrive.
        buffers.note_kept(memory, remote.buffered(socket_buffers::is_memory_tight(memory)));
        if out_ended.is_ready() && back_ended.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if out.is_blocked() || back.is_blocked() || out.is_done() || back.is_done() {
            let looked = || (local.traffic.counts(), local.inner.peer_state(), remote.peer_state());
            standstill.poll(cx, &out, &back, looked)?;
        }
        Poll::Pending
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
        self.traffic.count(read, 0);
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
            self.traffic.count(0, written as u64);
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
