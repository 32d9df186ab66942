//! Applications of the demo, which use a SOCKS5 port and are independent of Marline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use super::origin::FILE;

/// Size of an echo message in bytes.
pub const MESSAGE: usize = 200;

/// Connects to `target` through the SOCKS5 proxy at `proxy` (RFC 1928, no authentication).
///
/// # Errors
/// The proxy cannot be reached or refuses.
pub async fn connect(proxy: SocketAddr, target: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream =
        TcpStream::connect(proxy).await.context("cannot connect to the SOCKS5 port")?;
    stream.set_nodelay(true)?;
    stream.write_all(&[5, 1, 0]).await?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).await?;
    if method != [5, 0] {
        bail!("the SOCKS5 proxy requires authentication: {method:?}");
    }
    let SocketAddr::V4(target) = target else { bail!("the demo supports IPv4 only") };
    let mut request = vec![5, 1, 0, 1];
    request.extend(target.ip().octets());
    request.extend(target.port().to_be_bytes());
    stream.write_all(&request).await?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply).await?;
    if reply[..2] != [5, 0] {
        bail!("the SOCKS5 proxy answered {} instead of 0", reply[1]);
    }
    let rest = match reply[3] {
        1 => 4 + 2,
        4 => 16 + 2,
        other => bail!("the SOCKS5 proxy answered with an address of kind {other}"),
    };
    stream.read_exact(&mut vec![0; rest]).await?;
    Ok(stream)
}

/// State shown by the progress display while applications run.
#[derive(Debug, Default)]
pub struct LiveProgress {
    /// Latency of the latest echo.
    pub latency_us: AtomicU64,
    /// Arrival time of the latest echo, in milliseconds since the start of the run.
    pub answered_ms: AtomicU64,
    /// Bytes of the file so far.
    pub file_bytes: AtomicU64,
}

/// A plan of echoes: `count` messages, one per `interval`, whether or not answers arrive (an open loop, so that
/// delayed messages are measured as well).
#[derive(Copy, Clone, Debug)]
pub struct EchoPlan {
    /// Time of the first message.
    pub start: Instant,
    /// Interval between two messages.
    pub interval: Duration,
    /// Number of messages.
    pub count: u32,
    /// Time at which missing answers count as lost.
    pub deadline: Instant,
}

/// Result of an echo plan.
#[derive(Clone, Debug, Default)]
pub struct EchoResult {
    /// Latency of each message, from its scheduled time until its answer was complete; `None` if there was no answer.
    pub latencies: Vec<Option<Duration>>,
    /// Longest time without an answer while one was due.
    pub longest_pause: Duration,
    /// Error that ended the plan early.
    pub error: Option<String>,
}

/// Sends messages over `stream` according to the plan and measures their echoes.
pub async fn echo(stream: TcpStream, plan: EchoPlan, live: Arc<LiveProgress>) -> EchoResult {
    let (reader, writer) = stream.into_split();
    let (mut sent, mut arrivals) = (Vec::new(), Vec::new());
    let working = async {
        tokio::select! {
            result = collect(reader, plan, &live, &mut arrivals) => result,
            error = send_messages(writer, plan, &mut sent) => Err(error.into()),
        }
    };
    let error = match tokio::time::timeout_at(plan.deadline, working).await {
        Ok(Err(error)) => Some(format!("{error:#}")),
        _ => None,
    };
    summarize(plan, &sent, &arrivals, error)
}

/// Records the scheduled time of each message, or the actual time if they differ only by the timer's granularity, which
/// is not network latency. Returns only if sending fails.
async fn send_messages(
    mut writer: OwnedWriteHalf,
    plan: EchoPlan,
    sent: &mut Vec<Instant>,
) -> std::io::Error {
    const TIMER_ERROR: Duration = Duration::from_millis(5);
    for number in 0..plan.count {
        let due = plan.start + plan.interval * number;
        tokio::time::sleep_until(due).await;
        let now = Instant::now();
        sent.push(if now - due > TIMER_ERROR { due } else { now });
        let mut message = [number as u8; MESSAGE];
        message[..4].copy_from_slice(&number.to_be_bytes());
        if let Err(error) = writer.write_all(&message).await {
            return error;
        }
    }
    // The writing half stays open until all answers have arrived, because closing it would end the connection.
    std::future::pending().await
}

async fn collect(
    mut reader: OwnedReadHalf,
    plan: EchoPlan,
    live: &LiveProgress,
    arrivals: &mut Vec<Instant>,
) -> anyhow::Result<()> {
    let mut message = [0; MESSAGE];
    for number in 0..plan.count {
        reader.read_exact(&mut message).await.context("the echo connection ended")?;
        if message[..4] != number.to_be_bytes() || message[4..].iter().any(|b| *b != number as u8) {
            bail!("echo {number} was corrupted");
        }
        let now = Instant::now();
        arrivals.push(now);
        let due = plan.start + plan.interval * number;
        live.latency_us.store((now - due).as_micros() as u64, Ordering::Relaxed);
        live.answered_ms.store((now - plan.start).as_millis() as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn summarize(
    plan: EchoPlan,
    sent: &[Instant],
    arrivals: &[Instant],
    error: Option<String>,
) -> EchoResult {
    let answered = sent.iter().zip(arrivals).map(|(sent, arrived)| Some(*arrived - *sent));
    let mut latencies: Vec<Option<Duration>> = answered.collect();
    latencies.resize(plan.count as usize, None);
    let mut longest_pause = Duration::ZERO;
    let mut last = plan.start;
    for arrived in arrivals {
        longest_pause = longest_pause.max(*arrived - last);
        last = *arrived;
    }
    if arrivals.len() < plan.count as usize {
        longest_pause = longest_pause.max(plan.deadline - last);
    }
    EchoResult { latencies, longest_pause, error }
}

/// Result of a download.
#[derive(Clone, Debug, Default)]
pub struct Download {
    /// Bytes received.
    pub bytes: u64,
    /// True if the whole file was received with the right hash.
    pub intact: bool,
    /// SHA-256 of the received file in hexadecimal. Only for a complete file.
    pub sha256: Option<String>,
    /// Time from the request to the last byte.
    pub took: Duration,
    /// Error that ended the download.
    pub error: Option<String>,
}

/// Gets the file over HTTP through `stream` and compares its hash.
pub async fn download(
    stream: TcpStream,
    length: u64,
    expected: [u8; 32],
    deadline: Instant,
    live: Arc<LiveProgress>,
) -> Download {
    let started = Instant::now();
    let mut hasher = Sha256::new();
    let getting = get(stream, &mut hasher, &live);
    let error = match tokio::time::timeout_at(deadline, getting).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("not finished in time".to_owned()),
    };
    let bytes = live.file_bytes.load(Ordering::Relaxed);
    let took = started.elapsed();
    if error.is_some() {
        return Download { bytes, took, error, ..Download::default() };
    }
    let hash: [u8; 32] = hasher.finalize().into();
    let intact = hash == expected && bytes == length;
    let error = (!intact).then(|| format!("{bytes} of {length} bytes with the wrong hash"));
    Download { bytes, intact, sha256: Some(hex(&hash)), took, error }
}

async fn get(stream: TcpStream, hasher: &mut Sha256, live: &LiveProgress) -> anyhow::Result<()> {
    let host = stream.peer_addr()?.to_string();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    let connection = tokio::spawn(connection);
    let request =
        hyper::Request::get(FILE).header(hyper::header::HOST, host).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("HTTP request failed")?;
    if response.status() != hyper::StatusCode::OK {
        bail!("HTTP {}", response.status());
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the download was cut off")?.into_data() {
            hasher.update(&data);
            live.file_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
    }
    drop(sender);
    // The file is complete, so it does not matter how the connection ends.
    connection.abort();
    Ok(())
}

/// Formats bytes as lower-case hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
