//! Words that path health monitors of several processes exchange: verdicts and statistics.
//!
//! *Problem.* The source's oracle is the kernel's: it sees every connection of the machine. A monitor sees those of one
//! process, and a second process would find out for itself that the WiFi is dead.
//!
//! *How.* A monitor gives what only it can know, and takes what others give: the counts of its members' segments, which
//! others add to their own, so that each judges the losses of the whole machine; and the verdicts that it found, which
//! others adopt. An adopted verdict has all consequences of one's own, probes by one's own members among them. It ends
//! when these were answered for a clean period, or when nobody holds it any longer
//! ([`PathHealthMonitor::withdraw`]). It is not passed on, so that two processes do not hold each other to it, unless a
//! probe here goes unanswered: then it is one's own.
//!
//! Questions and answers are not exchanged. Instead, a member that heard the peer while another process waited for it
//! *refutes* that verdict, as it would have prevented it in the same process.
//!
//! The driver carries this from process to process. Times are those of this process' clock.

use marline_policy::{AddressPair, AddressPairFault};
use marline_time::{Duration, Instant};

use super::{PathHealthMonitor, PathHealthObserver};

/// A verdict that a process found itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AddressPairVerdict {
    /// The address pair that is bad.
    pub address_pair: AddressPair,
    /// The cause.
    pub fault: AddressPairFault,
    /// The time since which it has been bad.
    pub since: Instant,
    /// When the peer was last heard there before, in that process.
    pub unheard_from: Instant,
}

/// Segments of an address pair's members during some time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPairStatistics {
    /// Lost: they waited for repair when the time began, or were marked lost since.
    pub lost: u64,
    /// Outstanding at the end, and those that were lost and are repaired.
    pub outstanding: u64,
    /// Outstanding at the beginning, or sent since.
    pub at_risk: u64,
    /// Retransmitted.
    pub retransmitted: u64,
    /// Sent.
    pub sent: u64,
    /// The largest retransmission timeout, backed off, of members that waited for an ACK.
    pub rto: Duration,
}

impl AddressPairStatistics {
    pub(super) fn add(&mut self, other: &AddressPairStatistics) {
        self.lost = self.lost.saturating_add(other.lost);
        self.outstanding = self.outstanding.saturating_add(other.outstanding);
        self.at_risk = self.at_risk.saturating_add(other.at_risk);
        self.retransmitted = self.retransmitted.saturating_add(other.retransmitted);
        self.sent = self.sent.saturating_add(other.sent);
        self.rto = self.rto.max(other.rto);
    }
}

impl PathHealthMonitor {
    /// Who is called whenever an endpoint has told something: from any thread, and often, so it should only wake
    /// somebody. Only the first observer counts; false for a further one.
    pub fn observe(&self, observer: PathHealthObserver) -> bool {
        self.observer.0.set(observer).is_ok()
    }

    /// The verdicts that were found here, on address pairs that have members: what others adopt.
    #[must_use]
    pub fn verdicts(&self) -> Vec<AddressPairVerdict> {
        self.lock().verdicts()
    }

    /// Adopts a verdict of another process. To be repeated while that holds it: without members here, it is forgotten
    /// after a clean period.
    pub fn adopt(&self, now: Instant, verdict: &AddressPairVerdict) {
        self.change(|table| table.adopt(now, verdict));
    }

    /// No other process holds this address pair to be bad any longer.
    pub fn withdraw(&self, address_pair: &AddressPair) {
        self.change(|table| table.withdraw(address_pair));
    }

    /// What members here did since this was last called, where they did anything.
    #[must_use]
    pub fn take_statistics(&self) -> Vec<(AddressPair, AddressPairStatistics)> {
        self.lock().take_statistics()
    }

    /// Adds what members of another process did.
    pub fn add_statistics(
        &self,
        now: Instant,
        address_pair: AddressPair,
        statistics: &AddressPairStatistics,
    ) {
        self.change(|table| table.add_statistics(now, address_pair, statistics));
    }

    /// Grows with each change of a verdict, its own or adopted.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.generation()
    }
}
