//! Session: state from one TLS handshake, with which further connections need no handshake.
//!
//! Both sides derive a secret from the handshake's exporter (RFC 8446 section 7.5), which is never sent. A further
//! connection opens with the session's id and an authenticator, and its keys are derived from that secret *and*
//! from the multipath connection's binding, an HMAC under both MPTCP keys. The server draws a new key for every
//! connection, so a replayed opening authenticates nothing: there is no 0-RTT and no ticket that could be stolen
//! from a disk.
//!
//! ```text
//! opening   magic u8 'M' | version u8 1 | flight u16 | session id 16 | random 16 | tag 16
//!           and `flight` bytes of records behind it
//! answer    magic u8 'M' | version u8 1 | code u8      1: known, records follow; 0: unknown, TLS follows
//! ```
//! docs/spec/proxy-protocol.md is the specification, docs/decisions/sessions.md gives the reasons.

pub mod datagram_keys;
pub mod keys;
mod ready_keys;
pub mod sealed;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::anyhow;
use ring::rand::SecureRandom;
use rustls::{CipherSuite, ConnectionCommon};
use zeroize::Zeroizing;

use self::datagram_keys::{LaneEnd, Side};
use self::keys::{Cipher, Direction, Keys, TAG_LEN};

/// Label of the connection's binding.
pub const BINDING_LABEL: &[u8] = b"marline session";
/// Lifetime of a session, counted from its TLS handshake.
pub const LIFETIME: Duration = Duration::from_secs(3_600);
/// Length of an opening without its flight, in bytes.
pub const OPENING_LEN: usize = HEADER_LEN + TAG_LEN;
/// Length of the answer to an opening, in bytes.
pub const ANSWER_LEN: usize = 3;
/// Longest flight after an opening, in bytes: a Connect with the longest name.
pub const MAX_FLIGHT: usize = 512;
/// First byte of an opening and of its answer. TLS starts with 0x16.
pub const MAGIC: u8 = b'M';

const VERSION: u8 = 1;
const HEADER_LEN: usize = 4 + SessionId::LEN + RANDOM_LEN;
const RANDOM_LEN: usize = 16;
const EXPORTER_LABEL: &[u8] = b"EXPORTER-marline-session";
const DATAGRAM_LABEL: &[u8] = b"EXPORTER-marline-datagrams";

/// Value that identifies a connection to both of its ends.
pub type Binding = [u8; 32];

/// Session id. Random, but not secret: it is sent in the clear.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId([u8; SessionId::LEN]);

impl SessionId {
    /// Length of an id in bytes.
    pub const LEN: usize = 16;

    /// Generates a random id.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn random() -> anyhow::Result<SessionId> {
        Ok(SessionId(random()?))
    }

    /// Creates the id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> SessionId {
        SessionId(bytes)
    }

    /// Returns the bytes of the id.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Generates random bytes.
///
/// # Errors
/// The operating system provides none.
pub(crate) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = ring::rand::SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| anyhow!("the operating system provides no random bytes"))?;
    Ok(bytes)
}

/// A session's id and secret. The secret is overwritten when the session is dropped.
pub struct Session {
    id: SessionId,
    secret: Zeroizing<[u8; 32]>,
    /// Base of the keys for datagrams.
    datagrams: Zeroizing<[u8; 32]>,
    cipher: Cipher,
    /// Addresses of the server that knows the session. If empty, the usual addresses are used.
    own: Vec<SocketAddr>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?}, {:?})", self.id, self.cipher)
    }
}

impl Session {
    /// Creates the session with this id from a completed TLS handshake. Records are sealed with the AEAD that the
    /// handshake negotiated.
    ///
    /// # Errors
    /// The handshake is not complete, or its AEAD is unknown to this program (which offers no other).
    pub fn from_tls<D>(id: SessionId, tls: &ConnectionCommon<D>) -> anyhow::Result<Session> {
        let suite = tls.negotiated_cipher_suite().map(|suite| suite.suite());
        let cipher = match suite {
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => Cipher::Aes128Gcm,
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => Cipher::Aes256Gcm,
            Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => Cipher::ChaCha20Poly1305,
            other => return Err(anyhow!("no session for the cipher suite {other:?}")),
        };
        let export =
            |label: &[u8]| tls.export_keying_material(Zeroizing::new([0; 32]), label, Some(&id.0));
        let (secret, datagrams) = (export(EXPORTER_LABEL)?, export(DATAGRAM_LABEL)?);
        Ok(Session { id, secret, datagrams, cipher, own: Vec::new() })
    }

    /// Sets the server's own addresses, at which it is reached.
    #[must_use]
    pub fn with_addresses(self, own: Vec<SocketAddr>) -> Session {
        Session { own, ..self }
    }

    /// Returns the addresses of the server that knows the session. If empty, the usual addresses are used.
    #[must_use]
    pub fn own_addresses(&self) -> &[SocketAddr] {
        &self.own
    }

    /// Returns the id of the session.
    #[must_use]
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the lane keys of the connection with this binding, for `side`. Must be used for one lane only. A
    /// connection has only one.
    #[must_use]
    pub fn datagram_keys(
        &self,
        binding: &Binding,
        side: Side,
        client: &LaneEnd,
        server: &LaneEnd,
    ) -> marline::datagrams::Keys {
        datagram_keys::keys(self.cipher, &self.datagrams, binding, side, client, server)
    }

    fn keys(&self, binding: &Binding, header: &[u8; HEADER_LEN]) -> (Direction, Direction) {
        let direction = |label| Direction::new(self.cipher, &self.secret, binding, header, label);
        (direction(b"client to server"), direction(b"server to client"))
    }

    /// Client: creates the bytes that open a connection, followed by `first` in one record (if it is not empty), and
    /// the keys of the connection.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn open(&self, binding: &Binding, first: &[u8]) -> anyhow::Result<(Vec<u8>, Keys)> {
        let flight = if first.is_empty() { 0 } else { keys::record_len(first.len()) };
        assert!(flight <= MAX_FLIGHT, "the flight exceeds one message");
        let mut header = [0; HEADER_LEN];
        header[..2].copy_from_slice(&[MAGIC, VERSION]);
        header[2..4].copy_from_slice(&(flight as u16).to_be_bytes());
        header[4..4 + SessionId::LEN].copy_from_slice(&self.id.0);
        header[4 + SessionId::LEN..].copy_from_slice(&random::<RANDOM_LEN>()?);
        let (mut seal, open) = self.keys(binding, &header);
        let mut out = Vec::with_capacity(OPENING_LEN + flight);
        out.extend_from_slice(&header);
        out.extend_from_slice(&seal.authenticate(&header));
        if flight > 0 {
            seal.seal_record(first, &mut out);
        }
        Ok((out, Keys { seal, open }))
    }

    /// Server: derives the keys of a connection with this opening. Returns `None` if its sender does not have the
    /// secret, or if it was made for another connection.
    #[must_use]
    pub fn accept(&self, binding: &Binding, opening: &ReceivedOpening) -> Option<Keys> {
        let (mut open, seal) = self.keys(binding, &opening.header);
        open.verify(&opening.header, opening.tag).then_some(Keys { seal, open })
    }
}

/// An opening as received.
#[derive(Debug)]
pub struct ReceivedOpening {
    header: [u8; HEADER_LEN],
    tag: [u8; TAG_LEN],
}

impl ReceivedOpening {
    /// Parses an opening. Returns `None` if the bytes are not an opening, or have an unsupported version.
    #[must_use]
    pub fn parse(bytes: &[u8; OPENING_LEN]) -> Option<ReceivedOpening> {
        let (header, tag) = bytes.split_at(HEADER_LEN);
        let opening =
            ReceivedOpening { header: header.try_into().ok()?, tag: tag.try_into().ok()? };
        let ours = header[0] == MAGIC && header[1] == VERSION;
        (ours && opening.flight() <= MAX_FLIGHT).then_some(opening)
    }

    /// Returns the id of the session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        let mut id = [0; SessionId::LEN];
        id.copy_from_slice(&self.header[4..4 + SessionId::LEN]);
        SessionId(id)
    }

    /// Returns the length of the records sent together with the opening, in bytes.
    #[must_use]
    pub const fn flight(&self) -> usize {
        u16::from_be_bytes([self.header[2], self.header[3]]) as usize
    }
}

/// Answer of a server to an opening.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The session is unknown or has been forgotten: continue with TLS on this connection.
    Unknown,
    /// Records follow.
    Known,
}

impl Answer {
    /// Returns the answer as bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; ANSWER_LEN] {
        [MAGIC, VERSION, self as u8]
    }

    /// Parses an answer. Returns `None` if the bytes are not an answer.
    #[must_use]
    pub fn parse(bytes: [u8; ANSWER_LEN]) -> Option<Answer> {
        [Answer::Unknown, Answer::Known].into_iter().find(|answer| answer.to_bytes() == bytes)
    }
}

#[cfg(test)]
mod tests;
