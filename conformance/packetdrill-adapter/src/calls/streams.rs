//! Read and write calls. Each is treated as a message: one or more buffers, flags, and, for `recvmsg`, control
//! data.
//!
//! Other descriptors (a pipe, a file that a script opened) are passed to the system.

use std::net::SocketAddr;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::addresses::address;
use super::control::Control;
use super::{length, machine};
use crate::abi::Userdata;
use crate::machine::Machine;
use crate::options::TCP_INQ;
use crate::sockets::{Reading, Writing};

/// Maximum number of bytes of one call, so that an error in a script cannot exhaust the machine's memory.
const MAX_CALL_BYTES: usize = 64 << 20;

/// A plain buffer as a single part. The caller must not write through the part if the buffer is read-only.
const fn part(buffer: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buffer.cast_mut(), iov_len: len }
}

/// The parts of a scattered buffer.
fn parts<'a>(vector: *const iovec, count: usize) -> Result<&'a [iovec], c_int> {
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: not null, so `count` entries may be read for as long as the call lasts, and the result
    // does not outlive it.
    Ok(unsafe { std::slice::from_raw_parts(vector, count) })
}

/// Bytes of all parts, concatenated.
fn gather(vector: &[iovec]) -> Result<Vec<u8>, c_int> {
    let mut bytes = Vec::new();
    for part in vector.iter().filter(|part| part.iov_len > 0) {
        if part.iov_base.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: not null, so `iov_len` bytes may be read.
        let slice = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        bytes.extend_from_slice(slice);
    }
    Ok(bytes)
}

/// Distributes bytes over the parts.
fn fill_parts(vector: &[iovec], bytes: &[u8]) -> Result<(), c_int> {
    let mut rest = bytes;
    for part in vector {
        let now = part.iov_len.min(rest.len());
        if now == 0 {
            continue;
        }
        if part.iov_base.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: not null, so `iov_len` bytes, no fewer than `now`, may be written.
        let out = unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), now) };
        out.copy_from_slice(&rest[..now]);
        rest = &rest[now..];
    }
    Ok(())
}

/// Reads once into the parts.
fn receive(machine: &Machine, fd: c_int, vector: &[iovec], flags: c_int) -> Result<usize, c_int> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return machine.call(|state| state.take_report(fd)).map(|_| 0);
    }
    if vector.iter().any(|part| part.iov_base.is_null() && part.iov_len > 0) {
        return Err(libc::EFAULT);
    }
    let room = vector.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
    let mut bytes = vec![0u8; room.min(MAX_CALL_BYTES)];
    let mut reading = Reading { out: &mut bytes, done: 0, flags, deadline: None };
    let len = machine.wait(|state| state.read(fd, &mut reading))?;
    if flags & libc::MSG_TRUNC == 0 {
        fill_parts(vector, &bytes[..len])?;
    }
    Ok(len)
}

/// Writes the parts in order as one message.
pub(super) fn send_parts(fd: c_int, vector: &[iovec], flags: c_int) -> Result<usize, c_int> {
    send_to(fd, vector, flags, None)
}

/// Writes the parts, optionally to an address, to which the first data opens a connection (`MSG_FASTOPEN`).
fn send_to(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    to: Option<Option<SocketAddr>>,
) -> Result<usize, c_int> {
    let machine = machine().ok_or(libc::ENOSYS)?;
    let bytes = gather(vector)?;
    let mut writing =
        Writing { bytes: &bytes, done: 0, flags, deadline: None, to, is_started: false };
    machine.wait(|state| state.write(fd, &mut writing))
}

/// The address in a message, if there is one.
fn named(to: *const sockaddr, len: socklen_t) -> Result<Option<Option<SocketAddr>>, c_int> {
    if to.is_null() || len == 0 { Ok(None) } else { address(to, len).map(Some) }
}

/// Reads into the parts, from any descriptor.
pub(super) fn receive_parts(fd: c_int, vector: &[iovec], flags: c_int) -> Result<usize, c_int> {
    let machine = machine().ok_or(libc::ENOSYS)?;
    receive(&machine, fd, vector, flags)
}

/// Returns true if a descriptor belongs to the system: a pipe, or a file that a script opened.
fn is_system_descriptor(fd: c_int) -> bool {
    machine().is_some_and(|machine| !machine.call(|state| state.sockets.is_ours(fd)))
}

pub(super) extern "C" fn recvfrom(
    _: Userdata,
    fd: c_int,
    out: *mut c_void,
    count: size_t,
    flags: c_int,
    _: *mut sockaddr,
    _: *mut socklen_t,
) -> ssize_t {
    length(receive_parts(fd, &[part(out, count)], flags))
}

pub(super) extern "C" fn recv(
    userdata: Userdata,
    fd: c_int,
    out: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    recvfrom(userdata, fd, out, count, flags, std::ptr::null_mut(), std::ptr::null_mut())
}

pub(super) extern "C" fn read(u: Userdata, fd: c_int, out: *mut c_void, count: size_t) -> ssize_t {
    if is_system_descriptor(fd) {
        // SAFETY: the caller's buffer and length, which the system checks.
        return unsafe { libc::read(fd, out, count) };
    }
    recv(u, fd, out, count, 0)
}

pub(super) extern "C" fn readv(
    _: Userdata,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL);
    let parts = count.and_then(|count| parts(vector, count));
    length(parts.and_then(|parts| receive_parts(fd, parts, 0)))
}

pub(super) extern "C" fn recvmsg(
    _: Userdata,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if message.is_null() {
        return length(Err(libc::EFAULT));
    }
    // SAFETY: not null, so it may be read and written.
    let message = unsafe { &mut *message };
    length(receive_message(fd, message, flags))
}

/// Reads a message with its control data. A failure leaves the header unchanged.
fn receive_message(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<usize, c_int> {
    let machine = machine().ok_or(libc::ENOSYS)?;
    let mut control = Control::default();
    if flags & libc::MSG_ERRQUEUE != 0 {
        let (report, v6) = machine.call(|state| state.take_report(fd))?;
        let told = control.report(report, v6);
        control.write(message, libc::MSG_ERRQUEUE | told);
        return Ok(0);
    }
    let len = receive(&machine, fd, parts(message.msg_iov, message.msg_iovlen)?, flags)?;
    let left = machine.call(|state| state.unread_byte_count(fd));
    if let Some(left) = left {
        control.number(libc::SOL_TCP, TCP_INQ, left);
    }
    let told = if flags & libc::MSG_TRUNC != 0 && len > 0 { libc::MSG_TRUNC } else { 0 };
    control.write(message, told);
    Ok(len)
}

pub(super) extern "C" fn sendto(
    _: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let to = named(to, to_len);
    length(to.and_then(|to| send_to(fd, &[part(buffer, count)], flags, to)))
}

pub(super) extern "C" fn send(
    userdata: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    sendto(userdata, fd, buffer, count, flags, std::ptr::null(), 0)
}

pub(super) extern "C" fn write(
    userdata: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
) -> ssize_t {
    if is_system_descriptor(fd) {
        // SAFETY: the caller's buffer and length, which the system checks.
        return unsafe { libc::write(fd, buffer, count) };
    }
    send(userdata, fd, buffer, count, 0)
}

pub(super) extern "C" fn writev(
    _: Userdata,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).map_err(|_| libc::EINVAL);
    let parts = count.and_then(|count| parts(vector, count));
    length(parts.and_then(|parts| send_parts(fd, parts, 0)))
}

pub(super) extern "C" fn sendmsg(
    _: Userdata,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if message.is_null() {
        return length(Err(libc::EFAULT));
    }
    // SAFETY: not null, so it may be read.
    let message = unsafe { &*message };
    let to = named(message.msg_name.cast(), message.msg_namelen);
    let parts = parts(message.msg_iov, message.msg_iovlen);
    length(parts.and_then(|parts| send_to(fd, parts, flags, to?)))
}
