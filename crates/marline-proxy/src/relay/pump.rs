//! One direction of a relay: what is read is written on, including the end of the stream.
//!
//! Most connections are silent most of the time, and a buffer that each keeps for its next bytes
//! would be most of what it costs: two of 59 KiB at either end of ten thousand silent streams are
//! 2.4 GB. So a direction has a buffer only while bytes are in it. To read, it borrows the one of
//! its thread; when all of what was read is written, which is nearly always at once, the thread has
//! it back. Only while the writer is blocked does the buffer stay with the direction. Besides, a
//! buffer shared by all streams of a thread is likely to be in its cache.
//!
//! Where memory is short, a direction reads less at a time, and only once the writer has passed on what it was given
//! and has room for more. So a blocked direction mostly holds nothing: the bytes wait where they are. What it was left
//! with it keeps in a buffer of just that length.
//!
//! The order of reads, writes and flushes is that of tokio's `copy_bidirectional`, but for the end, which
//! flushes by itself: fill up while there is room, write, flush before waiting for more.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use marline::{MemoryAccount, MemoryCharge, MemoryKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read ahead: as many as leave in one batch (44 segments) or as one packet, sealed and with their headers, on
/// paths with an MTU of 1,500 bytes, IPv6 included. With 64 KiB a second one follows each with what is left over.
pub(super) const BUFFER_LEN: usize = 59 * 1_024;
/// Fillings of the buffer before other tasks get their turn: 118 KiB, which is a tenth of a millisecond of a bulk
/// transfer. By tokio's own budget they would wait for 2 MB, and a message of another stream with them.
const FILLS_PER_TURN: usize = 2;

/// The least that is read at a time, where memory is short.
const LEAST: usize = 4 * 1_024;

const _: () = assert!(BUFFER_LEN <= u16::MAX as usize, "places in it are small numbers");

thread_local! {
    /// The buffer of this thread, while nobody has it.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// Whether a direction reads only what its writer has room for.
pub(super) fn is_short(memory: &MemoryAccount) -> bool {
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

/// What a blocked direction holds, and what is charged for it.
#[derive(Debug)]
struct Held {
    /// Bytes that are not written yet; empty while the direction waits for room before it reads.
    buffer: Box<[u8]>,
    _charge: MemoryCharge,
}

/// How far a direction is.
#[derive(Debug, Default)]
enum Phase {
    /// Bytes are copied.
    #[default]
    Copying,
    /// All bytes are written; the end must be signalled to the writer.
    Ending,
    /// It is.
    Done,
}

/// Bytes from a reader to a writer.
#[derive(Debug, Default)]
pub(super) struct Pump {
    phase: Phase,
    /// Only while it is blocked.
    held: Option<Box<Held>>,
    /// Of the buffer, what is written and what is filled. Small numbers, as every stream has two pumps for as long as
    /// it lasts.
    written: u16,
    filled: u16,
    /// The reader has no more.
    read_all: bool,
    /// Something was written since the last flush.
    unflushed: bool,
}

impl Pump {
    /// Goes on until the reader's end has been passed on. `memory` is charged for what it holds. `has_room`: the
    /// writer would take bytes now, as far as is known; it matters only [where memory is short](is_short).
    ///
    /// # Errors
    /// The first of either side.
    pub(super) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        (reader, writer): (&mut R, &mut W),
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

    /// Bytes of the buffer that are written. They change with each step while a writer takes some of it.
    pub(super) const fn written(&self) -> usize {
        self.written as usize
    }

    fn unwritten(&self) -> Range<usize> {
        self.written.into()..self.filled.into()
    }

    /// Whether it waits for the writer to take bytes or the end.
    pub(super) const fn is_blocked(&self) -> bool {
        self.held.is_some() || matches!(self.phase, Phase::Ending)
    }

    /// Whether the reader has ended, as far as has been read.
    pub(super) const fn has_read_all(&self) -> bool {
        self.read_all
    }

    /// Whether the end has been passed on.
    pub(super) const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Whether it has a buffer of its own.
    #[cfg(test)]
    pub(super) fn holds_memory(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.buffer.is_empty())
    }

    /// Waits until the writer has passed on all that it was given, and has room.
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
            Box::new(Held { buffer: Box::default(), _charge: memory.charge(MemoryKind::Relay, 0) })
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
            // What is held is written before more is read, and each reading waits for room.
            true if self.filled > 0 => (self.filled.into(), 1),
            true => (allowed.max(LEAST), 1),
            false => (buffer.len(), FILLS_PER_TURN),
        };
        let result = self.copy_with(cx, (&mut buffer[..most], fills), reader, writer);
        if self.written < self.filled && result.is_pending() {
            if allowed < BUFFER_LEN {
                let rest = buffer[self.unwritten()].into();
                give_back(core::mem::replace(&mut buffer, rest));
                (self.written, self.filled) = (0, self.filled - self.written);
            }
            let _charge = memory.charge(MemoryKind::Relay, buffer.len() as u64);
            self.held = Some(Box::new(Held { buffer, _charge }));
        } else {
            give_back(buffer);
        }
        result
    }

    fn copy_with<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        (buffer, fills): (&mut [u8], usize),
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
                // Who is to answer what waits in the writer cannot before it has it.
                if self.unflushed {
                    ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
            while self.written < self.filled {
                let rest = &buffer[self.unwritten()];
                match Pin::new(&mut *writer).poll_write(cx, rest) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => {
                        self.written += count as u16;
                        self.unflushed = true;
                    }
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        // More to write when it goes on; and an error of the reader is heard of now.
                        ready!(self.poll_fill(cx, buffer, reader))?;
                        return Poll::Pending;
                    }
                }
            }
            (self.written, self.filled) = (0, 0);
            if self.read_all {
                // The end of the writer flushes it: last bytes and end leave together.
                return Poll::Ready(Ok(()));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads into what is free of the buffer. Ready if there was nothing to do.
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use marline::MemoryBudget;

    use super::*;

    /// Who waits for bytes has no buffer; who waits for room has one, until there is room.
    #[tokio::test]
    async fn a_buffer_is_held_only_while_bytes_are_in_it() {
        let (mut source, mut reader) = duplex(1 << 20);
        let (mut writer, mut sink) = duplex(1_000);
        let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut poll =
            |pump: &mut Pump| pump.poll(&mut cx, (&mut reader, &mut writer), &memory, true);
        assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
        source.write_all(&[1; 600]).await.unwrap();
        assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
        source.write_all(&[2; 600]).await.unwrap();
        assert!(poll(&mut pump).is_pending() && pump.holds_memory());
        let mut got = vec![0; 1_200];
        sink.read_exact(&mut got[..1_000]).await.unwrap();
        assert!(poll(&mut pump).is_pending() && !pump.holds_memory());
        sink.read_exact(&mut got[1_000..]).await.unwrap();
        assert!(got[..600] == [1; 600] && got[600..] == [2; 600]);
    }

    /// Where memory is short, little is read ahead and nothing more is held.
    #[tokio::test]
    async fn little_is_held_where_memory_is_short() {
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let (mut source, mut reader) = duplex(1 << 20);
        let (mut writer, mut sink) = duplex(1_000);
        let mut pump = Pump::default();
        let mut cx = Context::from_waker(Waker::noop());
        source.write_all(&[1; 100_000]).await.unwrap();
        for held in [LEAST - 1_000, LEAST - 2_000] {
            assert!(pump.poll(&mut cx, (&mut reader, &mut writer), &memory, true).is_pending());
            assert_eq!(memory.used(), held as u64);
            sink.read_exact(&mut [0; 1_000]).await.unwrap();
        }
        budget.set_limit(None);
        let (mut got, mut part) = (2_000, [0; 1_000]);
        while got < 100_000 {
            let _ = pump.poll(&mut cx, (&mut reader, &mut writer), &memory, true);
            got += sink.read(&mut part).await.unwrap();
        }
        let _ = pump.poll(&mut cx, (&mut reader, &mut writer), &memory, true);
        assert!(!pump.holds_memory() && memory.used() == 0);
    }

    /// Where memory is short, nothing is read for a writer that has no room or has not passed on what it was given.
    #[tokio::test]
    async fn nothing_is_read_for_a_writer_without_room_where_memory_is_short() {
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let (mut source, mut reader) = duplex(1 << 20);
        let (writer, mut sink) = duplex(1_000);
        let mut writer = tokio::io::BufWriter::with_capacity(3_000, writer);
        let mut pump = Pump::default();
        let mut cx = Context::from_waker(Waker::noop());
        source.write_all(&[1; 2_000]).await.unwrap();
        let ends = (&mut reader, &mut writer);
        assert!(pump.poll(&mut cx, ends, &memory, false).is_pending());
        assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
        for _ in 0..2 {
            let ends = (&mut reader, &mut writer);
            assert!(pump.poll(&mut cx, ends, &memory, true).is_pending());
        }
        assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
        sink.read_exact(&mut [0; 1_000]).await.unwrap();
        let ends = (&mut reader, &mut writer);
        assert!(pump.poll(&mut cx, ends, &memory, true).is_pending());
        assert!(!pump.is_blocked() && memory.used() == 0);
    }

    /// A reader that always has more, and a writer that takes all, do not keep the thread: it is another task's turn
    /// after a few fillings, and the direction asks for its next one.
    #[tokio::test]
    async fn a_turn_ends_although_there_is_more() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let (mut reader, mut taken) = (tokio::io::repeat(1), Vec::new());
        let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
        for turn in 1..4 {
            assert!(pump.poll(&mut cx, (&mut reader, &mut taken), &memory, true).is_pending());
            assert_eq!(taken.len(), turn * FILLS_PER_TURN * BUFFER_LEN);
            assert_eq!(woken.0.load(Ordering::Relaxed), turn);
            assert!(!pump.holds_memory());
        }
    }

    /// How often a task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// More than the buffer holds, against a writer that takes little: nothing is lost or doubled, and the
    /// end comes after the last byte.
    #[tokio::test]
    async fn bytes_come_in_order_through_a_narrow_writer() {
        let sent: Vec<u8> = (0..5 * BUFFER_LEN + 77).map(|at| (at % 251) as u8).collect();
        let (mut source, mut reader) = duplex(70_000);
        let (mut writer, mut sink) = duplex(333);
        let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
        let feed = async {
            source.write_all(&sent).await.unwrap();
            source.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let run =
            std::future::poll_fn(|cx| pump.poll(cx, (&mut reader, &mut writer), &memory, true));
        let (_, ended, read) = tokio::join!(feed, run, sink.read_to_end(&mut got));
        ended.unwrap();
        read.unwrap();
        assert!(got == sent);
        assert!(!pump.holds_memory());
    }
}
