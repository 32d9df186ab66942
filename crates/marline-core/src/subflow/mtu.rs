//! Packetization Layer Path MTU Discovery (RFC 4821).
//!
//! The search starts at the carrier's base size, which passes on every path. Once data flows, one segment of a larger
//! size is sent as a probe: first the carrier's largest size, because it nearly always passes, then by halving. A
//! lost probe does not indicate congestion. A single loss is weak evidence about size, so a size counts as too large
//! after two. Differences below [`MIN_STEP_BYTES`] are not probed.
//!
//! Two consecutive retransmission timeouts at a probed size may indicate a black hole, so the size falls back to the
//! base, and the search starts again when the path answers.
//!
//! Some paths carry even less than the base size: an interface with an MTU of 1,200, a tunnel in a tunnel.
//! Retransmissions after a timeout are split to the floor, which passes everywhere: after the first timeout if no full
//! segment has arrived yet, otherwise after the second, since a single timeout is usually a loss. If smaller segments
//! then arrive but none of the original size does, the next timeout counts as a black hole, and the size falls to the
//! floor. In an outage neither arrives, and on a lossy path both do, so neither changes the size. The search up from
//! the floor tries the largest size, then the base, then halves.

use marline_policy::Ssn;
use marline_time::{Duration, Instant};

/// Size differences below this are not probed. It exceeds the difference in option space between two full segments,
/// so that a probe can always be recognized by its payload.
const MIN_STEP_BYTES: u16 = 32;
/// Number of losses after which a size counts as too large.
const MAX_LOSSES: u8 = 2;
/// Maximum overhead of a carrier in addition to the IP header and the segment: a UDP header and a frame header.
const MAX_CARRIER_OVERHEAD: u16 = 32;
/// Smallest IPv4 packet size accepted from a report, as in Linux (`net.ipv4.route.min_pmtu`). A smaller one would be
/// forged, or the link would be too small for useful segments.
const MIN_IPV4_PACKET: u16 = 552;
/// Minimum MTU of every IPv6 link; smaller values in a report must be ignored (RFC 8200 section 5, RFC 8201 section
/// 4).
const MIN_IPV6_PACKET: u16 = 1_280;
/// Packet size that every path carries, including headers: Linux has the same limit.
const FLOOR_BYTES: u16 = MIN_IPV4_PACKET - 20 - MAX_CARRIER_OVERHEAD;
/// Maximum size of options beyond the smallest header. A segment that is smaller by up to this may be full.
const LONG_OPTIONS_BYTES: u16 = 80;
/// Number of consecutive timeouts up to which a repair is repeated unsplit.
const MAX_UNSPLIT_REPAIRS: u32 = 3;
/// Time after which a search that ended below the largest size is repeated (RFC 4821 section 7.7).
const MTU_SEARCH_INTERVAL: Duration = Duration::from_secs(600);

/// Smallest segment size that a network report can enforce.
pub(super) const fn min_reported_mss(ipv6: bool) -> u16 {
    let (packet, ip_header) = if ipv6 { (MIN_IPV6_PACKET, 40) } else { (MIN_IPV4_PACKET, 20) };
    packet - ip_header - MAX_CARRIER_OVERHEAD
}

/// Sizes that have arrived.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum ArrivedSizes {
    /// No segment of the size in use has arrived.
    #[default]
    Nothing,
    /// Full segments have arrived.
    Full,
    /// Only smaller segments, sent after a timeout, have arrived.
    Smaller,
}

/// Search for the largest size, in bytes of TCP segment.
#[derive(Debug)]
pub(super) struct MtuSearch {
    base: u16,
    max: u16,
    /// Size in use.
    current: u16,
    /// Upper limit of the search.
    ceiling: u16,
    /// The peer's maximum, regardless of the path.
    peer: u16,
    /// Size of the wanted probe; 0 if there is none.
    wanted: u16,
    in_flight: Option<Box<(Ssn, Ssn, u16)>>,
    /// Size of a segment that timed out, unless one of that size has arrived later; 0 if there is none.
    timed_out: u16,
    arrived: ArrivedSizes,
    losses: u8,
    not_before: Instant,
}

impl MtuSearch {
    pub(super) fn new(base: u16, max: u16) -> Self {
        let max = max.max(base);
        MtuSearch {
            base,
            max,
            current: base,
            ceiling: max,
            peer: u16::MAX,
            wanted: 0,
            in_flight: None,
            losses: 0,
            timed_out: 0,
            arrived: ArrivedSizes::Nothing,
            not_before: Instant::ZERO,
        }
    }

    /// Size in use.
    pub(super) const fn current(&self) -> u16 {
        self.current
    }

    /// Size of the wanted probe, or else the size in use.
    pub(super) fn next_segment(&self) -> u16 {
        if self.wanted == 0 { self.current } else { self.wanted }
    }

    /// Size for paths that do not carry the base. Without a search, this is the configured size.
    fn floor(&self) -> u16 {
        if self.base < self.max { FLOOR_BYTES.min(self.base) } else { self.base }
    }

    /// Size of a retransmission after the `count`th consecutive timeout. A repair is one unit, and is split only
    /// as a last resort.
    pub(super) fn repeated_segment(&self, count: u32, repair: bool) -> u16 {
        let patience = match (repair, self.arrived) {
            (true, _) => MAX_UNSPLIT_REPAIRS,
            (false, ArrivedSizes::Full) => 1,
            (false, ArrivedSizes::Nothing | ArrivedSizes::Smaller) => 0,
        };
        let suspected = self.timed_out > 0 && count > patience;
        if suspected { self.floor().min(self.current) } else { self.current }
    }

    /// Applies the peer's maximum (its MSS option).
    pub(super) fn limit(&mut self, max: u16) {
        self.peer = max;
        self.max = self.max.min(max);
        self.base = self.base.min(max);
        self.current = self.current.min(max);
        self.ceiling = self.ceiling.min(max);
        self.wanted = 0;
    }

    /// Handles a router's report that no segment larger than `size` passes. Returns true if this changed the size.
    /// Sizes below `least` are ignored, because such a report can be forged. Since the path may change, larger sizes
    /// are probed again after the interval of a finished search (RFC 8899 section 5.1.1, PMTU_RAISE_TIMER).
    pub(super) fn reduce(&mut self, size: u16, least: u16) -> bool {
        let size = size.max(least.min(self.base)).min(self.peer);
        let news = size < self.ceiling;
        if news {
            self.base = self.base.min(size);
            self.current = self.current.min(size);
            self.ceiling = size;
            self.losses = 0;
            self.wanted = 0;
            self.not_before = Instant::ZERO;
        }
        news
    }

    /// Restarts the search on another path from the size that always passes.
    pub(super) fn restart_search(&mut self) {
        self.current = self.base;
        self.ceiling = self.max;
        self.wanted = 0;
        self.in_flight = None;
        self.losses = 0;
        (self.timed_out, self.arrived) = (0, ArrivedSizes::Nothing);
        self.not_before = Instant::ZERO;
    }

    /// Requests a probe if one is due. Call this while data flows without trouble.
    pub(super) fn request_probe_if_due(&mut self, now: Instant) {
        if self.in_flight.is_some() || now < self.not_before {
            return;
        }
        if self.ceiling < self.current.saturating_add(MIN_STEP_BYTES) {
            if self.max < self.current.saturating_add(MIN_STEP_BYTES) {
                self.not_before = Instant::FAR_FUTURE;
                return;
            }
            if self.not_before == Instant::ZERO {
                self.not_before = now + MTU_SEARCH_INTERVAL;
                return;
            }
            self.ceiling = self.max;
            self.not_before = Instant::ZERO;
        }
        self.wanted = if self.ceiling == self.max {
            self.max
        } else if self.current < self.base && self.base <= self.ceiling {
            self.base
        } else {
            self.current + (self.ceiling - self.current).div_ceil(2)
        };
    }

    /// Withdraws a wanted probe (loss, recovery).
    pub(super) fn withdraw(&mut self) {
        self.wanted = 0;
    }

    /// Handles the transmission of a segment with this payload. `overhead` is the size of its smallest possible header.
    /// Returns true if it is the probe.
    pub(super) fn on_sent(&mut self, start: Ssn, end: Ssn, overhead: u16) -> bool {
        let size = self.wanted;
        if size == 0 {
            return false;
        }
        let least = end.since(start) + u64::from(overhead);
        if least <= u64::from(self.current) {
            return false;
        }
        self.wanted = 0;
        // A segment cut short by the end of data or window proves only its own size.
        let full = least + u64::from(MIN_STEP_BYTES) > u64::from(size);
        let size = if full { size } else { least.min(u64::from(size)) as u16 };
        self.in_flight = Some(Box::new((start, end, size)));
        true
    }

    /// True if this segment is the probe in flight, or a part of it.
    pub(super) fn is_probe(&self, start: Ssn) -> bool {
        self.in_flight.as_ref().is_some_and(|probe| probe.0 <= start && start < probe.1)
    }

    /// Handles the delivery of all data up to `una`, or of this one segment. Returns the size that passed.
    pub(super) fn on_delivered(&mut self, start: Ssn, end: Ssn) -> Option<u16> {
        let (from, to, size) = **self.in_flight.as_ref()?;
        if start > from || end < to {
            return None;
        }
        self.in_flight = None;
        self.losses = 0;
        self.current = size;
        (self.timed_out, self.arrived) = (0, ArrivedSizes::Full);
        Some(size)
    }

    /// Handles the delivery of all data before `una`: a probe that was delivered in parts is dropped.
    pub(super) fn on_delivered_up_to(&mut self, una: Ssn) {
        if self.in_flight.as_ref().is_some_and(|probe| probe.1 <= una) {
            self.in_flight = None;
        }
    }

    /// Handles the loss of the probe.
    pub(super) fn on_lost(&mut self) {
        let Some(probe) = self.in_flight.take() else { return };
        self.losses += 1;
        if self.losses >= MAX_LOSSES {
            self.losses = 0;
            self.ceiling = probe.2 - 1;
        }
    }

    /// Handles the delivery of a segment of this size. `later` is true if it was sent after the last timeout.
    pub(super) fn on_passed(&mut self, size: u64, later: bool) {
        if self.timed_out == 0 && self.arrived == ArrivedSizes::Full {
            return;
        }
        let full = if self.timed_out > 0 {
            self.timed_out
        } else {
            self.current.saturating_sub(MIN_STEP_BYTES)
        };
        if size >= u64::from(full) {
            (self.timed_out, self.arrived) = (0, ArrivedSizes::Full);
        } else if self.timed_out > 0 && later {
            self.arrived = ArrivedSizes::Smaller;
        }
    }

    /// Handles the `count`th consecutive retransmission timeout; `oldest` is the size of the oldest unacknowledged
    /// segment. Returns true if the size fell back.
    pub(super) fn on_rto(&mut self, count: u32, oldest: u64) -> bool {
        self.wanted = 0;
        self.in_flight = None;
        let floor = self.floor();
        if self.current > floor && oldest > u64::from(floor) {
            if self.arrived == ArrivedSizes::Smaller {
                self.reduce_to(floor);
                return true;
            }
            self.timed_out = u16::try_from(oldest).unwrap_or(u16::MAX);
        }
        let falls = count >= 2 && self.current > self.base;
        if falls {
            self.reduce_to(self.base);
            // The base size is not proven to pass either.
            self.timed_out = self.base.saturating_sub(LONG_OPTIONS_BYTES);
        }
        falls
    }

    /// Continues with this size, and restarts the search for a larger one.
    fn reduce_to(&mut self, size: u16) {
        self.current = size;
        self.ceiling = self.max;
        self.losses = 0;
        (self.timed_out, self.arrived) = (0, ArrivedSizes::Nothing);
        self.not_before = Instant::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search over a path that passes `limit` bytes; returns the result and the number of probes.
    fn search(base: u16, max: u16, limit: u16) -> (u16, u32) {
        let mut mtu = MtuSearch::new(base, max);
        let mut probes = 0;
        for i in 0..100_u64 {
            let now = Instant::from_secs(1 + i);
            mtu.request_probe_if_due(now);
            let size = mtu.next_segment();
            let (start, end) = (Ssn(1 + 10_000 * i), Ssn(1 + 10_000 * i + u64::from(size) - 52));
            if mtu.on_sent(start, end, 32) {
                probes += 1;
                if size <= limit {
                    assert_eq!(mtu.on_delivered(start, end), Some(size));
                } else {
                    mtu.on_lost();
                }
            }
        }
        (mtu.current(), probes)
    }

    #[test]
    fn the_largest_size_is_tried_first() {
        assert_eq!(search(1_232, 1_452, 1_452), (1_452, 1));
    }

    #[test]
    fn halving_finds_a_size_close_to_the_limit() {
        let (found, probes) = search(1_232, 8_900, 1_452);
        assert!(found <= 1_452 && found > 1_452 - MIN_STEP_BYTES, "{found}");
        assert!(probes < 25, "{probes}");
    }

    #[test]
    fn a_black_hole_falls_back_and_searches_again() {
        let mut mtu = MtuSearch::new(1_232, 1_452);
        mtu.request_probe_if_due(Instant::from_secs(1));
        assert!(mtu.on_sent(Ssn(1), Ssn(1 + 1_400), 32));
        assert_eq!(mtu.on_delivered(Ssn(1), Ssn(1_401)), Some(1_452));
        assert!(!mtu.on_rto(1, 1_452));
        assert!(mtu.on_rto(2, 1_452));
        assert_eq!((mtu.current(), mtu.repeated_segment(2, false)), (1_232, FLOOR_BYTES));
        mtu.request_probe_if_due(Instant::from_secs(2));
        assert_eq!(mtu.next_segment(), 1_452);
    }

    #[test]
    fn segments_passing_after_a_timeout_reveal_a_small_path_mtu() {
        // A full segment, and one that was shorter because of its options or its record.
        for oldest in [1_223, 1_150] {
            let mut mtu = MtuSearch::new(1_223, 1_463);
            assert!(!mtu.on_rto(1, oldest));
            assert_eq!((mtu.current(), mtu.repeated_segment(1, false)), (1_223, FLOOR_BYTES));
            mtu.on_passed(FLOOR_BYTES.into(), true);
            mtu.on_passed(700, true);
            assert!(mtu.on_rto(1, oldest));
            assert_eq!((mtu.current(), mtu.repeated_segment(1, false)), (FLOOR_BYTES, FLOOR_BYTES));
            assert!(
                !mtu.on_rto(2, FLOOR_BYTES.into()) && !mtu.on_rto(3, FLOOR_BYTES.into()),
                "already the minimum"
            );
            mtu.request_probe_if_due(Instant::from_secs(1));
            assert_eq!(mtu.next_segment(), 1_463, "the loss may have been an outage");
        }
    }

    #[test]
    fn where_full_segments_have_arrived_one_timeout_is_a_loss() {
        let mut mtu = MtuSearch::new(1_223, 1_463);
        mtu.on_passed(1_200, false);
        assert!(!mtu.on_rto(1, 1_223));
        assert_eq!(
            (mtu.repeated_segment(1, false), mtu.repeated_segment(2, false)),
            (1_223, FLOOR_BYTES)
        );
        assert_eq!(
            (mtu.repeated_segment(3, true), mtu.repeated_segment(4, true)),
            (1_223, FLOOR_BYTES)
        );
        assert!(!mtu.on_rto(2, 1_223));
        mtu.on_passed(FLOOR_BYTES.into(), true);
        assert!(mtu.on_rto(1, 1_223));
    }

    #[test]
    fn outages_and_losses_are_not_taken_for_black_holes() {
        let mut mtu = MtuSearch::new(1_223, 1_463);
        // No segment passes, or only segments sent before the timeout.
        for count in 1..5 {
            assert!(!mtu.on_rto(count, 1_223));
            mtu.on_passed(600, false);
        }
        // A segment of the same size passes after the timeout.
        mtu.on_passed(500, true);
        mtu.on_passed(1_223, true);
        assert!(!mtu.on_rto(1, 1_223));
        // Without a search, the size stays.
        let mut fixed = MtuSearch::new(1_400, 1_400);
        assert!(!fixed.on_rto(1, 1_400));
        fixed.on_passed(500, true);
        assert!(!fixed.on_rto(1, 1_400) && fixed.repeated_segment(9, false) == 1_400);
    }

    #[test]
    fn a_segment_that_ends_early_shows_its_own_size() {
        let mut mtu = MtuSearch::new(1_232, 1_452);
        mtu.request_probe_if_due(Instant::from_secs(1));
        assert!(mtu.on_sent(Ssn(1), Ssn(1_301), 32), "larger than the confirmed MTU");
        assert_eq!(mtu.on_delivered(Ssn(1), Ssn(1_301)), Some(1_332));
        mtu.request_probe_if_due(Instant::from_secs(2));
        assert_eq!(mtu.next_segment(), 1_452);
    }

    #[test]
    fn network_reports_only_reduce_the_size_within_limits() {
        let mut mtu = MtuSearch::new(1_232, 1_452);
        assert!(mtu.reduce(1_300, 500) && !mtu.reduce(1_400, 500));
        mtu.request_probe_if_due(Instant::from_secs(1));
        assert!(mtu.next_segment() > 1_232 && mtu.next_segment() <= 1_300);
        mtu.limit(1_000);
        assert!(!mtu.reduce(1_400, 500));
        mtu.request_probe_if_due(Instant::from_secs(2));
        assert_eq!((mtu.current(), mtu.next_segment()), (1_000, 1_000));
    }

    #[test]
    fn an_mtu_report_below_the_minimum_is_clamped() {
        for (ipv6, least) in [(false, 500), (true, 1_208)] {
            assert_eq!(min_reported_mss(ipv6), least);
            let mut mtu = MtuSearch::new(1_232, 1_452);
            for forged in [68, 40, 0] {
                mtu.reduce(forged, min_reported_mss(ipv6));
                assert_eq!(mtu.current(), least, "reported: {forged}");
            }
            mtu.limit(300);
            assert!(!mtu.reduce(100, min_reported_mss(ipv6)), "the peer's MSS is 300");
            assert_eq!(mtu.current(), 300);
        }
        // A configured size below that stays.
        let mut mtu = MtuSearch::new(400, 400);
        assert!(!mtu.reduce(100, 500));
        assert_eq!(mtu.current(), 400);
    }

    #[test]
    fn a_forged_mtu_limit_is_retried_after_ten_minutes() {
        let mut mtu = MtuSearch::new(1_232, 1_452);
        mtu.request_probe_if_due(Instant::from_secs(1));
        assert!(mtu.on_sent(Ssn(1), Ssn(1 + 1_400), 32));
        assert_eq!(mtu.on_delivered(Ssn(1), Ssn(1_401)), Some(1_452));
        assert!(mtu.reduce(1_232, 500));
        let mut probed_at = None;
        for s in 2..700 {
            mtu.request_probe_if_due(Instant::from_secs(s));
            if mtu.next_segment() > mtu.current() {
                assert_eq!(mtu.next_segment(), 1_452);
                probed_at = Some(s);
                break;
            }
        }
        assert_eq!(probed_at, Some(602), "a reported limit is probed again after ten minutes");
        assert!(mtu.on_sent(Ssn(2_000), Ssn(2_000 + 1_400), 32));
        assert_eq!(mtu.on_delivered(Ssn(2_000), Ssn(3_400)), Some(1_452));
    }

    #[test]
    fn the_peers_limit_holds() {
        let mut mtu = MtuSearch::new(1_232, 1_452);
        mtu.limit(1_000);
        mtu.request_probe_if_due(Instant::from_secs(1));
        assert_eq!((mtu.current(), mtu.next_segment()), (1_000, 1_000));
    }
}
