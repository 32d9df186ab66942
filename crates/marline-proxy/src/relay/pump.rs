//! One direction of a relay: bytes that are read are written on, including the end of the stream.
//!
//! Most connections are idle most of the time, and a permanent buffer for the next bytes would be most of their
//! cost: two of 59 KiB at either end of ten thousand idle streams are 2.4 GB. Therefore a direction has a buffer
//! only while bytes are in it. To read, it borrows the buffer of its thread, and returns it when everything is
//! written, which is nearly always at once. Only while the writer is blocked does the direction keep the buffer.
//! Besides, a buffer shared by all streams of a thread is likely to be in its cache.
//!
//! When memory is short, a direction reads less at a time, and only once the writer has passed on everything and
//! has room for more. A blocked direction then mostly holds nothing, because the bytes wait at their source. Any
//! remaining bytes are kept in a buffer of exactly their length.
//!
//! The order of reads, writes and flushes is that of tokio's `copy_bidirectional`: fill up while there is room,
//! write, flush before waiting for more. The only difference is the end, which includes the flush.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use marline::memory::{MemoryAccount, MemoryCharge, MemoryKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes read ahead: as many as leave in one batch (44 segments) or as one packet, sealed and with their headers,
/// on paths with an MTU of 1,500 bytes, IPv6 included. With 64 KiB, a second packet with the remainder would follow
/// each.
pub(super) const BUFFER_LEN: usize = 59 * 1_024;
/// Fillings of the buffer before other tasks get their turn: 118 KiB, which is a tenth of a millisecond of a bulk
/// transfer. With tokio's own budget other tasks, and with them messages of other streams, would wait for 2 MB.
const FILLS_PER_TURN: usize = 2;

/// Smallest number of bytes read at a time when memory is short.
const MIN_READ_BYTES: usize = 4 * 1_024;

const _: () = assert!(BUFFER_LEN <= u16::MAX as usize, "places in it are small numbers");

thread_local! {
    /// The buffer of this thread, while no direction has borrowed it.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// True if a direction may read only as much as its writer has room for.
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

/// Buffer of a blocked direction, and the charge for it.
#[derive(Debug)]
struct Held {
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
    /// All bytes are written; the end must be signalled to the writer.
    Ending,
    /// The end has been signalled.
    Done,
}

/// Bytes from a reader to a writer.
#[derive(Debug, Default)]
pub(super) struct Pump {
    phase: Phase,
    /// Set only while the direction is blocked.
    held: Option<Box<Held>>,
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
    /// Copies until the reader's end has been passed on. The buffer is charged to `memory`. `has_room`: the writer
    /// would accept bytes now, as far as is known. This matters only [when memory is short](is_short).
    ///
    /// # Errors
    /// The first error of either side.
    pub(super) fn poll<R, W>(
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

    /// Bytes of the buffer that are written. The number changes with each step while a writer takes only a part.
    pub(super) const fn written(&self) -> usize {
        self.written as usize
    }

    fn unwritten(&self) -> Range<usize> {
        self.written.into()..self.filled.into()
    }

    /// True if the direction waits for the writer to accept bytes or the end.
    pub(super) const fn is_blocked(&self) -> bool {
        self.held.is_some() || matches!(self.phase, Phase::Ending)
    }

    /// True if the reader's end has been read.
    pub(super) const fn has_read_all(&self) -> bool {
        self.read_all
    }

    /// True if the end has been passed on.
    pub(super) const fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// True if the direction holds a buffer of its own.
    #[cfg(test)]
    pub(super) fn holds_memory(&self) -> bool {
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
            // Held bytes are written before more is read, and each read waits for room.
            true if self.filled > 0 => (self.filled.into(), 1),
            true => (allowed.max(MIN_READ_BYTES), 1),
            false => (buffer.len(), FILLS_PER_TURN),
        };
        let result = self.copy_with(cx, &mut buffer[..most], fills, reader, writer);
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use marline::memory::MemoryBudget;

    use super::*;

    /// A direction that waits for bytes has no buffer. One that waits for room has a buffer until there is room.
    #[tokio::test]
    async fn a_buffer_is_held_only_while_bytes_are_in_it() {
        let (mut source, mut reader) = duplex(1 << 20);
        let (mut writer, mut sink) = duplex(1_000);
        let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
        let mut cx = Context::from_waker(Waker::noop());
        let mut poll =
            |pump: &mut Pump| pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
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

    /// When memory is short, little is read ahead and nothing else is held.
    #[tokio::test]
    async fn little_is_held_where_memory_is_short() {
        let budget = MemoryBudget::new(Some(0));
        let memory = budget.account(u64::MAX);
        let (mut source, mut reader) = duplex(1 << 20);
        let (mut writer, mut sink) = duplex(1_000);
        let mut pump = Pump::default();
        let mut cx = Context::from_waker(Waker::noop());
        source.write_all(&[1; 100_000]).await.unwrap();
        for held in [MIN_READ_BYTES - 1_000, MIN_READ_BYTES - 2_000] {
            assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
            assert_eq!(memory.used(), held as u64);
            sink.read_exact(&mut [0; 1_000]).await.unwrap();
        }
        budget.set_limit(None);
        let (mut got, mut part) = (2_000, [0; 1_000]);
        while got < 100_000 {
            let _ = pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
            got += sink.read(&mut part).await.unwrap();
        }
        let _ = pump.poll(&mut cx, &mut reader, &mut writer, &memory, true);
        assert!(!pump.holds_memory() && memory.used() == 0);
    }

    /// When memory is short, nothing is read for a writer that has no room or has not passed on its data.
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
        assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, false).is_pending());
        assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
        for _ in 0..2 {
            assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
        }
        assert!(pump.is_blocked() && !pump.holds_memory() && memory.used() == 0);
        sink.read_exact(&mut [0; 1_000]).await.unwrap();
        assert!(pump.poll(&mut cx, &mut reader, &mut writer, &memory, true).is_pending());
        assert!(!pump.is_blocked() && memory.used() == 0);
    }

    /// A reader that always has more and a writer that accepts everything do not occupy the thread: after a few
    /// fillings another task gets its turn, and the direction wakes itself.
    #[tokio::test]
    async fn a_turn_ends_although_there_is_more() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let (mut reader, mut taken) = (tokio::io::repeat(1), Vec::new());
        let (mut pump, memory) = (Pump::default(), MemoryAccount::default());
        for turn in 1..4 {
            assert!(pump.poll(&mut cx, &mut reader, &mut taken, &memory, true).is_pending());
            assert_eq!(taken.len(), turn * FILLS_PER_TURN * BUFFER_LEN);
            assert_eq!(woken.0.load(Ordering::Relaxed), turn);
            assert!(!pump.holds_memory());
        }
    }

    /// Number of times a task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// More than the buffer holds, with a writer that accepts little: nothing is lost or duplicated, and the end
    /// comes after the last byte.
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
        let run = std::future::poll_fn(|cx| pump.poll(cx, &mut reader, &mut writer, &memory, true));
        let (_, ended, read) = tokio::join!(feed, run, sink.read_to_end(&mut got));
        ended.unwrap();
        read.unwrap();
        assert!(got == sent);
        assert!(!pump.holds_memory());
    }
}
