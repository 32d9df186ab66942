//! Tasks of links: one accepts, one opens, and each link has one that reads and one that writes.
//!
//! A TCP connection carries all flows of a client between two addresses, including flows of older processes, and only
//! one process can write to it. The newest process owns the links. For each older process that frames on a link
//! belong to, it creates a pair of unix sockets, keeps one end and sends the other to that process, with the
//! addresses of the link. There it is treated as any other link: same framing, same limits, and a full socket makes
//! its shards wait. The newest process writes the frames that come back to the TCP connection, frame by frame.

use core::net::SocketAddr;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use marline_core::Shard as Part;
use marline_time::{Duration, PAUSE};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::link::{Link, LinkStream, Sent};
use super::link_table::{self, Links, count};
use super::older_processes::{OlderProcess, OlderProcesses};
use super::shard::{Shard, ShardHandle};
use super::socket::{SocketOptions, plain};
use super::state::Watch;
use crate::carrier::FlowEnds;
use crate::links::{Failure, ForeignData, FrameDecoder, PREAMBLE};
use crate::succession::Message;
use crate::sys;
use crate::sys::link::Segments;

/// Time that a client waits for the server's preamble.
const PREAMBLE_TIMEOUT: Duration = Duration::from_secs(8);
/// Time that a server waits for a flow that validates itself.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which a server closes a link; a client sends keepalives every 20 s at the latest.
const IDLE: Duration = Duration::from_secs(90);
/// Time after which a link is closed whose peer takes no data.
const BLOCKED_LINK_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a client closes a link that it no longer needs: the server's flows follow within a round trip.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Connect time below which the first SYN was answered, and not a repeated one.
const AT_ONCE: Duration = Duration::from_millis(900);
/// Bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Pause of a listener that cannot accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// Read buffer of all links of a thread; a link itself keeps less than a frame.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// Reason for the end of a link.
enum End {
    /// The peer closed it, or the network did.
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

    /// Returns true if the server's machine refused the connection: nothing listens there.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, LinkOpenError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl core::fmt::Display for LinkOpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LinkOpenError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                f.write_str("the server does not listen on TCP there")
            }
            LinkOpenError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("no answer by TCP, either")
            }
            LinkOpenError::Io(error) => write!(f, "no TCP connection, either: {error}"),
            LinkOpenError::ForeignData(alien) => f.write_str(alien.meaning()),
        }
    }
}

/// Listener for links. Dropping it stops accepting; accepted links continue.
#[derive(Debug)]
pub struct LinkListener {
    /// Local address.
    pub local: SocketAddr,
    copy: OwnedFd,
    _task: Watch,
}

impl LinkListener {
    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.copy.try_clone()
    }
}

impl Shard {
    /// Accepts links on this address, which is that of a UDP socket of these shards. They share
    /// [`ShardConfig::links`](super::ShardConfig::links).
    ///
    /// # Errors
    /// The system's, for example if another program listens there.
    pub fn listen_links(
        shards: &[Arc<ShardHandle>],
        local: SocketAddr,
    ) -> io::Result<LinkListener> {
        Shard::accept_links(shards, OwnedFd::from(sys::link::listen(local)?))
    }

    /// Accepts links on a socket that already listens.
    ///
    /// # Errors
    /// The system's.
    pub fn accept_links(
        shards: &[Arc<ShardHandle>],
        listening: OwnedFd,
    ) -> io::Result<LinkListener> {
        let copy = listening.try_clone()?;
        let listener = TcpListener::from_std(std::net::TcpListener::from(listening))?;
        let local = listener.local_addr()?;
        let shards: Vec<_> = shards.iter().map(|handle| Arc::downgrade(&handle.shard)).collect();
        let task = tokio::spawn(accept(listener, local.port(), shards.into()));
        Ok(LinkListener { local, copy, _task: Watch(task.abort_handle()) })
    }
}

pub(super) type Shards = Arc<[Weak<Shard>]>;

async fn accept(listener: TcpListener, port: u16, shards: Shards) {
    loop {
        let Some(links) = shards.first().and_then(Weak::upgrade).map(|s| Arc::clone(&s.links))
        else {
            return;
        };
        match listener.accept().await {
            Ok((stream, remote)) => {
                let Ok(local) = stream.local_addr() else { continue };
                let remote = plain(remote);
                count(&links.counters().accepted);
                sys::link::prepare(&stream);
                match links.insert(LinkStream::Tcp(stream), local.ip(), remote, port, false) {
                    Some(link) => {
                        start(&links, link, Arc::clone(&shards), FrameDecoder::default(), true);
                    }
                    None => count(&links.counters().refused),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a TCP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Starts the tasks of a link.
pub(super) fn start(
    links: &Arc<Links>,
    link: Arc<Link>,
    shards: Shards,
    unpacker: FrameDecoder,
    accepted: bool,
) {
    link_table::start_watch(links);
    let (links, writer) = (Arc::clone(links), Arc::clone(&link));
    let write = tokio::spawn(write(writer, Arc::clone(&links), Arc::clone(&shards)));
    let write = Watch(write.abort_handle());
    tokio::spawn(async move {
        let end = read(&link, &links, &shards, unpacker, accepted).await;
        drop(write);
        finish(&links, &link, &shards, &end);
    });
}

fn finish(links: &Links, link: &Link, shards: &Shards, end: &End) {
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
    for shard in shards.iter().filter_map(Weak::upgrade) {
        shard.on_link_closed(link.outer(), stalled);
    }
}

/// Reads frames and passes them to their shards until the link ends. The server sends its preamble after the
/// client's.
async fn read(
    link: &Arc<Link>,
    links: &Links,
    shards: &Shards,
    mut unpacker: FrameDecoder,
    accepted: bool,
) -> End {
    let begun = Instant::now();
    let mut heard = begun;
    loop {
        let proven = link.is_proven() || link.is_relayed();
        let patience = match (accepted, proven) {
            (false, _) => None,
            (true, true) => Some(heard + IDLE),
            (true, false) => Some(begun + VALIDATION_TIMEOUT),
        };
        let ready = link.stream().readable();
        let ready = match patience {
            Some(until) => match timeout_at(until, ready).await {
                Ok(ready) => ready,
                // This process did not run for some time. Data that has arrived meanwhile is read first.
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
        match take(link, links, shards, &mut unpacker) {
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

/// Reads once. Returns true if there were frames.
fn take(
    link: &Arc<Link>,
    links: &Links,
    shards: &Shards,
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
        if let Some(elders) = links.connected_older_processes() {
            frames = sift(links, elders, link, frames);
        } else if let (LinkStream::Unix(_), Some(elders)) = (link.stream(), links.elders()) {
            frames.retain(|frame| elders.takes(frame));
        }
        let owner = |frame: &[u8]| owner(frame, shards.len());
        for run in frames.chunk_by(|one, other| owner(one) == owner(other)) {
            let shard = run.first().and_then(|frame| shards.get(owner(frame))?.upgrade());
            match shard {
                Some(shard) => shard.on_link_frames(link, run),
                None => return Err(End::Closed(None)),
            }
        }
        end.map_err(End::ForeignData)?;
        Ok(came)
    })
}

/// Returns the index of the shard that owns a frame, as the kernel's program for datagrams does (`sys/socket.rs`).
pub(super) fn owner(frame: &[u8], shards: usize) -> usize {
    const SENDER_ID_LAST_BYTE: usize = 16;
    let Some(id) = frame.get(1..).and_then(|rest| rest.first_chunk::<8>()) else { return 0 };
    let count = u8::try_from(shards).unwrap_or(u8::MAX);
    match u64::from_be_bytes(*id) {
        0 => frame.get(SENDER_ID_LAST_BYTE).map_or(0, |last| usize::from(*last) & (shards - 1)),
        id => usize::from(Part::of_flow(id, count)),
    }
}

/// Writes waiting frames whenever the kernel has room.
async fn write(link: Arc<Link>, links: Arc<Links>, shards: Shards) {
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
                    let shards = shards.iter().enumerate().filter(|(at, _)| told(*at));
                    for shard in shards.filter_map(|(_, shard)| shard.upgrade()) {
                        shard.on_link_room(link.outer());
                    }
                    break;
                }
                Err(_) => return link.close(),
            }
        }
    }
}

/// Opens a link for a client's shard and reports the result to it. `stalled` means that the previous link was
/// stalled a moment ago.
pub(super) async fn open(
    shard: Weak<Shard>,
    options: SocketOptions,
    ends: FlowEnds,
    stalled: bool,
) {
    let opened = match timeout(PREAMBLE_TIMEOUT, connect(&options, ends.1, stalled)).await {
        Ok(opened) => opened,
        Err(_) => Err(LinkOpenError::Io(io::ErrorKind::TimedOut.into())),
    };
    let Some(shard) = shard.upgrade() else { return };
    let port = options.local.port();
    let link = opened.and_then(|stream| {
        let full = || LinkOpenError::Io(io::Error::other("too many links"));
        shard.links.insert(LinkStream::Tcp(stream), ends.0, ends.1, port, true).ok_or_else(full)
    });
    match link {
        Ok(link) => {
            shard.on_link_opened(ends, link.outer().socket);
            // From here on the link may end, and the shard is notified.
            let shards: Shards = [Arc::downgrade(&shard)].into();
            start(&shard.links, link, shards, FrameDecoder::greeted(), false);
        }
        Err(why) => shard.on_link_not_opened(ends, &why),
    }
}

/// Connects and exchanges preambles. If the previous link was `stalled` and this one is answered at once, the
/// network passes small segments and loses large ones.
async fn connect(
    options: &SocketOptions,
    remote: SocketAddr,
    stalled: bool,
) -> Result<TcpStream, LinkOpenError> {
    let begun = Instant::now();
    let mut stream = connect_with(options, remote, Segments::Usual).await?;
    if stalled && begun.elapsed() < AT_ONCE {
        tracing::debug!(server = %remote, "large TCP segments seem to be lost; using small ones");
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

/// Sends the preamble and reads exactly the server's.
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
    let Some(link) = links.by_index(index) else { return };
    tokio::spawn(async move {
        tokio::time::sleep(CLOSING_TIME).await;
        link.close();
    });
}

/// Delay before a full link is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Bytes per read from a relay.
const RELAY_READ_BYTES: usize = 16 << 10;
/// Stands for no shard: a relay notifies none when it has room.
const NO_SHARD: u8 = 127;

/// Passes on the frames of a link that belong to older processes. Returns the rest.
fn sift<'a>(
    links: &Links,
    elders: &OlderProcesses,
    link: &Arc<Link>,
    frames: Vec<&'a [u8]>,
) -> Vec<&'a [u8]> {
    let all = elders.all();
    let mut ours = Vec::new();
    for frame in frames {
        let (receivers, keep) = elders.receivers(&all, frame);
        for elder in receivers {
            if let Some(relay) = relay_to(link, elder)
                && relay.send(NO_SHARD, false, 0, frame) == Sent::Dropped
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

/// Returns the relay to an older process for the frames of a link, and creates it if needed.
fn relay_to(link: &Arc<Link>, elder: &OlderProcess) -> Option<Arc<Link>> {
    if let Some(known) = link.relay_of(elder.generation()) {
        return Some(known);
    }
    let (here, there) = UnixStream::pair().ok()?;
    let there = OwnedFd::from(there.into_std().ok()?);
    let (local, remote, port) = (link.outer().local, link.outer().remote, link.port());
    let message = Message::Link { local, remote, port }.to_bytes();
    // If the process is busy, the next frame tries again.
    elder.send(&[&message], Some(&there)).ok()?;
    let relay = Arc::new(Link::relay(LinkStream::Unix(here), link));
    link.add_relay(elder.generation(), &relay);
    tokio::spawn(write_relay(Arc::clone(&relay)));
    tokio::spawn(write_back(Arc::clone(link), Arc::clone(&relay), elder.generation()));
    Some(relay)
}

/// Writes waiting frames to an older process whenever its socket has room.
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

/// Writes frames of an older process to the link, until one of them ends.
async fn write_back(link: Arc<Link>, relay: Arc<Link>, generation: u8) {
    let mut unpacker = FrameDecoder::greeted();
    let mut buffer = vec![0; RELAY_READ_BYTES];
    while relay.stream().readable().await.is_ok() && !link.is_broken() {
        let kept = unpacker.restore(&mut buffer);
        let len = match relay.stream().try_read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(len) => kept + len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => kept,
            Err(_) => break,
        };
        let mut sent = Sent::All;
        let write = |frame: &[u8]| {
            if link.send(NO_SHARD, false, 0, frame) != Sent::All {
                sent = Sent::Full;
            }
        };
        if unpacker.unpack(&buffer[..len], write).is_err() {
            break;
        }
        while sent == Sent::Full && link.is_waiting() && !link.is_broken() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    relay.close();
    let was_last = link.remove_relay(generation, &relay);
    // The older process has closed its end. If no flow was validated on the link by any process, it is closed.
    if was_last && !link.is_proven() {
        link.close();
    }
}
