//! Refusals of a server: counted by reason, and logged.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::{ErrorCode, Failure};

/// Reason for a refusal.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The first bytes are not those of a client.
    NotAClient,
    /// Nothing was received, or authentication did not finish, in time.
    Timeout,
    /// Too many connections are authenticating, in total or from this source.
    UnauthenticatedLimit,
    /// The credential is unknown.
    Credential,
    /// The client speaks another protocol version, or sent an unexpected message.
    Protocol,
    /// The client has reached its limit of connections, lanes or forwards.
    ClientLimit,
    /// The client has used up its quota.
    Quota,
    /// The rules forbid the target.
    Rules,
    /// The target refused, does not answer, or has no address.
    Target,
    /// The server's network fails, or the server lacks resources.
    Server,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [RefusalReason; 10] = [
        RefusalReason::NotAClient,
        RefusalReason::Timeout,
        RefusalReason::UnauthenticatedLimit,
        RefusalReason::Credential,
        RefusalReason::Protocol,
        RefusalReason::ClientLimit,
        RefusalReason::Quota,
        RefusalReason::Rules,
        RefusalReason::Target,
        RefusalReason::Server,
    ];

    /// Returns the label in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            RefusalReason::NotAClient => "not_a_client",
            RefusalReason::Timeout => "timeout",
            RefusalReason::UnauthenticatedLimit => "unauthenticated_limit",
            RefusalReason::Credential => "credential",
            RefusalReason::Protocol => "protocol",
            RefusalReason::ClientLimit => "client_limit",
            RefusalReason::Quota => "quota",
            RefusalReason::Rules => "rules",
            RefusalReason::Target => "target",
            RefusalReason::Server => "server",
        }
    }

    /// Returns the reason for refusing a request of an authenticated client.
    pub(super) const fn from_failure(failure: &Failure) -> RefusalReason {
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
    /// Counts and logs a refusal. `who` is an address or a credential.
    pub(super) fn record(&self, reason: RefusalReason, who: &dyn Display, why: &dyn Display) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        // Port scanners cause these constantly, so they do not justify a warning.
        match reason {
            RefusalReason::NotAClient | RefusalReason::Timeout => {
                tracing::info!(%who, "refused: {why}");
            }
            _ => tracing::warn!(%who, "refused: {why}"),
        }
    }

    /// Returns the number of refusals so far, by reason.
    pub(super) fn counts(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        let count = |reason: RefusalReason| self.counts[reason as usize].load(Ordering::Relaxed);
        RefusalReason::ALL.into_iter().map(move |reason| (reason, count(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_counted_under_its_reason() {
        let refusals = Refusals::default();
        for (place, reason) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            (0..=place).for_each(|_| refusals.record(reason, &"somebody", &"why"));
        }
        let counts: Vec<u64> = refusals.counts().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
