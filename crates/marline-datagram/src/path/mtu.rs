//! MTU of a path: search for the largest frame that passes.
//!
//! As in DPLPMTUD (RFC 8899), a path begins with frames that pass on nearly all paths. Larger sizes are probed with
//! padded frames without datagrams, the largest first. After [`PROBES_PER_SIZE`] losses, the next size is probed. In
//! the meantime, larger datagrams are sent in pieces, so nothing waits for the search.
//!
//! When [`MIN_BLACK_HOLE_LOSSES`] frames above the safe size were lost and none arrived, the path has become narrower,
//! and the search restarts from the safe size. If that happens to frames of the safe size, the minimum that every IPv4
//! path supports is used. A path that becomes silent is *suspected*, because the cause may be a smaller MTU: it
//! continues with safe frames until the previous size passes again.

use marline_time::{Duration, Instant};

/// Initial frame size: a path MTU of 1,200 bytes, which is less than the MTU of tunnels and mobile networks.
pub(crate) const INITIAL_FRAME_BYTES: u16 = 1_172;
/// Frame size that passes everywhere: an IPv4 packet of 576 bytes (RFC 791) minus its headers.
const MIN_FRAME_BYTES: u16 = 548;
/// Sizes to probe, the largest first: Ethernet with IPv4 and IPv6, PPPoE, IPv6 in IPv4, and common tunnels.
const SIZES: [u16; 8] = [1_472, 1_452, 1_432, 1_392, 1_332, 1_252, INITIAL_FRAME_BYTES, 972];
/// Number of probes per size.
const PROBES_PER_SIZE: u8 = 3;
/// Number of consecutive losses of large frames that indicates a narrower path.
const MIN_BLACK_HOLE_LOSSES: u8 = 4;
/// Time after which larger sizes are probed again (RFC 8899 section 5.1.1).
const REPROBE_AFTER: Duration = Duration::from_secs(600);

/// Maximum frame size of a path.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mtu {
    frame_bytes: u16,
    /// Size that is assumed to pass, and the configured maximum.
    safe_size: u16,
    most: u16,
    /// Size that passes from the peer to us, according to the peer.
    reported_by_peer: Option<u16>,
    /// Index of the size being probed; beyond the last index, no size is probed.
    size_index: usize,
    tries: u8,
    /// Packet number of the probe in transit.
    probe: Option<u64>,
    large_lost: u8,
    /// Position in the sending order of the last large frame that arrived.
    large_passed: Option<u64>,
    retry_at: Option<Instant>,
    /// True after the path became unreachable: the previous size is probed again.
    is_suspected: bool,
    /// Size that was last announced to the peer.
    announced: Option<u16>,
}

impl Mtu {
    pub(crate) fn new(safe: u16, most: u16) -> Self {
        let most = most.max(safe);
        Mtu {
            frame_bytes: safe,
            safe_size: safe,
            most,
            reported_by_peer: None,
            size_index: first_size_at_most(most),
            tries: 0,
            probe: None,
            large_lost: 0,
            large_passed: None,
            retry_at: None,
            is_suspected: false,
            announced: None,
        }
    }

    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.frame_bytes
    }

    /// Largest size that passes in both directions.
    pub(crate) fn two_way_size(&self) -> u16 {
        self.reported_by_peer.map_or(self.frame_bytes, |bytes| bytes.min(self.frame_bytes))
    }

    /// Returns the size of the probe to send now, if any.
    pub(crate) fn probe_size(&mut self, now: Instant) -> Option<u16> {
        if self.retry_at.is_some_and(|at| at <= now) {
            (self.retry_at, self.size_index, self.tries) = (None, first_size_at_most(self.most), 0);
        }
        if self.probe.is_some() {
            return None;
        }
        let wanted = SIZES.get(self.size_index).copied().filter(|bytes| *bytes > self.frame_bytes);
        self.is_suspected &= wanted.is_some();
        wanted
    }

    /// Records a probe.
    pub(crate) const fn on_probe(&mut self, number: u64) {
        self.probe = Some(number);
    }

    /// Records an acknowledged frame of this size at position `place` in the sending order. Returns true if the maximum
    /// has changed.
    pub(crate) fn on_answered(&mut self, number: u64, place: u64, bytes: u32) -> bool {
        if bytes > u32::from(self.narrower()) {
            self.large_lost = 0;
            self.large_passed = self.large_passed.max(Some(place));
        }
        if self.probe != Some(number) {
            return false;
        }
        self.probe = None;
        let Some(size) = SIZES.get(self.size_index).copied() else { return false };
        self.frame_bytes = size;
        self.is_suspected = false;
        self.size_index = SIZES.len();
        self.announced != Some(size)
    }

    /// Records a lost probe.
    pub(crate) fn on_probe_lost(&mut self, number: u64) {
        if self.probe != Some(number) {
            return;
        }
        self.probe = None;
        self.tries += 1;
        if self.tries >= PROBES_PER_SIZE {
            (self.size_index, self.tries) = (self.size_index + 1, 0);
        }
    }

    /// Records the loss of a frame that is not a probe. Returns true if the maximum has changed.
    pub(crate) fn on_lost(&mut self, place: u64, bytes: u32) -> bool {
        let narrower = self.narrower();
        let passed_since = self.large_passed.is_some_and(|passed| passed > place);
        if bytes <= narrower.into() || self.frame_bytes <= narrower || passed_since {
            return false;
        }
        self.large_lost += 1;
        if self.large_lost < MIN_BLACK_HOLE_LOSSES {
            return false;
        }
        self.search_from(narrower, self.most);
        true
    }

    /// Records that the path does not answer, possibly because of a smaller MTU.
    pub(crate) fn suspect(&mut self) {
        if self.frame_bytes > self.safe_size {
            self.search_from(self.safe_size, self.frame_bytes);
            self.is_suspected = true;
        }
    }

    fn search_from(&mut self, frame_bytes: u16, most: u16) {
        self.frame_bytes = frame_bytes;
        (self.size_index, self.tries, self.probe) = (first_size_at_most(most), 0, None);
        (self.large_lost, self.is_suspected) = (0, false);
    }

    /// Records a maximum reported by the machine or a router. Returns true if the maximum has changed.
    pub(crate) fn on_too_big(&mut self, frame_bytes: u16, now: Instant) -> bool {
        let frame_bytes = frame_bytes.max(self.min_size());
        if frame_bytes >= self.most {
            return false;
        }
        let changed = frame_bytes < self.frame_bytes;
        self.search_from(self.frame_bytes.min(frame_bytes), frame_bytes);
        self.retry_at = Some(now + REPROBE_AFTER);
        changed
    }

    /// Records the size announced by the peer. Returns true if the result has changed.
    pub(crate) fn on_reported(&mut self, bytes: u16) -> bool {
        let before = self.two_way_size();
        self.reported_by_peer = Some(bytes.max(self.min_size()));
        before != self.two_way_size()
    }

    /// Minimum size; without probing, the configured size is fixed.
    fn min_size(&self) -> u16 {
        if self.safe_size == self.most {
            self.safe_size
        } else {
            MIN_FRAME_BYTES.min(self.safe_size)
        }
    }

    /// Returns the size to use when the current one no longer passes.
    fn narrower(&self) -> u16 {
        if self.frame_bytes > self.safe_size { self.safe_size } else { self.min_size() }
    }

    /// Returns the size that must be announced to the peer, if any.
    pub(crate) fn take_unannounced_size(&mut self) -> Option<u16> {
        let news =
            !self.is_suspected && self.announced.unwrap_or(self.safe_size) != self.frame_bytes;
        news.then(|| *self.announced.insert(self.frame_bytes))
    }
}

/// Returns the index of the first size that is at most this large.
fn first_size_at_most(most: u16) -> usize {
    SIZES.iter().position(|size| *size <= most).unwrap_or(SIZES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes sizes on a path with this maximum.
    fn search(mtu: &mut Mtu, most: u16) -> u32 {
        let mut probes = 0;
        while let Some(size) = mtu.probe_size(Instant::ZERO) {
            probes += 1;
            mtu.on_probe(probes.into());
            assert_eq!(mtu.probe_size(Instant::ZERO), None);
            if size <= most {
                assert!(mtu.on_answered(probes.into(), 0, size.into()));
            } else {
                mtu.on_probe_lost(probes.into());
            }
        }
        probes
    }

    fn found(most: u16) -> (u16, u32) {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        let probes = search(&mut mtu, most);
        (mtu.frame_bytes(), probes)
    }

    #[test]
    fn the_largest_size_that_passes_is_found() {
        assert_eq!(found(1_472), (1_472, 1));
        assert_eq!(found(1_450), (1_432, 7));
        assert_eq!(found(1_280 - 28), (1_252, 16));
        assert_eq!(found(1_200), (INITIAL_FRAME_BYTES, 18));
    }

    #[test]
    fn a_black_hole_and_a_router_take_it_back() {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        mtu.on_probe(1);
        assert!(mtu.probe_size(Instant::ZERO).is_none() && mtu.on_answered(1, 0, 1_472));
        assert_eq!((mtu.take_unannounced_size(), mtu.take_unannounced_size()), (Some(1_472), None));
        for _ in 0..3 {
            assert!(!mtu.on_lost(1, 1_472) && !mtu.on_lost(1, 600) && !mtu.on_lost(1, 1_172));
        }
        assert!(mtu.on_lost(1, 1_472));
        assert_eq!(
            (mtu.frame_bytes(), mtu.take_unannounced_size()),
            (INITIAL_FRAME_BYTES, Some(INITIAL_FRAME_BYTES))
        );
        mtu.on_probe(2);
        assert!(!mtu.on_too_big(1_400, Instant::ZERO));
        assert_eq!(mtu.probe_size(Instant::ZERO), Some(1_392));
        // A report cannot reduce the size below the one that passes everywhere.
        assert!(mtu.on_too_big(100, Instant::ZERO));
        assert_eq!(mtu.frame_bytes(), MIN_FRAME_BYTES);
        assert_eq!(mtu.probe_size(Instant::ZERO), None);
        assert_eq!(mtu.probe_size(Instant::ZERO + REPROBE_AFTER), Some(1_472));
    }

    #[test]
    fn a_path_narrower_than_the_safe_size_is_found_by_its_losses() {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        assert_eq!(mtu.frame_bytes(), INITIAL_FRAME_BYTES);
        assert!((0..4).any(|_| mtu.on_lost(1, INITIAL_FRAME_BYTES.into())));
        assert_eq!(
            (mtu.frame_bytes(), mtu.take_unannounced_size()),
            (MIN_FRAME_BYTES, Some(MIN_FRAME_BYTES))
        );
        assert!((0..20).all(|_| !mtu.on_lost(1, MIN_FRAME_BYTES.into())));
        search(&mut mtu, 1_000);
        assert_eq!(mtu.frame_bytes(), 972);
    }

    #[test]
    fn a_silent_path_uses_safe_frames_until_a_larger_one_passes() {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        search(&mut mtu, 1_472);
        assert_eq!(mtu.take_unannounced_size(), Some(1_472));
        mtu.suspect();
        assert_eq!((mtu.frame_bytes(), mtu.take_unannounced_size()), (INITIAL_FRAME_BYTES, None));
        assert_eq!(mtu.probe_size(Instant::ZERO), Some(1_472));
        // The cause was an outage.
        let mut as_before = mtu;
        as_before.on_probe(7);
        assert!(!as_before.on_answered(7, 0, 1_472));
        assert_eq!((as_before.frame_bytes(), as_before.take_unannounced_size()), (1_472, None));
        // The cause was the MTU.
        search(&mut mtu, 1_300);
        assert_eq!((mtu.frame_bytes(), mtu.take_unannounced_size()), (1_252, Some(1_252)));
    }

    #[test]
    fn losses_among_frames_that_pass_do_not_change_the_size() {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        search(&mut mtu, 1_472);
        mtu.on_answered(99, 50, 1_472);
        assert!((0..50).all(|place| !mtu.on_lost(place, 1_472)));
        assert!((51..55).any(|place| mtu.on_lost(place, 1_472)));
    }

    #[test]
    fn the_two_way_mtu_is_the_smaller_of_both() {
        let mut mtu = Mtu::new(INITIAL_FRAME_BYTES, 1_472);
        assert!(!mtu.on_reported(1_472));
        mtu.on_probe(1);
        mtu.on_answered(1, 0, 1_472);
        assert_eq!(mtu.two_way_size(), 1_472);
        assert!(mtu.on_reported(1_392) && !mtu.on_reported(1_392));
        assert_eq!(mtu.two_way_size(), 1_392);
    }
}
