//! Failed attempts to connect to the server, classified by whether a retry makes sense.

use std::io;

use super::open::OpenError;
use crate::message::ErrorCode;
use crate::transport;

/// An attempt that did not succeed.
pub(super) enum Failed {
    /// A retry would fail, too.
    Permanent(OpenError),
    /// The server is overloaded: it reported this, or closed before its Welcome.
    Busy(OpenError),
    /// The path was lost before the server answered, and no data was used. Another connection takes another path.
    PathLost(OpenError),
    /// The server no longer knows the session, and another task is making a new one.
    Forgotten,
}

impl From<OpenError> for Failed {
    fn from(error: OpenError) -> Failed {
        match &error {
            OpenError::Refused(failure) if failure.code == ErrorCode::ResourceExceeded => {
                Failed::Busy(error)
            }
            _ => Failed::Permanent(error),
        }
    }
}

impl Failed {
    /// Classifies an I/O error before the server's Welcome.
    pub(super) fn handshake_io_error(what: &str, error: io::Error) -> Failed {
        Failed::classify_early_error(OpenError::from_io(what, error))
    }

    /// Classifies an error that occurred before the server's Welcome.
    pub(super) fn classify_early_error(error: OpenError) -> Failed {
        let OpenError::Server(why) = error else { return error.into() };
        let cause = why.downcast_ref::<io::Error>();
        let (reset, lost) = (
            cause.is_some_and(transport::is_reset),
            cause.is_some_and(|cause| cause.kind() == io::ErrorKind::HostUnreachable),
        );
        let error = OpenError::Server(why);
        match () {
            () if reset => Failed::Busy(error),
            () if lost => Failed::PathLost(error),
            () => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Failure;

    /// The server evicts handshakes of clients when it has too many. Those clients should retry.
    #[test]
    fn an_end_before_the_welcome_is_retried_but_a_refusal_is_not() {
        let failed = |kind: io::ErrorKind| {
            Failed::classify_early_error(OpenError::from_io(
                "the server ended the connection",
                kind.into(),
            ))
        };
        for ended in [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof] {
            assert!(matches!(failed(ended), Failed::Busy(_)), "{ended:?}");
        }
        let lost = failed(io::ErrorKind::HostUnreachable);
        assert!(matches!(lost, Failed::PathLost(_)), "another path may work");
        assert!(matches!(failed(io::ErrorKind::InvalidData), Failed::Permanent(_)));
        let unknown = Failure::new(ErrorCode::NotAuthorized, "unknown");
        let failed = Failed::classify_early_error(OpenError::Refused(unknown));
        assert!(matches!(failed, Failed::Permanent(_)));
    }
}
