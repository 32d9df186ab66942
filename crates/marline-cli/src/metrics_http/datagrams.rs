//! Counters of datagrams: frames of lanes, and the UDP of applications that they carry.

use marline::datagrams::LaneCounters;
use marline_proxy::udp::UdpCounts;

type CountFn = fn(&LaneCounters, &UdpCounts) -> u64;

/// Counters: name, help text, source.
pub(super) const COUNTERS: [(&str, &str, CountFn); 25] = [
    ("marline_lane_datagrams_sent_total", "Datagrams handed to lanes", |l, _| {
        l.stats.sent_datagrams
    }),
    ("marline_lane_datagrams_received_total", "Datagrams that lanes delivered", |l, _| {
        l.stats.delivered_datagrams
    }),
    ("marline_lane_frame_bytes_total", "Bytes of frames with datagrams, without copies", |l, _| {
        l.stats.first_frame_bytes
    }),
    ("marline_lane_copied_bytes_total", "Bytes of frames copied to another path", |l, _| {
        l.stats.copied_frame_bytes
    }),
    ("marline_lane_repair_bytes_total", "Bytes of repairs (included in copied bytes)", |l, _| {
        l.stats.repair_frame_bytes
    }),
    ("marline_lane_repaired_total", "Datagrams recovered from repairs", |l, _| {
        l.stats.repaired_datagrams
    }),
    (
        "marline_lane_fragmented_total",
        "Datagrams sent in fragments, as they exceeded their path's MTU",
        |l, _| l.stats.cut_datagrams,
    ),
    ("marline_lane_reassembled_total", "Fragmented frames received", |l, _| {
        l.stats.assembled_datagrams
    }),
    ("marline_lane_incomplete_total", "Frames dropped because fragments were missing", |l, _| {
        l.stats.dropped_pieces
    }),
    ("marline_lane_control_bytes_total", "Bytes of frames without datagrams", |l, _| {
        l.stats.control_frame_bytes
    }),
    (
        "marline_lane_dropped_total",
        "Datagrams dropped as late, or because a queue was full",
        |l, _| l.stats.dropped_late + l.stats.dropped_full + l.stats.dropped_inbox,
    ),
    ("marline_lane_duplicates_total", "Duplicate datagrams received", |l, _| l.stats.duplicates),
    ("marline_lane_replays_total", "Frames received again on the same path", |l, _| {
        l.stats.replays
    }),
    ("marline_lane_forged_total", "Frames with an invalid tag", |l, _| l.stats.forged),
    ("marline_lane_unvalidated_total", "Frames from addresses that are not validated", |l, _| {
        l.frames_unvalidated
    }),
    ("marline_lane_unknown_total", "Frames for unknown lanes", |l, _| l.unknown),
    (
        "marline_udp_from_local_total",
        "UDP datagrams from applications (client) or targets (server)",
        |_, u| u.from_local,
    ),
    (
        "marline_udp_to_local_total",
        "UDP datagrams to applications (client) or targets (server)",
        |_, u| u.to_local,
    ),
    ("marline_udp_sockets_total", "UDP sockets opened for applications", |_, u| u.sockets),
    ("marline_udp_flows_total", "UDP flows opened", |_, u| u.flows),
    ("marline_udp_evicted_total", "Sockets and flows evicted to make room for others", |_, u| {
        u.sockets_forgotten + u.flows_forgotten
    }),
    ("marline_udp_filtered_total", "Datagrams dropped from unsolicited peers", |_, u| u.filtered),
    ("marline_udp_refused_total", "Flows and sockets refused", |_, u| u.refused),
    ("marline_udp_too_big_total", "Datagrams dropped as too big for the paths", |_, u| u.too_big),
    ("marline_udp_dropped_total", "Datagrams dropped for other reasons", |_, u| {
        u.dropped + u.unknown
    }),
];
/// Name of the gauge of open lanes.
pub(super) const LANES: &str = "marline_lanes";
