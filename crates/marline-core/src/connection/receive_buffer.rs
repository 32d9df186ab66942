//! Data-level reassembly and the shared receive window (RFC 8684 section 3.3.5).
//!
//! Bytes from all subflows are collected here by DSN. Each byte is written once, to its final position; data beyond a
//! gap is recorded as a range. The window is shared by all subflows, its edge never moves back, and it grows for two
//! reasons. While the application reads without delay, the window is twice the bytes read in a round trip, and larger
//! while that number grows, so that a sender in slow start is not limited (dynamic right-sizing, Fisk and Feng 2001;
//! the round trip is that of the slowest subflow, from the handshake if no other was measured). While bytes wait behind
//! a gap on a slower path and fill three quarters of the window, it doubles. If memory is short (`memory.rs`), the edge
//! advances only as far as the account allows, but at least to the end of a partial chunk that leaves room for a
//! segment.

use core::num::NonZeroU64;

use marline_policy::{DataRange, Dsn};
use marline_time::{Duration, Instant};

use crate::MemoryAccount;
use crate::memory::{CHUNK, PIECE};
use crate::on_demand::{OnDemand, UnusedState};
use crate::tables::chunks::{ChunkSource, Chunks};

/// Initial window of a connection.
const INITIAL_WINDOW: u64 = 256 * 1024;

/// Received bytes that the application has not read.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    chunks: Chunks,
    /// First byte that the application has not read.
    read: Dsn,
    /// First missing byte: the DATA_ACK.
    next: Dsn,
    /// Ranges beyond the first gap: sorted, disjoint, not adjacent.
    ranges_beyond: OnDemand<Vec<(u64, u64)>>,
    max_ranges: u32,
    /// Maximum window in bytes. TCP's maximum is 2^30.
    max_window: u32,
    window: u64,
    /// Highest edge ever advertised.
    edge: Dsn,
    /// Start time and position of the current measurement of the application's reading.
    measured_since: Instant,
    measured_from: Dsn,
    is_measured: bool,
    /// Bytes read in the previous round trip.
    read_per_rtt: u32,
    /// DSN of the peer's DATA_FIN.
    fin: FinPosition,
    /// All data before the DATA_FIN has been received.
    fin_reached: bool,
    /// Payload was refused because memory is short, and the window is withdrawn.
    is_withdrawn: bool,
    kept: OnDemand<KeptBytes>,
}

/// Bytes that are kept after they were read, or that subflows hold.
#[derive(Debug, Default)]
struct KeptBytes {
    /// Number of bytes held by subflows. They will move here, so they occupy the window.
    held: u64,
    /// Bytes kept after they were read, because repairs may need them.
    history: u64,
    /// Position from which read bytes are kept.
    history_from: Dsn,
}

impl UnusedState for KeptBytes {
    const UNUSED: &'static Self = &KeptBytes { held: 0, history: 0, history_from: Dsn(0) };
}

/// Result of an insertion.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InsertOutcome {
    /// Bytes that were missing.
    pub(crate) new: u64,
    /// Bytes that were already present.
    pub(crate) duplicate: u64,
    /// The DATA_ACK advanced.
    pub(crate) advanced: bool,
}

impl ReceiveBuffer {
    /// Creates a buffer. `fixed` uses the largest window from the start.
    pub(crate) fn new(
        max_window: u64,
        fixed: bool,
        max_ranges: usize,
        source: ChunkSource,
    ) -> Self {
        let window = if fixed { max_window } else { INITIAL_WINDOW.min(max_window) };
        let mut buffer = ReceiveBuffer {
            chunks: Chunks::new(source),
            read: Dsn(0),
            next: Dsn(0),
            ranges_beyond: OnDemand::new(),
            max_ranges: u32::try_from(max_ranges).unwrap_or(u32::MAX),
            window,
            max_window: u32::try_from(max_window).unwrap_or(u32::MAX),
            edge: Dsn(0),
            measured_since: Instant::default(),
            measured_from: Dsn(0),
            is_measured: false,
            read_per_rtt: 0,
            fin: FinPosition::default(),
            fin_reached: false,
            is_withdrawn: false,
            kept: OnDemand::new(),
        };
        buffer.refresh_edge();
        buffer
    }

    /// The account to which the buffer's memory is charged.
    pub(crate) const fn account(&self) -> &MemoryAccount {
        self.chunks.account()
    }

    /// Charges the buffer's memory to another account. Returns true if the window opened enough for an update.
    pub(crate) fn charge_to(&mut self, account: &MemoryAccount) -> bool {
        self.chunks.charge_to(account);
        self.open_window()
    }

    /// True if the buffer holds more than its minimum and its account allows no more memory.
    pub(crate) fn is_memory_short(&self) -> bool {
        self.chunks.memory() > 2 * CHUNK && self.chunks.account().allowance() == 0
    }

    /// Limit on bytes that may wait beyond gaps.
    pub(crate) fn out_of_order_room(&self, most: u64) -> u64 {
        most.min(self.chunks.account().allowance().max(2 * CHUNK))
    }

    /// Target edge, limited by memory but never before the current edge.
    fn wanted_edge(&self) -> Dsn {
        let full = self.read.plus(self.window);
        if full <= self.edge {
            return self.edge;
        }
        let allowance = self.chunks.account().allowance();
        if allowance >= self.window {
            return full;
        }
        let useful = self.read.0 + self.least_window() - 1;
        let least = Chunks::end_of_piece(useful).max(self.chunks.end_of_held_memory(self.read.0));
        full.min(self.read.plus(allowance).max(Dsn(least))).max(self.edge)
    }

    /// The smallest window that helps the peer, in bytes: about a segment, and large enough not to be rounded to zero
    /// by the window scale, which depends on the largest window (RFC 7323 section 2.3).
    fn least_window(&self) -> u64 {
        // Avoids a division, because this runs on each read.
        let scale = ((self.max_window() >> 16) + 1).next_power_of_two();
        scale.max(PIECE / 2)
    }

    /// True if less than [`least_window`](Self::least_window) is left, so that the peer cannot send a segment.
    pub(crate) fn is_window_closed(&self) -> bool {
        self.is_withdrawn || self.edge.since(self.next) < self.least_window()
    }

    /// From now on, keeps this many bytes after they were read.
    pub(crate) fn keep_history(&mut self, bytes: u64) {
        let history_from = self.read;
        let kept = &mut *self.kept;
        (kept.history, kept.history_from) = (bytes, history_from);
        self.release();
    }

    /// First byte available to [`copy_kept`](Self::copy_kept).
    pub(crate) fn oldest_kept(&self) -> Dsn {
        self.kept.history_from.max(Dsn(self.read.0.saturating_sub(self.kept.history)))
    }

    /// Copies received bytes, read or not. False if some are no longer kept; the caller knows the gaps.
    pub(crate) fn copy_kept(&self, at: Dsn, out: &mut [u8]) -> bool {
        at >= self.oldest_kept() && self.chunks.read(at.0, out)
    }

    /// Missing parts of `range`, in order.
    pub(crate) fn holes(&self, range: DataRange, holes: &mut Vec<DataRange>) {
        let mut at = self.next.max(range.start);
        for (left, right) in self.ranges_beyond.iter() {
            if at >= range.end {
                return;
            }
            let hole = DataRange::new(at, Dsn(*left).min(range.end));
            holes.extend(Some(hole).filter(|hole| !hole.is_empty()));
            at = at.max(Dsn(*right));
        }
        let rest = DataRange::new(at, range.end);
        holes.extend(Some(rest).filter(|hole| !hole.is_empty()));
    }

    fn release(&mut self) {
        self.chunks.release(self.read.0.saturating_sub(self.kept.history));
    }

    /// Next byte expected, including the DATA_FIN once it is reached.
    pub(crate) fn data_ack(&self) -> Dsn {
        self.next.plus(u64::from(self.fin_reached))
    }

    /// Next byte expected, excluding a DATA_FIN.
    pub(crate) const fn next(&self) -> Dsn {
        self.next
    }

    /// One past the last byte that the peer may send.
    pub(crate) const fn edge(&self) -> Dsn {
        self.edge
    }

    /// Number of bytes that the application may read now.
    pub(crate) const fn readable(&self) -> u64 {
        self.next.since(self.read)
    }

    /// True if all data was read and the stream has ended.
    pub(crate) const fn at_end(&self) -> bool {
        self.fin_reached && self.readable() == 0
    }

    /// True if all data before the DATA_FIN has been received.
    pub(crate) const fn fin_reached(&self) -> bool {
        self.fin_reached
    }

    /// Memory held, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.chunks.memory()
    }

    /// Memory that lists use, in bytes.
    pub(crate) fn bookkeeping(&self) -> u64 {
        (self.ranges_beyond.capacity() * size_of::<(u64, u64)>()) as u64
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        if self.ranges_beyond.is_empty() {
            self.ranges_beyond.retire();
        } else {
            self.ranges_beyond.shrink_to_fit();
        }
        self.chunks.shrink_list();
    }

    /// Handles payload within the window that was refused because memory is short and the application has data to read.
    /// The window is reported as closed, so that the peer probes instead of treating the payload as lost. Senders must
    /// handle such a shrunk window (RFC 9293 section 3.8.6). Data within the original window is accepted again once
    /// there is memory.
    pub(crate) fn withdraw_window(&mut self) {
        self.is_withdrawn = true;
    }

    /// Window to advertise with the current DATA_ACK.
    pub(crate) fn window(&self) -> u64 {
        if self.is_withdrawn {
            return 0;
        }
        let held = self.kept.get_used().map_or(0, |kept| kept.held);
        self.edge.since(self.next).saturating_sub(held)
    }

    /// Sets the number of bytes that wait outside the buffer to be inserted.
    pub(crate) fn set_held(&mut self, bytes: u64) {
        if bytes != self.kept.held {
            self.kept.held = bytes;
        }
    }

    /// Drops a DATA_FIN that was announced and not reached.
    pub(crate) fn forget_fin(&mut self) {
        if !self.fin_reached {
            self.fin = FinPosition::default();
        }
    }

    /// Current size of the window, filled or not.
    pub(crate) const fn window_size(&self) -> u64 {
        self.window
    }

    /// Maximum size of the window.
    pub(crate) const fn max_window(&self) -> u64 {
        self.max_window as u64
    }

    /// Inserts bytes at their position. Bytes beyond the advertised edge are dropped; the peer must not send them.
    pub(crate) fn insert(&mut self, at: Dsn, bytes: &[u8]) -> InsertOutcome {
        let limit = self.fin.get().map_or(self.edge, |fin| fin.min(self.edge)).0;
        let (mut start, end) = (at.0, (at.0 + bytes.len() as u64).min(limit));
        let mut result = InsertOutcome::default();
        if start < self.next.0 {
            result.duplicate = end.min(self.next.0).saturating_sub(start);
            start = self.next.0;
        }
        if start >= end {
            return result;
        }
        let slice = |from: u64, to: u64| &bytes[(from - at.0) as usize..(to - at.0) as usize];
        if self.has_no_gap() && start == self.next.0 {
            self.chunks.write(start, slice(start, end));
            result.new = end - start;
        } else {
            let first = self.ranges_beyond.partition_point(|r| r.1 < start);
            let touches_none = self.ranges_beyond.get(first).is_none_or(|r| r.0 > end);
            if touches_none
                && start != self.next.0
                && self.ranges_beyond.len() >= self.max_ranges as usize
            {
                return result;
            }
            let mut position = start;
            let mut index = first;
            while let Some(&(left, right)) = self.ranges_beyond.get(index).filter(|r| r.0 < end) {
                if position < left {
                    self.chunks.write(position, slice(position, left));
                    result.new += left - position;
                }
                result.duplicate += right.min(end) - left.max(position).min(right.min(end));
                position = position.max(right);
                index += 1;
            }
            if position < end {
                self.chunks.write(position, slice(position, end));
                result.new += end - position;
            }
            self.remember(first, start, end);
        }
        if start == self.next.0 {
            self.advance(end);
            result.advanced = true;
        }
        self.grow_if_filled();
        result
    }

    /// True if all received data is in order.
    pub(crate) fn has_no_gap(&self) -> bool {
        self.ranges_beyond.get_used().is_none_or(Vec::is_empty)
    }

    /// One past the highest position received.
    fn highest(&self) -> u64 {
        self.ranges_beyond.get_used().and_then(|beyond| beyond.last()).map_or(self.next.0, |r| r.1)
    }

    /// Adds `start..end` to the ranges and merges adjacent ones.
    fn remember(&mut self, first: usize, mut start: u64, mut end: u64) {
        let mut last = first;
        while let Some(&(left, right)) = self.ranges_beyond.get(last).filter(|r| r.0 <= end) {
            start = start.min(left);
            end = end.max(right);
            last += 1;
        }
        // Usually the new range extends an existing one.
        match last - first {
            1 => self.ranges_beyond[first] = (start, end),
            _ => drop(self.ranges_beyond.splice(first..last, [(start, end)])),
        }
    }

    fn advance(&mut self, end: u64) {
        self.next = Dsn(self.next.0.max(end));
        if let Some(beyond) = self.ranges_beyond.if_used() {
            while let Some(&(left, right)) = beyond.first() {
                if left > self.next.0 {
                    break;
                }
                self.next = Dsn(self.next.0.max(right));
                beyond.remove(0);
            }
        }
        self.fin_reached |= self.fin.get() == Some(self.next);
    }

    /// Doubles the window if three quarters of it are used and a slow application is not the reason.
    fn grow_if_filled(&mut self) {
        let ahead = self.highest() - self.read.0;
        if ahead * 4 < self.window * 3 || self.readable() * 2 > self.window {
            return;
        }
        self.window = (self.window * 2).min(self.max_window());
        self.refresh_edge();
    }

    /// Measures how much the application reads in each round trip, and adjusts the window.
    pub(crate) fn adapt_to_reader(&mut self, now: Instant, rtt: Duration) {
        if !self.is_measured {
            (self.is_measured, self.measured_since, self.measured_from) = (true, now, self.read);
        }
        let (since, from) = (self.measured_since, self.measured_from);
        let elapsed = now.since(since);
        if elapsed < rtt || elapsed.is_zero() {
            return;
        }
        // The bytes read are scaled to a round trip, so that a pause of the application does not count as speed.
        let scaled = u128::from(self.read.since(from)) * rtt.as_nanos() / elapsed.as_nanos();
        let read = scaled as u64;
        let mut wanted = read.saturating_mul(2);
        let before = u64::from(self.read_per_rtt);
        if before > 0 && read > before {
            let growth = u128::from(read - before) * u128::from(wanted);
            let growth = u64::try_from(growth / u128::from(before)).unwrap_or(u64::MAX);
            wanted = wanted.saturating_add(growth.min(wanted));
        }
        self.read_per_rtt = u32::try_from(read).unwrap_or(u32::MAX);
        (self.measured_since, self.measured_from) = (now, self.read);
        if wanted > self.window {
            self.window = wanted.min(self.max_window());
        }
    }

    /// Sets the DSN of the peer's DATA_FIN. False if that contradicts earlier data.
    pub(crate) fn set_fin(&mut self, at: Dsn) -> bool {
        if self.fin.get().is_some_and(|fin| fin != at) || at.0 < self.highest() {
            return self.fin.get() == Some(at);
        }
        self.fin = FinPosition::new(at);
        self.fin_reached |= at == self.next;
        true
    }

    /// Copies bytes to the application. Returns their number, and true if the window opened enough for an update.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> (usize, bool) {
        let n = (out.len() as u64).min(self.readable()) as usize;
        if n == 0 || !self.chunks.read(self.read.0, &mut out[..n]) {
            return (0, false);
        }
        self.read = self.read.plus(n as u64);
        self.release();
        if self.read == self.next && self.has_no_gap() && self.kept.history == 0 {
            self.chunks.shrink();
        }
        (n, self.open_window())
    }

    /// Copies bytes to the application without consuming them. Returns their number.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        let n = (out.len() as u64).min(self.readable()) as usize;
        if self.chunks.read(self.read.0, &mut out[..n]) { n } else { 0 }
    }

    /// Drops all unread data, and all data that arrives later.
    pub(crate) fn discard(&mut self) {
        self.read = self.next;
        if let Some(kept) = self.kept.if_used() {
            kept.history = 0;
        }
        self.release();
        self.open_window();
    }

    /// Advances the edge after the application has read data. Returns true if it moved enough for an update (RFC 9293
    /// section 3.8.6.2.2: half the window), or reopened a nearly closed window.
    fn open_window(&mut self) -> bool {
        let edge = self.wanted_edge();
        if self.end_withdrawal() {
            self.edge = edge;
            return true;
        }
        let (gain, left) = (edge.since(self.edge), self.edge.since(self.next));
        let window = self.window.min(edge.since(self.read));
        if gain > 0 && (gain * 2 >= window || (left * 4 < window && gain * 8 >= window)) {
            self.edge = edge;
            return true;
        }
        false
    }

    /// Ends a withdrawal, unless memory is still short and the application has data to read.
    fn end_withdrawal(&mut self) -> bool {
        let was_withdrawn = self.is_withdrawn;
        self.is_withdrawn = was_withdrawn && self.readable() > 0 && self.is_memory_short();
        was_withdrawn && !self.is_withdrawn
    }

    /// Moves the edge as far as possible before a segment advertises the window anyway.
    pub(crate) fn refresh_edge(&mut self) {
        self.edge = self.wanted_edge();
        self.end_withdrawal();
    }
}

impl crate::fec::KnownBytes for ReceiveBuffer {
    fn oldest(&self) -> Dsn {
        self.oldest_kept()
    }

    fn next(&self) -> Dsn {
        ReceiveBuffer::next(self)
    }

    fn missing_ranges(&self, range: DataRange, holes: &mut Vec<DataRange>) {
        self.holes(range, holes);
    }

    fn read(&self, at: Dsn, out: &mut [u8]) -> bool {
        self.copy_kept(at, out)
    }
}

/// DSN of the stream's end, if known. Stored plus one, so that `None` needs no space.
#[derive(Copy, Clone, Debug, Default)]
struct FinPosition(Option<NonZeroU64>);

impl FinPosition {
    const fn new(place: Dsn) -> Self {
        FinPosition(NonZeroU64::new(place.0.saturating_add(1)))
    }

    fn get(self) -> Option<Dsn> {
        self.0.map(|more| Dsn(more.get() - 1))
    }
}

#[cfg(test)]
mod tests;
