//! Keys of the carrier. They authenticate moves and resets of a flow, and new flows during a SYN flood (spec sections
//! 3, 4 and 6).
//!
//! An observer sees every datagram, but it cannot compute a Diffie-Hellman secret or invert a hash. So a move is
//! authenticated by a secret agreed on with X25519, and a reset by the token whose hash was sent in the handshake. Both
//! sides send their public key in the handshake without computing a secret. A key pair serves all flows opened within
//! ten minutes. The secret of two pairs is computed and cached when the first flow between them moves.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;
use std::sync::Arc;

use ed25519_compact::x25519::{PublicKey, SecretKey};
use hmac::{Hmac, KeyInit, Mac};
use marline_time::{Duration, Instant};
use sha2::{Digest, Sha256};

use super::Outer;
use super::frame::{COOKIE_LEN, Cookie, KEY_LEN, Nonce, Proof, SenderInfo};

/// Time for which new flows use a key pair. It is limited because an observer could recognize a client by its public
/// key.
const PAIR_LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of cached secrets, newest first.
const AGREED_CAPACITY: usize = 64;
/// Length of a time slot, in seconds. A cookie is valid in the slot in which it was created and in the next.
pub(super) const COOKIE_SLOT_S: u64 = 16;

/// Labels that separate the uses of a key.
const PAIR_LABEL: &[u8] = b"Marline carrier key pair";
const PATH_LABEL: &[u8] = b"Marline carrier path key";
const RESPONSE_LABEL: &[u8] = b"Marline carrier response";
const RESET_LABEL: &[u8] = b"Marline carrier reset";
const COMMITMENT_LABEL: &[u8] = b"Marline carrier reset commitment";
const NONCE_LABEL: &[u8] = b"Marline carrier nonce";
const COOKIE_LABEL: &[u8] = b"Marline carrier cookie";

/// Key pair of this side for a key agreement.
pub(super) struct KeyPair {
    secret: SecretKey,
    public: [u8; KEY_LEN],
    created_at: Instant,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPair(..)")
    }
}

/// Keys bound to a flow.
#[derive(Clone)]
pub(super) struct BoundKeys {
    own: Arc<KeyPair>,
    /// Sender information of the peer; `None` until its handshake arrives.
    pub(super) peer: Option<SenderInfo>,
    /// Key that authenticates moves of this flow; `None` until it is needed.
    path_key: Option<[u8; 32]>,
}

impl fmt::Debug for BoundKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bond(..)")
    }
}

/// Secrets of a carrier.
pub(super) struct Keyring {
    /// Secret for values that only this process checks.
    secret: [u8; 32],
    /// Secret for values that a successor must be able to prove.
    reset_seed: [u8; 32],
    pair: Option<Arc<KeyPair>>,
    pairs: u64,
    agreed: VecDeque<([u8; KEY_LEN], [u8; KEY_LEN], [u8; 32])>,
    agreements: u64,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(..)")
    }
}

impl Keyring {
    /// Creates a keyring from two unpredictable secrets.
    pub(super) const fn new(secret: [u8; 32], reset_seed: [u8; 32]) -> Self {
        let agreed = VecDeque::new();
        Keyring { secret, reset_seed, pair: None, pairs: 0, agreed, agreements: 0 }
    }

    /// Returns the number of shared secrets computed so far.
    pub(super) const fn agreements(&self) -> u64 {
        self.agreements
    }

    /// Binds a flow to the current key pair and to the peer's sender information.
    pub(super) fn bind_flow(&mut self, now: Instant, peer: Option<SenderInfo>) -> BoundKeys {
        let fresh = |pair: &&Arc<KeyPair>| now < pair.created_at + PAIR_LIFETIME;
        let own = match self.pair.as_ref().filter(fresh) {
            Some(pair) => Arc::clone(pair),
            None => self.next_pair(now),
        };
        BoundKeys { own, peer, path_key: None }
    }

    fn next_pair(&mut self, now: Instant) -> Arc<KeyPair> {
        self.pairs += 1;
        let secret = mac(&self.secret, &[PAIR_LABEL, &self.pairs.to_be_bytes()]);
        let secret = SecretKey::new(secret);
        let public = match secret.recover_public_key() {
            Ok(public) => *public,
            // The base point is of prime order, and a clamped scalar is not a multiple of that order.
            Err(error) => unreachable!("{error}"),
        };
        let pair = Arc::new(KeyPair { secret, public, created_at: now });
        self.pair = Some(Arc::clone(&pair));
        pair
    }

    /// Returns our sender information for the flow `id` at the address `local`.
    pub(super) fn introduction(&self, bond: &BoundKeys, id: u64, local: SocketAddr) -> SenderInfo {
        let commitment = compute_commitment(&self.reset_token(id, local));
        SenderInfo { key: bond.own.public, commitment }
    }

    /// Computes the token that proves that the receiver of `id` at `local` has lost the flow. The address is included
    /// because another server with the same seed must not be able to prove this.
    pub(super) fn reset_token(&self, id: u64, local: SocketAddr) -> Proof {
        let place = [&ip_bytes(local.ip())[..], &local.port().to_be_bytes()].concat();
        leftmost_bytes(&mac(&self.reset_seed, &[RESET_LABEL, &id.to_be_bytes(), &place]))
    }

    /// Computes the proof that the side with id `responder` received the nonce at a new address; the other side's id is
    /// `challenger`. Returns `None` if there is no agreed secret.
    pub(super) fn response(
        &mut self,
        bond: &mut BoundKeys,
        challenger: u64,
        responder: u64,
        nonce: &Nonce,
    ) -> Option<Proof> {
        let key = self.path_key(bond, challenger ^ responder)?;
        let ids = [challenger.to_be_bytes(), responder.to_be_bytes()].concat();
        Some(leftmost_bytes(&mac(&key, &[RESPONSE_LABEL, &ids, nonce])))
    }

    /// Computes the path key of a flow; `both` combines both ids and is equal on both sides.
    fn path_key(&mut self, bond: &mut BoundKeys, both: u64) -> Option<[u8; 32]> {
        if let Some(key) = bond.path_key {
            return Some(key);
        }
        let shared = self.agree(&bond.own, bond.peer?.key)?;
        let key = mac(&shared, &[PATH_LABEL, &both.to_be_bytes()]);
        bond.path_key = Some(key);
        Some(key)
    }

    fn agree(&mut self, own: &KeyPair, theirs: [u8; KEY_LEN]) -> Option<[u8; 32]> {
        let known = self.agreed.iter().find(|(a, b, _)| *a == own.public && *b == theirs);
        if let Some((_, _, shared)) = known {
            return Some(*shared);
        }
        self.agreements += 1;
        // A public key of small order is refused: it would result in a publicly known secret.
        let shared = *PublicKey::new(theirs).dh(&own.secret).ok()?;
        self.agreed.truncate(AGREED_CAPACITY - 1);
        self.agreed.push_front((own.public, theirs, shared));
        Some(shared)
    }

    /// Computes the nonce for the challenge of an address, valid for one move of this flow to that address.
    pub(super) fn nonce(&self, flow: u64, moves: u32, outer: &Outer) -> Nonce {
        let place = [&outer.socket.to_be_bytes()[..], &ip_bytes(outer.local)].concat();
        let ids = [&flow.to_be_bytes()[..], &moves.to_be_bytes()].concat();
        leftmost_bytes(&mac(&self.secret, &[NONCE_LABEL, &ids, &place, &remote_bytes(outer)]))
    }

    /// Computes the cookie that the sender of a SYN at this address must return. It does not depend on the flow, so a
    /// sender that has proven its address once need not do so again for each flow.
    pub(super) fn cookie(&self, now: Instant, outer: &Outer) -> Cookie {
        self.cookie_of(slot_of(now), outer)
    }

    fn cookie_of(&self, slot: u8, outer: &Outer) -> Cookie {
        let about = [&[slot][..], &remote_bytes(outer)].concat();
        let mut cookie = [slot; COOKIE_LEN];
        cookie[1..].copy_from_slice(&leftmost_bytes(&mac(&self.secret, &[COOKIE_LABEL, &about])));
        cookie
    }

    /// Returns true if we issued this cookie to this address recently.
    pub(super) fn is_ours(&self, now: Instant, cookie: &Cookie, outer: &Outer) -> bool {
        let slot = cookie[0];
        slot_of(now).wrapping_sub(slot) <= 1
            && equals_in_constant_time(cookie, &self.cookie_of(slot, outer))
    }
}

/// Hashes a token for a handshake.
pub(super) fn compute_commitment(token: &Proof) -> Proof {
    let hash = Sha256::new().chain_update(COMMITMENT_LABEL).chain_update(token).finalize();
    leftmost_bytes(&hash.into())
}

/// Compares in a time that does not depend on the position of a difference.
pub(super) fn equals_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

fn slot_of(now: Instant) -> u8 {
    (now.since(Instant::ZERO).as_secs() / COOKIE_SLOT_S) as u8
}

fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length");
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn leftmost_bytes(hash: &[u8; 32]) -> Proof {
    core::array::from_fn(|at| hash[at])
}

fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn remote_bytes(outer: &Outer) -> [u8; 18] {
    let (ip, port) = (ip_bytes(outer.remote.ip()), outer.remote.port().to_be_bytes());
    core::array::from_fn(|at| if at < 16 { ip[at] } else { port[at - 16] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(local: &str) -> SocketAddr {
        local.parse().unwrap()
    }

    #[test]
    fn a_token_depends_on_flow_address_and_seed_and_survives_a_restart() {
        let here = at("192.0.2.1:443");
        let token = |seed, id, local| Keyring::new([9; 32], [seed; 32]).reset_token(id, local);
        let first = token(1, 7, here);
        assert_eq!(Keyring::new([8; 32], [1; 32]).reset_token(7, here), first);
        for other in [token(2, 7, here), token(1, 8, here), token(1, 7, at("192.0.2.1:444"))] {
            assert_ne!(other, first);
        }
        assert_ne!(compute_commitment(&first), first);
    }

    #[test]
    fn only_the_two_sides_derive_the_same_proof() {
        let now = Instant::from_secs(1);
        let here = at("192.0.2.1:443");
        let mut rings = [1, 2, 3].map(|n| Keyring::new([n; 32], [n; 32]));
        let mut bonds = rings.each_mut().map(|ring| ring.bind_flow(now, None));
        let told: [SenderInfo; 3] =
            core::array::from_fn(|n| rings[n].introduction(&bonds[n], 5, here));
        (bonds[0].peer, bonds[1].peer, bonds[2].peer) =
            (Some(told[1]), Some(told[0]), Some(told[0]));
        let proofs: [Option<Proof>; 3] =
            core::array::from_fn(|n| rings[n].response(&mut bonds[n], 5, 6, &[4; 16]));
        assert!(proofs[0].is_some());
        assert_eq!(proofs[0], proofs[1]);
        assert_ne!(proofs[0], proofs[2], "an observer with its own key pair");
        let turned = rings[0].response(&mut bonds[0], 6, 5, &[4; 16]);
        assert_ne!(turned, proofs[0], "a challenge cannot be sent back as its own answer");
        // A hundred flows between two sides cost only one key agreement.
        for flow in 100..200 {
            let mut bond = rings[0].bind_flow(now, Some(told[1]));
            assert!(rings[0].response(&mut bond, flow, 6, &[4; 16]).is_some());
        }
        assert_eq!(rings[0].agreements(), 1);
    }

    #[test]
    fn a_public_key_of_small_order_proves_nothing() {
        let mut ring = Keyring::new([1; 32], [1; 32]);
        let peer = SenderInfo { key: [0; KEY_LEN], commitment: [0; 16] };
        let mut bond = ring.bind_flow(Instant::from_secs(1), Some(peer));
        assert_eq!(ring.response(&mut bond, 5, 6, &[4; 16]), None);
    }

    #[test]
    fn key_pairs_are_renewed_and_flows_keep_theirs() {
        let mut ring = Keyring::new([1; 32], [1; 32]);
        let now = Instant::from_secs(1);
        let (old, same) = (ring.bind_flow(now, None), ring.bind_flow(now, None));
        assert_eq!(old.own.public, same.own.public);
        let new = ring.bind_flow(now + PAIR_LIFETIME, None);
        assert_ne!(old.own.public, new.own.public);
        assert_eq!(format!("{ring:?} {new:?} {:?}", new.own), "Keyring(..) Bond(..) KeyPair(..)");
    }

    #[test]
    fn a_cookie_is_valid_at_one_address_for_half_a_minute() {
        let ring = Keyring::new([1; 32], [1; 32]);
        let now = Instant::from_secs(40);
        let outer = |port| Outer {
            socket: 0,
            local: at("192.0.2.1:443").ip(),
            remote: SocketAddr::new(at("192.0.2.9:1").ip(), port),
        };
        let cookie = ring.cookie(now, &outer(1));
        let later = |s| now + Duration::from_secs(s);
        assert!(ring.is_ours(now, &cookie, &outer(1)));
        assert!(ring.is_ours(later(16), &cookie, &outer(1)));
        assert!(!ring.is_ours(later(40), &cookie, &outer(1)));
        assert!(!ring.is_ours(now, &cookie, &outer(2)));
    }
}
