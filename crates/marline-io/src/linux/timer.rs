//! Nanosecond timer on tokio. Tokio's own timer rounds up to whole milliseconds, which is too coarse for pacing,
//! tail loss probes and delayed ACKs. A timerfd is one more file descriptor in the same epoll set and fires within
//! tens of microseconds. It can be set from any thread.

use core::task::{Context, Poll, ready};
use std::io;
use std::os::fd::OwnedFd;

use marline_time::Duration;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::edge::descriptor::watch;

/// One-shot timer.
#[derive(Debug)]
pub(crate) struct FineTimer {
    fd: AsyncFd<OwnedFd>,
}

impl FineTimer {
    /// Creates a timer that is not set. Needs a tokio runtime with I/O.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(FineTimer { fd: watch(fd, tokio::io::Interest::READABLE)? })
    }

    /// Sets the timer to fire after `delay` (zero: immediately), replacing any previous time.
    pub(crate) fn set(&self, delay: Duration) -> io::Result<()> {
        // A time of zero would stop the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: delay.subsec_nanos().into(),
        };
        let spec = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }

    /// Ready if the timer has fired since the last time this was ready.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let mut count = [0u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut count) {
                Err(Errno::WOULDBLOCK) => {}
                read => return Poll::Ready(read.map(drop).map_err(io::Error::from)),
            }
            guard.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_fine_timer_fires_once_when_set() {
        let timer = FineTimer::new().unwrap();
        let idle = poll_fn(|cx| Poll::Ready(timer.poll_fired(cx).is_pending())).await;
        assert!(idle);
        timer.set(Duration::from_secs(3600)).unwrap();
        timer.set(Duration::from_micros(150)).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
        let idle = poll_fn(|cx| Poll::Ready(timer.poll_fired(cx).is_pending())).await;
        assert!(idle, "fires only once");
        timer.set(Duration::ZERO).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
    }
}
