//! Congestion control interface: the limit on a subflow's bytes in flight.

use core::fmt::Debug;

use marline_time::{Duration, Instant, Rate};

use crate::{SubflowId, SubflowView};

/// A delivery-rate sample (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Rate over the sample's interval.
    pub rate: Rate,
    /// Bytes delivered in the interval.
    pub delivered: u64,
    /// The interval: the longer of the send and the ACK phase.
    pub interval: Duration,
    /// The sender had nothing to send for part of it: a lower bound only.
    pub app_limited: bool,
    /// Total bytes delivered when the sampled segment was sent; rounds are counted by it.
    pub prior_delivered: u64,
}

/// Summary of one ACK for congestion control.
#[derive(Copy, Clone, Debug)]
pub struct AckSample {
    /// The current time.
    pub now: Instant,
    /// Bytes newly delivered, cumulatively or selectively.
    pub delivered: u64,
    /// Total bytes delivered on this subflow, this ACK included.
    pub total_delivered: u64,
    /// Bytes newly marked lost while this ACK was handled.
    pub lost: u64,
    /// Bytes in flight before the ACK.
    pub prior_in_flight: u64,
    /// Bytes in flight after it.
    pub bytes_in_flight: u64,
    /// RTT sample of this ACK.
    pub rtt: Option<Duration>,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// Smallest RTT of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Delivery-rate sample.
    pub rate: Option<RateSample>,
    /// The congestion window, not the application, limits the subflow.
    pub cwnd_limited: bool,
    /// The subflow repairs losses; the core's PRR holds the window, so windows must not grow.
    pub in_recovery: bool,
}

/// Reduction applied to a subflow that held up others (NSDI'12 penalisation).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Penalty {
    /// Half the window; half of ssthresh, too, unless in slow start, which goes on (the later
    /// out-of-tree Linux).
    Window,
    /// Half the window, and that is ssthresh as well: slow start ends (the paper, and Linux of 2012).
    WindowAndThreshold,
}

/// Congestion signals, and their retraction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// Loss was detected: once per recovery episode.
    Loss {
        /// Bytes in flight when it was.
        bytes_in_flight: u64,
    },
    /// The retransmission timer fired.
    Rto {
        /// Bytes in flight when it did.
        bytes_in_flight: u64,
        /// First timeout of the episode; repeated ones keep ssthresh.
        first: bool,
    },
    /// The network marked segments (ECN): at most once per round trip.
    Ecn {
        /// Bytes in flight at that time.
        bytes_in_flight: u64,
    },
    /// The last reduction was spurious (DSACK, timestamps, F-RTO): undo it.
    Spurious,
    /// Recovery ended.
    RecoveryDone,
    /// A scheduler penalises the subflow.
    Penalty(Penalty),
    /// Sending starts again after a pause longer than the RTO.
    Idle,
}

/// Decides the congestion window of one subflow. It may read its siblings' views to couple.
pub trait CongestionController: Debug + Send {
    /// New data or a retransmission was sent.
    fn on_sent(&mut self, _bytes: u64, _now: Instant) {}

    /// An ACK came. `group` is empty unless [`wants_group`](Self::wants_group).
    fn on_ack(&mut self, ack: &AckSample, me: SubflowId, group: &[SubflowView]);

    /// Handles a congestion signal or its retraction.
    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        now: Instant,
        me: SubflowId,
        group: &[SubflowView],
    );

    /// Congestion window in bytes, at least one MSS.
    fn window(&self) -> u64;

    /// Slow-start threshold in bytes; `u64::MAX` while unknown. PRR aims at it during recovery.
    fn ssthresh(&self) -> u64;

    /// A pacing rate of its own. `None`: the core paces by window and SRTT (200 % in slow start,
    /// 120 % after).
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// The MSS changed; windows counted in segments follow.
    fn on_mss_change(&mut self, mss: u32);

    /// Whether `group` is to be filled (coupled controllers only; it costs time per ACK).
    fn wants_group(&self) -> bool {
        false
    }

    /// Whether the window holds during recovery too, without PRR (BBR).
    fn holds_window_in_recovery(&self) -> bool {
        false
    }

    /// Bytes that may be in flight in a recovery whatever PRR says. PRR lets go what ACKs deliver: at the end of a
    /// burst, or of a flow of small messages, nearly nothing is delivered any more, and what is lost or new would wait
    /// for several round trips. No more than the window; 0: PRR alone decides (RFC 9937).
    fn recovery_floor(&self) -> u64 {
        0
    }
}
