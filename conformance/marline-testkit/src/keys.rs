//! Key derivation of Multipath TCP (RFC 8684 sections 3.1 and 3.2), written independently of the
//! core so that tests do not check the core against itself.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// The token of a connection: the leftmost 32 bits of the key's hash.
#[must_use]
pub fn token(key: u64) -> u32 {
    let hash = Sha256::digest(key.to_be_bytes());
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// The initial data sequence number: the rightmost 64 bits of the key's hash.
#[must_use]
pub fn idsn(key: u64) -> u64 {
    let hash = Sha256::digest(key.to_be_bytes());
    hash[24..].iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

/// The HMAC of a join, computed by the side whose key and nonce come first.
#[must_use]
pub fn join_hmac(own_key: u64, other_key: u64, own_nonce: u32, other_nonce: u32) -> [u8; 32] {
    let message = [own_nonce.to_be_bytes(), other_nonce.to_be_bytes()].concat();
    hmac(own_key, other_key, &message)
}

/// HMAC-SHA256 with two keys, one after the other.
///
/// # Panics
/// Never: HMAC accepts keys of any length.
#[must_use]
pub fn hmac(first_key: u64, second_key: u64, message: &[u8]) -> [u8; 32] {
    let key = [first_key.to_be_bytes(), second_key.to_be_bytes()].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC accepts keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// The leftmost 64 bits of an HMAC, as in the SYN/ACK of a join.
#[must_use]
pub fn left64(hmac: [u8; 32]) -> u64 {
    hmac[..8].iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

/// The rightmost 64 bits of an HMAC, as in ADD_ADDR.
#[must_use]
pub fn right64(hmac: [u8; 32]) -> u64 {
    hmac[24..].iter().fold(0, |n, &byte| n << 8 | u64::from(byte))
}

/// The fields of a Fast JOIN's SYN that its HMACs cover (docs/spec/experimental.md).
#[derive(Copy, Clone, Debug)]
pub struct FastJoinSyn<'a> {
    /// Key of the active opener.
    pub own_key: u64,
    /// Key of the other side.
    pub other_key: u64,
    /// Third byte of the option.
    pub message: u8,
    /// Address ID of the active opener.
    pub address_id: u8,
    /// Token of the other side.
    pub token: u32,
    /// The full DSN or DATA_ACK.
    pub point: u64,
    /// Payload of the SYN.
    pub data: &'a [u8],
}

impl FastJoinSyn<'_> {
    /// The HMAC of a SYN that is not numbered.
    #[must_use]
    pub fn hmac(&self) -> u64 {
        self.hmac_over(b"Marline FastJoin", None)
    }

    /// The value that replaces the HMAC in the active opener's SYN number `count`, if SYNs are numbered.
    #[must_use]
    pub fn counted_hmac(&self, count: u64) -> u64 {
        count << 56 | self.hmac_over(b"Marline FastNth ", Some(count)) >> 8
    }

    fn hmac_over(&self, label: &[u8; 16], count: Option<u64>) -> u64 {
        let mut covered = label.to_vec();
        covered.extend([self.message, self.address_id]);
        covered.extend(self.token.to_be_bytes());
        covered.extend(self.point.to_be_bytes());
        covered.extend(count.into_iter().flat_map(u64::to_be_bytes));
        covered.extend(self.data);
        left64(hmac(self.own_key, self.other_key, &covered))
    }
}

/// The HMAC of the SYN/ACK that answers a Fast JOIN: `message` and `flags` are the option's third and fourth byte,
/// `answered` the SYN's HMAC.
#[must_use]
pub fn fast_ack_hmac(
    own_key: u64,
    other_key: u64,
    message: u8,
    flags: u8,
    point: u64,
    answered: u64,
) -> u64 {
    let mut covered = b"Marline FastAck ".to_vec();
    covered.extend([message, flags]);
    covered.extend(point.to_be_bytes());
    covered.extend(answered.to_be_bytes());
    left64(hmac(own_key, other_key, &covered))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys, token and HMACs of a connection between two Linux 6.18 kernels.
    #[test]
    fn keys_and_hmacs_match_those_of_the_kernel() {
        let (client, server) = (0x66f7_460a_ddff_8a36, 0x2f76_33d0_c21d_7564);
        let (client_nonce, server_nonce) = (0x0e47_1f4d, 0xe890_1671);
        assert_eq!(token(server), 0xd900_3b28);
        // The client's first byte is IDSN + 1. The server acknowledges IDSN + 1 before any data.
        assert_eq!((idsn(client) + 1) as u32, 0xeea2_dc77);
        assert_eq!(idsn(server) + 1, 0x8abb_d64e_8daa_172e);
        let theirs = join_hmac(server, client, server_nonce, client_nonce);
        assert_eq!(left64(theirs), 0xc964_0024_56c6_ab25);
        let ours = join_hmac(client, server, client_nonce, server_nonce);
        assert_eq!(ours[..4], [0xd0, 0x61, 0xa0, 0x4d]);
        // ADD_ADDR of the server: address id 1, 10.9.2.2, port 0.
        let announced = hmac(server, client, &[1, 10, 9, 2, 2, 0, 0]);
        assert_eq!(right64(announced), 0xf371_b3d6_fd81_a555);
    }
}
