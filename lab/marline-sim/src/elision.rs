//! Payload elision: a packet in flight stores only its header if the payload is a piece of the table of verifiable
//! content.
//!
//! A link of 50 Mbit/s holds half a megabyte of packets. Worlds that run in turns, such as environments for learning,
//! would evict each other's packets from the processor's caches. Instead, a piece of the table is represented by its
//! position, and the packet is restored before a host or a middlebox sees it. Runs are bit for bit the same as without
//! elision.
//!
//! A payload is first looked for at the stream's next position in the table. Otherwise the table is searched by keys
//! at some of its positions. Every payload of a segment's size contains such a key.

use std::sync::OnceLock;

use crate::content::{MAX_PIECE, TABLE_BYTES, piece_at};

/// Interval of the positions with a key.
const KEY_STRIDE: usize = 64;
/// Length of a key in bytes.
const KEY_BYTES: usize = 8;
/// Minimum length of an elided payload. Eliding shorter payloads would save too little, and every longer payload
/// contains a key.
const MIN_BYTES: usize = 2 * (KEY_STRIDE + KEY_BYTES);
/// After repeated failures, only one in this many payloads is searched for.
const MAX_SKIPPED: u32 = 64;

/// A payload that a packet does not store.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct ElidedPayload {
    place: u32,
    bytes: u16,
}

impl ElidedPayload {
    pub(crate) const fn len(self) -> usize {
        self.bytes as usize
    }

    /// Appends the payload to its header.
    pub(crate) fn append_to(self, header: &mut Vec<u8>) {
        header.extend_from_slice(piece_at(self.place as usize, self.len()));
    }
}

/// Finds payloads of a world's packets in the table.
#[derive(Debug, Default)]
pub(crate) struct Elider {
    /// Position after the last payload found.
    next: usize,
    /// Number of failed searches since then, and number of packets to skip before the next search.
    failed: u32,
    pause: u32,
}

impl Elider {
    /// Splits a segment whose payload is in the table: returns the header length and the payload.
    pub(crate) fn split(&mut self, segment: &[u8]) -> Option<(usize, ElidedPayload)> {
        const DATA_OFFSET: usize = 12;
        let header = usize::from(*segment.get(DATA_OFFSET)? >> 4) * 4;
        let payload = segment.get(header..)?;
        if !(MIN_BYTES..=MAX_PIECE.min(usize::from(u16::MAX))).contains(&payload.len()) {
            return None;
        }
        let place = self.position_of(payload)?;
        Some((header, ElidedPayload { place: place as u32, bytes: payload.len() as u16 }))
    }

    fn position_of(&mut self, payload: &[u8]) -> Option<usize> {
        let is_at = |place: &usize| piece_at(*place, payload.len()) == payload;
        let found = Some(self.next).filter(is_at).or_else(|| {
            if self.pause > 0 {
                self.pause -= 1;
                return None;
            }
            let found = search(payload).filter(is_at);
            self.failed = if found.is_some() { 0 } else { self.failed.saturating_add(1) };
            self.pause = self.failed.min(MAX_SKIPPED);
            found
        })?;
        self.next = (found + payload.len()) % TABLE_BYTES;
        Some(found)
    }
}

/// Keys in order with their positions, and a bit for each possible end of a key.
struct Index {
    keys: Vec<(u64, u32)>,
    ends: Vec<u64>,
}

/// The bit of a key in [`Index::ends`].
const fn end(key: u64) -> (usize, u64) {
    let low = key as u16 as usize;
    (low / 64, 1 << (low % 64))
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let places = (0..TABLE_BYTES).step_by(KEY_STRIDE);
        let key_at = |place| key(piece_at(place, KEY_BYTES)).map(|key| (key, place as u32));
        let mut keys: Vec<(u64, u32)> = places.filter_map(key_at).collect();
        keys.sort_unstable();
        let mut ends = vec![0; (usize::from(u16::MAX) + 1) / 64];
        for (key, _) in &keys {
            let (word, bit) = end(*key);
            ends[word] |= bit;
        }
        Index { keys, ends }
    })
}

fn key(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().copied().map(u64::from_le_bytes)
}

/// Finds the position of the payload in the table, if the table contains it.
fn search(payload: &[u8]) -> Option<usize> {
    let index = index();
    (0..KEY_STRIDE).find_map(|offset| {
        let key = key(payload.get(offset..)?)?;
        let (word, bit) = end(key);
        if index.ends[word] & bit == 0 {
            return None;
        }
        let found = index.keys.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some((index.keys[found].1 as usize + TABLE_BYTES - offset) % TABLE_BYTES)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    /// A header of 32 bytes and this payload.
    fn segment(payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![3; 32];
        segment[12] = 8 << 4;
        segment.extend_from_slice(payload);
        segment
    }

    #[test]
    fn every_piece_is_elided_and_restored() {
        for place in (0..TABLE_BYTES).step_by(331).chain(TABLE_BYTES - 200..TABLE_BYTES) {
            let whole = segment(piece_at(place, 1_400));
            let (header, payload) = Elider::default().split(&whole).expect("the header exists");
            assert_eq!((header, payload.len()), (32, 1_400));
            let mut back = whole[..header].to_vec();
            payload.append_to(&mut back);
            assert!(back == whole, "at {place}");
        }
    }

    #[test]
    fn streams_are_followed_without_searching() {
        let (content, mut elider) = (Content::new(3), Elider::default());
        for offset in (0..700_000).step_by(1_400) {
            elider.pause = if offset == 0 { 0 } else { 9 };
            assert!(elider.split(&segment(content.piece(offset, 1_400))).is_some(), "{offset}");
        }
    }

    #[test]
    fn other_bytes_are_kept_and_searches_stop() {
        let content = Content::new(3);
        let mut changed = segment(content.piece(5, 1_400));
        changed[1_400] ^= 1;
        let mut elider = Elider::default();
        assert!(elider.split(&changed).is_none(), "one bit");
        assert!(elider.split(&segment(&content.piece(5, 1_400)[..100])).is_none(), "short");
        assert!(elider.split(&[0xff; 40]).is_none() && elider.split(&[]).is_none(), "no header");
        for _ in 0..10_000 {
            assert!(elider.split(&segment(&[0x5a; 1_400])).is_none());
        }
        assert!((64..200).contains(&elider.failed), "{} searches", elider.failed);
        // The stream is found again.
        let found =
            (0..=MAX_SKIPPED).any(|_| elider.split(&segment(content.piece(5, 999))).is_some());
        assert!(found && elider.failed == 0);
    }
}
