//! Memory of address pairs between which Fast JOIN did not get through.

use core::net::{IpAddr, SocketAddr};

use marline_time::{Duration, Instant};

/// How long a pair of addresses is spared after a refusal: what stands in the way there stays there.
const SPARE_REFUSED: Duration = Duration::from_secs(600);
/// And after a SYN without an answer, which may have been an accident.
const SPARE_LOST: Duration = Duration::from_secs(60);
/// Pairs of addresses remembered.
const MAX_SPARED: usize = 64;

/// Pairs of addresses between which the next joins are ordinary ones.
#[derive(Debug, Default)]
pub(crate) struct FastJoinMemory {
    pairs: Vec<(IpAddr, SocketAddr, Instant)>,
}

impl FastJoinMemory {
    pub(crate) fn contains(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) -> bool {
        self.pairs.retain(|(_, _, until)| *until > now);
        self.pairs.iter().any(|(l, r, _)| (*l, *r) == (local, remote))
    }

    /// The SYN, or what answered it, was lost.
    pub(crate) fn on_lost(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) {
        self.spare(local, remote, now + SPARE_LOST);
    }

    /// The peer, or a middlebox, refused it.
    pub(crate) fn on_refused(&mut self, now: Instant, local: IpAddr, remote: SocketAddr) {
        self.spare(local, remote, now + SPARE_REFUSED);
    }

    fn spare(&mut self, local: IpAddr, remote: SocketAddr, until: Instant) {
        self.pairs.retain(|(l, r, _)| (*l, *r) != (local, remote));
        if self.pairs.len() >= MAX_SPARED {
            self.pairs.remove(0);
        }
        self.pairs.push((local, remote, until));
    }
}
