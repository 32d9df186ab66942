//! Keys of one connection of a session, and the records that they seal.
//!
//! ```text
//! record    length u16 | AEAD of at most 16,384 bytes, with its tag of 16
//! ```
//! `length` counts the bytes after it and is the associated data. An empty record ends its direction, like
//! close_notify in TLS: without it, the stream was cut off. The nonce is the record's number XORed with the
//! direction's IV, as in TLS 1.3. After 2^20 records a direction derives its next key from the last one.

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use zeroize::Zeroizing;

use super::ready_keys::{KeyNumber, with_key};
use crate::record::MAX_PLAINTEXT;

/// Length of the AEAD's tag in bytes.
pub const TAG_LEN: usize = 16;
/// Length of a record's length field in bytes.
pub const LENGTH_LEN: usize = 2;
/// Longest record, with its length field, in bytes.
pub const MAX_RECORD: usize = record_len(MAX_PLAINTEXT);
/// Number of records per key. With the longest records, this is 2^34 bytes, which is below the limit of every AEAD (RFC
/// 9001 appendix B).
const RECORDS_PER_KEY: u64 = 1 << 20;

/// Returns the length of a record with this much plaintext, in bytes.
#[must_use]
pub const fn record_len(plaintext: usize) -> usize {
    LENGTH_LEN + plaintext + TAG_LEN
}

/// Cipher of the records: the AEAD of the session's TLS handshake.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    pub(super) fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// Keys of both directions of a connection.
pub struct Keys {
    /// Direction of sent records.
    pub(super) seal: Direction,
    /// Direction of received records.
    pub(super) open: Direction,
}

/// One direction. The key is derived from the secret when a record is processed (`ready_keys.rs`).
pub(super) struct Direction {
    cipher: Cipher,
    secret: Zeroizing<[u8; 32]>,
    key: KeyNumber,
    iv: [u8; aead::NONCE_LEN],
    /// Records sealed or opened.
    count: u64,
}

/// A length of HKDF output.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

pub(super) fn expand(prk: &Prk, info: &[&[u8]], out: &mut [u8]) {
    let okm = prk.expand(info, Length(out.len()));
    // HKDF can output up to 8,160 bytes, and the buffer has the requested length.
    okm.and_then(|okm| okm.fill(out)).unwrap_or_else(|_| unreachable!("short outputs"));
}

impl Direction {
    /// Derives the keys of the direction with this label, for the connection with this binding and opening.
    pub(super) fn new(
        cipher: Cipher,
        session: &[u8; 32],
        binding: &[u8; 32],
        opening: &[u8],
        label: &[u8],
    ) -> Direction {
        let prk = Salt::new(HKDF_SHA256, binding).extract(session);
        let mut secret = Zeroizing::new([0; 32]);
        expand(&prk, &[b"marline session 1 ", label, opening], secret.as_mut());
        Direction::from_secret(cipher, secret)
    }

    fn from_secret(cipher: Cipher, secret: Zeroizing<[u8; 32]>) -> Direction {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret.as_ref());
        let mut iv = [0; aead::NONCE_LEN];
        expand(&prk, &[b"iv"], &mut iv);
        Direction { cipher, secret, key: KeyNumber::next(), iv, count: 0 }
    }

    /// Calls `act` with the key.
    fn with_key<R>(&self, act: impl FnOnce(&LessSafeKey) -> R) -> R {
        let make = || {
            let prk = Prk::new_less_safe(HKDF_SHA256, self.secret.as_ref());
            let algorithm = self.cipher.algorithm();
            let mut bytes = Zeroizing::new([0; 32]);
            let bytes = &mut bytes[..algorithm.key_len()];
            expand(&prk, &[b"key"], bytes);
            let key = UnboundKey::new(algorithm, bytes);
            LessSafeKey::new(
                key.unwrap_or_else(|_| unreachable!("the key has the algorithm's length")),
            )
        };
        with_key(self.key, make, act)
    }

    fn next_nonce(&mut self) -> Nonce {
        if self.count >= RECORDS_PER_KEY {
            let prk = Prk::new_less_safe(HKDF_SHA256, self.secret.as_ref());
            let mut next = Zeroizing::new([0; 32]);
            expand(&prk, &[b"next"], next.as_mut());
            *self = Direction::from_secret(self.cipher, next);
        }
        let mut nonce = self.iv;
        let number = self.count.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(byte, bits)| *byte ^= bits);
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Computes the tag of `header`, which is sent in the clear.
    pub(super) fn authenticate(&mut self, header: &[u8]) -> [u8; TAG_LEN] {
        let nonce = self.next_nonce();
        let sealed =
            self.with_key(|key| key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut []));
        let tag =
            sealed.unwrap_or_else(|_| unreachable!("an empty record is within the length limit"));
        let mut out = [0; TAG_LEN];
        out.copy_from_slice(tag.as_ref());
        out
    }

    /// Checks that `tag` is the tag of `header`.
    pub(super) fn verify(&mut self, header: &[u8], mut tag: [u8; TAG_LEN]) -> bool {
        let nonce = self.next_nonce();
        self.with_key(|key| key.open_in_place(nonce, Aad::from(header), &mut tag).is_ok())
    }

    /// Appends a record of `plaintext`, which is no longer than [`MAX_PLAINTEXT`].
    pub(super) fn seal_record(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        debug_assert!(plaintext.len() <= MAX_PLAINTEXT);
        let length = ((plaintext.len() + TAG_LEN) as u16).to_be_bytes();
        out.extend_from_slice(&length);
        let start = out.len();
        out.extend_from_slice(plaintext);
        let nonce = self.next_nonce();
        let text = &mut out[start..];
        let sealed =
            self.with_key(|key| key.seal_in_place_separate_tag(nonce, Aad::from(length), text));
        let tag = sealed.unwrap_or_else(|_| unreachable!("a record is within the length limit"));
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens the part of a record after its length field, in place. The plaintext is at the front. Returns `None` if
    /// the bytes were not sealed by the peer, or not as its next record.
    pub(super) fn open_record<'a>(&mut self, sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let length = (sealed.len() as u16).to_be_bytes();
        let nonce = self.next_nonce();
        self.with_key(|key| key.open_in_place(nonce, Aad::from(length), sealed).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_continues_only_with_its_next_key() {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let new = || Direction::new(cipher, &[1; 32], &[2; 32], b"opening", b"there");
            let (mut seal, mut open, mut stuck) = (new(), new(), new());
            seal.count = RECORDS_PER_KEY - 1;
            open.count = seal.count;
            let mut sealed = Vec::new();
            for text in [b"last", b"next", b"more"] {
                let from = sealed.len() + LENGTH_LEN;
                seal.seal_record(text, &mut sealed);
                let mut record = sealed[from..].to_vec();
                assert_eq!(open.open_record(&mut record).unwrap(), text);
            }
            // The record after the key change is the first of its key.
            assert_eq!(seal.count, 2);
            let mut record = sealed[record_len(4) + LENGTH_LEN..][..4 + TAG_LEN].to_vec();
            assert!(stuck.open_record(&mut record).is_none());
        }
    }

    #[test]
    fn keys_of_a_silent_stream_use_little_memory() {
        assert!(size_of::<Keys>() <= 160, "{} bytes", size_of::<Keys>());
    }

    #[test]
    fn each_direction_and_connection_has_its_own_keys() {
        let sealed = |binding: u8, label: &[u8]| {
            let mut out = Vec::new();
            let session = [1; 32];
            let cipher = Cipher::Aes256Gcm;
            Direction::new(cipher, &session, &[binding; 32], b"", label)
                .seal_record(b"x", &mut out);
            out
        };
        assert_eq!(sealed(2, b"there"), sealed(2, b"there"));
        assert_ne!(sealed(2, b"there"), sealed(2, b"back"));
        assert_ne!(sealed(2, b"there"), sealed(3, b"there"));
    }
}
