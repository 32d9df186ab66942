//! Tasks of links: one task opens a link; then one reads from it and one writes to it.
//!
//! A TCP connection carries all flows of a client between two addresses, including flows of older processes, and only
//! one process can write to it. The newest process owns the links. For each older process that owns frames on a link,
//! it creates a pair of Unix sockets, keeps one end and sends the other to that process, with the addresses of the
//! link. The older process treats its end like any other link: same framing, same limits, and a full socket makes its
//! shards wait. The newest process writes frames that come back to the TCP connection, one by one.

use core::net::SocketAddr;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use marline_core::Shard as Part;
use marline_time::{Duration, PAUSE};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::link::{Link, LinkStream, SendOutcome};
use super::older_processes::{OlderProcess, OlderProcesses};
use super::routing::{self, Links, count};
use super::sockets::{SocketOptions, Watch};
use crate::carrier::Outer;
use crate::edge::tcp::Segments;
use crate::links::{Failure, ForeignData, FrameDecoder, PREAMBLE};
use crate::succession::Message;
use crate::sys;

/// Time that a client waits for the server's preamble.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(8);
/// Time that a server waits for a flow to be validated on a link.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which a server closes a link. A client sends keepalives at least every 20 s.
const IDLE: Duration = Duration::from_secs(90);
/// Time after which a link is closed if its peer accepts no data.
const BLOCKED_LINK_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a client closes a link that it no longer needs: within a round trip, the server's flows move as well.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Connect time below which the first SYN must have been answered, not a retransmission.
const FIRST_SYN_ANSWER_TIME: Duration = Duration::from_millis(900);
/// Maximum number of bytes per read.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Read buffer shared by all links of a thread; a link keeps less than one frame.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Reason for the end of a link.
enum End {
    /// The peer or the network closed it.
    Closed(Option<io::Error>),
    /// The data was not valid frames.
    ForeignData(ForeignData),
    /// Nothing arrived in time.
    Silent,
}

impl core::fmt::Display for End {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            End::Closed(None) => f.write_str("closed"),
            End::Closed(Some(error)) => write!(f, "{error}"),
            End::ForeignData(ForeignData::Length(length)) => {
                write!(f, "invalid frame of {length} bytes")
            }
            End::ForeignData(_) => f.write_str("the peer does not speak Marline's protocol"),
            End::Silent => f.write_str("no data before the timeout"),
        }
    }
}

/// Reason why a link was not established.
#[derive(Debug)]
pub(super) enum LinkOpenError {
    Io(io::Error),
    ForeignData(ForeignData),
}

impl LinkOpenError {
    /// Distinguishes unanswered attempts from answered ones.
    pub(super) fn kind(&self) -> Failure {
        match self {
            LinkOpenError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                Failure::Unanswered
            }
            LinkOpenError::Io(_) | LinkOpenError::ForeignData(_) => Failure::Answered,
        }
    }

    /// Returns true if the server's machine refused the connection: no program listens on that port.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, LinkOpenError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl core::fmt::Display for LinkOpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LinkOpenError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                f.write_str("the server does not listen on TCP")
            }
            LinkOpenError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("no answer over TCP either")
            }
            LinkOpenError::Io(error) => write!(f, "TCP connection failed too: {error}"),
            LinkOpenError::ForeignData(alien) => f.write_str(alien.meaning()),
        }
    }
}

/// Event of a link, for the shards that use it.
#[derive(Copy, Clone, Debug)]
pub(super) enum LinkEvent<'a> {
    /// Frames have arrived.
    Frames(&'a Link, &'a [&'a [u8]]),
    /// The link has room again.
    Room(&'a Outer),
    /// The link has ended. The flag is true if the peer stopped acknowledging data.
    Closed(&'a Outer, bool),
}

/// Shards that use a link.
#[derive(Clone)]
pub(super) struct LinkUsers<N> {
    pub(crate) count: usize,
    /// Notifies the shard with this index. Returns false if the shard has ended.
    pub(crate) notify: N,
}

/// Starts the tasks of a link.
pub(super) fn start<N>(
    links: &Arc<Links>,
    link: Arc<Link>,
    users: LinkUsers<N>,
    unpacker: FrameDecoder,
    accepted: bool,
) where
    N: Fn(usize, LinkEvent<'_>) -> bool + Clone + Send + Sync + 'static,
{
    routing::start_watch(links);
    let (links, writer) = (Arc::clone(links), Arc::clone(&link));
    let write = tokio::spawn(write(writer, Arc::clone(&links), users.clone()));
    let write = Watch::new(write.abort_handle());
    tokio::spawn(async move {
        let end = read(&link, &links, &users, unpacker, accepted).await;
        drop(write);
        finish(&links, &link, &users, &end);
    });
}

fn finish(
    links: &Links,
    link: &Link,
    users: &LinkUsers<impl Fn(usize, LinkEvent<'_>) -> bool>,
    end: &End,
) {
    match end {
        End::Closed(_) => {}
        End::ForeignData(_) => count(&links.counters().malformed),
        End::Silent => count(&links.counters().silent),
    }
    tracing::debug!(remote = %link.outer().remote, "TCP link closed: {end}");
    link.close();
    links.remove(link);
    let is_reset =
        matches!(end, End::Closed(Some(e)) if e.kind() == io::ErrorKind::ConnectionReset);
    let stalled = is_reset || link.progress().was_stalled();
    for at in 0..users.count {
        (users.notify)(at, LinkEvent::Closed(link.outer(), stalled));
    }
}

/// Reads frames and passes them to their shards until the link ends. The server sends its preamble after the
/// client's.
async fn read(
    link: &Arc<Link>,
    links: &Links,
    users: &LinkUsers<impl Fn(usize, LinkEvent<'_>) -> bool>,
    mut unpacker: FrameDecoder,
    accepted: bool,
) -> End {
    let begun = Instant::now();
    let mut heard = begun;
    loop {
        let proven = link.has_validated_flow() || link.is_relayed();
        let patience = match (accepted, proven) {
            (false, _) => None,
            (true, true) => Some(heard + IDLE),
            (true, false) => Some(begun + VALIDATION_TIMEOUT),
        };
        let ready = link.stream().readable();
        let ready = match patience {
            Some(until) => match timeout_at(until, ready).await {
                Ok(ready) => ready,
                // This process was suspended. Data that arrived in the meantime is read first.
                Err(_) if proven && Instant::now() > until + PAUSE => {
                    heard = Instant::now();
                    continue;
                }
                Err(_) => return End::Silent,
            },
            None => ready.await,
        };
        if let Err(error) = ready {
            return End::Closed(Some(error));
        }
        let greeted = unpacker.has_preamble();
        match take(link, links, users, &mut unpacker) {
            Ok(true) => {
                link.progress().on_read();
                heard = Instant::now();
            }
            Ok(false) => {}
            Err(end) => return end,
        }
        if accepted
            && !greeted
            && unpacker.has_preamble()
            && let Err(error) = link.greet()
        {
            return End::Closed(Some(error));
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Reads once and passes frames on. Returns true if there were any.
fn take(
    link: &Arc<Link>,
    links: &Links,
    users: &LinkUsers<impl Fn(usize, LinkEvent<'_>) -> bool>,
    unpacker: &mut FrameDecoder,
) -> Result<bool, End> {
    BUFFER.with_borrow_mut(|buffer| {
        let kept = unpacker.restore(buffer);
        let len = match link.stream().try_read(&mut buffer[kept..]) {
            Ok(0) => return Err(End::Closed(None)),
            Ok(len) => kept + len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => kept,
            Err(error) => return Err(End::Closed(Some(error))),
        };
        let mut frames: Vec<&[u8]> = Vec::new();
        let end = unpacker.unpack(&buffer[..len], |frame| frames.push(frame));
        let came = !frames.is_empty();
        if let Some(older) = links.connected_older_processes() {
            frames = keep_own_segments(links, older, link, frames);
        } else if let (LinkStream::Unix(_), Some(older)) = (link.stream(), links.older_processes())
        {
            frames.retain(|frame| older.handles_frame(frame));
        }
        let owner = |frame: &[u8]| owner(frame, users.count);
        for run in frames.chunk_by(|one, other| owner(one) == owner(other)) {
            let shard = run.first().map_or(0, |frame| owner(frame));
            if !(users.notify)(shard, LinkEvent::Frames(link, run)) {
                return Err(End::Closed(None));
            }
        }
        end.map_err(End::ForeignData)?;
        Ok(came)
    })
}

/// Returns the index of the shard that owns a frame, computed as in the kernel's program for datagrams
/// (`linux/socket.rs`).
pub(super) fn owner(frame: &[u8], shards: usize) -> usize {
    const SENDER_ID_LAST_BYTE: usize = 16;
    let Some(id) = frame.get(1..).and_then(|rest| rest.first_chunk::<8>()) else { return 0 };
    let count = u8::try_from(shards).unwrap_or(u8::MAX);
    match u64::from_be_bytes(*id) {
        0 => frame.get(SENDER_ID_LAST_BYTE).map_or(0, |last| usize::from(*last) & (shards - 1)),
        id => usize::from(Part::of_flow(id, count)),
    }
}

/// Writes queued frames whenever the kernel has room.
async fn write(
    link: Arc<Link>,
    links: Arc<Links>,
    users: LinkUsers<impl Fn(usize, LinkEvent<'_>) -> bool>,
) {
    loop {
        link.has_work().await;
        loop {
            if link.is_broken() {
                return;
            }
            match timeout(BLOCKED_LINK_TIMEOUT, link.stream().writable()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    count(&links.counters().stuck);
                    link.close();
                    return;
                }
            }
            match link.flush() {
                Ok(None) => {}
                Ok(Some(waiting)) => {
                    let told = |at: usize| waiting & (1 << (at & 127)) != 0;
                    for at in (0..users.count).filter(|at| told(*at)) {
                        (users.notify)(at, LinkEvent::Room(link.outer()));
                    }
                    break;
                }
                Err(_) => return link.close(),
            }
        }
    }
}

/// Opens a link for a client's shard. `stalled` means that the previous link has just stalled.
pub(super) async fn open(
    options: &SocketOptions,
    remote: SocketAddr,
    stalled: bool,
) -> Result<TcpStream, LinkOpenError> {
    match timeout(PREAMBLE_TIMEOUT, connect(options, remote, stalled)).await {
        Ok(opened) => opened,
        Err(_) => Err(LinkOpenError::Io(io::ErrorKind::TimedOut.into())),
    }
}

/// Connects and exchanges preambles. If the previous link was `stalled` and the server answers this one immediately,
/// the network apparently loses only large segments.
async fn connect(
    options: &SocketOptions,
    remote: SocketAddr,
    stalled: bool,
) -> Result<TcpStream, LinkOpenError> {
    let begun = Instant::now();
    let mut stream = connect_with(options, remote, Segments::Standard).await?;
    if stalled && begun.elapsed() < FIRST_SYN_ANSWER_TIME {
        tracing::debug!(server = %remote, "large TCP segments appear to be lost; using small ones");
        stream = connect_with(options, remote, Segments::Small).await?;
    }
    sys::link::prepare(&stream);
    greet(&stream).await?;
    Ok(stream)
}

async fn connect_with(
    options: &SocketOptions,
    remote: SocketAddr,
    segments: Segments,
) -> Result<TcpStream, LinkOpenError> {
    let socket = sys::link::open(&options.spec(), segments).map_err(LinkOpenError::Io)?;
    TcpSocket::from_std_stream(socket).connect(remote).await.map_err(LinkOpenError::Io)
}

/// Sends our preamble, then reads the server's preamble and nothing more.
async fn greet(stream: &TcpStream) -> Result<(), LinkOpenError> {
    stream.writable().await.map_err(LinkOpenError::Io)?;
    stream.try_write(&PREAMBLE).map_err(LinkOpenError::Io)?;
    let mut unpacker = FrameDecoder::default();
    let mut buffer = [0; PREAMBLE.len()];
    while !unpacker.has_preamble() {
        stream.readable().await.map_err(LinkOpenError::Io)?;
        let kept = unpacker.restore(&mut buffer);
        match stream.try_read(&mut buffer[kept..]) {
            Ok(0) => return Err(LinkOpenError::Io(io::ErrorKind::ConnectionReset.into())),
            Ok(len) => unpacker
                .unpack(&buffer[..kept + len], |_| ())
                .map_err(LinkOpenError::ForeignData)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                unpacker.unpack(&buffer[..kept], |_| ()).map_err(LinkOpenError::ForeignData)?;
            }
            Err(error) => return Err(LinkOpenError::Io(error)),
        }
    }
    Ok(())
}

/// Closes a link that is no longer needed, after a delay.
pub(super) fn close_later(links: &Arc<Links>, index: u16) {
    let Some(link) = links.link_by_index(index) else { return };
    tokio::spawn(async move {
        tokio::time::sleep(CLOSING_TIME).await;
        link.close();
    });
}

/// Delay before a full link is tried again.
const FULL_LINK_RETRY_DELAY: Duration = Duration::from_millis(1);
/// Maximum number of bytes per read from a relay.
const RELAY_READ_BYTES: usize = 16 << 10;
/// Index that stands for no shard: a relay notifies none when it has room.
const NO_SHARD: u8 = 127;

/// Passes frames of older processes on. Returns the rest.
fn keep_own_segments<'a>(
    links: &Links,
    older: &OlderProcesses,
    link: &Arc<Link>,
    frames: Vec<&'a [u8]>,
) -> Vec<&'a [u8]> {
    let all = older.all();
    let mut ours = Vec::new();
    for frame in frames {
        let (receivers, keep) = older.receivers(&all, frame);
        for process in receivers {
            if let Some(relay) = relay_to(link, process)
                && relay.send(NO_SHARD, false, 0, frame) == SendOutcome::Dropped
            {
                count(&links.counters().dropped);
            }
        }
        if keep {
            ours.push(frame);
        }
    }
    ours
}

/// Returns the relay to an older process for its frames on a link; creates it if needed.
fn relay_to(link: &Arc<Link>, process: &OlderProcess) -> Option<Arc<Link>> {
    if let Some(known) = link.relay_of(process.generation()) {
        return Some(known);
    }
    let (here, there) = UnixStream::pair().ok()?;
    let there = OwnedFd::from(there.into_std().ok()?);
    let (local, remote, port) = (link.outer().local, link.outer().remote, link.port());
    let message = Message::Link { local, remote, port }.to_bytes();
    // If the channel to the process is full, the next frame tries again.
    process.send(&[&message], Some(&there)).ok()?;
    let relay = Arc::new(Link::relay(LinkStream::Unix(here), link));
    link.add_relay(process.generation(), &relay);
    tokio::spawn(write_relay(Arc::clone(&relay)));
    tokio::spawn(write_back(Arc::clone(link), Arc::clone(&relay), process.generation()));
    Some(relay)
}

/// Writes queued frames to an older process whenever its socket has room.
async fn write_relay(relay: Arc<Link>) {
    loop {
        relay.has_work().await;
        loop {
            if relay.is_broken() || relay.stream().writable().await.is_err() {
                return;
            }
            match relay.flush() {
                Ok(None) => {}
                Ok(Some(_)) => break,
                Err(_) => return relay.close(),
            }
        }
    }
}

/// Writes frames of an older process to the link, until the relay or the link ends.
async fn write_back(link: Arc<Link>, relay: Arc<Link>, generation: u8) {
    let mut unpacker = FrameDecoder::after_preamble();
    let mut buffer = vec![0; RELAY_READ_BYTES];
    while relay.stream().readable().await.is_ok() && !link.is_broken() {
        let kept = unpacker.restore(&mut buffer);
        let len = match relay.stream().try_read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(len) => kept + len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => kept,
            Err(_) => break,
        };
        let mut sent = SendOutcome::All;
        let write = |frame: &[u8]| {
            if link.send(NO_SHARD, false, 0, frame) != SendOutcome::All {
                sent = SendOutcome::Full;
            }
        };
        if unpacker.unpack(&buffer[..len], write).is_err() {
            break;
        }
        while sent == SendOutcome::Full && link.is_waiting() && !link.is_broken() {
            tokio::time::sleep(FULL_LINK_RETRY_DELAY).await;
        }
    }
    relay.close();
    let was_last = link.remove_relay(generation, &relay);
    // The older process has closed its end. The link is closed if no process has validated a flow on it.
    if was_last && !link.has_validated_flow() {
        link.close();
    }
}
