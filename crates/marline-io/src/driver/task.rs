//! Task of a shard: receives packets, serves the timer, and takes datagrams from other shards.
//!
//! After a batch that woke an application, acknowledgments wait for one turn of the task scheduler: the application
//! runs first, and the data it writes carries them. If it writes nothing, they are sent microseconds later.

use core::future::poll_fn;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;

use marline_time::{Duration, Instant};
use tokio::sync::mpsc;

use super::generations;
use super::ingress;
use super::reception::{ReadyTimeWaker, Reception};
use super::shard::{Handover, Shard};

/// Number of receive calls before other tasks get their turn.
const RECEIVES_PER_TURN: usize = 4;
/// Maximum number of turns for which timers are postponed.
const MAX_POSTPONED_TURNS: u32 = 4;
/// Time that a shard without handles waits for its connections to close.
const LINGER: Duration = Duration::from_secs(10);
/// Time that such a shard waits for TIME-WAIT to end on native carriers, because the kernel would answer late segments
/// with RST.
const CLOSING_TIME: Duration = Duration::from_secs(70);

struct Task {
    shard: Arc<Shard>,
    handed_over: mpsc::Receiver<Handover>,
    waker: ReadyTimeWaker,
    /// Number of turns for which timers were postponed because there was more to receive.
    postponed: u32,
    /// True if sockets are read even if they are not ready.
    may_busy_poll: bool,
    /// Time at which the last handle was dropped.
    orphaned_at: Option<Instant>,
}

/// Notifies all waiting tasks when the shard's task ends for any reason.
struct StopGuard(Arc<Shard>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.receiving().lock().close();
        let mut state = self.0.lock();
        state.stop();
        drop(state);
        self.0.links().close_all();
    }
}

/// Runs a shard until it is no longer needed.
pub(super) async fn run(shard: Arc<Shard>, handed_over: mpsc::Receiver<Handover>) {
    let _guard = StopGuard(Arc::clone(&shard));
    let may_busy_poll = shard.lock().wakeups().may_busy_poll();
    let mut task = Task {
        shard,
        handed_over,
        waker: ReadyTimeWaker::default(),
        postponed: 0,
        may_busy_poll,
        orphaned_at: None,
    };
    if let Err(error) = poll_fn(|cx| task.poll(cx)).await {
        tracing::error!(%error, "the network driver is stopping");
    }
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shard = Arc::clone(&self.shard);
        let waker = self.waker.of(shard.receiving().readiness(), cx.waker());
        let cx = &mut Context::from_waker(&waker);
        let mut reception = shard.receiving().lock();
        shard.receiving().readiness().record_polled();
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
        if self.may_busy_poll && self.continues_polling(turns > 0) {
            cx.waker().wake_by_ref();
        }
        // Timers come after reception: if the process did not run for some time, an acknowledgment that has already
        // arrived must not count as missing.
        let more_to_receive = at < reception.sockets();
        if more_to_receive && self.postponed < MAX_POSTPONED_TURNS {
            self.postponed += 1;
            return Poll::Pending;
        }
        self.postponed = 0;
        drop(reception);
        self.poll_timer(cx)?;
        if self.is_over(self.shard.clock().now()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Returns true if the task must immediately poll its sockets again. `received` is true if it received data.
    fn continues_polling(&self, received: bool) -> bool {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        if received {
            state.wakeups().on_exchange(now);
        }
        state.wakeups().is_busy_polling(now)
    }

    /// Does the work at the start of each poll. Returns true if the task must end.
    fn prepare(&mut self, cx: &Context<'_>, reception: &mut Reception) -> bool {
        let mut state = self.shard.lock();
        let now = self.shard.now(&mut state);
        state.wakeups().set_task(cx);
        if let Some(sockets) = state.sockets().take_change() {
            reception.set_sockets(sockets);
        }
        if !state.wakeups().defers_writes(now) {
            self.shard.serve(&mut state, now);
        }
        let nothing_armed = state.wakeups().alarm_at().is_none();
        drop(state);
        let over = self.is_over(now);
        if self.orphaned_at.is_some() && !over && nothing_armed {
            // Nothing else would wake the task.
            let _ = self.shard.timer().set(LINGER);
        }
        over
    }

    /// Returns true if the shard has no handle left and no work to finish.
    fn is_over(&mut self, now: Instant) -> bool {
        if !generations::is_abandoned(&self.shard) {
            return false;
        }
        let since = *self.orphaned_at.get_or_insert(now);
        let (connections, stragglers) = generations::remaining_work(&self.shard);
        if connections {
            return now >= since + LINGER;
        }
        !stragglers || now >= since + CLOSING_TIME
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Poll::Ready(fired) = self.shard.timer().poll_fired(cx) {
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
            ingress::on_handover(&self.shard, &mut state, now, &handover);
            self.shard.serve(&mut state, now);
        }
    }
}
