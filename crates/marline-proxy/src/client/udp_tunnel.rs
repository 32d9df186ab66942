//! UDP of applications through a server: their sockets, flows, and the lane that carries them.
//!
//! Sockets come and go with SOCKS associations and forwards. The lane is opened when there is a socket, on a
//! connection to the server that serves only for control, and lasts while there are sockets and a while longer.
//! When that connection ends, for example because the server was restarted, another lane replaces it: flows send
//! their keys again and continue.

pub mod echo;
pub mod echoes;
mod inbox;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use marline::datagrams::{Arrivals, Datagrams};
use marline::memory::MemoryAccount;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::echo::{EchoAnswer, EchoRequest};
pub use self::inbox::Inbox;
use self::inbox::{Delivery, inbox};
use crate::message::ErrorCode;
use crate::target::{Host, Target};
use crate::udp::{
    FlowKey, FlowTable, Item, MAX_FLOWS, MAX_UNSOLICITED_FLOWS, Outbox, SOCKET_NUMBERS,
    UdpCounters, UdpCounts, count,
};

/// Maximum number of application sockets.
const MAX_SOCKETS: usize = 1_024;
/// Maximum number of datagrams that wait for a lane.
const MAX_EARLY_DATAGRAMS: usize = 64;
/// Time after which a waiting datagram is dropped.
const EARLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time of silence after which a flow sends its key again, because the server may have removed it.
const KEY_RESEND_SILENCE: Duration = Duration::from_secs(20);
/// Time for which a refused flow is not tried again.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// A datagram for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundDatagram {
    /// The sender. A peer given by host name keeps the name until the server reports its address.
    pub from: Target,
    /// Payload of the datagram.
    pub payload: Vec<u8>,
    /// True if the application has sent to this peer before.
    pub asked: bool,
}

/// State of a flow that an application started.
#[derive(Copy, Clone, Debug, Default)]
struct OwnFlow {
    /// True if the server has confirmed the flow.
    known: bool,
    /// Address of a named peer.
    address: Option<SocketAddr>,
    refused_until: Option<Instant>,
}

/// A datagram or request that waits for a lane.
#[derive(Debug)]
struct WaitingItem {
    at: Instant,
    socket: u32,
    kind: SentKind,
    payload: Vec<u8>,
}

/// Kind of data from an application, without its bytes.
#[derive(Clone, Debug)]
enum SentKind {
    /// A datagram to this peer.
    Datagram(Target),
    /// An echo request.
    Echo(EchoRequest),
}

/// Receiver of a socket's data.
#[derive(Debug)]
enum Socket {
    Datagrams(Delivery<InboundDatagram>),
    Echoes(Delivery<EchoAnswer>),
}

#[derive(Debug)]
struct State {
    sockets: BTreeMap<u32, Socket>,
    next_socket: u32,
    own: FlowTable<OwnFlow>,
    /// Flows that the server opened.
    unsolicited: FlowTable<()>,
    lane: Option<Arc<Datagrams>>,
    early: VecDeque<WaitingItem>,
    outbox: Outbox,
    /// Last time at which there was a socket.
    used_at: Instant,
    /// Time before which no lane is requested, because the server refused one.
    refused_until: Option<Instant>,
}

/// UDP tunnel of a client.
#[derive(Debug)]
pub struct UdpTunnel {
    state: Mutex<State>,
    counters: UdpCounters,
    /// Notified when a socket is opened.
    socket_opened: Notify,
    memory: MemoryAccount,
}

/// Sending half of an application's socket. Dropping it closes the socket, also at the server.
#[derive(Debug)]
pub struct UdpSender {
    number: u32,
    tunnel: Arc<UdpTunnel>,
}

/// A datagram is larger than the paths currently carry.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("datagram too big: the paths carry at most {most} bytes")]
pub struct TooBig {
    /// Largest size that the paths carry, in bytes.
    pub most: usize,
}

impl UdpSender {
    /// Sends a datagram. It is lost if it cannot be sent: see [`UdpTunnel::counts`].
    ///
    /// # Errors
    /// The datagram is known to be too large.
    pub fn send(&self, peer: &Target, payload: &[u8]) -> Result<(), TooBig> {
        let mut batch = self.tunnel.batch();
        match batch.max_datagram() {
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

    /// Returns the tunnel of the socket.
    pub(super) const fn tunnel(&self) -> &Arc<UdpTunnel> {
        &self.tunnel
    }
}

/// Datagrams from applications, sent together when this is dropped. The tunnel is locked until then.
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
            return self.tunnel.queue_datagram(&mut self.state, self.now, socket, peer, payload);
        }
        self.queue_until_lane(socket, SentKind::Datagram(peer.clone()), payload);
    }

    /// Keeps a datagram or request until there is a lane. If too many wait, the oldest is dropped.
    fn queue_until_lane(&mut self, socket: u32, kind: SentKind, payload: &[u8]) {
        let early = &mut self.state.early;
        if early.len() >= MAX_EARLY_DATAGRAMS {
            early.pop_front();
            count(&self.tunnel.counters.dropped);
        }
        early.push_back(WaitingItem { at: self.now, socket, kind, payload: payload.to_vec() });
    }

    /// Returns the largest datagram that the paths carry, in bytes, if that is known.
    fn max_datagram(&self) -> Option<usize> {
        self.lane.as_ref().and_then(|_| self.state.outbox.max_datagram())
    }

    /// Counts a datagram that is larger than the limit.
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

/// Tunnel for the UDP of a listener, if it carries any.
pub(super) type CurrentUdpTunnel = RwLock<Option<Arc<UdpTunnel>>>;

/// Inbox of an application's socket. Ends when the socket is closed.
pub type UdpInbox = Inbox<InboundDatagram>;

impl Default for UdpTunnel {
    fn default() -> Self {
        UdpTunnel::with_account(MemoryAccount::default())
    }
}

impl UdpTunnel {
    /// Creates a tunnel whose waiting datagrams are charged to this account.
    #[must_use]
    pub fn with_account(memory: MemoryAccount) -> Self {
        let state = State {
            sockets: BTreeMap::new(),
            next_socket: 0,
            own: FlowTable::new(2, MAX_FLOWS),
            unsolicited: FlowTable::new(1, MAX_UNSOLICITED_FLOWS),
            lane: None,
            early: VecDeque::new(),
            outbox: Outbox::default(),
            used_at: Instant::now(),
            refused_until: None,
        };
        UdpTunnel {
            state: Mutex::new(state),
            counters: UdpCounters::default(),
            socket_opened: Notify::new(),
            memory,
        }
    }
}

/// Interface for applications.
impl UdpTunnel {
    /// Returns a socket for an application, or `None` if there are too many.
    pub fn socket(self: &Arc<Self>) -> Option<(UdpSender, UdpInbox)> {
        let (delivery, inbox) = inbox(&self.memory);
        Some((self.open(Socket::Datagrams(delivery))?, inbox))
    }

    fn open(self: &Arc<Self>, socket: Socket) -> Option<UdpSender> {
        let mut state = self.lock();
        if state.sockets.len() >= MAX_SOCKETS {
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
        self.socket_opened.notify_one();
        Some(UdpSender { number, tunnel: Arc::clone(self) })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> UdpCounts {
        self.counters.now()
    }

    /// Returns true if there is a lane.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.lock().lane.is_some()
    }

    /// Returns true if the server refuses a lane. A lane is requested again later, when an application sends.
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
        state.unsolicited.remove_socket(socket);
        state.used_at = Instant::now();
        if let Some(lane) = &state.lane {
            state.outbox.push(0, &Item::Closed { socket });
            state.outbox.flush(lane, &self.counters);
        }
    }

    /// Starts a batch of datagrams that are sent together.
    pub(super) fn batch(&self) -> Batch<'_> {
        let mut state = self.lock();
        let lane = state.lane.clone();
        if let Some(lane) = &lane {
            state.outbox.set_largest(lane.largest());
        }
        Batch { tunnel: self, state, lane, now: Instant::now() }
    }

    /// Puts a datagram into the outbox.
    fn queue_datagram(
        &self,
        state: &mut State,
        now: Instant,
        socket: u32,
        peer: &Target,
        payload: &[u8],
    ) {
        let key = FlowKey { socket, peer: peer.clone() };
        // A peer that the server announced first already has a flow, but one of our own works equally well.
        let flow = match state.own.find(&key) {
            Some(flow) => flow,
            None => {
                let (flow, full) = state.own.open(key, OwnFlow::default(), now);
                count(&self.counters.flows);
                if full {
                    count(&self.counters.flows_forgotten);
                }
                flow
            }
        };
        let Some((_, own, before)) = state.own.mark_used(flow, now) else { return };
        if own.refused_until.is_some_and(|until| now < until) {
            return count(&self.counters.dropped);
        }
        own.refused_until = None;
        own.known &= now.duration_since(before) < KEY_RESEND_SILENCE;
        if own.known {
            state.outbox.push(flow, &Item::Data(payload));
        } else {
            state.outbox.describe(flow, socket, peer, payload);
        }
    }
}

/// Interface for the lane.
impl UdpTunnel {
    /// Resolves when there is a socket.
    pub(super) async fn wait_for_socket(&self) {
        loop {
            let notified = self.socket_opened.notified();
            if !self.lock().sockets.is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Returns the time since there was last a socket.
    pub(super) fn idle_time(&self) -> Duration {
        let state = self.lock();
        if state.sockets.is_empty() { state.used_at.elapsed() } else { Duration::ZERO }
    }

    /// Records that the server refuses a lane, so that none is requested for this period. Waiting datagrams are
    /// dropped.
    pub(super) fn pause_after_refusal(&self, period: Duration) {
        let mut state = self.lock();
        state.refused_until = Some(Instant::now() + period);
        for _ in std::mem::take(&mut state.early) {
            count(&self.counters.dropped);
        }
    }

    /// Uses this lane from now on. The server does not know any flow yet.
    pub(super) fn attach(&self, lane: Arc<Datagrams>) {
        let now = Instant::now();
        let mut state = self.lock();
        let state = &mut *state;
        state.own.states().for_each(|own| own.known = false);
        state.unsolicited = FlowTable::new(1, MAX_UNSOLICITED_FLOWS);
        state.outbox.set_largest(lane.largest());
        for early in std::mem::take(&mut state.early) {
            if now.duration_since(early.at) > EARLY_TIMEOUT {
                count(&self.counters.dropped);
            } else if state.sockets.contains_key(&early.socket) {
                match early.kind {
                    SentKind::Datagram(peer) => {
                        self.queue_datagram(state, now, early.socket, &peer, &early.payload);
                    }
                    SentKind::Echo(request) => request.queue(state, early.socket, &early.payload),
                }
            }
        }
        state.outbox.flush(&lane, &self.counters);
        state.lane = Some(lane);
        state.refused_until = None;
    }

    /// Removes the lane.
    pub(super) fn detach(&self) {
        self.lock().lane = None;
    }

    /// Handles arrivals on the lane.
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
            Item::Data(payload) => match state.unsolicited.mark_used(flow, now) {
                Some((key, ..)) => {
                    let (socket, from) = (key.socket, key.peer.clone());
                    self.deliver(state, socket, InboundDatagram::new(from, payload, false));
                }
                None => {
                    count(&self.counters.unknown);
                    state.outbox.push(flow, &Item::Unknown);
                }
            },
            Item::Open { socket, peer, payload } if !ours => {
                self.on_unsolicited(state, now, flow, FlowKey { socket, peer: peer.clone() });
                self.deliver(state, socket, InboundDatagram::new(peer, payload, false));
            }
            Item::Announce { socket, peer } if !ours => {
                self.on_unsolicited(state, now, flow, FlowKey { socket, peer });
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
        let Some((key, own, _)) = state.own.mark_used(flow, now) else {
            return count(&self.counters.unknown);
        };
        let from = match own.address {
            Some(address) => Target { host: Host::from(address.ip()), port: address.port() },
            None => key.peer.clone(),
        };
        let socket = key.socket;
        self.deliver(state, socket, InboundDatagram::new(from, payload, true));
    }

    /// Handles the server's announcement of a peer that sent first.
    fn on_unsolicited(&self, state: &mut State, now: Instant, flow: u64, key: FlowKey) {
        if state.unsolicited.find(&key) != Some(flow) {
            count(&self.counters.flows);
            if state.unsolicited.insert(flow, key, (), now) {
                count(&self.counters.flows_forgotten);
            }
        }
        state.outbox.push(flow, &Item::Known(None));
    }

    fn on_refused(&self, state: &mut State, now: Instant, flow: u64, code: ErrorCode) {
        let Some((FlowKey { peer, .. }, own)) = state.own.get(flow) else { return };
        if own.refused_until.is_none() {
            count(&self.counters.refused);
            let code = code.to_u8();
            tracing::warn!("the server refuses datagrams to {peer} (code {code})");
        }
        own.refused_until = Some(now + REFUSAL_PAUSE);
        own.known = false;
    }

    fn deliver(&self, state: &State, socket: u32, inbound: InboundDatagram) {
        let taken = match state.sockets.get(&socket) {
            Some(Socket::Datagrams(inbox)) => {
                let bytes = inbound.payload.len();
                inbox.push(inbound, bytes)
            }
            Some(Socket::Echoes(_)) | None => false,
        };
        count(if taken { &self.counters.to_local } else { &self.counters.dropped });
    }
}

impl InboundDatagram {
    fn new(from: Target, payload: &[u8], asked: bool) -> InboundDatagram {
        InboundDatagram { from, payload: payload.to_vec(), asked }
    }
}
