//! Minimum TTL of received packets (ip(7), IP_MINTTL; RFC 5082).

use std::io;
use std::os::fd::BorrowedFd;

use super::set_option;

/// Makes a TCP socket accept only packets that were sent with a TTL of 255 and forwarded by no router. IPv6 sockets may
/// also receive IPv4 packets, so both options are set.
pub(crate) fn require_ttl_255(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    const MAX_TTL: libc::c_int = 255;
    if ipv6 {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, &MAX_TTL)?;
    }
    set_option(socket, libc::IPPROTO_IP, libc::IP_MINTTL, &MAX_TTL)
}
