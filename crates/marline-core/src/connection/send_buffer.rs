//! Send buffer: bytes written by the application, by DSN, until they are DATA_ACKed.
//!
//! One copy in (write; none of what lasts as long as the program), one copy out (into the datagram). A subflow
//! must be able to repeat bytes it sent although another path delivered them, so chunks that a subflow still
//! holds stay pinned; they do not count against the application's space.
//!
//! Where memory is short (`memory.rs`), the application gets no more chunks than its account allows. It always gets one
//! once all that it wrote is acknowledged, so that every stream goes on.

use marline_policy::{DataRange, Dsn};

use marline_wire::Checksum;

use crate::MemoryAccount;
use crate::memory::CHUNK;
use crate::tables::chunks::{ChunkSource, Chunks};

/// Space a connection starts with, and what it keeps free beyond twice the window.
const BASE_SPACE: u64 = 128 * 1024;

fn space_of(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Bytes that an application writes.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Written<'a> {
    /// They are copied.
    Copied(&'a [u8]),
    /// They last as long as the program, and are referred to where that is possible.
    Lasting(&'static [u8]),
}

impl Written<'_> {
    pub(crate) const fn len(&self) -> usize {
        let (Written::Copied(bytes) | Written::Lasting(bytes)) = self;
        bytes.len()
    }
}

/// Written bytes that are not DATA_ACKed.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    chunks: Chunks,
    una: Dsn,
    end: Dsn,
    /// Space offered to the application now, 4 GiB at most.
    space: u32,
    /// The most it may become.
    max_space: u32,
    /// It has all its space from the start, and wakes as kernels do.
    fixed: bool,
    /// The application was refused and waits for room.
    blocked: bool,
}

impl SendBuffer {
    /// `fixed`: all the space at once, instead of what [`tune`](Self::tune) finds.
    pub(crate) fn new(max_space: u64, fixed: bool, source: ChunkSource) -> Self {
        let max_space = space_of(max_space);
        SendBuffer {
            chunks: Chunks::new(source),
            una: Dsn(0),
            end: Dsn(0),
            space: if fixed { max_space } else { space_of(BASE_SPACE).min(max_space) },
            max_space,
            fixed,
            blocked: false,
        }
    }

    /// First byte that is not DATA_ACKed.
    pub(crate) const fn una(&self) -> Dsn {
        self.una
    }

    /// One past the last byte written.
    pub(crate) const fn end(&self) -> Dsn {
        self.end
    }

    /// Most bytes that it may hold.
    pub(crate) const fn max_space(&self) -> u64 {
        self.max_space as u64
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> u64 {
        self.chunks.memory()
    }

    /// Another account is charged for it from now on.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) {
        self.chunks.charge_to(account);
    }

    /// Bytes that the memory it may hold has room for.
    fn memory_room(&self) -> u64 {
        let (allowance, held) = (self.chunks.account().allowance(), self.chunks.memory());
        let more = allowance.saturating_sub(held) / CHUNK * CHUNK;
        let is_empty = self.una == self.end;
        let tail = Chunks::end_of_chunk(self.end.0 + u64::from(is_empty)) - self.end.0;
        more.saturating_add(tail)
    }

    /// Gives back the memory that it does not need now.
    pub(crate) fn shrink(&mut self) {
        self.chunks.shrink_list();
    }

    /// Takes as many bytes as there is room for, `most` at most. Zero means the application must wait.
    pub(crate) fn write(&mut self, bytes: Written<'_>, most: usize) -> usize {
        let space = u64::from(self.space).saturating_sub(self.end.since(self.una));
        let wanted = (most as u64).min(space);
        let n = wanted.min(self.memory_room());
        if n < wanted && !self.blocked {
            self.chunks.account().note_wait();
        }
        let n = n as usize;
        match bytes {
            Written::Copied(bytes) => self.chunks.write(self.end.0, &bytes[..n]),
            Written::Lasting(bytes) => self.chunks.lend(self.end.0, bytes, n),
        }
        self.end = self.end.plus(n as u64);
        self.blocked = n < most;
        n
    }

    /// The application was refused for another reason than space.
    pub(crate) const fn refuse(&mut self) {
        self.blocked = true;
    }

    /// Changes how large it may become; what it holds, it keeps.
    pub(crate) fn resize(&mut self, max_space: u64) {
        let max_space = space_of(max_space);
        self.max_space = max_space;
        self.space = if self.fixed { max_space } else { self.space.min(max_space) };
    }

    /// The application was refused since it last was told of room.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether a blocked application should be woken: an eighth of the space is free. Clears the mark.
    /// (Kernels wait for a third, and so does a fixed buffer. With several paths the buffer is the
    /// reassembly window of the slowest one, and a third of it unused is throughput lost; an eighth still
    /// is many segments a wake-up.)
    pub(crate) fn take_writable(&mut self) -> bool {
        let used = self.end.since(self.una);
        let space = u64::from(self.space);
        let free = space.saturating_sub(used);
        let wake = self.blocked
            && free * if self.fixed { 3 } else { 8 } >= space
            && self.memory_room() > 0;
        self.blocked &= !wake;
        wake
    }

    /// Lets the space follow the windows of all subflows (NSDI'12 mechanism 3): twice their sum
    /// keeps every path busy for a round trip while the application sleeps. It never shrinks.
    pub(crate) fn tune(&mut self, window_sum: u64) {
        let wanted = window_sum.saturating_mul(2).saturating_add(BASE_SPACE);
        self.space = self.space.max(space_of(wanted).min(self.max_space));
    }

    /// The peer has everything before `to`.
    pub(crate) fn ack(&mut self, to: Dsn) {
        self.una = self.una.max(to.min(self.end));
        self.chunks.release(self.una.0);
        if self.una == self.end {
            self.chunks.shrink();
        }
    }

    /// A subflow carries these bytes: keep them until [`unpin`](Self::unpin).
    pub(crate) fn pin(&mut self, range: DataRange) {
        self.chunks.pin(range.start.0, range.end.0);
    }

    /// A subflow is done with these bytes.
    pub(crate) fn unpin(&mut self, range: DataRange) {
        self.chunks.unpin(range.start.0, range.end.0);
        if self.una == self.end {
            self.chunks.shrink();
        }
    }

    /// Copies bytes for a segment and sums them. `None` if they are gone, which is a bug.
    pub(crate) fn copy(&self, start: Dsn, out: &mut [u8]) -> Option<Checksum> {
        self.chunks.read_summed(start.0, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryBudget, MemoryKind};

    fn source() -> ChunkSource {
        charged(&MemoryAccount::default())
    }

    fn charged(account: &MemoryAccount) -> ChunkSource {
        ChunkSource::new(account.clone(), MemoryKind::Send)
    }

    #[test]
    fn where_memory_is_short_one_chunk_after_the_other_is_written() {
        let budget = MemoryBudget::new(Some(0));
        let account = budget.account(u64::MAX);
        let mut buffer = SendBuffer::new(1 << 20, false, charged(&account));
        let big = vec![7; 300_000];
        for turn in 1..4 {
            assert_eq!(write(&mut buffer, &big) as u64, CHUNK);
            assert_eq!((write(&mut buffer, &big), buffer.memory()), (0, CHUNK));
            buffer.ack(Dsn(turn * CHUNK - 1));
            assert!(!buffer.take_writable(), "the chunk is still held");
            buffer.ack(Dsn(turn * CHUNK));
            assert!(buffer.take_writable());
        }
        assert!(account.waits() >= 3);
        // What stopped within a chunk goes on to its end.
        assert_eq!(write(&mut buffer, &[1; 100]), 100);
        assert_eq!(write(&mut buffer, &big) as u64, CHUNK - 100);
        budget.set_limit(None);
        assert_eq!(write(&mut buffer, &big[..100_000]), 100_000);
    }

    fn write(buffer: &mut SendBuffer, bytes: &[u8]) -> usize {
        buffer.write(Written::Copied(bytes), bytes.len())
    }

    #[test]
    fn the_application_is_woken_once_an_eighth_is_free() {
        let mut buffer = SendBuffer::new(1 << 20, false, source());
        let big = vec![7; 300_000];
        let n = write(&mut buffer, &big);
        assert_eq!(n as u64, BASE_SPACE);
        assert!(buffer.is_blocked() && !buffer.take_writable());
        buffer.ack(Dsn(BASE_SPACE / 8 - 1));
        assert!(!buffer.take_writable());
        buffer.ack(Dsn(BASE_SPACE / 8));
        assert!(buffer.take_writable());
        assert!(!buffer.take_writable());
        buffer.tune(200_000);
        assert_eq!(write(&mut buffer, &big), 300_000);
    }

    #[test]
    fn a_fixed_buffer_has_all_its_space_at_once() {
        let mut buffer = SendBuffer::new(200_000, true, source());
        assert_eq!(write(&mut buffer, &vec![7; 300_000]), 200_000);
        buffer.ack(Dsn(66_666));
        assert!(!buffer.take_writable(), "a third must be free");
        buffer.ack(Dsn(66_667));
        assert!(buffer.take_writable());
    }

    #[test]
    fn pinned_bytes_survive_the_data_ack() {
        let mut buffer = SendBuffer::new(1 << 20, false, source());
        write(&mut buffer, &[1, 2, 3, 4]);
        buffer.pin(DataRange::new(Dsn(0), Dsn(4)));
        buffer.ack(Dsn(4));
        let mut out = [0; 4];
        assert!(buffer.copy(Dsn(0), &mut out).is_some());
        assert_eq!(out, [1, 2, 3, 4]);
        buffer.unpin(DataRange::new(Dsn(0), Dsn(4)));
        write(&mut buffer, &[5]);
        assert!(buffer.copy(Dsn(4), &mut out[..1]).is_some());
        assert_eq!(out[0], 5);
    }
}
