//! Events of the namespace `mptcp`, with the fields of their data. docs/spec/qlog.md shows the same tables. A test
//! compares both, and the output of a [`Trace`](crate::Trace), with these.

/// A kind of event.
#[derive(Copy, Clone, Debug)]
pub struct EventKind {
    /// Event name, without `mptcp:`.
    pub name: &'static str,
    /// Cause of the event.
    pub about: &'static str,
    /// Fields of its data.
    pub fields: &'static [Field],
}

/// A field of an event's data.
#[derive(Copy, Clone, Debug)]
pub struct Field {
    /// Field name.
    pub name: &'static str,
    /// Unit or form.
    pub unit: &'static str,
    /// True if the field may be absent.
    pub optional: bool,
    /// Meaning of the field.
    pub about: &'static str,
}

const fn field(name: &'static str, unit: &'static str, about: &'static str) -> Field {
    Field { name, unit, optional: false, about }
}

const fn optional_field(name: &'static str, unit: &'static str, about: &'static str) -> Field {
    Field { name, unit, optional: true, about }
}

const SUBFLOW: Field = field(
    "subflow",
    "number",
    "slot of the subflow, 0 to 31; may be reused after the subflow closes",
);
const LOCAL: Field = field("local", "address:port", "this endpoint");
const REMOTE: Field = field("remote", "address:port", "the peer");
const DSN: Field = field("dsn", "bytes", "position in the stream; the first byte is 0");

/// Every event that a trace may have.
pub const SCHEMA: &[EventKind] = &[
    EventKind {
        name: "connection_started",
        about: "The connection was created, and its first subflow's handshake began.",
        fields: &[LOCAL, REMOTE],
    },
    EventKind {
        name: "connection_established",
        about: "Data may flow in both directions.",
        fields: &[LOCAL, REMOTE],
    },
    EventKind {
        name: "connection_closed",
        about: "The connection has ended, but subflows may still be closing.",
        fields: &[field(
            "reason",
            "word",
            "`finished`, `aborted`, `reset_by_the_peer`, `timed_out`, ...",
        )],
    },
    EventKind {
        name: "fallback",
        about: "The connection continues as plain TCP.",
        fields: &[field("reason", "word", "reason: `syn_ack_without_a_usable_mp_capable`, ...")],
    },
    EventKind {
        name: "extensions_agreed",
        about: "Extensions that both ends now use.",
        fields: &[field("extensions", "words", "their names, as `marline status` shows them")],
    },
    EventKind {
        name: "address_announced",
        about: "The peer announced an address (ADD_ADDR).",
        fields: &[
            field("address_id", "number", "id of the announced address"),
            field("address", "address:port", "the address; port 0 means the connection's port"),
        ],
    },
    EventKind {
        name: "address_removed",
        about: "The peer withdrew an address (REMOVE_ADDR).",
        fields: &[field("address_id", "number", "id of the withdrawn address")],
    },
    EventKind {
        name: "subflow_created",
        about: "A subflow was created, and its handshake began.",
        fields: &[SUBFLOW, LOCAL, REMOTE],
    },
    EventKind {
        name: "subflow_established",
        about: "A subflow can now carry data. For the first subflow this is \
            `connection_established`.",
        fields: &[
            SUBFLOW,
            LOCAL,
            REMOTE,
            field("backup", "true or false", "carries data only while no other subflow can"),
        ],
    },
    EventKind {
        name: "subflow_closed",
        about: "An established subflow has ended.",
        fields: &[SUBFLOW, LOCAL, REMOTE, field("reason", "word", "as for `connection_closed`")],
    },
    EventKind {
        name: "subflow_priority_changed",
        about: "Either end changed the backup flag of a subflow (MP_PRIO).",
        fields: &[SUBFLOW, field("backup", "true or false", "new value")],
    },
    EventKind {
        name: "subflow_health_changed",
        about: "The health of a subflow's path changed.",
        fields: &[
            SUBFLOW,
            field(
                "health",
                "word",
                "`silent`: due data does not arrive; `unreachable`: its data is sent on other \
                    subflows; `reachable`: \
                 data arrived again; `address_pair_degraded`, `address_pair_usable`: the path \
                 health monitor's verdict",
            ),
            optional_field(
                "cause",
                "word",
                "the cause: `receive_timer`, `unanswered_probes`, `loss`, ...",
            ),
        ],
    },
    EventKind {
        name: "segment_sent",
        about: "A segment, or several with one mapping, was built and is sent next.",
        fields: &[
            SUBFLOW,
            field(
                "purpose",
                "word",
                "`new`: data for the first time; `copy`: data that another subflow carries, by \
                    the scheduler's \
                 decision; `reinjection`: data of a failing subflow; `retransmission`: data that \
                 this subflow lost; \
                 `probe`: a repetition of its last data (tail loss probe); `repair`: a \
                 combination of data; \
                 `handshake`, `ack`, `ack_request` (empty, requests an answer), `data_fin`, \
                 `fin`, `reset`",
            ),
            optional_field(
                "cause",
                "word",
                "of a reinjection: `unanswered_probe`, `retransmission_timeout`, \
                    `subflow_closed`, `data_timeout`, \
                 `lost`; of a retransmission: `lost`, `retransmission_timeout`",
            ),
            field("seq", "number", "sequence number of the first segment, as on the wire"),
            optional_field(
                "dsn",
                "bytes",
                "position of the payload in the stream; absent for a repair",
            ),
            field("length", "bytes", "payload"),
            optional_field("segments", "count", "number of segments, if more than one"),
        ],
    },
    EventKind {
        name: "segment_received",
        about: "A segment was received but not yet processed.",
        fields: &[
            SUBFLOW,
            field("seq", "number", "sequence number, as on the wire"),
            field("ack", "number", "acknowledgment number, as on the wire"),
            optional_field(
                "flags",
                "words",
                "control bits except ACK: `fin`, `syn`, `rst`, `psh`, `ece`, `cwr`",
            ),
            field("length", "bytes", "payload"),
            optional_field(
                "mapping_dsn",
                "bytes",
                "start of the announced mapping, as a position in the stream",
            ),
            optional_field("mapping_length", "bytes", "length of the announced mapping"),
        ],
    },
    EventKind {
        name: "data_received",
        about: "In-order bytes of a subflow were placed in the stream.",
        fields: &[
            SUBFLOW,
            DSN,
            field("length", "bytes", "number of bytes"),
            optional_field("duplicate_length", "bytes", "number of duplicate bytes"),
        ],
    },
    EventKind {
        name: "data_acked",
        about: "The peer acknowledged all data before this position (DATA_ACK).",
        fields: &[SUBFLOW, DSN],
    },
    EventKind {
        name: "data_lost",
        about: "A segment is considered lost.",
        fields: &[
            SUBFLOW,
            optional_field("dsn", "bytes", "payload position; absent for repairs and FINs"),
            field("length", "bytes", "of the subflow's sequence numbers"),
            field("trigger", "word", "`ack`: detected from acknowledgments; `timer`: from a timer"),
        ],
    },
    EventKind {
        name: "timer_expired",
        about: "A timer expired.",
        fields: &[
            optional_field(
                "subflow",
                "number",
                "slot of the subflow; absent for connection timers",
            ),
            field(
                "timer",
                "word",
                "`probe`, `retransmission`; for the connection `data_retransmission`, `persist`",
            ),
            field("count", "count", "consecutive expirations if counted, otherwise 1"),
        ],
    },
    EventKind {
        name: "metrics_updated",
        about: "State of a subflow that changed when a segment arrived or a timer expired.",
        fields: &[
            SUBFLOW,
            optional_field("phase", "word", "`open`, `recovery`, `loss`"),
            optional_field("cwnd_bytes", "bytes", "congestion window"),
            optional_field("ssthresh_bytes", "bytes", "slow-start threshold, once it is known"),
            optional_field("in_flight_bytes", "bytes", "bytes in flight"),
            optional_field("srtt_us", "µs", "smoothed RTT"),
            optional_field("rttvar_us", "µs", "RTT variation"),
            optional_field("min_rtt_us", "µs", "smallest RTT"),
            optional_field("rto_us", "µs", "retransmission timeout without backoff"),
            optional_field("delivery_bits_per_s", "bit/s", "delivery rate"),
        ],
    },
    EventKind {
        name: "delivery_hole",
        about: "A delivery gap ended: for 100 ms or more, due data was not delivered. Written at \
            the end of the gap.",
        fields: &[
            field("direction", "word", "`sent` or `received`, seen from this endpoint"),
            field("began", "ms", "start of the gap, in the trace's time"),
            field("duration", "ms", "length of the gap"),
            field("subflow", "number", "slot of the subflow that delivered next"),
            optional_field(
                "unreachable_subflow",
                "number",
                "slot of a subflow that was unreachable during the gap",
            ),
            optional_field("cause", "word", "cause of the unreachability"),
        ],
    },
    EventKind {
        name: "scheduler_decided",
        about: "The scheduler chose a subflow for data, or waited. Written only if decisions are \
            requested.",
        fields: &[
            field(
                "rule",
                "word",
                "rule of the scheduler: `first`, `rescue`, `late`, `no_room`, ...",
            ),
            optional_field("subflow", "number", "slot of the subflow that was chosen, or rejected"),
            optional_field(
                "other_subflow",
                "number",
                "slot of the subflow that it was compared with",
            ),
            optional_field("arrives_us", "µs", "time until the data arrives"),
            optional_field(
                "other_us",
                "µs",
                "time until the data arrives on the other subflow, or until its answer is due",
            ),
            optional_field("gain_us", "µs", "time that a copy is expected to save"),
            optional_field("price_us", "µs", "minimum gain that justifies the cost"),
        ],
    },
    EventKind {
        name: "events_missed",
        about: "Events before the next one are missing, because memory or disk was full.",
        fields: &[field("count", "count", "number of missing events")],
    },
    EventKind {
        name: "trace_cut",
        about: "The last event of a file that reached its size limit.",
        fields: &[field("limit_bytes", "bytes", "the size limit")],
    },
];
