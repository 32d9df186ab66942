//! TLS record sizes, adapted to the traffic.
//!
//! A record can be decrypted only when it is complete. For a keystroke after a pause, or the first bytes of an
//! answer, a record that spans several segments makes the reader wait for the last of them, which may arrive much
//! later over several paths. Under load, small records cost time: 22 bytes and one AEAD call each. Therefore
//! records start at the size of one segment, grow to TLS's limit of 16 KiB after some hundred kilobytes without a
//! pause, and shrink again after a second without data. (HTTPS servers of the 2010s introduced this method. The
//! numbers are our own.)

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of plaintext bytes in a record that fits in one segment with its headers, options and the 22 bytes that TLS
/// adds, on every path with an MTU of 1,280 bytes or more.
pub const FIRST_PLAINTEXT: usize = 1_100;
/// Number of plaintext bytes in the largest TLS record.
pub const MAX_PLAINTEXT: usize = 16_384;
/// Number of plaintext bytes in one write at the largest record size. TLS splits the write into records.
const MAX_WRITE_BYTES: usize = 4 * MAX_PLAINTEXT;
/// Number of bytes sent in records of one size before the size grows.
const GROW_AFTER_BYTES: usize = 64 * 1_024;
/// Idle time after which records shrink again.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Size of the next record.
#[derive(Debug)]
pub struct RecordSizer {
    size: usize,
    since_growth: usize,
    last: Option<Instant>,
}

impl Default for RecordSizer {
    fn default() -> Self {
        RecordSizer { size: FIRST_PLAINTEXT, since_growth: 0, last: None }
    }
}

impl RecordSizer {
    /// Returns the number of plaintext bytes that the record written at `now` may hold.
    pub fn next(&mut self, now: Instant) -> usize {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) >= IDLE_TIME) {
            *self = RecordSizer::default();
        }
        self.size
    }

    /// Records a write of `bytes` at `now`.
    pub fn on_written(&mut self, bytes: usize, now: Instant) {
        self.last = Some(now);
        self.since_growth += bytes;
        if self.since_growth >= GROW_AFTER_BYTES && self.size < MAX_PLAINTEXT {
            self.size = (self.size * 4).min(MAX_PLAINTEXT);
            self.since_growth = 0;
        }
    }
}

/// A TLS stream that turns every write into records of the right size. A write makes one record. At the largest
/// size, a long write makes several, which are passed to the stream below together.
#[derive(Debug)]
pub struct RecordStream<S> {
    inner: S,
    sizer: RecordSizer,
}

impl<S> RecordStream<S> {
    /// Wraps `inner` and sizes its records.
    pub fn new(inner: S) -> Self {
        RecordStream { inner, sizer: RecordSizer::default() }
    }

    /// Returns the stream inside.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Returns a reference to the stream inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let now = Instant::now();
        let size = match this.sizer.next(now) {
            MAX_PLAINTEXT => MAX_WRITE_BYTES,
            size => size,
        };
        let result = Pin::new(&mut this.inner).poll_write(cx, &buf[..buf.len().min(size)]);
        if let Poll::Ready(Ok(bytes)) = result {
            this.sizer.on_written(bytes, now);
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
mod tests {
    use super::*;

    #[test]
    fn records_grow_under_load_and_shrink_after_a_pause() {
        let mut sizer = RecordSizer::default();
        let start = Instant::now();
        let mut sizes = Vec::new();
        let mut sent = 0;
        while sent < 1 << 20 {
            let size = sizer.next(start);
            if sizes.last() != Some(&size) {
                sizes.push(size);
            }
            sizer.on_written(size, start);
            sent += size;
        }
        assert_eq!(sizes, [FIRST_PLAINTEXT, 4 * FIRST_PLAINTEXT, MAX_PLAINTEXT]);
        assert_eq!(sizer.next(start + IDLE_TIME - Duration::from_millis(1)), MAX_PLAINTEXT);
        assert_eq!(sizer.next(start + IDLE_TIME), FIRST_PLAINTEXT);
    }

    #[test]
    fn keystrokes_never_grow_records_within_an_hour() {
        let mut sizer = RecordSizer::default();
        let start = Instant::now();
        for second in 0..3_600 {
            let now = start + Duration::from_secs(second);
            assert_eq!(sizer.next(now), FIRST_PLAINTEXT);
            sizer.on_written(100, now);
        }
    }
}
