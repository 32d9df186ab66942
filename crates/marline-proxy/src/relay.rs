//! Bidirectional relay between an application's socket and its encrypted stream.
//!
//! The end of one direction is passed on as the end of that direction (FIN, close_notify and DATA_FIN are
//! equivalent here), and the other direction continues. An error aborts both directions immediately, because an
//! application must never mistake a broken transfer for a complete one. A standstill after an end also aborts both:
//! the sender has finished, and the receiver has accepted nothing for minutes.
//!
//! *Memory.* Most connections are idle most of the time, and permanent buffers would be most of their cost: two of 59
//! KiB for each of ten thousand idle streams take 1.2 GB at each end. Therefore a direction has a buffer only while
//! bytes are in it. To read, it borrows the buffer of its thread, and returns it when everything is written, which is
//! nearly always immediately. Only while the writer is blocked does the direction keep the buffer. In addition, a
//! buffer shared by all streams of a thread is likely to be in its CPU's cache.
//!
//! When memory is short, a direction reads less at a time, and only once the writer has passed on everything and
//! has room for more. A blocked direction then mostly holds nothing, because the bytes wait at their source. Any
//! remaining bytes are kept in a buffer of exactly their length.
//!
//! The order of reads, writes and flushes is that of tokio's `copy_bidirectional`: fill up while there is room,
//! write, flush before waiting for more. The only difference is the end, which includes the flush.

pub(crate) mod socket_buffers;
mod standstill;
pub(crate) mod turns;

use std::cell::Cell;
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use marline::memory::{MemoryAccount, MemoryCharge, MemoryKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::socket_buffers::{BlockedDirections, SocketBuffers};
use self::standstill::{Direction, Standstill};
use self::turns::{AccountTurns, Turn};
use crate::memory_trim::EndCounter;
use crate::transport::Transport;

/// Log target of the lines about closed connections, so that a log can include or omit them.
pub const CONNECTIONS: &str = "marline::connections";

/// Size of the read-ahead buffer in bytes: as many as leave in one batch (44 segments) or as one packet, sealed and
/// with their headers, on paths with an MTU of 1,500 bytes, IPv6 included. With 64 KiB, a second packet with the
/// remainder would follow each.
const BUFFER_LEN: usize = 59 * 1_024;
/// Number of times a buffer is filled before other tasks get their turn: 118 KiB, or a tenth of a millisecond of a bulk
/// transfer. With tokio's own budget other tasks, and with them messages of other streams, would wait for 2 MB.
const FILLS_PER_TURN: usize = 2;

/// Smallest number of bytes read at a time when memory is short.
const MIN_READ_BYTES: usize = 4 * 1_024;

const _: () = assert!(BUFFER_LEN <= u16::MAX as usize, "positions in the buffer fit u16");

thread_local! {
    /// This thread's buffer, while no direction has borrowed it.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Bytes relayed, for metrics, and the account that is charged for them.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes from the local side: the application, or on the server the target, or in a front the service.
    pub from_local: AtomicU64,
    /// Bytes to the local side.
    pub to_local: AtomicU64,
    of: TrafficOwner,
}

/// Owner of the counts. Kept small, as every stream has one for its whole life.
#[derive(Debug)]
enum TrafficOwner {
    /// All connections of an account.
    All {
        memory: MemoryAccount,
        /// `Some` if several accounts share a runtime.
        turns: Option<AccountTurns>,
    },
    /// One connection, whose bytes are also added to the account's total.
    One(Arc<Traffic>),
}

impl Default for TrafficOwner {
    fn default() -> TrafficOwner {
        TrafficOwner::All { memory: MemoryAccount::default(), turns: None }
    }
}

impl Traffic {
    /// Returns the traffic of one connection that is also added to `whole`.
    #[must_use]
    pub fn part_of(whole: &Arc<Traffic>) -> Traffic {
        Traffic::for_owner(TrafficOwner::One(Arc::clone(whole)))
    }

    /// Creates the traffic of an account whose memory is charged to `memory`.
    #[must_use]
    pub fn with_account(memory: MemoryAccount) -> Traffic {
        Traffic::for_owner(TrafficOwner::All { memory, turns: None })
    }

    /// Creates the traffic of an account whose relays take turns with those of other accounts.
    pub(crate) fn with_turns(memory: MemoryAccount, turns: AccountTurns) -> Traffic {
        Traffic::for_owner(TrafficOwner::All { memory, turns: Some(turns) })
    }

    const fn for_owner(of: TrafficOwner) -> Traffic {
        Traffic { from_local: AtomicU64::new(0), to_local: AtomicU64::new(0), of }
    }

    /// Returns the account that is charged for the memory of relaying.
    #[must_use]
    pub fn memory(&self) -> &MemoryAccount {
        match &self.of {
            TrafficOwner::All { memory, .. } => memory,
            TrafficOwner::One(whole) => whole.memory(),
        }
    }

    fn account_turns(&self) -> Option<&AccountTurns> {
        match &self.of {
            TrafficOwner::All { turns, .. } => turns.as_ref(),
            TrafficOwner::One(whole) => whole.account_turns(),
        }
    }

    /// Counts bytes from and to the local side.
    pub(crate) fn count(&self, from_local: u64, to_local: u64) {
        self.from_local.fetch_add(from_local, Ordering::Relaxed);
        self.to_local.fetch_add(to_local, Ordering::Relaxed);
        if let TrafficOwner::One(whole) = &self.of {
            whole.count(from_local, to_local);
        }
    }

    /// Returns the number of bytes to the local side and from it.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.to_local.load(Ordering::Relaxed), self.from_local.load(Ordering::Relaxed))
    }
}

/// Relays bytes between `local` and `remote` until both directions have ended, or `cancel` resolves. Returns
/// `remote` after a clean end.
///
/// `cancel` should be pinned by the caller: a future that is an argument of another one takes twice its space for the
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
    let _carried = EndCounter;
    let mut local = CountedStream { inner: local, traffic };
    let copy = relay_both_ways(&mut local, &mut remote);
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
async fn relay_both_ways<L, R>(local: &mut CountedStream<'_, L>, remote: &mut R) -> io::Result<()>
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
        if let Some(turns) = local.traffic.account_turns() {
            ready!(turn.poll(cx, turns));
        }
        let memory = local.traffic.memory();
        // Bytes buffered in the encryption of the remote side are flushed first, so only this side needs a check.
        let has_room = !is_short(memory) || local.inner.poll_room(cx).is_ready();
        let out_ended = out.poll(cx, local, remote, memory, true)?;
        let back_ended = back.poll(cx, remote, local, memory, has_room)?;
        let blocked = BlockedDirections { from: out.is_blocked(), to: back.is_blocked() };
        buffers.record_blocked(local.inner.socket(), memory, blocked);
        // This is charged even if no direction is blocked: the rest of a record may take long to arrive.
        buffers.record_kept(memory, remote.buffered(socket_buffers::is_memory_tight(memory)));
        if out_ended.is_ready() && back_ended.is_ready() {
            return Poll::Ready(Ok(()));
        }
        if out.is_blocked() || back.is_blocked() || out.is_done() || back.is_done() {
            let looked = || (local.traffic.counts(), local.inner.peer_state(), remote.peer_state());
            standstill.poll(cx, out.direction(), back.direction(), looked)?;
        }
        Poll::Pending
    })
    .await
}

struct CountedStream<'a, S> {
    inner: S,
    traffic: &'a Traffic,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<'_, S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<'_, S> {
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

/// Returns true if a direction may read only as much as its writer has room for.
fn is_short(memory: &MemoryAccount) -> bool {
    memory.allowance() < BUFFER_LEN as u64
}

fn borrow() -> Box<[u8]> {
    SPARE.take().unwrap_or_else(|| vec![0; BUFFER_LEN].into_boxed_slice())
}

fn give_back(buffer: Box<[u8]>) {
    if buffer.len() == BUFFER_LEN {
        SPARE.set(Some(buffer));
    }
}

/// Buffer of a blocked direction, and the charge for it.
#[derive(Debug)]
struct HeldBuffer {
    /// Bytes that are not written yet. Empty while the direction waits for room before it reads.
    buffer: Box<[u8]>,
    _charge: MemoryCharge,
}

/// State of a direction.
#[derive(Debug, Default)]
enum Phase {
    /// Bytes are copied.
    #[default]
    Copying,
    /// All bytes are written; the end must be signaled to the writer.
    Ending,
    /// The end has been signaled.
    Done,
}

/// Bytes from a reader to a writer.
#[derive(Debug, Default)]
struct Pump {
    phase: Phase,
    /// `Some` only while the direction is blocked.
    held: Option<Box<HeldBuffer>>,
    /// Written and filled length of the buffer. Small integers, because every stream has two pumps for its whole
    /// life.
    written: u16,
    filled: u16,
    /// True if the reader has ended.
    read_all: bool,
    /// True if something was written since the last flush.
    unflushed: bool,
}

impl Pump {
    /// Copies until the reader's end has been passed on. The buffer is charged to `memory`. `has_room` is true if the
    /// writer would accept bytes now, as far as is known. This matters only [when memory is short](is_short).
    ///
    /// # Errors
    /// The first error of either side.
    fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        memory: &MemoryAccount,
        has_room: bool,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if matches!(self.phase, Phase::Copying) {
            if self.filled == 0 && is_short(memory) {
                ready!(self.poll_room(cx, writer, memory, has_room))?;
            }
            ready!(self.poll_copy(cx, reader, writer, memory))?;
            self.phase = Phase::Ending;
        }
        if matches!(self.phase, Phase::Ending) {
            ready!(Pin::new(writer).poll_shutdown(cx))?;
            self.phase = Phase::Done;
        }
        Poll::Ready(Ok(()))
    }

    fn unwritten_range(&self) -> Range<usize> {
        self.written.into()..self.filled.into()
    }

    /// Returns true if the direction waits for the writer to accept bytes or the end.
    const fn is_blocked(&self) -> bool {
        self.held.is_some() || matches!(self.phase, Phase::Ending)
    }

    /// Returns true if the end has been passed on.
    const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Returns the state of the direction for the detection of a standstill.
    const fn direction(&self) -> Direction {
        Direction {
            written: self.written as usize,
            read_all: self.read_all,
            is_blocked: self.is_blocked(),
            is_done: self.is_done(),
        }
    }

    /// Returns true if the direction holds a buffer of its own.
    #[cfg(test)]
    fn holds_memory(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.buffer.is_empty())
    }

    /// Waits until the writer has passed on everything and has room.
    fn poll_room<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
        memory: &MemoryAccount,
        has_room: bool,
    ) -> Poll<io::Result<()>> {
        let flushed = Pin::new(writer).poll_flush(cx)?;
        if flushed.is_ready() {
            self.unflushed = false;
            if has_room {
                self.held = None;
                return Poll::Ready(Ok(()));
            }
        }
        self.held.get_or_insert_with(|| {
            Box::new(HeldBuffer {
                buffer: Box::default(),
                _charge: memory.charge(MemoryKind::Relay, 0),
            })
        });
        Poll::Pending
    }

    fn poll_copy<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        memory: &MemoryAccount,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let held = self.held.take().filter(|held| !held.buffer.is_empty());
        let mut buffer = held.map_or_else(borrow, |held| held.buffer);
        let allowed = usize::try_from(memory.allowance()).unwrap_or(usize::MAX);
        let (most, fills) = match allowed < BUFFER_LEN {
            // Held bytes are written before more is read, and each read waits for room.
            true if self.filled > 0 => (self.filled.into(), 1),
            true => (allowed.max(MIN_READ_BYTES), 1),
            false => (buffer.len(), FILLS_PER_TURN),
        };
        let result = self.copy_with(cx, &mut buffer[..most], fills, reader, writer);
        if self.written < self.filled && result.is_pending() {
            if allowed < BUFFER_LEN {
                let rest = buffer[self.unwritten_range()].into();
                give_back(core::mem::replace(&mut buffer, rest));
                (self.written, self.filled) = (0, self.filled - self.written);
            }
            let _charge = memory.charge(MemoryKind::Relay, buffer.len() as u64);
            self.held = Some(Box::new(HeldBuffer { buffer, _charge }));
        } else {
            give_back(buffer);
        }
        result
    }

    fn copy_with<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        fills: usize,
        reader: &mut R,
        writer: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..fills {
            let filled = self.poll_fill(cx, buffer, reader)?;
            if filled.is_pending() && self.filled == 0 {
                // The peer cannot answer data that still waits in the writer, so it is flushed first.
                if self.unflushed {
                    ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
            while self.written < self.filled {
                let rest = &buffer[self.unwritten_range()];
                match Pin::new(&mut *writer).poll_write(cx, rest) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => {
                        self.written += count as u16;
                        self.unflushed = true;
                    }
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        // Reads on, so that there is more to write later and an error of the reader is noticed now.
                        ready!(self.poll_fill(cx, buffer, reader))?;
                        return Poll::Pending;
                    }
                }
            }
            (self.written, self.filled) = (0, 0);
            if self.read_all {
                // The end of the writer flushes it, so that the last bytes and the end leave together.
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads into the free part of the buffer. Ready if there was nothing to do.
    fn poll_fill<R: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        reader: &mut R,
    ) -> Poll<io::Result<()>> {
        if self.read_all || usize::from(self.filled) == buffer.len() {
            return Poll::Ready(Ok(()));
        }
        let mut free = ReadBuf::new(&mut buffer[self.filled.into()..]);
        loop {
            match ready!(Pin::new(&mut *reader).poll_read(cx, &mut free)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(()) => break,
            }
        }
        self.read_all = free.filled().is_empty();
        self.filled += free.filled().len() as u16;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
