//! Stream bytes in chunks of fixed size, addressed by stream position.
//!
//! Both the send and the receive buffer are windows that slide over an unbounded stream. Chunks let the window slide
//! without moving bytes, grow without copying, and free memory chunk by chunk. A chunk may be pinned: a subflow that
//! must still deliver bytes keeps their chunk although the peer received them over another path. The chunks around it
//! are freed.
//!
//! Static bytes are not copied if they fill a chunk: the chunk refers to them.
//!
//! If memory is short, only a piece, a quarter of a chunk, is allocated. It becomes a whole chunk once bytes outside
//! that piece are written.

use core::fmt;
use std::collections::VecDeque;

use marline_wire::Checksum;

use crate::memory::{CHUNK, Chunk, ChunkBytes as Bytes, PIECE, PieceBytes};
use crate::{MemoryAccount, MemoryKind};

/// Source of the chunks of one buffer, and the account to which they are charged.
#[derive(Debug)]
pub(crate) struct ChunkSource {
    account: MemoryAccount,
    kind: MemoryKind,
    /// Memory in use, counted in pieces.
    held_pieces: u32,
}

impl ChunkSource {
    pub(crate) const fn new(account: MemoryAccount, kind: MemoryKind) -> Self {
        ChunkSource { account, kind, held_pieces: 0 }
    }

    fn take(&mut self) -> Chunk {
        self.held_pieces += PIECES;
        self.account.add(self.kind, CHUNK);
        self.account.take_chunk()
    }

    fn give_back(&mut self, chunk: Chunk) {
        self.held_pieces -= PIECES;
        self.account.return_chunk(chunk);
        self.account.sub(self.kind, CHUNK);
    }

    fn take_piece(&mut self) -> Box<PieceBytes> {
        self.held_pieces += 1;
        self.account.add(self.kind, PIECE);
        Box::new([0; PIECE as usize])
    }

    fn return_piece(&mut self, piece: Box<PieceBytes>) {
        drop(piece);
        self.held_pieces -= 1;
        self.account.sub(self.kind, PIECE);
    }

    /// True if memory is short, so that a buffer should allocate only a piece if that is enough.
    fn is_short(&self) -> bool {
        self.account.allowance() < CHUNK
    }

    fn held_bytes(&self) -> u64 {
        u64::from(self.held_pieces) * PIECE
    }

    fn charge_to(&mut self, account: &MemoryAccount) {
        self.account.hand_over(account, self.kind, self.held_bytes());
        self.account = account.clone();
    }
}

impl Drop for ChunkSource {
    fn drop(&mut self) {
        self.account.sub(self.kind, self.held_bytes());
    }
}

/// Number of pieces in a chunk.
const PIECES: u32 = (CHUNK / PIECE) as u32;

/// Slot of a chunk in the list. `pinned` is the number of its pinned bytes, counted once for each pin. It cannot
/// overflow, because subflows would have to pin the whole chunk 262,144 times. Each variant has this field, so that
/// [`Slot::Lent`] does not make a slot larger.
enum Slot {
    Empty {
        pinned: u32,
    },
    Own {
        pinned: u32,
        bytes: Chunk,
    },
    /// Only one piece of the chunk, with this index, has bytes.
    Part {
        pinned: u32,
        piece: u8,
        bytes: Box<PieceBytes>,
    },
    /// Static bytes, including those that have not been written.
    Lent {
        pinned: u32,
        bytes: &'static Bytes,
    },
}

const _: () =
    assert!(size_of::<Slot>() == 16, "idle connections hold one slot, so its size matters");

/// Omits the bytes, because payload does not belong in a log.
impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Slot::Empty { .. } => "Empty",
            Slot::Own { .. } => "Own",
            Slot::Part { .. } => "Part",
            Slot::Lent { .. } => "Lent",
        };
        f.debug_struct(kind).field("pinned", &self.pinned()).finish_non_exhaustive()
    }
}

impl Slot {
    const EMPTY: Slot = Slot::Empty { pinned: 0 };

    /// Bytes at `offset`; `None` if some of them are missing.
    fn bytes(&self, offset: usize, len: usize) -> Option<&[u8]> {
        match self {
            Slot::Empty { .. } => None,
            Slot::Own { bytes, .. } => bytes.get(offset..offset + len),
            Slot::Lent { bytes, .. } => bytes.get(offset..offset + len),
            Slot::Part { piece, bytes, .. } => {
                let start = offset.checked_sub(start_of(*piece))?;
                bytes.get(start..start + len)
            }
        }
    }

    const fn pinned(&self) -> u32 {
        let (Slot::Empty { pinned }
        | Slot::Own { pinned, .. }
        | Slot::Part { pinned, .. }
        | Slot::Lent { pinned, .. }) = self;
        *pinned
    }

    const fn pinned_mut(&mut self) -> &mut u32 {
        let (Slot::Empty { pinned }
        | Slot::Own { pinned, .. }
        | Slot::Part { pinned, .. }
        | Slot::Lent { pinned, .. }) = self;
        pinned
    }

    /// End of the bytes within the chunk.
    const fn end(&self) -> u64 {
        match self {
            Slot::Part { piece, .. } => (start_of(*piece) as u64) + PIECE,
            _ => CHUNK,
        }
    }

    /// True if the slot has neither bytes nor pins.
    const fn is_unused(&self) -> bool {
        matches!(self, Slot::Empty { pinned: 0 })
    }

    /// Drops the bytes.
    fn clear(&mut self, source: &mut ChunkSource) {
        let pinned = self.pinned();
        match core::mem::replace(self, Slot::Empty { pinned }) {
            Slot::Own { bytes, .. } => source.give_back(bytes),
            Slot::Part { bytes, .. } => source.return_piece(bytes),
            Slot::Empty { .. } | Slot::Lent { .. } => {}
        }
    }

    fn write(&mut self, source: &mut ChunkSource, offset: usize, bytes: &[u8]) {
        let (at, end) = (offset, offset + bytes.len());
        if let Slot::Own { bytes: chunk, .. } = self {
            chunk[at..end].copy_from_slice(bytes);
        } else if let Some((piece, start)) = self.piece_for(source, at, end) {
            piece[at - start..end - start].copy_from_slice(bytes);
        } else if let Some(chunk) = self.make_owned(source) {
            chunk[at..end].copy_from_slice(bytes);
        }
    }

    /// Piece for these bytes of the chunk, and its start. `None` if the whole chunk is needed.
    fn piece_for(
        &mut self,
        source: &mut ChunkSource,
        at: usize,
        end: usize,
    ) -> Option<(&mut PieceBytes, usize)> {
        let wanted = (at / PIECE as usize) as u8;
        if end > start_of(wanted + 1) {
            return None;
        }
        if let Slot::Empty { pinned } = *self
            && source.is_short()
        {
            *self = Slot::Part { pinned, piece: wanted, bytes: source.take_piece() };
        }
        match self {
            Slot::Part { piece, bytes, .. } if *piece == wanted => Some((bytes, start_of(wanted))),
            _ => None,
        }
    }

    /// Whole chunk to write to. Static bytes or a piece are copied into it.
    fn make_owned(&mut self, source: &mut ChunkSource) -> Option<&mut Bytes> {
        if !matches!(self, Slot::Own { .. }) {
            let (pinned, mut bytes) = (self.pinned(), source.take());
            match core::mem::replace(self, Slot::EMPTY) {
                Slot::Lent { bytes: lent, .. } => bytes.copy_from_slice(&lent[..]),
                Slot::Part { piece, bytes: part, .. } => {
                    bytes[start_of(piece)..][..PIECE as usize].copy_from_slice(&part[..]);
                    source.return_piece(part);
                }
                Slot::Empty { .. } | Slot::Own { .. } => {}
            }
            *self = Slot::Own { pinned, bytes };
        }
        if let Slot::Own { bytes, .. } = self { Some(bytes) } else { None }
    }

    /// True if the slot already refers to these bytes at this offset.
    fn refers_to(&self, offset: usize, bytes: &[u8]) -> bool {
        let Slot::Lent { bytes: lent, .. } = self else { return false };
        let there = lent.get(offset..offset + bytes.len());
        there.is_some_and(|there| core::ptr::eq(there, bytes) || there == bytes)
    }
}

/// Start of a piece within its chunk.
const fn start_of(piece: u8) -> usize {
    piece as usize * PIECE as usize
}

/// Chunks that cover a window of a stream.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Number of the first slot's chunk in the stream.
    first: u64,
    slots: VecDeque<Slot>,
    source: ChunkSource,
    /// All bytes before this position are released unless pinned.
    released: u64,
}

impl Chunks {
    pub(crate) const fn new(source: ChunkSource) -> Self {
        Chunks { first: 0, slots: VecDeque::new(), source, released: 0 }
    }

    /// The account to which the chunks are charged.
    pub(crate) const fn account(&self) -> &MemoryAccount {
        &self.source.account
    }

    /// Charges the chunks to another account.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) {
        self.source.charge_to(account);
    }

    /// End of the piece that contains this position. A buffer may always be filled up to there.
    pub(crate) const fn end_of_piece(position: u64) -> u64 {
        (position / PIECE + 1) * PIECE
    }

    /// First position, at or after `position`, at which writing would need more memory.
    pub(crate) fn end_of_held_memory(&self, position: u64) -> u64 {
        let number = position / CHUNK;
        let index = number.checked_sub(self.first).map(|index| index as usize);
        let end = match index.and_then(|index| self.slots.get(index)) {
            None | Some(Slot::Empty { .. }) => 0,
            Some(slot @ Slot::Part { piece, .. }) => {
                let start = start_of(*piece) as u64;
                if position % CHUNK < start { 0 } else { slot.end() }
            }
            Some(slot) => slot.end(),
        };
        position.max(number * CHUNK + end)
    }

    /// Writes `bytes` at `position`, and creates chunks as needed. Writing to a released position is a bug in the
    /// caller and has no effect.
    pub(crate) fn write(&mut self, position: u64, mut bytes: &[u8]) {
        debug_assert!(position >= self.released);
        let mut position = position;
        while !bytes.is_empty() {
            let (number, offset) = (position / CHUNK, (position % CHUNK) as usize);
            let n = bytes.len().min(CHUNK as usize - offset);
            if let Some(index) = self.index_to_write(number) {
                self.slots[index].write(&mut self.source, offset, &bytes[..n]);
            }
            bytes = &bytes[n..];
            position += n as u64;
        }
    }

    /// Like [`write`](Self::write), for the first `count` of these bytes; a chunk filled by these and the following
    /// bytes refers to them.
    pub(crate) fn refer_to(
        &mut self,
        mut position: u64,
        mut bytes: &'static [u8],
        mut count: usize,
    ) {
        debug_assert!(position >= self.released);
        while count > 0 {
            let (number, offset) = (position / CHUNK, (position % CHUNK) as usize);
            let n = count.min(CHUNK as usize - offset);
            let slot = self.index_to_write(number).map(|index| &mut self.slots[index]);
            match (slot, bytes.first_chunk()) {
                (Some(slot @ &mut Slot::Empty { pinned }), Some(whole)) if offset == 0 => {
                    *slot = Slot::Lent { pinned, bytes: whole };
                }
                (Some(slot), _) if slot.refers_to(offset, &bytes[..n]) => {}
                _ => self.write(position, &bytes[..n]),
            }
            bytes = &bytes[n..];
            position += n as u64;
            count -= n;
        }
    }

    /// Copies bytes at `position` into `out`. Returns false if some of them are missing.
    pub(crate) fn read(&self, position: u64, out: &mut [u8]) -> bool {
        self.read_with(position, out, |to, from| to.copy_from_slice(from))
    }

    /// Like [`read`](Self::read), but also computes the checksum in that pass.
    pub(crate) fn read_summed(&self, position: u64, out: &mut [u8]) -> Option<Checksum> {
        let mut sum = Checksum::new();
        let copy = |to: &mut [u8], from: &[u8]| {
            sum.copy_and_add(to, from);
        };
        self.read_with(position, out, copy).then_some(sum)
    }

    fn read_with(
        &self,
        position: u64,
        out: &mut [u8],
        mut copy: impl FnMut(&mut [u8], &[u8]),
    ) -> bool {
        let (mut position, mut done) = (position, 0);
        while done < out.len() {
            let (number, offset) = (position / CHUNK, (position % CHUNK) as usize);
            let n = (out.len() - done).min(CHUNK as usize - offset);
            let slot = number.checked_sub(self.first).and_then(|i| self.slots.get(i as usize));
            let Some(bytes) = slot.and_then(|slot| slot.bytes(offset, n)) else { return false };
            copy(&mut out[done..done + n], bytes);
            done += n;
            position += n as u64;
        }
        true
    }

    /// Keeps the chunks under `start..end` until [`unpin`](Self::unpin).
    pub(crate) fn pin(&mut self, start: u64, end: u64) {
        for number in start / CHUNK..end.div_ceil(CHUNK) {
            if let Some(slot) = self.slot_mut(number) {
                *slot.pinned_mut() += overlap(number, start, end);
            }
        }
    }

    /// Removes pins of the bytes `start..end`, regardless of the ranges in which they were pinned.
    pub(crate) fn unpin(&mut self, start: u64, end: u64) {
        for number in start / CHUNK..end.div_ceil(CHUNK) {
            if let Some(slot) = self.slot_mut(number) {
                let bytes = overlap(number, start, end);
                let pinned = slot.pinned_mut();
                debug_assert!(*pinned >= bytes);
                *pinned = pinned.saturating_sub(bytes);
            }
            self.free_unused(number);
        }
        self.drop_front();
    }

    /// Releases bytes before `position`, except pinned chunks.
    pub(crate) fn release(&mut self, position: u64) {
        let (from, to) = (self.released / CHUNK, position / CHUNK);
        self.released = self.released.max(position);
        for number in from..=to {
            self.free_unused(number);
        }
        self.drop_front();
    }

    /// Frees the last chunk of a drained stream, unless it is pinned.
    pub(crate) fn shrink(&mut self) {
        self.clear_unless_pinned(self.released / CHUNK);
    }

    /// Releases unused memory of the list of chunks.
    pub(crate) fn shrink_list(&mut self) {
        if self.slots.iter().all(Slot::is_unused) {
            self.slots.clear();
        }
        self.slots.shrink_to_fit();
    }

    /// Memory held, in bytes, excluding static bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.source.held_bytes()
    }

    /// Size of the list of chunks in bytes. The list has one entry per chunk, from the first kept chunk to the last.
    pub(crate) fn list_memory(&self) -> u64 {
        (self.slots.len() * size_of::<Slot>()) as u64
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// Slot of a chunk; it and earlier ones are created if missing.
    fn index_to_write(&mut self, number: u64) -> Option<usize> {
        if self.slots.is_empty() {
            self.first = number.min(self.released / CHUNK);
        }
        let index = number.checked_sub(self.first)? as usize;
        while self.slots.len() <= index {
            if self.slots.capacity() == 0 {
                self.make_room_for_one();
            }
            self.slots.push_back(Slot::EMPTY);
        }
        Some(index)
    }

    /// Reserves space for one chunk, because most windows fit into one.
    #[cold]
    fn make_room_for_one(&mut self) {
        self.slots.reserve_exact(1);
    }

    fn free_unused(&mut self, number: u64) {
        if number * CHUNK >= self.released {
            return;
        }
        let end = self.slot_mut(number).map_or(0, |slot| slot.end());
        if end > 0 && number * CHUNK + end <= self.released {
            self.clear_unless_pinned(number);
        }
    }

    fn clear_unless_pinned(&mut self, number: u64) {
        let index = number.checked_sub(self.first).map(|index| index as usize);
        let slot = index.and_then(|index| self.slots.get_mut(index));
        if let Some(slot) = slot.filter(|slot| slot.pinned() == 0) {
            slot.clear(&mut self.source);
        }
    }

    fn drop_front(&mut self) {
        while self.slots.front().is_some_and(Slot::is_unused)
            && (self.first + 1) * CHUNK <= self.released
        {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

/// Number of bytes of `start..end` in a chunk.
fn overlap(number: u64, start: u64, end: u64) -> u32 {
    (end.min((number + 1) * CHUNK) - start.max(number * CHUNK)) as u32
}

#[cfg(test)]
mod tests;
