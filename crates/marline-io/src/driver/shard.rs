//! Shard: endpoint, carrier and sockets behind one mutex, and the operations that applications use. `driving.rs` does
//! the work due after every access.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use marline_core::{
    ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, Ecn, Limits, MonitorEvent,
    PathHealthMonitor, PathQueues,
};
use marline_time::{DelayHistogram, Duration, Instant};
use tokio::sync::{Notify, broadcast, mpsc};

use super::carrier::{Carrier, CarrierKind};
use super::observers::{ObservedPath, SharedEventObserver, SharedObserver};
use super::reception::ReceivingHalf;
use super::routing::Links;
use super::sockets::{Sock, SocketOptions};
use super::state::State;
use super::streams::AcceptQueue;
use crate::capture::Captures;
use crate::carrier::{CarrierCounters, FlowEnds, Outer};
use crate::clock::{Alarm, Clock};
use crate::contacts::Contact;
use crate::native::RawSockets;
use crate::random::ResetSeed;
use crate::succession::NativePart;
use crate::sys::timer::FineTimer;
use crate::tap::SegmentLog;

/// Configuration of a shard.
#[derive(Debug)]
pub struct ShardConfig {
    /// Kind of carrier.
    pub carrier: CarrierKind,
    /// Part of the id space that this shard owns.
    pub shard: marline_core::Shard,
    /// Seed of the UDP carrier's RESET tokens; `None` for a random one.
    pub reset_seed: Option<ResetSeed>,
    /// Configuration of accepted connections; `None` to accept none.
    pub accept: Option<ConnectionConfig>,
    /// Limits on the endpoint's resources.
    pub limits: Limits,
    /// Queue of incoming connections.
    pub queue: Option<Arc<AcceptQueue>>,
    /// Receivers of monitor events, if any.
    pub monitor: Option<broadcast::Sender<MonitorEvent>>,
    /// Capture files, if any.
    pub capture: Option<Captures>,
    /// Segment log, if any.
    pub tap: Option<SegmentLog>,
    /// Links of this shard and of those that share its ports.
    pub links: Arc<Links>,
    /// Additional observers of segments.
    pub observers: Vec<SharedObserver>,
    /// Observer of all events and all traffic, if any.
    pub events: Option<SharedEventObserver>,
    /// Time for busy polling after each exchange, at most [`MAX_BUSY_POLL`](super::MAX_BUSY_POLL); zero disables it.
    pub busy_poll: Duration,
}

/// Reason why a connection could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The core refused the connection.
    Core(ConnectError),
    /// The driver has stopped.
    Stopped,
}

/// Datagram for another shard.
#[derive(Debug)]
pub(super) struct Handover {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

/// One endpoint with its carrier and sockets.
pub struct Shard {
    state: Mutex<State>,
    timer: FineTimer,
    clock: Clock,
    /// Time at which the timer fires.
    alarm: Alarm,
    links: Arc<Links>,
    receiving: ReceivingHalf,
    inbox: mpsc::Sender<Handover>,
    peers: OnceLock<Vec<mpsc::Sender<Handover>>>,
    /// All shards that share the ports, including this one.
    siblings: OnceLock<Vec<Weak<Shard>>>,
    /// True once the last handle is dropped. The shard ends after its connections.
    orphaned: AtomicBool,
    index: u8,
    handle: OnceLock<Weak<ShardHandle>>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Handle that keeps a shard running. When the last handle is dropped, the task ends as soon as the remaining
/// connections have closed.
#[derive(Debug)]
pub struct ShardHandle {
    shard: Arc<Shard>,
}

impl Drop for ShardHandle {
    fn drop(&mut self) {
        // The last handle may be dropped while the shard is locked, so this must not lock it. The timer wakes the task.
        self.shard.orphaned.store(true, Ordering::Release);
        if let Err(error) = self.shard.timer.set(marline_time::Duration::ZERO) {
            tracing::error!(%error, "cannot wake the network driver");
        }
        // Sibling shards may be waiting for this one to end.
        let siblings = self.shard.siblings.get().into_iter().flatten();
        for sibling in siblings.filter_map(Weak::upgrade) {
            let _ = sibling.timer.set(marline_time::Duration::ZERO);
        }
    }
}

impl ShardHandle {
    /// Creates a shard whose task is not yet running, and a handle to it.
    pub(super) fn new(
        links: Arc<Links>,
        state: State,
        kind: CarrierKind,
        index: u8,
        inbox: mpsc::Sender<Handover>,
    ) -> std::io::Result<Arc<Self>> {
        let clock = Clock::start();
        let shard = Arc::new(Shard {
            links,
            state: Mutex::new(state),
            timer: FineTimer::new()?,
            clock,
            alarm: Alarm::new(),
            receiving: ReceivingHalf::new(kind, clock),
            inbox,
            peers: OnceLock::new(),
            siblings: OnceLock::new(),
            orphaned: AtomicBool::new(false),
            index,
            handle: OnceLock::new(),
        });
        let handle = Arc::new(ShardHandle { shard });
        // This is set only here, so an error cannot occur.
        let _ = handle.shard.handle.set(Arc::downgrade(&handle));
        Ok(handle)
    }
}

impl core::ops::Deref for ShardHandle {
    type Target = Shard;
    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl ShardHandle {
    pub(super) const fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Returns a reference to the shard that does not keep it running.
    pub(crate) fn downgrade(&self) -> Weak<Shard> {
        Arc::downgrade(&self.shard)
    }
}

/// Access and observation.
impl Shard {
    /// Registers the shard's connections with this path health monitor.
    pub fn set_path_health_monitor(&self, monitor: PathHealthMonitor) {
        self.lock().endpoint().set_path_health_monitor(monitor);
    }

    /// Shares the queues of paths with other shards of the process.
    pub fn set_path_queues(&self, queues: PathQueues) {
        self.lock().endpoint().set_path_queues(queues);
    }

    /// Replaces the capture files of the shard; `None` stops capturing.
    pub fn set_captures(&self, mut captures: Option<Captures>) {
        let mut state = self.lock();
        if let (Carrier::Native(_), Some(captures)) = (state.carrier(), &mut captures) {
            captures.set_native();
        }
        state.observers().set_captures(captures);
    }

    /// Replaces the event observer; `None` removes it. It receives monitor events only if the shard was started with
    /// receivers or an observer of them.
    pub fn set_event_observer(&self, observer: Option<SharedEventObserver>) {
        let mut state = self.lock();
        let before = state.observers().set_event_observer(observer);
        state.update_traffic_filter();
        drop(state);
        // Dropping the last reference may write buffered data, so it happens after unlocking.
        drop(before);
    }

    /// Sends scheduler decisions and their reasons to these subscribers. They are separate from other monitor events,
    /// which would be lost among many decisions. This ends when no subscriber is left.
    pub fn report_decisions(&self, listeners: broadcast::Sender<MonitorEvent>) {
        let mut state = self.lock();
        state.observers().set_decision_listeners(listeners);
        state.endpoint().report_decisions(true);
    }

    /// Sends traffic events of one connection of this shard to these subscribers. This ends when no subscriber is left
    /// or another connection is selected.
    pub fn report_traffic(&self, of: ConnectionId, listeners: broadcast::Sender<MonitorEvent>) {
        let (_, of) = Shard::split_id(of);
        let mut state = self.lock();
        state.observers().set_traffic_listeners(of, listeners);
        state.update_traffic_filter();
    }

    /// Connects shards that share ports.
    pub fn connect_shards(shards: &[Arc<ShardHandle>]) {
        let inboxes: Vec<_> = shards.iter().map(|shard| shard.inbox.clone()).collect();
        let siblings: Vec<_> = shards.iter().map(|shard| shard.downgrade()).collect();
        for shard in shards {
            let _ = shard.peers.set(inboxes.clone());
            let _ = shard.siblings.set(siblings.clone());
        }
    }

    /// Returns a handle, if one still exists.
    pub(super) fn handle(&self) -> Option<Arc<ShardHandle>> {
        self.handle.get().and_then(std::sync::Weak::upgrade)
    }

    /// Locks the state. Read the clock only afterward: if two threads read it and then waited for the lock, time could
    /// run backward for the core. The latest packet would appear to have been sent first and to be lost.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock, for work with the locked state. If the process did not run for some time, endpoint and lanes
    /// are notified before they handle anything that arrived in the meantime.
    pub(super) fn now(&self, state: &mut State) -> Instant {
        let now = self.clock.now();
        state.record_pauses(self.clock.pauses());
        now
    }

    /// Returns the clock of the shard.
    pub(super) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Links of this shard and of those that share its ports.
    pub(super) const fn links(&self) -> &Arc<Links> {
        &self.links
    }

    pub(super) const fn timer(&self) -> &FineTimer {
        &self.timer
    }

    /// Returns the alarm: the time at which the timer fires.
    pub(super) const fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    pub(super) const fn receiving(&self) -> &ReceivingHalf {
        &self.receiving
    }

    /// Returns the inboxes of all shards that share the ports, by index.
    pub(super) fn peers(&self) -> &[mpsc::Sender<Handover>] {
        self.peers.get().map_or(&[], Vec::as_slice)
    }

    /// Returns all shards that share the ports, including this one.
    pub(super) fn port_shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Returns the shard with this index among those that share the ports.
    pub(super) fn port_shard(&self, index: u8) -> Option<Arc<Shard>> {
        self.siblings.get()?.get(usize::from(index))?.upgrade()
    }

    /// Returns true if the last handle was dropped.
    pub(super) fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }

    /// Returns snapshots of all connections. The ids contain the shard in their top byte.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let mut state = self.lock();
        let ids = state.endpoint().connections();
        let mut infos: Vec<_> = ids.iter().filter_map(|id| state.endpoint().info(*id)).collect();
        for info in &mut infos {
            info.id = self.public_id(info.id);
        }
        infos
    }

    /// Waits at most `patience` until all connections have closed. Returns true if they have.
    pub async fn drained(&self, patience: marline_time::Duration) -> bool {
        const CHECK_INTERVAL: marline_time::Duration = marline_time::Duration::from_millis(5);
        let deadline = self.clock.now() + patience;
        loop {
            if self.lock().endpoint().connections().is_empty() {
                return true;
            }
            if self.clock.now() >= deadline {
                return false;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Returns the counters of the core and of the carrier.
    pub fn counters(&self) -> (marline_core::Counters, CarrierCounters) {
        let mut state = self.lock();
        let mut carrier = state.carrier().counters();
        if self.index == 0 {
            self.links.add_to(&mut carrier);
        }
        (state.endpoint().counters(), carrier)
    }

    /// Returns the histogram of the time from a write to its DATA_ACK
    /// ([`Endpoint::delivery_delays`](marline_core::Endpoint::delivery_delays)).
    pub fn delivery_delays(&self) -> DelayHistogram {
        self.lock().endpoint().delivery_delays()
    }

    /// Returns the public id of a connection, which is unique across all shards.
    pub(super) fn public_id(&self, id: ConnectionId) -> ConnectionId {
        ConnectionId(id.0 | u64::from(self.index) << 56)
    }

    /// Splits a public id into the shard's index and the id within the shard.
    #[must_use]
    pub fn split_id(id: ConnectionId) -> (u8, ConnectionId) {
        ((id.0 >> 56) as u8, ConnectionId(id.0 & (u64::MAX >> 8)))
    }

    /// Reports the current state of a path to the observers.
    pub fn show_path(&self, path: &ObservedPath<'_>) {
        let now = self.clock.now();
        self.lock().observers().show_path(now, path);
    }

    /// Returns the current time of the shard's clock, and the contacts with each peer. A shard that accepts connections
    /// has no contacts.
    pub fn contacts(&self) -> (Instant, Vec<Contact>) {
        let now = self.clock.now();
        (now, self.lock().observers().contacts().all())
    }

    /// Returns the ends of each established subflow that is degraded or unreachable.
    #[must_use]
    pub fn impaired_paths(&self) -> Vec<FlowEnds> {
        let impaired = self.lock().endpoint().impaired_paths();
        impaired.into_iter().map(|path| FlowEnds::new(path.local.ip(), path.remote)).collect()
    }

    /// Records that nothing was sent because there is no route from `local` to `remote`.
    pub fn record_unroutable(&self, local: IpAddr, remote: SocketAddr, error: &io::Error) {
        let now = self.clock.now();
        let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
        self.lock().observers().contacts().on_unroutable(now, local, remote, errno);
    }

    /// Requests one notification: the next change of a contact (an unanswered packet, an error report, or a late
    /// answer) wakes the waiter. Later changes are not reported until this is called again.
    pub fn await_contacts(&self) -> Arc<Notify> {
        self.lock().observers().contacts().await_contact_change()
    }
}

/// Sockets.
impl Shard {
    /// Opens a socket at the next free index, or at the index of a closed one. For native carriers, whose sockets serve
    /// all addresses, this only records the interface of the address.
    ///
    /// # Errors
    /// Fails if the socket cannot be opened or bound.
    pub fn open_socket(&self, options: SocketOptions) -> io::Result<SocketAddr> {
        if let (Some((_, index)), Some(monitor)) =
            (&options.interface, self.lock().endpoint().path_health_monitor())
        {
            monitor.set_interface(options.alias.unwrap_or(options.local.ip()), *index);
        }
        if self.lock().carrier().is_native() {
            if options.alias.is_some() {
                // The segments contain the address, which is all that distinguishes the paths.
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "another interface has the same address; only the carriers auto, udp and tcp can use both",
                ));
            }
            let interface = options.interface.map_or(0, |(_, index)| index);
            self.lock().sockets().set_interface(options.local.ip(), Some(interface));
            return Ok(options.local);
        }
        self.add_socket(Sock::udp(options)?)
    }

    /// Closes the socket bound to this address.
    pub fn close_socket(&self, local: IpAddr) {
        let mut state = self.lock();
        state.sockets().set_interface(local, None);
        state.observers().contacts().forget(local);
        state.routing().routes().forget(local);
        if let Some(index) = state.sockets().close(local) {
            state.carrier().set_socket(index, None);
            state.wakeups().wake_task();
        }
    }

    /// Returns the local addresses of the sockets.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.lock().sockets().iter().map(|socket| socket.local).collect()
    }

    /// Makes the kernel distribute datagrams among all shards that share the ports.
    ///
    /// # Errors
    /// Fails if the kernel rejects the BPF program.
    pub fn distribute_over_shards(&self, shards: u8) -> io::Result<()> {
        for socket in self.lock().sockets().iter() {
            crate::sys::socket::spread_by_flow_id(socket.as_fd(), shards)?;
        }
        Ok(())
    }

    /// Makes the shard open sockets without reading them until [`begin_receiving`](Self::begin_receiving).
    pub fn defer_receiving(&self) {
        self.lock().sockets().set_receiving(false);
    }

    /// Starts receiving.
    pub fn begin_receiving(&self) {
        let mut state = self.lock();
        state.sockets().begin_receiving();
        state.wakeups().wake_task();
    }

    /// Stops answering packets that may belong to another process.
    pub(super) fn ignore_unknown(&self) {
        match self.lock().carrier() {
            Carrier::Udp(carrier) => carrier.ignore_foreign_ids(),
            Carrier::Native(carrier) => carrier.ignore_unknown(),
        }
    }

    /// Duplicates the descriptors of a native carrier. Returns nothing for other carriers.
    ///
    /// # Errors
    /// Fails if no file descriptors are left.
    pub fn copy_native(&self) -> io::Result<Vec<(NativePart, SocketAddr, OwnedFd)>> {
        self.lock().copy_native()
    }

    /// Duplicates the sockets for combined packets, each with its name.
    ///
    /// # Errors
    /// Fails if no file descriptors are left.
    pub fn copy_offload(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        self.lock().sockets().copy_offload()
    }

    /// Duplicates the descriptors of this shard's UDP sockets.
    ///
    /// # Errors
    /// Fails if no file descriptors are left.
    pub fn copy_sockets(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        self.lock().sockets().copy_udp()
    }
}

/// Native carriers: raw sockets, guards, and local ports.
impl Shard {
    /// Takes over raw sockets and the ports reserved with them.
    ///
    /// # Errors
    /// Fails if the sockets are already in use or the kernel refuses.
    pub fn use_raw(&self, sockets: &RawSockets) -> io::Result<()> {
        Shard::share_raw(&[self], sockets)
    }

    /// Takes over raw sockets for all shards of a listener.
    ///
    /// # Errors
    /// See [`use_raw`](Self::use_raw). Also fails if the sockets are for a different number of shards.
    pub fn share_raw(shards: &[&Shard], sockets: &RawSockets) -> io::Result<()> {
        let opened = sockets.take(shards.len())?;
        let combines_segments = opened.combines_segments();
        for shard in shards {
            let mut state = shard.lock();
            if let Carrier::Native(carrier) = state.carrier() {
                carrier.adopt(&opened);
            }
            state.sending().combine_segments(combines_segments);
        }
        for (shard, families) in shards.iter().zip(opened.sockets()) {
            for (ipv6, family) in [false, true].into_iter().zip(families) {
                if let Some(family) = family {
                    shard.add_socket(Sock::raw(family, ipv6)?)?;
                }
            }
            shard.lock().install_port_filter()?;
        }
        Ok(())
    }

    /// Opens a TUN interface. For the hosts behind it, this shard is the host with the address `local`. With `several`,
    /// other shards share that address, each with its own queue of the interface.
    ///
    /// # Errors
    /// Fails if the interface cannot be opened. Creating one needs CAP_NET_ADMIN; using a persistent one that belongs
    /// to the user does not.
    pub fn open_tun(&self, interface: &str, local: IpAddr, several: bool) -> io::Result<()> {
        self.add_socket(Sock::tun(interface, local, several)?)?;
        if let Carrier::Native(carrier) = self.lock().carrier() {
            carrier.own_address(local);
        }
        Ok(())
    }

    /// Takes over a TUN interface that another process has opened, instead of [opening](Self::open_tun) one.
    ///
    /// # Errors
    /// Fails if the interface cannot be registered with the runtime.
    pub fn adopt_tun(&self, tun: OwnedFd, local: IpAddr) -> io::Result<()> {
        self.add_socket(Sock::adopted_tun(tun, local)?)?;
        if let Carrier::Native(carrier) = self.lock().carrier() {
            carrier.own_address(local);
        }
        Ok(())
    }

    /// Reserves a port for these shards to listen on; port 0 lets the system choose. Returns the address with its
    /// port.
    ///
    /// # Errors
    /// Fails if the port cannot be reserved, for example because it is in use or privileged.
    pub fn guard(shards: &[&Shard], mut local: SocketAddr) -> io::Result<SocketAddr> {
        let mut guard = None;
        for shard in shards {
            let mut state = shard.lock();
            let Carrier::Native(carrier) = state.carrier() else { continue };
            (local, guard) = carrier.guard(local, guard)?;
            state.install_port_filter()?;
        }
        Ok(local)
    }

    /// Reserves the first local ports for connections that this shard opens.
    ///
    /// # Errors
    /// Fails if the ports cannot be reserved.
    pub fn reserve_local_ports(&self) -> io::Result<()> {
        self.lock().grow_port_pool().map(|_| ())
    }

    /// Declares that this shard opens no connections. No ports are reserved, packets follow the routing table, and
    /// sockets that only send are closed.
    pub fn disable_connecting(&self) {
        let mut state = self.lock();
        state.disable_port_pool();
        state.sockets().close_spare();
    }
}
