//! Observers of a shard's packets: capture files, the segment log, the contact book and the
//! application's own.
//!
//! Each of them sees every segment once: an outgoing one before the carrier's header is written, an incoming one
//! after it was removed. None of them can change or delay it.

use core::net::IpAddr;

use super::contacts::ContactBook;
use super::observer::{Direction, ObservedSegments, PacketObserver, SharedObserver};
use crate::capture::Captures;
use crate::carrier::Outer;
use crate::tap::SegmentLog;

impl PacketObserver for Captures {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        for segment in observed.segments() {
            match observed.direction {
                Direction::Out => self.sent(observed.path, observed.ecn, segment),
                Direction::In => self.received(observed.path, observed.ecn, segment),
            }
        }
    }
}

impl PacketObserver for SegmentLog {
    fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let sent = observed.direction == Direction::Out;
        observed.segments().for_each(|segment| self.note(sent, observed.path, segment));
    }
}

/// Length of the IP and UDP headers of a frame.
const fn headers(local: IpAddr) -> usize {
    if local.is_ipv4() { 28 } else { 48 }
}

/// All observers of a shard.
#[derive(Debug)]
pub(super) struct Observers {
    pub(super) captures: Option<Captures>,
    pub(super) log: Option<SegmentLog>,
    pub(super) contacts: ContactBook,
    /// Observers that the application has registered.
    pub(super) others: Vec<SharedObserver>,
}

impl Observers {
    /// Notifies the application's observers of frames without segments, `stride` bytes each (0 for a single frame).
    pub(super) fn frames(
        &mut self,
        direction: Direction,
        outer: &Outer,
        (bytes, stride): (usize, usize),
    ) {
        if self.others.is_empty() {
            return;
        }
        let count = if stride == 0 { 1 } else { bytes.div_ceil(stride) };
        let bytes = (bytes + count * headers(outer.local)) as u64;
        for observer in &mut self.others {
            observer.frames(direction, outer.local, outer.remote, bytes);
        }
    }

    /// Shows segments to all observers.
    pub(super) fn observe(&mut self, observed: &ObservedSegments<'_>) {
        let own: [Option<&mut dyn PacketObserver>; 3] = [
            self.captures.as_mut().map(|captures| captures as _),
            Some(&mut self.contacts),
            self.log.as_mut().map(|log| log as _),
        ];
        own.into_iter().flatten().for_each(|observer| observer.observe(observed));
        self.others.iter_mut().for_each(|observer| observer.observe(observed));
    }
}
