//! Translation of a client's UDP (RFC 4787): a UDP socket of the server for each socket of an application.
//!
//! The mapping is endpoint-independent: every peer of an application's socket sees the same address and port. The
//! server decides which other peers may send there ([`filter`]). Their datagrams reach the client in a flow that
//! the server opens. The rules for targets apply in both directions, but clients of this server can always reach
//! each other at their mapped ports ([`mapped_ports`]). A mapping lasts 300 s after its last use, or 30 s if it was
//! used only for DNS. Datagrams from peers without a flow do not count as use, so that an unknown peer cannot keep
//! a mapping open.

pub(super) mod echo_mapping;
mod echoes;
pub(super) mod filter;
pub(super) mod mapped_ports;
mod names;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use marline::datagrams::{Arrivals, Datagrams};
use socket2::{Domain, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Client;
use super::admission::{Permit, Quota};
use crate::message::ErrorCode;
use crate::rules::{Refused, Rules};
use crate::target::Target;
use crate::udp::{
    DNS_PORT, FlowKey, FlowTable, Item, MAX_APPLICATION_DATAGRAM, MAX_FLOWS, MAX_UNSOLICITED_FLOWS,
    Outbox, UdpCounters, UdpCounts, count, idle_limit, send_to,
};
use echo_mapping::{Echoes, PermissionLogged, Request};
use filter::{
    UdpFiltering, UnsolicitedFlow, UnsolicitedRates, UnsolicitedReaction, set_unsolicited,
};
use mapped_ports::{MappedPort, MappedPorts};
use names::MAX_LOOKUPS;

/// Interval between checks for idle sockets.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of datagrams of a flow that wait for the lookup of its name.
const MAX_WAITING_DATAGRAMS: usize = 8;
/// Maximum number of datagrams kept for flows whose Open has not arrived.
const MAX_EARLY_DATAGRAMS: usize = 16;
/// Maximum number of datagrams read from a socket in one turn.
const DATAGRAMS_PER_TURN: usize = 32;

/// A UDP socket of one family, and the task that reads it.
#[derive(Debug)]
struct FamilySocket {
    /// First field: dropped before the socket.
    _port: MappedPort,
    socket: Arc<UdpSocket>,
    reader: AbortHandle,
}

/// Route to a peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum PeerRoute {
    /// The peer has an address that the rules allow.
    Allowed,
    /// The peer has an address of the server itself, and its port is mapped to a client's socket.
    Hairpin,
}

/// A peer, by its address.
#[derive(Copy, Clone, Debug)]
struct Peer {
    address: SocketAddr,
    route: PeerRoute,
}

impl Drop for FamilySocket {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Sockets of the server for one socket of an application.
#[derive(Debug)]
struct Mapping {
    ipv4: Option<FamilySocket>,
    ipv6: Option<FamilySocket>,
    used_at: Instant,
    only_dns: bool,
    ports: MappedPorts,
    _place: Permit<Arc<str>>,
}

impl Mapping {
    /// Creates a mapping without sockets that occupies `place`.
    fn new(now: Instant, ports: MappedPorts, place: Permit<Arc<str>>) -> Mapping {
        Mapping { ipv4: None, ipv6: None, used_at: now, only_dns: true, ports, _place: place }
    }

    /// Returns the time of the last use.
    const fn used_at(&self) -> Instant {
        self.used_at
    }

    /// Records an answer from a peer.
    const fn on_answer(&mut self, now: Instant) {
        self.used_at = now;
    }

    /// Returns true if the mapping has been unused for longer than its idle limit.
    fn is_idle(&self, now: Instant) -> bool {
        self.used_at + idle_limit(self.only_dns) <= now
    }

    fn sends(&mut self, now: Instant, to: SocketAddr) {
        self.used_at = now;
        self.only_dns &= to.port() == DNS_PORT;
    }

    /// Sends a datagram. `read` starts a task that reads a new socket.
    ///
    /// # Errors
    /// No socket could be opened, or sending failed. `ConnectionRefused` means a port of the server itself that is no
    /// longer mapped.
    fn send(
        &mut self,
        now: Instant,
        peer: Peer,
        payload: &[u8],
        read: impl FnOnce(Arc<UdpSocket>) -> AbortHandle,
    ) -> io::Result<()> {
        let Peer { address: to, route } = peer;
        self.sends(now, to);
        let half = if to.is_ipv4() { &mut self.ipv4 } else { &mut self.ipv6 };
        let half = match half {
            Some(half) => half,
            None => {
                let socket = Arc::new(open_socket(to.is_ipv6())?);
                let _port = self.ports.add(socket.local_addr()?);
                let reader = read(Arc::clone(&socket));
                half.insert(FamilySocket { _port, socket, reader })
            }
        };
        let send = || send_to(&half.socket, payload, to).map(drop);
        match route {
            PeerRoute::Allowed => send(),
            PeerRoute::Hairpin => {
                self.ports.send(to, send).unwrap_or(Err(io::ErrorKind::ConnectionRefused.into()))
            }
        }
    }
}

/// State of a flow that the client opened.
#[derive(Debug)]
enum Flow {
    /// The peer's name is being resolved, and these datagrams wait.
    LookedUp(Vec<Vec<u8>>),
    /// The peer, and whether the client named it by host name.
    Open { peer: Peer, named: bool },
    /// The flow is not allowed or not possible.
    Refused(ErrorCode),
}

#[derive(Debug)]
struct State {
    sockets: BTreeMap<u32, Mapping>,
    flows: FlowTable<Flow>,
    unsolicited: FlowTable<UnsolicitedFlow>,
    unsolicited_rates: UnsolicitedRates,
    early: VecDeque<(u64, Vec<u8>)>,
    outbox: Outbox,
    echoes: Echoes,
}

/// State shared by the translations of all clients.
#[derive(Clone, Debug)]
pub(super) struct SharedNatState {
    /// Sockets of each client.
    places: Arc<Quota<Arc<str>>>,
    ports: MappedPorts,
    counters: Arc<UdpCounters>,
    is_echo_refusal_logged: PermissionLogged,
}

impl SharedNatState {
    /// Creates the state of a server whose clients may have this many sockets.
    pub(super) fn new(places: Quota<Arc<str>>) -> SharedNatState {
        let (ports, counters, echoes_told) = Default::default();
        SharedNatState {
            places: Arc::new(places),
            ports,
            counters,
            is_echo_refusal_logged: echoes_told,
        }
    }

    /// Returns the counts of relayed UDP.
    pub(super) fn counts(&self) -> UdpCounts {
        self.counters.now()
    }
}

/// UDP translation for one client.
#[derive(Debug)]
pub(super) struct Nat {
    lane: Datagrams,
    client: Client,
    rules: watch::Receiver<Arc<Rules>>,
    filtering: UdpFiltering,
    shared: SharedNatState,
    lookups: Arc<Semaphore>,
    state: Mutex<State>,
    weak_self: Weak<Nat>,
}

/// Items from the client.
impl Nat {
    /// Creates a translation without sockets.
    pub(super) fn new(
        lane: Datagrams,
        client: Client,
        rules: watch::Receiver<Arc<Rules>>,
        filtering: UdpFiltering,
        shared: SharedNatState,
    ) -> Arc<Nat> {
        let state = Mutex::new(State {
            sockets: BTreeMap::new(),
            flows: FlowTable::new(2, MAX_FLOWS),
            unsolicited: FlowTable::new(1, MAX_UNSOLICITED_FLOWS),
            unsolicited_rates: UnsolicitedRates::default(),
            early: VecDeque::new(),
            outbox: Outbox::default(),
            echoes: Echoes::default(),
        });
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Arc::new_cyclic(|weak_self| {
            let weak_self = Weak::clone(weak_self);
            Nat { lane, client, rules, filtering, shared, lookups, state, weak_self }
        })
    }

    /// Returns the client's lane.
    pub(super) const fn lane(&self) -> &Datagrams {
        &self.lane
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles items that arrived on the lane.
    pub(super) fn on_arrivals(&self, arrivals: &Arrivals) {
        let now = Instant::now();
        let mut state = self.lock();
        for (flow, bytes) in arrivals.datagrams() {
            match Item::decode(bytes) {
                Ok(item) => self.on_item(&mut state, now, flow.0, item),
                Err(_) => count(&self.shared.counters.unknown),
            }
        }
        state.outbox.flush(&self.lane, &self.shared.counters);
    }

    fn on_item(&self, state: &mut State, now: Instant, flow: u64, item: Item<'_>) {
        let clients = flow.is_multiple_of(2);
        match item {
            Item::Data(payload) if clients => self.on_data(state, now, flow, payload),
            Item::Data(payload) => self.on_answer(state, now, flow, payload),
            Item::Open { socket, peer, payload } if clients => {
                self.on_open(state, now, flow, FlowKey { socket, peer }, Some(payload));
            }
            Item::Announce { socket, peer } if clients => {
                self.on_open(state, now, flow, FlowKey { socket, peer }, None);
            }
            Item::Known(_) => set_unsolicited(state, flow, UnsolicitedReaction::Known),
            Item::Unknown => set_unsolicited(state, flow, UnsolicitedReaction::New),
            Item::Refused(_) => set_unsolicited(state, flow, UnsolicitedReaction::Unwanted),
            Item::Closed { socket } => remove_socket(state, socket),
            Item::Echo { socket, hops, sequence, to, payload } => {
                self.on_echo(state, now, &Request { socket, hops, sequence, to, payload });
            }
            Item::Open { .. }
            | Item::Announce { .. }
            | Item::Replied { .. }
            | Item::Failed { .. } => count(&self.shared.counters.unknown),
        }
    }

    /// Handles a datagram of a flow that the client opened.
    fn on_data(&self, state: &mut State, now: Instant, flow: u64, payload: &[u8]) {
        match state.flows.mark_used(flow, now) {
            Some((key, Flow::Open { peer, .. }, _)) => {
                let (socket, peer) = (key.socket, *peer);
                self.forward(state, now, socket, peer, payload);
            }
            Some((_, Flow::LookedUp(waiting), _)) => {
                if waiting.len() < MAX_WAITING_DATAGRAMS {
                    waiting.push(payload.to_vec());
                } else {
                    count(&self.shared.counters.dropped);
                }
            }
            Some((_, Flow::Refused(code), _)) => {
                let code = *code;
                state.outbox.push(flow, &Item::Refused(code));
            }
            None => {
                count(&self.shared.counters.unknown);
                if state.early.len() >= MAX_EARLY_DATAGRAMS {
                    state.early.pop_front();
                }
                state.early.push_back((flow, payload.to_vec()));
                state.outbox.push(flow, &Item::Unknown);
            }
        }
    }

    /// Handles the client's announcement of a flow's peer.
    fn on_open(
        &self,
        state: &mut State,
        now: Instant,
        flow: u64,
        key: FlowKey,
        payload: Option<&[u8]>,
    ) {
        let known = state.flows.find(&key) == Some(flow);
        if !known {
            self.begin_flow(state, now, flow, key);
        }
        match state.flows.get(flow).map(|(_, flow)| flow) {
            Some(Flow::Open { peer, named }) => {
                let address = named.then_some(peer.address);
                state.outbox.push(flow, &Item::Known(address));
            }
            Some(Flow::Refused(code)) => {
                let code = *code;
                state.outbox.push(flow, &Item::Refused(code));
                return;
            }
            Some(Flow::LookedUp(_)) | None => {}
        }
        if let Some(payload) = payload {
            self.on_data(state, now, flow, payload);
        }
        if !known {
            let early = std::mem::take(&mut state.early);
            for (of, payload) in early {
                match of == flow {
                    true => self.on_data(state, now, flow, &payload),
                    false => state.early.push_back((of, payload)),
                }
            }
        }
    }

    fn begin_flow(&self, state: &mut State, now: Instant, flow: u64, key: FlowKey) {
        count(&self.shared.counters.flows);
        let begun = match self.map_socket(state, now, key.socket) {
            Err(code) => Flow::Refused(code),
            Ok(()) => match address_of(&key.peer) {
                Some(address) => self.apply_rules(address),
                None => self.look_up(flow, &key),
            },
        };
        if let Flow::Refused(_) = begun {
            count(&self.shared.counters.refused);
        }
        if state.flows.insert(flow, key, begun, now) {
            count(&self.shared.counters.flows_forgotten);
        }
    }

    /// Returns the route by which the rules allow a peer to be reached.
    fn route_to(&self, address: SocketAddr) -> Result<PeerRoute, Refused> {
        let checked = self.rules.borrow().check(address.ip());
        match checked {
            Ok(()) => Ok(PeerRoute::Allowed),
            Err(Refused::Own { .. }) if self.shared.ports.contains(address) => {
                Ok(PeerRoute::Hairpin)
            }
            Err(refused) => Err(refused),
        }
    }

    /// Applies the rules to an address.
    fn apply_rules(&self, address: SocketAddr) -> Flow {
        match self.route_to(address) {
            Ok(route) => Flow::Open { peer: Peer { address, route }, named: false },
            Err(refused) => {
                tracing::warn!(client = %self.client.name, "datagrams to {address} refused: {refused}");
                Flow::Refused(refused.code())
            }
        }
    }
}

/// Sockets.
impl Nat {
    /// Creates the socket for an application's socket if it does not exist.
    fn map_socket(&self, state: &mut State, now: Instant, socket: u32) -> Result<(), ErrorCode> {
        if state.sockets.contains_key(&socket) {
            return Ok(());
        }
        let place = loop {
            match self.shared.places.take_permit(Arc::clone(&self.client.name)) {
                Ok(place) => break place,
                Err(_) if self.forget_oldest(state) => {}
                Err(_) => return Err(ErrorCode::ResourceExceeded),
            }
        };
        count(&self.shared.counters.sockets);
        state.sockets.insert(socket, Mapping::new(now, self.shared.ports.clone(), place));
        Ok(())
    }

    /// Removes the least recently used socket. Returns `false` if there is none.
    fn forget_oldest(&self, state: &mut State) -> bool {
        let oldest = state.sockets.iter().min_by_key(|(_, mapping)| mapping.used_at());
        let Some(oldest) = oldest.map(|(socket, _)| *socket) else { return false };
        count(&self.shared.counters.sockets_forgotten);
        remove_socket(state, oldest);
        true
    }

    /// Returns true if any of the client's sockets is mapped.
    pub(super) fn has_sockets(&self) -> bool {
        !self.lock().sockets.is_empty()
    }

    /// Removes idle sockets.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let idle = state.sockets.iter().filter(|(_, mapping)| mapping.is_idle(now));
        let idle: Vec<u32> = idle.map(|(socket, _)| *socket).collect();
        idle.into_iter().for_each(|socket| remove_socket(&mut state, socket));
        state.echoes.sweep(now);
    }

    /// Sends a datagram to a peer.
    fn forward(&self, state: &mut State, now: Instant, socket: u32, peer: Peer, payload: &[u8]) {
        if let Err(code) = self.map_socket(state, now, socket) {
            tracing::debug!(client = %self.client.name, "datagram dropped: no socket (code {})", code.to_u8());
            return count(&self.shared.counters.dropped);
        }
        let Some(mapping) = state.sockets.get_mut(&socket) else { return };
        let read = |opened| {
            tokio::spawn(read(Weak::clone(&self.weak_self), opened, socket)).abort_handle()
        };
        match mapping.send(now, peer, payload, read) {
            Ok(()) => {
                self.client.account.traffic.count(0, payload.len() as u64);
                count(&self.shared.counters.to_local);
            }
            // 90 is EMSGSIZE, for which there is no error kind.
            Err(error) if error.raw_os_error() == Some(90) => count(&self.shared.counters.too_big),
            Err(error) => {
                tracing::debug!(client = %self.client.name, to = %peer.address, "datagram not sent: {error}");
                count(&self.shared.counters.dropped);
            }
        }
    }

    /// Reads datagrams for an application's socket. After an error, an immediate retry would fail as well.
    fn drain(&self, number: u32, socket: &UdpSocket) -> io::Result<()> {
        // One byte more than the limit, so that a longer datagram is detected.
        let mut buffer = [0; MAX_APPLICATION_DATAGRAM + 1];
        let now = Instant::now();
        let mut state = self.lock();
        state.outbox.set_largest(self.lane.largest());
        let mut result = Ok(());
        for _ in 0..DATAGRAMS_PER_TURN {
            match socket.try_recv_from(&mut buffer) {
                Ok((len, _)) if len > MAX_APPLICATION_DATAGRAM => {
                    count(&self.shared.counters.too_big)
                }
                Ok((len, from)) => {
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    self.on_inbound(&mut state, now, number, from, &buffer[..len]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        state.outbox.flush(&self.lane, &self.shared.counters);
        result
    }

    /// Handles a datagram from a peer.
    fn on_inbound(
        &self,
        state: &mut State,
        now: Instant,
        socket: u32,
        from: SocketAddr,
        payload: &[u8],
    ) {
        count(&self.shared.counters.from_local);
        let peer = Target { host: from.ip().into(), port: from.port() };
        let key = FlowKey { socket, peer };
        if let Some(flow) = state.flows.find(&key) {
            self.client.account.traffic.count(payload.len() as u64, 0);
            state.flows.mark_used(flow, now);
            if let Some(mapping) = state.sockets.get_mut(&socket) {
                mapping.on_answer(now);
            }
            return state.outbox.push(flow, &Item::Data(payload));
        }
        self.on_unsolicited(state, now, key, from, payload);
    }
}

fn remove_socket(state: &mut State, socket: u32) {
    state.sockets.remove(&socket);
    state.echoes.remove(socket);
    state.flows.remove_socket(socket);
    state.unsolicited.remove_socket(socket);
}

/// Returns the address of a peer that was not given by name.
fn address_of(peer: &Target) -> Option<SocketAddr> {
    let address = peer.host.as_name().err()?;
    Some(SocketAddr::new(address.to_canonical(), peer.port))
}

fn open_socket(ipv6: bool) -> io::Result<UdpSocket> {
    let (domain, any) = match ipv6 {
        true => (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        false => (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if ipv6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&any.into())?;
    UdpSocket::from_std(socket.into())
}

/// Reads a socket until the client is gone.
async fn read(nat: Weak<Nat>, socket: Arc<UdpSocket>, number: u32) {
    const PAUSE: Duration = Duration::from_millis(20);
    while socket.readable().await.is_ok() {
        let Some(nat) = nat.upgrade() else { return };
        let drained = nat.drain(number, &socket);
        drop(nat);
        match drained {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => {
                tracing::debug!("cannot read a UDP socket; retrying: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
