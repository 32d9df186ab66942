//! Last refusal of a client by its server, for who asks why nothing goes.

use std::sync::{Mutex, PoisonError};

use super::open::OpenError;
use crate::message::Failure;

/// Why the server refused the client, if it did so when it was asked for a connection last.
#[derive(Debug, Default)]
pub(super) struct LastRefusal(Mutex<Option<Failure>>);

impl LastRefusal {
    /// What came of an attempt; `None`: a connection. A server that was not reached has said nothing.
    pub(super) fn note(&self, error: Option<&OpenError>) {
        let refusal = match error {
            None => None,
            Some(OpenError::Refused(failure)) => Some(failure.clone()),
            Some(OpenError::Pin | OpenError::Server(_)) => return,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }

    /// The refusal.
    pub(super) fn now(&self) -> Option<Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
