//! Stream bytes in chunks of fixed size, addressed by stream position.
//!
//! Both the send and the receive buffer are windows that slide over an unbounded stream. Chunks
//! let the window slide without moving bytes, grow without copying, and free memory piecewise. A
//! chunk may be pinned: a subflow that still has to deliver bytes keeps their chunk although the
//! peer has them by another path; everything around it goes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use marline_wire::Checksum;

/// Bytes of a chunk. Small enough that a connection with one message in flight stays small.
pub(crate) const CHUNK: u64 = 16 * 1024;
/// Free chunks that an endpoint keeps for its connections while there are many: 16 MiB.
const POOL: usize = 1024;
/// What it keeps for none, and beyond that for each.
const KEPT: usize = 16;
const KEPT_EACH: usize = 4;

/// A chunk's bytes.
type Chunk = Box<[u8; CHUNK as usize]>;

fn new_chunk() -> Chunk {
    let bytes = vec![0; CHUNK as usize].into_boxed_slice();
    bytes.try_into().unwrap_or_else(|_| unreachable!("as long as a chunk is"))
}

/// Free chunks, shared by all connections of an endpoint, so that an idle connection holds none and
/// a busy one makes none. It is locked once for each chunk, and only by its endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkPool(Arc<Mutex<Vec<Chunk>>>);

impl ChunkPool {
    fn take(&self) -> Chunk {
        let free = self.0.lock().ok().and_then(|mut pool| pool.pop());
        free.unwrap_or_else(new_chunk)
    }

    fn give(&self, chunk: Chunk) {
        if let Ok(mut pool) = self.0.lock()
            && pool.len() < POOL
        {
            pool.push(chunk);
        }
    }

    /// A connection has become idle: gives back what it will hardly use.
    pub(crate) fn settle_for_one(&self) {
        let kept = self.0.lock().map_or(0, |pool| pool.len());
        self.keep(kept.saturating_sub(KEPT_EACH).max(KEPT));
    }

    /// So many connections are left: gives back what they will hardly use.
    pub(crate) fn settle(&self, connections: usize) {
        self.keep(connections.saturating_mul(KEPT_EACH).saturating_add(KEPT));
    }

    fn keep(&self, most: usize) {
        if let Ok(mut pool) = self.0.lock()
            && pool.len() > most
        {
            pool.truncate(most);
            pool.shrink_to(most);
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    bytes: Option<Chunk>,
    /// Bytes of the chunk that somebody still needs, counted once for each who does.
    pinned: u64,
}

/// The chunks that cover a window of a stream.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// Number of the first slot's chunk in the stream.
    first: u64,
    slots: VecDeque<Slot>,
    pool: ChunkPool,
    /// Everything before this position is released unless pinned.
    released: u64,
}

impl Chunks {
    pub(crate) fn new(pool: ChunkPool) -> Self {
        Chunks { pool, ..Chunks::default() }
    }

    /// Writes `bytes` at `position`, making chunks as needed. Positions already released are a bug
    /// of the caller and are skipped.
    pub(crate) fn write(&mut self, position: u64, mut bytes: &[u8]) {
        debug_assert!(position >= self.released);
        let mut position = position;
        while !bytes.is_empty() {
            let (number, offset) = (position / CHUNK, (position % CHUNK) as usize);
            let n = bytes.len().min(CHUNK as usize - offset);
            if let Some(chunk) = self.chunk_mut(number) {
                chunk[offset..offset + n].copy_from_slice(&bytes[..n]);
            }
            bytes = &bytes[n..];
            position += n as u64;
        }
    }

    /// Copies bytes at `position` into `out`. Returns false if some of them are not there.
    pub(crate) fn read(&self, position: u64, out: &mut [u8]) -> bool {
        self.read_with(position, out, |to, from| to.copy_from_slice(from))
    }

    /// As [`read`](Self::read), and sums the bytes for the checksum on the way: one pass, not two.
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
            let Some(chunk) = slot.and_then(|s| s.bytes.as_ref()) else { return false };
            copy(&mut out[done..done + n], &chunk[offset..offset + n]);
            done += n;
            position += n as u64;
        }
        true
    }

    /// Keeps the chunks under `start..end` until [`unpin`](Self::unpin).
    pub(crate) fn pin(&mut self, start: u64, end: u64) {
        for number in start / CHUNK..end.div_ceil(CHUNK) {
            if let Some(slot) = self.slot_mut(number) {
                slot.pinned += overlap(number, start, end);
            }
        }
    }

    /// Takes back pins of the bytes `start..end`, however they were cut when they were pinned.
    pub(crate) fn unpin(&mut self, start: u64, end: u64) {
        for number in start / CHUNK..end.div_ceil(CHUNK) {
            if let Some(slot) = self.slot_mut(number) {
                let bytes = overlap(number, start, end);
                debug_assert!(slot.pinned >= bytes);
                slot.pinned = slot.pinned.saturating_sub(bytes);
            }
            self.free_if_unused(number);
        }
        self.drop_front();
    }

    /// Nobody needs bytes before `position` any more, but for pinned chunks.
    pub(crate) fn release(&mut self, position: u64) {
        let (from, to) = (self.released / CHUNK, position / CHUNK);
        self.released = self.released.max(position);
        for number in from..to {
            self.free_if_unused(number);
        }
        self.drop_front();
    }

    /// The stream is drained: gives back the chunk it stopped in, unless that is pinned.
    pub(crate) fn shrink(&mut self) {
        let number = self.released / CHUNK;
        if let Some(slot) = self.slot_mut(number).filter(|slot| slot.pinned == 0)
            && let Some(bytes) = slot.bytes.take()
        {
            self.pool.give(bytes);
        }
    }

    /// Gives back what the list of chunks does not need now.
    pub(crate) fn shrink_list(&mut self) {
        if self.slots.iter().all(|slot| slot.bytes.is_none() && slot.pinned == 0) {
            self.slots.clear();
        }
        self.slots.shrink_to_fit();
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> u64 {
        self.held() as u64 * CHUNK
    }

    fn held(&self) -> usize {
        self.slots.iter().filter(|slot| slot.bytes.is_some()).count()
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(number.checked_sub(self.first)? as usize)
    }

    fn chunk_mut(&mut self, number: u64) -> Option<&mut Chunk> {
        if self.slots.is_empty() {
            self.first = number.min(self.released / CHUNK);
        }
        let index = number.checked_sub(self.first)? as usize;
        while self.slots.len() <= index {
            if self.slots.capacity() == 0 {
                self.make_room_for_one();
            }
            self.slots.push_back(Slot::default());
        }
        let slot = &mut self.slots[index];
        if slot.bytes.is_none() {
            slot.bytes = Some(self.pool.take());
        }
        slot.bytes.as_mut()
    }

    /// Most windows lie in one chunk.
    #[cold]
    fn make_room_for_one(&mut self) {
        self.slots.reserve_exact(1);
    }

    fn free_if_unused(&mut self, number: u64) {
        if (number + 1) * CHUNK > self.released {
            return;
        }
        let Some(slot) = self.slot_mut(number).filter(|slot| slot.pinned == 0) else { return };
        if let Some(bytes) = slot.bytes.take() {
            self.pool.give(bytes);
        }
    }

    fn drop_front(&mut self) {
        while self.slots.front().is_some_and(|s| s.bytes.is_none() && s.pinned == 0)
            && (self.first + 1) * CHUNK <= self.released
        {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

/// Bytes of `start..end` that lie in a chunk.
fn overlap(number: u64, start: u64, end: u64) -> u64 {
    end.min((number + 1) * CHUNK) - start.max(number * CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(start: u64, len: usize) -> Vec<u8> {
        (start..start + len as u64).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn bytes_come_back_across_chunk_edges() {
        let mut chunks = Chunks::default();
        chunks.write(0, &pattern(0, 40_000));
        let mut out = vec![0; 30_000];
        assert!(chunks.read(5_000, &mut out));
        assert_eq!(out, pattern(5_000, 30_000));
        assert!(!chunks.read(60_000, &mut out));
    }

    #[test]
    fn a_pinned_chunk_outlives_its_neighbours() {
        let mut chunks = Chunks::default();
        chunks.write(0, &pattern(0, 5 * CHUNK as usize));
        chunks.pin(CHUNK, CHUNK + 10);
        chunks.release(4 * CHUNK);
        assert_eq!(chunks.held(), 2);
        let mut out = vec![0; 10];
        assert!(chunks.read(CHUNK, &mut out));
        assert_eq!(out, pattern(CHUNK, 10));
        chunks.unpin(CHUNK, CHUNK + 10);
        assert_eq!((chunks.held(), chunks.slots.len()), (1, 1));
        chunks.release(5 * CHUNK);
        chunks.shrink();
        assert_eq!(chunks.memory(), 0);
    }

    #[test]
    fn a_pool_keeps_what_its_connections_may_use() {
        let pool = ChunkPool::default();
        let mut chunks = Chunks::new(pool.clone());
        chunks.write(0, &pattern(0, 300 * CHUNK as usize));
        chunks.release(300 * CHUNK);
        let free = || pool.0.lock().unwrap().len();
        assert_eq!(free(), 300);
        pool.settle(100);
        assert_eq!(free(), 300);
        pool.settle(10);
        assert_eq!(free(), KEPT + 10 * KEPT_EACH);
        pool.settle_for_one();
        assert_eq!(free(), KEPT + 9 * KEPT_EACH);
        pool.settle(0);
        assert_eq!(free(), KEPT);
        pool.settle_for_one();
        assert_eq!(free(), KEPT);
    }

    #[test]
    fn a_drained_stream_starts_again_where_it_stopped() {
        let mut chunks = Chunks::default();
        chunks.write(0, &pattern(0, 100));
        chunks.release(100);
        chunks.shrink();
        chunks.write(100, &pattern(100, 100));
        let mut out = vec![0; 100];
        assert!(chunks.read(100, &mut out));
        assert_eq!(out, pattern(100, 100));
    }
}
