//! A Leg: one subflow as its connection knows it, everything beyond plain TCP in one struct.

use marline_policy::{AddressId, DataRange};
use marline_time::Instant;
use marline_wire::mptcp::{FastJoinForm, MpFail, MpTcpRst};

use super::wait::HALF_CLOSED;
use crate::oracle::NetpathFault;
use crate::subflow::Subflow;
use crate::tables::demux::FlowKey;

/// How the subflow belongs to the connection.
#[derive(Copy, Clone, Debug)]
pub(super) enum Membership {
    /// The first subflow: MP_CAPABLE.
    Initial,
    /// We joined: MP_JOIN from our SYN on.
    Joining(Joining),
    /// The peer joined.
    Joined(Joined),
}

/// A join that we opened.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Joining {
    pub(super) nonce: u32,
    /// The HMAC of the third ACK, once the SYN/ACK proved the peer.
    pub(super) hmac: Option<[u8; 20]>,
    /// A Fast JOIN, until the subflow is up.
    pub(super) fast: Option<FastOpened>,
    /// The fourth ACK came, or the answer to a Fast JOIN: data may go.
    pub(super) confirmed: bool,
    /// When the third ACK goes out again.
    pub(super) repeat_at: Option<Instant>,
    pub(super) repeats: u32,
}

/// A join that the peer opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct Joined {
    pub(super) nonce: u32,
    pub(super) peer_nonce: u32,
    /// The third ACK proved the peer, or the SYN of a Fast JOIN did.
    pub(super) verified: bool,
    /// Its SYN was that of a Fast JOIN.
    pub(super) fast: Option<FastAccepted>,
}

/// A Fast JOIN that we opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastOpened {
    pub(super) form: FastJoinForm,
    /// Its SYN went out.
    pub(super) sent: bool,
    /// The data that went with it.
    pub(super) range: Option<DataRange>,
    /// HMAC of the SYN.
    pub(super) hmac: u64,
}

impl FastOpened {
    /// One whose SYN is not built yet.
    pub(super) const WANTED: FastOpened =
        FastOpened { form: FastJoinForm::In, sent: false, range: None, hmac: 0 };
}

/// A Fast JOIN of the peer.
#[derive(Copy, Clone, Debug)]
pub(super) struct FastAccepted {
    pub(super) form: FastJoinForm,
    /// HMAC of its SYN.
    pub(super) hmac: u64,
    /// It came back as the SYN of an ordinary join, which the last SYN/ACK answers.
    pub(super) ordinary: bool,
}

/// What became of MP_FAIL on a subflow.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FailState {
    /// When ours goes out again.
    pub(super) repeat_at: Option<Instant>,
    /// How often it was sent, or sent in answer.
    pub(super) count: u32,
}

/// One subflow as its connection knows it.
#[derive(Debug)]
pub(super) struct Leg {
    pub(super) tcp: Subflow,
    pub(super) key: FlowKey,
    pub(super) membership: Membership,
    /// Id of the local address, as configured.
    pub(super) local_id: AddressId,
    /// Id of the remote address, as the peer gave it.
    pub(super) remote_id: AddressId,
    /// We asked that it be a backup.
    pub(super) backup_here: bool,
    /// The peer asked that it be a backup.
    pub(super) backup_there: bool,
    /// MP_FAIL that is to be repeated, or was sent in answer.
    pub(super) fail: FailState,
    /// It was established, and policies know of it.
    pub(super) up: bool,
    /// It was established once.
    pub(super) was_up: bool,
    /// What the peer said of its RST.
    pub(super) reset_word: Option<MpTcpRst>,
    /// A RST went out on it.
    pub(super) reset_sent: bool,
    /// All its retries went unanswered; its RST goes out once it is gone.
    pub(super) gave_up: bool,
    /// Our half is closed, and the peer knows, since.
    pub(super) half_closed_at: Option<Instant>,
    /// It takes no more data: closing, or its address is gone.
    pub(super) shut: bool,
    /// Goes with the RST that is owed.
    pub(super) farewell: Farewell,
    /// When unanswered probes turn into reinjection, if not at once.
    pub(super) patience_until: Option<Instant>,
    /// Its probe stayed unanswered and its data was queued for other subflows.
    pub(super) suspected: bool,
    /// When it last brought news of the stream, or joined.
    pub(super) last_new_at: Instant,
    /// Why the oracle holds its netpath to be bad.
    pub(super) netpath_fault: Option<NetpathFault>,
}

/// What a RST says besides being one.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum Farewell {
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

impl Leg {
    /// How long the peer's half may stay open after ours.
    pub(super) fn half_closed_until(&self) -> Option<Instant> {
        self.half_closed_at.map(|at| at.max(self.last_new_at) + HALF_CLOSED)
    }

    /// Data may be sent on it.
    pub(super) fn is_usable(&self) -> bool {
        self.up && !self.shut && self.tcp.is_established()
    }

    /// Carries data only if nothing else can.
    pub(super) const fn is_backup(&self) -> bool {
        self.backup_here || self.backup_there
    }

    /// Its handshake is through.
    pub(super) const fn was_joined(&self) -> bool {
        self.up || self.was_up
    }

    pub(super) const fn is_initial(&self) -> bool {
        matches!(self.membership, Membership::Initial)
    }
}
