//! Send buffer: bytes written by the application, indexed by DSN, until they are DATA_ACKed.
//!
//! Data is copied once when it is written (static data is only referenced) and once into the datagram. A subflow must
//! be able to repeat bytes it sent although another path delivered them, so chunks that a subflow still needs stay
//! pinned. They do not count against the application's space.
//!
//! If memory is short (`memory.rs`), the application gets only as many chunks as its account allows. It gets part of
//! a chunk once all written data is acknowledged and subflows retain little, so that every stream makes progress.
//!
//! *Bounds.* The peer decides when to acknowledge a subflow's bytes, so it could make the sender hold all data that
//! it has acknowledged at the data level. Three bounds prevent that:
//!
//! - A subflow has at most two send buffers (at least 1 MiB) outstanding, as it would on a path whose ACKs take as
//!   long as its data. Beyond that, it gets no new data (`Subflow::is_full`). This also bounds its scoreboard.
//! - A connection holds at most its send buffer plus as much again (at least 1 MiB) of memory. This counts chunks
//!   instead of bytes, because one pinned byte keeps its chunk, and the list of chunks from the first pinned one to
//!   the end of the stream. At the bound, writes are refused until subflows have acknowledged more. An honest
//!   connection seldom reaches it: less time passes between a DATA_ACK and the subflow's own ACK than between sending
//!   and the DATA_ACK, unless ACKs take longer than data.
//! - While writes are refused for this reason and another subflow is healthy, the one that retains the most is reset:
//!   immediately if it is closing or its retransmission timer fired, otherwise after a second
//!   (`Connection::relieve_send_buffer`; RFC 8684 section 3.6 has a reason code for it). Its data is DATA_ACKed or sent
//!   on another subflow. A sole subflow is not reset, so the application waits.

use marline_policy::{DataRange, Dsn};
use marline_time::{Duration, Instant};
use marline_wire::Checksum;

use crate::MemoryAccount;
use crate::compact_instant::NonZeroCompactInstant;
use crate::memory::CHUNK;
use crate::tables::chunks::{ChunkSource, Chunks};

/// Initial buffer size of a connection, and the size added to twice the window.
const BASE_SPACE_BYTES: u64 = 128 * 1024;
/// Minimum memory that a connection may hold beyond its send buffer. In a small buffer with several paths, a few
/// segments on a slow path pin all chunks of the buffer.
const MIN_KEPT_BYTES: u64 = 1024 * 1024;
/// Time during which a writer keeps the buffer filled before it counts as [lasting](SendBuffer::is_lasting_bulk). Most
/// pages and messages are over by then.
const LASTING_BULK: Duration = Duration::from_secs(1);
/// If memory is short, the application still gets part of a chunk while subflows retain up to this much acknowledged
/// data.
const MAX_KEPT_WHEN_SHORT: u64 = 4 * CHUNK;

fn space_of(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Bytes that an application writes.
#[derive(Copy, Clone, Debug)]
pub(crate) enum WrittenBytes<'a> {
    /// Data to be copied.
    Copied(&'a [u8]),
    /// Static data, referenced without a copy if possible.
    Static(&'static [u8]),
}

impl WrittenBytes<'_> {
    pub(crate) const fn len(&self) -> usize {
        let (WrittenBytes::Copied(bytes) | WrittenBytes::Static(bytes)) = self;
        bytes.len()
    }
}

/// Written bytes that are not DATA_ACKed.
#[derive(Debug)]
pub(crate) struct SendBuffer {
    chunks: Chunks,
    una: Dsn,
    end: Dsn,
    /// Space currently offered to the application, at most 4 GiB.
    space: u32,
    /// Maximum of that space.
    max_space: u32,
    /// The buffer has its maximum size from the start, and wakes writers as kernels do.
    fixed: bool,
    /// A write was refused, and the application waits for room.
    blocked: bool,
    /// Time of the first refused write since the buffer was empty.
    busy_since: Option<NonZeroCompactInstant>,
    /// Time at which writes started to be refused because memory is short or subflows retain too much data.
    refused_since: Option<NonZeroCompactInstant>,
}

impl SendBuffer {
    /// Creates a buffer. `fixed` offers the maximum space from the start instead of the space that
    /// [`tune`](Self::tune) determines.
    pub(crate) fn new(max_space: u64, fixed: bool, source: ChunkSource) -> Self {
        let max_space = space_of(max_space);
        SendBuffer {
            chunks: Chunks::new(source),
            una: Dsn(0),
            end: Dsn(0),
            space: if fixed { max_space } else { space_of(BASE_SPACE_BYTES).min(max_space) },
            max_space,
            fixed,
            blocked: false,
            busy_since: None,
            refused_since: None,
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

    /// Maximum number of bytes that the buffer may hold.
    pub(crate) const fn max_space(&self) -> u64 {
        self.max_space as u64
    }

    /// Memory held, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.chunks.memory()
    }

    /// Memory that lists use, in bytes.
    pub(crate) fn bookkeeping(&self) -> u64 {
        self.chunks.list_memory()
    }

    /// Charges the buffer's memory to another account.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) {
        self.chunks.charge_to(account);
    }

    /// Bytes that fit into the memory that the account allows.
    fn account_room(&self) -> u64 {
        let (allowance, held) = (self.chunks.account().allowance(), self.chunks.memory());
        let more = allowance.saturating_sub(held) / CHUNK * CHUNK;
        let gets_another = self.una == self.end && held <= MAX_KEPT_WHEN_SHORT;
        let held_end = self.chunks.end_of_held_memory(self.end.0);
        let end =
            if gets_another { held_end.max(Chunks::end_of_piece(self.end.0)) } else { held_end };
        more.saturating_add(end - self.end.0)
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        self.chunks.shrink_list();
    }

    /// Bytes that fit into the space offered to the application.
    const fn room(&self) -> u64 {
        (self.space as u64).saturating_sub(self.end.since(self.una))
    }

    /// Bytes that fit until the memory held reaches the connection's own limit.
    fn own_room(&self) -> u64 {
        // After a resize, more may have been written than the buffer has space for.
        let unacked = self.max_space().max(self.end.since(self.una));
        let limit = unacked.saturating_add(self.max_space().max(MIN_KEPT_BYTES));
        limit.saturating_sub(self.chunks.memory() + self.chunks.list_memory())
    }

    /// True if a blocked application should be woken because this much room became available.
    fn justifies_wakeup(&self, room: u64) -> bool {
        let space = u64::from(self.space);
        room.min(space) * if self.fixed { 3 } else { 8 } >= space
    }

    /// Accepts as many bytes as fit, at most `most`. Zero means that the application must wait.
    pub(crate) fn write(&mut self, now: Instant, bytes: WrittenBytes<'_>, most: usize) -> usize {
        let wanted = (most as u64).min(self.room());
        let (account_room, own_room) = (self.account_room(), self.own_room());
        let n = wanted.min(account_room).min(own_room);
        if n < wanted && account_room < wanted && !self.blocked {
            self.chunks.account().count_wait();
        }
        self.refused_since = match n < wanted {
            true => self.refused_since.or_else(|| Some(NonZeroCompactInstant::from_instant(now))),
            false => None,
        };
        let n = n as usize;
        match bytes {
            WrittenBytes::Copied(bytes) => self.chunks.write(self.end.0, &bytes[..n]),
            WrittenBytes::Static(bytes) => self.chunks.refer_to(self.end.0, bytes, n),
        }
        self.end = self.end.plus(n as u64);
        self.blocked = n < most;
        if self.blocked && self.busy_since.is_none() {
            self.busy_since = Some(NonZeroCompactInstant::from_instant(now));
        }
        n
    }

    /// Records a refusal for a reason other than space.
    pub(crate) const fn refuse(&mut self) {
        self.blocked = true;
    }

    /// Changes the maximum size. Data in the buffer is kept.
    pub(crate) fn resize(&mut self, max_space: u64) {
        let max_space = space_of(max_space);
        self.max_space = max_space;
        self.space = if self.fixed { max_space } else { self.space.min(max_space) };
    }

    /// True if a write was refused since the last notification.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// True if a blocked application should be woken: an eighth of the space is free. Clears the flag. (Kernels wait
    /// for a third, and so does a fixed buffer. With several paths the buffer is the reassembly window of the slowest
    /// one, and an unused third reduces throughput. An eighth is still many segments per wake-up.)
    pub(crate) fn take_writable(&mut self, now: Instant) -> bool {
        if !self.blocked || !self.justifies_wakeup(self.room()) {
            return false;
        }
        if self.justifies_wakeup(self.own_room()) && self.account_room() > 0 {
            (self.blocked, self.refused_since) = (false, None);
            return true;
        }
        self.refused_since.get_or_insert_with(|| NonZeroCompactInstant::from_instant(now));
        false
    }

    /// True if a write was refused for lack of memory and the application is waiting.
    pub(crate) const fn is_held_back(&self) -> bool {
        self.refused_since.is_some()
    }

    /// Like [`is_held_back`](Self::is_held_back), if the cause is that subflows retain too much data.
    pub(crate) fn retains_too_much(&self) -> bool {
        self.is_held_back() && !self.justifies_wakeup(self.own_room())
    }

    /// Like [`is_held_back`](Self::is_held_back), for at least this many nanoseconds.
    pub(crate) fn is_held_back_for(&self, nanos: u64, now: Instant) -> bool {
        self.refused_since.is_some_and(|since| !since.is_within(nanos, now))
    }

    /// True if the application writes faster than the paths carry, and has for a second.
    pub(crate) fn is_lasting_bulk(&self, now: Instant) -> bool {
        self.busy_since.is_some_and(|since| !since.is_within(LASTING_BULK.as_nanos() as u64, now))
    }

    /// Adjusts the space to the windows of all subflows (NSDI 2012, mechanism M3): twice their sum keeps every path
    /// busy for a round trip while the application sleeps. It never shrinks.
    pub(crate) fn tune(&mut self, window_sum: u64) {
        let wanted = window_sum.saturating_mul(2).saturating_add(BASE_SPACE_BYTES);
        self.space = self.space.max(space_of(wanted).min(self.max_space));
    }

    /// Releases all data before `to`, which the peer has received.
    pub(crate) fn ack(&mut self, to: Dsn) {
        self.una = self.una.max(to.min(self.end));
        self.chunks.release(self.una.0);
        if self.una == self.end {
            self.busy_since = None;
            self.chunks.shrink();
        }
    }

    /// Pins bytes that a subflow carries, until [`unpin`](Self::unpin).
    pub(crate) fn pin(&mut self, range: DataRange) {
        self.chunks.pin(range.start.0, range.end.0);
    }

    /// Unpins bytes that a subflow no longer needs.
    pub(crate) fn unpin(&mut self, range: DataRange) {
        self.chunks.unpin(range.start.0, range.end.0);
        if self.una == self.end {
            self.chunks.shrink();
        }
    }

    /// Copies and checksums bytes for a segment. `None` if they are gone, which is a bug.
    pub(crate) fn copy(&self, start: Dsn, out: &mut [u8]) -> Option<Checksum> {
        self.chunks.read_summed(start.0, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PIECE;
    use crate::{MemoryBudget, MemoryKind};

    fn source() -> ChunkSource {
        charged(&MemoryAccount::default())
    }

    fn charged(account: &MemoryAccount) -> ChunkSource {
        ChunkSource::new(account.clone(), MemoryKind::Send)
    }

    #[test]
    fn when_memory_is_short_one_piece_is_written_at_a_time() {
        let budget = MemoryBudget::new(Some(0));
        let account = budget.account(u64::MAX);
        let mut buffer = SendBuffer::new(1 << 20, false, charged(&account));
        let big = vec![7; 300_000];
        for turn in 1..4 {
            assert_eq!(write(&mut buffer, &big) as u64, PIECE);
            assert_eq!((write(&mut buffer, &big), buffer.memory()), (0, PIECE));
            buffer.ack(Dsn(turn * PIECE - 1));
            assert!(!buffer.take_writable(Instant::ZERO), "the chunk is still in use");
            buffer.ack(Dsn(turn * PIECE));
            assert!(buffer.take_writable(Instant::ZERO));
        }
        assert!(account.wait_count() >= 3);
        // A partly filled piece is filled first.
        assert_eq!(write(&mut buffer, &[1; 100]), 100);
        assert_eq!(write(&mut buffer, &big) as u64, PIECE - 100);
        budget.set_limit(None);
        assert_eq!(write(&mut buffer, &big[..100_000]), 100_000);
    }

    #[test]
    fn when_memory_is_short_withheld_acks_pin_only_a_few_chunks() {
        let budget = MemoryBudget::new(Some(0));
        let account = budget.account(u64::MAX);
        let mut buffer = SendBuffer::new(1 << 20, false, charged(&account));
        let big = vec![7; 300_000];
        for _ in 0..20 {
            let start = buffer.end();
            write(&mut buffer, &big);
            buffer.pin(DataRange::new(start, buffer.end()));
            buffer.ack(buffer.end());
        }
        assert_eq!(buffer.memory(), MAX_KEPT_WHEN_SHORT + PIECE);
        assert!(!buffer.take_writable(Instant::ZERO));
        // The application waits for the process's memory: no subflow has to be reset for it.
        assert!(buffer.is_held_back() && !buffer.retains_too_much());
        buffer.unpin(DataRange::new(Dsn(0), Dsn(CHUNK)));
        assert!(buffer.take_writable(Instant::ZERO));
    }

    fn write(buffer: &mut SendBuffer, bytes: &[u8]) -> usize {
        buffer.write(Instant::ZERO, WrittenBytes::Copied(bytes), bytes.len())
    }

    #[test]
    fn the_application_is_woken_once_an_eighth_is_free() {
        let mut buffer = SendBuffer::new(1 << 20, false, source());
        let big = vec![7; 300_000];
        let n = write(&mut buffer, &big);
        assert_eq!(n as u64, BASE_SPACE_BYTES);
        assert!(buffer.is_blocked() && !buffer.take_writable(Instant::ZERO));
        buffer.ack(Dsn(BASE_SPACE_BYTES / 8 - 1));
        assert!(!buffer.take_writable(Instant::ZERO));
        buffer.ack(Dsn(BASE_SPACE_BYTES / 8));
        assert!(buffer.take_writable(Instant::ZERO));
        assert!(!buffer.take_writable(Instant::ZERO));
        buffer.tune(200_000);
        assert_eq!(write(&mut buffer, &big), 300_000);
    }

    #[test]
    fn a_fixed_buffer_has_all_its_space_at_once() {
        let mut buffer = SendBuffer::new(200_000, true, source());
        assert_eq!(write(&mut buffer, &vec![7; 300_000]), 200_000);
        buffer.ack(Dsn(66_666));
        assert!(!buffer.take_writable(Instant::ZERO), "a third of the buffer must be free");
        buffer.ack(Dsn(66_667));
        assert!(buffer.take_writable(Instant::ZERO));
    }

    #[test]
    fn writes_are_refused_when_pinned_chunks_are_as_much_as_the_bound() {
        const SPACE: usize = 100_000;
        let mut buffer = SendBuffer::new(SPACE as u64, true, source());
        let now = Instant::from_secs(5);
        let bytes = [7; SPACE];
        let mut written = 0;
        // One byte in a hundred is pinned, and so is every chunk.
        for _ in 0..1_000 {
            let n = buffer.write(now, WrittenBytes::Copied(&bytes), SPACE) as u64;
            for at in (written..written + n).step_by(100) {
                buffer.pin(DataRange::new(Dsn(at), Dsn(at + 1)));
            }
            written += n;
            buffer.ack(Dsn(written));
        }
        assert!(buffer.memory() <= SPACE as u64 + MIN_KEPT_BYTES + 16_384, "{}", buffer.memory());
        assert!(buffer.is_held_back() && buffer.is_held_back_for(0, now));
        assert!(!buffer.is_held_back_for(1_000_000_000, now) && !buffer.take_writable(now));
        assert!(buffer.is_held_back_for(1_000_000_000, now + Duration::from_secs(1)));
        // The application continues once a third of the buffer is free.
        let full = buffer.memory();
        let mut pinned = (0..written).step_by(100);
        while !buffer.take_writable(now) {
            let at = pinned.next().expect("writable before the buffer is empty");
            buffer.unpin(DataRange::new(Dsn(at), Dsn(at + 1)));
        }
        let freed = full - buffer.memory();
        assert!((16_384..SPACE as u64).contains(&freed), "{freed}");
        assert!(!buffer.is_held_back());
        assert!(buffer.write(now, WrittenBytes::Copied(&bytes), SPACE) >= SPACE / 3);
    }

    #[test]
    fn pinned_bytes_hold_back_a_writer_that_was_refused_space() {
        const SPACE: u64 = 1 << 20;
        let mut buffer = SendBuffer::new(SPACE, true, source());
        let bytes = vec![7; 3 * SPACE as usize];
        for (start, pinned) in [(0, SPACE / 4 * 3), (SPACE, SPACE)] {
            assert_eq!(write(&mut buffer, &bytes), SPACE as usize, "no more space");
            assert!(!buffer.is_held_back());
            buffer.pin(DataRange::new(Dsn(start), Dsn(start + pinned)));
            buffer.ack(Dsn(start + SPACE));
        }
        assert!(!buffer.take_writable(Instant::ZERO) && buffer.is_held_back());
        buffer.unpin(DataRange::new(Dsn(0), Dsn(SPACE / 4 * 3)));
        assert!(buffer.take_writable(Instant::ZERO) && !buffer.is_held_back());
    }

    #[test]
    fn a_list_of_chunks_that_reaches_back_to_a_single_pinned_byte_counts_as_memory() {
        const SPACE: usize = 1 << 20;
        static BYTES: [u8; SPACE] = [7; SPACE];
        let mut buffer = SendBuffer::new(SPACE as u64, true, source());
        let write = |buffer: &mut SendBuffer| {
            buffer.ack(buffer.end());
            buffer.write(Instant::ZERO, WrittenBytes::Static(&BYTES), SPACE)
        };
        write(&mut buffer);
        buffer.pin(DataRange::new(Dsn(5), Dsn(6)));
        let writes = (0..10_000).take_while(|_| write(&mut buffer) > SPACE / 3).count();
        assert!((1_000..10_000).contains(&writes), "{writes} MiB with one byte pinned");
        assert!(buffer.is_held_back());
        buffer.ack(buffer.end());
        assert!(!buffer.take_writable(Instant::ZERO));
        buffer.unpin(DataRange::new(Dsn(5), Dsn(6)));
        assert!(buffer.take_writable(Instant::ZERO) && write(&mut buffer) == SPACE);
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
