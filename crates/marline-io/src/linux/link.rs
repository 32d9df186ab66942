//! TCP sockets of links, bound like the UDP socket that they replace, with short queues.

use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::socket::{bind_to_interface, set_mark};
use super::{check, set_option};
use crate::edge::socket_spec::SocketSpec;
use crate::edge::tcp::{Segments, TcpInfo};

/// Maximum number of unsent bytes in the kernel: a quarter of a millisecond at 1 Gbit/s, and 26 ms at 10 Mbit/s.
const UNSENT_BYTES: u32 = 32 << 10;
/// Time without an acknowledgment after which the connection ends.
const ACK_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum retransmission timeout of the kernel: the smallest permitted value (Linux 6.15, not yet defined by `libc`).
/// By default, the timeout doubles up to two minutes, which delays the detection of a recovered network.
const MAX_RTO: Duration = Duration::from_secs(1);
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: libc::c_int = 256;

fn new(local: SocketAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(local), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// MSS of small segments, in bytes: packets of 1,200 bytes on IPv4, and less than 1,280 bytes on IPv6.
const SMALL_SEGMENT: u32 = 1_160;

/// Opens a socket for connecting, bound to any port on the address and interface of `spec`.
pub(crate) fn open(spec: &SocketSpec<'_>, segments: Segments) -> io::Result<std::net::TcpStream> {
    let socket = new(spec.local)?;
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, spec.local.is_ipv6())?;
    }
    set_mark(&socket, spec.mark)?;
    let mut local = spec.local;
    local.set_port(0);
    socket.bind(&local.into())?;
    limit_rto(&socket);
    if segments == Segments::Small {
        socket.set_tcp_mss(SMALL_SEGMENT)?;
    }
    Ok(socket.into())
}

/// Limits the kernel's retransmission timeout to [`MAX_RTO`]. Before Linux 6.15 this has no effect.
fn limit_rto(socket: &Socket) {
    let value = MAX_RTO.as_millis() as libc::c_int;
    let set = set_option(socket.as_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, &value);
    if let Err(error) = set {
        tracing::trace!(%error, "cannot limit the retransmission timeout of a TCP connection; recovery may be late");
    }
}

/// Opens a listening socket.
pub(crate) fn listen(local: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = new(local)?;
    // After a restart, connections of the previous process may still be in TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&local.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Sets options of a connected socket. If the kernel rejects an option, this only costs delay.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) {
    let socket = SockRef::from(stream);
    limit_rto(&socket);
    let prepared = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_user_timeout(Some(ACK_TIMEOUT)))
        .and_then(|()| socket.set_tcp_notsent_lowat(UNSENT_BYTES));
    if let Err(error) = prepared {
        tracing::debug!(%error, "cannot set the options of a TCP connection; data may be delayed");
    }
}

/// Beginning of the kernel's `tcp_info`, which `libc` defines only partly.
#[repr(C)]
#[derive(Default)]
struct RawTcpInfo {
    /// State, congestion state, timeouts, probes, backoff, options and two bytes of bit fields.
    bytes: [u8; 8],
    /// RTO, delayed ACK, MSS of both directions, unacknowledged, SACKed, lost, retransmitted, FACKs, four ages, path
    /// MTU, threshold, RTT in microseconds and eight more.
    words: [u32; 24],
    /// Pacing rate, its limit, and acknowledged bytes.
    long: [u64; 3],
}

impl TcpInfo {
    const TIMEOUTS: usize = 2;
    const UNACKNOWLEDGED: usize = 4;
    const RTT: usize = 15;
    const ACKNOWLEDGED_BYTES: usize = 2;

    /// Queries the kernel.
    pub(crate) fn of(socket: &impl AsRawFd) -> io::Result<Self> {
        let mut raw = RawTcpInfo::default();
        let mut len = size_of::<RawTcpInfo>() as libc::socklen_t;
        // SAFETY: the descriptor is open; pointer and length describe a live value, of which any bytes are valid.
        check(unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                core::ptr::from_mut(&mut raw).cast(),
                &raw mut len,
            )
        })?;
        Ok(TcpInfo {
            timeouts: raw.bytes[Self::TIMEOUTS],
            unacknowledged: raw.words[Self::UNACKNOWLEDGED],
            acknowledged_bytes: raw.long[Self::ACKNOWLEDGED_BYTES],
            rtt: Duration::from_micros(raw.words[Self::RTT].into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn tcp_info_reports_acknowledged_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(&[7; 1_000]).unwrap();
        let mut info = TcpInfo::of(&stream).unwrap();
        while info.unacknowledged > 0 {
            info = TcpInfo::of(&stream).unwrap();
        }
        assert!((1_000..=1_001).contains(&info.acknowledged_bytes), "{info:?}");
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1), "{info:?}");
        assert_eq!(info.timeouts, 0);
    }
}
