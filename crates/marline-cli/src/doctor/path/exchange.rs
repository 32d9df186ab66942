//! Client side of a path diagnosis: sends probes and records the replies.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use marline::monitor::FallbackReason;
use marline::{Client, Stream};
use marline_io::TappedSegment;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::{sleep, timeout};

use super::seen;

/// Start of the first line: protocol and version.
pub(super) const GREETING: &str = "marline-doctor 1";
/// Answer from a responder to the first line.
pub(super) const ANSWER: &[u8] = b"marline-doctor 1 ok\n";
/// Maximum number of segments in a report.
const MAX_REPORT_LINES: usize = 20_000;

const MESSAGES: usize = 24;
/// The two writes of a message, close together, so that a middlebox may merge them.
const SMALL_BYTES: [usize; 2] = [150, 150];
/// The writes of every third message: two segments that a middlebox that splits and merges cannot restore, because it
/// merges pieces of the second with the first, and all of them do not fit in one packet.
const LARGE_BYTES: [usize; 2] = [600, 1_100];
const PAUSE: Duration = Duration::from_millis(80);
const BURST_BYTES: usize = 138_800;
/// Time limit for opening a connection. The client sends SYNs without options only after seven seconds.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time without received data.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(25);

/// Result of the exchange.
#[derive(Debug, Default)]
pub(super) struct ExchangeResult {
    pub(super) nonce: u64,
    /// True if a connection was opened.
    pub(super) opened: bool,
    /// True if the other end is not a responder.
    pub(super) is_foreign: bool,
    /// True if the other end is a responder.
    pub(super) answered: bool,
    /// Reason for a fallback to plain TCP.
    pub(super) fallback: Option<FallbackReason>,
    /// Number of bytes that were echoed correctly.
    pub(super) right: usize,
    /// Error that ended the exchange early.
    pub(super) error: Option<String>,
}

/// Returns the byte at a position of the stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8) as u8
}

fn pattern_bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

pub(super) async fn exchange(client: &Client, server: SocketAddr) -> ExchangeResult {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nonce =
        clock.map_or(1, |since| since.as_nanos() as u64) ^ u64::from(std::process::id()) << 40;
    let mut exchanged = ExchangeResult { nonce, ..ExchangeResult::default() };
    let opened = match timeout(OPEN_TIMEOUT, client.connect(server)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!("{:#}", anyhow::Error::new(error))),
        Err(_) => Err("no answer".to_owned()),
    };
    let mut stream = match opened {
        Ok(stream) => stream,
        Err(error) => {
            exchanged.error = Some(format!("no connection: {error}"));
            return exchanged;
        }
    };
    exchanged.opened = true;
    if let Err(error) = exchange_bytes(&mut stream, &mut exchanged).await {
        exchanged.error = Some(error_text(&error));
    }
    exchanged.fallback = stream.fallback();
    // If a middlebox changes its greeting, a responder may look like another server.
    let damaged = [FallbackReason::ChecksumFailed, FallbackReason::PeerFailed];
    if exchanged.is_foreign && exchanged.fallback.is_some_and(|why| damaged.contains(&why)) {
        exchanged.is_foreign = false;
        exchanged.error = Some("invalid greeting".to_owned());
    }
    exchanged
}

fn error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no more data received".to_owned(),
        _ => error.to_string(),
    }
}

async fn exchange_bytes(stream: &mut Stream, exchanged: &mut ExchangeResult) -> io::Result<()> {
    stream.write_all(format!("{GREETING} echo {:016x}\n", exchanged.nonce).as_bytes()).await?;
    let mut answer = [0; ANSWER.len()];
    let read = with_read_timeout(stream.read_exact(&mut answer)).await;
    let hung_up = read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof);
    exchanged.is_foreign = hung_up || read.is_ok() && answer != ANSWER;
    if exchanged.is_foreign {
        return Ok(());
    }
    read?;
    exchanged.answered = true;
    for number in 0..MESSAGES {
        let [first, second] = if number % 3 == 2 { LARGE_BYTES } else { SMALL_BYTES };
        stream.write_all(&pattern_bytes(exchanged.right, first)).await?;
        stream.write_all(&pattern_bytes(exchanged.right + first, second)).await?;
        read_pattern(stream, exchanged, first + second).await?;
        sleep(PAUSE).await;
    }
    let burst = pattern_bytes(exchanged.right, BURST_BYTES);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        writer.write_all(&burst).await?;
        writer.shutdown().await
    };
    let read = async {
        read_pattern(&mut reader, exchanged, BURST_BYTES).await?;
        let mut rest = Vec::new();
        with_read_timeout(reader.read_to_end(&mut rest)).await.map(|_| ())
    };
    tokio::try_join!(write, read).map(|_| ())
}

async fn with_read_timeout<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(SILENCE_TIMEOUT, work).await.map_err(|_| io::ErrorKind::TimedOut)?
}

/// Reads `count` bytes and compares them with the pattern.
async fn read_pattern(
    reader: &mut (impl AsyncReadExt + Unpin),
    exchanged: &mut ExchangeResult,
    bytes: usize,
) -> io::Result<()> {
    let mut left = bytes;
    let mut buffer = vec![0; 16_384];
    while left > 0 {
        let room = left.min(buffer.len());
        let count = with_read_timeout(reader.read(&mut buffer[..room])).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for got in &buffer[..count] {
            if *got != byte(exchanged.right) {
                let place = exchanged.right;
                return Err(io::Error::other(format!("byte {place} was changed")));
            }
            exchanged.right += 1;
        }
        left -= count;
    }
    Ok(())
}

/// Requests the other end's report on the connection with this nonce.
pub(super) async fn fetch_report(
    client: &Client,
    server: SocketAddr,
    nonce: u64,
) -> Option<Vec<TappedSegment>> {
    let mut stream = client.connect(server).await.ok()?;
    stream.write_all(format!("{GREETING} report {nonce:016x}\n").as_bytes()).await.ok()?;
    let mut lines = BufReader::new(stream).lines();
    let mut entries = Vec::new();
    while let Some(line) = lines.next_line().await.ok()? {
        if line == "end" {
            return Some(entries);
        }
        if entries.len() >= MAX_REPORT_LINES {
            return None;
        }
        entries.push(seen::read_line(&line)?);
    }
    None
}
