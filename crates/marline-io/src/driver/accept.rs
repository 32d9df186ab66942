//! Incoming connections that wait for the application.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::stream::Stream;

/// Incoming connections that wait for `accept`.
#[derive(Debug)]
pub struct AcceptQueue {
    waiting: Mutex<VecDeque<Stream>>,
    capacity: usize,
    closed: AtomicBool,
    notify: Notify,
}

impl AcceptQueue {
    /// A queue for at most `capacity` connections.
    #[must_use]
    pub fn new(capacity: usize) -> Arc<Self> {
        let waiting = Mutex::new(VecDeque::new());
        Arc::new(AcceptQueue {
            waiting,
            capacity: capacity.max(1),
            closed: AtomicBool::new(false),
            notify: Notify::new(),
        })
    }

    pub(super) fn push(&self, stream: Stream) -> Option<Stream> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= self.capacity || self.closed.load(Ordering::Relaxed) {
            return Some(stream);
        }
        waiting.push_back(stream);
        drop(waiting);
        self.notify.notify_one();
        None
    }

    /// The next one; `None` when it takes no more. Safe to cancel.
    pub async fn pop(&self) -> Option<Stream> {
        loop {
            let notified = self.notify.notified();
            let (next, more) = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                (waiting.pop_front(), !waiting.is_empty())
            };
            if next.is_some() {
                if more {
                    self.notify.notify_one();
                }
                return next;
            }
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            notified.await;
        }
    }

    /// Takes no more, lets go of all connections that wait, and tells who waits for one.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let all =
            core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        drop(all);
        self.notify.notify_waiters();
    }
}
