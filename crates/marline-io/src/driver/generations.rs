//! Generations of a server: the processes that share its sockets, of which the newest receives.
//!
//! *Problem.* A process that gives its sockets to a successor still has connections, whose datagrams come to the
//! same sockets, from addresses that may change, and joins to them begin like anything new. Two readers of a socket get
//! whatever they happen to get. So one process reads, the newest, and gives the others theirs: by the generation in
//! the id, and a join by its token, which it knows or does not. Nothing is looked at while there is one process only.
//!
//! What is passed on goes through a channel for each older process (an *elder*). One that is full drops, as a socket
//! does. What elders send leaves by the shared socket itself. Links are TCP connections, and only one process can
//! write to one; what goes that way is in `relayed_links.rs`.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use marline_core::Shard as Part;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ingress::Origin;
use super::link_tasks::owner;
use super::links::Links;
use super::relayed_links::Relays;
use super::shard::{Shard, ShardHandle};
use super::state::Watch;
use crate::carrier::{Addressee, Outer};
use crate::succession::{Channel, Message, Passed, channel};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An older process, and the way to it.
#[derive(Debug)]
pub(super) struct Elder {
    pub(super) generation: u8,
    channel: AsyncFd<OwnedFd>,
}

impl Elder {
    pub(super) fn send(&self, parts: &[&[u8]], fd: Option<&OwnedFd>) -> io::Result<()> {
        channel::send(self.channel.get_ref().as_fd(), parts, fd.map(AsFd::as_fd))
    }
}

/// An elder, and what waits for its end.
#[derive(Debug)]
struct Known {
    elder: Arc<Elder>,
    _watch: Watch,
}

/// The processes that share the sockets of these shards, seen from one of them.
#[derive(Debug)]
pub struct Generations {
    own: u8,
    shards: Vec<Weak<Shard>>,
    pub(super) links: Arc<Links>,
    /// The youngest first.
    elders: Mutex<Vec<Known>>,
    has_elders: AtomicBool,
    pub(super) relays: Relays,
    /// What the successor passes on is taken by this task.
    heard: Mutex<Option<Watch>>,
}

impl Generations {
    /// For shards that have no elders yet.
    #[must_use]
    pub fn new(own: u8, shards: &[Arc<ShardHandle>], links: &Arc<Links>) -> Arc<Self> {
        let generations = Arc::new(Generations {
            own,
            shards: shards.iter().map(|handle| Arc::downgrade(&handle.shard)).collect(),
            links: Arc::clone(links),
            elders: Mutex::default(),
            has_elders: AtomicBool::new(false),
            relays: Relays::default(),
            heard: Mutex::default(),
        });
        links.set_generations(&generations);
        generations
    }

    /// Its own number.
    #[must_use]
    pub const fn own(&self) -> u8 {
        self.own
    }

    /// A process that keeps its connections while this one receives.
    ///
    /// # Errors
    /// The system's.
    pub fn add_elder(self: &Arc<Self>, generation: u8, channel: Channel) -> io::Result<()> {
        channel.set_waits(false)?;
        let channel = crate::sys::watch(channel.into_fd(), Interest::READABLE)?;
        let elder = Arc::new(Elder { generation, channel });
        let task = tokio::spawn(until_its_end(Arc::downgrade(self), Arc::clone(&elder)));
        let mut elders = lock(&self.elders);
        elders.insert(0, Known { elder, _watch: Watch(task.abort_handle()) });
        self.has_elders.store(true, Ordering::Release);
        Ok(())
    }

    /// The elders and further descriptors of the ways to them.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn elders(&self) -> io::Result<Vec<(u8, OwnedFd)>> {
        let elders = lock(&self.elders);
        // In the order in which they are to be added again.
        let copy = |known: &Known| {
            let fd = known.elder.channel.get_ref().try_clone()?;
            Ok((known.elder.generation, fd))
        };
        elders.iter().rev().map(copy).collect()
    }

    /// Whether anything can be for another process.
    pub(super) fn has_elders(&self) -> bool {
        self.has_elders.load(Ordering::Acquire)
    }

    pub(super) fn known_elders(&self) -> Vec<Arc<Elder>> {
        lock(&self.elders).iter().map(|known| Arc::clone(&known.elder)).collect()
    }

    /// From now on `successor` receives, and passes on what is ours.
    ///
    /// # Errors
    /// It is gone.
    pub fn hand_over(self: &Arc<Self>, successor: Channel) -> io::Result<()> {
        for shard in self.shards.iter().filter_map(Weak::upgrade) {
            shard.stop_receiving();
        }
        successor.set_waits(false)?;
        let begun = successor.let_begin();
        if let Err(error) = begun {
            self.receive_again();
            return Err(error);
        }
        self.forget_elders();
        self.links.leave_tcp(true);
        let channel = crate::sys::watch(successor.into_fd(), Interest::READABLE)?;
        let task = tokio::spawn(hear(Arc::downgrade(self), channel));
        *lock(&self.heard) = Some(Watch(task.abort_handle()));
        Ok(())
    }

    /// The successor sends to them now.
    fn forget_elders(&self) {
        lock(&self.elders).clear();
        self.has_elders.store(false, Ordering::Release);
    }

    fn forget_elder(&self, generation: u8) {
        let mut elders = lock(&self.elders);
        elders.retain(|known| known.elder.generation != generation);
        self.has_elders.store(!elders.is_empty(), Ordering::Release);
    }

    fn receive_again(&self) {
        self.links.leave_tcp(false);
        for shard in self.shards.iter().filter_map(Weak::upgrade) {
            shard.receive_again();
        }
    }

    /// Whether a connection of this process has this token. Asks a shard, which must not be locked.
    pub(super) fn knows_token(&self, token: u32) -> bool {
        let count = u8::try_from(self.shards.len()).unwrap_or(u8::MAX);
        let index = usize::from(Part::of_token(token, count));
        let shard = self.shards.get(index).and_then(Weak::upgrade);
        shard.is_some_and(|shard| shard.lock().endpoint.knows_token(token))
    }

    /// The elders that are to have a frame, and whether it is for this process, too.
    pub(super) fn receivers<'a>(
        &self,
        elders: &'a [Arc<Elder>],
        frame: &[u8],
    ) -> (&'a [Arc<Elder>], bool) {
        match Addressee::of(frame) {
            Addressee::Newest => (&[], true),
            Addressee::Anybody => (elders, true),
            // Those who do not have it say nothing.
            Addressee::Token(token) if !self.knows_token(token) => (elders, false),
            Addressee::Token(_) => (&[], true),
            Addressee::Generation(number) => {
                match elders.iter().position(|elder| elder.generation == number) {
                    Some(at) if number != self.own => (&elders[at..=at], false),
                    // Of a process that has ended: what it had is disowned here.
                    _ => (&[], true),
                }
            }
        }
    }

    /// Passes on what is for elders of a run of datagrams. `Some`: what is left is ours.
    pub(super) fn sift(&self, from: &Passed, run: &[u8]) -> Option<Vec<u8>> {
        let elders = self.known_elders();
        let stride = usize::from(from.stride).max(1);
        let header = Message::Frames(*from).to_bytes();
        let mut ours = Vec::new();
        let receivers: Vec<_> =
            run.chunks(stride).map(|frame| self.receivers(&elders, frame)).collect();
        if receivers.iter().all(|(elders, _)| elders.is_empty()) {
            return None;
        }
        let mut at = 0;
        for same in
            receivers.chunk_by(|one, other| std::ptr::eq(one.0, other.0) && one.1 == other.1)
        {
            let end = run.len().min((at + same.len()).saturating_mul(stride));
            let bytes = run.get(at * stride..end).unwrap_or_default();
            at += same.len();
            for elder in same[0].0 {
                // A full channel drops, as a full socket does.
                let _ = elder.send(&[&header, bytes], None);
            }
            if same[0].1 {
                ours.extend_from_slice(bytes);
            }
        }
        Some(ours)
    }

    /// Takes what the successor passes on. `false`: it is gone, or mad.
    fn on_passed(&self, bytes: &[u8], fd: Option<OwnedFd>) -> bool {
        match Message::parse(bytes) {
            Ok((Message::Frames(passed), frames)) => {
                self.take_frames(&passed, frames);
                true
            }
            Ok((Message::Link { local, remote, port }, _)) => {
                if let Some(fd) = fd {
                    super::relayed_links::accept(self, fd, (local, remote), port);
                }
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    fn take_frames(&self, passed: &Passed, run: &[u8]) {
        let stride = usize::from(passed.stride).max(1);
        let frames: Vec<&[u8]> = run.chunks(stride).filter(|frame| self.takes(frame)).collect();
        let count = self.shards.len();
        for same in frames.chunk_by(|one, other| owner(one, count) == owner(other, count)) {
            let index = same.first().map_or(0, |frame| owner(frame, count));
            if let Some(shard) = self.shards.get(index).and_then(Weak::upgrade) {
                shard.on_passed_frames(passed, same);
            }
        }
    }

    /// A join to another process' connection must not be answered: that process does it.
    pub(super) fn takes(&self, frame: &[u8]) -> bool {
        match Addressee::of(frame) {
            Addressee::Token(token) => self.knows_token(token),
            _ => true,
        }
    }

    pub(super) fn shards(&self) -> Vec<Weak<Shard>> {
        self.shards.clone()
    }
}

/// An elder says nothing, and ends.
async fn until_its_end(generations: Weak<Generations>, elder: Arc<Elder>) {
    loop {
        let Ok(mut guard) = elder.channel.readable().await else { return };
        match channel::receive(elder.channel.get_ref().as_fd(), &mut [0; 16]) {
            Ok(Some(_)) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Ok(None) | Err(_) => break,
        }
    }
    if let Some(generations) = generations.upgrade() {
        generations.forget_elder(elder.generation);
    }
}

/// Hears what the successor passes on, until it is gone; then there is nobody but us to receive.
async fn hear(generations: Weak<Generations>, channel: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; channel::LONGEST_MESSAGE].into_boxed_slice();
    loop {
        let Ok(mut guard) = channel.readable().await else { return };
        let received = channel::receive(channel.get_ref().as_fd(), &mut buffer);
        match received {
            Ok(Some((len, fd))) => {
                let Some(generations) = generations.upgrade() else { return };
                if !generations.on_passed(buffer.get(..len).unwrap_or_default(), fd) {
                    tracing::warn!("the successor passes on what this process does not know");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Ok(None) | Err(_) => break,
        }
        drop(guard);
        tokio::task::coop::consume_budget().await;
    }
    if let Some(generations) = generations.upgrade() {
        tracing::warn!("the successor is gone: this process receives again what is its own");
        generations.receive_again();
    }
}

impl Shard {
    /// Gives frames that the newest process received to carrier and core.
    fn on_passed_frames(&self, passed: &Passed, frames: &[&[u8]]) {
        let mut state = self.lock();
        let now = self.clock.now();
        let bound = |entry: &Option<super::state::SocketEntry>| {
            entry.as_ref().is_some_and(|entry| entry.socket.local == passed.bound)
        };
        let Some(index) = state.sockets.iter().position(bound) else { return };
        let outer = Outer { socket: index as u16, local: passed.local, remote: passed.remote };
        let origin = Origin { outer, local_port: passed.bound.port(), ecn: passed.ecn };
        self.on_frames(&mut state, now, &origin, frames.iter().copied());
        if self.tell(&mut state, now) {
            super::connections::wake(state.driver.take());
        } else {
            self.serve(&mut state, now);
        }
    }

    /// The sockets of this shard, and further descriptors of them.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn copy_sockets(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let state = self.lock();
        let sockets = state.sockets.iter().flatten();
        sockets
            .map(|entry| Ok((entry.socket.local, entry.socket.as_fd().try_clone_to_owned()?)))
            .collect()
    }
}
