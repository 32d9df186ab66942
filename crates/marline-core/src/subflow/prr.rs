//! Proportional Rate Reduction (RFC 9937): limits the data sent on each ACK of a recovery.
//!
//! *Problem.* When a loss is detected, the window must be reduced from the flight size to ssthresh. Reducing it
//! immediately stalls the sender for part of a round trip; not reducing it overloads the path. PRR spreads the
//! reduction over the ACKs: while more than ssthresh is in flight, it allows ssthresh/RecoverFS bytes for each byte
//! delivered. Below ssthresh it refills, conservatively unless the ACK shows progress without further loss.
//!
//! The RFC computes sndcnt again on each ACK. Here it is an allowance that sending consumes. A caller may exceed it
//! by less than a segment, which the next proportional count compensates for.
//!
//! RFC 9937 differs from RFC 6937 in two points: the ACK determines which of the two bounds applies, and the first
//! retransmission is always allowed. Linux 6.12 does this too, and packetdrill's recovery scripts check it segment by
//! segment. Linux starts from the window; the RFC and this code start from the bytes in flight.

use crate::on_demand::UnusedState;

/// The state of one recovery episode, in bytes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Prr {
    recover_flight: u64,
    ssthresh: u64,
    delivered: u64,
    out: u64,
    allowance: u64,
}

impl UnusedState for Prr {
    const UNUSED: &'static Self =
        &Prr { recover_flight: 0, ssthresh: 0, delivered: 0, out: 0, allowance: 0 };
}

impl Prr {
    /// Starts recovery with `recover_flight` bytes in flight before the ACK that began it. One segment may be sent
    /// immediately.
    pub(super) fn start(recover_flight: u64, ssthresh: u64, mss: u64) -> Self {
        let recover_flight = recover_flight.max(1);
        Prr {
            recover_flight,
            // A target beyond the flight size has no effect: there is nothing to reduce.
            ssthresh: ssthresh.min(recover_flight.max(mss)),
            delivered: 0,
            out: 0,
            allowance: mss,
        }
    }

    /// Handles an ACK that delivered `delivered` bytes and left `in_flight`. `safe` is true if it advanced SND.UNA
    /// and showed no further loss.
    pub(super) fn on_ack(&mut self, delivered: u64, in_flight: u64, safe: bool, mss: u64) {
        if delivered == 0 {
            return;
        }
        self.delivered += delivered;
        self.allowance = if in_flight > self.ssthresh {
            let share = (u128::from(self.delivered) * u128::from(self.ssthresh))
                .div_ceil(u128::from(self.recover_flight));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(self.out)
        } else {
            let bound = self.delivered.saturating_sub(self.out).max(delivered);
            let bound = if safe { bound + mss } else { bound };
            bound.min(self.ssthresh - in_flight)
        };
        if self.out == 0 && self.allowance == 0 {
            self.allowance = mss;
        }
    }

    /// Handles `bytes` that a timer declared lost, with `in_flight` left. They may be replaced, up to the target. The
    /// RFC counts only on ACKs. Without this, the last loss of an episode would wait for the retransmission timer.
    pub(super) fn on_timer_loss(&mut self, bytes: u64, in_flight: u64, mss: u64) {
        let room =
            self.ssthresh.saturating_sub(in_flight).max(if in_flight == 0 { mss } else { 0 });
        self.allowance = self.allowance.max(bytes.min(room));
    }

    /// Records sent bytes, whether new or retransmitted.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
        self.allowance = self.allowance.saturating_sub(bytes);
    }

    /// Number of bytes that may be sent now.
    pub(super) const fn allowance(&self) -> u64 {
        self.allowance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_000;

    /// A flight of 20 segments with one lost gets an ACK per segment: about 14 segments are sent, evenly spread.
    #[test]
    fn the_reduction_is_spread_over_the_acks() {
        let mut prr = Prr::start(20 * MSS, 14 * MSS, MSS);
        let mut in_flight = 20 * MSS;
        let mut sent = Vec::new();
        for ack in 0..19 {
            // the first ACK delivers one segment and shows one lost
            in_flight -= if ack == 0 { 2 * MSS } else { MSS };
            prr.on_ack(MSS, in_flight, false, MSS);
            let mut n = 0;
            while prr.allowance() > 0 {
                prr.on_sent(MSS);
                in_flight += MSS;
                n += 1;
            }
            sent.push(n);
        }
        assert!(sent.iter().all(|&n| n <= 1), "{sent:?}");
        let total: u64 = sent.iter().sum();
        assert!((13..=14).contains(&total), "{sent:?}");
        assert!((13 * MSS..=14 * MSS).contains(&in_flight), "{in_flight}");
    }

    #[test]
    fn below_the_target_prr_refills_the_delivered_bytes_plus_one_segment() {
        let mut prr = Prr::start(20 * MSS, 14 * MSS, MSS);
        prr.on_ack(MSS, 4 * MSS, false, MSS);
        assert_eq!(prr.allowance(), MSS);
        prr.on_sent(MSS);
        prr.on_ack(2 * MSS, 3 * MSS, true, MSS);
        assert_eq!(prr.allowance(), 3 * MSS);
        prr.on_sent(3 * MSS);
        prr.on_ack(MSS, 13 * MSS + 500, true, MSS);
        assert_eq!(prr.allowance(), 500);
    }

    #[test]
    fn segments_declared_lost_by_a_timer_may_be_resent() {
        let mut prr = Prr::start(20 * MSS, 10 * MSS, MSS);
        prr.on_sent(MSS);
        assert_eq!(prr.allowance(), 0);
        prr.on_timer_loss(3 * MSS, 9 * MSS, MSS);
        assert_eq!(prr.allowance(), MSS);
        prr.on_sent(MSS);
        prr.on_timer_loss(MSS, 12 * MSS, MSS);
        assert_eq!(prr.allowance(), 0);
    }

    #[test]
    fn the_first_retransmission_always_goes() {
        let prr = Prr::start(2 * MSS, MSS, MSS);
        assert_eq!(prr.allowance(), MSS);
        let mut prr = Prr::start(20 * MSS, MSS, MSS);
        prr.on_ack(1, 19 * MSS, false, MSS);
        assert!(prr.allowance() > 0);
    }
}
