//! Sealing interface for the driver's cipher.
//!
//! The cipher is an AEAD with a tag of [`TAG_BYTES`](crate::TAG_BYTES) bytes (AES-GCM, ChaCha20-Poly1305). Its nonce is
//! the packet number, combined with an initialization vector of the key as in RFC 9001 section 5.3. A lane passes each
//! number to [`Seal::seal`] once. No number is reused under a key after a restart, because the keys are derived from
//! the session, the process's generation, the shard and the direction (docs/spec/datagrams.md section 3).

use core::fmt::Debug;

use crate::TAG_BYTES;

/// Encryption of one direction of a lane.
pub trait Seal: Debug + Send {
    /// Encrypts `body` in place. Returns the tag for the header and the encrypted body.
    fn seal(&mut self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES];

    /// Maximum number of packets that may be sealed with the key (RFC 9001 section 6.6: the cipher's confidentiality
    /// limit).
    fn max_packets(&self) -> u64;
}

/// Decryption of one direction of a lane.
pub trait Open: Debug + Send {
    /// Decrypts `body` in place. Returns true if the tag is valid for the header and the body; otherwise the content of
    /// `body` must not be used.
    fn open(
        &mut self,
        packet_number: u64,
        header: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool;

    /// Maximum number of forged packets that may be received with the key (RFC 9001 section 6.6: the cipher's integrity
    /// limit).
    fn max_forgeries(&self) -> u64;
}

/// Keys of both directions.
#[derive(Debug)]
pub struct Keys {
    /// Key of the sending direction.
    pub seal: Box<dyn Seal>,
    /// Key of the receiving direction.
    pub open: Box<dyn Open>,
}
