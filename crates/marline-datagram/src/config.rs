//! Settings and bounds of a lane.

use std::sync::Arc;

use marline_policy::{CongestionFactory, DatagramPolicyFactory, FlowClass};
use marline_time::Duration;

use crate::LARGEST_FRAME;
use crate::path::mtu::SAFE;

/// Bounds of what a peer or an application can make grow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Flows that the lane remembers; beyond it the one that was silent for longest is forgotten, and counts as new
    /// when it sends again.
    pub flows: usize,
    /// Paths.
    pub paths: usize,
    /// Bytes that wait on a path to be sent for the first time, bulk and other flows by themselves.
    pub queue_bytes: usize,
    /// Frames on their way on a path that an acknowledgement is awaited for; of older ones it is no longer.
    pub outstanding: usize,
    /// Frames kept for a copy in case that their acknowledgement does not come.
    pub kept_frames: usize,
    /// Bytes of these.
    pub kept_bytes: usize,
    /// Bytes received that the driver has not taken; beyond it datagrams are dropped.
    pub inbox_bytes: usize,
    /// Numbers of the replay window at most; it spans two seconds at line rate.
    pub replay_numbers: u64,
}

impl Default for Limits {
    /// 2^18 numbers are two seconds of 1,200-byte frames at 1.25 Gbit/s, and 32 KiB.
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
    /// Which path.
    pub policy: Arc<dyn DatagramPolicyFactory>,
    /// How much on each path.
    pub congestion: Arc<dyn CongestionFactory>,
    /// A datagram that has waited in the lane for longer than its class allows is dropped there; by class, as
    /// [`FlowClass::ALL`] has them.
    pub patience: [Duration; 3],
    /// The same of one whose flow has sent nothing else within a second, and is not bulk: a query for a name, the first
    /// packet of anything. Nothing follows that would take its place, so that it is of use for longer, and is sent
    /// again on another path when its answer is overdue.
    pub patience_alone: Duration,
    /// Bytes of UDP payload of the frames that are thought to pass, and of the largest that is tried.
    pub frame_bytes: (u16, u16),
    /// Bounds.
    pub limits: Limits,
}

impl LaneConfig {
    /// The usual settings around these policies.
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
            frame_bytes: (SAFE, LARGEST_FRAME as u16),
            limits: Limits::default(),
        }
    }

    /// How long a datagram of this class is worth sending.
    pub(crate) fn patience(&self, class: FlowClass, alone: bool) -> Duration {
        let of_class = self.patience[class as usize];
        let alone = alone && class != FlowClass::Bulk;
        if alone { of_class.max(self.patience_alone) } else { of_class }
    }
}
