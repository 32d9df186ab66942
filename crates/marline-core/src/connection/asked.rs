//! Count of unanswered probes, for those that have no timer of their own in TCP: window probes,
//! DATA_FINs, a receiver's probes.

use marline_time::Instant;

/// When one was asked last, and whether anything was heard between one and the next.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Asked {
    at: Option<Instant>,
    /// In a row, after which nothing was heard.
    unanswered: u32,
}

impl Asked {
    /// Nobody was asked.
    pub(super) const NEVER: Asked = Asked { at: None, unanswered: 0 };

    /// When it was asked last.
    pub(super) const fn at(&self) -> Option<Instant> {
        self.at
    }

    /// It is asked again, the peer having been heard at `heard_at`: how many in a row went unanswered.
    pub(super) fn again(&mut self, now: Instant, heard_at: Option<Instant>) -> u32 {
        let silent = self.at.is_some_and(|at| heard_at.is_none_or(|heard| heard <= at));
        self.unanswered = if silent { self.unanswered.saturating_add(1) } else { 0 };
        self.at = Some(now);
        self.unanswered
    }
}
