//! Invite: the addresses, key and credential of a server, as one string.
//!
//! ```text
//! "marline1" base32( length u16 | names u8 | { length u8, "host:port" }* | pin 32 | token 32 | check 4 )
//! ```
//! `length` counts all bytes after itself, so that a truncated invite is detected. `pin` is the SHA-256 of the
//! server's public key (SubjectPublicKeyInfo) and `token` the client's secret. `check` holds the first four bytes
//! of SHA-256 over everything before it. It detects typing errors, not forgeries: a forged invite would only make a
//! client connect to another server, where its token is worthless. The digit in "marline1" is the version. Base32
//! (RFC 4648, lower case, no padding) survives double clicks, changes of case and QR codes.

pub mod destination;

use std::fmt;
use std::str::FromStr;

use crate::secret::{Digest, Secret};
use crate::target::Target;

const PREFIX: &str = "marline";
const VERSION: u8 = b'1';
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const CHECK_LEN: usize = 4;
/// Maximum number of names in one invite.
pub const MAX_NAMES: usize = 8;
const MAX_NAME_LEN: usize = 240;

/// An invite: addresses, key and token by which a client reaches its server.
#[derive(Clone, PartialEq, Eq)]
pub struct Invite {
    /// Addresses of the server, in order of preference: 1 to [`MAX_NAMES`].
    pub servers: Vec<Target>,
    /// SHA-256 of the server's public key.
    pub pin: [u8; 32],
    /// The client's secret.
    pub token: Secret,
}

/// Error in the text of an invite.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInvite {
    /// Not an invite.
    #[error("not a valid invite: an invite is one word that starts with \"marline1\"")]
    NotAnInvite,
    /// Another version.
    #[error("the invite has version {0:?}, but this program reads only version 1")]
    Version(char),
    /// A character outside the alphabet.
    #[error("invalid character {character:?} at position {position} of the invite: copy it again")]
    Character {
        /// Invalid character.
        character: char,
        /// Position, counted from 1.
        position: usize,
    },
    /// The end of the text is missing.
    #[error("the invite is cut short: {have} of {want} characters")]
    Truncated {
        /// Characters found.
        have: usize,
        /// Characters expected.
        want: usize,
    },
    /// The checksum does not match.
    #[error("the invite is damaged (its checksum does not match): copy it again")]
    Checksum,
    /// The contents are invalid although the checksum matches.
    #[error("invalid contents of the invite: {0}")]
    Contents(String),
}

impl Invite {
    /// Creates an invite to these servers.
    ///
    /// # Errors
    /// No server, more than [`MAX_NAMES`], or a name longer than 240 characters.
    pub fn new(servers: Vec<Target>, pin: [u8; 32], token: Secret) -> Result<Invite, BadInvite> {
        if servers.is_empty() || servers.len() > MAX_NAMES {
            let found = servers.len();
            return Err(BadInvite::Contents(format!("{found} servers, expected 1 to {MAX_NAMES}")));
        }
        if let Some(long) = servers.iter().find(|s| s.to_string().len() > MAX_NAME_LEN) {
            return Err(BadInvite::Contents(format!("the name {long} is too long")));
        }
        Ok(Invite { servers, pin, token })
    }

    fn body(&self) -> Vec<u8> {
        let mut body = vec![0, 0, self.servers.len() as u8];
        for server in &self.servers {
            let name = server.to_string();
            body.push(name.len() as u8);
            body.extend_from_slice(name.as_bytes());
        }
        body.extend_from_slice(&self.pin);
        body.extend_from_slice(self.token.expose());
        let length = (body.len() - 2 + CHECK_LEN) as u16;
        body[..2].copy_from_slice(&length.to_be_bytes());
        let check = Digest::sha256(&body);
        body.extend_from_slice(&check.as_bytes()[..CHECK_LEN]);
        body
    }

    /// Returns the text of the invite. It contains the client's secret: show it only to that client.
    #[must_use]
    pub fn to_word(&self) -> String {
        let mut word = String::from(PREFIX);
        word.push(VERSION as char);
        base32(&self.body(), &mut word);
        word
    }
}

/// Shows the servers and hides the secret.
impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.servers.iter().map(Target::to_string).collect();
        write!(f, "Invite({}, ..)", names.join(" "))
    }
}

impl FromStr for Invite {
    type Err = BadInvite;

    fn from_str(text: &str) -> Result<Invite, BadInvite> {
        let word = text.trim().to_ascii_lowercase();
        let rest = word.strip_prefix(PREFIX).ok_or(BadInvite::NotAnInvite)?;
        let mut characters = rest.chars();
        match characters.next() {
            Some(version) if version == VERSION as char => {}
            Some(version) if version.is_ascii_digit() => return Err(BadInvite::Version(version)),
            _ => return Err(BadInvite::NotAnInvite),
        }
        let digits = characters.as_str();
        let (head, have) = (PREFIX.len() + 1, word.len());
        let body = unbase32(digits).map_err(|(character, position)| BadInvite::Character {
            character,
            position: position + head + 1,
        })?;
        let [high, low, ..] = body[..] else {
            return Err(BadInvite::Truncated { have, want: head + 4 });
        };
        let length = 2 + usize::from(u16::from_be_bytes([high, low]));
        if body.len() < length {
            return Err(BadInvite::Truncated { have, want: head + (length * 8).div_ceil(5) });
        }
        if body.len() > length || length < 2 + CHECK_LEN {
            return Err(BadInvite::Checksum);
        }
        let (contents, check) = body.split_at(length - CHECK_LEN);
        if Digest::sha256(contents).as_bytes()[..CHECK_LEN] != *check {
            return Err(BadInvite::Checksum);
        }
        parse_contents(&contents[2..])
    }
}

fn parse_contents(bytes: &[u8]) -> Result<Invite, BadInvite> {
    let short = || BadInvite::Contents("unexpected end".into());
    let (&count, mut rest) = bytes.split_first().ok_or_else(short)?;
    if count == 0 || usize::from(count) > MAX_NAMES {
        return Err(BadInvite::Contents(format!("{count} servers, expected 1 to {MAX_NAMES}")));
    }
    let mut servers = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (&length, tail) = rest.split_first().ok_or_else(short)?;
        let (name, tail) = tail.split_at_checked(usize::from(length)).ok_or_else(short)?;
        let name = std::str::from_utf8(name)
            .map_err(|_| BadInvite::Contents("a server's name is not valid UTF-8".into()))?;
        let server = name
            .parse()
            .map_err(|error| BadInvite::Contents(format!("server {name:?}: {error}")))?;
        servers.push(server);
        rest = tail;
    }
    let (pin, rest) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    let (token, rest) = rest.split_first_chunk::<32>().ok_or_else(short)?;
    if !rest.is_empty() {
        return Err(BadInvite::Contents(format!("unexpected trailing bytes: {}", rest.len())));
    }
    Invite::new(servers, *pin, Secret::from_bytes(*token))
}

fn base32(bytes: &[u8], out: &mut String) {
    for group in bytes.chunks(5) {
        let mut block = [0; 8];
        block[3..3 + group.len()].copy_from_slice(group);
        let bits = u64::from_be_bytes(block);
        for index in 0..(group.len() * 8).div_ceil(5) {
            out.push(ALPHABET[(bits >> (35 - 5 * index)) as usize & 31] as char);
        }
    }
}

/// Decodes base32. The error is the first character outside the alphabet, with its position from 0.
fn unbase32(text: &str) -> Result<Vec<u8>, (char, usize)> {
    let mut out = Vec::with_capacity(text.len() * 5 / 8);
    let (mut bits, mut held) = (0u32, 0);
    for (position, character) in text.chars().enumerate() {
        let value = ALPHABET.iter().position(|&a| a as char == character);
        bits = bits << 5 | value.ok_or((character, position))? as u32;
        held += 5;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
