//! Task of a shard: receives, keeps the timer, and takes over datagrams from other shards.
//!
//! After a batch that woke an application, acknowledgments are held back for one turn of the
//! scheduler: the application runs first, and the data it writes carries them. If it writes
//! nothing, they are sent microseconds later.

use core::future::poll_fn;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use marline_time::{Duration, Instant};
use tokio::sync::mpsc;

use super::connections::register;
use super::reception::{NotingWaker, Reception};
use super::shard::Shard;
use super::state::Handover;

/// System calls to receive before other tasks get their turn.
const RECEIVES_PER_TURN: usize = 4;
/// Turns for which timers may be put off.
const POSTPONE_TIMERS: u32 = 4;
/// An orphaned shard waits this long for its connections to close.
const LINGER: Duration = Duration::from_secs(10);
/// On native carriers also for TIME-WAIT to end: the kernel would answer stragglers with RST.
const FAREWELL: Duration = Duration::from_secs(70);

struct Task {
    shard: Arc<Shard>,
    handed_over: mpsc::Receiver<Handover>,
    waker: NotingWaker,
    /// Turns for which the timer was put off, as there was more to receive.
    postponed: u32,
    /// Sockets are asked although nothing was said of them.
    may_busy_poll: bool,
    /// When it became an orphan.
    orphaned_at: Option<Instant>,
}

/// Tells everybody when the task ends, however it ends.
struct StopGuard(Arc<Shard>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.receiving.lock().close();
        let mut state = self.0.lock();
        state.stopped = true;
        state.sockets.clear();
        #[expect(clippy::iter_over_hash_type, reason = "everybody is woken")]
        for slot in state.slots.values_mut() {
            slot.wake_all();
        }
        state.lanes.wake_all();
        drop(state);
        self.0.links.close_all();
    }
}

/// Runs a shard until nobody needs it.
pub(super) async fn run(shard: Arc<Shard>, handed_over: mpsc::Receiver<Handover>) {
    let _guard = StopGuard(Arc::clone(&shard));
    let may_busy_poll = shard.lock().busy_poll.is_enabled();
    let mut task = Task {
        shard,
        handed_over,
        waker: NotingWaker::default(),
        postponed: 0,
        may_busy_poll,
        orphaned_at: None,
    };
    if let Err(error) = poll_fn(|cx| task.poll(cx)).await {
        tracing::error!(%error, "the network driver stops");
    }
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shard = Arc::clone(&self.shard);
        let waker = self.waker.of(&shard.receiving.readiness, cx.waker());
        let cx = &mut Context::from_waker(&waker);
        let mut reception = shard.receiving.lock();
        shard.receiving.readiness.is_polled();
        if self.prepare(cx, &mut reception) {
            return Poll::Ready(Ok(()));
        }
        self.poll_handed_over(cx);
        let mut turns = 0;
        let mut at = 0;
        while at < reception.sockets() {
            match shard.poll_socket(&mut reception, cx, at, self.may_busy_poll)? {
                false => at += 1,
                true => turns += 1,
            }
            if turns >= RECEIVES_PER_TURN {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if self.may_busy_poll && self.busy_polls(turns > 0) {
            cx.waker().wake_by_ref();
        }
        // Timers come after what was received: a process that did not run for a while finds both,
        // and the acknowledgment that is there already must not count as missing.
        let more_to_receive = at < reception.sockets();
        if more_to_receive && self.postponed < POSTPONE_TIMERS {
            self.postponed += 1;
            return Poll::Pending;
        }
        self.postponed = 0;
        drop(reception);
        self.poll_timer(cx)?;
        if self.is_over(self.shard.clock.now()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Whether it comes back at once to look at its sockets, having received something or not.
    fn busy_polls(&self, received: bool) -> bool {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        if received {
            state.busy_poll.on_exchange(now);
        }
        state.busy_poll.is_on(now)
    }

    /// What must be seen to first; `true` if the task is to end.
    fn prepare(&mut self, cx: &Context<'_>, reception: &mut Reception) -> bool {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        register(&mut state.driver, cx);
        reception.refresh(&mut state);
        state.turns.set_driver(cx.waker());
        if !state.turns.goes_on(now) {
            self.shard.serve(&mut state, now);
        }
        let nothing_armed = state.armed.is_none();
        drop(state);
        let over = self.is_over(now);
        if self.orphaned_at.is_some() && !over && nothing_armed {
            // Nothing else would bring us back here.
            let _ = self.shard.timer.set(LINGER);
        }
        over
    }

    /// Nobody holds the shard, and nothing is left to do.
    fn is_over(&mut self, now: Instant) -> bool {
        if !self.shard.is_abandoned() {
            return false;
        }
        let since = *self.orphaned_at.get_or_insert(now);
        let (connections, stragglers) = self.shard.remains();
        if connections {
            return now >= since + LINGER;
        }
        !stragglers || now >= since + FAREWELL
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Poll::Ready(fired) = self.shard.timer.poll_fired(cx) {
            fired?;
            let mut state = self.shard.lock();
            let now = self.shard.now(&mut state);
            self.shard.on_timer(&mut state, now);
        }
        Ok(())
    }

    fn poll_handed_over(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(handover)) = self.handed_over.poll_recv(cx) {
            let mut state = self.shard.lock();
            let now = self.shard.now(&mut state);
            self.shard.on_handover(&mut state, now, &handover);
            self.shard.serve(&mut state, now);
        }
    }
}
