//! Functions of the table, the only place where foreign pointers become slices and values.
//!
//! Safety argument for every block below: packetdrill passes pointers in the same way as to the C library's
//! functions of the same names. A pointer to a buffer is null or points to as many bytes as its count says, which no
//! other thread touches during the call. A pointer for a result is null or may be written. Some scripts test with null
//! buffers, which are answered with `EFAULT`.

mod addresses;
mod control;
mod others;
mod packets;
mod streams;

pub(crate) use others::preloaded_sendfile;

use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use libc::{c_char, c_int, c_void, socklen_t};

use crate::abi::{Interface, Userdata};
use crate::machine::Machine;
use crate::options::TCP_FASTOPEN_KEY;
use crate::tcp_info;

/// `SO_MEMINFO`: nine numbers about memory, of which only the two buffer sizes are known here.
const SO_MEMINFO: c_int = 55;
/// `TCP_CC_INFO`.
const TCP_CC_INFO: c_int = 26;

fn memory_info(machine: &Machine, fd: c_int) -> Result<Vec<u8>, c_int> {
    let limit = |name| machine.call(|state| state.option(fd, libc::SOL_SOCKET, name));
    let numbers = [0, limit(libc::SO_RCVBUF)?, 0, limit(libc::SO_SNDBUF)?, 0, 0, 0, 0, 0];
    Ok(numbers.iter().flat_map(|number| number.to_ne_bytes()).collect())
}

/// The machine of this process: packetdrill runs one script at a time. `userdata` is therefore not needed, and
/// never dereferenced.
static MACHINE: Mutex<Option<Arc<Machine>>> = Mutex::new(None);

fn machine() -> Option<Arc<Machine>> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets `errno`.
fn set_errno(errno: c_int) {
    // SAFETY: the C library's `errno` of this thread, which always exists and is always writable.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns a result as the C library does.
fn answer<T: Into<i64>>(result: Result<T, c_int>) -> i64 {
    match result {
        Ok(value) => value.into(),
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

fn status(result: Result<(), c_int>) -> c_int {
    answer(result.map(|()| 0)) as c_int
}

fn length(result: Result<usize, c_int>) -> isize {
    answer(result.map(|len| len as i64)) as isize
}

/// Creates a machine and fills the table. packetdrill looks up this function.
///
/// # Safety
/// `flags` is null or a C string; `table` may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    table: *mut Interface,
) {
    let flags = if flags.is_null() {
        String::new()
    } else {
        // SAFETY: not null, so a C string, as the caller guarantees.
        unsafe { CStr::from_ptr(flags) }.to_string_lossy().into_owned()
    };
    *MACHINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Machine::new(&flags)));
    // SAFETY: the caller's table, of this layout (checked at compile time to be 33 words).
    unsafe { table.write(filled()) };
}

fn filled() -> Interface {
    Interface {
        userdata: std::ptr::null_mut(),
        free,
        socket: addresses::socket,
        bind: addresses::bind,
        listen: addresses::listen,
        accept: addresses::accept,
        connect: addresses::connect,
        read: streams::read,
        readv: streams::readv,
        recv: streams::recv,
        recvfrom: streams::recvfrom,
        recvmsg: streams::recvmsg,
        write: streams::write,
        writev: streams::writev,
        send: streams::send,
        sendto: streams::sendto,
        sendmsg: streams::sendmsg,
        fcntl: addresses::fcntl,
        ioctl: others::ioctl,
        close: addresses::close,
        shutdown: addresses::shutdown,
        getsockopt: get_option,
        setsockopt: set_option,
        poll: packets::poll,
        netdev_send: packets::netdev_send,
        netdev_receive: packets::netdev_receive,
        usleep: packets::usleep,
        gettimeofday: packets::gettimeofday,
        epoll_create: others::epoll_create,
        epoll_ctl: others::epoll_ctl,
        epoll_wait: others::epoll_wait,
        pipe: others::pipe,
        splice: others::splice,
    }
}

extern "C" fn free(_: Userdata) {
    *MACHINE.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

extern "C" fn set_option(
    _: Userdata,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    if value.is_null() {
        return status(Err(libc::EFAULT));
    }
    // SAFETY: not null, so `len` bytes may be read.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
    status(machine.call(|state| state.set_option_bytes(fd, level, name, bytes)))
}

extern "C" fn get_option(
    _: Userdata,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(machine) = machine() else { return status(Err(libc::ENOSYS)) };
    status(get(&machine, fd, level, name, value, len))
}

/// `getsockopt` for one of our sockets. `None` for other descriptors.
pub(crate) fn preloaded_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<c_int> {
    let machine = machine()?;
    let ours = machine.call(|state| state.sockets.by_fd.contains_key(&fd));
    ours.then(|| status(get(&machine, fd, level, name, value, len)))
}

fn get(
    machine: &Machine,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Result<(), c_int> {
    if value.is_null() || len.is_null() {
        return Err(libc::EFAULT);
    }
    let bytes = match (level, name) {
        (libc::SOL_TCP, libc::TCP_INFO) => machine.call(|state| tcp_info::of(state, fd))?.to_vec(),
        (libc::SOL_TCP, TCP_CC_INFO) => vec![0; 20],
        (libc::SOL_TCP, libc::TCP_CONGESTION) => {
            let mut name = machine.call(|state| state.congestion_name(fd))?.into_bytes();
            name.resize(16, 0);
            name
        }
        (libc::SOL_TCP, TCP_FASTOPEN_KEY) => machine.call(|state| state.fast_open_key(fd))?,
        (libc::SOL_SOCKET, SO_MEMINFO) => memory_info(machine, fd)?,
        _ => machine.call(|state| state.option(fd, level, name))?.to_ne_bytes().to_vec(),
    };
    // SAFETY: not null, so it may be read, and that many bytes may be written at `value`. The rest of a longer
    // buffer is cleared, because callers read fields that are unknown here.
    unsafe {
        let room = *len as usize;
        let out = std::slice::from_raw_parts_mut(value.cast::<u8>(), room);
        let used = bytes.len().min(room);
        out[..used].copy_from_slice(&bytes[..used]);
        out[used..].fill(0);
        if bytes.len() < room && bytes.len() == size_of::<c_int>() {
            *len = bytes.len() as socklen_t;
        }
    }
    Ok(())
}
