//! Classic slow start: the window grows by the bytes delivered (RFC 5681 section 3.1).
//!
//! *Problem.* The capacity of an unknown path must be found in few round trips.
//!
//! *Source.* RFC 5681 with appropriate byte counting (RFC 3465): growth follows the bytes that ACKs
//! deliver, not the number of ACKs, so that delayed and thinned ACKs do not slow it down and split
//! ACKs do not speed it up.
//!
//! *Deviation.* RFC 3465 limits the growth per ACK to two segments to bound the burst that a stretch ACK releases. The
//! sender here is paced, so there is no burst to bound. A receiver that reads packets in batches acknowledges dozens of
//! segments at once, and the limit would reduce doubling to slow growth. So there is no limit (as in Linux).

use marline_policy::AckSample;

use super::{Growth, SlowStart};

/// Slow start that doubles the window every round trip until a loss.
#[derive(Copy, Clone, Debug, Default)]
pub struct Classic;

impl SlowStart for Classic {
    fn on_ack(&mut self, ack: &AckSample, _mss: u32) -> Growth {
        Growth { bytes: ack.delivered, leave: false }
    }

    fn restart(&mut self) {}
}
