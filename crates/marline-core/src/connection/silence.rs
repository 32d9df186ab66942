//! Detection of paths that are silent although data is due ([`Liveness`]).

use marline_policy::{Dsn, Health, SubflowId, SubflowSet, UnreachableCause};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;

use super::closing::Closing;
use super::liveness::{Content, KeepaliveDue, Liveness};
use super::path_set::PathSet;
use super::receive_clock::{ClockAction, Conditions};
use super::receiver::Receiver;
use super::rto_exchange::RtoExchange;
use super::segment_options::mp_idle_option;
use super::sender::Sender;
use super::session::Session;
use super::subflow_context::SubflowContext;
use crate::on_demand::OnDemand;
use crate::tables::Context;
use crate::{ConnectionConfig, ConnectionId, LoneKeepalive, MonitorKind, StreamDirection};

/// Window below which a sender of full segments sends nothing.
const MIN_USABLE_WINDOW: u64 = 2 * 1_460;

/// Parts of a connection that show whether data from the peer is due.
#[derive(Copy, Clone)]
pub(super) struct SilenceFacts<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a PathSet,
    pub(super) receiver: &'a Receiver,
    pub(super) closing: &'a Closing,
    pub(super) liveness: &'a OnDemand<Liveness>,
    pub(super) rto_exchange: &'a OnDemand<RtoExchange>,
}

impl SilenceFacts<'_> {
    /// End of the data that a segment maps. Data beyond the window is not accepted and not counted.
    pub(super) fn mapped_end(&self, segment: &TcpSegment<'_>) -> Option<Dsn> {
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

    /// True if the peer is known to have sent data beyond the in-order data, or to have more to send.
    pub(super) fn expects_peer_data(&self, id: SubflowId) -> bool {
        let held = |subflow: &SubflowContext| subflow.tcp().held_out_of_order() > 0;
        self.receiver.has_gap()
            || self.paths.get(id).is_some_and(held)
            || (self.liveness.is_clock_running() && self.session.peer_marks_idle())
    }

    /// The subflow on which data last arrived before the silence, and the subflows on which no segment has arrived
    /// since then.
    pub(super) fn silent_since(&self, since: Instant) -> SubflowSet {
        let mut silent =
            self.paths.subflows_where(|s| s.is_active() && s.tcp().last_rx_at() <= since);
        if let Some(id) = self.liveness.last_data_subflow().filter(|id| self.paths.is_active(*id)) {
            silent.insert(id);
        }
        silent
    }

    /// True if more data may arrive, and this side could open another path if the current one were dead.
    pub(super) fn may_open_another_path(&self) -> bool {
        self.session.is_client()
            && self.session.is_confirmed()
            && !self.closing.is_closed()
            && !self.receiver.fin_reached()
            && self.paths.has_unopened_address()
    }

    /// Current inputs of the receive timer. `None` if the timer is not needed.
    pub(super) fn silence_conditions(&self) -> Option<Conditions> {
        let config = self.config.receive_timer.filter(|_| self.may_open_another_path())?;
        let heard_at = self.paths.last_rx_at()?;
        let round_trip = self.paths.slow_round_trip()?;
        let (peer_rto, marks) = (self.rto_exchange.peer_rto(), self.session.peer_marks_idle());
        Some(self.liveness.conditions(&config, peer_rto, heard_at, round_trip, marks))
    }

    /// Subflow to be kept alive, and its next keepalive.
    pub(super) fn lone_keepalive(&self) -> Option<(SubflowId, KeepaliveDue, LoneKeepalive)> {
        let config = self.config.lone_keepalive?;
        if self.liveness.is_clock_running() || !self.may_open_another_path() {
            return None;
        }
        let mut usable = self.paths.with_ids().filter(|(_, subflow)| subflow.is_active());
        let (Some((id, subflow)), None) = (usable.next(), usable.next()) else { return None };
        // While data is unacknowledged there, TCP timers watch the subflow.
        let tcp = subflow.tcp();
        if self.paths.is_reserve(subflow) || tcp.unacked().next().is_some() {
            return None;
        }
        let (heard_at, sent_at) = (tcp.last_rx_at(), tcp.last_sent_at());
        Some((id, self.liveness.keepalive_due(&config, heard_at, sent_at), config))
    }

    /// True for a client that has a subflow and whose peer may still send data.
    pub(super) fn waits_for_data(&self) -> bool {
        self.session.is_client()
            && !self.closing.is_closed()
            && !self.receiver.fin_reached()
            && self.paths.active_count() > 0
            && (self.liveness.probes().may_probe_reserve() || !self.paths.has_only_reserve())
    }

    /// Time of the next check for silence.
    pub(super) fn silence_timeout(&self) -> Option<Instant> {
        let keepalive = self.lone_keepalive().map(|(_, due, _)| due.at);
        self.liveness.receive_timer_deadline().into_iter().chain(keepalive).min()
    }

    #[cold]
    pub(super) fn report_delivery_gap(
        &self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        ended_by: SubflowId,
        direction: StreamDirection,
        since: Instant,
    ) {
        let unreachable =
            self.paths.with_ids().find_map(|(id, subflow)| match subflow.health().get() {
                Health::Unreachable { cause, .. } => Some((id, cause)),
                _ => None,
            });
        let kind = MonitorKind::Hole { direction, since, ended_by, unreachable };
        cx.out.monitor(cx.now, connection, kind);
    }
}

/// Parts of a connection that change when data is late or arrives.
pub(super) struct Silence<'a> {
    pub(super) config: &'a ConnectionConfig,
    pub(super) session: &'a Session,
    pub(super) paths: &'a mut PathSet,
    pub(super) receiver: &'a mut Receiver,
    pub(super) sender: &'a Sender,
    pub(super) closing: &'a mut Closing,
    pub(super) liveness: &'a mut OnDemand<Liveness>,
    pub(super) rto_exchange: &'a OnDemand<RtoExchange>,
}

impl Silence<'_> {
    #[inline]
    pub(super) fn facts(&self) -> SilenceFacts<'_> {
        SilenceFacts {
            config: self.config,
            session: self.session,
            paths: self.paths,
            receiver: self.receiver,
            closing: self.closing,
            liveness: self.liveness,
            rto_exchange: self.rto_exchange,
        }
    }

    /// Updates the download watch after a segment. `before` is the first byte that was missing when the segment
    /// arrived. Returns true if the receive timer needs the peer's retransmission timeout.
    pub(super) fn watch_download(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        before: Dsn,
        segment: &TcpSegment<'_>,
    ) -> bool {
        if self.config.receive_timer.is_none() || !self.session.is_client() {
            return false;
        }
        let next = self.receiver.next();
        self.record_agreement(id, segment);
        let mapped = self.facts().mapped_end(segment);
        if mapped.is_none() && next == before {
            return false;
        }
        let marked = mapped.filter(|_| self.facts().is_marked(cx, segment));
        self.liveness.record_announced(next, mapped);
        let conditions = self.facts().silence_conditions();
        let moved = next > before;
        self.liveness.on_content(cx.now, id, Content { next, moved, marked }, conditions)
    }

    /// Records how much data was sent before the segment with the peer's agreement. That data may still be in flight
    /// and has no mark.
    fn record_agreement(&mut self, id: SubflowId, segment: &TcpSegment<'_>) {
        if self.liveness.has_agreed_on_marks() || !self.session.peer_marks_idle() {
            return;
        }
        let Some(subflow) = self.paths.get(id) else { return };
        let expected = subflow.tcp().peer_to_wire(subflow.tcp().rcv_nxt());
        let missing = segment.header.seq.offset_from(expected);
        let missing = if missing < 1 << 31 { u64::from(missing) } else { 0 };
        self.liveness.record_agreement(self.receiver.next(), missing);
    }

    /// Updates the delivery watch after bytes arrived in order, the first of them on this subflow. Returns the start
    /// of a delivery gap that should be reported.
    pub(super) fn watch_delivery_of_received(
        &mut self,
        now: Instant,
        id: SubflowId,
    ) -> Option<Instant> {
        let due = self.facts().expects_peer_data(id);
        self.receiver.watch_mut().on_progress(now, due, Duration::ZERO)
    }

    /// Handles the expiry of the receive timer. Returns the subflows that now count as silent.
    pub(super) fn check_receive_timer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Option<(SubflowSet, UnreachableCause)> {
        let conditions = self.facts().silence_conditions();
        let shut = self.receiver.window() < MIN_USABLE_WINDOW;
        let since = self.liveness.silent_since().unwrap_or(cx.now);
        let cause = match self.liveness.on_receive_timer(cx.now, conditions, shut) {
            ClockAction::Nothing => return None,
            ClockAction::Probe => {
                cx.out.counters.receive_timer_probes += 1;
                self.paths.probe_subflow_or_best(self.liveness.last_data_subflow());
                return None;
            }
            ClockAction::Stalled => UnreachableCause::ReceiveTimer,
            ClockAction::Unanswered => UnreachableCause::UnansweredProbes,
        };
        cx.out.counters.receive_timer_expired += 1;
        Some((self.facts().silent_since(since), cause))
    }

    /// Sends a keepalive that is due. Returns the subflow if its keepalives remained unanswered.
    pub(super) fn check_lone_keepalive(&mut self, cx: &mut Context<'_>) -> Option<SubflowId> {
        let due = self.facts().lone_keepalive().filter(|(_, due, _)| due.at <= cx.now);
        let (id, due, config) = due?;
        if self.liveness.on_keepalive(cx.now, &config, due) {
            cx.out.counters.lone_keepalives += 1;
            self.paths.probe_subflow_or_best(Some(id));
            return None;
        }
        cx.out.counters.lone_keepalive_expired += 1;
        Some(id)
    }

    /// Postpones a receiver's probes after data or an acknowledgment.
    pub(super) fn postpone_probes(&mut self, now: Instant) {
        if let Some(probes) = self.config.receive_probes {
            self.liveness.on_data(now, probes);
        }
    }

    pub(super) fn on_receive_probes(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        if self.liveness.probes().next_timeout().is_none_or(|at| at > now) {
            return;
        }
        let Some(probes) = self.config.receive_probes.filter(|_| self.facts().waits_for_data())
        else {
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
        let heard_at = self.paths.last_rx_at();
        let unanswered = self.liveness.probes_mut().record_probe(cx.now, heard_at);
        self.closing.on_unanswered_probes(cx.now, unanswered);
        cx.out.counters.receive_probes += 1;
        if unanswered == 0 {
            let best = self.paths.best_subflow();
            self.paths.probe_subflow_or_best(best);
            return;
        }
        self.paths.probe_all_subflows();
    }

    /// Sets the time within which a segment from the peer must arrive.
    pub(super) fn expect_answer(&mut self, now: Instant, within: Duration) {
        if !self.closing.is_closed() {
            self.closing.expect_answer(now, within);
            self.probe_until_answered(now);
        }
    }

    /// Probes all subflows now, and repeatedly until one answers.
    pub(super) fn probe_until_answered(&mut self, now: Instant) {
        if self.closing.start_probes(now) {
            self.paths.probe_all_subflows();
        }
    }

    /// Updates timers after a DATA_ACK advanced.
    pub(super) fn watch_data_ack(&mut self, now: Instant) {
        self.postpone_probes(now);
        if self.liveness.is_clock_running()
            && let Some(conditions) = self.facts().silence_conditions()
        {
            self.liveness.on_data_ack(now, &conditions);
        }
    }
}
