//! Memory of address pairs on which Fast JOIN failed.

use core::net::{IpAddr, SocketAddr};

use marline_time::{Duration, Instant};

/// Time for which Fast JOIN is avoided on a pair of addresses after a refusal, which may be due to a permanent
/// middlebox.
const REFUSAL_AVOID_TIME: Duration = Duration::from_secs(600);
/// Time for which Fast JOIN is avoided after an unanswered SYN, which may be a single loss.
const AVOID_AFTER_LOSS: Duration = Duration::from_secs(60);
/// Limit on remembered pairs of addresses.
const MAX_AVOIDED_PAIRS: usize = 64;

/// Pairs of addresses on which Fast JOIN is avoided for now.
#[derive(Debug, Default)]
pub(crate) struct FastJoinMemory {
    pairs: Vec<(IpAddr, SocketAddr, Instant)>,
}

impl FastJoinMemory {
    pub(crate) fn contains(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> bool {
        self.pairs.retain(|(_, _, until)| *until > now);
        self.pairs.iter().any(|(l, r, _)| (*l, *r) == (local, remote))
    }

    /// Records that the SYN of a Fast JOIN, or its answer, was lost.
    pub(crate) fn on_lost(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) {
        self.avoid_until(local, remote, now + AVOID_AFTER_LOSS);
    }

    /// Records that the peer, or a middlebox, refused a Fast JOIN.
    pub(crate) fn on_refused(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) {
        self.avoid_until(local, remote, now + REFUSAL_AVOID_TIME);
    }

    fn avoid_until(&mut self, local: IpAddr, remote: SocketAddr, until: Instant) {
        self.pairs.retain(|(l, r, _)| (*l, *r) != (local, remote));
        if self.pairs.len() >= MAX_AVOIDED_PAIRS {
            self.pairs.remove(0);
        }
        self.pairs.push((local, remote, until));
    }
}
