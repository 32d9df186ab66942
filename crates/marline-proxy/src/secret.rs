//! Random 256-bit secrets, and the SHA-256 digests that are stored instead of them.
//!
//! A client's token is 256 random bits, so one SHA-256 is enough to store it. The slow, salted hashes that
//! passwords need defend against guessing, which is impossible for 256 random bits.

use std::fmt;

use ring::rand::SecureRandom;

/// 32 secret bytes. `Debug` hides them, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Length of a secret in bytes.
    pub const LEN: usize = 32;

    /// Generates a new secret from the operating system's generator.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn random() -> anyhow::Result<Secret> {
        let mut bytes = [0; Self::LEN];
        ring::rand::SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| anyhow::anyhow!("the operating system provides no random bytes"))?;
        Ok(Secret(bytes))
    }

    /// Creates the secret with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Secret {
        Secret(bytes)
    }

    /// Returns the bytes, for invites and the encrypted stream only.
    #[must_use]
    pub const fn expose(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// Returns the digest that the server stores.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::sha256(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Longest run of letters and digits that cannot contain an invite or a token.
const MAX_HARMLESS_RUN: usize = 39;
/// Prefix of every invite.
const INVITE_PREFIX: &str = "marline1";

/// Returns `text` for display, with invites hidden. Errors quote invalid input, which may be a damaged or misplaced
/// invite. Any text that starts like an invite is hidden, and so is every long run of letters and digits, which may be
/// an invite whose beginning is missing.
#[must_use]
pub fn hide_invites(text: &str) -> String {
    let ends_run = |c: char| !c.is_ascii_alphanumeric();
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(ends_run) {
        let run = piece.trim_end_matches(ends_run);
        let invite = run.to_ascii_lowercase().find(INVITE_PREFIX);
        let secret = invite.is_some_and(|at| at + INVITE_PREFIX.len() < run.len());
        out.push_str(if secret || run.len() > MAX_HARMLESS_RUN { "(hidden)" } else { run });
        out.push_str(&piece[run.len()..]);
    }
    out
}

/// A SHA-256 digest.
#[derive(Copy, Clone, Debug)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    #[must_use]
    pub fn sha256(bytes: &[u8]) -> Digest {
        let mut out = [0; 32];
        out.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
        Digest(out)
    }

    /// Creates the digest with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// Returns the bytes of the digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns true if both are equal. Compares in constant time.
    #[must_use]
    pub fn matches(&self, other: &Digest) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0u8, |acc, (a, b)| acc | (a ^ b));
        std::hint::black_box(difference) == 0
    }

    /// Returns the bytes as lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
    }

    /// Reads 64 hexadecimal digits. Returns `None` for anything else.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Digest> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut out = [0; 32];
        if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Digest(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret_byte() {
        let secret = Secret::from_bytes([0xab; 32]);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn errors_never_show_an_invite() {
        let word = format!("marline1{}", "abcdefgh".repeat(20));
        for text in [
            format!("invite = \"{word}\""),
            format!("invite = {word}"),
            format!("'{}'", word.to_uppercase()),
            // The beginning is missing, then the end.
            word[3..].to_owned(),
            word[..12].to_owned(),
        ] {
            let shown = hide_invites(&text).to_ascii_lowercase();
            assert!(!shown.contains("abcd") && shown.contains("(hidden)"), "{shown}");
        }
        for harmless in [
            "",
            "an invite is one word that starts with \"marline1\"",
            "cannot read /etc/marline/invite: Permission denied",
            "unknown scheduler `redundnat`; known: auto-redundant, opportunistic-redundant — é",
        ] {
            assert_eq!(hide_invites(harmless), harmless);
        }
    }

    #[test]
    fn hex_round_trip_and_damage() {
        let digest = Digest::sha256(b"abc");
        let hex = digest.to_hex();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(Digest::from_hex(&hex).is_some_and(|d| d.matches(&digest)));
        assert!(Digest::from_hex(&hex[1..]).is_none());
        assert!(Digest::from_hex(&hex.replace('b', "g")).is_none());
        assert!(Digest::from_hex(&"+1".repeat(32)).is_none());
    }

    #[test]
    fn a_digest_with_one_changed_bit_does_not_match() {
        let digest = Digest::sha256(b"x");
        for bit in 0..256 {
            let mut bytes = *digest.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!digest.matches(&Digest::from_bytes(bytes)));
        }
    }
}
