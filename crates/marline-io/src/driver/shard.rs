//! A shard: endpoint, carrier and sockets behind one mutex, and what happens whenever it was
//! touched: send, set the timer, tell who waits.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use marline_core::{
    ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, Endpoint, EndpointConfig, Limits,
    MonitorEvent, Oracle, TransmitBuf,
};
use marline_time::Instant;
use tokio::sync::{broadcast, mpsc};

use super::accept::AcceptQueue;
use super::carrier::Carrier;
use super::connections::{Slot, Slots, wake};
use super::radios::Radios;
use super::socket::{Kind, Sock, SocketOptions, StalledQueue};
use super::stream::Stream;
use super::{error_watch, task};
use crate::capture::Captures;
use crate::carrier::{CarrierConfig, CarrierCounters, UdpCarrier};
use crate::clock::Clock;
use crate::native::NativeCarrier;
use crate::random::SecretRng;
use crate::sys::timer::FineTimer;
use crate::tap::SegmentLog;

/// Datagrams of one batch: what fits the 64 KiB of a GSO send.
const BATCH_DATAGRAMS: usize = 44;
/// Datagrams handed over by other shards that may wait.
const HANDOVER_CAPACITY: usize = 1_024;

/// How the segments of a shard travel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CarrierKind {
    /// In UDP datagrams.
    Udp {
        /// Silence after which a flow we opened sends a keepalive.
        keepalive: marline_time::Duration,
    },
    /// In IP packets, on raw sockets.
    Raw,
    /// In IP packets, on TUN interfaces.
    Tun,
}

/// How a shard is set up.
#[derive(Debug)]
pub struct ShardConfig {
    /// How its segments travel.
    pub carrier: CarrierKind,
    /// Which part of the id space is its own.
    pub shard: marline_core::Shard,
    /// Accept connections, with this configuration.
    pub accept: Option<ConnectionConfig>,
    /// Bounds of the endpoint.
    pub limits: Limits,
    /// Where incoming connections wait.
    pub queue: Option<Arc<AcceptQueue>>,
    /// Who hears of monitor events, if anybody.
    pub monitor: Option<broadcast::Sender<MonitorEvent>>,
    /// Where packets are written to, if anywhere.
    pub capture: Option<Captures>,
    /// Where segments are noted, if anywhere.
    pub tap: Option<SegmentLog>,
}

/// Why a connection could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The core refused.
    Core(ConnectError),
    /// The driver has stopped.
    Stopped,
}

/// A datagram for another shard.
#[derive(Debug)]
pub(super) struct Handover {
    pub(super) outer: crate::carrier::Outer,
    pub(super) ecn: marline_core::Ecn,
    pub(super) bytes: Vec<u8>,
}

/// An open socket and what waits for it.
#[derive(Debug)]
pub(super) struct SocketEntry {
    pub(super) socket: Arc<Sock>,
    pub(super) stalled: StalledQueue,
    _error_watch: Option<error_watch::ErrorWatch>,
}

/// The second transmit buffer: while one is lent out for sending, the other stands in.
pub(super) struct Spare {
    buffer: Option<TransmitBuf>,
    headroom: usize,
}

impl Spare {
    pub(super) fn take(&mut self) -> TransmitBuf {
        self.buffer.take().unwrap_or_else(|| TransmitBuf::new(self.headroom, BATCH_DATAGRAMS))
    }
    pub(super) fn give_back(&mut self, buffer: TransmitBuf) {
        self.buffer = Some(buffer);
    }
}

/// What the mutex guards.
pub(super) struct State {
    pub(super) endpoint: Endpoint,
    pub(super) carrier: Carrier,
    pub(super) sockets: Vec<Option<SocketEntry>>,
    pub(super) slots: Slots,
    pub(super) out: TransmitBuf,
    pub(super) spare: Spare,
    pub(super) scratch: Vec<u8>,
    pub(super) stall_retry_at: Option<Instant>,
    pub(super) armed: Option<Instant>,
    pub(super) capture: Option<Captures>,
    pub(super) radios: Radios,
    pub(super) tap: Option<SegmentLog>,
    pub(super) driver: Option<Waker>,
    /// The set of sockets changed: the task must look.
    pub(super) sockets_changed: bool,
    /// The task is gone.
    pub(super) stopped: bool,
    pub(super) queue: Option<Arc<AcceptQueue>>,
    pub(super) monitor: Option<broadcast::Sender<MonitorEvent>>,
}

/// One endpoint with its carrier and sockets.
pub struct Shard {
    state: Mutex<State>,
    pub(super) timer: FineTimer,
    pub(super) clock: Clock,
    pub(super) inbox: mpsc::Sender<Handover>,
    pub(super) peers: OnceLock<Vec<mpsc::Sender<Handover>>>,
    /// Nobody holds the shard any more: it ends when its connections have.
    pub(super) orphaned: AtomicBool,
    index: u8,
    handle: OnceLock<std::sync::Weak<ShardHandle>>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Keeps a shard running: while one exists, the task goes on; afterwards it ends as soon as the
/// remaining connections have closed.
#[derive(Debug)]
pub struct ShardHandle {
    shard: Arc<Shard>,
}

impl Drop for ShardHandle {
    fn drop(&mut self) {
        // The last one may go while its shard is locked: no lock here, the timer wakes the task.
        self.shard.orphaned.store(true, Ordering::Release);
        if let Err(error) = self.shard.timer.set(marline_time::Duration::ZERO) {
            tracing::error!(%error, "cannot wake the network driver");
        }
    }
}

impl core::ops::Deref for ShardHandle {
    type Target = Shard;
    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl Shard {
    /// Starts a shard: its task runs on the current tokio runtime, which needs I/O and time.
    ///
    /// # Errors
    /// No randomness, or no timer.
    pub fn start(config: ShardConfig) -> io::Result<Arc<ShardHandle>> {
        let mut rng = SecretRng::from_os()?;
        let carrier = match config.carrier {
            CarrierKind::Udp { keepalive } => {
                Carrier::Udp(Box::new(UdpCarrier::new(CarrierConfig {
                    shard: config.shard,
                    accept: config.accept.is_some(),
                    max_flows: config.limits.connections.saturating_mul(2),
                    keepalive,
                    secret: rng.key(),
                })))
            }
            CarrierKind::Raw => Carrier::Native(Box::new(NativeCarrier::raw())),
            CarrierKind::Tun => {
                Carrier::Native(Box::new(NativeCarrier::tun(config.accept.is_some())))
            }
        };
        let headroom = carrier.headroom();
        let endpoint = Endpoint::new(
            EndpointConfig {
                capabilities: carrier.capabilities(),
                limits: config.limits,
                shard: config.shard,
                accept: config.accept,
                monitor: config.monitor.is_some(),
            },
            Box::new(rng),
        );
        let mut capture = config.capture;
        if let (Carrier::Native(_), Some(capture)) = (&carrier, &mut capture) {
            capture.set_native();
        }
        let state = State {
            endpoint,
            carrier,
            sockets: Vec::new(),
            slots: Slots::default(),
            out: TransmitBuf::new(headroom, BATCH_DATAGRAMS),
            spare: Spare { buffer: None, headroom },
            scratch: Vec::new(),
            stall_retry_at: None,
            armed: None,
            capture,
            radios: Radios::default(),
            tap: config.tap,
            driver: None,
            sockets_changed: true,
            stopped: false,
            queue: config.queue,
            monitor: config.monitor,
        };
        let (inbox, handed_over) = mpsc::channel(HANDOVER_CAPACITY);
        let shard = Arc::new(Shard {
            state: Mutex::new(state),
            timer: FineTimer::new()?,
            clock: Clock::start(),
            inbox,
            peers: OnceLock::new(),
            orphaned: AtomicBool::new(false),
            index: config.shard.index,
            handle: OnceLock::new(),
        });
        let handle = Arc::new(ShardHandle { shard: Arc::clone(&shard) });
        // Set once, here.
        let _ = shard.handle.set(Arc::downgrade(&handle));
        tokio::spawn(task::run(shard, config.carrier, handed_over));
        Ok(handle)
    }

    /// Its connections take part in this oracle from now on.
    pub fn set_oracle(&self, oracle: Oracle) {
        self.lock().endpoint.set_oracle(oracle);
    }

    /// Tells shards that share ports of each other.
    pub fn introduce(shards: &[Arc<ShardHandle>]) {
        let inboxes: Vec<_> = shards.iter().map(|shard| shard.inbox.clone()).collect();
        for shard in shards {
            let _ = shard.peers.set(inboxes.clone());
        }
    }

    /// A handle, if anybody still holds one.
    pub(super) fn handle(&self) -> Option<Arc<ShardHandle>> {
        self.handle.get().and_then(std::sync::Weak::upgrade)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a socket at the next free index, or at the index of one that was closed. On native
    /// carriers, whose sockets serve all addresses, this only notes the address' interface.
    ///
    /// # Errors
    /// The system's.
    pub fn open_socket(&self, options: SocketOptions) -> io::Result<SocketAddr> {
        if let (Some((_, index)), Some(oracle)) =
            (&options.interface, self.lock().endpoint.oracle())
        {
            oracle.set_interface(options.local.ip(), *index);
        }
        if self.lock().carrier.is_native() {
            let interface = options.interface.map_or(0, |(_, index)| index);
            self.set_interface(options.local.ip(), Some(interface));
            return Ok(options.local);
        }
        self.add_socket(Sock::udp(options)?)
    }

    pub(super) fn add_socket(&self, socket: Sock) -> io::Result<SocketAddr> {
        let socket = Arc::new(socket);
        let local = socket.local;
        let handle = self.handle().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let watched = socket.has_errors();
        let _error_watch = watched.then(|| error_watch::ErrorWatch::start(&handle.shard, &socket));
        let mut state = self.lock();
        let index = match state.sockets.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                state.sockets.push(None);
                state.sockets.len() - 1
            }
        };
        let stalled = StalledQueue::default();
        state.sockets[index] = Some(SocketEntry { socket, stalled, _error_watch });
        state.carrier.set_socket(index, Some(local));
        state.sockets_changed = true;
        wake(state.driver.take());
        Ok(local)
    }

    /// Tells the raw sockets of an address and its interface.
    fn set_interface(&self, local: IpAddr, interface: Option<u32>) {
        for entry in self.lock().sockets.iter().flatten() {
            if let Kind::Raw(raw) = &entry.socket.kind {
                raw.set_interface(local, interface);
            }
        }
    }

    /// Closes the socket bound to this address.
    pub fn close_socket(&self, local: IpAddr) {
        self.set_interface(local, None);
        let mut state = self.lock();
        let found = |entry: &Option<SocketEntry>| {
            entry.as_ref().is_some_and(|entry| entry.socket.local.ip() == local)
        };
        if let Some(index) = state.sockets.iter().position(found) {
            state.sockets[index] = None;
            state.carrier.set_socket(index, None);
            state.sockets_changed = true;
            wake(state.driver.take());
        }
    }

    /// The bound addresses of its sockets.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.lock().sockets.iter().flatten().map(|entry| entry.socket.local).collect()
    }

    /// Lets the kernel spread datagrams over all shards whose sockets share this one's ports.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn spread_over(&self, shards: u8) -> io::Result<()> {
        for entry in self.lock().sockets.iter().flatten() {
            crate::sys::socket::spread_by_flow_id(entry.socket.as_fd(), shards)?;
        }
        Ok(())
    }

    /// Runs a command on the endpoint, and then sends, sets the timer and tells who waits.
    pub fn with_endpoint<R>(&self, command: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        let now = self.clock.now();
        let mut state = self.lock();
        let result = command(&mut state.endpoint, now);
        self.serve(&mut state, now);
        result
    }

    /// Pictures of all connections; ids carry the shard in their top byte.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let state = self.lock();
        let ids = state.endpoint.connections();
        let mut infos: Vec<_> = ids.iter().filter_map(|id| state.endpoint.info(*id)).collect();
        for info in &mut infos {
            info.id = self.public_id(info.id);
        }
        infos
    }

    /// Waits until all connections have closed, or as long as `patience`. `true`: they have.
    pub async fn drained(&self, patience: marline_time::Duration) -> bool {
        const LOOK_EVERY: marline_time::Duration = marline_time::Duration::from_millis(5);
        let deadline = self.clock.now() + patience;
        loop {
            if self.lock().endpoint.connections().is_empty() {
                return true;
            }
            if self.clock.now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Counts of the core and of the carrier.
    pub fn counters(&self) -> (marline_core::Counters, CarrierCounters) {
        let state = self.lock();
        (state.endpoint.counters(), state.carrier.counters())
    }

    /// The id by which applications know a connection: unique over all shards.
    pub(super) fn public_id(&self, id: ConnectionId) -> ConnectionId {
        ConnectionId(id.0 | u64::from(self.index) << 56)
    }

    /// The shard's index and its own id of a connection.
    #[must_use]
    pub fn split_id(id: ConnectionId) -> (u8, ConnectionId) {
        ((id.0 >> 56) as u8, ConnectionId(id.0 & (u64::MAX >> 8)))
    }

    /// Opens a connection; [`Stream::connected`] waits for the handshake.
    ///
    /// # Errors
    /// The core refuses, or the driver has stopped.
    pub fn connect(
        &self,
        config: ConnectionConfig,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<Stream, StartError> {
        let handle = self.handle().ok_or(StartError::Stopped)?;
        let now = self.clock.now();
        let mut state = self.lock();
        if state.stopped {
            return Err(StartError::Stopped);
        }
        let local = SocketAddr::new(local, 0);
        let id = state.connect(now, config, local, remote).map_err(StartError::Core)?;
        state.slots.insert(id, Slot::default());
        self.serve(&mut state, now);
        Ok(Stream::new(handle, id, remote))
    }

    /// To be called after anything touched the endpoint: sends, sets the timer, tells who waits.
    /// `true` if somebody was woken.
    pub(super) fn serve(&self, state: &mut State, now: Instant) -> bool {
        if state.transmit(now) {
            wake(state.driver.take());
        }
        state.see_to_ports();
        let woken = self.tell(state, now);
        self.arm(state, now);
        woken
    }

    /// Sets the timer, if it is not set to an earlier time already: deadlines mostly move away,
    /// and waking once too often is cheaper than a system call each time.
    pub(super) fn arm(&self, state: &mut State, now: Instant) {
        let candidates =
            [state.endpoint.poll_timeout(), state.carrier.next_timeout(), state.stall_retry_at];
        let Some(next) = candidates.into_iter().flatten().min() else { return };
        if state.armed.is_some_and(|armed| armed <= next) {
            return;
        }
        match self.timer.set(next.since(now)) {
            Ok(()) => state.armed = Some(next),
            Err(error) => tracing::error!(%error, "cannot set the timer"),
        }
    }
}
