//! Mutated messages for tests of parsers.

use marline_time::{PcgRng, Rng as _};

/// Copies the message with up to three bytes changed.
pub(crate) fn mutate(rng: &mut PcgRng, whole: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..3 {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] = rng.next_u32() as u8;
    }
    bytes
}
