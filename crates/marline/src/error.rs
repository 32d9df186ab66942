//! What can go wrong when a client or a listener is set up or a connection is opened.

use core::fmt;
use core::net::SocketAddr;
use std::io;

use marline_algos::PolicyError;
use marline_core::{CloseReason, ConnectError};

/// An error of a [`Client`](crate::Client) or a [`Listener`](crate::Listener).
///
/// Its text says what could not be done; the cause, if there is one, is its
/// [`source`](std::error::Error::source): print the chain.
#[derive(Debug)]
pub enum Error {
    /// A path names an interface or address this machine does not have.
    NoSuchPath {
        /// The path as it was given.
        path: String,
        /// What is missing.
        reason: String,
    },
    /// A path has no route to the server.
    NoRoute {
        /// The path as it was given.
        path: String,
        /// Where it should lead.
        remote: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No interface with a default route and no path configured, or none fits the servers' families.
    NoPath,
    /// A socket could not be opened or bound.
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration contradicts itself.
    Config(String),
    /// Nothing answered on any path: the attempts, in words.
    Unreachable {
        /// One line per attempt: path, server and what happened.
        attempts: Vec<String>,
    },
    /// The connection ended before it was established.
    Closed(CloseReason),
    /// The core refused to start a connection.
    Connect(ConnectError),
    /// A policy cannot be chosen by this text.
    Policy(PolicyError),
    /// The driver is gone: its runtime was shut down.
    Stopped,
    /// The listener was closed: it accepts no more.
    ListenerClosed,
    /// Another system error.
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &str, source: io::Error) -> Error {
        Error::Io { what: what.to_owned(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchPath { path, reason } => write!(f, "path {path}: {reason}"),
            Error::NoRoute { path, remote, .. } => write!(f, "path {path}: no route to {remote}"),
            Error::NoPath => f.write_str(
                "no usable path: no interface has a default route (name paths explicitly)",
            ),
            Error::Bind { address, .. } => write!(f, "cannot bind {address}"),
            Error::Config(what) => write!(f, "configuration: {what}"),
            Error::Unreachable { attempts } => {
                write!(f, "no answer on any path ({})", attempts.join("; "))
            }
            Error::Closed(_) => f.write_str("connection ended"),
            Error::Connect(_) => f.write_str("cannot connect"),
            Error::Policy(_) => f.write_str("cannot choose this policy"),
            Error::Stopped => f.write_str("the network driver has stopped"),
            Error::ListenerClosed => f.write_str("the listener was closed"),
            Error::Io { what, .. } => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NoRoute { source, .. }
            | Error::Bind { source, .. }
            | Error::Io { source, .. } => Some(source),
            Error::Closed(reason) => Some(reason),
            Error::Connect(error) => Some(error),
            Error::Policy(error) => Some(error),
            Error::NoSuchPath { .. }
            | Error::NoPath
            | Error::Config(_)
            | Error::Unreachable { .. }
            | Error::Stopped
            | Error::ListenerClosed => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::NoSuchPath { .. } | Error::NoPath => io::ErrorKind::AddrNotAvailable,
            Error::NoRoute { .. } => io::ErrorKind::HostUnreachable,
            Error::Bind { source, .. } | Error::Io { source, .. } => source.kind(),
            Error::Config(_) | Error::Policy(_) => io::ErrorKind::InvalidInput,
            Error::Unreachable { .. } => io::ErrorKind::TimedOut,
            Error::Closed(reason) => marline_io::error_kind(*reason),
            Error::Connect(_) => io::ErrorKind::AddrInUse,
            Error::Stopped | Error::ListenerClosed => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Error::Connect(error)
    }
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Error::Policy(error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// Texts of an error and its causes.
    fn chain(error: &Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    #[test]
    fn causes_are_sources_and_are_said_once() {
        let taken = || io::Error::from(io::ErrorKind::AddrInUse);
        let address = "127.0.0.1:1".parse().unwrap();
        for (error, expected) in [
            (
                Error::Bind { address, source: taken() },
                format!("cannot bind 127.0.0.1:1: {}", taken()),
            ),
            (Error::io("list interfaces", taken()), format!("list interfaces: {}", taken())),
            (
                Error::Closed(CloseReason::Refused),
                "connection ended: refused by the peer".to_owned(),
            ),
            (Error::Stopped, "the network driver has stopped".to_owned()),
        ] {
            assert_eq!(chain(&error), expected);
        }
        let error = Error::Closed(CloseReason::PeerReset);
        let reason = error.source().and_then(|source| source.downcast_ref::<CloseReason>());
        assert_eq!(reason, Some(&CloseReason::PeerReset));
    }
}
