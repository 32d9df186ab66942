//! Path manager interface: decides which subflows exist.

use core::fmt::Debug;
use core::net::SocketAddr;

use marline_time::Instant;
use marline_wire::Prefix64;

use crate::{AddressId, PathCost, SubflowId, SubflowView, UnreachableCause};

/// Role of this side in the connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that sent the first SYN.
    Client,
    /// The side that answered the first SYN.
    Server,
}

/// A local address that the connection may use. The flags match those of the kernel's `ip mptcp endpoint`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Address id, unique in the connection.
    pub id: AddressId,
    /// The address; with port 0 the core chooses a port.
    pub address: SocketAddr,
    /// The only remote address to use from this address (`--path LOCAL=REMOTE`); `None` allows every known address. A
    /// subflow opened from this address uses it, regardless of the address id in the action. If the peer did not
    /// announce it, the join names id 0.
    pub remote: Option<SocketAddr>,
    /// NAT64 prefix under which IPv4 addresses are reachable from here, if the network has only IPv6.
    pub nat64: Option<Prefix64>,
    /// Subflows from the address carry data only if no other subflow can.
    pub backup: bool,
    /// Announce it to the peer (ADD_ADDR).
    pub signal: bool,
    /// Open subflows from it.
    pub subflow: bool,
    /// The address currently exists.
    pub up: bool,
    /// Cost of using the address.
    pub cost: PathCost,
    /// Interface number; 0 if unknown. Addresses with equal numbers share a radio or a line.
    pub link: u32,
}

impl LocalAddress {
    /// Creates an address that exists and allows subflows. It costs nothing, and its interface is unknown.
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

    /// Destination of packets from here to `remote`: the address itself, or its NAT64 translation. `None` if `remote`
    /// cannot be reached because it belongs to the other address family.
    #[must_use]
    pub fn destination_for(&self, remote: SocketAddr) -> Option<SocketAddr> {
        let translated = match self.nat64 {
            Some(prefix) if self.address.is_ipv6() => prefix.translate(remote),
            _ => remote,
        };
        (translated.is_ipv4() == self.address.is_ipv4()).then_some(translated)
    }

    /// The remote address that packets sent from here to `to` reach: the inverse of
    /// [`destination_for`](Self::destination_for).
    #[must_use]
    pub fn remote_for(&self, to: SocketAddr) -> SocketAddr {
        self.nat64.map_or(to, |prefix| prefix.translate_back(to))
    }
}

/// A remote address that the peer announced, or that of the initial subflow (id 0).
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
    /// Slot of the subflow.
    pub id: SubflowId,
    /// Local end.
    pub local: SocketAddr,
    /// Remote end.
    pub remote: SocketAddr,
    /// Address id of the local end.
    pub local_id: AddressId,
    /// Address id of the remote end.
    pub remote_id: AddressId,
    /// True once established; false during the handshake.
    pub established: bool,
}

/// Input to a path manager.
#[derive(Copy, Clone, Debug)]
pub struct PathContext<'a> {
    /// The current time.
    pub now: Instant,
    /// This side's role.
    pub role: Role,
    /// Local addresses, whether up or not.
    pub local: &'a [LocalAddress],
    /// Known remote addresses.
    pub remote: &'a [RemoteAddress],
    /// The peer forbids joins to the address of the initial subflow (flag C).
    pub deny_join_id0: bool,
    /// Existing subflows, including those in a handshake.
    pub paths: &'a [SubflowPath],
    /// Snapshots of the established subflows.
    pub subflows: &'a [SubflowView],
    /// Maximum number of simultaneous subflows.
    pub max_subflows: usize,
    /// Some sent data is not DATA_ACKed.
    pub has_unacked_data: bool,
    /// The peer has agreed to send on the subflow that this side chooses. Otherwise only MP_PRIO influences its
    /// choice.
    pub followed: bool,
}

/// Events reported to a path manager.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathEvent {
    /// Joins are now possible (RFC 8684: fully established).
    Established,
    /// A local address became available.
    LocalUp(AddressId),
    /// A local address disappeared; its subflows are closing.
    LocalDown(AddressId),
    /// The peer announced an address.
    Announced(AddressId),
    /// The peer withdrew an address; its subflows are closing.
    Removed(AddressId),
    /// A subflow is established.
    SubflowUp(SubflowId),
    /// A subflow is gone.
    SubflowDown {
        /// The slot that it used.
        id: SubflowId,
        /// Local address id.
        local: AddressId,
        /// Remote address id.
        remote: AddressId,
        /// The subflow had been established; `false` means that the join failed.
        was_established: bool,
    },
    /// The peer or this side changed a subflow's priority.
    Priority {
        /// The subflow.
        id: SubflowId,
        /// The subflow is now a backup.
        backup: bool,
    },
    /// A subflow is [unreachable](crate::Health::Unreachable). Until a segment is received on it, its outstanding data
    /// is sent on other subflows.
    Unreachable(SubflowId),
    /// The only subflow gets no answers to its retransmissions either. The path may still work with other ports, for
    /// example behind a NAT that has lost this translation and drops unknown packets.
    Stuck(SubflowId),
    /// An unreachable subflow received a segment.
    Reachable(SubflowId),
    /// The path health monitor changed its verdict on a subflow's address pair
    /// ([`Health::Degraded`](crate::Health::Degraded) while the peer answers).
    AddressPair {
        /// The subflow.
        id: SubflowId,
        /// True if the pair is now degraded.
        degraded: bool,
    },
    /// The radio signal of a subflow's path started or stopped fading ([`PathCost::fading`]).
    Fading {
        /// The subflow.
        id: SubflowId,
        /// True if the path is about to fail.
        fading: bool,
    },
    /// Data or an answer is due from the peer, but nothing arrives on this subflow. Reported only while a local address
    /// has no subflow. The subflow is [unreachable](crate::Health::Unreachable) until a segment is received on it.
    Silent {
        /// The subflow.
        id: SubflowId,
        /// Cause of the silence.
        cause: UnreachableCause,
    },
}

impl PathEvent {
    /// Returns true if the event concerns the quality of a subflow rather than its existence. A manager that keeps all
    /// subflows open may ignore such events.
    #[must_use]
    pub const fn is_about_health(&self) -> bool {
        use PathEvent::{AddressPair, Fading, Reachable, Silent, Unreachable};
        let known = matches!(self, Fading { .. } | Unreachable(_) | Reachable(_));
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
        /// Open it as a backup.
        backup: bool,
        /// Urgent. If negotiated, the SYN carries data or the position from which to retransmit (Fast JOIN). Otherwise,
        /// or after the peer refused that, an ordinary MP_JOIN is used.
        fast: bool,
    },
    /// Probe a subflow with an empty segment that TCP answers immediately. Once it answers, the subflow is no longer
    /// unreachable.
    Probe(SubflowId),
    /// Close a subflow. Its outstanding data is sent on others.
    CloseSubflow(SubflowId),
    /// Announce a local address (ADD_ADDR, repeated until echoed).
    Announce(AddressId),
    /// Withdraw a local address (REMOVE_ADDR).
    Withdraw(AddressId),
    /// Change a subflow's priority (MP_PRIO).
    SetBackup {
        /// The subflow.
        id: SubflowId,
        /// True if the subflow becomes a backup.
        backup: bool,
    },
}

/// Decides which subflows to open, close, announce and prefer.
pub trait PathManager: Debug + Send {
    /// Handles an event. Afterwards, `poll_action` may return actions.
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>);

    /// Returns true to accept a join that the peer sends from this address.
    fn accepts_join(&mut self, _from: SocketAddr, _cx: &PathContext<'_>) -> bool {
        true
    }

    /// Returns the next requested action, or `None` if there are no more.
    fn poll_action(&mut self) -> Option<PathAction>;

    /// Time at which to call [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when [`next_timeout`](Self::next_timeout) is reached.
    fn on_timeout(&mut self, _cx: &PathContext<'_>) {}
}
