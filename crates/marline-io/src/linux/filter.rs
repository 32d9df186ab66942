//! Classic BPF filters on sockets (socket(7), SO_ATTACH_FILTER).

use std::io;
use std::os::fd::BorrowedFd;

use super::set_option;

/// Filter instruction.
pub(crate) type Instruction = libc::sock_filter;

/// Program that drops everything.
pub(crate) const DROP_ALL: [Instruction; 1] =
    [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];

/// Attaches a program to a socket. It replaces the previous one atomically: each packet is filtered by either the old
/// or the new one.
pub(crate) fn attach(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "the filter is too long");
    let len = libc::c_ushort::try_from(program.len()).map_err(too_long)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
