//! Settings and limits of a lane.

use std::sync::Arc;

use marline_policy::{CongestionFactory, DatagramPolicyFactory, FlowClass};
use marline_time::Duration;

use crate::LARGEST_FRAME;
use crate::path::mtu::INITIAL_FRAME_BYTES;

/// Limits on the state that a peer or an application can create.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of remembered flows. Beyond this, the flow that has been silent longest is dropped. It counts as
    /// new when it sends again.
    pub flows: usize,
    /// Maximum number of paths.
    pub paths: usize,
    /// Maximum number of bytes per path that wait to be sent for the first time, separately for bulk and for other
    /// flows.
    pub queue_bytes: usize,
    /// Maximum number of unacknowledged frames tracked per path; older ones are no longer tracked.
    pub outstanding: usize,
    /// Maximum number of frames kept for retransmission on another path.
    pub kept_frames: usize,
    /// Maximum total size of the kept frames, in bytes.
    pub kept_bytes: usize,
    /// Maximum number of received bytes that the driver has not yet taken; beyond this, datagrams are dropped.
    pub inbox_bytes: usize,
    /// Maximum size of the replay window, in packet numbers; it should span two seconds at line rate.
    pub replay_numbers: u64,
}

impl Default for Limits {
    /// A window of 2^18 numbers corresponds to two seconds of 1,200-byte frames at 1.25 Gbit/s and takes 32 KiB.
    fn default() -> Self {
        Limits {
            flows: 4_096,
            paths: 8,
            queue_bytes: 512 << 10,
            outstanding: 16_384,
            kept_frames: 1_024,
            kept_bytes: 1_536 << 10,
            inbox_bytes: 1 << 20,
            replay_numbers: 1 << 18,
        }
    }
}

/// Settings of a lane.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Policy that chooses paths.
    pub policy: Arc<dyn DatagramPolicyFactory>,
    /// Congestion control of each path.
    pub congestion: Arc<dyn CongestionFactory>,
    /// Time after which a waiting datagram is dropped, by class in the order of [`FlowClass::ALL`].
    pub patience: [Duration; 3],
    /// Maximum waiting time of a datagram whose flow is not bulk and has sent nothing else within a second, such as a
    /// DNS query or the first packet of a connection. No later packet replaces it, so it stays useful for longer and is
    /// sent again on another path when its acknowledgment is overdue.
    pub patience_alone: Duration,
    /// UDP payload of frames that is assumed to pass, and the largest that is probed, in bytes.
    pub frame_bytes: (u16, u16),
    /// Limits on the lane's state.
    pub limits: Limits,
}

/// Ids with which the two ends of a lane address each other.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LaneIds {
    /// Our id, in frames that we receive. The top byte contains our shard.
    pub local: u64,
    /// The peer's id, in frames that we send.
    pub peers: u64,
}

impl LaneConfig {
    /// Creates the default settings with these policies.
    #[must_use]
    pub fn new(
        policy: Arc<dyn DatagramPolicyFactory>,
        congestion: Arc<dyn CongestionFactory>,
    ) -> Self {
        let ms = Duration::from_millis;
        LaneConfig {
            policy,
            congestion,
            patience: [ms(150), ms(150), ms(1_000)],
            patience_alone: ms(1_000),
            frame_bytes: (INITIAL_FRAME_BYTES, LARGEST_FRAME as u16),
            limits: Limits::default(),
        }
    }

    /// Returns the maximum waiting time of a datagram of this class.
    pub(crate) fn patience(&self, class: FlowClass, alone: bool) -> Duration {
        let of_class = self.patience[class as usize];
        let alone = alone && class != FlowClass::Bulk;
        if alone { of_class.max(self.patience_alone) } else { of_class }
    }
}
