//! One end of a live connection: writes and reads the messages of a plan over any kind of stream.
//!
//! A message begins with a header that holds its length and the length of the answer. A message that would be shorter
//! is as long as its header.

use std::io;
use std::time::Duration;

use marline_sim::{Message, Plan as _, SentAt};
use marline_time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::time::{sleep, timeout};

use super::plan::End;
use crate::workload::{Stream, now_ns};

/// Size of a read or write in bytes.
const CHUNK: usize = 64 << 10;
/// Length of a header in bytes.
const HEADER: usize = 16;

fn now() -> Instant {
    Instant::from_nanos(now_ns())
}

fn time_until(at: Instant) -> Duration {
    at.since(now())
}

/// Conditions under which an end stops.
#[derive(Copy, Clone, Debug)]
pub(super) struct StopCondition {
    /// Time after which no endless messages are sent, if there are any. Then the end stops when all other messages are
    /// complete.
    pub(super) floods: Option<Instant>,
    /// Time at which the end stops even if messages are missing.
    pub(super) deadline: Instant,
}

/// Runs the end that opened the stream. Messages that have not arrived by the deadline are not in its log.
///
/// # Errors
/// The stream failed.
pub(super) async fn client(stream: Stream, end: End, until: StopCondition) -> io::Result<()> {
    let mut talk = StreamTask::new(stream, end);
    while now() < until.deadline {
        let idle = talk.end.is_complete() && talk.writing.is_none();
        if idle && until.floods.is_none_or(|at| at <= now()) {
            break;
        }
        let wakes = until.floods.filter(|at| *at > now()).unwrap_or(until.deadline);
        match talk.step(wakes.min(until.deadline)).await {
            Ok(Step::Ended) if until.floods.is_some_and(|at| at <= now()) => break,
            Ok(Step::Ended) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Step::Done) => {}
            Err(_) if until.floods.is_some_and(|at| at <= now()) => break,
            Err(error) => return Err(error),
        }
    }
    if until.floods.is_none() {
        // The peer closes when it has all data.
        let closing = async {
            talk.writer.shutdown().await.ok();
            while !matches!(talk.step(until.deadline).await, Ok(Step::Ended) | Err(_)) {}
        };
        timeout(time_until(until.deadline), closing).await.ok();
    }
    Ok(())
}

/// Runs the end that accepted the stream, until the client closes. The client reports what is missing.
pub(super) async fn server(stream: Stream, end: End, until: StopCondition) {
    let mut talk = StreamTask::new(stream, end);
    while now() < until.deadline {
        match talk.step(until.deadline).await {
            Ok(Step::Done) => {}
            Ok(Step::Ended) | Err(_) => break,
        }
    }
}

/// Event.
enum Step {
    /// Bytes were written or read, or a message became due.
    Done,
    /// The peer has closed.
    Ended,
}

/// A stream and the plan of its end.
struct StreamTask {
    end: End,
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    /// The message being written, and its bytes written so far.
    writing: Option<(Message, u64)>,
    /// Bytes so far of the header being read.
    header: Vec<u8>,
    /// The message being read, and its number of remaining bytes.
    reading: Option<(Message, u64)>,
    buffer: Vec<u8>,
    /// Bytes to write, starting with the header of the message being written.
    filler: Vec<u8>,
}

impl StreamTask {
    fn new(stream: Stream, end: End) -> StreamTask {
        let (reader, writer) = split(stream);
        let (buffer, filler) = (vec![0; CHUNK], vec![0x5a; CHUNK]);
        let (writing, header, reading) = (None, Vec::new(), None);
        StreamTask { end, reader, writer, writing, header, reading, buffer, filler }
    }

    /// Writes or reads some bytes, or waits for the plan's next message, but not beyond this time.
    async fn step(&mut self, until: Instant) -> io::Result<Step> {
        if self.writing.is_none() {
            self.begin();
        }
        let piece = match self.writing {
            Some((message, written)) => {
                let (from, left) = (written as usize % CHUNK, length(&message) - written);
                &self.filler[from..CHUNK.min(from + left as usize)]
            }
            None => &[],
        };
        let timer = if piece.is_empty() { self.end.next_timeout() } else { None };
        let timer = timer.map_or(until, |at| at.min(until));
        tokio::select! {
            read = self.reader.read(&mut self.buffer) => match read? {
                0 => return Ok(Step::Ended),
                count => self.take(count),
            },
            written = self.writer.write(piece), if !piece.is_empty() => {
                let count = written?;
                self.wait_until_written(count as u64).await?;
            }
            () = sleep(time_until(timer)) => {}
        }
        Ok(Step::Done)
    }

    /// Begins the plan's next message, if there is one.
    fn begin(&mut self) {
        let Some(message) = self.end.next_message(now()) else { return };
        if message.sent == SentAt::Begin {
            self.end.on_sent(now(), &message);
        }
        self.filler[..HEADER].copy_from_slice(&encode_header(&message));
        self.writing = Some((message, 0));
    }

    async fn wait_until_written(&mut self, count: u64) -> io::Result<()> {
        let Some((message, written)) = &mut self.writing else { return Ok(()) };
        *written += count;
        if *written < length(message) {
            return Ok(());
        }
        let message = *message;
        self.writing = None;
        self.writer.flush().await?;
        if message.sent == SentAt::Accepted {
            self.end.on_sent(now(), &message);
        }
        Ok(())
    }

    /// Takes bytes that were read.
    fn take(&mut self, count: usize) {
        let (at, mut rest) = (now(), &self.buffer[..count]);
        while !rest.is_empty() {
            let wanted = self.reading.map_or(HEADER - self.header.len(), |(_, left)| left as usize);
            let (bytes, after) = rest.split_at(wanted.min(rest.len()));
            rest = after;
            match &mut self.reading {
                Some((_, left)) => *left -= bytes.len() as u64,
                None => self.header.extend_from_slice(bytes),
            }
            if let Some(header) = self.header.first_chunk() {
                let message = decode_header(header);
                self.header.clear();
                self.reading = Some((message, length(&message) - HEADER as u64));
            }
            if let Some((message, 0)) = self.reading {
                self.reading = None;
                self.end.on_message(at, &message);
            }
        }
    }
}

/// Length on the stream in bytes.
const fn length(message: &Message) -> u64 {
    if message.bytes < HEADER as u64 { HEADER as u64 } else { message.bytes }
}

fn encode_header(message: &Message) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let flow_and_flag = message.flow << 1 | u16::from(message.ends);
    header[..2].copy_from_slice(&flow_and_flag.to_be_bytes());
    header[4..8].copy_from_slice(&message.index.to_be_bytes());
    header[8..12].copy_from_slice(&(message.bytes as u32).to_be_bytes());
    header[12..].copy_from_slice(&(message.answer_bytes as u32).to_be_bytes());
    header
}

fn decode_header(header: &[u8; HEADER]) -> Message {
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let flow_and_flag = u16::from_be_bytes([header[0], header[1]]);
    Message {
        flow: flow_and_flag >> 1,
        index: word(4),
        bytes: word(8).into(),
        answer_bytes: word(12).into(),
        ends: flow_and_flag & 1 == 1,
        sent: SentAt::Never,
    }
}

#[cfg(test)]
mod tests;
