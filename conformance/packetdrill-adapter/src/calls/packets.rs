//! Calls for packets, the clock, and `poll`.

use libc::{c_int, c_longlong, c_uint, c_void, nfds_t, pollfd, size_t, timeval};
use marline_time::Duration;

use super::{machine, status};
use crate::abi::Userdata;
use crate::machine::Attempt;

pub(super) extern "C" fn netdev_send(_: Userdata, packet: *const c_void, count: size_t) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if packet.is_null() {
        return status(Err(libc::EFAULT));
    }
    // SAFETY: not null, so `count` bytes may be read.
    let packet = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), count) };
    machine.send(packet);
    0
}

/// Reports a missing packet with a count of zero, because a failure would be retried forever.
pub(super) extern "C" fn netdev_receive(
    _: Userdata,
    packet: *mut c_void,
    count: *mut size_t,
    time_us: *mut c_longlong,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if packet.is_null() || count.is_null() || time_us.is_null() {
        return status(Err(libc::EFAULT));
    }
    let received = machine.receive();
    // SAFETY: none is null, so all may be written, with `*count` bytes at `packet`.
    unsafe {
        let out = std::slice::from_raw_parts_mut(packet.cast::<u8>(), *count);
        let (at, bytes) = received.unwrap_or_else(|| (machine.time_us(), Vec::new()));
        let len = bytes.len().min(out.len());
        out[..len].copy_from_slice(&bytes[..len]);
        *count = len;
        *time_us = at as c_longlong;
    }
    0
}

pub(super) extern "C" fn usleep(_: Userdata, us: c_uint) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    machine.sleep(us);
    0
}

pub(super) extern "C" fn gettimeofday(_: Userdata, time: *mut timeval, _: *mut c_void) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    let us = machine.time_us();
    if !time.is_null() {
        // SAFETY: not null, so it may be written.
        unsafe {
            (*time).tv_sec = (us / 1_000_000) as libc::time_t;
            (*time).tv_usec = (us % 1_000_000) as libc::suseconds_t;
        }
    }
    0
}

pub(super) extern "C" fn poll(
    _: Userdata,
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if fds.is_null() && count > 0 {
        return status(Err(libc::EFAULT));
    }
    let fds: &mut [pollfd] = if count == 0 {
        &mut []
    } else {
        // SAFETY: not null, so `count` entries may be read and written.
        unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
    };
    let mut deadline = None;
    let ready = machine.wait(|state| {
        let now = state.now;
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        deadline = deadline.or_else(|| timeout.map(|timeout| now + timeout));
        for fd in fds.iter_mut() {
            fd.revents = if fd.fd < 0 { 0 } else { state.readiness(fd.fd, fd.events) };
        }
        let ready = fds.iter().filter(|fd| fd.revents != 0).count();
        if ready > 0 || deadline.is_some_and(|at| at <= now) {
            return Attempt::Done(Ok(ready as c_int));
        }
        Attempt::Wait(deadline)
    });
    super::answer(ready) as c_int
}
