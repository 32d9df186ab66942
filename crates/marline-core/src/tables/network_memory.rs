//! Memory of networks that do not let Multipath TCP pass.
//!
//! A middlebox that drops SYNs with MP_CAPABLE costs every connection the time until its SYNs go
//! without the option (seven seconds with the usual timers), where plain TCP would have been
//! through at once. RFC 8684 section 3.1 leaves it to the initiator how often it tries; kernels
//! remember such a network and try the option again after a while (Linux: an hour). So does
//! Marline, per pair of addresses: the local one stands for the network, the remote one for the
//! other end.
//!
//! A second such memory holds where SYNs with the option are answered without it. That costs nothing where there is
//! one path; with several the first connection waits for what another path says.
//!
//! The time doubles with each repetition, up to a day. An answer with the option ends it, and so
//! does a local address that comes back: it may be another network's. The table is bounded; the
//! entry that ends first makes room.
//!
//! An outage looks like such a middlebox to a connection that begins in it: SYNs with the option stay
//! unanswered, and the first one without it goes out when the path is up again. So pairs of addresses
//! between which Multipath TCP worked are remembered as well. There the first such connection is an
//! accident, and the second in a row is not.

use core::net::IpAddr;

use marline_time::{Duration, Instant};

/// How long a network is spared the option after the first time.
const FIRST: Duration = Duration::from_secs(3_600);
/// At most so often the time is doubled.
const MOST_DOUBLINGS: u32 = 4;
/// Pairs of addresses remembered of either kind.
const MOST_ENTRIES: usize = 256;
/// An entry whose time is over still counts how often, for so many times its time.
const GRACE: u32 = 2;

/// A pair of addresses between which options do not pass.
#[derive(Copy, Clone, Debug)]
struct Entry {
    local: IpAddr,
    remote: IpAddr,
    until: Instant,
    /// How often it happened.
    times: u32,
}

/// The networks that are spared the option, and those that let it pass.
#[derive(Debug, Default)]
pub(crate) struct NetworkMemory {
    entries: Vec<Entry>,
    /// Pairs, local first, between which the option passed, and not failed since. The newest is the last.
    passed: Vec<(IpAddr, IpAddr)>,
}

impl NetworkMemory {
    /// Whether a SYN between these addresses had better go without the option.
    pub(crate) fn refuses(&self, now: Instant, local: IpAddr, remote: IpAddr) -> bool {
        self.find(local, remote).is_some_and(|index| self.entries[index].until > now)
    }

    /// The option did not pass between these addresses, and without it TCP did.
    pub(crate) fn blame(&mut self, now: Instant, local: IpAddr, remote: IpAddr) {
        let times = match self.find(local, remote) {
            None => 0,
            Some(index) => {
                let before = self.entries.remove(index);
                let grace = span(before.times) * GRACE;
                if before.until + grace > now { before.times + 1 } else { 0 }
            }
        };
        if self.entries.len() >= MOST_ENTRIES {
            let ends_first = (0..self.entries.len()).min_by_key(|index| self.entries[*index].until);
            ends_first.map(|index| self.entries.remove(index));
        }
        self.entries.push(Entry { local, remote, until: now + span(times), times });
    }

    /// SYNs with the option stayed unanswered between these addresses, and one without it did not: the option
    /// does not pass, unless it did the last time and the path was down for a while.
    pub(crate) fn on_unanswered(&mut self, now: Instant, local: IpAddr, remote: IpAddr) {
        if self.passes(local, remote) {
            self.passed.retain(|pair| *pair != (local, remote));
        } else {
            self.blame(now, local, remote);
        }
    }

    /// Whether the option passed between these addresses, the last time that this was seen.
    pub(crate) fn passes(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.passed.contains(&(local, remote))
    }

    /// The option passed in a SYN and its answer.
    pub(crate) fn absolve(&mut self, local: IpAddr, remote: IpAddr) {
        self.entries.retain(|entry| (entry.local, entry.remote) != (local, remote));
    }

    /// Options passed in both directions, in the handshake and after it.
    pub(crate) fn on_passed(&mut self, local: IpAddr, remote: IpAddr) {
        if self.passes(local, remote) {
            return;
        }
        if self.passed.len() >= MOST_ENTRIES {
            self.passed.remove(0);
        }
        self.passed.push((local, remote));
    }

    /// A local address came (back): what was known of it was another network's, for all we know.
    pub(crate) fn forget(&mut self, local: IpAddr) {
        self.entries.retain(|entry| entry.local != local);
        self.passed.retain(|pair| pair.0 != local);
    }

    fn find(&self, local: IpAddr, remote: IpAddr) -> Option<usize> {
        self.entries.iter().position(|entry| (entry.local, entry.remote) == (local, remote))
    }
}

fn span(times: u32) -> Duration {
    FIRST * (1 << times.min(MOST_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_network_is_spared_for_a_while_and_longer_each_time() {
        let mut memory = NetworkMemory::default();
        let at = |hours: u64| Instant::from_secs(hours * 3_600);
        memory.blame(at(0), ip(1), ip(9));
        assert!(memory.refuses(at(0), ip(1), ip(9)));
        assert!(!memory.refuses(at(0), ip(1), ip(8)) && !memory.refuses(at(0), ip(2), ip(9)));
        assert!(!memory.refuses(at(1), ip(1), ip(9)), "its time is over");
        memory.blame(at(1), ip(1), ip(9));
        assert!(memory.refuses(at(2), ip(1), ip(9)) && !memory.refuses(at(3), ip(1), ip(9)));
        memory.blame(at(100), ip(1), ip(9));
        assert!(!memory.refuses(at(101), ip(1), ip(9)), "long ago is another story");
        for _ in 0..20 {
            memory.blame(at(101), ip(1), ip(9));
        }
        assert!(memory.refuses(at(116), ip(1), ip(9)) && !memory.refuses(at(117), ip(1), ip(9)));
    }

    #[test]
    fn success_and_a_new_address_end_it_and_the_table_is_bounded() {
        let mut memory = NetworkMemory::default();
        let now = Instant::ZERO;
        memory.blame(now, ip(1), ip(9));
        memory.absolve(ip(1), ip(9));
        assert!(!memory.refuses(now, ip(1), ip(9)));
        memory.blame(now, ip(1), ip(9));
        memory.forget(ip(1));
        assert!(!memory.refuses(now, ip(1), ip(9)));
        for number in 0..1_000_u32 {
            let remote = IpAddr::from((0x0b00_0000 + number).to_be_bytes());
            memory.blame(now + Duration::from_secs(number.into()), ip(1), remote);
        }
        assert_eq!(memory.entries.len(), MOST_ENTRIES);
        assert!(memory.refuses(Instant::from_secs(999), ip(1), IpAddr::from([11, 0, 3, 231])));
    }

    #[test]
    fn a_network_that_let_the_option_pass_is_blamed_with_the_second_failure_in_a_row() {
        let mut memory = NetworkMemory::default();
        let now = Instant::ZERO;
        memory.on_passed(ip(1), ip(9));
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(!memory.refuses(now, ip(1), ip(9)) && !memory.passes(ip(1), ip(9)));
        memory.on_passed(ip(1), ip(9));
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(!memory.refuses(now, ip(1), ip(9)), "it passed in between");
        memory.on_unanswered(now, ip(1), ip(9));
        assert!(memory.refuses(now, ip(1), ip(9)));

        memory.on_unanswered(now, ip(2), ip(9));
        assert!(memory.refuses(now, ip(2), ip(9)), "nothing is known to have passed there");
        memory.on_passed(ip(2), ip(9));
        memory.forget(ip(2));
        memory.on_unanswered(now, ip(2), ip(9));
        assert!(memory.refuses(now, ip(2), ip(9)), "that was another network");
    }

    #[test]
    fn the_pairs_that_let_the_option_pass_are_bounded() {
        let mut memory = NetworkMemory::default();
        let remote = |number: u32| IpAddr::from((0x0b00_0000 + number).to_be_bytes());
        for number in (0..1_000).chain(999..1_000) {
            memory.on_passed(ip(1), remote(number));
        }
        assert_eq!(memory.passed.len(), MOST_ENTRIES);
        assert!(memory.passes(ip(1), remote(999)) && !memory.passes(ip(1), remote(0)));
    }
}
