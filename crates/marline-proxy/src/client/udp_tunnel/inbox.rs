//! Inbox of an application's socket: received data that has not been taken yet, limited in items and bytes and charged
//! to the memory budget. Data that does not fit is dropped, as by a socket's buffer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline::memory::{MemoryAccount, MemoryCharge, MemoryKind};
use tokio::sync::mpsc;

/// Limits on the data that waits in an inbox, in items and in bytes.
const MAX_ITEMS: usize = 256;
const MAX_BYTES: u64 = 512 << 10;
/// Number of bytes that may wait even if no memory is free.
const MIN_BYTES: u64 = 16 << 10;
/// Granularity of memory charges, in bytes.
const CHARGE_STEP_BYTES: u64 = 4 << 10;
/// Memory that an item takes in addition to its payload, in bytes.
const ITEM_BYTES: u64 = 128;

/// Contents of an inbox.
#[derive(Debug)]
struct InboxContents {
    bytes: u64,
    charge: MemoryCharge,
}

impl InboxContents {
    /// Adds `bytes`, if there is room for them.
    fn try_grow(&mut self, bytes: u64) -> bool {
        let after = self.bytes + bytes;
        if after > MAX_BYTES {
            return false;
        }
        let account = self.charge.account();
        if after > self.charge.bytes() && after > account.allowance().max(MIN_BYTES) {
            account.count_wait();
            return false;
        }
        self.charge.resize_in_steps(after, CHARGE_STEP_BYTES);
        self.bytes = after;
        true
    }

    fn shrink(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.charge.resize_in_steps(self.bytes, CHARGE_STEP_BYTES);
    }
}

#[derive(Clone, Debug)]
struct SharedInbox(Arc<Mutex<InboxContents>>);

impl SharedInbox {
    fn lock(&self) -> MutexGuard<'_, InboxContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Data for an application's socket. Ends when the socket is closed.
#[derive(Debug)]
pub struct Inbox<T> {
    waiting: mpsc::Receiver<(T, u64)>,
    held: SharedInbox,
}

impl<T> Inbox<T> {
    /// Returns the next item, or `None` if the socket is closed. Cancel safe.
    pub async fn recv(&mut self) -> Option<T> {
        let (item, bytes) = self.waiting.recv().await?;
        self.held.lock().shrink(bytes);
        Some(item)
    }

    /// Returns true if the socket is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.waiting.is_closed()
    }
}

/// Sending half of an inbox.
#[derive(Debug)]
pub(super) struct Delivery<T> {
    waiting: mpsc::Sender<(T, u64)>,
    held: SharedInbox,
}

impl<T> Delivery<T> {
    /// Adds an item with this size of payload. Returns true if there was room for it.
    pub(super) fn push(&self, item: T, payload_bytes: usize) -> bool {
        let bytes = payload_bytes as u64 + ITEM_BYTES;
        if !self.held.lock().try_grow(bytes) {
            return false;
        }
        let taken = self.waiting.try_send((item, bytes)).is_ok();
        if !taken {
            self.held.lock().shrink(bytes);
        }
        taken
    }
}

/// Returns an inbox that is charged to this account.
pub(super) fn inbox<T>(account: &MemoryAccount) -> (Delivery<T>, Inbox<T>) {
    let charge = account.charge(MemoryKind::Datagram, 0);
    let held = SharedInbox(Arc::new(Mutex::new(InboxContents { bytes: 0, charge })));
    let (sender, receiver) = mpsc::channel(MAX_ITEMS);
    (Delivery { waiting: sender, held: held.clone() }, Inbox { waiting: receiver, held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline::memory::MemoryBudget;

    #[tokio::test]
    async fn an_inbox_is_bounded_in_number_and_bytes_and_charged() {
        let budget = MemoryBudget::new(None);
        let account = budget.account(u64::MAX);
        for (payload, number) in [(8_192, 63), (1_316, 256), (0, 256)] {
            let (delivery, mut inbox) = inbox(&account);
            let taken = (0..1_000).filter(|_| delivery.push(7, payload)).count();
            assert_eq!(taken, number, "of {payload} bytes");
            let held = taken as u64 * (payload as u64 + ITEM_BYTES);
            assert!(
                (held..=held + CHARGE_STEP_BYTES).contains(&account.used()),
                "{held}, {}",
                account.used()
            );
            for _ in 0..taken {
                assert_eq!(inbox.recv().await, Some(7));
            }
            assert!(account.used() < 2 * CHARGE_STEP_BYTES, "{}", account.used());
            assert!(delivery.push(7, payload), "there is room again");
            drop((delivery, inbox));
            assert_eq!(account.used(), 0, "including the queued items");
        }
    }

    #[test]
    fn an_inbox_keeps_its_minimum_when_memory_is_short() {
        let budget = MemoryBudget::new(Some(1_000_000));
        let (other, account) = (budget.account(u64::MAX), budget.account(u64::MAX));
        let _full = other.charge(MemoryKind::Send, 1_000_000);
        let (delivery, _inbox) = inbox(&account);
        let taken = (0..1_000).filter(|_| delivery.push((), 1_316)).count();
        assert_eq!(taken, 11);
        assert!(account.used() <= MIN_BYTES && account.wait_count() > 0);
    }
}
