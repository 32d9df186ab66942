//! Observers of a shard's packets: capture files, the segment log, the radios' meters and the contact book.
//!
//! Each of them sees every segment once, on its way out before the carrier's header is written and on its
//! way in after that was taken off; none of them can change or delay it.

use marline_link::Direction;

use super::contacts::ContactBook;
use super::observer::{PacketObserver, Passing};
use super::radios::Radios;
use crate::capture::Captures;
use crate::tap::SegmentLog;

impl PacketObserver for Captures {
    fn observe(&mut self, passing: &Passing<'_>) {
        for segment in passing.segments() {
            match passing.direction {
                Direction::Up => self.sent(passing.path, passing.ecn, segment),
                Direction::Down => self.received(passing.path, passing.ecn, segment),
            }
        }
    }
}

impl PacketObserver for SegmentLog {
    fn observe(&mut self, passing: &Passing<'_>) {
        let sent = passing.direction == Direction::Up;
        passing.segments().for_each(|segment| self.note(sent, passing.path, segment));
    }
}

/// All observers of a shard.
#[derive(Debug)]
pub(super) struct Observers {
    pub(super) captures: Option<Captures>,
    pub(super) log: Option<SegmentLog>,
    pub(super) radios: Radios,
    pub(super) contacts: ContactBook,
}

impl Observers {
    /// Shows segments to each of them.
    pub(super) fn observe(&mut self, passing: &Passing<'_>) {
        let list: [Option<&mut dyn PacketObserver>; 4] = [
            self.captures.as_mut().map(|captures| captures as _),
            Some(&mut self.contacts),
            Some(&mut self.radios),
            self.log.as_mut().map(|log| log as _),
        ];
        list.into_iter().flatten().for_each(|observer| observer.observe(passing));
    }
}
