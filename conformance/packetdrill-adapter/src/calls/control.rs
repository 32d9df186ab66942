//! Control messages of `recvmsg`.

use libc::{c_int, msghdr, timespec};

use crate::machine::wall_time_ns;
use crate::sockets::Report;

/// `SO_EE_ORIGIN_TIMESTAMPING` and `SO_EE_ORIGIN_ZEROCOPY`.
const ORIGIN_TIME: u8 = 4;
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED`.
const ZEROCOPY_COPIED: u8 = 1;
/// `SCM_TIMESTAMPING`.
const TIMESTAMPING: c_int = 37;
/// Length of a control message's header in bytes: a length, a level and a type.
const HEADER: usize = 16;

/// Control messages, one after the other.
#[derive(Debug, Default)]
pub(super) struct Control(Vec<u8>);

impl Control {
    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        self.0.extend_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.0.extend_from_slice(&level.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(align_of::<usize>()), 0);
    }

    pub(super) fn number(&mut self, level: c_int, kind: c_int, value: c_int) {
        self.push(level, kind, &value.to_ne_bytes());
    }

    /// Adds an entry of the error queue. Returns the flags of its message.
    pub(super) fn report(&mut self, report: Report, v6: bool) -> c_int {
        let (errno, origin, code, info, data) = match report {
            Report::Copied { first, last } => (0, ORIGIN_ZEROCOPY, ZEROCOPY_COPIED, first, last),
            Report::Time { kind, key, .. } => (libc::ENOMSG, ORIGIN_TIME, 0, kind, key),
        };
        let mut flags = 0;
        if let Report::Time { at, payload, .. } = report {
            let ns = wall_time_ns(at);
            // The software timestamp, and two hardware timestamps, which are missing.
            let mut times = vec![0u8; 3 * size_of::<timespec>()];
            times[..8].copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
            times[8..16].copy_from_slice(&(ns % 1_000_000_000).to_ne_bytes());
            self.push(libc::SOL_SOCKET, TIMESTAMPING, &times);
            // There was no room for the payload.
            flags = if payload { libc::MSG_TRUNC } else { 0 };
        }
        let mut error = Vec::new();
        error.extend_from_slice(&(errno as u32).to_ne_bytes());
        error.extend_from_slice(&[origin, 0, code, 0]);
        error.extend_from_slice(&info.to_ne_bytes());
        error.extend_from_slice(&data.to_ne_bytes());
        // Followed by the address of the error's sender, which is unspecified.
        let (level, kind, address) = if v6 {
            (libc::SOL_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>())
        } else {
            (libc::SOL_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>())
        };
        error.resize(error.len() + address, 0);
        self.push(level, kind, &error);
        flags
    }

    /// Writes as many messages as fit, with the flags.
    pub(super) fn write(self, message: &mut msghdr, flags: c_int) {
        let room = if message.msg_control.is_null() { 0 } else { message.msg_controllen };
        message.msg_flags = flags;
        if self.0.len() > room {
            message.msg_flags |= libc::MSG_CTRUNC;
            message.msg_controllen = 0;
            return;
        }
        if !self.0.is_empty() {
            // SAFETY: `msg_control` is not null and has room for `msg_controllen` bytes, which is enough.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.0.as_ptr(),
                    message.msg_control.cast::<u8>(),
                    self.0.len(),
                );
            }
        }
        message.msg_controllen = self.0.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_lengths_that_the_system_gives_it() {
        let mut control = Control::default();
        control.number(libc::SOL_TCP, 36, 7);
        // SAFETY: no pointers.
        let (len, space) = unsafe { (libc::CMSG_LEN(4) as usize, libc::CMSG_SPACE(4) as usize) };
        assert_eq!(control.0.len(), space);
        assert_eq!(control.0[..8], len.to_ne_bytes());
        let mut control = Control::default();
        assert_eq!(control.report(Report::Copied { first: 1, last: 2 }, false), 0);
        assert_eq!(control.0[..8], 48usize.to_ne_bytes(), "16, 16 of the error, 16 of an address");
        assert_eq!(control.0[24..32], [1, 0, 0, 0, 2, 0, 0, 0]);
    }
}
