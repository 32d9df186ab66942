//! Workloads of applications for any kind of stream, with a log of all event times.
//!
//! Both ends derive their times from one schedule, which follows from a seed and is relative to a given start. It
//! is an open loop: a late answer does not delay the next request. Times are those of the machine's monotonic
//! clock, which all namespaces share, so the logs of both ends can be compared: latencies are one-way where
//! stated.

mod dialogue;
mod exchange;

use std::io;
use std::time::Duration;

use marline_time::{Rng, SeedTree};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

/// Size of a read, bytes.
const CHUNK: usize = 64 << 10;

/// A byte stream of any stack.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A stream of any stack.
pub type Stream = Box<dyn Duplex>;

/// Interval between events, uniform between two bounds.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Shortest, ms.
    pub least_ms: f64,
    /// Longest, ms.
    pub most_ms: f64,
}

/// Traffic pattern.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Workload {
    /// The client sends requests, each on all its streams, and the server answers each.
    Ask {
        /// Request size, bytes.
        request_bytes: u32,
        /// Answer size, bytes.
        answer_bytes: u32,
        /// Interval of the requests.
        gap: Gap,
        /// Number of requests.
        count: u32,
    },
    /// The client sends requests, each in pieces, while not too much is unanswered; the server answers each at
    /// once.
    Dialogue {
        /// Request size, bytes.
        request_bytes: u32,
        /// Answer size, bytes.
        answer_bytes: u32,
        /// Smallest and largest piece of a request, bytes.
        pieces: (u32, u32),
        /// Limit of unanswered bytes, above which a due request is skipped.
        unanswered_bytes: u32,
        /// Interval of the requests' due times.
        gap: Gap,
        /// Number of due requests.
        count: u32,
    },
    /// The server writes blocks as fast as the stack accepts them.
    Blocks {
        /// Block size, bytes.
        bytes: u32,
        /// Duration, ms.
        lasts_ms: u64,
    },
    /// The client writes blocks as fast as the stack accepts them.
    Upload {
        /// Block size, bytes.
        bytes: u32,
        /// Duration, ms.
        lasts_ms: u64,
    },
    /// Both ends write this amount at the start, at the same time.
    Exchange {
        /// Size in each direction, bytes.
        bytes: u32,
    },
    /// The server writes bursts at scheduled times.
    Bursts {
        /// Burst size, bytes.
        bytes: u32,
        /// Interval of the bursts' start times.
        gap: Gap,
        /// Number of bursts.
        count: u32,
    },
    /// The server writes bursts of random sizes at scheduled times.
    RandomBursts {
        /// Smallest burst, bytes.
        least_bytes: u32,
        /// Largest burst, bytes.
        most_bytes: u32,
        /// Interval of the bursts' start times.
        gap: Gap,
        /// Number of bursts.
        count: u32,
    },
}

/// Parameters of one run of a workload.
#[derive(Copy, Clone, Debug)]
pub struct Run {
    /// Start, ns of the monotonic clock.
    pub start_ns: u64,
    /// Seed of the schedule.
    pub seed: u64,
    /// Time to wait for the last messages after the planned end.
    pub patience: Duration,
}

/// Sizes of the messages that the client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// One size for all, bytes.
    Even(u32),
    /// A size for each message, bytes.
    Each(Vec<u32>),
}

impl Sizes {
    /// Size of a message, bytes; 0 if it does not exist.
    #[must_use]
    pub fn of(&self, index: u32) -> u32 {
        match self {
            Sizes::Even(bytes) => *bytes,
            Sizes::Each(sizes) => sizes.get(index as usize).copied().unwrap_or(0),
        }
    }
}

/// Logged event.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Number of the stream.
    pub stream: u8,
    /// Number of the request, block or burst.
    pub index: u32,
    /// Time, ns of the monotonic clock.
    pub at_ns: u64,
}

/// Log of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Start of each message's writing (blocks: when the stack had accepted it).
    pub sent: Vec<Mark>,
    /// End of each message's reading.
    pub received: Vec<Mark>,
    /// Due requests that were skipped.
    #[serde(default)]
    pub skipped: u64,
}

/// Logs of one end's workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndLogs {
    /// A log for each workload, in their order.
    pub flows: Vec<Log>,
    /// Payload that this end sent again on another subflow, bytes, if known.
    pub reinjected_bytes: u64,
}

/// The monotonic clock, ns.
#[must_use]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative for this clock.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Waits until a time of the monotonic clock.
pub async fn until(at_ns: u64) {
    let left = at_ns.saturating_sub(now_ns());
    if left > 0 {
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}

impl Workload {
    /// Start times of requests or bursts, ns after the start. Empty without a schedule.
    #[must_use]
    pub fn times_ns(&self, seed: u64) -> Vec<u64> {
        let (gap, count) = match *self {
            Workload::Ask { gap, count, .. }
            | Workload::Dialogue { gap, count, .. }
            | Workload::Bursts { gap, count, .. }
            | Workload::RandomBursts { gap, count, .. } => (gap, count),
            Workload::Blocks { .. } | Workload::Upload { .. } | Workload::Exchange { .. } => {
                return Vec::new();
            }
        };
        let mut rng = SeedTree::new(seed).stream("workload");
        let mut at_ms = 0.0;
        let mut next = |_| {
            let at = at_ms;
            at_ms += (gap.most_ms - gap.least_ms).mul_add(rng.unit(), gap.least_ms);
            (at * 1e6) as u64
        };
        (0..count).map(&mut next).collect()
    }

    /// Number of messages; `None`: as many as fit into the time.
    #[must_use]
    pub const fn count(&self) -> Option<u32> {
        match *self {
            Workload::Ask { count, .. }
            | Workload::Dialogue { count, .. }
            | Workload::Bursts { count, .. }
            | Workload::RandomBursts { count, .. } => Some(count),
            Workload::Exchange { .. } => Some(2),
            Workload::Blocks { .. } | Workload::Upload { .. } => None,
        }
    }

    /// Returns true if its messages begin at the client: requests, or what it uploads.
    #[must_use]
    pub const fn is_from_client(&self) -> bool {
        matches!(self, Workload::Ask { .. } | Workload::Dialogue { .. } | Workload::Upload { .. })
    }

    /// Sizes of answers, blocks or bursts. Random ones are uniform, from the seed.
    #[must_use]
    pub fn sizes(&self, seed: u64) -> Sizes {
        match *self {
            Workload::Ask { answer_bytes: bytes, .. }
            | Workload::Dialogue { answer_bytes: bytes, .. }
            | Workload::Blocks { bytes, .. }
            | Workload::Upload { bytes, .. }
            | Workload::Exchange { bytes }
            | Workload::Bursts { bytes, .. } => Sizes::Even(bytes),
            Workload::RandomBursts { least_bytes, most_bytes, count, .. } => {
                let mut rng = SeedTree::new(seed).stream("sizes");
                let span = u64::from(most_bytes.saturating_sub(least_bytes)) + 1;
                Sizes::Each((0..count).map(|_| least_bytes + rng.below(span) as u32).collect())
            }
        }
    }

    /// Planned duration after the start, on links that can carry the workload.
    #[must_use]
    pub fn lasts(&self, seed: u64) -> Duration {
        match *self {
            Workload::Blocks { lasts_ms, .. } | Workload::Upload { lasts_ms, .. } => {
                Duration::from_millis(lasts_ms)
            }
            _ => Duration::from_nanos(self.times_ns(seed).last().copied().unwrap_or(0)),
        }
    }

    /// Runs the client. Messages that have not arrived when the patience is over are not in the log.
    ///
    /// # Errors
    /// A stream failed.
    pub async fn client(&self, streams: Vec<Stream>, run: Run) -> io::Result<Log> {
        if let Some(dialogue) = self.dialogue(run.seed) {
            let [stream] = one(streams)?;
            return dialogue.ask(stream, run).await;
        }
        if let Workload::Exchange { bytes } = *self {
            let [stream] = one(streams)?;
            return exchange::client(stream, bytes, run).await;
        }
        let Run { start_ns, seed, patience } = run;
        let mut log = Log::default();
        let (readers, mut writers): (Vec<_>, Vec<_>) = streams.into_iter().map(split).unzip();
        let deadline_ns = start_ns + (self.lasts(seed) + patience).as_nanos() as u64;
        let (sizes, count) = (self.sizes(seed), self.count());
        let end_ns = start_ns + self.lasts(seed).as_nanos() as u64;
        if let Workload::Upload { bytes, .. } = *self {
            let [writer] = &mut writers[..] else { return Err(several()) };
            until(start_ns).await;
            write_blocks(writer, bytes, end_ns, &mut log.sent).await?;
            return Ok(log);
        }
        let mut reading = tokio::task::JoinSet::new();
        for (number, reader) in readers.into_iter().enumerate() {
            let until_ns = if count.is_some() { deadline_ns } else { end_ns };
            reading.spawn(read_units(reader, number as u8, sizes.clone(), count, until_ns));
        }
        if let Workload::Ask { request_bytes, .. } = *self {
            let times = self.times_ns(seed);
            ask(&mut writers, request_bytes, &times, start_ns, &mut log.sent).await?;
        }
        while let Some(marks) = reading.join_next().await {
            log.received.extend(marks.map_err(io::Error::other)??);
        }
        Ok(log)
    }

    /// Runs the server.
    ///
    /// # Errors
    /// A stream failed before everything was written.
    pub async fn server(&self, streams: Vec<Stream>, run: Run) -> io::Result<Log> {
        let Run { start_ns, seed, patience } = run;
        let mut log = Log::default();
        let deadline_ns = start_ns + (self.lasts(seed) + patience).as_nanos() as u64;
        match *self {
            Workload::Ask { request_bytes, answer_bytes, .. }
            | Workload::Dialogue { request_bytes, answer_bytes, .. } => {
                let mut answering = tokio::task::JoinSet::new();
                let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
                for stream in streams {
                    let answers = answer(stream, request_bytes, answer_bytes);
                    answering.spawn(async move {
                        // A client that is unreachable cannot close its stream.
                        timeout(left, answers).await.unwrap_or(Ok(()))
                    });
                }
                while let Some(ended) = answering.join_next().await {
                    ended.map_err(io::Error::other)??;
                }
            }
            Workload::Blocks { bytes, lasts_ms } => {
                let end_ns = start_ns + lasts_ms * 1_000_000;
                until(start_ns).await;
                let [mut stream] = one(streams)?;
                write_blocks(&mut stream, bytes, end_ns, &mut log.sent).await?;
            }
            Workload::Upload { bytes, .. } => {
                let [stream] = one(streams)?;
                let end_ns = start_ns + self.lasts(seed).as_nanos() as u64;
                let (reader, _writer) = split(stream);
                log.received = read_units(reader, 0, Sizes::Even(bytes), None, end_ns).await?;
            }
            Workload::Exchange { bytes } => {
                let [stream] = one(streams)?;
                log = exchange::server(stream, bytes, run).await?;
            }
            Workload::Bursts { .. } | Workload::RandomBursts { .. } => {
                let [mut stream] = one(streams)?;
                let bursts: Vec<_> = (0..).zip(self.times_ns(seed)).collect();
                let sizes = self.sizes(seed);
                let write = async {
                    for (index, at_ns) in bursts {
                        let content = vec![0x5a; sizes.of(index) as usize];
                        until(start_ns + at_ns).await;
                        log.sent.push(Mark { stream: 0, index, at_ns: now_ns() });
                        stream.write_all(&content).await?;
                        stream.flush().await?;
                    }
                    // The client closes the stream when it has everything.
                    let _ = stream.read(&mut [0]).await;
                    Ok::<_, io::Error>(())
                };
                // On a dead path writing may not end: unwritten messages then count as missing.
                let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns()));
                timeout(left, write).await.unwrap_or(Ok(()))?;
            }
        }
        Ok(log)
    }
}

fn one(streams: Vec<Stream>) -> io::Result<[Stream; 1]> {
    streams.try_into().map_err(|_| several())
}

fn several() -> io::Error {
    io::Error::other("this workload has only one stream")
}

async fn ask(
    writers: &mut [WriteHalf<Stream>],
    bytes: u32,
    times: &[u64],
    start_ns: u64,
    sent: &mut Vec<Mark>,
) -> io::Result<()> {
    let content = vec![0xa5; bytes as usize];
    for (index, at_ns) in times.iter().enumerate() {
        until(start_ns + at_ns).await;
        for (stream, writer) in writers.iter_mut().enumerate() {
            let at_ns = now_ns();
            writer.write_all(&content).await?;
            writer.flush().await?;
            sent.push(Mark { stream: stream as u8, index: index as u32, at_ns });
        }
    }
    Ok(())
}

/// Answers requests until the client ends.
async fn answer(mut stream: Stream, request_bytes: u32, answer_bytes: u32) -> io::Result<()> {
    let mut request = vec![0; request_bytes as usize];
    let content = vec![0x5a; answer_bytes as usize];
    loop {
        match stream.read_exact(&mut request).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            read => read?,
        };
        stream.write_all(&content).await?;
        stream.flush().await?;
    }
}

/// Writes blocks until a time. Data under way at that time is not waited for.
async fn write_blocks(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: u32,
    end_ns: u64,
    sent: &mut Vec<Mark>,
) -> io::Result<()> {
    let content = vec![0x5a; bytes as usize];
    for index in 0.. {
        let left = end_ns.saturating_sub(now_ns());
        let written = timeout(Duration::from_nanos(left), async {
            stream.write_all(&content).await?;
            stream.flush().await
        });
        match written.await {
            Ok(Ok(())) => sent.push(Mark { stream: 0, index, at_ns: now_ns() }),
            // The time is over and the client has closed.
            Ok(Err(_)) if now_ns() + 500_000_000 > end_ns => break,
            Ok(Err(error)) => return Err(error),
            Err(_) => break,
        }
    }
    Ok(())
}

/// Reads messages of these sizes until their number is complete, or until a time.
async fn read_units(
    mut reader: ReadHalf<Stream>,
    stream: u8,
    sizes: Sizes,
    count: Option<u32>,
    until_ns: u64,
) -> io::Result<Vec<Mark>> {
    let mut marks = Vec::new();
    let mut buffer = vec![0; CHUNK];
    let (mut total, mut end) = (0u64, u64::from(sizes.of(0)));
    while count.is_none_or(|count| marks.len() < count as usize) {
        let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        let read = match timeout(left, reader.read(&mut buffer)).await {
            Err(_) => break,
            Ok(read) => read?,
        };
        if read == 0 && count.is_some() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if read == 0 {
            break;
        }
        total += read as u64;
        let at_ns = now_ns();
        while end <= total && count.is_none_or(|count| marks.len() < count as usize) {
            marks.push(Mark { stream, index: marks.len() as u32, at_ns });
            end += u64::from(sizes.of(marks.len() as u32));
        }
    }
    Ok(marks)
}

#[cfg(test)]
mod tests;
