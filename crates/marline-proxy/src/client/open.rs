//! Ways to a target: through a server, or direct.

use std::fmt;
use std::io;
use std::time::Duration;

use super::ahead::Ahead;
use crate::message::{ErrorCode, Failure};
use crate::target::Target;
use crate::tls;
use crate::transport::Transport;

/// A way to targets.
pub trait Open: Send + Sync + 'static {
    /// What it opens.
    type Stream: Transport;

    /// A stream whose bytes are the target's.
    fn open(&self, target: &Target)
    -> impl Future<Output = Result<Self::Stream, OpenError>> + Send;

    /// The same for an application that has a connection already: its first bytes may go ahead, and what is written to
    /// the stream comes behind them. A way that knows no such thing takes none.
    fn open_behind(
        &self,
        target: &Target,
        _ahead: Option<&mut Ahead<'_>>,
    ) -> impl Future<Output = Result<Self::Stream, OpenError>> + Send {
        self.open(target)
    }
}

/// Error of opening a target.
#[derive(Debug)]
pub enum OpenError {
    /// The server refused.
    Refused(Failure),
    /// The server has another key than the invite's.
    Pin,
    /// The server was not reached, or the connection to it was lost.
    Server(anyhow::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Refused(failure) => f.write_str(&failure.text),
            OpenError::Pin => f.write_str(
                "the server has another key than the invite names: it was set up again, or another machine \
                 answers in its place (nothing secret was sent); ask the server's owner for a new invite",
            ),
            OpenError::Server(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// RFC 8803's code for it.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            OpenError::Refused(failure) => failure.code,
            OpenError::Pin => ErrorCode::ResourceExceeded,
            OpenError::Server(_) => ErrorCode::NetworkFailure,
        }
    }

    /// The error of reading or writing, where the server was to be at the other end.
    #[must_use]
    pub fn from_io(what: &str, error: io::Error) -> OpenError {
        if tls::is_pin_mismatch(&error) {
            return OpenError::Pin;
        }
        OpenError::Server(anyhow::Error::new(error).context(what.to_owned()))
    }

    pub(super) fn late(what: &str, patience: Duration) -> OpenError {
        let patience_s = patience.as_secs();
        OpenError::Server(anyhow::anyhow!("{what}: no answer within {patience_s} s"))
    }
}
