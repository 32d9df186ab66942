//! UDP of applications through a server: their sockets, the flows of these, and the lane they go on.
//!
//! Sockets come and go with SOCKS associations and forwards. The lane is made when there is a socket, on a connection
//! to the server that only controls it, and lasts while there are sockets and a while longer. When that connection
//! ends, because the server was started again for instance, another lane takes its place: flows say anew what they
//! stand for, and go on.

pub mod echo;
pub mod echoes;
mod inbox;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use marline::MemoryAccount;
use marline::datagrams::{Arrivals, Datagrams};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::echo::{EchoAnswer, EchoRequest};
pub use self::inbox::Inbox;
use self::inbox::{Delivery, inbox};
use crate::message::ErrorCode;
use crate::target::{Host, Target};
use crate::udp::{
    FlowTable, Item, MOST_FLOWS, MOST_UNASKED_FLOWS, Outbox, SOCKET_NUMBERS, UdpCounters,
    UdpCounts, count,
};

/// Sockets of applications.
const MOST_SOCKETS: usize = 1_024;
/// Datagrams that wait for a lane, together.
const EARLY: usize = 64;
/// They wait no longer than this.
const EARLY_PATIENCE: Duration = Duration::from_secs(5);
/// A flow that was silent for so long says again what it stands for: a server may have forgotten it.
const DESCRIBE_AFTER: Duration = Duration::from_secs(20);
/// A flow that was refused is not tried again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// A datagram for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Whom it is from. A name stands for itself until the server has told its address.
    pub from: Target,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// The application had sent something there before.
    pub asked: bool,
}

/// What is known of a flow that an application began.
#[derive(Copy, Clone, Debug, Default)]
struct Own {
    /// The server knows what it stands for.
    known: bool,
    /// The address of its name.
    address: Option<SocketAddr>,
    refused_until: Option<Instant>,
}

/// Something that waits for a lane.
#[derive(Debug)]
struct Early {
    at: Instant,
    socket: u32,
    what: Sent,
    payload: Vec<u8>,
}

/// What an application sends, without its bytes.
#[derive(Clone, Debug)]
enum Sent {
    /// A datagram to this peer.
    Datagram(Target),
    /// An echo request.
    Echo(EchoRequest),
}

/// Where what comes for a socket goes.
#[derive(Debug)]
enum Socket {
    Datagrams(Delivery<Inbound>),
    Echoes(Delivery<EchoAnswer>),
}

#[derive(Debug)]
struct State {
    sockets: BTreeMap<u32, Socket>,
    next_socket: u32,
    own: FlowTable<Own>,
    /// Flows that the server opened.
    unasked: FlowTable<()>,
    lane: Option<Arc<Datagrams>>,
    early: VecDeque<Early>,
    outbox: Outbox,
    /// When there was a socket last.
    used_at: Instant,
    /// The server gives no lane; it is not asked again before this.
    refused_until: Option<Instant>,
}

/// A client's UDP.
#[derive(Debug)]
pub struct UdpTunnel {
    state: Mutex<State>,
    counters: UdpCounters,
    /// There is a socket.
    wanted: Notify,
    memory: MemoryAccount,
}

/// An application's socket as it sends; dropping it closes it, at the server, too.
#[derive(Debug)]
pub struct UdpSender {
    number: u32,
    tunnel: Arc<UdpTunnel>,
}

/// A datagram is longer than what the paths take now.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the paths take datagrams of {most} bytes at most")]
pub struct TooBig {
    /// Bytes of the longest that they take.
    pub most: usize,
}

impl UdpSender {
    /// Sends a datagram. It is lost if there is no way: see [`UdpTunnel::counts`].
    ///
    /// # Errors
    /// It is known not to fit.
    pub fn send(&self, peer: &Target, payload: &[u8]) -> Result<(), TooBig> {
        let mut batch = self.tunnel.batch();
        match batch.most() {
            Some(most) if payload.len() > most => {
                batch.too_big();
                Err(TooBig { most })
            }
            _ => {
                batch.send(self, peer, payload);
                Ok(())
            }
        }
    }

    /// The tunnel that it is of.
    pub(super) const fn tunnel(&self) -> &Arc<UdpTunnel> {
        &self.tunnel
    }
}

/// Datagrams of applications that leave together, when this is dropped. Meanwhile the tunnel does nothing else.
pub(super) struct Batch<'a> {
    tunnel: &'a UdpTunnel,
    state: MutexGuard<'a, State>,
    lane: Option<Arc<Datagrams>>,
    now: Instant,
}

impl Batch<'_> {
    /// Adds a datagram.
    pub(super) fn send(&mut self, from: &UdpSender, peer: &Target, payload: &[u8]) {
        count(&self.tunnel.counters.from_local);
        let socket = from.number;
        if self.lane.is_some() {
            return self.tunnel.put(&mut self.state, self.now, (socket, peer), payload);
        }
        self.keep_early(socket, Sent::Datagram(peer.clone()), payload);
    }

    /// Keeps something until there is a lane; the oldest goes for it.
    fn keep_early(&mut self, socket: u32, what: Sent, payload: &[u8]) {
        let early = &mut self.state.early;
        if early.len() >= EARLY {
            early.pop_front();
            count(&self.tunnel.counters.dropped);
        }
        early.push_back(Early { at: self.now, socket, what, payload: payload.to_vec() });
    }

    /// Bytes of the longest datagram that the paths take, if that is known.
    fn most(&self) -> Option<usize> {
        self.lane.as_ref().and_then(|_| self.state.outbox.most())
    }

    /// A datagram of an application was longer than any that can be carried.
    pub(super) fn too_big(&self) {
        count(&self.tunnel.counters.from_local);
        count(&self.tunnel.counters.too_big);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            self.state.outbox.flush(lane, &self.tunnel.counters);
        }
    }
}

impl Drop for UdpSender {
    fn drop(&mut self) {
        self.tunnel.close(self.number);
    }
}

/// Where the UDP of a listener goes, if it carries any.
pub(super) type UdpWay = RwLock<Option<Arc<UdpTunnel>>>;

/// What comes for an application's socket; it ends when the socket is closed.
pub type UdpInbox = Inbox<Inbound>;

impl Default for UdpTunnel {
    fn default() -> Self {
        UdpTunnel::charged_to(MemoryAccount::default())
    }
}

impl UdpTunnel {
    /// One whose waiting datagrams are charged to this account.
    #[must_use]
    pub fn charged_to(memory: MemoryAccount) -> Self {
        let state = State {
            sockets: BTreeMap::new(),
            next_socket: 0,
            own: FlowTable::new(2, MOST_FLOWS),
            unasked: FlowTable::new(1, MOST_UNASKED_FLOWS),
            lane: None,
            early: VecDeque::new(),
            outbox: Outbox::default(),
            used_at: Instant::now(),
            refused_until: None,
        };
        UdpTunnel {
            state: Mutex::new(state),
            counters: UdpCounters::default(),
            wanted: Notify::new(),
            memory,
        }
    }
}

/// Applications.
impl UdpTunnel {
    /// A socket for an application; `None`: there are too many.
    pub fn socket(self: &Arc<Self>) -> Option<(UdpSender, UdpInbox)> {
        let (delivery, inbox) = inbox(&self.memory);
        Some((self.open(Socket::Datagrams(delivery))?, inbox))
    }

    fn open(self: &Arc<Self>, socket: Socket) -> Option<UdpSender> {
        let mut state = self.lock();
        if state.sockets.len() >= MOST_SOCKETS {
            count(&self.counters.refused);
            return None;
        }
        let number = loop {
            let number = state.next_socket;
            state.next_socket = (number + 1) % SOCKET_NUMBERS;
            if !state.sockets.contains_key(&number) {
                break number;
            }
        };
        state.sockets.insert(number, socket);
        drop(state);
        count(&self.counters.sockets);
        self.wanted.notify_one();
        Some(UdpSender { number, tunnel: Arc::clone(self) })
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> UdpCounts {
        self.counters.now()
    }

    /// Whether there is a lane now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.lock().lane.is_some()
    }

    /// Whether the server gives no lane, whatever is sent. It is asked again later, when somebody wants to send.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.lock().refused_until.is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, socket: u32) {
        let mut state = self.lock();
        let state = &mut *state;
        state.sockets.remove(&socket);
        state.own.remove_socket(socket);
        state.unasked.remove_socket(socket);
        state.used_at = Instant::now();
        if let Some(lane) = &state.lane {
            state.outbox.push(0, &Item::Closed { socket });
            state.outbox.flush(lane, &self.counters);
        }
    }

    /// Datagrams that leave together.
    pub(super) fn batch(&self) -> Batch<'_> {
        let mut state = self.lock();
        let lane = state.lane.clone();
        if let Some(lane) = &lane {
            state.outbox.set_largest(lane.largest());
        }
        Batch { tunnel: self, state, lane, now: Instant::now() }
    }

    /// Puts a datagram into the outbox.
    fn put(&self, state: &mut State, now: Instant, (socket, peer): (u32, &Target), payload: &[u8]) {
        let key = (socket, peer.clone());
        // A peer that the server told of first has a flow already; but one of our own is no worse.
        let flow = match state.own.find(&key) {
            Some(flow) => flow,
            None => {
                let (flow, full) = state.own.open(key, Own::default(), now);
                count(&self.counters.flows);
                if full {
                    count(&self.counters.flows_forgotten);
                }
                flow
            }
        };
        let Some((_, own, before)) = state.own.touch(flow, now) else { return };
        if own.refused_until.is_some_and(|until| now < until) {
            return count(&self.counters.dropped);
        }
        own.refused_until = None;
        own.known &= now.duration_since(before) < DESCRIBE_AFTER;
        if own.known {
            state.outbox.push(flow, &Item::Data(payload));
        } else {
            state.outbox.describe(flow, socket, peer, payload);
        }
    }
}

/// The lane.
impl UdpTunnel {
    /// Resolves when there is a socket.
    pub(super) async fn wanted(&self) {
        loop {
            let notified = self.wanted.notified();
            if !self.lock().sockets.is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// How long there has been no socket.
    pub(super) fn unused_for(&self) -> Duration {
        let state = self.lock();
        if state.sockets.is_empty() { state.used_at.elapsed() } else { Duration::ZERO }
    }

    /// The server gives no lane, and will not for so long. What waits for one is lost.
    pub(super) fn refuse_for(&self, period: Duration) {
        let mut state = self.lock();
        state.refused_until = Some(Instant::now() + period);
        for _ in std::mem::take(&mut state.early) {
            count(&self.counters.dropped);
        }
    }

    /// From now on this lane carries everything. The server knows nothing of flows yet.
    pub(super) fn attach(&self, lane: Arc<Datagrams>) {
        let now = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        state.own.states().for_each(|own| own.known = false);
        state.unasked = FlowTable::new(1, MOST_UNASKED_FLOWS);
        state.outbox.set_largest(lane.largest());
        for early in std::mem::take(&mut state.early) {
            if now.duration_since(early.at) > EARLY_PATIENCE {
                count(&self.counters.dropped);
            } else if state.sockets.contains_key(&early.socket) {
                match early.what {
                    Sent::Datagram(peer) => {
                        self.put(state, now, (early.socket, &peer), &early.payload);
                    }
                    Sent::Echo(request) => request.put(state, early.socket, &early.payload),
                }
            }
        }
        state.outbox.flush(&lane, &self.counters);
        state.lane = Some(lane);
        state.refused_until = None;
    }

    /// The lane is gone.
    pub(super) fn detach(&self) {
        self.lock().lane = None;
    }

    /// Takes what came in on the lane.
    pub(super) fn on_arrivals(&self, arrivals: &Arrivals) {
        let now = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        for (flow, bytes) in arrivals.datagrams() {
            match Item::decode(bytes) {
                Ok(item) => self.on_item(state, now, flow.0, item),
                Err(_) => count(&self.counters.unknown),
            }
        }
        if let Some(lane) = &state.lane {
            state.outbox.flush(lane, &self.counters);
        }
    }

    fn on_item(&self, state: &mut State, now: Instant, flow: u64, item: Item<'_>) {
        let ours = flow.is_multiple_of(2);
        match item {
            Item::Data(payload) if ours => self.on_answer(state, now, flow, payload),
            Item::Data(payload) => match state.unasked.touch(flow, now) {
                Some(((socket, from), ..)) => {
                    let (socket, from) = (*socket, from.clone());
                    self.deliver(state, socket, Inbound::new(from, payload, false));
                }
                None => {
                    count(&self.counters.unknown);
                    state.outbox.push(flow, &Item::Unknown);
                }
            },
            Item::Open { socket, peer, payload } if !ours => {
                self.on_unasked(state, now, flow, (socket, peer.clone()));
                self.deliver(state, socket, Inbound::new(peer, payload, false));
            }
            Item::Announce { socket, peer } if !ours => {
                self.on_unasked(state, now, flow, (socket, peer));
            }
            Item::Known(address) => {
                if let Some((_, own)) = state.own.get(flow) {
                    (own.known, own.address) = (true, address.or(own.address));
                }
            }
            Item::Unknown => {
                if let Some((_, own)) = state.own.get(flow) {
                    own.known = false;
                }
            }
            Item::Refused(code) => self.on_refused(state, now, flow, code),
            Item::Replied { .. } | Item::Failed { .. } => self.on_echo(state, item),
            Item::Open { .. } | Item::Announce { .. } | Item::Closed { .. } | Item::Echo { .. } => {
                count(&self.counters.unknown);
            }
        }
    }

    fn on_answer(&self, state: &mut State, now: Instant, flow: u64, payload: &[u8]) {
        let Some(((socket, peer), own, _)) = state.own.touch(flow, now) else {
            return count(&self.counters.unknown);
        };
        let from = match own.address {
            Some(address) => Target { host: Host::from(address.ip()), port: address.port() },
            None => peer.clone(),
        };
        let socket = *socket;
        self.deliver(state, socket, Inbound::new(from, payload, true));
    }

    /// The server tells of a peer to whom no application had sent anything.
    fn on_unasked(&self, state: &mut State, now: Instant, flow: u64, key: (u32, Target)) {
        if state.unasked.find(&key) != Some(flow) {
            count(&self.counters.flows);
            if state.unasked.insert(flow, key, (), now) {
                count(&self.counters.flows_forgotten);
            }
        }
        state.outbox.push(flow, &Item::Known(None));
    }

    fn on_refused(&self, state: &mut State, now: Instant, flow: u64, code: ErrorCode) {
        let Some(((_, peer), own)) = state.own.get(flow) else { return };
        if own.refused_until.is_none() {
            count(&self.counters.refused);
            let code = code.to_u8();
            tracing::warn!("the server refuses datagrams to {peer} (code {code})");
        }
        own.refused_until = Some(now + REFUSED_FOR);
        own.known = false;
    }

    fn deliver(&self, state: &State, socket: u32, inbound: Inbound) {
        let taken = match state.sockets.get(&socket) {
            Some(Socket::Datagrams(inbox)) => {
                let bytes = inbound.payload.len();
                inbox.put(inbound, bytes)
            }
            Some(Socket::Echoes(_)) | None => false,
        };
        count(if taken { &self.counters.to_local } else { &self.counters.dropped });
    }
}

impl Inbound {
    fn new(from: Target, payload: &[u8], asked: bool) -> Inbound {
        Inbound { from, payload: payload.to_vec(), asked }
    }
}
