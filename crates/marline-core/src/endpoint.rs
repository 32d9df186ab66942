//! Endpoint: the five calls of a driver, and the application's reads and writes. Other commands are in
//! `endpoint/commands.rs`.

mod commands;
mod cookie;
mod fast_open;
mod flows;
mod half_open;
mod listener;
mod oldest_first;
pub(crate) mod ownership;
pub(crate) mod path_health;
mod requests;
mod silent_paths;
mod slots;
mod wakeups;

use std::collections::VecDeque;
use std::sync::Arc;

use marline_time::{DelayHistogram, Instant, Rng};
use marline_wire::{TcpFlags, TcpSegment, verify_tcp_checksum};

use self::half_open::HalfOpen;
use self::oldest_first::OldestFirst;
use self::slots::Slots;
use self::wakeups::Wakeups;
use crate::connection::{Connection, WrittenBytes};
use crate::on_demand::OnDemand;
use crate::subflow::Workspace;
use crate::tables::Context;
use crate::tables::cookie_keys::CookieKeys;
use crate::tables::demux::FlowRef;
use crate::tables::fast_join_memory::FastJoinMemory;
use crate::tables::fast_open_memory::FastOpenMemory;
use crate::tables::flow_table::FlowTable;
use crate::tables::network_memory::NetworkMemory;
use crate::tables::outbox::Outbox;
use crate::tables::path_faults::PathFaults;
use crate::tables::path_queues::PathQueues;
use crate::tables::reply_budget::ReplyBudget;
use crate::tables::requests::Requests;
use crate::tables::scheduler_scratch::SchedulerScratch;
use crate::tables::silent_paths::SilentPaths;
use crate::tables::subflow_settings::SubflowSettings;
use crate::tables::time_wait::TIME_WAIT_BIT;
use crate::{
    ChecksumScope, ConnectionConfig, ConnectionId, Counters, EndpointConfig, Event, MemoryAccount,
    PacketMeta, ReadError, TrafficFilter, Transmit, TransmitBuf, WriteError,
};

/// Maximum number of outdated deadlines updated per call. With many busy connections, the wake-up is needed anyway.
const MAX_DEADLINE_UPDATES: usize = 4;

/// All connections of one shard.
///
/// Drive it with the five calls ([`handle_packet`](Self::handle_packet), [`handle_timeout`](Self::handle_timeout),
/// [`poll_transmit`](Self::poll_transmit), [`poll_timeout`](Self::poll_timeout), [`poll_event`](Self::poll_event)) and
/// the commands. After each `handle_*` or command: drain `poll_transmit`, then call `poll_timeout`, then drain
/// `poll_event`. The time passed in must never decrease.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    /// Configuration for accepted connections, moved here from the endpoint's configuration.
    accept: Option<Arc<ConnectionConfig>>,
    rng: Box<dyn Rng>,
    account: MemoryAccount,
    settings: SubflowSettings,
    scheduler_scratch: OnDemand<SchedulerScratch>,
    workspace: Workspace,
    flows: FlowTable,
    networks: NetworkMemory,
    plain_answers: NetworkMemory,
    fast_joins: FastJoinMemory,
    fast_opens: FastOpenMemory,
    /// Keys for Fast Open cookies, created on first use.
    cookie_keys: Option<CookieKeys>,
    /// Connections delivered to the application by Fast Open before their third ACK.
    fast_pending: usize,
    faults: PathFaults,
    queues: PathQueues,
    silent_paths: SilentPaths,
    /// Limits replies to unknown flows: resets, and last ACKs of ended subflows.
    replies: ReplyBudget,
    challenges: ReplyBudget,
    out: Outbox,
    slots: Slots,
    /// Slots of connections that may have data or control segments to send, each at most once.
    ready: VecDeque<u32>,
    wakeups: Wakeups,
    /// Connections with unauthenticated peers that wait for a path.
    waiting: OldestFirst,
    half_open: HalfOpen,
    /// SYNs that wait for the application's decision.
    requests: Requests,
    reporter: Option<path_health::PathHealthReporter>,
    /// Time at which a SYN was last answered with a cookie.
    cookie_sent_at: Option<Instant>,
}

impl Endpoint {
    /// A new endpoint. `rng` generates keys, nonces, ids and the secret for ISNs, so it must be unpredictable in real
    /// use.
    #[must_use]
    pub fn new(mut config: EndpointConfig, mut rng: Box<dyn Rng>) -> Self {
        let flows = FlowTable::new(&config, rng.as_mut());
        let per_s = config.limits.challenges_per_s;
        Endpoint {
            accept: config.accept.take().map(Arc::new),
            settings: SubflowSettings::default(),
            scheduler_scratch: OnDemand::new(),
            workspace: Workspace::default(),
            flows,
            rng,
            account: MemoryAccount::default(),
            networks: NetworkMemory::default(),
            plain_answers: NetworkMemory::default(),
            fast_joins: FastJoinMemory::default(),
            fast_opens: FastOpenMemory::default(),
            cookie_keys: None,
            fast_pending: 0,
            faults: PathFaults::default(),
            queues: PathQueues::default(),
            silent_paths: SilentPaths::of_shard(config.shard.count),
            replies: ReplyBudget::new(per_s),
            challenges: ReplyBudget::new(per_s),
            out: Outbox::new(config.monitor),
            slots: Slots::default(),
            ready: VecDeque::new(),
            wakeups: Wakeups::default(),
            waiting: OldestFirst::default(),
            half_open: HalfOpen::default(),
            requests: Requests::default(),
            reporter: None,
            cookie_sent_at: None,
            config,
        }
    }

    /// Shares the queues of paths with other endpoints.
    pub fn set_path_queues(&mut self, queues: PathQueues) {
        self.queues = queues;
    }

    /// The connections, and the shared state that one of them borrows for a call.
    fn split_context(&mut self, now: Instant) -> (&mut Slots, Context<'_>) {
        let cx = Context {
            now,
            config: &self.config,
            rng: self.rng.as_mut(),
            account: &self.account,
            settings: &mut self.settings,
            scheduler_scratch: &mut self.scheduler_scratch,
            workspace: &mut self.workspace,
            flows: &mut self.flows,
            networks: &mut self.networks,
            plain_answers: &mut self.plain_answers,
            fast_joins: &mut self.fast_joins,
            fast_opens: &mut self.fast_opens,
            faults: &mut self.faults,
            queues: &self.queues,
            silent_paths: &mut self.silent_paths,
            challenges: &mut self.challenges,
            out: &mut self.out,
        };
        (&mut self.slots, cx)
    }

    /// Copies bytes into the send buffer. Returns their number, at least one.
    ///
    /// # Errors
    /// `Blocked` if none fit ([`Event::Writable`](crate::Event::Writable) follows), or the reason
    /// why the connection accepts no more data.
    pub fn write(
        &mut self,
        now: Instant,
        id: ConnectionId,
        bytes: &[u8],
    ) -> Result<usize, WriteError> {
        self.take_written(now, id, WrittenBytes::Copied(bytes))
    }

    /// Like [`write`](Self::write), for bytes with static lifetime: constants or leaked memory. Where they fill a
    /// chunk of the send buffer (16 KiB), the chunk refers to them instead of holding a copy, which saves memory and
    /// a pass over the bytes. The bytes sent are identical.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    pub fn write_static(
        &mut self,
        now: Instant,
        id: ConnectionId,
        bytes: &'static [u8],
    ) -> Result<usize, WriteError> {
        self.take_written(now, id, WrittenBytes::Static(bytes))
    }

    fn take_written(
        &mut self,
        now: Instant,
        id: ConnectionId,
        bytes: WrittenBytes<'_>,
    ) -> Result<usize, WriteError> {
        self.with_connection(now, id, |c, _| c.write(now, bytes))
            .unwrap_or(Err(WriteError::Unknown))
    }

    /// Copies received bytes out; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `Blocked` if there are none yet ([`Event::Readable`](crate::Event::Readable) follows), or
    /// the reason why none will follow.
    pub fn read(
        &mut self,
        now: Instant,
        id: ConnectionId,
        out: &mut [u8],
    ) -> Result<usize, ReadError> {
        self.with_connection(now, id, |c, _| c.read(now, out)).unwrap_or(Err(ReadError::Unknown))
    }

    /// Copies received bytes like [`read`](Self::read), without consuming them (`MSG_PEEK`).
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub fn peek(
        &mut self,
        now: Instant,
        id: ConnectionId,
        out: &mut [u8],
    ) -> Result<usize, ReadError> {
        self.with_connection(now, id, |c, _| c.peek(out)).unwrap_or(Err(ReadError::Unknown))
    }

    /// Handles an incoming segment, starting with its TCP header. Never panics on malformed input; rejected segments
    /// are counted in [`counters`](Self::counters).
    pub fn handle_packet(&mut self, now: Instant, meta: &PacketMeta, segment: &[u8]) {
        self.handle_packets(now, meta, core::iter::once(segment));
    }

    /// Handles segments that arrived together, in order, with the same metadata: a batch that the kernel coalesced.
    /// Equivalent to one call of [`handle_packet`](Self::handle_packet) for each, but work that is needed once per
    /// call is done once.
    pub fn handle_packets<'a>(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segments: impl Iterator<Item = &'a [u8]>,
    ) {
        let mut known = None;
        for segment in segments {
            known = self.take_packet(now, meta, segment, known);
        }
        if let Some(flow) = known {
            self.update_after_call(now, flow.slot);
        }
    }

    /// Handles one segment, which belongs to the flow `known` if given. Returns its flow if only
    /// [`update_after_call`](Self::update_after_call) remains to be called for it.
    fn take_packet(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &[u8],
        known: Option<FlowRef>,
    ) -> Option<FlowRef> {
        let counters = &mut self.out.counters;
        counters.segments_in += 1;
        let addresses = match self.config.capabilities.checksum {
            ChecksumScope::WithAddresses => Some((meta.path.remote.ip(), meta.path.local.ip())),
            ChecksumScope::WithoutAddresses => None,
        };
        if !meta.checksum_verified && !verify_tcp_checksum(addresses, segment) {
            counters.checksum_errors += 1;
            return known;
        }
        let Ok(segment) = TcpSegment::parse(segment) else {
            counters.parse_errors += 1;
            return known;
        };
        counters.bytes_in += segment.payload.len() as u64;
        let find = || self.flows.find(&meta.path, meta.flow, meta.peer_flow);
        match known.or_else(find) {
            Some(FlowRef { slot, .. }) if slot & TIME_WAIT_BIT != 0 => {
                self.on_late_segment(now, meta, &segment, slot);
            }
            Some(flow) => {
                if self.on_segment(now, meta, &segment, flow) {
                    return Some(flow);
                }
                self.update_after_call(now, flow.slot);
            }
            None => self.on_unknown(now, meta, &segment),
        }
        None
    }

    /// Handles a segment of a flow. Returns true if header prediction applied, which leaves the flow's state
    /// unchanged.
    fn on_segment(
        &mut self,
        now: Instant,
        meta: &PacketMeta,
        segment: &TcpSegment<'_>,
        flow: FlowRef,
    ) -> bool {
        let (slots, mut cx) = self.split_context(now);
        let Some(connection) = slots.get_mut(flow.slot) else { return false };
        if meta.peer_flow != 0 {
            connection.learn_peer_flow(&mut cx, flow.subflow, meta.peer_flow, segment);
        }
        connection.on_segment(&mut cx, flow.subflow, segment, meta.ecn)
    }

    /// Handles a segment that belongs to no subflow: a SYN, a late segment, or an invalid one.
    fn on_unknown(&mut self, now: Instant, meta: &PacketMeta, segment: &TcpSegment<'_>) {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) {
            self.out.counters.no_such_flow += 1;
            return;
        }
        let is_syn = flags.contains(TcpFlags::SYN)
            && !flags.contains(TcpFlags::ACK)
            && !flags.contains(TcpFlags::FIN);
        if is_syn && meta.flow == 0 {
            self.on_syn(now, meta, segment);
            return;
        }
        if meta.flow == 0 && meta.peer_flow == 0 && self.accept_cookie(now, meta, segment) {
            return;
        }
        self.out.counters.no_such_flow += 1;
        // A listener answers only segments with ACK (RFC 9293 section 3.10.7.2); without a listener every segment is
        // answered.
        let answers = flags.contains(TcpFlags::ACK) || self.accept.is_none();
        if answers && !self.awaits_cookie(now, meta, segment) {
            self.answer_with_reset(now, meta, segment);
        }
    }

    /// Handles the deadline of [`poll_timeout`](Self::poll_timeout). Calling it early or late is
    /// harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.flows.expire(now, &mut self.out);
        while let Some((at, slot)) = self.wakeups.pop_due(now) {
            if !self.slots.handle_alarm(slot, at) {
                continue;
            }
            let (slots, mut cx) = self.split_context(now);
            let Some(connection) = slots.get_mut(slot) else { continue };
            if connection.next_timeout().is_some_and(|at| at <= now) {
                connection.handle_timeout(&mut cx);
            }
            self.enqueue_ready(slot);
        }
        self.check_path_health(now);
        self.serve_silent_paths(now);
    }

    /// Reports that the process was suspended for a while, which the driver's clock excludes
    /// ([`ProcessClock`](marline_time::ProcessClock)). No round trip, rate or delay is measured from segments now in
    /// flight. Call this before handling packets that arrived in the meantime.
    pub fn record_pause(&mut self) {
        self.slots.iter_mut().for_each(Connection::record_pause);
    }

    /// Fills `buf` with the next batch of datagrams, all for one path. Clears it first. `None` if there is nothing to
    /// send now.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut TransmitBuf) -> Option<Transmit> {
        buf.clear();
        if let Some(transmit) = self.emit_reply(buf) {
            return Some(transmit);
        }
        while let Some(slot) = self.ready.front().copied() {
            let (slots, mut cx) = self.split_context(now);
            if let Some(connection) = slots.get_mut(slot) {
                if let Some(transmit) = connection.poll_transmit(&mut cx, buf) {
                    if cx.silent_paths.has_idle_paths() {
                        cx.silent_paths.on_sent(now, connection.id());
                    }
                    self.ready.rotate_left(1);
                    return Some(transmit);
                }
                buf.clear();
                slots.dequeue(slot);
            }
            self.ready.pop_front();
            self.count(now, slot);
            self.settle_idle(slot);
        }
        None
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) must be called. May be earlier
    /// than the next deadline, never later.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.wakeups.next();
        let time_wait = self.flows.next_timeout();
        let monitor = self
            .reporter
            .as_ref()
            .filter(|_| self.slots.count() > 0)
            .and_then(path_health::PathHealthReporter::next_timeout);
        let silent = self.silent_paths.next_timeout();
        [connections, time_wait, monitor, silent].into_iter().flatten().min()
    }

    /// Updates a few deadlines before `until`, most of which have moved to a later time since they were set. Nothing
    /// else changes. A caller that is awake anyway avoids an unnecessary wake-up this way.
    pub fn postpone_timeouts(&mut self, until: Instant) {
        for _ in 0..MAX_DEADLINE_UPDATES {
            let Some((at, slot)) = self.wakeups.pop_due(until) else { return };
            if !self.slots.handle_alarm(slot, at) {
                continue;
            }
            self.set_alarm(slot);
        }
    }

    /// Returns true if ended subflows are still remembered (TIME-WAIT), so that late segments can be
    /// answered.
    #[must_use]
    pub fn in_time_wait(&self) -> bool {
        self.flows.next_timeout().is_some()
    }

    /// Enables or disables [`MonitorKind::Decided`](crate::MonitorKind::Decided) events: decisions of schedulers and
    /// their reasons. Independent of other monitor events. Costs time and memory for each decision, and nothing when
    /// disabled.
    pub const fn report_decisions(&mut self, enabled: bool) {
        self.out.report_decisions(enabled);
    }

    /// Selects the connections whose traffic is reported by [`MonitorKind::Traffic`](crate::MonitorKind::Traffic)
    /// events. Independent of other monitor events. Costs time and memory for each segment, and one comparison when
    /// disabled.
    pub const fn report_traffic(&mut self, of: TrafficFilter) {
        self.out.report_traffic(of);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.next_event()
    }

    /// Counters since the start.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.out.counters
    }

    /// Histogram of the times from a write to its DATA_ACK, since the start. Each connection samples one write at a
    /// time, regardless of how many follow before it is acknowledged.
    #[must_use]
    pub const fn delivery_delays(&self) -> DelayHistogram {
        self.out.delays
    }

    /// Updates bookkeeping after a call to a connection, which may now have data to send, have a new deadline, or be
    /// gone.
    fn update_after_call(&mut self, now: Instant, slot: u32) {
        self.enqueue_ready(slot);
        self.count(now, slot);
        self.check_path_health(now);
    }

    fn enqueue_ready(&mut self, slot: u32) {
        if self.slots.enqueue(slot) {
            self.ready.push_back(slot);
        }
    }

    /// Updates the counts of limited kinds of connections.
    ///
    /// A connection whose last subflow ended costs its peer nothing, but occupies a slot here.
    /// Connections of authenticated peers are not limited; of the others only the newest are kept
    /// ([`Limits::lingering`](crate::Limits)).
    fn count(&mut self, now: Instant, slot: u32) {
        if self.slots.record_half_open(slot) == Some(false) {
            self.half_open.remove(slot);
        }
        if self.fast_pending > 0 && self.slots.record_fast_pending(slot) == Some(false) {
            self.fast_pending -= 1;
        }
        match self.slots.record_waiting(slot) {
            Some((id, Some(true))) => {
                self.waiting.push(id);
                self.end_oldest_waits(now);
            }
            Some((_, Some(false))) => {
                let slots = &self.slots;
                self.waiting.remove(|id| slots.is_waiting(id));
            }
            _ => {}
        }
    }

    /// Ends the connections that have waited longest, until the limit is met.
    fn end_oldest_waits(&mut self, now: Instant) {
        while self.waiting.count() > self.config.limits.lingering {
            let Some(oldest) = self.waiting.pop() else { return };
            if !self.slots.is_waiting(oldest) {
                continue;
            }
            self.out.counters.lingering_overflow += 1;
            // This ends the wait and calls `count` again, which subtracts the connection.
            self.with_connection(now, oldest, |c, cx| c.end_lingering(cx));
        }
    }

    /// Handles a connection with nothing to send now: sets its alarm, or removes it if it has ended.
    fn settle_idle(&mut self, slot: u32) {
        let Some(connection) = self.slots.get(slot) else { return };
        if connection.is_gone() {
            self.flows.remove_token(connection.token());
            self.slots.free(slot);
            self.account.limit_spare_chunks(self.slots.count());
            if self.slots.count() == 0 {
                self.settings.forget_unused();
            }
            return;
        }
        self.set_alarm(slot);
        if self.wakeups.needs_sweep(self.slots.count()) {
            let slots = &self.slots;
            self.wakeups.sweep(|at, slot| slots.alarm_at(slot) == Some(at));
        }
    }

    /// Sets a connection's alarm for its next deadline, if there is one and no earlier alarm is set.
    fn set_alarm(&mut self, slot: u32) {
        let next = self.slots.get(slot).and_then(Connection::next_timeout);
        if let Some(at) = next.filter(|at| self.slots.arm(slot, *at)) {
            self.wakeups.push(at, slot);
        }
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id.0 as u32).filter(|connection| connection.id() == id)
    }

    /// Runs a command on a connection, then updates the bookkeeping.
    fn with_connection<R>(
        &mut self,
        now: Instant,
        id: ConnectionId,
        command: impl FnOnce(&mut Connection, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let slot = id.0 as u32;
        let (slots, mut cx) = self.split_context(now);
        let connection = slots.get_mut(slot).filter(|connection| connection.id() == id)?;
        let result = command(connection, &mut cx);
        self.update_after_call(now, slot);
        Some(result)
    }

    /// Puts a connection into a slot. `make` receives the id and slot.
    fn insert(
        &mut self,
        now: Instant,
        make: impl FnOnce(&mut Context<'_>, ConnectionId, u32) -> Connection,
    ) -> (ConnectionId, u32) {
        let (id, slot) = self.slots.reserve();
        let (slots, mut cx) = self.split_context(now);
        let connection = make(&mut cx, id, slot);
        cx.flows.insert_token(connection.token(), slot);
        slots.fill(slot, connection);
        (id, slot)
    }
}
