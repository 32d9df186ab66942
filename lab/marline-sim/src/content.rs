//! Verifiable stream content: byte `n` of a stream is a function of `n` and the stream's seed.
//!
//! The bytes come from one random table of prime length, which each stream enters at a different position. Generating
//! is therefore a copy, and checking a comparison. Bytes that are lost, repeated or shifted by less than a quarter of
//! a megabyte, and bytes of another stream, are detected.

use std::sync::OnceLock;

use marline_time::{PcgRng, Rng};

/// Prime, so that no power of two and no segment size divides it.
pub(crate) const TABLE_BYTES: usize = 262_139;
/// Maximum length of a piece. The table's first bytes are repeated after its last ones, so that each piece is
/// contiguous.
pub(crate) const MAX_PIECE: usize = 65_536;

/// The table has a static lifetime, so that streams and packets in flight can refer to it.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = PcgRng::new(0x006d_6172_6c69_6e65, 1);
        let bytes = (0..TABLE_BYTES.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes());
        let mut table = Vec::with_capacity(TABLE_BYTES + MAX_PIECE);
        table.extend(bytes.take(TABLE_BYTES));
        table.extend_from_within(..MAX_PIECE);
        table
    })
}

/// Returns `len` bytes, at most [`MAX_PIECE`], from a position in the table (modulo its length).
pub(crate) fn piece_at(place: usize, len: usize) -> &'static [u8] {
    let at = place % TABLE_BYTES;
    &table()[at..at + len.min(MAX_PIECE)]
}

/// The bytes of one stream.
#[derive(Copy, Clone, Debug)]
pub struct Content {
    entry: u64,
}

impl Content {
    /// The stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Content { entry: PcgRng::new(seed, 2).below(TABLE_BYTES as u64) }
    }

    /// Returns `len` bytes, at most 65,536, starting at `offset`.
    #[must_use]
    pub fn piece(&self, offset: u64, len: usize) -> &'static [u8] {
        piece_at(((self.entry + offset) % TABLE_BYTES as u64) as usize, len)
    }
}

/// Verifies a stream as it arrives.
#[derive(Copy, Clone, Debug)]
pub struct Verifier {
    content: Content,
    offset: u64,
    wrong_at: Option<u64>,
}

impl Verifier {
    /// Expects the stream of this seed from its first byte.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Verifier { content: Content::new(seed), offset: 0, wrong_at: None }
    }

    /// Verifies the next bytes.
    pub fn verify(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = self.content.piece(self.offset, bytes.len());
            let (got, rest) = bytes.split_at(expected.len());
            if self.wrong_at.is_none() && got != expected {
                let equal = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
                self.wrong_at = Some(self.offset + equal as u64);
            }
            self.offset += expected.len() as u64;
            bytes = rest;
        }
    }

    /// Number of bytes verified.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of the first byte that differs from the expected content.
    #[must_use]
    pub const fn wrong_at(&self) -> Option<u64> {
        self.wrong_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_verify_and_changes_are_located() {
        let content = Content::new(5);
        let mut stream = Vec::new();
        while stream.len() < 600_000 {
            stream.extend_from_slice(content.piece(stream.len() as u64, 1_000));
        }
        let wrong_at = |bytes: &[u8]| {
            let mut verifier = Verifier::new(5);
            bytes.chunks(777).for_each(|chunk| verifier.verify(chunk));
            assert_eq!(verifier.offset(), bytes.len() as u64);
            verifier.wrong_at()
        };
        assert_eq!(wrong_at(&stream), None);
        stream[300_001] ^= 1;
        assert_eq!(wrong_at(&stream), Some(300_001));
        stream[300_001] ^= 1;
        stream.drain(1_000..2_448);
        assert!(wrong_at(&stream).is_some_and(|at| (1_000..1_008).contains(&at)));
        let mut other = Verifier::new(6);
        other.verify(&stream[..100]);
        assert!(other.wrong_at().is_some());
    }
}
