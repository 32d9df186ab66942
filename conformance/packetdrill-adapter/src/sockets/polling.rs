//! Current readiness of a descriptor, for `poll`.

use libc::{c_int, c_short};
use marline_core::{CloseReason, ReadError};

use super::Kind;
use crate::machine::State;

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

impl State {
    /// Returns which conditions in `events`, and which always-reported conditions, hold for a descriptor now.
    pub(crate) fn readiness(&mut self, fd: c_int, events: c_short) -> c_short {
        let now = self.now;
        let Some(socket) = self.sockets.by_fd.get(&fd) else { return libc::POLLNVAL };
        let id = match &socket.kind {
            Kind::Unconnected if socket.deferred_destination.is_some() => return WRITE & events,
            Kind::Unconnected => return (WRITE | libc::POLLHUP) & (events | libc::POLLHUP),
            Kind::Listener(queue) if queue.is_empty() => return 0,
            Kind::Listener(_) => return events & READ,
            Kind::Stream(id) => *id,
        };
        let (read_shut, write_shut) = (socket.read_shut, socket.write_shut);
        let news = !socket.reports.is_empty();
        let Some(life) = self.sockets.connections.get(&id) else { return libc::POLLNVAL };
        let mut found = if news { libc::POLLERR } else { 0 };
        if let Some(reason) = life.over {
            found |= libc::POLLHUP | READ | WRITE | libc::POLLRDHUP;
            if reason != CloseReason::Finished && !life.is_error_returned {
                found |= libc::POLLERR;
            }
            return found & (events | libc::POLLHUP | libc::POLLERR);
        }
        if life.open && (!life.full || write_shut) {
            found |= WRITE;
        }
        let open = life.open;
        let nothing = self.endpoint.read(now, id, &mut []);
        let ended = self.endpoint.info(id).is_some_and(|info| info.readable == 0)
            && matches!(nothing, Ok(0));
        if open && (read_shut || !matches!(nothing, Err(ReadError::Blocked))) {
            found |= READ;
        }
        if open && (read_shut || ended) {
            found |= READ | libc::POLLRDHUP;
            if write_shut {
                found |= libc::POLLHUP;
            }
        }
        found & (events | libc::POLLHUP | libc::POLLERR)
    }
}
