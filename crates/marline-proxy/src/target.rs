//! Target of a client's request: an address or a name, and a port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::udp::DNS_PORT;

/// A destination host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
    /// A name that the server resolves; 1 to 255 bytes of letters, digits, `-`, `_` and `.`.
    Name(String),
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Address or name of the host.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

/// Error in a destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// Empty or longer than DNS allows.
    #[error("the host name has {0} bytes (expected 1 to 255)")]
    Length(usize),
    /// A byte that is not allowed in host names.
    #[error("invalid byte {byte:#04x} at position {position} of host name")]
    Byte {
        /// Invalid byte.
        byte: u8,
        /// Position of the byte.
        position: usize,
    },
    /// Port 0, or not a number.
    #[error("the port must be 1 to 65535")]
    Port,
    /// No `:PORT` at the end.
    #[error("expected HOST:PORT (IPv6 in brackets)")]
    NoPort,
}

impl Host {
    /// Returns the name, if this is not an address.
    ///
    /// # Errors
    /// The host is an address, which is returned.
    pub fn as_name(&self) -> Result<&str, IpAddr> {
        match self {
            Host::V4(v4) => Err((*v4).into()),
            Host::V6(v6) => Err((*v6).into()),
            Host::Name(name) => Ok(name),
        }
    }

    /// Returns a name, or the address if it is one in text form.
    ///
    /// # Errors
    /// The text is too long or contains a byte that is not allowed in host names.
    pub fn parse(text: &str) -> Result<Host, BadTarget> {
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(address.into());
        }
        Host::name(text)
    }

    /// Returns a checked name.
    ///
    /// # Errors
    /// Same as [`parse`](Self::parse).
    pub fn name(text: &str) -> Result<Host, BadTarget> {
        if text.is_empty() || text.len() > 255 {
            return Err(BadTarget::Length(text.len()));
        }
        let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        match text.bytes().position(|b| !fine(b)) {
            None => Ok(Host::Name(text.to_owned())),
            Some(position) => Err(BadTarget::Byte { byte: text.as_bytes()[position], position }),
        }
    }
}

impl Host {
    /// Appends the host in the form of SOCKS5 (RFC 1928 section 5): a byte for its kind, and its octets. A name is
    /// preceded by its length.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Host::V4(address) => {
                out.push(1);
                out.extend_from_slice(&address.octets());
            }
            Host::Name(name) => {
                // A name has at most 255 bytes.
                out.extend_from_slice(&[3, name.len() as u8]);
                out.extend_from_slice(name.as_bytes());
            }
            Host::V6(address) => {
                out.push(4);
                out.extend_from_slice(&address.octets());
            }
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Host {
        match address {
            IpAddr::V4(v4) => Host::V4(v4),
            IpAddr::V6(v6) => Host::V6(v6),
        }
    }
}

/// Name of the server's own resolver. No host can have this name (RFC 6761 section 6.4), so a server without support
/// for this request answers that the name has no address.
const SERVERS_RESOLVER: &str = "resolver.marline.invalid";

impl Target {
    /// Returns the resolver that the server itself uses, by DNS over TCP.
    #[must_use]
    pub fn server_resolver() -> Target {
        Target { host: Host::Name(SERVERS_RESOLVER.to_owned()), port: DNS_PORT }
    }

    /// Returns true if the target is the server's own resolver.
    #[must_use]
    pub fn is_server_resolver(&self) -> bool {
        self.port == DNS_PORT && self.host.as_name() == Ok(SERVERS_RESOLVER)
    }

    /// Creates a checked destination.
    ///
    /// # Errors
    /// Port 0.
    pub fn new(host: Host, port: u16) -> Result<Target, BadTarget> {
        if port == 0 {
            return Err(BadTarget::Port);
        }
        Ok(Target { host, port })
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Target {
        Target { host: address.ip().into(), port: address.port() }
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Target, BadTarget> {
        let (host, port) = text.rsplit_once(':').ok_or(BadTarget::NoPort)?;
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(BadTarget::NoPort);
        }
        let port = port.parse().map_err(|_| BadTarget::Port)?;
        Target::new(Host::parse(host)?, port)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::V4(v4) => v4.fmt(f),
            Host::V6(v6) => v6.fmt(f),
            Host::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::V6(v6) => write!(f, "[{v6}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for (text, shown) in [
            ("example.org:80", "example.org:80"),
            ("192.0.2.7:443", "192.0.2.7:443"),
            ("[2001:db8::1]:22", "[2001:db8::1]:22"),
            ("_srv.host-1.:1", "_srv.host-1.:1"),
        ] {
            assert_eq!(text.parse::<Target>().map(|t| t.to_string()), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!("host".parse::<Target>(), Err(BadTarget::NoPort));
        assert_eq!("host:0".parse::<Target>(), Err(BadTarget::Port));
        assert_eq!("host:65536".parse::<Target>(), Err(BadTarget::Port));
        assert_eq!("2001:db8::1:22".parse::<Target>(), Err(BadTarget::NoPort));
        assert_eq!(":22".parse::<Target>(), Err(BadTarget::Length(0)));
        assert_eq!("a b:22".parse::<Target>(), Err(BadTarget::Byte { byte: b' ', position: 1 }));
        assert_eq!(Host::name(&"a".repeat(256)), Err(BadTarget::Length(256)));
        assert!(Host::name("new\nline").is_err());
    }
}
