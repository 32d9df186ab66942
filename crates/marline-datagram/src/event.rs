//! Events and counters of a lane for its driver.

use marline_policy::{Forecast, Health, PathId};
use marline_time::{DelayHistogram, Duration};

use crate::FlowId;

/// Event for the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Datagram for the application. The lane does not check whether the application knows the flow.
    Datagram {
        /// Flow of the datagram.
        flow: FlowId,
        /// Content of the datagram.
        payload: &'a [u8],
    },
    /// Frames sent on this path are no longer acknowledged.
    PathUnreachable(PathId),
    /// An unreachable path is acknowledged again.
    PathReachable(PathId),
    /// The maximum datagram size of a path has changed.
    PathMtu {
        /// Path.
        path: PathId,
        /// UDP payload of the largest frame that passes in both directions, in bytes.
        frame_bytes: u16,
    },
    /// At most an eighth of the packets that the key may seal is left: agree on new keys, and open another lane.
    KeyLimitNear,
    /// So many forged frames were received that the key must no longer be used. The lane accepts no more frames.
    Forged,
}

/// Counters of a lane.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Datagrams that the application sent.
    pub sent_datagrams: u64,
    /// Total size of these datagrams in bytes.
    pub sent_bytes: u64,
    /// Bytes of frames whose datagrams were sent for the first time.
    pub first_frame_bytes: u64,
    /// Bytes of repairs, and of frames sent again on another path.
    pub copied_frame_bytes: u64,
    /// Bytes of repairs, which `copied_frame_bytes` includes.
    pub repair_frame_bytes: u64,
    /// Bytes of frames sent again because an acknowledgment was overdue, which `copied_frame_bytes` includes.
    pub rescued_frame_bytes: u64,
    /// Bytes of frames that only acknowledge, measure a path's round trip, or probe its MTU.
    pub control_frame_bytes: u64,
    /// Datagrams dropped here because they waited too long, or because the bulk queue was too long.
    pub dropped_late: u64,
    /// Datagrams dropped here because a queue was full.
    pub dropped_full: u64,
    /// Datagrams passed to the driver.
    pub delivered_datagrams: u64,
    /// Number of delivered datagrams that were recovered from repairs.
    pub repaired_datagrams: u64,
    /// Datagrams sent in pieces because they did not fit into a frame of their path.
    pub cut_datagrams: u64,
    /// Datagrams that arrived in pieces and were completed.
    pub assembled_datagrams: u64,
    /// Frames with missing pieces, dropped after two seconds or to make room for newer ones.
    pub dropped_pieces: u64,
    /// Valid frames that had already arrived, such as copies.
    pub duplicates: u64,
    /// Frames that arrived again on the same path, or that are older than the replay window.
    pub replays: u64,
    /// Frames whose tag was wrong.
    pub forged: u64,
    /// Datagrams that are not valid frames of this lane, or that arrived on an unknown path.
    pub foreign: u64,
    /// Authentic frames that violate the rules of section 2 of docs/spec/datagrams.md.
    pub malformed: u64,
    /// Datagrams that arrived while the driver's inbox was full.
    pub dropped_inbox: u64,
    /// Flows dropped to make room for other flows.
    pub flows_forgotten: u64,
    /// Times until a frame of a small flow, or a copied frame, was acknowledged on any path.
    pub delays: DelayHistogram,
}

impl core::ops::AddAssign for LaneStats {
    fn add_assign(&mut self, other: LaneStats) {
        self.delays.add(&other.delays);
        self.sent_datagrams += other.sent_datagrams;
        self.sent_bytes += other.sent_bytes;
        self.first_frame_bytes += other.first_frame_bytes;
        self.copied_frame_bytes += other.copied_frame_bytes;
        self.repair_frame_bytes += other.repair_frame_bytes;
        self.rescued_frame_bytes += other.rescued_frame_bytes;
        self.control_frame_bytes += other.control_frame_bytes;
        self.dropped_late += other.dropped_late;
        self.dropped_full += other.dropped_full;
        self.delivered_datagrams += other.delivered_datagrams;
        self.repaired_datagrams += other.repaired_datagrams;
        self.cut_datagrams += other.cut_datagrams;
        self.assembled_datagrams += other.assembled_datagrams;
        self.dropped_pieces += other.dropped_pieces;
        self.duplicates += other.duplicates;
        self.replays += other.replays;
        self.forged += other.forged;
        self.foreign += other.foreign;
        self.malformed += other.malformed;
        self.dropped_inbox += other.dropped_inbox;
        self.flows_forgotten += other.flows_forgotten;
    }
}

/// State of a path.
#[derive(Copy, Clone, Debug)]
pub struct PathInfo {
    /// Number of the path.
    pub id: PathId,
    /// Health of the path.
    pub health: Health,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// Forecast of the time until a datagram sent now is acknowledged.
    pub forecast: Forecast,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes in transit.
    pub bytes_in_flight: u64,
    /// UDP payload of the largest frame that passes, in bytes.
    pub frame_bytes: u16,
    /// Number of ack-eliciting frames sent.
    pub frames: u64,
    /// Number of these frames that were lost.
    pub lost_frames: u64,
}
