//! The path manager: which subflows exist.

use core::fmt::{self, Debug, Display, Formatter};
use core::net::SocketAddr;

use marline_time::Instant;

use crate::{AddressId, SubflowId, SubflowView};

/// Which side of the connection this is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sent the first SYN.
    Client,
    /// It answered it.
    Server,
}

/// A local address the connection may use. Flags as in the kernel's `ip mptcp endpoint`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Address id, unique in the connection.
    pub id: AddressId,
    /// The address; port 0 lets the core choose one.
    pub address: SocketAddr,
    /// Remote address to use from here, if not simply every known one (`--path LOCAL=REMOTE`). A
    /// subflow opened from this address goes there, whatever address id the action names: a pinned
    /// address the peer did not announce is asked for as id 0.
    pub remote: Option<SocketAddr>,
    /// Subflows from it carry data only if nothing else can.
    pub backup: bool,
    /// Announce it to the peer (ADD_ADDR).
    pub signal: bool,
    /// Open subflows from it.
    pub subflow: bool,
    /// It exists now.
    pub up: bool,
}

/// A remote address the peer announced, or that of the initial subflow (id 0).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address id given by the peer.
    pub id: AddressId,
    /// The address.
    pub address: SocketAddr,
}

/// The two ends of a subflow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SubflowPath {
    /// Its slot.
    pub id: SubflowId,
    /// Local end.
    pub local: SocketAddr,
    /// Remote end.
    pub remote: SocketAddr,
    /// Address id of the local end.
    pub local_id: AddressId,
    /// Address id of the remote end.
    pub remote_id: AddressId,
    /// Established; `false` while its handshake runs.
    pub established: bool,
}

/// What a path manager sees.
#[derive(Copy, Clone, Debug)]
pub struct PathContext<'a> {
    /// The present.
    pub now: Instant,
    /// This side's role.
    pub role: Role,
    /// Local addresses, up or not.
    pub local: &'a [LocalAddress],
    /// Remote addresses known.
    pub remote: &'a [RemoteAddress],
    /// The peer forbids joins to the address of the initial subflow (flag C).
    pub deny_join_id0: bool,
    /// Existing subflows, handshakes included.
    pub paths: &'a [SubflowPath],
    /// Their measurements, established ones only.
    pub subflows: &'a [SubflowView],
    /// Subflows the connection may have at once.
    pub max_subflows: usize,
    /// There is data that the peer has not DATA_ACKed.
    pub data_waits: bool,
    /// The peer sends where we do (both agreed on it); otherwise priorities are the way to tell it.
    pub followed: bool,
}

/// What happened to paths.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// Joins are possible from now on (RFC 8684: fully established).
    Established,
    /// A local address appeared.
    LocalUp(AddressId),
    /// A local address went away; its subflows are closing.
    LocalDown(AddressId),
    /// The peer announced an address.
    Announced(AddressId),
    /// The peer withdrew an address; its subflows are closing.
    Removed(AddressId),
    /// A subflow is established.
    SubflowUp(SubflowId),
    /// A subflow is gone, with its ends.
    SubflowDown {
        /// Slot it had.
        id: SubflowId,
        /// Local end.
        local: AddressId,
        /// Remote end.
        remote: AddressId,
        /// It was established once; `false` means the join failed.
        was_established: bool,
    },
    /// The peer changed a subflow's priority, or we did.
    Priority {
        /// The subflow.
        id: SubflowId,
        /// Backup now.
        backup: bool,
    },
    /// A probe or a retransmission on a subflow timed out: it is potentially failed until it is heard.
    Suspected(SubflowId),
    /// Its retransmissions stay unanswered too, and it is the only one. The way may be as good as ever but for these
    /// two ports: a translator that has forgotten them and swallows what it does not know.
    Stuck(SubflowId),
    /// It was heard.
    HeardAgain(SubflowId),
    /// The path health monitor changed its mind about a subflow's address pair
    /// ([`SubflowView::bad_address_pair`]).
    AddressPair {
        /// The subflow.
        id: SubflowId,
        /// Bad from now on.
        bad: bool,
    },
    /// The peer owes data, or an answer, and nothing comes on this subflow; told while an address is
    /// there that no subflow starts at. The subflow counts as potentially failed until it is heard.
    Silent {
        /// The subflow.
        id: SubflowId,
        /// What made it so.
        cause: SilenceCause,
    },
}

impl PathEvent {
    /// Whether it is about how well a subflow does, not about which there are: nothing to a manager that
    /// keeps all of them anyway.
    #[must_use]
    pub const fn is_about_health(&self) -> bool {
        use PathEvent::{AddressPair, HeardAgain, Silent, Suspected};
        matches!(self, Suspected(_) | HeardAgain(_) | AddressPair { .. } | Silent { .. })
    }
}

/// Why a subflow is held to be silent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SilenceCause {
    /// The receive timer: the peer has more to send, and nothing arrived in order for so long.
    ReceiveTimer,
    /// The receive timer's probes stayed unanswered.
    UnansweredProbes,
    /// The keepalives of an idle connection with one subflow stayed unanswered.
    UnansweredKeepalives,
}

impl Display for SilenceCause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SilenceCause::ReceiveTimer => "receive timer",
            SilenceCause::UnansweredProbes => "unanswered probes",
            SilenceCause::UnansweredKeepalives => "unanswered keepalives",
        })
    }
}

/// What a path manager wants done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PathAction {
    /// Open a subflow between two known addresses.
    OpenSubflow {
        /// From.
        local: AddressId,
        /// To.
        remote: AddressId,
        /// With the backup flag.
        backup: bool,
        /// In a hurry: where both sides agreed on it, the SYN carries data or tells what to send
        /// again (Fast JOIN); else, or after it was refused, an ordinary MP_JOIN.
        fast: bool,
    },
    /// Ask a subflow for a sign of life: an empty segment that TCP answers at once. A potentially failed
    /// one that answers is heard again.
    Probe(SubflowId),
    /// Close a subflow; data it carried is sent elsewhere.
    CloseSubflow(SubflowId),
    /// Announce a local address (ADD_ADDR, repeated until echoed).
    Announce(AddressId),
    /// Withdraw a local address (REMOVE_ADDR).
    Withdraw(AddressId),
    /// Change a subflow's priority (MP_PRIO).
    SetBackup {
        /// The subflow.
        id: SubflowId,
        /// Backup from now on.
        backup: bool,
    },
}

/// Decides which subflows to open, close, announce and prefer.
pub trait PathManager: Debug + Send {
    /// Something happened; the manager may have actions afterwards.
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>);

    /// Whether a peer's join from this address is welcome.
    fn accepts_join(&mut self, _from: SocketAddr, _cx: &PathContext<'_>) -> bool {
        true
    }

    /// The next thing it wants done.
    fn poll_action(&mut self) -> Option<PathAction>;

    /// When it wants to be called again.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// That time has come.
    fn on_timeout(&mut self, _cx: &PathContext<'_>) {}
}
