//! Backend of a front: its address, and connecting to it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use marline::memory::MemoryAccount;
use tokio::net::{TcpStream, UnixStream};

use crate::outgoing;
use crate::target::Target;

/// Address of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A TCP port.
    Tcp(Target),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A connection to the service.
#[derive(Debug)]
pub(super) enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Backend, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err(format!("service {text:?}: no path after unix:")),
            Some(path) => Ok(Backend::Unix(path.into())),
            None => match text.parse() {
                Ok(target) => Ok(Backend::Tcp(target)),
                Err(error) => Err(format!("service {text:?}: {error} (or use unix:PATH)")),
            },
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Backend::Tcp(target) => target.fmt(f),
            Backend::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Backend {
    /// Connects. A name is resolved each time, because services may move.
    pub(super) async fn connect(&self, memory: &MemoryAccount) -> io::Result<Connected> {
        match self {
            Backend::Unix(path) => UnixStream::connect(path).await.map(Connected::Unix),
            Backend::Tcp(target) => outgoing::to_target(target, memory).await.map(Connected::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for text in ["127.0.0.1:8080", "[::1]:22", "backend.internal:80", "unix:/run/app.sock"] {
            assert_eq!(text.parse::<Backend>().unwrap().to_string(), text);
        }
        for bad in ["", "8080", "unix:", "127.0.0.1:0", "::1:22"] {
            let error = bad.parse::<Backend>().unwrap_err();
            assert!(error.contains("service"), "{error}");
        }
    }
}
