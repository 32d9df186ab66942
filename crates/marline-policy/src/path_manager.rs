//! Path manager interface: the decision which subflows exist.

use core::fmt::Debug;
use core::net::SocketAddr;

use marline_time::Instant;
use marline_wire::Prefix64;

use crate::{AddressId, PathCost, SilenceCause, SubflowId, SubflowView};

/// Role of this side in the connection.
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
    /// Remote address to use from this address, if not every known one (`--path LOCAL=REMOTE`). A
    /// subflow opened from this address goes there, whatever address id the action names; a pinned
    /// address the peer did not announce is requested as id 0.
    pub remote: Option<SocketAddr>,
    /// IPv4 addresses are reached from it below this prefix (NAT64), as its network has only IPv6.
    pub nat64: Option<Prefix64>,
    /// Subflows from it carry data only if nothing else can.
    pub backup: bool,
    /// Announce it to the peer (ADD_ADDR).
    pub signal: bool,
    /// Open subflows from it.
    pub subflow: bool,
    /// It exists now.
    pub up: bool,
    /// What using it costs.
    pub cost: PathCost,
    /// Number of the interface: addresses with the same number share a radio or a line. 0: unknown.
    pub link: u32,
}

impl LocalAddress {
    /// An address that exists and from which subflows are opened; it costs nothing, and its interface is unknown.
    #[must_use]
    pub const fn new(id: AddressId, address: SocketAddr) -> LocalAddress {
        LocalAddress {
            id,
            address,
            remote: None,
            nat64: None,
            backup: false,
            signal: false,
            subflow: true,
            up: true,
            cost: PathCost::NONE,
            link: 0,
        }
    }

    /// Where packets from here to a remote address go: there, or where this network translates it. `None`: there is
    /// no way from here, as it is of another family.
    #[must_use]
    pub fn way_to(&self, remote: SocketAddr) -> Option<SocketAddr> {
        let translated = match self.nat64 {
            Some(prefix) if self.address.is_ipv6() => prefix.translate(remote),
            _ => remote,
        };
        (translated.is_ipv4() == self.address.is_ipv4()).then_some(translated)
    }

    /// The remote address to which packets from here to `to` come: the inverse of [`way_to`](Self::way_to).
    #[must_use]
    pub fn end_of_way(&self, to: SocketAddr) -> SocketAddr {
        self.nat64.map_or(to, |prefix| prefix.translate_back(to))
    }
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

/// Input of a path manager.
#[derive(Copy, Clone, Debug)]
pub struct PathContext<'a> {
    /// The current time.
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
    /// Some data is not DATA_ACKed yet.
    pub data_waits: bool,
    /// The peer follows our choice of subflow (as negotiated); otherwise MP_PRIO is the way to
    /// influence it.
    pub followed: bool,
}

/// Events reported to a path manager.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// A subflow is [silent](crate::Health::Silent), and its outstanding data goes out on others, until
    /// something is received on it.
    Suspected(SubflowId),
    /// Its retransmissions stay unanswered too, and it is the only subflow. The path may still work
    /// with other ports, for example behind a NAT that has lost this translation and drops unknown
    /// packets.
    Stuck(SubflowId),
    /// Something was received on it again.
    HeardAgain(SubflowId),
    /// The path health monitor's verdict on a subflow's address pair changed
    /// ([`Health::Doubtful`](crate::Health::Doubtful) while something is received).
    AddressPair {
        /// The subflow.
        id: SubflowId,
        /// Bad from now on.
        bad: bool,
    },
    /// What its radio's signal says of a subflow's path changed ([`PathCost::fading`]).
    Fading {
        /// The subflow.
        id: SubflowId,
        /// It will soon be gone.
        fading: bool,
    },
    /// Data or an answer is due from the peer, and nothing arrives on this subflow; reported only
    /// while there is a local address without a subflow. The subflow is
    /// [silent](crate::Health::Silent) until something is received on it.
    Silent {
        /// The subflow.
        id: SubflowId,
        /// What detected the silence.
        cause: SilenceCause,
    },
}

impl PathEvent {
    /// Whether the event concerns the quality of a subflow rather than its existence. A manager
    /// that keeps all subflows open may ignore such events.
    #[must_use]
    pub const fn is_about_health(&self) -> bool {
        use PathEvent::{AddressPair, Fading, HeardAgain, Silent, Suspected};
        let known = matches!(self, Fading { .. } | Suspected(_) | HeardAgain(_));
        known || matches!(self, AddressPair { .. } | Silent { .. })
    }
}

/// Actions that a path manager may request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PathAction {
    /// Open a subflow between two known addresses.
    OpenSubflow {
        /// Local address.
        local: AddressId,
        /// Remote address.
        remote: AddressId,
        /// With the backup flag.
        backup: bool,
        /// Urgent: where negotiated, the SYN carries data or says what to send again (Fast JOIN);
        /// otherwise, or after that was refused, an ordinary MP_JOIN is used.
        fast: bool,
    },
    /// Probe a subflow with an empty segment that TCP answers at once. An answer ends its silence.
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
    /// Notifies the manager of an event; it may have actions afterwards.
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>);

    /// Whether to accept a peer's join from this address.
    fn accepts_join(&mut self, _from: SocketAddr, _cx: &PathContext<'_>) -> bool {
        true
    }

    /// The next requested action.
    fn poll_action(&mut self) -> Option<PathAction>;

    /// When it wants to be called again.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when that time is reached.
    fn on_timeout(&mut self, _cx: &PathContext<'_>) {}
}
