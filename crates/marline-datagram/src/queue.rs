//! Queues of a path: datagrams that wait to be sent for the first time.
//!
//! *Problem.* The packets of a call are late if they wait behind a download. A download fills an unlimited queue, as in
//! a router with bufferbloat. At the same time, urgent data must not starve bulk data.
//!
//! *Solution.* There are two queues. *Urgent* holds all data except bulk data and is served first. Datagrams whose
//! deadline has passed are dropped when their turn comes. *Bulk* is managed as in a router: CoDel (RFC 8289) drops from
//! the head once the waiting time has exceeded a target for an interval, and increasingly often until it no longer
//! does, so that the congestion control inside the flow reacts. After [`MAX_CONSECUTIVE_URGENT`] urgent datagrams, one
//! bulk datagram is sent.
//!
//! *Differs.* The interval is the path's round trip if that is longer than the 100 ms of RFC 8289, and the target is a
//! tenth of it: the window ahead of this queue varies with the round trip, and so does the queue.

use std::collections::VecDeque;

use marline_policy::{FlowClass, PathId};
use marline_time::{Duration, Instant};

/// Maximum number of urgent datagrams in a row while bulk datagrams wait.
const MAX_CONSECUTIVE_URGENT: u32 = 16;
/// Minimum interval of CoDel, and the divisor that yields the target from the interval.
const INTERVAL: Duration = Duration::from_millis(100);
const TARGET_SHARE: u32 = 10;

/// Datagram that waits to be sent.
#[derive(Clone, Debug)]
pub(crate) struct WaitingDatagram {
    pub(crate) flow: u64,
    pub(crate) class: FlowClass,
    pub(crate) payload: Vec<u8>,
    pub(crate) queued_at: Instant,
    pub(crate) deadline: Instant,
    /// Path for a copy.
    pub(crate) copy: Option<PathId>,
    /// True if repairs cover the datagram.
    pub(crate) grouped: bool,
}

/// Waiting datagrams of one path.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    urgent: Fifo,
    bulk: Fifo,
    codel: CoDel,
    urgent_in_a_row: u32,
    /// Datagrams dropped since the last query.
    dropped: Vec<WaitingDatagram>,
}

#[derive(Debug, Default)]
struct Fifo {
    waiting: VecDeque<WaitingDatagram>,
    bytes: usize,
}

impl Fifo {
    fn push(&mut self, datagram: WaitingDatagram) {
        self.bytes += datagram.payload.len();
        self.waiting.push_back(datagram);
    }

    fn pop(&mut self) -> Option<WaitingDatagram> {
        let datagram = self.waiting.pop_front()?;
        self.bytes -= datagram.payload.len();
        Some(datagram)
    }
}

/// Kind of datagrams that may be sent now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Only urgent data.
    Urgent,
    /// Any data.
    Any,
}

impl Queues {
    /// Queues a datagram. Returns it if the queue would exceed `most_bytes`.
    pub(crate) fn push(
        &mut self,
        datagram: WaitingDatagram,
        most_bytes: usize,
    ) -> Result<(), WaitingDatagram> {
        let fifo = match datagram.class {
            FlowClass::Bulk => &mut self.bulk,
            FlowClass::Sparse | FlowClass::Steady => &mut self.urgent,
        };
        if fifo.bytes + datagram.payload.len() > most_bytes {
            return Err(datagram);
        }
        fifo.push(datagram);
        Ok(())
    }

    /// Number of queued bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.urgent.bytes + self.bulk.bytes
    }

    pub(crate) fn has(&self, room: Room) -> bool {
        !self.urgent.waiting.is_empty() || room == Room::Any && !self.bulk.waiting.is_empty()
    }

    /// Takes the next datagram whose deadline has not passed.
    pub(crate) fn pop(
        &mut self,
        now: Instant,
        room: Room,
        rtt: Duration,
    ) -> Option<WaitingDatagram> {
        let bulk_first = room == Room::Any && self.urgent_in_a_row >= MAX_CONSECUTIVE_URGENT;
        if bulk_first && let Some(datagram) = self.pop_bulk(now, rtt) {
            return Some(datagram);
        }
        if let Some(datagram) = self.pop_urgent(now) {
            let waits = !self.bulk.waiting.is_empty();
            self.urgent_in_a_row = if waits { self.urgent_in_a_row + 1 } else { 0 };
            return Some(datagram);
        }
        if room == Room::Any { self.pop_bulk(now, rtt) } else { None }
    }

    /// Takes the next urgent datagram if `fits` accepts it for the current frame.
    pub(crate) fn pop_urgent_if(
        &mut self,
        now: Instant,
        fits: impl Fn(&WaitingDatagram) -> bool,
    ) -> Option<WaitingDatagram> {
        let next = self.urgent.waiting.front()?;
        if next.deadline > now && fits(next) { self.urgent.pop() } else { None }
    }

    fn pop_urgent(&mut self, now: Instant) -> Option<WaitingDatagram> {
        while let Some(datagram) = self.urgent.pop() {
            if datagram.deadline > now {
                return Some(datagram);
            }
            self.dropped.push(datagram);
        }
        None
    }

    fn pop_bulk(&mut self, now: Instant, rtt: Duration) -> Option<WaitingDatagram> {
        self.urgent_in_a_row = 0;
        while let Some(datagram) = self.bulk.pop() {
            let waited = now.since(datagram.queued_at);
            let last = self.bulk.waiting.is_empty();
            if datagram.deadline > now && !self.codel.drops(now, waited, rtt, last) {
                return Some(datagram);
            }
            self.dropped.push(datagram);
        }
        None
    }

    /// Takes a dropped datagram, for counting and for reusing its memory.
    pub(crate) fn take_dropped(&mut self) -> Option<WaitingDatagram> {
        self.dropped.pop()
    }

    /// Takes the next datagram in order, because the path is no longer usable.
    pub(crate) fn take_any(&mut self) -> Option<WaitingDatagram> {
        self.urgent.pop().or_else(|| self.bulk.pop())
    }
}

/// State of CoDel (RFC 8289).
#[derive(Copy, Clone, Debug, Default)]
struct CoDel {
    /// Time at which the waiting time will have exceeded the target for an interval.
    above_until: Option<Instant>,
    dropping: bool,
    next_drop_at: Option<Instant>,
    count: u32,
    last_count: u32,
}

impl CoDel {
    /// Returns true if the datagram at the head must be dropped.
    fn drops(&mut self, now: Instant, waited: Duration, rtt: Duration, last: bool) -> bool {
        let interval = INTERVAL.max(rtt);
        if waited < interval / TARGET_SHARE || last {
            (self.above_until, self.dropping) = (None, false);
            return false;
        }
        let above_until = *self.above_until.get_or_insert(now + interval);
        if self.dropping {
            let due = self.next_drop_at.is_some_and(|at| now >= at);
            if due {
                self.count += 1;
                self.next_drop_at = self.next_drop_at.map(|at| at + interval.div_f32(self.root()));
            }
            return due;
        }
        if now < above_until {
            return false;
        }
        // Shortly after the last dropping phase, continue at about the rate that was needed in that phase.
        let recent =
            self.next_drop_at.is_some_and(|at| now.since(at) < interval * 16) && self.count > 2;
        let added = self.count.saturating_sub(self.last_count);
        self.count = if recent && added > 1 { added } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.next_drop_at = Some(now + interval.div_f32(self.root()));
        true
    }

    fn root(&self) -> f32 {
        (self.count.max(1) as f32).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn waiting(class: FlowClass, at: u64) -> WaitingDatagram {
        WaitingDatagram {
            flow: 1,
            class,
            payload: vec![0; 1_000],
            queued_at: MS(at),
            deadline: MS(at + 1_000),
            copy: None,
            grouped: false,
        }
    }

    fn dropped(queues: &mut Queues) -> usize {
        core::iter::from_fn(|| queues.take_dropped()).count()
    }

    #[test]
    fn late_datagrams_are_dropped_and_urgent_ones_precede_bulk() {
        let mut queues = Queues::default();
        for (class, at) in
            [(FlowClass::Bulk, 1_000), (FlowClass::Steady, 0), (FlowClass::Sparse, 900)]
        {
            queues.push(waiting(class, at), 10_000).unwrap();
        }
        let first = queues.pop(MS(1_001), Room::Any, Duration::ZERO).unwrap();
        assert_eq!((first.class, dropped(&mut queues)), (FlowClass::Sparse, 1));
        assert!(queues.pop(MS(1_001), Room::Urgent, Duration::ZERO).is_none());
        assert!(queues.pop(MS(1_001), Room::Any, Duration::ZERO).is_some());
        assert_eq!(queues.bytes(), 0);
    }

    #[test]
    fn a_full_queue_of_bulk_leaves_room_for_the_others() {
        let mut queues = Queues::default();
        while queues.push(waiting(FlowClass::Bulk, 0), 10_000).is_ok() {}
        assert_eq!(queues.bytes(), 10_000);
        assert!(queues.push(waiting(FlowClass::Sparse, 0), 10_000).is_ok());
    }

    #[test]
    fn bulk_is_not_starved() {
        let mut queues = Queues::default();
        let mut bulk = 0;
        for ms in 0..1_000 {
            queues.push(waiting(FlowClass::Bulk, ms), 1 << 20).ok();
            queues.push(waiting(FlowClass::Steady, ms), 1 << 20).ok();
            let next = queues.pop(MS(ms), Room::Any, Duration::ZERO).unwrap();
            bulk += usize::from(next.class == FlowClass::Bulk);
        }
        assert!((50..70).contains(&bulk), "{bulk}");
    }

    #[test]
    fn a_standing_queue_of_bulk_is_cut_and_a_burst_is_not() {
        // A burst of 100 that drains within 50 ms.
        let mut queues = Queues::default();
        for _ in 0..100 {
            queues.push(waiting(FlowClass::Bulk, 0), 1 << 20).unwrap();
        }
        for step in 0..50u64 {
            queues.pop(MS(step / 2), Room::Any, Duration::ZERO);
        }
        assert_eq!(dropped(&mut queues), 0);
        // Every millisecond, one datagram arrives and one is sent: the other 50 remain until CoDel has dropped them.
        for ms in 50..3_000 {
            queues.push(waiting(FlowClass::Bulk, ms), 1 << 20).unwrap();
            queues.pop(MS(ms), Room::Any, Duration::ZERO);
        }
        let cut = dropped(&mut queues);
        assert!((35..60).contains(&cut), "{cut}");
        assert!(queues.bytes() <= 15_000, "{}", queues.bytes());
    }
}
