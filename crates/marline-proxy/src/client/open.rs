//! Opening a target: through a server, or directly.

use std::io;
use std::time::Duration;

use super::early_bytes::EarlyBytes;
use crate::message::{ErrorCode, Failure};
use crate::target::Target;
use crate::tls;
use crate::transport::Transport;

/// A tunnel or direct connector to targets.
pub trait Open: Send + Sync + 'static {
    /// Type of the opened streams.
    type Stream: Transport;

    /// Opens a stream to the target.
    fn open(&self, target: &Target)
    -> impl Future<Output = Result<Self::Stream, OpenError>> + Send;

    /// Opens a stream to the target for an application that is already connected. Its first bytes may be sent ahead,
    /// and the stream continues after them. The default takes no bytes.
    fn open_behind(
        &self,
        target: &Target,
        _ahead: Option<&mut EarlyBytes<'_>>,
    ) -> impl Future<Output = Result<Self::Stream, OpenError>> + Send {
        self.open(target)
    }
}

/// Error of opening a target.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server refused.
    #[error("{}", .0.text)]
    Refused(Failure),
    /// The server's key differs from the invite's.
    #[error(
        "the server's key differs from the invite's: the server was set up again, or another \
         machine answers (no secrets were sent); ask the server's owner for a new invite"
    )]
    Pin,
    /// The server was not reached, or the connection to it was lost.
    #[error("{0:#}")]
    Server(anyhow::Error),
}

impl OpenError {
    /// Returns the RFC 8803 code of the error.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            OpenError::Refused(failure) => failure.code,
            OpenError::Pin => ErrorCode::ResourceExceeded,
            OpenError::Server(_) => ErrorCode::NetworkFailure,
        }
    }

    /// Creates the error for a failed read from, or write to, the server.
    #[must_use]
    pub fn from_io(what: &str, error: io::Error) -> OpenError {
        if tls::is_pin_mismatch(&error) {
            return OpenError::Pin;
        }
        OpenError::Server(anyhow::Error::new(error).context(what.to_owned()))
    }

    pub(super) fn timed_out(what: &str, patience: Duration) -> OpenError {
        let patience_s = patience.as_secs();
        OpenError::Server(anyhow::anyhow!("{what}: no answer within {patience_s} s"))
    }
}
