//! Opening of subflows, and attempts at the first one over several paths ([`Attempts`]).
//!
//! A SYN with MP_CAPABLE does not identify the connection: the client's key is sent with the third ACK. To the
//! server, SYNs from several addresses are therefore separate requests, each answered with its own key. The third ACK
//! turns one of them into a connection, and a RST ends each of the others.

use std::sync::Arc;

use marline_policy::{AddressId, Ssn, SubflowId};
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpSegment};

use super::addresses::JoinAddresses;
use super::attempts::{Attempts, KeptAnswer, StartAddress as FirstStart};
use super::closing::Closing;
use super::fast_open::FastOpening;
use super::handshake::capable_syn_ack;
use super::origin::AcceptedSyn;
use super::path_set::PathSet;
use super::receiver::Receiver;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::{Ends, Membership, SubflowContext};
use super::traffic_trace::report_traffic;
use crate::on_demand::OnDemand;
use crate::subflow::{InitialValues, Subflow, SubflowConfig, SynRetries};
use crate::tables::Context;
use crate::{ConnectionConfig, ConnectionId, Ecn, FourTuple, MonitorKind, Traffic};

/// Minimum distance of a new connection's initial sequence number from the end of the previous one: an unscaled
/// window, so that no old segment in flight fits into the new window.
const MIN_ISN_DISTANCE: u32 = 1 << 16;

/// Parts of a connection that are used to open a subflow.
pub(super) struct Opening<'a> {
    pub(super) id: ConnectionId,
    /// Index in the endpoint's table of connections.
    pub(super) slot: u32,
    pub(super) config: &'a Arc<ConnectionConfig>,
    pub(super) session: &'a Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) attempts: &'a mut OnDemand<Attempts>,
    pub(super) sender: &'a mut Sender,
    pub(super) receiver: &'a mut Receiver,
    pub(super) closing: &'a Closing,
    pub(super) fast_open: &'a OnDemand<FastOpening>,
}

impl Opening<'_> {
    pub(super) fn initial_ends(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        peer_flow: u64,
    ) -> Ends {
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
        let capabilities = cx.config.capabilities.for_path(path);
        cx.settings.for_subflow(self.config, capabilities, &cx.config.limits, retries)
    }

    /// Creates a TCP subflow that has a SYN to send.
    pub(super) fn active_subflow(
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
    pub(super) fn passive_subflow(
        &self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &AcceptedSyn<'_>,
        retries: SynRetries,
    ) -> Subflow {
        let config = self.subflow_config(cx, path, retries);
        let InitialValues { isn, ts_offset } = cx.start_of(path);
        // RFC 9293 section 3.6.1: a new connection that replaces one in TIME-WAIT begins beyond its last sequence
        // number. The clock-driven initial number already satisfies this, unless the old connection sent faster than
        // the clock runs.
        let first = syn.after.map(|end| end.add(MIN_ISN_DISTANCE));
        let isn = first.filter(|first| first.offset_from(isn) < 1 << 31).unwrap_or(isn);
        let isn = syn.isn.unwrap_or(isn);
        let policies = &self.config.policies;
        Subflow::accept(
            cx.now,
            config,
            path,
            InitialValues { isn, ts_offset },
            syn.segment,
            syn.ecn,
            &*policies.congestion,
            &*policies.recovery,
        )
    }

    pub(super) fn add_initial(&mut self, cx: &mut Context<'_>, tcp: Subflow, ends: Ends) {
        let backup = self.paths.addresses().initial_local().backup;
        cx.out.monitor(cx.now, self.id, MonitorKind::Created(ends.key.path));
        self.add_subflow(cx, tcp, ends, Membership::Initial, backup);
    }

    /// Puts a subflow into the first free slot. `None` if all slots are taken.
    pub(super) fn add_subflow(
        &mut self,
        cx: &mut Context<'_>,
        tcp: Subflow,
        ends: Ends,
        membership: Membership,
        backup: bool,
    ) -> Option<SubflowId> {
        let mut tcp = tcp;
        if let Some(times) = self.paths.keepalive() {
            tcp.set_keepalive(times);
        }
        tcp.set_send_buffer(self.sender.send_limit());
        tcp.health_mut().on_verdict(cx.now, cx.faults.fault(&ends.key.path));
        let id = self.paths.add(cx.config.limits.subflows, tcp, ends, membership, backup)?;
        cx.route(ends.key, self.slot, id);
        self.sender.add_subflow(id);
        self.receiver.add_subflow(id, self.session.is_plain());
        report_traffic(cx, self.id, || Traffic::Opened { on: id, path: ends.key.path });
        Some(id)
    }

    /// Adds a subflow that the peer opens, as described by its SYN.
    pub(super) fn add_joined(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &AcceptedSyn<'_>,
        membership: Membership,
        address_id: u8,
    ) -> Option<SubflowId> {
        let tcp = self.passive_subflow(cx, path, syn, SynRetries::join(self.config));
        let key = cx.new_flow(path, syn.peer_flow);
        let local = self.paths.addresses().local_for(path.local);
        let ends = Ends { key, local_id: local.id, remote_id: AddressId(address_id) };
        self.add_subflow(cx, tcp, ends, membership, local.backup)
    }

    /// True for a client whose first SYN has not been answered.
    pub(super) fn is_opening(&self) -> bool {
        self.session.is_client()
            && !self.session.is_multipath()
            && !self.closing.is_closed()
            && !self.paths.iter().any(SubflowContext::was_joined)
    }

    /// Address from which the first subflow is tried next, if there is one.
    pub(super) fn next_start(&self, cx: &Context<'_>) -> Option<(FirstStart, JoinAddresses)> {
        if !self.config.mptcp || self.config.connection_attempt_delay.is_none() {
            return None;
        }
        if self.fast_open.carried_bytes() > 0 {
            return None;
        }
        let starts = self.paths.addresses().first_pairs().map(|(local, remote)| {
            let path = FourTuple { local: local.address, remote };
            let costs_more = local.backup || local.cost.has_radio();
            let reserve = costs_more || cx.faults.fault(&path).is_some();
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

    /// Sets the time of the next attempt after one that starts now. `from_reserve` is true if the current one uses a
    /// reserve address.
    pub(super) fn schedule_attempt(&mut self, cx: &Context<'_>, from_reserve: bool) {
        if !self.is_opening() {
            return;
        }
        if let Some((next, _)) = self.next_start(cx) {
            self.attempts.schedule(cx.now, &next, from_reserve, self.config);
        } else if let Some(attempts) = self.attempts.if_used() {
            attempts.record_no_other_address();
        }
    }

    /// Starts the next attempt early because one failed.
    pub(super) fn start_next_attempt(&mut self, cx: &Context<'_>) {
        if !self.is_opening() {
            return;
        }
        if let Some((next, _)) = self.next_start(cx) {
            self.attempts.start_next_early(cx.now, &next);
        }
    }

    /// Sends the first SYN from another address. `false` if there is none.
    pub(super) fn begin_attempt(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some((start, pair)) = self.next_start(cx) {
            self.attempts.record_attempt(start.id, start.ip);
            if self.attempt(cx, &pair).is_some() {
                self.schedule_attempt(cx, start.reserve);
                return true;
            }
        }
        false
    }

    /// Opens a first subflow between two addresses, in parallel with the unanswered ones.
    fn attempt(&mut self, cx: &mut Context<'_>, pair: &JoinAddresses) -> Option<SubflowId> {
        let path = pair.free_path(cx)?;
        let tcp = self.active_subflow(cx, path, SynRetries::first(self.config));
        let (local_id, remote_id) = (pair.local.id, AddressId(0));
        let ends = Ends { key: cx.new_flow(path, 0), local_id, remote_id };
        self.add_subflow(cx, tcp, ends, Membership::Initial, pair.local.backup)
    }

    /// Keeps a SYN/ACK without the option while another path may get one with the option. That path is now tried.
    pub(super) fn keep_plain_answer(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
        ecn: Ecn,
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
        let usual = cx.plain_answers.is_refused(cx.now, path.local.ip(), path.remote.ip());
        if self.attempts.accepts_plain_answers() || usual {
            return false;
        }
        let next = self.next_start(cx).filter(|(start, _)| !start.reserve);
        if next.is_none() && !self.awaits_mptcp_answer(id) && !self.attempts.has_kept_answer() {
            return false;
        }
        self.attempts.keep_answer(cx.now, id, segment, ecn, self.config);
        if next.is_some() {
            self.begin_attempt(cx);
        }
        true
    }

    /// True if another attempt may still be answered with the option.
    pub(super) fn awaits_mptcp_answer(&self, id: SubflowId) -> bool {
        self.paths.ids().any(|other| other != id && !self.attempts.is_plain(other))
    }

    /// Releases the kept answer without the option after its deadline, or immediately if `now` is `None`.
    pub(super) fn release_kept_answer(
        &mut self,
        cx: &mut Context<'_>,
        now: Option<Instant>,
    ) -> Option<Box<KeptAnswer>> {
        let kept = self.attempts.if_used()?.take_kept(now)?;
        let subflow = self.paths.get_mut(kept.on)?;
        let path = subflow.path();
        cx.plain_answers.record_failure(cx.now, path.local.ip(), path.remote.ip());
        subflow.tcp_mut().record_answer_kept(cx.now.since(kept.arrived_at));
        Some(kept)
    }

    /// True if the SYN that `id` sends should omit MP_CAPABLE, because the option was sent often enough on each path
    /// and no other path is left. On carriers that hide options, the option is not the cause. On networks where it
    /// passed before, it is unlikely to be the cause and is kept twice as long.
    pub(super) fn should_abandon_option(&self, cx: &Context<'_>, id: SubflowId) -> bool {
        if cx.config.capabilities.hides_options() {
            return false;
        }
        let with_option = self.config.mptcp_syn_retries.saturating_add(1);
        let most = |s: &SubflowContext| {
            let path = s.path();
            let passes = cx.networks.is_known_to_pass(path.local.ip(), path.remote.ip());
            if passes { with_option.saturating_mul(2) } else { with_option }
        };
        let over = |s: &SubflowContext| s.tcp().syns_sent() > most(s);
        let enough = |s: &SubflowContext| s.tcp().syns_sent() >= most(s);
        self.paths.get(id).is_some_and(over)
            && !self.attempts.is_attempt_scheduled()
            && self.paths.iter().all(enough)
    }

    /// Sets the flow id with which the peer wants to be addressed. Only a handshake segment may set it, and only
    /// once: a later one is not from the peer.
    pub(super) fn learn_peer_flow(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        peer_flow: u64,
        segment: &TcpSegment<'_>,
    ) {
        let subflow = self.paths.get_mut(id).filter(|subflow| subflow.key().peer_flow == 0);
        let Some(subflow) = subflow else { return };
        let flags = segment.header.flags;
        // The acknowledgment of a SYN with data (Fast JOIN) includes the data.
        let beyond = segment.header.ack.offset_from(subflow.tcp().to_wire(Ssn(1)));
        let answers_syn = flags.contains(TcpFlags::SYN)
            && flags.contains(TcpFlags::ACK)
            && beyond as usize <= subflow.tcp().max_segment();
        if answers_syn {
            let key = subflow.set_peer_flow(peer_flow);
            cx.route(key, self.slot, id);
        }
    }
}
