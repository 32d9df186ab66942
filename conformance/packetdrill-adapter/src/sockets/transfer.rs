//! Reading from and writing to sockets.

use std::net::SocketAddr;

use libc::c_int;
use marline_core::{ConnectionId, Hold, ReadError, SocketOption, WriteError};
use marline_time::Instant;

use super::{Kind, write_errno};
use crate::machine::{Attempt, State};
use crate::options::TCP_INQ;

/// State of a read.
pub(crate) struct Reading<'a> {
    pub(crate) out: &'a mut [u8],
    /// Bytes read so far (`MSG_WAITALL`).
    pub(crate) done: usize,
    pub(crate) flags: c_int,
    pub(crate) deadline: Option<Instant>,
}

/// State of a write.
pub(crate) struct Writing<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes accepted so far.
    pub(crate) done: usize,
    pub(crate) flags: c_int,
    pub(crate) deadline: Option<Instant>,
    /// The address in the message, if there was one. `AF_UNSPEC` is `Some(None)`.
    pub(crate) to: Option<Option<SocketAddr>>,
    /// True after the first attempt.
    pub(crate) is_started: bool,
}

impl State {
    /// Makes one attempt to read.
    pub(crate) fn read(&mut self, fd: c_int, reading: &mut Reading<'_>) -> Attempt<usize> {
        let now = self.now;
        let socket = match self.sockets.get(fd) {
            Ok(socket) => socket,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        if socket.deferred_destination.is_some() {
            return Attempt::Done(Err(libc::EAGAIN));
        }
        let Kind::Stream(id) = socket.kind else { return Attempt::Done(Err(libc::ENOTCONN)) };
        if reading.flags & libc::MSG_OOB != 0 {
            return Attempt::Done(Err(libc::EINVAL));
        }
        let read_shut = socket.read_shut;
        let nonblocking = socket.nonblocking || reading.flags & libc::MSG_DONTWAIT != 0;
        if reading.deadline.is_none() {
            reading.deadline = socket.options.receive_timeout.map(|timeout| now + timeout);
        }
        if reading.out.is_empty() {
            return Attempt::Done(Ok(0));
        }
        let peek = reading.flags & libc::MSG_PEEK != 0;
        let out = &mut reading.out[reading.done..];
        let found =
            if peek { self.endpoint.peek(now, id, out) } else { self.endpoint.read(now, id, out) };
        if let Ok(len @ 1..) = found {
            reading.done += len;
            let all = reading.flags & libc::MSG_WAITALL != 0 && !peek;
            if !all || reading.done == reading.out.len() {
                return Attempt::Done(Ok(reading.done));
            }
            return self.read(fd, reading);
        }
        let expired = reading.deadline.is_some_and(|at| at <= now);
        match found {
            // Bytes that were read are returned first. The reason for the end is returned at the next call.
            _ if reading.done > 0
                && (nonblocking || expired || found != Err(ReadError::Blocked)) =>
            {
                Attempt::Done(Ok(reading.done))
            }
            Ok(_) => Attempt::Done(Ok(0)),
            Err(ReadError::Closed(_) | ReadError::Unknown) => Attempt::Done(self.end_result(id)),
            Err(ReadError::Blocked) if read_shut => Attempt::Done(Ok(reading.done)),
            Err(ReadError::Blocked) if nonblocking || expired => Attempt::Done(Err(libc::EAGAIN)),
            Err(ReadError::Blocked) => Attempt::Wait(reading.deadline),
        }
    }

    /// Result of a read on an ended connection: its error once, then only the end.
    fn end_result(&mut self, id: ConnectionId) -> Result<usize, c_int> {
        self.sockets.take_error(id).map_or(Ok(0), Err)
    }

    /// The value of `TCP_INQ` for a message, if requested: the number of unread bytes, or 1 at the end of the stream,
    /// so that a reader calls again.
    pub(crate) fn unread_byte_count(&mut self, fd: c_int) -> Option<c_int> {
        let socket = self.sockets.by_fd.get(&fd)?;
        if !socket.options.is_on(libc::SOL_TCP, TCP_INQ) {
            return None;
        }
        let Kind::Stream(id) = socket.kind else { return None };
        let bytes = self.endpoint.info(id).map_or(0, |info| info.readable);
        let ended = bytes == 0 && self.endpoint.peek(self.now, id, &mut [0]) == Ok(0);
        Some(if ended { 1 } else { c_int::try_from(bytes).unwrap_or(c_int::MAX) })
    }

    /// Makes one attempt to continue a write. It is done when all bytes were accepted, or some bytes for a nonblocking
    /// caller.
    pub(crate) fn write(&mut self, fd: c_int, writing: &mut Writing<'_>) -> Attempt<usize> {
        let now = self.now;
        if let Some(found) = self.write_first(fd, writing) {
            return found;
        }
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
        let Some(life) = self.sockets.connections.get(&id) else {
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
            self.endpoint.set(now, id, SocketOption::Hold(hold));
        }
        while open && writing.done < writing.bytes.len() {
            match self.endpoint.write(now, id, &writing.bytes[writing.done..]) {
                Ok(len) => {
                    writing.done += len;
                    if writing.done == writing.bytes.len() && writing.flags & libc::MSG_EOR != 0 {
                        self.endpoint.end_record(now, id);
                    }
                    // Sending frees space.
                    self.gather();
                }
                Err(WriteError::Blocked) => break,
                Err(error) => return Attempt::Done(Err(write_errno(error))),
            }
        }
        if writing.done == writing.bytes.len() && open {
            return self.on_written(fd, id, writing);
        }
        if let Some(life) = self.sockets.connections.get_mut(&id) {
            life.full = true;
        }
        let expired = writing.deadline.is_some_and(|at| at <= now);
        match (nonblocking || expired, writing.done) {
            (true, 0) => Attempt::Done(Err(libc::EAGAIN)),
            (true, _) => self.on_written(fd, id, writing),
            (false, _) => Attempt::Wait(writing.deadline),
        }
    }

    /// Finishes a write, and records it for notifications.
    pub(super) fn on_written(
        &mut self,
        fd: c_int,
        id: ConnectionId,
        writing: &Writing<'_>,
    ) -> Attempt<usize> {
        let end = self.endpoint.info(id).map_or(0, |info| info.bytes_written);
        if let Ok(socket) = self.sockets.get(fd).map_err(|_| ())
            && writing.done > 0
        {
            socket.record_write(end, writing.flags);
        }
        Attempt::Done(Ok(writing.done))
    }
}
