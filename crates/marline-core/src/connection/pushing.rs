//! When less than a full segment leaves, and what it may contain.
//!
//! By default whatever the application wrote leaves at once, in as few segments as it takes. Three wishes
//! change that: to wait for more ([`Hold`]), to keep records apart (no segment has bytes of two, so that a lost
//! one delays no other), and to have little in the buffer that was never sent
//! ([`Setting::NotSentLowat`]). And one ends it: data that nobody acknowledged for too long
//! ([`Setting::UserTimeout`]).

use std::collections::VecDeque;

use marline_policy::Dsn;
use marline_time::{Duration, Instant};

use super::Connection;
use crate::tables::Context;
use crate::{CloseReason, Event, Hold, Keepalive, Setting};

/// Ends of records remembered at once: beyond, records are not kept apart.
const MAX_RECORDS: usize = 1_024;

/// What lets a held segment go.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Release {
    #[default]
    None,
    /// An ACK came.
    Quietly,
    /// It has waited long enough: with PSH.
    Overdue,
}

/// How long a sender waits for more than a sliver of the peer's window when nothing is in flight: the
/// retransmission timeout, as for a closed window, within what RFC 9293 section 3.8.6.2.1 recommends.
const WINDOW_WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Waiting for a window that is worth a segment.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum WindowWait {
    #[default]
    No,
    Until(Instant),
    /// Long enough: what there is, is used.
    Over,
}

/// The wishes, and what follows from them.
#[derive(Debug, Default)]
pub(super) struct Pushing {
    hold: Hold,
    release: Release,
    /// Until when the held segment waits.
    hold_until: Option<Instant>,
    window_wait: WindowWait,
    /// Ends of records, in order, that lie beyond what is acknowledged.
    records: VecDeque<Dsn>,
    lowat: Option<u64>,
    user_timeout: Option<Duration>,
    /// How the application wants silence met, if it said so.
    pub(super) keepalive: Option<Option<Keepalive>>,
    /// When unacknowledged data ends the connection.
    give_up_at: Option<Instant>,
}

impl Pushing {
    /// Nothing but a sliver of the peer's window is left: whether to wait for more.
    pub(super) fn waits_for_window(&mut self, now: Instant, rto: Duration) -> bool {
        if self.window_wait == WindowWait::No {
            let (least, most) = WINDOW_WAIT;
            self.window_wait = WindowWait::Until(now + rto.clamp(least, most));
        }
        self.window_wait != WindowWait::Over
    }

    /// A segment leaves.
    pub(super) fn leave_window_wait(&mut self) {
        self.window_wait = WindowWait::No;
    }

    /// When this file's times come.
    pub(super) fn timeouts(&self) -> [Option<Instant>; 3] {
        let window = match self.window_wait {
            WindowWait::Until(at) => Some(at),
            _ => None,
        };
        [self.hold_until, self.give_up_at, window]
    }

    fn on_window_wait(&mut self, now: Instant) {
        if matches!(self.window_wait, WindowWait::Until(at) if at <= now) {
            self.window_wait = WindowWait::Over;
        }
    }
}

impl Connection {
    /// The application changes something.
    pub(crate) fn set(&mut self, now: Instant, setting: Setting) {
        match setting {
            Setting::Nagle(on) => {
                self.config.nagle = on;
                self.pushing.release = match self.pushing.hold {
                    Hold::Corked if !on => Release::Overdue,
                    Hold::MoreFollows if !on => Release::Quietly,
                    _ => self.pushing.release,
                };
            }
            Setting::Hold(hold) => {
                self.pushing.hold = hold;
                self.pushing.release = Release::None;
                self.pushing.hold_until = None;
            }
            Setting::NotSentLowat(bytes) => self.pushing.lowat = bytes,
            Setting::UserTimeout(timeout) => {
                self.pushing.user_timeout = timeout;
                self.pushing.give_up_at = None;
                self.watch_progress(now);
            }
            Setting::SendBuffer(bytes) => self.send.resize(bytes),
            Setting::KnownPeer => self.config.linger.stranger = None,
            Setting::Keepalive(times) => {
                self.pushing.keepalive = Some(times);
                for leg in self.legs.iter_mut().flatten() {
                    leg.tcp.set_keepalive(times);
                }
            }
        }
    }

    /// What was written so far ends here: no segment will have bytes from both sides.
    pub(crate) fn end_record(&mut self) {
        let end = self.send.end();
        let records = &mut self.pushing.records;
        if records.len() < MAX_RECORDS && records.back().is_none_or(|last| *last < end) {
            records.push_back(end);
        }
    }

    /// Bytes of a segment from `start` on that belong to one record; whether a record ends with them.
    pub(super) fn within_record(&self, start: Dsn, len: usize) -> (usize, bool) {
        let end = self.pushing.records.iter().find(|end| **end > start);
        match end.map(|end| end.since(start)) {
            Some(left) if left <= len as u64 => (left as usize, true),
            _ => (len, false),
        }
    }

    /// The last bytes there are, fewer than a segment holds, wait for more.
    pub(super) fn is_held(&mut self, now: Instant) -> bool {
        let pushing = &self.pushing;
        if pushing.hold == Hold::No || pushing.release != Release::None || self.closing.shutdown {
            return false;
        }
        let wait = self.largest_rto();
        self.pushing.hold_until.get_or_insert(now + wait);
        true
    }

    /// The last bytes there are leave: whether the peer should deliver them at once.
    pub(super) fn take_release(&mut self) -> bool {
        self.pushing.hold_until = None;
        let release = core::mem::take(&mut self.pushing.release);
        self.pushing.hold != Hold::MoreFollows || release == Release::Overdue
    }

    /// The peer acknowledged data.
    pub(super) fn pushing_on_ack(&mut self, now: Instant) {
        let una = self.send.una();
        while self.pushing.records.front().is_some_and(|end| *end <= una) {
            self.pushing.records.pop_front();
        }
        let waits = self.mappings.end() < self.send.end();
        if self.pushing.hold == Hold::MoreFollows && waits {
            self.pushing.release = Release::Quietly;
        }
        self.pushing.give_up_at = None;
        self.watch_progress(now);
    }

    /// Data is under way: from now on somebody should acknowledge it.
    pub(super) fn watch_progress(&mut self, now: Instant) {
        let Some(timeout) = self.pushing.user_timeout else { return };
        let outstanding = self.send.una() < self.mappings.end()
            || self.closing.fin_sent && !self.closing.fin_acked;
        if outstanding {
            self.pushing.give_up_at.get_or_insert(now + timeout);
        }
    }

    /// Times of this file that have come.
    pub(super) fn on_pushing_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        self.pushing.on_window_wait(now);
        if self.pushing.hold_until.is_some_and(|at| at <= now) {
            self.pushing.hold_until = None;
            self.pushing.release = Release::Overdue;
        }
        if self.pushing.give_up_at.is_some_and(|at| at <= now) {
            self.pushing.give_up_at = None;
            self.finish(cx, CloseReason::TimedOut);
            for leg in self.legs.iter_mut().flatten() {
                leg.shut = true;
                leg.tcp.reset();
            }
        }
    }

    /// How many of `len` bytes may be written now without too much lying unsent.
    pub(super) fn unsent_room(&self, len: usize) -> usize {
        let Some(lowat) = self.pushing.lowat else { return len };
        let unsent = self.send.end().since(self.mappings.end());
        len.min(lowat.saturating_sub(unsent) as usize)
    }

    /// Whether a writer who was refused may be told of room, as far as unsent bytes go.
    pub(super) fn few_unsent(&self) -> bool {
        let unsent = self.send.end().since(self.mappings.end());
        self.pushing.lowat.is_none_or(|lowat| unsent * 2 <= lowat)
    }

    /// Data was sent: a writer who was refused for what lay unsent hears of it.
    pub(super) fn tell_of_sent(&mut self, cx: &mut Context<'_>) {
        let refused = self.pushing.lowat.is_some() && self.send.is_blocked();
        if refused && self.few_unsent() && self.send.take_writable() && !self.closing.released {
            cx.out.event(Event::Writable(self.id));
        }
    }
}
