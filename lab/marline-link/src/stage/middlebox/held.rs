//! Segments held back by a middlebox: at most one per flow, for a bounded number of flows.

use marline_time::{Duration, Instant};

/// Time for which an acknowledgment waits for later ones that replace it.
pub(super) const ACK_THINNING_DELAY: Duration = Duration::from_millis(10);

/// Source and destination port.
pub(super) type Flow = (u16, u16);

/// A held segment.
#[derive(Clone, Debug)]
pub(super) struct Entry<P> {
    pub(super) packet: P,
    pub(super) until: Instant,
    /// Number of segments that the held segment represents.
    pub(super) count: u32,
}

/// The held segments.
#[derive(Debug)]
pub(super) struct HeldSegments<P> {
    entries: Vec<(Flow, Entry<P>)>,
}

impl<P> Default for HeldSegments<P> {
    fn default() -> Self {
        HeldSegments { entries: Vec::new() }
    }
}

impl<P> HeldSegments<P> {
    /// Maximum number of flows with a held segment. The oldest one is released to make room.
    pub(super) const MAX_FLOWS: usize = 64;

    /// Removes the held segment of a flow.
    pub(super) fn remove(&mut self, flow: Flow) -> Option<Entry<P>> {
        let index = self.entries.iter().position(|(of, _)| *of == flow)?;
        Some(self.entries.remove(index).1)
    }

    /// Holds a segment. Returns one that must be released if there is no room.
    pub(super) fn hold(&mut self, flow: Flow, entry: Entry<P>) -> Option<P> {
        let pushed_out = (self.entries.len() >= Self::MAX_FLOWS).then(|| self.entries.remove(0));
        self.entries.push((flow, entry));
        pushed_out.map(|(_, entry)| entry.packet)
    }

    pub(super) fn next_release(&self) -> Instant {
        let times = self.entries.iter().map(|(_, entry)| entry.until);
        times.min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Takes a segment that may be held at most until `now`, in the order of arrival.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<P> {
        let index = self.entries.iter().position(|(_, entry)| entry.until <= now)?;
        Some(self.entries.remove(index).1.packet)
    }
}
