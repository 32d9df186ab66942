//! Sealing interface: the cipher that the driver brings.
//!
//! The cipher is an AEAD with a tag of [`TAG_BYTES`](crate::TAG_BYTES) bytes (AES-GCM, ChaCha20-Poly1305). Its nonce
//! is the packet number, combined with an initialisation vector of the key as RFC 9001 section 5.3 does; a lane
//! gives each number to [`Seal::seal`] once. That a number is not used again under the same key after a restart is
//! the keys': docs/spec/datagrams.md section 3 derives them from the session, the process's generation, the shard
//! and the direction.

use core::fmt::Debug;

use crate::TAG_BYTES;

/// Seals what one direction of a lane sends.
pub trait Seal: Debug + Send {
    /// Encrypts `body` in place. Returns the tag over it and the header.
    fn seal(&mut self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES];

    /// So many packets may be sealed with the key (RFC 9001 section 6.6: the cipher's confidentiality limit).
    fn packets_at_most(&self) -> u64;
}

/// Opens what the other end sealed.
pub trait Open: Debug + Send {
    /// Decrypts `body` in place; whether the tag is that of it and the header. What `body` holds if it is not,
    /// nobody reads.
    fn open(
        &mut self,
        packet_number: u64,
        header: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool;

    /// So many forgeries may be tried on the key (RFC 9001 section 6.6: the cipher's integrity limit).
    fn forgeries_at_most(&self) -> u64;
}

/// The keys of both directions.
#[derive(Debug)]
pub struct Keys {
    /// Of what this end sends.
    pub seal: Box<dyn Seal>,
    /// Of what it receives.
    pub open: Box<dyn Open>,
}
