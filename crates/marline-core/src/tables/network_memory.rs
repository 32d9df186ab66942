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

use core::net::IpAddr;

use marline_time::{Duration, Instant};

/// How long a network is spared the option after the first time.
const FIRST: Duration = Duration::from_secs(3_600);
/// At most so often the time is doubled.
const MOST_DOUBLINGS: u32 = 4;
/// Pairs of addresses remembered.
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

/// The networks that are spared the option.
#[derive(Debug, Default)]
pub(crate) struct NetworkMemory {
    entries: Vec<Entry>,
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

    /// The option passed.
    pub(crate) fn absolve(&mut self, local: IpAddr, remote: IpAddr) {
        self.entries.retain(|entry| (entry.local, entry.remote) != (local, remote));
    }

    /// A local address came (back): what was known of it was another network's, for all we know.
    pub(crate) fn forget(&mut self, local: IpAddr) {
        self.entries.retain(|entry| entry.local != local);
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
}
