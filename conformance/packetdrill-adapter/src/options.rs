//! Socket options: those that affect the core, those that are only stored, and the list of known ones.
//!
//! Options that Linux has but Marline lacks are stored and returned, since most do not change the packets. Options
//! unknown to Linux fail with `ENOPROTOOPT`, as in Linux.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use libc::c_int;
use marline_core::{ConnectionConfig, Keepalive};
use marline_time::Duration;

use crate::mirror::sysctl;

/// `TCP_FASTOPEN`: limit on pending connections at a listener.
pub(crate) const TCP_FASTOPEN: c_int = 23;
/// `TCP_FASTOPEN_CONNECT`: `connect` leaves the SYN to the first write.
pub(crate) const TCP_FASTOPEN_CONNECT: c_int = 30;
/// `TCP_FASTOPEN_KEY`: keys for the cookies of a listener.
pub(crate) const TCP_FASTOPEN_KEY: c_int = 33;
/// `TCP_FASTOPEN_NO_COOKIE`.
pub(crate) const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
/// `TCP_MD5SIG`, which Multipath TCP excludes.
pub(crate) const TCP_MD5SIG: c_int = 14;
/// `TCP_NOTSENT_LOWAT`.
pub(crate) const TCP_NOTSENT_LOWAT: c_int = 25;
/// `TCP_INQ`.
pub(crate) const TCP_INQ: c_int = 36;
/// `TCP_IS_MPTCP`.
pub(crate) const TCP_IS_MPTCP: c_int = 43;
/// `SOL_MPTCP`.
pub(crate) const SOL_MPTCP: c_int = 284;
/// `SO_ZEROCOPY`.
pub(crate) const SO_ZEROCOPY: c_int = 60;

/// Highest option numbers in Linux 6.18.
const MAX_SOCKET_OPTION: c_int = 84;
const MAX_TCP_OPTION: c_int = 46;
const MAX_IP_OPTION: c_int = 52;
const MAX_IPV6_OPTION: c_int = 80;

/// Options of a socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketOptions {
    /// Send buffer in bytes: twice the requested size, because the kernel includes its own data.
    pub(crate) send_buffer: Option<u64>,
    /// Receive buffer in bytes: twice the requested size, like the send buffer.
    pub(crate) receive_buffer: Option<u64>,
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    pub(crate) max_segment: Option<u16>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) notsent_lowat: u32,
    pub(crate) tos: u8,
    pub(crate) hops: Option<u8>,
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) receive_timeout: Option<Duration>,
    /// `SO_LINGER` with a time of zero: closing resets the connection.
    pub(crate) abort_on_close: bool,
    /// `TCP_FASTOPEN_KEY`.
    pub(crate) fast_open_key: Option<Vec<u8>>,
    /// `TCP_CONGESTION`.
    pub(crate) congestion: Option<String>,
    /// All other options, with their values as set.
    pub(crate) others: BTreeMap<(c_int, c_int), c_int>,
}

impl SocketOptions {
    /// Value of an option that is only stored, or its default.
    pub(crate) fn stored_value(&self, level: c_int, name: c_int) -> c_int {
        self.others.get(&(level, name)).copied().unwrap_or_else(|| initial(level, name))
    }

    /// True if a stored option is set.
    pub(crate) fn is_on(&self, level: c_int, name: c_int) -> bool {
        self.stored_value(level, name) != 0
    }

    /// Keepalive configuration, if enabled.
    pub(crate) fn keepalive(&self) -> Option<Keepalive> {
        let seconds = |name| Duration::from_secs(self.stored_value(libc::SOL_TCP, name) as u64);
        self.is_on(libc::SOL_SOCKET, libc::SO_KEEPALIVE).then(|| Keepalive {
            idle: seconds(libc::TCP_KEEPIDLE),
            interval: seconds(libc::TCP_KEEPINTVL),
            probes: self.stored_value(libc::SOL_TCP, libc::TCP_KEEPCNT) as u32,
        })
    }

    /// Applies the options to a connection's configuration.
    pub(crate) fn apply(&self, config: &mut ConnectionConfig) {
        config.nagle = !self.no_delay;
        config.max_segment_size = self.max_segment;
        if let Some(bytes) = self.receive_buffer {
            config.receive_buffer = bytes / 2;
        }
        if let Some(retries) = self.others.get(&(libc::SOL_TCP, libc::TCP_SYNCNT)) {
            config.syn_retries = *retries as u32;
        }
    }
}

/// True if Linux has this option for a socket of this kind.
pub(crate) fn is_known(level: c_int, name: c_int) -> bool {
    let last = match level {
        libc::SOL_SOCKET => MAX_SOCKET_OPTION,
        libc::SOL_TCP => MAX_TCP_OPTION,
        libc::SOL_IP => MAX_IP_OPTION,
        libc::SOL_IPV6 => MAX_IPV6_OPTION,
        _ => return false,
    };
    (1..=last).contains(&name)
}

/// Checks that a stored option may be set to this value. The error is an `errno`.
pub(crate) fn check(level: c_int, name: c_int, value: c_int) -> Result<(), c_int> {
    const READ_ONLY: [(c_int, c_int); 9] = [
        (libc::SOL_SOCKET, libc::SO_TYPE),
        (libc::SOL_SOCKET, libc::SO_ERROR),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL),
        (libc::SOL_SOCKET, libc::SO_DOMAIN),
        (libc::SOL_TCP, libc::TCP_INFO),
        (libc::SOL_TCP, TCP_IS_MPTCP),
        (libc::SOL_IP, libc::IP_MTU),
        (libc::SOL_IPV6, libc::IPV6_MTU),
    ];
    if !is_known(level, name) || READ_ONLY.contains(&(level, name)) {
        return Err(libc::ENOPROTOOPT);
    }
    let range = range(level, name);
    if range.contains(&value) { Ok(()) } else { Err(libc::EINVAL) }
}

/// Valid values of an option.
fn range(level: c_int, name: c_int) -> RangeInclusive<c_int> {
    const MAX_SECONDS: c_int = 32_767;
    match (level, name) {
        (libc::SOL_TCP, libc::TCP_MAXSEG) => 88..=MAX_SECONDS,
        (libc::SOL_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => 1..=MAX_SECONDS,
        (libc::SOL_TCP, libc::TCP_KEEPCNT | libc::TCP_SYNCNT) => 1..=127,
        (libc::SOL_TCP, libc::TCP_USER_TIMEOUT) => 0..=c_int::MAX,
        (libc::SOL_TCP, TCP_FASTOPEN) => 0..=c_int::MAX,
        (libc::SOL_TCP, TCP_INQ | TCP_FASTOPEN_CONNECT | TCP_FASTOPEN_NO_COOKIE)
        | (libc::SOL_SOCKET, SO_ZEROCOPY) => 0..=1,
        (libc::SOL_IP, libc::IP_TTL) => 1..=255,
        (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS | libc::IPV6_TCLASS) => -1..=255,
        _ => c_int::MIN..=c_int::MAX,
    }
}

/// Default value of an option.
fn initial(level: c_int, name: c_int) -> c_int {
    let read = |path: &str, otherwise: u64| sysctl(path, 0).unwrap_or(otherwise) as c_int;
    match (level, name) {
        (libc::SOL_TCP, libc::TCP_KEEPIDLE) => read("net/ipv4/tcp_keepalive_time", 7_200),
        (libc::SOL_TCP, libc::TCP_KEEPINTVL) => read("net/ipv4/tcp_keepalive_intvl", 75),
        (libc::SOL_TCP, libc::TCP_KEEPCNT) => read("net/ipv4/tcp_keepalive_probes", 9),
        (libc::SOL_TCP, libc::TCP_SYNCNT) => read("net/ipv4/tcp_syn_retries", 6),
        (libc::SOL_TCP, libc::TCP_LINGER2) => read("net/ipv4/tcp_fin_timeout", 60),
        (libc::SOL_IP, libc::IP_TTL) => read("net/ipv4/ip_default_ttl", 64),
        (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) => 64,
        (libc::SOL_TCP, libc::TCP_QUICKACK)
        | (libc::SOL_SOCKET, libc::SO_RCVLOWAT | libc::SO_SNDLOWAT)
        | (libc::SOL_IP, libc::IP_MTU_DISCOVER)
        | (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_unknown_to_linux_are_refused() {
        assert_eq!(check(libc::SOL_TCP, 99, 1), Err(libc::ENOPROTOOPT));
        assert_eq!(check(4_711, 1, 1), Err(libc::ENOPROTOOPT));
        assert_eq!(check(libc::SOL_SOCKET, libc::SO_TYPE, 1), Err(libc::ENOPROTOOPT));
        assert_eq!(check(libc::SOL_TCP, libc::TCP_KEEPCNT, 0), Err(libc::EINVAL));
        assert_eq!(check(libc::SOL_TCP, libc::TCP_KEEPCNT, 3), Ok(()));
        assert_eq!(check(libc::SOL_IP, libc::IP_TTL, 256), Err(libc::EINVAL));
    }

    #[test]
    fn keepalives_are_off_by_default() {
        let mut options = SocketOptions::default();
        assert_eq!(options.keepalive(), None);
        options.others.insert((libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        options.others.insert((libc::SOL_TCP, libc::TCP_KEEPIDLE), 5);
        let times = options.keepalive().expect("on");
        assert_eq!((times.idle, times.probes), (Duration::from_secs(5), 9));
    }
}
