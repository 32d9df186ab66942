//! Subflow of a connection: the TCP state machine together with its Multipath TCP state.

use marline_policy::{
    AddressId, AddressPairFault, DataRange, Eligibility, Health, PathCost, SentSegment, SubflowId,
    SubflowPath, SubflowView,
};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{FastJoinForm, MpFail, MpJoin, MpTcpRst};
use marline_wire::{TcpFlags, TcpSegment};

use super::handshake::{fast_join_token, mp_join};
use super::keys::Keys;
use crate::FourTuple;
use crate::on_demand::{OnDemand, UnusedState};
use crate::subflow::{Subflow, SubflowHealth};
use crate::tables::demux::FlowKey;
use crate::{SubflowLocation, SubflowState};

/// Time for which a subflow that we closed stays half-closed without data from the peer (Linux: `tcp_fin_timeout`, 60
/// s).
const HALF_CLOSED: Duration = Duration::from_secs(60);
/// Number of unanswered third ACKs after which a join is given up.
const MAX_THIRD_ACKS: u32 = 6;
/// Minimum time between third ACKs.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Number of unanswered MP_FAILs after which the subflow is reset, and maximum number of MP_FAILs sent as answers.
const MAX_MP_FAILS: u32 = 6;

/// Role of the subflow in the connection.
#[derive(Debug)]
pub(super) enum Membership {
    /// The first subflow: MP_CAPABLE.
    Initial,
    /// A join that we opened.
    Joining(Box<OpenedJoin>),
    /// A join that the peer opened.
    Joined(Box<AcceptedJoin>),
}

/// A join that we opened.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct OpenedJoin {
    nonce: u32,
    /// HMAC of the third ACK, once the SYN/ACK authenticated the peer.
    hmac: Option<[u8; 20]>,
    /// A Fast JOIN, until the subflow is established.
    fast: Option<FastOpened>,
    /// The fourth ACK, or the answer to a Fast JOIN, has arrived, so data may be sent.
    confirmed: bool,
    /// Time of the next third ACK.
    repeat_at: Option<Instant>,
    repeats: u32,
}

/// A join that the peer opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct AcceptedJoin {
    nonce: u32,
    peer_nonce: u32,
    /// The third ACK or the SYN of a Fast JOIN authenticated the peer.
    verified: bool,
    /// The Fast JOIN in the SYN.
    fast: Option<FastAccepted>,
}

/// A Fast JOIN that we opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastOpened {
    pub(super) form: FastJoinForm,
    /// The SYN was sent.
    sent: bool,
    /// Data of the SYN.
    pub(super) range: Option<DataRange>,
    /// HMAC of the SYN.
    pub(super) hmac: u64,
}

impl FastOpened {
    /// A Fast JOIN whose SYN is not built yet.
    const PLANNED_FAST_JOIN: FastOpened =
        FastOpened { form: FastJoinForm::In, sent: false, range: None, hmac: 0 };

    /// A Fast JOIN whose SYN is sent now.
    pub(super) const fn sent(form: FastJoinForm, range: Option<DataRange>, hmac: u64) -> Self {
        FastOpened { form, sent: true, range, hmac }
    }

    pub(super) const fn is_sent(&self) -> bool {
        self.sent
    }
}

/// A Fast JOIN that the peer opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastAccepted {
    pub(super) form: FastJoinForm,
    /// HMAC of the SYN.
    pub(super) hmac: u64,
    /// The opener retried with an ordinary join, which the last SYN/ACK answers.
    ordinary: bool,
}

impl FastAccepted {
    pub(super) const fn new(form: FastJoinForm, hmac: u64) -> Self {
        FastAccepted { form, hmac, ordinary: false }
    }
}

impl Membership {
    /// A join that we open, as a Fast JOIN or an ordinary one.
    pub(super) fn joining(nonce: u32, fast: bool) -> Self {
        let fast = fast.then_some(FastOpened::PLANNED_FAST_JOIN);
        Membership::Joining(Box::new(OpenedJoin { nonce, fast, ..OpenedJoin::default() }))
    }

    /// A join that the peer opens, to be authenticated by the third ACK.
    pub(super) fn joined(nonce: u32, peer_nonce: u32) -> Self {
        let (verified, fast) = (false, None);
        Membership::Joined(Box::new(AcceptedJoin { nonce, peer_nonce, verified, fast }))
    }

    /// A Fast JOIN that the peer opens, authenticated by its SYN.
    pub(super) fn from_fast_join(nonce: u32, fast: FastAccepted) -> Self {
        let (verified, fast) = (true, Some(fast));
        Membership::Joined(Box::new(AcceptedJoin { nonce, peer_nonce: 0, verified, fast }))
    }
}

impl OpenedJoin {
    pub(super) const fn nonce(&self) -> u32 {
        self.nonce
    }

    /// True if the SYN/ACK that authenticates the peer has not arrived.
    pub(super) const fn awaits_syn_ack(&self) -> bool {
        self.hmac.is_none() && !self.confirmed
    }
}

impl AcceptedJoin {
    /// Our nonce and the peer's.
    pub(super) const fn nonces(&self) -> (u32, u32) {
        (self.nonce, self.peer_nonce)
    }

    pub(super) const fn is_verified(&self) -> bool {
        self.verified
    }

    pub(super) const fn is_fast(&self) -> bool {
        self.fast.is_some()
    }

    /// Fast JOIN that the SYN/ACK answers.
    pub(super) fn pending_fast_join(&self) -> Option<FastAccepted> {
        self.fast.filter(|fast| !fast.ordinary)
    }
}

/// Phase of the subflow between its SYN and the reuse of its slot.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The handshake is not complete.
    Opening,
    /// The handshake is not complete, and the subflow will carry no data after it.
    Abandoned,
    /// Established, and known to policies.
    Active,
    /// Known to policies, but accepts no more data.
    Leaving,
    /// Established in the past; policies know that it ended.
    Closed,
}

/// Final segment of a subflow.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum FinalSegment {
    /// Only TCP's own segments.
    #[default]
    None,
    /// A RST was sent, and is repeated for late segments.
    Reset,
    /// All retries were unanswered. A RST is sent when the subflow ends, and repeated for late segments.
    ResetPending,
}

/// Option of a RST.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum ClosingOption {
    /// No option.
    #[default]
    None,
    /// MP_TCPRST.
    Reason(MpTcpRst),
    /// MP_FAIL after a checksum failure on this side, sent with an MP_TCPRST reason.
    Fail(MpFail),
    /// MP_FASTCLOSE: the whole connection ends.
    Fastclose,
}

/// State of MP_FAIL on a subflow.
#[derive(Copy, Clone, Debug, Default)]
struct FailState {
    /// Time of our next MP_FAIL.
    repeat_at: Option<Instant>,
    /// Number of MP_FAILs sent, including answers.
    count: u32,
}

/// Action for an unanswered MP_FAIL.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum FailStep {
    NotDue,
    Send,
    GiveUp,
}

/// Result of a completed TCP handshake of a join.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum JoinStep {
    /// The subflow carries data.
    Up,
    /// The subflow carries data after the peer's Fast JOIN.
    UpFast,
    /// The fourth ACK is pending.
    Pending,
}

/// Result of a segment on the peer's half-open Fast JOIN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum HalfOpen {
    /// The segment may be passed to TCP.
    Admitted,
    /// The opener fell back to an ordinary join and has authenticated itself.
    FellBack,
    /// The HMAC is wrong: the segment must not reach TCP.
    BadHmac,
}

/// Both ends of a subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ends {
    pub(super) key: FlowKey,
    /// Id of the local address, as configured.
    pub(super) local_id: AddressId,
    /// Id of the remote address, as assigned by the peer.
    pub(super) remote_id: AddressId,
}

/// State that most subflows do not need: failed checksums, resets, and closed halves.
#[derive(Debug, Default)]
struct Trouble {
    /// Reason given in the peer's RST.
    reset_reason: Option<MpTcpRst>,
    /// Option of the pending RST.
    closing_option: ClosingOption,
    /// Time at which the peer acknowledged that our half is closed.
    half_closed_at: Option<Instant>,
    /// MP_FAIL to be repeated, or sent in answer.
    fail: FailState,
}

impl UnusedState for Trouble {
    const UNUSED: &'static Self = &Trouble {
        reset_reason: None,
        closing_option: ClosingOption::None,
        half_closed_at: None,
        fail: FailState { repeat_at: None, count: 0 },
    };
}

/// Cost of a path in two bytes; the tail has a resolution of eight milliseconds.
#[derive(Copy, Clone, Debug)]
struct CompactCost(u16);

impl CompactCost {
    const METERED: u16 = 1 << 15;
    const FADING: u16 = 1 << 14;
    const LIMITED: u16 = 1 << 13;
    const TAIL: u16 = Self::LIMITED - 1;
    /// Milliseconds per unit of the tail.
    const UNIT_MS: u16 = 8;

    const fn from_cost(cost: PathCost) -> Self {
        let metered = if cost.metered { Self::METERED } else { 0 };
        let fading = if cost.fading { Self::FADING } else { 0 };
        let limited = if cost.limited { Self::LIMITED } else { 0 };
        let (units, most) = (cost.tail_ms.div_ceil(Self::UNIT_MS), Self::TAIL);
        CompactCost(if units < most { units } else { most } | metered | fading | limited)
    }

    const fn get(self) -> PathCost {
        PathCost {
            metered: self.0 & Self::METERED != 0,
            limited: self.0 & Self::LIMITED != 0,
            fading: self.0 & Self::FADING != 0,
            tail_ms: (self.0 & Self::TAIL) * Self::UNIT_MS,
        }
    }
}

/// One subflow with its Multipath TCP state.
#[derive(Debug)]
pub(super) struct SubflowContext {
    tcp: Subflow,
    /// Our flow id; see [`FlowKey`].
    local_flow: u64,
    peer_flow: u64,
    local_id: AddressId,
    remote_id: AddressId,
    membership: Membership,
    /// We requested that the subflow be a backup.
    backup_by_us: bool,
    /// The peer requested that the subflow be a backup.
    backup_by_peer: bool,
    /// Cost of using the subflow: configured on a client, or reported to its server.
    cost: CompactCost,
    phase: Phase,
    final_segment: FinalSegment,
    trouble: OnDemand<Trouble>,
    /// Time at which new stream data last arrived on the subflow, or at which it joined.
    last_new_at: Instant,
}

impl SubflowContext {
    pub(super) fn new(tcp: Subflow, ends: Ends, membership: Membership, backup: bool) -> Self {
        let Ends { key, local_id, remote_id } = ends;
        debug_assert_eq!(key.path, tcp.path());
        SubflowContext {
            tcp,
            local_flow: key.local_flow,
            peer_flow: key.peer_flow,
            local_id,
            remote_id,
            membership,
            backup_by_us: backup,
            backup_by_peer: false,
            cost: CompactCost::from_cost(PathCost::NONE),
            phase: Phase::Opening,
            final_segment: FinalSegment::None,
            trouble: OnDemand::new(),
            last_new_at: Instant::ZERO,
        }
    }

    pub(super) const fn tcp(&self) -> &Subflow {
        &self.tcp
    }

    pub(super) const fn tcp_mut(&mut self) -> &mut Subflow {
        &mut self.tcp
    }

    pub(super) fn key(&self) -> FlowKey {
        let (local_flow, peer_flow) = (self.local_flow, self.peer_flow);
        FlowKey { path: self.tcp.path(), local_flow, peer_flow }
    }

    /// Location of the subflow, if it is established.
    pub(super) fn place(&self) -> Option<SubflowLocation> {
        let info = self.tcp.place(self.is_backup())?;
        let (local_flow, peer_flow) = (self.local_flow, self.peer_flow);
        Some(SubflowLocation { local_flow, peer_flow, cost: self.cost(), ..info })
    }

    /// Both addresses.
    pub(super) fn path(&self) -> FourTuple {
        self.tcp.path()
    }

    /// Sets the flow id with which the peer wants to be addressed.
    pub(super) fn set_peer_flow(&mut self, peer_flow: u64) -> FlowKey {
        self.peer_flow = peer_flow;
        self.key()
    }

    /// Id of the local address, as configured.
    pub(super) const fn local_id(&self) -> AddressId {
        self.local_id
    }

    /// Id of the remote address, as assigned by the peer.
    pub(super) const fn remote_id(&self) -> AddressId {
        self.remote_id
    }

    pub(super) const fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(super) const fn is_initial(&self) -> bool {
        matches!(self.membership, Membership::Initial)
    }

    /// True if data may be sent on the subflow.
    pub(super) fn is_active(&self) -> bool {
        self.phase == Phase::Active && self.tcp.is_established()
    }

    /// True if the handshake is complete and the peer authenticated.
    pub(super) const fn is_fully_established(&self) -> bool {
        let proven = match &self.membership {
            Membership::Initial => true,
            Membership::Joining(joining) => joining.confirmed,
            Membership::Joined(joined) => joined.verified,
        };
        proven && matches!(self.phase, Phase::Active)
    }

    /// True if policies know the subflow.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Leaving)
    }

    /// True if the subflow accepts no more data, because it is closing or its address is gone.
    pub(super) const fn is_closed_for_data(&self) -> bool {
        !matches!(self.phase, Phase::Opening | Phase::Active)
    }

    /// True if the handshake was completed.
    pub(super) const fn was_joined(&self) -> bool {
        !matches!(self.phase, Phase::Opening | Phase::Abandoned)
    }

    /// True for a join that we opened and whose third ACK was sent. The peer may have established it.
    pub(super) fn may_be_established_at_peer(&self) -> bool {
        let is_ours = matches!(self.membership, Membership::Joining(_));
        is_ours && self.phase == Phase::Opening && self.tcp.is_established()
    }

    /// True if the subflow was established and policies know that it ended.
    pub(super) const fn is_down(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// True for a join that the peer opened and that is not authenticated.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.membership, Membership::Joined(_)) && matches!(self.phase, Phase::Opening)
    }

    /// Records that the handshake is complete.
    pub(super) const fn establish(&mut self) {
        self.phase = match self.phase {
            Phase::Opening => Phase::Active,
            Phase::Abandoned => Phase::Leaving,
            phase => phase,
        };
    }

    /// Stops data on this subflow.
    pub(super) const fn stop_data(&mut self) {
        self.phase = match self.phase {
            Phase::Opening => Phase::Abandoned,
            Phase::Active => Phase::Leaving,
            phase => phase,
        };
    }

    /// Stops data on this subflow, and closes it.
    pub(super) fn close(&mut self) {
        self.stop_data();
        self.tcp.close();
    }

    /// Stops the subflow from carrying data. Returns true if policies knew it.
    pub(super) const fn stop_carrying(&mut self) -> bool {
        self.stop_data();
        let was_up = self.is_up();
        if was_up {
            self.phase = Phase::Closed;
        }
        was_up
    }

    /// Resets the subflow, with the option that was set before, if any.
    pub(super) fn reset(&mut self) {
        self.stop_data();
        self.tcp.reset();
    }

    /// Resets the subflow with this option.
    pub(super) fn reset_with(&mut self, option: ClosingOption) {
        self.set_closing_option(option);
        self.reset();
    }

    /// Sets the option of the pending RST.
    pub(super) fn set_closing_option(&mut self, option: ClosingOption) {
        if !matches!((option, self.closing_option()), (ClosingOption::None, ClosingOption::None)) {
            self.trouble.closing_option = option;
        }
    }

    /// Sets the reason for the pending RST unless one is set: the first reason is the cause of later ones.
    pub(super) fn add_reset_reason(&mut self, reason: u8) {
        if matches!(self.closing_option(), ClosingOption::None) {
            let reason = MpTcpRst { transient: false, reason };
            self.trouble.closing_option = ClosingOption::Reason(reason);
        }
    }

    pub(super) fn closing_option(&self) -> ClosingOption {
        self.trouble.closing_option
    }

    /// Records that a RST was sent on the subflow.
    pub(super) fn record_reset_sent(&mut self) {
        if self.final_segment == FinalSegment::None {
            self.final_segment = FinalSegment::Reset;
        }
    }

    /// Gives up the subflow after all retries were unanswered. A RST is sent because the peer may still exist and
    /// would keep the subflow forever, and a RST needs only one direction.
    pub(super) const fn give_up(&mut self) {
        if self.was_joined() {
            self.final_segment = FinalSegment::ResetPending;
        }
    }

    pub(super) const fn final_segment(&self) -> FinalSegment {
        self.final_segment
    }

    /// Records the reason with which the peer resets the subflow.
    pub(super) fn set_reset_reason(&mut self, reason: MpTcpRst) {
        self.trouble.reset_reason = Some(reason);
    }

    /// Reason given in the peer's RST.
    pub(super) fn reset_reason(&self) -> Option<MpTcpRst> {
        self.trouble.reset_reason
    }

    /// Records the time if our half is closed and the peer acknowledged it.
    pub(super) fn record_half_closed(&mut self, now: Instant) {
        if self.tcp.state() == SubflowState::FinWait2 {
            self.trouble.half_closed_at.get_or_insert(now);
        }
    }

    /// Time until which the peer's half may stay open after ours.
    pub(super) fn half_closed_until(&self) -> Option<Instant> {
        self.trouble.half_closed_at.map(|at| at.max(self.last_new_at) + HALF_CLOSED)
    }

    /// True for a join that was closed before its SYN was answered.
    pub(super) fn is_closed_unanswered(&self) -> bool {
        self.tcp.state() == SubflowState::Closed && !self.was_joined()
    }

    /// True if the subflow may carry data only if no other subflow can.
    pub(super) const fn is_backup(&self) -> bool {
        self.backup_by_us || self.backup_by_peer
    }

    /// True if we requested that the subflow be a backup.
    pub(super) const fn is_backup_here(&self) -> bool {
        self.backup_by_us
    }

    /// Sets our request that the subflow be a backup. Returns true if it changed.
    pub(super) const fn set_backup_here(&mut self, backup: bool) -> bool {
        core::mem::replace(&mut self.backup_by_us, backup) != backup
    }

    pub(super) const fn set_backup_there(&mut self, backup: bool) {
        self.backup_by_peer = backup;
    }

    /// Cost of using the subflow.
    pub(super) const fn cost(&self) -> PathCost {
        self.cost.get()
    }

    /// Health for policies and monitoring: with a fading signal, the subflow is never usable.
    pub(super) const fn hinted(&self, health: Health, now: Instant) -> Health {
        match health {
            Health::Usable if self.cost.get().fading => {
                Health::Degraded { since: now, cause: AddressPairFault::Fading }
            }
            _ => health,
        }
    }

    /// Sets the cost of using the subflow.
    pub(super) fn set_cost(&mut self, cost: PathCost) {
        self.cost = CompactCost::from_cost(cost);
        self.tcp.set_radio(cost.has_radio());
    }

    /// Records that new stream data or a join arrived on the subflow.
    pub(super) const fn record_new_data(&mut self, now: Instant) {
        self.last_new_at = now;
    }

    pub(super) const fn health(&self) -> &SubflowHealth {
        self.tcp.health()
    }

    pub(super) const fn health_mut(&mut self) -> &mut SubflowHealth {
        self.tcp.health_mut()
    }

    /// True if the subflow carries data and has no known problem.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_active() && self.health().is_usable()
    }

    /// Schedules an MP_FAIL for this time and expects an answer.
    pub(super) fn expect_mp_fail(&mut self, at: Instant) {
        self.trouble.fail.repeat_at = Some(at);
    }

    /// Records that MP_FAIL arrived at the peer. Returns true if an answer was expected.
    pub(super) fn settle_mp_fail(&mut self) -> bool {
        let trouble = self.trouble.if_used();
        trouble.is_some_and(|trouble| trouble.fail.repeat_at.take().is_some())
    }

    /// Returns the action for a pending MP_FAIL. If the peer does not answer, its data can no longer be interpreted.
    pub(super) fn repeat_mp_fail(&mut self, now: Instant) -> FailStep {
        if self.trouble.fail.repeat_at.is_none_or(|at| at > now) {
            return FailStep::NotDue;
        }
        let (is_closed_for_data, rto) = (self.is_closed_for_data(), self.tcp.rto());
        let fail = &mut self.trouble.fail;
        if fail.count > MAX_MP_FAILS || is_closed_for_data {
            fail.repeat_at = None;
            return FailStep::GiveUp;
        }
        fail.repeat_at = Some(now + rto * (1 << fail.count.min(6)));
        fail.count += 1;
        FailStep::Send
    }

    /// True if the peer's MP_FAIL should be answered. The number is limited, so that two sides that both answer stop.
    pub(super) fn answers_mp_fail(&mut self) -> bool {
        let fail = &mut self.trouble.fail;
        let answers = fail.count <= MAX_MP_FAILS;
        if answers {
            fail.count += 1;
        }
        answers
    }

    /// Records that the SYN/ACK of our join authenticated the peer; `hmac` is sent in our third ACK.
    pub(super) fn prove_syn_ack(&mut self, backup: bool, hmac: Option<[u8; 20]>) {
        self.backup_by_peer = backup;
        if let Membership::Joining(joining) = &mut self.membership {
            joining.hmac = hmac;
        }
    }

    /// Records that the third ACK of the peer's join authenticated it.
    pub(super) fn verify(&mut self) {
        if let Membership::Joined(joined) = &mut self.membership {
            joined.verified = true;
        }
    }

    /// Completes a join's TCP handshake on our side.
    pub(super) fn on_join_established(&mut self, now: Instant) -> JoinStep {
        self.tcp.ack_now();
        match &mut self.membership {
            Membership::Joining(joining) if !joining.confirmed => {
                joining.repeat_at = Some(now + third_ack_pause(&self.tcp, 0));
                return JoinStep::Pending;
            }
            _ => {}
        }
        self.establish();
        match &self.membership {
            Membership::Joined(joined) if joined.is_fast() => JoinStep::UpFast,
            _ => JoinStep::Up,
        }
    }

    /// Handles a valid segment. Returns true if it counts as the fourth ACK, after our third.
    pub(super) fn on_fourth_ack(&mut self) -> bool {
        let Membership::Joining(joining) = &mut self.membership else { return false };
        if joining.confirmed || joining.hmac.is_none() || !self.tcp.is_established() {
            return false;
        }
        joining.confirmed = true;
        joining.repeat_at = None;
        self.establish();
        true
    }

    /// Repeats the fourth ACK. The peer still sends its third ACK, so the fourth did not arrive, and until then the
    /// peer must not send data (RFC 8684 section 3.2). TCP itself does not answer a repeated pure ACK.
    pub(super) fn repeat_fourth_ack(&mut self) {
        if matches!(self.membership(), Membership::Joined(joined) if joined.is_verified()) {
            self.tcp_mut().ack_now();
        }
    }

    /// Repeats the third ACK if the fourth does not arrive. Returns true if the join is to be given up.
    pub(super) fn repeat_third_ack(&mut self, now: Instant) -> bool {
        let Membership::Joining(joining) = &mut self.membership else { return false };
        if joining.repeat_at.is_none_or(|at| at > now) {
            return false;
        }
        joining.repeats += 1;
        joining.repeat_at = Some(now + third_ack_pause(&self.tcp, joining.repeats));
        let given_up = joining.repeats > MAX_THIRD_ACKS;
        self.tcp.ack_now();
        given_up
    }

    /// Pending third ACK.
    pub(super) fn third_ack(&self) -> Option<MpJoin> {
        match &self.membership {
            Membership::Joining(joining) if !joining.confirmed => {
                joining.hmac.map(|hmac| MpJoin::Ack { hmac })
            }
            _ => None,
        }
    }

    /// Unsettled Fast JOIN that we opened.
    pub(super) fn fast_opened(&self) -> Option<FastOpened> {
        match &self.membership {
            Membership::Joining(joining) => joining.fast,
            _ => None,
        }
    }

    /// Records that the SYN of our Fast JOIN is sent.
    pub(super) fn send_fast(&mut self, fast: FastOpened) {
        if let Membership::Joining(joining) = &mut self.membership {
            joining.fast = Some(fast);
        }
    }

    /// Records that the answer to our Fast JOIN authenticated the peer.
    pub(super) fn confirm_fast(&mut self, backup: bool) {
        self.backup_by_peer = backup;
        if let Membership::Joining(joining) = &mut self.membership {
            joining.confirmed = true;
        }
    }

    /// Settles our Fast JOIN once the subflow is established. The returned flag is true if only the ordinary SYN was
    /// answered.
    pub(super) fn settle_fast(&mut self, now: Instant) -> Option<(FastOpened, bool)> {
        let Membership::Joining(joining) = &mut self.membership else { return None };
        let fast = joining.fast.take()?;
        // A third and a fourth ACK were exchanged.
        let ordinary = joining.hmac.is_some();
        self.tcp.settle_syn_payload(now, None);
        Some((fast, ordinary))
    }

    /// Handles a segment on the peer's Fast JOIN whose handshake is not complete. If our answer was lost, the opener
    /// may have fallen back to an ordinary join with the same ports. It gets the answer to its last SYN, and its
    /// third ACK shows which answer it received.
    pub(super) fn on_half_open_fast(&mut self, segment: &TcpSegment<'_>, keys: &Keys) -> HalfOpen {
        let first = marline_policy::Ssn(1);
        let (seq, flags) = (segment.header.seq, segment.header.flags);
        let in_turn =
            seq == self.tcp.peer_to_wire(first) && segment.header.ack == self.tcp.to_wire(first);
        let again = seq == self.tcp.peer_to_wire(marline_policy::Ssn(0));
        let Membership::Joined(joined) = &mut self.membership else { return HalfOpen::Admitted };
        let Some(fast) = &mut joined.fast else { return HalfOpen::Admitted };
        match mp_join(segment) {
            Some(MpJoin::Syn { nonce, .. }) if again && flags.contains(TcpFlags::SYN) => {
                fast.ordinary = true;
                joined.peer_nonce = nonce;
                self.tcp.acknowledge_syn_alone(true);
            }
            Some(MpJoin::Ack { hmac }) if fast.ordinary && in_turn => {
                if !keys.proves_third_ack(&hmac, joined.nonce, joined.peer_nonce) {
                    return HalfOpen::BadHmac;
                }
                joined.fast = None;
                self.tcp.forget_syn_payload();
                return HalfOpen::FellBack;
            }
            _ if again && fast_join_token(segment).is_some() => {
                fast.ordinary = false;
                self.tcp.acknowledge_syn_alone(false);
            }
            _ => {}
        }
        HalfOpen::Admitted
    }

    /// Times of pending timers.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 5] {
        let repeat = match &self.membership {
            Membership::Joining(joining) => joining.repeat_at,
            _ => None,
        };
        let (fail, half_closed) = (self.trouble.fail.repeat_at, self.half_closed_until());
        [self.tcp.next_timeout(), self.health().next_timeout(), repeat, fail, half_closed]
    }

    /// True if this byte is on the subflow's own scoreboard.
    pub(super) fn holds_byte(&self, at: marline_policy::Dsn) -> bool {
        self.tcp.unacked().any(|s| s.dsn <= at && at < s.dsn.plus(s.payload_len()))
    }

    /// Unacknowledged data of the stream, starting at `una`, as merged ranges.
    pub(super) fn unacked_ranges(&self, una: marline_policy::Dsn) -> Vec<DataRange> {
        ranges_of(self.tcp.unacked(), una)
    }

    /// Lost data of the stream, starting at `una`, that has not been retransmitted, as merged ranges.
    pub(super) fn lost_ranges(&self, una: marline_policy::Dsn) -> Vec<DataRange> {
        ranges_of(self.tcp.unacked().filter(|segment| segment.lost), una)
    }

    /// View for schedulers.
    pub(super) fn view(&self, now: Instant, id: SubflowId) -> SubflowView {
        let backup = self.is_backup();
        let mut view = self.tcp.view(now, id, self.local_id, self.remote_id, backup);
        if !self.is_active() {
            view.eligibility = Eligibility::NotActive;
        }
        view.last_new_at = self.last_new_at;
        let cost = self.cost();
        if !cost.is_none() {
            (view.metered, view.limited) = (cost.metered, cost.limited);
            view.health = self.hinted(view.health, now);
            view.wake_share = cost.wake_share(now, view.last_sent_at.max(view.last_rx_at));
        }
        view
    }

    /// View for path managers.
    pub(super) fn subflow_path(&self, id: SubflowId) -> SubflowPath {
        let FourTuple { local, remote } = self.path();
        SubflowPath {
            id,
            local,
            remote,
            local_id: self.local_id,
            remote_id: self.remote_id,
            established: self.is_up(),
        }
    }
}

/// Stream ranges of these segments, starting at `una`, merged.
fn ranges_of<'a>(
    segments: impl Iterator<Item = &'a SentSegment>,
    una: marline_policy::Dsn,
) -> Vec<DataRange> {
    let mut held: Option<DataRange> = None;
    let mut ranges = Vec::new();
    for segment in segments {
        let start = segment.dsn.max(una);
        let range = DataRange::new(start, segment.dsn.plus(segment.payload_len()));
        if range.is_empty() {
            continue;
        }
        match &mut held {
            Some(whole) if whole.end == range.start => whole.end = range.end,
            _ => ranges.extend(held.replace(range)),
        }
    }
    ranges.extend(held);
    ranges
}

/// Time for which a third ACK waits for the fourth, which the peer does not delay. The first two waits are two round
/// trips, later ones the timeout with backoff.
fn third_ack_pause(tcp: &Subflow, repeats: u32) -> Duration {
    let rto = tcp.rto();
    match tcp.srtt() {
        Some(srtt) if repeats < 2 => (srtt * 2).clamp(MIN_RETRY_PAUSE, rto.max(MIN_RETRY_PAUSE)),
        _ => (rto * (1 << repeats.min(6))).min(Duration::from_secs(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_kept_in_two_bytes() {
        for (told, kept) in [(0, 0), (1, 8), (11_576, 11_576), (65_528, 65_528), (65_535, 65_528)] {
            for flags in 0..8 {
                let cost = |tail_ms| PathCost {
                    metered: flags & 1 != 0,
                    fading: flags & 2 != 0,
                    limited: flags & 4 != 0,
                    tail_ms,
                };
                assert_eq!(CompactCost::from_cost(cost(told)).get(), cost(kept));
            }
        }
    }
}
