//! Nanosecond timer on tokio. Tokio's own rounds up to whole milliseconds, which is too coarse for
//! pacing, tail loss probes and delayed ACKs; a timerfd is one more file descriptor in the same
//! epoll set and fires within tens of microseconds. It can be set from any thread.

use core::task::{Context, Poll, ready};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use marline_time::Duration;
use tokio::io::unix::AsyncFd;

use super::check;

/// A one-shot timer.
#[derive(Debug)]
pub(crate) struct FineTimer {
    fd: AsyncFd<OwnedFd>,
}

impl FineTimer {
    /// A timer that is not set. Needs a tokio runtime with I/O.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: takes two integers and returns a new descriptor or -1.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the descriptor is new, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(FineTimer { fd: crate::sys::watch(fd, tokio::io::Interest::READABLE)? })
    }

    /// Fires after `delay` (zero: at once), and not at the time set before.
    pub(crate) fn set(&self, delay: Duration) -> io::Result<()> {
        // A time of zero would stop the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(delay.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: delay.subsec_nanos() as _,
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: the descriptor is ours and open; the pointers are to a live itimerspec, and null
        // for the old value, which is allowed.
        check(unsafe {
            libc::timerfd_settime(self.fd.as_raw_fd(), 0, &raw const spec, core::ptr::null_mut())
        })?;
        Ok(())
    }

    /// Ready when it has fired since the last time this was ready.
    pub(crate) fn poll_fired(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let mut count = [0u8; 8];
            // SAFETY: the descriptor is ours; the buffer has the eight bytes a timerfd writes.
            let read =
                unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
            if read >= 0 {
                return Poll::Ready(Ok(()));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Poll::Ready(Err(error));
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
    async fn it_fires_when_set_and_only_then() {
        let timer = FineTimer::new().unwrap();
        let idle = poll_fn(|cx| Poll::Ready(timer.poll_fired(cx).is_pending())).await;
        assert!(idle);
        timer.set(Duration::from_secs(3600)).unwrap();
        timer.set(Duration::from_micros(150)).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
        let idle = poll_fn(|cx| Poll::Ready(timer.poll_fired(cx).is_pending())).await;
        assert!(idle, "one shot");
        timer.set(Duration::ZERO).unwrap();
        poll_fn(|cx| timer.poll_fired(cx)).await.unwrap();
    }
}
