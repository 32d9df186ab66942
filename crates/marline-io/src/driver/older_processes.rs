//! Older processes of this server that still have connections, as seen from the newest process.
//!
//! *Problem.* Packets for their connections arrive on sockets that the newest process reads, from addresses that may
//! change, and a join looks like a new connection. Ids contain the process that generated them. Of a token, the newest
//! process knows only whether it belongs to one of its own connections. Packets of an older process are passed to it
//! through a channel, in the batches in which the kernel delivered them. A full channel drops packets, as a socket
//! does. While there are no older processes, packets are not inspected.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use marline_core::{Ecn, FourTuple};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::path_owners::PathOwners;
use crate::carrier::Addressee;
use crate::edge::descriptor::watch;
use crate::succession::{Channel, ForwardedOrigin, MAX_MESSAGE_LEN, Message};
use crate::sys::channel;

/// Older process, and the channel to it.
#[derive(Debug)]
pub(super) struct OlderProcess {
    generation: u8,
    channel: AsyncFd<OwnedFd>,
}

impl OlderProcess {
    pub(super) const fn generation(&self) -> u8 {
        self.generation
    }

    pub(super) fn send(&self, parts: &[&[u8]], fd: Option<&OwnedFd>) -> io::Result<()> {
        channel::send(self.channel.get_ref().as_fd(), parts, fd.map(AsFd::as_fd))
    }
}

/// Older process, and the task that waits for its end.
#[derive(Debug)]
struct ConnectedProcess {
    process: Arc<OlderProcess>,
    watch: AbortHandle,
}

impl Drop for ConnectedProcess {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Function that returns true if a connection of this process has the token.
type TokenLookup = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// Handler of messages from an older process. All of them are segments that do not belong to that process.
type ReturnHandler = Box<dyn Fn(u8, &[u8]) + Send + Sync>;

/// Older processes of this server.
pub(super) struct OlderProcesses {
    own: u8,
    knows_token: TokenLookup,
    returned: ReturnHandler,
    /// Owner of each native TCP path, or the process that is being asked.
    paths: Mutex<PathOwners>,
    /// Connected processes, youngest first.
    known: Mutex<Vec<ConnectedProcess>>,
    has_any: AtomicBool,
}

impl fmt::Debug for OlderProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OlderProcesses").field("own", &self.own).finish_non_exhaustive()
    }
}

impl OlderProcesses {
    /// Creates an empty set for a process of generation `own`. `knows_token` and `returned` are called without a
    /// lock held.
    pub(super) fn new(own: u8, knows_token: TokenLookup, returned: ReturnHandler) -> Arc<Self> {
        let (known, has_any) = (Mutex::default(), AtomicBool::new(false));
        let paths = Mutex::default();
        Arc::new(OlderProcesses { own, knows_token, returned, paths, known, has_any })
    }

    /// Returns the generation of this process.
    pub(super) const fn own_number(&self) -> u8 {
        self.own
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ConnectedProcess>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a process that keeps its connections while this process receives packets.
    pub(super) fn add(self: &Arc<Self>, generation: u8, channel: Channel) -> io::Result<()> {
        channel.set_blocking(false)?;
        let channel = watch(channel.into_fd(), Interest::READABLE)?;
        let process = Arc::new(OlderProcess { generation, channel });
        let task = tokio::spawn(receive_until_end(Arc::downgrade(self), Arc::clone(&process)));
        let mut known = self.lock();
        known.insert(0, ConnectedProcess { process, watch: task.abort_handle() });
        self.has_any.store(true, Ordering::Release);
        Ok(())
    }

    /// Duplicates the descriptors of the channels, in the order in which the processes were added.
    pub(super) fn copies(&self) -> io::Result<Vec<(u8, OwnedFd)>> {
        let copy = |known: &ConnectedProcess| {
            let fd = known.process.channel.get_ref().try_clone()?;
            Ok((known.process.generation, fd))
        };
        self.lock().iter().rev().map(copy).collect()
    }

    /// Forgets all older processes, because another process now sends to them.
    pub(super) fn forget_all(&self) {
        self.lock().clear();
        self.lock_paths().forget_all();
        self.has_any.store(false, Ordering::Release);
    }

    fn lock_paths(&self) -> MutexGuard<'_, PathOwners> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on a segment of native TCP that is unknown to the core of this process. It goes to the process that last
    /// received this path's segments, or else to the youngest. Returns false if there are no older processes: then the
    /// segment is ours.
    pub(super) fn ask_path_owner(&self, path: &FourTuple, ecn: Ecn, segment: &[u8]) -> bool {
        let all = self.all();
        let numbers = all.iter().map(|process| process.generation).collect::<Vec<_>>();
        let owner = self.lock_paths().owner(*path, &numbers);
        pass(&all, owner, path, ecn, segment)
    }

    /// Passes a segment that process `generation` returned to the next older process. Returns false if there is none.
    pub(super) fn ask_next_process(
        &self,
        generation: u8,
        path: &FourTuple,
        ecn: Ecn,
        segment: &[u8],
    ) -> bool {
        let all = self.all();
        let numbers = all.iter().map(|process| process.generation).collect::<Vec<_>>();
        let owner = self.lock_paths().next_owner(*path, generation, &numbers);
        pass(&all, owner, path, ecn, segment)
    }

    fn forget(&self, generation: u8) {
        let mut known = self.lock();
        known.retain(|known| known.process.generation != generation);
        self.has_any.store(!known.is_empty(), Ordering::Release);
    }

    /// Returns true if packets may belong to another process.
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Returns all older processes, youngest first.
    pub(super) fn all(&self) -> Vec<Arc<OlderProcess>> {
        self.lock().iter().map(|known| Arc::clone(&known.process)).collect()
    }

    /// Returns the processes among `all` that receive a frame, and true if this process handles it as well.
    pub(super) fn receivers<'a>(
        &self,
        all: &'a [Arc<OlderProcess>],
        frame: &[u8],
    ) -> (&'a [Arc<OlderProcess>], bool) {
        match Addressee::of(frame) {
            Addressee::Newest => (&[], true),
            Addressee::AnyProcess => (all, true),
            // A process without the token does not answer.
            Addressee::Token(token) if !(self.knows_token)(token) => (all, false),
            Addressee::Token(_) => (&[], true),
            Addressee::Generation(number) => {
                match all.iter().position(|process| process.generation == number) {
                    Some(at) if number != self.own => (&all[at..=at], false),
                    // The process has ended, so this process rejects its frames.
                    _ => (&[], true),
                }
            }
        }
    }

    /// Passes on the frames of older processes in a run of datagrams. Returns the frames that are left for this
    /// process, or `None` if nothing was passed on.
    pub(super) fn keep_own_datagrams(&self, from: &ForwardedOrigin, run: &[u8]) -> Option<Vec<u8>> {
        let all = self.all();
        let stride = usize::from(from.stride).max(1);
        let receivers: Vec<_> =
            run.chunks(stride).map(|frame| self.receivers(&all, frame)).collect();
        if receivers.iter().all(|(older, _)| older.is_empty()) {
            return None;
        }
        let header = Message::Frames(*from).to_bytes();
        let (mut ours, mut at) = (Vec::new(), 0);
        let alike = |one: &(&[_], bool), other: &(&[_], bool)| {
            std::ptr::eq(one.0, other.0) && one.1 == other.1
        };
        for same in receivers.chunk_by(alike) {
            let end = run.len().min((at + same.len()).saturating_mul(stride));
            let bytes = run.get(at * stride..end).unwrap_or_default();
            at += same.len();
            let (older, is_ours) = same[0];
            for process in older {
                // A full channel drops frames, as a full socket does.
                let _ = process.send(&[&header, bytes], None);
            }
            if is_ours {
                ours.extend_from_slice(bytes);
            }
        }
        Some(ours)
    }

    /// Returns true if a frame that another process passed on is handled here. A join to a connection of a third
    /// process is not: that process answers it.
    pub(super) fn handles_frame(&self, frame: &[u8]) -> bool {
        match Addressee::of(frame) {
            Addressee::Token(token) => (self.knows_token)(token),
            _ => true,
        }
    }
}

/// Sends a segment to the owner. Returns false if there is no such process. A full channel drops segments, as a full
/// socket does.
fn pass(
    all: &[Arc<OlderProcess>],
    owner: Option<u8>,
    path: &FourTuple,
    ecn: Ecn,
    segment: &[u8],
) -> bool {
    let Some(process) = all.iter().find(|process| Some(process.generation) == owner) else {
        return false;
    };
    let header = Message::Segment { path: *path, ecn }.to_bytes();
    let _ = process.send(&[&header, segment], None);
    true
}

/// Receives segments that an older process returns, until it ends.
async fn receive_until_end(older: Weak<OlderProcesses>, process: Arc<OlderProcess>) {
    let mut buffer = vec![0; MAX_MESSAGE_LEN].into_boxed_slice();
    loop {
        let Ok(mut guard) = process.channel.readable().await else { return };
        match channel::receive(process.channel.get_ref().as_fd(), &mut buffer) {
            Ok(Some((len, _))) => {
                let Some(older) = older.upgrade() else { return };
                (older.returned)(process.generation, buffer.get(..len).unwrap_or_default());
                drop(guard);
                tokio::task::coop::consume_budget().await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Ok(None) | Err(_) => break,
        }
    }
    if let Some(older) = older.upgrade() {
        older.forget(process.generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::Shard;

    /// Builds a frame of 40 bytes for an id of this generation.
    fn frame(generation: u8, mark: u8) -> Vec<u8> {
        let shard = Shard { generation: Some(generation), ..Shard::SINGLE };
        let mut bytes = vec![0x20];
        bytes.extend(shard.with_generation(7).to_be_bytes());
        bytes.resize(40, mark);
        bytes
    }

    fn passed() -> ForwardedOrigin {
        let at = "192.0.2.1:443".parse().expect("an address");
        ForwardedOrigin { bound: at, local: at.ip(), remote: at, ecn: Ecn::Ect0, stride: 40 }
    }

    /// Receives everything from a channel: the frames of each message.
    fn received_frames(channel: &Channel) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        let next = || match channel.receive(&mut buffer) {
            Ok(Some((len, None))) => {
                let (message, frames) = Message::parse(&buffer[..len]).expect("a message");
                assert!(message == Message::Frames(passed()));
                Some(frames.to_vec())
            }
            Ok(_) | Err(_) => None,
        };
        core::iter::from_fn(next).collect()
    }

    #[tokio::test]
    async fn a_run_is_split_by_process_in_order() {
        let older = OlderProcesses::new(3, Box::new(|_| false), Box::new(|_, _| {}));
        let run = |numbers: &[u8]| -> Vec<u8> {
            numbers.iter().enumerate().flat_map(|(at, number)| frame(*number, at as u8)).collect()
        };
        assert!(
            older.keep_own_datagrams(&passed(), &run(&[1, 2, 3])).is_none(),
            "no other process exists"
        );
        let (to_one, one) = Channel::pair().expect("a channel");
        let (to_two, two) = Channel::pair().expect("a channel");
        older.add(1, to_one).expect("a runtime");
        older.add(2, to_two).expect("a runtime");
        assert!(older.has_any());
        assert!(
            older.keep_own_datagrams(&passed(), &run(&[3, 3])).is_none(),
            "all datagrams belong to this process"
        );
        // The last frame of a run may be shorter than the others. Generation 9 no longer exists.
        let mut mixed = run(&[1, 1, 3, 2, 9, 1]);
        mixed.truncate(mixed.len() - 10);
        let ours = older
            .keep_own_datagrams(&passed(), &mixed)
            .expect("some datagrams belong to other processes");
        assert_eq!(ours, [frame(3, 2), frame(9, 4)].concat());
        assert_eq!(received_frames(&one), [mixed[..80].to_vec(), mixed[200..].to_vec()]);
        assert_eq!(received_frames(&two), [frame(2, 3)]);
        // A reset contains the peer's id, which any process may know.
        let mut reset = frame(1, 0);
        reset[0] = 0x25;
        assert_eq!(older.keep_own_datagrams(&passed(), &reset), Some(reset.clone()));
        assert_eq!(
            (received_frames(&one), received_frames(&two)),
            (vec![reset.clone()], vec![reset])
        );
        // A process that has ended no longer receives anything.
        drop(one);
        while older.all().len() > 1 {
            tokio::task::yield_now().await;
        }
        assert!(older.keep_own_datagrams(&passed(), &run(&[1])).is_none());
    }
}
