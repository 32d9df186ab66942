//! Hybrid key exchange X25519MLKEM768 (draft-ietf-tls-ecdhe-mlkem) for rustls.
//!
//! An attacker that records a handshake today can break X25519 once there is a large quantum computer, and read all
//! data protected by it. So the secret combines two exchanges, X25519 and ML-KEM-768 (FIPS 203), and is safe as long as
//! one of them is. rustls provides the hybrid only with aws-lc, which takes minutes to build. This implementation uses
//! X25519 of ring, which is a dependency anyway, and ML-KEM of libcrux, which is formally verified. In shares and
//! secrets, ML-KEM comes first. A client also offers plain X25519, so older servers are still supported.

use core::fmt;

use libcrux_ml_kem::mlkem768::{
    MlKem768Ciphertext, MlKem768KeyPair, MlKem768PublicKey, decapsulate, encapsulate,
    generate_key_pair, validate_public_key,
};
use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::{
    ActiveKeyExchange, CompletedKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup,
};
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// Length of an encapsulation key, which is the client's share.
const KEY_LEN: usize = 1_184;
/// Length of a ciphertext, which is the server's share.
const CIPHERTEXT_LEN: usize = 1_088;

const INVALID: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// Hybrid key exchange group.
#[derive(Debug)]
pub(super) struct X25519MlKem768;

impl SupportedKxGroup for X25519MlKem768 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let classical = X25519.start()?;
        let pair = generate_key_pair(random()?);
        let share = [pair.pk().as_slice(), classical.pub_key()].concat();
        Ok(Box::new(StartedExchange { classical, pair, share }))
    }

    fn start_and_complete(&self, client: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, classical) = client.split_at_checked(KEY_LEN).ok_or(INVALID)?;
        let key = MlKem768PublicKey::try_from(key).map_err(|_| INVALID)?;
        if !validate_public_key(&key) {
            return Err(INVALID);
        }
        let classical = X25519.start_and_complete(classical)?;
        let (ciphertext, secret) = encapsulate(&key, random()?);
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [ciphertext.as_slice().as_slice(), &classical.pub_key].concat(),
            secret: concatenate(&secret, &classical.secret),
        })
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// Client's key exchange in progress, until the server's share arrives.
struct StartedExchange {
    classical: Box<dyn ActiveKeyExchange>,
    pair: MlKem768KeyPair,
    share: Vec<u8>,
}

impl fmt::Debug for StartedExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Started")
    }
}

impl ActiveKeyExchange for StartedExchange {
    fn complete(self: Box<Self>, server: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, classical) = server.split_at_checked(CIPHERTEXT_LEN).ok_or(INVALID)?;
        let ciphertext = MlKem768Ciphertext::try_from(ciphertext).map_err(|_| INVALID)?;
        let classical = self.classical.complete(classical)?;
        Ok(concatenate(&decapsulate(self.pair.private_key(), &ciphertext), &classical))
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(self: Box<Self>, server: &[u8]) -> Result<SharedSecret, Error> {
        self.classical.complete(server)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

fn concatenate(post_quantum: &[u8], classical: &SharedSecret) -> SharedSecret {
    [post_quantum, classical.secret_bytes()].concat().into()
}

fn random<const LEN: usize>() -> Result<[u8; LEN], Error> {
    let mut bytes = [0; LEN];
    let drawn = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    drawn.map_err(|_| GetRandomFailed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_one_secret_of_both_exchanges() {
        let client = X25519MlKem768.start().unwrap();
        assert_eq!(client.pub_key().len(), KEY_LEN + 32);
        let server = X25519MlKem768.start_and_complete(client.pub_key()).unwrap();
        assert_eq!(server.pub_key.len(), CIPHERTEXT_LEN + 32);
        let secret = client.complete(&server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
        assert_eq!(secret.secret_bytes().len(), 64);
    }

    #[test]
    fn a_server_with_only_x25519_uses_that_share() {
        let client = X25519MlKem768.start().unwrap();
        let (group, share) = client.hybrid_component().unwrap();
        assert_eq!(group, NamedGroup::X25519);
        let server = X25519.start_and_complete(share).unwrap();
        let secret = client.complete_hybrid_component(&server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
    }

    #[test]
    fn invalid_key_shares_are_errors() {
        let share = X25519MlKem768.start().unwrap().pub_key().to_vec();
        for len in [0, 32, KEY_LEN, KEY_LEN + 31] {
            assert!(X25519MlKem768.start_and_complete(&share[..len]).is_err(), "{len}");
        }
        // Coefficients of at least the modulus are not valid (FIPS 203 section 7.2).
        let mut beyond = share.clone();
        beyond[..3].fill(0xff);
        assert!(X25519MlKem768.start_and_complete(&beyond).is_err());
        // A point of low order.
        let mut low = share;
        low[KEY_LEN..].fill(0);
        assert!(X25519MlKem768.start_and_complete(&low).is_err());
        for len in [0, CIPHERTEXT_LEN, CIPHERTEXT_LEN + 31] {
            let client = X25519MlKem768.start().unwrap();
            assert!(client.complete(&vec![7; len]).is_err(), "{len}");
        }
    }
}
