//! Shard: endpoint, carrier and sockets behind one mutex, with the work due after every access: send, set the timer,
//! wake waiters.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use marline_core::{
    ConnectError, ConnectionConfig, ConnectionId, ConnectionInfo, Endpoint, Limits, MonitorEvent,
    PathHealthMonitor,
};
use marline_time::{DelayHistogram, Duration, Instant};
use tokio::sync::{broadcast, mpsc};

use super::carrier::Carrier;
use super::link_table::Links;
use super::observers::{SharedEventObserver, SharedObserver};
use super::reception::Receiving;
use super::state::{CarrierKind, Handover, State};
use super::streams::AcceptQueue;
use super::streams::wake;
use crate::capture::Captures;
use crate::carrier::CarrierCounters;
use crate::clock::{Alarm, Clock};
use crate::random::ResetSeed;
use crate::sys::timer::FineTimer;
use crate::tap::SegmentLog;

/// A timer that is due within this time is reset if its deadline has moved by at least as much.
const SOON: Duration = Duration::from_millis(1);

/// Configuration of a shard.
#[derive(Debug)]
pub struct ShardConfig {
    /// Carrier.
    pub carrier: CarrierKind,
    /// Part of the id space.
    pub shard: marline_core::Shard,
    /// Seed of the UDP carrier's RESET tokens; `None` for a random one.
    pub reset_seed: Option<ResetSeed>,
    /// Configuration of accepted connections; `None` to accept none.
    pub accept: Option<ConnectionConfig>,
    /// Limits of the endpoint.
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
    /// Further observers of the segments.
    pub observers: Vec<SharedObserver>,
    /// Observer of all events and all traffic, if any.
    pub events: Option<SharedEventObserver>,
    /// Busy polling time after each exchange, at most [`MAX_BUSY_POLL`](super::MAX_BUSY_POLL); zero disables
    /// it.
    pub busy_poll: Duration,
}

/// Reason why a connection could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The core refused.
    Core(ConnectError),
    /// The driver has stopped.
    Stopped,
}

/// One endpoint with its carrier and sockets.
pub struct Shard {
    state: Mutex<State>,
    pub(super) timer: FineTimer,
    pub(super) clock: Clock,
    /// Time at which the timer fires.
    pub(super) alarm: Alarm,
    pub(super) links: Arc<Links>,
    pub(super) receiving: Receiving,
    pub(super) inbox: mpsc::Sender<Handover>,
    pub(super) peers: OnceLock<Vec<mpsc::Sender<Handover>>>,
    /// All shards that share the ports, including this one.
    pub(super) siblings: OnceLock<Vec<Weak<Shard>>>,
    /// Set when the last handle is dropped. The shard ends after its connections.
    pub(super) orphaned: AtomicBool,
    index: u8,
    handle: OnceLock<Weak<ShardHandle>>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Handle that keeps a shard running. After the last one is dropped, the task ends as soon as the remaining
/// connections have closed.
#[derive(Debug)]
pub struct ShardHandle {
    pub(super) shard: Arc<Shard>,
}

impl Drop for ShardHandle {
    fn drop(&mut self) {
        // The last handle may be dropped while its shard is locked, so this must not lock. The timer wakes the task.
        self.shard.orphaned.store(true, Ordering::Release);
        if let Err(error) = self.shard.timer.set(marline_time::Duration::ZERO) {
            tracing::error!(%error, "cannot wake the network driver");
        }
        // Sibling shards may have waited for this one.
        let siblings = self.shard.siblings.get().into_iter().flatten();
        for sibling in siblings.filter_map(Weak::upgrade) {
            let _ = sibling.timer.set(marline_time::Duration::ZERO);
        }
    }
}

impl ShardHandle {
    /// Creates a shard whose task does not run yet, and a handle to it.
    pub(super) fn new(
        state: State,
        (kind, index): (CarrierKind, u8),
        inbox: mpsc::Sender<Handover>,
    ) -> std::io::Result<Arc<Self>> {
        let links = Arc::clone(&state.links);
        let clock = Clock::start();
        let shard = Arc::new(Shard {
            links,
            state: Mutex::new(state),
            timer: FineTimer::new()?,
            clock,
            alarm: Alarm::new(),
            receiving: Receiving::new(kind, clock),
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
    /// Reference to the shard that does not keep it running.
    pub(crate) fn downgrade(&self) -> Weak<Shard> {
        Arc::downgrade(&self.shard)
    }
}

impl Shard {
    /// Registers the shard's connections with this path health monitor.
    pub fn set_path_health_monitor(&self, monitor: PathHealthMonitor) {
        self.lock().endpoint.set_path_health_monitor(monitor);
    }

    /// Replaces the capture files of the shard; `None` stops capturing.
    pub fn set_captures(&self, mut captures: Option<Captures>) {
        let mut state = self.lock();
        if let (Carrier::Native(_), Some(captures)) = (&state.carrier, &mut captures) {
            captures.set_native();
        }
        // Flush the previous files first: they may be the same ones.
        state.observers.captures = None;
        state.observers.captures = captures;
    }

    /// Replaces the event observer; `None` removes it. It receives monitor events only if the shard was started with
    /// receivers or an observer of them.
    pub fn set_event_observer(&self, observer: Option<SharedEventObserver>) {
        let mut state = self.lock();
        let before = core::mem::replace(&mut state.events, observer);
        state.update_traffic_filter();
        drop(state);
        // Dropping the last reference may write buffered data.
        drop(before);
    }

    /// Sends scheduler decisions and their reasons to these subscribers. They are separate from other monitor
    /// events, which would be lost among many decisions. This ends when there is no subscriber any more.
    pub fn tell_decisions(&self, listeners: broadcast::Sender<MonitorEvent>) {
        let mut state = self.lock();
        state.decisions = Some(listeners);
        state.endpoint.tell_decisions(true);
    }

    /// Sends traffic events of one connection of this shard to these subscribers. This ends when there is no
    /// subscriber any more, or when another connection is selected.
    pub fn tell_traffic(&self, of: ConnectionId, listeners: broadcast::Sender<MonitorEvent>) {
        let (_, of) = Shard::split_id(of);
        let mut state = self.lock();
        state.traffic = Some((of, listeners));
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

    /// Locks the state. Read the clock only afterwards: if two threads read it and then waited for the lock, time
    /// would run backwards for the core. The latest packet would seem to have been sent first, and to be lost.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the clock, for work with the locked state. If the process did not run for some time, endpoint and lanes
    /// are notified before they handle anything that has arrived meanwhile.
    pub(super) fn now(&self, state: &mut State) -> Instant {
        let now = self.clock.now();
        state.note_pauses(self.clock.pauses());
        now
    }

    /// Runs a command on the endpoint, then sends, sets the timer and wakes waiters.
    pub fn with_endpoint<R>(&self, command: impl FnOnce(&mut Endpoint, Instant) -> R) -> R {
        self.stand_in();
        let mut state = self.lock();
        let now = self.now(&mut state);
        let result = command(&mut state.endpoint, now);
        self.serve(&mut state, now);
        result
    }

    /// Snapshots of all connections. The ids contain the shard in their top byte.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let state = self.lock();
        let ids = state.endpoint.connections();
        let mut infos: Vec<_> = ids.iter().filter_map(|id| state.endpoint.info(*id)).collect();
        for info in &mut infos {
            info.id = self.public_id(info.id);
        }
        infos
    }

    /// Waits until all connections have closed, for at most `patience`. Returns true if they have.
    pub async fn drained(&self, patience: marline_time::Duration) -> bool {
        const CHECK_INTERVAL: marline_time::Duration = marline_time::Duration::from_millis(5);
        let deadline = self.clock.now() + patience;
        loop {
            if self.lock().endpoint.connections().is_empty() {
                return true;
            }
            if self.clock.now() >= deadline {
                return false;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Counters of the core and of the carrier.
    pub fn counters(&self) -> (marline_core::Counters, CarrierCounters) {
        let state = self.lock();
        let mut carrier = state.carrier.counters();
        if self.index == 0 {
            self.links.add_to(&mut carrier);
        }
        (state.endpoint.counters(), carrier)
    }

    /// Histogram of the time from a write to its DATA_ACK
    /// ([`Endpoint::delivery_delays`](marline_core::Endpoint::delivery_delays)).
    pub fn delivery_delays(&self) -> DelayHistogram {
        self.lock().endpoint.delivery_delays()
    }

    /// Id of a connection for applications, unique over all shards.
    pub(super) fn public_id(&self, id: ConnectionId) -> ConnectionId {
        ConnectionId(id.0 | u64::from(self.index) << 56)
    }

    /// Splits a public id into the shard's index and the id within the shard.
    #[must_use]
    pub fn split_id(id: ConnectionId) -> (u8, ConnectionId) {
        ((id.0 >> 56) as u8, ConnectionId(id.0 & (u64::MAX >> 8)))
    }

    /// Releases a connection without a stream ([`AcceptQueue::close`]).
    pub fn release(&self, id: ConnectionId) {
        let (_, id) = Shard::split_id(id);
        self.stand_in();
        let mut state = self.lock();
        let now = self.now(&mut state);
        state.slots.remove(&id);
        state.endpoint.release(now, id);
        self.serve(&mut state, now);
    }

    /// Finishes an access to the endpoint: sends, sets the timer, wakes waiting tasks. Must be called after each
    /// access. Returns true if a task was woken.
    pub(super) fn serve(&self, state: &mut State, now: Instant) -> bool {
        self.execute_route_orders(state, now);
        state.turns.on_sent();
        if state.transmit(now) {
            wake(state.driver.take());
        }
        state.apply_carrier_changes(now);
        state.reserve_missing_ports();
        let woken = self.tell(state, now);
        state.wake_lanes();
        if state.serve_lanes(now) {
            wake(state.driver.take());
        }
        state.wake_connections(now);
        self.arm(state, now);
        woken
    }

    /// Sends what a connection wrote, and everything else that is due. This happens now, or together with the writes
    /// of other connections in this turn of the runtime.
    pub(super) fn serve_write(
        &self,
        state: &mut State,
        now: Instant,
        id: ConnectionId,
        len: usize,
    ) {
        if state.busy_poll.on_exchange(now) {
            wake(state.driver.take());
        }
        let may_wait = matches!(state.carrier, Carrier::Udp(_)) && !state.stopped;
        if !may_wait || !state.turns.on_write(now, id, len) {
            self.serve(state, now);
        }
    }

    /// Sets the timer, unless it is set to an earlier time already: deadlines mostly move away, and one needless
    /// wake-up is cheaper than a system call each time. A timer that would fire soon without need is moved while the
    /// task is awake: in a dialogue this costs a tenth of the wake-up.
    pub(super) fn arm(&self, state: &mut State, now: Instant) {
        let fires_soon = state.armed.is_some_and(|armed| armed.since(now) < SOON);
        if fires_soon {
            state.endpoint.postpone_timeouts(now + SOON);
        }
        let candidates = [
            state.endpoint.poll_timeout(),
            state.carrier.next_timeout(),
            state.lanes.next_timeout(),
            state.rerouting.routes.next_timeout(),
            state.stall_retry_at,
        ];
        let Some(next) = candidates.into_iter().flatten().min() else { return };
        let is_kept = |armed: Instant| {
            let in_vain = fires_soon && next.since(armed) >= SOON;
            armed <= next && !in_vain
        };
        if state.armed.is_some_and(is_kept) {
            return;
        }
        match self.timer.set(next.since(now)) {
            Ok(()) => {
                state.armed = Some(next);
                self.alarm.set(next);
            }
            Err(error) => tracing::error!(%error, "cannot set the timer"),
        }
    }
}
