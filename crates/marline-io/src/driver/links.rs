//! Links of a driver: the TCP connections that carry frames, and what waits in front of each.
//!
//! A link has room for little: what the kernel has not sent (TCP_NOTSENT_LOWAT) and one batch of each shard that was
//! made before it was known to be full. More would only be delay, and could no more go elsewhere. A shard whose link is
//! full tells the core, and is told when there is room again. Frames of lanes have less room still: what comes late is
//! worth nothing.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use super::elders::Elders;
use crate::carrier::{CarrierCounters, FIRST_LINK, Outer};
use crate::links::{Enclosed, PREAMBLE, enclose};

/// Links at the same time.
const MOST_LINKS: usize = 8_192;
/// Of these, links on which no flow has proven itself, ...
const MOST_UNPROVEN: usize = 512;
/// ... and those from one address.
const MOST_UNPROVEN_OF_ONE: usize = 32;
/// Bytes that may wait in front of a link.
const BACKLOG: usize = 1 << 20;
/// Of these, frames of lanes: a dozen of the largest.
const LANE_BACKLOG: usize = 16 << 10;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a send by a link went.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It has left.
    All,
    /// It waits: no more, please.
    Full,
    /// There was no room, or there is no link.
    Dropped,
}

/// Bytes that wait for the kernel.
#[derive(Debug, Default)]
struct Out {
    backlog: Vec<u8>,
    /// Of the backlog, sent already.
    sent: usize,
    /// Of the backlog, frames of lanes.
    lanes: usize,
    /// Shards that are to be told of room, a bit each.
    waiting: u128,
    scratch: Enclosed,
    broken: bool,
}

/// What carries the bytes of a link.
#[derive(Debug)]
pub(super) enum LinkStream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A way to another process, which has the TCP connection or the flow.
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
        // Ended already is as good.
        let _ = match self {
            LinkStream::Tcp(stream) => socket2::SockRef::from(stream).shutdown(how),
            LinkStream::Unix(stream) => socket2::SockRef::from(stream).shutdown(how),
        };
    }
}

/// A connection that carries frames.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: LinkStream,
    /// Its place among the sockets, and its ends.
    pub(super) outer: Outer,
    /// The port of the UDP socket that it stands in for.
    pub(super) port: u16,
    /// A flow has proven itself on it.
    pub(super) proven: AtomicBool,
    /// The ways to older processes that frames on it are for, by their generations.
    relays: Mutex<BTreeMap<u8, Arc<Link>>>,
    out: Mutex<Out>,
    /// Something waits to be written.
    pub(super) work: Notify,
}

impl Link {
    fn new(stream: LinkStream, outer: Outer, port: u16, proven: bool) -> Link {
        Link {
            stream,
            outer,
            port,
            proven: AtomicBool::new(proven),
            relays: Mutex::default(),
            out: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// The way to another process for frames of `link`.
    pub(super) fn relay(stream: LinkStream, link: &Link) -> Link {
        Link::new(stream, link.outer, link.port, true)
    }

    /// The way to the process of this generation.
    pub(super) fn relay_of(&self, generation: u8) -> Option<Arc<Link>> {
        let relay = lock(&self.relays).get(&generation).cloned();
        relay.filter(|relay| !relay.is_broken())
    }

    pub(super) fn add_relay(&self, generation: u8, relay: &Arc<Link>) {
        lock(&self.relays).insert(generation, Arc::clone(relay));
    }

    /// Forgets one that has ended. Whether there is none now.
    pub(super) fn remove_relay(&self, generation: u8, relay: &Arc<Link>) -> bool {
        let mut relays = lock(&self.relays);
        if relays.get(&generation).is_some_and(|known| Arc::ptr_eq(known, relay)) {
            relays.remove(&generation);
        }
        relays.is_empty()
    }

    /// Some of its flows may prove themselves elsewhere.
    pub(super) fn is_relayed(&self) -> bool {
        !lock(&self.relays).is_empty()
    }

    /// Sends the frames of a batch for this shard. `lane`: they are worth nothing if they come late.
    pub(super) fn send(&self, shard: u8, lane: bool, stride: usize, bytes: &[u8]) -> Sent {
        let mut out = lock(&self.out);
        let out = &mut *out;
        if out.broken {
            return Sent::Dropped;
        }
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
        // Whole frames, and the rest of one that is begun in any case.
        let end = match length - sent <= room {
            true => length,
            false if lane || sent > 0 => out.scratch.end_of_cut(sent),
            false => 0,
        };
        let rest = out.scratch.bytes.get(sent..end).unwrap_or_default();
        out.backlog.extend_from_slice(rest);
        out.lanes += if lane { rest.len() } else { 0 };
        out.waiting |= 1 << (shard & 127);
        self.work.notify_one();
        if rest.is_empty() { Sent::Dropped } else { Sent::Full }
    }

    /// Writes what waits. `Some`: nothing does any more, and these shards want to know.
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
        // A link that was busy once must not hold its memory for ever.
        out.backlog.shrink_to(2 * LANE_BACKLOG);
        (out.sent, out.lanes) = (0, 0);
        Ok(Some(core::mem::take(&mut out.waiting)))
    }

    /// The preamble goes first: there is room for it in any new connection.
    pub(super) fn greet(&self) -> io::Result<()> {
        match self.stream.try_write(&PREAMBLE)? {
            sent if sent == PREAMBLE.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Ends it: whoever reads or writes finds out.
    pub(super) fn close(&self) {
        lock(&self.out).broken = true;
        self.stream.shut_down();
        self.work.notify_one();
        for relay in lock(&self.relays).values() {
            relay.close();
        }
    }

    /// Something has not left yet.
    pub(super) fn is_waiting(&self) -> bool {
        let out = lock(&self.out);
        out.backlog.len() > out.sent
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.out).broken
    }
}

#[derive(Debug, Default)]
struct Table {
    slots: Vec<Option<Arc<Link>>>,
    /// Links of each address on which nothing is proven yet.
    unproven: BTreeMap<IpAddr, usize>,
    /// TCP connections are another process' business.
    elsewhere: bool,
}

impl Table {
    fn unproven_fewer(&mut self, address: IpAddr) {
        if let Some(count) = self.unproven.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.unproven.remove(&address);
            }
        }
    }
}

/// What is counted of links.
#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) silent: AtomicU64,
    pub(super) stuck: AtomicU64,
    pub(super) dropped: AtomicU64,
}

/// The links of all shards that share a port.
#[derive(Debug, Default)]
pub struct Links {
    table: Mutex<Table>,
    pub(super) counters: LinkCounters,
    /// Older processes, with which the port is shared.
    elders: OnceLock<Arc<Elders>>,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Links {
    pub(super) fn set_elders(&self, elders: &Arc<Elders>) {
        // Set once, by who made both.
        let _ = self.elders.set(Arc::clone(elders));
    }

    /// The older processes with which the port may be shared; there may be none.
    pub(super) fn elders(&self) -> Option<&Arc<Elders>> {
        self.elders.get()
    }

    /// The same, if there are some.
    pub(super) fn living_elders(&self) -> Option<&Arc<Elders>> {
        self.elders.get().filter(|elders| elders.has_any())
    }

    /// Takes a connection in. `None`: there are too many.
    pub(super) fn insert(
        &self,
        stream: LinkStream,
        (local, remote): (IpAddr, SocketAddr),
        port: u16,
        proven: bool,
    ) -> Option<Arc<Link>> {
        let mut table = lock(&self.table);
        if table.elsewhere && matches!(stream, LinkStream::Tcp(_)) {
            return None;
        }
        let of_one = table.unproven.get(&remote.ip()).copied().unwrap_or(0);
        let unproven: usize = table.unproven.values().sum();
        if !proven && (unproven >= MOST_UNPROVEN || of_one >= MOST_UNPROVEN_OF_ONE) {
            return None;
        }
        let slot = match table.slots.iter().position(Option::is_none) {
            Some(free) => free,
            None if table.slots.len() < MOST_LINKS => {
                table.slots.push(None);
                table.slots.len() - 1
            }
            None => return None,
        };
        if !proven {
            *table.unproven.entry(remote.ip()).or_default() += 1;
        }
        let outer = Outer { socket: FIRST_LINK + slot as u16, local, remote };
        let link = Arc::new(Link::new(stream, outer, port, proven));
        table.slots[slot] = Some(Arc::clone(&link));
        Some(link)
    }

    /// The link with this index.
    pub(super) fn by_index(&self, index: u16) -> Option<Arc<Link>> {
        let slot = usize::from(index.checked_sub(FIRST_LINK)?);
        lock(&self.table).slots.get(slot)?.clone()
    }

    /// The link that has these ends still: another may have its index now.
    pub(super) fn at(&self, outer: &Outer) -> Option<Arc<Link>> {
        self.by_index(outer.socket).filter(|link| link.outer == *outer)
    }

    /// A flow has proven itself on it.
    pub(super) fn prove(&self, index: u16) {
        let Some(link) = self.by_index(index) else { return };
        if !link.proven.swap(true, Ordering::Relaxed) {
            lock(&self.table).unproven_fewer(link.outer.remote.ip());
        }
    }

    /// It has ended.
    pub(super) fn remove(&self, link: &Link) {
        let mut table = lock(&self.table);
        if !link.proven.swap(true, Ordering::Relaxed) {
            table.unproven_fewer(link.outer.remote.ip());
        }
        let slot = usize::from(link.outer.socket - FIRST_LINK);
        if let Some(entry) = table.slots.get_mut(slot) {
            *entry = None;
        }
    }

    /// TCP connections are another process' business from now on, or ours again. Those that there are, are closed:
    /// clients open others at once.
    pub(super) fn leave_tcp(&self, elsewhere: bool) {
        lock(&self.table).elsewhere = elsewhere;
        if elsewhere {
            self.close_all();
        }
    }

    /// Closes all.
    pub(super) fn close_all(&self) {
        for link in lock(&self.table).slots.iter().flatten() {
            link.close();
        }
    }

    /// Adds what was counted.
    pub(super) fn add_to(&self, counters: &mut CarrierCounters) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.links = of(&self.counters.accepted);
        counters.links_refused = of(&self.counters.refused);
        counters.links_malformed = of(&self.counters.malformed);
        counters.links_silent = of(&self.counters.silent);
        counters.links_stuck = of(&self.counters.stuck);
        counters.link_frames_dropped = of(&self.counters.dropped);
    }
}
