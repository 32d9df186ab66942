//! Other calls: `ioctl`, `epoll`, pipes, and files that are sent into a socket.

use libc::{c_int, c_uint, c_ulong, c_void, epoll_event, iovec, off_t, size_t, ssize_t};
use marline_time::Duration;

use super::addresses::{close_token, last_errno};
use super::streams::{receive_parts, send_parts};
use super::{answer, length, machine, status};
use crate::abi::Userdata;

/// Maximum number of bytes that one call moves between a file and a socket.
const MAX_CALL_BYTES: usize = 1 << 20;

/// Writes the answer to the caller's address with a system call that checks the address. `ioctl` may be called with
/// fewer arguments, so the address can be an arbitrary register value.
fn write_answer_to_caller(place: *mut c_void, value: c_int) -> Result<(), c_int> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    let bytes = value.to_ne_bytes();
    // SAFETY: four of our own bytes are written to the pipe. The system then copies them to the caller's address, and
    // fails if it is not writable.
    let told = unsafe {
        libc::write(ends[1], bytes.as_ptr().cast(), bytes.len());
        libc::read(ends[0], place, bytes.len())
    };
    let result = if told == bytes.len() as ssize_t { Ok(()) } else { Err(libc::EFAULT) };
    ends.into_iter().for_each(close_token);
    result
}

fn read_number(place: *const c_void) -> Result<c_int, c_int> {
    if place.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: not null, so a number may be read.
    Ok(unsafe { place.cast::<c_int>().read_unaligned() })
}

pub(super) extern "C" fn ioctl(_: Userdata, fd: c_int, code: c_ulong, place: *mut c_void) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if code == libc::FIONBIO {
        let wanted = read_number(place);
        return status(wanted.and_then(|on| machine.call(|s| s.set_nonblocking(fd, on != 0))));
    }
    let asked = machine.call(|state| state.ask(fd, code));
    status(asked.and_then(|value| write_answer_to_caller(place, value)))
}

pub(super) extern "C" fn epoll_create(_: Userdata, size: c_int) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if size <= 0 {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: no pointers. The descriptor is real but stays unused, like those of sockets.
    let fd = unsafe { libc::epoll_create(size) };
    if fd >= 0 {
        machine.call(|state| state.sockets.add_epoll(fd));
    }
    fd
}

pub(super) extern "C" fn epoll_ctl(
    _: Userdata,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let event = if event.is_null() {
        None
    } else {
        // SAFETY: not null, so it may be read.
        let event = unsafe { event.read_unaligned() };
        Some((event.events, event.u64))
    };
    status(machine.call(|state| state.watch(epoll, operation, fd, event)))
}

pub(super) extern "C" fn epoll_wait(
    _: Userdata,
    epoll: c_int,
    events: *mut epoll_event,
    room: c_int,
    timeout_ms: c_int,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if events.is_null() {
        return status(Err(libc::EFAULT));
    }
    let mut deadline = None;
    let found = machine.wait(|state| {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        deadline = deadline.or_else(|| timeout.map(|timeout| state.now + timeout));
        state.wait_for_events(epoll, usize::try_from(room).unwrap_or(0), deadline)
    });
    let told = found.map(|found| {
        for (at, (conditions, data)) in found.iter().enumerate() {
            // SAFETY: not null, with room for the requested number of events, and at most as many were found.
            unsafe {
                events.add(at).write_unaligned(epoll_event { events: *conditions, u64: *data });
            }
        }
        found.len() as i64
    });
    answer(told) as c_int
}

pub(super) extern "C" fn pipe(_: Userdata, ends: *mut c_int) -> c_int {
    if ends.is_null() {
        return status(Err(libc::EFAULT));
    }
    // SAFETY: not null, with room for two descriptors. The system handles this, because pipes are not ours.
    unsafe { libc::pipe(ends) }
}

/// Moves bytes between a pipe and one of our sockets, in either direction. Neither supports offsets.
pub(super) extern "C" fn splice(
    _: Userdata,
    from: c_int,
    _: *mut c_void,
    to: c_int,
    _: *mut c_void,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let Some(machine) = machine() else { return length(Err(libc::ENOSYS)) };
    let ours = |fd| machine.call(|state| state.sockets.by_fd.contains_key(&fd));
    let (wait, no_wait) = (0, libc::MSG_DONTWAIT);
    let how = if flags & libc::SPLICE_F_NONBLOCK != 0 { no_wait } else { wait };
    let mut bytes = vec![0u8; count.min(MAX_CALL_BYTES)];
    let place = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    length(match (ours(from), ours(to)) {
        (true, false) => receive_parts(from, &[place], how).and_then(|len| put(to, &bytes[..len])),
        (false, true) => take(from, &mut bytes, None).and_then(|len| {
            let place = iovec { iov_len: len, ..place };
            if len == 0 { Ok(0) } else { send_parts(to, &[place], how) }
        }),
        _ => Err(libc::EINVAL),
    })
}

fn put(fd: c_int, bytes: &[u8]) -> Result<usize, c_int> {
    // SAFETY: a buffer of our own.
    let len = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(len).map_err(|_| last_errno())
}

fn take(fd: c_int, out: &mut [u8], at: Option<off_t>) -> Result<usize, c_int> {
    let (place, room) = (out.as_mut_ptr().cast::<c_void>(), out.len());
    // SAFETY: a buffer of our own.
    let len = unsafe {
        match at {
            Some(at) => libc::pread(fd, place, room, at),
            None => libc::read(fd, place, room),
        }
    };
    usize::try_from(len).map_err(|_| last_errno())
}

/// `sendfile` to one of our sockets. It has no slot in the table.
pub(crate) fn preloaded_sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> Option<ssize_t> {
    let machine = machine()?;
    if !machine.call(|state| state.sockets.by_fd.contains_key(&to)) {
        return None;
    }
    // SAFETY: null, or a number that may be read.
    let at = (!offset.is_null()).then(|| unsafe { offset.read_unaligned() });
    let mut bytes = vec![0u8; count.min(MAX_CALL_BYTES)];
    let sent = take(from, &mut bytes, at).and_then(|len| {
        let place = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        if len == 0 { Ok(0) } else { send_parts(to, &[place], 0) }
    });
    if let (Some(at), Ok(len)) = (at, sent) {
        // SAFETY: not null, and the caller allows changes.
        unsafe { offset.write_unaligned(at + len as off_t) };
    }
    Some(length(sent))
}
