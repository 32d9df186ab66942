//! Error queue, used for notifications about data that was sent without copying (`MSG_ZEROCOPY`: the buffer may be
//! reused) or that has timestamps (`SO_TIMESTAMPING`).
//!
//! The adapter copies all data, and the notifications say so. It derives the times at which a buffer is free, and at
//! which data was sent and acknowledged, from the connection's totals.

use std::collections::VecDeque;

use libc::c_int;
use marline_core::{ConnectionInfo, Endpoint};
use marline_time::Instant;

use super::{Kind, Socket, Sockets};
use crate::machine::State;
use crate::options::SO_ZEROCOPY;

/// Supported bits of `SO_TIMESTAMPING`.
const SENT: c_int = 1 << 1;
const ID: c_int = 1 << 7;
const SCHEDULED: c_int = 1 << 8;
const ACKED: c_int = 1 << 9;
const NO_PAYLOAD: c_int = 1 << 11;

/// Maximum number of notifications kept.
const MAX_REPORTS: usize = 4_096;

/// One entry of the queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The buffers of these writes are free, from the first to the last.
    Copied { first: u32, last: u32 },
    /// Timestamp of the write that ends with the byte `key`. `kind` as in `SCM_TSTAMP_*`.
    Time { kind: u32, key: u32, at: Instant, payload: bool },
}

/// A write for which timestamps were requested.
#[derive(Copy, Clone, Debug)]
struct TimestampRequest {
    /// Position after the write's last byte.
    end: u64,
    key: u32,
    sent: bool,
}

/// The queue of a socket.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    queue: VecDeque<Report>,
    /// Ends of writes with `MSG_ZEROCOPY`.
    zerocopy_ends: VecDeque<(u64, u32)>,
    next_zerocopy_number: u32,
    stamping: c_int,
    /// Stream position of the byte with key 0.
    first_stamp_position: u64,
    stamps: VecDeque<TimestampRequest>,
}

impl Reports {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<Report> {
        self.queue.pop_front()
    }

    fn is_blocking(&self) -> bool {
        !self.zerocopy_ends.is_empty() || !self.stamps.is_empty()
    }

    fn push(&mut self, report: Report) {
        if let (Some(Report::Copied { last, .. }), Report::Copied { first, last: newest }) =
            (self.queue.back_mut(), report)
            && last.wrapping_add(1) == first
        {
            *last = newest;
            return;
        }
        if self.queue.len() < MAX_REPORTS {
            self.queue.push_back(report);
        }
    }

    /// Applies the numbers of sent and acknowledged bytes. Returns true if there is a new notification.
    fn update_progress(&mut self, now: Instant, sent: u64, acked: u64) -> bool {
        let before = self.queue.len();
        let merged = self.queue.back().copied();
        while let Some((_, id)) = self.zerocopy_ends.pop_front_if(|(end, _)| *end <= acked) {
            self.push(Report::Copied { first: id, last: id });
        }
        let payload = self.stamping & NO_PAYLOAD == 0;
        let wanted = self.stamping;
        let mut news = Vec::new();
        let mut tell = |bit, kind, key| {
            if wanted & bit != 0 {
                news.push(Report::Time { kind, key, at: now, payload });
            }
        };
        for stamp in self.stamps.iter_mut().filter(|stamp| !stamp.sent && stamp.end <= sent) {
            stamp.sent = true;
            tell(SCHEDULED, 1, stamp.key);
            tell(SENT, 0, stamp.key);
        }
        while let Some(stamp) = self.stamps.pop_front_if(|stamp| stamp.end <= acked) {
            tell(ACKED, 2, stamp.key);
        }
        news.into_iter().for_each(|report| self.push(report));
        self.queue.len() != before || self.queue.back().copied() != merged
    }
}

impl Socket {
    /// Records a write with these flags, which ended at byte `end`.
    pub(super) fn record_write(&mut self, end: u64, flags: c_int) {
        let reports = &mut self.reports;
        let zerocopy = self.options.is_on(libc::SOL_SOCKET, SO_ZEROCOPY);
        if zerocopy && flags & libc::MSG_ZEROCOPY != 0 && reports.zerocopy_ends.len() < MAX_REPORTS
        {
            reports.zerocopy_ends.push_back((end, reports.next_zerocopy_number));
            reports.next_zerocopy_number = reports.next_zerocopy_number.wrapping_add(1);
        }
        let wanted = reports.stamping & (SENT | SCHEDULED | ACKED) != 0;
        if wanted && reports.stamps.len() < MAX_REPORTS {
            let place = end.saturating_sub(1).saturating_sub(reports.first_stamp_position) as u32;
            let key = if reports.stamping & ID != 0 { place } else { 0 };
            reports.stamps.push_back(TimestampRequest { end, key, sent: false });
        }
    }
}

impl Sockets {
    /// Checks the totals of all connections with pending notifications.
    pub(crate) fn update_reports(&mut self, now: Instant, endpoint: &Endpoint) {
        for socket in self.by_fd.values_mut().filter(|socket| socket.reports.is_blocking()) {
            let Kind::Stream(id) = socket.kind else { continue };
            let everything = (u64::MAX, u64::MAX);
            let told = |info: ConnectionInfo| (info.bytes_written - info.unsent, info.bytes_acked);
            let (sent, acked) = endpoint.info(id).map_or(everything, told);
            if socket.reports.update_progress(now, sent, acked) {
                socket.wakes.record_change();
            }
        }
    }
}

impl State {
    /// Applies `SO_TIMESTAMPING` to a connected socket.
    pub(super) fn set_timestamping(&mut self, fd: c_int, value: c_int) {
        let Ok(id) = self.sockets.stream(fd) else { return };
        let acked = self.endpoint.info(id).map_or(0, |info| info.bytes_acked);
        if let Ok(socket) = self.sockets.get(fd) {
            let reports = &mut socket.reports;
            if value & ID != 0 && reports.stamping & ID == 0 {
                reports.first_stamp_position = acked;
            }
            reports.stamping = value;
        }
    }

    /// The oldest notification of a socket.
    pub(crate) fn take_report(&mut self, fd: c_int) -> Result<(Report, bool), c_int> {
        let socket = self.sockets.get(fd)?;
        let v6 = socket.v6;
        socket.reports.take().map(|report| (report, v6)).ok_or(libc::EAGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_free_buffers_are_reported_as_one_range() {
        let mut reports = Reports::default();
        for id in 0..3u32 {
            reports.zerocopy_ends.push_back((u64::from(id + 1) * 100, id));
        }
        assert!(!reports.update_progress(Instant::ZERO, 300, 99));
        assert!(reports.update_progress(Instant::ZERO, 300, 100));
        assert!(reports.update_progress(Instant::ZERO, 300, 200), "a longer range is new");
        assert_eq!(reports.take(), Some(Report::Copied { first: 0, last: 1 }));
        assert!(reports.update_progress(Instant::ZERO, 300, 300));
        assert_eq!(reports.take(), Some(Report::Copied { first: 2, last: 2 }));
        assert_eq!(reports.take(), None);
    }

    #[test]
    fn times_come_as_a_write_is_sent_and_acknowledged() {
        let mut reports = Reports { stamping: SENT | SCHEDULED | ACKED, ..Reports::default() };
        reports.stamps.push_back(TimestampRequest { end: 100, key: 99, sent: false });
        assert!(!reports.update_progress(Instant::ZERO, 99, 0));
        assert!(reports.update_progress(Instant::ZERO, 100, 0));
        assert!(reports.update_progress(Instant::from_secs(1), 100, 100));
        let kinds: Vec<u32> = std::iter::from_fn(|| reports.take())
            .map(|report| match report {
                Report::Time { kind, .. } => kind,
                Report::Copied { .. } => u32::MAX,
            })
            .collect();
        assert_eq!(kinds, [1, 0, 2]);
    }
}
