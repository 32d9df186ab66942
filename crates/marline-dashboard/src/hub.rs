//! Hub of a dashboard: its viewers, the last messages, and the task that looks at the program while somebody watches.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::{Happening, Pace, Source};

/// Viewers at the same time.
pub const MAX_VIEWERS: usize = 16;

/// Messages that a new viewer gets: a minute of looks, and what happened.
pub const RECENT: usize = 320;

/// Messages that a viewer may be behind.
pub(crate) const BEHIND: usize = 64;

/// So many happenings are told in a second; the rest is counted.
const HAPPENINGS: u32 = 64;

/// Connections are listed in one of so many looks.
const DETAILED: u32 = 4;

/// A dashboard that others tell what happened. Clones are one dashboard.
#[derive(Clone, Debug, Default)]
pub struct Dashboard {
    state: Arc<Mutex<State>>,
    /// Somebody came.
    came: Arc<Notify>,
    /// Nanoseconds of a processor that telling viewers took since the last look.
    spent_ns: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    viewers: Vec<Viewer>,
    recent: VecDeque<Bytes>,
    /// A second, happenings told in it, and those that were not told since the last look.
    second: Option<Instant>,
    told: u32,
    untold: u64,
}

#[derive(Debug)]
struct Viewer {
    messages: mpsc::Sender<Bytes>,
    /// Ends its connection, which may be stuck in writing.
    end: Arc<Notify>,
}

impl State {
    /// Whether another happening is told in this second.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.second.is_none_or(|begin| now - begin >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.told = 0;
        }
        self.told < HAPPENINGS
    }

    fn send(&mut self, message: &Bytes) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(message.clone());
        self.pass_on(message);
    }

    /// To the viewers; those who are too far behind are let go.
    fn pass_on(&mut self, message: &Bytes) {
        self.viewers.retain(|viewer| {
            let taken = viewer.messages.try_send(message.clone()).is_ok();
            if !taken {
                viewer.end.notify_one();
            }
            taken
        });
    }
}

impl Dashboard {
    /// Tells the viewers, and those who come soon, what happened.
    pub fn tell(&self, happening: &Happening) {
        let mut state = self.state();
        if !state.has_room(Instant::now()) {
            state.untold += 1 + happening.more;
            return;
        }
        state.told += 1;
        state.send(&message("happening", happening));
    }

    /// Whether what happens now would be told. Otherwise it is counted with this.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let mut state = self.state();
        let wants = state.has_room(Instant::now());
        state.untold += u64::from(!wants);
        wants
    }

    /// Viewers now.
    #[must_use]
    pub fn viewers(&self) -> usize {
        let mut state = self.state();
        state.viewers.retain(|viewer| !viewer.messages.is_closed());
        state.viewers.len()
    }

    /// Telling a viewer took a processor for so long.
    pub(crate) fn spent(&self, time: Duration) {
        self.spent_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// One more viewer, whose connection ends when `end` is notified. `None`: there are too many.
    pub(crate) fn join(
        &self,
        end: Arc<Notify>,
        source: &dyn Source,
    ) -> Option<mpsc::Receiver<Bytes>> {
        let first = message("about", &source.about());
        let mut state = self.state();
        state.viewers.retain(|viewer| !viewer.messages.is_closed());
        if state.viewers.len() >= MAX_VIEWERS {
            return None;
        }
        let (messages, receiver) = mpsc::channel(BEHIND);
        let so_far: Vec<u8> =
            std::iter::once(&first).chain(&state.recent).flatten().copied().collect();
        // There is room: it is new.
        let _ = messages.try_send(Bytes::from(so_far));
        state.viewers.push(Viewer { messages, end });
        drop(state);
        self.came.notify_one();
        Some(receiver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the program while somebody watches; never ends.
    pub(crate) async fn watch(self, source: Arc<dyn Source>) {
        let mut pace = Pace::default();
        let mut number: u32 = 0;
        loop {
            if self.viewers() == 0 {
                self.came.notified().await;
                number = 0;
                continue;
            }
            let pause = self.look(&*source, number, &mut pace);
            number = number.wrapping_add(1);
            tokio::time::sleep(pause).await;
        }
    }

    fn look(&self, source: &dyn Source, number: u32, pace: &mut Pace) -> Duration {
        let begin = thread_time();
        let sample = source.sample(number.is_multiple_of(DETAILED));
        let at_us = sample.at_us;
        let text = message("sample", &sample);
        let mut state = self.state();
        state.send(&text);
        let more = std::mem::take(&mut state.untold);
        if more > 0 {
            let left_out =
                Happening { event: "LEFT_OUT".into(), at_us, more, ..Happening::default() };
            state.send(&message("happening", &left_out));
        }
        drop(state);
        // With what the viewers of the one before took: sixteen take as much as the look.
        let told = Duration::from_nanos(self.spent_ns.swap(0, Ordering::Relaxed));
        pace.after(thread_time().saturating_sub(begin) + told)
    }
}

/// For how long this thread has run.
pub(crate) fn thread_time() -> Duration {
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(ran).unwrap_or_default()
}

/// A server-sent event. JSON has no line ends but escaped ones.
pub(crate) fn message(kind: &str, value: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(value)
        .unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()));
    Bytes::from(format!("event: {kind}\ndata: {json}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{About, Sample};

    struct Still;

    impl Source for Still {
        fn about(&self) -> About {
            About { role: "client".into(), ..About::default() }
        }

        fn sample(&self, _: bool) -> Sample {
            Sample::default()
        }
    }

    fn happening(number: u64) -> Happening {
        Happening { event: "HOLE".into(), at_us: number, ..Happening::default() }
    }

    #[test]
    fn who_does_not_read_is_let_go_and_the_rest_stay() {
        let dashboard = Dashboard::default();
        let end = Arc::new(Notify::new());
        let slow = dashboard.join(end.clone(), &Still).expect("a place");
        let mut quick = dashboard.join(Arc::default(), &Still).expect("a place");
        for number in 0..200 {
            dashboard.look(&Still, number, &mut Pace::default());
            while quick.try_recv().is_ok() {}
        }
        assert_eq!(dashboard.viewers(), 1);
        assert!(slow.len() <= BEHIND);
        assert!(was_told(&end), "its connection is to end");
    }

    /// Whether somebody was notified before.
    fn was_told(end: &Notify) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(end.notified()).poll(&mut context).is_ready()
    }

    #[test]
    fn there_are_so_many_places_and_who_goes_frees_one() {
        let dashboard = Dashboard::default();
        let mut all: Vec<_> = (0..MAX_VIEWERS)
            .map(|_| dashboard.join(Arc::default(), &Still).expect("a place"))
            .collect();
        assert!(dashboard.join(Arc::default(), &Still).is_none());
        all.pop();
        assert!(dashboard.join(Arc::default(), &Still).is_some());
    }

    #[test]
    fn what_viewers_take_is_a_part_of_what_looks_take() {
        let (dashboard, mut pace) = (Dashboard::default(), Pace::default());
        let mut looks = |took: Duration| {
            let each = (0..40).map(|number| {
                dashboard.spent(took);
                dashboard.look(&Still, number, &mut pace)
            });
            each.last().expect("a pause")
        };
        let viewers = Duration::from_millis(8);
        assert!(looks(viewers) >= viewers * 99);
        assert_eq!(looks(Duration::ZERO), Pace::SHORTEST);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_not_told_is_counted() {
        let dashboard = Dashboard::default();
        (0..10_000).for_each(|number| dashboard.tell(&happening(number)));
        dashboard.look(&Still, 0, &mut Pace::default());
        let mut viewer = dashboard.join(Arc::default(), &Still).expect("a place");
        let text = viewer.try_recv().expect("what was so far");
        let text = String::from_utf8(text.to_vec()).expect("text");
        assert!(text.starts_with("event: about\ndata: {\"role\":\"client\""), "{text}");
        // On a machine that stands still for a second, twice as many.
        let told = text.matches("\"HOLE\"").count();
        assert!(told.is_multiple_of(HAPPENINGS as usize) && told < 1_000, "{told}");
        let left_out = format!("\"more\":{}", 10_000 - told);
        assert!(text.contains("LEFT_OUT") && text.contains(&left_out), "{text}");
        (0..1_000).for_each(|number| {
            dashboard.look(&Still, number, &mut Pace::default());
        });
        assert_eq!(dashboard.state().recent.len(), RECENT);
    }
}
