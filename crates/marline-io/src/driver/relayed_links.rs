//! Links whose frames are for several processes: a TCP connection carries all flows of a client between two addresses,
//! those of older processes among them, and one process alone can write to it.
//!
//! The newest process has the links. For each older process that frames on a link are for, it makes a pair of unix
//! sockets, keeps one end and gives that process the other, with the addresses of the link. There it is a link like any
//! other: same framing, same bounds, and a socket that is full tells its shards to wait. Here its frames are
//! written to the TCP connection, whole.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use marline_time::Duration;
use tokio::net::UnixStream;

use super::generations::{Elder, Generations};
use super::link_tasks::{self, Shards};
use super::links::{Link, LinkStream, Sent, count};
use crate::carrier::Outer;
use crate::links::Unpacker;
use crate::succession::Message;

/// A link without room is looked at again so soon.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Nobody is told of room at a relay.
const NO_SHARD: u8 = 127;

/// The ways of frames between links and elders, by the link and the elder's generation.
#[derive(Debug, Default)]
pub(super) struct Relays(Mutex<BTreeMap<(u16, u8), Arc<Link>>>);

impl Relays {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(u16, u8), Arc<Link>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, outer: &Outer, generation: u8) -> Option<Arc<Link>> {
        let relay = self.lock().get(&(outer.socket, generation)).cloned();
        relay.filter(|relay| relay.outer == *outer && !relay.is_broken())
    }

    /// Whether some elder may have proven a flow on this link.
    fn any_of(&self, outer: &Outer) -> bool {
        let relays = self.lock();
        relays.range((outer.socket, 0)..=(outer.socket, u8::MAX)).any(|(_, r)| r.outer == *outer)
    }

    /// A link has ended.
    pub(super) fn close(&self, outer: &Outer) {
        let relays = self.lock();
        for (_, relay) in relays.range((outer.socket, 0)..=(outer.socket, u8::MAX)) {
            if relay.outer == *outer {
                relay.close();
            }
        }
    }

    fn remove(&self, relay: &Arc<Link>, generation: u8) {
        let mut relays = self.lock();
        let key = (relay.outer.socket, generation);
        if relays.get(&key).is_some_and(|known| Arc::ptr_eq(known, relay)) {
            relays.remove(&key);
        }
    }
}

impl Generations {
    /// Passes on what is for elders of the frames that came by a link; what is left is ours.
    pub(super) fn sift_link<'a>(
        self: &Arc<Self>,
        link: &Arc<Link>,
        frames: Vec<&'a [u8]>,
    ) -> Vec<&'a [u8]> {
        let elders = self.known_elders();
        let mut ours = Vec::new();
        for frame in frames {
            let (receivers, keep) = self.receivers(&elders, frame);
            for elder in receivers {
                if let Some(relay) = self.relay(link, elder)
                    && relay.send(NO_SHARD, false, 0, frame) == Sent::Dropped
                {
                    count(&self.links.counters.dropped);
                }
            }
            if keep {
                ours.push(frame);
            }
        }
        ours
    }

    /// The way to an elder for the frames of a link.
    fn relay(self: &Arc<Self>, link: &Arc<Link>, elder: &Elder) -> Option<Arc<Link>> {
        if let Some(known) = self.relays.of(&link.outer, elder.generation) {
            return Some(known);
        }
        let (here, there) = UnixStream::pair().ok()?;
        let there = OwnedFd::from(there.into_std().ok()?);
        let (local, remote, port) = (link.outer.local, link.outer.remote, link.port);
        let message = Message::Link { local, remote, port }.to_bytes();
        // An elder that is busy gets the next frame.
        elder.send(&[&message], Some(&there)).ok()?;
        let relay = Arc::new(Link::relay(LinkStream::Unix(here), link));
        self.relays.lock().insert((link.outer.socket, elder.generation), Arc::clone(&relay));
        link.relayed.store(true, Ordering::Relaxed);
        tokio::spawn(link_tasks::write(
            Arc::clone(&relay),
            Arc::clone(&self.links),
            Shards::from([]),
        ));
        let back = back(Arc::clone(self), Arc::clone(link), Arc::clone(&relay), elder.generation);
        tokio::spawn(back);
        Some(relay)
    }
}

/// Writes what an elder sends to its link, as long as both are there.
async fn back(generations: Arc<Generations>, link: Arc<Link>, relay: Arc<Link>, generation: u8) {
    let mut unpacker = Unpacker::greeted();
    let mut buffer = vec![0; 16 << 10];
    while relay.stream.readable().await.is_ok() && !link.is_broken() {
        let kept = unpacker.restore(&mut buffer);
        let len = match relay.stream.try_read(&mut buffer[kept..]) {
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
    generations.relays.remove(&relay, generation);
    // The elder closes what nobody proves himself on, and whom it knew nobody else does.
    if !link.proven.load(Ordering::Relaxed) && !generations.relays.any_of(&link.outer) {
        link.close();
    }
}

/// Takes an end of a relayed link from the successor.
pub(super) fn accept(
    generations: &Generations,
    fd: OwnedFd,
    ends: (IpAddr, SocketAddr),
    port: u16,
) {
    let stream = std::os::unix::net::UnixStream::from(fd);
    let Ok(stream) = UnixStream::from_std(stream) else { return };
    let links = &generations.links;
    count(&links.counters.accepted);
    match links.insert(LinkStream::Unix(stream), ends, port, false) {
        Some(link) => {
            let shards: Shards = generations.shards().into();
            link_tasks::start(links, link, shards, Unpacker::greeted(), true);
        }
        None => count(&links.counters.refused),
    }
}
