//! Bound on lines of the log about what others can cause as often as they like: a few at once and then one in a while,
//! which says how many others there were.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lines at once, and the time after which there may be one more.
const LINES: u32 = 10;
const LINE_AFTER: Duration = Duration::from_secs(30);

/// What is left of the log's lines.
#[derive(Debug)]
pub(crate) struct FewLines(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    left: u32,
    /// When the next is added.
    next_at: Instant,
    untold: u64,
}

impl Default for FewLines {
    fn default() -> Self {
        let lines = Lines { left: LINES, next_at: Instant::now() + LINE_AFTER, untold: 0 };
        FewLines(Mutex::new(lines))
    }
}

impl FewLines {
    /// Takes a line, if there is one: how many were asked for in vain since the last.
    pub(crate) fn take(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Lines {
    fn take(&mut self) -> Option<u64> {
        let now = Instant::now();
        if now >= self.next_at {
            let since = now.duration_since(self.next_at).as_secs() / LINE_AFTER.as_secs();
            let more = u32::try_from(since + 1).unwrap_or(LINES);
            self.left = self.left.saturating_add(more).min(LINES);
            self.next_at = now + LINE_AFTER;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.untold))
            }
            None => {
                self.untold += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_whole_and_told_of_in_a_few_lines() {
        let lines = FewLines::default();
        let told = (0..10_000).filter_map(|_| lines.take()).count();
        assert_eq!(told, LINES as usize);
        tokio::time::advance(LINE_AFTER).await;
        assert_eq!(lines.take(), Some(10_000 - u64::from(LINES)), "which says how many others");
        assert_eq!(lines.take(), None);
        tokio::time::advance(LINE_AFTER * 1_000).await;
        let told = (0..10_000).filter_map(|_| lines.take()).count();
        assert_eq!(told, LINES as usize, "calm does not save up more");
    }
}
