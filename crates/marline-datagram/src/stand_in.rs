//! Replacement for a cipher in simulations and tests. **It protects nothing.**
//!
//! It has the overhead of an AEAD and changes the body so that no code reads it by mistake. The tag detects accidental
//! and random changes, except with probability 2^-64. Anyone who has seen one frame can forge others. Real drivers
//! provide a real cipher. The simulator and the tests of this crate use this replacement, because they must not depend
//! on a cipher library.

use crate::seal::{Keys, Open, Seal};
use crate::{TAG_BYTES, seal};

/// Key of one direction.
#[derive(Clone, Debug)]
pub struct TestCipher {
    key: u64,
    packet_limit: u64,
}

impl TestCipher {
    /// Creates a key.
    #[must_use]
    pub const fn new(key: u64) -> Self {
        TestCipher { key, packet_limit: u64::MAX }
    }

    /// Limits the number of packets that this key may seal.
    #[must_use]
    pub const fn with_max_packets(mut self, most: u64) -> Self {
        self.packet_limit = most;
        self
    }

    /// Creates the keys of both ends of a lane.
    #[must_use]
    pub fn pair(session: u64) -> [seal::Keys; 2] {
        let [there, back] = [session ^ 0x5851_f42d_4c95_7f2d, session ^ 0x1405_7b7e_f767_814f];
        let keys = |ours: u64, theirs: u64| Keys {
            seal: Box::new(TestCipher::new(ours)),
            open: Box::new(TestCipher::new(theirs)),
        };
        [keys(there, back), keys(back, there)]
    }

    fn mask(&self, packet_number: u64, body: &mut [u8]) {
        let mut state = mix(self.key ^ packet_number);
        for chunk in body.chunks_mut(8) {
            state = mix(state);
            for (byte, mask) in chunk.iter_mut().zip(state.to_le_bytes()) {
                *byte ^= mask;
            }
        }
    }

    /// Computes the tag for the header and the sealed body.
    fn tag(&self, packet_number: u64, header: &[u8], body: &[u8]) -> [u8; TAG_BYTES] {
        let mut halves = [self.key, mix(self.key)];
        for half in &mut halves {
            *half = mix(*half ^ packet_number);
            for part in [header, body] {
                for chunk in part.chunks(8) {
                    let mut word = [0; 8];
                    word[..chunk.len()].copy_from_slice(chunk);
                    *half = mix(*half ^ u64::from_le_bytes(word));
                }
                *half = mix(*half ^ part.len() as u64);
            }
        }
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&halves[0].to_le_bytes());
        tag[8..].copy_from_slice(&halves[1].to_le_bytes());
        tag
    }
}

/// Permutation of 64 bits (the finalizer of splitmix64).
const fn mix(value: u64) -> u64 {
    let a = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

impl Seal for TestCipher {
    fn seal(&mut self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        self.mask(packet_number, body);
        self.tag(packet_number, header, body)
    }

    fn max_packets(&self) -> u64 {
        self.packet_limit
    }
}

impl Open for TestCipher {
    fn open(
        &mut self,
        packet_number: u64,
        header: &[u8],
        body: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let good = self.tag(packet_number, header, body) == *tag;
        self.mask(packet_number, body);
        good
    }

    fn max_forgeries(&self) -> u64 {
        1 << 36
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_is_noticed() {
        let mut key = TestCipher::new(7);
        let header = [3; 17];
        let mut body = *b"a datagram of some length";
        let plain = body;
        let tag = key.seal(5, &header, &mut body);
        assert_ne!(body, plain);
        for bit in 0..body.len() * 8 {
            let mut changed = body;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(5, &header, &mut changed, &tag), "bit {bit}");
        }
        for bit in 0..TAG_BYTES * 8 {
            let mut changed = tag;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(5, &header, &mut body.clone(), &changed), "bit {bit} of the tag");
        }
        assert!(!key.open(6, &header, &mut body.clone(), &tag));
        assert!(!key.open(5, &[4; 17], &mut body.clone(), &tag));
        assert!(!TestCipher::new(8).open(5, &header, &mut body.clone(), &tag));
        assert!(key.open(5, &header, &mut body, &tag));
        assert_eq!(body, plain);
    }
}
