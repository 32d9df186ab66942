//! Drives a shard: starts it, and does the work that is due after every access: send, set the timer, wake waiters. The
//! shard's task receives; while it is late, callers of the library receive on its behalf.
//!
//! *Problem.* The task is one of many. When twelve thousand connections end at the same time, as many tasks are ready,
//! and each runs before the receiving task runs again. Meanwhile, sockets hold datagrams for seconds or drop them.
//! Peers assume that unanswered packets are lost and retransmit them, which fills the sockets further.
//!
//! *Solution.* The task's waker records when the task became ready ([`Readiness`](super::reception::Readiness)).
//! Reading, writing or closing a stream checks that first. If the task has been ready for more than a moment, or many
//! calls have been made since the last check of the sockets, the caller receives one batch. Once the sockets are empty,
//! it also serves the timers. So reception keeps pace with the application, regardless of the order in which the
//! runtime polls its tasks. TCP does not depend on the receiving thread.

use core::net::{IpAddr, SocketAddr};
use core::task::Context;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use marline_core::{
    ConnectionConfig, ConnectionId, Endpoint, EndpointConfig, Event, FourTuple, MonitorKind,
};
use marline_time::{Duration, Instant};
use tokio::io::{Interest, Ready};
use tokio::sync::mpsc;

use super::carrier::{Carrier, CarrierKind};
use super::egress::{drain_errors, serve_lanes, transmit};
use super::generations;
use super::ingress;
use super::lane_traffic::LaneCounters;
use super::lanes::Lanes;
use super::link_events::{self, LinkListener};
use super::observers::Observers;
use super::reception::{ReadResult, Reception};
use super::routing::Routing;
use super::shard::{Shard, ShardConfig, ShardHandle, StartError};
use super::sockets::{Sock, SocketOptions, Watch};
use super::state::{Parts, State};
use super::stream::Stream;
use super::streams::{Incoming, Streams};
use super::task;
use super::wakeups::Wakeups;
use crate::carrier::{CarrierConfig, FlowEnds, UdpCarrier};
use crate::links::{CarrierRates, Routes};
use crate::native::NativeCarrier;
use crate::random::{ResetSeed, SecretRng};

/// A timer due within this time is moved if its deadline has changed by at least this much.
const RESET_THRESHOLD: Duration = Duration::from_millis(1);
/// Maximum number of batches received before silence is evaluated.
const MAX_CATCH_UP_BATCHES: u32 = 64;
/// Maximum number of queued datagrams from other shards.
const HANDOVER_CAPACITY: usize = 1_024;

/// Start, and accesses that send data.
impl Shard {
    /// Starts a shard: its task runs on the current tokio runtime, which needs I/O and time.
    ///
    /// # Errors
    /// Fails if no randomness or timer is available.
    pub fn start(config: ShardConfig) -> io::Result<Arc<ShardHandle>> {
        let mut rng = SecretRng::from_os()?;
        let carrier = create_carrier(&config, &mut rng);
        let opens = config.accept.is_none();
        let routes = match config.carrier {
            CarrierKind::Udp { udp, .. } if opens => Routes::new(udp),
            _ => Routes::default(),
        };
        let endpoint = Endpoint::new(
            EndpointConfig {
                capabilities: carrier.capabilities(),
                limits: config.limits,
                shard: config.shard,
                accept: config.accept,
                monitor: config.monitor.is_some() || config.events.is_some(),
            },
            Box::new(rng),
        );
        let mut captures = config.capture;
        if let (Carrier::Native(_), Some(captures)) = (&carrier, &mut captures) {
            captures.set_native();
        }
        let mut observers = Observers::new(opens, config.observers);
        observers.set_captures(captures);
        observers.set_log(config.tap);
        observers.set_monitor(config.monitor);
        drop(observers.set_event_observer(config.events));
        let state = State::new(Parts {
            endpoint,
            carrier,
            routing: Routing::new(Arc::clone(&config.links), config.shard.index, routes),
            observers,
            streams: Streams::new(config.queue),
            lanes: Lanes::new(config.shard, SecretRng::from_os()?),
            wakeups: Wakeups::new(config.busy_poll),
        });
        let (inbox, handed_over) = mpsc::channel(HANDOVER_CAPACITY);
        let handle =
            ShardHandle::new(config.links, state, config.carrier, config.shard.index, inbox)?;
        tokio::spawn(task::run(Arc::clone(handle.shard()), handed_over));
        Ok(handle)
    }

    /// Runs a command on the endpoint, then sends, sets the timer and wakes waiters.
    pub fn with_endpoint<R>(&self, command: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        self.drive_if_late();
        let mut state = self.lock();
        let now = self.now(&mut state);
        let result = command(state.endpoint(), now);
        self.serve(&mut state, now);
        result
    }

    /// Releases a connection without a stream ([`AcceptQueue::close`](super::AcceptQueue::close)).
    pub fn release(&self, id: ConnectionId) {
        let (_, id) = Shard::split_id(id);
        self.drive_if_late();
        let mut state = self.lock();
        let now = self.now(&mut state);
        state.streams().remove(id);
        state.endpoint().release(now, id);
        self.serve(&mut state, now);
    }

    /// Opens a connection; [`Stream::connected`] waits for the handshake. Connections that share a configuration (an
    /// `Arc`) store it once.
    ///
    /// # Errors
    /// Fails if the core refuses the connection or the driver has stopped.
    pub fn connect(
        &self,
        config: impl Into<Arc<ConnectionConfig>>,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<Stream, StartError> {
        self.connect_with(config, local, remote, &[]).map(|(stream, _)| stream)
    }

    /// Opens a connection whose SYN carries the beginning of `first` with Fast Open ([`ConnectionConfig::fast_open`]).
    /// Returns the number of bytes written: 0 if Fast Open to that server is not possible now, or the SYN has no room.
    ///
    /// # Errors
    /// See [`connect`](Self::connect).
    pub fn connect_with(
        &self,
        config: impl Into<Arc<ConnectionConfig>>,
        local: IpAddr,
        remote: SocketAddr,
        first: &[u8],
    ) -> Result<(Stream, usize), StartError> {
        let handle = self.handle().ok_or(StartError::Stopped)?;
        self.drive_if_late();
        let mut state = self.lock();
        let now = self.now(&mut state);
        if state.wakeups().is_stopped() {
            return Err(StartError::Stopped);
        }
        let (local, config) = (SocketAddr::new(local, 0), config.into());
        let room = match first {
            [] => None,
            _ => state.endpoint().fast_open_room(now, &config, &FourTuple { local, remote }),
        };
        let id = state.connect(now, &config, local, remote).map_err(StartError::Core)?;
        let first = &first[..room.unwrap_or(0).min(first.len())];
        // This comes before the SYN is sent. If the connection accepts no data now, the bytes are written later.
        let written = if first.is_empty() { Ok(0) } else { state.endpoint().write(now, id, first) };
        state.streams().add(id);
        self.serve(&mut state, now);
        Ok((Stream::admitted(handle, id, remote), written.unwrap_or(0)))
    }

    /// Accepts links on this address, on which these shards must have a UDP socket. They share
    /// [`ShardConfig::links`](super::ShardConfig::links).
    ///
    /// # Errors
    /// Fails if the address cannot be bound, for example because another program listens on it.
    pub fn listen_links(
        shards: &[Arc<ShardHandle>],
        local: SocketAddr,
    ) -> io::Result<LinkListener> {
        Shard::accept_links(shards, OwnedFd::from(crate::sys::link::listen(local)?))
    }

    /// Accepts links on a socket that already listens.
    ///
    /// # Errors
    /// Fails if the socket cannot be registered with the runtime.
    pub fn accept_links(
        shards: &[Arc<ShardHandle>],
        listening: OwnedFd,
    ) -> io::Result<LinkListener> {
        link_events::accept_links(shards, listening)
    }

    /// Adds a socket and starts its error watch.
    pub(super) fn add_socket(&self, socket: Sock) -> io::Result<SocketAddr> {
        let socket = Arc::new(socket);
        let local = socket.local;
        let handle = self.handle().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        let watched = socket.has_errors();
        let watch = watched.then(|| watch_errors(handle.shard(), &socket));
        let mut state = self.lock();
        let index = state.sockets().add(socket, watch);
        state.carrier().set_socket(index, Some(local));
        state.wakeups().wake_task();
        Ok(local)
    }

    /// Takes over a socket that another process has opened.
    ///
    /// # Errors
    /// Fails if the socket is not a UDP socket.
    pub fn adopt_socket(&self, socket: OwnedFd, options: SocketOptions) -> io::Result<()> {
        self.add_socket(Sock::adopt(socket, options)?).map(drop)
    }

    /// Stops receiving because another process now receives and passes packets on; or resumes after that process has
    /// ended.
    pub(super) fn reregister_sockets(&self, receiving: bool) {
        let mut state = self.lock();
        let handle = self.handle();
        state.sockets().reregister(receiving, |socket| {
            let handle = handle.as_ref().filter(|_| receiving);
            handle.map(|handle| watch_errors(handle.shard(), socket))
        });
        state.wakeups().wake_task();
    }

    /// Returns the counters of this shard's lanes.
    pub fn lane_counters(&self) -> LaneCounters {
        self.lock().lanes().counters()
    }

    /// Returns why the last link attempt from this address to this server failed, if it did.
    #[must_use]
    pub fn link_failure(&self, local: IpAddr, server: SocketAddr) -> Option<String> {
        self.lock().routing().failure(&FlowEnds::new(local, server)).map(str::to_owned)
    }

    /// Returns the address pairs whose connections use TCP because it is faster, with the measured rates.
    #[must_use]
    pub fn routes_faster_over_tcp(&self) -> Vec<(FlowEnds, CarrierRates)> {
        self.lock().routing().routes().routes_faster_over_tcp()
    }

    /// Returns the address pairs whose connections use TCP now.
    #[must_use]
    pub fn routes_on_links(&self) -> Vec<FlowEnds> {
        self.lock().routing().routes().flows_on_links()
    }
}

/// Work after every access.
impl Shard {
    /// Finishes an access to the endpoint: sends, sets the timer, wakes waiting tasks. Must be called after each
    /// access. Returns true if a task was woken.
    pub(super) fn serve(&self, state: &mut State, now: Instant) -> bool {
        link_events::execute_route_orders(self, state, now);
        state.wakeups().on_sent();
        if transmit(state, now) {
            state.wakeups().wake_task();
        }
        link_events::apply_carrier_changes(state, now);
        state.reserve_missing_ports();
        let woken = dispatch_events(self, state, now);
        state.wake_lanes();
        if serve_lanes(state, now) {
            state.wakeups().wake_task();
        }
        state.wake_connections(now);
        self.arm(state, now);
        woken
    }

    /// Sends what a connection wrote, and everything else that is due. Sends immediately, or together with the writes
    /// of other connections in this turn of the runtime.
    pub(super) fn serve_write(
        &self,
        state: &mut State,
        now: Instant,
        id: ConnectionId,
        len: usize,
    ) {
        if state.wakeups().on_exchange(now) {
            state.wakeups().wake_task();
        }
        let may_wait = matches!(state.carrier(), Carrier::Udp(_)) && !state.wakeups().is_stopped();
        if !may_wait || !state.wakeups().should_delay_write(now, id, len) {
            self.serve(state, now);
        }
    }

    /// Finishes an access that delivered packets: the task sends the answers if an application was woken, so that
    /// the data it writes carries them.
    pub(super) fn finish_foreign_access(&self, state: &mut State, now: Instant) {
        if dispatch_events(self, state, now) {
            state.wakeups().wake_task();
        } else {
            self.serve(state, now);
        }
    }

    /// Sets the timer, unless it is already set to an earlier time: deadlines mostly move later, and one needless
    /// wake-up is cheaper than a system call each time. A timer that would soon fire needlessly is moved while the task
    /// is awake: in a dialog of short messages this costs a tenth as much as the wake-up.
    fn arm(&self, state: &mut State, now: Instant) {
        let fires_soon =
            state.wakeups().alarm_at().is_some_and(|armed| armed.since(now) < RESET_THRESHOLD);
        if fires_soon {
            state.endpoint().postpone_timeouts(now + RESET_THRESHOLD);
        }
        let Some(next) = state.next_timeout() else { return };
        let is_kept = |armed: Instant| {
            let in_vain = fires_soon && next.since(armed) >= RESET_THRESHOLD;
            armed <= next && !in_vain
        };
        if state.wakeups().alarm_at().is_some_and(is_kept) {
            return;
        }
        match self.timer().set(next.since(now)) {
            Ok(()) => {
                state.wakeups().set_armed(Some(next));
                self.alarm().set(next);
            }
            Err(error) => tracing::error!(%error, "cannot set the timer; timeouts may be late"),
        }
    }
}

/// Reception.
impl Shard {
    /// If the task is late, receives a batch on its behalf and, if the sockets are empty, serves the timers. Must be
    /// called before the state is locked.
    pub(super) fn drive_if_late(&self) {
        if self.receiving().readiness().is_late() {
            self.receive_now();
        }
    }

    /// Empties the sockets, even if the task is not late. Call this before evaluating silence: after the process did
    /// not run for some time, a timeout and the answer it waited for appear together.
    pub fn catch_up(&self) {
        for _ in 0..MAX_CATCH_UP_BATCHES {
            if self.receive_now() {
                return;
            }
        }
    }

    /// Receives a batch on behalf of the task and, if the sockets are empty, serves the timers. Returns false if there
    /// may be more.
    fn receive_now(&self) -> bool {
        // Another thread is receiving already.
        let Some(mut reception) = self.receiving().try_lock() else { return true };
        let mut state = self.lock();
        if state.wakeups().is_stopped() {
            return true;
        }
        if let Some(sockets) = state.sockets().take_change() {
            reception.set_sockets(sockets);
        }
        drop(state);
        let is_drained = self.receive(&mut reception);
        if is_drained {
            self.receiving().readiness().record_sockets_checked();
            let mut state = self.lock();
            let now = self.now(&mut state);
            if state.wakeups().alarm_at().is_some_and(|at| at <= now) {
                self.on_timer(&mut state, now);
            }
        }
        is_drained
    }

    /// Handles the timer, after available packets have been received.
    pub(super) fn on_timer(&self, state: &mut State, now: Instant) {
        state.wakeups().set_armed(None);
        self.alarm().clear();
        state.on_timeout(now);
        self.serve(state, now);
    }

    /// Receives once from a socket and sends the answers, now or soon. Returns false if the socket was empty.
    /// `may_busy_poll` allows a try even if the socket is not ready.
    pub(super) fn poll_socket(
        &self,
        reception: &mut Reception,
        cx: &mut Context<'_>,
        at: usize,
        may_busy_poll: bool,
    ) -> io::Result<bool> {
        let drained = match reception.poll_receive(cx, at, may_busy_poll)? {
            ReadResult::Nothing => return Ok(false),
            ReadResult::Error => return Ok(true),
            ReadResult::Batch { drained } => drained,
        };
        self.dispatch_batch(reception, at, |state, now| {
            if dispatch_events(self, state, now) && drained {
                cx.waker().wake_by_ref();
            } else if !state.wakeups().defers_writes(now) {
                self.serve(state, now);
            }
        });
        Ok(true)
    }

    /// Receives a batch on behalf of the task. Returns true if all sockets are empty.
    fn receive(&self, reception: &mut Reception) -> bool {
        for _ in 0..reception.sockets() {
            let Some((at, drained)) = reception.receive_in_turn() else { continue };
            self.dispatch_batch(reception, at, |state, now| {
                self.serve(state, now);
            });
            if !drained {
                return false;
            }
        }
        true
    }

    /// Passes on the packets of a batch to their owners: other processes, carrier and core, other shards. `then`
    /// runs while the shard is still locked.
    fn dispatch_batch(
        &self,
        reception: &mut Reception,
        at: usize,
        then: impl FnOnce(&mut State, Instant),
    ) {
        if let Some(older) = self.links().connected_older_processes() {
            reception.keep_own_datagrams(at, older);
        }
        let (socket, buffer) = reception.batch(at);
        let mut state = self.lock();
        let now = self.now(&mut state);
        let others = ingress::on_batch(self, &mut state, now, socket, buffer);
        then(&mut state, now);
        drop(state);
        generations::pass_on(self, others);
    }
}

/// Dispatches all pending events of the core. Returns true if a task was woken.
fn dispatch_events(shard: &Shard, state: &mut State, now: Instant) -> bool {
    let mut woken = false;
    while let Some(event) = state.endpoint().poll_event() {
        woken |= on_event(shard, state, now, event);
    }
    woken
}

fn on_event(shard: &Shard, state: &mut State, now: Instant, event: Event) -> bool {
    match event {
        Event::Readable(id) => state.streams().on_readable(id),
        Event::Writable(id) => state.streams().on_writable(id),
        Event::Connected { connection, fallback } => {
            state.streams().on_connected(connection, fallback)
        }
        Event::Closed { connection, reason } => state.streams().on_closed(connection, reason),
        Event::Requested(path) => {
            if !state.streams().request(path) {
                state.endpoint().refuse(now, &path);
            }
            false
        }
        Event::Incoming(id) => {
            on_incoming(shard, state, now, id);
            true
        }
        Event::FlowEnded { local_flow } => {
            state.carrier().retire(local_flow);
            state.lanes().on_flow_ended(local_flow);
            false
        }
        Event::FlowGone { local_flow, .. } => {
            state.carrier().forget(local_flow);
            state.routing().forget_flow(local_flow);
            state.lanes().on_flow_ended(local_flow);
            false
        }
        Event::Monitor(mut event) => {
            let id = event.connection;
            event.connection = shard.public_id(id);
            let filter = state.observers().pass_to_observer(&event);
            let filter = match event.kind {
                MonitorKind::Decided { .. } => {
                    if !state.observers().pass_decision(event) {
                        state.endpoint().report_decisions(false);
                    }
                    filter
                }
                MonitorKind::Traffic { .. } => state.observers().pass_traffic(id, event).or(filter),
                _ => {
                    state.observers().pass_event(event);
                    filter
                }
            };
            if let Some(filter) = filter {
                state.endpoint().report_traffic(filter);
            }
            false
        }
    }
}

fn on_incoming(shard: &Shard, state: &mut State, now: Instant, id: ConnectionId) {
    // A gateway has already admitted this connection.
    if state.streams().on_connected(id, None) {
        return;
    }
    let peer = state.endpoint().info(id).and_then(|info| info.subflows.first().map(|s| s.path));
    let unknown = SocketAddr::new(core::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let peer = peer.map_or(unknown, |path| path.remote);
    let incoming = Incoming { id: shard.public_id(id), peer };
    if !state.streams().accept(id, incoming) {
        state.endpoint().abort(now, id);
        state.endpoint().release(now, id);
    }
}

/// Starts the error watch of a socket: a small task waits for ICMP errors, so that a refused SYN or a failed path is
/// detected immediately instead of at the next timeout.
fn watch_errors(shard: &Arc<Shard>, socket: &Arc<Sock>) -> Watch {
    let task = tokio::spawn(report_errors(Arc::downgrade(shard), Arc::clone(socket)));
    Watch::new(task.abort_handle())
}

async fn report_errors(shard: Weak<Shard>, socket: Arc<Sock>) {
    while let Ok(mut guard) = socket.fd.ready(Interest::ERROR).await {
        guard.clear_ready_matching(Ready::ERROR);
        drop(guard);
        let Some(shard) = shard.upgrade() else { return };
        on_socket_error(&shard, &socket);
    }
}

fn on_socket_error(shard: &Shard, socket: &Arc<Sock>) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let index = state.sockets().index_of(socket);
    if index.is_some_and(|index| drain_errors(&mut state, now, index)) {
        shard.serve(&mut state, now);
    }
}

/// Creates the carrier of a shard, without sockets.
fn create_carrier(config: &ShardConfig, rng: &mut SecretRng) -> Carrier {
    match config.carrier {
        CarrierKind::Udp { keepalive, .. } => {
            Carrier::Udp(Box::new(UdpCarrier::new(CarrierConfig {
                shard: config.shard,
                accept: config.accept.is_some(),
                max_flows: config.limits.connections.saturating_mul(2),
                keepalive,
                secret: rng.key(),
                reset_seed: config.reset_seed.map_or_else(|| rng.key(), ResetSeed::into_bytes),
            })))
        }
        CarrierKind::Raw => Carrier::Native(Box::new(NativeCarrier::raw(config.shard))),
        CarrierKind::Tun => {
            Carrier::Native(Box::new(NativeCarrier::tun(config.accept.is_some(), config.shard)))
        }
        CarrierKind::Gateway => Carrier::Native(Box::new(NativeCarrier::gateway())),
    }
}

#[cfg(test)]
mod tests;
