//! SOCKS version 5 (RFC 1928) with the subset that a local proxy needs: no authentication, CONNECT and UDP
//! ASSOCIATE. Also CONNECT of [version 4 and 4a](version_four), if the first byte requests that version.
//!
//! ```text
//! client  5, n, methods[n]               server  5, 0 (no authentication) or 5, 0xff
//! client  5, command, 0, kind, address, port     server  5, reply, 0, kind, address, port
//! ```
//! BIND is answered with "command not supported". The parser is our own, because it is short, must not read a byte
//! beyond the request, and derives its replies from RFC 8803's codes.
//!
//! The port has no passwords. If it ever gets them, version 4 has to be refused, because it cannot carry passwords.

pub mod datagram;
pub mod version_four;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::message::ErrorCode;
use crate::target::{BadTarget, Host, Target};

const VERSION: u8 = 5;
const VERSION_FOUR: u8 = 4;
const NO_AUTHENTICATION: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const ASSOCIATE: u8 = 3;

/// Version of SOCKS that an application speaks. The reply uses the same version.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// SOCKS4 and SOCKS4a.
    Four,
    /// SOCKS5.
    Five,
}

/// Request from an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A connection to this target.
    Connect(Target),
    /// A UDP association. The application will send from this port, or from an unknown one if it is 0.
    Associate(u16),
}

/// Reply codes (RFC 1928 section 6).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// 0
    Succeeded = 0,
    /// 1
    GeneralFailure = 1,
    /// 2
    NotAllowed = 2,
    /// 3
    NetworkUnreachable = 3,
    /// 4
    HostUnreachable = 4,
    /// 5
    ConnectionRefused = 5,
    /// 6
    TtlExpired = 6,
    /// 7
    CommandNotSupported = 7,
    /// 8
    AddressTypeNotSupported = 8,
}

impl From<ErrorCode> for Reply {
    fn from(code: ErrorCode) -> Reply {
        match code {
            ErrorCode::NotAuthorized => Reply::NotAllowed,
            ErrorCode::NetworkFailure => Reply::NetworkUnreachable,
            ErrorCode::DestinationUnreachable => Reply::HostUnreachable,
            ErrorCode::ConnectionReset => Reply::ConnectionRefused,
            _ => Reply::GeneralFailure,
        }
    }
}

/// Error of a SOCKS request.
#[derive(Debug, thiserror::Error)]
pub enum SocksError {
    /// The application speaks another protocol.
    #[error("{}", describe_foreign_protocol(*.0))]
    Version(u8),
    /// Only methods with authentication were offered.
    #[error("the application requires SOCKS authentication, which is not supported")]
    Method,
    /// BIND or an unknown command.
    #[error("{}", describe_unsupported(*.0, *.1))]
    Command(Version, u8),
    /// A SOCKS4 text field that exceeds its limit.
    #[error("the {0} of a SOCKS4 request is longer than {max} bytes", max = version_four::MAX_TEXT_BYTES)]
    TooLong(&'static str),
    /// An address type other than 1, 3 and 4.
    #[error("SOCKS address type {0} is unknown")]
    AddressType(u8),
    /// An invalid destination.
    #[error("bad SOCKS destination: {0}")]
    Target(#[from] BadTarget),
    /// The socket failed.
    #[error("SOCKS connection failed: {0}")]
    Io(#[from] io::Error),
}

fn describe_foreign_protocol(first: u8) -> String {
    let guess = match first {
        b'A'..=b'Z' => " (looks like HTTP)",
        0x16 => " (looks like TLS: this port accepts SOCKS and HTTP without TLS)",
        _ => "",
    };
    format!("the application does not speak SOCKS4 or SOCKS5: first byte {first}{guess}")
}

fn describe_unsupported(version: Version, command: u8) -> String {
    match version {
        Version::Four => format!("SOCKS4 command {command} is not supported (CONNECT is)"),
        Version::Five => {
            format!("SOCKS5 command {command} is not supported (CONNECT and UDP ASSOCIATE are)")
        }
    }
}

impl SocksError {
    fn reply(&self) -> Option<Reply> {
        match self {
            SocksError::Command(..) => Some(Reply::CommandNotSupported),
            SocksError::AddressType(_) => Some(Reply::AddressTypeNotSupported),
            SocksError::Target(_) | SocksError::TooLong(_) => Some(Reply::GeneralFailure),
            SocksError::Version(_) | SocksError::Method | SocksError::Io(_) => None,
        }
    }
}

/// Runs the SOCKS handshake up to the request. Refusals are sent here.
///
/// # Errors
/// The request is invalid or not supported.
pub async fn accept(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<(Version, Request), SocksError> {
    let (version, result) = match stream.read_u8().await? {
        VERSION => {
            choose_method(stream).await?;
            (Version::Five, read_request(stream).await)
        }
        VERSION_FOUR => (Version::Four, version_four::read_request(stream).await),
        other => return Err(SocksError::Version(other)),
    };
    if let Some(code) = result.as_ref().err().and_then(SocksError::reply) {
        reply(stream, version, code).await?;
        stream.shutdown().await?;
    }
    result.map(|request| (version, request))
}

async fn choose_method(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> Result<(), SocksError> {
    let count = stream.read_u8().await?;
    let mut methods = [0; 255];
    let methods = &mut methods[..usize::from(count)];
    stream.read_exact(methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        stream.shutdown().await?;
        return Err(SocksError::Method);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    Ok(stream.flush().await?)
}

async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Result<Request, SocksError> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, _, kind] = head;
    if version != VERSION {
        return Err(SocksError::Version(version));
    }
    let host = match kind {
        1 => Ok(Host::V4(Ipv4Addr::from(stream.read_u32().await?))),
        3 => {
            let length = stream.read_u8().await?;
            let mut name = [0; 255];
            let name = &mut name[..usize::from(length)];
            stream.read_exact(name).await?;
            Host::parse(&String::from_utf8_lossy(name))
        }
        4 => Ok(Host::V6(Ipv6Addr::from(stream.read_u128().await?))),
        _ => return Err(SocksError::AddressType(kind)),
    };
    let port = stream.read_u16().await?;
    // Checked after the address has been read: unread data would make closing reset the connection and lose the
    // reply.
    match command {
        CONNECT => Ok(Request::Connect(Target::new(host?, port)?)),
        // The address is often 0.0.0.0 and adds nothing to the connection's own address.
        ASSOCIATE => Ok(Request::Associate(port)),
        other => Err(SocksError::Command(Version::Five, other)),
    }
}

/// Answers the request in its version. The bound address is 0.0.0.0:0, since the server's is not disclosed.
///
/// # Errors
/// The answer cannot be written.
pub async fn reply(
    stream: &mut (impl AsyncWrite + Unpin),
    version: Version,
    code: Reply,
) -> io::Result<()> {
    match (version, code) {
        (Version::Five, code) => {
            stream.write_all(&[VERSION, code as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
        }
        (Version::Four, Reply::Succeeded) => {
            stream.write_all(&[0, version_four::GRANTED, 0, 0, 0, 0, 0, 0]).await?;
        }
        (Version::Four, _) => {
            stream.write_all(&[0, version_four::REJECTED, 0, 0, 0, 0, 0, 0]).await?;
        }
    }
    stream.flush().await
}

/// Answers the request for a UDP association with the address that accepts datagrams.
///
/// # Errors
/// The answer cannot be written.
pub async fn reply_bound(
    stream: &mut (impl AsyncWrite + Unpin),
    bound: SocketAddr,
) -> io::Result<()> {
    let mut answer = vec![VERSION, Reply::Succeeded as u8, 0];
    Host::from(bound.ip()).encode(&mut answer);
    answer.extend(bound.port().to_be_bytes());
    stream.write_all(&answer).await?;
    stream.flush().await
}

/// Client side: requests a target from a SOCKS5 port.
///
/// # Errors
/// The port does not speak SOCKS5, or refuses the request.
pub async fn request_target(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    target: &Target,
) -> io::Result<()> {
    let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    stream.write_all(&[VERSION, 1, NO_AUTHENTICATION]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    if chosen != [VERSION, NO_AUTHENTICATION] {
        return Err(wrong(format!("not a SOCKS5 port, or it requires a password: {chosen:?}")));
    }
    let mut request = vec![VERSION, CONNECT, 0];
    target.host.encode(&mut request);
    request.extend(target.port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let bound_len = match head {
        [VERSION, 0, _, 1] => 4,
        [VERSION, 0, _, 4] => 16,
        [VERSION, 0, _, 3] => usize::from(stream.read_u8().await?),
        [VERSION, code, ..] if code != 0 => return Err(refusal(code)),
        _ => return Err(wrong(format!("not a SOCKS5 reply: {head:?}"))),
    };
    // The bound address and port are not needed.
    stream.read_exact(&mut vec![0; bound_len + 2]).await?;
    Ok(())
}

fn refusal(code: u8) -> io::Error {
    let (kind, text) = match code {
        2 => (io::ErrorKind::PermissionDenied, "not allowed"),
        3 => (io::ErrorKind::NetworkUnreachable, "network unreachable"),
        4 => (io::ErrorKind::HostUnreachable, "no answer"),
        5 => (io::ErrorKind::ConnectionRefused, "connection refused"),
        _ => (io::ErrorKind::Other, "refused"),
    };
    io::Error::new(kind, format!("{text} (SOCKS reply {code})"))
}

#[cfg(test)]
mod tests;
