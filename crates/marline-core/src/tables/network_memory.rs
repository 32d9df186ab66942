//! Memory of networks that block Multipath TCP.
//!
//! A middlebox that drops SYNs with MP_CAPABLE costs every connection the time until its SYNs are sent without the
//! option (seven seconds with the usual timers), while plain TCP would have been established immediately. RFC 8684
//! section 3.1 leaves the number of attempts to the initiator. Kernels remember such a network and try the option
//! again after a while (Linux: an hour). So does Marline, per pair of addresses: the local one identifies the
//! network, the remote one the peer.
//!
//! A second such memory records networks where SYNs with the option are answered without it. This costs nothing with
//! one path; with several, the first connection waits for the answer on another path.
//!
//! The time doubles with each repetition, up to a day. An answer with the option removes the entry, as does a local
//! address that comes back, because it may belong to another network. The table is bounded; the entry that expires
//! first is evicted.
//!
//! To a connection that begins during an outage, the outage looks like such a middlebox: SYNs with the option stay
//! unanswered, and the first one without it is sent when the path is up again. So pairs of addresses on which
//! Multipath TCP worked are also remembered. There the first such connection counts as an outage, but the second in a
//! row does not.

use core::net::IpAddr;

use marline_time::{Duration, Instant};

/// Time for which the option is avoided after the first detection.
const FIRST_AVOID_TIME: Duration = Duration::from_secs(3_600);
/// Limit on doublings of the avoidance time.
const MAX_TIME_DOUBLINGS: u32 = 4;
/// Limit on remembered pairs of addresses of either kind.
const MAX_ENTRIES: usize = 256;
/// An expired entry keeps its count for this multiple of its avoidance time.
const COUNT_MEMORY_FACTOR: u32 = 2;

/// A pair of addresses on which options do not pass.
#[derive(Copy, Clone, Debug)]
struct Entry {
    local: IpAddr,
    remote: IpAddr,
    until: Instant,
    /// Number of detections.
    times: u32,
}

/// Networks on which the option is not sent, and those on which it passed.
#[derive(Debug, Default)]
pub(crate) struct NetworkMemory {
    entries: Vec<Entry>,
    /// Pairs, local first, on which the option passed and has not failed since then. The newest pair is at the end.
    passed: Vec<(IpAddr, IpAddr)>,
}

impl NetworkMemory {
    /// True if a SYN between these addresses should be sent without the option.
    pub(crate) fn is_refused(&self, now: Instant, local: IpAddr, remote: IpAddr) -> bool {
        self.find(local, remote).is_some_and(|index| self.entries[index].until > now)
    }

    /// Records that the option did not pass between these addresses, while TCP without it did.
    pub(crate) fn record_failure(&mut self, now: Instant, local: IpAddr, remote: IpAddr) {
        let times = match self.find(local, remote) {
            None => 0,
            Some(index) => {
                let before = self.entries.remove(index);
                let grace = span(before.times) * COUNT_MEMORY_FACTOR;
                if before.until + grace > now { before.times + 1 } else { 0 }
            }
        };
        if self.entries.len() >= MAX_ENTRIES {
            let ends_first = (0..self.entries.len()).min_by_key(|index| self.entries[*index].until);
            ends_first.map(|index| self.entries.remove(index));
        }
        self.entries.push(Entry { local, remote, until: now + span(times), times });
    }

    /// Records that SYNs with the option were not answered between these addresses, but one without it was. The option
    /// therefore does not pass. If it passed the last time, the path may have been down instead.
    pub(crate) fn on_unanswered(&mut self, now: Instant, local: IpAddr, remote: IpAddr) {
        if self.is_known_to_pass(local, remote) {
            self.passed.retain(|pair| *pair != (local, remote));
        } else {
            self.record_failure(now, local, remote);
        }
    }

    /// True if the option passed between these addresses when last observed.
    pub(crate) fn is_known_to_pass(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.passed.contains(&(local, remote))
    }

    /// Records that the option passed in a SYN and its answer.
    pub(crate) fn clear_suspicion(&mut self, local: IpAddr, remote: IpAddr) {
        self.entries.retain(|entry| (entry.local, entry.remote) != (local, remote));
    }

    /// Records that options passed in both directions, in the handshake and after it.
    pub(crate) fn on_passed(&mut self, local: IpAddr, remote: IpAddr) {
        if self.is_known_to_pass(local, remote) {
            return;
        }
        if self.passed.len() >= MAX_ENTRIES {
            self.passed.remove(0);
        }
        self.passed.push((local, remote));
    }

    /// Drops the entries of a local address that appeared, because it may now belong to another network.
    pub(crate) fn forget_address(&mut self, local: IpAddr) {
        self.entries.retain(|entry| entry.local != local);
        self.passed.retain(|pair| pair.0 != local);
    }

    fn find(&self, local: IpAddr, remote: IpAddr) -> Option<usize> {
        self.entries.iter().position(|entry| (entry.local, entry.remote) == (local, remote))
    }
}

fn span(times: u32) -> Duration {
    FIRST_AVOID_TIME * (1 << times.min(MAX_TIME_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_blamed_network_is_refused_for_longer_each_time() {
        let mut memory = NetworkMemory::default();
        let at = |hours: u64| Instant::from_secs(hours * 3_600);
        memory.record_failure(at(0), ip(1), ip(9));
        assert!(memory.is_refused(at(0), ip(1), ip(9)));
        assert!(!memory.is_refused(at(0), ip(1), ip(8)) && !memory.is_refused(at(0), ip(2), ip(9)));
        assert!(!memory.is_refused(at(1), ip(1), ip(9)), "the penalty has expired");
        memory.record_failure(at(1), ip(1), ip(9));
        assert!(memory.is_refused(at(2), ip(1), ip(9)) && !memory.is_refused(at(3), ip(1), ip(9)));
        memory.record_failure(at(100), ip(1), ip(9));
        assert!(!memory.is_refused(at(101), ip(1), ip(9)), "old failures do not count");
        for _ in 0..20 {
            memory.record_failure(at(101), ip(1), ip(9));
        }
        assert!(
            memory.is_refused(at(116), ip(1), ip(9)) && !memory.is_refused(at(117), ip(1), ip(9))
        );
    }

    #[test]
    fn success_or_a_new_address_removes_an_entry_and_the_table_is_bounded() {
        let mut memory = NetworkMemory::default();
        let now = Instant::ZERO;
        memory.record_failure(now, ip(1), ip(9));
        memory.clear_suspicion(ip(1), ip(9));
        assert!(!memory.is_refused(now, ip(1), ip(9)));
        memory.record_failure(now, ip(1), ip(9));
        memory.forget_address(ip(1));
        assert!(!memory.is_refused(now, ip(1), ip(9)));
        for number in 0..1_000_u32 {
            let remote = IpAddr::from((0x0b00_0000 + number).to_be_bytes());
            memory.record_failure(now + Duration::from_secs(number.into()), ip(1), remote);
        }
        assert_eq!(memory.entries.len(), MAX_ENTRIES);
        assert!(memory.is_refused(Instant::from_secs(999), ip(1), IpAddr::from([11, 0, 3, 231])));
    }

    #[test]
    fn a_network_that_passed_the_option_is_avoided_after_two_failures_in_a_row() {
        let mut memory = NetworkMemory::default();
        let now = Instant::ZERO;
        memory.on_passed(ip(1), ip(9));
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(!memory.is_refused(now, ip(1), ip(9)) && !memory.is_known_to_pass(ip(1), ip(9)));
        memory.on_passed(ip(1), ip(9));
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(!memory.is_refused(now, ip(1), ip(9)), "a success in between resets the count");
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(memory.is_refused(now, ip(1), ip(9)));

        memory.on_unanswered(now, ip(2), ip(9));
        assert!(memory.is_refused(now, ip(2), ip(9)), "no packet has passed on this pair");
        memory.on_passed(ip(2), ip(9));
        memory.forget_address(ip(2));
        memory.on_unanswered(now, ip(2), ip(9));
        assert!(memory.is_refused(now, ip(2), ip(9)), "the address now belongs to another network");
    }

    #[test]
    fn the_pairs_that_let_the_option_pass_are_bounded() {
        let mut memory = NetworkMemory::default();
        let remote = |number: u32| IpAddr::from((0x0b00_0000 + number).to_be_bytes());
        for number in (0..1_000).chain(999..1_000) {
            memory.on_passed(ip(1), remote(number));
        }
        assert_eq!(memory.passed.len(), MAX_ENTRIES);
        assert!(
            memory.is_known_to_pass(ip(1), remote(999))
                && !memory.is_known_to_pass(ip(1), remote(0))
        );
    }
}
