//! Nagle's algorithm and its variants: conditions for sending less than a full segment, and limits on its content.
//!
//! By default, written data is sent immediately, in as few segments as possible. Three options change that: waiting
//! for more data ([`Hold`]), keeping records apart (no segment has bytes of two records, so that a lost segment
//! delays only one), and limiting unsent bytes in the buffer ([`NotSentLowat`](crate::SocketOption::NotSentLowat)). A
//! fourth option ends the connection if data stays unacknowledged for too long
//! ([`UserTimeout`](crate::SocketOption::UserTimeout)).

use std::collections::VecDeque;

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use crate::Hold;
use crate::on_demand::{OnDemand, UnusedState};

/// Limit on remembered ends of records. Beyond it, records are not kept apart.
const MAX_RECORDS: usize = 1_024;

/// Events that release a held segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Release {
    #[default]
    None,
    /// An ACK was received.
    OnAck,
    /// The hold time has passed. The segment is sent with PSH.
    Overdue,
}

/// Bounds on the time for which a sender with nothing in flight waits until more than a small part of the peer's window
/// is available. The time is the retransmission timeout, as for a closed window, within the range that RFC 9293 section
/// 3.8.6.2.1 recommends.
const WINDOW_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Wait for a window that is large enough for a segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum WindowWait {
    #[default]
    No,
    Until(Instant),
    /// The wait is over, and the available window is used.
    Over,
}

/// Settings of Nagle's algorithm and its variants, and the state that they need.
#[derive(Debug, Default)]
pub(super) struct Nagle {
    /// A partial segment waits while data is in flight.
    on: bool,
    hold: Hold,
    release: Release,
    limits: OnDemand<Limits>,
}

/// Rarely used settings and pending waits.
#[derive(Debug, Default)]
struct Limits {
    /// End of the hold time.
    hold_until: Option<Instant>,
    window_wait: WindowWait,
    /// Unacknowledged ends of records, in order.
    records: VecDeque<Dsn>,
    lowat: Option<u64>,
    user_timeout: Option<Duration>,
    /// Time at which unacknowledged data ends the connection.
    give_up_at: Option<Instant>,
}

impl UnusedState for Limits {
    const UNUSED: &'static Self = &Limits {
        hold_until: None,
        window_wait: WindowWait::No,
        records: VecDeque::new(),
        lowat: None,
        user_timeout: None,
        give_up_at: None,
    };
}

impl Nagle {
    pub(super) fn new(on: bool) -> Self {
        Nagle { on, ..Nagle::default() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.on
    }

    /// Turns Nagle's algorithm on or off; turning it off releases held data.
    pub(super) const fn set_on(&mut self, on: bool) {
        self.on = on;
        self.release = match self.hold {
            Hold::Corked if !on => Release::Overdue,
            Hold::MoreFollows if !on => Release::OnAck,
            _ => self.release,
        };
    }

    pub(super) fn set_hold(&mut self, hold: Hold) {
        self.hold = hold;
        self.release = Release::None;
        self.stop_holding();
    }

    fn stop_holding(&mut self) {
        if let Some(limits) = self.limits.if_used() {
            limits.hold_until = None;
        }
    }

    pub(super) fn set_lowat(&mut self, bytes: Option<u64>) {
        self.limits.lowat = bytes;
    }

    pub(super) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.limits.user_timeout = timeout;
        self.limits.give_up_at = None;
    }

    /// Ends a record at this position: no segment will have bytes from both sides.
    pub(super) fn end_record(&mut self, end: Dsn) {
        let records = &mut self.limits.records;
        if records.len() < MAX_RECORDS && records.back().is_none_or(|last| *last < end) {
            records.push_back(end);
        }
    }

    /// True if ends of records are remembered.
    pub(super) fn has_records(&self) -> bool {
        self.limits.get_used().is_some_and(|limits| !limits.records.is_empty())
    }

    /// For a segment that starts at `start`: the number of its bytes that belong to the first record, and true if that
    /// record ends with them.
    pub(super) fn bytes_within_record(&self, start: Dsn, len: usize) -> (usize, bool) {
        let Some(Limits { records, .. }) = self.limits.get_used() else { return (len, false) };
        let end = records.iter().find(|end| **end > start);
        match end.map(|end| end.since(start)) {
            Some(left) if left <= len as u64 => (left as usize, true),
            _ => (len, false),
        }
    }

    /// True if the last bytes, fewer than a segment, should wait for more data, at most for an RTO.
    pub(super) fn holds_back(&mut self, now: Instant, rto: Duration) -> bool {
        if self.hold == Hold::No || self.release != Release::None {
            return false;
        }
        self.limits.hold_until.get_or_insert(now + rto);
        true
    }

    /// Handles the transmission of the last bytes. Returns true if the peer should deliver them immediately.
    pub(super) fn take_release(&mut self) -> bool {
        self.stop_holding();
        let release = core::mem::take(&mut self.release);
        self.hold != Hold::MoreFollows || release == Release::Overdue
    }

    /// Called when only a small part of the peer's window is left. Returns true while the sender should wait for
    /// more.
    pub(super) fn waits_for_window(&mut self, now: Instant, rto: Duration) -> bool {
        let limits = &mut *self.limits;
        if limits.window_wait == WindowWait::No {
            let (least, most) = WINDOW_WAIT;
            limits.window_wait = WindowWait::Until(now + rto.clamp(least, most));
        }
        limits.window_wait != WindowWait::Over
    }

    /// Handles the transmission of a segment.
    pub(super) fn on_segment(&mut self) {
        if let Some(limits) = self.limits.if_used() {
            limits.window_wait = WindowWait::No;
        }
    }

    /// Handles an acknowledgment up to `una`. `waits` is true if there is unsent data.
    pub(super) fn on_ack(&mut self, una: Dsn, waits: bool) {
        if self.hold == Hold::MoreFollows && waits {
            self.release = Release::OnAck;
        }
        let Some(limits) = self.limits.if_used() else { return };
        while limits.records.front().is_some_and(|end| *end <= una) {
            limits.records.pop_front();
        }
        limits.give_up_at = None;
    }

    /// Starts the user timeout for data in flight.
    pub(super) fn watch_progress(&mut self, now: Instant) {
        if let Some(limits) = self.limits.if_used()
            && let Some(timeout) = limits.user_timeout
        {
            limits.give_up_at.get_or_insert(now + timeout);
        }
    }

    /// Number of bytes, up to `len`, that may be written now within the limit on unsent data.
    pub(super) fn writable_bytes(&self, len: usize, unsent: u64) -> usize {
        self.limits
            .get_used()
            .and_then(|limits| limits.lowat)
            .map_or(len, |lowat| len.min(lowat.saturating_sub(unsent) as usize))
    }

    /// True if the amount of unsent data is low enough to notify a blocked writer.
    pub(super) fn is_unsent_low(&self, unsent: u64) -> bool {
        self.limits.lowat.is_none_or(|lowat| unsent * 2 <= lowat)
    }

    /// True if unsent data limits writers.
    pub(super) fn limits_unsent(&self) -> bool {
        self.limits.lowat.is_some()
    }

    /// Releases memory unless there are limits or pending waits.
    pub(super) fn shrink(&mut self) {
        let Limits { records, lowat, user_timeout, .. } = &*self.limits;
        let asked_for = lowat.is_some() || user_timeout.is_some() || !records.is_empty();
        if !asked_for && self.timeouts().iter().all(Option::is_none) {
            self.limits.retire();
        }
    }

    /// Times at which to call [`on_timeout`](Self::on_timeout).
    pub(super) fn timeouts(&self) -> [Option<Instant>; 3] {
        let Some(limits) = self.limits.get_used() else { return [None; 3] };
        let window = match limits.window_wait {
            WindowWait::Until(at) => Some(at),
            _ => None,
        };
        [limits.hold_until, limits.give_up_at, window]
    }

    /// Handles expired timers. Returns true if data was unacknowledged for too long.
    pub(super) fn on_timeout(&mut self, now: Instant) -> bool {
        let Some(limits) = self.limits.if_used() else { return false };
        if matches!(limits.window_wait, WindowWait::Until(at) if at <= now) {
            limits.window_wait = WindowWait::Over;
        }
        if limits.hold_until.is_some_and(|at| at <= now) {
            limits.hold_until = None;
            self.release = Release::Overdue;
        }
        let given_up = limits.give_up_at.is_some_and(|at| at <= now);
        if given_up {
            limits.give_up_at = None;
        }
        given_up
    }
}
