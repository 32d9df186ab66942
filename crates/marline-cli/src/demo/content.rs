//! File of the demo: bytes that both ends generate from a seed, so that the hash is known without a transfer.

use marline_time::{PcgRng, Rng, SeedTree};
use sha2::{Digest, Sha256};

/// The bytes of the file, in order.
#[derive(Clone, Debug)]
pub struct Content {
    rng: PcgRng,
    left: u64,
    word: [u8; 8],
    used: usize,
}

impl Content {
    /// Creates a file of `length` bytes.
    #[must_use]
    pub fn new(seed: u64, length: u64) -> Self {
        let rng = SeedTree::new(seed).stream("demo/file");
        Content { rng, left: length, word: [0; 8], used: 8 }
    }

    /// Returns the next bytes, at most `most` of them. Empty at the end.
    pub fn next_bytes(&mut self, most: usize) -> Vec<u8> {
        let count = usize::try_from(self.left).map_or(most, |left| left.min(most));
        self.left -= count as u64;
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            if self.used == self.word.len() {
                self.word = self.rng.next_u64().to_le_bytes();
                self.used = 0;
            }
            let end = self.word.len().min(self.used + count - bytes.len());
            bytes.extend_from_slice(&self.word[self.used..end]);
            self.used = end;
        }
        bytes
    }

    /// Returns the SHA-256 of the remaining bytes.
    #[must_use]
    pub fn hash(mut self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        loop {
            let bytes = self.next_bytes(64 << 10);
            if bytes.is_empty() {
                return hasher.finalize().into();
            }
            hasher.update(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_does_not_depend_on_piece_sizes() {
        let mut pieces = Vec::new();
        let mut content = Content::new(1, 1_000);
        for most in [1, 7, 8, 9, 300, 10_000, 10] {
            pieces.extend(content.next_bytes(most));
        }
        assert_eq!(pieces.len(), 1_000);
        assert_eq!(pieces, Content::new(1, 1_000).next_bytes(2_000));
        let direct: [u8; 32] = Sha256::digest(&pieces).into();
        assert_eq!(Content::new(1, 1_000).hash(), direct);
        assert_ne!(Content::new(2, 1_000).hash(), direct);
    }
}
