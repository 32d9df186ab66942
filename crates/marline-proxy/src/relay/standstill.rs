//! Time limit for a relay whose application has left and whose receiver accepts nothing.
//!
//! A stream has no time limit while its application is present: people pause videos and suspend editors. But when the
//! application has closed its connection and the other side accepts none of the remaining bytes, waiting serves no
//! purpose, and each such stream would hold its buffers for as long as the process runs. Therefore a direction ends the
//! relay if its sender has finished, its receiver answers but accepts no data, and nothing has moved for [`LIMIT`]. A
//! receiver from which nothing is received is exempt: its path may be down and come back.
//!
//! The timer exists only in relays in which a writer was blocked or one direction has ended. Later turns check it
//! without polling it.

use std::io;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::transport::PeerState;

/// Time without progress after which such a relay ends. The actual end comes within twice that time.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// Watches a relay for progress. Most relays never need the timer, and are small without it.
#[derive(Debug, Default)]
pub(super) struct Standstill(Option<Box<Watch>>);

#[derive(Debug)]
struct Watch {
    timer: Pin<Box<Sleep>>,
    /// Progress when the timer was started.
    was: Progress,
}

/// Progress of a relay.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Bytes to the local side, and from it.
    local: (u64, u64),
    written: (usize, usize),
    unacknowledged: u64,
}

/// State of one direction of a relay.
#[derive(Copy, Clone, Debug)]
pub(super) struct Direction {
    /// Number of the buffer's bytes that have been written. It changes with each partial write.
    pub(super) written: usize,
    /// True if the sender's end has been read.
    pub(super) read_all: bool,
    /// True if the direction waits for the receiver to accept bytes or the end.
    pub(super) is_blocked: bool,
    /// True if the end has been passed on.
    pub(super) is_done: bool,
}

impl Standstill {
    /// Checks a relay in which a direction is blocked or has ended. `out` is the direction from the local side.
    /// `looked` gives the bytes to and from the local side, and the state of the two peers.
    ///
    /// # Errors
    /// `TimedOut` if the relay has made no progress for too long.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        out: Direction,
        back: Direction,
        looked: impl FnOnce() -> ((u64, u64), PeerState, PeerState),
    ) -> io::Result<()> {
        if self.0.as_ref().is_some_and(|watch| !watch.timer.is_elapsed()) {
            return Ok(());
        }
        let (counts, local, remote) = looked();
        let is = Progress {
            local: counts,
            written: (out.written, back.written),
            unacknowledged: local.unacknowledged + remote.unacknowledged,
        };
        let waited = self.0.as_ref().is_some_and(|watch| watch.was == is);
        if waited
            && (has_undeliverable_data(out, local, remote)
                || has_undeliverable_data(back, remote, local))
        {
            let text =
                format!("one end has closed, and the other took no data for {} s", LIMIT.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let mut timer = Box::pin(sleep(LIMIT));
        // Registers this task, so that the timer causes a poll of the relay.
        let _ = timer.as_mut().poll(cx);
        self.0 = Some(Box::new(Watch { timer, was: is }));
        Ok(())
    }
}

/// Returns true if the sender of a direction has finished and its receiver does not accept the remaining bytes.
fn has_undeliverable_data(direction: Direction, sender: PeerState, receiver: PeerState) -> bool {
    let finished = direction.read_all || sender.finished;
    let left = match direction.is_done {
        true => receiver.unacknowledged > 0,
        false => direction.is_blocked,
    };
    finished && left && receiver.refuses_data
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{Instant, timeout};

    use super::super::{Traffic, relay};
    use super::*;
    use crate::testing::Pipe;

    /// Returns a relay between two pipes that hold 1,000 bytes each, and their other ends.
    fn start(
        refuses_data: bool,
    ) -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<io::Result<Pipe>>) {
        let ((app, local), (target, remote)) = (duplex(1_000), duplex(1_000));
        let local = Pipe::new(local, None);
        let remote = Pipe {
            peer_state: PeerState { refuses_data, ..PeerState::default() },
            ..Pipe::new(remote, None)
        };
        let run =
            tokio::spawn(async move { relay(local, remote, &Traffic::default(), pending()).await });
        (app, target, run)
    }

    #[tokio::test(start_paused = true)]
    async fn data_of_a_closed_application_to_a_stalled_target_times_out() {
        let (mut app, target, run) = start(true);
        app.write_all(&[1; 3_000]).await.unwrap();
        app.shutdown().await.unwrap();
        let begun = Instant::now();
        let error = timeout(4 * LIMIT, run).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= LIMIT && begun.elapsed() <= 2 * LIMIT, "{:?}", begun.elapsed());
        drop(target);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_target_gets_all_the_time_it_needs() {
        let (mut app, mut target, run) = start(true);
        app.write_all(&[1; 3_000]).await.unwrap();
        app.shutdown().await.unwrap();
        for _ in 0..3_000 {
            tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
            assert_eq!(target.read_u8().await.unwrap(), 1);
        }
        target.shutdown().await.unwrap();
        run.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn open_applications_and_unreachable_receivers_are_waited_for() {
        for (finishes, refuses_data) in [(false, true), (true, false)] {
            let (mut app, target, run) = start(refuses_data);
            app.write_all(&[1; 3_000]).await.unwrap();
            if finishes {
                app.shutdown().await.unwrap();
            }
            assert!(timeout(100 * LIMIT, run).await.is_err(), "{finishes} {refuses_data}");
            drop((app, target));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_connection_may_be_silent() {
        let (mut app, mut target, run) = start(true);
        app.write_all(b"question").await.unwrap();
        app.shutdown().await.unwrap();
        tokio::time::sleep(50 * LIMIT).await;
        target.write_all(b"late answer").await.unwrap();
        target.shutdown().await.unwrap();
        let mut answer = Vec::new();
        app.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"late answer");
        run.await.unwrap().unwrap();
    }
}
