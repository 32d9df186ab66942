//! Link: a TCP connection that carries frames, its backlog, and its progress.
//!
//! A link buffers little: the unsent data in the kernel (TCP_NOTSENT_LOWAT), and one batch per shard, built before the
//! shard knew that the link was full. A longer backlog would only add delay, and its data could not move to another
//! path. A shard reports a full link to the core and is notified when there is room again. The backlog for lane frames
//! is even shorter, because late datagrams are worthless.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::carrier::Outer;
use crate::edge::tcp::TcpInfo;
use crate::links::{FramedBytes, PREAMBLE, enclose};

/// Maximum backlog of a link, in bytes.
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Part of the backlog that lane frames may fill, in bytes: a dozen of the largest frames.
const MAX_LANE_BACKLOG_BYTES: usize = 16 << 10;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of a send on a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// Everything was sent.
    All,
    /// The rest is queued; the sender must pause.
    Full,
    /// The backlog was full, or there is no link.
    Dropped,
}

/// Bytes that the kernel has not yet accepted.
#[derive(Debug, Default)]
struct LinkBuffer {
    backlog: Vec<u8>,
    /// Number of backlog bytes that have already been sent.
    sent: usize,
    /// Number of backlog bytes that belong to lanes.
    lanes: usize,
    /// Shards to notify when there is room (bit set).
    waiting: u128,
    scratch: FramedBytes,
    broken: bool,
}

/// Stream that carries the bytes of a link.
#[derive(Debug)]
pub(super) enum LinkStream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// Unix socket to another process, which owns either the TCP connection or the flow.
    Unix(UnixStream),
}

impl LinkStream {
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            LinkStream::Tcp(stream) => stream.readable().await,
            LinkStream::Unix(stream) => stream.readable().await,
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            LinkStream::Tcp(stream) => stream.writable().await,
            LinkStream::Unix(stream) => stream.writable().await,
        }
    }

    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LinkStream::Tcp(stream) => stream.try_read(buffer),
            LinkStream::Unix(stream) => stream.try_read(buffer),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            LinkStream::Tcp(stream) => stream.try_write(bytes),
            LinkStream::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn shut_down(&self) {
        let how = std::net::Shutdown::Both;
        // An error means that it has already ended.
        let _ = match self {
            LinkStream::Tcp(stream) => socket2::SockRef::from(stream).shutdown(how),
            LinkStream::Unix(stream) => socket2::SockRef::from(stream).shutdown(how),
        };
    }
}

/// Connection that carries frames.
#[derive(Debug)]
pub(super) struct Link {
    stream: LinkStream,
    /// Socket index and the addresses of both ends.
    outer: Outer,
    /// Port of the UDP socket that the link replaces.
    port: u16,
    /// True once a flow has been validated on the link; never cleared.
    has_validated_flow: AtomicBool,
    /// Number of shards that have a validated flow on the link.
    users: AtomicUsize,
    /// Relays to older processes that own frames on this link, by generation.
    relays: Mutex<BTreeMap<u8, Arc<Link>>>,
    out: Mutex<LinkBuffer>,
    /// Notified when data waits to be written.
    work: Notify,
    /// Detects a peer that does not acknowledge data.
    progress: Progress,
}

impl Link {
    pub(super) fn new(
        stream: LinkStream,
        outer: Outer,
        port: u16,
        has_validated_flow: bool,
        watch: &Arc<Notify>,
    ) -> Link {
        Link {
            stream,
            outer,
            port,
            has_validated_flow: AtomicBool::new(has_validated_flow),
            users: AtomicUsize::new(0),
            relays: Mutex::default(),
            out: Mutex::default(),
            work: Notify::new(),
            progress: Progress::new(watch),
        }
    }

    /// Creates the relay to another process for its frames on `link`.
    pub(super) fn relay(stream: LinkStream, link: &Link) -> Link {
        Link::new(stream, link.outer, link.port, true, &Arc::default())
    }

    pub(super) const fn stream(&self) -> &LinkStream {
        &self.stream
    }

    pub(super) const fn outer(&self) -> &Outer {
        &self.outer
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns true once a flow has been validated on the link.
    pub(super) fn has_validated_flow(&self) -> bool {
        self.has_validated_flow.load(Ordering::Relaxed)
    }

    /// Adds a shard that has a validated flow on the link.
    pub(super) fn add_user(&self) {
        self.has_validated_flow.store(true, Ordering::Relaxed);
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a shard whose validated flows on the link have ended. Returns true if it was the last.
    pub(super) fn remove_user(&self) -> bool {
        self.users.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Waits until there is data to write.
    pub(super) async fn has_work(&self) {
        self.work.notified().await;
    }

    /// Returns the relay to the process of this generation.
    pub(super) fn relay_of(&self, generation: u8) -> Option<Arc<Link>> {
        let relay = lock(&self.relays).get(&generation).cloned();
        relay.filter(|relay| !relay.is_broken())
    }

    pub(super) fn add_relay(&self, generation: u8, relay: &Arc<Link>) {
        lock(&self.relays).insert(generation, Arc::clone(relay));
    }

    /// Removes a relay that has ended. Returns true if none is left.
    pub(super) fn remove_relay(&self, generation: u8, relay: &Arc<Link>) -> bool {
        let mut relays = lock(&self.relays);
        if relays.get(&generation).is_some_and(|known| Arc::ptr_eq(known, relay)) {
            relays.remove(&generation);
        }
        relays.is_empty()
    }

    /// Returns true if flows on this link may belong to other processes.
    pub(super) fn is_relayed(&self) -> bool {
        !lock(&self.relays).is_empty()
    }

    /// Sends a batch of frames of this shard. With `lane`, the frames belong to a lane and are worthless if they are
    /// late.
    pub(super) fn send(&self, shard: u8, lane: bool, stride: usize, bytes: &[u8]) -> SendOutcome {
        let mut out = lock(&self.out);
        let out = &mut *out;
        if out.broken {
            return SendOutcome::Dropped;
        }
        self.progress.on_sent();
        out.scratch.bytes.clear();
        enclose(&mut out.scratch, stride, bytes);
        let length = out.scratch.bytes.len();
        let waits = out.backlog.len() > out.sent;
        let sent = match if waits { Ok(0) } else { self.stream.try_write(&out.scratch.bytes) } {
            Ok(sent) if sent == length => return SendOutcome::All,
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                out.broken = true;
                return SendOutcome::Dropped;
            }
        };
        let room = match lane {
            true => MAX_LANE_BACKLOG_BYTES.saturating_sub(out.lanes),
            false => MAX_BACKLOG_BYTES.saturating_sub(out.backlog.len() - out.sent),
        };
        // The backlog takes whole frames. The rest of a partially sent frame is always appended.
        let end = match length - sent <= room {
            true => length,
            false if lane || sent > 0 => out.scratch.cut_frame_end(sent),
            false => 0,
        };
        let rest = out.scratch.bytes.get(sent..end).unwrap_or_default();
        out.backlog.extend_from_slice(rest);
        out.lanes += if lane { rest.len() } else { 0 };
        out.waiting |= 1 << (shard & 127);
        self.work.notify_one();
        if rest.is_empty() { SendOutcome::Dropped } else { SendOutcome::Full }
    }

    /// Writes the backlog. Once it is empty, returns the shards to notify.
    pub(super) fn flush(&self) -> io::Result<Option<u128>> {
        let mut out = lock(&self.out);
        while out.sent < out.backlog.len() {
            match self.stream.try_write(&out.backlog[out.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => out.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        out.backlog.clear();
        // A link must not keep the memory of its largest backlog forever.
        out.backlog.shrink_to(2 * MAX_LANE_BACKLOG_BYTES);
        (out.sent, out.lanes) = (0, 0);
        Ok(Some(core::mem::take(&mut out.waiting)))
    }

    /// Sends the preamble. A new connection always has room for it.
    pub(super) fn greet(&self) -> io::Result<()> {
        match self.stream.try_write(&PREAMBLE)? {
            sent if sent == PREAMBLE.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Closes the link; its reader and writer then end.
    pub(super) fn close(&self) {
        lock(&self.out).broken = true;
        self.stream.shut_down();
        self.work.notify_one();
        for relay in lock(&self.relays).values() {
            relay.close();
        }
    }

    /// Ends a link without notifying the peer, which is unreachable: retransmissions stop.
    pub(super) fn abort(&self) {
        if let LinkStream::Tcp(stream) = &self.stream {
            // Without zero linger, the kernel would continue to retransmit for some time.
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
        self.progress.set_stalled();
        self.close();
    }

    /// Returns true if some data has not been sent.
    pub(super) fn is_waiting(&self) -> bool {
        let out = lock(&self.out);
        out.backlog.len() > out.sent
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.out).broken
    }
}

/// Time without progress after which a link is stalled, if this is also several round trips.
const STALL_TIMEOUT: Duration = Duration::from_millis(1_500);
const STALL_RTTS: u32 = 3;
/// Number of retransmission timeouts after which a link can be stalled.
const MIN_STALL_RTOS: u8 = 3;

/// Progress of a link.
#[derive(Debug)]
pub(super) struct Progress {
    /// True if data was sent after the last read.
    is_unanswered: AtomicBool,
    /// Number of bytes that the peer had acknowledged at the last check, and the time at which that number was
    /// reached.
    acknowledged: Mutex<Option<(u64, Instant)>>,
    stalled: AtomicBool,
    watch: Arc<Notify>,
}

impl Progress {
    pub(super) fn new(watch: &Arc<Notify>) -> Self {
        Progress {
            is_unanswered: AtomicBool::new(false),
            acknowledged: Mutex::new(None),
            stalled: AtomicBool::new(false),
            watch: Arc::clone(watch),
        }
    }

    pub(super) fn on_sent(&self) {
        if !self.is_unanswered.swap(true, Ordering::Relaxed) {
            self.watch.notify_one();
        }
    }

    pub(super) fn on_read(&self) {
        self.is_unanswered.store(false, Ordering::Relaxed);
    }

    pub(super) fn has_unanswered_data(&self) -> bool {
        self.is_unanswered.load(Ordering::Relaxed)
    }

    pub(super) fn set_stalled(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }

    /// Returns true if the link was closed because it stalled.
    pub(super) fn was_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Returns true if there was no progress for too long, according to the kernel's current statistics.
    pub(super) fn is_stalled(&self, now: Instant, info: &TcpInfo) -> bool {
        let mut known = lock(&self.acknowledged);
        if info.unacknowledged == 0 {
            *known = None;
            return false;
        }
        let since = match *known {
            Some((bytes, since)) if bytes == info.acknowledged_bytes => since,
            _ => now,
        };
        *known = Some((info.acknowledged_bytes, since));
        let patience = STALL_TIMEOUT.max(info.rtt * STALL_RTTS);
        info.timeouts >= MIN_STALL_RTOS && now.saturating_duration_since(since) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_stalled_after_timeouts_without_progress_and_some_round_trips() {
        let (begun, progress) = (Instant::now(), Progress::new(&Arc::default()));
        let at = |ms| begun + Duration::from_millis(ms);
        let info = |unacknowledged, acknowledged_bytes, timeouts, rtt_ms| TcpInfo {
            timeouts,
            unacknowledged,
            acknowledged_bytes,
            rtt: Duration::from_millis(rtt_ms),
        };
        assert!(!progress.is_stalled(at(0), &info(3, 100, 0, 20)));
        assert!(!progress.is_stalled(at(1_400), &info(3, 100, 3, 20)), "before the limit");
        assert!(
            !progress.is_stalled(at(1_500), &info(3, 100, 2, 20)),
            "too few timeouts: the path is slow"
        );
        assert!(progress.is_stalled(at(1_500), &info(3, 100, 3, 20)));
        assert!(
            !progress.is_stalled(at(1_500), &info(3, 100, 3, 600)),
            "less than some round trips"
        );
        assert!(!progress.is_stalled(at(1_600), &info(3, 101, 3, 20)), "progress");
        assert!(!progress.is_stalled(at(2_900), &info(3, 101, 3, 20)));
        assert!(
            !progress.is_stalled(at(9_000), &info(0, 104, 0, 20)),
            "everything was acknowledged"
        );
        assert!(
            !progress.is_stalled(at(9_100), &info(1, 104, 5, 20)),
            "sent after the last acknowledgment"
        );
    }
}
