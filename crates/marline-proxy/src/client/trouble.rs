//! Trouble between a client and its server: the reason why the latest request for a connection failed, and what
//! helps.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::open::OpenError;
use crate::message::ErrorCode;

/// Reason why a client's latest request for a connection to its server failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Kind of trouble.
    pub kind: TroubleKind,
    /// Description of the failure.
    pub text: String,
}

/// Kinds of trouble.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The server refuses this client: its credential is unknown, revoked or over its quota.
    Credential,
    /// The server's key differs from the invite's.
    Key,
    /// The peer does not speak the protocol of this client.
    Protocol,
    /// The server answers but is overloaded.
    Busy,
    /// The server was not reached, or the connection to it was lost.
    Unreached,
}

impl TroubleKind {
    /// Returns one word for the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TroubleKind::Credential => "credential",
            TroubleKind::Key => "key",
            TroubleKind::Protocol => "protocol",
            TroubleKind::Busy => "busy",
            TroubleKind::Unreached => "unreached",
        }
    }

    /// Returns true if the server answered and rejected this client permanently. No path helps until that changes.
    #[must_use]
    pub const fn is_rejection(self) -> bool {
        matches!(self, TroubleKind::Credential | TroubleKind::Key | TroubleKind::Protocol)
    }

    /// Returns advice for the user.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            TroubleKind::Credential => "the server's owner can admit this client again",
            TroubleKind::Key => "ask the server's owner for a new invite",
            TroubleKind::Protocol => {
                "check that the invite's address and port lead to a `marline server` of a compatible version"
            }
            TroubleKind::Busy => "the client retries automatically",
            TroubleKind::Unreached => "see the cause of each path; `marline doctor` tests them",
        }
    }
}

impl From<&OpenError> for Trouble {
    fn from(error: &OpenError) -> Trouble {
        let (kind, text) = match error {
            OpenError::Refused(failure) => match failure.code {
                ErrorCode::ResourceExceeded => (TroubleKind::Busy, failure.text.clone()),
                ErrorCode::NotAuthorized => {
                    (TroubleKind::Credential, format!("refused by the server: {}", failure.text))
                }
                _ => (TroubleKind::Protocol, format!("refused by the server: {}", failure.text)),
            },
            OpenError::Pin => {
                let text = "the server's key differs from the invite's: the server was set up \
                            again, or another machine answers (no secrets were sent)";
                (TroubleKind::Key, text.to_owned())
            }
            OpenError::Server(error) if is_protocol_violation(error) => (
                TroubleKind::Protocol,
                format!(
                    "the address is served by another program, not by a Marline server: {error:#}"
                ),
            ),
            OpenError::Server(error) => (TroubleKind::Unreached, format!("{error:#}")),
        };
        Trouble { kind, text }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns true if bytes were received that are not valid in the protocol.
fn is_protocol_violation(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    error.chain().filter_map(io).any(|kind| kind == io::ErrorKind::InvalidData)
}

/// The trouble found by a client's latest requests.
#[derive(Debug, Default)]
pub(super) struct LastTrouble(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    trouble: Option<Trouble>,
    /// True if another tunnel has taken over, so that late results are ignored.
    closed: bool,
}

impl LastTrouble {
    /// Records the outcome of a request. `None` as error means success. An unreachable server does not end an
    /// earlier rejection. Returns `Some` with the current reason if the rejection has changed.
    pub(super) fn record_outcome(&self, error: Option<&OpenError>) -> Option<Option<String>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let new = error.map(Trouble::from);
        let is_rejected = state.trouble.as_ref().is_some_and(|old| old.kind.is_rejection());
        if !is_rejected || !new.as_ref().is_some_and(|new| new.kind == TroubleKind::Unreached) {
            state.trouble = new;
        }
        let rejection = state.trouble.as_ref().filter(|trouble| trouble.kind.is_rejection());
        Some(rejection.map(|trouble| trouble.text.clone()))
    }

    /// Returns the current trouble.
    pub(super) fn now(&self) -> Option<Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).trouble.clone()
    }

    /// Removes the trouble and ignores later results.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            State { trouble: None, closed: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Failure;

    fn refused(code: ErrorCode) -> OpenError {
        OpenError::Refused(Failure::new(code, "no"))
    }

    #[test]
    fn a_rejection_lasts_until_the_server_serves_the_client() {
        let last = LastTrouble::default();
        assert_eq!(last.record_outcome(None), Some(None));
        let rejected =
            last.record_outcome(Some(&refused(ErrorCode::NotAuthorized))).expect("noted");
        assert_eq!(rejected.as_deref(), Some("refused by the server: no"));
        let unreached = OpenError::Server(anyhow::anyhow!("no answer"));
        assert_eq!(last.record_outcome(Some(&unreached)), Some(rejected.clone()));
        assert_eq!(last.now().map(|trouble| trouble.kind), Some(TroubleKind::Credential));
        assert_eq!(
            last.record_outcome(Some(&refused(ErrorCode::ResourceExceeded))),
            Some(None),
            "the server is reachable"
        );
        assert_eq!(last.now().map(|trouble| trouble.kind), Some(TroubleKind::Busy));
        assert_eq!(last.record_outcome(Some(&unreached)), Some(None));
        assert_eq!(last.now().map(|trouble| trouble.kind), Some(TroubleKind::Unreached));
        assert_eq!((last.record_outcome(None), last.now()), (Some(None), None));
        last.close();
        assert_eq!(
            last.record_outcome(Some(&OpenError::Pin)),
            None,
            "another tunnel has replaced this one"
        );
        assert_eq!(last.now(), None);
    }

    #[test]
    fn invalid_server_data_is_a_protocol_trouble() {
        let kind = |error: io::ErrorKind| {
            Trouble::from(&OpenError::from_io("TLS handshake with the server failed", error.into()))
                .kind
        };
        assert_eq!(kind(io::ErrorKind::InvalidData), TroubleKind::Protocol);
        assert_eq!(kind(io::ErrorKind::UnexpectedEof), TroubleKind::Unreached);
        assert_eq!(Trouble::from(&OpenError::Pin).kind, TroubleKind::Key);
    }
}
