//! Set of paths: the subflows of a connection, each in a slot, and the addresses that they use.

use std::sync::Arc;

use marline_policy::{
    AddressId, AddressPair, Dsn, LocalAddress, SentSegment, Ssn, SubflowId, SubflowPath,
    SubflowSet, SubflowView,
};
use marline_time::{Duration, Instant, Rate};

use super::addresses::Addresses;
use super::subflow_context::{ClosingOption, Ends, Membership, SubflowContext};
use crate::PathAddresses;
use crate::on_demand::OnDemand;
use crate::subflow::Subflow;
use crate::traffic::LostSegments;
use crate::{ConnectionConfig, FourTuple, Keepalive, SubflowInfo, SubflowLocation, SubflowState};

/// Round trip assumed if none was measured.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);
/// Time that a peer may take to answer a segment that requires an immediate answer.
const ANSWER_DELAY: Duration = Duration::from_millis(25);
/// Maximum number of address pairs whose totals are kept after their subflows ended.
const MAX_KEPT_TOTALS: usize = 32;
/// Largest number of subflows in a set.
const MAX_SUBFLOWS: usize = 32;

/// The paths of a connection: a slot for the subflow on each, and the addresses of both sides.
#[derive(Debug)]
pub(super) struct PathSet {
    slots: Box<[Option<Box<SubflowContext>>]>,
    addresses: Addresses,
    /// Start of the round-robin search for pending segments.
    next: u8,
    has_lost_joins: bool,
    /// Keepalive setting of the application, if there is one.
    keepalive: Option<Arc<Option<Keepalive>>>,
    /// Totals of subflows that ended, by address pair.
    gone: OnDemand<Vec<SubflowInfo>>,
}

impl PathSet {
    pub(super) fn new(config: &Arc<ConnectionConfig>, path: FourTuple) -> Self {
        PathSet {
            slots: Box::default(),
            addresses: Addresses::new(Arc::clone(config), path),
            next: 0,
            has_lost_joins: false,
            keepalive: None,
            gone: OnDemand::new(),
        }
    }

    pub(super) const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    pub(super) const fn addresses_mut(&mut self) -> &mut Addresses {
        &mut self.addresses
    }

    /// Keepalive setting of the application, if there is one.
    pub(super) fn keepalive(&self) -> Option<Arc<Option<Keepalive>>> {
        self.keepalive.clone()
    }

    pub(super) fn set_keepalive(&mut self, times: Option<Keepalive>) {
        let times = Arc::new(times);
        self.keepalive = Some(Arc::clone(&times));
        for subflow in self.iter_mut() {
            subflow.tcp_mut().set_keepalive(Arc::clone(&times));
        }
    }

    pub(super) fn get(&self, id: SubflowId) -> Option<&SubflowContext> {
        self.slots.get(usize::from(id.0))?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: SubflowId) -> Option<&mut SubflowContext> {
        self.slots.get_mut(usize::from(id.0))?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SubflowContext> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SubflowContext> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// Subflows with their ids, in order of slots.
    pub(super) fn with_ids(&self) -> impl Iterator<Item = (SubflowId, &SubflowContext)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, there)| Some((SubflowId(slot as u8), there.as_deref()?)))
    }

    /// Subflows that satisfy this condition.
    pub(super) fn subflows_where(&self, holds: impl Fn(&SubflowContext) -> bool) -> SubflowSet {
        let mut set = SubflowSet::EMPTY;
        let fitting = self.with_ids().filter(|(_, subflow)| holds(subflow));
        fitting.for_each(|(id, _)| set.insert(id));
        set
    }

    /// Slots in use, in order.
    pub(super) fn ids(&self) -> impl Iterator<Item = SubflowId> + use<> {
        self.subflows_where(|_| true).iter()
    }

    /// Number of subflows.
    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Subflows on which data may be sent.
    pub(super) fn active(&self) -> impl Iterator<Item = &SubflowContext> {
        self.iter().filter(|subflow| subflow.is_active())
    }

    pub(super) fn active_set(&self) -> SubflowSet {
        self.subflows_where(SubflowContext::is_active)
    }

    pub(super) fn active_count(&self) -> usize {
        self.active().count()
    }

    pub(super) fn is_active(&self, id: SubflowId) -> bool {
        self.get(id).is_some_and(SubflowContext::is_active)
    }

    /// Subflow of the set that retains the most stream bytes before `una`, if any does.
    pub(super) fn largest_retainer(&self, among: SubflowSet, una: Dsn) -> Option<SubflowId> {
        let kept = |subflow: &SubflowContext| -> u64 {
            let acked = |s: &&SentSegment| s.dsn.plus(s.payload_len()) <= una;
            subflow.tcp().unacked().filter(acked).map(SentSegment::payload_len).sum()
        };
        let among = self.with_ids().filter(|(id, _)| among.contains(*id));
        let keepers = among.map(|(id, subflow)| (kept(subflow), id));
        keepers.filter(|(kept, _)| *kept > 0).max_by_key(|(kept, _)| *kept).map(|(_, id)| id)
    }

    /// True if there are active subflows and all of them are silent.
    pub(super) fn are_all_silent(&self) -> bool {
        self.active_count() > 0 && self.active().all(|subflow| subflow.health().is_unreachable())
    }

    /// Sends an empty segment on each usable subflow, which the peer answers.
    pub(super) fn probe_all_subflows(&mut self) {
        self.iter_mut().filter(|s| s.is_active()).for_each(|s| s.tcp_mut().request_probe());
    }

    /// Subflows that carry data and have no known problem.
    pub(super) fn healthy(&self) -> SubflowSet {
        self.subflows_where(SubflowContext::is_healthy)
    }

    pub(super) fn is_initial(&self, id: SubflowId) -> bool {
        self.get(id).is_some_and(SubflowContext::is_initial)
    }

    /// First subflow, while it exists.
    pub(super) fn initial(&self) -> Option<&SubflowContext> {
        self.iter().find(|subflow| subflow.is_initial())
    }

    /// Slot of the first subflow, while it exists.
    pub(super) fn initial_id(&self) -> Option<SubflowId> {
        self.with_ids().find(|(_, subflow)| subflow.is_initial()).map(|(id, _)| id)
    }

    /// True if the first subflow is the only one and may carry data.
    pub(super) fn is_initial_alone(&self) -> bool {
        let mut all = self.iter();
        all.next().is_some_and(|s| s.is_initial() && !s.is_closed_for_data())
            && all.next().is_none()
    }

    /// True if a subflow may carry data, now or after its handshake.
    pub(super) fn has_open(&self) -> bool {
        self.iter().any(|subflow| !subflow.is_closed_for_data())
    }

    /// Number of unauthenticated joins of the peer.
    pub(super) fn pending(&self) -> usize {
        self.iter().filter(|subflow| subflow.is_pending()).count()
    }

    /// Round trip for measuring the receive window: that of the slowest usable subflow.
    pub(super) fn largest_rtt(&self) -> Duration {
        self.active().filter_map(|s| s.tcp().srtt()).max().unwrap_or(UNKNOWN_RTT)
    }

    /// RTO on which data-level timers are based: the largest of the usable subflows, or that of `config` if there are
    /// none.
    pub(super) fn largest_rto(&self, config: &ConnectionConfig) -> Duration {
        self.active().map(|s| s.tcp().rto()).max().unwrap_or(config.rtt.initial_rto)
    }

    /// Tail probe timeout for data that any usable subflow may have carried (RFC 8985 section 7.2); `None` if no
    /// round trip was measured.
    pub(super) fn tail_probe_timeout(&self) -> Option<Duration> {
        let longest = |known: Option<Duration>, s: &SubflowContext| s.tcp().srtt().max(known);
        let longest = self.active().fold(None, longest)?;
        Some(longest * 2 + ANSWER_DELAY)
    }

    /// Time of the last segment received or sent on any subflow.
    pub(super) fn last_active_at(&self) -> Option<Instant> {
        let all = self.iter().map(|s| s.tcp().last_rx_at().max(s.tcp().last_sent_at()));
        all.max()
    }

    /// Likely maximum round trip on the slowest usable subflow.
    pub(super) fn slow_round_trip(&self) -> Option<Duration> {
        let slow = |s: &SubflowContext| {
            s.tcp().srtt().map_or(UNKNOWN_RTT, |srtt| srtt + s.tcp().rttvar() * 4)
        };
        self.active().map(slow).max()
    }

    /// Time of the last segment received on a usable subflow.
    pub(super) fn last_rx_at(&self) -> Option<Instant> {
        self.active().map(|s| s.tcp().last_rx_at()).max()
    }

    /// Total number of bytes that all subflows could have in flight, or that they deliver in the longest RTT.
    pub(super) fn wanted_buffer(&self, by_rates: bool) -> u64 {
        if !by_rates {
            return self.iter().map(|subflow| subflow.tcp().cwnd()).sum();
        }
        let longest = self.active().filter_map(|s| s.tcp().srtt()).max().unwrap_or_default();
        let in_longest = |subflow: &SubflowContext| {
            let (tcp, cwnd) = (subflow.tcp(), subflow.tcp().cwnd());
            let srtt = tcp.srtt().filter(|srtt| !srtt.is_zero()).unwrap_or(longest);
            Rate::over(cwnd, srtt).bytes_in(longest).max(cwnd)
        };
        self.active().map(in_longest).sum()
    }

    /// Subflow on which a single segment arrives soonest.
    pub(super) fn best_subflow(&self) -> Option<SubflowId> {
        let usable = self.with_ids().filter(|(_, subflow)| subflow.is_active());
        let soonest = usable.min_by_key(|(_, subflow)| {
            let srtt = subflow.tcp().srtt().unwrap_or_default();
            (!subflow.health().is_usable(), subflow.is_backup(), srtt)
        });
        soonest.map(|(id, _)| id)
    }

    /// True if the subflow uses a reserve address. Keepalives would keep its cellular radio awake, and all preferred
    /// addresses have failed.
    pub(super) fn is_reserve(&self, subflow: &SubflowContext) -> bool {
        let local = self.addresses.find_local(subflow.local_id());
        local.is_some_and(|local| local.backup)
    }

    /// True if all usable subflows use reserve addresses.
    pub(super) fn has_only_reserve(&self) -> bool {
        self.active().all(|subflow| self.is_reserve(subflow))
    }

    /// True if a local address is up that no open subflow uses.
    pub(super) fn has_unopened_address(&self) -> bool {
        let starts_at =
            |id: AddressId| self.iter().any(|s| s.local_id() == id && !s.is_closed_for_data());
        let unopened = |local: &LocalAddress| local.up && local.subflow && !starts_at(local.id);
        self.addresses.local().iter().any(unopened)
    }

    /// True if an acknowledgment of data in flight is pending.
    pub(super) fn has_pending_acks(&self) -> bool {
        self.iter().any(|subflow| subflow.tcp().unacked().next().is_some())
    }

    /// Puts a subflow into the first free slot. `None` if `limit` slots are in use.
    pub(super) fn add(
        &mut self,
        limit: usize,
        mut tcp: Subflow,
        ends: Ends,
        membership: Membership,
        backup: bool,
    ) -> Option<SubflowId> {
        let limit = limit.clamp(1, MAX_SUBFLOWS);
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= limit {
            return None;
        }
        if free == self.slots.len() {
            let there = core::mem::take(&mut self.slots).into_iter();
            self.slots = there.chain([None]).collect();
        }
        let id = SubflowId(free as u8);
        tcp.set_id(id);
        let mut subflow = SubflowContext::new(tcp, ends, membership, backup);
        if let Some(local) = self.addresses.find_local(subflow.local_id()) {
            subflow.set_cost(local.cost);
        }
        self.slots[free] = Some(Box::new(subflow));
        Some(id)
    }

    /// Removes a subflow from its slot.
    pub(super) fn take(&mut self, id: SubflowId) -> Option<Box<SubflowContext>> {
        self.slots.get_mut(usize::from(id.0))?.take()
    }

    /// Number of slots that were ever used: the number of turns in a full round.
    pub(super) fn turns(&self) -> usize {
        self.slots.len()
    }

    fn turns_or_one(&self) -> u8 {
        self.slots.len().max(1) as u8
    }

    /// Subflow whose turn it is.
    pub(super) fn turn(&self) -> SubflowId {
        SubflowId(self.next % self.turns_or_one())
    }

    /// Moves to the next subflow's turn.
    pub(super) fn end_turn(&mut self) {
        self.next = self.next % self.turns_or_one() + 1;
    }

    /// Moves to the first subflow's turn.
    pub(super) const fn restart_turns(&mut self) {
        self.next = 0;
    }

    /// Views for schedulers of subflows that carry data.
    pub(super) fn views(&self, now: Instant) -> impl Iterator<Item = SubflowView> {
        let up = self.with_ids().filter(|(_, subflow)| subflow.is_up());
        up.map(move |(id, subflow)| subflow.view(now, id))
    }

    /// Views of subflows for path managers.
    pub(super) fn paths(&self) -> Vec<SubflowPath> {
        let open = self.with_ids().filter(|(_, subflow)| !subflow.is_closed_for_data());
        open.map(|(id, subflow)| subflow.subflow_path(id)).collect()
    }

    /// Number of bytes that may still wait behind gaps in all subflows together, limited to the largest window.
    pub(super) fn out_of_order_room(&self, window: u64) -> u64 {
        let held: u64 = self.iter().map(|subflow| subflow.tcp().held_out_of_order()).sum();
        window.saturating_sub(held)
    }

    /// True if the address of this subflow is gone and another address is up.
    pub(super) fn is_cut_off(&self, subflow: &SubflowContext) -> bool {
        let ip = subflow.path().local.ip();
        let is_gone = |local: LocalAddress| {
            let known = local.address.ip();
            !local.up || known != ip && !known.is_unspecified()
        };
        self.addresses.find_local(subflow.local_id()).is_some_and(is_gone)
            && self.addresses.join_pairs().any(|pair| pair.local.address.ip() != ip)
    }

    /// Probes the peer on the first subflow between these addresses.
    pub(super) fn probe_address_pair(&mut self, pair: &AddressPair) {
        let on = |path: FourTuple| (path.local.ip(), path.remote.ip()) == (pair.local, pair.remote);
        let member = |s: &&mut SubflowContext| s.is_active() && on(s.path());
        if let Some(subflow) = self.iter_mut().find(member) {
            subflow.tcp_mut().request_probe();
        }
    }

    /// Announces the window to the peer on the subflow that received a segment last.
    pub(super) fn announce_window(&mut self) {
        let latest = self.iter_mut().filter(|subflow| subflow.is_active());
        if let Some(subflow) = latest.max_by_key(|subflow| subflow.tcp().last_rx_at()) {
            subflow.tcp_mut().ack_now();
        }
    }

    /// Sends an empty segment that the peer answers, on this subflow, or on the best one if it is gone.
    pub(super) fn probe_subflow_or_best(&mut self, id: Option<SubflowId>) {
        let there = id.filter(|id| self.is_active(*id));
        let on = there.or_else(|| self.best_subflow());
        if let Some(subflow) = on.and_then(|id| self.get_mut(id)) {
            subflow.tcp_mut().request_probe();
        }
    }

    /// Resets all subflows, the first one first.
    pub(super) fn reset_all(&mut self, option: ClosingOption) {
        self.restart_turns();
        self.iter_mut().for_each(|subflow| subflow.reset_with(option));
    }

    /// Plain TCP: true if our FIN is acknowledged or the subflow is already gone.
    pub(super) fn is_plain_fin_acked(&self) -> bool {
        let done = |state| {
            matches!(state, SubflowState::FinWait2 | SubflowState::TimeWait | SubflowState::Closed)
        };
        self.iter().all(|subflow| done(subflow.tcp().state()))
    }

    /// Segments of a subflow that are marked as lost.
    pub(super) fn lost_segments_of(&self, id: SubflowId) -> LostSegments {
        self.get(id).map(|subflow| subflow.tcp().lost_segments()).unwrap_or_default()
    }

    /// Subflows of a path.
    fn members_mut(&mut self, path: PathAddresses) -> impl Iterator<Item = &mut SubflowContext> {
        self.iter_mut().filter(move |subflow| subflow.path().addresses() == path)
    }

    /// Probes a silent path on its subflows. `false` if it has none.
    pub(super) fn probe_path_members(&mut self, path: PathAddresses) -> bool {
        let mut asked = false;
        for subflow in self.members_mut(path) {
            if !subflow.was_joined() {
                subflow.tcp_mut().repeat_syn();
            } else if subflow.is_active() && subflow.health().is_unreachable() {
                subflow.tcp_mut().request_probe();
            }
            asked = true;
        }
        asked
    }

    /// Retries pending transmissions on the subflows of a path. `false` if it has none.
    pub(super) fn retry_path_members(&mut self, now: Instant, path: PathAddresses) -> bool {
        let mut owes = false;
        for subflow in self.members_mut(path) {
            owes = true;
            if !subflow.was_joined() {
                subflow.tcp_mut().repeat_syn();
            } else if subflow.is_active() && subflow.health().is_unreachable() {
                if subflow.tcp().has_retransmission_timeout() {
                    subflow.tcp_mut().retry_now(now);
                } else {
                    subflow.tcp_mut().request_probe();
                }
            }
        }
        owes
    }

    /// Releases unused memory.
    pub(super) fn shrink(&mut self) {
        self.iter_mut().for_each(|subflow| subflow.tcp_mut().shrink());
    }

    /// Size of the data that waits out of order, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.iter().map(|subflow| subflow.tcp().memory()).sum()
    }

    /// Memory that lists use, in bytes.
    pub(super) fn bookkeeping(&self) -> u64 {
        self.iter().map(|subflow| subflow.tcp().bookkeeping()).sum()
    }

    /// Snapshots of the subflows for monitoring, and totals of those that ended.
    pub(super) fn info(&self) -> (Vec<SubflowInfo>, Vec<SubflowInfo>) {
        let info = |(id, subflow): (SubflowId, &SubflowContext)| {
            let info = subflow.tcp().info(id, subflow.is_backup());
            let health = subflow.hinted(info.health, info.last_rx_at);
            SubflowInfo { health, ..info }
        };
        (self.with_ids().map(info).collect(), self.gone.to_vec())
    }

    /// True if joins that had received payload have ended.
    pub(super) const fn has_lost_joins(&self) -> bool {
        self.has_lost_joins
    }

    /// The established subflows.
    pub(super) fn places(&self) -> Vec<SubflowLocation> {
        let established = |subflow: &&SubflowContext| subflow.was_joined() || subflow.is_initial();
        let subflows = self.iter().filter(established);
        subflows.filter_map(SubflowContext::place).collect()
    }

    /// Addresses of established subflows that are degraded or unreachable.
    pub(super) fn impaired(&self) -> impl Iterator<Item = FourTuple> {
        let impaired = self.iter().filter(|subflow| !subflow.health().is_usable());
        impaired.filter_map(|subflow| subflow.place().map(|place| place.path))
    }

    /// Adds an ended subflow to the totals of its pair of addresses.
    pub(super) fn remember_totals(&mut self, subflow: &SubflowContext, id: SubflowId) {
        // A subflow that was never established has no totals; otherwise an attacker could fill the list with such
        // subflows.
        if !subflow.was_joined() && !subflow.is_initial() {
            return;
        }
        // If no payload was received, nothing of the stream can be missing, and the peer may have fallen back.
        self.has_lost_joins |= !subflow.is_initial() && subflow.tcp().rcv_nxt() > Ssn(1);
        let last = subflow.tcp().info(id, subflow.is_backup());
        let same = |g: &SubflowInfo| {
            g.path.local.ip() == last.path.local.ip() && g.path.remote == last.path.remote
        };
        match self.gone.iter().position(same) {
            Some(known) => {
                let sum = &mut self.gone[known];
                sum.bytes_sent += last.bytes_sent;
                sum.bytes_received += last.bytes_received;
                sum.bytes_retransmitted += last.bytes_retransmitted;
                sum.bytes_reinjected += last.bytes_reinjected;
                sum.bytes_duplicate += last.bytes_duplicate;
                sum.rtos += last.rtos;
                sum.probes += last.probes;
                sum.undone += last.undone;
                if let (Some(sum), Some(last)) = (&mut sum.forecast_score, &last.forecast_score) {
                    *sum = sum.plus(last);
                }
                sum.state = last.state;
                sum.last_rx_at = last.last_rx_at;
            }
            None if self.gone.len() < MAX_KEPT_TOTALS => self.gone.push(last),
            None => {}
        }
    }
}
