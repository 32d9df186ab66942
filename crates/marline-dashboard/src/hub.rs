//! Hub of a dashboard: viewers, recent messages, and the task that samples the program while there are viewers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::{Pace, Source, TimedEvent};

/// Maximum number of viewers.
pub const MAX_VIEWERS: usize = 16;

/// Maximum number of messages kept for new viewers: samples of about a minute, and events.
pub const MAX_REPLAYED: usize = 320;

/// Maximum number of messages that a viewer may lag behind.
pub(crate) const MAX_LAG: usize = 64;

/// Maximum number of events sent per second. Further events are only counted.
const MAX_EVENTS_PER_S: u32 = 64;

/// One in this many samples lists the connections.
const DETAIL_INTERVAL: u32 = 4;

/// Handle with which others report events to a dashboard. Clones refer to the same dashboard.
#[derive(Clone, Debug, Default)]
pub struct Dashboard {
    state: Arc<Mutex<State>>,
    /// Notified when a viewer joins.
    viewer_joined: Arc<Notify>,
    /// CPU time spent on sending to viewers since the last sample, in nanoseconds.
    spent_ns: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    viewers: Vec<Viewer>,
    recent: VecDeque<Bytes>,
    /// Start of the current second, number of events sent since then, and number of omitted events since the last
    /// sample.
    second: Option<Instant>,
    reported_viewers: u32,
    unreported: u64,
}

#[derive(Debug)]
struct Viewer {
    messages: mpsc::Sender<Bytes>,
    /// Signal to end the viewer's connection, which may be blocked in a write.
    end: Arc<Notify>,
}

impl State {
    /// Returns true if another event may be sent in this second.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.second.is_none_or(|begin| now - begin >= Duration::from_secs(1)) {
            self.second = Some(now);
            self.reported_viewers = 0;
        }
        self.reported_viewers < MAX_EVENTS_PER_S
    }

    fn send(&mut self, message: &Bytes) {
        if self.recent.len() == MAX_REPLAYED {
            self.recent.pop_front();
        }
        self.recent.push_back(message.clone());
        self.pass_on(message);
    }

    /// Sends a message to the viewers, and disconnects those that lag too far behind.
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
    /// Reports an event to the current viewers and, for a while, to new ones.
    pub fn report(&self, happening: &TimedEvent) {
        let mut state = self.state();
        if !state.has_room(Instant::now()) {
            state.unreported += 1 + happening.more;
            return;
        }
        state.reported_viewers += 1;
        state.send(&message("happening", happening));
    }

    /// Returns true if an event reported now would be sent. Otherwise the event is counted as omitted.
    #[must_use]
    pub fn accepts_event(&self) -> bool {
        let mut state = self.state();
        let wants = state.has_room(Instant::now());
        state.unreported += u64::from(!wants);
        wants
    }

    /// Returns the current number of viewers.
    #[must_use]
    pub fn viewers(&self) -> usize {
        let mut state = self.state();
        state.viewers.retain(|viewer| !viewer.messages.is_closed());
        state.viewers.len()
    }

    /// Adds CPU time spent on sending to a viewer.
    pub(crate) fn add_processor_time(&self, time: Duration) {
        self.spent_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds a viewer, whose connection ends when `end` is notified. Returns `None` if there are too many.
    pub(crate) fn add_viewer(
        &self,
        end: Arc<Notify>,
        source: &dyn Source,
    ) -> Option<mpsc::Receiver<Bytes>> {
        let first = message("about", &source.describe());
        let mut state = self.state();
        state.viewers.retain(|viewer| !viewer.messages.is_closed());
        if state.viewers.len() >= MAX_VIEWERS {
            return None;
        }
        let (messages, receiver) = mpsc::channel(MAX_LAG);
        let so_far: Vec<u8> =
            std::iter::once(&first).chain(&state.recent).flatten().copied().collect();
        // The channel is new, so it has room.
        let _ = messages.try_send(Bytes::from(so_far));
        state.viewers.push(Viewer { messages, end });
        drop(state);
        self.viewer_joined.notify_one();
        Some(receiver)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples the program while there are viewers. Never returns.
    pub(crate) async fn run_sampling(self, source: Arc<dyn Source>) {
        let mut pace = Pace::default();
        let mut number: u32 = 0;
        loop {
            if self.viewers() == 0 {
                self.viewer_joined.notified().await;
                number = 0;
                continue;
            }
            let pause = self.sample_connection(&*source, number, &mut pace);
            number = number.wrapping_add(1);
            tokio::time::sleep(pause).await;
        }
    }

    fn sample_connection(&self, source: &dyn Source, number: u32, pace: &mut Pace) -> Duration {
        let begin = thread_time();
        let sample = source.sample(number.is_multiple_of(DETAIL_INTERVAL));
        let at_us = sample.at_us;
        let text = message("sample", &sample);
        let mut state = self.state();
        state.send(&text);
        let more = std::mem::take(&mut state.unreported);
        if more > 0 {
            let left_out =
                TimedEvent { event: "LEFT_OUT".into(), at_us, more, ..TimedEvent::default() };
            state.send(&message("happening", &left_out));
        }
        drop(state);
        // Includes the time for the viewers of the previous sample: sixteen viewers cost as much as a sample.
        let told = Duration::from_nanos(self.spent_ns.swap(0, Ordering::Relaxed));
        pace.next_delay(thread_time().saturating_sub(begin) + told)
    }
}

/// Returns the CPU time of this thread.
pub(crate) fn thread_time() -> Duration {
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(ran).unwrap_or_default()
}

/// Encodes a server-sent event. JSON contains only escaped line breaks.
pub(crate) fn message(kind: &str, value: &impl Serialize) -> Bytes {
    let json = serde_json::to_string(value)
        .unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()));
    Bytes::from(format!("event: {kind}\ndata: {json}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Description, Sample};

    struct Still;

    impl Source for Still {
        fn describe(&self) -> Description {
            Description { role: "client".into(), ..Description::default() }
        }

        fn sample(&self, _: bool) -> Sample {
            Sample::default()
        }
    }

    fn happening(number: u64) -> TimedEvent {
        TimedEvent { event: "HOLE".into(), at_us: number, ..TimedEvent::default() }
    }

    #[test]
    fn a_viewer_that_does_not_read_is_dropped_and_others_stay() {
        let dashboard = Dashboard::default();
        let end = Arc::new(Notify::new());
        let slow = dashboard.add_viewer(end.clone(), &Still).expect("a place");
        let mut quick = dashboard.add_viewer(Arc::default(), &Still).expect("a place");
        for number in 0..200 {
            dashboard.sample_connection(&Still, number, &mut Pace::default());
            while quick.try_recv().is_ok() {}
        }
        assert_eq!(dashboard.viewers(), 1);
        assert!(slow.len() <= MAX_LAG);
        assert!(is_notified(&end), "the slow viewer's connection is ended");
    }

    /// Returns true if a notification is stored.
    fn is_notified(end: &Notify) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(end.notified()).poll(&mut context).is_ready()
    }

    #[test]
    fn viewers_are_limited_until_one_leaves() {
        let dashboard = Dashboard::default();
        let mut all: Vec<_> = (0..MAX_VIEWERS)
            .map(|_| dashboard.add_viewer(Arc::default(), &Still).expect("a place"))
            .collect();
        assert!(dashboard.add_viewer(Arc::default(), &Still).is_none());
        all.pop();
        assert!(dashboard.add_viewer(Arc::default(), &Still).is_some());
    }

    #[test]
    fn the_sampling_pace_includes_the_cost_of_viewers() {
        let (dashboard, mut pace) = (Dashboard::default(), Pace::default());
        let mut looks = |took: Duration| {
            let each = (0..40).map(|number| {
                dashboard.add_processor_time(took);
                dashboard.sample_connection(&Still, number, &mut pace)
            });
            each.last().expect("a pause")
        };
        let viewers = Duration::from_millis(8);
        assert!(looks(viewers) >= viewers * 99);
        assert_eq!(looks(Duration::ZERO), Pace::MIN_INTERVAL);
    }

    #[test]
    fn kept_events_are_bounded_and_omitted_ones_counted() {
        let dashboard = Dashboard::default();
        (0..10_000).for_each(|number| dashboard.report(&happening(number)));
        dashboard.sample_connection(&Still, 0, &mut Pace::default());
        let mut viewer = dashboard.add_viewer(Arc::default(), &Still).expect("a place");
        let text = viewer.try_recv().expect("the state so far");
        let text = String::from_utf8(text.to_vec()).expect("text");
        assert!(text.starts_with("event: about\ndata: {\"role\":\"client\""), "{text}");
        // Twice as many if the machine was suspended for a second.
        let told = text.matches("\"HOLE\"").count();
        assert!(told.is_multiple_of(MAX_EVENTS_PER_S as usize) && told < 1_000, "{told}");
        let left_out = format!("\"more\":{}", 10_000 - told);
        assert!(text.contains("LEFT_OUT") && text.contains(&left_out), "{text}");
        (0..1_000).for_each(|number| {
            dashboard.sample_connection(&Still, number, &mut Pace::default());
        });
        assert_eq!(dashboard.state().recent.len(), MAX_REPLAYED);
    }
}
