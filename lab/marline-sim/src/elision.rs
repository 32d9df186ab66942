//! Elision of payloads: of a packet on its way only the header is kept where the payload is a piece of the table
//! that verifiable streams are made of.
//!
//! A link of 50 Mbit/s holds half a megabyte of packets, and worlds that are run in turns, as environments for
//! learning are, would push each other's out of the processor's caches. A piece of the table is named by its place
//! instead, and the packet is whole again before a host or a middlebox sees it: runs are the same, bit for bit.
//!
//! Where a payload lies in the table is guessed: a stream goes on where it was. Else the table is searched by the
//! keys of some of its places, of which each payload of a segment's size has one.

use std::sync::OnceLock;

use crate::content::{MAX_PIECE, TABLE_BYTES, piece_at};

/// Each so many places of the table one is known by its key.
const STRIDE: usize = 64;
/// Bytes of a key.
const KEY_BYTES: usize = 8;
/// Shorter payloads are kept: too little would be saved. Each that is longer has a key within.
const LEAST_BYTES: usize = 2 * (STRIDE + KEY_BYTES);
/// While nothing is found, it is searched for in one of so many packets at last.
const MAX_PAUSE: u32 = 64;

/// A payload that a packet is without.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Elided {
    place: u32,
    bytes: u16,
}

impl Elided {
    pub(crate) const fn len(self) -> usize {
        self.bytes as usize
    }

    /// Puts the payload behind its header.
    pub(crate) fn append_to(self, header: &mut Vec<u8>) {
        header.extend_from_slice(piece_at(self.place as usize, self.len()));
    }
}

/// What finds payloads in the table, for the packets of a world.
#[derive(Debug, Default)]
pub(crate) struct Elider {
    /// The place behind the payload that was found last.
    next: usize,
    /// Searches without success since then, and packets to let pass before the next one.
    failed: u32,
    pause: u32,
}

impl Elider {
    /// Where the header of a segment ends, if what follows is in the table, and what that is.
    pub(crate) fn split(&mut self, segment: &[u8]) -> Option<(usize, Elided)> {
        const DATA_OFFSET: usize = 12;
        let header = usize::from(*segment.get(DATA_OFFSET)? >> 4) * 4;
        let payload = segment.get(header..)?;
        if !(LEAST_BYTES..=MAX_PIECE.min(usize::from(u16::MAX))).contains(&payload.len()) {
            return None;
        }
        let place = self.place_of(payload)?;
        Some((header, Elided { place: place as u32, bytes: payload.len() as u16 }))
    }

    fn place_of(&mut self, payload: &[u8]) -> Option<usize> {
        let is_at = |place: &usize| piece_at(*place, payload.len()) == payload;
        let found = Some(self.next).filter(is_at).or_else(|| {
            if self.pause > 0 {
                self.pause -= 1;
                return None;
            }
            let found = search(payload).filter(is_at);
            self.failed = if found.is_some() { 0 } else { self.failed.saturating_add(1) };
            self.pause = self.failed.min(MAX_PAUSE);
            found
        })?;
        self.next = (found + payload.len()) % TABLE_BYTES;
        Some(found)
    }
}

/// Keys of places, in order, and for each end of a key whether one has it.
struct Index {
    keys: Vec<(u64, u32)>,
    ends: Vec<u64>,
}

/// The bit of a key among [`Index::ends`].
const fn end(key: u64) -> (usize, u64) {
    let low = key as u16 as usize;
    (low / 64, 1 << (low % 64))
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| {
        let places = (0..TABLE_BYTES).step_by(STRIDE);
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

/// Where the payload begins in the table if it is there.
fn search(payload: &[u8]) -> Option<usize> {
    let index = index();
    (0..STRIDE).find_map(|offset| {
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
    fn each_piece_of_the_table_is_found_and_comes_back() {
        for place in (0..TABLE_BYTES).step_by(331).chain(TABLE_BYTES - 200..TABLE_BYTES) {
            let whole = segment(piece_at(place, 1_400));
            let (header, payload) = Elider::default().split(&whole).expect("it is there");
            assert_eq!((header, payload.len()), (32, 1_400));
            let mut back = whole[..header].to_vec();
            payload.append_to(&mut back);
            assert!(back == whole, "at {place}");
        }
    }

    #[test]
    fn a_stream_is_followed_without_a_search() {
        let (content, mut elider) = (Content::new(3), Elider::default());
        for offset in (0..700_000).step_by(1_400) {
            elider.pause = if offset == 0 { 0 } else { 9 };
            assert!(elider.split(&segment(content.piece(offset, 1_400))).is_some(), "{offset}");
        }
    }

    #[test]
    fn other_bytes_are_kept_and_soon_not_searched_for() {
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
        // And the stream is found once more.
        let found =
            (0..=MAX_PAUSE).any(|_| elider.split(&segment(content.piece(5, 999))).is_some());
        assert!(found && elider.failed == 0);
    }
}
