//! Emulation of `epoll`: level-triggered, edge-triggered and one-shot.
//!
//! A level-triggered condition is reported while it holds. An edge is a change since the last call: a new condition,
//! more bytes, another connection, or an entry in the error queue.

use std::collections::BTreeMap;

use libc::{c_int, c_short};
use marline_time::Instant;

use super::{Kind, Sockets};
use crate::machine::{Attempt, State};

const EDGE: u32 = libc::EPOLLET as u32;
const EPOLL_ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Conditions that are always reported.
const ALWAYS_REPORTED: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// State at the last call, and the number of changes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct EdgeState {
    count: u64,
    conditions: c_short,
    arrived: u64,
}

impl EdgeState {
    /// Records a change.
    pub(super) fn record_change(&mut self) {
        self.count += 1;
    }

    fn look(&mut self, conditions: c_short, arrived: u64) {
        if conditions & !self.conditions != 0 || arrived > self.arrived {
            self.count += 1;
        }
        (self.conditions, self.arrived) = (conditions, arrived);
    }
}

/// Watch of one descriptor.
#[derive(Copy, Clone, Debug)]
struct Entry {
    events: u32,
    data: u64,
    /// Number of changes at the last call. `None` before the first call.
    seen: Option<u64>,
    /// True if a one-shot entry was reported.
    spent: bool,
}

/// A set of watched descriptors.
#[derive(Debug, Default)]
pub(super) struct Epoll {
    entries: BTreeMap<c_int, Entry>,
}

impl Sockets {
    pub(crate) fn add_epoll(&mut self, fd: c_int) {
        self.epolls.insert(fd, Epoll::default());
    }

    /// Removes a descriptor. Returns true if it was an epoll set.
    pub(super) fn forget_epoll(&mut self, fd: c_int) -> bool {
        for epoll in self.epolls.values_mut() {
            epoll.entries.remove(&fd);
        }
        self.epolls.remove(&fd).is_some()
    }

    pub(crate) fn is_ours(&self, fd: c_int) -> bool {
        self.by_fd.contains_key(&fd) || self.epolls.contains_key(&fd)
    }
}

impl State {
    /// `epoll_ctl`. `event` contains the events and the data word returned with them.
    pub(crate) fn watch(
        &mut self,
        epoll: c_int,
        operation: c_int,
        fd: c_int,
        event: Option<(u32, u64)>,
    ) -> Result<(), c_int> {
        if !self.sockets.is_ours(epoll) || !self.sockets.by_fd.contains_key(&fd) {
            return Err(libc::EBADF);
        }
        self.notice(fd);
        let entries = &mut self.sockets.epolls.get_mut(&epoll).ok_or(libc::EINVAL)?.entries;
        let known = entries.contains_key(&fd);
        match operation {
            libc::EPOLL_CTL_DEL if known => {
                entries.remove(&fd);
                return Ok(());
            }
            libc::EPOLL_CTL_ADD if known => return Err(libc::EEXIST),
            libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD if !known => return Err(libc::ENOENT),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {}
            _ => return Err(libc::EINVAL),
        }
        let (events, data) = event.ok_or(libc::EFAULT)?;
        entries.insert(fd, Entry { events, data, seen: None, spent: false });
        Ok(())
    }

    /// Detects changes of all watched descriptors.
    pub(crate) fn detect_all_changes(&mut self) {
        if self.sockets.epolls.is_empty() {
            return;
        }
        let watched = self.sockets.epolls.values().flat_map(|epoll| epoll.entries.keys().copied());
        for fd in watched.collect::<Vec<_>>() {
            self.notice(fd);
        }
    }

    fn notice(&mut self, fd: c_int) {
        let conditions = self.readiness(fd, !0);
        let Some(socket) = self.sockets.by_fd.get_mut(&fd) else { return };
        let arrived = match &socket.kind {
            Kind::Unconnected => 0,
            Kind::Listener(queue) => queue.len() as u64,
            Kind::Stream(id) => {
                self.endpoint.info(*id).map_or(0, |info| info.bytes_read + info.readable)
            }
        };
        socket.wakes.look(conditions, arrived);
    }

    /// Makes one attempt of `epoll_wait`. Returns at most `room` pairs of events and data word.
    pub(crate) fn wait_for_events(
        &mut self,
        epoll: c_int,
        room: usize,
        deadline: Option<Instant>,
    ) -> Attempt<Vec<(u32, u64)>> {
        if !self.sockets.is_ours(epoll) {
            return Attempt::Done(Err(libc::EBADF));
        }
        if room == 0 || !self.sockets.epolls.contains_key(&epoll) {
            return Attempt::Done(Err(libc::EINVAL));
        }
        self.detect_all_changes();
        let found = self.ready_entries(epoll, room);
        if !found.is_empty() || deadline.is_some_and(|at| at <= self.now) {
            return Attempt::Done(Ok(found));
        }
        Attempt::Wait(deadline)
    }

    fn ready_entries(&mut self, epoll: c_int, room: usize) -> Vec<(u32, u64)> {
        let entries = self.sockets.epolls.get(&epoll).map(|epoll| epoll.entries.clone());
        let mut found = Vec::new();
        for (fd, entry) in entries.unwrap_or_default() {
            let Some(socket) = self.sockets.by_fd.get(&fd) else { continue };
            let news = socket.wakes.count;
            let stale = entry.events & EDGE != 0 && entry.seen == Some(news);
            if entry.spent || stale || found.len() == room {
                continue;
            }
            let conditions = self.readiness(fd, !0) as u16;
            let told = u32::from(conditions) & (entry.events | ALWAYS_REPORTED);
            if told != 0 {
                found.push((told, entry.data));
            }
            let known = self.sockets.epolls.get_mut(&epoll).and_then(|e| e.entries.get_mut(&fd));
            if let Some(known) = known {
                known.seen = Some(news);
                known.spent = told != 0 && entry.events & EPOLL_ONE_SHOT != 0;
            }
        }
        found
    }
}
