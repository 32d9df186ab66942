//! Messages between client and server inside TLS, before the application's bytes flow.
//!
//! ```text
//! type u8 | length u16 | body
//!  1 Hello      version u8, token 32,           client: credential, and the extensions it offers
//!              extensions u16 each
//!  2 Welcome    idle limit u16 (s), session,    server: how long an unused connection is kept
//!              own addresses
//!  3 Connect    port u16, kind u8, address      client: the target (kind 1 IPv4, 3 name, 4 IPv6)
//!  4 Working                                    server: request received, connecting now
//!  5 Connected                                  server: all bytes after this message are the target's
//!  6 Failed     code u8, text                   server: refusal; codes of RFC 8803 section 6.2.8
//! 16 Listen     address                         client: listen at this address of the server
//! 17 Listening  address                         server: listening at this address
//! 18 Visitor    id 16, address                  server: a visitor has connected
//! 19 Accept     id 16                           client, on a new connection: which is for this visitor
//! 20 Decline    id 16                           client: close the visitor's connection
//! 21 Alive                                      client, and server in answer: keepalive
//! 32 Datagrams  generation 16, lane u64         client: request for a lane; the client's end of it
//! 33 Lane       generation 16, lane u64         server: the server's end of the lane
//! 34 Path       number u8, flow u64             client: number of the path that is this subflow
//! ```
//! All numbers are in network order. The framing of RFC 8803 is not used: it carries no names (the server must
//! resolve them, or the client's network would see and answer the queries), no credentials and no text for people.
//! Its error codes are used, so that a converter can be offered later without a second list. `Working` costs
//! nothing and distinguishes a slow target from a warm connection that failed unnoticed.
//! docs/spec/proxy-protocol.md is the specification.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::secret::Secret;
use crate::session::datagram_keys::LaneEnd;
use crate::session::{self, SessionId};
use crate::target::{BadTarget, Host, Target};

/// Version of the protocol, sent in [`Message::Hello`].
pub const VERSION: u8 = 5;
/// Longest body: `Failed` with 255 bytes of text, or `Connect` with a name of 255 bytes.
pub const MAX_BODY: usize = 2 + 1 + 1 + 255;
const HEADER_LEN: usize = 3;
/// Length of an extension's number in `Hello`, in bytes.
const EXTENSION_LEN: usize = 2;
const MAX_TEXT: usize = 255;

/// RFC 8803's error codes (section 6.2.8).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// 0: the protocol version is not supported.
    UnsupportedVersion,
    /// 1: the message is malformed.
    Malformed,
    /// 2: a message that was not expected in this state.
    UnsupportedMessage,
    /// 32: unknown credential, or a destination that is not allowed.
    NotAuthorized,
    /// 64: the server has no resources for another request.
    ResourceExceeded,
    /// 65: the server's network fails.
    NetworkFailure,
    /// 96: the destination refused or reset the connection.
    ConnectionReset,
    /// 97: the destination does not answer, or its name has no address.
    DestinationUnreachable,
    /// A code this program does not know.
    Other(u8),
}

impl ErrorCode {
    const KNOWN_CODES: [(u8, ErrorCode); 8] = [
        (0, ErrorCode::UnsupportedVersion),
        (1, ErrorCode::Malformed),
        (2, ErrorCode::UnsupportedMessage),
        (32, ErrorCode::NotAuthorized),
        (64, ErrorCode::ResourceExceeded),
        (65, ErrorCode::NetworkFailure),
        (96, ErrorCode::ConnectionReset),
        (97, ErrorCode::DestinationUnreachable),
    ];

    /// Returns the number on the wire.
    #[must_use]
    pub fn to_u8(self) -> u8 {
        match self {
            ErrorCode::Other(code) => code,
            known => {
                Self::KNOWN_CODES.iter().find(|(_, c)| *c == known).map_or(1, |(number, _)| *number)
            }
        }
    }

    /// Returns the code with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> ErrorCode {
        let known = Self::KNOWN_CODES.iter().find(|(n, _)| *n == number);
        known.map_or(ErrorCode::Other(number), |(_, code)| *code)
    }
}

/// A refusal, with an explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (code {})", code.to_u8())]
pub struct Failure {
    /// Kind of the refusal.
    pub code: ErrorCode,
    /// Explanation; at most 255 bytes are sent.
    pub text: String,
}

impl Failure {
    /// Creates a failure with this code and text.
    #[must_use]
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

/// A session that the client can use to open further connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Id of the session.
    pub id: SessionId,
    /// Time until the session ends.
    pub lifetime_s: u32,
}

/// Maximum number of the server's own addresses in a `Welcome`.
pub const MAX_OWN_ADDRESSES: usize = 8;

/// Id of a visitor: a connection to a remote forward that waits to be accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisitorId([u8; VisitorId::LEN]);

impl VisitorId {
    const LEN: usize = 16;

    /// Generates a random id.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn random() -> anyhow::Result<VisitorId> {
        Ok(VisitorId(session::random()?))
    }

    /// Creates the id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> VisitorId {
        VisitorId(bytes)
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client's credential.
    Hello {
        /// Protocol version.
        version: u8,
        /// Secret of the client.
        token: Secret,
    },
    /// The credential is valid.
    Welcome {
        /// Time after which an unused connection is closed.
        idle_limit_s: u16,
        /// The session that this connection's handshake began.
        session: Option<Offer>,
        /// Addresses that belong to this server alone. Several servers may share the address that the client
        /// connected to. At most [`MAX_OWN_ADDRESSES`], and none without a session.
        own: Vec<SocketAddr>,
    },
    /// The client's target.
    Connect(Target),
    /// The request was received.
    Working,
    /// The application's bytes follow.
    Connected,
    /// The request failed.
    Failed(Failure),
    /// The address at which the server shall listen for the client.
    Listen(SocketAddr),
    /// The server listens at this address. The port is chosen by the system if the client's was 0.
    Listening(SocketAddr),
    /// A visitor has connected and waits for [`Message::Accept`].
    Visitor {
        /// Id of the visitor.
        id: VisitorId,
        /// Address of the visitor.
        from: SocketAddr,
    },
    /// This connection is for the visitor.
    Accept(VisitorId),
    /// The client refuses the visitor.
    Decline(VisitorId),
    /// A keepalive.
    Alive,
    /// The client's end of the datagram lane that accompanies this connection.
    Datagrams(LaneEnd),
    /// The server's end of the lane.
    Lane(LaneEnd),
    /// A path of the lane.
    Path {
        /// Number of the path, below 32.
        number: u8,
        /// The server's id of the subflow.
        flow: u64,
    },
}

/// Error in the bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// No such type.
    #[error("message type {0} is unknown")]
    Type(u8),
    /// An invalid body length.
    #[error("invalid length of message type {kind}: {length} bytes")]
    Length {
        /// Type of the message.
        kind: u8,
        /// The announced or found length.
        length: usize,
    },
    /// An address kind that is not 1, 3 or 4.
    #[error("address kind {0} is unknown")]
    AddressKind(u8),
    /// An invalid destination.
    #[error("bad destination: {0}")]
    Target(#[from] BadTarget),
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Message::Hello { .. } => 1,
            Message::Welcome { .. } => 2,
            Message::Connect(_) => 3,
            Message::Working => 4,
            Message::Connected => 5,
            Message::Failed(_) => 6,
            Message::Listen(_) => 16,
            Message::Listening(_) => 17,
            Message::Visitor { .. } => 18,
            Message::Accept(_) => 19,
            Message::Decline(_) => 20,
            Message::Alive => 21,
            Message::Datagrams(_) => 32,
            Message::Lane(_) => 33,
            Message::Path { .. } => 34,
        }
    }

    /// Appends the message's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.kind(), 0, 0]);
        match self {
            Message::Hello { version, token } => {
                out.push(*version);
                out.extend_from_slice(token.expose());
            }
            Message::Welcome { idle_limit_s, session, own } => {
                out.extend_from_slice(&idle_limit_s.to_be_bytes());
                if let Some(Offer { id, lifetime_s }) = session {
                    out.extend_from_slice(id.as_bytes());
                    out.extend_from_slice(&lifetime_s.to_be_bytes());
                    own.iter()
                        .take(MAX_OWN_ADDRESSES)
                        .for_each(|address| encode_address(*address, out));
                }
            }
            Message::Connect(target) => encode_target(target, out),
            Message::Working | Message::Connected | Message::Alive => {}
            Message::Failed(failure) => {
                out.push(failure.code.to_u8());
                out.extend_from_slice(prefix_of(&failure.text, MAX_TEXT).as_bytes());
            }
            Message::Listen(address) | Message::Listening(address) => {
                encode_address(*address, out);
            }
            Message::Visitor { id, from } => {
                out.extend_from_slice(&id.0);
                encode_address(*from, out);
            }
            Message::Accept(id) | Message::Decline(id) => out.extend_from_slice(&id.0),
            Message::Datagrams(end) | Message::Lane(end) => {
                out.extend_from_slice(&end.generation);
                out.extend_from_slice(&end.lane.to_be_bytes());
            }
            Message::Path { number, flow } => {
                out.push(*number);
                out.extend_from_slice(&flow.to_be_bytes());
            }
        }
        let length = (out.len() - start - HEADER_LEN) as u16;
        out[start + 1..start + HEADER_LEN].copy_from_slice(&length.to_be_bytes());
    }

    /// Returns the message's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.encode(&mut out);
        out
    }

    /// Decodes the message with this type and body.
    ///
    /// # Errors
    /// The message type is unknown, or the body does not fit it.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Message, BadMessage> {
        let misfit = BadMessage::Length { kind, length: body.len() };
        match (kind, body) {
            (1, [version, rest @ ..]) => {
                // No extension is known yet: the offered ones are ignored.
                let (token, extensions) = rest.split_first_chunk().ok_or_else(|| misfit.clone())?;
                if !extensions.len().is_multiple_of(EXTENSION_LEN) {
                    return Err(misfit);
                }
                Ok(Message::Hello { version: *version, token: Secret::from_bytes(*token) })
            }
            (2, [high, low, session @ ..]) => {
                let idle_limit_s = u16::from_be_bytes([*high, *low]);
                let (session, own) = decode_offer(session).ok_or(misfit)?;
                Ok(Message::Welcome { idle_limit_s, session, own })
            }
            (3, [high, low, address_kind, address @ ..]) => {
                let host = decode_host(kind, *address_kind, address)?;
                Ok(Message::Connect(Target::new(host, u16::from_be_bytes([*high, *low]))?))
            }
            (4, []) => Ok(Message::Working),
            (5, []) => Ok(Message::Connected),
            (6, [code, text @ ..]) if text.len() <= MAX_TEXT => {
                Ok(Message::Failed(Failure::new(ErrorCode::from_u8(*code), printable(text))))
            }
            (16, address) => Ok(Message::Listen(decode_address(kind, address)?)),
            (17, address) => Ok(Message::Listening(decode_address(kind, address)?)),
            (18..=20, body) => {
                let (id, rest) = body.split_first_chunk().ok_or_else(|| misfit.clone())?;
                let id = VisitorId(*id);
                match (kind, rest) {
                    (18, from) => Ok(Message::Visitor { id, from: decode_address(kind, from)? }),
                    (19, []) => Ok(Message::Accept(id)),
                    (20, []) => Ok(Message::Decline(id)),
                    _ => Err(misfit),
                }
            }
            (21, []) => Ok(Message::Alive),
            (32, end) => Ok(Message::Datagrams(decode_end(end).ok_or(misfit)?)),
            (33, end) => Ok(Message::Lane(decode_end(end).ok_or(misfit)?)),
            (34, [number, flow @ ..]) => {
                let flow = flow.try_into().map_err(|_| misfit)?;
                Ok(Message::Path { number: *number, flow: u64::from_be_bytes(flow) })
            }
            (1..=6 | 21 | 34, _) => Err(misfit),
            _ => Err(BadMessage::Type(kind)),
        }
    }

    /// Reads exactly one message, and no byte beyond it.
    ///
    /// # Errors
    /// Fails if the reader fails. Also fails with `InvalidData` and a [`BadMessage`], or with `UnexpectedEof` at the
    /// end.
    pub async fn read(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
        let mut header = [0; HEADER_LEN];
        input.read_exact(&mut header).await?;
        let [kind, high, low] = header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_BODY {
            return Err(invalid_message_error(BadMessage::Length { kind, length }));
        }
        let mut body = [0; MAX_BODY];
        input.read_exact(&mut body[..length]).await?;
        Message::decode(kind, &body[..length]).map_err(invalid_message_error)
    }
}

fn invalid_message_error(error: BadMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn encode_target(target: &Target, out: &mut Vec<u8>) {
    out.extend_from_slice(&target.port.to_be_bytes());
    match &target.host {
        Host::V4(address) => {
            out.push(1);
            out.extend_from_slice(&address.octets());
        }
        Host::Name(name) => {
            out.push(3);
            out.extend_from_slice(name.as_bytes());
        }
        Host::V6(address) => {
            out.push(4);
            out.extend_from_slice(&address.octets());
        }
    }
}

/// Encodes an address like a target. Its port may be 0.
fn encode_address(address: SocketAddr, out: &mut Vec<u8>) {
    encode_target(&Target { host: address.ip().into(), port: address.port() }, out);
}

fn decode_address(kind: u8, bytes: &[u8]) -> Result<SocketAddr, BadMessage> {
    let misfit = BadMessage::Length { kind, length: bytes.len() };
    let [high, low, address_kind, address @ ..] = bytes else { return Err(misfit) };
    let port = u16::from_be_bytes([*high, *low]);
    match decode_host(kind, *address_kind, address)? {
        Host::V4(v4) => Ok((v4, port).into()),
        Host::V6(v6) => Ok((v6, port).into()),
        Host::Name(_) => Err(BadMessage::AddressKind(*address_kind)),
    }
}

/// Decodes an offer with or without addresses. Empty input is valid and means no offer. Returns `None` if the input is
/// malformed.
fn decode_offer(bytes: &[u8]) -> Option<(Option<Offer>, Vec<SocketAddr>)> {
    if bytes.is_empty() {
        return Some((None, Vec::new()));
    }
    let (id, rest) = bytes.split_first_chunk()?;
    let (lifetime, mut rest) = rest.split_first_chunk()?;
    let offer = Offer { id: SessionId::from_bytes(*id), lifetime_s: u32::from_be_bytes(*lifetime) };
    let mut own = Vec::new();
    while !rest.is_empty() && own.len() < MAX_OWN_ADDRESSES {
        let length = match rest.get(2)? {
            1 => 7,
            4 => 19,
            _ => return None,
        };
        let (address, behind) = rest.split_at_checked(length)?;
        own.push(decode_address(2, address).ok().filter(|address| address.port() != 0)?);
        rest = behind;
    }
    rest.is_empty().then_some((Some(offer), own))
}

/// Decodes the end of a lane. The id 0 is invalid.
fn decode_end(bytes: &[u8]) -> Option<LaneEnd> {
    let (generation, lane) = bytes.split_first_chunk()?;
    let lane = u64::from_be_bytes(lane.try_into().ok()?);
    (lane != 0).then_some(LaneEnd { generation: *generation, lane })
}

fn decode_host(kind: u8, address_kind: u8, address: &[u8]) -> Result<Host, BadMessage> {
    let misfit = BadMessage::Length { kind, length: address.len() + 3 };
    match address_kind {
        1 => {
            let octets: [u8; 4] = address.try_into().map_err(|_| misfit)?;
            Ok(Host::V4(Ipv4Addr::from(octets)))
        }
        3 => Ok(Host::name(&String::from_utf8_lossy(address))?),
        4 => {
            let octets: [u8; 16] = address.try_into().map_err(|_| misfit)?;
            Ok(Host::V6(Ipv6Addr::from(octets)))
        }
        _ => Err(BadMessage::AddressKind(address_kind)),
    }
}

/// Returns the longest prefix of `text` with at most `limit` bytes.
fn prefix_of(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Replaces everything but printable ASCII, since a peer's text reaches terminals and logs.
fn printable(text: &[u8]) -> String {
    text.iter().map(|&b| if (0x20..0x7f).contains(&b) { b as char } else { '?' }).collect()
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Message::Hello { .. } => "Hello",
            Message::Welcome { .. } => "Welcome",
            Message::Connect(_) => "Connect",
            Message::Working => "Working",
            Message::Connected => "Connected",
            Message::Failed(_) => "Failed",
            Message::Listen(_) => "Listen",
            Message::Listening(_) => "Listening",
            Message::Visitor { .. } => "Visitor",
            Message::Accept(_) => "Accept",
            Message::Decline(_) => "Decline",
            Message::Alive => "Alive",
            Message::Datagrams(_) => "Datagrams",
            Message::Lane(_) => "Lane",
            Message::Path { .. } => "Path",
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests;
