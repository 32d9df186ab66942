//! Reading and writing.

use libc::c_int;
use marline_core::{CloseReason, ConnectionId, Hold, ReadError, Setting, WriteError};
use marline_time::Instant;

use super::{Kind, write_errno};
use crate::world::{Attempt, State};

/// What is left of a write.
pub(crate) struct Writing<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes taken so far.
    pub(crate) done: usize,
    pub(crate) flags: c_int,
    pub(crate) deadline: Option<Instant>,
}

impl State {
    /// One try to read into `out`.
    pub(crate) fn read(
        &mut self,
        fd: c_int,
        out: &mut [u8],
        flags: c_int,
        deadline: &mut Option<Instant>,
    ) -> Attempt<usize> {
        let now = self.now;
        let socket = match self.sockets.get(fd) {
            Ok(socket) => socket,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let Kind::Stream(id) = socket.kind else { return Attempt::Done(Err(libc::ENOTCONN)) };
        let read_shut = socket.read_shut;
        let nonblocking = socket.nonblocking || flags & libc::MSG_DONTWAIT != 0;
        if deadline.is_none() {
            *deadline = socket.options.receive_timeout.map(|timeout| now + timeout);
        }
        if out.is_empty() {
            return Attempt::Done(Ok(0));
        }
        match self.endpoint.read(now, id, out) {
            Ok(len) => Attempt::Done(Ok(len)),
            Err(ReadError::Closed(reason)) => Attempt::Done(self.end_of(id, reason)),
            Err(ReadError::Unknown) => {
                let over = self.sockets.lives.get(&id).and_then(|life| life.over);
                Attempt::Done(self.end_of(id, over.unwrap_or(CloseReason::Finished)))
            }
            Err(ReadError::Blocked) if read_shut => Attempt::Done(Ok(0)),
            Err(ReadError::Blocked) if nonblocking => Attempt::Done(Err(libc::EAGAIN)),
            Err(ReadError::Blocked) if deadline.is_some_and(|at| at <= now) => {
                Attempt::Done(Err(libc::EAGAIN))
            }
            Err(ReadError::Blocked) => Attempt::Wait(*deadline),
        }
    }

    /// What a reader hears of a connection that is over.
    fn end_of(&mut self, id: ConnectionId, reason: CloseReason) -> Result<usize, c_int> {
        match self.sockets.take_error(id) {
            Some(errno) => Err(errno),
            None if reason == CloseReason::Finished => Ok(0),
            None => Ok(0),
        }
    }

    /// One try to write on; done when everything was taken, or as much as a caller that does not wait gets.
    pub(crate) fn write(&mut self, fd: c_int, writing: &mut Writing<'_>) -> Attempt<usize> {
        let now = self.now;
        let socket = match self.sockets.get(fd) {
            Ok(socket) => socket,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let nonblocking = socket.nonblocking || writing.flags & libc::MSG_DONTWAIT != 0;
        let corked = socket.options.cork;
        let Kind::Stream(id) = socket.kind else { return Attempt::Done(Err(libc::EPIPE)) };
        if writing.deadline.is_none() {
            writing.deadline = socket.options.send_timeout.map(|timeout| now + timeout);
        }
        let Some(life) = self.sockets.lives.get(&id) else {
            return Attempt::Done(Err(libc::EPIPE));
        };
        if life.over.is_some() {
            let errno = self.sockets.take_error(id).unwrap_or(libc::EPIPE);
            return Attempt::Done(Err(errno));
        }
        let open = life.open;
        let more = writing.flags & libc::MSG_MORE != 0;
        let hold = match (more, corked) {
            (true, _) => Hold::MoreFollows,
            (false, true) => Hold::Corked,
            (false, false) => Hold::No,
        };
        if open {
            self.endpoint.set(now, id, Setting::Hold(hold));
        }
        while open && writing.done < writing.bytes.len() {
            match self.endpoint.write(now, id, &writing.bytes[writing.done..]) {
                Ok(len) => {
                    writing.done += len;
                    if writing.done == writing.bytes.len() && writing.flags & libc::MSG_EOR != 0 {
                        self.endpoint.end_record(now, id);
                    }
                    // What can leave makes room.
                    self.gather();
                }
                Err(WriteError::Blocked) => break,
                Err(error) => return Attempt::Done(Err(write_errno(error))),
            }
        }
        if writing.done == writing.bytes.len() && open {
            return Attempt::Done(Ok(writing.done));
        }
        if let Some(life) = self.sockets.lives.get_mut(&id) {
            life.full = true;
        }
        let expired = writing.deadline.is_some_and(|at| at <= now);
        match (nonblocking || expired, writing.done) {
            (true, 0) => Attempt::Done(Err(libc::EAGAIN)),
            (true, done) => Attempt::Done(Ok(done)),
            (false, _) => Attempt::Wait(writing.deadline),
        }
    }
}
