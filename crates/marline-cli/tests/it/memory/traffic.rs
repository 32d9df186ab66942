//! Traffic of the memory tests: a source that sends as fast as it is read, applications that read little or
//! nothing, and an honest application whose delays are measured.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::support::{self, Beside};
use super::{DESCRIPTORS, raise_descriptors, through};

/// Time limit for a single step of an application.
const PATIENCE: Duration = Duration::from_secs(60);
/// Socket buffers of the source and of applications, small so that the bytes are in the programs under test. The
/// kernel doubles them.
const SOURCE_BUFFER: u32 = 32 << 10;
const APPLICATION_BUFFER: u32 = 16 << 10;
/// Period of the source's data. It is prime, so that no buffer size divides it.
const PERIOD: usize = 65_521;

/// Returns the bytes that the source repeats. An answer starts at the offset in the request.
fn pattern() -> Arc<[u8]> {
    let byte = |at: usize| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8;
    // Two periods, so that a full one follows each offset.
    (0..2 * PERIOD).map(|at| byte(at % PERIOD)).collect()
}

/// Environment variable that makes [`the_source`] a source: the length of each answer, and the file for its
/// address.
const SOURCE: &str = "MARLINE_MEMORY_SOURCE";

/// A TCP service in a process with descriptors of its own: it reads a four-byte offset, and sends bytes from there
/// in the pattern. Dropping it ends the process.
pub(super) struct Source {
    address: SocketAddr,
    pattern: Arc<[u8]>,
    _process: Beside,
}

impl Source {
    /// Starts a source whose answers have this length.
    pub(super) fn start(dir: &Path, length: u64) -> Source {
        let note = dir.join("source");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", support::name_of_test(the_source)]);
        command.env(SOURCE, format!("{length} {}", note.display())).stdout(Stdio::null());
        let process = Beside::start(&mut command);
        let until = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            if let Some(address) = text.strip_suffix('\n') {
                let address = address.parse().expect("an address");
                return Source { address, pattern: pattern(), _process: process };
            }
            assert!(Instant::now() < until, "the source does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Not a test, but the other end for tests that need a source.
#[test]
#[ignore = "a part of other tests"]
fn the_source() {
    let Ok(told) = std::env::var(SOURCE) else { return };
    let (length, note) = told.split_once(' ').expect("LENGTH FILE");
    assert!(raise_descriptors(DESCRIPTORS), "as in the test itself");
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(async {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Accepted connections inherit the listener's buffer.
        socket.set_send_buffer_size(SOURCE_BUFFER).expect("a small buffer");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        let listener = socket.listen(4_096).expect("a listener");
        let address = listener.local_addr().expect("its address");
        std::fs::write(note, format!("{address}\n")).expect("a file");
        accept(listener, pattern(), length.parse().expect("a length")).await;
    });
}

async fn accept(listener: TcpListener, pattern: Arc<[u8]>, length: u64) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let pattern = pattern.clone();
        tokio::spawn(async move {
            let from = stream.read_u32().await? as usize;
            let mut sent = 0;
            while sent < length {
                let at = (from + sent as usize) % PERIOD;
                let most = (length - sent).min(PERIOD as u64) as usize;
                sent += stream.write(&pattern[at..at + most]).await? as u64;
            }
            io::Result::Ok(())
        });
    }
}

/// A stream from the source to an application, through a SOCKS5 port.
pub(super) struct Download {
    stream: TcpStream,
    pattern: Arc<[u8]>,
    from: usize,
    /// Bytes received so far, all of them correct.
    pub(super) taken: u64,
}

/// A download that has not been opened yet.
pub(super) struct Request {
    source: SocketAddrV4,
    pattern: Arc<[u8]>,
    from: u32,
}

impl Source {
    /// Returns the request with this number. Each starts at another offset.
    pub(super) fn request(&self, number: u32) -> Request {
        let SocketAddr::V4(source) = self.address else { panic!("an IPv4 source") };
        Request { source, pattern: self.pattern.clone(), from: number.wrapping_mul(7_919) }
    }
}

impl Request {
    /// Opens a stream through a SOCKS5 port, and sends the request.
    pub(super) async fn open(self, socks: SocketAddr) -> io::Result<Download> {
        match timeout(PATIENCE, self.open_stream(socks)).await {
            Ok(stream) => {
                let (pattern, from) = (self.pattern, self.from as usize);
                Ok(Download { stream: stream?, pattern, from, taken: 0 })
            }
            Err(_) => Err(io::Error::other(format!("not open within {PATIENCE:?}"))),
        }
    }

    async fn open_stream(&self, socks: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(APPLICATION_BUFFER)?;
        let mut stream = socket.connect(socks).await?;
        stream.write_all(&[5, 1, 0]).await?;
        stream.read_exact(&mut [0; 2]).await?;
        let mut request = vec![5, 1, 0, 1];
        request.extend_from_slice(&self.source.ip().octets());
        request.extend_from_slice(&self.source.port().to_be_bytes());
        stream.write_all(&request).await?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply).await?;
        if reply[1] != 0 {
            return Err(io::Error::other(format!("SOCKS5 reply {}", reply[1])));
        }
        stream.write_u32(self.from).await?;
        Ok(stream)
    }
}

impl Download {
    /// Reads up to `most` bytes and compares them. Returns 0 at the end.
    pub(super) async fn take(&mut self, most: usize) -> io::Result<usize> {
        let mut buffer = vec![0; most.min(PERIOD)];
        let count = match timeout(PATIENCE, self.stream.read(&mut buffer)).await {
            Ok(count) => count?,
            Err(_) => return Err(io::Error::other(format!("silent for {PATIENCE:?}"))),
        };
        let at = (self.from + self.taken as usize) % PERIOD;
        if buffer[..count] != self.pattern[at..at + count] {
            return Err(io::Error::other(format!("wrong bytes after {}", self.taken)));
        }
        self.taken += count as u64;
        Ok(count)
    }

    /// Reads until `count` bytes have been received in total.
    pub(super) async fn take_until(&mut self, count: u64) -> io::Result<()> {
        while self.taken < count {
            if self.take((count - self.taken) as usize).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Reads the rest. Returns the total number of bytes.
    pub(super) async fn take_rest(&mut self) -> io::Result<u64> {
        while self.take(PERIOD).await? > 0 {}
        Ok(self.taken)
    }
}

/// Opened downloads, and the errors of the others.
pub(super) struct Opened {
    pub(super) downloads: Vec<Download>,
    /// One error for each download that failed to open.
    pub(super) errors: Vec<String>,
}

/// Downloads to open.
pub(super) struct Openings {
    pub(super) count: u32,
    pub(super) per_second: u32,
    /// Number of bytes that each reads first before it stops reading.
    pub(super) first: u64,
}

/// Opens downloads from the source at this pace.
pub(super) async fn open_paced(socks: SocketAddr, source: &Source, openings: Openings) -> Opened {
    let Openings { count, per_second, first } = openings;
    let mut opening = JoinSet::new();
    let begun = tokio::time::Instant::now();
    for number in 0..count {
        tokio::time::sleep_until(begun + Duration::from_secs(1) * number / per_second).await;
        let request = source.request(number);
        opening.spawn(async move {
            let mut download = request.open(socks).await?;
            download.take_until(first).await?;
            Ok(download)
        });
    }
    let mut opened = Opened { downloads: Vec::new(), errors: Vec::new() };
    while let Some(one) = opening.join_next().await {
        let one: io::Result<Download> = one.expect("no panic");
        match one {
            Ok(download) => opened.downloads.push(download),
            Err(error) => opened.errors.push(error.to_string()),
        }
    }
    opened
}

/// Reads all these downloads to the end, sixteen at a time. Each must have this length.
pub(super) async fn take_all(downloads: Vec<Download>, length: u64) {
    let together = Arc::new(tokio::sync::Semaphore::new(16));
    let mut taking = JoinSet::new();
    for mut download in downloads {
        let turn = together.clone();
        taking.spawn(async move {
            let _turn = turn.acquire().await;
            download.take_rest().await
        });
    }
    while let Some(taken) = taking.join_next().await {
        assert_eq!(taken.expect("no panic").expect("a whole download"), length);
    }
}

/// Delays of an honest application.
#[derive(Debug, Default)]
pub(super) struct Waits(Vec<Duration>);

impl Waits {
    /// Adds other delays.
    pub(super) fn and(mut self, others: Waits) -> Waits {
        self.0.extend(others.0);
        self
    }

    /// Returns the delay that 99 of 100 exchanges did not exceed.
    pub(super) fn p99(&self) -> Duration {
        self.at(99)
    }

    /// Returns the delay that this many of 100 exchanges did not exceed.
    pub(super) fn at(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |percent| self.at(percent).as_secs_f64() * 1e3;
        let (count, middle, p99, most) = (self.0.len(), ms(50), ms(99), ms(100));
        write!(f, "{count} exchanges: median {middle:.2} ms, p99 {p99:.2} ms, most {most:.2} ms")
    }
}

/// Sends a kilobyte over a new stream and reads it back, at least `least` times and while `more` returns true, with
/// a pause after each exchange.
pub(super) fn exchange(
    socks: SocketAddr,
    echo: SocketAddr,
    least: usize,
    more: impl Fn() -> bool,
) -> io::Result<Waits> {
    const REST: Duration = Duration::from_millis(20);
    let mut waits = Vec::new();
    while waits.len() < least || more() {
        let begun = Instant::now();
        let mut stream = honest_stream(socks, echo)?;
        let sent = [waits.len() as u8; 1_000];
        stream.write_all(&sent)?;
        let mut back = [0; 1_000];
        stream.read_exact(&mut back)?;
        waits.push(begun.elapsed());
        if back != sent {
            return Err(io::Error::other("other bytes came back"));
        }
        drop(stream);
        std::thread::sleep(REST);
    }
    Ok(Waits(waits))
}

fn honest_stream(socks: SocketAddr, echo: SocketAddr) -> io::Result<std::net::TcpStream> {
    let stream = through(socks, echo, PATIENCE / 2)?;
    stream.set_write_timeout(Some(PATIENCE / 2))?;
    Ok(stream)
}

/// Sends `length` bytes to the echo service and compares the echo.
pub(super) fn send_and_compare(
    socks: SocketAddr,
    echo: SocketAddr,
    length: usize,
) -> io::Result<()> {
    let mut stream = honest_stream(socks, echo)?;
    let sent: Vec<u8> = pattern().iter().copied().cycle().take(length).collect();
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        let (mut writer, sent) = (stream.try_clone()?, &sent);
        let sending = scope.spawn(move || {
            writer.write_all(sent)?;
            writer.shutdown(std::net::Shutdown::Write)
        });
        stream.read_to_end(&mut back)?;
        sending.join().expect("no panic")
    })?;
    if back == sent {
        Ok(())
    } else {
        Err(io::Error::other(format!("{} bytes came back, or wrong ones", back.len())))
    }
}
