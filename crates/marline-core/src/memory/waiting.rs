//! New streams that wait for memory.
//!
//! Each account has a queue. The first stream is woken when memory of the process is freed and the account has room.
//! It charges its memory before the next one checks, so that a little room admits few streams.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering::SeqCst;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};

use super::{MemoryAccount, MemoryCharge, MemoryKind, PoisonError, Process};

/// Queue of an account.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    queue: VecDeque<Waiter>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    waker: Waker,
}

impl Process {
    /// Wakes the first stream of each queue whose account has room, after memory was freed.
    #[inline]
    pub(super) fn wake_waiting(&self) {
        if self.waiting.load(SeqCst) > 0 {
            self.wake_first_waiters();
        }
    }

    #[cold]
    fn wake_first_waiters(&self) {
        let mut accounts = self.accounts_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut woken = Vec::new();
        accounts.retain(|account| {
            let Some(account) = account.upgrade().map(MemoryAccount) else { return false };
            let queue = account.queue();
            if account.has_room() {
                woken.extend(queue.queue.front().map(|head| head.waker.clone()));
            }
            !queue.queue.is_empty()
        });
        drop(accounts);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl MemoryAccount {
    fn queue(&self) -> MutexGuard<'_, WaitQueue> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a stream to the queue.
    fn enqueue(&self, waker: &Waker) -> u64 {
        let process = &self.0.process;
        // Locked before the queue, in the same order as in `wake_heads`.
        let mut accounts = process.accounts_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = self.queue();
        if waiting.queue.is_empty() {
            accounts.retain(|account| !core::ptr::eq(account.as_ptr(), Arc::as_ptr(&self.0)));
            accounts.push(Arc::downgrade(&self.0));
        }
        let ticket = waiting.next_ticket;
        waiting.next_ticket += 1;
        waiting.queue.push_back(Waiter { ticket, waker: waker.clone() });
        process.waiting.fetch_add(1, SeqCst);
        ticket
    }

    /// Removes a stream from the queue. The next stream checks for room itself.
    fn dequeue(&self, ticket: u64) {
        let mut waiting = self.queue();
        let Some(at) = waiting.queue.iter().position(|waiter| waiter.ticket == ticket) else {
            return;
        };
        waiting.queue.remove(at);
        self.0.process.waiting.fetch_sub(1, SeqCst);
        let next = waiting.queue.front().filter(|_| at == 0).map(|head| head.waker.clone());
        drop(waiting);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// A new stream that is waiting for memory; see [`MemoryAccount::wait_for_room`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct WaitForRoom {
    account: MemoryAccount,
    kind: MemoryKind,
    bytes: u64,
    ticket: Option<u64>,
}

impl WaitForRoom {
    pub(super) fn new(account: &MemoryAccount, kind: MemoryKind, bytes: u64) -> WaitForRoom {
        WaitForRoom { account: account.clone(), kind, bytes, ticket: None }
    }

    /// True if the stream is the first in its queue.
    fn is_first(&self, waker: &Waker) -> bool {
        let mut waiting = self.account.queue();
        let Some(ticket) = self.ticket else { return waiting.queue.is_empty() };
        let is_first = waiting.queue.front().is_some_and(|head| head.ticket == ticket);
        if let Some(waiter) = waiting.queue.iter_mut().find(|waiter| waiter.ticket == ticket) {
            waiter.waker.clone_from(waker);
        }
        is_first
    }
}

impl Future for WaitForRoom {
    type Output = MemoryCharge;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<MemoryCharge> {
        loop {
            if self.is_first(cx.waker()) && self.account.has_room() {
                let charge = self.account.charge(self.kind, self.bytes);
                if let Some(ticket) = self.ticket.take() {
                    self.account.dequeue(ticket);
                }
                return Poll::Ready(charge);
            }
            if self.ticket.is_some() {
                return Poll::Pending;
            }
            self.account.count_wait();
            self.ticket = Some(self.account.enqueue(cx.waker()));
            // Memory freed before the stream was in the queue did not wake it, so it checks again.
        }
    }
}

impl Drop for WaitForRoom {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.account.dequeue(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::super::MemoryBudget;
    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waiting stream, with the number of its wake-ups.
    struct Stream {
        wait: WaitForRoom,
        wakes: Arc<Wakes>,
    }

    impl Stream {
        fn of(account: &MemoryAccount) -> Stream {
            let wait = account.wait_for_room(MemoryKind::Connection, 100);
            Stream { wait, wakes: Arc::default() }
        }

        fn poll(&mut self) -> Poll<MemoryCharge> {
            let waker = Waker::from(self.wakes.clone());
            Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
        }

        fn wakes(&self) -> usize {
            self.wakes.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn streams_get_room_in_order_and_each_is_charged_before_the_next_checks() {
        let budget = MemoryBudget::new(Some(1_000));
        let account = budget.account(u64::MAX);
        // New streams find room below 857 bytes; each takes 100.
        let mut held = account.charge(MemoryKind::Send, 900);
        let mut streams: Vec<_> = (0..4).map(|_| Stream::of(&account)).collect();
        assert!(streams.iter_mut().all(|stream| stream.poll().is_pending()));
        assert_eq!((account.wait_count(), streams[0].wakes()), (4, 0));
        held.resize(670);
        assert!(streams.iter().map(Stream::wakes).eq([1, 0, 0, 0]));
        assert!(streams[1].poll().is_pending(), "another stream is first");
        let Poll::Ready(first) = streams[0].poll() else { panic!("room was freed") };
        let Poll::Ready(second) = streams[1].poll() else { panic!("room was freed") };
        assert_eq!(account.used(), 870);
        assert!(streams[2].poll().is_pending() && Stream::of(&account).poll().is_pending());
        // A stream that gives up lets the next one proceed.
        drop(streams.remove(2));
        drop((first, second));
        let third = streams[2].poll();
        assert!(third.is_ready());
        drop((third, held, streams));
        assert!(Stream::of(&account).poll().is_ready(), "the queue of waiting streams is empty");
        assert_eq!(budget.0.waiting.load(SeqCst), 0);
    }

    #[test]
    fn memory_freed_elsewhere_and_a_larger_budget_wake_waiters() {
        let budget = MemoryBudget::new(Some(1_000));
        let (one, other) = (budget.account(u64::MAX), budget.account(u64::MAX));
        let (_held, large) =
            (one.charge(MemoryKind::Send, 500), other.charge(MemoryKind::Send, 450));
        let mut stream = Stream::of(&one);
        assert!(stream.poll().is_pending());
        drop(large);
        assert_eq!(stream.wakes(), 1);
        let large = other.charge(MemoryKind::Send, 450);
        assert!(stream.poll().is_pending());
        budget.set_limit(None);
        assert_eq!(stream.wakes(), 2);
        assert!(stream.poll().is_ready());
        drop(large);
    }
}
