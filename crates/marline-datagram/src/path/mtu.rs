//! MTU of a path: the largest frame that passes it.
//!
//! As DPLPMTUD does (RFC 8899): a path begins with frames that pass almost everywhere, and larger ones are tried
//! with padded frames that carry no datagram, the largest first. A size that was lost [`TRIES`] times is given up
//! for the next. When [`BLACK_HOLE`] frames above the safe size were lost and none came through, the path is
//! narrower, and all begins again from the safe size; when that happens to frames of the safe size, what passes
//! everywhere is left.
//!
//! A path begins above the safe size, other than RFC 8899's base: Chromium begins QUIC with datagrams of 1,250 bytes,
//! and ends the connection once its system has heard that these are too long.

use marline_time::{Duration, Instant};

/// What a path begins with: the first datagrams of browsers' QUIC fit, 1,250 bytes, with what they stand for.
const BEGIN: u16 = 1_332;
/// What is left of it where that does not pass: with it a datagram of 1,200 bytes fits, without which there is no QUIC.
pub(crate) const SAFE: u16 = 1_252;
/// What passes everywhere: IPv6's least MTU.
const LEAST: u16 = 1_232;
/// What is tried, the largest first: Ethernet, PPPoE and IPv6 in IPv4, what tunnels leave.
const SIZES: [u16; 4] = [1_472, 1_432, 1_392, BEGIN];
/// A size is tried so often.
const TRIES: u8 = 3;
/// Large frames lost in a row.
const BLACK_HOLE: u8 = 6;
/// Larger sizes are tried again after so long (RFC 8899 section 5.1.1).
const AGAIN: Duration = Duration::from_secs(600);

/// The largest frame of a path.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mtu {
    frame_bytes: u16,
    /// What is thought to pass, and what is never exceeded.
    safe: u16,
    most: u16,
    /// What the peer says passes from there.
    told_by_peer: Option<u16>,
    /// Place among the sizes of the one that is tried; beyond them: none is.
    trying: usize,
    tries: u8,
    /// The number of the probe that is under way.
    probe: Option<u64>,
    large_lost: u8,
    again_at: Option<Instant>,
    /// A change that the peer has not been told.
    untold: bool,
}

impl Mtu {
    pub(crate) fn new((safe, most): (u16, u16)) -> Self {
        let most = most.max(safe);
        Mtu {
            frame_bytes: BEGIN.clamp(safe, most),
            safe,
            most,
            told_by_peer: None,
            trying: sizes_below(most),
            tries: 0,
            probe: None,
            large_lost: 0,
            again_at: None,
            untold: false,
        }
    }

    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.frame_bytes
    }

    /// What passes both ways.
    pub(crate) fn both_ways(&self) -> u16 {
        self.told_by_peer.map_or(self.frame_bytes, |bytes| bytes.min(self.frame_bytes))
    }

    /// Bytes of the frame to try now; `None`: nothing is to be tried.
    pub(crate) fn wanted(&mut self, now: Instant) -> Option<u16> {
        if self.again_at.is_some_and(|at| at <= now) {
            (self.again_at, self.trying, self.tries) = (None, sizes_below(self.most), 0);
        }
        if self.probe.is_some() {
            return None;
        }
        SIZES.get(self.trying).copied().filter(|bytes| *bytes > self.frame_bytes)
    }

    /// A probe leaves.
    pub(crate) const fn on_probe(&mut self, number: u64) {
        self.probe = Some(number);
    }

    /// A frame of this size came through. Whether the largest has changed.
    pub(crate) fn on_answered(&mut self, number: u64, bytes: u32) -> bool {
        if bytes > u32::from(self.narrower()) {
            self.large_lost = 0;
        }
        if self.probe != Some(number) {
            return false;
        }
        self.probe = None;
        let Some(size) = SIZES.get(self.trying).copied() else { return false };
        (self.frame_bytes, self.untold) = (size, true);
        self.trying = SIZES.len();
        true
    }

    /// A probe was lost.
    pub(crate) fn on_probe_lost(&mut self, number: u64) {
        if self.probe != Some(number) {
            return;
        }
        self.probe = None;
        self.tries += 1;
        if self.tries >= TRIES {
            (self.trying, self.tries) = (self.trying + 1, 0);
        }
    }

    /// Another frame was. Whether the largest has changed.
    pub(crate) fn on_lost(&mut self, bytes: u32) -> bool {
        let narrower = self.narrower();
        if bytes <= narrower.into() || self.frame_bytes <= narrower {
            return false;
        }
        self.large_lost += 1;
        if self.large_lost < BLACK_HOLE {
            return false;
        }
        let again = Mtu::new((self.safe, self.most));
        *self =
            Mtu { frame_bytes: narrower, told_by_peer: self.told_by_peer, untold: true, ..again };
        true
    }

    /// The machine or a router says that no more than so many bytes pass. Whether the largest has changed.
    pub(crate) fn on_too_big(&mut self, frame_bytes: u16, now: Instant) -> bool {
        let frame_bytes = frame_bytes.max(self.least());
        if frame_bytes >= self.most {
            return false;
        }
        let changed = frame_bytes < self.frame_bytes;
        self.frame_bytes = self.frame_bytes.min(frame_bytes);
        self.untold |= changed;
        (self.trying, self.tries, self.probe) = (sizes_below(frame_bytes), 0, None);
        self.again_at = Some(now + AGAIN);
        changed
    }

    /// The peer says what passes from there. Whether that is news.
    pub(crate) fn on_told(&mut self, bytes: u16) -> bool {
        let before = self.both_ways();
        self.told_by_peer = Some(bytes.max(self.least()));
        before != self.both_ways()
    }

    fn least(&self) -> u16 {
        LEAST.min(self.safe)
    }

    /// What is left when the present size passes no longer.
    fn narrower(&self) -> u16 {
        if self.frame_bytes > self.safe { self.safe } else { self.least() }
    }

    /// What is to be told to the peer.
    pub(crate) fn take_untold(&mut self) -> Option<u16> {
        core::mem::take(&mut self.untold).then_some(self.frame_bytes)
    }
}

/// Place of the first size that is no larger than this.
fn sizes_below(most: u16) -> usize {
    SIZES.iter().position(|size| *size <= most).unwrap_or(SIZES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries sizes on a path that takes no more than so many bytes.
    fn found(most: u16) -> (u16, u32) {
        let mut mtu = Mtu::new((SAFE, 1_472));
        let mut probes = 0;
        while let Some(size) = mtu.wanted(Instant::ZERO) {
            probes += 1;
            mtu.on_probe(probes.into());
            assert_eq!(mtu.wanted(Instant::ZERO), None);
            if size <= most {
                assert!(mtu.on_answered(probes.into(), size.into()));
            } else {
                mtu.on_probe_lost(probes.into());
            }
        }
        (mtu.frame_bytes(), probes)
    }

    #[test]
    fn the_largest_size_that_passes_is_found() {
        assert_eq!(found(1_472), (1_472, 1));
        assert_eq!(found(1_450), (1_432, 4));
        assert_eq!(found(1_350), (BEGIN, 9));
        // That it does not pass is found by what is lost.
        assert_eq!(found(1_300), (BEGIN, 9));
    }

    #[test]
    fn a_black_hole_and_a_router_take_it_back() {
        let mut mtu = Mtu::new((SAFE, 1_472));
        mtu.on_probe(1);
        assert!(mtu.wanted(Instant::ZERO).is_none() && mtu.on_answered(1, 1_472));
        assert_eq!((mtu.take_untold(), mtu.take_untold()), (Some(1_472), None));
        for _ in 0..5 {
            assert!(!mtu.on_lost(1_472) && !mtu.on_lost(600) && !mtu.on_lost(1_252));
        }
        assert!(mtu.on_lost(1_472));
        assert_eq!((mtu.frame_bytes(), mtu.take_untold()), (SAFE, Some(SAFE)));
        mtu.on_probe(2);
        assert!(!mtu.on_too_big(1_400, Instant::ZERO));
        assert_eq!(mtu.wanted(Instant::ZERO), Some(1_392));
        // Nobody can take it below what passes everywhere.
        assert!(mtu.on_too_big(100, Instant::ZERO));
        assert_eq!(mtu.frame_bytes(), LEAST);
        assert_eq!(mtu.wanted(Instant::ZERO), None);
        assert_eq!(mtu.wanted(Instant::ZERO + AGAIN), Some(1_472));
    }

    #[test]
    fn a_path_narrower_than_the_sizes_it_begins_with_is_found_by_its_losses() {
        let mut mtu = Mtu::new((SAFE, 1_472));
        assert_eq!(mtu.frame_bytes(), BEGIN);
        assert!((0..6).any(|_| mtu.on_lost(BEGIN.into())));
        assert_eq!((mtu.frame_bytes(), mtu.take_untold()), (SAFE, Some(SAFE)));
        assert!((0..6).any(|_| mtu.on_lost(SAFE.into())));
        assert_eq!(mtu.frame_bytes(), LEAST);
        let mut fixed = Mtu::new((1_200, 1_200));
        assert_eq!(fixed.wanted(Instant::ZERO), None);
        assert!((0..20).all(|_| !fixed.on_lost(1_200)));
    }

    #[test]
    fn what_passes_both_ways_is_the_smaller() {
        let mut mtu = Mtu::new((SAFE, 1_472));
        assert!(!mtu.on_told(1_472));
        mtu.on_probe(1);
        mtu.on_answered(1, 1_472);
        assert_eq!(mtu.both_ways(), 1_472);
        assert!(mtu.on_told(1_392) && !mtu.on_told(1_392));
        assert_eq!(mtu.both_ways(), 1_392);
    }
}
