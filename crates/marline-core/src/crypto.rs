//! Keys and the values derived from them (RFC 8684 sections 3.1 and 3.2): token, initial data
//! sequence number, and the HMACs that authenticate joins and announced addresses.

use core::fmt;
use core::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use marline_policy::Token;
use marline_wire::mptcp::ExperimentalMessage;
use sha2::{Digest, Sha256};

/// A 64-bit MPTCP key. `Debug` hides it, because it authorizes joins.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Token (top 32 bits of the hash) and IDSN (low 64 bits).
    pub(crate) fn derive(self) -> (Token, u64) {
        let hash: [u8; 32] = Sha256::digest(self.0.to_be_bytes()).into();
        let token = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
        let mut low = [0; 8];
        low.copy_from_slice(&hash[24..]);
        (Token(token), u64::from_be_bytes(low))
    }
}

/// HMAC-SHA256 keyed by two MPTCP keys, the sender's first.
fn hmac(sender: Key, receiver: Key, message: &[&[u8]]) -> [u8; 32] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&sender.0.to_be_bytes());
    key[8..].copy_from_slice(&receiver.0.to_be_bytes());
    keyed_hash(&key, message)
}

/// HMAC-SHA256 of the concatenated parts.
pub(crate) fn keyed_hash(key: &[u8; 16], message: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length");
    };
    for part in message {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// HMAC of a join, from the side with key `sender` and random number `sender_nonce`.
pub(crate) fn join_hmac(
    sender: Key,
    receiver: Key,
    sender_nonce: u32,
    receiver_nonce: u32,
) -> [u8; 32] {
    hmac(sender, receiver, &[&sender_nonce.to_be_bytes(), &receiver_nonce.to_be_bytes()])
}

/// Prefix of Fast JOIN's HMAC messages. No other HMAC under these keys covers such a message.
const FAST_SYN_LABEL: &[u8; 16] = b"Marline FastJoin";
/// Prefix for numbered SYNs.
const COUNTED_SYN_LABEL: &[u8; 16] = b"Marline FastNth ";
const FAST_ACK_LABEL: &[u8; 16] = b"Marline FastAck ";

/// HMAC of a Fast JOIN's SYN: over the option excluding the HMAC, with the full 64-bit position, and the data of the
/// SYN. For a numbered SYN, its option has the number's low byte and 56 bits of the HMAC, which covers the whole
/// number.
pub(crate) fn fast_syn_hmac(
    sender: Key,
    receiver: Key,
    message: &ExperimentalMessage,
    point: u64,
    payload: &[u8],
    count: Option<u64>,
) -> u64 {
    let option = message.option();
    // Address id and token.
    let head = &option.as_slice()[..5];
    let kind = [option.subtype_byte()];
    let point = point.to_be_bytes();
    let Some(count) = count else {
        return leftmost_64(&hmac(
            sender,
            receiver,
            &[FAST_SYN_LABEL, &kind, head, &point, payload],
        ));
    };
    let number = count.to_be_bytes();
    let covered: [&[u8]; 6] = [COUNTED_SYN_LABEL, &kind, head, &point, &number, payload];
    count << 56 | leftmost_64(&hmac(sender, receiver, &covered)) >> 8
}

/// HMAC of the SYN/ACK that answers the SYN with this HMAC.
pub(crate) fn fast_ack_hmac(
    sender: Key,
    receiver: Key,
    message: &ExperimentalMessage,
    point: u64,
    answered: u64,
) -> u64 {
    let option = message.option();
    let head = [option.subtype_byte(), option.as_slice()[0]];
    let point = point.to_be_bytes();
    leftmost_64(&hmac(sender, receiver, &[FAST_ACK_LABEL, &head, &point, &answered.to_be_bytes()]))
}

/// Prefix of a binding's HMAC message. No other HMAC under these keys covers such a message.
const BINDING_LABEL: &[u8; 16] = b"Marline Binding ";

/// Value that identifies one connection for protocols inside it: an HMAC over the protocol's label under both keys.
/// Both sides compute the same value.
pub(crate) fn binding(client: Key, server: Key, label: &[u8]) -> [u8; 32] {
    hmac(client, server, &[BINDING_LABEL, label])
}

/// Leftmost 64 bits, as the SYN/ACK of a join carries them.
pub(crate) fn leftmost_64(hmac: &[u8; 32]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hmac[..8]);
    u64::from_be_bytes(bytes)
}

/// Leftmost 160 bits, as the third ACK of a join carries them.
pub(crate) fn leftmost_160(hmac: &[u8; 32]) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(&hmac[..20]);
    bytes
}

/// Rightmost 64 bits of the HMAC over an announced address. A port that is not announced is included as 0.
pub(crate) fn address_hmac(
    sender: Key,
    receiver: Key,
    address_id: u8,
    address: IpAddr,
    port: Option<u16>,
) -> u64 {
    let port = port.unwrap_or(0).to_be_bytes();
    let full = match address {
        IpAddr::V4(v4) => hmac(sender, receiver, &[&[address_id], &v4.octets(), &port]),
        IpAddr::V6(v6) => hmac(sender, receiver, &[&[address_id], &v6.octets(), &port]),
    };
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&full[24..]);
    u64::from_be_bytes(bytes)
}

/// True if the slices are equal. The time does not depend on where they differ.
pub(crate) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivation_uses_both_ends_of_the_hash() {
        // SHA-256 of eight zero bytes is af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc.
        let (token, idsn) = Key(0).derive();
        assert_eq!(token, Token(0xaf55_70f5));
        assert_eq!(idsn, 0xe5b2_328d_e0e8_3dfc);
    }

    #[test]
    fn a_binding_depends_on_both_keys_and_the_label() {
        let (a, b) = (Key(1), Key(2));
        let bound = binding(a, b, b"x");
        let others = [binding(b, a, b"x"), binding(a, Key(3), b"x"), binding(a, b, b"y")];
        assert!(others.iter().all(|other| *other != bound));
        assert_eq!(binding(a, b, b"x"), bound);
    }

    #[test]
    fn each_direction_of_a_join_has_its_own_hmac() {
        let (a, b) = (Key(1), Key(2));
        assert_ne!(join_hmac(a, b, 3, 4), join_hmac(b, a, 4, 3));
        assert_eq!(format!("{a:?}"), "Key(..)");
        assert!(equal_in_constant_time(&[1, 2], &[1, 2]));
        assert!(!equal_in_constant_time(&[1, 2], &[1, 3]));
        assert!(!equal_in_constant_time(&[1, 2], &[1]));
    }
}
