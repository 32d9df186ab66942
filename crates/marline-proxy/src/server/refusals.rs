//! Refusals of a server: counted by reason, and told in the log at a bounded rate.
//!
//! Whoever can reach the server can be refused as often as they like. All are counted; the log has a few lines at once
//! and then one in a while, which says how many others there were.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::message::{ErrorCode, Failure};

/// Lines at once, and the time after which there may be one more.
const LINES: u32 = 10;
const LINE_AFTER: Duration = Duration::from_secs(30);

/// Why somebody was refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// What came is not what clients send.
    NotAClient,
    /// It said nothing, or did not authenticate, in time.
    Late,
    /// Too many are authenticating, in all or from its source.
    Crowd,
    /// Its credential is unknown.
    Credential,
    /// It speaks another version, or said something unexpected.
    Protocol,
    /// The client has as many connections, lanes or forwards as it may.
    ClientLimit,
    /// The client has used up its quota.
    Quota,
    /// The rules forbid the target.
    Rules,
    /// The target refused, does not answer, or has no address.
    Target,
    /// The server's network or resources do not allow it.
    Server,
}

impl RefusalReason {
    const ALL: [RefusalReason; 10] = [
        RefusalReason::NotAClient,
        RefusalReason::Late,
        RefusalReason::Crowd,
        RefusalReason::Credential,
        RefusalReason::Protocol,
        RefusalReason::ClientLimit,
        RefusalReason::Quota,
        RefusalReason::Rules,
        RefusalReason::Target,
        RefusalReason::Server,
    ];

    /// A word for it, as metrics have it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            RefusalReason::NotAClient => "not_a_client",
            RefusalReason::Late => "late",
            RefusalReason::Crowd => "crowd",
            RefusalReason::Credential => "credential",
            RefusalReason::Protocol => "protocol",
            RefusalReason::ClientLimit => "client_limit",
            RefusalReason::Quota => "quota",
            RefusalReason::Rules => "rules",
            RefusalReason::Target => "target",
            RefusalReason::Server => "server",
        }
    }

    /// Of a request that an authenticated client made.
    pub(super) const fn of_request(failure: &Failure) -> RefusalReason {
        match failure.code {
            ErrorCode::NotAuthorized => RefusalReason::Rules,
            ErrorCode::ResourceExceeded | ErrorCode::NetworkFailure => RefusalReason::Server,
            ErrorCode::ConnectionReset | ErrorCode::DestinationUnreachable => RefusalReason::Target,
            _ => RefusalReason::Protocol,
        }
    }
}

/// Counts by reason, and what is left of the log's lines.
#[derive(Debug)]
pub(super) struct Refusals {
    counts: [AtomicU64; RefusalReason::ALL.len()],
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    left: u32,
    /// When the next is added.
    next_at: Instant,
    untold: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        let lines = Lines { left: LINES, next_at: Instant::now() + LINE_AFTER, untold: 0 };
        Refusals { counts: Default::default(), lines: Mutex::new(lines) }
    }
}

impl Refusals {
    /// Counts one, and tells of it if there is a line left: who (an address, a credential), and why.
    pub(super) fn tell(&self, reason: RefusalReason, who: &dyn Display, why: &dyn Display) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        let Some(untold) = self.lines.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            tracing::debug!(%who, "refused: {why}");
            return;
        };
        let others = match untold {
            0 => String::new(),
            count => format!(" (and {count} others were refused)"),
        };
        // What any scanner of ports does is no cause for alarm.
        match reason {
            RefusalReason::NotAClient | RefusalReason::Late => {
                tracing::info!(%who, "refused: {why}{others}");
            }
            _ => tracing::warn!(%who, "refused: {why}{others}"),
        }
    }

    /// How many there were so far, by reason.
    pub(super) fn counts(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        let count = |reason: RefusalReason| self.counts[reason as usize].load(Ordering::Relaxed);
        RefusalReason::ALL.into_iter().map(move |reason| (reason, count(reason)))
    }
}

impl Lines {
    /// Takes a line, if there is one: how many refusals were not told of since the last.
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
        let mut lines = Refusals::default().lines.into_inner().unwrap();
        let told = (0..10_000).filter_map(|_| lines.take()).count();
        assert_eq!(told, LINES as usize);
        tokio::time::advance(LINE_AFTER).await;
        assert_eq!(lines.take(), Some(10_000 - u64::from(LINES)), "which says how many others");
        assert_eq!(lines.take(), None);
        tokio::time::advance(LINE_AFTER * 1_000).await;
        let told = (0..10_000).filter_map(|_| lines.take()).count();
        assert_eq!(told, LINES as usize, "calm does not save up more");
    }

    #[tokio::test(start_paused = true)]
    async fn each_is_counted_under_its_reason() {
        let refusals = Refusals::default();
        for (place, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            (0..=place).for_each(|_| refusals.tell(reason, &"somebody", &"why"));
        }
        let counts: Vec<u64> = refusals.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
