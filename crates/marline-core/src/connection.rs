//! A connection: one byte stream each way over any number of subflows (RFC 8684).
//!
//! The connection works with data sequence numbers. Its subflows are plain TCP and know nothing of each other. The
//! connection's knowledge about each subflow beyond TCP is in its [`SubflowContext`].
//!
//! State is divided into components, each of which owns its fields: [`Session`] (mode, keys, negotiated
//! extensions), [`PathSet`] (subflows, their health, addresses), [`Sender`], [`Receiver`] and [`Closing`], besides
//! the policies and a few timers. A component's methods change that component alone and return the consequences.
//! This file is the only one that accesses several of them: it defines the order of events. A segment comes in
//! through [`Connection::on_segment`] and goes out through [`Connection::poll_transmit`]. Timers are handled in
//! [`Connection::handle_timeout`].

mod addresses;
mod asked;
mod attempts;
mod choice;
mod closing;
mod delivery_delay;
mod delivery_watch;
mod fallback;
mod fast_open;
mod fec_tx;
mod handshake;
mod keys;
mod liveness;
mod mapping_rx;
mod mapping_tx;
mod memory_trim;
mod nagle;
mod negotiation;
mod option_blackhole;
mod origin;
mod path_set;
mod receive_buffer;
mod receive_clock;
mod receive_probes;
mod receiver;
mod reinjection;
mod repeats;
mod replay_guard;
mod rto_exchange;
mod scheduling;
mod send_buffer;
mod sender;
mod session;
mod subflow_context;
mod wait;
mod window_updates;

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_policy::{
    AddressId, AddressPair, DataRange, Dsn, LocalAddress, Mapping, PathAction, PathContext,
    PathCost, PathEvent, PathManager, PathManagerFactory, Phase, ReinjectionCause, RemoteAddress,
    Role, RunLayout, SchedulerAction, SchedulerEvent, SchedulerFactory, SentSegment, SilenceCause,
    Ssn, SubflowId, SubflowSet, SubflowView, Token,
};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    AddAddr, CapableData, DataAck, Dss, ExperimentalMessage, Extensions, FastJoinForm,
    MpCapableForm, MpExperimental, MpFail, MpFastclose, MpJoin, MpPrio, MpRepair, MpTcpRst,
    MptcpOption, RemoveAddr, WireDsn, WireMapping,
};
use marline_wire::{
    Checksum, FastOpenOption, HeaderTemplate, MAX_OPTIONS, SeqNum, TCP_HEADER_LEN, TcpFlags,
    TcpHeader, TcpOptions, TcpSegment, Timestamps, dss_checksum, store_tcp_checksum,
    tcp_pseudo_header,
};

use self::addresses::Signal;
use self::attempts::{Attempts, Start as FirstStart};
use self::choice::{Choice, Kind, Terms};
use self::closing::{Closing, FinTimeouts};
use self::delivery_delay::DeliveryDelay;
use self::delivery_watch::DeliveryWatch;
use self::fallback::{Others, Point, Standing, Trigger, Verdict};
use self::fast_open::FastOpening;
use self::fec_tx::SentRepair;
use self::handshake::{capable_keys, capable_syn_ack, reason};
use self::liveness::{KeepaliveDue, Liveness};
use self::mapping_rx::{Coded, MappingError, RxMapping};
use self::memory_trim::MemoryTrim;
use self::option_blackhole::TimeoutOutcome;
use self::path_set::PathSet;
use self::receive_clock::{Conditions, Due};
use self::receiver::{Delivered, Receiver};
use self::replay_guard::ReplayGuard;
use self::rto_exchange::RtoExchange;
use self::scheduling::Scheduling;
pub(crate) use self::send_buffer::Written;
use self::sender::{DataTimeout, Sender};
use self::session::{Mode, Session};
use self::subflow_context::{
    ClosingOption, Ends, FailStep, FastAccepted, FastOpened, FinalSegment, HalfOpen, JoinStep,
    Joined, Joining, Membership, SubflowContext,
};
use crate::crypto::{Key, left_64, left_160};
use crate::on_demand::{OnDemand, Unused};
use crate::path_health::Trouble;
use crate::subflow::{
    DEFAULT_MSS, Egress, EndOfSilence, HeaderFor, Ingress, PayloadRoom, Start, Subflow,
    SubflowConfig, SubflowEvent, SynRetries, VerdictChange,
};
use crate::tables::Context;
use crate::tables::fast_open_memory::{Answer as FastOpenAnswer, Plan, syn_room};
use crate::tables::silent_paths::Prober;
use crate::tables::time_wait::{Answer, Ended, RESET_MEMORY};
use crate::traffic::LostSegments;
use crate::{
    CloseReason, ConnectionConfig, ConnectionId, ConnectionInfo, Ecn, Event, FallbackReason,
    FourTuple, LoneKeepalive, MemoryAccount, MemoryKind, MonitorKind, NetworkError, PathAddresses,
    Purpose, ReadError, SegmentReceived, SegmentSent, SocketOption, StreamDirection, SubflowPlace,
    SubflowState, Timer, Traffic, Transmit, TransmitBuf, WriteError,
};

pub(crate) use self::fast_open::FastOpenVerdict;
pub(crate) use self::handshake::{
    fast_join_token, mp_capable, mp_join, offers_multipath, reason as rst_reason,
};
pub(crate) use self::origin::{Accepted, Origin};

/// Minimum distance of a new connection's initial sequence number from the end of the previous one: an unscaled
/// window, so that no old segment in flight fits into the new window.
const BEYOND: u32 = 1 << 16;
/// Limit on path manager actions applied in one pass, in case a manager never stops.
const MAX_ACTIONS: usize = 64;
/// Data-level timeouts after which a subflow that acknowledged the data at TCP level is no longer trusted.
const MAX_DATA_RTOS: u32 = 2;
/// Allowed delay between a peer's TCP ACK and its DATA_ACK: a kernel defers it while the application holds the socket.
const DATA_ACK_DELAY: Duration = Duration::from_millis(50);
/// Time that a writer waits for a subflow that retains too much data and still makes progress. This is a constant
/// instead of the subflow's timeout because a peer can inflate that timeout.
const MAX_HOLD_BACK: Duration = Duration::from_secs(1);
/// Retransmissions of the oldest data on a silent subflow while other subflows carry that data and its path is probed.
const MAX_SILENT_RETRANSMISSIONS: u32 = 1;
/// Time after the last data transfer during which a connection counts as in use.
const IN_USE_TIME: Duration = Duration::from_secs(5);
/// Consecutive timeouts on the only subflow after which its path is tried from other ports.
const STUCK_AFTER: u32 = 2;
/// Consecutive timeouts after which a subflow without its local address is given up, if no join can continue the
/// connection.
const MAX_CUT_OFF_RTOS: u32 = 2;
/// Window below which a sender of full segments sends nothing.
const MIN_USABLE_WINDOW: u64 = 2 * 1_460;
/// Maximum bytes of a mapping: the range of its length field, less one for a FIN.
const MAX_MAPPING: u64 = 0xffff - 1;
/// Every eighth segment of a run repeats the mapping. If segments arrived as they were sent, the first would be
/// enough. But a middlebox that merges segments may drop the options of the appended ones.
const MAPPING_REPEAT_INTERVAL: u16 = 8;
/// Memory of an idle connection with one subflow, including its entries in tables.
const CONNECTION_BYTES: u64 = 4 * 1_024;
/// Transmissions of a segment on one subflow that may carry MP_IDLE.
const MARKED_TRANSMISSIONS: u16 = 2;

/// Two addresses between which a subflow is to be opened.
#[derive(Copy, Clone, Debug)]
struct JoinAddresses {
    local: LocalAddress,
    remote: SocketAddr,
}

impl JoinAddresses {
    /// A free pair of addresses and ports between the two; `None` if no port is free.
    fn free_path(&self, cx: &mut Context<'_>) -> Option<FourTuple> {
        let JoinAddresses { local: LocalAddress { address: mut from, .. }, remote } = *self;
        if from.port() == 0 || cx.flows.has_tuple(&FourTuple { local: from, remote }) {
            from.set_port(cx.flows.free_port(cx.rng, from, remote)?);
        }
        Some(FourTuple { local: from, remote })
    }
}

/// Position of a segment in the batch that is being filled.
#[derive(Copy, Clone, Debug)]
struct BatchSlot {
    /// Number of segments before it.
    number: usize,
    /// Size of the largest segment that still fits.
    limit: usize,
}

impl BatchSlot {
    const FIRST: BatchSlot = BatchSlot { number: 0, limit: usize::MAX };
}

/// Earliest of these times; far in the future if there is none.
fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Instant {
    let known = times.into_iter().map(|at| at.unwrap_or(Instant::FAR_FUTURE));
    known.fold(Instant::FAR_FUTURE, Instant::min)
}

/// Segments that were added to a batch.
#[derive(Copy, Clone, Debug)]
struct Emitted {
    /// Bytes of each segment.
    size: usize,
    count: usize,
    ecn: Ecn,
}

/// Full segments that are sent together under one mapping.
#[derive(Copy, Clone, Debug)]
struct Run {
    range: DataRange,
    layout: RunLayout,
    segments: usize,
    /// Scheduling decision that this run is part of.
    rest: Choice,
}

/// Headers of a run's segments.
#[derive(Debug)]
struct RunHeaders {
    /// Header of the first segment, if it reports that the congestion window was reduced.
    with_cwr: Option<HeaderTemplate>,
    mapped: HeaderTemplate,
    plain: HeaderTemplate,
}

impl RunHeaders {
    fn of(&self, number: u64, layout: RunLayout) -> &HeaderTemplate {
        match &self.with_cwr {
            Some(first) if number == 0 => first,
            _ if layout.is_mapped(number) => &self.mapped,
            _ => &self.plain,
        }
    }
}

/// Layout of a data segment, before its payload is known.
#[derive(Copy, Clone, Debug)]
struct Frame {
    /// Bytes of header and options.
    overhead: usize,
    /// Room for payload in bytes.
    room: usize,
    /// This segment ends the data to send and carries MP_IDLE.
    idle: bool,
}

/// Content of a Fast JOIN's SYN, with full 64-bit values.
struct FastSyn {
    form: FastJoinForm,
    backup: bool,
    address_id: u8,
    hmac: u64,
    /// Sequence number of the SYN, if SYNs are numbered.
    count: Option<u64>,
    /// Position in the stream of the data or of the DATA_ACK.
    at: Dsn,
}

/// Policies that were replaced while the connection ran.
#[derive(Debug, Default)]
struct Replaced {
    scheduler: Option<Arc<dyn SchedulerFactory>>,
    path_manager: Option<Arc<dyn PathManagerFactory>>,
}

impl Unused for Replaced {
    const UNUSED: &'static Self = &Replaced { scheduler: None, path_manager: None };
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: ConnectionId,
    /// Index in the endpoint's table of connections.
    slot: u32,
    config: Arc<ConnectionConfig>,
    session: Session,
    paths: PathSet,
    attempts: OnDemand<Attempts>,
    sender: Sender,
    receiver: Receiver,
    closing: Closing,
    scheduling: Scheduling,
    path_manager: Box<dyn PathManager>,
    /// Policies that replace the configured ones.
    replaced: OnDemand<Replaced>,
    liveness: OnDemand<Liveness>,
    /// Tracks since when a DATA_ACK is due.
    ack_watch: DeliveryWatch,
    delay: DeliveryDelay,
    replay_guard: OnDemand<ReplayGuard>,
    rto_exchange: OnDemand<RtoExchange>,
    fast_open: OnDemand<FastOpening>,
    trim: MemoryTrim,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.receiver.account().sub(MemoryKind::Connection, CONNECTION_BYTES);
    }
}

/// Construction of connections and subflows.
impl Connection {
    /// Creates a connection that sends the first SYN.
    pub(crate) fn connect(
        cx: &mut Context<'_>,
        config: Arc<ConnectionConfig>,
        origin: &Origin,
    ) -> Self {
        let path = origin.path;
        let known = cx.networks.refuses(cx.now, path.local.ip(), path.remote.ip());
        let mode = if config.mptcp && !known {
            Mode::Offered
        } else {
            let reason = config.mptcp.then_some(FallbackReason::KnownNetwork);
            Mode::Plain { reason, tx: (Ssn(1), Dsn(0)) }
        };
        let mut connection = Self::bare(cx, config, origin, Role::Client, mode);
        let ends = connection.initial_ends(cx, path, 0);
        let tcp = connection.active_subflow(cx, path, SynRetries::first(&connection.config));
        connection.closing.announce();
        connection.add_initial(cx, tcp, ends);
        if let Some(reason) = connection.session.fallback_reason() {
            cx.out.monitor(cx.now, origin.id, MonitorKind::Fallback(reason));
        }
        let from_reserve = connection.paths.addresses().initial_local().backup;
        connection.schedule_attempt(cx, from_reserve);
        connection
    }

    /// Creates a connection that answers a SYN.
    pub(crate) fn accept(
        cx: &mut Context<'_>,
        config: Arc<ConnectionConfig>,
        origin: &Origin,
        syn: &Accepted<'_>,
    ) -> Self {
        let mut connection = Self::bare(cx, config, origin, Role::Server, Mode::Offered);
        let ends = connection.initial_ends(cx, origin.path, syn.peer_flow);
        let retries = SynRetries::first(&connection.config);
        let tcp = connection.passive_subflow(cx, origin.path, syn, retries);
        connection.add_initial(cx, tcp, ends);
        connection.on_first_syn(cx, syn.segment);
        connection.accept_fast_open(cx, syn);
        connection
    }

    fn bare(
        cx: &mut Context<'_>,
        config: Arc<ConnectionConfig>,
        origin: &Origin,
        role: Role,
        mode: Mode,
    ) -> Self {
        let policies = &config.policies;
        cx.account.add(MemoryKind::Connection, CONNECTION_BYTES);
        Connection {
            id: origin.id,
            slot: origin.slot,
            session: Session::new(role, mode, origin.key),
            paths: PathSet::new(&config, origin.path),
            attempts: OnDemand::new(),
            sender: Sender::new(&config, cx.chunks_for(MemoryKind::Send)),
            receiver: Receiver::new(&config, &cx.config.limits, cx.chunks_for(MemoryKind::Receive)),
            closing: Closing::default(),
            scheduling: Scheduling::new(&*policies.scheduler),
            path_manager: policies.path_manager.build(),
            replaced: OnDemand::new(),
            liveness: OnDemand::new(),
            ack_watch: DeliveryWatch::default(),
            delay: DeliveryDelay::default(),
            replay_guard: OnDemand::new(),
            rto_exchange: OnDemand::new(),
            fast_open: OnDemand::new(),
            trim: MemoryTrim::default(),
            config,
        }
    }

    fn initial_ends(&self, cx: &mut Context<'_>, path: FourTuple, peer_flow: u64) -> Ends {
        let key = cx.new_flow(path, peer_flow);
        let local_id = self.paths.addresses().initial_local().id;
        Ends { key, local_id, remote_id: AddressId(0) }
    }

    fn subflow_config(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        retries: SynRetries,
    ) -> Arc<SubflowConfig> {
        let capabilities = cx.config.capabilities.on(path);
        cx.settings.of(&self.config, capabilities, &cx.config.limits, retries)
    }

    /// Creates a TCP subflow that has a SYN to send.
    fn active_subflow(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        retries: SynRetries,
    ) -> Subflow {
        let config = self.subflow_config(cx, path, retries);
        let start = cx.start_of(path);
        let policies = &self.config.policies;
        Subflow::connect(cx.now, config, path, start, &*policies.congestion, &*policies.recovery)
    }

    /// Creates a TCP subflow that has a SYN/ACK to send.
    fn passive_subflow(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
        retries: SynRetries,
    ) -> Subflow {
        let config = self.subflow_config(cx, path, retries);
        let Start { isn, ts_offset } = cx.start_of(path);
        // RFC 9293 section 3.6.1: the successor of a connection in TIME-WAIT begins beyond its last sequence
        // number. The clock-driven initial number already does, unless the old connection was faster than the
        // clock.
        let first = syn.after.map(|end| end.add(BEYOND));
        let isn = first.filter(|first| first.offset_from(isn) < 1 << 31).unwrap_or(isn);
        let isn = syn.isn.unwrap_or(isn);
        let policies = &self.config.policies;
        Subflow::accept(
            cx.now,
            config,
            path,
            Start { isn, ts_offset },
            syn.segment,
            syn.ecn,
            &*policies.congestion,
            &*policies.recovery,
        )
    }

    fn add_initial(&mut self, cx: &mut Context<'_>, tcp: Subflow, ends: Ends) {
        let backup = self.paths.addresses().initial_local().backup;
        cx.out.monitor(cx.now, self.id, MonitorKind::Created(ends.key.path));
        self.add_subflow(cx, tcp, ends, (Membership::Initial, backup));
    }

    /// Puts a subflow into the first free slot. `None` if all slots are taken.
    fn add_subflow(
        &mut self,
        cx: &mut Context<'_>,
        tcp: Subflow,
        ends: Ends,
        belongs: (Membership, bool),
    ) -> Option<SubflowId> {
        let mut tcp = tcp;
        if let Some(times) = self.paths.keepalive() {
            tcp.set_keepalive(times);
        }
        tcp.set_send_buffer(self.sender.send_limit());
        tcp.health_mut().on_verdict(cx.now, cx.faults.fault(&ends.key.path));
        let id = self.paths.add(cx.config.limits.subflows, tcp, ends, belongs)?;
        cx.route(ends.key, self.slot, id);
        self.sender.add_subflow(id);
        self.receiver.add_subflow(id, self.session.is_plain());
        self.tell_traffic(cx, || Traffic::Opened { on: id, path: ends.key.path });
        Some(id)
    }
}

/// Identity in the endpoint's tables, and reports of the carrier about its paths.
impl Connection {
    pub(crate) const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Local token by which joins find the connection.
    pub(crate) const fn token(&self) -> Token {
        self.session.keys().local_token()
    }

    /// A value under both keys that names this connection.
    pub(crate) fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.session.keys().binding(self.session.role(), label)
    }

    /// The connection occupies a half-open place: it is a server, and the handshake of its first subflow is
    /// neither complete nor given up.
    pub(crate) fn occupies_half_open_place(&self) -> bool {
        let unanswered = self.session.is_server() && !self.closing.is_announced();
        unanswered && self.paths.initial().is_some()
    }

    /// The server's handshake of the first subflow is not complete.
    pub(crate) const fn is_half_open(&self) -> bool {
        !self.closing.is_announced() && !self.closing.is_closed()
    }

    /// Fast Open delivered the connection to the application before the third ACK.
    pub(crate) fn is_fast_pending(&self) -> bool {
        let waits = |s: &SubflowContext| s.tcp().state() == SubflowState::SynReceived;
        self.fast_open.is_early() && self.paths.initial().is_some_and(waits)
    }

    /// A server's connection without subflows whose peer the application has not vouched for.
    pub(crate) fn is_unvouched_without_path(&self) -> bool {
        self.session.is_server()
            && self.closing.is_unvouched_peer_waiting(self.config.linger)
            && self.paths.is_empty()
    }

    /// True if the peer has one of these addresses.
    pub(crate) fn has_peer_at(&self, addresses: &[SocketAddr]) -> bool {
        self.paths.addresses().remote().iter().any(|known| addresses.contains(&known.address))
    }

    /// The connection can be dropped by the endpoint: nothing is left to do.
    pub(crate) fn is_gone(&self) -> bool {
        self.closing.is_forgotten() && self.paths.is_empty()
    }

    /// A snapshot for monitoring.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let (subflows, gone) = self.paths.info();
        let buffered = self.sender.memory() + self.receiver.memory() + self.paths.memory();
        let policies = &self.config.policies;
        let scheduler = self.replaced.scheduler.as_ref().unwrap_or(&policies.scheduler);
        let path_manager = self.replaced.path_manager.as_ref().unwrap_or(&policies.path_manager);
        let active_at = self.paths.last_active_at();
        let ack_due_since = active_at.and_then(|at| self.ack_watch.due_since(at));
        let data_due_since = active_at.and_then(|at| self.receiver.watch().due_since(at));
        ConnectionInfo {
            id: self.id,
            fallback: self.session.fallback_reason(),
            extensions: self.session.extensions(),
            scheduler: scheduler.name().to_owned(),
            path_manager: path_manager.name().to_owned(),
            bytes_written: self.sender.written().0,
            bytes_read: self.receiver.bytes_read(),
            bytes_acked: self.sender.una().0,
            unsent: self.sender.written().since(self.sender.sent()),
            readable: self.receiver.readable(),
            peer_finished: self.receiver.fin_reached(),
            buffered,
            bookkeeping: self.bookkeeping(),
            ack_due_since,
            data_due_since,
            subflows,
            gone,
        }
    }

    /// Established subflows of the connection.
    pub(crate) fn subflow_places(&self) -> Vec<SubflowPlace> {
        self.paths.places()
    }

    /// Addresses of established subflows that are doubtful or silent.
    pub(crate) fn doubted_paths(&self) -> impl Iterator<Item = FourTuple> {
        self.paths.doubted()
    }

    /// View of a subflow as a policy gets it now.
    pub(crate) fn subflow_view(&self, now: Instant, id: SubflowId) -> Option<SubflowView> {
        self.paths.get(id).map(|subflow| subflow.view(now, id))
    }

    /// Bytes of memory that lists use, without the bytes of the stream.
    fn bookkeeping(&self) -> u64 {
        self.paths.bookkeeping() + self.sender.bookkeeping() + self.receiver.bookkeeping()
    }

    /// Sets the flow id by which the peer wants to be addressed. Only a handshake segment may set it, and only
    /// once: a later one is not from the peer.
    pub(crate) fn learn_peer_flow(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        peer_flow: u64,
        segment: &TcpSegment<'_>,
    ) {
        let subflow = self.paths.get_mut(id).filter(|subflow| subflow.key().peer_flow == 0);
        let Some(subflow) = subflow else { return };
        let flags = segment.header.flags;
        // A SYN with data (Fast JOIN) is acknowledged together with its data.
        let beyond = segment.header.ack.offset_from(subflow.tcp().to_wire(Ssn(1)));
        let answers_syn = flags.contains(TcpFlags::SYN)
            && flags.contains(TcpFlags::ACK)
            && beyond as usize <= subflow.tcp().max_segment();
        if answers_syn {
            let key = subflow.set_peer_flow(peer_flow);
            cx.route(key, self.slot, id);
        }
    }

    /// Closes a half-open connection silently, to make room for a newer SYN.
    pub(crate) fn drop_if_half_open(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_half_open() {
            return false;
        }
        self.finish(cx, CloseReason::ResourceLimit);
        for id in self.paths.ids() {
            self.drop_subflow(cx, id, CloseReason::ResourceLimit);
        }
        true
    }

    /// Ends a waiting connection because other connections need its place.
    pub(crate) fn yield_place(&mut self, cx: &mut Context<'_>) {
        self.abort_with_reason(cx, CloseReason::TimedOut);
    }

    /// Handles an ICMP error about a segment of one subflow. `false` if no such segment is in flight.
    pub(crate) fn on_network_error(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (seq, error): (SeqNum, NetworkError),
    ) -> bool {
        if !self.paths.get(id).is_some_and(|subflow| subflow.tcp().is_in_flight(seq)) {
            return false;
        }
        self.on_error(cx, id, error);
        true
    }

    /// Handles a network error that was already matched to a subflow.
    pub(crate) fn on_error(&mut self, cx: &mut Context<'_>, id: SubflowId, error: NetworkError) {
        match error {
            NetworkError::TooBig { max_segment } => {
                if let Some(subflow) = self.paths.get_mut(id) {
                    subflow.tcp_mut().reduce_segment(max_segment);
                }
            }
            NetworkError::Unreachable => self.on_unreachable(cx, id),
        }
    }

    /// Handles a carrier's report that the destination is unreachable.
    fn on_unreachable(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get(id) else { return };
        if subflow.is_usable() {
            self.on_overdue(cx, id, SilenceCause::Unreachable);
        } else if subflow.tcp().state() == SubflowState::SynSent && !self.session.is_confirmed() {
            // RFC 9293 section 3.9.2.2 leaves this to the implementation. Linux gives up a first SYN as well, and
            // an application that tries several paths or servers needs the error at once.
            self.on_subflow_lost(cx, id, CloseReason::Unreachable);
        }
    }

    /// The peer proved that it has forgotten this subflow.
    pub(crate) fn on_proven_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.tcp_mut().accept_reset();
        self.drain_subflow_events(cx, id);
        self.drain_released(cx.now, id);
        self.advance_closing(cx);
    }

    /// The peer moved to another address, to which the carrier sends from now on.
    pub(crate) fn on_path_moved(&mut self, now: Instant, id: SubflowId, new_host: bool) {
        let congestion = new_host.then(|| Arc::clone(&self.config.policies.congestion));
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if let Some(congestion) = congestion {
            subflow.tcp_mut().reset_path_measurements(now, &*congestion);
        }
        subflow.tcp_mut().repeat_at_once(now);
    }

    /// The process did not run for a while: segments in flight yield no valid measurements.
    pub(crate) fn note_pause(&mut self) {
        self.delay.forget();
        for subflow in self.paths.iter_mut() {
            subflow.tcp_mut().note_pause();
        }
    }

    /// The carrier of this subflow switched to a reliable stream, or back to datagrams.
    pub(crate) fn on_reliable(&mut self, now: Instant, id: SubflowId, reliable: bool) {
        let congestion = Arc::clone(&self.config.policies.congestion);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().set_reliable(now, reliable, &*congestion);
        }
    }

    /// The stream that carries this subflow cannot accept data now, or can again.
    pub(crate) fn on_carrier_full(&mut self, id: SubflowId, full: bool) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().set_carrier_full(full);
        }
    }

    /// Repeats the SYN of a subflow that we open.
    pub(crate) fn repeat_syn(&mut self, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().repeat_syn();
        }
    }
}

/// Requests of the application.
impl Connection {
    /// Accepts bytes to send. Returns how many fit.
    pub(crate) fn write(&mut self, now: Instant, bytes: Written<'_>) -> Result<usize, WriteError> {
        if let Some(reason) = self.closing.reason() {
            return Err(WriteError::Closed(reason));
        }
        if self.closing.is_shut_down() {
            return Err(WriteError::Shutdown);
        }
        let taken = self.sender.write(now, bytes);
        if taken > 0 {
            self.delay.on_written(now, self.sender.written());
        }
        if taken == 0 && bytes.len() > 0 { Err(WriteError::Blocked) } else { Ok(taken) }
    }

    /// Gives received bytes to the application. `Ok(0)` is the end of the stream.
    pub(crate) fn read(&mut self, now: Instant, out: &mut [u8]) -> Result<usize, ReadError> {
        let was_shut = self.receiver.is_window_shut();
        let Some((n, window_opened)) = self.receiver.read(out) else {
            return self.read_nothing();
        };
        self.receiver.adapt_to_reader(now, self.paths.largest_rtt());
        if window_opened {
            self.announce_window();
            if was_shut {
                self.receiver.on_window_reopened(now, self.largest_rto());
            }
        }
        Ok(n)
    }

    /// As [`read`](Self::read), but leaves the bytes in the buffer.
    pub(crate) fn peek(&mut self, out: &mut [u8]) -> Result<usize, ReadError> {
        match self.receiver.peek(out) {
            Some(n) => Ok(n),
            None => self.read_nothing(),
        }
    }

    fn read_nothing(&mut self) -> Result<usize, ReadError> {
        if self.receiver.at_end() {
            return Ok(0);
        }
        if let Some(reason) = self.closing.reason() {
            return Err(ReadError::Closed(reason));
        }
        self.receiver.found_nothing();
        Err(ReadError::Blocked)
    }

    /// Announces the window to the peer on the subflow heard last.
    fn announce_window(&mut self) {
        let latest = self.paths.iter_mut().filter(|subflow| subflow.is_usable());
        if let Some(subflow) = latest.max_by_key(|subflow| subflow.tcp().last_heard_at()) {
            subflow.tcp_mut().ack_now();
        }
    }

    /// Repeats the update that reopened a shut window, because it may be lost.
    fn repeat_window_update(&mut self, now: Instant) {
        let rto = self.largest_rto();
        if self.receiver.is_window_update_due(now, rto) {
            self.announce_window();
        }
    }

    /// Requests the DATA_ACK that a client waits for, because it may be lost.
    fn ask_for_data_ack(&mut self, now: Instant) {
        let (busy, rto) = (self.paths.has_pending_acks(), self.largest_rto());
        if self.session.is_data_ack_request_due(now, rto, busy) {
            self.paths.probe_all_subflows();
        }
    }

    /// Notifies the application once that it may read.
    fn notify_readable(&mut self, cx: &mut Context<'_>) {
        if !self.closing.is_released() && self.receiver.tell() {
            cx.out.event(Event::Readable(self.id));
        }
    }

    /// Notifies a blocked writer if there is room enough.
    fn notify_writable(&mut self, cx: &mut Context<'_>) {
        if self.sender.take_writable(cx.now) && !self.closing.is_released() {
            cx.out.event(Event::Writable(self.id));
        }
    }

    /// Notifies a writer that was blocked by unsent data after data was sent.
    fn notify_writable_for_sent(&mut self, cx: &mut Context<'_>) {
        if self.sender.take_writable_for_sent(cx.now) && !self.closing.is_released() {
            cx.out.event(Event::Writable(self.id));
        }
    }

    /// Changes a setting of the running connection.
    pub(crate) fn set(&mut self, now: Instant, option: SocketOption) {
        match option {
            SocketOption::Nagle(on) => self.sender.set_nagle(on),
            SocketOption::Hold(hold) => self.sender.set_hold(hold),
            SocketOption::NotSentLowat(bytes) => self.sender.set_lowat(bytes),
            SocketOption::UserTimeout(timeout) => {
                self.sender.set_user_timeout(timeout);
                self.watch_progress(now);
            }
            SocketOption::SendBuffer(bytes) => {
                self.sender.resize(bytes);
                self.paths.iter_mut().for_each(|s| s.tcp_mut().set_send_buffer(bytes));
            }
            SocketOption::KnownPeer => self.closing.vouch_for_peer(),
            SocketOption::Keepalive(times) => self.paths.set_keepalive(times),
            SocketOption::AnswerWithin(within) => self.expect_answer(now, within),
        }
    }

    /// Account that is charged for the connection's memory.
    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.receiver.account()
    }

    /// Charges another account for the connection's memory.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) {
        self.receiver.account().hand_over(account, MemoryKind::Connection, CONNECTION_BYTES);
        self.sender.charge_to(account);
        if self.receiver.charge_to(account) {
            self.announce_window();
        }
    }

    /// Ends a record: no segment will have bytes from both sides of this position.
    pub(crate) fn end_record(&mut self) {
        self.sender.end_record();
    }

    /// The application finished writing.
    pub(crate) fn shutdown(&mut self, cx: &mut Context<'_>) {
        self.closing.shut_down();
        self.advance_closing(cx);
    }

    /// The application released the connection.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>) {
        let unread = self.receiver.readable() > 0;
        self.closing.release(cx.now, self.sender.una());
        if self.closing.is_closed() {
            return;
        }
        if unread {
            self.abort(cx);
            return;
        }
        self.shutdown(cx);
    }

    /// Aborts the connection: MP_FASTCLOSE with a RST on every subflow.
    pub(crate) fn abort(&mut self, cx: &mut Context<'_>) {
        self.abort_with_reason(cx, CloseReason::Aborted);
    }

    pub(crate) fn set_scheduler(&mut self, now: Instant, factory: Arc<dyn SchedulerFactory>) {
        self.scheduling.replace(&*factory);
        self.replaced.scheduler = Some(factory);
        self.refresh_views(now);
        let up: Vec<SubflowId> = self.scheduling.views().iter().map(|v| v.id).collect();
        for id in up {
            self.scheduler_event(now, SchedulerEvent::SubflowUp(id));
        }
    }

    pub(crate) fn set_path_manager(
        &mut self,
        cx: &mut Context<'_>,
        factory: Arc<dyn PathManagerFactory>,
    ) {
        self.path_manager = factory.build();
        self.replaced.path_manager = Some(factory);
        if self.session.is_confirmed() {
            self.path_event(cx, PathEvent::Established);
        }
    }

    /// Changes the backup flag of all subflows from a local address.
    pub(crate) fn set_backup(&mut self, cx: &mut Context<'_>, local: AddressId, backup: bool) {
        self.paths.addresses_mut().set_backup(local, backup);
        for id in self.paths.those(|subflow| subflow.local_id() == local).iter() {
            self.set_priority(cx, id, backup);
        }
    }

    fn set_priority(&mut self, cx: &mut Context<'_>, id: SubflowId, backup: bool) {
        if !self.paths.get_mut(id).is_some_and(|subflow| subflow.set_backup_here(backup)) {
            return;
        }
        cx.out.counters.mp_prio_tx += 1;
        self.signal(Some(id), MptcpOption::Prio(MpPrio { backup }));
        cx.out.monitor(cx.now, self.id, MonitorKind::SubflowPriority { id, backup });
        self.path_event(cx, PathEvent::Priority { id, backup });
    }

    /// A local address appeared, changed or went away.
    pub(crate) fn set_local_address(&mut self, cx: &mut Context<'_>, new: LocalAddress) {
        let old = self.paths.addresses_mut().set_local(new);
        let moved = old.is_some_and(|o| o.address.ip() != new.address.ip());
        if old.is_some_and(|o| o.up) && (!new.up || moved) {
            self.on_local_address_lost(cx, new.id);
        }
        if let Some(old) = old.filter(|o| o.backup != new.backup && new.up) {
            self.set_backup(cx, old.id, new.backup);
        }
        if let Some(old) = old.filter(|o| o.cost != new.cost) {
            for id in self.paths.those(|subflow| subflow.local_id() == new.id).iter() {
                if let Some(subflow) = self.paths.get_mut(id) {
                    subflow.set_cost(new.cost);
                }
                self.report_cost(cx, id);
                if old.cost.fading != new.cost.fading {
                    self.on_fading(cx, id, new.cost.fading);
                }
            }
        }
        // The route to IPv4 addresses (NAT64) became known or changed. Paths over the previous one may still work.
        let leads_elsewhere = old.is_some_and(|o| o.nat64 != new.nat64);
        if new.up && (moved || leads_elsewhere || old.is_none_or(|o| !o.up)) {
            self.paths.addresses_mut().keep(new.id);
            for subflow in self.paths.iter_mut().filter(|subflow| subflow.local_id() == new.id) {
                subflow.tcp_mut().retry_now(cx.now);
            }
            self.path_event(cx, PathEvent::LocalUp(new.id));
            if let Some(attempts) = self.attempts.if_used() {
                attempts.allow_another_attempt(new.id);
            }
            self.schedule_attempt(cx, false);
            if !self.session.is_confirmed() {
                self.on_local_address_change(cx);
            }
        }
    }

    /// Adds another address of the server from its DNS name, to which subflows may be opened. It is ignored if the
    /// server is behind a load balancer, which would forward them to another server.
    pub(crate) fn add_remote_address(&mut self, cx: &mut Context<'_>, address: SocketAddr) {
        if self.session.peer_denies_id0() {
            return;
        }
        let limit = cx.config.limits.remote_addresses;
        if let Some(new) = self.paths.addresses_mut().add_learned_address(address, limit) {
            self.path_event(cx, PathEvent::Announced(new.id));
        }
    }

    /// Handles the loss of a local address: nothing can be sent from it any more.
    fn on_local_address_lost(&mut self, cx: &mut Context<'_>, id: AddressId) {
        let lost = self.paths.those(|subflow| subflow.local_id() == id);
        let confirmed = self.session.is_confirmed();
        for subflow in lost.iter().filter(|_| confirmed) {
            self.stop_carrying(cx.now, subflow);
            self.drop_subflow(cx, subflow, CloseReason::TimedOut);
        }
        if self.paths.is_empty() && !lost.is_empty() {
            self.closing.begin_wait_without_subflows(cx.now, CloseReason::TimedOut);
        }
        if self.session.is_confirmed() {
            self.withdraw_address(cx, id);
        } else {
            self.on_local_address_change(cx);
        }
        self.path_event(cx, PathEvent::LocalDown(id));
    }
}

/// Loss of local addresses before the connection is confirmed, or on plain TCP. There is one subflow then, and no
/// path manager to replace it. Its retransmissions would take minutes to fail although another address is up.
///
/// - Before the SYN/ACK, the next attempt starts from another address at once.
/// - A client that has the server's key joins from another address. If the server also has the client's key, its
///   answer confirms the connection, and the stream continues there. Otherwise the server refuses, and the
///   connection ends.
/// - A connection that cannot be continued (plain TCP, a server, a peer that allows no joins) ends after two
///   retransmission timeouts of outstanding data, unless the address comes back.
///
/// Without another address that is up, the connection waits for this one.
impl Connection {
    /// The address of this subflow is gone, and another address is up.
    fn is_cut_off(&self, subflow: &SubflowContext) -> bool {
        let ip = subflow.path().local.ip();
        let is_gone = |local: LocalAddress| {
            let known = local.address.ip();
            !local.up || known != ip && !known.is_unspecified()
        };
        let addresses = self.paths.addresses();
        addresses.find_local(subflow.local_id()).is_some_and(is_gone)
            && addresses.first_pairs().any(|(local, _)| local.address.ip() != ip)
    }

    /// True for a client that does not know whether the server has its key, and whose subflow is cut off. RFC 8684
    /// section 3.1 requires it to wait for a segment on that subflow before it joins, but no such segment can
    /// come.
    fn may_join_unconfirmed(&self) -> bool {
        self.session.is_client()
            && self.session.is_unconfirmed()
            && !self.session.peer_denies_id0()
            && !self.closing.is_closed()
            && self.paths.initial().is_some_and(|subflow| self.is_cut_off(subflow))
    }

    /// Reacts to the loss or arrival of a local address before the connection is confirmed.
    fn on_local_address_change(&mut self, cx: &mut Context<'_>) {
        for id in self.paths.ids() {
            let others = self.paths.count() > 1 || self.next_start(cx).is_some();
            let Some(subflow) = self.paths.get(id).filter(|_| others && self.is_opening()) else {
                continue;
            };
            if self.is_cut_off(subflow) {
                self.on_subflow_lost(cx, id, CloseReason::Unreachable);
            }
        }
        self.join_unconfirmed(cx);
    }

    /// Joins from every other address that is not kept in reserve, or from the reserve if there is no other.
    fn join_unconfirmed(&mut self, cx: &mut Context<'_>) {
        if !self.may_join_unconfirmed() {
            return;
        }
        let pairs = self.paths.addresses().first_pairs();
        let pairs = pairs.map(|(local, remote)| JoinAddresses { local, remote });
        let (reserve, usual): (Vec<_>, Vec<_>) = pairs.partition(|pair| pair.local.backup);
        for pair in if usual.is_empty() { reserve } else { usual } {
            let from = pair.local.address.ip();
            if self.paths.iter().all(|subflow| subflow.path().local.ip() != from) {
                self.open_join(cx, pair, (false, false));
            }
        }
    }

    /// Confirms the connection because the server answered a join from another address with an HMAC under both
    /// keys. This proves that it has our key and speaks Multipath TCP.
    fn confirm_by_join(&mut self, cx: &mut Context<'_>) {
        if !self.session.is_unconfirmed() {
            return;
        }
        self.confirm(cx);
        let cut_off = self.paths.initial().filter(|subflow| self.is_cut_off(subflow));
        let lost = cut_off.map(SubflowContext::local_id);
        for id in self.paths.those(|s| Some(s.local_id()) == lost).iter() {
            self.stop_carrying(cx.now, id);
            self.drop_subflow(cx, id, CloseReason::TimedOut);
        }
        if let Some(lost) = lost {
            self.withdraw_address(cx, lost);
        }
    }

    /// Ends the connection if the last join from another address failed, because the server does not have our key
    /// or is unreachable. Returns true if it ended.
    fn end_if_stranded(&mut self, cx: &mut Context<'_>) -> bool {
        let joins = |s: &SubflowContext| !s.is_initial() && !s.tcp().is_over();
        if !self.may_join_unconfirmed() || self.paths.iter().any(joins) {
            return false;
        }
        for id in self.paths.those(SubflowContext::is_initial).iter() {
            self.abandon_cut_off_subflow(cx, id);
        }
        true
    }

    /// Ends a subflow whose address is gone. A peer that has nothing to send would keep it forever, so it gets a
    /// RST as soon as the address is back.
    fn abandon_cut_off_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.give_up();
        }
        self.on_subflow_lost(cx, id, CloseReason::Unreachable);
    }

    /// Ends a cut-off subflow after enough retransmission timeouts without its local address.
    fn drop_long_cut_off_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.session.is_confirmed() || self.closing.is_closed() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let timeouts = subflow.tcp().retransmission_timeouts();
        if timeouts >= MAX_CUT_OFF_RTOS && self.paths.count() == 1 && self.is_cut_off(subflow) {
            self.abandon_cut_off_subflow(cx, id);
        }
    }
}

/// Processing of a received segment: TCP first, then handshake options, then its content.
impl Connection {
    /// Processes one segment of one of our subflows. Returns true if it was exactly the predicted next segment,
    /// which leaves everything but the stream unchanged.
    pub(crate) fn on_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        if cx.out.traces_traffic(self.id) {
            return self.trace_and_process_segment(cx, id, segment, ecn);
        }
        self.take_segment(cx, id, segment, ecn)
    }

    /// As [`Self::on_segment`], with traffic monitoring on.
    #[cold]
    #[inline(never)]
    fn trace_and_process_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        let lost = self.trace_received(cx, id, segment);
        let predicted = self.take_segment(cx, id, segment, ecn);
        self.trace_state(cx, id, &lost, false);
        predicted
    }

    fn take_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        if self.receiver.is_memory_short() && self.lacks_memory_for(id, segment) {
            self.take_without_payload(cx, id, segment, ecn);
            return false;
        }
        self.scheduling.swap_scratch(cx.desk);
        let predicted = self.on_predicted(cx, id, segment, ecn);
        if !predicted && self.admit(cx, id, segment, ecn) {
            self.on_admitted(cx, id, segment, ecn);
        }
        self.scheduling.swap_scratch(cx.desk);
        predicted
    }

    /// True if there is no room for the segment's payload while memory is short: the application has data to read
    /// first, or the payload is not the next data of the stream.
    #[cold]
    fn lacks_memory_for(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        !segment.payload.is_empty()
            && (self.receiver.readable() > 0 || !self.continues_stream(id, segment))
    }

    /// The segment's payload is next on its subflow, and maps near the first missing byte of the stream.
    fn continues_stream(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        let Some(subflow) = self.paths.get(id) else { return true };
        let (next, missing) = (subflow.tcp().rcv_nxt(), self.receiver.next());
        if segment.header.seq != subflow.tcp().peer_to_wire(next) {
            return false;
        }
        let mapping = segment.options.dss.and_then(|dss| dss.mapping);
        let place = match mapping {
            Some(wire) => self.session.unwrap_dsn(wire.dsn, missing),
            None => {
                let places = self.receiver.places(id, next, segment.payload.len() as u64);
                places.first().map(|range| range.start)
            }
        };
        place.is_some_and(|place| place <= missing.plus(MAX_MAPPING))
    }

    /// Processes a segment without its payload, as if that were beyond the window, because the window cannot be
    /// taken back (RFC 9293 section 3.8.6). The peer sends the payload again.
    #[cold]
    fn take_without_payload(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) {
        cx.out.counters.segments_without_memory += 1;
        self.receiver.refuse_payload();
        let mut segment = TcpSegment { payload: &[], ..segment.clone() };
        segment.header.flags = segment.header.flags.without(TcpFlags::FIN);
        if let Some(dss) = &mut segment.options.dss {
            dss.mapping = None;
            dss.data_fin = false;
        }
        self.scheduling.swap_scratch(cx.desk);
        if self.admit(cx, id, &segment, ecn) {
            self.on_admitted(cx, id, &segment, ecn);
        }
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().ack_now();
        }
        self.scheduling.swap_scratch(cx.desk);
    }

    /// Processes a segment that TCP may see.
    fn on_admitted(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) {
        self.refresh_group(cx.now, id);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().swap_buffers(cx.workspace);
        }
        let carries = !segment.payload.is_empty();
        let Some(ingress) = self.pass_to_tcp(cx, id, segment, ecn) else { return };
        if ingress.accepted {
            if self.paths.is_initial(id) {
                self.on_first_answer(cx, id, segment);
                self.on_fast_open_answer(cx, id, segment);
                self.on_capable(cx, id, segment);
            }
            self.on_closing_options(cx, id, segment);
        }
        while let Some(event) =
            self.paths.get_mut(id).and_then(|s| s.tcp_mut().poll_event_before_fin())
        {
            self.on_subflow_event(cx, id, event);
        }
        if ingress.accepted && (carries || ingress.newly_acked > 0) {
            self.trim.note_busy(cx.now);
        }
        let is_syn = segment.header.flags.contains(TcpFlags::SYN);
        // Until it gets the third ACK, the peer retransmits nothing but its SYN/ACK.
        if (ingress.accepted || ingress.repeated) && !is_syn {
            self.on_fourth_ack(cx, id);
        }
        if ingress.accepted && self.paths.get(id).is_some() {
            self.on_content(cx, id, segment, &ingress);
            self.drain_subflow_events(cx, id);
            self.note_half_closed(cx.now, id);
        }
        self.drain_released(cx.now, id);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().swap_buffers(cx.workspace);
        }
        if self.sender.is_held_back() {
            self.relieve_send_buffer(cx);
        }
        self.advance_closing(cx);
    }

    /// Processes the predicted next segment of a transfer, in which only the payload is new
    /// (`subflow/prediction.rs`). `false` if the segment is a different one; then nothing was changed.
    fn on_predicted(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        let mptcp = &segment.options.mptcp;
        let usual = mptcp.is_empty() && !mptcp.malformed && ecn != Ecn::Ce;
        let calm = self.session.is_confirmed()
            && !self.closing.is_shut_down()
            && !self.closing.is_closed()
            && !self.closing.is_released()
            && !self.receiver.takes_repairs()
            && !self.receiver.fin_reached();
        let watched = self.config.receive_timer.is_some() && self.session.is_client();
        if !usual || !calm || watched {
            return false;
        }
        // The first byte needs its option, so it cannot be predicted.
        let begun = self.receiver.delivered(id) > Ssn(1);
        let window = self.receiver.window_size();
        let Some(subflow) = self.paths.get_mut(id).filter(|s| begun && s.is_fully_established())
        else {
            return false;
        };
        let Some(ingress) = subflow.tcp_mut().take_predicted(cx.now, segment, window) else {
            return false;
        };
        self.trim.note_busy(cx.now);
        self.take_predicted_content(cx, id, segment, &ingress);
        self.drain_subflow_events(cx, id);
        self.note_half_closed(cx.now, id);
        true
    }

    /// Processes payload and DSS of a predicted segment.
    fn take_predicted_content(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        self.note_heard(cx.now);
        let before = self.receiver.next();
        self.on_dss(cx, id, segment, ingress);
        let Some((ssn, _)) = ingress.in_order else { return };
        let end = ssn.plus(segment.payload.len() as u64);
        if !self.receiver.maps(id, ssn, end) {
            self.note_torn(cx, id, segment, ingress);
        }
        self.take_payload(cx, id, segment, ingress);
        if self.receiver.next() > before {
            self.on_stream_moved(cx, id, true);
        }
    }

    /// Passes the segment to TCP on its subflow.
    fn pass_to_tcp(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> Option<Ingress> {
        let window = self.receiver.window_size();
        let carries = !segment.payload.is_empty();
        let most = self.receiver.out_of_order_room(self.config.receive_buffer);
        let room = if carries { self.paths.out_of_order_room(most) } else { 0 };
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        tcp.set_out_of_order_room(room);
        let mut ingress = tcp.on_segment(cx.now, segment, ecn, window);
        // RFC 5961 challenges a RST behind a hole. But an aborting peer may have no state left to repeat it at the
        // right sequence number, and its key proves its origin.
        if ingress.challenge && is_proven_abort(segment, self.session.keys().local()) {
            ingress = tcp.accept_reset();
        }
        if ingress.challenge {
            if cx.challenges.take(cx.now, cx.rng) {
                cx.out.counters.challenge_acks += 1;
            } else {
                tcp.withdraw_challenge();
            }
        }
        Some(ingress)
    }

    /// Checks a segment of a subflow whose handshake is not complete, before TCP. `false` if the segment must not
    /// reach TCP.
    fn admit(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        let Some(subflow) = self.paths.get(id) else { return false };
        match subflow.membership() {
            Membership::Joining(joining) if joining.awaits_syn_ack() => {
                let joining = **joining;
                self.admit_syn_ack(cx, id, segment, joining)
            }
            Membership::Joined(joined) if !joined.is_verified() => {
                let joined = **joined;
                self.admit_third_ack(cx, id, segment, joined)
            }
            Membership::Joined(joined) if joined.is_fast() && !subflow.was_joined() => {
                self.admit_half_open_fast_join(cx, id, segment)
            }
            Membership::Initial => {
                if self.keep_plain_answer(cx, id, (segment, ecn)) {
                    return false;
                }
                self.on_repeated_handshake(cx, id, segment);
                self.on_repeated_first_data(cx, id, segment);
                self.on_plain_probe(id, segment);
                !self.arrived_before_keys(id, segment)
            }
            _ => true,
        }
    }

    /// Records that the peer sent a valid segment.
    fn note_heard(&mut self, now: Instant) {
        self.closing.heard(now);
        if let Some(probes) = self.config.receive_probes {
            self.liveness.begin_probes(now, probes);
        }
    }

    /// Processes options and payload of an acceptable segment.
    fn on_content(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        self.note_heard(cx.now);
        let was_at_end = self.receiver.fin_reached();
        let before = self.receiver.next();
        if self.session.is_plain() {
            if !self.on_plain_content(cx, id, segment) {
                return;
            }
        } else {
            self.on_mptcp_options(cx, id, segment);
            self.on_dss(cx, id, segment, ingress);
        }
        if self.receiver.takes_repairs() || self.is_early_repair(segment) {
            self.on_coded(cx, id, segment, ingress);
        }
        self.note_torn(cx, id, segment, ingress);
        self.take_payload(cx, id, segment, ingress);
        if self.receiver.takes_repairs() {
            self.repair_missing(cx, id);
        }
        self.watch_download(cx, id, before, segment);
        let moved = self.receiver.next() > before;
        if moved || (self.receiver.fin_reached() && !was_at_end) {
            self.on_stream_moved(cx, id, moved);
        } else if !segment.payload.is_empty() {
            let due = self.expects_peer_data(id);
            self.receiver.watch_mut().note(cx.now, due);
        }
    }

    /// Processes the content of a segment on plain TCP. `false` if it ended the connection.
    fn on_plain_content(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let data_ack = segment.options.dss.and_then(|dss| dss.data_ack);
        self.on_plain_ack(cx, id, data_ack);
        for option in segment.options.mptcp.iter() {
            if let MptcpOption::Fail(fail) = option {
                self.on_mp_fail(cx, id, fail);
            }
        }
        // After a fallback in mid-stream the peer's mappings remain valid until its infinite one.
        let mapped = self.paths.get(id).is_some() && !self.receiver.is_infinite(id);
        if let Some(dss) = segment.options.dss {
            if mapped {
                self.on_mapping(cx, id, (&dss, carries(segment)));
            } else if self.contradicts_plain_stream(id, &dss) {
                cx.out.counters.dss_not_matching += 1;
                self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
                return false;
            }
        }
        true
    }

    /// Data came in order, or the end of the stream.
    fn on_stream_moved(&mut self, cx: &mut Context<'_>, id: SubflowId, data: bool) {
        self.closing.on_progress();
        self.postpone_probes(cx.now);
        self.watch_delivery_of_received(cx, id);
        if self.closing.is_released() {
            self.receiver.discard();
            if data {
                self.closing.note_late_data();
            }
        }
        self.notify_readable(cx);
    }

    /// Processes address, priority and failure options of an acceptable segment.
    fn on_mptcp_options(&mut self, cx: &mut Context<'_>, id: SubflowId, segment: &TcpSegment<'_>) {
        for option in segment.options.mptcp.iter() {
            match option {
                MptcpOption::AddAddr(add) if add.hmac.is_none() => {
                    cx.out.counters.echo_add_rx += 1;
                    self.paths.addresses_mut().on_echo(&add);
                }
                MptcpOption::AddAddr(add) => self.on_add_addr(cx, id, &add),
                MptcpOption::RemoveAddr(remove) => self.on_remove_addr(cx, id, &remove),
                MptcpOption::Prio(prio) => {
                    cx.out.counters.mp_prio_rx += 1;
                    if let Some(subflow) = self.paths.get_mut(id) {
                        subflow.set_backup_there(prio.backup);
                    }
                    let backup = prio.backup;
                    cx.out.monitor(cx.now, self.id, MonitorKind::SubflowPriority { id, backup });
                    self.path_event(cx, PathEvent::Priority { id, backup });
                }
                MptcpOption::Fail(fail) => self.on_mp_fail(cx, id, fail),
                MptcpOption::Join(MpJoin::Ack { .. }) => self.on_third_ack_again(id),
                MptcpOption::Experimental(option) => self.on_experimental(cx, id, &option),
                _ => {}
            }
        }
    }

    /// Handles the events of TCP on a subflow, in order.
    fn drain_subflow_events(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        while let Some(event) = self.paths.get_mut(id).and_then(|s| s.tcp_mut().poll_event()) {
            self.on_subflow_event(cx, id, event);
        }
    }

    fn on_subflow_event(&mut self, cx: &mut Context<'_>, id: SubflowId, event: SubflowEvent) {
        match event {
            SubflowEvent::Established if self.paths.is_initial(id) => {
                self.on_initial_established(cx, id);
            }
            SubflowEvent::Established => self.on_join_established(cx, id),
            SubflowEvent::Refused => self.on_subflow_lost(cx, id, CloseReason::Refused),
            SubflowEvent::Reset => self.on_reset(cx, id),
            SubflowEvent::ConnectTimeout => self.on_subflow_lost(cx, id, CloseReason::TimedOut),
            SubflowEvent::Dead => self.on_subflow_dead(cx, id),
            SubflowEvent::PeerFin => self.on_peer_fin(cx, id),
            SubflowEvent::Finished => self.on_subflow_finished(cx, id),
            SubflowEvent::ProbeTimeout => {
                self.trace_timer(cx, Some(id), Timer::Probe, 1);
                self.on_probe_timeout(cx, id);
            }
            SubflowEvent::ProbeRepeated { range } if !range.is_empty() => {
                self.scheduler_event(cx.now, SchedulerEvent::ProbeRepeated { on: id, range });
            }
            SubflowEvent::ProbeRepeated { .. } => {}
            SubflowEvent::Lost => self.on_lost(cx.now, id),
            SubflowEvent::Rto { count } => {
                self.trace_timer(cx, Some(id), Timer::Retransmission, count);
                self.on_subflow_rto(cx, id, count);
            }
            SubflowEvent::HeardAgain(end) => self.on_heard_again(cx, id, end),
            SubflowEvent::HeardUnanswered(unheard) => self.on_heard_unanswered(cx, id, unheard),
            SubflowEvent::MtuFound(_) => {}
        }
    }

    /// Releases bytes that a subflow no longer needs to retransmit.
    fn drain_released(&mut self, now: Instant, id: SubflowId) {
        let watched = self.paths.turns() > 1 && self.scheduling.watches_delivery();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        self.sender.release_repairs(id, subflow.tcp().snd_una());
        if subflow.tcp().has_sacked() {
            for range in subflow.tcp_mut().take_sacked() {
                if watched {
                    self.sender.note_delivered(range);
                }
            }
        }
        if subflow.tcp_mut().released().is_empty() {
            return;
        }
        let mut released = core::mem::take(subflow.tcp_mut().released());
        for range in released.iter() {
            self.sender.unpin(*range);
            if watched {
                self.sender.note_delivered(*range);
            }
        }
        if self.scheduling.watches_acks() {
            for range in released.iter() {
                self.scheduler_event(now, SchedulerEvent::Acked { on: id, range: *range });
            }
        }
        released.clear();
        if let Some(subflow) = self.paths.get_mut(id) {
            *subflow.tcp_mut().released() = released;
        }
    }
}

/// Processing of a segment's DSS: DATA_ACK, mapping and DATA_FIN, the implicit mapping of data with MP_CAPABLE,
/// and the consequences of a missing DSS (RFC 8684 sections 3.1, 3.3 and 3.7).
impl Connection {
    fn on_dss(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let capable = mp_capable(segment);
        if let Some(dss) = segment.options.dss {
            if let Some(ack) = dss.data_ack {
                let before = self.acked();
                self.on_data_ack(cx, id, ack, ingress.window);
                let advanced = self.acked() > before;
                if let Some(subflow) = self.paths.get_mut(id) {
                    if advanced {
                        subflow.note_news(cx.now);
                    }
                    self.sender.note_proof(id, subflow.tcp().snd_una());
                }
                if !advanced && ingress.newly_acked > 0 {
                    self.expedite_lost_mapping(cx.now, id);
                }
            }
            self.confirm(cx);
            self.on_mapping(cx, id, (&dss, carries(segment)));
        } else if let Some(capable) = capable {
            // A segment with the keys has no DATA_ACK: a peer that still sends them has received no data from us.
            // The window of a late one must not be counted from data acknowledged since.
            self.sender.raise_window(self.session.first_mapped().plus(ingress.window));
            let MpCapableForm::Ack { data: Some(data), .. } = capable.form else { return };
            self.confirm(cx);
            self.receiver.note_keyed(id, data.length);
            self.on_capable_data(cx, id, data);
        } else {
            self.on_missing_dss(cx, id, segment, ingress);
        }
    }

    /// Handles a segment without any MPTCP option: a DSS is missing if it acknowledges data. Data without a
    /// mapping is judged once it is in order ([`Self::deliver`]): a middlebox that splits segments leaves the
    /// options on one piece, which the other may overtake. For this reason such a piece does not count as an ACK
    /// without a DATA_ACK either.
    fn on_missing_dss(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let flags = segment.header.flags;
        let options = !segment.options.mptcp.is_empty() || segment.options.mptcp.malformed;
        if flags.contains(TcpFlags::SYN) || options || !segment.payload.is_empty() {
            return;
        }
        let Some(subflow) = self.paths.get(id).filter(|subflow| subflow.is_up()) else { return };
        self.sender.note_bare_ack(id);
        let tcp = subflow.tcp();
        // Only plain TCP ends a stream in this way.
        let fin = flags.contains(TcpFlags::FIN)
            && tcp.peer_to_wire(tcp.rcv_nxt()) == segment.header.seq.add(1)
            && !self.receiver.fin_reached();
        let sent = self.sender.sent() > Dsn(0) || !self.sender.is_contiguous(id);
        let acks = ingress.newly_acked > 0 && sent && tcp.snd_una() > Ssn(1);
        if fin {
            self.consider_fallback(cx, id, Trigger::UnmappedData);
        } else if acks {
            self.consider_fallback(cx, id, Trigger::BareAck);
        }
    }

    /// Checks that the checksum is present exactly if it was negotiated; otherwise ends the subflow (RFC 8684
    /// section 3.3).
    fn checksum_is_as_agreed(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        checksum: Option<u16>,
    ) -> bool {
        let agreed = checksum.is_some() == self.session.uses_checksum();
        if !agreed {
            cx.out.counters.dss_not_matching += 1;
            self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
        }
        agreed
    }

    /// Handles MP_CAPABLE with data: an implicit mapping of the first bytes.
    fn on_capable_data(&mut self, cx: &mut Context<'_>, id: SubflowId, data: CapableData) {
        if !self.checksum_is_as_agreed(cx, id, data.checksum) {
            return;
        }
        let dsn = self.session.first_mapped_by_peer();
        let mapping = RxMapping {
            ssn: Ssn(dsn.0 + 1),
            len: u64::from(data.length),
            dsn,
            wire_dsn: self.session.keys().remote_wire(dsn),
            unmapped: dsn.0 as u16,
            wire_len: data.length,
            checksum: data.checksum,
            coded: None,
        };
        self.announce_mapping(cx, id, mapping);
    }

    /// Handles the mapping of a DSS. `carries` is true if the segment has payload or a FIN, see [`carries`].
    fn on_mapping(&mut self, cx: &mut Context<'_>, id: SubflowId, (dss, carries): (&Dss, bool)) {
        let Some(wire) = dss.mapping else { return };
        if !self.checksum_is_as_agreed(cx, id, wire.checksum) {
            return;
        }
        if wire.length == 0 && !carries {
            // An infinite mapping applies to the data it comes with (RFC 8684 section 3.7). Without data it has no
            // meaning.
            return;
        }
        self.session.note_dsn_size(&wire);
        let Some(dsn) = self.session.unwrap_dsn(wire.dsn, self.receiver.next()) else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        let ssn = self.position_of(id, wire.ssn);
        if wire.length == 0 {
            if let Some(ssn) = ssn {
                self.on_infinite_mapping(cx, id, (ssn, dsn));
            }
            return;
        }
        let data_len = u64::from(wire.length) - u64::from(dss.data_fin);
        let wire_dsn = self.session.keys().remote_wire(dsn);
        if dss.data_fin && !self.on_data_fin(cx, id, &wire, dsn, data_len) {
            return;
        }
        if self.paths.get(id).is_none() {
            return;
        }
        let Some(ssn) = ssn else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        let (wire_len, checksum) = (wire.length, wire.checksum);
        let (len, unmapped) = (data_len, (ssn.0 as u32).wrapping_sub(wire.ssn) as u16);
        let mapping =
            RxMapping { ssn, len, dsn, wire_dsn, unmapped, wire_len, checksum, coded: None };
        self.announce_mapping(cx, id, mapping);
    }

    /// Position on a subflow to which a subflow sequence number of the peer refers.
    fn position_of(&self, id: SubflowId, ssn: u32) -> Option<Ssn> {
        let subflow = self.paths.get(id)?;
        self.session.unwrap_ssn(subflow.is_initial(), ssn, subflow.tcp().rcv_nxt())
    }

    /// Handles the DATA_FIN of a DSS. Returns true if data is mapped with it.
    fn on_data_fin(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        wire: &WireMapping,
        dsn: Dsn,
        data_len: u64,
    ) -> bool {
        let lone = data_len == 0;
        let wire_dsn = self.session.keys().remote_wire(dsn);
        let sum = |_| dss_checksum(wire_dsn, wire.ssn, wire.length, Checksum::new());
        if lone && wire.checksum != wire.checksum.map(sum) {
            cx.out.counters.data_csum_err += 1;
            return false;
        }
        if !self.receiver.set_fin(dsn.plus(data_len)) {
            cx.out.counters.dss_not_matching += 1;
        }
        if lone && let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().ack_now();
        }
        !lone
    }

    /// The peer's stream has been taken for plain TCP since its first byte, and this mapping contradicts that: the
    /// peer did not learn of the fallback, and its retransmissions would be taken for new data. This cannot be
    /// detected without the peer's key.
    fn contradicts_plain_stream(&self, id: SubflowId, dss: &Dss) -> bool {
        let plain = self.session.keys().remote().is_some() && self.receiver.is_plain_from_start(id);
        if !plain || self.paths.get(id).is_none() {
            return false;
        }
        let wire = dss.mapping.filter(|wire| wire.length > u16::from(dss.data_fin));
        wire.is_some_and(|wire| {
            let ssn = self.position_of(id, wire.ssn);
            let dsn = self.session.unwrap_dsn(wire.dsn, self.receiver.next());
            ssn.zip(dsn).is_none_or(|(ssn, dsn)| ssn.0 != dsn.0 + 1)
        })
    }

    fn announce_mapping(&mut self, cx: &mut Context<'_>, id: SubflowId, mapping: RxMapping) {
        if let Err(error) = self.receiver.announce(id, mapping) {
            cx.out.counters.dss_not_matching += 1;
            self.on_bad_mapping(cx, id, error);
        }
    }

    /// Handles contradicting mappings, too many mappings, and bytes without one (options were removed on the path).
    fn on_bad_mapping(&mut self, cx: &mut Context<'_>, id: SubflowId, error: MappingError) {
        let code = match error {
            MappingError::Unmapped => reason::MIDDLEBOX,
            _ => reason::MPTCP_ERROR,
        };
        self.reset_subflow(cx, id, code, CloseReason::PeerMisbehaved);
    }

    /// Handles a DATA_ACK: the data received by the peer, and its receive window (RFC 8684 sections 3.3.2 and 3.3.5).
    fn on_data_ack(&mut self, cx: &mut Context<'_>, id: SubflowId, ack: DataAck, window: u64) {
        match self.session.unwrap_ack(ack, self.acked()) {
            // An ACK of data that was never sent is ignored, as in TCP.
            Some(acked) if acked <= self.sent_end() => self.advance_una(cx, id, acked, window),
            _ => cx.out.counters.dss_not_matching += 1,
        }
    }

    /// Plain TCP: the subflow's ACK is the connection's. A peer that sends a DATA_ACK does not know of our
    /// fallback, and may have discarded data beyond it.
    fn on_plain_ack(&mut self, cx: &mut Context<'_>, id: SubflowId, data_ack: Option<DataAck>) {
        let Some(mut acked) = self.acked_by_tcp(id) else { return };
        let Some(subflow) = self.paths.get(id) else { return };
        let (window, rto) = (subflow.tcp().peer_window(), subflow.tcp().rto());
        let known = self.session.announces_fallback().then_some(data_ack);
        if let Some(data_ack) = known {
            let asks = self.session.note_peer_mode(data_ack.is_some());
            let has = data_ack.and_then(|ack| self.session.unwrap_ack(ack, self.acked()));
            acked = has.map_or(acked, |has| acked.min(has));
            if asks {
                self.announce_fallback(cx, id, cx.now + rto);
            }
        }
        self.advance_una(cx, id, acked, window);
        // RFC 9293 section 3.8.6 (SHLD-15): a shrinking window lets no new data out. The window of Multipath TCP
        // does not shrink, because ACKs of different subflows may be reordered (RFC 8684 section 3.3.5).
        let end = self.acked().min(self.sender.written()).plus(window);
        self.sender.set_window(end);
    }

    /// Plain TCP: end of the stream data acknowledged on the subflow.
    fn acked_by_tcp(&self, id: SubflowId) -> Option<Dsn> {
        let Mode::Plain { tx: (ssn, dsn), .. } = self.session.mode() else { return None };
        let una = self.paths.get(id)?.tcp().snd_una();
        Some(dsn.plus(una.since(ssn)).min(self.sender.sent()))
    }

    /// Plain TCP: according to its last DATA_ACK, the peer does not have all data that its TCP acknowledged.
    fn peer_lacks_bytes(&self, id: SubflowId) -> bool {
        self.acked_by_tcp(id).is_some_and(|acked| acked > self.sender.una())
    }

    fn advance_una(&mut self, cx: &mut Context<'_>, id: SubflowId, acked: Dsn, window: u64) {
        let now = cx.now;
        self.sender.raise_window(acked.plus(window));
        if acked <= self.acked() {
            return;
        }
        self.closing.on_data_ack(acked > self.sender.written());
        let data = acked.min(self.sender.written());
        self.tell_traffic(cx, || Traffic::DataAcked { on: id, to: data });
        self.sender.ack(data);
        if let Some(delay_us) = self.delay.on_acked(now, data) {
            cx.out.delays.record_us(delay_us);
        }
        self.closing.on_progress();
        self.closing.on_data_taken();
        if data == self.sender.written() {
            self.expedite_data_fin(now);
        }
        self.rearm_data_rto(now);
        self.watch_data_ack(now);
        self.watch_delivery_of_sent(cx, id);
        self.sender.tune(self.paths.wanted_buffer(self.config.buffer_tuning));
        self.watch_progress(now);
        self.notify_writable(cx);
    }

    /// First DSN that is not DATA_ACKed, including our DATA_FIN.
    fn acked(&self) -> Dsn {
        let una = self.sender.una();
        if self.closing.fin_acked() { una.plus(1) } else { una }
    }

    /// One past the highest DSN sent, including our DATA_FIN.
    fn sent_end(&self) -> Dsn {
        if self.closing.fin_sent() { self.sender.written().plus(1) } else { self.sender.sent() }
    }
}

/// Delivery of in-order bytes of a subflow into the stream, by their mappings.
impl Connection {
    /// Takes bytes of this segment that are in order on the subflow, and bytes held back until now.
    fn take_payload(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if let Some((ssn, range)) = ingress.in_order.clone() {
            self.deliver(cx, id, (ssn, &segment.payload[range]));
        }
        // A subflow that was ended by its own data delivers nothing more.
        let next = |connection: &mut Self| {
            let subflow = connection.paths.get_mut(id).filter(|s| !s.tcp().is_over())?;
            subflow.tcp_mut().pop_reassembled()
        };
        while let Some((ssn, bytes)) = next(self) {
            self.deliver(cx, id, (ssn, &bytes));
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().recycle(bytes);
            }
        }
    }

    /// A server that has DATA_ACKed no mapped data may still fall back to plain TCP.
    fn may_be_plain(&self, id: SubflowId) -> bool {
        self.session.is_server()
            && !self.sender.is_proven(id)
            && !self.is_proven_to_peer(id)
            && matches!(self.judge(id, Trigger::UnmappedData), Verdict::FromFirstByte { .. })
    }

    /// Records segment boundaries to detect a middlebox that merged segments and kept the options of only one.
    /// Such a middlebox lets options pass.
    fn note_torn(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let counts = !self.session.is_plain() && !self.may_be_plain(id);
        let Some(start) = ingress.start.filter(|_| counts) else { return };
        let mapped = segment.options.dss.is_some_and(|dss| dss.mapping.is_some());
        let end = start.plus(segment.payload.len() as u64);
        if self.receiver.note_segment(id, (start, end), mapped) {
            cx.out.counters.dss_not_matching += 1;
        }
    }

    /// Delivers bytes that are in order on the subflow.
    fn deliver(&mut self, cx: &mut Context<'_>, id: SubflowId, (ssn, bytes): (Ssn, &[u8])) {
        let there = self.paths.get(id).is_some();
        let end = ssn.plus(bytes.len() as u64);
        if self.session.is_plain() && there && !self.receiver.covers(id, ssn) {
            // The infinite mapping was lost on the path. Unmapped data has the same meaning here.
            self.receive_plain_unannounced(cx, id, ssn);
        } else if self.session.is_multipath()
            && !self.receiver.maps(id, ssn, end)
            && self.receiver.lacks_mapping(id, ssn, end)
        {
            // The part before may be mapped. If the fallback is not possible, the unmapped part ends the subflow
            // below.
            self.consider_plain_data(cx, id);
        }
        let result = self.translate(cx, id, ssn, bytes);
        if self.paths.get(id).is_none() {
            return;
        }
        self.receiver.hold_kept(id);
        match result {
            Ok(()) => self.watch_plain_stream(cx, id),
            Err(MappingError::BadChecksum(dsn)) => self.on_bad_checksum(cx, id, dsn),
            Err(error) => {
                cx.out.counters.dss_not_matching += 1;
                self.on_bad_mapping(cx, id, error);
            }
        }
    }

    /// Puts bytes at their positions in the stream.
    fn translate(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        ssn: Ssn,
        bytes: &[u8],
    ) -> Result<(), MappingError> {
        if cx.out.traces_traffic(self.id) {
            self.trace_places(cx, id, ssn, bytes);
        }
        let Some(subflow) = self.paths.get_mut(id) else { return Ok(()) };
        let Delivered { result, duplicate, news } = self.receiver.deliver(id, ssn, bytes);
        subflow.tcp_mut().stats_mut().count_duplicate(duplicate);
        if news {
            subflow.note_news(cx.now);
        }
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        result
    }

    /// True for a repair that arrives before the answer that agrees to repairs (reordered or lost). The server may
    /// send repairs from its answer on, so a repair implies the answer.
    fn is_early_repair(&mut self, segment: &TcpSegment<'_>) -> bool {
        if !self.session.awaits_extension_answer(&self.config, Extensions::REPAIR) {
            return false;
        }
        let mut messages = segment.options.mptcp.experimental();
        let early = messages.any(|message| matches!(message, ExperimentalMessage::Repair(_)));
        if early {
            self.start_coding();
        }
        early
    }

    fn start_coding(&mut self) {
        self.receiver.start_coding();
        self.sender.start_coding();
    }

    fn stop_coding(&mut self) {
        self.receiver.stop_coding();
        self.sender.stop_coding();
    }

    /// Handles the REPAIR option of a segment, and payload that its subflow cannot deliver yet.
    fn on_coded(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        let repair = segment.options.mptcp.experimental().find_map(|message| match message {
            ExperimentalMessage::Repair(repair) => Some(repair),
            _ => None,
        });
        if let Some(repair) = repair {
            self.on_data_ack(cx, id, DataAck::Short(repair.data_ack), ingress.window);
            self.on_repair(cx, id, &repair, ingress);
        }
        if let Some(start) = ingress.start.filter(|_| ingress.in_order.is_none()) {
            let early = self.receiver.take_early(id, start, segment.payload);
            if let Some(subflow) = self.paths.get_mut(id).filter(|_| early > 0) {
                subflow.note_news(cx.now);
            }
        }
    }

    /// Handles the mapping of a repair.
    fn on_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        repair: &MpRepair,
        ingress: &Ingress,
    ) {
        cx.out.counters.repair_rx += 1;
        if !self.checksum_is_as_agreed(cx, id, repair.checksum) {
            return;
        }
        let dsn = self.session.unwrap_short_dsn(repair.dsn, self.receiver.next());
        let ssn = ingress.start.and_then(|start| unwrap16(repair.ssn, start.0));
        let (Some(dsn), Some(ssn)) = (dsn, ssn) else {
            cx.out.counters.dss_not_matching += 1;
            return;
        };
        let mapping = RxMapping {
            ssn: Ssn(ssn),
            len: u64::from(repair.length),
            dsn,
            wire_dsn: self.session.keys().remote_wire(dsn),
            unmapped: 0,
            wire_len: repair.length,
            checksum: repair.checksum,
            coded: Some(Coded { span: repair.span, row: repair.row }),
        };
        self.announce_mapping(cx, id, mapping);
    }

    /// Computes the missing data that the segments received so far allow.
    fn repair_missing(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let new = self.receiver.repair_missing(id);
        cx.out.counters.repaired_bytes += new;
        if let Some(subflow) = self.paths.get_mut(id).filter(|_| new > 0) {
            subflow.note_news(cx.now);
            subflow.tcp_mut().ack_now();
        }
    }
}

/// Traffic monitoring, active while there is a subscriber.
impl Connection {
    fn tell_traffic(&self, cx: &mut Context<'_>, what: impl FnOnce() -> Traffic) {
        if cx.out.traces_traffic(self.id) {
            cx.out.traffic(cx.now, self.id, what());
        }
    }

    fn trace_timer(&self, cx: &mut Context<'_>, on: Option<SubflowId>, timer: Timer, count: u32) {
        self.tell_traffic(cx, || Traffic::Timer { on, timer, count });
    }

    fn trace_sent(
        &self,
        cx: &mut Context<'_>,
        (on, purpose): (SubflowId, Purpose),
        seq: SeqNum,
        data: DataRange,
        (payload_bytes, segments): (u64, u32),
    ) {
        let sent = SegmentSent { on, purpose, seq, data, payload_bytes, segments };
        self.tell_traffic(cx, || Traffic::Sent(sent));
    }

    /// Reason for sending the chosen data, whose first byte is at this position.
    fn purpose_of_choice(&self, choice: &Choice, at: Dsn) -> Purpose {
        match choice.kind {
            Kind::New => Purpose::New,
            Kind::Repair => Purpose::Repair,
            // A repetition that a policy requested on a specific subflow counts as its copy, queued or not.
            Kind::Repeat => match self.sender.reinjections().cause_at(at) {
                None | Some(ReinjectionCause::Policy) => Purpose::Copy,
                Some(cause) => Purpose::Reinjection(cause),
            },
        }
    }

    /// Reason for sending a segment that TCP or a signal requested.
    #[cold]
    fn purpose_of(&self, id: SubflowId, egress: &Egress) -> Option<Purpose> {
        let tcp = self.paths.get(id)?.tcp();
        Some(match egress {
            Egress::Syn | Egress::SynAck => Purpose::Handshake,
            Egress::Rst => Purpose::Reset,
            Egress::Ack => Purpose::Ack,
            Egress::Fin => Purpose::Fin,
            Egress::Probe | Egress::Plain(_) => Purpose::Ask,
            Egress::Retransmit(_) if tcp.repeats_as_probe() => Purpose::Probe,
            Egress::Retransmit(_) => {
                Purpose::Retransmission { after_timeout: tcp.metrics(id).phase == Phase::Loss }
            }
        })
    }

    /// Traces a received segment. Returns the segments marked as lost before it is processed.
    #[cold]
    fn trace_received(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> LostSegments {
        let mapping = segment.options.dss.and_then(|dss| dss.mapping).filter(|m| m.ssn != 0);
        let mapping = mapping.and_then(|mapping| {
            let start = self.session.unwrap_dsn(mapping.dsn, self.receiver.next())?;
            Some(DataRange::new(start, start.plus(mapping.length.into())))
        });
        let received = SegmentReceived {
            on: id,
            seq: segment.header.seq,
            ack: segment.header.ack,
            flags: segment.header.flags,
            payload_bytes: segment.payload.len() as u64,
            mapping,
        };
        cx.out.traffic(cx.now, self.id, Traffic::Received(received));
        self.lost_segments_of(id)
    }

    /// Traces the stream positions of in-order bytes on a subflow before they are delivered.
    #[cold]
    #[inline(never)]
    fn trace_places(&self, cx: &mut Context<'_>, on: SubflowId, ssn: Ssn, bytes: &[u8]) {
        for data in self.receiver.places(on, ssn, bytes.len() as u64) {
            let duplicate_bytes = self.receiver.already_here(data);
            let what = Traffic::DataReceived { on, data, duplicate_bytes };
            cx.out.traffic(cx.now, self.id, what);
        }
    }

    fn lost_segments_of(&self, id: SubflowId) -> LostSegments {
        self.paths.get(id).map(|subflow| subflow.tcp().lost_segments()).unwrap_or_default()
    }

    /// Traces segments newly marked as lost, and the state of the subflow.
    #[cold]
    fn trace_state(
        &self,
        cx: &mut Context<'_>,
        on: SubflowId,
        before: &LostSegments,
        by_timer: bool,
    ) {
        let Some(subflow) = self.paths.get(on) else { return };
        for (data, bytes) in subflow.tcp().lost_segments().since(before) {
            cx.out.traffic(cx.now, self.id, Traffic::Lost { on, data, bytes, by_timer });
        }
        cx.out.traffic(cx.now, self.id, Traffic::Metrics(subflow.tcp().metrics(on)));
    }
}

/// MP_CAPABLE: the first subflow's handshake (RFC 8684 section 3.1).
///
/// A handshake without the option continues as plain TCP. Marline's server answers the third ACK with a DATA_ACK
/// at once, so that a client that waits for the server to speak may join its other paths meanwhile.
impl Connection {
    /// Server: handles the SYN that opened the connection.
    fn on_first_syn(&mut self, cx: &mut Context<'_>, syn: &TcpSegment<'_>) {
        match mp_capable(syn) {
            Some(capable) if self.config.mptcp && offers_multipath(&capable) => {
                cx.out.counters.mp_capable_syn_rx += 1;
                self.session.on_capable(&self.config, &capable);
            }
            _ => self.fall_back_in_handshake(cx, FallbackReason::SynWithoutOption),
        }
    }

    /// Handles handshake options on the first subflow, before its TCP events.
    fn on_capable(&mut self, cx: &mut Context<'_>, id: SubflowId, segment: &TcpSegment<'_>) {
        let syn = segment.header.flags.contains(TcpFlags::SYN);
        match self.session.role() {
            _ if !self.session.is_offered() => {}
            Role::Client if syn => self.on_capable_syn_ack(cx, id, segment),
            Role::Server if !syn => self.on_capable_ack(cx, segment),
            _ => {}
        }
    }

    fn on_capable_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let Some((capable, listener_key)) = capable_syn_ack(segment) else {
            self.fall_back_in_handshake(cx, FallbackReason::SynAckWithoutOption);
            return;
        };
        self.session.on_capable(&self.config, &capable);
        self.session.on_peer_key(Key(listener_key));
        if let Some(subflow) = self.paths.get(id) {
            let path = subflow.path();
            if let Some((taken, _)) = subflow.tcp().syn_data_answer().filter(|(n, _)| *n > 0) {
                self.session.skip_local(taken);
            }
            cx.networks.clear_suspicion(path.local.ip(), path.remote.ip());
            cx.plain_answers.clear_suspicion(path.local.ip(), path.remote.ip());
        }
    }

    /// Server: handles the third ACK, or the first data instead of it.
    fn on_capable_ack(&mut self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) {
        match capable_keys(segment) {
            Some((initiator, listener)) if Key(listener) == self.session.keys().local() => {
                self.session.on_peer_key(Key(initiator));
            }
            // A missing option is a reason to fall back only on the ACK that completes the handshake.
            _ if segment.header.flags.contains(TcpFlags::RST) => {}
            _ => self.fall_back_in_handshake(cx, FallbackReason::FirstDataWithoutOption),
        }
    }

    /// Server: a segment with a DSS, or data without options, overtook the third ACK and the first data, which
    /// carry the keys. Such a segment cannot be understood yet and is not plain TCP either. It is dropped, and the
    /// peer sends it again.
    ///
    /// The first byte with neither keys nor mapping did not overtake anything. Linux (6.18) sends data in this
    /// form if it was rejected with the SYN, and continues in plain TCP with a peer that does so.
    fn arrived_before_keys(&self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        if !self.session.is_server() || !self.session.is_offered() {
            return false;
        }
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return false };
        let first = tcp.peer_to_wire(tcp.rcv_nxt()) == segment.header.seq;
        let carries = !segment.payload.is_empty();
        match segment.options.dss {
            Some(dss) => {
                let unmapped = dss.mapping.is_none() && carries && first;
                !unmapped && mp_capable(segment).is_none()
            }
            None => carries && !first && mp_capable(segment).is_none(),
        }
    }

    /// Handles a repeated SYN or SYN/ACK: the answer to it was lost. If the option was the reason, retrying with
    /// it would not help.
    fn on_repeated_handshake(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST) {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        if segment.header.seq != subflow.tcp().peer_to_wire(Ssn(0)) {
            return;
        }
        match (self.session.role(), self.session.mode()) {
            // The client gave up the option. The server must as well, or its SYN/ACK will never pass.
            (Role::Server, Mode::Offered)
                if !flags.contains(TcpFlags::ACK) && mp_capable(segment).is_none() =>
            {
                self.fall_back_in_handshake(cx, FallbackReason::SynWithoutOption);
            }
            (Role::Client, Mode::Multipath { confirmed: false })
                if subflow.tcp().is_established()
                    && !cx.config.capabilities.hides_options()
                    && self.session.count_repeated_syn_ack() > self.config.mptcp_syn_retries =>
            {
                self.abandon_options(cx);
            }
            _ => {}
        }
    }

    /// Server: the first byte comes again, without the option that it had at first. The client does not know that
    /// we received it, because our answers carry options as well and are dropped.
    fn on_repeated_first_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        if self.receiver.delivered(id) <= Ssn(1) {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let again = segment.header.seq == subflow.tcp().peer_to_wire(Ssn(1))
            && !segment.payload.is_empty()
            && !segment.options.has_mptcp();
        let multipath = self.session.is_server() && self.session.is_multipath();
        if again && multipath {
            self.consider_fallback(cx, id, Trigger::FirstByteAgain);
        }
    }

    /// None of our data was ever DATA_ACKed, there was no other subflow, both directions are contiguous from their
    /// first byte on, and the peer has sent at most the window that needs no answer, and probes.
    fn was_never_heard(&self, id: SubflowId) -> bool {
        matches!(self.judge(id, Trigger::FirstByteAgain), Verdict::FromFirstByte { .. })
    }

    /// None of our data is DATA_ACKed, and the peer has sent at most the window that needs no answer, and probes.
    fn is_within_first_window(&self, id: SubflowId) -> bool {
        let segment = self.paths.get(id).map_or(0, |subflow| subflow.tcp().max_segment() as u64);
        let window = 2 * u64::from(self.config.initial_window) * segment;
        self.sender.una() == Dsn(0) && self.receiver.delivered(id).0 <= window
    }

    /// Falls back because no segment with options was answered since the handshake.
    fn abandon_options(&mut self, cx: &mut Context<'_>) {
        let initial = self.paths.with_ids().find(|(_, subflow)| subflow.is_initial());
        if let Some((id, _)) = initial {
            self.consider_fallback(cx, id, Trigger::OptionsUnanswered);
        }
    }

    /// Handles a timeout of the client's first data: a middlebox drops segments with options, or the path is dead.
    fn on_first_data_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if cx.config.capabilities.hides_options() {
            return;
        }
        let patience = self.config.mptcp_syn_retries;
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let path = subflow.path();
        let passes = cx.networks.passes(path.local.ip(), path.remote.ip());
        let tcp = subflow.tcp_mut();
        match self.session.on_unanswered_options(cx.now, tcp.last_heard_at(), patience, passes) {
            TimeoutOutcome::Repeat => {}
            TimeoutOutcome::Ask => tcp.request_plain_probe(),
            TimeoutOutcome::GiveUp => self.abandon_options(cx),
        }
    }

    /// Handles a data timeout after a fallback. The infinite mapping that announces the fallback is an option,
    /// too, and may be dropped.
    fn on_infinite_mapping_timeout(&mut self, cx: &Context<'_>, id: SubflowId) {
        if cx.config.capabilities.hides_options() {
            return;
        }
        if let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) {
            self.session.on_plain_timeout(cx.now, tcp.snd_una(), tcp.last_heard_at());
        }
    }

    /// Server: answers a client's probe without options, which it sends if no segment with options is answered
    /// (`option_blackhole`). The answer has no options either, because our options may be the ones that are
    /// dropped. The probe alone is not a fallback: the client decides on that after our answer.
    fn on_plain_probe(&mut self, id: SubflowId, segment: &TcpSegment<'_>) {
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return };
        let others = TcpFlags::SYN.with(TcpFlags::FIN).with(TcpFlags::RST);
        let flags = segment.header.flags;
        let asks = segment.header.seq == tcp.peer_to_wire(Ssn(0))
            && segment.payload.is_empty()
            && flags.contains(TcpFlags::ACK)
            && !flags.intersects(others)
            && !segment.options.has_mptcp();
        if !asks || !self.session.is_server() {
            return;
        }
        let multipath = self.session.is_multipath();
        let unheard = self.session.is_offered() || multipath && self.was_never_heard(id);
        if let Some(subflow) = self.paths.get_mut(id).filter(|_| unheard) {
            subflow.tcp_mut().answer_plain_probe();
        }
    }

    /// The client's first data was not acknowledged, and nothing was received since the handshake.
    fn is_unanswered(&self, id: SubflowId) -> bool {
        let first = Ssn(self.session.first_mapped().0 + 1);
        let silent = |s: &SubflowContext| s.is_initial() && s.tcp().snd_una() == first;
        self.session.is_unconfirmed()
            && self.session.is_client()
            && self.paths.get(id).is_some_and(silent)
            && self.receiver.delivered(id) == Ssn(1)
    }

    /// The peer has not yet shown that it speaks Multipath TCP or that it has any data of ours, and there is no
    /// other subflow. A copy on the same subflow would prevent a fallback.
    fn may_still_fall_back(&self) -> bool {
        let initial = self.paths.with_ids().find(|(_, subflow)| subflow.is_initial());
        let proven = initial.is_some_and(|(id, _)| self.sender.is_proven(id));
        let unheard = !self.session.is_confirmed() || self.sender.una() == Dsn(0) && !proven;
        // Only the first subflow can fall back, and only while it exists.
        unheard && self.paths.is_initial_alone()
    }

    /// The first subflow's TCP handshake is complete.
    fn on_initial_established(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let early = self.fast_open.is_early();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if early && subflow.was_joined() {
            return;
        }
        subflow.establish();
        let path = subflow.path();
        let tcp = subflow.tcp_mut();
        if self.session.is_server() {
            // The client may join its other paths as soon as it knows that we speak MPTCP. If data came with the
            // third ACK, the application may answer it soon, so the ACK is delayed briefly.
            let answers = self.session.is_multipath();
            if answers && tcp.has_pending_ack() {
                tcp.ack_soon(cx.now);
            } else if answers {
                tcp.ack_now();
            }
            if !early {
                self.closing.announce();
                cx.out.event(Event::Incoming(self.id));
            }
        } else {
            if self.config.speaks_first {
                tcp.ack_soon(cx.now);
            }
            let rto = tcp.rto();
            if self.paths.has_unopened_address() {
                self.session.wait_for_data_ack(cx.now, rto);
            }
            let fallback = self.session.fallback_reason();
            cx.out.event(Event::Connected { connection: self.id, fallback });
            self.settle_fast_open(cx, id);
        }
        if self.session.fallback_reason() == Some(FallbackReason::SynRetries) {
            cx.networks.on_unanswered(cx.now, path.local.ip(), path.remote.ip());
        }
        cx.out.monitor(cx.now, self.id, MonitorKind::Established(path));
        self.on_subflow_up(cx, id);
    }

    /// Confirms that the peer speaks MPTCP: joins are possible from now on.
    fn confirm(&mut self, cx: &mut Context<'_>) {
        if self.session.confirm() {
            let ours = self.paths.initial().filter(|_| self.session.is_client());
            if let Some(path) = ours.map(SubflowContext::path) {
                cx.networks.on_passed(path.local.ip(), path.remote.ip());
            }
            self.path_event(cx, PathEvent::Established);
            self.greet(cx);
        }
    }

    fn on_subflow_up(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.note_news(now);
        let path = subflow.path();
        let (backup, initial) = (subflow.is_backup(), subflow.is_initial());
        let subflow_cost = subflow.cost();
        self.closing.heard(now);
        self.closing.resume(now, id);
        if !initial {
            cx.out.monitor(now, self.id, MonitorKind::SubflowEstablished { id, path, backup });
        }
        if !subflow_cost.is_none() {
            self.report_cost(cx, id);
        }
        cx.silent_paths.on_answer(now, path.addresses());
        self.rescue(now, |_| true);
        self.scheduler_event(now, SchedulerEvent::SubflowUp(id));
        self.path_event(cx, PathEvent::SubflowUp(id));
    }
}

/// Attempts at the first subflow over several paths ([`Attempts`]).
///
/// A SYN with MP_CAPABLE does not identify the connection: the client's key is sent with the third ACK. To the
/// server, SYNs from several addresses are therefore several requests, each answered with a key of its own. The
/// third ACK turns one of them into a connection, and a RST ends each of the others.
impl Connection {
    /// A client whose first SYN has no answer yet.
    fn is_opening(&self) -> bool {
        self.session.is_client()
            && !self.session.is_multipath()
            && !self.closing.is_closed()
            && !self.paths.iter().any(SubflowContext::was_joined)
    }

    /// Address from which the first subflow is tried next, if there is one.
    fn next_start(&self, cx: &Context<'_>) -> Option<(FirstStart, JoinAddresses)> {
        if !self.config.mptcp || self.config.connection_attempt_delay.is_none() {
            return None;
        }
        if self.fast_open.carried() > 0 {
            return None;
        }
        let starts = self.paths.addresses().first_pairs().map(|(local, remote)| {
            let path = FourTuple { local: local.address, remote };
            let reserve = local.backup || cx.faults.fault(&path).is_some();
            let start = FirstStart { id: local.id, ip: local.address.ip(), reserve };
            (start, JoinAddresses { local, remote })
        });
        let starts_there = |start: &FirstStart| {
            let mut all = self.paths.iter();
            all.any(|s| s.local_id() == start.id && s.path().local.ip() == start.ip)
        };
        let new =
            starts.filter(|(start, _)| !self.attempts.has_begun(start) && !starts_there(start));
        new.min_by_key(|(start, _)| start.reserve)
    }

    /// Sets the time of the next attempt after one that starts now. `from_reserve`: the current one uses a reserve
    /// address.
    fn schedule_attempt(&mut self, cx: &Context<'_>, from_reserve: bool) {
        if !self.is_opening() {
            return;
        }
        if let Some((next, _)) = self.next_start(cx) {
            self.attempts.schedule(cx.now, &next, from_reserve, &self.config);
        } else if let Some(attempts) = self.attempts.if_used() {
            attempts.note_last();
        }
    }

    /// Starts the next attempt early because one failed.
    fn start_next_attempt(&mut self, cx: &Context<'_>) {
        if !self.is_opening() {
            return;
        }
        if let Some((next, _)) = self.next_start(cx) {
            self.attempts.start_next_early(cx.now, &next);
        }
    }

    /// Sends the first SYN from another address. `false` if there is none.
    fn begin_attempt(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some((start, pair)) = self.next_start(cx) {
            self.attempts.note_attempt(start.id, start.ip);
            if self.attempt(cx, &pair).is_some() {
                self.schedule_attempt(cx, start.reserve);
                return true;
            }
        }
        false
    }

    /// Opens a first subflow between two addresses, in parallel to the unanswered ones.
    fn attempt(&mut self, cx: &mut Context<'_>, pair: &JoinAddresses) -> Option<SubflowId> {
        let path = pair.free_path(cx)?;
        let tcp = self.active_subflow(cx, path, SynRetries::first(&self.config));
        let (local_id, remote_id) = (pair.local.id, AddressId(0));
        let ends = Ends { key: cx.new_flow(path, 0), local_id, remote_id };
        self.add_subflow(cx, tcp, ends, (Membership::Initial, pair.local.backup))
    }

    /// Handles an answer to a first SYN: the other attempts are over, and the path manager may join their paths.
    fn on_first_answer(&mut self, cx: &mut Context<'_>, id: SubflowId, segment: &TcpSegment<'_>) {
        let flags = segment.header.flags;
        let answers = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::RST);
        if !answers || !self.is_opening() {
            return;
        }
        for other in self.paths.ids().filter(|other| *other != id) {
            self.abandon_attempt(cx, other);
        }
        if let Some(subflow) = self.paths.get(id) {
            let (local_id, remote) = (subflow.local_id(), subflow.path().remote);
            self.paths.addresses_mut().set_initial(local_id, remote);
        }
        self.attempts.retire();
    }

    /// Keeps a SYN/ACK without the option while another path may get one with it. That path is tried now.
    fn keep_plain_answer(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (segment, ecn): (&TcpSegment<'_>, Ecn),
    ) -> bool {
        let flags = segment.header.flags;
        let answers = flags.contains(TcpFlags::SYN.with(TcpFlags::ACK))
            && !flags.contains(TcpFlags::RST)
            && capable_syn_ack(segment).is_none();
        if !answers || !self.session.is_offered() || !self.is_opening() {
            return false;
        }
        let Some(path) = self.paths.get(id).filter(|s| s.tcp().acks_syn(segment.header.ack)) else {
            return false;
        };
        let path = path.path();
        let usual = cx.plain_answers.refuses(cx.now, path.local.ip(), path.remote.ip());
        if self.attempts.accepts_plain_answers() || usual {
            return false;
        }
        let next = self.next_start(cx).filter(|(start, _)| !start.reserve);
        if next.is_none() && !self.awaits_mptcp_answer(id) && !self.attempts.has_kept_answer() {
            return false;
        }
        self.attempts.keep(cx.now, id, (segment, ecn), &self.config);
        if next.is_some() {
            self.begin_attempt(cx);
        }
        if !self.awaits_mptcp_answer(id) {
            self.take_kept_answer(cx, None);
        }
        true
    }

    /// Another attempt may still be answered with the option.
    fn awaits_mptcp_answer(&self, id: SubflowId) -> bool {
        self.paths.ids().any(|other| other != id && !self.attempts.is_plain(other))
    }

    /// Accepts the kept answer without the option after its deadline, or because no better one can come.
    fn take_kept_answer(&mut self, cx: &mut Context<'_>, now: Option<Instant>) {
        let kept = self.attempts.if_used().and_then(|attempts| attempts.take_kept(now));
        let Some(kept) = kept else { return };
        let Some(subflow) = self.paths.get_mut(kept.on) else { return };
        let path = subflow.path();
        cx.plain_answers.blame(cx.now, path.local.ip(), path.remote.ip());
        subflow.tcp_mut().note_answer_kept(cx.now.since(kept.came_at));
        self.on_admitted(cx, kept.on, &kept.segment(), kept.ecn);
    }

    /// Abandons an attempt because another one was answered first. A late answer of the server gets a RST.
    fn abandon_attempt(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(mut subflow) = self.paths.take(id) else { return };
        self.forget_subflow(id);
        // Recorded as if a RST had been sent, so that late segments are answered with one.
        subflow.note_reset_sent();
        self.remember_ended(cx, &mut subflow);
    }

    /// Handles the failure of an attempt. Returns true if other attempts continue.
    fn continues_with_other_attempt(
        &mut self,
        cx: &mut Context<'_>,
        (id, ip): (AddressId, IpAddr),
        reason: CloseReason,
    ) -> bool {
        let others = !self.paths.is_empty();
        if !others && self.next_start(cx).is_none() {
            return false;
        }
        self.attempts.note_attempt(id, ip);
        self.attempts.note_failed(cx.now, reason, self.config.rtt.initial_rto);
        if others {
            self.start_next_attempt(cx);
            let hopeful = |id| !self.attempts.is_plain(id);
            if !self.paths.ids().any(hopeful) && !self.attempts.is_attempt_scheduled() {
                self.take_kept_answer(cx, None);
            }
        }
        others || self.begin_attempt(cx)
    }

    /// Starts the next attempt, or accepts a refusal.
    fn on_attempt_timeout(&mut self, cx: &mut Context<'_>) {
        if !self.is_opening() {
            self.attempts.retire();
        }
        let Some(attempts) = self.attempts.if_used() else { return };
        let (next, refused) = (attempts.take_turn(cx.now), attempts.is_refused(cx.now));
        if next {
            self.begin_attempt(cx);
        }
        self.take_kept_answer(cx, Some(cx.now));
        if refused && self.is_opening() {
            self.finish(cx, CloseReason::Refused);
            for id in self.paths.ids() {
                self.drop_subflow(cx, id, CloseReason::Refused);
            }
        }
    }

    /// MP_CAPABLE was sent often enough on each path, and no other path is left: retry without it. `id` sends a
    /// SYN. On carriers that hide options the option is not the cause. On networks where it passed before it is
    /// unlikely to be the cause, so it is kept twice as long.
    fn should_abandon_option(&self, cx: &Context<'_>, id: SubflowId) -> bool {
        if cx.config.capabilities.hides_options() {
            return false;
        }
        let with_option = self.config.mptcp_syn_retries.saturating_add(1);
        let most = |s: &SubflowContext| {
            let path = s.path();
            let passes = cx.networks.passes(path.local.ip(), path.remote.ip());
            if passes { with_option.saturating_mul(2) } else { with_option }
        };
        let over = |s: &SubflowContext| s.tcp().syns_sent() > most(s);
        let enough = |s: &SubflowContext| s.tcp().syns_sent() >= most(s);
        self.paths.get(id).is_some_and(over)
            && !self.attempts.is_attempt_scheduled()
            && self.paths.iter().all(enough)
    }
}

/// HELLO and other messages between Marline peers (docs/spec/experimental.md).
impl Connection {
    /// Sends HELLO after the connection is confirmed, if the client requests extensions.
    fn greet(&mut self, cx: &mut Context<'_>) {
        let rto = self.largest_rto();
        if let Some(asked) = self.session.first_hello(cx.now, &self.config, rto) {
            self.send_hello(cx, None, asked);
        }
    }

    /// Repeats HELLO when it is due.
    fn repeat_hello(&mut self, cx: &mut Context<'_>) {
        let rto = self.largest_rto();
        if let Some(asked) = self.session.repeated_hello(cx.now, &self.config, rto) {
            self.send_hello(cx, None, asked);
        }
    }

    fn send_hello(&mut self, cx: &mut Context<'_>, on: Option<SubflowId>, said: Extensions) {
        cx.out.counters.hello_tx += 1;
        self.signal_message(on, &ExperimentalMessage::Hello(said));
    }

    /// Sends a message on an ACK, on this subflow or on the best one.
    fn signal_message(&mut self, on: Option<SubflowId>, message: &ExperimentalMessage) {
        self.signal(on, MptcpOption::Experimental(message.option()));
    }

    /// Sends an option on an ACK, on this subflow or on the best one.
    fn signal(&mut self, on: Option<SubflowId>, option: MptcpOption) {
        self.paths.addresses_mut().signal(Signal { on, option });
    }

    /// Handles an option of the private subtype on an acceptable segment. Options that are unknown or were not
    /// negotiated are ignored.
    fn on_experimental(&mut self, cx: &mut Context<'_>, on: SubflowId, option: &MpExperimental) {
        let Some(message) = ExperimentalMessage::parse(option) else { return };
        match message {
            ExperimentalMessage::Hello(features) => self.on_hello(cx, on, features),
            ExperimentalMessage::RtoRequest => self.on_rto_request(cx, on),
            ExperimentalMessage::RtoInfo { rto_us } => self.on_rto_info(cx, rto_us),
            ExperimentalMessage::PathCost { metered, fading, tail_ms } => {
                self.on_path_cost(cx, on, PathCost { metered, fading, tail_ms });
            }
            // MP_IDLE is evaluated together with the mapping.
            _ => {}
        }
    }

    fn on_hello(&mut self, cx: &mut Context<'_>, on: SubflowId, features: Extensions) {
        cx.out.counters.hello_rx += 1;
        let outcome = self.session.on_hello(&self.config, features);
        if let Some(agreed) = outcome.settled {
            self.on_agreement(cx, agreed);
            if self.session.is_client() {
                self.ask_for_rto(cx, on);
            }
        }
        if let Some(answer) = outcome.answer {
            self.send_hello(cx, Some(on), answer);
        }
    }

    /// Activates the negotiated extensions.
    fn on_agreement(&mut self, cx: &mut Context<'_>, agreed: Extensions) {
        if agreed.contains(Extensions::REPAIR) {
            self.start_coding();
        } else {
            self.stop_coding();
        }
        if agreed.is_empty() {
            return;
        }
        cx.out.monitor(cx.now, self.id, MonitorKind::Agreed(agreed));
        for id in self.paths.those(|subflow| !subflow.cost().is_none()).iter() {
            self.report_cost(cx, id);
        }
        if let Some(follow) = self.config.follow_client.clone()
            && self.session.is_server()
            && agreed.contains(Extensions::FOLLOW_CLIENT)
        {
            self.set_scheduler(cx.now, follow);
        }
    }

    /// Client: reports the cost of a subflow, twice, because an ACK may be lost.
    fn report_cost(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get(id).filter(|subflow| subflow.is_usable()) else {
            return;
        };
        if !self.session.is_client() || !self.session.agreed_on(Extensions::PATH_COST) {
            return;
        }
        let PathCost { metered, fading, tail_ms } = subflow.cost();
        for _ in 0..2 {
            cx.out.counters.path_cost_tx += 1;
            let message = ExperimentalMessage::PathCost { metered, fading, tail_ms };
            self.signal_message(Some(id), &message);
        }
    }

    /// Handles fading or recovering signal of a subflow. A peer without PATH_COST takes a fading subflow for a backup.
    fn on_fading(&mut self, cx: &mut Context<'_>, id: SubflowId, fading: bool) {
        let usable = self.paths.get(id).filter(|subflow| subflow.is_usable());
        if let Some(backup) = usable.map(|subflow| fading || subflow.is_backup_here())
            && !self.session.agreed_on(Extensions::PATH_COST)
        {
            cx.out.counters.mp_prio_tx += 1;
            self.signal(Some(id), MptcpOption::Prio(MpPrio { backup }));
        }
        self.path_event(cx, PathEvent::Fading { id, fading });
    }

    /// Handles a client's report of a path cost.
    fn on_path_cost(&mut self, cx: &mut Context<'_>, on: SubflowId, cost: PathCost) {
        if !self.session.is_server() || !self.session.agreed_on(Extensions::PATH_COST) {
            return;
        }
        cx.out.counters.path_cost_rx += 1;
        if let Some(subflow) = self.paths.get_mut(on) {
            subflow.set_cost(cost);
        }
    }

    /// Asks for the peer's retransmission timeout on this subflow if the known value is old.
    fn ask_for_rto(&mut self, cx: &mut Context<'_>, on: SubflowId) {
        let Some(config) = self.config.receive_timer else { return };
        let wanted = self.session.is_client() && self.session.agreed_on(Extensions::RTO);
        if wanted && self.rto_exchange.is_due(cx.now, config.refresh) {
            self.rto_exchange.note_rto_request(cx.now);
            cx.out.counters.rto_request_tx += 1;
            self.signal_message(Some(on), &ExperimentalMessage::RtoRequest);
        }
    }

    /// Answers the peer's request for our retransmission timeout.
    fn on_rto_request(&mut self, cx: &mut Context<'_>, on: SubflowId) {
        if !self.session.is_server() || !self.session.agreed_on(Extensions::RTO) {
            return;
        }
        cx.out.counters.rto_request_rx += 1;
        if self.rto_exchange.may_answer(cx.now) {
            let rto_us = u32::try_from(self.largest_rto().as_micros()).unwrap_or(u32::MAX);
            cx.out.counters.rto_info_tx += 1;
            self.signal_message(Some(on), &ExperimentalMessage::RtoInfo { rto_us });
        }
    }

    /// Handles the peer's retransmission timeout.
    fn on_rto_info(&mut self, cx: &mut Context<'_>, rto_us: u32) {
        if self.rto_exchange.on_reported(cx.now, Duration::from_micros(u64::from(rto_us))) {
            cx.out.counters.rto_info_rx += 1;
        } else {
            cx.out.counters.rto_info_refused += 1;
        }
    }
}

/// MP_JOIN: further subflows (RFC 8684 section 3.2).
impl Connection {
    /// Opens a subflow from one of our addresses to one of the peer's.
    fn open_join(
        &mut self,
        cx: &mut Context<'_>,
        pair: JoinAddresses,
        (backup, fast): (bool, bool),
    ) -> Option<SubflowId> {
        let unconfirmed = !self.session.is_confirmed();
        if unconfirmed && !self.may_join_unconfirmed() || self.closing.is_closed() {
            return None;
        }
        let JoinAddresses { local, remote } = pair;
        let path = pair.free_path(cx)?;
        let usual = SynRetries::join(&self.config);
        let retries = if unconfirmed { usual.at_most(MAX_CUT_OFF_RTOS - 1) } else { usual };
        let tcp = self.active_subflow(cx, path, retries);
        let key = cx.new_flow(path, 0);
        let fast = fast && self.may_join_fast(cx, &pair);
        let membership = Membership::joining(cx.rng.next_u32(), fast);
        let remote_id = self.paths.addresses().remote_id(local.remote_reached_by(remote));
        let ends = Ends { key, local_id: local.id, remote_id };
        cx.out.counters.mp_join_syn_tx += 1;
        if self.probes_silent_paths() {
            cx.silent_paths.join_path_waiters(&path, self.id);
        }
        self.add_subflow(cx, tcp, ends, (membership, backup || local.backup))
    }

    /// True if a SYN can still join by the connection's token. A closed or plain TCP connection keeps its slot for
    /// a reader and for late segments, but a join to it is answered as one to an unknown token.
    pub(crate) const fn has_valid_token(&self) -> bool {
        !self.session.is_plain() && !self.closing.is_closed()
    }

    /// Answers a SYN that joins this connection. The error is the reason code for its RST.
    pub(crate) fn answer_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
    ) -> Result<(), u8> {
        if mp_join(syn.segment).is_none() {
            return self.accept_fast_join(cx, path, syn);
        }
        let accepted = self.accept_join(cx, path, syn);
        if accepted { Ok(()) } else { Err(reason::PROHIBITED) }
    }

    /// Accepts a join. `false` if it must be refused with a RST.
    fn accept_join(&mut self, cx: &mut Context<'_>, path: FourTuple, syn: &Accepted<'_>) -> bool {
        let Some(MpJoin::Syn { backup, address_id, nonce, .. }) = mp_join(syn.segment) else {
            return false;
        };
        if !self.has_room_for_join(cx) || !self.path_manager_accepts(cx, path) {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        }
        let membership = Membership::joined(cx.rng.next_u32(), nonce);
        let added = self.add_joined(cx, path, syn, (membership, address_id));
        let Some(subflow) = added.and_then(|id| self.paths.get_mut(id)) else {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        };
        subflow.set_backup_there(backup);
        true
    }

    /// True if another join may begin: the number of half-open joins is limited.
    fn has_room_for_join(&self, cx: &Context<'_>) -> bool {
        self.session.is_multipath()
            && !self.closing.is_closed()
            && self.paths.pending() < cx.config.limits.pending_joins
    }

    /// Adds a subflow that the peer opens, as described by its SYN.
    fn add_joined(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
        (membership, address_id): (Membership, u8),
    ) -> Option<SubflowId> {
        let tcp = self.passive_subflow(cx, path, syn, SynRetries::join(&self.config));
        let key = cx.new_flow(path, syn.peer_flow);
        let local = self.paths.addresses().local_for(path.local);
        let ends = Ends { key, local_id: local.id, remote_id: AddressId(address_id) };
        self.add_subflow(cx, tcp, ends, (membership, local.backup))
    }

    fn admit_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joining: Joining,
    ) -> bool {
        let flags = segment.header.flags;
        if !flags.contains(TcpFlags::SYN.with(TcpFlags::ACK)) || flags.contains(TcpFlags::RST) {
            return true;
        }
        if self.session.keys().remote().is_none() {
            return false;
        }
        let Some(subflow) = self.paths.get(id) else { return false };
        if !subflow.tcp().acks_syn(segment.header.ack) {
            return true;
        }
        let took_data = subflow.tcp().acks_syn_data(segment.header.ack);
        if let Some(admitted) = self.admit_fast_syn_ack(cx, id, segment) {
            return admitted;
        }
        // A server that answers the ordinary SYN does not have the Fast JOIN's data.
        let join = mp_join(segment).filter(|_| !took_data);
        let Some(MpJoin::SynAck { backup, hmac, nonce, .. }) = join else {
            self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            return false;
        };
        let keys = self.session.keys();
        if !keys.proves_syn_ack(hmac, joining.nonce(), nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return false;
        }
        let ours = keys.join_hmac(joining.nonce(), nonce).map(|hmac| left_160(&hmac));
        let Some(subflow) = self.paths.get_mut(id) else { return false };
        subflow.prove_syn_ack(backup, ours);
        self.confirm_by_join(cx);
        true
    }

    fn admit_third_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        joined: Joined,
    ) -> bool {
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) || flags.contains(TcpFlags::SYN) {
            return true;
        }
        let Some(subflow) = self.paths.get(id) else { return false };
        // Only a peer that received our SYN/ACK may be judged by its HMAC; otherwise an attacker could end another
        // host's join. Data that overtook the third ACK is dropped, too, and comes again.
        let (header, tcp) = (&segment.header, subflow.tcp());
        if header.ack != tcp.to_wire(Ssn(1)) || header.seq != tcp.peer_to_wire(Ssn(1)) {
            return false;
        }
        let Some(MpJoin::Ack { hmac }) = mp_join(segment) else {
            // An ACK that completes the handshake without any option lost it on the path.
            if !segment.options.has_mptcp() {
                self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            return false;
        };
        cx.out.counters.mp_join_ack_rx += 1;
        let (nonce, peer_nonce) = joined.nonces();
        if !self.session.keys().proves_third_ack(&hmac, nonce, peer_nonce) {
            cx.out.counters.mp_join_bad_hmac += 1;
            self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return false;
        }
        let Some(subflow) = self.paths.get_mut(id) else { return false };
        subflow.verify();
        true
    }

    /// Repeats the fourth ACK: the peer still sends its third ACK, so the fourth did not arrive, and the peer must
    /// not send data before it (RFC 8684 section 3.2). TCP itself does not answer a repeated pure ACK.
    fn on_third_ack_again(&mut self, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if matches!(subflow.membership(), Membership::Joined(joined) if joined.is_verified()) {
            subflow.tcp_mut().ack_now();
        }
    }

    /// Completes a join's TCP handshake on our side.
    fn on_join_established(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let step = subflow.on_join_established(cx.now);
        if step == JoinStep::Waits {
            return;
        }
        self.settle_fast_join(cx, id);
        self.on_subflow_up(cx, id);
        if step == JoinStep::UpFast {
            self.follow_fast_join(cx, id);
        }
    }

    /// Handles a valid segment on a subflow that we joined: after our third ACK it counts as the fourth.
    fn on_fourth_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.paths.get_mut(id).is_some_and(SubflowContext::on_fourth_ack) {
            self.settle_fast_join(cx, id);
            self.on_subflow_up(cx, id);
        }
    }

    /// Repeats the third ACK if the fourth does not come.
    fn repeat_third_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let subflow = self.paths.get_mut(id);
        if subflow.is_some_and(|subflow| subflow.repeat_third_ack(cx.now)) {
            self.reset_subflow(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
    }
}

/// Fast JOIN: a subflow whose SYN already carries the connection's urgent data.
///
/// Problem: if the only path dies, MP_JOIN delivers the first byte two and a half round trips after the first SYN
/// at best (SYN, SYN/ACK, third ACK, fourth ACK, data), on a radio that just woke. The idea comes from MultiMob
/// (Fast Join, for version 0 of MPTCP and HMAC-SHA1). The layouts are in docs/spec/experimental.md, the security
/// argument in docs/decisions/opening.md.
///
/// ```text
/// opener                                          answerer
///   SYN      OUT(token, DSN, HMAC) + data    ->            delivered at once
///            or IN(token, DATA_ACK, HMAC)    ->            data after it is sent again
///                                            <-  SYN/ACK   OUT: HMAC, DATA_ACK; IN: HMAC, DSN
///   ACK, and data at once                    ->            data from here on, too
/// ```
/// There is no HMAC in the third ACK, and there is no wait for a fourth ACK: each side has authenticated itself
/// with its first segment. In contrast to the original, the HMAC also covers the SYN's data, so that an attacker
/// on the path cannot replace it, and the answer's HMAC covers the HMAC of the request. The original does not
/// define the handling of a lost or refused Fast JOIN. Here the next SYN of the attempt is an ordinary MP_JOIN
/// (same ports, no data), and after a refusal an ordinary attempt follows at once. Fast JOIN is then not tried on
/// that pair of addresses for a while.
impl Connection {
    /// True if a join between these addresses may be a Fast JOIN.
    fn may_join_fast(&self, cx: &mut Context<'_>, pair: &JoinAddresses) -> bool {
        self.session.agreed_on(Extensions::FAST_JOIN)
            && !cx.fast_joins.contains(cx.now, pair.local.address.ip(), pair.remote)
    }

    /// Builds the option of a Fast JOIN's first SYN and selects the data of the SYN. `None` for an ordinary join,
    /// or a repeated SYN.
    fn fast_syn_option(&mut self, cx: &mut Context<'_>, id: SubflowId) -> Option<MptcpOption> {
        self.session.keys().remote()?;
        let subflow = self.paths.get(id)?;
        if subflow.fast_opened()?.is_sent() {
            return None;
        }
        let backup = subflow.is_backup_here();
        let address_id = self.paths.addresses().wire_id(subflow.local_id());
        let room = subflow.tcp().settled_segment().saturating_sub(TCP_HEADER_LEN + MAX_OPTIONS);
        let hurried = self.sender.hurried(self.paths.healthy());
        let range = hurried.map(|range| range.prefix(room as u64)).filter(|r| !r.is_empty());
        let mut payload = Vec::new();
        if let Some(range) = range {
            payload = self.take_for_syn(cx.now, id, range)?;
        }
        let range = range.filter(|_| !payload.is_empty());
        let (form, point) = match range {
            Some(range) => (FastJoinForm::Out, self.session.keys().local_wire(range.start)),
            None => (FastJoinForm::In, self.data_ack_number()),
        };
        let token = self.session.keys().remote_token().0;
        let head = ExperimentalMessage::FastJoinSyn {
            form,
            backup,
            address_id,
            token,
            point: point as u32,
            hmac: 0,
        };
        let counted = self.session.agreed_on(Extensions::COUNTED_JOIN);
        let count = counted.then(|| self.replay_guard.count_opened());
        let hmac = self.session.keys().fast_syn_hmac(&head, point, &payload, count)?;
        self.paths.get_mut(id)?.send_fast(FastOpened::sent(form, range, hmac));
        cx.out.counters.fast_join_syn_tx += 1;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Our full 64-bit DATA_ACK.
    fn data_ack_number(&self) -> u64 {
        self.session.keys().remote_wire(self.receiver.data_ack())
    }

    /// Takes this data for the SYN.
    fn take_for_syn(&mut self, now: Instant, id: SubflowId, range: DataRange) -> Option<Vec<u8>> {
        let mut payload = vec![0; range.len() as usize];
        let sum = self.sender.copy(range.start, &mut payload)?;
        let wire = self.session.keys().local_wire(range.start);
        let checksum = match self.session.uses_checksum() {
            true => dss_checksum(wire, 1, range.len() as u16, sum),
            false => 0,
        };
        self.paths.get_mut(id)?.tcp_mut().carry_with_syn(range, checksum);
        self.sender.carry_with_syn(now, id, range);
        Some(payload)
    }

    /// Range of data in the SYN that is being built.
    fn syn_payload(&self, id: SubflowId) -> (Dsn, usize) {
        let carried = self.paths.get(id).and_then(|s| s.tcp().payload_of_next_syn());
        carried.map_or((Dsn(0), 0), |range| (range.start, range.len() as usize))
    }

    /// Checks the SYN/ACK of a Fast JOIN that we opened. `None` if it is a different segment.
    fn admit_fast_syn_ack(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> Option<bool> {
        let fast = self.paths.get(id)?.fast_opened().filter(FastOpened::is_sent)?;
        let answer = segment.options.mptcp.experimental().find_map(|message| match message {
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac, point }
                if form == fast.form =>
            {
                Some((message, backup, hmac, point))
            }
            _ => None,
        });
        let (message, backup, hmac, point) = answer?;
        let keys = self.session.keys();
        let wire = match fast.form {
            FastJoinForm::Out => {
                let at = self.session.unwrap_ack(DataAck::Short(point), self.acked());
                at.map(|at| keys.local_wire(at))
            }
            FastJoinForm::In => {
                let at = self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next());
                at.map(|at| keys.remote_wire(at))
            }
        };
        let proven = wire.is_some_and(|wire| keys.proves_fast_ack(hmac, &message, wire, fast.hmac));
        if !proven {
            cx.out.counters.fast_join_bad_hmac += 1;
            self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            return Some(false);
        }
        cx.out.counters.fast_join_syn_ack_rx += 1;
        self.paths.get_mut(id)?.confirm_fast(backup);
        if fast.form == FastJoinForm::Out {
            self.on_data_ack(cx, id, DataAck::Short(point), 0);
        }
        Some(true)
    }

    /// Settles the SYN's data once the subflow is established: it was accepted, or is sent again first.
    fn settle_fast_join(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let path = subflow.path();
        let Some((fast, ordinary)) = subflow.settle_fast(cx.now) else { return };
        if let Some(range) = fast.range {
            self.sender.withdraw_reinjection(range);
        }
        if ordinary && fast.is_sent() {
            cx.out.counters.fast_join_fallback += 1;
            cx.fast_joins.on_lost(cx.now, path.local.ip(), path.remote);
        }
        self.rearm_data_rto(cx.now);
    }

    /// Handles the end of a subflow whose Fast JOIN was refused or not answered. No subflow carries the SYN's data
    /// any more, and an ordinary join from new ports follows at once: if the network drops answers to the first
    /// SYN, the answerer's half-open subflow still occupies the old ports.
    fn on_fast_join_failed(
        &mut self,
        cx: &mut Context<'_>,
        subflow: &mut SubflowContext,
        (id, why): (SubflowId, CloseReason),
    ) -> Option<(JoinAddresses, bool)> {
        if let Some(range) = subflow.tcp_mut().abandon_syn_payload() {
            self.sender.unpin(range);
        }
        let fast = subflow.fast_opened()?;
        self.sender.forget_mappings(id);
        let (una, plain) = (self.sender.una(), self.session.is_plain());
        if let Some(range) = fast.range.filter(|range| range.end > una && !plain) {
            let range = DataRange::new(range.start.max(una), range.end);
            self.sender.reinject(cx.now, range, ReinjectionCause::SubflowClosed, None);
        }
        // A subflow that was closed deliberately is not replaced.
        if !fast.is_sent() || why == CloseReason::Finished || self.closing.is_closed() {
            return None;
        }
        let path = subflow.path();
        let (local, remote) = (path.local.ip(), path.remote);
        let from = self.paths.addresses().find_local(subflow.local_id());
        // If the local address is gone as well, the failure says nothing about the network.
        let from = from.filter(|from| from.up)?;
        cx.out.counters.fast_join_fallback += 1;
        match why {
            CloseReason::TimedOut => cx.fast_joins.on_lost(cx.now, local, remote),
            _ => cx.fast_joins.on_refused(cx.now, local, remote),
        }
        Some((JoinAddresses { local: from, remote }, subflow.is_backup_here()))
    }

    /// Opens an ordinary join after a refused Fast JOIN, unless the path manager already did.
    fn open_ordinary_join(&mut self, cx: &mut Context<'_>, pair: JoinAddresses, backup: bool) {
        let same = |path: FourTuple| {
            path.local.ip() == pair.local.address.ip() && path.remote == pair.remote
        };
        if !self.paths.iter().any(|subflow| same(subflow.path())) {
            self.open_join(cx, pair, (backup, false));
        }
    }

    /// Answers a SYN with a Fast JOIN. The error is the reason code for its RST.
    fn accept_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
    ) -> Result<(), u8> {
        if !self.session.agreed_on(Extensions::FAST_JOIN)
            || !self.has_room_for_join(cx)
            || !self.replay_guard.may_check_hmac(cx.now)
        {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let said = self.read_fast_syn(cx, syn)?;
        if self.is_stale(said.form, said.at) {
            cx.out.counters.fast_join_stale += 1;
            return Err(reason::PROHIBITED);
        }
        if !self.is_fresh(&said) {
            cx.out.counters.fast_join_replayed += 1;
            return Err(reason::PROHIBITED);
        }
        if !self.path_manager_accepts(cx, path) {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let fast = FastAccepted::new(said.form, said.hmac);
        let membership = Membership::joined_fast(cx.rng.next_u32(), fast);
        let added = self.add_joined(cx, path, syn, (membership, said.address_id));
        let Some(id) = added else {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        };
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_backup_there(said.backup);
        }
        match said.form {
            FastJoinForm::Out => self.take_syn_data(cx, id, said.at, syn.segment.payload),
            FastJoinForm::In => self.advance_una(cx, id, said.at, 0),
        }
        Ok(())
    }

    /// Records an authenticated SYN. `false` if it is a replay, or if that cannot be ruled out.
    fn is_fresh(&mut self, said: &FastSyn) -> bool {
        if let Some(number) = said.count {
            return self.replay_guard.admit_number(number);
        }
        let mut guard = core::mem::take(&mut self.replay_guard);
        let syn = (said.form, said.hmac, said.at);
        let fresh = guard.admit(syn, |form, at| self.is_stale(form, at));
        self.replay_guard = guard;
        fresh
    }

    /// Checks the SYN's content against its HMAC.
    fn read_fast_syn(&mut self, cx: &mut Context<'_>, syn: &Accepted<'_>) -> Result<FastSyn, u8> {
        let mut messages = syn.segment.options.mptcp.experimental();
        let found = messages.find(|m| matches!(m, ExperimentalMessage::FastJoinSyn { .. }));
        let Some(message) = found else { return Err(reason::MPTCP_ERROR) };
        let ExperimentalMessage::FastJoinSyn { form, backup, address_id, point, hmac, .. } =
            message
        else {
            return Err(reason::MPTCP_ERROR);
        };
        let payload = syn.segment.payload;
        if payload.is_empty() && form == FastJoinForm::Out {
            // A middlebox removed the SYN's data.
            cx.out.counters.fast_join_empty += 1;
            return Err(reason::MIDDLEBOX);
        }
        let at = match form {
            FastJoinForm::Out => {
                self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next())
            }
            FastJoinForm::In => self.session.unwrap_ack(DataAck::Short(point), self.acked()),
        };
        let counted = self.session.agreed_on(Extensions::COUNTED_JOIN);
        let count = counted.then(|| self.replay_guard.unwrap((hmac >> 56) as u8));
        let keys = self.session.keys();
        let proven = at.filter(|at| {
            let full = match form {
                FastJoinForm::Out => keys.remote_wire(*at),
                FastJoinForm::In => keys.local_wire(*at),
            };
            keys.proves_fast_syn(hmac, &message, full, payload, count)
        });
        let Some(at) = proven else {
            cx.out.counters.fast_join_bad_hmac += 1;
            self.replay_guard.failed(cx.now);
            return Err(reason::MPTCP_ERROR);
        };
        Ok(FastSyn { form, backup, address_id, hmac, count, at })
    }

    /// True if the position is older than a valid SYN can refer to: one receive window behind. The configured
    /// limits are used, because a growing window must not make old positions valid again.
    fn is_stale(&self, form: FastJoinForm, at: Dsn) -> bool {
        match form {
            FastJoinForm::Out => at.plus(self.config.receive_buffer) < self.receiver.next(),
            FastJoinForm::In => {
                let beyond = at > self.sent_end();
                beyond || at.plus(self.config.send_buffer) < self.acked()
            }
        }
    }

    /// Delivers data of a SYN if it is within the window; otherwise the peer sends it again.
    fn take_syn_data(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Dsn, payload: &[u8]) {
        let len = payload.len() as u64;
        let edge = self.receiver.next().plus(self.receiver.window());
        if at.plus(len) > edge || self.closing.is_released() {
            cx.out.counters.fast_join_data_ignored += 1;
            return;
        }
        let duplicate = self.receiver.take_syn_data(id, at, payload);
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().take_syn_payload(len);
            subflow.tcp_mut().stats_mut().count_duplicate(duplicate);
        }
        self.notify_readable(cx);
    }

    /// Builds the option of the SYN/ACK that answers a Fast JOIN.
    fn fast_syn_ack_option(&self, backup: bool, fast: FastAccepted) -> Option<MptcpOption> {
        let point = match fast.form {
            FastJoinForm::Out => self.data_ack_number(),
            FastJoinForm::In => self.session.keys().local_wire(self.sender.sent()),
        };
        let form = fast.form;
        let head =
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac: 0, point: point as u32 };
        let hmac = self.session.keys().fast_ack_hmac(&head, point, fast.hmac)?;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// Checks a segment on the peer's Fast JOIN whose handshake is not complete. `false` if it must not reach TCP.
    fn admit_half_open_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let Some(subflow) = self.paths.get_mut(id) else { return false };
        match subflow.on_half_open_fast(segment, self.session.keys()) {
            HalfOpen::Admitted => true,
            HalfOpen::WentOrdinary => {
                self.receiver.forget_syn_data(id);
                true
            }
            HalfOpen::BadHmac => {
                cx.out.counters.mp_join_bad_hmac += 1;
                false
            }
        }
    }

    /// Follows the peer to its new subflow. The third ACK proves the address of the SYN. The peer opened this
    /// subflow because the others failed: they count as silent until they are heard again, and their data is
    /// reinjected here.
    fn follow_fast_join(&mut self, cx: &mut Context<'_>, new: SubflowId) {
        for id in self.paths.ids().filter(|id| *id != new) {
            self.on_overdue(cx, id, SilenceCause::FastJoin);
        }
    }
}

/// Fast Open (RFC 7413, RFC 8684 appendix B); its course is described in `connection/fast_open.rs`.
impl Connection {
    /// Client: selects the Fast Open part of the first SYN. `options` are the other options, without TCP's own.
    fn plan_fast_open(&mut self, cx: &mut Context<'_>, id: SubflowId, options: &TcpOptions) {
        let Some(fast) = &self.config.fast_open else { return };
        if self.fast_open.is_planned() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let path = subflow.path();
        let plan = match subflow.tcp().syns_sent() {
            0 | 1 if fast.is_on(path.remote.port()) => {
                cx.fast_opens.plan(cx.now, path.addresses(), fast)
            }
            _ => Plan::Ordinary,
        };
        let (option, mss) = match plan {
            Plan::Ordinary => return self.fast_open.plan(None, 0),
            Plan::Ask(option) => (Some(option), 0),
            Plan::Send(option, mss) => (option, mss),
        };
        let all = TcpOptions {
            mss: Some(0),
            window_scale: Some(0),
            sack_permitted: true,
            timestamps: subflow.tcp().uses_timestamps().then(Timestamps::default),
            ..options.clone()
        };
        if option.is_some_and(|option| !option.fits_with(&all)) {
            return self.fast_open.plan(None, 0);
        }
        let room = if mss > 0 { syn_room(subflow.tcp().settled_segment(), mss) as u64 } else { 0 };
        let range = DataRange::new(Dsn(0), self.sender.written()).prefix(room);
        self.fast_open.plan(option, range.len());
        if range.is_empty() {
            return;
        }
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().carry_unmapped_with_syn(range);
        }
        self.sender.carry(id, Ssn(1), range, false);
    }

    /// The Fast Open option of a handshake segment.
    fn fast_open_option(&self, id: SubflowId, egress: &Egress) -> Option<FastOpenOption> {
        let option = self.fast_open.used()?.option()?;
        let subflow = self.paths.get(id).filter(|subflow| subflow.is_initial())?;
        match egress {
            Egress::Syn => (subflow.tcp().syns_sent() == 1).then_some(option),
            Egress::SynAck => Some(option),
            _ => None,
        }
    }

    /// Client: handles the answer to a first SYN with Fast Open.
    fn on_fast_open_answer(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let syn = segment.header.flags.contains(TcpFlags::SYN);
        if !syn || !self.session.is_client() || !self.fast_open.was_tried() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let path = subflow.path();
        let repeated = subflow.tcp().syns_sent() > 1;
        // A repeated SYN may have been sent without the offer.
        let speaks = mp_capable(segment).is_some();
        let multipath = (speaks || self.session.is_offered() && !repeated).then_some(speaks);
        let answer = FastOpenAnswer {
            mss: segment.options.mss.unwrap_or(DEFAULT_MSS),
            cookie: segment.fast_open(),
            asked: self.fast_open.option(),
            repeated,
            multipath,
            took: subflow.tcp().syn_data_answer().map(|(taken, _)| taken > 0),
        };
        cx.fast_opens.on_answer(cx.now, path.addresses(), &answer);
    }

    /// Client: settles the SYN's data once the first subflow is established: it was accepted, or is sent again first.
    fn settle_fast_open(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let answered = self.paths.get(id).and_then(|subflow| subflow.tcp().syn_data_answer());
        let Some((taken, rest)) = answered else { return };
        let mut checksum = 0;
        if self.session.uses_checksum() && !rest.is_empty() {
            let mut bytes = vec![0; rest.len() as usize];
            let Some(sum) = self.sender.copy(rest.start, &mut bytes) else { return };
            let wire = self.session.keys().local_wire(rest.start);
            checksum = dss_checksum(wire, 1, rest.len() as u16, sum);
        }
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.tcp_mut().settle_syn_payload(cx.now, Some(checksum));
        let window = subflow.tcp().peer_window();
        if self.session.is_multipath() {
            // This data gets no DATA_ACK.
            self.advance_una(cx, id, Dsn(taken), window);
            self.rearm_data_rto(cx.now);
        }
    }

    /// Server: applies the Fast Open verdict to the SYN that opened the connection.
    fn accept_fast_open(&mut self, cx: &mut Context<'_>, syn: &Accepted<'_>) {
        let verdict = syn.fast_open;
        if !verdict.opens && verdict.answer.is_none() {
            return;
        }
        self.fast_open.answer(verdict);
        let first = self.paths.with_ids().find(|(_, subflow)| subflow.is_initial());
        let Some(id) = first.map(|(id, _)| id).filter(|_| verdict.opens) else { return };
        self.take_first_data(id, syn.segment.payload);
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let path = subflow.path();
        self.closing.announce();
        cx.out.event(Event::Incoming(self.id));
        // Multipath TCP cannot be used before the client has sent its key.
        if self.session.is_plain() {
            subflow.tcp_mut().open_early();
            self.sender.raise_window(Dsn(0).plus(subflow.tcp().peer_window()));
            subflow.establish();
            cx.out.monitor(cx.now, self.id, MonitorKind::Established(path));
            self.on_subflow_up(cx, id);
        }
        if self.receiver.readable() > 0 {
            self.notify_readable(cx);
        }
    }

    /// Server: takes data of the SYN that opened the connection. Data beyond the window comes again.
    fn take_first_data(&mut self, id: SubflowId, payload: &[u8]) {
        let len = payload.len() as u64;
        if payload.is_empty() || len > self.receiver.window() {
            return;
        }
        self.receiver.take_unmapped(id, payload);
        self.session.skip_remote(len);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().take_syn_payload(len);
            subflow.tcp_mut().note_syn_data_taken();
        }
    }
}

/// Fallback to plain TCP, at every stage (RFC 8684 section 3.7). `connection/fallback.rs` makes the decision. This
/// code describes the state of both directions and carries out the consequences.
///
/// Options that are removed on the path are detected in the handshake, when the first data comes without a
/// mapping, or when it is acknowledged without a DATA_ACK. Then the stream is plain TCP from the first byte, for
/// both sides: all data so far is contiguous on the one subflow.
///
/// Later, only a failed checksum on the only subflow leads here. The receiver keeps its data and sends MP_FAIL.
/// The sender answers with MP_FAIL and marks its next data with an infinite mapping. Nothing is sent twice: either
/// sign shows the receiver that the kept bytes continue the stream. MP_FAIL is sent on a pure ACK, which may be
/// lost, so it is repeated until the answer arrives. If the data is not contiguous (another subflow carried some
/// of it), the subflow is reset instead, and its data is sent on the other subflows, or on the next one.
impl Connection {
    /// State of both directions on this subflow.
    fn standing(&self, id: SubflowId) -> Standing {
        let (mut sent_whole, mut sent_tail, mut usable, mut initial) = (false, false, false, false);
        if let Some(subflow) = self.paths.get(id) {
            let (una, end, next) = (self.sender.una(), self.sender.sent(), subflow.tcp().snd_nxt());
            let (from, first) = self.contiguous_from(id, next);
            // A FIN occupies a sequence number on the subflow but no position in the stream.
            sent_whole = self.sender.is_contiguous(id) && next.0.wrapping_sub(end.0 + 1) <= 1;
            sent_tail = first <= una && end.since(first) == next.since(from);
            (usable, initial) = (subflow.is_usable(), subflow.is_initial() && subflow.is_up());
        }
        // A DATA_ACK on another subflow proves the same, and this subflow may be the only one since.
        let proven = self.sender.is_proven(id) || initial && self.sender.was_mapped_acked(id);
        Standing {
            initial,
            others: self.others(id),
            sent_whole,
            sent_tail,
            received_whole: self.receiver.is_contiguous(id) && self.receiver.expects_plain(id),
            received_tail: self.receiver.is_in_step(id),
            proven,
            proven_to_peer: self.is_proven_to_peer(id),
            unheard: usable && !proven && self.is_within_first_window(id),
        }
    }

    /// State of the other subflows.
    fn others(&self, id: SubflowId) -> Others {
        let mut others = Others::None;
        for (_, subflow) in self.paths.with_ids().filter(|(other, _)| *other != id) {
            let kind = if subflow.is_usable() {
                Others::Usable
            } else if subflow.was_joined() {
                Others::Closing
            } else {
                Others::Opening
            };
            others = others.max(kind);
        }
        others
    }

    /// Point from which unacknowledged data is contiguous on a subflow. `next` is the first position not sent there.
    fn contiguous_from(&self, id: SubflowId, next: Ssn) -> Point {
        let (una, end) = (self.sender.una(), self.sender.sent());
        if una == end { (next, una) } else { self.sender.run(id) }
    }

    /// Mapped data beyond the data with the peer's keys may have been DATA_ACKed.
    fn is_proven_to_peer(&self, id: SubflowId) -> bool {
        let keyed = self.session.first_mapped_by_peer().plus(self.receiver.keyed(id).into());
        self.receiver.delivered(id) > Ssn(1).plus(keyed.0)
    }

    fn judge(&self, id: SubflowId, trigger: Trigger) -> Verdict {
        fallback::judge(trigger, &self.standing(id))
    }

    /// Judges an event on a subflow that suggests a fallback.
    fn consider_fallback(&mut self, cx: &mut Context<'_>, id: SubflowId, trigger: Trigger) {
        let standing = self.standing(id);
        self.carry_out(cx, id, fallback::judge(trigger, &standing));
        if standing.proven_to_peer && self.session.is_plain() {
            // The peer does not detect the fallback by itself.
            self.announce_fallback(cx, id, cx.now);
        }
    }

    /// Handles bytes without a mapping that are next on the subflow. If plain TCP is impossible, they end the subflow.
    fn consider_plain_data(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let verdict = self.judge(id, Trigger::UnmappedData);
        if matches!(verdict, Verdict::FromFirstByte { .. }) {
            self.consider_fallback(cx, id, Trigger::UnmappedData);
        }
    }

    /// Falls back to plain TCP from the first byte because the first handshake ended without the option.
    fn fall_back_in_handshake(&mut self, cx: &mut Context<'_>, reason: FallbackReason) {
        let initial = self.paths.with_ids().find(|(_, subflow)| subflow.is_initial());
        let id = initial.map_or(SubflowId(0), |(id, _)| id);
        let verdict = self.judge(id, Trigger::Handshake(reason));
        self.carry_out(cx, id, verdict);
    }

    fn carry_out(&mut self, cx: &mut Context<'_>, id: SubflowId, verdict: Verdict) {
        match verdict {
            Verdict::Stay | Verdict::AskPeer => {}
            Verdict::FromFirstByte { reason, says_so } => {
                self.fall_back(cx, id, reason, says_so);
            }
            Verdict::FromHere(reason) => self.continue_plain(cx, id, reason),
            Verdict::ResetSubflow => {
                self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            Verdict::ResetWithMpFail => {
                let dsn = self.receiver.failed_at(id).unwrap_or(self.receiver.next());
                self.reset_with_mp_fail(cx, id, dsn);
            }
            Verdict::Abort => self.abort_with_reason(cx, CloseReason::PeerMisbehaved),
        }
    }

    /// Falls back to plain TCP from the first byte. `says_so`: the peer may have understood our mappings, so the
    /// fallback is announced.
    fn fall_back(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        reason: FallbackReason,
        says_so: bool,
    ) {
        if self.session.is_plain() {
            return;
        }
        let multipath = self.session.is_multipath();
        let una = self.sender.una();
        let next = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
        let infinite = next.filter(|_| multipath && says_so);
        let infinite = infinite.map(|next| (next, (Ssn(una.0 + 1), una)));
        self.switch_to_plain(cx, reason, (Ssn(1), Dsn(0)), infinite);
        for id in self.paths.those(SubflowContext::is_initial).iter() {
            self.receive_plain(cx, id, (Ssn(1), Dsn(0)));
        }
        if multipath {
            self.on_plain_ack(cx, id, None);
        }
        if infinite.is_some()
            && let Some(rto) = self.paths.get(id).map(|subflow| subflow.tcp().rto())
        {
            self.announce_fallback(cx, id, cx.now + rto);
        }
    }

    /// Falls back in mid-stream, on the only subflow, from the first byte that is not DATA_ACKed.
    fn continue_plain(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: FallbackReason) {
        let Some(next) = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt()) else { return };
        let (una, (from, first)) = (self.sender.una(), self.contiguous_from(id, next));
        let infinite = (next, (from.plus(una.since(first)), una));
        self.switch_to_plain(cx, reason, (from, first), Some(infinite));
        self.on_plain_ack(cx, id, None);
    }

    fn switch_to_plain(
        &mut self,
        cx: &mut Context<'_>,
        reason: FallbackReason,
        tx: Point,
        infinite: Option<(Ssn, Point)>,
    ) {
        cx.out.counters.mp_capable_fallback += 1;
        self.session.leave_multipath(reason, tx, infinite);
        self.leave_multipath(cx);
        cx.out.monitor(cx.now, self.id, MonitorKind::Fallback(reason));
    }

    /// Sends MP_FAIL from this time on: without data from us, the peer would not learn of the fallback otherwise.
    fn announce_fallback(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Instant) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.expect_mp_fail(at);
        self.repeat_mp_fail(cx, id);
    }

    /// Drops state that plain TCP does not use: reinjections, data-level timers, joins.
    fn leave_multipath(&mut self, cx: &mut Context<'_>) {
        self.sender.leave_multipath();
        self.receiver.stop_coding();
        self.paths.addresses_mut().fall_silent();
        self.scheduling.void_all();
        self.closing.stop_fin();
        for id in self.paths.ids() {
            let other = |s: &SubflowContext| !s.is_usable() && !s.is_initial();
            if self.paths.get(id).is_some_and(other) && self.paths.count() > 1 {
                self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            }
        }
    }

    /// Handles plain TCP data of the peer whose infinite mapping was lost on the path.
    fn receive_plain_unannounced(&mut self, cx: &mut Context<'_>, id: SubflowId, ssn: Ssn) {
        if self.receiver.is_in_step(id) {
            self.receive_plain(cx, id, (ssn, self.receiver.next()));
        } else {
            self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// Plain TCP cannot fill a hole in the stream: ends the connection if bytes were discarded that the peer takes
    /// for delivered.
    fn watch_plain_stream(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.session.is_plain() && self.receiver.has_lost_bytes(id) {
            self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// Switches reception to plain TCP and delivers the data that waited for it.
    fn receive_plain(&mut self, cx: &mut Context<'_>, id: SubflowId, at: (Ssn, Dsn)) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.settle_mp_fail();
        if self.receiver.receive_plain(id, at) {
            if self.closing.is_released() {
                self.receiver.discard();
            }
            self.notify_readable(cx);
        }
    }

    /// Handles a failed DSS checksum of data on this subflow. The bytes are kept.
    fn on_bad_checksum(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.data_csum_err += 1;
        if self.session.is_plain() {
            // Our own direction failed before, and both sides know it.
            self.receive_plain(cx, id, (Ssn(0), dsn));
            self.watch_plain_stream(cx, id);
            return;
        }
        // If there is a hole before it, the missing data came, or must come, on another subflow.
        let received_tail = dsn == self.receiver.next();
        let standing = Standing { received_tail, ..self.standing(id) };
        let verdict = fallback::judge(Trigger::BadChecksum, &standing);
        self.carry_out(cx, id, verdict);
        if verdict == Verdict::AskPeer
            && let Some(subflow) = self.paths.get_mut(id)
        {
            subflow.expect_mp_fail(cx.now);
            self.repeat_mp_fail(cx, id);
        }
    }

    fn reset_with_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_closing_option(ClosingOption::Fail(fail));
        }
        self.receiver.release_kept();
    }

    /// Repeats MP_FAIL until the peer shows that it arrived.
    fn repeat_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let failed = self.receiver.failed_at(id);
        let plain = failed.is_none() && self.session.is_plain();
        let Some(dsn) = failed.or(plain.then_some(self.receiver.next())) else { return };
        let says_so =
            plain && self.has_sent_infinite_mapping(id) && !self.session.is_contradicted();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if says_so {
            subflow.settle_mp_fail();
        }
        match subflow.repeat_mp_fail(cx.now) {
            FailStep::NotDue => {}
            // The peer still speaks Multipath TCP, and no message about the fallback reaches it.
            FailStep::GiveUp if plain && self.peer_lacks_bytes(id) => {
                self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
            }
            // Options do not pass, or the peer has fallen back as well.
            FailStep::GiveUp if plain => {}
            FailStep::GiveUp => self.reset_with_mp_fail(cx, id, dsn),
            FailStep::Send => self.signal_mp_fail(cx, id, dsn),
        }
    }

    /// Data with our infinite mapping was sent.
    fn has_sent_infinite_mapping(&self, id: SubflowId) -> bool {
        let next = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
        next.is_some_and(|next| self.session.has_sent_plain(next))
    }

    fn signal_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.signal(Some(id), MptcpOption::Fail(fail));
    }

    /// Handles MP_FAIL: the peer detected a bad checksum in our data, fell back, or answers our own MP_FAIL.
    fn on_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, fail: MpFail) {
        cx.out.counters.mp_fail_rx += 1;
        if self.session.is_plain() {
            let answered = self.paths.get_mut(id).is_some_and(SubflowContext::settle_mp_fail);
            if !answered {
                self.answer_mp_fail(cx, id);
            }
            return;
        }
        let failed = self.receiver.failed_at(id);
        let trigger = if failed.is_some() { Trigger::MpFailAnswered } else { Trigger::MpFail };
        let standing = self.standing(id);
        if standing.others == Others::Usable {
            self.on_failed_reset(cx.now, id, fail);
        } else if !self.paths.is_usable(id) {
            return;
        } else if failed.is_none() {
            let from = Dsn(self.session.keys().local_offset(fail.dsn));
            if from < self.sender.una() || from > self.sender.sent() {
                cx.out.counters.dss_not_matching += 1;
                return;
            }
        }
        self.carry_out(cx, id, fallback::judge(trigger, &standing));
        if !self.session.is_plain() {
            return;
        }
        match failed {
            Some(dsn) => self.receive_plain(cx, id, (self.receiver.delivered(id), dsn)),
            None => self.answer_mp_fail(cx, id),
        }
    }

    /// Handles a RST with MP_FAIL: the peer may have acknowledged the subflow's data from that position on, but
    /// could not use it. The data is sent on another subflow at once, without waiting for the data-level timer.
    fn on_failed_reset(&mut self, now: Instant, id: SubflowId, fail: MpFail) {
        let first = Dsn(self.session.keys().local_offset(fail.dsn));
        let (una, end) = (self.sender.una(), self.sender.sent());
        if first < una || first >= end || self.may_still_fall_back() {
            return;
        }
        self.sender.reinject_carried_alone(now, first, id);
    }

    /// Answers a repeated MP_FAIL again, because the previous answer may be lost; the number of answers is limited.
    fn answer_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let next = self.receiver.next();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if self.session.announces_fallback() && subflow.answers_mp_fail() {
            self.signal_mp_fail(cx, id, next);
        }
    }

    /// Handles the peer's infinite mapping: plain TCP from this point on.
    fn on_infinite_mapping(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Point) {
        if self.paths.get(id).is_none() || self.receiver.is_infinite(id) {
            return;
        }
        let failed = self.receiver.failed_at(id);
        let received_tail =
            failed.map_or_else(|| self.receiver.fits(id, at), |dsn| dsn == self.receiver.next());
        let standing = Standing { received_tail, ..self.standing(id) };
        let verdict = match fallback::judge(Trigger::InfiniteMapping, &standing) {
            Verdict::FromHere(_) if failed.is_some() => {
                Verdict::FromHere(FallbackReason::ChecksumFailed)
            }
            verdict => verdict,
        };
        if !self.session.is_plain() {
            self.carry_out(cx, id, verdict);
        } else if !received_tail {
            self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
        if self.session.is_plain() {
            self.receive_plain(cx, id, at);
        }
    }
}

/// Addresses of both sides, and requests of the path manager (RFC 8684 section 3.4).
impl Connection {
    /// Sends ADD_ADDR for one of our addresses, repeated until echoed.
    fn announce_address(&mut self, cx: &mut Context<'_>, id: AddressId) {
        if !self.session.is_multipath() {
            return;
        }
        let (rto, keys) = (self.largest_rto(), self.session.keys());
        if self.paths.addresses_mut().announce(cx.now, id, keys, rto) {
            cx.out.counters.add_addr_tx += 1;
        }
    }

    /// Sends REMOVE_ADDR for one of our addresses.
    fn withdraw_address(&mut self, cx: &mut Context<'_>, id: AddressId) {
        cx.out.counters.rm_addr_tx += 1;
        self.paths.addresses_mut().withdraw(id);
    }

    fn on_add_addr(&mut self, cx: &mut Context<'_>, on: SubflowId, add: &AddAddr) {
        cx.out.counters.add_addr_rx += 1;
        if !self.session.keys().proves_address(add) {
            return;
        }
        // The HMAC requires both keys, which proves that the peer speaks MPTCP.
        self.confirm(cx);
        let port = self.paths.get(on).map_or(0, |subflow| subflow.path().remote.port());
        let limit = cx.config.limits.remote_addresses;
        let new = self.paths.addresses_mut().on_announced(on, port, add, limit);
        // A server behind a load balancer may announce the initial subflow's own address (id 0), which allows
        // joins to it.
        let is_news = |new: &RemoteAddress| new.id != AddressId(0) || self.session.allow_id0();
        if let Some(new) = new.filter(is_news) {
            let (id, address) = (new.id, new.address);
            cx.out.monitor(cx.now, self.id, MonitorKind::Announced { id, address });
            self.path_event(cx, PathEvent::Announced(id));
        }
    }

    /// Handles REMOVE_ADDR. The subflow that brought the option is alive: its address may have come back before
    /// the option was sent. RFC 8684 section 3.4.2 asks to close only paths that are not in use.
    fn on_remove_addr(&mut self, cx: &mut Context<'_>, on: SubflowId, remove: &RemoveAddr) {
        for id in remove.ids.iter().take(usize::from(remove.len)).map(|id| AddressId(*id)) {
            cx.out.counters.rm_addr_rx += 1;
            self.paths.addresses_mut().on_withdrawn(id);
            for there in self.paths.ids() {
                let theirs = |s: &&SubflowContext| s.remote_id() == id && there != on;
                let Some(subflow) = self.paths.get(there).filter(theirs) else { continue };
                let joins = !subflow.is_initial() && !subflow.is_shut() && !subflow.was_joined();
                if joins {
                    // SYNs to this address get no answer any more.
                    self.drop_subflow(cx, there, CloseReason::PeerReset);
                } else if subflow.was_joined() && self.paths.count() > 1 {
                    // RFC 8684 section 3.4.2: a RST, if it arrives, clears state of middleboxes on the path.
                    self.reset_subflow(cx, there, reason::UNSPECIFIED, CloseReason::PeerReset);
                }
            }
            cx.out.monitor(cx.now, self.id, MonitorKind::Removed(id));
            self.path_event(cx, PathEvent::Removed(id));
        }
    }

    /// Passes an event to the path manager and executes its actions.
    fn path_event(&mut self, cx: &mut Context<'_>, event: PathEvent) {
        if self.closing.is_closed() || self.session.is_plain() {
            return;
        }
        if let PathEvent::Silent { id, .. } = event {
            self.report_silence(cx, id);
        }
        self.with_path_context(cx, |manager, context| manager.on_event(&event, context));
        self.apply_path_actions(cx);
    }

    fn path_manager_accepts(&mut self, cx: &Context<'_>, path: FourTuple) -> bool {
        self.with_path_context(cx, |manager, context| manager.accepts_join(path.remote, context))
    }

    /// Calls `ask` with the path manager's view of the connection.
    fn with_path_context<R>(
        &mut self,
        cx: &Context<'_>,
        ask: impl FnOnce(&mut dyn PathManager, &PathContext<'_>) -> R,
    ) -> R {
        self.refresh_views(cx.now);
        let context = PathContext {
            now: cx.now,
            role: self.session.role(),
            local: self.paths.addresses().local(),
            remote: self.paths.addresses().remote(),
            deny_join_id0: self.session.peer_denies_id0(),
            paths: &self.paths.paths(),
            subflows: self.scheduling.views(),
            max_subflows: cx.config.limits.subflows,
            data_waits: self.sender.has_data(),
            followed: self.session.agreed_on(Extensions::FOLLOW_CLIENT),
        };
        ask(self.path_manager.as_mut(), &context)
    }

    fn apply_path_actions(&mut self, cx: &mut Context<'_>) {
        for _ in 0..MAX_ACTIONS {
            let Some(action) = self.path_manager.poll_action() else { return };
            // The join that replaces a lost address is not the manager's, and the connection depends on it.
            let closes_join = matches!(action, PathAction::CloseSubflow(_));
            if !(closes_join && self.may_join_unconfirmed()) {
                self.path_action(cx, action);
            }
        }
    }

    /// Executes one action of the path manager or of an administrator.
    pub(crate) fn path_action(&mut self, cx: &mut Context<'_>, action: PathAction) {
        match action {
            PathAction::OpenSubflow { local, remote, backup, fast } => {
                let addresses = self.paths.addresses();
                let local = addresses.find_local(local).filter(|l| l.up);
                // A path pinned to one remote address uses that, regardless of the peer's announcements.
                let pinned = local.and_then(|l| l.remote).filter(|_| remote == AddressId(0));
                let remote = pinned.or_else(|| addresses.find_remote(remote));
                let way = local.and_then(|local| Some((local, local.way_to(remote?)?)));
                if let Some((local, remote)) = way {
                    self.open_join(cx, JoinAddresses { local, remote }, (backup, fast));
                }
            }
            PathAction::Probe(id) => {
                let subflow = self.paths.get_mut(id).filter(|subflow| subflow.is_usable());
                if let Some(subflow) = subflow {
                    subflow.tcp_mut().request_probe();
                }
            }
            PathAction::CloseSubflow(id) => self.close_subflow(cx, id),
            PathAction::Announce(id) => self.announce_address(cx, id),
            PathAction::Withdraw(id) => self.withdraw_address(cx, id),
            PathAction::SetBackup { id, backup } => self.set_priority(cx, id, backup),
        }
    }

    fn close_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.close();
        self.stop_carrying(cx.now, id);
        // A subflow with an unanswered SYN is closed without a RST and gets no further event, so it is dropped here.
        self.drop_unanswered(cx);
    }
}

/// Handling of silent subflows: reinjection, its reversal, and verdicts of the path health monitor. The definition
/// of a subflow's health is in `subflow/health.rs`.
///
/// A probe timeout means that nothing was heard for two round trips although an answer is due. For interactive
/// traffic that is the time to act: the data is sent on another subflow at once (RFC 8684 section 3.3.6 leaves the
/// moment to the sender; kernels wait for the RTO). If the silence was only jitter, the first segment received
/// cancels the copies not sent yet.
impl Connection {
    fn on_probe_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        self.report_timeout(cx, id);
        let patience = self.scheduling.probe_patience();
        // A scheduler that waits for the retransmission timer before it reinjects uses the same timer to judge the
        // subflow.
        if let (Some(subflow), Some(patience)) = (self.paths.get_mut(id), patience) {
            subflow.health_mut().on_probe_timeout(cx.now, patience);
        }
        self.scheduler_event(cx.now, SchedulerEvent::ProbeTimeout(id));
        if patience == Some(Duration::ZERO) {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Reports losses found by loss recovery to the scheduler. TCP repeats them on the subflow, but the scheduler
    /// may choose a faster path.
    fn on_lost(&mut self, now: Instant, id: SubflowId) {
        if self.paths.turns() < 2 || self.session.is_plain() || !self.scheduling.watches_losses() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        for range in subflow.lost_ranges(self.sender.una()) {
            self.scheduler_event(now, SchedulerEvent::Lost { on: id, range });
        }
    }

    fn on_subflow_rto(&mut self, cx: &mut Context<'_>, id: SubflowId, count: u32) {
        if self.is_unanswered(id) {
            self.on_first_data_timeout(cx, id);
        }
        self.on_infinite_mapping_timeout(cx, id);
        self.report_timeout(cx, id);
        if self.reset_on_false_acks(cx, id) {
            return;
        }
        if self.sender.is_held_back() {
            self.relieve_send_buffer(cx);
        }
        self.scheduler_event(cx.now, SchedulerEvent::SubflowRto(id));
        if self.paths.get(id).is_some_and(SubflowContext::is_up) {
            self.start_rescue(cx, id, ReinjectionCause::SubflowRto);
        }
        self.rest_or_repeat(cx, id);
        if count > 1 && self.session.is_confirmed() && self.paths.are_all_silent() {
            self.closing.begin_wait(cx.now);
            if self.paths.usable_count() > 1 {
                self.probe_until_heard(cx.now);
            } else if count == STUCK_AFTER {
                self.path_event(cx, PathEvent::Stuck(id));
            }
        }
    }

    /// Resets a subflow on which a middlebox acknowledged data that the peer never received: no later data can
    /// fill that hole. The subflow's data is sent on others, or on the subflow that replaces it.
    fn reset_on_false_acks(&mut self, cx: &mut Context<'_>, id: SubflowId) -> bool {
        let misled = self.paths.get(id).is_some_and(|subflow| subflow.tcp().has_false_acks());
        let may = self.may_be_rejoined() && !self.session.is_plain() && !self.may_still_fall_back();
        if misled && may {
            self.reset_subflow(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
            self.sender.requeue_orphaned_data(cx.now);
        }
        misled && may
    }

    /// Handles an application that waits for memory. It is notified if there is memory now. If subflows retain too
    /// much DATA_ACKed data, the one that retains most is closed: first among those that are closing or have timed
    /// out, and among all once the application has waited for too long. Another subflow must be healthy. The data
    /// of the closed subflow is DATA_ACKed or sent elsewhere.
    fn relieve_send_buffer(&mut self, cx: &mut Context<'_>) {
        self.notify_writable(cx);
        if !self.sender.retains_too_much() || !self.may_be_rejoined() || self.session.is_plain() {
            return;
        }
        let (healthy, una) = (self.paths.healthy(), self.sender.una());
        let stuck = self.paths.those(|s| s.is_shut() || s.tcp().has_retransmission_timeout());
        let keeper = self.paths.largest_retainer(stuck, una).or_else(|| {
            let is_over = self.sender.is_held_back_for(MAX_HOLD_BACK, cx.now);
            is_over.then(|| self.paths.largest_retainer(self.paths.those(|_| true), una))?
        });
        if let Some(id) = keeper
            && healthy.iter().any(|other| other != id)
        {
            let reason = reason::TOO_MUCH_OUTSTANDING;
            self.reset_subflow(cx, id, reason, CloseReason::TimedOut);
        }
    }

    /// Starts reinjection if the patience with an unanswered probe is over.
    fn on_probe_patience_end(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let mut subflow = self.paths.get_mut(id);
        if subflow.as_mut().is_some_and(|s| s.health_mut().is_patience_over(cx.now)) {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Reinjects the data of subflows that the scheduler considers dead. The scheduler concludes this during an
    /// ACK event, in which path manager and monitor cannot be notified. Data that the ACK releases is not queued
    /// this way.
    fn start_pending_rescues(&mut self, cx: &mut Context<'_>) {
        let awaited = self.paths.those(|s| s.health().awaits_rescue() && s.is_usable());
        for id in awaited.iter() {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Marks a subflow as silent because data or an answer is overdue.
    fn on_overdue(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: SilenceCause) {
        if let Some(subflow) = self.paths.get_mut(id).filter(|subflow| subflow.is_usable()) {
            subflow.health_mut().on_overdue(cx.now, cause);
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// True if silent paths are probed for this connection. A scheduler that waits for retransmission timeouts,
    /// like the kernel's, disables probing.
    fn probes_silent_paths(&self) -> bool {
        let may = self.session.is_confirmed() && !self.session.is_plain();
        may && !self.closing.is_closed() && self.scheduling.probe_patience().is_some()
    }

    /// Waits for an answer on this subflow's path, which is probed until there is one. Returns true if it is probed.
    fn wait_for_answer(&mut self, cx: &mut Context<'_>, id: SubflowId) -> bool {
        let subflow = self.paths.get(id).filter(|subflow| subflow.is_usable());
        let Some(subflow) = subflow.filter(|_| self.probes_silent_paths()) else { return false };
        cx.silent_paths.on_silent(cx.now, &subflow.path(), self.id)
    }

    /// Handles a retransmission timeout of a subflow. If its path is probed and other subflows carry its data, it
    /// repeats its oldest data once and then pauses until the path answers.
    fn rest_or_repeat(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let is_probed = self.wait_for_answer(cx, id);
        let has_others = !self.paths.healthy().is_empty();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let repeated = subflow.tcp().retransmission_timeouts() > MAX_SILENT_RETRANSMISSIONS;
        let is_spare = has_others && subflow.health().is_rescued();
        subflow.tcp_mut().rest_or_repeat(is_probed && is_spare && repeated);
    }

    /// This connection as the prober of a silent path; `None` if it does not wait for that path.
    pub(crate) fn prober_of(&self, now: Instant, path: PathAddresses) -> Option<Prober> {
        if !self.probes_silent_paths() {
            return None;
        }
        let on = |s: &&SubflowContext| s.path().addresses() == path;
        let waits = |s: &SubflowContext| !s.was_joined() || s.is_usable() && s.health().is_silent();
        let mut there = self.paths.iter().filter(on);
        let may = match there.next() {
            None => self.unopened_at(path.local).is_some(),
            Some(first) => waits(first) || there.any(waits),
        };
        let unanswered = self.sender.una() < self.sender.written();
        let is_busy = self.trim.was_busy_within(now, IN_USE_TIME) || unanswered;
        let is_reserve = |s: &SubflowContext| self.paths.is_reserve(s) || s.cost().tail_ms > 0;
        let spared =
            self.paths.iter().filter(on).any(is_reserve) && !self.paths.healthy().is_empty();
        may.then(|| Prober {
            connection: self.id,
            is_client: self.session.is_client(),
            in_use: is_busy && !spared,
        })
    }

    /// Id of the local address with this IP address, if a client may open a subflow from it.
    fn unopened_at(&self, local: IpAddr) -> Option<AddressId> {
        let locals = self.paths.addresses().local();
        let up = locals.iter().find(|l| l.address.ip() == local && l.up && l.subflow);
        up.filter(|_| self.session.is_client()).map(|local| local.id)
    }

    /// Probes a silent path with an empty segment, a repeated SYN, or a new subflow.
    pub(crate) fn probe_path(&mut self, cx: &mut Context<'_>, path: PathAddresses) {
        let mut asked = false;
        for id in self.paths.those(|s| s.path().addresses() == path).iter() {
            let Some(subflow) = self.paths.get_mut(id) else { continue };
            if !subflow.was_joined() {
                subflow.tcp_mut().repeat_syn();
            } else if subflow.is_usable() && subflow.health().is_silent() {
                subflow.tcp_mut().request_probe();
            }
            asked = true;
        }
        if asked {
            cx.out.counters.path_probes += 1;
        } else if let Some(local) = self.unopened_at(path.local) {
            cx.out.counters.path_probes += 1;
            self.path_event(cx, PathEvent::LocalUp(local));
        }
    }

    /// Retries pending transmissions on a path from which another connection got an answer.
    pub(crate) fn on_path_answers(&mut self, cx: &mut Context<'_>, path: PathAddresses) {
        if !self.probes_silent_paths() {
            return;
        }
        let mut owes = false;
        for id in self.paths.those(|s| s.path().addresses() == path).iter() {
            let Some(subflow) = self.paths.get_mut(id) else { continue };
            owes = true;
            if !subflow.was_joined() {
                subflow.tcp_mut().repeat_syn();
            } else if subflow.is_usable() && subflow.health().is_silent() {
                if subflow.tcp().has_retransmission_timeout() {
                    subflow.tcp_mut().retry_now(cx.now);
                } else {
                    subflow.tcp_mut().request_probe();
                }
            }
        }
        if let Some(local) = self.unopened_at(path.local).filter(|_| !owes) {
            self.path_event(cx, PathEvent::LocalUp(local));
        }
    }

    /// Marks the connection as in use although its stream may be idle.
    pub(crate) fn note_in_use(&mut self, now: Instant) {
        self.trim.note_busy(now);
    }

    /// Marks a subflow as silent and reinjects its data on others.
    fn start_rescue(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: ReinjectionCause) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let first = subflow.health_mut().start_rescue();
        self.scheduling.void(id);
        self.reinject_from(cx.now, id, cause);
        self.wait_for_answer(cx, id);
        if first {
            let kind = MonitorKind::SubflowSuspected { id, suspected: true };
            cx.out.monitor(cx.now, self.id, kind);
            self.path_event(cx, PathEvent::Suspected(id));
        }
    }

    /// Handles a segment of the peer on a silent subflow. It may be the answer to a probe, or prove only that one
    /// direction works: the oldest data is repeated to find out. If silent paths are not probed, it counts as an
    /// answer.
    fn on_heard_unanswered(&mut self, cx: &mut Context<'_>, id: SubflowId, unheard: Duration) {
        let probes = self.probes_silent_paths();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if probes && !subflow.tcp().refuses_payload() {
            subflow.tcp_mut().retry_soon(cx.now, unheard);
        } else {
            subflow.tcp_mut().end_silence(unheard);
        }
    }

    fn on_heard_again(&mut self, cx: &mut Context<'_>, id: SubflowId, end: EndOfSilence) {
        // A scheduler that leaves the judgement to the retransmission timer also keeps the timer's pace.
        let prompt = self.scheduling.probe_patience().is_some();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if prompt {
            subflow.tcp_mut().retry_soon(cx.now, end.unheard);
            cx.silent_paths.on_answer(cx.now, subflow.path().addresses());
        }
        let bad = subflow.health().has_bad_address_pair();
        if !end.was_rescued {
            return;
        }
        // Data on a bad path stays suspected although a segment was received there.
        if !bad {
            self.sender.clear_suspicion(id);
        }
        let kind = MonitorKind::SubflowSuspected { id, suspected: false };
        cx.out.monitor(cx.now, self.id, kind);
        self.rescue(cx.now, |_| true);
        self.path_event(cx, PathEvent::HeardAgain(id));
    }

    /// A healthy subflow exists: reinjects data of silent subflows and of subflows on bad paths (even if heard),
    /// including data assigned while they were the only ones, without waiting for their timers.
    fn rescue(&mut self, now: Instant, of: impl Fn(&SubflowContext) -> bool) {
        for id in self.paths.those(|s| s.health().needs_rescue() && of(s)).iter() {
            self.reinject_from(now, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Queues this subflow's data that no healthy subflow carries.
    fn reinject_from(&mut self, now: Instant, id: SubflowId, cause: ReinjectionCause) {
        // A subflow that closes does not fall back any more.
        let waits = cause != ReinjectionCause::SubflowClosed && self.may_still_fall_back();
        if self.session.is_plain() || self.closing.is_closed() || waits {
            return;
        }
        let healthy = self.paths.healthy();
        let Some(subflow) = self.paths.get(id) else { return };
        for range in subflow.unacked_ranges(self.sender.una()) {
            self.sender.reinject_sole_copies(now, range, (id, cause), healthy);
        }
    }

    /// Passes each established subflow, including plain TCP, to the path health monitor.
    pub(crate) fn members(&mut self, mut see: impl FnMut(FourTuple, &mut Subflow)) {
        for subflow in self.paths.iter_mut().filter(|subflow| subflow.is_usable()) {
            see(subflow.path(), subflow.tcp_mut());
        }
    }

    /// Reports a timer expiry on a subflow to the path health monitor.
    fn report_timeout(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id).filter(|subflow| subflow.is_usable()) {
            let trouble = Trouble::TimedOut { wait: subflow.tcp().max_answer_time() };
            cx.faults.report(subflow.path(), trouble);
        }
    }

    /// Reports an unanswered probe on a subflow to the path health monitor.
    fn report_silence(&self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id) {
            let trouble = Trouble::Silent { wait: subflow.tcp().max_answer_time() };
            cx.faults.report(subflow.path(), trouble);
        }
    }

    /// Applies changed path health verdicts to each subflow.
    pub(crate) fn adopt_path_health(&mut self, cx: &mut Context<'_>) {
        let mut changed = Vec::new();
        for id in self.paths.ids() {
            let Some(subflow) = self.paths.get_mut(id) else { continue };
            let fault = cx.faults.fault(&subflow.path());
            let change = subflow.health_mut().on_verdict(cx.now, fault);
            changed.extend(change.map(|change| (id, change)));
        }
        for (id, change) in changed {
            self.on_verdict(cx, id, change);
        }
    }

    fn on_verdict(&mut self, cx: &mut Context<'_>, id: SubflowId, change: VerdictChange) {
        let fault = change.fault;
        if change.turned {
            cx.out.monitor(cx.now, self.id, MonitorKind::AddressPair { id, fault });
        }
        if change.reinjects_outstanding() && !self.session.is_plain() {
            self.on_overdue(cx, id, SilenceCause::BadAddressPair);
        }
        // A join between two SYNs need not wait for the end of an outage's backoff.
        let waits = |s: &SubflowContext| fault.is_none() && !s.is_usable();
        if let Some(subflow) = self.paths.get_mut(id).filter(|subflow| waits(subflow)) {
            subflow.tcp_mut().retry_soon(cx.now, Duration::ZERO);
        }
        self.path_event(cx, PathEvent::AddressPair { id, bad: fault.is_some() });
    }

    /// Probes the peer on the first subflow between these addresses.
    pub(crate) fn ask_address_pair(&mut self, pair: &AddressPair) {
        let on = |path: FourTuple| (path.local.ip(), path.remote.ip()) == (pair.local, pair.remote);
        let member = |s: &&mut SubflowContext| s.is_usable() && on(s.path());
        if let Some(subflow) = self.paths.iter_mut().find(member) {
            subflow.tcp_mut().request_probe();
        }
    }
}

/// Detection of paths that are silent although data is due (`liveness`), and a receiver's probes.
impl Connection {
    /// Updates the download watch after a segment. `before` is the first missing byte before it.
    fn watch_download(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        before: Dsn,
        segment: &TcpSegment<'_>,
    ) {
        if self.config.receive_timer.is_none() || !self.session.is_client() {
            return;
        }
        let next = self.receiver.next();
        self.note_agreement(id, segment);
        let mapped = self.mapped_end(segment);
        if mapped.is_none() && next == before {
            return;
        }
        let marked = mapped.filter(|_| self.is_marked(cx, segment));
        self.liveness.note_announced(next, mapped);
        let conditions = self.silence_conditions();
        let moved = next > before;
        if self.liveness.on_content(cx.now, id, (next, moved, marked), conditions) {
            self.ask_for_rto(cx, id);
        }
    }

    /// Records how much data was sent before the segment that brought the peer's agreement. That data may still be
    /// in flight, and has no mark.
    fn note_agreement(&mut self, id: SubflowId, segment: &TcpSegment<'_>) {
        if self.liveness.knows_marks() || !self.session.peer_marks_idle() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let expected = subflow.tcp().peer_to_wire(subflow.tcp().rcv_nxt());
        let missing = segment.header.seq.offset_from(expected);
        let missing = if missing < 1 << 31 { u64::from(missing) } else { 0 };
        self.liveness.note_agreement(self.receiver.next(), missing);
    }

    /// End of the data that a segment maps. Data beyond the window is not accepted and not counted.
    fn mapped_end(&self, segment: &TcpSegment<'_>) -> Option<Dsn> {
        let dss = segment.options.dss?;
        let mapping = dss.mapping.filter(|mapping| mapping.length > u16::from(dss.data_fin))?;
        let length = u64::from(mapping.length) - u64::from(dss.data_fin);
        let end = self.session.unwrap_dsn(mapping.dsn, self.receiver.next())?.plus(length);
        (end <= self.receiver.edge()).then_some(end)
    }

    /// True if a segment marks its mapping as the end of the peer's data.
    fn is_marked(&self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) -> bool {
        let options = &segment.options.mptcp;
        let marked = !options.is_empty()
            && self.session.peer_marks_idle()
            && options.iter().any(|option| option == mp_idle_option());
        cx.out.counters.mp_idle_rx += u64::from(marked);
        marked
    }

    /// Updates the delivery watch after the DATA_ACK advanced on this subflow.
    fn watch_delivery_of_sent(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let outstanding = self.sender.una() < self.sender.sent();
        let usual = self.paths.get(id).and_then(|subflow| subflow.tcp().srtt()).unwrap_or_default();
        if let Some(since) = self.ack_watch.moved(cx.now, outstanding, usual) {
            self.report_hole(cx, id, StreamDirection::Sent, since);
        }
    }

    /// Updates the delivery watch after bytes came in order, the first of them on this subflow.
    fn watch_delivery_of_received(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let due = self.expects_peer_data(id);
        if let Some(since) = self.receiver.watch_mut().moved(cx.now, due, Duration::ZERO) {
            self.report_hole(cx, id, StreamDirection::Received, since);
        }
    }

    /// The peer is known to have sent data beyond the in-order data, or to have more to send.
    fn expects_peer_data(&self, id: SubflowId) -> bool {
        let held = |subflow: &SubflowContext| subflow.tcp().held_out_of_order() > 0;
        self.receiver.has_hole()
            || self.paths.get(id).is_some_and(held)
            || (self.liveness.is_clock_running() && self.session.peer_marks_idle())
    }

    #[cold]
    fn report_hole(
        &self,
        cx: &mut Context<'_>,
        ended_by: SubflowId,
        direction: StreamDirection,
        since: Instant,
    ) {
        let silent = self.paths.with_ids().find_map(|(id, subflow)| match subflow.health().get() {
            marline_policy::Health::Silent { cause, .. } => Some((id, cause)),
            _ => None,
        });
        let kind = MonitorKind::Hole { direction, since, ended_by, silent };
        cx.out.monitor(cx.now, self.id, kind);
    }

    /// Postpones a receiver's probes after data or an acknowledgment.
    fn postpone_probes(&mut self, now: Instant) {
        if let Some(probes) = self.config.receive_probes {
            self.liveness.on_data(now, probes);
        }
    }

    /// Updates timers after a DATA_ACK advanced.
    fn watch_data_ack(&mut self, now: Instant) {
        self.postpone_probes(now);
        if self.liveness.is_clock_running()
            && let Some(conditions) = self.silence_conditions()
        {
            self.liveness.on_data_ack(now, &conditions);
        }
    }

    /// Time of the next check for silence.
    fn silence_timeout(&self) -> Option<Instant> {
        let keepalive = self.lone_keepalive().map(|(_, due, _)| due.at);
        self.liveness.clock_timeout().into_iter().chain(keepalive).min()
    }

    fn on_silence_timeout(&mut self, cx: &mut Context<'_>) {
        if self.liveness.clock_timeout().is_some_and(|at| at <= cx.now) {
            self.on_receive_timer(cx);
        }
        self.on_lone_keepalive(cx);
    }

    fn on_receive_timer(&mut self, cx: &mut Context<'_>) {
        let conditions = self.silence_conditions();
        let shut = self.receiver.window() < MIN_USABLE_WINDOW;
        let since = self.liveness.silent_since().unwrap_or(cx.now);
        let cause = match self.liveness.on_clock(cx.now, conditions, shut) {
            Due::Nothing => return,
            Due::Probe => {
                cx.out.counters.receive_timer_probes += 1;
                self.probe_liveness(self.liveness.last_data_subflow());
                return;
            }
            Due::Stalled => SilenceCause::ReceiveTimer,
            Due::Unanswered => SilenceCause::UnansweredProbes,
        };
        cx.out.counters.receive_timer_expired += 1;
        for id in self.silent_since(since).iter() {
            self.on_silent(cx, id, cause);
        }
    }

    /// Subflow that brought the last data before the silence, and subflows not heard since.
    fn silent_since(&self, since: Instant) -> SubflowSet {
        let mut silent = self.paths.those(|s| s.is_usable() && s.tcp().last_heard_at() <= since);
        if let Some(id) = self.liveness.last_data_subflow().filter(|id| self.paths.is_usable(*id)) {
            silent.insert(id);
        }
        silent
    }

    /// Sends an empty segment that the peer answers, on this subflow, or on the best one if it is gone.
    fn probe_liveness(&mut self, id: Option<SubflowId>) {
        let there = id.filter(|id| self.paths.is_usable(*id));
        let on = there.or_else(|| self.paths.best());
        if let Some(subflow) = on.and_then(|id| self.paths.get_mut(id)) {
            subflow.tcp_mut().request_probe();
        }
    }

    fn on_silent(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: SilenceCause) {
        cx.out.monitor(cx.now, self.id, MonitorKind::SubflowSilent { id, cause });
        self.on_overdue(cx, id, cause);
        self.path_event(cx, PathEvent::Silent { id, cause });
    }

    /// More data may come, another path could be opened if this one were dead, and we are the side that opens it.
    fn may_open_another_path(&self) -> bool {
        self.session.is_client()
            && self.session.is_confirmed()
            && !self.closing.is_closed()
            && !self.receiver.fin_reached()
            && self.paths.has_unopened_address()
    }

    /// Current inputs of the receive timer. `None` if the timer is not needed.
    fn silence_conditions(&self) -> Option<Conditions> {
        let config = self.config.receive_timer.filter(|_| self.may_open_another_path())?;
        let heard_at = self.paths.last_heard_at()?;
        let round_trip = self.paths.slow_round_trip()?;
        let (told, marks) = (self.rto_exchange.told(), self.session.peer_marks_idle());
        Some(self.liveness.conditions(&config, told, (heard_at, round_trip), marks))
    }

    /// Subflow to be kept alive, and its next keepalive.
    fn lone_keepalive(&self) -> Option<(SubflowId, KeepaliveDue, LoneKeepalive)> {
        let config = self.config.lone_keepalive?;
        if self.liveness.is_clock_running() || !self.may_open_another_path() {
            return None;
        }
        let mut usable = self.paths.with_ids().filter(|(_, subflow)| subflow.is_usable());
        let (Some((id, subflow)), None) = (usable.next(), usable.next()) else { return None };
        // While data is unacknowledged there, TCP timers watch the subflow.
        let tcp = subflow.tcp();
        if self.paths.is_reserve(subflow) || tcp.unacked().next().is_some() {
            return None;
        }
        let (heard_at, sent_at) = (tcp.last_heard_at(), tcp.last_sent_at());
        Some((id, self.liveness.keepalive_due(&config, heard_at, sent_at), config))
    }

    fn on_lone_keepalive(&mut self, cx: &mut Context<'_>) {
        let due = self.lone_keepalive().filter(|(_, due, _)| due.at <= cx.now);
        let Some((id, due, config)) = due else { return };
        if self.liveness.on_keepalive(cx.now, &config, due) {
            cx.out.counters.lone_keepalives += 1;
            self.probe_liveness(Some(id));
        } else {
            cx.out.counters.lone_keepalive_expired += 1;
            self.on_silent(cx, id, SilenceCause::UnansweredKeepalives);
        }
    }

    fn on_receive_probes(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.liveness.probes().next_timeout().is_none_or(|at| at > now) {
            return;
        }
        let Some(probes) = self.config.receive_probes.filter(|_| self.waits_for_data()) else {
            self.liveness.probes_mut().stop();
            return;
        };
        if !self.liveness.probes_mut().is_due(now, probes) {
            return;
        }
        if !self.sender.has_outstanding() && !self.paths.has_pending_acks() {
            self.probe_peer_alive(cx);
        }
        self.liveness.probes_mut().rearm(now, probes);
    }

    fn probe_peer_alive(&mut self, cx: &mut Context<'_>) {
        let heard_at = self.paths.last_heard_at();
        let unanswered = self.liveness.probes_mut().ask(cx.now, heard_at);
        self.closing.note_silence(cx.now, unanswered);
        cx.out.counters.receive_probes += 1;
        if unanswered == 0 {
            self.probe_liveness(self.paths.best());
            return;
        }
        self.paths.probe_all_subflows();
    }

    /// Sets the time within which the peer has to be heard.
    fn expect_answer(&mut self, now: Instant, within: Duration) {
        if !self.closing.is_closed() {
            self.closing.expect_answer(now, within);
            self.probe_until_heard(now);
        }
    }

    /// Probes all subflows, now and again until one answers.
    fn probe_until_heard(&mut self, now: Instant) {
        if self.closing.start_probes(now) {
            self.paths.probe_all_subflows();
        }
    }

    /// A client that has a subflow, and whose peer may still send data.
    fn waits_for_data(&self) -> bool {
        self.session.is_client()
            && !self.closing.is_closed()
            && !self.receiver.fin_reached()
            && self.paths.usable_count() > 0
            && (self.liveness.probes().may_probe_reserve() || !self.paths.has_only_reserve())
    }
}

/// Selection of outgoing segments. One call fills one batch for one path.
///
/// Order: segments that TCP has pending on a subflow (handshakes, resets, repairs: later data on that subflow is
/// useless before its hole is filled), tail loss probes, signals, the DATA_FIN, data by the scheduler's choice,
/// and last pure ACKs, which data may have carried by then.
impl Connection {
    /// Fills `buf` with the next batch; it must be empty. `None` if there is nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        self.scheduling.swap_scratch(cx.desk);
        if cx.out.reports_decisions() {
            self.scheduling.note_reasons();
        }
        let transmit = self.next_transmit(cx, buf);
        if cx.out.reports_decisions() {
            let reasons = self.scheduling.take_reasons();
            reasons.into_iter().for_each(|reason| cx.out.decided(cx.now, self.id, reason));
        }
        self.scheduling.swap_scratch(cx.desk);
        transmit
    }

    fn next_transmit(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        self.start_pending_rescues(cx);
        if self.paths.addresses().has_pending_mp_fail()
            && let Some(transmit) = self.emit_signal(cx, buf)
        {
            return Some(transmit);
        }
        self.emit_pending(cx, buf)
            .or_else(|| self.emit_probe(cx, buf))
            .or_else(|| self.emit_signal(cx, buf))
            .or_else(|| self.emit_data_fin(cx, buf))
            .or_else(|| self.emit_batch(cx, buf))
            .or_else(|| self.emit_acks(cx, buf))
    }

    /// Room for payload of a retransmitted segment on this subflow.
    fn repeat_room(&self, id: SubflowId) -> PayloadRoom {
        let Some(subflow) = self.paths.get(id) else { return PayloadRoom::default() };
        self.payload_room(subflow, (Dsn(1), subflow.tcp().snd_una()))
    }

    /// Room for payload of a full segment with data from `at` on.
    fn payload_room(&self, subflow: &SubflowContext, at: (Dsn, Ssn)) -> PayloadRoom {
        let tcp = subflow.tcp();
        let mut options = self.data_options(subflow, at, tcp.uses_timestamps());
        let room = |options: &TcpOptions| {
            tcp.settled_segment().saturating_sub(TCP_HEADER_LEN + options.encoded_len())
        };
        let mapped = room(&options);
        if self.session.maps_runs(&self.config) {
            options.dss = None;
        }
        PayloadRoom { mapped, plain: room(&options) }
    }

    fn emit_pending(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        for _ in 0..self.paths.turns() {
            let id = self.paths.turn();
            let owes = self.paths.get(id).is_some_and(|s| s.tcp().has_pending_besides_ack());
            let room = if owes { self.repeat_room(id) } else { PayloadRoom::default() };
            let egress = self
                .paths
                .get_mut(id)
                .filter(|_| owes)
                .and_then(|subflow| subflow.tcp_mut().next_egress_but_ack(cx.now, room));
            if let Some(egress) = egress {
                let transmit = self.emit(cx, id, &egress, None, buf);
                self.drain_subflow_events(cx, id);
                self.drop_if_reset(cx, id, &egress);
                if transmit.is_some() {
                    return transmit;
                }
            }
            self.paths.end_turn();
        }
        None
    }

    /// Drops a subflow after its RST was sent, unless the RST only answered a bogus ACK.
    fn drop_if_reset(&mut self, cx: &mut Context<'_>, id: SubflowId, egress: &Egress) {
        let closed = |s: &SubflowContext| s.tcp().state() == SubflowState::Closed;
        if matches!(egress, Egress::Rst) && self.paths.get(id).is_some_and(closed) {
            let reason = self.closing.reason().unwrap_or(CloseReason::Aborted);
            self.on_subflow_lost(cx, id, reason);
        }
    }

    /// Sends a tail loss probe: new data if there is any, otherwise the last segment again. While another subflow
    /// is healthy, no new data is sent on a silent one: it would wait there for a timeout, and so would all later
    /// data.
    fn emit_probe(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        for id in self.paths.ids() {
            if self.paths.get(id).is_some_and(|s| s.tcp().awaits_frto_data())
                && let Some(transmit) = self.emit_frto_data(cx, id, buf)
            {
                return Some(transmit);
            }
            if !self.paths.get(id).is_some_and(|s| s.tcp().wants_new_data_probe()) {
                continue;
            }
            let alone = self.paths.healthy().is_empty();
            if alone
                && self.paths.is_usable(id)
                && let Some(transmit) = self.emit_new_segment(cx, id, buf)
            {
                return Some(transmit);
            }
            let room = self.repeat_room(id);
            let tcp = self.paths.get_mut(id)?.tcp_mut();
            tcp.repeat_last_as_probe();
            if let Some(egress) = tcp.next_egress_but_ack(cx.now, room) {
                let transmit = self.emit(cx, id, &egress, None, buf);
                self.drain_subflow_events(cx, id);
                return transmit;
            }
        }
        None
    }

    /// Sends new data that shows whether a timeout was spurious, or else a repetition that waited for it. As with
    /// a probe, no new data is used while another subflow is healthy.
    fn emit_frto_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let alone = self.paths.healthy().iter().all(|other| other == id);
        let fits = |s: &SubflowContext| s.is_usable() && s.tcp().has_room_for_frto();
        if alone
            && self.paths.get(id).is_some_and(fits)
            && let Some(transmit) = self.emit_new_segment(cx, id, buf)
        {
            return Some(transmit);
        }
        let room = self.repeat_room(id);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        tcp.frto_has_no_data();
        let egress = tcp.next_egress_but_ack(cx.now, room)?;
        self.emit(cx, id, &egress, None, buf)
    }

    /// Sends one segment of new data on this subflow, regardless of the scheduler.
    fn emit_new_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let range = self.sender.unsent();
        let is_full = self.paths.get(id).is_none_or(|subflow| subflow.tcp().is_full());
        if range.is_empty() || is_full {
            return None;
        }
        self.scheduling.void_all();
        self.refresh_views(cx.now);
        let choice = Choice::once(id, range, Kind::New);
        let Emitted { size, ecn, .. } = self.emit_data(cx, &choice, BatchSlot::FIRST, buf)?;
        self.batch(id, 1, size + buf.headroom(), ecn)
    }

    fn emit_signal(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        if !self.paths.addresses().has_signals() {
            return None;
        }
        let usable = self.paths.usable_set();
        if usable.is_empty() {
            return None;
        }
        let signal = self.paths.addresses_mut().next_signal(|id| usable.contains(id))?;
        let on = signal.on.or_else(|| self.paths.best())?;
        self.emit(cx, on, &Egress::Ack, Some(signal.option), buf)
    }

    /// Sends a DATA_FIN in a segment of its own.
    fn emit_data_fin(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        self.next_data_fin_at().filter(|at| *at <= cx.now)?;
        let over = self.closing.fin_acked() || self.closing.is_closed();
        if over || self.session.is_plain() {
            self.closing.stop_fin();
            return None;
        }
        let usable = self.paths.usable_set();
        if self.closing.repeats_fin_in_vain()
            && usable.iter().all(|id| self.sender.lacks_data_ack(id))
        {
            // The peer is heard, but options do not pass.
            for id in usable.iter() {
                self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            return self.emit_pending(cx, buf);
        }
        let id = self.closing.next_for_fin(usable, self.paths.best())?;
        // A pending third ACK carries the keys, without which the peer cannot read the DATA_FIN, so it goes first.
        let owes = self.paths.get(id).is_some_and(|subflow| subflow.tcp().has_pending_ack());
        if self.session.is_unconfirmed() && owes {
            let room = self.repeat_room(id);
            let subflow = self.paths.get_mut(id);
            if let Some(egress) = subflow.and_then(|s| s.tcp_mut().next_egress(cx.now, room)) {
                return self.emit(cx, id, &egress, None, buf);
            }
        }
        if self.closing.record_data_fin(id, usable) {
            self.rearm_fin(cx.now);
        }
        let mut options = TcpOptions { dss: Some(self.data_fin_dss()), ..TcpOptions::default() };
        let window = self.receiver.advertise();
        let egress = Egress::Ack;
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let owes_sack = tcp.owes_sack();
        let what = HeaderFor::Egress(&egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let room = options.room();
        tcp.fill_sack(&mut options, room);
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        self.write_segment(cx, id, (&header, &options), (Dsn(0), 0), buf)?;
        let end = DataRange::new(self.sender.written(), self.sender.written());
        self.trace_sent(cx, (id, Purpose::DataFin), header.seq, end, (0, 1));
        self.batch(id, 1, buf.bytes().len(), ecn)
    }

    fn data_fin_dss(&self) -> Dss {
        let fin = self.sender.written();
        let wire = self.session.keys().local_wire(fin);
        let checksum = self.session.uses_checksum();
        let checksum = checksum.then(|| dss_checksum(wire, 0, 1, Checksum::new()));
        let dsn = self.session.wire_dsn(fin);
        Dss {
            data_ack: Some(self.session.data_ack(self.receiver.data_ack())),
            mapping: Some(WireMapping { dsn, ssn: 0, length: 1, checksum }),
            data_fin: true,
        }
    }

    /// Restarts the timer after the DATA_FIN was sent on all its subflows.
    fn rearm_fin(&mut self, now: Instant) {
        let silent = self.closing.rearm_fin(now, self.paths.last_heard_at());
        self.closing.note_silence(now, silent);
    }

    /// Time of the next DATA_FIN transmission, by the current timeouts.
    fn next_data_fin_at(&self) -> Option<Instant> {
        self.closing.next_data_fin_at(|| FinTimeouts {
            rto: self.largest_rto(),
            probe: self.paths.tail_probe_timeout(),
        })
    }

    /// Sends data by the scheduler's decisions, as long as they stay on one subflow.
    fn emit_batch(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let now = cx.now;
        if self.closing.is_closed() || self.session.is_offered() {
            return None;
        }
        if !self.sender.has_data() {
            self.note_nothing_to_send(now);
            return None;
        }
        self.refresh_views(now);
        let first = self.choose(now);
        let sent = first.and_then(|choice| self.emit_chosen(cx, &choice, BatchSlot::FIRST, buf));
        let (id, sent) = match (first, sent) {
            (Some(choice), Some(sent)) => (choice.subflow, sent),
            (first, _) => {
                match first {
                    None => self.note_nothing_to_send(now),
                    // The rest of the peer's window is not worth a segment.
                    Some(_) => self.report_blocked(now),
                }
                // The scheduler may have requested a repetition.
                let repeat = self.scheduling.choose_reinjection(self.terms(now), &self.sender)?;
                (repeat.subflow, self.emit_data(cx, &repeat, BatchSlot::FIRST, buf)?)
            }
        };
        let stride = sent.size + buf.headroom();
        let count = self.fill_batch(cx, id, sent, buf);
        self.rearm_after_sending(now);
        self.watch_progress(now);
        self.notify_writable_for_sent(cx);
        if self.closing.is_shut_down() {
            self.advance_closing(cx);
        }
        self.batch(id, count, stride, sent.ecn)
    }

    /// Adds segments of the same size for the same subflow. Returns the total number.
    fn fill_batch(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        first: Emitted,
        buf: &mut TransmitBuf,
    ) -> usize {
        let Emitted { size, mut count, .. } = first;
        while count < buf.max_datagrams() {
            self.refresh_view(cx.now, id);
            let Some(next) = self.choose(cx.now) else { break };
            if next.subflow != id {
                self.scheduling.defer(cx.now, next);
                break;
            }
            let place = BatchSlot { number: count, limit: size };
            let Some(next) = self.emit_chosen(cx, &next, place, buf) else { break };
            count += next.count;
            if next.size != size {
                break;
            }
        }
        count
    }

    fn emit_chosen(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        place: BatchSlot,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        if let Some(run) = self.plan_run(cx.now, choice, place, buf) {
            return self.emit_run(cx, choice.subflow, run, buf);
        }
        match choice.kind {
            Kind::Repair => self.emit_repair(cx, choice, place.limit, buf),
            Kind::New if choice.run => self.emit_data(cx, &self.whole(choice), place, buf),
            Kind::New | Kind::Repeat => self.emit_data(cx, choice, place, buf),
        }
    }

    /// Extends the end of a run of new data to a full segment with following data. It is short because the
    /// segments before it had more room than the MSS.
    fn whole(&self, choice: &Choice) -> Choice {
        let mss = self.paths.get(choice.subflow).map_or(0, |subflow| subflow.tcp().mss());
        let range = choice.range;
        let least = range.start.plus(u64::from(mss)).min(self.sender.unsent().end);
        Choice { range: DataRange::new(range.start, range.end.max(least)), ..*choice }
    }

    fn batch(&self, id: SubflowId, count: usize, stride: usize, ecn: Ecn) -> Option<Transmit> {
        let key = self.paths.get(id)?.key();
        Some(Transmit {
            path: key.path,
            ecn,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            handshake: false,
            datagrams: count,
            stride,
        })
    }

    /// Records that nothing can be sent now, for the rate sampler and the scheduler.
    fn note_nothing_to_send(&mut self, now: Instant) {
        // A subflow that has room and gets no data is limited by the application, the peer's window, or the
        // scheduler. Its delivery rate is below its capacity.
        let dry = self.sender.unsent().is_empty() && self.sender.reinjections().is_empty();
        for id in self.paths.those(SubflowContext::is_up).iter() {
            let views = self.scheduling.views();
            if dry || views.iter().any(|view| view.id == id && view.is_ready()) {
                let Some(subflow) = self.paths.get_mut(id) else { continue };
                subflow.tcp_mut().set_app_limited(dry);
            }
        }
        if self.sender.has_data() {
            self.report_blocked(now);
        }
        self.rearm_persist(now);
    }

    fn emit_acks(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        for id in self.paths.ids() {
            let owes =
                |s: &SubflowContext| s.tcp().has_pending_ack() || s.tcp().has_pending_besides_ack();
            if !self.paths.get(id).is_some_and(owes) {
                continue;
            }
            let room = self.repeat_room(id);
            let subflow = self.paths.get_mut(id);
            if let Some(egress) = subflow.and_then(|s| s.tcp_mut().next_egress(cx.now, room)) {
                return self.emit(cx, id, &egress, None, buf);
            }
        }
        None
    }

    /// Refreshes the views of all subflows that carry data.
    fn refresh_views(&mut self, now: Instant) {
        self.scheduling.refresh(self.paths.views(now));
    }

    /// Refreshes the view of one subflow after it was given data.
    fn refresh_view(&mut self, now: Instant, id: SubflowId) {
        if let Some(subflow) = self.paths.get(id) {
            self.scheduling.refresh_one(subflow.view(now, id));
        }
    }

    /// True if new data may be sent in runs of segments under one mapping.
    fn sends_runs(&self) -> bool {
        self.session.maps_runs(&self.config)
            && !self.sender.nagle().has_records()
            && !self.sender.may_repair()
    }

    /// Shows a coupled congestion controller the other subflows.
    fn refresh_group(&mut self, now: Instant, id: SubflowId) {
        if self.paths.get(id).is_some_and(|subflow| subflow.tcp().wants_group()) {
            self.refresh_views(now);
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().set_group(self.scheduling.views());
            }
        }
    }

    /// Next data to send, if any may be sent now. Views must be fresh.
    fn choose(&mut self, now: Instant) -> Option<Choice> {
        if self.closing.is_closed() {
            self.scheduling.void_all();
            return None;
        }
        let terms = self.terms(now);
        self.scheduling.choose(terms, &self.sender)
    }

    fn terms(&self, now: Instant) -> Terms {
        Terms { now, repairs: self.may_repair(), repeats: !self.session.is_plain() }
    }

    /// Passes an event to the scheduler and executes its actions.
    fn scheduler_event(&mut self, now: Instant, event: SchedulerEvent) {
        self.refresh_views(now);
        let terms = self.terms(now);
        let cause = match event {
            SchedulerEvent::Lost { .. } => ReinjectionCause::Loss,
            _ => ReinjectionCause::Policy,
        };
        for action in self.scheduling.on_event(event, terms, &self.sender) {
            match action {
                SchedulerAction::Penalise { subflow, penalty } => {
                    if let Some(subflow) = self.paths.get_mut(subflow) {
                        subflow.tcp_mut().penalise(now, penalty);
                    }
                }
                SchedulerAction::Reinject { range, on } => {
                    if self.paths.is_usable(on) {
                        self.sender.reinject_on(now, range, cause, on);
                    }
                }
                SchedulerAction::Suspect(id) => {
                    let subflow = self.paths.get_mut(id).filter(|subflow| subflow.is_usable());
                    if let Some(subflow) = subflow {
                        subflow.health_mut().on_suspected_dead(now);
                    }
                }
            }
        }
    }

    /// Reports to the scheduler why data waits although a subflow has room. Called when nothing was sent.
    fn report_blocked(&mut self, now: Instant) {
        if let Some(event) = self.scheduling.blocked(&self.sender) {
            self.scheduler_event(now, event);
        }
    }
}

/// Construction of segments: header, options and payload are written once, directly into the batch.
///
/// Options share 40 bytes. Timestamps come first, then the required MPTCP options, then as many SACK blocks as
/// still fit. A pure ACK with an option too long to fit beside timestamps (ADD_ADDR with an IPv6 address) is sent
/// without them.
impl Connection {
    /// Builds a segment that TCP or a signal requested. `None` if the subflow is gone.
    fn emit(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        if let Egress::Retransmit(segment) = egress
            && segment.repair
        {
            return self.repeat_repair(cx, id, egress, buf);
        }
        let mut options = TcpOptions::default();
        self.control_options(cx, id, egress, signal, &mut options);
        let fast_open = self.fast_open_option(id, egress);
        let window = self.receiver.advertise();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let owes_sack = signal.is_some() && tcp.owes_sack();
        let what = HeaderFor::Egress(egress);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        if !options.fits() {
            options.timestamps = None;
        }
        if fast_open.is_some_and(|option| !option.fits_with(&options)) {
            // A Fast Open cookie for the client is worth more than timestamps (as in Linux).
            options.timestamps = None;
            tcp.forgo_timestamps();
        }
        // Data has no room to spare, and a signal may have none: SACK blocks go in a separate ACK.
        if let Egress::Ack | Egress::Probe | Egress::Fin = egress {
            let room = options.room();
            tcp.fill_sack(&mut options, room);
        }
        if owes_sack && options.sack.is_empty() {
            tcp.ack_now();
        }
        let payload = match egress {
            Egress::Retransmit(segment) => (segment.dsn, segment.payload_len() as usize),
            Egress::Syn => self.syn_payload(id),
            _ => (Dsn(0), 0),
        };
        let purpose =
            if cx.out.traces_traffic(self.id) { self.purpose_of(id, egress) } else { None };
        match fast_open {
            None => self.write_segment(cx, id, (&header, &options), payload, buf)?,
            Some(option) => {
                self.write_handshake(cx, id, (&header, &options, &option), payload, buf)?;
            }
        }
        if let Some(purpose) = purpose {
            let data = DataRange::new(payload.0, payload.0.plus(payload.1 as u64));
            self.trace_sent(cx, (id, purpose), header.seq, data, (data.len(), 1));
        }
        if matches!(egress, Egress::Rst) {
            cx.out.counters.resets_out += 1;
            self.paths.get_mut(id)?.note_reset_sent();
        }
        let handshake = matches!(egress, Egress::Syn | Egress::SynAck);
        Some(Transmit { handshake, ..self.batch(id, 1, buf.bytes().len(), ecn)? })
    }

    /// Plans the full segments that may be sent at once under one mapping, if there are several. The last byte
    /// written is excluded: its segment may carry marks, wait for more data, or take the FIN along.
    fn plan_run(
        &self,
        now: Instant,
        choice: &Choice,
        place: BatchSlot,
        buf: &TransmitBuf,
    ) -> Option<Run> {
        // Until the peer has shown that options pass on the subflow, every segment carries its mapping: a
        // middlebox that drops segments with options and passes the others must not create a different stream.
        let proven = self.session.is_plain() || self.sender.is_proven(choice.subflow);
        let runs = match choice.kind {
            Kind::New => choice.run,
            Kind::Repeat => true,
            Kind::Repair => false,
        };
        if !runs || !proven || !self.sends_runs() {
            return None;
        }
        let subflow = self.paths.get(choice.subflow)?;
        let tcp = subflow.tcp();
        let (size, mss) = (tcp.settled_segment(), u64::from(tcp.mss().max(1)));
        let begun = place.number > 0;
        if begun && place.limit != size {
            return None;
        }
        let most = tcp.run_segments(now, buf.max_datagrams() - place.number);
        if most < 2 {
            return None;
        }
        let room = self.payload_room(subflow, (choice.range.start, tcp.snd_nxt()));
        let (mapped, plain) = (room.mapped as u16, room.plain as u16);
        // New data uses as many full segments as the scheduler decided, although those without the mapping have
        // more room than the MSS.
        let last = self.sender.written().0 - 1;
        let (end, decided) = match choice.kind {
            Kind::New => (self.sender.unsent().end.0.min(last), choice.range.len().div_ceil(mss)),
            Kind::Repeat | Kind::Repair => (choice.range.end.0.min(last), u64::MAX),
        };
        let start = choice.range.start;
        let bytes = end.saturating_sub(start.0).min(MAX_MAPPING);
        let count = |layout: RunLayout| layout.segments_within(bytes).min(most as u64).min(decided);
        let layout = RunLayout { mapped, plain, group: MAPPING_REPEAT_INTERVAL };
        let layout = match buf.joins_runs() && count(layout) > u64::from(MAPPING_REPEAT_INTERVAL) {
            true => RunLayout { mapped, plain: mapped, group: 1 },
            false => layout,
        };
        let fits = count(layout);
        let range = DataRange::new(start, start.plus(layout.len_of(fits)));
        (fits > 1).then_some(Run { range, layout, segments: fits as usize, rest: *choice })
    }

    /// Sends a run.
    fn emit_run(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        run: Run,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        let Run { range, layout, segments, rest } = run;
        self.session.watch_dsn_speed(cx.now, self.sender.sent());
        self.sender.on_segment();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let size = tcp.settled_segment();
        let ssn = tcp.snd_nxt();
        let sent = tcp.push_run(cx.now, range.start, range.len() as u16, layout);
        let repeat = rest.kind == Kind::Repeat;
        if repeat {
            tcp.stats_mut().trouble.bytes_reinjected += range.len();
        }
        if cx.out.traces_traffic(self.id) {
            let (seq, purpose) = (tcp.to_wire(ssn), self.purpose_of_choice(&rest, range.start));
            self.trace_sent(cx, (id, purpose), seq, range, (range.len(), segments as u32));
        }
        self.sender.carry(id, ssn, range, repeat);
        if let Some(rest) = rest.rest(range.end) {
            self.scheduling.defer(cx.now, rest);
        }
        let (headers, ecn) = self.run_headers(cx, id, &sent, size)?;
        let tcp = self.paths.get(id)?.tcp();
        for number in 0..segments as u64 {
            let template = headers.of(number, layout);
            let at = layout.len_of(number);
            let segment = buf.grow(size);
            let payload = &mut segment[template.header_len()..];
            let sum = self.sender.copy(range.start.plus(at), payload)?;
            template.write(tcp.to_wire(ssn.plus(at)), sum, segment);
        }
        cx.out.counters.segments_out += segments as u64;
        cx.out.counters.bytes_out += range.len();
        Some(Emitted { size, count: segments, ecn })
    }

    /// Headers of a run's segments.
    fn run_headers(
        &mut self,
        cx: &Context<'_>,
        id: SubflowId,
        sent: &SentSegment,
        size: usize,
    ) -> Option<(RunHeaders, Ecn)> {
        let mut options = TcpOptions::default();
        self.mapping_options(id, sent, &mut options);
        let window = self.receiver.advertise();
        let subflow = self.paths.get_mut(id)?;
        let what = HeaderFor::Data(sent);
        let (first, ecn) = subflow.tcp_mut().fill_header(cx.now, what, window, &mut options);
        let addresses = subflow.tcp().checksum_addresses(cx.config.capabilities.checksum);
        let template = |header: &TcpHeader, options: &TcpOptions| {
            let template = HeaderTemplate::new(header, options, addresses, size);
            debug_assert!(template.is_ok(), "{template:?}");
            template.ok()
        };
        let flags = first.flags.without(TcpFlags::CWR);
        let other = TcpHeader { flags, ..first };
        let with_cwr = match flags == first.flags {
            true => None,
            false => Some(template(&first, &options)?),
        };
        let mapped = template(&other, &options)?;
        options.dss = None;
        Some((RunHeaders { with_cwr, mapped, plain: template(&other, &options)? }, ecn))
    }

    /// Sends the chosen data. `None` if it must wait.
    fn emit_data(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        place: BatchSlot,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        let id = choice.subflow;
        self.session.watch_dsn_speed(cx.now, self.sender.sent());
        let subflow = self.paths.get(id)?;
        let ssn = subflow.tcp().snd_nxt();
        let timestamps = subflow.tcp().uses_timestamps();
        let (choice, frame) = self.frame(choice, ssn, timestamps)?;
        let Frame { overhead, room, idle } = frame;
        let dsn = choice.range.start;
        let most = (choice.range.len() as usize).min(room);
        let (len, ends_record) = self.sender.nagle().within_record(dsn, most);
        let is_last = dsn.plus(len as u64) == self.sender.written();
        let is_stub = len < room && !ends_record && choice.kind != Kind::Repeat;
        let too_long = overhead + len > place.limit;
        if len == 0 || too_long || is_stub && is_last && self.is_held(cx.now) {
            return None;
        }
        if (!ends_record || is_last) && self.is_silly(cx.now, &choice, len, room) {
            return None;
        }
        self.sender.on_segment();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        let checksum = match self.session.uses_checksum() {
            true => {
                let wire = self.session.keys().local_wire(dsn);
                let at = self.session.wire_ssn(self.paths.is_initial(id), ssn);
                dss_checksum(wire, at, len as u16, sum)
            }
            false => 0,
        };
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let sent = tcp.push_data(cx.now, dsn, len as u16, checksum);
        if choice.kind == Kind::Repeat {
            tcp.stats_mut().trouble.bytes_reinjected += len as u64;
        }
        let range = choice.range.prefix(len as u64);
        if cx.out.traces_traffic(self.id) {
            let (seq, purpose) = (tcp.to_wire(ssn), self.purpose_of_choice(&choice, dsn));
            self.trace_sent(cx, (id, purpose), seq, range, (range.len(), 1));
        }
        self.sender.carry(id, ssn, range, choice.kind == Kind::Repeat);
        if let Some(rest) = choice.rest(range.end) {
            self.scheduling.defer(cx.now, rest);
        }
        let mut options = TcpOptions::default();
        self.mapping_options(id, &sent, &mut options);
        if options.dss.is_none() && self.session.is_multipath() {
            self.sender.note_keyed(id, sent.end);
        }
        if idle && options.mptcp.push(mp_idle_option()) {
            cx.out.counters.mp_idle_tx += 1;
        }
        self.mark_push(id, ends_record, is_last);
        let window = self.receiver.advertise();
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let what = HeaderFor::Data(&sent);
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        debug_assert_eq!(TCP_HEADER_LEN + options.encoded_len(), overhead);
        let bytes = &mut buf.bytes_mut()[start..];
        self.finish_segment(cx, id, (&header, &options), sum, bytes)?;
        Some(Emitted { size: overhead + len, count: 1, ecn })
    }

    /// Sets or withholds PSH on a data segment, which asks the peer to deliver at once.
    fn mark_push(&mut self, id: SubflowId, ends_record: bool, is_last: bool) {
        let released = !is_last || self.sender.take_release();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if ends_record || is_last && released {
            subflow.tcp_mut().mark_message_end();
        } else if !released {
            subflow.tcp_mut().withhold_push();
        }
    }

    /// Computes the layout of a segment for the choice, and the choice cut or extended to it. A full segment is
    /// filled to its real capacity: more than the MSS while a larger size is tried, or if options are shorter than
    /// usual.
    fn frame(&self, choice: &Choice, ssn: Ssn, timestamps: bool) -> Option<(Choice, Frame)> {
        let subflow = self.paths.get(choice.subflow)?;
        let options = self.data_options(subflow, (choice.range.start, ssn), timestamps);
        let overhead = TCP_HEADER_LEN + options.encoded_len();
        let most = subflow.tcp().max_segment().checked_sub(overhead)?;
        let room = most.min(usize::from(u16::MAX));
        let mss = u64::from(subflow.tcp().mss());
        let full = choice.kind == Kind::New && choice.range.len() >= mss;
        let choice = match full && choice.range.len() < room as u64 {
            true => Choice { range: self.sender.unsent().prefix(room as u64), ..*choice },
            false => *choice,
        };
        let frame = Frame { overhead, room, idle: false };
        Some((choice, self.frame_with_mark(subflow, &choice, frame, ssn)))
    }

    /// Makes room for MP_IDLE if the chosen data ends the data to send.
    ///
    /// MP_IDLE states that no data follows, so that a receiver can distinguish the end of a burst from a dead path
    /// (docs/spec/experimental.md). MultiMob sets a bit of DSS on a segment that is the last of the connection's
    /// send queue when it is scheduled. Version 1 of the protocol has no such bit, so a separate option beside DSS
    /// is used.
    ///
    /// The source leaves some cases open. The mark belongs to the *mapping*, not to the segment. It states that
    /// the stream written so far ends where the mapping ends. All segments with these bytes carry it: the first
    /// transmission, a copy on another subflow, a reinjection, and each part of a mapping that was split to be
    /// repeated. A repetition after more was written does not carry it. A second repetition on a subflow does not
    /// carry it either: a middlebox that drops segments with unknown options must not block the bytes. (The first
    /// repetition does: a lost tail is common, and a lost mark causes an alarm.) If a burst's last segment would
    /// be full except for the mark's four bytes, those bytes are sent in one more segment: a missing mark costs
    /// the receiver a false alarm, a small segment costs almost nothing. Only if the 40 bytes of options are used
    /// up (64-bit sequence numbers both ways, with timestamps) is the mark left out. Only the server sends marks,
    /// because it cannot open paths and does not need them itself.
    fn frame_with_mark(
        &self,
        subflow: &SubflowContext,
        choice: &Choice,
        frame: Frame,
        ssn: Ssn,
    ) -> Frame {
        let last = choice.range.end == self.sender.written() && self.session.marks_idle();
        if !last || choice.range.len() > frame.room as u64 {
            return frame;
        }
        let Some(marked) = self.marked_overhead(subflow, choice.range.start, ssn) else {
            return frame;
        };
        let room = frame.room.saturating_sub(marked - frame.overhead);
        if choice.range.len() <= room as u64 {
            return Frame { overhead: marked, room, idle: true };
        }
        Frame { room, ..frame }
    }

    /// Bytes of header and options of a data segment with MP_IDLE; `None` if there is no room for it.
    fn marked_overhead(&self, subflow: &SubflowContext, dsn: Dsn, ssn: Ssn) -> Option<usize> {
        let timestamps = subflow.tcp().uses_timestamps();
        let mut options = self.data_options(subflow, (dsn, ssn), timestamps);
        let fits = options.dss.is_some() && options.mptcp.push(mp_idle_option()) && options.fits();
        fits.then(|| TCP_HEADER_LEN + options.encoded_len())
    }

    /// Marks a repeated segment if its mapping ends the data to send, and the mark fits.
    fn mark_repeated(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
        let back = segment.start.since(segment.mapping_start);
        let end = Dsn((segment.dsn.0 + u64::from(segment.mapping_len)).saturating_sub(back));
        let persists = segment.transmissions > MARKED_TRANSMISSIONS;
        let last = end == self.sender.written() && self.session.marks_idle();
        if persists || segment.payload_len() == 0 || !last {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let overhead = self.marked_overhead(subflow, segment.dsn, subflow.tcp().snd_nxt());
        let size = overhead.map(|overhead| overhead + segment.payload_len() as usize);
        let fits = size.is_some_and(|size| size <= subflow.tcp().settled_segment());
        if options.dss.is_some() && fits && options.mptcp.push(mp_idle_option()) {
            cx.out.counters.mp_idle_tx += 1;
        }
    }

    /// The last bytes, fewer than a segment, wait for more data.
    fn is_held(&mut self, now: Instant) -> bool {
        let rto = self.largest_rto();
        !self.closing.is_shut_down() && self.sender.holds_back(now, rto)
    }

    /// A segment cut short by the peer's window is not worth sending while more data waits (RFC 9293 section
    /// 3.8.6.2.1). If data is in flight, its ACK will bring a window update. Otherwise half of the largest window
    /// the peer ever had is worth sending, and less than that after a while. A segment that the scheduler wants
    /// short has the right length, and one that is full by the size in use does not wait for a larger size that is
    /// being tried.
    fn is_silly(&mut self, now: Instant, choice: &Choice, len: usize, room: usize) -> bool {
        let id = choice.subflow;
        let mss = self.paths.get(id).map_or(room, |subflow| subflow.tcp().mss() as usize);
        if choice.kind != Kind::New || len >= room.min(mss) {
            return false;
        }
        let end = choice.range.start.plus(len as u64);
        let is_last = end == self.sender.written();
        let cut = !is_last && end == self.sender.window_end();
        let nagle = is_last && self.sender.nagle().is_on() && !self.closing.is_shut_down();
        let views = self.scheduling.views();
        let in_flight =
            views.iter().any(|v| v.bytes_in_flight > 0 && (v.id == id || !v.health.is_silent()));
        if in_flight {
            return cut || nagle;
        }
        let largest = self.paths.get(id).map_or(0, |s| s.tcp().largest_peer_window());
        let rto = self.largest_rto();
        cut && (len as u64) < largest / 2 && self.sender.waits_for_window(now, rto)
    }

    /// Appends a complete segment to the buffer.
    fn write_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options): (&TcpHeader, &TcpOptions),
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = TCP_HEADER_LEN + options.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        self.finish_segment(cx, id, (header, options), sum, &mut buf.bytes_mut()[start..])
    }

    /// Writes the header before a payload that is already in place.
    fn finish_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options): (&TcpHeader, &TcpOptions),
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let written = header.emit(options, segment);
        debug_assert!(written.is_ok(), "{written:?} for {options:?}");
        self.complete_segment(cx, id, written.ok()?, payload, segment)
    }

    /// As [`write_segment`](Self::write_segment), with a Fast Open option.
    fn write_handshake(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        (header, options, fast_open): (&TcpHeader, &TcpOptions, &FastOpenOption),
        (dsn, len): (Dsn, usize),
        buf: &mut TransmitBuf,
    ) -> Option<()> {
        let overhead = TCP_HEADER_LEN + options.encoded_len() + fast_open.encoded_len();
        let start = buf.bytes().len() + buf.headroom();
        let segment = buf.grow(overhead + len);
        let sum = self.sender.copy(dsn, &mut segment[overhead..])?;
        let segment = &mut buf.bytes_mut()[start..];
        let written = header.emit_with(options, fast_open, segment);
        debug_assert!(written.is_ok(), "{written:?} for {options:?} and {fast_open:?}");
        self.complete_segment(cx, id, written.ok()?, sum, segment)
    }

    /// Puts the checksum into a segment whose header and payload are in place.
    fn complete_segment(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        header_len: usize,
        payload: Checksum,
        segment: &mut [u8],
    ) -> Option<()> {
        let tcp = self.paths.get(id)?.tcp();
        let addresses = tcp.checksum_addresses(cx.config.capabilities.checksum);
        let mut sum = tcp_pseudo_header(addresses, segment.len());
        sum.add_bytes(&segment[..header_len]);
        sum.append(payload);
        store_tcp_checksum(segment, sum.finish());
        cx.out.counters.segments_out += 1;
        cx.out.counters.bytes_out += (segment.len() - header_len) as u64;
        Some(())
    }

    fn control_options(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        signal: Option<MptcpOption>,
        options: &mut TcpOptions,
    ) {
        match egress {
            Egress::Syn => self.syn_options(cx, id, options),
            Egress::SynAck => self.syn_ack_options(id, options),
            Egress::Rst => self.reset_options(id, options),
            Egress::Retransmit(segment) => {
                let room = self.repeat_room(id);
                if segment.payload_len() <= room.mapped as u64 {
                    self.mapping_options(id, segment, options);
                }
                self.mark_repeated(cx, id, segment, options);
            }
            Egress::Plain(_) => {}
            Egress::Ack | Egress::Probe | Egress::Fin => {
                self.ack_options(id, options);
                if matches!(egress, Egress::Fin) && self.session.is_plain() {
                    let end = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
                    options.dss = end.and_then(|end| self.session.infinite_mapping_of_fin(end));
                }
                if let Some(option) = signal {
                    options.mptcp.push(option);
                }
                // An option that leaves no room for a DATA_ACK is sent alone.
                if signal.is_some() && options.encoded_len() + 12 > 40 {
                    options.dss = None;
                }
            }
        }
    }

    fn syn_options(&mut self, cx: &mut Context<'_>, id: SubflowId, options: &mut TcpOptions) {
        if let Some(option) = self.fast_syn_option(cx, id) {
            options.mptcp.push(option);
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        if let Membership::Joining(joining) = subflow.membership() {
            options.mptcp.push(MptcpOption::Join(MpJoin::Syn {
                backup: subflow.is_backup_here(),
                address_id: self.paths.addresses().wire_id(subflow.local_id()),
                token: self.session.keys().remote_token().0,
                nonce: joining.nonce(),
            }));
            return;
        }
        if self.session.is_offered() && self.should_abandon_option(cx, id) {
            self.fall_back_in_handshake(cx, FallbackReason::SynRetries);
        }
        if self.session.is_offered() {
            cx.out.counters.mp_capable_syn_tx += 1;
            let capable = self.session.capable_option(&self.config, MpCapableForm::Syn);
            options.mptcp.push(capable);
        }
        self.plan_fast_open(cx, id, options);
    }

    fn syn_ack_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(subflow) = self.paths.get(id) else { return };
        let here = subflow.is_backup_here();
        match subflow.membership() {
            Membership::Joined(joined) => {
                if let Some(fast) = joined.pending_fast_join() {
                    if let Some(option) = self.fast_syn_ack_option(here, fast) {
                        options.mptcp.push(option);
                    }
                    return;
                }
                let (nonce, peer_nonce) = joined.nonces();
                let Some(hmac) = self.session.keys().join_hmac(nonce, peer_nonce) else { return };
                options.mptcp.push(MptcpOption::Join(MpJoin::SynAck {
                    backup: here,
                    address_id: self.paths.addresses().wire_id(subflow.local_id()),
                    hmac: left_64(&hmac),
                    nonce,
                }));
            }
            _ if self.session.is_plain() => {}
            _ => {
                let listener_key = self.session.keys().local().0;
                let form = MpCapableForm::SynAck { listener_key };
                options.mptcp.push(self.session.capable_option(&self.config, form));
            }
        }
    }

    /// Adds the options of a RST.
    fn reset_options(&self, id: SubflowId, options: &mut TcpOptions) {
        let Some(subflow) = self.paths.get(id) else { return };
        match (subflow.closing_option(), self.session.keys().remote()) {
            (ClosingOption::Reason(reason), _) => {
                options.mptcp.push(MptcpOption::TcpRst(reason));
            }
            (ClosingOption::Fail(fail), _) => {
                options.mptcp.push(MptcpOption::Fail(fail));
                let reason = reason::MIDDLEBOX;
                options.mptcp.push(MptcpOption::TcpRst(MpTcpRst { transient: false, reason }));
            }
            (ClosingOption::Fastclose, Some(key)) => {
                let receiver_key = key.0;
                options.mptcp.push(MptcpOption::Fastclose(MpFastclose { receiver_key }));
            }
            _ => {}
        }
    }

    fn ack_options(&self, id: SubflowId, options: &mut TcpOptions) {
        if !self.session.is_multipath() {
            return;
        }
        let subflow = self.paths.get(id);
        if let Some(join) = subflow.and_then(SubflowContext::third_ack) {
            options.mptcp.push(MptcpOption::Join(join));
            return;
        }
        let initial = subflow.is_some_and(SubflowContext::is_initial);
        if let Some(form) = self.session.unconfirmed_keys(None).filter(|_| initial) {
            options.mptcp.push(self.session.capable_option(&self.config, form));
            return;
        }
        let data_ack = Some(self.session.data_ack(self.receiver.data_ack()));
        options.dss = Some(Dss { data_ack, mapping: None, data_fin: false });
    }

    /// Adds the mapping of a data segment, new or repeated.
    fn mapping_options(&self, id: SubflowId, segment: &SentSegment, options: &mut TcpOptions) {
        let (initial, next) = (self.paths.is_initial(id), self.receiver.data_ack());
        self.session.mapping_options(&self.config, initial, segment, next, options);
    }

    /// Options of the same length as those of a data segment.
    fn data_options(
        &self,
        subflow: &SubflowContext,
        at: (Dsn, Ssn),
        timestamps: bool,
    ) -> TcpOptions {
        self.session.data_options(&self.config, subflow.is_initial(), at, timestamps)
    }

    /// Repairs may be sent and are useful.
    fn may_repair(&self) -> bool {
        let session = &self.session;
        let usable = session.agreed_on(Extensions::REPAIR) && session.is_confirmed();
        self.sender.may_repair() && usable && !session.sends_long_dsn()
    }

    /// Sends a chosen repair. `None` if it must wait. `limit` is the largest segment that still fits the batch.
    fn emit_repair(
        &mut self,
        cx: &mut Context<'_>,
        choice: &Choice,
        limit: usize,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        let id = choice.subflow;
        let tcp = self.paths.get(id)?.tcp();
        let ssn = tcp.snd_nxt();
        let checksum = self.session.uses_checksum();
        let options = fec_tx::option_len(checksum, tcp.uses_timestamps());
        let overhead = TCP_HEADER_LEN + options;
        let room = tcp.settled_segment().checked_sub(overhead)?;
        let repair = self.sender.next_repair(id, choice.range, room)?;
        if overhead + usize::from(repair.symbol) > limit {
            return None;
        }
        let sum = self.sender.sum_of(&repair)?;
        let sent = SentRepair::new(ssn, repair, sum, &self.session);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let segment = tcp.push_repair(cx.now, repair.symbol, sent.checksum());
        self.sender.keep_repair(id, sent);
        cx.out.counters.repair_tx += 1;
        self.write_repair(cx, id, HeaderFor::Data(&segment), buf)
    }

    /// Repeats a repair, or a part of one.
    fn repeat_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let sent = self.write_repair(cx, id, HeaderFor::Egress(egress), buf)?;
        self.batch(id, 1, sent.size + buf.headroom(), sent.ecn)
    }

    fn write_repair(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        what: HeaderFor<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Emitted> {
        let segment = match what {
            HeaderFor::Data(segment) | HeaderFor::Egress(Egress::Retransmit(segment)) => segment,
            HeaderFor::Egress(_) => return None,
        };
        let window = self.receiver.advertise();
        let sent = self.sender.sent_repair(id, segment.mapping_start)?;
        let payload = sent.part(segment)?;
        let mut options = TcpOptions::default();
        options.mptcp.push(sent.option(&self.session, self.receiver.data_ack()));
        let sum = Checksum::of(payload);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        let (header, ecn) = tcp.fill_header(cx.now, what, window, &mut options);
        let size = TCP_HEADER_LEN + options.encoded_len() + payload.len();
        let at = buf.bytes().len() + buf.headroom();
        let place = buf.grow(size);
        let header_len = size - payload.len();
        place[header_len..].copy_from_slice(payload);
        let (payload_bytes, repeated) =
            (payload.len() as u64, matches!(what, HeaderFor::Egress(_)));
        let bytes = &mut buf.bytes_mut()[at..];
        self.finish_segment(cx, id, (&header, &options), sum, bytes)?;
        let purpose = match repeated {
            true => Purpose::Retransmission { after_timeout: false },
            false => Purpose::Repair,
        };
        self.trace_sent(cx, (id, purpose), header.seq, DataRange::default(), (payload_bytes, 1));
        Some(Emitted { size, count: 1, ecn })
    }
}

/// End of a connection or a subflow: DATA_FIN, MP_FASTCLOSE, RST, timeout (RFC 8684 sections 3.3.3, 3.5 and 3.6).
impl Connection {
    /// Ends the connection for the application; subflows may linger.
    fn finish(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if !self.closing.close(cx.now, reason) {
            return;
        }
        self.sender.clear_reinjections();
        cx.out.monitor(cx.now, self.id, MonitorKind::Closed(reason));
        // An application that admitted a request knows the connection before it is established.
        let admitted = self.session.is_server() && self.config.withhold_syn_ack;
        if self.closing.is_announced() || admitted {
            cx.out.event(Event::Closed { connection: self.id, reason });
        }
    }

    fn abort_with_reason(&mut self, cx: &mut Context<'_>, why: CloseReason) {
        if self.closing.is_closed() {
            return;
        }
        let multipath = self.session.is_multipath();
        cx.out.counters.mp_fastclose_tx += u64::from(multipath);
        self.reset_all(if multipath { ClosingOption::Fastclose } else { ClosingOption::None });
        self.finish(cx, why);
    }

    fn reset_all(&mut self, option: ClosingOption) {
        self.paths.restart_turns();
        self.paths.iter_mut().for_each(|subflow| subflow.reset_with(option));
    }

    /// Advances the orderly close as far as possible now.
    fn advance_closing(&mut self, cx: &mut Context<'_>) {
        if self.closing.is_closed() {
            return;
        }
        if self.closing.is_shut_down() && self.sender.sent_all() {
            if self.session.is_plain() {
                let released = self.closing.is_released();
                for subflow in self.paths.iter_mut() {
                    // An application that only stopped writing still reads the peer's data.
                    if released {
                        subflow.tcp_mut().close();
                    } else {
                        subflow.tcp_mut().close_after_answer();
                    }
                }
                self.drop_unanswered(cx);
                if self.paths.is_empty() {
                    // The application released the connection before the peer answered, with nothing to send.
                    self.finish(cx, CloseReason::Finished);
                    return;
                }
            } else if !self.closing.fin_sent() && self.paths.usable_count() > 0 {
                self.closing.send_fin(cx.now);
            }
        }
        let sent_all = match self.session.is_plain() {
            true => {
                self.closing.is_shut_down() && self.plain_fin_acked() && self.has_peer_all_data()
            }
            false => self.closing.fin_acked(),
        };
        if sent_all && self.closing.has_late_data() {
            // RFC 9293 section 3.6.1: a reset shows the peer that data was lost, after it got all data meant for it.
            self.abort(cx);
            return;
        }
        if sent_all && self.receiver.fin_reached() {
            self.paths.iter_mut().for_each(SubflowContext::close);
            self.finish(cx, CloseReason::Finished);
            self.drop_unanswered(cx);
        }
    }

    /// The peer has all data that was written, by its own acknowledgments.
    fn has_peer_all_data(&self) -> bool {
        self.sender.una() >= self.sender.written()
    }

    /// Plain TCP: our FIN is acknowledged, or the subflow is already gone with it.
    fn plain_fin_acked(&self) -> bool {
        let done = |state| {
            matches!(state, SubflowState::FinWait2 | SubflowState::TimeWait | SubflowState::Closed)
        };
        self.paths.iter().all(|subflow| done(subflow.tcp().state()))
    }

    /// Repeats the DATA_FIN early: the peer has all data, and a DATA_FIN sent more than a round trip ago should
    /// have been acknowledged.
    fn expedite_data_fin(&mut self, now: Instant) {
        let Some((sent_at, on)) = self.closing.data_fin_in_flight() else { return };
        let usable = on.iter().filter_map(|id| self.paths.get(id)).filter(|s| s.is_usable());
        let round_trip = usable.filter_map(|subflow| subflow.tcp().srtt()).max();
        // The factor leaves time for the answer: the next segment acknowledges it, not the current one.
        if round_trip.is_some_and(|round_trip| now.since(sent_at) >= round_trip * 5 / 4) {
            self.closing.expedite_data_fin(now);
        }
    }

    /// Drops joins with an unanswered SYN that were closed without a RST: no answer is expected.
    fn drop_unanswered(&mut self, cx: &mut Context<'_>) {
        for id in self.paths.those(SubflowContext::is_closed_unanswered).iter() {
            self.drop_subflow(cx, id, CloseReason::Finished);
        }
    }

    /// Handles MP_FASTCLOSE and MP_TCPRST of an acceptable segment.
    fn on_closing_options(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let key = self.session.keys().local().0;
        for option in segment.options.mptcp.iter() {
            match option {
                MptcpOption::Fastclose(fastclose) if fastclose.receiver_key == key => {
                    cx.out.counters.mp_fastclose_rx += 1;
                    let reason = reason::UNSPECIFIED;
                    let reason = MpTcpRst { transient: false, reason };
                    self.reset_all(ClosingOption::Reason(reason));
                    self.finish(cx, CloseReason::PeerReset);
                    return;
                }
                MptcpOption::TcpRst(word) => {
                    cx.out.counters.mp_rst_rx += 1;
                    if let Some(subflow) = self.paths.get_mut(id) {
                        subflow.set_reset_reason(word);
                    }
                }
                MptcpOption::Fail(fail) if segment.header.flags.contains(TcpFlags::RST) => {
                    cx.out.counters.mp_fail_rx += 1;
                    self.on_failed_reset(cx.now, id, fail);
                }
                _ => {}
            }
        }
    }

    /// Handles the orderly end of the subflow's own sequence space.
    fn on_peer_fin(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        // While we wait for an answer to MP_FAIL, only plain TCP ends in this way.
        if let Some(dsn) = self.receiver.failed_at(id) {
            let at = (self.receiver.delivered(id), dsn);
            self.on_infinite_mapping(cx, id, at);
        }
        if self.session.is_plain() {
            if !self.receiver.is_infinite(id) && !self.receiver.is_in_step(id) {
                self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
            }
            self.watch_plain_stream(cx, id);
            if self.closing.is_closed() {
                return;
            }
            let end = self.receiver.next();
            self.receiver.set_fin(end);
            self.notify_readable(cx);
            return;
        }
        // A peer that has sent all its data may close its half at once. The other half still works, and may be our
        // only way to send the remaining data.
        if self.receiver.fin_reached() && !self.closing.fin_acked() {
            return;
        }
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.close();
        self.stop_carrying(cx.now, id);
    }

    /// Handles a RST from the peer. MP_FASTCLOSE was handled before.
    fn on_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_closing_option(ClosingOption::None);
        }
        self.sender.note_reset(id);
        self.on_subflow_lost(cx, id, CloseReason::PeerReset);
    }

    /// Resets one subflow; its data is sent elsewhere. The connection ends with its last subflow only if it cannot
    /// get another.
    fn reset_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: u8, why: CloseReason) {
        let multipath = self.session.is_multipath();
        // One reset is sent and counted once, even if queued data reveals further errors.
        let Some(subflow) = self.paths.get_mut(id).filter(|s| !s.tcp().is_over()) else { return };
        if multipath {
            cx.out.counters.mp_rst_tx += 1;
            subflow.add_reset_reason(reason);
        }
        subflow.reset();
        self.stop_carrying(cx.now, id);
        // The error of a join does not explain why the connection has no other path left.
        let why = if self.end_if_stranded(cx) { CloseReason::Unreachable } else { why };
        if self.paths.has_open() {
            return;
        }
        let futile = self.closing.note_futile_reset();
        if !self.may_be_rejoined() {
            self.finish(cx, why);
        } else if futile {
            // Each subflow can be opened but none can be used: another one will not do better, and both
            // applications wait.
            self.abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// A connection without subflows can be continued by a join.
    const fn may_be_rejoined(&self) -> bool {
        self.session.is_confirmed() && !self.closing.is_closed()
    }

    /// Handles a subflow whose retries all went unanswered. The last subflow of a connection that cannot get
    /// another ends it.
    fn on_subflow_dead(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.give_up();
        }
        self.on_subflow_lost(cx, id, CloseReason::TimedOut);
    }

    /// Handles a subflow that ended without a pending segment from us: reset, refused, timed out.
    fn on_subflow_lost(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: CloseReason) {
        let now = cx.now;
        let Some(subflow) = self.paths.get(id) else { return };
        let unknown_there =
            !subflow.was_joined() && subflow.reset_reason().is_some_and(reports_unknown_token);
        let begun_at = (subflow.local_id(), subflow.path().local.ip());
        let opening = self.is_opening();
        self.stop_carrying(now, id);
        self.drop_subflow(cx, id, reason);
        if opening && self.continues_with_other_attempt(cx, begun_at, reason) {
            return;
        }
        let refused = opening && self.attempts.was_refused();
        let reason = if refused { CloseReason::Refused } else { reason };
        let last = self.paths.is_empty();
        let tried_long = self.closing.on_subflow_lost(now, reason, last);
        if !last {
            self.end_if_stranded(cx);
        }
        if self.closing.is_closed() || !last {
            return;
        }
        let gives_up = unknown_there || self.session.is_client() && tried_long;
        // A finished stream needs no subflow; an unconfirmed connection cannot be continued.
        if self.closing.fin_acked() && self.receiver.fin_reached() {
            self.finish(cx, CloseReason::Finished);
        } else if !self.may_be_rejoined() || gives_up {
            self.finish(cx, reason);
        } else {
            self.closing.begin_wait_without_subflows(now, reason);
        }
    }

    /// Handles a subflow with both FINs acknowledged: TIME-WAIT remains.
    fn on_subflow_finished(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.session.is_plain() {
            self.advance_closing(cx);
        }
        self.stop_carrying(cx.now, id);
        self.drop_subflow(cx, id, CloseReason::Finished);
        if self.paths.is_empty() && !self.closing.is_closed() {
            if self.session.is_plain() && self.has_peer_all_data() {
                self.finish(cx, CloseReason::Finished);
            } else if self.session.is_plain() {
                self.finish(cx, CloseReason::PeerMisbehaved);
            } else {
                self.closing.begin_wait_without_subflows(cx.now, CloseReason::Finished);
            }
        }
    }

    /// Records that the peer acknowledged the FIN with which we closed our half of a subflow.
    fn note_half_closed(&mut self, now: Instant, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id).filter(|_| !self.session.is_plain()) {
            subflow.note_half_closed(now);
        }
    }

    /// Drops a half-closed subflow that the peer neither closes nor uses, because its slot is needed.
    fn on_half_closed_for_long(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let until = self.paths.get(id).and_then(SubflowContext::half_closed_until);
        if until.is_some_and(|until| until <= cx.now) {
            self.on_subflow_dead(cx, id);
        }
    }

    /// Stops sending data on this subflow. Undelivered data is sent on others.
    fn stop_carrying(&mut self, now: Instant, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if !subflow.stop_carrying() {
            return;
        }
        self.reinject_from(now, id, ReinjectionCause::SubflowClosed);
        self.sender.stop_carrying(id);
        self.scheduling.void(id);
        self.scheduler_event(now, SchedulerEvent::SubflowDown(id));
    }

    /// Removes a subflow from its slot. TIME-WAIT and replies to late segments move to the endpoint.
    fn drop_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: CloseReason) {
        let Some(mut subflow) = self.paths.take(id) else { return };
        for range in subflow.tcp_mut().released().drain(..) {
            self.sender.unpin(range);
        }
        for segment in subflow.tcp().unacked().filter(|s| s.payload_len() > 0) {
            let end = segment.dsn.plus(segment.payload_len());
            self.sender.unpin(DataRange::new(segment.dsn, end));
        }
        if self.sender.is_held_back() {
            self.notify_writable(cx);
        }
        let again = self.on_fast_join_failed(cx, &mut subflow, (id, reason));
        self.forget_subflow(id);
        self.remember_ended(cx, &mut subflow);
        self.paths.remember_totals(&subflow, id);
        let (path, was_established) = (subflow.path(), subflow.is_down());
        if was_established && !self.session.is_plain() {
            let kind = MonitorKind::SubflowClosed { id, path, reason };
            cx.out.monitor(cx.now, self.id, kind);
        }
        let (local, remote) = (subflow.local_id(), subflow.remote_id());
        if !was_established && matches!(reason, CloseReason::Refused | CloseReason::PeerReset) {
            self.paths.addresses_mut().on_refused(remote);
        }
        self.path_event(cx, PathEvent::SubflowDown { id, local, remote, was_established });
        if let Some((pair, backup)) = again {
            self.open_ordinary_join(cx, pair, backup);
        }
    }

    /// Removes all references to a subflow, because its slot may be reused.
    fn forget_subflow(&mut self, id: SubflowId) {
        self.receiver.remove_subflow(id);
        self.sender.remove_subflow(id);
        self.scheduling.void(id);
        self.paths.addresses_mut().forget_subflow(id);
        if let Some(attempts) = self.attempts.if_used() {
            attempts.forget_subflow(id);
        }
        if let Some(liveness) = self.liveness.if_used() {
            liveness.forget_subflow(id);
        }
    }

    /// Hands the remaining state of a subflow to the endpoint. A pending ACK is sent from there.
    fn remember_ended(&self, cx: &mut Context<'_>, subflow: &mut SubflowContext) {
        let now = cx.now;
        let final_segment = subflow.final_segment();
        let (answer, until) = match subflow.tcp().state() {
            SubflowState::TimeWait => (Answer::Ack, now + self.config.time_wait),
            _ if final_segment != FinalSegment::None => (Answer::Rst, now + RESET_MEMORY),
            _ => {
                let key = subflow.key();
                cx.flows.remove(&key);
                let (local_flow, path) = (key.local_flow, key.path);
                cx.out.event(Event::FlowGone { local_flow, path });
                return;
            }
        };
        let has_pending_ack = answer == Answer::Ack && subflow.tcp().has_pending_ack();
        let owes_word = final_segment == FinalSegment::ResetOwed || has_pending_ack;
        let is_gone = |local: LocalAddress| !local.up;
        let local = self.paths.addresses().find_local(subflow.local_id());
        let unsent = answer == Answer::Rst && local.is_some_and(is_gone);
        let until = if unsent { until.max(now + self.config.time_wait) } else { until };
        let fastclosed =
            answer == Answer::Rst && matches!(subflow.closing_option(), ClosingOption::Fastclose);
        let mut options = TcpOptions::default();
        let what = match answer {
            Answer::Ack => Egress::Ack,
            Answer::Rst => Egress::Rst,
        };
        let what = HeaderFor::Egress(&what);
        let (header, _) = subflow.tcp_mut().fill_header(now, what, 0, &mut options);
        let data_ack = Some(self.session.data_ack(self.receiver.data_ack()));
        let dss = Dss { data_ack, mapping: None, data_fin: false };
        let tells_dss = self.session.is_multipath();
        let key = self.session.keys().remote().filter(|_| fastclosed);
        let ended = Ended {
            key: subflow.key(),
            answer,
            peer_isn: subflow.tcp().peer_to_wire(Ssn(0)),
            header,
            timestamps: options.timestamps,
            dss: (answer == Answer::Ack && tells_dss).then_some(dss),
            fastclose: key.map(|key| MpFastclose { receiver_key: key.0 }),
            unsent,
            until,
        };
        if owes_word && !unsent {
            cx.out.reply(ended.final_segment());
        }
        cx.flows.retire(ended, cx.out);
    }
}

/// Timers of the connection, besides those of its subflows.
impl Connection {
    /// Time at which this connection must be woken.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let usable = self.paths.usable_count() > 0;
        // While no subflow can carry it, the DATA_FIN waits for a subflow instead of a time.
        let fin = self.next_data_fin_at().filter(|_| !self.closing.fin_acked() && usable);
        let leaving = self.closing.subflow_drop_at().filter(|_| !self.paths.is_empty());
        let mut next = earliest([leaving]);
        if !self.closing.is_closed() {
            let own = earliest([
                fin,
                self.closing.wait_ends_at(self.config.linger, self.session.is_server()),
                self.closing.next_probe_at(),
                self.scheduling.next_timeout(),
                self.silence_timeout(),
                self.liveness.probes().next_timeout(),
                self.trim.next_timeout(),
                self.path_manager.next_timeout(),
                self.paths.addresses().next_timeout(),
                self.session.next_timeout(),
                self.receiver.next_window_update(),
            ]);
            let data = earliest(self.sender.timeouts());
            next = next
                .min(own)
                .min(data)
                .min(earliest(self.attempts.timeouts()))
                .min(earliest(self.sender.nagle().timeouts()));
        }
        for subflow in self.paths.iter() {
            next = next.min(earliest(subflow.timeouts()));
        }
        (next < Instant::FAR_FUTURE).then_some(next)
    }

    /// Handles the timers that have expired.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        for id in self.paths.ids() {
            self.on_subflow_timeout(cx, id);
        }
        if self.closing.subflow_drop_at().is_some_and(|at| at <= now) {
            self.leave_now(cx);
        }
        if self.closing.is_closed() {
            return;
        }
        self.on_attempt_timeout(cx);
        self.scheduling.on_timeout(now);
        self.on_nagle_timeout(cx);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.sender.timeouts()[0]) {
            self.trace_timer(cx, None, Timer::DataRetransmission, 1);
            self.on_data_rto(cx);
        }
        if due(self.sender.timeouts()[1]) {
            self.trace_timer(cx, None, Timer::Persist, 1);
            self.on_persist(now);
        }
        if self.trim.is_due(now) {
            self.paths.shrink();
            self.scheduling.shrink();
            self.sender.shrink();
            self.receiver.shrink();
            cx.account.release_spare_chunks();
        }
        if due(self.receiver.next_window_update()) {
            self.repeat_window_update(now);
        }
        self.on_silence_timeout(cx);
        self.on_receive_probes(cx);
        if due(self.path_manager.next_timeout()) {
            self.with_path_context(cx, |manager, context| manager.on_timeout(context));
            self.apply_path_actions(cx);
        }
        if due(self.paths.addresses().next_timeout()) {
            let rto = self.largest_rto();
            let repeated = self.paths.addresses_mut().repeat_announcements(now, rto);
            cx.out.counters.add_addr_tx += repeated;
        }
        self.repeat_hello(cx);
        if due(self.session.next_data_ack_request_at()) {
            self.ask_for_data_ack(now);
        }
        self.check_wait(cx);
        self.advance_closing(cx);
    }

    fn on_subflow_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let next = self.paths.get(id).and_then(|subflow| subflow.tcp().next_timeout());
        if next.is_some_and(|at| at <= cx.now) {
            let lost = cx.out.traces_traffic(self.id).then(|| self.lost_segments_of(id));
            // A coupled controller reads the other subflows at a loss as it does at an ACK.
            self.refresh_group(cx.now, id);
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().swap_buffers(cx.workspace);
                subflow.tcp_mut().on_timeout(cx.now);
                subflow.tcp_mut().swap_buffers(cx.workspace);
            }
            if let Some(lost) = lost {
                self.trace_state(cx, id, &lost, true);
            }
            self.drain_subflow_events(cx, id);
        }
        self.on_probe_patience_end(cx, id);
        self.on_half_closed_for_long(cx, id);
        self.drop_long_cut_off_subflow(cx, id);
        self.repeat_third_ack(cx, id);
        self.repeat_mp_fail(cx, id);
    }

    /// RTO that data-level timers build on.
    fn largest_rto(&self) -> Duration {
        self.paths.largest_rto(self.config.rtt.initial_rto)
    }

    /// Handles expired hold times of small segments, and data unacknowledged for longer than the application allows.
    fn on_nagle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.sender.on_nagle_timeout(cx.now) {
            self.finish(cx, CloseReason::TimedOut);
            self.paths.iter_mut().for_each(SubflowContext::reset);
        }
    }

    /// Data may be in flight: starts watching for its acknowledgment.
    fn watch_progress(&mut self, now: Instant) {
        self.sender.watch_progress(now, self.closing.fin_outstanding());
        self.ack_watch.note(now, self.sender.una() < self.sender.sent());
    }

    /// Restarts the data-level timer for outstanding data.
    fn rearm_data_rto(&mut self, now: Instant) {
        if self.session.is_plain() {
            self.sender.disarm_rto();
        } else {
            let rto = self.largest_rto();
            self.sender.rearm_rto(now, rto);
        }
    }

    fn rearm_after_sending(&mut self, now: Instant) {
        self.trim.note_busy(now);
        self.sender.stop_persist();
        if !self.sender.is_rto_armed() {
            self.rearm_data_rto(now);
        }
    }

    /// The peer's TCP acknowledged bytes, but its DATA_ACK did not advance. If the first missing byte was among
    /// them, its mapping was lost (a middlebox merged segments and kept the options of one), and only we can
    /// repeat it.
    fn expedite_lost_mapping(&mut self, now: Instant, id: SubflowId) {
        let Some(oldest) = self.sender.oldest_outstanding() else { return };
        let Some(tcp) = self.paths.get(id).map(SubflowContext::tcp) else { return };
        // If bytes were changed on the only subflow, MP_FAIL reports it, and they continue as plain TCP.
        let may_fail = self.session.uses_checksum() && self.paths.usable_count() < 2;
        if self.session.is_plain() || may_fail || !oldest.carried_by.contains(id) {
            return;
        }
        let carriers = || oldest.carried_by.iter().filter_map(|id| self.paths.get(id));
        if carriers().any(|subflow| subflow.holds(oldest.range.start)) {
            return;
        }
        let patience = (tcp.srtt().unwrap_or_default() * 2).max(DATA_ACK_DELAY).min(tcp.rto());
        self.sender.advance_rto_timer(now + patience);
    }

    /// Handles a missing DATA_ACK although subflows are alive: repeats the oldest data on any subflow. The usual
    /// ways (subflow RTO, unanswered probe) have had their time by now. This is for a path that acknowledges data
    /// without delivering it.
    fn on_data_rto(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.sender.count_rto();
        self.rearm_data_rto(now);
        let Some(timeout) = self.sender.data_timeout(now) else { return };
        let DataTimeout { oldest: Mapping { range, carried_by, .. }, fired_at, count } = timeout;
        let holds = |s: &SubflowContext| s.holds(range.start);
        // A subflow that still retransmits the data needs no help unless it is silent.
        let repeats = |s: &SubflowContext| s.is_usable() && holds(s) && !s.health().is_rescued();
        let there = || carried_by.iter().filter_map(|id| Some((id, self.paths.get(id)?)));
        let covered = there().any(|(_, subflow)| repeats(subflow));
        // Data that is acknowledged there but never arrives leaves a hole that no later data can pass, not even
        // the same data again, although the peer is heard.
        let lies = |s: &SubflowContext| {
            let patience = MAX_DATA_RTOS + u32::from(holds(s));
            let heard = s.tcp().last_heard_at() > fired_at || !holds(s);
            let proven = !holds(s) && s.tcp().has_false_acks();
            s.is_usable() && (proven || heard && count > patience && !s.tcp().refuses_payload())
        };
        // A peer that fell back to plain TCP would take data repeated under new numbers for more data.
        let bare =
            |id, s: &SubflowContext| s.is_usable() && !holds(s) && self.sender.lacks_data_ack(id);
        let bare = there().find(|(id, subflow)| bare(*id, subflow)).map(|(id, _)| id);
        let liar = there().find(|(_, subflow)| lies(subflow)).map(|(id, _)| id);
        if let Some(id) = bare {
            self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        } else if let Some(id) = liar {
            self.reset_subflow(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
        self.sender.requeue_orphaned_data(now);
        if !covered && !self.may_still_fall_back() {
            let (rto, paths) = (self.largest_rto(), &self.paths);
            let sizes = paths.iter().map(|subflow| subflow.tcp().segment_size());
            let size = sizes.max_by_key(|size| size.usual).unwrap_or_default();
            let held = |part: &Mapping| {
                let carriers = part.carried_by.iter().filter_map(|id| paths.get(id));
                carriers.filter(|s| !s.health().is_rescued()).any(|s| s.holds(part.range.start))
            };
            self.sender.repeat_hole(now, fired_at, rto, size, held);
        }
    }

    /// Arms the persist timer: the peer's window is shut, and no data in flight would bring an update.
    fn rearm_persist(&mut self, now: Instant) {
        let (usable, rto) = (self.paths.usable_count() > 0, self.largest_rto());
        self.sender.rearm_persist(now, usable, rto);
    }

    /// Sends a window probe, or checks for the answer to the last one.
    ///
    /// The probe uses the path on which it arrives soonest. If nothing comes back within an RTO, that path may be
    /// dead without any other sign (no data is in flight that could be missed), and the window update may have
    /// been lost there. Then all paths are probed. While answers come, only one path is probed: others may be
    /// asleep.
    fn on_persist(&mut self, now: Instant) {
        self.sender.stop_persist();
        let rto = self.largest_rto();
        let best = self.paths.best();
        let heard_since = |at: Instant| {
            let best = best.and_then(|id| self.paths.get(id));
            best.is_some_and(|subflow| subflow.tcp().last_heard_at() > at)
        };
        let pause = self.sender.persist_pause(rto);
        let answered = self.sender.probed_at().map(|at| (at + pause, heard_since(at)));
        if let Some((next, true)) = answered
            && now < next
        {
            self.sender.postpone_persist(Some(next));
            return;
        }
        let all = answered.is_some_and(|(_, heard)| !heard);
        let silent = self.sender.on_probe(now, self.paths.last_heard_at());
        self.closing.note_silence(now, silent);
        for id in self.paths.usable_set().iter().filter(|id| all || best == Some(*id)) {
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().request_probe();
            }
        }
        // With one path the pauses grow as in plain TCP (RFC 9293 section 3.8.6.1).
        let alone = self.paths.usable_count() < 2;
        let pause = if all || alone { self.sender.persist_pause(rto) } else { rto };
        self.sender.postpone_persist(Some(now + pause));
        self.rearm_persist(now);
    }

    /// Ends the wait for a peer that took too long to close.
    fn leave_now(&mut self, cx: &mut Context<'_>) {
        if !self.closing.is_closed() {
            let (una, written) = (self.sender.una(), self.sender.written());
            if !self.closing.extend_closing(cx.now, una, written) {
                self.abort(cx);
            }
            return;
        }
        for id in self.paths.ids() {
            self.drop_subflow(cx, id, CloseReason::TimedOut);
        }
    }

    fn check_wait(&mut self, cx: &mut Context<'_>) {
        if self.closing.is_question_due(cx.now) {
            match self.paths.usable_count() {
                0 => self.closing.stop_questions(),
                _ => self.paths.probe_all_subflows(),
            }
        }
        let ends_at = self.closing.wait_ends_at(self.config.linger, self.session.is_server());
        if ends_at.is_some_and(|at| at <= cx.now) || self.closing.is_given_up() {
            // The peer may hear us and wait for us. The key lets it accept a reset behind a hole.
            self.abort_with_reason(cx, CloseReason::TimedOut);
        }
    }
}

/// A RST with MP_FASTCLOSE and our key, which only the peer knows.
fn is_proven_abort(segment: &TcpSegment<'_>, key: Key) -> bool {
    let knows = |option| matches!(option, MptcpOption::Fastclose(f) if f.receiver_key == key.0);
    segment.header.flags.contains(TcpFlags::RST) && segment.options.mptcp.iter().any(knows)
}

/// True if the segment has payload or a FIN.
fn carries(segment: &TcpSegment<'_>) -> bool {
    !segment.payload.is_empty() || segment.header.flags.contains(TcpFlags::FIN)
}

/// The peer itself reports an unknown token. A middlebox that resets connections does not send this reason.
const fn reports_unknown_token(word: MpTcpRst) -> bool {
    word.reason == reason::MPTCP_ERROR && !word.transient
}

/// MP_IDLE.
fn mp_idle_option() -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Idle.option())
}

/// Position with these low 16 bits that is nearest to `near`; `None` if it would be negative.
const fn unwrap16(low: u16, near: u64) -> Option<u64> {
    let delta = low.wrapping_sub(near as u16) as i16;
    near.checked_add_signed(delta as i64)
}
