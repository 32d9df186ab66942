//! Packets for other receivers: other shards of a server, and other generations. These are processes that share its
//! sockets; only the newest receives (docs/decisions/upgrades-and-shards.md).
//!
//! *Problem.* A segment has no id of the shard that it belongs to. The kernel distributes packets by their source: a
//! connection belongs to the shard that receives its first SYN, its home shard. But a join belongs to the shard
//! whose connection has the token, from any source address, and so do all later segments on its path. The queues of
//! a TUN interface are chosen by the kernel.
//!
//! A shard that receives a segment its core does not claim asks the other shards, as processes ask each other (below).
//! It first asks the shard that the token names or that last owned the path. Otherwise it asks all, starting with the
//! home shard. The shard that claims the segment takes it. The home shard takes what no shard claims: a new connection,
//! or a stray segment that must be answered. To ask, the receiving thread looks in the other shard's tables. Nothing is
//! copied or queued, and no two shards are locked at the same time.
//!
//! Because each shard receives segments of the others, all of them run until the last one has ended.
//!
//! Between processes, the core of the newest process recognizes its own segments. The others are passed from the
//! youngest of the older processes to the oldest. Each takes what its core claims and returns the rest. Segments that
//! no process claims belong to the newest. The owner of each path is cached, so that this search happens only once.
//!
//! A process with a successor stops receiving. It gets its packets from the newest process and still sends on the
//! shared sockets. The part of the newest process is in `older_processes.rs`. Links are TCP connections, and only one
//! process can write to one: their frames are relayed (`link_tasks.rs`).

use core::net::{IpAddr, SocketAddr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use marline_core::{Ecn, FourTuple, PacketMeta, SegmentRequest, Shard as Part};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::carrier::Carrier;
use super::egress::on_native_error;
use super::ingress::{self, Origin};
use super::link::LinkStream;
use super::link_events::{Shards, link_users};
use super::link_tasks::{self, owner};
use super::older_processes::OlderProcesses;
use super::path_owners::{OtherShardPackets, Stray};
use super::routing::{Links, count};
use super::shard::{Shard, ShardHandle};
use super::sockets::Watch;
use crate::carrier::Outer;
use crate::edge::descriptor::watch;
use crate::edge::network_error::NetworkError;
use crate::links::FrameDecoder;
use crate::native;
use crate::succession::{Channel, ForwardedOrigin, MAX_MESSAGE_LEN, Message};
use crate::sys::channel;

/// Passes packets of a batch on to the shards that own them. No shard may be locked.
pub(super) fn pass_on(shard: &Shard, others: OtherShardPackets<'_>) {
    let OtherShardPackets { unowned: mut strays, errors } = others;
    while let Some(asked) = strays.first().map(|stray| stray.asked) {
        let (theirs, rest): (Vec<_>, Vec<_>) =
            strays.into_iter().partition(|stray| stray.asked == asked);
        strays = rest;
        let Some(sibling) = shard.port_shard(asked) else { continue };
        let left = claim_strays(&sibling, theirs);
        if !left.is_empty() {
            let mut state = shard.lock();
            let part = state.carrier().part();
            let owners = state.path_owners();
            strays.extend(left.into_iter().map(|stray| owners.next_shard_to_ask(part, stray)));
        }
    }
    if !errors.is_empty() {
        pass_errors_to_shards(shard, &errors);
    }
}

/// Returns the shards that depend on each other's reception, including this one; empty if the ports are not shared.
fn group(shard: &Shard) -> impl Iterator<Item = Arc<Shard>> {
    let is_shared = shard.lock().carrier().part().count > 1;
    shard.port_shards().filter(move |_| is_shared)
}

/// Returns true if no handle is left to this shard or to a shard that receives some of its packets.
pub(super) fn is_abandoned(shard: &Shard) -> bool {
    shard.is_orphaned() && group(shard).all(|shard| shard.is_orphaned())
}

/// Returns two flags, which also cover shards that receive some of its packets: whether connections are left, and
/// whether connections in TIME-WAIT still answer late segments.
pub(super) fn remaining_work(shard: &Shard) -> (bool, bool) {
    let of = |shard: &Shard| {
        let mut state = shard.lock();
        let stragglers = state.carrier().is_native() && state.endpoint().in_time_wait();
        (!state.endpoint().connections().is_empty(), stragglers)
    };
    group(shard)
        .map(|shard| of(&shard))
        .fold(of(shard), |all, one| (all.0 || one.0, all.1 || one.1))
}

/// Takes the segments that this shard claims or that cannot belong to another shard. Returns the rest.
fn claim_strays<'a>(shard: &Shard, strays: Vec<Stray<'a>>) -> Vec<Stray<'a>> {
    let mut left = Vec::new();
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let asked = strays.len();
    for stray in strays {
        let Stray { asks, meta, segment, .. } = &stray;
        if state.endpoint().owns_segment(now, meta, segment) {
            if let Carrier::Native(carrier) = state.carrier() {
                carrier.count_foreign(matches!(asks, SegmentRequest::ToJoin(_)));
            }
            ingress::take_segment(&mut state, now, meta, segment);
        } else if stray.is_last {
            ingress::on_unclaimed_segment(&mut state, now, meta, segment);
        } else {
            if stray.asks != SegmentRequest::Nothing {
                state.endpoint().release_address_pair(&meta.path);
            }
            left.push(stray);
        }
    }
    if left.len() < asked {
        shard.finish_foreign_access(&mut state, now);
    }
    left
}

/// Passes ICMP errors on: an error that arrives in one queue of an interface may concern any shard.
fn pass_errors_to_shards(shard: &Shard, errors: &[NetworkError]) {
    for sibling in shard.port_shards() {
        if core::ptr::eq(&raw const *sibling, shard) {
            continue;
        }
        let mut state = sibling.lock();
        let now = sibling.now(&mut state);
        errors.iter().for_each(|error| on_native_error(&mut state, now, error));
        sibling.serve(&mut state, now);
    }
}

const fn meta(path: FourTuple, ecn: Ecn) -> PacketMeta {
    PacketMeta { path, ecn, flow: 0, peer_flow: 0, checksum_verified: true }
}

/// Takes a segment that the newest process passed on. Returns false if the core does not claim it.
pub(super) fn on_passed_segment(shard: &Shard, path: FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
    let meta = meta(path, ecn);
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    if !state.endpoint().owns_segment(now, &meta, segment) {
        return false;
    }
    ingress::take_segment(&mut state, now, &meta, segment);
    shard.finish_foreign_access(&mut state, now);
    true
}

/// Takes a segment that an older process returned and no other shard claims, unless another older process has to
/// be asked.
pub(super) fn on_returned_segment(
    shard: &Shard,
    generation: u8,
    path: FourTuple,
    ecn: Ecn,
    segment: &[u8],
) {
    let meta = meta(path, ecn);
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    // An earlier segment may have made the path ours.
    if !state.endpoint().owns_segment(now, &meta, segment)
        && let Some(older) = state.routing().links().connected_older_processes()
        && older.ask_next_process(generation, &path, ecn, segment)
    {
        return;
    }
    ingress::take_segment(&mut state, now, &meta, segment);
    shard.serve(&mut state, now);
}

/// Processes that share the sockets of these shards, as seen from one of them.
#[derive(Debug)]
pub struct Generations {
    shards: Vec<Weak<Shard>>,
    links: Arc<Links>,
    older: Arc<OlderProcesses>,
    /// Task that receives the packets that the successor passes on.
    receiving_task: Mutex<Option<Watch>>,
}

impl Generations {
    /// Creates the generations of shards without older processes.
    #[must_use]
    pub fn new(own: u8, shards: &[Arc<ShardHandle>], links: &Arc<Links>) -> Arc<Self> {
        let shards: Vec<_> = shards.iter().map(|handle| handle.downgrade()).collect();
        let (asked, returned_to) = (shards.clone(), shards.clone());
        let knows_token = Box::new(move |token| knows_token(&asked, token));
        let returned = Box::new(move |generation: u8, bytes: &[u8]| {
            let Ok((Message::Segment { path, ecn }, segment)) = Message::parse(bytes) else {
                return;
            };
            // Earlier packets may have moved the connection to another shard.
            let (home, others) = home_and_other_shards(&returned_to, &path);
            if !others.iter().any(|other| on_passed_segment(other, path, ecn, segment))
                && let Some(home) = home
            {
                on_returned_segment(&home, generation, path, ecn, segment);
            }
        });
        let older = OlderProcesses::new(own, knows_token, returned);
        links.set_older_processes(&older);
        let links = Arc::clone(links);
        Arc::new(Generations { shards, links, older, receiving_task: Mutex::default() })
    }

    /// Returns the generation of this process.
    #[must_use]
    pub fn own_number(&self) -> u8 {
        self.older.own_number()
    }

    /// Adds a process that keeps its connections while this one receives.
    ///
    /// # Errors
    /// Fails if the channel cannot be registered with the runtime.
    pub fn add_older_process(&self, generation: u8, channel: Channel) -> io::Result<()> {
        self.older.add(generation, channel)
    }

    /// Returns the older processes with duplicated channel descriptors, in the order in which the successor must add
    /// them.
    ///
    /// # Errors
    /// Fails if the process has no descriptors left.
    pub fn older_processes(&self) -> io::Result<Vec<(u8, OwnedFd)>> {
        self.older.copies()
    }

    /// Hands reception over to `successor`, which then passes our packets on to us.
    ///
    /// # Errors
    /// Fails if the successor is gone; nothing has changed then.
    pub fn hand_over(self: &Arc<Self>, successor: Channel) -> io::Result<()> {
        for shard in self.shards.iter().filter_map(Weak::upgrade) {
            shard.reregister_sockets(false);
        }
        let begun = successor.set_blocking(false).and_then(|()| successor.permit_start());
        let channel = begun.and_then(|()| watch(successor.into_fd(), Interest::READABLE));
        let channel = channel.inspect_err(|_| self.receive_again())?;
        self.older.forget_all();
        for shard in self.shards.iter().filter_map(Weak::upgrade) {
            shard.ignore_unknown();
        }
        self.links.hand_over_tcp(true);
        let task = tokio::spawn(receive_messages(Arc::downgrade(self), channel));
        *self.lock_sender() = Some(Watch::new(task.abort_handle()));
        Ok(())
    }

    fn lock_sender(&self) -> MutexGuard<'_, Option<Watch>> {
        self.receiving_task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive_again(&self) {
        self.links.hand_over_tcp(false);
        for shard in self.shards.iter().filter_map(Weak::upgrade) {
            shard.reregister_sockets(true);
        }
    }

    /// Handles a message that the successor passed on. Returns false on a protocol violation.
    fn on_passed(&self, bytes: &[u8], fd: Option<OwnedFd>, back: BorrowedFd<'_>) -> bool {
        match (Message::parse(bytes), fd) {
            (Ok((Message::Segment { path, ecn }, segment)), _) => {
                let (home, others) = home_and_other_shards(&self.shards, &path);
                let mut asked = home.iter().chain(&others);
                if !asked.any(|shard| on_passed_segment(shard, path, ecn, segment)) {
                    // If the channel has no room, the segment is lost, as in a full queue.
                    let _ = channel::send(back, &[bytes], None);
                }
            }
            (Ok((Message::Frames(passed), frames)), _) => self.take_frames(&passed, frames),
            (Ok((Message::Link { local, remote, port }, _)), Some(fd)) => {
                self.take_link(fd, local, remote, port);
            }
            _ => return false,
        }
        true
    }

    fn take_frames(&self, passed: &ForwardedOrigin, run: &[u8]) {
        let stride = usize::from(passed.stride).max(1);
        let frames = run.chunks(stride).filter(|frame| self.older.handles_frame(frame));
        let frames: Vec<&[u8]> = frames.collect();
        let count = self.shards.len();
        for same in frames.chunk_by(|one, other| owner(one, count) == owner(other, count)) {
            let index = same.first().map_or(0, |frame| owner(frame, count));
            if let Some(shard) = self.shards.get(index).and_then(Weak::upgrade) {
                on_passed_frames(&shard, passed, same);
            }
        }
    }

    /// Takes over one end of a link that the successor relays.
    fn take_link(&self, fd: OwnedFd, local: IpAddr, remote: SocketAddr, port: u16) {
        let stream = std::os::unix::net::UnixStream::from(fd);
        let Ok(stream) = UnixStream::from_std(stream) else { return };
        count(&self.links.counters().accepted);
        match self.links.insert(LinkStream::Unix(stream), local, remote, port, false) {
            Some(link) => {
                let shards: Shards = self.shards.as_slice().into();
                link_tasks::start(
                    &self.links,
                    link,
                    link_users(&shards),
                    FrameDecoder::after_preamble(),
                    true,
                );
            }
            None => count(&self.links.counters().refused),
        }
    }
}

/// Returns the home shard of a path's native TCP, and the other shards.
fn home_and_other_shards(
    shards: &[Weak<Shard>],
    path: &FourTuple,
) -> (Option<Arc<Shard>>, Vec<Arc<Shard>>) {
    let home = usize::from(native::home_shard(path.remote, shard_count(shards)));
    let others = shards.iter().enumerate().filter(|(index, _)| *index != home);
    let others = others.filter_map(|(_, other)| other.upgrade()).collect();
    (shards.get(home).and_then(Weak::upgrade), others)
}

fn shard_count(shards: &[Weak<Shard>]) -> u8 {
    u8::try_from(shards.len()).unwrap_or(u8::MAX)
}

/// Returns true if a connection of these shards has this token. None of the shards may be locked.
fn knows_token(shards: &[Weak<Shard>], token: u32) -> bool {
    let index = usize::from(Part::index_for_token(token, shard_count(shards)));
    let shard = shards.get(index).and_then(Weak::upgrade);
    shard.is_some_and(|shard| shard.lock().endpoint().knows_token(token))
}

/// Receives what the successor passes on until the successor is gone. Then only this process can receive.
async fn receive_messages(generations: Weak<Generations>, channel: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; MAX_MESSAGE_LEN].into_boxed_slice();
    loop {
        let Ok(mut guard) = channel.readable().await else { return };
        match channel::receive(channel.get_ref().as_fd(), &mut buffer) {
            Ok(Some((len, fd))) => {
                let Some(generations) = generations.upgrade() else { return };
                let bytes = buffer.get(..len).unwrap_or_default();
                if !generations.on_passed(bytes, fd, channel.get_ref().as_fd()) {
                    tracing::warn!("unknown message from the successor; ignoring it");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Ok(None) | Err(_) => break,
        }
        drop(guard);
        tokio::task::coop::consume_budget().await;
    }
    if let Some(generations) = generations.upgrade() {
        tracing::warn!("successor exited; receiving own packets again");
        generations.receive_again();
    }
}

/// Gives frames passed on by the newest process to the carrier and the core.
fn on_passed_frames(shard: &Shard, passed: &ForwardedOrigin, frames: &[&[u8]]) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let index = state.sockets().position(|socket| socket.local == passed.bound);
    let Some(index) = index else { return };
    let outer = Outer { socket: index as u16, local: passed.local, remote: passed.remote };
    let origin = Origin { outer, local_port: passed.bound.port(), ecn: passed.ecn };
    ingress::on_frames(shard, &mut state, now, &origin, frames.iter().copied());
    shard.finish_foreign_access(&mut state, now);
}

#[cfg(test)]
mod tests;
