//! `poll`.

use libc::{c_int, c_short};
use marline_core::{CloseReason, ReadError};

use super::Kind;
use crate::world::State;

impl State {
    /// What of `events` holds for a descriptor now, and the conditions that nobody need ask for.
    pub(crate) fn readiness(&mut self, fd: c_int, events: c_short) -> c_short {
        let now = self.now;
        let Some(socket) = self.sockets.by_fd.get(&fd) else { return libc::POLLNVAL };
        let id = match &socket.kind {
            Kind::Fresh => return (libc::POLLOUT | libc::POLLHUP) & (events | libc::POLLHUP),
            Kind::Listener(queue) if queue.is_empty() => return 0,
            Kind::Listener(_) => return events & (libc::POLLIN | libc::POLLRDNORM),
            Kind::Stream(id) => *id,
        };
        let Some(life) = self.sockets.lives.get(&id) else { return libc::POLLNVAL };
        let mut found = 0;
        if let Some(reason) = life.over {
            found |= libc::POLLHUP | libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
            if reason != CloseReason::Finished && !life.error_told {
                found |= libc::POLLERR;
            }
            return found & (events | libc::POLLHUP | libc::POLLERR);
        }
        if life.open && !life.full {
            found |= libc::POLLOUT;
        }
        let nothing = self.endpoint.read(now, id, &mut []);
        if life.open && !matches!(nothing, Err(ReadError::Blocked)) {
            found |= libc::POLLIN | libc::POLLRDNORM;
        }
        found & events
    }
}
