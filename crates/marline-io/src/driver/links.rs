//! Links of a driver: TCP connections that carry frames, and the backlog of each.
//!
//! A link buffers little: the unsent data in the kernel (TCP_NOTSENT_LOWAT), and one batch of each shard that was
//! built before the link was known to be full. A longer backlog would only add delay, and its data could not move to
//! another path. A shard reports a full link to the core and is notified when there is room again. The backlog for
//! frames of lanes is even shorter, because late datagrams are worthless.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::elders::OlderProcesses;
use super::link_progress::Progress;
use crate::carrier::{CarrierCounters, FIRST_LINK, Outer};
use crate::links::{FramedBytes, PREAMBLE, enclose};
use marline_core::{PendingId, PendingLimits, PendingPeers, Source};
use marline_time::Duration;

/// Maximum number of links.
const MAX_LINKS: usize = 8_192;
/// Limits of accepted links that carry no validated flow. Validation ends with the flow: a link whose last validated
/// flow has ended is pending again.
const PENDING: PendingLimits = PendingLimits { total: 512, per_source: 128 };
/// Maximum backlog of a link, in bytes.
const BACKLOG: usize = 1 << 20;
/// Part of the backlog for frames of lanes, in bytes: a dozen of the largest.
const LANE_BACKLOG: usize = 16 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of a send on a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything was sent.
    All,
    /// The rest waits; the sender must pause.
    Full,
    /// There was no room, or there is no link.
    Dropped,
}

/// Bytes that wait for the kernel.
#[derive(Debug, Default)]
struct Out {
    backlog: Vec<u8>,
    /// Number of backlog bytes that are sent already.
    sent: usize,
    /// Number of backlog bytes that belong to lanes.
    lanes: usize,
    /// Bit set of shards to notify when there is room.
    waiting: u128,
    scratch: FramedBytes,
    broken: bool,
}

/// Stream that carries the bytes of a link.
#[derive(Debug)]
pub(super) enum LinkStream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// Socket to another process, which has the TCP connection or the flow.
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
    pub(super) stream: LinkStream,
    /// Index among the sockets, and both ends.
    pub(super) outer: Outer,
    /// Port of the UDP socket that the link replaces.
    pub(super) port: u16,
    /// Set once a flow has validated itself on the link; never cleared.
    pub(super) proven: AtomicBool,
    /// Number of shards that have a validated flow on the link.
    users: AtomicUsize,
    /// Relays to older processes that own frames on this link, by generation.
    relays: Mutex<BTreeMap<u8, Arc<Link>>>,
    out: Mutex<Out>,
    /// Notified when data waits to be written.
    pub(super) work: Notify,
    /// Detects a peer that does not acknowledge.
    pub(super) progress: Progress,
}

impl Link {
    fn new(stream: LinkStream, outer: Outer, port: u16, proven: bool, watch: &Arc<Notify>) -> Link {
        Link {
            stream,
            outer,
            port,
            proven: AtomicBool::new(proven),
            users: AtomicUsize::new(0),
            relays: Mutex::default(),
            out: Mutex::default(),
            work: Notify::new(),
            progress: Progress::new(watch),
        }
    }

    /// Creates the relay to another process for frames of `link`.
    pub(super) fn relay(stream: LinkStream, link: &Link) -> Link {
        Link::new(stream, link.outer, link.port, true, &Arc::default())
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

    /// Sends a batch of frames of this shard. Frames of a `lane` are worthless if they are late.
    pub(super) fn send(&self, shard: u8, lane: bool, stride: usize, bytes: &[u8]) -> Sent {
        let mut out = lock(&self.out);
        let out = &mut *out;
        if out.broken {
            return Sent::Dropped;
        }
        self.progress.on_sent();
        out.scratch.bytes.clear();
        enclose(&mut out.scratch, stride, bytes);
        let length = out.scratch.bytes.len();
        let waits = out.backlog.len() > out.sent;
        let sent = match if waits { Ok(0) } else { self.stream.try_write(&out.scratch.bytes) } {
            Ok(sent) if sent == length => return Sent::All,
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                out.broken = true;
                return Sent::Dropped;
            }
        };
        let room = match lane {
            true => LANE_BACKLOG.saturating_sub(out.lanes),
            false => BACKLOG.saturating_sub(out.backlog.len() - out.sent),
        };
        // The backlog takes whole frames. The rest of a frame that is partly sent is always appended.
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
        if rest.is_empty() { Sent::Dropped } else { Sent::Full }
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
        // A link must not keep its largest backlog memory forever.
        out.backlog.shrink_to(2 * LANE_BACKLOG);
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

    /// Closes the link; its reader and writer notice.
    pub(super) fn close(&self) {
        lock(&self.out).broken = true;
        self.stream.shut_down();
        self.work.notify_one();
        for relay in lock(&self.relays).values() {
            relay.close();
        }
    }

    /// Ends a link without notifying the peer, which is unreachable: nothing is retransmitted any more.
    pub(super) fn abort(&self) {
        if let LinkStream::Tcp(stream) = &self.stream {
            // Without zero linger, the kernel continues to retransmit for some time.
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
        self.progress.set_stalled();
        self.close();
    }

    /// Returns true if some data is not sent yet.
    pub(super) fn is_waiting(&self) -> bool {
        let out = lock(&self.out);
        out.backlog.len() > out.sent
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.out).broken
    }
}

#[derive(Debug)]
struct Table {
    slots: Vec<Option<Slot>>,
    /// Accepted links without a validated flow, by index.
    pending: PendingPeers<u16>,
    /// Set while another process handles TCP connections.
    elsewhere: bool,
}

#[derive(Debug)]
struct Slot {
    link: Arc<Link>,
    /// The link was opened by another process or by a client's own shard, and is never evicted.
    trusted: bool,
    /// Entry among the pending links.
    pending: Option<PendingId>,
}

impl Default for Table {
    fn default() -> Self {
        Table { slots: Vec::new(), pending: PendingPeers::new(PENDING), elsewhere: false }
    }
}

impl Table {
    /// Returns the index of a free slot, or `None` if all links are in use.
    fn free_slot(&mut self) -> Option<usize> {
        match self.slots.iter().position(Option::is_none) {
            Some(free) => Some(free),
            None if self.slots.len() < MAX_LINKS => {
                self.slots.push(None);
                Some(self.slots.len() - 1)
            }
            None => None,
        }
    }

    fn slot_of(&mut self, link: &Link) -> Option<&mut Slot> {
        let index = usize::from(link.outer.socket.checked_sub(FIRST_LINK)?);
        let slot = self.slots.get_mut(index)?.as_mut()?;
        core::ptr::eq(Arc::as_ptr(&slot.link), link).then_some(slot)
    }

    /// Adds a link to the pending ones. Returns the link that must be closed for it.
    fn add_pending_link(&mut self, link: &Link) -> Option<Arc<Link>> {
        let index = link.outer.socket;
        let source = Source::of(link.outer.remote.ip());
        if self.slot_of(link).is_none_or(|slot| slot.trusted || slot.pending.is_some()) {
            return None;
        }
        let (id, evicted) = self.pending.admit(source, index);
        if let Some(slot) = self.slot_of(link) {
            slot.pending = Some(id);
        }
        let slot = self.slots.get_mut(usize::from(evicted? - FIRST_LINK))?.as_mut()?;
        slot.pending = None;
        Some(Arc::clone(&slot.link))
    }

    /// Removes a link from the pending ones.
    fn settle(&mut self, link: &Link) {
        let Some(id) = self.slot_of(link).and_then(|slot| slot.pending.take()) else { return };
        self.pending.remove(Source::of(link.outer.remote.ip()), id);
    }
}

/// Counters of links.
#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) stuck: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// Links of all shards that share a port.
#[derive(Debug, Default)]
pub struct Links {
    table: Mutex<Table>,
    pub(super) counters: LinkCounters,
    /// Older processes that share the port.
    elders: OnceLock<Arc<OlderProcesses>>,
    /// Wakes the task that checks for stalled links.
    pub(super) watch: Arc<Notify>,
    /// That task, which ends with the links.
    pub(super) watcher: OnceLock<AbortHandle>,
}

impl Drop for Links {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.abort();
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Links {
    pub(super) fn set_older_processes(&self, elders: &Arc<OlderProcesses>) {
        // This is called only once, so an error cannot occur.
        let _ = self.elders.set(Arc::clone(elders));
    }

    /// Older processes that may share the port. The set may be empty.
    pub(super) fn elders(&self) -> Option<&Arc<OlderProcesses>> {
        self.elders.get()
    }

    /// The older processes, if there are any.
    pub(super) fn connected_older_processes(&self) -> Option<&Arc<OlderProcesses>> {
        self.elders.get().filter(|elders| elders.has_any())
    }

    /// Adds a connection. One that is not `trusted` is pending until a flow has validated itself on it, and another
    /// pending link may be closed for it. Returns `None` if all links are in use or another process handles TCP
    /// connections.
    pub(super) fn insert(
        &self,
        stream: LinkStream,
        (local, remote): (IpAddr, SocketAddr),
        port: u16,
        trusted: bool,
    ) -> Option<Arc<Link>> {
        let mut table = lock(&self.table);
        if table.elsewhere && matches!(stream, LinkStream::Tcp(_)) {
            return None;
        }
        let slot = table.free_slot()?;
        let outer = Outer { socket: FIRST_LINK + slot as u16, local, remote };
        let link = Arc::new(Link::new(stream, outer, port, trusted, &self.watch));
        table.slots[slot] = Some(Slot { link: Arc::clone(&link), trusted, pending: None });
        let evicted = table.add_pending_link(&link);
        drop(table);
        self.evict(evicted);
        Some(link)
    }

    fn evict(&self, evicted: Option<Arc<Link>>) {
        if let Some(link) = evicted {
            count(&self.counters.evicted);
            tracing::debug!(remote = %link.outer.remote, "idle link evicted: others are waiting");
            link.close();
        }
    }

    /// Finds a link by index.
    pub(super) fn by_index(&self, index: u16) -> Option<Arc<Link>> {
        let slot = usize::from(index.checked_sub(FIRST_LINK)?);
        let table = lock(&self.table);
        table.slots.get(slot)?.as_ref().map(|slot| Arc::clone(&slot.link))
    }

    /// Finds the link with exactly these ends: another link may have the index now.
    pub(super) fn at(&self, outer: &Outer) -> Option<Arc<Link>> {
        self.by_index(outer.socket).filter(|link| link.outer == *outer)
    }

    /// Records that the first flow of a shard has validated itself on the link.
    pub(super) fn prove(&self, link: &Link) {
        link.proven.store(true, Ordering::Relaxed);
        let mut table = lock(&self.table);
        link.users.fetch_add(1, Ordering::Relaxed);
        table.settle(link);
    }

    /// Records the end of a shard's last validated flow on the link.
    pub(super) fn remove_validated_flow(&self, link: &Link) {
        let mut table = lock(&self.table);
        if link.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            let evicted = table.add_pending_link(link);
            drop(table);
            self.evict(evicted);
        }
    }

    /// Links on which data was sent after the last read.
    pub(super) fn unheard(&self) -> Vec<Arc<Link>> {
        let table = lock(&self.table);
        let links = table.slots.iter().flatten().map(|slot| &slot.link);
        links.filter(|link| link.progress.is_unheard()).map(Arc::clone).collect()
    }

    /// Removes a link that has ended.
    pub(super) fn remove(&self, link: &Link) {
        let mut table = lock(&self.table);
        table.settle(link);
        if table.slot_of(link).is_some() {
            table.slots[usize::from(link.outer.socket - FIRST_LINK)] = None;
        }
    }

    /// Leaves TCP connections to another process, or takes them back. Existing links are closed: clients open others
    /// at once.
    pub(super) fn hand_over_tcp(&self, elsewhere: bool) {
        lock(&self.table).elsewhere = elsewhere;
        if elsewhere {
            self.close_all();
        }
    }

    /// Closes all links.
    pub(super) fn close_all(&self) {
        for slot in lock(&self.table).slots.iter().flatten() {
            slot.link.close();
        }
    }

    /// Adds these counters to those of the carrier.
    pub(super) fn add_to(&self, counters: &mut CarrierCounters) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.links = of(&self.counters.accepted);
        counters.links_refused = of(&self.counters.refused);
        counters.links_evicted = of(&self.counters.evicted);
        counters.links_malformed = of(&self.counters.malformed);
        counters.links_silent = of(&self.counters.silent);
        counters.links_stuck = of(&self.counters.stuck);
        counters.link_frames_dropped = of(&self.counters.dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts a link from `remote` and returns it with its other end.
    fn accept(links: &Links, remote: [u8; 4]) -> (Arc<Link>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        let ends = (IpAddr::from([192, 0, 2, 1]), SocketAddr::from((remote, 1_000)));
        (links.insert(LinkStream::Unix(near), ends, 443, false).unwrap(), far)
    }

    #[tokio::test]
    async fn a_link_is_safe_while_it_carries_a_proven_flow_and_not_after_that() {
        let links = Links::default();
        let (used, _used_end) = accept(&links, [198, 51, 100, 1]);
        links.prove(&used);
        let of_one = PENDING.per_source;
        let first = (0..of_one).map(|_| accept(&links, [198, 51, 100, 1])).collect::<Vec<_>>();
        assert!(first.iter().all(|(link, _)| !link.is_broken()) && !used.is_broken());
        // A second shard's flow is validated and the first one's ends: the link is still in use.
        links.prove(&used);
        links.remove_validated_flow(&used);
        assert_eq!(lock(&links.table).pending.len(), of_one);
        links.remove_validated_flow(&used);
        assert!(
            first[0].0.is_broken() && !used.is_broken(),
            "it is the youngest of those that wait"
        );
        let next = (0..of_one).map(|_| accept(&links, [198, 51, 100, 1])).collect::<Vec<_>>();
        assert!(used.is_broken());
        for (link, _) in first.iter().chain(&next) {
            links.remove(link);
        }
        links.remove(&used);
        let table = lock(&links.table);
        assert!(table.pending.is_empty() && table.slots.iter().all(Option::is_none));
    }

    #[tokio::test]
    async fn a_flood_from_one_network_does_not_evict_the_links_of_others() {
        let links = Links::default();
        let (honest, _honest_end) = accept(&links, [203, 0, 113, 1]);
        let mut kept = Vec::new();
        for network in 1..=8 {
            for _ in 0..PENDING.per_source {
                kept.push(accept(&links, [198, 51, 100, network]));
            }
        }
        assert!(!honest.is_broken());
        assert_eq!(lock(&links.table).pending.len(), PENDING.total);
        assert_eq!(links.counters.refused.load(Ordering::Relaxed), 0);
    }
}
