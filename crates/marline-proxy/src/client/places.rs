//! Places for applications' connections. At the limit, a connection waits a moment for a place and is then refused,
//! so that an application never waits for an answer that cannot come.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::message::{ErrorCode, Failure};
use crate::rate::{Rate, RateLimit};

/// Time that a connection waits for a place: longer than a burst, shorter than an application's timeout.
const PLACE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of connections that wait at the same time; further ones stay in the kernel's queue.
const MAX_WAITING_CONNECTIONS: usize = 1_024;
/// Rate of warnings about the limit.
const WARNINGS: Rate = Rate { burst: 1, interval: Duration::from_secs(60) };

/// Permission to wait for a place.
#[derive(Debug)]
pub struct WaitTurn(#[expect(dead_code, reason = "held until the wait ends")] OwnedSemaphorePermit);

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub struct Place(
    #[expect(dead_code, reason = "held until the connection ends")] OwnedSemaphorePermit,
);

/// The places of a client.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    count: Mutex<usize>,
    waiting: Arc<Semaphore>,
    refused: AtomicU64,
    warnings: Mutex<RateLimit>,
}

impl Places {
    /// Creates this many places.
    #[must_use]
    pub fn new(count: usize) -> Places {
        Places {
            free: Arc::new(Semaphore::new(count)),
            count: Mutex::new(count),
            waiting: Arc::new(Semaphore::new(MAX_WAITING_CONNECTIONS)),
            refused: AtomicU64::new(0),
            warnings: Mutex::new(RateLimit::new(WARNINGS)),
        }
    }

    /// Changes the number of places. Existing connections stay, and a lower number is reached as they end. Needs a
    /// runtime.
    pub fn resize(&self, places: usize) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if places > *count {
            self.free.add_permits(places - *count);
        }
        if let Some(fewer @ 1..) = count.checked_sub(places) {
            let free = Arc::clone(&self.free);
            // This request for permits queues ahead of later connections.
            tokio::spawn(async move {
                let fewer = u32::try_from(fewer).unwrap_or(u32::MAX);
                if let Ok(permits) = free.acquire_many_owned(fewer).await {
                    permits.forget();
                }
            });
        }
        *count = places;
    }

    /// Waits until fewer than 1,024 connections wait for a place.
    pub async fn wait_for_turn(&self) -> WaitTurn {
        match Arc::clone(&self.waiting).acquire_owned().await {
            Ok(permit) => WaitTurn(permit),
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// Takes a place, or waits for one for up to 3 s.
    ///
    /// # Errors
    /// All places are taken. The failure is meant for the application. A warning is logged once a minute.
    pub async fn take_place(&self, turn: WaitTurn) -> Result<Place, Failure> {
        let taken = timeout(PLACE_TIMEOUT, Arc::clone(&self.free).acquire_owned()).await;
        drop(turn);
        match taken {
            Ok(Ok(permit)) => Ok(Place(permit)),
            _ => Err(self.refuse()),
        }
    }

    /// Takes a place if one is free now.
    ///
    /// # Errors
    /// Same as [`take_place`](Self::take_place).
    pub fn try_take(&self) -> Result<Place, Failure> {
        Arc::clone(&self.free).try_acquire_owned().map(Place).map_err(|_| self.refuse())
    }

    fn refuse(&self) -> Failure {
        let count = *self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.try_take(Instant::now()) {
            tracing::warn!(
                refused,
                "connection limit reached: all {count} connections (--max-connections) are in use; refusing new ones"
            );
        }
        let text = format!("connection limit reached ({count})");
        Failure::new(ErrorCode::ResourceExceeded, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_client_refuses_within_seconds_and_recovers() {
        let places = Places::new(1);
        let first = places.take_place(places.wait_for_turn().await).await.expect("a free place");
        let begun = Instant::now();
        let refused = places.take_place(places.wait_for_turn().await).await.expect_err("no place");
        assert_eq!(refused.code, ErrorCode::ResourceExceeded);
        assert!(refused.text.contains("limit reached (1)"), "{}", refused.text);
        assert_eq!(begun.elapsed(), PLACE_TIMEOUT);
        assert!(places.try_take().is_err());
        let (waiting, ()) =
            tokio::join!(async { places.take_place(places.wait_for_turn().await).await }, async {
                tokio::time::sleep(PLACE_TIMEOUT / 2).await;
                drop(first);
            });
        assert!(waiting.is_ok(), "a place was freed in time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lower_limit_applies_as_connections_end() {
        let places = Places::new(3);
        let mut taken: Vec<Place> = (0..3).map(|_| places.try_take().expect("free")).collect();
        places.resize(1);
        tokio::task::yield_now().await;
        taken.truncate(1);
        tokio::task::yield_now().await;
        assert!(places.try_take().is_err(), "two of three have ended, and the limit is 1");
        places.resize(2);
        assert!(places.try_take().is_ok());
    }
}
