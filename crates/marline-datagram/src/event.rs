//! Events and counts that a lane tells its driver.

use marline_policy::{Forecast, Health, PathId};
use marline_time::{DelayHistogram, Duration};

use crate::FlowId;

/// Something the driver should know.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A datagram for the application. The lane does not check that the flow is one that the application knows.
    Datagram {
        /// Its flow.
        flow: FlowId,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// Nothing that was sent on a path is answered.
    PathSilent(PathId),
    /// A path that was silent answers again.
    PathAnswers(PathId),
    /// The largest datagram that a path takes has changed.
    PathMtu {
        /// The path.
        path: PathId,
        /// UDP payload of the largest frame that passes, here to there and there to here, bytes.
        frame_bytes: u16,
    },
    /// An eighth of the packets that the key may seal is left, or none: agree on new keys and begin another lane.
    KeysSpent,
    /// So many forgeries were tried that the key must no longer be used; the lane takes nothing any more.
    Forged,
}

/// Counts of a lane.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Datagrams the application handed over, and their bytes.
    pub sent_datagrams: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Bytes of frames with datagrams that left for the first time.
    pub first_frame_bytes: u64,
    /// Bytes of frames that left a second time, on another path, and of repairs.
    pub copied_frame_bytes: u64,
    /// Of those, the repairs.
    pub repair_frame_bytes: u64,
    /// Of those, the ones whose acknowledgement had been overdue.
    pub rescued_frame_bytes: u64,
    /// Bytes of frames that only acknowledge, ask for a path's round trip, or look for its MTU.
    pub control_frame_bytes: u64,
    /// Datagrams dropped here because their time was over, or bulk's queue was too long.
    pub dropped_late: u64,
    /// Datagrams dropped here because a queue was full.
    pub dropped_full: u64,
    /// Datagrams handed to the driver.
    pub delivered_datagrams: u64,
    /// Of those, the ones that were computed from repairs.
    pub repaired_datagrams: u64,
    /// Datagrams that left in pieces, as their path did not take them whole.
    pub cut_datagrams: u64,
    /// Frames that arrived in pieces, and were completed.
    pub assembled_datagrams: u64,
    /// Frames some of whose pieces arrived, given up after two seconds or for newer ones.
    pub dropped_pieces: u64,
    /// Genuine frames that had come before, as second copies do.
    pub duplicates: u64,
    /// Frames that came again on the same path, or that are older than the replay window.
    pub replays: u64,
    /// Frames whose tag was wrong.
    pub forged: u64,
    /// Datagrams that are no frames of this lane, or came on a path that it does not have.
    pub foreign: u64,
    /// Genuine frames that break the rules of section 2.
    pub malformed: u64,
    /// Datagrams that came while the driver's inbox was full.
    pub dropped_inbox: u64,
    /// Flows that were forgotten for others.
    pub flows_forgotten: u64,
    /// How long it took until frames with datagrams of small flows, or copied ones, were acknowledged, whichever path
    /// brought them.
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

/// What is known of a path.
#[derive(Copy, Clone, Debug)]
pub struct PathInfo {
    /// Its number.
    pub id: PathId,
    /// Whether it answers.
    pub health: Health,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// When what is sent now will be answered.
    pub forecast: Forecast,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes on their way.
    pub bytes_in_flight: u64,
    /// UDP payload of the largest frame that passes, bytes.
    pub frame_bytes: u16,
    /// Frames that wanted an acknowledgement, and those of them that were lost.
    pub frames: u64,
    /// Lost ones.
    pub lost_frames: u64,
}
