//! The Endpoint: five calls, and the application's commands.

mod commands;
mod cookie;
pub(crate) mod demux;
mod flows;
mod listener;
pub(crate) mod oracle;
pub(crate) mod time_wait;
mod waiting;
mod wakeups;

use std::collections::VecDeque;

use marline_time::{Instant, Rng};
use marline_wire::{TcpFlags, TcpSegment, verify_tcp_checksum};

use self::demux::{Demux, FlowRef};
use self::time_wait::{TIME_WAIT_BIT, TimeWait};
use self::waiting::Waiting;
use self::wakeups::Wakeups;
use crate::connection::{ChunkPool, Connection, SparedPaths};
use crate::initial::InitialNumbers;
use crate::network_memory::NetworkMemory;
use crate::shared::{AnswerBudget, Shared};
use crate::{
    ChecksumScope, ConnectionId, Counters, EndpointConfig, Event, PacketMeta, Transmit, TransmitBuf,
};

/// All connections of one shard.
///
/// Drive it with the five calls ([`handle_packet`](Self::handle_packet),
/// [`handle_timeout`](Self::handle_timeout), [`poll_transmit`](Self::poll_transmit),
/// [`poll_timeout`](Self::poll_timeout), [`poll_event`](Self::poll_event)) and the commands. After
/// each `handle_*` or command: drain `poll_transmit`, then ask `poll_timeout`, then drain
/// `poll_event`. The time passed in must never go back.
#[derive(Debug)]
pub struct Endpoint {
    shared: Shared,
    slab: Vec<Slot>,
    free: Vec<u32>,
    count: usize,
    /// Slots of connections that may have something to send, each at most once.
    ready: VecDeque<u32>,
    wakeups: Wakeups,
    waiting: Waiting,
    seat: Option<oracle::Seat>,
    /// When a SYN was last answered by a cookie.
    cookie_sent_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    connection: Option<Box<Connection>>,
    generation: u32,
}

impl Endpoint {
    /// A new endpoint. `rng` draws keys, nonces, ids and the secret behind ISNs: it must be unpredictable in real use.
    #[must_use]
    pub fn new(config: EndpointConfig, mut rng: Box<dyn Rng>) -> Self {
        let demux = Demux::new(rng.next_u64());
        let initial = InitialNumbers::draw(rng.as_mut());
        let time_wait = TimeWait::new(config.limits.time_wait);
        let answers = AnswerBudget::new(config.limits.challenges_per_s);
        let challenges = AnswerBudget::new(config.limits.challenges_per_s);
        Endpoint {
            shared: Shared {
                config,
                rng,
                initial,
                counters: Counters::default(),
                events: VecDeque::new(),
                demux,
                local_ports: None,
                short_of_ports: false,
                time_wait,
                networks: NetworkMemory::default(),
                pool: ChunkPool::default(),
                half_open: VecDeque::new(),
                half_open_count: 0,
                strays: VecDeque::new(),
                answers,
                spared: SparedPaths::default(),
                challenges,
                oracle: oracle::OracleView::default(),
            },
            slab: Vec::new(),
            free: Vec::new(),
            count: 0,
            ready: VecDeque::new(),
            wakeups: Wakeups::default(),
            waiting: Waiting::default(),
            seat: None,
            cookie_sent_at: None,
        }
    }

    /// A segment (from the TCP header on) came in. Whatever its bytes are, this does not panic; what
    /// cannot be used is counted in [`counters`](Self::counters).
    pub fn handle_packet(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        let counters = &mut self.shared.counters;
        counters.segments_in += 1;
        let addresses = match self.shared.config.capabilities.checksum {
            ChecksumScope::WithAddresses => Some((meta.path.remote.ip(), meta.path.local.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        if !meta.checksum_verified && !verify_tcp_checksum(addresses, segment) {
            counters.checksum_errors += 1;
            return;
        }
        let Ok(segment) = TcpSegment::parse(segment) else {
            counters.parse_errors += 1;
            return;
        };
        counters.bytes_in += segment.payload.len() as u64;
        let found = self.shared.demux.find(&meta.path, meta.flow, meta.peer_flow);
        match found {
            Some(FlowRef { slot, .. }) if slot & TIME_WAIT_BIT != 0 => {
                self.on_straggler(now, meta, &segment, slot);
            }
            Some(flow) => self.on_segment(now, meta, &segment, flow),
            None => self.on_unknown(now, meta, &segment),
        }
    }

    fn on_segment(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        flow: FlowRef,
    ) {
        let slot = flow.slot;
        let Some(connection) = self.slab.get_mut(slot as usize).and_then(|s| s.connection.as_mut())
        else {
            return;
        };
        if meta.peer_flow != 0 {
            connection.learn_peer_flow(&mut self.shared, flow.subflow, meta.peer_flow, segment);
        }
        connection.on_segment(now, &mut self.shared, flow.subflow, segment, meta.ecn);
        self.after(now, slot);
    }

    /// A segment for no subflow: a SYN, a late one, or nonsense.
    fn on_unknown(&mut self, now: Instant, meta: &PacketMeta, segment: &TcpSegment<'_>) {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) {
            self.shared.counters.no_such_flow += 1;
            return;
        }
        let is_syn = flags.contains(TcpFlags::SYN)
            && !flags.contains(TcpFlags::ACK)
            && !flags.contains(TcpFlags::FIN);
        if is_syn && meta.flow == 0 {
            self.on_syn(now, meta, segment);
            return;
        }
        if meta.flow == 0 && meta.peer_flow == 0 && self.takes_cookie(now, meta, segment) {
            return;
        }
        self.shared.counters.no_such_flow += 1;
        // Who listens answers only what acknowledges something (RFC 9293 section 3.10.7.2); where nobody
        // does, everything is answered.
        if flags.contains(TcpFlags::ACK) || self.shared.config.accept.is_none() {
            self.answer_with_reset(now, meta, segment);
        }
    }

    /// The time of [`poll_timeout`](Self::poll_timeout) has come. Early or late is harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Shared { time_wait, demux, events, .. } = &mut self.shared;
        time_wait.expire(now, demux, events);
        while let Some((at, slot)) = self.wakeups.pop_due(now) {
            let entry = self.slab.get_mut(slot as usize).and_then(|s| s.connection.as_mut());
            // An alarm that an earlier one replaced must not set another: they would only get more.
            let Some(connection) = entry.filter(|c| c.armed == at) else { continue };
            connection.armed = Instant::FAR_FUTURE;
            if connection.next_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(now, &mut self.shared);
            }
            self.touched(slot);
        }
        self.see_oracle(now);
    }

    /// Fills `buf` with the next batch of datagrams, all for one path. Clears it first. `None`:
    /// nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<Transmit> {
        buf.clear();
        if let Some(transmit) = self.emit_stray(buf) {
            return Some(transmit);
        }
        while let Some(slot) = self.ready.front().copied() {
            let connection = self.slab.get_mut(slot as usize).and_then(|s| s.connection.as_mut());
            if let Some(connection) = connection {
                if let Some(transmit) = connection.poll_transmit(now, &mut self.shared, buf) {
                    self.ready.rotate_left(1);
                    return Some(transmit);
                }
                buf.clear();
                connection.queued = false;
            }
            self.ready.pop_front();
            self.count_waiting(now, slot);
            self.settle(slot);
        }
        None
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called. May be earlier than anything is
    /// due, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.wakeups.next();
        let time_wait = self.shared.time_wait.next_timeout();
        let oracle =
            self.seat.as_ref().filter(|_| self.count > 0).and_then(oracle::Seat::next_timeout);
        [connections, time_wait, oracle].into_iter().flatten().min()
    }

    /// Whether subflows that ended are remembered (TIME-WAIT), for stragglers to be answered.
    #[must_use]
    pub fn in_time_wait(&self) -> bool {
        self.shared.time_wait.next_timeout().is_some()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// Counts since the start.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// A connection was touched: it may have something to send, a new deadline, or be gone.
    fn after(&mut self, now: Instant, slot: u32) {
        self.touched(slot);
        self.count_waiting(now, slot);
        self.see_oracle(now);
    }

    fn touched(&mut self, slot: u32) {
        let Some(connection) = self.slab.get_mut(slot as usize).and_then(|s| s.connection.as_mut())
        else {
            return;
        };
        if !core::mem::replace(&mut connection.queued, true) {
            self.ready.push_back(slot);
        }
    }

    /// A connection has nothing to send now: set its alarm, or take it out if it is over.
    fn settle(&mut self, slot: u32) {
        let Some(entry) = self.slab.get_mut(slot as usize) else { return };
        let Some(connection) = entry.connection.as_mut() else { return };
        if connection.is_gone() {
            connection.forget_token(&mut self.shared);
            entry.connection = None;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(slot);
            self.count -= 1;
            self.shared.pool.settle(self.count);
            return;
        }
        let Some(at) = connection.next_timeout() else { return };
        if at < connection.armed {
            connection.armed = at;
            self.wakeups.push(at, slot);
        }
        if self.wakeups.is_overgrown(self.count) {
            let slab = &self.slab;
            let armed = |slot: u32| slab.get(slot as usize)?.connection.as_ref().map(|c| c.armed);
            self.wakeups.sweep(|at, slot| armed(slot) == Some(at));
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        let entry = self.slab.get(id.0 as u32 as usize)?;
        entry.connection.as_deref().filter(|c| c.id == id)
    }

    /// Runs a command on a connection, and what follows from it.
    fn with<R>(
        &mut self,
        now: Instant,
        id: ConnectionId,
        command: impl FnOnce(&mut Connection, &mut Shared) -> R,
    ) -> Option<R> {
        let slot = id.0 as u32;
        let connection = self.slab.get_mut(slot as usize)?.connection.as_mut()?;
        if connection.id != id {
            return None;
        }
        let result = command(connection, &mut self.shared);
        self.after(now, slot);
        Some(result)
    }

    /// Puts a connection into the slab. `make` gets its id and slot.
    fn insert(&mut self, make: impl FnOnce(&mut Shared, ConnectionId, u32) -> Connection) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Slot::default());
            (self.slab.len() - 1) as u32
        });
        let generation = self.slab[slot as usize].generation;
        let id = ConnectionId(u64::from(generation) << 32 | u64::from(slot));
        let connection = make(&mut self.shared, id, slot);
        self.slab[slot as usize].connection = Some(Box::new(connection));
        self.count += 1;
        slot
    }
}
