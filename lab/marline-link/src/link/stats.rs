//! Counters of a link.

use marline_time::Instant;

/// Counters of one direction since its start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets offered.
    pub offered_packets: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Packets delivered, including duplicates.
    pub delivered_packets: u64,
    /// Bytes delivered, including duplicates.
    pub delivered_bytes: u64,
    /// Dropped because the queue was full.
    pub dropped_queue: u64,
    /// Lost after the queue.
    pub dropped_loss: u64,
    /// Dropped because they were larger than the MTU.
    pub dropped_mtu: u64,
    /// Lost because the link was down or went down.
    pub dropped_outage: u64,
    /// Dropped because a middlebox blocks one of their TCP options.
    pub dropped_blocked: u64,
    /// Segments that a middlebox acknowledged and dropped.
    pub dropped_swallowed: u64,
    /// Acknowledgments that a middlebox removed.
    pub dropped_thinned: u64,
    /// Dropped by a NAT that had lost the translation.
    pub dropped_forgotten: u64,
    /// Passed with some TCP options removed.
    pub stripped: u64,
    /// Split into several segments.
    pub split: u64,
    /// Merged with the previous segment.
    pub coalesced: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delivered with flipped bits.
    pub corrupted: u64,
    /// Delivered with a changed payload and a valid checksum.
    pub rewritten: u64,
    /// Delivered after packets that were sent later.
    pub reordered: u64,
    /// Time at which a packet was last dropped or damaged.
    pub last_fault_at: Option<Instant>,
    /// Maximum number of queued bytes, including the packet being sent.
    pub queue_max_bytes: u64,
}

impl LinkStats {
    /// Number of packets that were dropped for any reason.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        let by_middleboxes = self.dropped_swallowed + self.dropped_thinned + self.dropped_forgotten;
        let by_rules = self.dropped_blocked + by_middleboxes;
        let by_size = self.dropped_queue + self.dropped_mtu;
        by_size + self.dropped_loss + self.dropped_outage + by_rules
    }
}
