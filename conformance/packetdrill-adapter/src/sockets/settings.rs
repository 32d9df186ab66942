//! The calls `setsockopt`, `getsockopt` and `fcntl`.

use libc::c_int;
use marline_core::{ConnectionId, Hold, SocketOption, SubflowInfo};
use marline_time::Duration;

use super::Kind;
use crate::machine::State;
use crate::mirror::{congestion, read_tcp_memory, sysctl};
use crate::options::{
    SOL_MPTCP, TCP_FASTOPEN_KEY, TCP_IS_MPTCP, TCP_MD5SIG, TCP_NOTSENT_LOWAT, check, is_known,
};

/// Maximum MSS on IPv4 in bytes.
const MAX_IPV4_MSS: u16 = 1_460;
/// Minimum send buffer that the kernel allows in bytes.
const MIN_SEND_BUFFER: u64 = 4_608;
/// Minimum receive buffer that the kernel allows in bytes.
const MIN_RECEIVE_BUFFER: u64 = 2_304;
/// Maximum buffer size in bytes, from the kernel's use of `int`.
const MAX_SOCKET_BUFFER: u64 = (c_int::MAX / 2) as u64;

impl State {
    /// Handles flags of a descriptor. Other requests fail.
    pub(crate) fn fcntl(
        &mut self,
        fd: c_int,
        command: c_int,
        argument: i64,
    ) -> Result<c_int, c_int> {
        let socket = self.sockets.get(fd)?;
        match command {
            libc::F_GETFL => {
                Ok(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_GETFD => Ok(0),
            libc::F_SETFD => Ok(0),
            libc::F_SETFL => {
                socket.nonblocking = argument as c_int & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// `FIONBIO`.
    pub(crate) fn set_nonblocking(&mut self, fd: c_int, on: bool) -> Result<(), c_int> {
        self.sockets.get(fd).map(|socket| socket.nonblocking = on)
    }

    /// Handles `setsockopt`: the value is a time, a linger, or a number.
    pub(crate) fn set_option_bytes(
        &mut self,
        fd: c_int,
        level: c_int,
        name: c_int,
        bytes: &[u8],
    ) -> Result<(), c_int> {
        let socket = self.sockets.get(fd)?;
        let long = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map(i64::from_ne_bytes).and_then(|value| u64::try_from(value).ok())
        };
        let int = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map(c_int::from_ne_bytes)
        };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO | libc::SO_RCVTIMEO) => {
                let (seconds, us) = long(0).zip(long(8)).ok_or(libc::EINVAL)?;
                let timeout = Duration::from_secs(seconds) + Duration::from_micros(us);
                let timeout = (!timeout.is_zero()).then_some(timeout);
                if name == libc::SO_SNDTIMEO {
                    socket.options.send_timeout = timeout;
                } else {
                    socket.options.receive_timeout = timeout;
                }
                Ok(())
            }
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let (on, seconds) = int(0).zip(int(4)).ok_or(libc::EINVAL)?;
                socket.options.abort_on_close = on != 0 && seconds == 0;
                Ok(())
            }
            (libc::SOL_TCP, TCP_FASTOPEN_KEY) => {
                State::may_set_fast_open(socket, name)?;
                self.set_fast_open_key(fd, bytes)
            }
            (libc::SOL_TCP, libc::TCP_CONGESTION) => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                let name = std::str::from_utf8(&bytes[..end]).map_err(|_| libc::ENOENT)?;
                congestion(name).ok_or(libc::ENOENT)?;
                socket.options.congestion = Some(name.to_owned());
                Ok(())
            }
            _ => {
                let value = int(0).or_else(|| bytes.first().map(|byte| c_int::from(*byte)));
                self.set_option(fd, level, name, value.ok_or(libc::EINVAL)?)
            }
        }
    }

    /// The MSS that a socket announces.
    pub(crate) fn announced_mss(&self, fd: c_int) -> u16 {
        let socket = self.sockets.by_fd.get(&fd);
        let asked = socket.and_then(|socket| socket.options.max_segment);
        asked.map_or(MAX_IPV4_MSS, |asked| asked.min(MAX_IPV4_MSS))
    }

    /// The first subflow of a socket's connection.
    pub(crate) fn subflow_info(&mut self, fd: c_int) -> Option<SubflowInfo> {
        let id = self.sockets.stream(fd).ok()?;
        let info = self.endpoint.info(id)?;
        info.subflows.first().or(info.gone.last()).cloned()
    }

    /// Sets an option whose value is a number.
    fn set_option(
        &mut self,
        fd: c_int,
        level: c_int,
        name: c_int,
        value: c_int,
    ) -> Result<(), c_int> {
        if (level, name) == (libc::SOL_TCP, TCP_MD5SIG) {
            return Err(libc::ENOPROTOOPT);
        }
        if level == SOL_MPTCP {
            self.sockets.get(fd)?;
            return Err(libc::EOPNOTSUPP);
        }
        // Sends waiting data, corked or not.
        let push = (level, name) == (libc::SOL_TCP, libc::TCP_NODELAY) && value != 0;
        let socket = self.sockets.get(fd)?;
        check(level, name, value)?;
        if level == libc::SOL_TCP {
            State::may_set_fast_open(socket, name)?;
        }
        let options = &mut socket.options;
        let doubled = u64::try_from(value).unwrap_or(0).min(MAX_SOCKET_BUFFER) * 2;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                options.send_buffer = Some(doubled.max(MIN_SEND_BUFFER));
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                options.receive_buffer = Some(doubled.max(MIN_RECEIVE_BUFFER));
            }
            (libc::SOL_TCP, libc::TCP_NODELAY) => options.no_delay = value != 0,
            (libc::SOL_TCP, libc::TCP_CORK) => options.cork = value != 0,
            (libc::SOL_TCP, libc::TCP_MAXSEG) => {
                options.max_segment = Some(u16::try_from(value).map_err(|_| libc::EINVAL)?);
            }
            (libc::SOL_TCP, libc::TCP_USER_TIMEOUT) => {
                let timeout = u64::try_from(value).map_err(|_| libc::EINVAL)?;
                options.user_timeout = (timeout > 0).then(|| Duration::from_millis(timeout));
            }
            (libc::SOL_TCP, TCP_NOTSENT_LOWAT) => options.notsent_lowat = value as u32,
            // The two lowest bits belong to ECN.
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                options.tos = value.max(0) as u8 & !3;
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) => {
                options.hops = u8::try_from(value).ok();
            }
            _ => {
                options.others.insert((level, name), value);
            }
        }
        let marks = (options.tos, options.hops);
        if let Ok(id) = self.sockets.stream(fd) {
            if let Some(life) = self.sockets.connections.get_mut(&id) {
                (life.tos, life.hops) = marks;
            }
            if push {
                self.endpoint.set(self.now, id, SocketOption::Nagle(false));
                self.gather();
            }
            self.apply_socket_settings(fd, id);
            if (level, name) == (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
                self.set_timestamping(fd, value);
            }
        }
        Ok(())
    }

    /// Applies a socket's options to its connection in the core.
    pub(crate) fn apply_socket_settings(&mut self, fd: c_int, id: ConnectionId) {
        let Some(socket) = self.sockets.by_fd.get(&fd) else { return };
        let options = &socket.options;
        let sysctl_lowat = || sysctl("net/ipv4/tcp_notsent_lowat", 0).unwrap_or(u64::MAX);
        let lowat = match options.notsent_lowat {
            0 => sysctl_lowat(),
            bytes => u64::from(bytes),
        };
        let hold = if options.cork { Hold::Corked } else { Hold::No };
        let mut settings = vec![
            SocketOption::Nagle(!options.no_delay),
            SocketOption::Hold(hold),
            SocketOption::UserTimeout(options.user_timeout),
            SocketOption::NotSentLowat(Some(lowat).filter(|bytes| *bytes < u64::from(u32::MAX))),
        ];
        settings.extend(options.send_buffer.map(SocketOption::SendBuffer));
        settings.push(SocketOption::Keepalive(options.keepalive()));
        for setting in settings {
            self.endpoint.set(self.now, id, setting);
        }
    }

    /// Value of an option that is a number.
    pub(crate) fn option(&mut self, fd: c_int, level: c_int, name: c_int) -> Result<c_int, c_int> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => return self.pending_error(fd),
            (libc::SOL_TCP, libc::TCP_MAXSEG) => return self.max_segment(fd),
            (libc::SOL_TCP, TCP_IS_MPTCP) => return self.is_multipath(fd),
            _ => {}
        }
        let socket = self.sockets.get(fd)?;
        let options = &socket.options;
        let number = |bytes: u64| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                number(options.send_buffer.unwrap_or_else(|| read_tcp_memory("tcp_wmem", 1)))
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                number(options.receive_buffer.unwrap_or_else(|| read_tcp_memory("tcp_rmem", 1)))
            }
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                c_int::from(matches!(socket.kind, Kind::Listener(_)))
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => {
                if socket.v6 {
                    libc::AF_INET6
                } else {
                    libc::AF_INET
                }
            }
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => {
                if socket.mptcp {
                    libc::IPPROTO_MPTCP
                } else {
                    libc::IPPROTO_TCP
                }
            }
            (libc::SOL_TCP, libc::TCP_NODELAY) => c_int::from(options.no_delay),
            (libc::SOL_TCP, libc::TCP_CORK) => c_int::from(options.cork),
            (libc::SOL_TCP, libc::TCP_USER_TIMEOUT) => {
                options.user_timeout.map_or(0, |timeout| timeout.as_millis() as c_int)
            }
            (libc::SOL_TCP, TCP_NOTSENT_LOWAT) => options.notsent_lowat as c_int,
            (libc::SOL_TCP, TCP_MD5SIG) | (SOL_MPTCP, _) => return Err(libc::EOPNOTSUPP),
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                c_int::from(options.tos)
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS) => {
                options.hops.map_or_else(|| options.stored_value(level, name), c_int::from)
            }
            _ if is_known(level, name) => options.stored_value(level, name),
            _ => return Err(libc::ENOPROTOOPT),
        })
    }

    /// Name of the congestion control of a socket.
    pub(crate) fn congestion_name(&mut self, fd: c_int) -> Result<String, c_int> {
        let asked = self.sockets.get(fd)?.options.congestion.clone();
        Ok(asked.unwrap_or_else(|| self.mirror.congestion_by_sysctl()))
    }

    fn is_multipath(&mut self, fd: c_int) -> Result<c_int, c_int> {
        let socket = self.sockets.get(fd)?;
        let offered = socket.mptcp;
        let Kind::Stream(id) = socket.kind else { return Ok(c_int::from(offered)) };
        let fallback = self.endpoint.info(id).and_then(|info| info.fallback);
        Ok(c_int::from(offered && fallback.is_none()))
    }

    fn pending_error(&mut self, fd: c_int) -> Result<c_int, c_int> {
        let socket = self.sockets.get(fd)?;
        if let Some(error) = socket.error.take() {
            return Ok(error);
        }
        let Kind::Stream(id) = socket.kind else { return Ok(0) };
        Ok(self.sockets.take_error(id).unwrap_or(0))
    }

    fn max_segment(&mut self, fd: c_int) -> Result<c_int, c_int> {
        let socket = self.sockets.get(fd)?;
        let asked = socket.options.max_segment.map(c_int::from);
        let Kind::Stream(id) = socket.kind else { return Ok(asked.unwrap_or(536)) };
        let info = self.endpoint.info(id);
        let mss = info.and_then(|info| info.subflows.first().map(|flow| flow.mss as c_int));
        Ok(mss.or(asked).unwrap_or(536))
    }
}
