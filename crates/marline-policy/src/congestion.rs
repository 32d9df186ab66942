//! Congestion control interface: the limit on a subflow's bytes in flight.

use core::fmt::Debug;

use marline_time::{Duration, Instant, Rate};

use crate::{PathQueue, SubflowId, SubflowView};

/// A delivery-rate sample (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Rate over the sample's interval.
    pub rate: Rate,
    /// Bytes delivered in the interval.
    pub delivered: u64,
    /// Length of the interval: the longer of the send and the ACK phase.
    pub interval: Duration,
    /// The sender had nothing to send for part of the interval, so the rate is only a lower bound.
    pub app_limited: bool,
    /// Total number of bytes delivered when the sampled segment was sent. Controllers count round trips with it.
    pub prior_delivered: u64,
}

/// Summary of one ACK for congestion control.
#[derive(Copy, Clone, Debug)]
pub struct AckSample {
    /// The current time.
    pub now: Instant,
    /// Bytes newly delivered, cumulatively or selectively.
    pub delivered: u64,
    /// Total number of bytes delivered on this subflow, including this ACK.
    pub total_delivered: u64,
    /// Bytes newly marked lost while processing this ACK.
    pub lost: u64,
    /// Bytes in flight before the ACK.
    pub prior_in_flight: u64,
    /// Bytes in flight after the ACK.
    pub bytes_in_flight: u64,
    /// RTT sample from this ACK.
    pub rtt: Option<Duration>,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// Smallest RTT within the last few minutes ([`RttConfig::min_rtt_window`](crate::RttConfig)).
    pub min_rtt: Option<Duration>,
    /// Delivery-rate sample.
    pub rate: Option<RateSample>,
    /// The congestion window, not the application, limits the subflow.
    pub cwnd_limited: bool,
    /// The subflow is in recovery. PRR in the core controls sending, so windows must not grow.
    pub in_recovery: bool,
}

/// Reduction applied to a subflow that blocks others (penalization, NSDI 2012).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Penalty {
    /// Halves the window. Also halves ssthresh, except in slow start, which continues (later out-of-tree
    /// Linux).
    Window,
    /// Halves the window and sets ssthresh to the result, which ends slow start (the paper, and Linux of 2012).
    WindowAndThreshold,
}

/// Congestion signals and their retraction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CongestionSignal {
    /// A loss was detected; reported once per recovery episode.
    Loss {
        /// Bytes in flight at detection.
        bytes_in_flight: u64,
    },
    /// The retransmission timer fired.
    Rto {
        /// Bytes in flight at the timeout.
        bytes_in_flight: u64,
        /// First timeout of the episode. Later ones must keep ssthresh.
        first: bool,
    },
    /// ECN marks arrived; reported at most once per round trip.
    Ecn {
        /// Bytes in flight when the marks arrived.
        bytes_in_flight: u64,
    },
    /// The last reduction was spurious (DSACK, timestamps, F-RTO) and must be undone.
    Spurious,
    /// Recovery ended.
    RecoveryDone,
    /// A scheduler penalizes the subflow.
    Penalty(Penalty),
    /// Sending resumes after a pause longer than the RTO.
    Idle,
}

/// Decides the congestion window of one subflow. Coupled controllers also read the views of the other subflows.
pub trait CongestionController: Debug + Send {
    /// Handles the sending of new data or of a retransmission.
    fn on_sent(&mut self, _bytes: u64, _now: Instant) {}

    /// Handles an ACK. `group` is empty unless [`wants_group`](Self::wants_group) returns true.
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

    /// Slow-start threshold in bytes; `u64::MAX` while unknown. PRR uses it as its target during recovery.
    fn ssthresh(&self) -> u64;

    /// The controller's own pacing rate. With `None`, the core derives the rate from window and SRTT (200 % in slow
    /// start, 120 % afterwards).
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Handles a change of the MSS. Windows counted in segments must be converted.
    fn on_mss_change(&mut self, mss: u32);

    /// Returns true if the core must fill `group`, which costs time on every ACK. Only coupled controllers need it.
    fn wants_group(&self) -> bool {
        false
    }

    /// Returns true if the core must call [`share_queue`](Self::share_queue).
    fn wants_queue(&self) -> bool {
        false
    }

    /// Receives the queue of the path, which the controllers of a process share.
    fn share_queue(&mut self, _queue: PathQueue) {}

    /// Returns true if the window applies during recovery too, without PRR (BBR).
    fn holds_window_in_recovery(&self) -> bool {
        false
    }

    /// Number of bytes that may be in flight during recovery even if PRR allows less. PRR releases as much as ACKs
    /// deliver. At the end of a burst, or in a flow of small messages, ACKs deliver almost nothing, so lost and new
    /// data would wait several round trips. At most the window; 0 leaves the decision to PRR alone (RFC 9937).
    fn recovery_floor(&self) -> u64 {
        0
    }
}
