//! Memory budget of a process: limits on the memory of all its connections, and of the connections of each user.
//!
//! *Sharing.* Every user, such as a credential of a proxy, has an account to which its memory is charged. Limits
//! depend on free memory, like those of the output queues of a switch with shared memory (Choudhury and Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2),
//! 1998): the buffers of an account may hold a third of the process's free memory, and one buffer an eighth of its
//! account's remaining memory. No memory is reserved, and accounts are independent of each other. The buffers of a
//! single user get a quarter of the memory, those of two users a fifth each, and a user that holds little can always
//! get a little more.
//!
//! *Floor.* An empty buffer may take 4 KiB, part of a chunk, regardless of free memory, so that every stream makes
//! progress. The remaining memory is for these minimums: new streams are admitted ([`MemoryAccount::has_room`]) until
//! an account holds six times the free memory.
//!
//! *Effect.* At its limit, a send buffer accepts no more data, and a receive window, whose edge never moves back, opens
//! no further. Bytes beyond the advertised edge are still refused. If advertised windows exceed the memory (all streams
//! got a window while there was room, and use it now), segments of connections whose application does not read are
//! dropped before they are acknowledged, and the window is advertised as closed until the application reads.
//! Acknowledged data is kept.
//!
//! *Cost.* Stream bytes are charged by the chunk, so that the cost per segment is a comparison of two numbers.

use core::fmt;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};

mod waiting;

pub use waiting::WaitForRoom;
use waiting::WaitQueue;

/// Divisor of the process's free memory: the buffers of an account may grow while it holds less than the quotient.
const FREE_MEMORY_DIVISOR: u64 = 3;
/// Divisor of an account's remaining memory that gives the limit on one buffer.
const ACCOUNT_ROOM_DIVISOR: u64 = 8;
/// New streams are admitted while an account holds less than this multiple of the process's free memory.
const ADMISSION_FREE_MULTIPLE: u64 = 6;

/// Size of a chunk in bytes. Small enough for a connection with one message in flight to stay small.
pub(crate) const CHUNK: u64 = 16 * 1024;
/// Maximum number of free chunks that an endpoint with many connections keeps (16 MiB).
const POOL: usize = 1024;
/// Number of free chunks that an endpoint keeps: a base, plus a number per connection.
const FREE_CHUNKS_BASE: usize = 16;
const FREE_CHUNKS_PER_CONNECTION: usize = 4;

/// Size in bytes of a piece: the part of a chunk that an empty buffer allocates if memory is short.
pub(crate) const PIECE: u64 = CHUNK / 4;

/// Storage of a chunk.
pub(crate) type ChunkBytes = [u8; CHUNK as usize];
pub(crate) type Chunk = Box<ChunkBytes>;
/// Storage of a piece.
pub(crate) type PieceBytes = [u8; PIECE as usize];

fn new_chunk() -> Chunk {
    let bytes = vec![0; CHUNK as usize].into_boxed_slice();
    bytes.try_into().unwrap_or_else(|_| unreachable!("the slice has the length of a chunk"))
}

/// Purposes for which memory is charged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Data written by applications and not acknowledged by peers.
    Send,
    /// Data received and not read by applications.
    Receive,
    /// Connections themselves, excluding their data.
    Connection,
    /// Data read by a relay but not yet written.
    Relay,
    /// Kernel buffers, as far as known.
    Socket,
    /// Waiting datagrams.
    Datagram,
    /// Handshakes of peers that are not authenticated.
    Handshake,
}

impl MemoryKind {
    /// All kinds, in the order of their values.
    pub const ALL: [MemoryKind; 7] = [
        MemoryKind::Send,
        MemoryKind::Receive,
        MemoryKind::Connection,
        MemoryKind::Relay,
        MemoryKind::Socket,
        MemoryKind::Datagram,
        MemoryKind::Handshake,
    ];

    /// Name in metrics and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MemoryKind::Send => "send",
            MemoryKind::Receive => "receive",
            MemoryKind::Connection => "connection",
            MemoryKind::Relay => "relay",
            MemoryKind::Socket => "socket",
            MemoryKind::Datagram => "datagram",
            MemoryKind::Handshake => "handshake",
        }
    }
}

/// Free chunks, shared by all connections of a process (or of an endpoint without a budget), so that an idle connection
/// holds no chunks and a busy one allocates none. The lock is taken once for each chunk.
#[derive(Default)]
struct FreeChunks(Mutex<Vec<Chunk>>);

/// Shows only the number of chunks, because their old content is long and meaningless.
impl fmt::Debug for FreeChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FreeChunks").field(&self.count()).finish()
    }
}

impl FreeChunks {
    fn take(&self) -> Chunk {
        let free = self.0.lock().ok().and_then(|mut free| free.pop());
        free.unwrap_or_else(new_chunk)
    }

    fn give_back(&self, chunk: Chunk) {
        if let Ok(mut free) = self.0.lock()
            && free.len() < POOL
        {
            free.push(chunk);
        }
    }

    fn count(&self) -> usize {
        self.0.lock().map_or(0, |free| free.len())
    }

    fn shrink_to(&self, most: usize) {
        if let Ok(mut free) = self.0.lock()
            && free.len() > most
        {
            free.truncate(most);
            free.shrink_to(most);
        }
    }
}

/// Budget shared by all accounts of a process.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Process>);

#[derive(Debug)]
struct Process {
    /// Limit in bytes; `u64::MAX` for no limit.
    limit: AtomicU64,
    used: AtomicU64,
    by_kind: [AtomicU64; MemoryKind::ALL.len()],
    waits: AtomicU64,
    /// Number of new streams, of all accounts, that are waiting for room.
    waiting: AtomicUsize,
    /// Accounts with waiting streams.
    accounts_waiting: Mutex<Vec<Weak<Account>>>,
    free_chunks: FreeChunks,
}

/// Limit and use of a budget.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Limit in bytes; `None` for no limit.
    pub limit: Option<u64>,
    /// Bytes held.
    pub used: u64,
    /// Bytes held by [kind](MemoryKind), in the order of [`MemoryKind::ALL`].
    pub by_kind: [u64; MemoryKind::ALL.len()],
    /// Number of times a writer or a new stream had to wait for memory, since the start.
    pub waits: u64,
}

impl MemoryBudget {
    /// Creates a budget with this many bytes; `None` only counts, without a limit.
    #[must_use]
    pub fn new(limit: Option<u64>) -> MemoryBudget {
        MemoryBudget(Arc::new(Process {
            limit: AtomicU64::new(limit.unwrap_or(u64::MAX)),
            used: AtomicU64::new(0),
            by_kind: [const { AtomicU64::new(0) }; MemoryKind::ALL.len()],
            waits: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            accounts_waiting: Mutex::default(),
            free_chunks: FreeChunks::default(),
        }))
    }

    /// Changes the limit. Memory beyond it is kept.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.0.limit.store(limit.unwrap_or(u64::MAX), SeqCst);
        self.0.wake_waiting();
    }

    /// Creates an account. `max_per_buffer` is the maximum size of one buffer in bytes, regardless of free memory;
    /// `u64::MAX` sets no limit other than the account's.
    #[must_use]
    pub fn account(&self, max_per_buffer: u64) -> MemoryAccount {
        MemoryAccount(Arc::new(Account {
            process: Arc::clone(&self.0),
            used: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            max_per_buffer,
            waiting: Mutex::default(),
        }))
    }

    /// Current use.
    #[must_use]
    pub fn usage(&self) -> MemoryUsage {
        let limit = self.0.limit.load(Relaxed);
        MemoryUsage {
            limit: (limit != u64::MAX).then_some(limit),
            used: self.0.used.load(Relaxed),
            by_kind: core::array::from_fn(|at| self.0.by_kind[at].load(Relaxed)),
            waits: self.0.waits.load(Relaxed),
        }
    }
}

/// One user's part of a [`MemoryBudget`]. Clones refer to one account.
#[derive(Clone, Debug)]
pub struct MemoryAccount(Arc<Account>);

#[derive(Debug)]
struct Account {
    process: Arc<Process>,
    used: AtomicU64,
    waits: AtomicU64,
    max_per_buffer: u64,
    /// New streams that are waiting for room, in order.
    waiting: Mutex<WaitQueue>,
}

impl Default for MemoryAccount {
    /// An account of a separate budget, without a limit.
    fn default() -> Self {
        MemoryBudget::new(None).account(u64::MAX)
    }
}

impl MemoryAccount {
    /// True if both refer to one account.
    #[must_use]
    pub fn is_same(&self, other: &MemoryAccount) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Number that no other account has while this one exists.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Bytes charged to the account.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Number of times a writer or a new stream of this account had to wait for memory.
    #[must_use]
    pub fn wait_count(&self) -> u64 {
        self.0.waits.load(Relaxed)
    }

    /// Number of bytes that one buffer of this account may hold now. A buffer that holds more keeps its memory. 0
    /// allows only the minimum of an empty buffer.
    #[must_use]
    pub fn allowance(&self) -> u64 {
        let Some(free) = self.free() else { return self.0.max_per_buffer };
        let room = (free / FREE_MEMORY_DIVISOR).saturating_sub(self.used());
        (room / ACCOUNT_ROOM_DIVISOR).min(self.0.max_per_buffer)
    }

    /// True if there is room for the minimum buffer of another stream.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.free().is_none_or(|free| self.used() < free.saturating_mul(ADMISSION_FREE_MULTIPLE))
    }

    /// Waits until there is [room](Self::has_room) for another stream. The streams of an account get room in the
    /// order of their requests, as memory is freed. The returned charge of `bytes` is a placeholder, to be held until
    /// the stream's memory is charged separately.
    pub fn wait_for_room(&self, kind: MemoryKind, bytes: u64) -> WaitForRoom {
        WaitForRoom::new(self, kind, bytes)
    }

    /// Free bytes of the process; `None` without a limit.
    fn free(&self) -> Option<u64> {
        let process = &*self.0.process;
        // Sequentially consistent with the code that wakes waiting streams, so that none of them misses freed memory.
        let limit = process.limit.load(SeqCst);
        (limit != u64::MAX).then(|| limit.saturating_sub(process.used.load(SeqCst)))
    }

    /// Counts a wait for memory.
    pub fn count_wait(&self) {
        self.0.waits.fetch_add(1, Relaxed);
        self.0.process.waits.fetch_add(1, Relaxed);
    }

    /// Charges this many bytes until the returned value is dropped. It never fails: optional allocations check the
    /// [`allowance`](Self::allowance) first.
    #[must_use]
    pub fn charge(&self, kind: MemoryKind, bytes: u64) -> MemoryCharge {
        self.add(kind, bytes);
        MemoryCharge { account: self.clone(), kind, bytes }
    }

    pub(crate) fn take_chunk(&self) -> Chunk {
        self.0.process.free_chunks.take()
    }

    /// Keeps a free chunk for reuse, unless memory is short.
    pub(crate) fn return_chunk(&self, chunk: Chunk) {
        if self.allowance() > 0 {
            self.0.process.free_chunks.give_back(chunk);
        }
    }

    /// Frees spare chunks after a connection has become idle.
    pub(crate) fn release_spare_chunks(&self) {
        let free = &self.0.process.free_chunks;
        free.shrink_to(
            free.count().saturating_sub(FREE_CHUNKS_PER_CONNECTION).max(FREE_CHUNKS_BASE),
        );
    }

    /// Frees chunks that the remaining connections of an endpoint are unlikely to use.
    pub(crate) fn limit_spare_chunks(&self, connections: usize) {
        let most =
            connections.saturating_mul(FREE_CHUNKS_PER_CONNECTION).saturating_add(FREE_CHUNKS_BASE);
        self.0.process.free_chunks.shrink_to(most);
    }

    /// Moves a charge to another account.
    pub(crate) fn hand_over(&self, to: &MemoryAccount, kind: MemoryKind, bytes: u64) {
        to.add(kind, bytes);
        self.sub(kind, bytes);
    }

    pub(crate) fn add(&self, kind: MemoryKind, bytes: u64) {
        let process = &*self.0.process;
        self.0.used.fetch_add(bytes, Relaxed);
        process.used.fetch_add(bytes, Relaxed);
        process.by_kind[kind as usize].fetch_add(bytes, Relaxed);
    }

    pub(crate) fn sub(&self, kind: MemoryKind, bytes: u64) {
        let process = &*self.0.process;
        self.0.used.fetch_sub(bytes, Relaxed);
        process.by_kind[kind as usize].fetch_sub(bytes, Relaxed);
        process.used.fetch_sub(bytes, SeqCst);
        process.wake_waiting();
    }
}

/// Memory charged to an account until this value is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    account: MemoryAccount,
    kind: MemoryKind,
    bytes: u64,
}

impl MemoryCharge {
    /// Charged account.
    #[must_use]
    pub const fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Bytes charged.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the number of charged bytes.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.account.add(self.kind, bytes - self.bytes);
        } else if bytes < self.bytes {
            self.account.sub(self.kind, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Charges at least `held` bytes, in steps of `step`, so that frequent changes rarely update the account. Up to two
    /// steps more than `held` stay charged.
    pub fn resize_in_steps(&mut self, held: u64, step: u64) {
        if held > self.bytes || held + 2 * step <= self.bytes {
            self.resize(held.next_multiple_of(step));
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.account.sub(self.kind, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills `buffers` buffers of an account in small steps until none may grow.
    fn fill(account: &MemoryAccount, buffers: usize) -> Vec<MemoryCharge> {
        let mut charges: Vec<_> =
            (0..buffers).map(|_| account.charge(MemoryKind::Send, 0)).collect();
        loop {
            let before = account.used();
            for charge in &mut charges {
                if charge.bytes() + 16 <= account.allowance() {
                    charge.resize(charge.bytes() + 16);
                }
            }
            if account.used() == before {
                return charges;
            }
        }
    }

    #[test]
    fn heavy_users_leave_room_for_another_account() {
        const LIMIT: u64 = 3_000_000;
        for (buffers, users) in [(1, 1), (100, 1), (2_000, 1), (100, 2), (300, 5)] {
            let budget = MemoryBudget::new(Some(LIMIT));
            let accounts: Vec<_> = (0..users).map(|_| budget.account(u64::MAX)).collect();
            let held: Vec<_> = accounts.iter().map(|account| fill(account, buffers)).collect();
            let used = budget.usage().used;
            assert!(used <= LIMIT, "{buffers} buffers of each of {users} users hold {used}");
            let newcomer = budget.account(u64::MAX);
            assert!(newcomer.has_room() && newcomer.allowance() >= (LIMIT - used) / 24);
            drop(held);
            assert_eq!(budget.usage().used, 0);
        }
    }

    #[test]
    fn the_chunk_pool_shrinks_with_its_users() {
        let budget = MemoryBudget::new(Some(1_000 * CHUNK));
        let account = budget.account(u64::MAX);
        let free = || account.0.process.free_chunks.count();
        let give = |count| (0..count).for_each(|_| account.return_chunk(new_chunk()));
        give(300);
        account.limit_spare_chunks(100);
        assert_eq!(free(), 300);
        account.limit_spare_chunks(10);
        assert_eq!(free(), FREE_CHUNKS_BASE + 10 * FREE_CHUNKS_PER_CONNECTION);
        account.release_spare_chunks();
        assert_eq!(free(), FREE_CHUNKS_BASE + 9 * FREE_CHUNKS_PER_CONNECTION);
        account.limit_spare_chunks(0);
        assert_eq!(free(), FREE_CHUNKS_BASE);
        account.release_spare_chunks();
        assert_eq!(free(), FREE_CHUNKS_BASE);
        let _ = account.take_chunk();
        assert_eq!(free(), FREE_CHUNKS_BASE - 1);
        budget.set_limit(Some(0));
        give(1);
        assert_eq!(free(), FREE_CHUNKS_BASE - 1, "no chunks are kept while memory is short");
    }

    #[test]
    fn buffers_of_one_user_alone_get_a_quarter_and_floors_the_rest() {
        let budget = MemoryBudget::new(Some(3_000_000));
        let account = budget.account(u64::MAX);
        let held = fill(&account, 1_000);
        assert!((730_000..=750_000).contains(&account.used()), "{}", account.used());
        let mut floors = Vec::new();
        while account.has_room() {
            floors.push(account.charge(MemoryKind::Connection, 10_000));
        }
        assert!((2_560_000..=2_585_000).contains(&account.used()), "{}", account.used());
        assert!(budget.account(u64::MAX).has_room(), "another account still has room");
        drop(held);
    }

    #[test]
    fn a_charge_is_counted_by_kind_and_by_account() {
        let budget = MemoryBudget::new(None);
        let (strangers, known) = (budget.account(16_384), budget.account(u64::MAX));
        assert_eq!((strangers.allowance(), known.allowance()), (16_384, u64::MAX));
        let mut charge = strangers.charge(MemoryKind::Relay, 100);
        charge.resize(70);
        assert_eq!((strangers.used(), known.used()), (70, 0));
        let usage = budget.usage();
        assert_eq!((usage.limit, usage.used), (None, 70));
        assert_eq!(usage.by_kind[MemoryKind::Relay as usize], 70);
        assert!(MemoryKind::ALL.iter().enumerate().all(|(at, kind)| at == *kind as usize));
        drop(charge);
        assert_eq!(budget.usage().used, 0);
        known.count_wait();
        assert_eq!((strangers.wait_count(), known.wait_count(), budget.usage().waits), (0, 1, 1));
    }
}
