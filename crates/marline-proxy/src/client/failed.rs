//! Failed attempts at a connection to the server, and which of them are worth repeating.

use std::io;

use super::open::OpenError;
use crate::message::ErrorCode;
use crate::transport;

/// An attempt that did not succeed.
pub(super) enum Failed {
    /// Permanent.
    Finally(OpenError),
    /// The server is overloaded: it said so, or closed before it let us in.
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

    /// The same, where the error has been wrapped already.
    pub(super) fn before_welcome(error: OpenError) -> Failed {
        let is_reset = |error: &anyhow::Error| {
            error.downcast_ref::<io::Error>().is_some_and(transport::is_reset)
        };
        match error {
            OpenError::Server(why) if is_reset(&why) => Failed::Busy(OpenError::Server(why)),
            other => other.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Failure;

    /// The server evicts handshakes of clients when it has too many: they are to come again.
    #[test]
    fn an_end_before_the_welcome_is_worth_another_attempt_and_a_refusal_is_not() {
        let failed = |kind: io::ErrorKind| {
            Failed::before_welcome(OpenError::from_io(
                "the server ended the connection",
                kind.into(),
            ))
        };
        for ended in [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof] {
            assert!(matches!(failed(ended), Failed::Busy(_)), "{ended:?}");
        }
        assert!(matches!(failed(io::ErrorKind::InvalidData), Failed::Finally(_)));
        let unknown = Failure::new(ErrorCode::NotAuthorized, "unknown");
        let failed = Failed::before_welcome(OpenError::Refused(unknown));
        assert!(matches!(failed, Failed::Finally(_)));
    }
}
