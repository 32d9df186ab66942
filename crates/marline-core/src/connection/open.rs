//! How a connection and its subflows come to be.

use marline_policy::{AddressId, Dsn, LocalAddress, Role, SubflowId};
use marline_time::Instant;
use marline_wire::{SeqNum, TcpSegment};

use super::addresses::Addresses;
use super::closing::Closing;
use super::fast_answer::ReplayGuard;
use super::leg::{FailState, Farewell, Leg, Membership};
use super::receiver::Receiver;
use super::scheduling::Scheduling;
use super::sender::Sender;
use super::session::{Mode, Session};
use super::wait::Wait;
use super::{Connection, DataTimers};
use crate::crypto::Key;
use crate::subflow::{Subflow, SubflowConfig};
use crate::tables::Context;
use crate::tables::demux::FlowKey;
use crate::{ConnectionConfig, ConnectionId, Ecn, FallbackReason, FourTuple, MonitorKind};

/// Where a connection starts from.
pub(crate) struct Origin {
    pub(crate) id: ConnectionId,
    pub(crate) slot: u32,
    pub(crate) path: FourTuple,
    pub(crate) key: Key,
}

/// A SYN that opens a subflow here.
pub(crate) struct Accepted<'a> {
    pub(crate) segment: &'a TcpSegment<'a>,
    pub(crate) ecn: Ecn,
    pub(crate) peer_flow: u64,
    /// Our end of a connection between the same ends that was in TIME-WAIT until now.
    pub(crate) after: Option<SeqNum>,
    /// Our initial sequence number, where it is given: a cookie.
    pub(crate) isn: Option<SeqNum>,
}

/// How far beyond the end of the connection before a new one starts at least: a window without scaling, so that
/// nothing that is still under way fits.
const BEYOND: u32 = 1 << 16;

impl Connection {
    /// A connection that sends the first SYN.
    pub(crate) fn connect(cx: &mut Context<'_>, config: ConnectionConfig, origin: &Origin) -> Self {
        let now = cx.now;
        let path = origin.path;
        let known = cx.networks.refuses(now, path.local.ip(), path.remote.ip());
        let mode = if config.mptcp && !known {
            Mode::Offered
        } else {
            let reason = config.mptcp.then_some(FallbackReason::KnownNetwork);
            Mode::Plain { reason, tx: (marline_policy::Ssn(1), Dsn(0)) }
        };
        let mut connection = Self::bare(cx, config, origin, Role::Client, mode);
        let key = cx.new_flow(origin.path, 0);
        let syn_retries = connection.config.syn_retries;
        let tcp = connection.active_subflow(cx, origin.path, syn_retries);
        connection.closing.announced_to_application = true;
        connection.add_initial(cx, origin, tcp, key);
        if let Some(reason) = connection.session.fallback() {
            cx.out.monitor(now, origin.id, MonitorKind::Fallback(reason));
        }
        connection
    }

    /// A connection that answers a SYN.
    pub(crate) fn accept(
        cx: &mut Context<'_>,
        config: ConnectionConfig,
        origin: &Origin,
        syn: &Accepted<'_>,
    ) -> Self {
        let mut connection = Self::bare(cx, config, origin, Role::Server, Mode::Offered);
        let key = cx.new_flow(origin.path, syn.peer_flow);
        let retries = connection.config.syn_retries;
        let tcp = connection.passive_subflow(cx, origin.path, syn, retries);
        connection.add_initial(cx, origin, tcp, key);
        connection.on_first_syn(cx, syn.segment);
        connection
    }

    fn bare(
        cx: &mut Context<'_>,
        config: ConnectionConfig,
        origin: &Origin,
        role: Role,
        mode: Mode,
    ) -> Self {
        let policies = &config.policies;
        let path_manager = policies.path_manager.build();
        Connection {
            id: origin.id,
            session: Session::new(role, mode, origin.key, config.conduct.long_dsn),
            legs: Vec::new(),
            sender: Sender::new(&config, cx.pool.clone()),
            receiver: Receiver::new(&config, &cx.config.limits, cx.pool.clone()),
            scheduling: Scheduling::new(&*policies.scheduler),
            path_manager_name: policies.path_manager.name().to_owned(),
            path_manager,
            addresses: Addresses::new(&config, origin.path),
            replay_guard: ReplayGuard::default(),
            closing: Closing::default(),
            timers: DataTimers::default(),
            wait: Wait::default(),
            silence: super::silence::Silence::default(),
            ebb: super::ebb::Ebb::default(),
            vigil: super::vigil::Vigil::default(),
            rto_exchange: super::rto_exchange::RtoExchange::default(),
            keepalive: None,
            batched: 0,
            next_leg: 0,
            futile_resets: 0,
            gone: Vec::new(),
            slot: origin.slot,
            config: Box::new(config),
        }
    }

    fn subflow_config(&self, cx: &Context<'_>, path: FourTuple) -> SubflowConfig {
        let capabilities = cx.config.capabilities.on(path);
        let offset = cx.flows.initial().timestamp_offset(path);
        let config = SubflowConfig::new(&self.config, &capabilities, &cx.config.limits, offset);
        SubflowConfig { keepalive: self.keepalive.unwrap_or(config.keepalive), ..config }
    }

    /// A TCP subflow that owes a SYN.
    pub(super) fn active_subflow(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn_retries: u32,
    ) -> Subflow {
        let now = cx.now;
        let mut config = self.subflow_config(cx, path);
        config.syn_retries = syn_retries;
        let isn = cx.flows.isn(now, path);
        let policies = &self.config.policies;
        Subflow::connect(now, config, path, isn, &*policies.congestion, &*policies.recovery)
    }

    /// A TCP subflow that owes a SYN/ACK.
    pub(super) fn passive_subflow(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
        syn_retries: u32,
    ) -> Subflow {
        let now = cx.now;
        let config = self.subflow_config(cx, path);
        let config = SubflowConfig { syn_retries, ..config };
        let isn = cx.flows.isn(now, path);
        // RFC 9293 section 3.6.1: what follows TIME-WAIT begins beyond what was before. The clock is, unless the
        // connection was faster than it.
        let first = syn.after.map(|end| end.add(BEYOND));
        let isn = first.filter(|first| first.offset_from(isn) < 1 << 31).unwrap_or(isn);
        let isn = syn.isn.unwrap_or(isn);
        let policies = &self.config.policies;
        Subflow::accept(
            now,
            config,
            path,
            isn,
            syn.segment,
            syn.ecn,
            &*policies.congestion,
            &*policies.recovery,
        )
    }

    fn add_initial(&mut self, cx: &mut Context<'_>, origin: &Origin, tcp: Subflow, key: FlowKey) {
        let now = cx.now;
        let local = self.addresses.initial_local();
        self.add_leg(cx, tcp, key, Membership::Initial, local, AddressId(0));
        cx.out.monitor(now, self.id, MonitorKind::Created(origin.path));
    }

    /// Puts a subflow into the first free slot. `None` when all are taken.
    #[expect(clippy::too_many_arguments, reason = "all that a subflow is made of")]
    pub(super) fn add_leg(
        &mut self,
        cx: &mut Context<'_>,
        mut tcp: Subflow,
        key: FlowKey,
        membership: Membership,
        local: LocalAddress,
        remote_id: AddressId,
    ) -> Option<SubflowId> {
        let limit = cx.config.limits.subflows.clamp(1, 32);
        let free = self.legs.iter().position(Option::is_none).unwrap_or(self.legs.len());
        if free >= limit {
            return None;
        }
        if free == self.legs.len() {
            self.legs.push(None);
        }
        let id = SubflowId(free as u8);
        tcp.set_id(id);
        cx.route(key, self.slot, id);
        self.sender.add_subflow(id);
        self.receiver.add_subflow(id, self.session.is_plain());
        self.legs[free] = Some(Box::new(Leg {
            tcp,
            key,
            membership,
            local_id: local.id,
            remote_id,
            backup_here: local.backup,
            backup_there: false,
            fail: FailState::default(),
            up: false,
            was_up: false,
            reset_word: None,
            reset_sent: false,
            gave_up: false,
            shut: false,
            farewell: Farewell::None,
            half_closed_at: None,
            patience_until: None,
            suspected: false,
            last_new_at: Instant::ZERO,
            netpath_fault: cx.faults.fault(&key.path),
        }));
        Some(id)
    }
}
