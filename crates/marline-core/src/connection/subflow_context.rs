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
use crate::on_demand::{OnDemand, Unused};
use crate::subflow::{Subflow, SubflowHealth};
use crate::tables::demux::FlowKey;
use crate::{SubflowPlace, SubflowState};

/// How long the other half of a subflow stays open that we closed, with nothing coming on it (Linux:
/// `tcp_fin_timeout`, 60 s).
const HALF_CLOSED: Duration = Duration::from_secs(60);
/// Third ACKs without an answer after which a join is given up.
const MAX_THIRD_ACKS: u32 = 6;
/// Third ACKs are at least this far apart.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// MP_FAILs without an answer after which the subflow is reset, and answers given.
const MAX_MP_FAILS: u32 = 6;

/// How the subflow belongs to the connection.
#[derive(Debug)]
pub(super) enum Membership {
    /// The first subflow: MP_CAPABLE.
    Initial,
    /// We joined: MP_JOIN from our SYN on.
    Joining(Box<Joining>),
    /// The peer joined.
    Joined(Box<Joined>),
}

/// A join that we opened.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Joining {
    nonce: u32,
    /// The HMAC of the third ACK, once the SYN/ACK proved the peer.
    hmac: Option<[u8; 20]>,
    /// A Fast JOIN, until the subflow is up.
    fast: Option<FastOpened>,
    /// The fourth ACK came, or the answer to a Fast JOIN: data may go.
    confirmed: bool,
    /// When the third ACK goes out again.
    repeat_at: Option<Instant>,
    repeats: u32,
}

/// A join that the peer opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct Joined {
    nonce: u32,
    peer_nonce: u32,
    /// The third ACK proved the peer, or the SYN of a Fast JOIN did.
    verified: bool,
    /// Its SYN was that of a Fast JOIN.
    fast: Option<FastAccepted>,
}

/// A Fast JOIN that we opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastOpened {
    pub(super) form: FastJoinForm,
    /// Its SYN went out.
    sent: bool,
    /// The data that went with it.
    pub(super) range: Option<DataRange>,
    /// HMAC of the SYN.
    pub(super) hmac: u64,
}

impl FastOpened {
    /// One whose SYN is not built yet.
    const WANTED: FastOpened =
        FastOpened { form: FastJoinForm::In, sent: false, range: None, hmac: 0 };

    /// One whose SYN goes out now.
    pub(super) const fn sent(form: FastJoinForm, range: Option<DataRange>, hmac: u64) -> Self {
        FastOpened { form, sent: true, range, hmac }
    }

    pub(super) const fn is_sent(&self) -> bool {
        self.sent
    }
}

/// A Fast JOIN of the peer.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastAccepted {
    pub(super) form: FastJoinForm,
    /// HMAC of its SYN.
    pub(super) hmac: u64,
    /// It came back as the SYN of an ordinary join, which the last SYN/ACK answers.
    ordinary: bool,
}

impl FastAccepted {
    pub(super) const fn new(form: FastJoinForm, hmac: u64) -> Self {
        FastAccepted { form, hmac, ordinary: false }
    }
}

impl Membership {
    /// A join that we open, fast or not.
    pub(super) fn joining(nonce: u32, fast: bool) -> Self {
        let fast = fast.then_some(FastOpened::WANTED);
        Membership::Joining(Box::new(Joining { nonce, fast, ..Joining::default() }))
    }

    /// A join of the peer, whose third ACK will prove it.
    pub(super) fn joined(nonce: u32, peer_nonce: u32) -> Self {
        let (verified, fast) = (false, None);
        Membership::Joined(Box::new(Joined { nonce, peer_nonce, verified, fast }))
    }

    /// A Fast JOIN of the peer, proven by its SYN.
    pub(super) fn joined_fast(nonce: u32, fast: FastAccepted) -> Self {
        let (verified, fast) = (true, Some(fast));
        Membership::Joined(Box::new(Joined { nonce, peer_nonce: 0, verified, fast }))
    }
}

impl Joining {
    pub(super) const fn nonce(&self) -> u32 {
        self.nonce
    }

    /// The SYN/ACK that proves the peer has not come.
    pub(super) const fn awaits_syn_ack(&self) -> bool {
        self.hmac.is_none() && !self.confirmed
    }
}

impl Joined {
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

    /// The Fast JOIN that the SYN/ACK answers.
    pub(super) fn fast_to_answer(&self) -> Option<FastAccepted> {
        self.fast.filter(|fast| !fast.ordinary)
    }
}

/// Where the subflow stands between its SYN and its slot's next use.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Its handshake is not through.
    Opening,
    /// Its handshake is not through, and it is to carry no data when it is.
    Abandoned,
    /// It was established, and policies know of it.
    Active,
    /// Policies know of it, and it takes no more data.
    Leaving,
    /// It was established once, and policies know that it is gone.
    Closed,
}

/// What is left to be said once the subflow is gone.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum LastWord {
    /// What TCP says by itself.
    #[default]
    None,
    /// A RST went out on it: again to who comes late.
    Reset,
    /// All its retries went unanswered: a RST goes out when it is gone, and again.
    ResetOwed,
}

/// What a RST says besides being one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum ClosingOption {
    /// Nothing.
    #[default]
    None,
    /// MP_TCPRST.
    Reason(MpTcpRst),
    /// MP_FAIL: a checksum failed here. The reason goes with it.
    Fail(MpFail),
    /// MP_FASTCLOSE: the whole connection ends.
    Fastclose,
}

/// What became of MP_FAIL on a subflow.
#[derive(Copy, Clone, Debug, Default)]
struct FailState {
    /// When ours goes out again.
    repeat_at: Option<Instant>,
    /// How often it was sent, or sent in answer.
    count: u32,
}

/// What to do about an MP_FAIL that was not answered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum FailStep {
    NotDue,
    Send,
    GiveUp,
}

/// What follows from a completed TCP handshake of a join.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum JoinStep {
    /// The subflow carries data.
    Up,
    /// So it does, after a Fast JOIN of the peer.
    UpFast,
    /// The fourth ACK is waited for.
    Waits,
}

/// What a segment on a half-open Fast JOIN of the peer is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum HalfOpen {
    /// TCP may have it.
    Admitted,
    /// The opener went over to an ordinary join, and has proven itself.
    WentOrdinary,
    /// Its HMAC is wrong: TCP must not have it.
    BadHmac,
}

/// The ends of a subflow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ends {
    pub(super) key: FlowKey,
    /// Id of the local address, as configured.
    pub(super) local_id: AddressId,
    /// Id of the remote address, as the peer gave it.
    pub(super) remote_id: AddressId,
}

/// What most subflows live without: failed checksums, resets, and halves that are closed.
#[derive(Debug, Default)]
struct Trouble {
    /// What the peer said of its RST.
    reset_reason: Option<MpTcpRst>,
    /// Goes with the RST that is owed.
    closing_option: ClosingOption,
    /// Our half is closed, and the peer knows, since.
    half_closed_at: Option<Instant>,
    /// MP_FAIL that is to be repeated, or was sent in answer.
    fail: FailState,
}

impl Unused for Trouble {
    const UNUSED: &'static Self = &Trouble {
        reset_reason: None,
        closing_option: ClosingOption::None,
        half_closed_at: None,
        fail: FailState { repeat_at: None, count: 0 },
    };
}

/// What using a path costs, in the two bytes that an idle subflow has to spare: the tail to four milliseconds.
#[derive(Copy, Clone, Debug)]
struct CompactCost(u16);

impl CompactCost {
    const METERED: u16 = 1 << 15;
    const FADING: u16 = 1 << 14;
    const TAIL: u16 = Self::FADING - 1;

    const fn of(cost: PathCost) -> Self {
        let metered = if cost.metered { Self::METERED } else { 0 };
        let fading = if cost.fading { Self::FADING } else { 0 };
        let (quarter, most) = (cost.tail_ms.div_ceil(4), Self::TAIL);
        CompactCost(if quarter < most { quarter } else { most } | metered | fading)
    }

    const fn get(self) -> PathCost {
        let (metered, fading) = (self.0 & Self::METERED != 0, self.0 & Self::FADING != 0);
        PathCost { metered, fading, tail_ms: (self.0 & Self::TAIL) * 4 }
    }
}

/// One subflow as its connection knows it.
#[derive(Debug)]
pub(super) struct SubflowContext {
    tcp: Subflow,
    /// Our id of the flow and the peer's, as in [`FlowKey`].
    local_flow: u64,
    peer_flow: u64,
    local_id: AddressId,
    remote_id: AddressId,
    membership: Membership,
    /// We asked that it be a backup.
    backup_here: bool,
    /// The peer asked that it be a backup.
    backup_there: bool,
    /// What using it costs: as a client knows, or as it has told its server.
    cost: CompactCost,
    phase: Phase,
    last_word: LastWord,
    trouble: OnDemand<Trouble>,
    /// When it last brought news of the stream, or joined.
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
            backup_here: backup,
            backup_there: false,
            cost: CompactCost::of(PathCost::NONE),
            phase: Phase::Opening,
            last_word: LastWord::None,
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

    /// Where it is, if it is established.
    pub(super) fn place(&self) -> Option<SubflowPlace> {
        let info = self.tcp.place(self.is_backup())?;
        let (local_flow, peer_flow) = (self.local_flow, self.peer_flow);
        Some(SubflowPlace { local_flow, peer_flow, cost: self.cost(), ..info })
    }

    /// Its two ends.
    pub(super) fn path(&self) -> FourTuple {
        self.tcp.path()
    }

    /// The peer said by which id it wants to be addressed.
    pub(super) fn set_peer_flow(&mut self, peer_flow: u64) -> FlowKey {
        self.peer_flow = peer_flow;
        self.key()
    }

    /// Id of the local address, as configured.
    pub(super) const fn local_id(&self) -> AddressId {
        self.local_id
    }

    /// Id of the remote address, as the peer gave it.
    pub(super) const fn remote_id(&self) -> AddressId {
        self.remote_id
    }

    pub(super) const fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(super) const fn is_initial(&self) -> bool {
        matches!(self.membership, Membership::Initial)
    }

    /// Data may be sent on it.
    pub(super) fn is_usable(&self) -> bool {
        self.phase == Phase::Active && self.tcp.is_established()
    }

    /// Established, proven, and nothing of its handshake is open.
    pub(super) const fn is_steady(&self) -> bool {
        let proven = match &self.membership {
            Membership::Initial => true,
            Membership::Joining(joining) => joining.confirmed,
            Membership::Joined(joined) => joined.verified,
        };
        proven && matches!(self.phase, Phase::Active)
    }

    /// Policies know of it.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Leaving)
    }

    /// It takes no more data: closing, or its address is gone.
    pub(super) const fn is_shut(&self) -> bool {
        !matches!(self.phase, Phase::Opening | Phase::Active)
    }

    /// Its handshake is through.
    pub(super) const fn was_joined(&self) -> bool {
        !matches!(self.phase, Phase::Opening | Phase::Abandoned)
    }

    /// It was established once, and policies know that it is gone.
    pub(super) const fn is_down(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// A join that the peer began and has not proven.
    pub(super) const fn is_pending(&self) -> bool {
        matches!(self.membership, Membership::Joined(_)) && matches!(self.phase, Phase::Opening)
    }

    /// Its handshake is through.
    pub(super) const fn establish(&mut self) {
        self.phase = match self.phase {
            Phase::Opening => Phase::Active,
            Phase::Abandoned => Phase::Leaving,
            phase => phase,
        };
    }

    /// It takes no more data.
    pub(super) const fn shut(&mut self) {
        self.phase = match self.phase {
            Phase::Opening => Phase::Abandoned,
            Phase::Active => Phase::Leaving,
            phase => phase,
        };
    }

    /// It takes no more data, and closes.
    pub(super) fn close(&mut self) {
        self.shut();
        self.tcp.close();
    }

    /// It carries nothing any more. Whether policies knew of it.
    pub(super) const fn stop_carrying(&mut self) -> bool {
        self.shut();
        let was_up = self.is_up();
        if was_up {
            self.phase = Phase::Closed;
        }
        was_up
    }

    /// A RST ends it, which says no more than that it is one, or what was to be said before.
    pub(super) fn reset(&mut self) {
        self.shut();
        self.tcp.reset();
    }

    /// A RST ends it, and says this.
    pub(super) fn reset_with(&mut self, option: ClosingOption) {
        self.set_closing_option(option);
        self.reset();
    }

    /// The RST that is owed says this.
    pub(super) fn set_closing_option(&mut self, option: ClosingOption) {
        if !matches!((option, self.closing_option()), (ClosingOption::None, ClosingOption::None)) {
            self.trouble.closing_option = option;
        }
    }

    /// The same, unless it has something to say already: the first reason is the cause of the next.
    pub(super) fn add_reset_reason(&mut self, reason: u8) {
        if matches!(self.closing_option(), ClosingOption::None) {
            let reason = MpTcpRst { transient: false, reason };
            self.trouble.closing_option = ClosingOption::Reason(reason);
        }
    }

    pub(super) fn closing_option(&self) -> ClosingOption {
        self.trouble.closing_option
    }

    /// A RST went out on it.
    pub(super) fn note_reset_sent(&mut self) {
        if self.last_word == LastWord::None {
            self.last_word = LastWord::Reset;
        }
    }

    /// All its retries went unanswered. The peer may still be there, and hold the subflow for good: one
    /// direction is enough for a RST.
    pub(super) const fn give_up(&mut self) {
        if self.was_joined() {
            self.last_word = LastWord::ResetOwed;
        }
    }

    pub(super) const fn last_word(&self) -> LastWord {
        self.last_word
    }

    /// The peer says why it resets the subflow.
    pub(super) fn set_reset_reason(&mut self, reason: MpTcpRst) {
        self.trouble.reset_reason = Some(reason);
    }

    /// What the peer said of its RST.
    pub(super) fn reset_reason(&self) -> Option<MpTcpRst> {
        self.trouble.reset_reason
    }

    /// Our half may be closed, and the peer know.
    pub(super) fn note_half_closed(&mut self, now: Instant) {
        if self.tcp.state() == SubflowState::FinWait2 {
            self.trouble.half_closed_at.get_or_insert(now);
        }
    }

    /// How long the peer's half may stay open after ours.
    pub(super) fn half_closed_until(&self) -> Option<Instant> {
        self.trouble.half_closed_at.map(|at| at.max(self.last_new_at) + HALF_CLOSED)
    }

    /// A join whose SYN nobody has answered was closed without a word.
    pub(super) fn is_closed_unanswered(&self) -> bool {
        self.tcp.state() == SubflowState::Closed && !self.was_joined()
    }

    /// Carries data only if nothing else can.
    pub(super) const fn is_backup(&self) -> bool {
        self.backup_here || self.backup_there
    }

    /// We asked that it be a backup.
    pub(super) const fn is_backup_here(&self) -> bool {
        self.backup_here
    }

    /// We ask that it be a backup, or not. Whether that is news.
    pub(super) const fn set_backup_here(&mut self, backup: bool) -> bool {
        core::mem::replace(&mut self.backup_here, backup) != backup
    }

    pub(super) const fn set_backup_there(&mut self, backup: bool) {
        self.backup_there = backup;
    }

    /// What using it costs.
    pub(super) const fn cost(&self) -> PathCost {
        self.cost.get()
    }

    /// What policies and people see of its health: where the signal fades, nothing is fine.
    pub(super) const fn hinted(&self, health: Health, now: Instant) -> Health {
        match health {
            Health::Fine if self.cost.get().fading => {
                Health::Doubtful { since: now, cause: AddressPairFault::Fading }
            }
            _ => health,
        }
    }

    /// Using it costs this.
    pub(super) fn set_cost(&mut self, cost: PathCost) {
        self.cost = CompactCost::of(cost);
        self.tcp.set_radio(cost.tail_ms > 0);
    }

    /// It brought news of the stream, or joined.
    pub(super) const fn note_news(&mut self, now: Instant) {
        self.last_new_at = now;
    }

    pub(super) const fn health(&self) -> &SubflowHealth {
        self.tcp.health()
    }

    pub(super) const fn health_mut(&mut self) -> &mut SubflowHealth {
        self.tcp.health_mut()
    }

    /// It carries data, and nothing speaks against it.
    pub(super) fn is_healthy(&self) -> bool {
        self.is_usable() && self.health().is_fine()
    }

    /// The MP_FAIL that goes out at this time is to be answered.
    pub(super) fn expect_mp_fail(&mut self, at: Instant) {
        self.trouble.fail.repeat_at = Some(at);
    }

    /// The peer shows that MP_FAIL came through. Whether an answer was expected.
    pub(super) fn settle_mp_fail(&mut self) -> bool {
        let trouble = self.trouble.if_used();
        trouble.is_some_and(|trouble| trouble.fail.repeat_at.take().is_some())
    }

    /// Whether MP_FAIL goes out now. A peer that does not answer cannot be understood any more.
    pub(super) fn repeat_mp_fail(&mut self, now: Instant) -> FailStep {
        if self.trouble.fail.repeat_at.is_none_or(|at| at > now) {
            return FailStep::NotDue;
        }
        let (is_shut, rto) = (self.is_shut(), self.tcp.rto());
        let fail = &mut self.trouble.fail;
        if fail.count > MAX_MP_FAILS || is_shut {
            fail.repeat_at = None;
            return FailStep::GiveUp;
        }
        fail.repeat_at = Some(now + rto * (1 << fail.count.min(6)));
        fail.count += 1;
        FailStep::Send
    }

    /// Whether the peer's MP_FAIL is answered: two sides that both answer must come to an end.
    pub(super) fn answers_mp_fail(&mut self) -> bool {
        let fail = &mut self.trouble.fail;
        let answers = fail.count <= MAX_MP_FAILS;
        if answers {
            fail.count += 1;
        }
        answers
    }

    /// The SYN/ACK of a join that we opened proves the peer: the HMAC that our third ACK shows.
    pub(super) fn prove_syn_ack(&mut self, backup: bool, hmac: Option<[u8; 20]>) {
        self.backup_there = backup;
        if let Membership::Joining(joining) = &mut self.membership {
            joining.hmac = hmac;
        }
    }

    /// The third ACK of a join that the peer opened proves it.
    pub(super) fn verify(&mut self) {
        if let Membership::Joined(joined) = &mut self.membership {
            joined.verified = true;
        }
    }

    /// A join's TCP handshake is complete on our side.
    pub(super) fn on_join_established(&mut self, now: Instant) -> JoinStep {
        self.tcp.ack_now();
        match &mut self.membership {
            Membership::Joining(joining) if !joining.confirmed => {
                joining.repeat_at = Some(now + third_ack_pause(&self.tcp, 0));
                return JoinStep::Waits;
            }
            _ => {}
        }
        self.establish();
        match &self.membership {
            Membership::Joined(joined) if joined.is_fast() => JoinStep::UpFast,
            _ => JoinStep::Up,
        }
    }

    /// A valid segment came: if our third ACK was out, this is the fourth. Whether it is.
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

    /// Repeats the third ACK when the fourth does not come. Whether to give the join up.
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

    /// The third ACK that it still has to show.
    pub(super) fn third_ack(&self) -> Option<MpJoin> {
        match &self.membership {
            Membership::Joining(joining) if !joining.confirmed => {
                joining.hmac.map(|hmac| MpJoin::Ack { hmac })
            }
            _ => None,
        }
    }

    /// The Fast JOIN that we opened with it and that is not settled.
    pub(super) fn fast_opened(&self) -> Option<FastOpened> {
        match &self.membership {
            Membership::Joining(joining) => joining.fast,
            _ => None,
        }
    }

    /// The SYN of our Fast JOIN goes out.
    pub(super) fn send_fast(&mut self, fast: FastOpened) {
        if let Membership::Joining(joining) = &mut self.membership {
            joining.fast = Some(fast);
        }
    }

    /// The answer to our Fast JOIN proves the peer.
    pub(super) fn confirm_fast(&mut self, backup: bool) {
        self.backup_there = backup;
        if let Membership::Joining(joining) = &mut self.membership {
            joining.confirmed = true;
        }
    }

    /// It is up: the Fast JOIN that we opened with it, and whether only the ordinary SYN was answered.
    pub(super) fn settle_fast(&mut self, now: Instant) -> Option<(FastOpened, bool)> {
        let Membership::Joining(joining) = &mut self.membership else { return None };
        let fast = joining.fast.take()?;
        // Third and fourth ACK.
        let ordinary = joining.hmac.is_some();
        self.tcp.settle_syn_payload(now, None);
        Some((fast, ordinary))
    }

    /// A segment on a Fast JOIN of the peer whose handshake is not through. Its opener may have gone
    /// over to an ordinary join, with the same ports, because our answer did not get through. It gets the
    /// answer to the SYN that it sent last; by its third ACK it says which of the two it has.
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
                return HalfOpen::WentOrdinary;
            }
            _ if again && fast_join_token(segment).is_some() => {
                fast.ordinary = false;
                self.tcp.acknowledge_syn_alone(false);
            }
            _ => {}
        }
        HalfOpen::Admitted
    }

    /// When something is due on it.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 5] {
        let repeat = match &self.membership {
            Membership::Joining(joining) => joining.repeat_at,
            _ => None,
        };
        let (fail, half_closed) = (self.trouble.fail.repeat_at, self.half_closed_until());
        [self.tcp.next_timeout(), self.health().next_timeout(), repeat, fail, half_closed]
    }

    /// Whether it still has this byte on its own scoreboard.
    pub(super) fn holds(&self, at: marline_policy::Dsn) -> bool {
        self.tcp.unacked().any(|s| s.dsn <= at && at < s.dsn.plus(s.payload_len()))
    }

    /// What it holds of the stream from `una` on, as few ranges as it takes.
    pub(super) fn unacked_ranges(&self, una: marline_policy::Dsn) -> Vec<DataRange> {
        ranges_of(self.tcp.unacked(), una)
    }

    /// What it believes lost of the stream from `una` on and did not repeat yet, as few ranges as it takes.
    pub(super) fn lost_ranges(&self, una: marline_policy::Dsn) -> Vec<DataRange> {
        ranges_of(self.tcp.unacked().filter(|segment| segment.lost), una)
    }

    /// What schedulers judge it by.
    pub(super) fn view(&self, now: Instant, id: SubflowId) -> SubflowView {
        let backup = self.is_backup();
        let mut view = self.tcp.view(now, id, self.local_id, self.remote_id, backup);
        if !self.is_usable() {
            view.eligibility = Eligibility::NotUsable;
        }
        view.last_new_at = self.last_new_at;
        let cost = self.cost();
        if !cost.is_none() {
            view.metered = cost.metered;
            view.health = self.hinted(view.health, now);
            view.wake_share = cost.wake_share(now, view.last_sent_at.max(view.last_heard_at));
        }
        view
    }

    /// What path managers judge it by.
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

/// The places of these segments in the stream from `una` on, as few ranges as it takes.
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

/// How long a third ACK waits for the fourth, which nobody delays: two round trips for the first two, then the
/// timeout, backed off.
fn third_ack_pause(tcp: &Subflow, repeats: u32) -> Duration {
    let rto = tcp.rto();
    match tcp.srtt() {
        Some(srtt) if repeats < 2 => (srtt * 2).clamp(LEAST_PAUSE, rto.max(LEAST_PAUSE)),
        _ => (rto * (1 << repeats.min(6))).min(Duration::from_secs(10)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_kept_in_two_bytes() {
        for (told, kept) in [(0, 0), (1, 4), (11_576, 11_576), (65_532, 65_532), (65_535, 65_532)] {
            for (metered, fading) in [(false, false), (true, false), (false, true), (true, true)] {
                let cost = CompactCost::of(PathCost { metered, fading, tail_ms: told }).get();
                assert_eq!(cost, PathCost { metered, fading, tail_ms: kept });
            }
        }
    }
}
