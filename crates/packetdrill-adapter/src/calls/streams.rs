//! All the ways to read and to write.

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::{length, world};
use crate::abi::Userdata;
use crate::sockets::Writing;

/// Reads into a buffer.
fn read_into(fd: c_int, buffer: *mut c_void, count: usize, flags: c_int) -> Result<usize, c_int> {
    let world = world().ok_or(libc::ENOSYS)?;
    if buffer.is_null() && count > 0 {
        return Err(libc::EFAULT);
    }
    let out: &mut [u8] = if count == 0 {
        &mut []
    } else {
        // SAFETY: not null, so `count` bytes may be written.
        unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count) }
    };
    let mut deadline = None;
    world.wait(|state| state.read(fd, out, flags, &mut deadline))
}

/// Writes a buffer.
fn write_from(
    fd: c_int,
    buffer: *const c_void,
    count: usize,
    flags: c_int,
) -> Result<usize, c_int> {
    if buffer.is_null() && count > 0 {
        return Err(libc::EFAULT);
    }
    let bytes: &[u8] = if count == 0 {
        &[]
    } else {
        // SAFETY: not null, so `count` bytes may be read.
        unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) }
    };
    write_bytes(fd, bytes, flags)
}

fn write_bytes(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
    let world = world().ok_or(libc::ENOSYS)?;
    let mut writing = Writing { bytes, done: 0, flags, deadline: None };
    world.wait(|state| state.write(fd, &mut writing))
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

/// Writes the parts one after the other as one message.
fn gather(fd: c_int, vector: &[iovec], flags: c_int) -> Result<usize, c_int> {
    let mut bytes = Vec::new();
    for part in vector.iter().filter(|part| part.iov_len > 0) {
        if part.iov_base.is_null() {
            return Err(libc::EFAULT);
        }
        // SAFETY: not null, so as many bytes as it says may be read.
        let slice = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        bytes.extend_from_slice(slice);
    }
    write_bytes(fd, &bytes, flags)
}

/// Reads once, and deals what came out to the parts.
fn scatter(fd: c_int, vector: &[iovec], flags: c_int) -> Result<usize, c_int> {
    let room: usize = vector.iter().map(|part| part.iov_len).sum();
    let mut bytes = vec![0u8; room];
    let len = read_into(fd, bytes.as_mut_ptr().cast(), room, flags)?;
    let mut rest = &bytes[..len];
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
    Ok(len)
}

pub(super) extern "C" fn read(_: Userdata, fd: c_int, out: *mut c_void, count: size_t) -> ssize_t {
    length(read_into(fd, out, count, 0))
}

pub(super) extern "C" fn recv(
    _: Userdata,
    fd: c_int,
    out: *mut c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    length(read_into(fd, out, count, flags))
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
    length(read_into(fd, out, count, flags))
}

pub(super) extern "C" fn readv(
    _: Userdata,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(0);
    length(parts(vector, count).and_then(|parts| scatter(fd, parts, 0)))
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
    // SAFETY: not null, so it may be read and written. No control message is ever made.
    let message = unsafe { &mut *message };
    message.msg_controllen = 0;
    message.msg_flags = 0;
    length(parts(message.msg_iov, message.msg_iovlen).and_then(|parts| scatter(fd, parts, flags)))
}

pub(super) extern "C" fn write(
    _: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
) -> ssize_t {
    length(write_from(fd, buffer, count, 0))
}

pub(super) extern "C" fn writev(
    _: Userdata,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    let count = usize::try_from(count).unwrap_or(0);
    length(parts(vector, count).and_then(|parts| gather(fd, parts, 0)))
}

pub(super) extern "C" fn send(
    _: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
) -> ssize_t {
    length(write_from(fd, buffer, count, flags))
}

/// To a socket that is not connected this would open a connection with its first data (TCP Fast Open),
/// which Marline has not.
pub(super) extern "C" fn sendto(
    _: Userdata,
    fd: c_int,
    buffer: *const c_void,
    count: size_t,
    flags: c_int,
    _: *const sockaddr,
    _: socklen_t,
) -> ssize_t {
    if flags & libc::MSG_FASTOPEN != 0 {
        return length(Err(libc::EOPNOTSUPP));
    }
    length(write_from(fd, buffer, count, flags))
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
    if flags & libc::MSG_FASTOPEN != 0 {
        return length(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: not null, so it may be read.
    let message = unsafe { &*message };
    length(parts(message.msg_iov, message.msg_iovlen).and_then(|parts| gather(fd, parts, flags)))
}
