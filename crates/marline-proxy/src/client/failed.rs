//! Failed attempts at a connection to the server, and which of them are worth repeating.

use std::io;

use super::open::OpenError;
use crate::message::ErrorCode;
use crate::transport;

/// An attempt that did not succeed.
pub(super) enum Failed {
    /// Permanent.
    Finally(OpenError),
    /// The server is overloaded: it said so, or closed before it said anything.
    Busy(OpenError),
    /// The server does not know the session any more, and another task is making a new one.
    Forgotten,
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        match &error {
            OpenError::Refused(failure) if failure.code == ErrorCode::ResourceExceeded => {
                Failed::Busy(error)
            }
            _ => Failed::Finally(error),
        }
    }
}

impl Failed {
    /// What went wrong while the server had not let us in yet.
    pub(super) fn at_the_door(what: &str, error: io::Error) -> Failed {
        let reset = transport::is_reset(&error);
        let error = OpenError::from_io(what, error);
        if reset { Failed::Busy(error) } else { error.into() }
    }
}
