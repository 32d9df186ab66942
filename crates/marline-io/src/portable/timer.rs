//! Timer based on tokio's timer, which rounds up to whole milliseconds: pacing is coarser than on Linux.

use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use marline_time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Longest delay of the timer.
const LONGEST: Duration = Duration::from_secs(86_400);

/// One-shot timer, which can be set from any thread.
#[derive(Debug)]
pub(crate) struct FineTimer {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sleep: Pin<Box<Sleep>>,
    is_set: bool,
    /// Task that polled last.
    waker: Option<Waker>,
}

impl FineTimer {
    /// Creates a timer that is not set. Needs a tokio runtime with time.
    #[expect(clippy::unnecessary_wraps, reason = "same signature as on Linux")]
    pub(crate) fn new() -> io::Result<Self> {
        let sleep = Box::pin(sleep(core::time::Duration::ZERO));
        Ok(FineTimer { state: Mutex::new(State { sleep, is_set: false, waker: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the timer to fire after `delay` (zero: immediately), replacing any previous time.
    #[expect(clippy::unnecessary_wraps, reason = "same signature as on Linux")]
    pub(crate) fn set(&self, delay: Duration) -> io::Result<()> {
        let mut state = self.lock();
        state.sleep.as_mut().reset(Instant::now() + delay.min(LONGEST));
        state.is_set = true;
        // The task then polls again, which registers it for the new time.
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    /// Ready if the timer has fired since the last time this was ready.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        state.waker = Some(cx.waker().clone());
        if !state.is_set {
            return Poll::Pending;
        }
        ready!(state.sleep.as_mut().poll(cx));
        state.is_set = false;
        Poll::Ready(Ok(()))
    }
}
