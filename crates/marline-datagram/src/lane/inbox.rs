//! Inbox for the driver: received datagrams and notices until they are polled.

use std::collections::VecDeque;

use marline_policy::PathId;

use crate::FlowId;
use crate::event::Event;

/// Maximum number of waiting notices; beyond it, new notices are dropped, because the oldest are the relevant ones.
const MAX_WAITING_NOTICES: usize = 256;

/// Notice for the driver.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Unreachable(PathId),
    Reachable(PathId),
    Mtu(PathId, u16),
    KeyLimitNear,
    Forged,
}

/// Datagrams and notices that the driver has not yet taken.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Flow of each datagram, and the end of its bytes.
    arrived: VecDeque<(u64, usize)>,
    /// Start of the next datagram.
    start: usize,
    notices: VecDeque<Notice>,
}

impl Inbox {
    /// Stores a datagram unless the inbox would exceed `most_bytes`. Returns false if it was not stored.
    pub(super) fn store(&mut self, flow: u64, payload: &[u8], most_bytes: usize) -> bool {
        self.release_memory();
        // An empty datagram also takes memory.
        let entries = (self.arrived.len() + 1) * core::mem::size_of::<(u64, usize)>();
        if self.bytes.len() + payload.len() + entries > most_bytes {
            return false;
        }
        self.bytes.extend_from_slice(payload);
        self.arrived.push_back((flow, self.bytes.len()));
        true
    }

    /// Total size of the stored datagrams, in bytes.
    pub(super) const fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push_notice(&mut self, notice: Notice) {
        if self.notices.len() < MAX_WAITING_NOTICES {
            self.notices.push_back(notice);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.notices.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Event<'_>> {
        self.release_memory();
        if let Some(notice) = self.notices.pop_front() {
            return Some(match notice {
                Notice::Unreachable(path) => Event::PathUnreachable(path),
                Notice::Reachable(path) => Event::PathReachable(path),
                Notice::Mtu(path, frame_bytes) => Event::PathMtu { path, frame_bytes },
                Notice::KeyLimitNear => Event::KeyLimitNear,
                Notice::Forged => Event::Forged,
            });
        }
        let (flow, end) = self.arrived.pop_front()?;
        let start = core::mem::replace(&mut self.start, end);
        Some(Event::Datagram { flow: FlowId(flow), payload: &self.bytes[start..end] })
    }

    /// Releases the memory of polled datagrams.
    fn release_memory(&mut self) {
        if self.arrived.is_empty() {
            self.bytes.clear();
            self.start = 0;
        }
    }
}
