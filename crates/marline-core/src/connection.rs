//! A connection: one byte stream in each direction over any number of subflows (RFC 8684).
//!
//! The connection works with data sequence numbers. Its subflows are plain TCP and know nothing of each other. The
//! connection's knowledge about each subflow beyond TCP is in its [`SubflowContext`].
//!
//! State is divided into components, each of which owns its fields: [`Session`] (mode, keys, negotiated extensions),
//! [`PathSet`] (subflows, their health, addresses), [`Sender`], [`Receiver`] and [`Closing`], in addition to the
//! policies and a few timers. A component's methods change that component alone and return the consequences. Structs
//! that borrow several components (`lend!`) build segments, check joins, assign data and so on. This file defines the
//! order of events: the first handshake, segments in ([`Connection::on_segment`]), further subflows, segments out
//! ([`Connection::poll_transmit`]), timers ([`Connection::handle_timeout`]), fallback, and the end.

mod addresses;
mod assignment;
mod attempts;
mod closing;
mod data_segments;
mod delivery_delay;
mod delivery_watch;
mod ending;
mod fallback;
mod fallback_facts;
mod fast_join;
mod fast_open;
mod fast_open_handshake;
mod fec_tx;
mod handshake;
mod joins;
mod keys;
mod liveness;
mod mapping_rx;
mod mapping_tx;
mod memory_trim;
mod nagle;
mod negotiation;
mod opening;
mod option_blackhole;
mod origin;
mod path_probing;
mod path_set;
mod peer_messages;
mod receive_buffer;
mod receive_clock;
mod receive_probes;
mod received_segment;
mod receiver;
mod reception;
mod reinjection;
mod repeats;
mod replaced_policies;
mod replay_guard;
mod rto_exchange;
mod scheduling;
mod segment_builder;
mod segment_options;
mod send_buffer;
mod sender;
mod session;
mod silence;
mod snapshot;
mod subflow_context;
mod traffic_trace;
mod wait;
mod window_updates;

use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_policy::{
    AddressId, AddressPair, Dsn, LocalAddress, PathAction, PathContext, PathCost, PathEvent,
    PathManager, PathManagerFactory, ReinjectionCause, RemoteAddress, Role, SchedulerEvent,
    SchedulerFactory, Ssn, SubflowId, SubflowView, Token, UnreachableCause,
};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    AddAddr, DataAck, ExperimentalMessage, Extensions, FastJoinForm, MpCapableForm, MpExperimental,
    MpFail, MpJoin, MpPrio, MpTcpRst, MptcpOption, RemoveAddr,
};
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

use self::addresses::JoinAddresses;
use self::assignment::Assignment;
use self::attempts::Attempts;
use self::closing::{Closing, FinTimeouts};
use self::delivery_delay::DeliveryDelay;
use self::delivery_watch::DeliveryWatch;
use self::ending::Ending;
use self::fallback::{InfiniteMapping, OtherSubflows, Point, StreamFacts, Trigger, Verdict};
use self::fallback_facts::FallbackFacts;
use self::fast_open::FastOpening;
use self::fast_open_handshake::FastOpenHandshake;
use self::handshake::{capable_keys, capable_syn_ack, reason};
use self::joins::{JoinCheck, Joins};
use self::liveness::Liveness;
use self::mapping_rx::MappingError;
use self::memory_trim::MemoryTrim;
use self::opening::Opening;
use self::option_blackhole::TimeoutOutcome;
use self::path_probing::PathProbing;
use self::path_set::PathSet;
use self::peer_messages::PeerMessages;
use self::received_segment::{carries, is_proven_abort, reports_unknown_token, without_payload};
use self::receiver::Receiver;
use self::reception::{MappingOutcome, Reception, reset_reason_for};
use self::replaced_policies::ReplacedPolicies;
use self::replay_guard::ReplayGuard;
use self::rto_exchange::RtoExchange;
use self::scheduling::Scheduling;
use self::segment_builder::SegmentBuilder;
pub(crate) use self::send_buffer::WrittenBytes;
use self::sender::Sender;
use self::session::{Mode, Session};
use self::silence::{Silence, SilenceFacts};
use self::snapshot::Snapshot;
use self::subflow_context::{
    ClosingOption, Ends, FailStep, FastAccepted, JoinStep, Membership, SubflowContext,
};
use self::traffic_trace::{TrafficTrace, report_traffic, trace_timer};
use crate::PathAddresses;
use crate::crypto::Key;
use crate::on_demand::OnDemand;
use crate::subflow::{
    Egress, EndOfSilence, Ingress, Subflow, SubflowEvent, SynRetries, VerdictChange,
};
use crate::tables::Context;
use crate::tables::path_queues::QueueUser;
use crate::tables::silent_paths::Prober;
use crate::{
    BufferTuning, CloseReason, ConnectionConfig, ConnectionId, ConnectionInfo, Ecn, Event,
    FallbackReason, FourTuple, MemoryAccount, MemoryKind, MonitorKind, NetworkError, ReadError,
    SocketOption, StreamDirection, SubflowLocation, SubflowState, Timer, Traffic, Transmit,
    TransmitBuf, WriteError,
};

pub(crate) use self::fast_open::FastOpenVerdict;
pub(crate) use self::handshake::{
    fast_join_token, mp_capable, mp_join, offers_multipath, reason as rst_reason,
};
pub(crate) use self::origin::{AcceptedSyn, Origin};

/// Limit on path manager actions applied in one pass, in case a manager never stops.
const MAX_ACTIONS: usize = 64;
/// Maximum number of retransmissions of the oldest data on a silent subflow while other subflows carry that data and
/// its path is probed.
const MAX_SILENT_RETRANSMISSIONS: u32 = 1;
/// Number of consecutive timeouts on the only subflow after which other ports are tried on its path.
const STUCK_TIMEOUTS: u32 = 2;
/// Number of consecutive timeouts after which a subflow without its local address is given up, if no join can continue
/// the connection.
const MAX_CUT_OFF_RTOS: u32 = 2;
/// Memory of an idle connection with one subflow, including its table entries, in bytes.
const CONNECTION_BYTES: u64 = 4 * 1_024;
/// Returns the earliest of these times, or a time far in the future if there is none.
fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Instant {
    let known = times.into_iter().map(|at| at.unwrap_or(Instant::FAR_FUTURE));
    known.fold(Instant::FAR_FUTURE, Instant::min)
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
    replaced: OnDemand<ReplacedPolicies>,
    liveness: OnDemand<Liveness>,
    /// Records when a DATA_ACK became due.
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

/// Defines methods that lend parts of a connection to a struct in this folder: first the fields to copy, then those to
/// read, then those to change.
macro_rules! lend {
    ($($name:ident: $type:ident { $($copied:ident)*; $($read:ident)*; $($changed:ident)* })*) => {
        impl Connection {
            $(
                #[inline]
                fn $name(&mut self) -> $type<'_> {
                    $type {
                        $($copied: self.$copied,)*
                        $($read: &self.$read,)*
                        $($changed: &mut self.$changed,)*
                    }
                }
            )*
        }
    };
}

lend! {
    opening: Opening { id slot; config session closing fast_open; paths attempts sender receiver }
    joins: Joins { ; config session closing; paths sender receiver replay_guard }
    fast_opening: FastOpenHandshake { ; config; session paths sender receiver fast_open }
    reception: Reception { ; config; session paths receiver }
    messages: PeerMessages { ; config; session paths rto_exchange }
    silence: Silence { ; config session sender rto_exchange; paths receiver closing liveness }
    assignment: Assignment {
        ; config session; paths sender scheduling closing ack_watch trim
    }
    segments: SegmentBuilder {
        id; config; session paths sender receiver scheduling closing ack_watch trim fast_open replay_guard
    }
    ending: Ending {
        id; config session; paths attempts sender receiver closing scheduling liveness
    }
}

/// Like `lend!`, for structs that change nothing.
macro_rules! show {
    ($($name:ident: $type:ident { $($copied:ident)*; $($read:ident)* })*) => {
        impl Connection {
            $(
                #[inline]
                fn $name(&self) -> $type<'_> {
                    $type { $($copied: self.$copied,)* $($read: &self.$read,)* }
                }
            )*
        }
    };
}

show! {
    fallback_facts: FallbackFacts { ; config session paths sender receiver }
    silence_facts: SilenceFacts { ; config session paths receiver closing liveness rto_exchange }
    path_probing: PathProbing { id; session paths sender closing scheduling trim }
    snapshot: Snapshot { id; config session paths sender receiver replaced ack_watch }
    traffic_trace: TrafficTrace { id; session paths receiver }
}

/// Construction of connections.
impl Connection {
    /// Creates a connection that sends the first SYN.
    pub(crate) fn connect(
        cx: &mut Context<'_>,
        config: Arc<ConnectionConfig>,
        origin: &Origin,
    ) -> Self {
        let path = origin.path;
        let known = cx.networks.is_refused(cx.now, path.local.ip(), path.remote.ip());
        let mode = if config.mptcp && !known {
            Mode::Offered
        } else {
            let reason = config.mptcp.then_some(FallbackReason::KnownNetwork);
            Mode::Plain { reason, tx: Point::FIRST }
        };
        let mut connection = Self::new_without_subflows(cx, config, origin, Role::Client, mode);
        let ends = connection.opening().initial_ends(cx, path, 0);
        let retries = SynRetries::first(&connection.config);
        let tcp = connection.opening().active_subflow(cx, path, retries);
        connection.closing.announce();
        connection.opening().add_initial(cx, tcp, ends);
        if let Some(reason) = connection.session.fallback_reason() {
            cx.out.monitor(cx.now, origin.id, MonitorKind::Fallback(reason));
        }
        let from_reserve = connection.paths.addresses().initial_local().backup;
        connection.opening().schedule_attempt(cx, from_reserve);
        connection
    }

    /// Creates a connection that answers a SYN.
    pub(crate) fn accept(
        cx: &mut Context<'_>,
        config: Arc<ConnectionConfig>,
        origin: &Origin,
        syn: &AcceptedSyn<'_>,
    ) -> Self {
        let mut connection =
            Self::new_without_subflows(cx, config, origin, Role::Server, Mode::Offered);
        let ends = connection.opening().initial_ends(cx, origin.path, syn.peer_flow);
        let retries = SynRetries::first(&connection.config);
        let tcp = connection.opening().passive_subflow(cx, origin.path, syn, retries);
        connection.opening().add_initial(cx, tcp, ends);
        connection.on_first_syn(cx, syn.segment);
        connection.accept_fast_open(cx, syn);
        connection
    }

    fn new_without_subflows(
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
}

/// Requests from the application.
impl Connection {
    /// Accepts bytes to send. Returns the number of bytes that fit.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        bytes: WrittenBytes<'_>,
    ) -> Result<usize, WriteError> {
        if let Some(reason) = self.closing.reason() {
            return Err(WriteError::Closed(reason));
        }
        if self.closing.is_shut_down() {
            return Err(WriteError::Shutdown);
        }
        let taken = self.sender.write(now, bytes);
        if taken > 0 {
            self.delay.on_written(now, self.sender.written_end());
        }
        if taken == 0 && bytes.len() > 0 { Err(WriteError::Blocked) } else { Ok(taken) }
    }

    /// Copies received bytes to the application. `Ok(0)` is the end of the stream.
    pub(crate) fn read(&mut self, now: Instant, out: &mut [u8]) -> Result<usize, ReadError> {
        let was_shut = self.receiver.is_window_closed();
        let Some((n, window_opened)) = self.receiver.read(out) else {
            return self.read_nothing();
        };
        self.receiver.adapt_to_reader(now, self.paths.largest_rtt());
        if window_opened {
            self.paths.announce_window();
            if was_shut {
                self.receiver.on_window_reopened(now, self.paths.largest_rto(&self.config));
            }
        }
        Ok(n)
    }

    /// Like [`read`](Self::read), but leaves the bytes in the buffer.
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
        self.receiver.record_nothing_to_read();
        Err(ReadError::Blocked)
    }

    /// Repeats the update that reopened a closed window, because it may have been lost.
    fn repeat_window_update(&mut self, now: Instant) {
        let rto = self.paths.largest_rto(&self.config);
        if self.receiver.is_window_update_due(now, rto) {
            self.paths.announce_window();
        }
    }

    /// Requests the DATA_ACK that the client is waiting for, because it may have been lost.
    fn request_data_ack(&mut self, now: Instant) {
        let (busy, rto) = (self.paths.has_pending_acks(), self.paths.largest_rto(&self.config));
        if self.session.is_data_ack_request_due(now, rto, busy) {
            self.paths.probe_all_subflows();
        }
    }

    /// Notifies the application once that it may read.
    fn notify_readable(&mut self, cx: &mut Context<'_>) {
        if !self.closing.is_released() && self.receiver.take_readable() {
            cx.out.event(Event::Readable(self.id));
        }
    }

    /// Notifies a blocked writer if there is enough room.
    fn notify_writable(&mut self, cx: &mut Context<'_>) {
        if self.sender.take_writable(cx.now) && !self.closing.is_released() {
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
                self.assignment().watch_progress(now);
            }
            SocketOption::SendBuffer(bytes) => {
                self.sender.resize(bytes);
                self.paths.iter_mut().for_each(|s| s.tcp_mut().set_send_buffer(bytes));
            }
            SocketOption::KnownPeer => self.closing.record_peer_authenticated(),
            SocketOption::Keepalive(times) => self.paths.set_keepalive(times),
            SocketOption::AnswerWithin(within) => self.silence().expect_answer(now, within),
        }
    }

    /// The account to which the connection's memory is charged.
    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.receiver.account()
    }

    /// Charges the connection's memory to another account.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) {
        self.receiver.account().hand_over(account, MemoryKind::Connection, CONNECTION_BYTES);
        self.sender.charge_to(account);
        if self.receiver.charge_to(account) {
            self.paths.announce_window();
        }
    }

    /// Ends a record: no segment will have bytes from both sides of this position.
    pub(crate) fn end_record(&mut self) {
        self.sender.end_record();
    }

    /// Handles a shutdown by the application, which will write no more data.
    pub(crate) fn shutdown(&mut self, cx: &mut Context<'_>) {
        self.closing.shut_down();
        self.advance_closing(cx);
    }

    /// Handles the release of the connection by the application.
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
        self.ending().abort_with_reason(cx, CloseReason::Aborted);
    }

    pub(crate) fn set_scheduler(&mut self, now: Instant, factory: Arc<dyn SchedulerFactory>) {
        self.scheduling.replace(&*factory);
        self.replaced.set_scheduler(factory);
        self.assignment().refresh_views(now);
        let up: Vec<SubflowId> = self.scheduling.views().iter().map(|v| v.id).collect();
        for id in up {
            self.assignment().scheduler_event(now, SchedulerEvent::SubflowUp(id));
        }
    }

    pub(crate) fn set_path_manager(
        &mut self,
        cx: &mut Context<'_>,
        factory: Arc<dyn PathManagerFactory>,
    ) {
        self.path_manager = factory.build();
        self.replaced.set_path_manager(factory);
        if self.session.is_confirmed() {
            self.path_event(cx, PathEvent::Established);
        }
    }

    /// Changes the backup flag of all subflows from a local address.
    pub(crate) fn set_backup(&mut self, cx: &mut Context<'_>, local: AddressId, backup: bool) {
        self.paths.addresses_mut().set_backup(local, backup);
        for id in self.paths.subflows_where(|subflow| subflow.local_id() == local).iter() {
            self.set_priority(cx, id, backup);
        }
    }

    fn set_priority(&mut self, cx: &mut Context<'_>, id: SubflowId, backup: bool) {
        if !self.paths.get_mut(id).is_some_and(|subflow| subflow.set_backup_here(backup)) {
            return;
        }
        cx.out.counters.mp_prio_tx += 1;
        self.messages().signal(Some(id), MptcpOption::Prio(MpPrio { backup }));
        cx.out.monitor(cx.now, self.id, MonitorKind::SubflowPriority { id, backup });
        self.path_event(cx, PathEvent::Priority { id, backup });
    }

    /// Handles a local address that appeared, changed or disappeared.
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
            for id in self.paths.subflows_where(|subflow| subflow.local_id() == new.id).iter() {
                if let Some(subflow) = self.paths.get_mut(id) {
                    subflow.set_cost(new.cost);
                }
                self.messages().report_cost(cx, id);
                if old.cost.fading != new.cost.fading {
                    self.on_fading(cx, id, new.cost.fading);
                }
            }
        }
        // The route to IPv4 addresses (NAT64) became known or changed. Paths that used the previous route may still
        // work.
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
            self.opening().schedule_attempt(cx, false);
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
            self.join_unconfirmed(cx);
        }
    }

    /// Handles the loss of a local address: nothing can be sent from it anymore.
    fn on_local_address_lost(&mut self, cx: &mut Context<'_>, id: AddressId) {
        let lost = self.paths.subflows_where(|subflow| subflow.local_id() == id);
        let confirmed = self.session.is_confirmed();
        for subflow in lost.iter().filter(|_| confirmed) {
            self.assignment().stop_carrying(cx.now, subflow);
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

/// MP_CAPABLE: the first subflow's handshake (RFC 8684 section 3.1).
///
/// A handshake without the option continues as plain TCP. Marline's server answers the third ACK with a DATA_ACK
/// immediately, so that a client whose server sends first can already join its other paths.
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
            Role::Server if !syn => self.on_capable_ack(cx, id, segment),
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
    fn on_capable_ack(&mut self, cx: &mut Context<'_>, id: SubflowId, segment: &TcpSegment<'_>) {
        match capable_keys(segment) {
            Some((initiator, listener)) if Key(listener) == self.session.keys().local() => {
                self.session.on_peer_key(Key(initiator));
            }
            // Only on the ACK that completes the handshake is a missing option a reason to fall back.
            _ if segment.header.flags.contains(TcpFlags::RST) => {}
            _ => {
                self.fall_back_in_handshake(cx, FallbackReason::FirstDataWithoutOption);
                // A client that uses Multipath TCP learns of the fallback from an ACK without options.
                let subflow = self.paths.get_mut(id).filter(|_| segment.options.dss.is_some());
                if let Some(subflow) = subflow {
                    subflow.tcp_mut().ack_now();
                }
            }
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
        if !self.fallback_facts().repeats_handshake(id, segment) {
            return;
        }
        let established = self.paths.get(id).is_some_and(|s| s.tcp().is_established());
        match (self.session.role(), self.session.mode()) {
            // The client gave up the option. The server must as well, or its SYN/ACK will never pass.
            (Role::Server, Mode::Offered)
                if !segment.header.flags.contains(TcpFlags::ACK)
                    && mp_capable(segment).is_none() =>
            {
                self.fall_back_in_handshake(cx, FallbackReason::SynWithoutOption);
            }
            (Role::Client, Mode::Multipath { confirmed: false })
                if established
                    && !cx.config.capabilities.hides_options()
                    && self.session.count_repeated_syn_ack() > self.config.mptcp_syn_retries =>
            {
                self.abandon_options(cx);
            }
            _ => {}
        }
    }

    /// Falls back because no segment with options was answered since the handshake.
    fn abandon_options(&mut self, cx: &mut Context<'_>) {
        if let Some(id) = self.paths.initial_id() {
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
        let passes = cx.networks.is_known_to_pass(path.local.ip(), path.remote.ip());
        let tcp = subflow.tcp_mut();
        match self.session.on_unanswered_options(cx.now, tcp.last_rx_at(), patience, passes) {
            TimeoutOutcome::Repeat => {}
            TimeoutOutcome::Ask => tcp.request_plain_probe(),
            TimeoutOutcome::GiveUp => self.abandon_options(cx),
        }
    }

    /// Handles a data timeout after a fallback. The infinite mapping that announces the fallback is also an option
    /// and may be dropped.
    fn on_infinite_mapping_timeout(&mut self, cx: &Context<'_>, id: SubflowId) {
        if cx.config.capabilities.hides_options() {
            return;
        }
        if let Some(tcp) = self.paths.get_mut(id).map(SubflowContext::tcp_mut)
            && self.session.on_plain_timeout(cx.now, tcp.snd_una(), tcp.last_rx_at())
        {
            tcp.request_plain_probe();
        }
    }

    /// Handles the completion of the first subflow's TCP handshake.
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
            if let Some(ack) = self.fast_opening().settle_fast_open(cx.now, id) {
                self.advance_una(cx, id, ack.to, ack.window);
                self.assignment().rearm_data_rto(cx.now);
            }
        }
        if self.session.fallback_reason() == Some(FallbackReason::SynRetries) {
            cx.networks.on_unanswered(cx.now, path.local.ip(), path.remote.ip());
        }
        cx.out.monitor(cx.now, self.id, MonitorKind::Established(path));
        self.on_subflow_up(cx, id);
    }

    /// Confirms that the peer speaks MPTCP: joins are now possible.
    fn confirm(&mut self, cx: &mut Context<'_>) {
        if self.session.confirm() {
            let ours = self.paths.initial().filter(|_| self.session.is_client());
            if let Some(path) = ours.map(SubflowContext::path) {
                cx.networks.on_passed(path.local.ip(), path.remote.ip());
            }
            self.path_event(cx, PathEvent::Established);
            self.messages().send_first_hello(cx);
        }
    }

    fn on_subflow_up(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let now = cx.now;
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.record_new_data(now);
        let path = subflow.path();
        let (backup, initial) = (subflow.is_backup(), subflow.is_initial());
        let subflow_cost = subflow.cost();
        self.closing.on_peer_segment(now);
        self.closing.resume(now, id);
        if !initial {
            cx.out.monitor(now, self.id, MonitorKind::SubflowEstablished { id, path, backup });
        }
        if !subflow_cost.is_none() {
            self.messages().report_cost(cx, id);
        }
        cx.silent_paths.on_answer(now, path.addresses());
        self.assignment().rescue(now, |_| true);
        self.assignment().scheduler_event(now, SchedulerEvent::SubflowUp(id));
        self.path_event(cx, PathEvent::SubflowUp(id));
    }
}

/// Attempts at the first subflow over several paths ([`Opening`]).
impl Connection {
    /// Handles an answer to a first SYN. The other attempts end, and the path manager may join their paths.
    fn on_first_answer(&mut self, cx: &mut Context<'_>, id: SubflowId, segment: &TcpSegment<'_>) {
        let flags = segment.header.flags;
        let answers = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::RST);
        if !answers || !self.opening().is_opening() {
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

    /// Accepts the kept answer without the option after its deadline, or because no better one can come.
    fn take_kept_answer(&mut self, cx: &mut Context<'_>, now: Option<Instant>) {
        let Some(kept) = self.opening().release_kept_answer(cx, now) else { return };
        self.on_admitted(cx, kept.on, &kept.segment(), kept.ecn);
    }

    /// Abandons an attempt because another one was answered first. A late answer from the server gets a RST.
    fn abandon_attempt(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(mut subflow) = self.paths.take(id) else { return };
        self.ending().forget_subflow(id);
        // Recorded as if a RST had been sent, so that late segments are answered with one.
        subflow.record_reset_sent();
        self.ending().remember_ended(cx, &mut subflow);
    }

    /// Handles the failure of an attempt. Returns true if other attempts continue.
    fn on_attempt_failed(
        &mut self,
        cx: &mut Context<'_>,
        local: AddressId,
        ip: IpAddr,
        reason: CloseReason,
    ) -> bool {
        let others = !self.paths.is_empty();
        if !others && self.opening().next_start(cx).is_none() {
            return false;
        }
        self.attempts.record_attempt(local, ip);
        self.attempts.record_failed_attempt(cx.now, reason, self.config.rtt.initial_rto);
        if others {
            self.opening().start_next_attempt(cx);
            let hopeful = |id| !self.attempts.is_plain(id);
            if !self.paths.ids().any(hopeful) && !self.attempts.is_attempt_scheduled() {
                self.take_kept_answer(cx, None);
            }
        }
        others || self.opening().begin_attempt(cx)
    }

    /// Starts the next attempt, or accepts a refusal.
    fn on_attempt_timeout(&mut self, cx: &mut Context<'_>) {
        if !self.opening().is_opening() {
            self.attempts.retire();
        }
        let Some(attempts) = self.attempts.if_used() else { return };
        let (next, refused) = (attempts.take_due_attempt(cx.now), attempts.is_refused(cx.now));
        if next {
            self.opening().begin_attempt(cx);
        }
        self.take_kept_answer(cx, Some(cx.now));
        if refused && self.opening().is_opening() {
            self.ending().finish(cx, CloseReason::Refused);
            for id in self.paths.ids() {
                self.drop_subflow(cx, id, CloseReason::Refused);
            }
        }
    }
}

/// Fast Open (RFC 7413, RFC 8684 appendix B); `connection/fast_open.rs` describes the exchange.
impl Connection {
    /// Server: applies the Fast Open verdict to the SYN that opened the connection.
    fn accept_fast_open(&mut self, cx: &mut Context<'_>, syn: &AcceptedSyn<'_>) {
        let verdict = syn.fast_open;
        if !verdict.opens && verdict.answer.is_none() {
            return;
        }
        self.fast_open.answer(verdict);
        let Some(id) = self.paths.initial_id().filter(|_| verdict.opens) else { return };
        self.fast_opening().take_first_data(id, syn.segment.payload);
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

    /// Like [`Self::on_segment`], with traffic monitoring on.
    #[cold]
    #[inline(never)]
    fn trace_and_process_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> bool {
        let lost = self.traffic_trace().trace_received(cx, id, segment);
        let predicted = self.take_segment(cx, id, segment, ecn);
        self.traffic_trace().trace_state(cx, id, &lost, false);
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
        self.with_scheduler_scratch(cx, |connection, cx| {
            let predicted = connection.on_predicted(cx, id, segment, ecn);
            if !predicted && connection.admit(cx, id, segment, ecn) {
                connection.on_admitted(cx, id, segment, ecn);
            }
            predicted
        })
    }

    /// Lends the endpoint's buffers to the scheduler for a call.
    #[inline]
    fn with_scheduler_scratch<R>(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Self, &mut Context<'_>) -> R,
    ) -> R {
        self.scheduling.swap_scratch(cx.scheduler_scratch);
        let result = call(self, cx);
        self.scheduling.swap_scratch(cx.scheduler_scratch);
        result
    }

    /// Lends the endpoint's buffers to a subflow for a call.
    #[inline]
    fn with_workspace<R>(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        call: impl FnOnce(&mut Self, &mut Context<'_>) -> R,
    ) -> R {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().swap_buffers(cx.workspace);
        }
        let result = call(self, cx);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().swap_buffers(cx.workspace);
        }
        result
    }

    /// True if memory is short and there is no room for the segment's payload, because the application has data to
    /// read first or the payload is not the next data of the stream.
    #[cold]
    fn lacks_memory_for(&mut self, id: SubflowId, segment: &TcpSegment<'_>) -> bool {
        !segment.payload.is_empty()
            && (self.receiver.readable() > 0 || !self.reception().continues_stream(id, segment))
    }

    /// Processes a segment without its payload, as if the payload were beyond the window, because a window that was
    /// announced cannot be reduced (RFC 9293 section 3.8.6). The peer sends the payload again.
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
        let segment = without_payload(segment);
        self.with_scheduler_scratch(cx, |connection, cx| {
            if connection.admit(cx, id, &segment, ecn) {
                connection.on_admitted(cx, id, &segment, ecn);
            }
            if let Some(subflow) = connection.paths.get_mut(id) {
                subflow.tcp_mut().ack_now();
            }
        });
    }

    /// Passes the path's queue to a congestion controller that fills it.
    fn share_queue(&mut self, cx: &Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get(id) else { return };
        if !subflow.tcp().wants_queue() {
            return;
        }
        let path = subflow.tcp().path();
        let is_client = self.session.role() == Role::Client;
        let is_known = is_client || self.closing.is_peer_authenticated();
        let user = QueueUser::new(is_known.then(|| self.account()), path);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().share_queue(cx.queues.queue(path, user));
        }
    }

    /// Processes a segment that may be passed to TCP.
    fn on_admitted(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) {
        self.assignment().refresh_group(cx.now, id);
        self.share_queue(cx, id);
        let processed =
            self.with_workspace(cx, id, |connection, cx| connection.on_tcp(cx, id, segment, ecn));
        if processed.is_none() {
            return;
        }
        if self.sender.is_held_back() {
            self.relieve_send_buffer(cx);
        }
        self.advance_closing(cx);
    }

    /// Passes a segment to TCP and processes the results. `None` if its subflow is gone.
    fn on_tcp(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
    ) -> Option<()> {
        let carries = !segment.payload.is_empty();
        let ingress = self.pass_to_tcp(cx, id, segment, ecn)?;
        if ingress.accepted {
            if self.paths.is_initial(id) {
                self.on_first_answer(cx, id, segment);
                if segment.header.flags.contains(TcpFlags::SYN) {
                    self.fast_opening().on_fast_open_answer(cx, id, segment);
                }
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
            self.trim.record_activity(cx.now);
        }
        let is_syn = segment.header.flags.contains(TcpFlags::SYN);
        // Until it gets the third ACK, the peer retransmits nothing but its SYN/ACK.
        if (ingress.accepted || ingress.repeated) && !is_syn {
            self.on_fourth_ack(cx, id);
        }
        if ingress.accepted && self.paths.get(id).is_some() {
            self.on_content(cx, id, segment, &ingress);
            self.drain_subflow_events(cx, id);
            self.ending().record_half_closed(cx.now, id);
        }
        self.assignment().drain_released(cx.now, id);
        Some(())
    }

    /// Processes the predicted next segment of a transfer, in which only the payload is new
    /// (`subflow/prediction.rs`). Returns `false`, without changes, for any other segment.
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
        // The segment with the first byte must carry its option, so it cannot be predicted.
        let begun = self.receiver.delivered(id) > Ssn(1);
        let window = self.receiver.window_size();
        let Some(subflow) = self.paths.get_mut(id).filter(|s| begun && s.is_fully_established())
        else {
            return false;
        };
        let Some(ingress) = subflow.tcp_mut().take_predicted(cx.now, segment, window) else {
            return false;
        };
        self.trim.record_activity(cx.now);
        self.take_predicted_content(cx, id, segment, &ingress);
        self.drain_subflow_events(cx, id);
        self.ending().record_half_closed(cx.now, id);
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
        self.record_segment_received(cx.now);
        let before = self.receiver.next();
        self.on_dss(cx, id, segment, ingress);
        let Some((ssn, _)) = ingress.in_order else { return };
        let end = ssn.plus(segment.payload.len() as u64);
        let mapped = self.receiver.maps(id, ssn, end);
        if !mapped && !self.session.is_plain() && !self.fallback_facts().may_be_plain(id) {
            self.reception().record_torn(cx, id, segment, ingress);
        }
        self.take_payload(cx, id, segment, ingress);
        if self.receiver.next() > before {
            self.on_stream_advanced(cx, id, true);
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
        // RFC 5961 requires challenging a RST behind a gap. But an aborting peer may have no state left to repeat the
        // RST at the right sequence number, and its key proves its origin.
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

    /// Checks a segment of a subflow whose handshake is not complete, before TCP processes it. `false` if the segment
    /// must not reach TCP.
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
                let check = self.joins().check_syn_ack(cx, id, segment, joining);
                self.apply_join_check(cx, id, check)
            }
            Membership::Joined(joined) if !joined.is_verified() => {
                let joined = **joined;
                let check = self.joins().check_third_ack(cx, id, segment, joined);
                self.apply_join_check(cx, id, check)
            }
            Membership::Joined(joined) if joined.is_fast() && !subflow.was_joined() => {
                self.joins().admit_half_open_fast_join(cx, id, segment)
            }
            Membership::Initial => {
                if self.opening().keep_plain_answer(cx, id, segment, ecn) {
                    if !self.opening().awaits_mptcp_answer(id) {
                        self.take_kept_answer(cx, None);
                    }
                    return false;
                }
                self.on_repeated_handshake(cx, id, segment);
                if self.fallback_facts().repeats_first_data(id, segment) {
                    self.consider_fallback(cx, id, Trigger::FirstByteRepeated);
                }
                let asks = self.fallback_facts().is_probe_without_options(id, segment);
                if let Some(subflow) = self.paths.get_mut(id).filter(|_| asks) {
                    subflow.tcp_mut().answer_plain_probe();
                }
                !self.fallback_facts().arrived_before_keys(id, segment)
            }
            _ => true,
        }
    }

    /// Records that the peer sent a valid segment.
    fn record_segment_received(&mut self, now: Instant) {
        self.closing.on_peer_segment(now);
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
        self.record_segment_received(cx.now);
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
        let early = !self.receiver.takes_repairs() && self.reception().is_early_repair(segment);
        if early {
            self.start_coding();
        }
        if early || self.receiver.takes_repairs() {
            self.on_coded(cx, id, segment, ingress);
        }
        if !self.session.is_plain() && !self.fallback_facts().may_be_plain(id) {
            self.reception().record_torn(cx, id, segment, ingress);
        }
        self.take_payload(cx, id, segment, ingress);
        if self.receiver.takes_repairs() {
            self.reception().repair_missing(cx, id);
        }
        if self.silence().watch_download(cx, id, before, segment) {
            self.messages().request_rto(cx, id);
        }
        let moved = self.receiver.next() > before;
        if moved || (self.receiver.fin_reached() && !was_at_end) {
            self.on_stream_advanced(cx, id, moved);
        } else if !segment.payload.is_empty() {
            let due = self.silence_facts().expects_peer_data(id);
            self.receiver.watch_mut().note(cx.now, due);
        }
    }

    /// Processes the content of a segment on plain TCP. `false` if this ended the connection.
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
                let outcome = self.reception().take_mapping(cx, id, &dss, carries(segment));
                self.apply_mapping_outcome(cx, id, outcome);
            } else if self.reception().contradicts_plain_stream(id, &dss) {
                cx.out.counters.dss_not_matching += 1;
                self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
                return false;
            }
        }
        true
    }

    /// Handles in-order data, or the end of the stream.
    fn on_stream_advanced(&mut self, cx: &mut Context<'_>, id: SubflowId, data: bool) {
        self.closing.on_progress();
        self.silence().postpone_probes(cx.now);
        if let Some(since) = self.silence().watch_delivery_of_received(cx.now, id) {
            self.silence_facts().report_delivery_gap(
                cx,
                self.id,
                id,
                StreamDirection::Received,
                since,
            );
        }
        if self.closing.is_released() {
            self.receiver.discard();
            if data {
                self.closing.record_late_data();
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
                MptcpOption::Join(MpJoin::Ack { .. }) => {
                    if let Some(subflow) = self.paths.get_mut(id) {
                        subflow.repeat_fourth_ack();
                    }
                }
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
                trace_timer(cx, self.id, Some(id), Timer::Probe, 1);
                self.on_probe_timeout(cx, id);
            }
            SubflowEvent::ProbeRepeated { range } if !range.is_empty() => {
                self.assignment()
                    .scheduler_event(cx.now, SchedulerEvent::ProbeRepeated { on: id, range });
            }
            SubflowEvent::ProbeRepeated { .. } => {}
            SubflowEvent::Lost => self.assignment().on_lost(cx.now, id),
            SubflowEvent::Rto { count } => {
                trace_timer(cx, self.id, Some(id), Timer::Retransmission, count);
                self.on_subflow_rto(cx, id, count);
            }
            SubflowEvent::SilenceEnded(end) => self.on_silence_ended(cx, id, end),
            SubflowEvent::SilentDespiteSegment(since_last_rx) => {
                self.on_unanswered_segment(cx, id, since_last_rx)
            }
            SubflowEvent::MtuFound(_) => {}
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
                let before = self.closing.acked_end(&self.sender);
                self.on_data_ack(cx, id, ack, ingress.window);
                let advanced = self.closing.acked_end(&self.sender) > before;
                if let Some(subflow) = self.paths.get_mut(id) {
                    if advanced {
                        subflow.record_new_data(cx.now);
                    }
                    self.sender.record_proof(id, subflow.tcp().snd_una());
                }
                if !advanced && ingress.newly_acked > 0 {
                    self.assignment().expedite_lost_mapping(cx.now, id);
                }
            }
            self.confirm(cx);
            let outcome = self.reception().take_mapping(cx, id, &dss, carries(segment));
            self.apply_mapping_outcome(cx, id, outcome);
        } else if let Some(capable) = capable {
            // A segment with the keys has no DATA_ACK: a peer that still sends keys has received no data from us. If
            // such a segment is late, its window must not be counted from data acknowledged later.
            self.sender.raise_window(self.session.first_mapped().plus(ingress.window));
            let MpCapableForm::Ack { data: Some(data), .. } = capable.form else { return };
            self.confirm(cx);
            self.receiver.record_keyed(id, data.length);
            let outcome = self.reception().on_capable_data(cx, id, data);
            self.apply_mapping_outcome(cx, id, outcome);
        } else {
            self.on_missing_dss(cx, id, segment, ingress);
        }
    }

    /// Handles a segment without any MPTCP option.
    fn on_missing_dss(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if !self.fallback_facts().lacks_options(id, segment) {
            return;
        }
        self.sender.record_bare_ack(id);
        let trigger = self.fallback_facts().missing_dss(id, segment, ingress);
        if let Some(trigger) = trigger {
            self.consider_fallback(cx, id, trigger);
        }
    }

    /// Applies the consequence of a mapping.
    fn apply_mapping_outcome(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        outcome: MappingOutcome,
    ) {
        match outcome {
            MappingOutcome::Done => {}
            MappingOutcome::Infinite(at) => self.on_infinite_mapping(cx, id, at),
            MappingOutcome::Reset(reason) => {
                self.reset_subflow(cx, id, reason, CloseReason::PeerMisbehaved);
            }
        }
    }

    /// Handles a DATA_ACK: the data received by the peer, and its receive window (RFC 8684 sections 3.3.2 and 3.3.5).
    fn on_data_ack(&mut self, cx: &mut Context<'_>, id: SubflowId, ack: DataAck, window: u64) {
        match self.session.unwrap_ack(ack, self.closing.acked_end(&self.sender)) {
            // An ACK of data that was never sent is ignored, as in TCP.
            Some(acked) if acked <= self.closing.sent_end(&self.sender) => {
                self.advance_una(cx, id, acked, window)
            }
            _ => cx.out.counters.dss_not_matching += 1,
        }
    }

    /// Plain TCP: the subflow's ACK is the connection's. A peer that sends a DATA_ACK does not know of our fallback,
    /// and may have discarded data beyond that DATA_ACK.
    fn on_plain_ack(&mut self, cx: &mut Context<'_>, id: SubflowId, data_ack: Option<DataAck>) {
        let Some(mut acked) = self.fallback_facts().acked_by_tcp(id) else { return };
        let Some(subflow) = self.paths.get(id) else { return };
        let (window, rto) = (subflow.tcp().peer_window(), subflow.tcp().rto());
        let known = self.session.announces_fallback().then_some(data_ack);
        if let Some(data_ack) = known {
            let asks = self.session.record_peer_mode(data_ack.is_some());
            let has = data_ack
                .and_then(|ack| self.session.unwrap_ack(ack, self.closing.acked_end(&self.sender)));
            acked = has.map_or(acked, |has| acked.min(has));
            if asks {
                self.send_mp_fail_from(cx, id, cx.now + rto);
            }
        }
        self.advance_una(cx, id, acked, window);
        // RFC 9293 section 3.8.6 (SHLD-15): a shrinking window must not allow new data. The window of Multipath TCP
        // does not shrink, because ACKs of different subflows may be reordered (RFC 8684 section 3.3.5).
        let end = self.closing.acked_end(&self.sender).min(self.sender.written_end()).plus(window);
        self.sender.set_window(end);
    }

    fn advance_una(&mut self, cx: &mut Context<'_>, id: SubflowId, acked: Dsn, window: u64) {
        let now = cx.now;
        self.sender.raise_window(acked.plus(window));
        if acked <= self.closing.acked_end(&self.sender) {
            return;
        }
        self.closing.on_data_ack(acked > self.sender.written_end());
        let data = acked.min(self.sender.written_end());
        report_traffic(cx, self.id, || Traffic::DataAcked { on: id, to: data });
        self.sender.ack(data);
        if let Some(delay_us) = self.delay.on_acked(now, data) {
            cx.out.delays.record_us(delay_us);
        }
        self.closing.on_progress();
        self.closing.on_data_taken();
        if data == self.sender.written_end() {
            self.ending().expedite_data_fin(now);
        }
        self.assignment().rearm_data_rto(now);
        self.silence().watch_data_ack(now);
        self.watch_delivery_of_sent(cx, id);
        let by_rates = match self.config.buffer_tuning {
            BufferTuning::Rates => true,
            BufferTuning::WindowsThenRates => self.sender.is_lasting_bulk(now),
            BufferTuning::Fixed | BufferTuning::Windows => false,
        };
        self.sender.tune(self.paths.wanted_buffer(by_rates));
        self.assignment().watch_progress(now);
        self.notify_writable(cx);
    }
}

/// Delivery of in-order bytes of a subflow into the stream, by their mappings.
impl Connection {
    /// Takes the bytes of this segment that are in order on the subflow, and bytes held until now.
    fn take_payload(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ingress: &Ingress,
    ) {
        if let Some((ssn, range)) = ingress.in_order.clone() {
            self.deliver(cx, id, ssn, &segment.payload[range]);
        }
        // If data ends its subflow, delivery stops.
        let next = |connection: &mut Self| {
            let subflow = connection.paths.get_mut(id).filter(|s| !s.tcp().is_over())?;
            subflow.tcp_mut().pop_reassembled()
        };
        while let Some((ssn, bytes)) = next(self) {
            self.deliver(cx, id, ssn, &bytes);
            if let Some(subflow) = self.paths.get_mut(id) {
                subflow.tcp_mut().recycle(bytes);
            }
        }
    }

    /// Delivers bytes that are in order on the subflow.
    fn deliver(&mut self, cx: &mut Context<'_>, id: SubflowId, ssn: Ssn, bytes: &[u8]) {
        let there = self.paths.get(id).is_some();
        let end = ssn.plus(bytes.len() as u64);
        if self.session.is_plain() && there && !self.receiver.covers(id, ssn) {
            // The infinite mapping was lost on the path. Unmapped data has the same meaning here.
            self.receive_plain_unannounced(cx, id, ssn);
        } else if self.session.is_multipath()
            && !self.receiver.maps(id, ssn, end)
            && self.receiver.lacks_mapping(id, ssn, end)
        {
            // The bytes before this point may be mapped. If a fallback is not possible, the unmapped bytes end the
            // subflow below.
            self.consider_plain_data(cx, id);
        }
        if cx.out.traces_traffic(self.id) {
            self.traffic_trace().trace_positions(cx, id, ssn, bytes);
        }
        let result = self.reception().translate(cx, id, ssn, bytes);
        if self.paths.get(id).is_none() {
            return;
        }
        self.receiver.count_kept_bytes(id);
        match result {
            Ok(()) => self.watch_plain_stream(cx, id),
            Err(MappingError::BadChecksum(dsn)) => self.on_bad_checksum(cx, id, dsn),
            Err(error) => {
                cx.out.counters.dss_not_matching += 1;
                let reason = reset_reason_for(error);
                self.reset_subflow(cx, id, reason, CloseReason::PeerMisbehaved);
            }
        }
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
            let outcome = self.reception().on_repair(cx, id, &repair, ingress);
            self.apply_mapping_outcome(cx, id, outcome);
        }
        if let Some(start) = ingress.start.filter(|_| ingress.in_order.is_none()) {
            let early = self.receiver.take_early(id, start, segment.payload);
            if let Some(subflow) = self.paths.get_mut(id).filter(|_| early > 0) {
                subflow.record_new_data(cx.now);
            }
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
        backup: bool,
        fast: bool,
    ) -> Option<SubflowId> {
        let unconfirmed = !self.session.is_confirmed();
        if unconfirmed && !self.may_join_unconfirmed() || self.closing.is_closed() {
            return None;
        }
        let JoinAddresses { local, remote } = pair;
        let path = pair.free_path(cx)?;
        let usual = SynRetries::join(&self.config);
        let retries = if unconfirmed { usual.at_most(MAX_CUT_OFF_RTOS - 1) } else { usual };
        let tcp = self.opening().active_subflow(cx, path, retries);
        let key = cx.new_flow(path, 0);
        let fast = fast && self.joins().may_join_fast(cx, &pair);
        let membership = Membership::joining(cx.rng.next_u32(), fast);
        let remote_id = self.paths.addresses().remote_id(local.remote_for(remote));
        let ends = Ends { key, local_id: local.id, remote_id };
        cx.out.counters.mp_join_syn_tx += 1;
        if self.path_probing().probes_silent_paths() {
            cx.silent_paths.join_path_waiters(&path, self.id);
        }
        self.opening().add_subflow(cx, tcp, ends, membership, backup || local.backup)
    }

    /// True if a SYN can still join by the connection's token. A closed or plain TCP connection keeps its slot for a
    /// reader and for late segments, but a join to it is answered like one with an unknown token.
    pub(crate) const fn has_valid_token(&self) -> bool {
        !self.session.is_plain() && !self.closing.is_closed()
    }

    /// Answers a SYN that joins this connection. The error is the reason code for its RST.
    pub(crate) fn answer_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &AcceptedSyn<'_>,
    ) -> Result<(), u8> {
        if mp_join(syn.segment).is_none() {
            return self.accept_fast_join(cx, path, syn);
        }
        let accepted = self.accept_join(cx, path, syn);
        if accepted { Ok(()) } else { Err(reason::PROHIBITED) }
    }

    /// Accepts a join. `false` if it must be refused with a RST.
    fn accept_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &AcceptedSyn<'_>,
    ) -> bool {
        let Some(MpJoin::Syn { backup, address_id, nonce, .. }) = mp_join(syn.segment) else {
            return false;
        };
        if !self.joins().has_room_for_join(cx) || !self.path_manager_accepts(cx, path) {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        }
        let membership = Membership::joined(cx.rng.next_u32(), nonce);
        let added = self.opening().add_joined(cx, path, syn, membership, address_id);
        let Some(subflow) = added.and_then(|id| self.paths.get_mut(id)) else {
            cx.out.counters.mp_join_rejected += 1;
            return false;
        };
        subflow.set_backup_there(backup);
        true
    }

    /// Applies the result of a check on a join's handshake. `false` if the segment must not reach TCP.
    fn apply_join_check(&mut self, cx: &mut Context<'_>, id: SubflowId, check: JoinCheck) -> bool {
        match check {
            JoinCheck::Pass => {}
            JoinCheck::Proven => self.confirm_by_join(cx),
            JoinCheck::ProvenFast(None) => {}
            JoinCheck::ProvenFast(Some(data_ack)) => self.on_data_ack(cx, id, data_ack, 0),
            JoinCheck::Drop => return false,
            JoinCheck::Reset(reason) => {
                self.reset_subflow(cx, id, reason, CloseReason::PeerMisbehaved);
                return false;
            }
        }
        true
    }

    /// Completes a join's TCP handshake on our side.
    fn on_join_established(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let step = subflow.on_join_established(cx.now);
        if step == JoinStep::Pending {
            return;
        }
        self.settle_fast_join(cx, id);
        self.on_subflow_up(cx, id);
        if step == JoinStep::UpFast {
            // The third ACK proves the address of the SYN. The peer opened this subflow because the others failed:
            // they count as silent until a segment arrives on them, and their data is reinjected here.
            for other in self.paths.ids().filter(|other| *other != id) {
                self.on_overdue(cx, other, UnreachableCause::FastJoin);
            }
        }
    }

    /// Handles a valid segment on a subflow that we joined: after our third ACK it counts as the fourth.
    fn on_fourth_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.paths.get_mut(id).is_some_and(SubflowContext::on_fourth_ack) {
            self.settle_fast_join(cx, id);
            self.on_subflow_up(cx, id);
        }
    }

    /// Repeats the third ACK if the fourth does not arrive.
    fn repeat_third_ack(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let subflow = self.paths.get_mut(id);
        if subflow.is_some_and(|subflow| subflow.repeat_third_ack(cx.now)) {
            self.reset_subflow(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
        }
    }
}

/// Fast JOIN; `connection/fast_join.rs` describes the exchange.
impl Connection {
    /// Handles the SYN's data once the subflow is established: either it was accepted, or it is sent again first.
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
        self.assignment().rearm_data_rto(cx.now);
    }

    /// Opens an ordinary join after a refused Fast JOIN, unless the path manager already did.
    fn open_ordinary_join(&mut self, cx: &mut Context<'_>, pair: JoinAddresses, backup: bool) {
        let same = |path: FourTuple| {
            path.local.ip() == pair.local.address.ip() && path.remote == pair.remote
        };
        if !self.paths.iter().any(|subflow| same(subflow.path())) {
            self.open_join(cx, pair, backup, false);
        }
    }

    /// Answers a SYN with a Fast JOIN. The error is the reason code for its RST.
    fn accept_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &AcceptedSyn<'_>,
    ) -> Result<(), u8> {
        let said = self.joins().check_fast_syn(cx, syn)?;
        if !self.path_manager_accepts(cx, path) {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let fast = FastAccepted::new(said.form, said.hmac);
        let membership = Membership::from_fast_join(cx.rng.next_u32(), fast);
        let added = self.opening().add_joined(cx, path, syn, membership, said.address_id);
        let Some(id) = added else {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        };
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_backup_there(said.backup);
        }
        match said.form {
            FastJoinForm::Out => {
                if self.joins().take_syn_data(cx, id, said.at, syn.segment.payload) {
                    self.notify_readable(cx);
                }
            }
            FastJoinForm::In => self.advance_una(cx, id, said.at, 0),
        }
        Ok(())
    }
}

/// HELLO and other messages between Marline peers (docs/spec/experimental.md).
impl Connection {
    /// Handles an option of the private subtype on an acceptable segment. Options that are unknown or were not
    /// negotiated are ignored.
    fn on_experimental(&mut self, cx: &mut Context<'_>, on: SubflowId, option: &MpExperimental) {
        let Some(message) = ExperimentalMessage::parse(option) else { return };
        match message {
            ExperimentalMessage::Hello(features) => self.on_hello(cx, on, features),
            ExperimentalMessage::RtoRequest => self.messages().on_rto_request(cx, on),
            ExperimentalMessage::RtoInfo { rto_us } => self.messages().on_rto_info(cx, rto_us),
            ExperimentalMessage::PathCost { metered, fading, limited, tail_ms } => {
                let cost = PathCost { metered, limited, fading, tail_ms };
                self.messages().on_path_cost(cx, on, cost);
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
                self.messages().request_rto(cx, on);
            }
        }
        if let Some(answer) = outcome.answer {
            self.messages().send_hello(cx, Some(on), answer);
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
        for id in self.paths.subflows_where(|subflow| !subflow.cost().is_none()).iter() {
            self.messages().report_cost(cx, id);
        }
        if let Some(follow) = self.config.follow_client.clone()
            && self.session.is_server()
            && agreed.contains(Extensions::FOLLOW_CLIENT)
        {
            self.set_scheduler(cx.now, follow);
        }
    }

    /// Handles a fading or recovering signal on a subflow. To a peer without PATH_COST, the subflow is reported as a
    /// backup.
    fn on_fading(&mut self, cx: &mut Context<'_>, id: SubflowId, fading: bool) {
        let usable = self.paths.get(id).filter(|subflow| subflow.is_active());
        if let Some(backup) = usable.map(|subflow| fading || subflow.is_backup_here())
            && !self.session.agreed_on(Extensions::PATH_COST)
        {
            cx.out.counters.mp_prio_tx += 1;
            self.messages().signal(Some(id), MptcpOption::Prio(MpPrio { backup }));
        }
        self.path_event(cx, PathEvent::Fading { id, fading });
    }
}

/// Addresses of both sides, and requests from the path manager (RFC 8684 section 3.4).
impl Connection {
    /// Sends ADD_ADDR for one of our addresses, repeated until echoed.
    fn announce_address(&mut self, cx: &mut Context<'_>, id: AddressId) {
        if !self.session.is_multipath() {
            return;
        }
        let (rto, keys) = (self.paths.largest_rto(&self.config), self.session.keys());
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

    /// Handles REMOVE_ADDR. The subflow on which the option arrived works: its address may have come back before the
    /// option was sent. RFC 8684 section 3.4.2 requires closing only paths that are not in use.
    fn on_remove_addr(&mut self, cx: &mut Context<'_>, on: SubflowId, remove: &RemoveAddr) {
        for id in remove.ids.iter().take(usize::from(remove.len)).map(|id| AddressId(*id)) {
            cx.out.counters.rm_addr_rx += 1;
            self.paths.addresses_mut().on_withdrawn(id);
            for there in self.paths.ids() {
                let theirs = |s: &&SubflowContext| s.remote_id() == id && there != on;
                let Some(subflow) = self.paths.get(there).filter(theirs) else { continue };
                let joins =
                    !subflow.is_initial() && !subflow.is_closed_for_data() && !subflow.was_joined();
                if joins {
                    // SYNs to this address will not be answered.
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
            self.path_probing().report_silence(cx, id);
        }
        self.with_path_context(cx, |manager, context| manager.on_event(&event, context));
        self.apply_path_actions(cx);
    }

    fn path_manager_accepts(&mut self, cx: &Context<'_>, path: FourTuple) -> bool {
        self.with_path_context(cx, |manager, context| manager.accepts_join(path.remote, context))
    }

    /// Calls `ask` with the connection as the path manager sees it.
    fn with_path_context<R>(
        &mut self,
        cx: &Context<'_>,
        ask: impl FnOnce(&mut dyn PathManager, &PathContext<'_>) -> R,
    ) -> R {
        self.assignment().refresh_views(cx.now);
        let context = PathContext {
            now: cx.now,
            role: self.session.role(),
            local: self.paths.addresses().local(),
            remote: self.paths.addresses().remote(),
            deny_join_id0: self.session.peer_denies_id0(),
            paths: &self.paths.paths(),
            subflows: self.scheduling.views(),
            max_subflows: cx.config.limits.subflows,
            has_unacked_data: self.sender.has_data(),
            followed: self.session.agreed_on(Extensions::FOLLOW_CLIENT),
        };
        ask(self.path_manager.as_mut(), &context)
    }

    fn apply_path_actions(&mut self, cx: &mut Context<'_>) {
        for _ in 0..MAX_ACTIONS {
            let Some(action) = self.path_manager.poll_action() else { return };
            // The path manager must not close the join that replaces a lost address: the connection depends on it.
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
                let way = local.and_then(|local| Some((local, local.destination_for(remote?)?)));
                if let Some((local, remote)) = way {
                    self.open_join(cx, JoinAddresses { local, remote }, backup, fast);
                }
            }
            PathAction::Probe(id) => {
                let subflow = self.paths.get_mut(id).filter(|subflow| subflow.is_active());
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
        self.assignment().stop_carrying(cx.now, id);
        // A subflow with an unanswered SYN is closed without a RST and gets no further event, so it is dropped here.
        self.drop_unanswered(cx);
    }
}

/// Identity in the endpoint's tables, and the carrier's reports about paths.
impl Connection {
    pub(crate) const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Local token by which joins find the connection.
    pub(crate) const fn token(&self) -> Token {
        self.session.keys().local_token()
    }

    /// A value derived from both keys that identifies this connection.
    pub(crate) fn export_binding(&self, label: &[u8]) -> Option<[u8; 32]> {
        self.session.keys().binding(self.session.role(), label)
    }

    /// True if the connection counts as half-open: it is a server's, and the handshake of its first subflow is
    /// neither complete nor given up.
    pub(crate) fn counts_as_half_open(&self) -> bool {
        let unanswered = self.session.is_server() && !self.closing.is_announced();
        unanswered && self.paths.initial().is_some()
    }

    /// True on a server while the handshake of the first subflow is not complete.
    pub(crate) const fn is_half_open(&self) -> bool {
        !self.closing.is_announced() && !self.closing.is_closed()
    }

    /// True if Fast Open passed the connection to the application and the third ACK has not arrived.
    pub(crate) fn is_fast_pending(&self) -> bool {
        let waits = |s: &SubflowContext| s.tcp().state() == SubflowState::SynReceived;
        self.fast_open.is_early() && self.paths.initial().is_some_and(waits)
    }

    /// True for a server's connection without subflows whose peer the application has not authenticated.
    pub(crate) fn is_unauthenticated_without_path(&self) -> bool {
        self.session.is_server()
            && self.closing.is_unauthenticated_peer_waiting(self.config.linger)
            && self.paths.is_empty()
    }

    /// True if the peer has one of these addresses.
    pub(crate) fn has_peer_at(&self, addresses: &[SocketAddr]) -> bool {
        self.paths.addresses().remote().iter().any(|known| addresses.contains(&known.address))
    }

    /// True if the endpoint can drop the connection: nothing is left to do.
    pub(crate) fn is_gone(&self) -> bool {
        self.closing.is_forgotten() && self.paths.is_empty()
    }

    /// A snapshot for monitoring.
    pub(crate) fn info(&self) -> ConnectionInfo {
        self.snapshot().info()
    }

    /// Established subflows of the connection.
    pub(crate) fn subflow_locations(&self) -> Vec<SubflowLocation> {
        self.paths.places()
    }

    /// Addresses of established subflows that are degraded or unreachable.
    pub(crate) fn impaired_paths(&self) -> impl Iterator<Item = FourTuple> {
        self.paths.impaired()
    }

    /// View of a subflow, as a policy would get it now.
    pub(crate) fn subflow_view(&self, now: Instant, id: SubflowId) -> Option<SubflowView> {
        self.paths.get(id).map(|subflow| subflow.view(now, id))
    }

    /// Sets the flow id by which the peer wants to be addressed.
    pub(crate) fn learn_peer_flow(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        peer_flow: u64,
        segment: &TcpSegment<'_>,
    ) {
        self.opening().learn_peer_flow(cx, id, peer_flow, segment);
    }

    /// Closes a half-open connection silently, to make room for a newer SYN.
    pub(crate) fn drop_if_half_open(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_half_open() {
            return false;
        }
        self.ending().finish(cx, CloseReason::ResourceLimit);
        for id in self.paths.ids() {
            self.drop_subflow(cx, id, CloseReason::ResourceLimit);
        }
        true
    }

    /// Ends a waiting connection because the limit on waiting connections is exceeded.
    pub(crate) fn end_lingering(&mut self, cx: &mut Context<'_>) {
        self.ending().abort_with_reason(cx, CloseReason::TimedOut);
    }

    /// Handles an ICMP error about a segment of one subflow. `false` if no such segment is in flight.
    pub(crate) fn on_network_error(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        seq: SeqNum,
        error: NetworkError,
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
        if subflow.is_active() {
            self.on_overdue(cx, id, UnreachableCause::DeliveryError);
        } else if subflow.tcp().state() == SubflowState::SynSent && !self.session.is_confirmed() {
            // RFC 9293 section 3.9.2.2 leaves this to the implementation. Linux gives up a first SYN as well, and
            // an application that tries several paths or servers needs the error at once.
            self.on_subflow_lost(cx, id, CloseReason::Unreachable);
        }
    }

    /// Handles a reset that proves that the peer has forgotten this subflow.
    pub(crate) fn on_proven_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.tcp_mut().accept_reset();
        self.drain_subflow_events(cx, id);
        self.assignment().drain_released(cx.now, id);
        self.advance_closing(cx);
    }

    /// Handles a peer's move to another address, to which the carrier sends from now on.
    pub(crate) fn on_path_moved(&mut self, now: Instant, id: SubflowId, new_host: bool) {
        let congestion = new_host.then(|| Arc::clone(&self.config.policies.congestion));
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if let Some(congestion) = congestion {
            subflow.tcp_mut().reset_path_measurements(now, &*congestion);
        }
        subflow.tcp_mut().retry_after_move(now);
    }

    /// Records that the process was suspended for a while: segments in flight yield no valid measurements.
    pub(crate) fn record_pause(&mut self) {
        self.delay.forget();
        for subflow in self.paths.iter_mut() {
            subflow.tcp_mut().record_pause();
        }
    }

    /// Handles a switch of this subflow's carrier to a reliable stream, or back to datagrams.
    pub(crate) fn on_reliable(&mut self, now: Instant, id: SubflowId, reliable: bool) {
        let congestion = Arc::clone(&self.config.policies.congestion);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.tcp_mut().set_reliable(now, reliable, &*congestion);
        }
    }

    /// Records whether the stream that carries this subflow can accept data.
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

/// Loss of local addresses before the connection is confirmed, or on plain TCP. In these states there is one subflow,
/// and no path manager to replace it. Its retransmissions would take minutes to fail although another address is up.
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
    /// True for a client whose subflow is cut off and that does not know whether the server has its key. RFC 8684
    /// section 3.1 requires it to wait for a segment on that subflow before it joins, but no such segment can come.
    fn may_join_unconfirmed(&self) -> bool {
        self.session.is_client()
            && self.session.is_unconfirmed()
            && !self.session.peer_denies_id0()
            && !self.closing.is_closed()
            && self.paths.initial().is_some_and(|subflow| self.paths.is_cut_off(subflow))
    }

    /// Reacts to the loss or arrival of a local address before the connection is confirmed.
    fn on_local_address_change(&mut self, cx: &mut Context<'_>) {
        for id in self.paths.ids() {
            let others = self.paths.count() > 1 || self.opening().next_start(cx).is_some();
            let opening = others && self.opening().is_opening();
            if opening && self.paths.get(id).is_some_and(|s| self.paths.is_cut_off(s)) {
                self.on_subflow_lost(cx, id, CloseReason::Unreachable);
            }
        }
        self.join_unconfirmed(cx);
    }

    /// Joins from every other address that is not a reserve address, or from the reserve addresses if there are no
    /// others.
    fn join_unconfirmed(&mut self, cx: &mut Context<'_>) {
        if !self.may_join_unconfirmed() {
            return;
        }
        let pairs = self.paths.addresses().join_pairs();
        let (reserve, usual): (Vec<_>, Vec<_>) = pairs.partition(|pair| pair.local.backup);
        for pair in if usual.is_empty() { reserve } else { usual } {
            let from = pair.local.address.ip();
            if self.paths.iter().all(|subflow| subflow.path().local.ip() != from) {
                self.open_join(cx, pair, false, false);
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
        let cut_off = self.paths.initial().filter(|subflow| self.paths.is_cut_off(subflow));
        let lost = cut_off.map(SubflowContext::local_id);
        for id in self.paths.subflows_where(|s| Some(s.local_id()) == lost).iter() {
            self.assignment().stop_carrying(cx.now, id);
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
        for id in self.paths.subflows_where(SubflowContext::is_initial).iter() {
            self.abandon_cut_off_subflow(cx, id);
        }
        true
    }

    /// Ends a subflow whose address is gone. A peer that has nothing to send would keep the subflow forever, so it
    /// gets a RST as soon as the address is back.
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
        if timeouts >= MAX_CUT_OFF_RTOS && self.paths.count() == 1 && self.paths.is_cut_off(subflow)
        {
            self.abandon_cut_off_subflow(cx, id);
        }
    }
}

/// Selection of outgoing segments. One call fills one batch for one path.
///
/// Order: segments that TCP has pending on a subflow (handshakes, resets, repairs: later data on that subflow is
/// useless until its gap is filled), tail loss probes, signals, the DATA_FIN, data by the scheduler's choice, and
/// finally pure ACKs, unless data has already carried them.
impl Connection {
    /// Fills `buf` with the next batch; it must be empty. `None` if there is nothing to send now.
    pub(crate) fn poll_transmit(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        self.with_scheduler_scratch(cx, |connection, cx| {
            if cx.out.reports_decisions() {
                connection.scheduling.record_reasons();
            }
            let transmit = connection.next_transmit(cx, buf);
            if cx.out.reports_decisions() {
                let reasons = connection.scheduling.take_reasons().into_iter();
                reasons.for_each(|reason| cx.out.push_decision(cx.now, connection.id, reason));
            }
            transmit
        })
    }

    fn next_transmit(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        self.start_pending_rescues(cx);
        if self.paths.addresses().has_pending_mp_fail()
            && let Some(transmit) = self.segments().emit_signal(cx, buf)
        {
            return Some(transmit);
        }
        self.emit_pending(cx, buf)
            .or_else(|| self.emit_probe(cx, buf))
            .or_else(|| self.segments().emit_signal(cx, buf))
            .or_else(|| self.emit_data_fin(cx, buf))
            .or_else(|| self.send_batch(cx, buf))
            .or_else(|| self.emit_acks(cx, buf))
    }

    /// Sends a segment that TCP requested. `None` if the subflow is gone.
    fn send_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        egress: &Egress,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let opens = matches!(egress, Egress::Syn) && self.paths.is_initial(id);
        if opens && self.session.is_offered() && self.opening().should_abandon_option(cx, id) {
            self.fall_back_in_handshake(cx, FallbackReason::SynRetries);
        }
        self.segments().emit(cx, id, egress, None, buf)
    }

    fn emit_pending(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        for _ in 0..self.paths.turns() {
            let id = self.paths.turn();
            if let Some(egress) = self.next_pending(cx.now, id) {
                let transmit = self.send_segment(cx, id, &egress, buf);
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

    /// Next segment other than an ACK that TCP has pending on a subflow.
    fn next_pending(&mut self, now: Instant, id: SubflowId) -> Option<Egress> {
        self.paths.get(id).filter(|subflow| subflow.tcp().has_pending_besides_ack())?;
        let room = self.segments().repeat_room(id);
        self.paths.get_mut(id)?.tcp_mut().next_egress_without_ack(now, room)
    }

    /// Drops a subflow after its RST was sent, unless the RST only answered a bogus ACK.
    fn drop_if_reset(&mut self, cx: &mut Context<'_>, id: SubflowId, egress: &Egress) {
        let closed = |s: &SubflowContext| s.tcp().state() == SubflowState::Closed;
        if matches!(egress, Egress::Rst) && self.paths.get(id).is_some_and(closed) {
            let reason = self.closing.reason().unwrap_or(CloseReason::Aborted);
            self.on_subflow_lost(cx, id, reason);
        }
    }

    /// Sends a tail loss probe: new data if there is any, otherwise the last segment again. While another subflow is
    /// healthy, a silent one gets no new data, which would delay all later data until a timeout.
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
                && self.paths.is_active(id)
                && let Some(transmit) = self.segments().emit_new_segment(cx, id, buf)
            {
                return Some(transmit);
            }
            let room = self.segments().repeat_room(id);
            let tcp = self.paths.get_mut(id)?.tcp_mut();
            tcp.repeat_last_as_probe();
            if let Some(egress) = tcp.next_egress_without_ack(cx.now, room) {
                let transmit = self.send_segment(cx, id, &egress, buf);
                self.drain_subflow_events(cx, id);
                return transmit;
            }
        }
        None
    }

    /// Sends new data that shows whether a timeout was spurious, or else the retransmission that waited for this
    /// test. As with a probe, no new data is used while another subflow is healthy.
    fn emit_frto_data(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        buf: &mut TransmitBuf,
    ) -> Option<Transmit> {
        let alone = self.paths.healthy().iter().all(|other| other == id);
        let fits = |s: &SubflowContext| s.is_active() && s.tcp().has_room_for_frto();
        if alone
            && self.paths.get(id).is_some_and(fits)
            && let Some(transmit) = self.segments().emit_new_segment(cx, id, buf)
        {
            return Some(transmit);
        }
        let room = self.segments().repeat_room(id);
        let tcp = self.paths.get_mut(id)?.tcp_mut();
        tcp.on_no_frto_data();
        let egress = tcp.next_egress_without_ack(cx.now, room)?;
        self.send_segment(cx, id, &egress, buf)
    }

    /// Sends a DATA_FIN in a separate segment.
    fn emit_data_fin(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        self.next_data_fin_at().filter(|at| *at <= cx.now)?;
        let over = self.closing.fin_acked() || self.closing.is_closed();
        if over || self.session.is_plain() {
            self.closing.stop_fin();
            return None;
        }
        let usable = self.paths.active_set();
        if self.closing.is_fin_futile() && usable.iter().all(|id| self.sender.lacks_data_ack(id)) {
            // The peer's segments arrive, but options do not pass.
            for id in usable.iter() {
                self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            return self.emit_pending(cx, buf);
        }
        let id = self.closing.next_fin_subflow(usable, self.paths.best_subflow())?;
        // A pending third ACK carries the keys, without which the peer cannot read the DATA_FIN, so it goes first.
        let pending = self.paths.get(id).is_some_and(|subflow| subflow.tcp().has_pending_ack());
        if self.session.is_unconfirmed() && pending {
            let room = self.segments().repeat_room(id);
            let subflow = self.paths.get_mut(id);
            if let Some(egress) = subflow.and_then(|s| s.tcp_mut().next_egress(cx.now, room)) {
                return self.send_segment(cx, id, &egress, buf);
            }
        }
        if self.closing.record_data_fin(id, usable) {
            self.ending().rearm_fin(cx.now);
        }
        self.segments().write_data_fin(cx, id, buf)
    }

    /// Time of the next DATA_FIN transmission, based on the current timeouts.
    fn next_data_fin_at(&self) -> Option<Instant> {
        self.closing.next_data_fin_at(|| FinTimeouts {
            rto: self.paths.largest_rto(&self.config),
            probe: self.paths.tail_probe_timeout(),
        })
    }

    /// Sends data as the scheduler decides, and the DATA_FIN or FIN after the last byte.
    fn send_batch(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        let batch = self.segments().emit_batch(cx, buf)?;
        if self.closing.is_shut_down() {
            self.advance_closing(cx);
        }
        self.segments().transmit(batch)
    }

    fn emit_acks(&mut self, cx: &mut Context<'_>, buf: &mut TransmitBuf) -> Option<Transmit> {
        for id in self.paths.ids() {
            let pending =
                |s: &SubflowContext| s.tcp().has_pending_ack() || s.tcp().has_pending_besides_ack();
            if !self.paths.get(id).is_some_and(pending) {
                continue;
            }
            let room = self.segments().repeat_room(id);
            let subflow = self.paths.get_mut(id);
            if let Some(egress) = subflow.and_then(|s| s.tcp_mut().next_egress(cx.now, room)) {
                return self.send_segment(cx, id, &egress, buf);
            }
        }
        None
    }
}

/// Timers of the connection, except those of its subflows.
impl Connection {
    /// Time at which this connection must be woken.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let usable = self.paths.active_count() > 0;
        // While no subflow can carry the DATA_FIN, it waits for a subflow instead of a timer.
        let fin = self.next_data_fin_at().filter(|_| !self.closing.fin_acked() && usable);
        let leaving = self.closing.subflow_drop_at().filter(|_| !self.paths.is_empty());
        let mut next = earliest([leaving]);
        if !self.closing.is_closed() {
            let own = earliest([
                fin,
                self.closing.wait_ends_at(self.config.linger, self.session.is_server()),
                self.closing.next_probe_at(),
                self.scheduling.next_timeout(),
                self.silence_facts().silence_timeout(),
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
            self.end_closing(cx);
        }
        if self.closing.is_closed() {
            return;
        }
        self.on_attempt_timeout(cx);
        self.scheduling.on_timeout(now);
        self.on_nagle_timeout(cx);
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.sender.timeouts()[0]) {
            trace_timer(cx, self.id, None, Timer::DataRetransmission, 1);
            if let Some(timeout) = self.assignment().on_data_rto(now) {
                if let Some((id, reason, why)) = timeout.reset {
                    self.reset_subflow(cx, id, reason, why);
                }
                self.assignment().repeat_missing(now, &timeout);
            }
        }
        if due(self.sender.timeouts()[1]) {
            trace_timer(cx, self.id, None, Timer::Persist, 1);
            self.assignment().on_persist(now);
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
        self.silence().on_receive_probes(cx);
        if due(self.path_manager.next_timeout()) {
            self.with_path_context(cx, |manager, context| manager.on_timeout(context));
            self.apply_path_actions(cx);
        }
        if due(self.paths.addresses().next_timeout()) {
            let rto = self.paths.largest_rto(&self.config);
            let repeated = self.paths.addresses_mut().repeat_announcements(now, rto);
            cx.out.counters.add_addr_tx += repeated;
        }
        self.messages().repeat_hello(cx);
        if due(self.session.next_data_ack_request_at()) {
            self.request_data_ack(now);
        }
        self.check_wait(cx);
        self.advance_closing(cx);
    }

    fn on_subflow_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let next = self.paths.get(id).and_then(|subflow| subflow.tcp().next_timeout());
        if next.is_some_and(|at| at <= cx.now) {
            let lost = cx.out.traces_traffic(self.id).then(|| self.paths.lost_segments_of(id));
            // A coupled controller reads the other subflows on a loss, as it does on an ACK.
            self.assignment().refresh_group(cx.now, id);
            self.with_workspace(cx, id, |connection, cx| {
                if let Some(subflow) = connection.paths.get_mut(id) {
                    subflow.tcp_mut().on_timeout(cx.now);
                }
            });
            if let Some(lost) = lost {
                self.traffic_trace().trace_state(cx, id, &lost, true);
            }
            self.drain_subflow_events(cx, id);
        }
        self.on_unanswered_probe_timeout(cx, id);
        self.on_half_closed_timeout(cx, id);
        self.drop_long_cut_off_subflow(cx, id);
        self.repeat_third_ack(cx, id);
        self.repeat_mp_fail(cx, id);
    }

    /// Handles expired hold times of small segments, and data unacknowledged for longer than the application allows.
    fn on_nagle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.sender.on_nagle_timeout(cx.now) {
            self.ending().finish(cx, CloseReason::TimedOut);
            self.paths.iter_mut().for_each(SubflowContext::reset);
        }
    }

    /// Ends the wait for a peer that took too long to close.
    fn end_closing(&mut self, cx: &mut Context<'_>) {
        if !self.closing.is_closed() {
            let (una, written) = (self.sender.una(), self.sender.written_end());
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
        if self.closing.is_probe_due(cx.now) {
            match self.paths.active_count() {
                0 => self.closing.stop_probes(),
                _ => self.paths.probe_all_subflows(),
            }
        }
        let ends_at = self.closing.wait_ends_at(self.config.linger, self.session.is_server());
        if ends_at.is_some_and(|at| at <= cx.now) || self.closing.is_given_up() {
            // The peer may receive our segments and wait for more. The key lets it accept a reset behind a gap.
            self.ending().abort_with_reason(cx, CloseReason::TimedOut);
        }
    }
}

/// Handling of silent subflows: reinjection, its reversal, and verdicts of the path health monitor. The definition
/// of a subflow's health is in `subflow/health.rs`.
///
/// A probe timeout means that nothing was received for two round trips although an answer is due. For interactive
/// traffic this is the time to act: the data is immediately sent on another subflow (RFC 8684 section 3.3.6 leaves
/// the moment to the sender; kernels wait for the RTO). If the silence was only jitter, the first segment received
/// cancels the copies not sent yet.
impl Connection {
    fn on_probe_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        self.path_probing().report_timeout(cx, id);
        let patience = self.scheduling.probe_patience();
        // A scheduler that waits for the retransmission timer before it reinjects also uses that timer to judge the
        // subflow.
        if let (Some(subflow), Some(patience)) = (self.paths.get_mut(id), patience) {
            subflow.health_mut().on_probe_timeout(cx.now, patience);
        }
        self.assignment().scheduler_event(cx.now, SchedulerEvent::ProbeTimeout(id));
        if patience == Some(Duration::ZERO) {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    fn on_subflow_rto(&mut self, cx: &mut Context<'_>, id: SubflowId, count: u32) {
        if self.fallback_facts().is_unanswered(id) {
            self.on_first_data_timeout(cx, id);
        }
        self.on_infinite_mapping_timeout(cx, id);
        self.path_probing().report_timeout(cx, id);
        if self.reset_on_false_acks(cx, id) {
            return;
        }
        if self.sender.is_held_back() {
            self.relieve_send_buffer(cx);
        }
        self.assignment().scheduler_event(cx.now, SchedulerEvent::SubflowRto(id));
        if self.paths.get(id).is_some_and(SubflowContext::is_up) {
            self.start_rescue(cx, id, ReinjectionCause::SubflowRto);
        }
        self.pause_or_repeat(cx, id);
        if count > 1 && self.session.is_confirmed() && self.paths.are_all_silent() {
            self.closing.begin_wait(cx.now);
            if self.paths.active_count() > 1 {
                self.silence().probe_until_answered(cx.now);
            } else if count == STUCK_TIMEOUTS {
                self.path_event(cx, PathEvent::Stuck(id));
            }
        }
    }

    /// Resets a subflow on which a middlebox acknowledged data that the peer never received, because no later data
    /// can fill that gap. The subflow's data is sent on others, or on the subflow that replaces it.
    fn reset_on_false_acks(&mut self, cx: &mut Context<'_>, id: SubflowId) -> bool {
        let misled = self.paths.get(id).is_some_and(|subflow| subflow.tcp().has_false_acks());
        let may = self.may_be_rejoined()
            && !self.session.is_plain()
            && !self.assignment().may_still_fall_back();
        if misled && may {
            self.reset_subflow(cx, id, reason::BAD_PERFORMANCE, CloseReason::TimedOut);
            self.sender.requeue_orphaned_data(cx.now);
        }
        misled && may
    }

    /// Handles an application that waits for memory. It is notified if there is memory now. If subflows retain too
    /// much DATA_ACKed data, the one that retains most is closed: first among those that are closing or have timed
    /// out, and among all once the application has waited for too long. Another subflow must be healthy. The data
    /// of the closed subflow is DATA_ACKed or sent on another subflow.
    fn relieve_send_buffer(&mut self, cx: &mut Context<'_>) {
        self.notify_writable(cx);
        if !self.sender.retains_too_much() || !self.may_be_rejoined() || self.session.is_plain() {
            return;
        }
        if let Some(id) = self.assignment().find_retainer(cx.now) {
            let reason = reason::TOO_MUCH_OUTSTANDING;
            self.reset_subflow(cx, id, reason, CloseReason::TimedOut);
        }
    }

    /// Starts reinjection if the timeout for an unanswered probe has expired.
    fn on_unanswered_probe_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let mut subflow = self.paths.get_mut(id);
        if subflow.as_mut().is_some_and(|s| s.health_mut().is_patience_over(cx.now)) {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Reinjects the data of subflows that the scheduler considers dead. The scheduler concludes this during an
    /// ACK event, in which path manager and monitor cannot be notified. Data that the ACK releases is not queued
    /// this way.
    fn start_pending_rescues(&mut self, cx: &mut Context<'_>) {
        let awaited = self.paths.subflows_where(|s| s.health().awaits_rescue() && s.is_active());
        for id in awaited.iter() {
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Marks a subflow as silent because data or an answer is overdue.
    fn on_overdue(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: UnreachableCause) {
        if let Some(subflow) = self.paths.get_mut(id).filter(|subflow| subflow.is_active()) {
            subflow.health_mut().on_overdue(cx.now, cause);
            self.start_rescue(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }

    /// Handles a retransmission timeout of a subflow. If its path is probed and other subflows carry its data, it
    /// repeats its oldest data once and then pauses until the path answers.
    fn pause_or_repeat(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let is_probed = self.path_probing().wait_for_answer(cx, id);
        let has_others = !self.paths.healthy().is_empty();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let repeated = subflow.tcp().retransmission_timeouts() > MAX_SILENT_RETRANSMISSIONS;
        let is_spare = has_others && subflow.health().is_rescued();
        subflow.tcp_mut().pause_or_repeat(is_probed && is_spare && repeated);
    }

    /// Selects how this connection probes a silent path. `None` if it does not wait for that path.
    pub(crate) fn select_prober(&self, now: Instant, path: PathAddresses) -> Option<Prober> {
        self.path_probing().select_prober(now, path)
    }

    /// Probes a silent path with an empty segment, a repeated SYN, or a new subflow.
    pub(crate) fn probe_path(&mut self, cx: &mut Context<'_>, path: PathAddresses) {
        let asked = self.paths.probe_path_members(path);
        if asked {
            cx.out.counters.path_probes += 1;
        } else if let Some(local) = self.path_probing().unopened_address_at(path.local) {
            cx.out.counters.path_probes += 1;
            self.path_event(cx, PathEvent::LocalUp(local));
        }
    }

    /// Retries pending transmissions on a path from which another connection got an answer.
    pub(crate) fn on_path_answers(&mut self, cx: &mut Context<'_>, path: PathAddresses) {
        if !self.path_probing().probes_silent_paths() {
            return;
        }
        let pending = self.paths.retry_path_members(cx.now, path);
        if let Some(local) =
            self.path_probing().unopened_address_at(path.local).filter(|_| !pending)
        {
            self.path_event(cx, PathEvent::LocalUp(local));
        }
    }

    /// Marks the connection as in use, even if its stream is idle.
    pub(crate) fn mark_in_use(&mut self, now: Instant) {
        self.trim.record_activity(now);
    }

    /// Marks a subflow as silent and reinjects its data on others.
    fn start_rescue(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: ReinjectionCause) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        let first = subflow.health_mut().start_rescue();
        self.scheduling.discard_for(id);
        self.assignment().reinject_from(cx.now, id, cause);
        self.path_probing().wait_for_answer(cx, id);
        if first {
            let kind = MonitorKind::SubflowReachability { id, reachable: false };
            cx.out.monitor(cx.now, self.id, kind);
            self.path_event(cx, PathEvent::Unreachable(id));
        }
    }

    /// Handles a segment from the peer on a silent subflow. It may answer a probe, or prove only that one direction
    /// works. To find out, the oldest data is repeated. If silent paths are not probed, it counts as an answer.
    fn on_unanswered_segment(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        since_last_rx: Duration,
    ) {
        let probes = self.path_probing().probes_silent_paths();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if probes && !subflow.tcp().refuses_payload() {
            subflow.tcp_mut().retry_soon(cx.now, since_last_rx);
        } else {
            subflow.tcp_mut().end_silence(since_last_rx);
        }
    }

    fn on_silence_ended(&mut self, cx: &mut Context<'_>, id: SubflowId, end: EndOfSilence) {
        // A scheduler that leaves the judgment to the retransmission timer also follows the timer's schedule.
        let prompt = self.scheduling.probe_patience().is_some();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if prompt {
            subflow.tcp_mut().retry_soon(cx.now, end.silence);
            cx.silent_paths.on_answer(cx.now, subflow.path().addresses());
        }
        let degraded = subflow.health().has_degraded_address_pair();
        if !end.was_rescued {
            return;
        }
        // Data on a degraded address pair stays suspected although a segment was received there.
        if !degraded {
            self.sender.clear_suspicion(id);
        }
        let kind = MonitorKind::SubflowReachability { id, reachable: true };
        cx.out.monitor(cx.now, self.id, kind);
        self.assignment().rescue(cx.now, |_| true);
        self.path_event(cx, PathEvent::Reachable(id));
    }

    /// Passes each established subflow, including plain TCP, to the path health monitor.
    pub(crate) fn members(&mut self, mut see: impl FnMut(FourTuple, &mut Subflow)) {
        for subflow in self.paths.iter_mut().filter(|subflow| subflow.is_active()) {
            see(subflow.path(), subflow.tcp_mut());
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
        if change.has_changed {
            cx.out.monitor(cx.now, self.id, MonitorKind::AddressPair { id, fault });
        }
        if change.reinjects_outstanding() && !self.session.is_plain() {
            self.on_overdue(cx, id, UnreachableCause::DegradedAddressPair);
        }
        // A join between two SYNs need not wait for the end of an outage's backoff.
        let waits = |s: &SubflowContext| fault.is_none() && !s.is_active();
        if let Some(subflow) = self.paths.get_mut(id).filter(|subflow| waits(subflow)) {
            subflow.tcp_mut().retry_soon(cx.now, Duration::ZERO);
        }
        self.path_event(cx, PathEvent::AddressPair { id, degraded: fault.is_some() });
    }

    /// Probes the peer on the first subflow between these addresses.
    pub(crate) fn probe_pair(&mut self, pair: &AddressPair) {
        self.paths.probe_address_pair(pair);
    }
}

/// Detection of paths that are silent although data is due (`liveness`), and a receiver's probes.
impl Connection {
    /// Updates the delivery watch after this subflow's segment advanced the DATA_ACK.
    fn watch_delivery_of_sent(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let outstanding = self.sender.una() < self.sender.sent();
        let usual = self.paths.get(id).and_then(|subflow| subflow.tcp().srtt()).unwrap_or_default();
        if let Some(since) = self.ack_watch.on_progress(cx.now, outstanding, usual) {
            self.silence_facts().report_delivery_gap(cx, self.id, id, StreamDirection::Sent, since);
        }
    }

    fn on_silence_timeout(&mut self, cx: &mut Context<'_>) {
        if self.liveness.receive_timer_deadline().is_some_and(|at| at <= cx.now) {
            let expired = self.silence().check_receive_timer(cx);
            for (id, cause) in
                expired.into_iter().flat_map(|(ids, c)| ids.iter().map(move |id| (id, c)))
            {
                self.on_silent(cx, id, cause);
            }
        }
        if let Some(id) = self.silence().check_lone_keepalive(cx) {
            self.on_silent(cx, id, UnreachableCause::UnansweredKeepalives);
        }
    }

    fn on_silent(&mut self, cx: &mut Context<'_>, id: SubflowId, cause: UnreachableCause) {
        cx.out.monitor(cx.now, self.id, MonitorKind::SubflowSilent { id, cause });
        self.on_overdue(cx, id, cause);
        self.path_event(cx, PathEvent::Silent { id, cause });
    }
}

/// Fallback to plain TCP (RFC 8684 section 3.7): consequences of the decisions of `connection/fallback.rs`.
impl Connection {
    /// Judges an event on a subflow that suggests a fallback.
    fn consider_fallback(&mut self, cx: &mut Context<'_>, id: SubflowId, trigger: Trigger) {
        let facts = self.fallback_facts().gather(id);
        self.apply_fallback_verdict(cx, id, fallback::judge(trigger, &facts));
        if facts.proven_to_peer && self.session.is_plain() {
            // The peer does not detect the fallback by itself.
            self.send_mp_fail_from(cx, id, cx.now);
        }
    }

    /// Handles bytes without a mapping that are next on the subflow. If plain TCP is impossible, they end the subflow.
    fn consider_plain_data(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let verdict = self.fallback_facts().judge(id, Trigger::UnmappedData);
        if matches!(verdict, Verdict::FromFirstByte { .. }) {
            self.consider_fallback(cx, id, Trigger::UnmappedData);
        }
    }

    /// Falls back to plain TCP from the first byte because the first handshake ended without the option.
    fn fall_back_in_handshake(&mut self, cx: &mut Context<'_>, reason: FallbackReason) {
        let id = self.paths.initial_id().unwrap_or(SubflowId(0));
        let verdict = self.fallback_facts().judge(id, Trigger::Handshake(reason));
        self.apply_fallback_verdict(cx, id, verdict);
    }

    fn apply_fallback_verdict(&mut self, cx: &mut Context<'_>, id: SubflowId, verdict: Verdict) {
        match verdict {
            Verdict::Unchanged | Verdict::SendMpFail => {}
            Verdict::FromFirstByte { reason, announces } => {
                self.fall_back(cx, id, reason, announces);
            }
            Verdict::FromUnackedData(reason) => self.continue_plain(cx, id, reason),
            Verdict::ResetSubflow => {
                self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
            }
            Verdict::ResetWithMpFail => {
                let dsn = self.receiver.failed_at(id).unwrap_or(self.receiver.next());
                self.reset_with_mp_fail(cx, id, dsn);
            }
            Verdict::Abort => self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved),
        }
    }

    /// Falls back to plain TCP from the first byte. `announces` is true if the peer may have understood our mappings,
    /// so that the fallback must be announced.
    fn fall_back(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        reason: FallbackReason,
        announces: bool,
    ) {
        if self.session.is_plain() {
            return;
        }
        let multipath = self.session.is_multipath();
        let una = self.sender.una();
        let next = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt());
        let infinite = next.filter(|_| multipath && announces);
        let point = Point { ssn: Ssn(una.0 + 1), dsn: una };
        let infinite = infinite.map(|first| InfiniteMapping { first, point });
        self.switch_to_plain(cx, reason, Point::FIRST, infinite);
        for id in self.paths.subflows_where(SubflowContext::is_initial).iter() {
            self.receive_plain(cx, id, Point::FIRST);
        }
        if multipath {
            self.on_plain_ack(cx, id, None);
        }
        if infinite.is_some()
            && let Some(rto) = self.paths.get(id).map(|subflow| subflow.tcp().rto())
        {
            self.send_mp_fail_from(cx, id, cx.now + rto);
        }
    }

    /// Falls back in mid-stream, on the only subflow, from the first byte that is not DATA_ACKed.
    fn continue_plain(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: FallbackReason) {
        let Some(next) = self.paths.get(id).map(|subflow| subflow.tcp().snd_nxt()) else { return };
        let (una, tx) = (self.sender.una(), self.fallback_facts().contiguous_from(id, next));
        let point = Point { ssn: tx.ssn.plus(una.since(tx.dsn)), dsn: una };
        let infinite = InfiniteMapping { first: next, point };
        self.switch_to_plain(cx, reason, tx, Some(infinite));
        self.on_plain_ack(cx, id, None);
    }

    fn switch_to_plain(
        &mut self,
        cx: &mut Context<'_>,
        reason: FallbackReason,
        tx: Point,
        infinite: Option<InfiniteMapping>,
    ) {
        cx.out.counters.mp_capable_fallback += 1;
        self.session.leave_multipath(reason, tx, infinite);
        self.leave_multipath(cx);
        cx.out.monitor(cx.now, self.id, MonitorKind::Fallback(reason));
    }

    /// Starting at this time, sends MP_FAIL until the peer shows that it arrived. MP_FAIL reports a bad checksum, or a
    /// fallback that the peer would not detect until we send data.
    fn send_mp_fail_from(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Instant) {
        let Some(subflow) = self.paths.get_mut(id) else { return };
        subflow.expect_mp_fail(at);
        self.repeat_mp_fail(cx, id);
    }

    /// Drops state that plain TCP does not use: reinjections, data-level timers, joins.
    fn leave_multipath(&mut self, cx: &mut Context<'_>) {
        self.sender.leave_multipath();
        self.receiver.stop_coding();
        self.paths.addresses_mut().drop_messages();
        self.scheduling.discard_all();
        self.closing.stop_fin();
        for id in self.paths.ids() {
            let other = |s: &SubflowContext| !s.is_active() && !s.is_initial();
            if self.paths.get(id).is_some_and(other) && self.paths.count() > 1 {
                self.reset_subflow(cx, id, reason::MPTCP_ERROR, CloseReason::PeerMisbehaved);
            }
        }
    }

    /// Handles plain TCP data from a peer whose infinite mapping was lost on the path.
    fn receive_plain_unannounced(&mut self, cx: &mut Context<'_>, id: SubflowId, ssn: Ssn) {
        if self.receiver.is_in_step(id) {
            self.receive_plain(cx, id, Point { ssn, dsn: self.receiver.next() });
        } else {
            self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// Ends the connection, because plain TCP cannot fill a gap in the stream, if bytes were discarded that the peer
    /// considers delivered.
    fn watch_plain_stream(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.session.is_plain() && self.receiver.has_lost_bytes(id) {
            self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// Switches reception to plain TCP and delivers the data that waited for it.
    fn receive_plain(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Point) {
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
            self.receive_plain(cx, id, Point { ssn: Ssn(0), dsn });
            self.watch_plain_stream(cx, id);
            return;
        }
        // If there is a gap before it, the missing data arrived, or must arrive, on another subflow.
        let received_tail = dsn == self.receiver.next();
        let facts = StreamFacts { received_tail, ..self.fallback_facts().gather(id) };
        let verdict = fallback::judge(Trigger::BadChecksum, &facts);
        self.apply_fallback_verdict(cx, id, verdict);
        if verdict == Verdict::SendMpFail {
            self.send_mp_fail_from(cx, id, cx.now);
        }
    }

    fn reset_with_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.reset_subflow(cx, id, reason::MIDDLEBOX, CloseReason::PeerMisbehaved);
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_closing_option(ClosingOption::Fail(fail));
        }
        self.receiver.uncount_kept_bytes();
    }

    /// Repeats MP_FAIL until the peer shows that it arrived.
    fn repeat_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let failed = self.receiver.failed_at(id);
        let plain = failed.is_none() && self.session.is_plain();
        let Some(dsn) = failed.or(plain.then_some(self.receiver.next())) else { return };
        let announces = plain
            && self.fallback_facts().has_sent_infinite_mapping(id)
            && !self.session.is_contradicted();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if announces {
            subflow.settle_mp_fail();
        }
        match subflow.repeat_mp_fail(cx.now) {
            FailStep::NotDue => {}
            // The peer still speaks Multipath TCP, and no message about the fallback reaches it.
            FailStep::GiveUp if plain && self.fallback_facts().peer_lacks_bytes(id) => {
                self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
            }
            // Options do not pass, or the peer has fallen back as well.
            FailStep::GiveUp if plain => {}
            FailStep::GiveUp => self.reset_with_mp_fail(cx, id, dsn),
            FailStep::Send => self.signal_mp_fail(cx, id, dsn),
        }
    }

    fn signal_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId, dsn: Dsn) {
        cx.out.counters.mp_fail_tx += 1;
        let fail = MpFail { dsn: self.session.keys().remote_wire(dsn) };
        self.messages().signal(Some(id), MptcpOption::Fail(fail));
    }

    /// Handles MP_FAIL: the peer detected a bad checksum in our data, fell back, or is answering our own MP_FAIL.
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
        let facts = self.fallback_facts().gather(id);
        if facts.others == OtherSubflows::Usable {
            self.assignment().on_failed_reset(cx.now, id, fail);
        } else if !self.paths.is_active(id) {
            return;
        } else if failed.is_none() {
            let from = Dsn(self.session.keys().local_offset(fail.dsn));
            if from < self.sender.una() || from > self.sender.sent() {
                cx.out.counters.dss_not_matching += 1;
                return;
            }
        }
        self.apply_fallback_verdict(cx, id, fallback::judge(trigger, &facts));
        if !self.session.is_plain() {
            return;
        }
        match failed {
            Some(dsn) => {
                self.receive_plain(cx, id, Point { ssn: self.receiver.delivered(id), dsn })
            }
            None => self.answer_mp_fail(cx, id),
        }
    }

    /// Answers a repeated MP_FAIL again, because the previous answer may be lost; the number of answers is limited.
    fn answer_mp_fail(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let next = self.receiver.next();
        let Some(subflow) = self.paths.get_mut(id) else { return };
        if self.session.announces_fallback() && subflow.answers_mp_fail() {
            self.signal_mp_fail(cx, id, next);
        }
    }

    /// Handles the peer's infinite mapping: plain TCP starts at this point.
    fn on_infinite_mapping(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Point) {
        if self.paths.get(id).is_none() || self.receiver.is_infinite(id) {
            return;
        }
        let failed = self.receiver.failed_at(id);
        let received_tail = failed
            .map_or_else(|| self.receiver.continues_at(id, at), |dsn| dsn == self.receiver.next());
        let facts = StreamFacts { received_tail, ..self.fallback_facts().gather(id) };
        let verdict = match fallback::judge(Trigger::InfiniteMapping, &facts) {
            Verdict::FromUnackedData(_) if failed.is_some() => {
                Verdict::FromUnackedData(FallbackReason::ChecksumFailed)
            }
            verdict => verdict,
        };
        if !self.session.is_plain() {
            self.apply_fallback_verdict(cx, id, verdict);
        } else if !received_tail {
            self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
        if self.session.is_plain() {
            self.receive_plain(cx, id, at);
        }
    }
}

/// End of a connection or a subflow: DATA_FIN, MP_FASTCLOSE, RST, timeout (RFC 8684 sections 3.3.3, 3.5 and 3.6).
impl Connection {
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
                    self.ending().finish(cx, CloseReason::Finished);
                    return;
                }
            } else if !self.closing.fin_sent() && self.paths.active_count() > 0 {
                self.closing.send_fin(cx.now);
            }
        }
        let sent_all = match self.session.is_plain() {
            true => {
                self.closing.is_shut_down()
                    && self.paths.is_plain_fin_acked()
                    && self.ending().peer_has_all_data()
            }
            false => self.closing.fin_acked(),
        };
        if sent_all && self.closing.has_late_data() {
            // RFC 9293 section 3.6.1: once the peer has all data meant for it, a reset shows it that its own data was
            // lost.
            self.abort(cx);
            return;
        }
        if sent_all && self.receiver.fin_reached() {
            self.paths.iter_mut().for_each(SubflowContext::close);
            self.ending().finish(cx, CloseReason::Finished);
            self.drop_unanswered(cx);
        }
    }

    /// Drops joins with an unanswered SYN that were closed without a RST: no answer is expected.
    fn drop_unanswered(&mut self, cx: &mut Context<'_>) {
        for id in self.paths.subflows_where(SubflowContext::is_closed_unanswered).iter() {
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
                    self.paths.reset_all(ClosingOption::Reason(reason));
                    self.ending().finish(cx, CloseReason::PeerReset);
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
                    self.assignment().on_failed_reset(cx.now, id, fail);
                }
                _ => {}
            }
        }
    }

    /// Handles the orderly end of the subflow's own sequence space.
    fn on_peer_fin(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        // While we wait for an answer to MP_FAIL, only plain TCP ends with a subflow FIN.
        if let Some(dsn) = self.receiver.failed_at(id) {
            let at = Point { ssn: self.receiver.delivered(id), dsn };
            self.on_infinite_mapping(cx, id, at);
        }
        if self.session.is_plain() {
            if !self.receiver.is_infinite(id) && !self.receiver.is_in_step(id) {
                self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
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
        self.assignment().stop_carrying(cx.now, id);
    }

    /// Handles a RST from the peer. MP_FASTCLOSE was handled before.
    fn on_reset(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if let Some(subflow) = self.paths.get_mut(id) {
            subflow.set_closing_option(ClosingOption::None);
        }
        self.sender.on_peer_reset(id);
        self.on_subflow_lost(cx, id, CloseReason::PeerReset);
    }

    /// Resets one subflow; its data is sent on other subflows. The connection ends with its last subflow only if it
    /// cannot get another.
    fn reset_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: u8, why: CloseReason) {
        let multipath = self.session.is_multipath();
        // Only one reset is sent and counted, even if queued data reveals further errors.
        let Some(subflow) = self.paths.get_mut(id).filter(|s| !s.tcp().is_over()) else { return };
        if multipath {
            cx.out.counters.mp_rst_tx += 1;
            subflow.add_reset_reason(reason);
        }
        subflow.reset();
        self.assignment().stop_carrying(cx.now, id);
        // The error of a join does not explain why the connection has no other path left.
        let why = if self.end_if_stranded(cx) { CloseReason::Unreachable } else { why };
        if self.paths.has_open() {
            return;
        }
        let futile = self.closing.record_futile_reset();
        if !self.may_be_rejoined() {
            self.ending().finish(cx, why);
        } else if futile {
            // Subflows can be opened but none can be used. Another one would not help, and both applications are
            // waiting.
            self.ending().abort_with_reason(cx, CloseReason::PeerMisbehaved);
        }
    }

    /// True if a join can continue the connection when it has no subflow.
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
        let (local, ip) = (subflow.local_id(), subflow.path().local.ip());
        let opening = self.opening().is_opening();
        self.assignment().stop_carrying(now, id);
        self.drop_subflow(cx, id, reason);
        if opening && self.on_attempt_failed(cx, local, ip, reason) {
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
        // A finished stream needs no subflow, and an unconfirmed connection cannot be continued.
        if self.closing.fin_acked() && self.receiver.fin_reached() {
            self.ending().finish(cx, CloseReason::Finished);
        } else if !self.may_be_rejoined() || gives_up {
            self.ending().finish(cx, reason);
        } else {
            self.closing.begin_wait_without_subflows(now, reason);
        }
    }

    /// Handles a subflow with both FINs acknowledged. Only TIME-WAIT remains.
    fn on_subflow_finished(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        if self.session.is_plain() {
            self.advance_closing(cx);
        }
        self.assignment().stop_carrying(cx.now, id);
        self.drop_subflow(cx, id, CloseReason::Finished);
        if self.paths.is_empty() && !self.closing.is_closed() {
            if self.session.is_plain() && self.ending().peer_has_all_data() {
                self.ending().finish(cx, CloseReason::Finished);
            } else if self.session.is_plain() {
                self.ending().finish(cx, CloseReason::PeerMisbehaved);
            } else {
                self.closing.begin_wait_without_subflows(cx.now, CloseReason::Finished);
            }
        }
    }

    /// Drops a half-closed subflow that the peer neither closes nor uses, because its slot is needed.
    fn on_half_closed_timeout(&mut self, cx: &mut Context<'_>, id: SubflowId) {
        let until = self.paths.get(id).and_then(SubflowContext::half_closed_until);
        if until.is_some_and(|until| until <= cx.now) {
            self.on_subflow_dead(cx, id);
        }
    }

    /// Removes a subflow from its slot. TIME-WAIT and replies to late segments move to the endpoint.
    fn drop_subflow(&mut self, cx: &mut Context<'_>, id: SubflowId, reason: CloseReason) {
        let Some(mut subflow) = self.ending().take_subflow(id) else { return };
        if self.sender.is_held_back() {
            self.notify_writable(cx);
        }
        let again = self.joins().on_fast_join_failed(cx, &mut subflow, id, reason);
        self.ending().forget_subflow(id);
        self.ending().remember_ended(cx, &mut subflow);
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
}
