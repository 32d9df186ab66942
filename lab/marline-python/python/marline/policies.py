"""Policies written in Python, for virtual time only, with their inputs and outputs.

A scheduler, a path manager or a congestion control is a class derived from one of the three below. The core calls it
like a built-in policy: its inputs are copies, and its decisions are checked. Each end of a connection has its own
object. An exception ends the run and is raised by :meth:`marline.Experiment.run`.

Times are microseconds of virtual time. Positions of data (``start``, ``end``) count from the connection's first byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ._native import Forecast


@dataclass(slots=True)
class SubflowView:
    """A subflow from the point of view of policies."""

    id: int = 0
    local_id: int = 0
    remote_id: int = 0
    backup: bool = False
    metered: bool = False
    wake_share: float = 0.0
    """Share of a radio's wake-up cost that a packet sent now would cause."""
    health: str = "usable"
    """``usable``, ``degraded`` or ``unreachable``."""
    health_cause: str | None = None
    phase: str = "open"
    """Congestion phase: ``open``, ``recovery`` or ``loss``."""
    eligibility: str = "ready"
    """``ready``, ``cwnd-limited``, ``pacing-limited`` or ``not-active``."""
    room_bytes: int = 0
    """Bytes that it accepts now. 0 unless it is ready."""
    opens_at_us: float | None = None
    """Time at which its pacer allows the next segment."""
    mss_bytes: int = 1400
    cwnd_bytes: int = 14000
    ssthresh_bytes: int | None = None
    in_flight_bytes: int = 0
    lost_bytes: int = 0
    """Lost bytes that are not yet retransmitted."""
    copied_bytes: int = 0
    """Bytes carried as copies so far, modulo 2**32."""
    srtt_us: float | None = None
    rttvar_us: float = 0.0
    min_rtt_us: float | None = None
    delivery_bits_per_s: int | None = None
    forecast: Forecast = field(default_factory=Forecast)
    overdue_at_us: float | None = None
    """Time at which the answer to the oldest segment in flight is overdue."""
    bytes_since_loss: int = 0
    bytes_between_losses: int = 0
    last_sent_at_us: float = 0.0
    last_rx_at_us: float = 0.0
    last_new_at_us: float = 0.0
    sent_bytes: int = 0
    """Payload sent, including retransmissions, modulo 2**32."""
    received_bytes: int = 0
    """Payload received on it, each byte once, modulo 2**32."""

    @property
    def ready(self) -> bool:
        """True if it accepts data now."""
        return self.eligibility == "ready" and self.room_bytes > 0

    @property
    def active(self) -> bool:
        """True if it is established and not closing, even if it is full."""
        return self.eligibility != "not-active"


@dataclass(slots=True)
class Mapping:
    """Data that was assigned to subflows and is not DATA_ACKed."""

    start: int
    end: int
    carried_by: tuple[int, ...]
    delivered: bool = False
    """True if a subflow delivered it. Only for schedulers with ``watches_delivery``."""


@dataclass(slots=True)
class SchedulerContext:
    """Input of a scheduler."""

    now_us: float
    subflows: list[SubflowView]
    unsent: tuple[int, int]
    """Data that was written but not assigned to a subflow, within the peer's window: start and end."""
    written: int = 0
    data_una: int = 0
    """First byte that is not DATA_ACKed."""
    window_end: int = 0
    send_limit: int = 0
    repeated_bytes: int = 0
    repairs: bool = False
    """True if the peer supports :class:`Repair`."""
    outstanding: list[Mapping] = field(default_factory=list)
    """Oldest first, at most 10,000. Filled only for schedulers with ``wants_outstanding``."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for a subflow."""
        return max(0, self.unsent[1] - self.unsent[0])


@dataclass(slots=True)
class Send:
    """Send this data on this subflow. Without a range: all unsent data (for a reinjection: its data). The core sends
    one segment and calls again; with ``run``, as much as the subflow accepts."""

    subflow: int
    start: int | None = None
    end: int | None = None
    run: bool = False


@dataclass(slots=True)
class Repair:
    """Send a coded repair of data that was sent earlier."""

    subflow: int
    start: int
    end: int


@dataclass(slots=True)
class WaitUntil:
    """Send nothing now, and call again at this time at the latest."""

    at_us: float


@dataclass(slots=True)
class Reinjection:
    """Data that must be reinjected on another subflow."""

    start: int
    end: int
    carried_by: tuple[int, ...]
    cause: str
    since_us: float


@dataclass(slots=True)
class SchedulerEvent:
    """``subflow-up``, ``subflow-down``, ``probe-timeout``, ``probe-repeated``, ``acked``, ``subflow-rto``,
    ``peer-window-blocked`` or ``send-buffer-blocked``; with the affected subflow and data."""

    kind: str
    subflow: int | None = None
    range: tuple[int, int] | None = None


@dataclass(slots=True)
class Reinject:
    """Send this data on that subflow, ahead of new data."""

    start: int
    end: int
    subflow: int


@dataclass(slots=True)
class Suspect:
    """Treat the subflow as unreachable until something is received on it."""

    subflow: int


@dataclass(slots=True)
class Penalize:
    """Halve the subflow's window; with ``threshold``, slow start also ends."""

    subflow: int
    threshold: bool = False


Decision = None | int | Send | Repair | WaitUntil
SchedulerAction = Reinject | Suspect | Penalize


class Scheduler:
    """Chooses the subflow for data. Keyword arguments of ``__init__`` with a default are parameters, which
    experiments set like those of built-in schedulers: ``mine,alpha=0.5``."""

    wants_outstanding: bool = False
    """Fill :attr:`SchedulerContext.outstanding`, which costs time."""
    watches_acks: bool = False
    """Report the event ``acked``."""
    watches_delivery: bool = False
    """Record :attr:`Mapping.delivered`."""
    probe_patience_us: float | None = 0.0
    """Delay after an unanswered probe until its data is reinjected; ``None``: only after a retransmission timeout."""

    def next_send(self, cx: SchedulerContext) -> Decision:
        """The next data and its subflow: the subflow's number (all unsent data), :class:`Send`,
        :class:`Repair`, :class:`WaitUntil`, or ``None`` to wait for a change. Called until it waits, and also without
        unsent data, so that copies can be sent."""
        raise NotImplementedError

    def next_reinjection(self, item: Reinjection, cx: SchedulerContext) -> Decision:
        """Chooses the subflow for data that must be sent again. By default, and for ``NotImplemented``, as the
        built-in schedulers do."""
        return NotImplemented  # type: ignore[no-any-return]

    def on_event(
        self, event: SchedulerEvent, cx: SchedulerContext
    ) -> Iterable[SchedulerAction] | None:
        """Handles an event."""
        return None


def _scheduler_traits(
    scheduler: Scheduler,
) -> tuple[bool, bool, bool, bool, bool, float | None]:
    """Properties of an object for the native side. Methods that it does not override are not called."""
    cls = type(scheduler)
    return (
        cls.next_reinjection is not Scheduler.next_reinjection,
        cls.on_event is not Scheduler.on_event,
        bool(scheduler.wants_outstanding),
        bool(scheduler.watches_acks),
        bool(scheduler.watches_delivery),
        scheduler.probe_patience_us,
    )


@dataclass(slots=True)
class LocalAddress:
    """An address of this side, with the flags of ``ip mptcp endpoint``."""

    id: int
    address: str
    backup: bool = False
    signal: bool = False
    subflow: bool = True
    up: bool = True


@dataclass(slots=True)
class RemoteAddress:
    """An address of the peer. Id 0 belongs to the initial subflow."""

    id: int
    address: str


@dataclass(slots=True)
class SubflowPath:
    """The two ends of a subflow."""

    id: int
    local: str
    remote: str
    local_id: int
    remote_id: int
    established: bool


@dataclass(slots=True)
class PathContext:
    """Input of a path manager."""

    now_us: float
    role: str
    """``client`` or ``server``."""
    local: list[LocalAddress]
    remote: list[RemoteAddress]
    paths: list[SubflowPath]
    """Number of subflows, including those in the handshake."""
    subflows: list[SubflowView]
    """Number of established subflows."""
    deny_join_id0: bool = False
    max_subflows: int = 8
    has_unacked_data: bool = False


@dataclass(slots=True)
class PathEvent:
    """``established``, ``local-up``, ``local-down``, ``announced``, ``removed``, ``subflow-up``, ``subflow-down``,
    ``priority``, ``unreachable``, ``stuck``, ``reachable``, ``address-pair``, ``fading`` or ``silent``."""

    kind: str
    subflow: int | None = None
    address: int | None = None
    flag: bool | None = None
    """``priority``: backup now; ``address-pair``: degraded; ``fading``: about to fail; ``subflow-down``: was
    established."""


@dataclass(slots=True)
class OpenSubflow:
    """Open a subflow between two addresses, by their ids."""

    local: int
    remote: int = 0
    backup: bool = False
    fast: bool = False


@dataclass(slots=True)
class CloseSubflow:
    """Close a subflow. Its data is reinjected on others."""

    subflow: int


@dataclass(slots=True)
class ProbeSubflow:
    """Send an empty segment that TCP answers immediately."""

    subflow: int


@dataclass(slots=True)
class SetBackup:
    """Change a subflow's priority (MP_PRIO)."""

    subflow: int
    backup: bool


@dataclass(slots=True)
class Announce:
    """Announce a local address (ADD_ADDR)."""

    address: int


@dataclass(slots=True)
class Withdraw:
    """Withdraw a local address (REMOVE_ADDR)."""

    address: int


PathAction = OpenSubflow | CloseSubflow | ProbeSubflow | SetBackup | Announce | Withdraw


class PathManager:
    """Decides which subflows exist."""

    next_timeout_us: float | None = None
    """Time of the next call of :meth:`on_timeout`. Read after each call, and reset to ``None`` before it."""

    def on_event(self, event: PathEvent, cx: PathContext) -> Iterable[PathAction] | None:
        """Handles an event."""
        raise NotImplementedError

    def on_timeout(self, cx: PathContext) -> Iterable[PathAction] | None:
        """Handles the requested time."""
        return None

    def accepts_join(self, address: str, cx: PathContext) -> bool:
        """Returns true if the peer may open a subflow from this address."""
        return True


@dataclass(slots=True)
class AckSample:
    """Information from an ACK."""

    now_us: float
    delivered_bytes: int
    lost_bytes: int
    prior_in_flight_bytes: int
    in_flight_bytes: int
    rtt_us: float | None
    srtt_us: float | None
    min_rtt_us: float | None
    delivery_bits_per_s: int | None
    app_limited: bool
    limits: tuple[bool, bool]

    @property
    def cwnd_limited(self) -> bool:
        """True if the window, not the application, limits the subflow."""
        return self.limits[0]

    @property
    def in_recovery(self) -> bool:
        """True if the core's PRR controls the window, so that it must not grow."""
        return self.limits[1]


class CongestionControl:
    """Decides a subflow's congestion window: three attributes, which are read after each call."""

    wants_group: bool = False
    """Provide the views of all subflows of the connection (for coupled controls)."""
    window_bytes: float
    """Congestion window in bytes, at least a segment."""
    ssthresh_bytes: float | None = None
    """Slow-start threshold in bytes, ``None`` while unknown."""
    pacing_bits_per_s: float | None = None
    """Pacing rate. ``None``: the core paces by window and round trip."""

    def __init__(self, mss_bytes: int, window_bytes: int) -> None:
        self.mss_bytes = mss_bytes
        self.window_bytes = window_bytes

    def on_ack(self, ack: AckSample, me: int, group: list[SubflowView]) -> None:
        """Handles an ACK."""
        raise NotImplementedError

    def on_signal(
        self,
        signal: str,
        in_flight_bytes: int | None,
        now_us: float,
        me: int,
        group: list[SubflowView],
    ) -> None:
        """``loss`` (once per recovery), ``rto``, ``rto-again``, ``ecn``, ``spurious`` (undo the last), ``idle``,
        ``recovery-done`` or ``penalty``."""
        raise NotImplementedError

    def on_mss_change(self, mss_bytes: int) -> None:
        """Handles a change of the segment size."""
        self.mss_bytes = mss_bytes
