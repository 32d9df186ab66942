//! What can go wrong when a client or a listener is set up or a connection is opened.

use core::fmt;
use core::net::SocketAddr;
use std::io;

use marline_algos::PolicyError;
use marline_core::{CloseReason, ConnectError};

/// An error of a [`Client`](crate::Client) or a [`Listener`](crate::Listener).
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
            Error::NoRoute { path, remote, source } => {
                write!(f, "path {path}: no route to {remote}: {source}")
            }
            Error::NoPath => f.write_str(
                "no usable path: no interface has a default route (name paths explicitly)",
            ),
            Error::Bind { address, source } => write!(f, "cannot bind {address}: {source}"),
            Error::Config(what) => write!(f, "configuration: {what}"),
            Error::Unreachable { attempts } => {
                write!(f, "no answer on any path ({})", attempts.join("; "))
            }
            Error::Closed(reason) => write!(f, "connection ended: {reason}"),
            Error::Connect(error) => write!(f, "cannot connect: {error}"),
            Error::Policy(error) => error.fmt(f),
            Error::Stopped => f.write_str("the network driver has stopped"),
            Error::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

/// Without `source`: the text has the cause already, and who prints the chain would print it twice.
impl std::error::Error for Error {}

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
            Error::Stopped => io::ErrorKind::NotConnected,
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
