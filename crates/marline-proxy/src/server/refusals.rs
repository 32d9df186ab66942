//! Refusals of a server: counted by reason, and logged.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::{ErrorCode, Failure};

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
    /// All reasons.
    pub const ALL: [RefusalReason; 10] = [
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

/// Counts by reason.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [AtomicU64; RefusalReason::ALL.len()],
}

impl Refusals {
    /// Counts and logs one: `who` is an address or a credential.
    pub(super) fn note(&self, reason: RefusalReason, who: &dyn Display, why: &dyn Display) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        // What any scanner of ports does is no cause for alarm.
        match reason {
            RefusalReason::NotAClient | RefusalReason::Late => {
                tracing::info!(%who, "refused: {why}");
            }
            _ => tracing::warn!(%who, "refused: {why}"),
        }
    }

    /// How many there were so far, by reason.
    pub(super) fn counts(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        let count = |reason: RefusalReason| self.counts[reason as usize].load(Ordering::Relaxed);
        RefusalReason::ALL.into_iter().map(move |reason| (reason, count(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_reason() {
        let refusals = Refusals::default();
        for (place, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            (0..=place).for_each(|_| refusals.note(reason, &"somebody", &"why"));
        }
        let counts: Vec<u64> = refusals.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
