//! Timers of lanes.

use marline_time::Instant;

use super::Lanes;

impl Lanes {
    /// Records that the process did not run for some time.
    pub(in super::super) fn note_pause(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.lane.note_pause());
    }

    pub(in super::super) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(in super::super) fn on_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.deadline = None;
                entry.lane.handle_timeout(now);
                self.touch(id);
            }
        }
    }
}
