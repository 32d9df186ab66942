//! Keys of a session's lane for datagrams, and its cipher (docs/spec/datagrams.md section 3).
//!
//! ```text
//! secret = HKDF-Expand(HKDF-Extract(salt = binding, base), "marline datagrams 1 " | direction | context, 32)
//! ```
//! `base` is exported from the session's TLS connection. The binding is that of the connection whose subflows are
//! the lane's paths, and the context is the two lane ends exchanged in its stream. A connection has at most one
//! lane and its binding never repeats, so the packet numbers of every lane, which begin at 0, are used with a key
//! of its own.

use std::fmt;
use std::sync::OnceLock;

use marline::datagrams::{Keys, Open, Seal, TAG_BYTES};
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use super::keys::{Cipher, expand};

/// Length of a generation in bytes.
pub const GENERATION_LEN: usize = 16;
/// Limits on the use of one AES-GCM key: sealed packets, and forgeries tried on it, if no packet is longer than 2^11
/// bytes (RFC 9001 appendices B.1.1 and B.1.2). Frames of a lane are shorter.
const GCM_PACKETS: u64 = 1 << 28;
const GCM_FORGERIES: u64 = 1 << 57;
/// Limit on forgeries tried on one ChaCha20-Poly1305 key (RFC 9001 section 6.6). Sealed packets are limited only by
/// their numbers.
const CHACHA_FORGERIES: u64 = 1 << 36;

/// Random generation of a process, drawn at first use.
#[derive(Debug, Default)]
pub struct Generation(OnceLock<[u8; GENERATION_LEN]>);

impl Generation {
    /// Returns the generation, which is the same on each call.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn get(&self) -> anyhow::Result<[u8; GENERATION_LEN]> {
        match self.0.get() {
            Some(generation) => Ok(*generation),
            None => {
                let drawn = super::random()?;
                Ok(*self.0.get_or_init(|| drawn))
            }
        }
    }
}

/// One end of a lane, as announced to the other end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LaneEnd {
    /// Generation of the process.
    pub generation: [u8; GENERATION_LEN],
    /// Id by which this end is addressed.
    pub lane: u64,
}

/// Side of a lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that requested the lane.
    Client,
    /// The side that received the request.
    Server,
}

/// Returns the keys of a lane for one side.
pub(super) fn keys(
    cipher: Cipher,
    base: &[u8; 32],
    binding: &[u8; 32],
    side: Side,
    client: &LaneEnd,
    server: &LaneEnd,
) -> Keys {
    let prk = Salt::new(HKDF_SHA256, binding).extract(base);
    let direction = |label: &[u8]| {
        let mut secret = Zeroizing::new([0; 32]);
        let (client_lane, server_lane) = (client.lane.to_be_bytes(), server.lane.to_be_bytes());
        let info: [&[u8]; 6] = [
            b"marline datagrams 1 ",
            label,
            &client.generation,
            &server.generation,
            &client_lane,
            &server_lane,
        ];
        expand(&prk, &info, secret.as_mut());
        PacketKey::new(cipher, &secret)
    };
    let (up, down) = (direction(b"client to server"), direction(b"server to client"));
    let (ours, theirs) = match side {
        Side::Client => (up, down),
        Side::Server => (down, up),
    };
    Keys { seal: Box::new(Sealer { key: ours, next: 0 }), open: Box::new(Opener(theirs)) }
}

/// Key of one direction.
struct PacketKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    packets: u64,
    forgeries: u64,
}

impl PacketKey {
    fn new(cipher: Cipher, secret: &[u8; 32]) -> PacketKey {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret);
        let algorithm = cipher.algorithm();
        let mut bytes = Zeroizing::new([0; 32]);
        let bytes = &mut bytes[..algorithm.key_len()];
        expand(&prk, &[b"key"], bytes);
        let mut iv = [0; NONCE_LEN];
        expand(&prk, &[b"iv"], &mut iv);
        let key = UnboundKey::new(algorithm, bytes)
            .unwrap_or_else(|_| unreachable!("the key has the algorithm's length"));
        let (packets, forgeries) = match cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => (GCM_PACKETS, GCM_FORGERIES),
            Cipher::ChaCha20Poly1305 => (u64::MAX, CHACHA_FORGERIES),
        };
        PacketKey { key: LessSafeKey::new(key), iv, packets, forgeries }
    }

    fn nonce(&self, packet_number: u64) -> Nonce {
        let mut nonce = self.iv;
        let number = packet_number.to_be_bytes();
        nonce[NONCE_LEN - 8..].iter_mut().zip(number).for_each(|(byte, bits)| *byte ^= bits);
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals the packets of this end. Each packet number is used once.
struct Sealer {
    key: PacketKey,
    next: u64,
}

impl Seal for Sealer {
    fn seal(&mut self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        // Reusing a nonce would reveal the key, so panic instead.
        assert!(packet_number >= self.next, "packet numbers must increase");
        self.next = packet_number.saturating_add(1);
        let nonce = self.key.nonce(packet_number);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(header), body);
        let tag = sealed.unwrap_or_else(|_| unreachable!("a frame is within the length limit"));
        let mut out = [0; TAG_BYTES];
        out.copy_from_slice(tag.as_ref());
        out
    }

    fn max_packets(&self) -> u64 {
        self.key.packets
    }
}

/// Opens packets that the peer sealed.
struct Opener(PacketKey);

impl Open for Opener {
    fn open(
        &mut self,
        packet_number: u64,
        header: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let nonce = self.0.nonce(packet_number);
        let tag = (*tag).into();
        self.0.key.open_in_place_separate_tag(nonce, Aad::from(header), tag, body, 0..).is_ok()
    }

    fn max_forgeries(&self) -> u64 {
        self.0.forgeries
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener(..)")
    }
}

#[cfg(test)]
mod tests;
