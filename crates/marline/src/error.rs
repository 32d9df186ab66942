//! Errors of the library, one type per operation.
//!
//! The text of an error describes what failed. The cause, if any, is its [`source`](std::error::Error::source), so
//! print the whole chain.

use core::fmt;
use core::net::SocketAddr;
use std::io;

use marline_core::CloseReason;
pub use marline_core::ConnectError as StartError;

/// Reason why a [`Client`](crate::Client) or a [`Server`](crate::Server) could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum BindError {
    /// A path cannot be opened, or names a TUN interface that is not configured.
    NoSuchPath {
        /// The path as configured.
        path: String,
        /// Reason why the path is invalid.
        reason: String,
    },
    /// A socket could not be opened or bound.
    Bind {
        /// Address to bind.
        address: SocketAddr,
        /// System error.
        source: io::Error,
    },
    /// The configuration is contradictory.
    Config(String),
    /// Another operation of the operating system failed.
    Io {
        /// Operation that failed.
        what: String,
        /// System error.
        source: io::Error,
    },
}

impl BindError {
    pub(crate) fn io(what: &str, source: io::Error) -> BindError {
        BindError::Io { what: what.to_owned(), source }
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::NoSuchPath { path, reason } => write!(f, "path {path}: {reason}"),
            BindError::Bind { address, source } => {
                write!(f, "cannot bind {address}")?;
                marline_io::port_help(*address, source)
                    .map_or(Ok(()), |help| write!(f, " ({help})"))
            }
            BindError::Config(what) => write!(f, "invalid configuration: {what}"),
            BindError::Io { what, .. } => write!(f, "cannot {what}"),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::Bind { source, .. } | BindError::Io { source, .. } => Some(source),
            BindError::NoSuchPath { .. } | BindError::Config(_) => None,
        }
    }
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> io::Error {
        let kind = match &error {
            BindError::NoSuchPath { .. } => io::ErrorKind::AddrNotAvailable,
            BindError::Bind { source, .. } | BindError::Io { source, .. } => source.kind(),
            BindError::Config(_) => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

/// Reason why a [`Client`](crate::Client) could not connect.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server's name does not resolve.
    Resolve(io::Error),
    /// No path is configured and no interface has a default route, or no available path supports the servers'
    /// families.
    NoPath {
        /// Problems with the configured paths, such as a missing interface.
        reasons: Vec<String>,
    },
    /// A path has no route to the server.
    NoRoute {
        /// The path as configured.
        path: String,
        /// Address of the server.
        remote: SocketAddr,
        /// System error.
        source: io::Error,
    },
    /// The server refused, or the connection ended before it was established.
    Closed(CloseReason),
    /// There was no answer on any path.
    Unreachable {
        /// Attempts, in order of failure.
        attempts: Vec<Attempt>,
    },
    /// This endpoint could not start a connection.
    Start(StartError),
    /// The driver has stopped because its runtime was shut down.
    Stopped,
}

/// Failed attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    path: String,
    server: SocketAddr,
    reason: String,
}

impl Attempt {
    /// Creates an attempt on `path` to `server` that failed for this reason.
    #[must_use]
    pub const fn new(path: String, server: SocketAddr, reason: String) -> Self {
        Attempt { path, server, reason }
    }

    /// Returns the path as configured.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn server(&self) -> SocketAddr {
        self.server
    }

    /// Returns the reason for the failure, in one line of text.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {} to {}: {}", self.path, self.server, self.reason)
    }
}

/// Lists the attempts in one line.
pub(crate) fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(Attempt::to_string).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Resolve(_) => f.write_str("the server's name does not resolve"),
            ConnectError::NoPath { reasons } if reasons.is_empty() => f.write_str(
                "no usable path: no interface has a default route (name paths explicitly)",
            ),
            ConnectError::NoPath { reasons } => {
                write!(f, "no usable path: {}", reasons.join("; "))
            }
            ConnectError::NoRoute { path, remote, .. } => {
                write!(f, "path {path}: no route to {remote}")
            }
            ConnectError::Closed(_) => f.write_str("connection ended"),
            ConnectError::Unreachable { attempts } => {
                write!(f, "no answer on any path ({})", list(attempts))
            }
            ConnectError::Start(_) => f.write_str("cannot connect"),
            ConnectError::Stopped => f.write_str("the network driver has stopped"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConnectError::Resolve(source) | ConnectError::NoRoute { source, .. } => Some(source),
            ConnectError::Closed(reason) => Some(reason),
            ConnectError::Start(error) => Some(error),
            ConnectError::NoPath { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Stopped => None,
        }
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        let kind = match &error {
            ConnectError::Resolve(source) => source.kind(),
            ConnectError::NoPath { .. } => io::ErrorKind::AddrNotAvailable,
            ConnectError::NoRoute { .. } => io::ErrorKind::HostUnreachable,
            ConnectError::Closed(reason) => marline_io::error_kind(*reason),
            ConnectError::Unreachable { .. } => io::ErrorKind::TimedOut,
            ConnectError::Start(_) => io::ErrorKind::AddrInUse,
            ConnectError::Stopped => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

/// Error for changing a path or address that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPath {
    name: String,
    reason: String,
}

impl UnknownPath {
    pub(crate) fn new(name: impl fmt::Display, reason: impl Into<String>) -> Self {
        UnknownPath { name: name.to_string(), reason: reason.into() }
    }
}

impl fmt::Display for UnknownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}: {}", self.name, self.reason)
    }
}

impl std::error::Error for UnknownPath {}

impl From<UnknownPath> for io::Error {
    fn from(error: UnknownPath) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    /// Returns the text of an error and its causes.
    fn chain(error: &dyn Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    #[test]
    fn causes_are_sources_and_appear_once() {
        let taken = || io::Error::from(io::ErrorKind::AddrInUse);
        let address = "127.0.0.1:1".parse().unwrap();
        let cases: [(Box<dyn Error>, String); 5] = [
            (
                Box::new(BindError::Bind { address, source: taken() }),
                format!("cannot bind 127.0.0.1:1: {}", taken()),
            ),
            (
                Box::new(BindError::io("list interfaces", taken())),
                format!("cannot list interfaces: {}", taken()),
            ),
            (
                Box::new(ConnectError::Closed(CloseReason::Refused)),
                "connection ended: refused by the peer".to_owned(),
            ),
            (Box::new(ConnectError::Stopped), "the network driver has stopped".to_owned()),
            (
                Box::new(ConnectError::Start(StartError::FamilyMismatch)),
                format!("cannot connect: {}", StartError::FamilyMismatch),
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(chain(&*error), expected);
        }
        let error = ConnectError::Closed(CloseReason::PeerReset);
        let reason = error.source().and_then(|source| source.downcast_ref::<CloseReason>());
        assert_eq!(reason, Some(&CloseReason::PeerReset));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn every_attempt_is_listed() {
        let attempt = |path: &str| {
            Attempt::new(path.into(), "192.0.2.1:80".parse().unwrap(), "silent".into())
        };
        let error =
            ConnectError::Unreachable { attempts: vec![attempt("wlan0"), attempt("wwan0")] };
        assert_eq!(
            error.to_string(),
            "no answer on any path (path wlan0 to 192.0.2.1:80: silent; path wwan0 to 192.0.2.1:80: silent)"
        );
    }
}
