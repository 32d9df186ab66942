//! Stream of sealed records on a multipath stream.
//!
//! As with TLS, written bytes become records of a size that fits the traffic (`record.rs`), and it is an error if the
//! bytes end without the peer's end-of-stream record. The records of a long write are passed to the stream below
//! together, and leave as one batch. Buffers are borrowed from the thread and returned as soon as they are empty, so an
//! idle connection has none.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::LIFETIME;
use super::keys::{Keys, LENGTH_LEN, MAX_RECORD, TAG_LEN};
use crate::record::{MAX_PLAINTEXT, RecordSizer};

/// Amount of ciphertext held until a flush, in bytes, so that an answer leaves with its end, or the small first records
/// leave together. Beyond it, ciphertext is sent immediately.
const MAX_HELD: usize = 8 * 1_024;
/// Amount of ciphertext in one write, in bytes, beyond which no further record is added. Four of the largest records
/// leave together.
const MAX_WRITE_BYTES: usize = 3 * MAX_RECORD;
/// Amount of ciphertext read ahead, in bytes.
const BUFFER_LEN: usize = 2 * MAX_RECORD;

thread_local! {
    /// This thread's buffers, while no stream has borrowed them.
    static SPARE_IN: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
    static SPARE_OUT: Cell<Option<Vec<u8>>> = const { Cell::new(None) };
}

/// Received data that has not been read.
#[derive(Default)]
struct IncomingData {
    /// Set only while it contains data.
    buffer: Option<Box<[u8]>>,
    /// Range of the buffer with opened data that was not read yet.
    plain: (usize, usize),
    /// Range of the buffer with data that is still sealed.
    sealed: (usize, usize),
    /// True if the peer's end-of-stream record was received.
    ended: bool,
}

impl IncomingData {
    /// Opens the next record if it is complete. An empty record is the end.
    fn open(&mut self, buffer: &mut [u8], keys: &mut Keys) -> io::Result<bool> {
        let (start, end) = self.sealed;
        let Some([high, low]) = buffer[start..end].first_chunk::<LENGTH_LEN>() else {
            return Ok(false);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if !(TAG_LEN..=MAX_RECORD - LENGTH_LEN).contains(&length) {
            return Err(damaged_record_error("record with an invalid length"));
        }
        let (from, to) = (start + LENGTH_LEN, start + LENGTH_LEN + length);
        if to > end {
            return Ok(false);
        }
        let opened = keys.open.open_record(&mut buffer[from..to]);
        let plain = opened.ok_or_else(|| damaged_record_error("record with an invalid tag"))?.len();
        self.ended = plain == 0;
        self.plain = (from, from + plain);
        self.sealed.0 = to;
        Ok(true)
    }

    /// Copies opened data to `out`.
    fn copy_opened(&mut self, buffer: &[u8], out: &mut ReadBuf<'_>) {
        let (start, end) = self.plain;
        let count = out.remaining().min(end - start);
        out.put_slice(&buffer[start..start + count]);
        self.plain.0 += count;
    }

    /// Makes room after the sealed data. To be called only when no opened data waits.
    fn make_room(&mut self, buffer: &mut [u8]) {
        let (start, end) = self.sealed;
        if buffer.len() - start < MAX_RECORD {
            buffer.copy_within(start..end, 0);
            self.sealed = (0, end - start);
        }
    }

    /// Returns the buffer, at its full length for reading.
    fn take_buffer(&mut self) -> Box<[u8]> {
        let whole = || SPARE_IN.take().unwrap_or_else(|| vec![0; BUFFER_LEN].into_boxed_slice());
        match self.buffer.take() {
            Some(held) if held.len() == BUFFER_LEN => held,
            Some(held) => {
                let mut buffer = whole();
                buffer[..held.len()].copy_from_slice(&held);
                buffer
            }
            None => whole(),
        }
    }

    /// Keeps the contents of the buffer. If `is_slow` is true, the reader takes little at a time. The remaining data
    /// may then stay for long, so it is kept in a buffer of exactly its length.
    fn keep_buffer(&mut self, buffer: Box<[u8]>, is_slow: bool) {
        if self.is_empty() {
            (self.plain, self.sealed) = ((0, 0), (0, 0));
        } else if is_slow {
            self.keep_remaining(&buffer);
        } else {
            self.buffer = Some(buffer);
            return;
        }
        SPARE_IN.set(Some(buffer));
    }

    /// Keeps the remaining data in a buffer of exactly its length.
    fn keep_remaining(&mut self, buffer: &[u8]) {
        let from = if self.plain.0 < self.plain.1 { self.plain.0 } else { self.sealed.0 };
        self.buffer = Some(buffer[from..self.sealed.1].into());
        let (plain, sealed) = (self.plain, self.sealed);
        self.plain = (plain.0.max(from) - from, plain.1.max(from) - from);
        self.sealed = (sealed.0 - from, sealed.1 - from);
    }

    /// Returns an empty buffer to the spare pool, or keeps only the unread bytes.
    fn free_unused(&mut self) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.len() == BUFFER_LEN) {
            self.keep_remaining(&buffer);
            SPARE_IN.set(Some(buffer));
        }
    }

    fn is_empty(&self) -> bool {
        self.plain.0 == self.plain.1 && self.sealed.0 == self.sealed.1
    }
}

fn damaged_record_error(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A stream whose both directions are sealed.
pub struct SealedStream<T> {
    inner: T,
    keys: Keys,
    sizer: RecordSizer,
    incoming: IncomingData,
    /// Sealed data that waits for a flush or for the stream below.
    outgoing: Vec<u8>,
    /// True if our end-of-stream record is sealed.
    ending: bool,
    /// True if the stream below stays open after both directions have ended.
    keeps_stream: bool,
    started_at: Instant,
}

impl<T> SealedStream<T> {
    /// Seals data written to `inner`. `preface` is sent before the first record.
    pub fn new(inner: T, keys: Keys, preface: Vec<u8>) -> SealedStream<T> {
        SealedStream {
            inner,
            keys,
            sizer: RecordSizer::default(),
            incoming: IncomingData::default(),
            outgoing: preface,
            ending: false,
            keeps_stream: false,
            started_at: Instant::now(),
        }
    }

    /// Makes the end of a direction leave the underlying stream open, so that the connection can be reused after
    /// [`SealedStream::renew`], unless it is older than the maximum lifetime of a session.
    pub fn keep(&mut self) {
        self.keeps_stream = self.started_at.elapsed() < LIFETIME;
    }

    /// After both directions have ended, starts again as a new stream whose ends are those of the underlying
    /// stream. Returns `false` and changes nothing if a direction has not ended, or if the stream was not kept.
    pub fn renew(&mut self) -> bool {
        let over = self.ending && self.outgoing.is_empty() && self.incoming.ended;
        let renewed = over && self.keeps_stream;
        if renewed {
            (self.ending, self.incoming.ended, self.keeps_stream) = (false, false, false);
        }
        renewed
    }

    /// Returns the size of the buffers in bytes. If `trim` is true, unused space is freed first.
    pub fn buffered(&mut self, trim: bool) -> u64 {
        if trim {
            self.incoming.free_unused();
        }
        let incoming = self.incoming.buffer.as_ref().map_or(0, |buffer| buffer.len());
        (incoming + self.outgoing.capacity()) as u64
    }

    /// Returns true if the peer's end-of-stream record was read.
    pub const fn has_ended(&self) -> bool {
        self.incoming.ended
    }

    /// Returns the stream below.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Returns the stream below. Data read ahead is lost. There is none before the first read.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: AsyncWrite + Unpin> SealedStream<T> {
    /// Seals a record after the waiting ones.
    fn seal(&mut self, plaintext: &[u8]) {
        if self.outgoing.is_empty() {
            self.outgoing = SPARE_OUT.take().unwrap_or_default();
        }
        self.keys.seal.seal_record(plaintext, &mut self.outgoing);
    }

    /// Writes as much of `bytes` as the stream below accepts, and keeps the rest.
    fn push(&mut self, cx: &mut Context<'_>, mut bytes: Vec<u8>) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match Pin::new(&mut self.inner).poll_write(cx, &bytes[written..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        // The rest is stored without spare capacity, because it may stay for long.
        self.outgoing = bytes[written..].to_vec();
        bytes.clear();
        SPARE_OUT.set(Some(bytes));
        Ok(())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.outgoing.is_empty() {
            let bytes = std::mem::take(&mut self.outgoing);
            self.push(cx, bytes)?;
        }
        if self.outgoing.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<T: AsyncRead + Unpin> SealedStream<T> {
    /// Fills `out` with data that can be opened without waiting. Waits if there is none. Opens further records
    /// while there is room for another, so that a bulk transfer is passed on in large pieces.
    fn poll_records(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = out.filled().len();
        // The last call had no room for everything.
        let left_over = !self.incoming.is_empty();
        loop {
            self.incoming.copy_opened(buffer, out);
            if out.remaining() == 0 || self.incoming.ended {
                return Poll::Ready(Ok(()));
            }
            if self.incoming.open(buffer, &mut self.keys)? {
                continue;
            }
            let given = out.filled().len() - begun;
            let bulk = given >= MAX_PLAINTEXT || left_over;
            if given > 0 && (!bulk || out.remaining() < MAX_PLAINTEXT) {
                return Poll::Ready(Ok(()));
            }
            self.incoming.make_room(buffer);
            let end = self.incoming.sealed.1;
            let mut free = ReadBuf::new(&mut buffer[end..]);
            let count = match Pin::new(&mut self.inner).poll_read(cx, &mut free) {
                Poll::Ready(Ok(())) => free.filled().len(),
                // The next call will see the end or error again.
                _ if given > 0 => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            if count == 0 {
                return Poll::Ready(match given {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => Ok(()),
                });
            }
            self.incoming.sealed.1 += count;
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SealedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.incoming.ended || out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut buffer = this.incoming.take_buffer();
        let result = this.poll_records(cx, &mut buffer, out);
        this.incoming.keep_buffer(buffer, out.capacity() < MAX_PLAINTEXT);
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SealedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.ending {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if this.outgoing.len() >= MAX_HELD {
            ready!(this.poll_drain(cx))?;
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let now = Instant::now();
        let mut taken = 0;
        while taken < bytes.len() && this.outgoing.len() <= MAX_WRITE_BYTES {
            let count = (bytes.len() - taken).min(this.sizer.next(now));
            this.seal(&bytes[taken..taken + count]);
            this.sizer.on_written(count, now);
            taken += count;
        }
        if this.outgoing.len() >= MAX_HELD {
            // The next call handles the rest.
            let _ = this.poll_drain(cx)?;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.ending, true) {
            this.seal(&[]);
        }
        ready!(this.poll_drain(cx))?;
        match this.keeps_stream {
            true => Pin::new(&mut this.inner).poll_flush(cx),
            false => Pin::new(&mut this.inner).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests;
