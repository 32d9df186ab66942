//! Receiving half of a shard: its sockets, the buffer for one system call, and the time at which the receiving task
//! became ready.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Wake;

use marline_time::{Duration, Instant};
use marline_wire::Checksum;
use quinn_udp::{RecvMeta, UdpSockRef};

use super::carrier::CarrierKind;
use super::older_processes::OlderProcesses;
use super::sockets::{Kind, OpenSocket, Sock, UdpKind, canonical_address, ecn_of};
use crate::clock::Clock;
use crate::edge::raw_packet;
use crate::edge::virtio::VirtioHeader;
use crate::native;
use crate::succession::ForwardedOrigin;
use crate::sys::raw::RawBuffer;

/// Time in the ready state after which a task counts as late: a turn of a runtime takes less unless it is overloaded.
const LATE_THRESHOLD: Duration = Duration::from_millis(1);
/// Number of calls between two socket checks that indicates many tasks: a runtime polls them one after the other and
/// meanwhile checks I/O less often.
pub(super) const BUSY_RUNTIME_CALLS: u32 = 16;

/// Number of consecutive receive errors after which a socket must become ready again before it is read.
const MAX_CONSECUTIVE_ERRORS: u32 = 8;

/// Sockets and the receive buffer.
pub(super) struct Reception {
    sockets: Vec<OpenSocket>,
    buffer: ReceiveBuffer,
    /// Consecutive receive errors.
    errors: u32,
    /// Index of the socket that a caller checks next.
    next: usize,
}

/// Result of a read from a socket.
pub(super) enum ReadResult {
    Nothing,
    /// An error; there may be more data after it.
    Error,
    /// The buffer contains a batch. `drained` means that the socket is now empty.
    Batch {
        drained: bool,
    },
}

impl Reception {
    fn new(kind: CarrierKind) -> Reception {
        Reception { sockets: Vec::new(), buffer: ReceiveBuffer::new(kind), errors: 0, next: 0 }
    }

    /// Applies a change to the set of sockets.
    pub(super) fn set_sockets(&mut self, sockets: Vec<OpenSocket>) {
        self.sockets = sockets;
        self.next = 0;
    }

    /// Releases the sockets.
    pub(super) fn close(&mut self) {
        self.sockets.clear();
    }

    /// Returns the number of sockets.
    pub(super) const fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Receives once from a socket, for the task. `may_busy_poll` allows a try even if the socket is not ready.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        may_busy_poll: bool,
    ) -> io::Result<ReadResult> {
        let socket = &self.sockets[at].socket;
        let mut guard = match socket.fd.poll_read_ready(cx) {
            Poll::Ready(guard) => Some(guard?),
            Poll::Pending if may_busy_poll => None,
            Poll::Pending => return Ok(ReadResult::Nothing),
        };
        let drained = match self.buffer.receive(socket) {
            Ok(drained) => drained,
            // The socket was not reported as ready, so an error is normal.
            Err(_) if guard.is_none() => return Ok(ReadResult::Nothing),
            Err(error) => {
                // An ICMP error is handled by the error watch, and datagrams may follow it. But a persistent error must
                // not keep the task busy.
                self.errors += 1;
                let useless = error.kind() == io::ErrorKind::WouldBlock;
                if let Some(guard) = &mut guard
                    && (useless || self.errors > MAX_CONSECUTIVE_ERRORS)
                {
                    guard.clear_ready();
                }
                return Ok(ReadResult::Error);
            }
        };
        self.errors = 0;
        if let Some(guard) = &mut guard
            && drained
        {
            guard.clear_ready();
        }
        Ok(ReadResult::Batch { drained })
    }

    /// Receives once from the next socket, on behalf of the task. Returns the index, and true if the socket is now
    /// empty. Returns `None` if nothing was received; errors are left to the task.
    pub(super) fn receive_in_turn(&mut self) -> Option<(usize, bool)> {
        let at = self.next % self.sockets.len();
        let received = self.buffer.receive(&self.sockets[at].socket);
        if !matches!(received, Ok(false)) {
            self.next += 1;
        }
        received.ok().map(|drained| (at, drained))
    }

    /// Passes on the datagrams of a batch that belong to other processes.
    pub(super) fn keep_own_datagrams(&mut self, at: usize, older: &OlderProcesses) {
        self.buffer.keep_own_datagrams(older, self.sockets[at].local);
    }

    /// Returns the socket of the last batch, and the batch.
    pub(super) fn batch(&self, at: usize) -> (&OpenSocket, &ReceiveBuffer) {
        (&self.sockets[at], &self.buffer)
    }
}

/// Readiness of a shard's task, to detect that it is late.
#[derive(Debug)]
pub(super) struct Readiness {
    clock: Clock,
    /// Time at which the task became ready to be polled, in nanoseconds of the clock; 0 if it is not ready.
    since: AtomicU64,
    /// Time of the last check of the sockets, by the task or on its behalf, in nanoseconds of the clock.
    polled_at: AtomicU64,
    /// Number of calls since the last check.
    calls: AtomicU32,
}

impl Readiness {
    fn new(clock: Clock) -> Readiness {
        let looked_at = AtomicU64::new(clock.now().as_nanos());
        Readiness {
            clock,
            since: AtomicU64::new(0),
            polled_at: looked_at,
            calls: AtomicU32::new(0),
        }
    }

    fn record_wakeup(&self) {
        let now = self.clock.now().as_nanos();
        // Keeps the time of the first wake-up, not of the last.
        let _ = self.since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Counts a call. Returns true if the task has been ready for too long, or if, after many calls, the sockets have
    /// gone unchecked for too long: then the runtime may not have checked I/O.
    pub(super) fn is_late(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let since = self.since.load(Ordering::Acquire);
        if since == 0 && calls < BUSY_RUNTIME_CALLS {
            return false;
        }
        let from = since.max(self.polled_at.load(Ordering::Relaxed));
        self.clock.now().since(Instant::from_nanos(from)) > LATE_THRESHOLD
    }

    /// Records that all sockets were checked.
    pub(super) fn record_sockets_checked(&self) {
        self.polled_at.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }

    /// Records that the task is being polled.
    pub(super) fn record_polled(&self) {
        self.since.store(0, Ordering::Release);
        self.record_sockets_checked();
    }
}

/// Waker that records the time at which the shard's task becomes ready.
struct ReadyTime {
    readiness: Arc<Readiness>,
    task: Waker,
}

impl Wake for ReadyTime {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.readiness.record_wakeup();
        self.task.wake_by_ref();
    }
}

/// Cached [`ReadyTime`] waker of a shard's task. It is replaced only if the runtime's waker changes.
#[derive(Default)]
pub(super) struct ReadyTimeWaker(Option<(Waker, Waker)>);

impl ReadyTimeWaker {
    pub(super) fn of(&mut self, readiness: &Arc<Readiness>, task: &Waker) -> Waker {
        match &self.0 {
            Some((known, noting)) if known.will_wake(task) => noting.clone(),
            _ => {
                let (readiness, task) = (Arc::clone(readiness), task.clone());
                let noting = Waker::from(Arc::new(ReadyTime { readiness, task: task.clone() }));
                self.0 = Some((task, noting.clone()));
                noting
            }
        }
    }
}

/// Receiving half of a shard.
pub(super) struct ReceivingHalf {
    reception: Mutex<Reception>,
    readiness: Arc<Readiness>,
}

impl ReceivingHalf {
    pub(super) fn new(kind: CarrierKind, clock: Clock) -> ReceivingHalf {
        let readiness = Arc::new(Readiness::new(clock));
        ReceivingHalf { reception: Mutex::new(Reception::new(kind)), readiness }
    }

    pub(super) const fn readiness(&self) -> &Arc<Readiness> {
        &self.readiness
    }

    /// Locks the receiving half. Lock it before the state, never while the state is locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, Reception> {
        self.reception.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Reception>> {
        match self.reception.try_lock() {
            Ok(reception) => Some(reception),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Maximum number of messages per system call.
const MESSAGES: usize = 8;
/// Maximum length of a message that the kernel coalesces, in bytes.
const MESSAGE_BYTES: usize = 64 << 10;

/// Receive buffer for the shard's kind of sockets.
pub(super) enum ReceiveBuffer {
    Udp(Box<UdpBuffer>),
    Raw(RawBuffer),
    Tun(TunBuffer),
}

/// Receive buffer for a TUN interface.
pub(super) struct TunBuffer {
    bytes: Box<[u8]>,
    lengths: Vec<usize>,
    /// True if packets start with a virtio header.
    offloads: bool,
}

/// Maximum length of a packet with its virtio header.
const TUN_PACKET_BYTES: usize = MESSAGE_BYTES + VirtioHeader::LEN;

/// Receive buffer for UDP datagrams.
pub(super) struct UdpBuffer {
    bytes: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
    messages: usize,
}

impl ReceiveBuffer {
    pub(super) fn new(kind: CarrierKind) -> Self {
        match kind {
            CarrierKind::Udp { .. } => ReceiveBuffer::udp(),
            CarrierKind::Raw => ReceiveBuffer::Raw(RawBuffer::new()),
            CarrierKind::Tun | CarrierKind::Gateway => ReceiveBuffer::Tun(TunBuffer {
                bytes: vec![0; MESSAGES * TUN_PACKET_BYTES].into_boxed_slice(),
                lengths: Vec::with_capacity(MESSAGES),
                offloads: false,
            }),
        }
    }

    fn udp() -> Self {
        ReceiveBuffer::Udp(Box::new(UdpBuffer {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice(),
            metas: [RecvMeta::default(); MESSAGES],
            messages: 0,
        }))
    }

    /// Passes on datagrams that belong to other processes.
    pub(super) fn keep_own_datagrams(&mut self, older: &OlderProcesses, bound: SocketAddr) {
        if let ReceiveBuffer::Udp(buffer) = self {
            buffer.keep_own_datagrams(older, bound);
        }
    }

    /// Receives available packets. Returns true if the socket is now empty.
    pub(super) fn receive(&mut self, socket: &Sock) -> io::Result<bool> {
        match (self, &socket.kind) {
            (ReceiveBuffer::Udp(buffer), Kind::Udp(udp)) => {
                buffer.receive(UdpSockRef::from(&socket.as_fd()), udp)
            }
            (ReceiveBuffer::Raw(buffer), Kind::Raw(_)) => {
                Ok(buffer.receive(socket.as_fd())? < raw_packet::MESSAGES)
            }
            (ReceiveBuffer::Tun(buffer), Kind::Tun) => buffer.receive(socket.as_fd(), false),
            (ReceiveBuffer::Tun(buffer), Kind::Gateway { offloads }) => {
                buffer.receive(socket.as_fd(), *offloads)
            }
            _ => unreachable!("all sockets of a shard have the same kind"),
        }
    }
}

impl TunBuffer {
    fn receive(&mut self, tun: BorrowedFd<'_>, offloads: bool) -> io::Result<bool> {
        self.lengths.clear();
        self.offloads = offloads;
        for chunk in self.bytes.chunks_mut(TUN_PACKET_BYTES) {
            match rustix::io::read(tun, &mut *chunk) {
                Ok(len) if offloads => {
                    finish_checksum(&mut chunk[..len]);
                    self.lengths.push(len);
                }
                Ok(len) => self.lengths.push(len),
                // Packets that have already arrived are processed first.
                Err(_) if !self.lengths.is_empty() => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    pub(super) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let header = if self.offloads { VirtioHeader::LEN } else { 0 };
        let chunks = self.bytes.chunks(TUN_PACKET_BYTES);
        let packets = self.lengths.iter().zip(chunks).map(|(len, bytes)| &bytes[..*len]);
        // A read shorter than the header contains no packet.
        packets.map(move |packet| packet.get(header..).unwrap_or_default())
    }
}

/// Completes a checksum that the kernel left incomplete. A TCP checksum remains as it is: the packet has not crossed a
/// network and may be 64 kB long.
fn finish_checksum(bytes: &mut [u8]) {
    let Some((header, packet)) = bytes.split_first_chunk_mut::<{ VirtioHeader::LEN }>() else {
        return;
    };
    let Some((start, field)) = VirtioHeader::checksum_range(header) else { return };
    if native::parse_tcp(packet).is_some() {
        return;
    }
    let Some(covered) = packet.get(start..) else { return };
    let checksum = match Checksum::of(covered).finish() {
        // A UDP checksum of 0 means that there is none.
        0 => u16::MAX,
        sum => sum,
    };
    if let Some(place) = packet.get_mut(field..field + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

impl UdpBuffer {
    fn receive(&mut self, socket: UdpSockRef<'_>, udp: &UdpKind) -> io::Result<bool> {
        let mut chunks = self.bytes.chunks_mut(MESSAGE_BYTES);
        let mut slices: [IoSliceMut<'_>; MESSAGES] =
            core::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        self.messages = 0;
        self.messages = udp.state.recv(socket, &mut slices, &mut self.metas)?;
        Ok(self.messages < MESSAGES)
    }

    /// Passes on datagrams of other processes and keeps the rest.
    fn keep_own_datagrams(&mut self, older: &OlderProcesses, bound: SocketAddr) {
        let messages = self.metas.iter_mut().zip(self.bytes.chunks_mut(MESSAGE_BYTES));
        for (meta, bytes) in messages.take(self.messages) {
            let stride = meta.stride.clamp(1, usize::from(u16::MAX));
            let from = ForwardedOrigin {
                bound,
                local: local_ip(meta.dst_ip, bound),
                remote: canonical_address(meta.addr),
                ecn: ecn_of(meta.ecn),
                stride: stride as u16,
            };
            let run = bytes.get(..meta.len).unwrap_or_default();
            if let Some(ours) = older.keep_own_datagrams(&from, run) {
                meta.len = ours.len();
                bytes[..ours.len()].copy_from_slice(&ours);
            }
        }
    }

    /// Returns the messages of a batch: metadata and bytes.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&RecvMeta, &[u8])> {
        self.metas.iter().zip(self.bytes.chunks(MESSAGE_BYTES)).take(self.messages)
    }
}

pub(super) fn local_ip(destination: Option<IpAddr>, bound: SocketAddr) -> IpAddr {
    if bound.ip().is_unspecified() { destination.unwrap_or(bound.ip()) } else { bound.ip() }
}
