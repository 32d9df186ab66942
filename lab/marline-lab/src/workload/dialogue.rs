//! Dialogue workload: the requesting end. It reads and writes concurrently, since the answers read decide whether
//! the next request is made at all.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use marline_time::{Rng, SeedTree};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use super::{CHUNK, Log, Mark, Run, Stream, Workload, now_ns, until};

/// The requests of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialogue {
    /// Due time of each request, ns after the start, and the lengths of its pieces.
    pub requests: Vec<(u64, Vec<u32>)>,
    /// Request size, bytes.
    pub request_bytes: u32,
    /// Answer size, bytes.
    pub answer_bytes: u32,
    /// Limit of unanswered bytes, above which a due request is skipped.
    pub unanswered_bytes: u32,
}

impl Workload {
    /// The requests of a dialogue with this seed; `None` for other workloads.
    #[must_use]
    pub fn dialogue(&self, seed: u64) -> Option<Dialogue> {
        let Workload::Dialogue { request_bytes, answer_bytes, pieces, unanswered_bytes, .. } =
            *self
        else {
            return None;
        };
        let (least, most) = pieces;
        let mut rng = SeedTree::new(seed).stream("pieces");
        let times = self.times_ns(seed).into_iter();
        let requests = times.map(|at| (at, cut(request_bytes, least, most, &mut rng))).collect();
        Some(Dialogue { requests, request_bytes, answer_bytes, unanswered_bytes })
    }
}

/// Cuts a request into pieces of random length; the last piece is the remainder.
fn cut(bytes: u32, least: u32, most: u32, rng: &mut impl Rng) -> Vec<u32> {
    let (mut left, mut pieces) = (bytes, Vec::new());
    while left > 0 {
        let span = u64::from(most.saturating_sub(least)) + 1;
        let piece = (least + rng.below(span) as u32).clamp(1, left);
        pieces.push(piece);
        left -= piece;
    }
    pieces
}

impl Dialogue {
    /// Sends the requests and reads the answers, until all have arrived or the patience is over.
    ///
    /// # Errors
    /// The stream failed.
    pub(super) async fn ask(&self, stream: Stream, run: Run) -> io::Result<Log> {
        let last_ns = self.requests.last().map_or(0, |(at, _)| *at);
        let deadline_ns = run.start_ns + last_ns + run.patience.as_nanos() as u64;
        let (reader, writer) = split(stream);
        let counts = Counts::default();
        let mut sent = Vec::new();
        let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
        // Writing to a dead path may block, so it has a time limit.
        let asking = timeout(left, self.write(writer, run.start_ns, &counts, &mut sent));
        let (asked, received) = tokio::join!(asking, self.read(reader, deadline_ns, &counts));
        asked.unwrap_or(Ok(()))?;
        let skipped = u64::from(counts.skipped.load(Relaxed));
        Ok(Log { sent, received: received?, skipped })
    }

    async fn write(
        &self,
        mut writer: WriteHalf<Stream>,
        start_ns: u64,
        counts: &Counts,
        sent: &mut Vec<Mark>,
    ) -> io::Result<()> {
        let content = vec![0xa5; self.request_bytes as usize];
        for (at_ns, pieces) in &self.requests {
            until(start_ns + at_ns).await;
            let open = sent.len() as u32 - counts.answered.load(Relaxed);
            if u64::from(open) * u64::from(self.request_bytes) > u64::from(self.unanswered_bytes) {
                counts.skipped.fetch_add(1, Relaxed);
                continue;
            }
            sent.push(Mark { stream: 0, index: sent.len() as u32, at_ns: now_ns() });
            for piece in pieces {
                writer.write_all(&content[..*piece as usize]).await?;
                writer.flush().await?;
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        mut reader: ReadHalf<Stream>,
        deadline_ns: u64,
        counts: &Counts,
    ) -> io::Result<Vec<Mark>> {
        let (mut received, mut total) = (Vec::new(), 0);
        let mut buffer = vec![0; CHUNK];
        // Every request is answered or was skipped.
        let left_out = || counts.skipped.load(Relaxed) as usize;
        while received.len() + left_out() < self.requests.len() {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
            let read = match timeout(left, reader.read(&mut buffer)).await {
                Err(_) => break,
                Ok(read) => read?,
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            total += read as u64;
            let at_ns = now_ns();
            while (received.len() as u64 + 1) * u64::from(self.answer_bytes) <= total {
                received.push(Mark { stream: 0, index: received.len() as u32, at_ns });
            }
            counts.answered.store(received.len() as u32, Relaxed);
        }
        Ok(received)
    }
}

/// Counters shared by reading and writing.
#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU32,
    skipped: AtomicU32,
}
