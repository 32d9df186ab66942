//! UDP sockets of the driver: bound to an interface, with large buffers, distributed among shards.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use super::{error_queue, set_option};
use crate::edge::socket_spec::{PortSharing, SocketSpec};

/// Requested kernel buffer in each direction, in bytes. A receive buffer must hold the packets that arrive while the
/// application's thread runs: 4 MiB hold 5 ms at 6 Gbit/s.
const BUFFER_BYTES: usize = 8 << 20;

/// Offset of the flow id in a UDP payload; its first byte selects the socket of a group.
const FLOW_ID_OFFSET: u32 = 1;
/// Offset of the last byte of the sender's own id in a HANDSHAKE frame.
const SENDER_ID_LAST_BYTE: u32 = 16;

/// Opens a nonblocking UDP socket.
pub(crate) fn udp_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
}

/// Opens and binds a UDP socket.
pub(crate) fn open(spec: &SocketSpec<'_>) -> io::Result<UdpSocket> {
    let socket = udp_socket(Domain::for_address(spec.local))?;
    if spec.local.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if spec.port == PortSharing::Additional {
        socket.set_reuse_port(true)?;
    }
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, spec.local.is_ipv6())?;
    }
    set_mark(&socket, spec.mark)?;
    raise_buffers(&socket);
    socket.bind(&spec.local.into())?;
    if spec.port == PortSharing::First {
        // If set before the bind, this option would also allow a port that another group uses.
        socket.set_reuse_port(true)?;
    }
    error_queue::enable(socket.as_fd(), spec.local.is_ipv6())?;
    Ok(socket.into())
}

/// Marks the packets for the routing rules. Needs CAP_NET_ADMIN.
pub(crate) fn set_mark(socket: &Socket, mark: u32) -> io::Result<()> {
    if mark == 0 { Ok(()) } else { socket.set_mark(mark) }
}

/// Binds a socket to an interface. SO_BINDTODEVICE needs no privilege on a socket that is not yet bound to an interface
/// (Linux 5.7). On older kernels, a routing hint is used.
pub(crate) fn bind_to_interface(
    socket: &Socket,
    name: &str,
    index: u32,
    ipv6: bool,
) -> io::Result<()> {
    match socket.bind_device(Some(name.as_bytes())) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        other => return other,
    }
    hint_interface(socket, index, ipv6)
}

/// Sets the interface for unicast packets, as a routing hint.
fn hint_interface(socket: &Socket, index: u32, ipv6: bool) -> io::Result<()> {
    let index = NonZeroU32::new(index)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "interface index 0"))?;
    let value = index.get().to_be();
    let (level, option) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF)
    } else {
        (libc::IPPROTO_IP, libc::IP_UNICAST_IF)
    };
    set_option(socket.as_fd(), level, option, &value)
}

/// Requests large buffers, beyond the system limit if permitted.
pub(crate) fn raise_buffers(socket: &Socket) {
    let received = sockopt::set_socket_recv_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES));
    let sent = sockopt::set_socket_send_buffer_size_force(socket, BUFFER_BYTES)
        .or_else(|_| sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES));
    if received.and(sent).is_err() {
        tracing::debug!("cannot enlarge socket buffers; bursts may be dropped");
    }
}

/// Sets the initial size of a new TCP socket's receive buffer, in bytes; the kernel then tunes it as usual. The socket
/// must not yet be connected, because even the first advertised window must be small.
///
/// # Errors
/// Fails before Linux 5.14, which does not support this: the size would remain fixed.
pub fn set_initial_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &half)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &NOT_LOCKED)
}

/// Makes the kernel tune a TCP socket's receive buffer again after its size was set, starting from the size of a new
/// socket. Merely setting another size would leave the window small.
///
/// # Errors
/// Fails before Linux 5.14, which does not support this: the size would remain that of a new socket.
pub fn restore_receive_buffer(socket: BorrowedFd<'_>) -> io::Result<()> {
    /// Default window of a new socket (half of the buffer in `tcp_rmem`).
    const WINDOW: libc::c_int = 64 * 1_024;
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &WINDOW)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &WINDOW)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &NOT_LOCKED)
}

/// Value that lets the kernel tune the buffer.
const NOT_LOCKED: libc::c_int = 0;

/// Makes the kernel select among the `shards` sockets of a group, in the order of binding, by the top byte of the flow
/// id. A first SYN has no flow id and is assigned by the last byte of the sender's id, so that a retransmission reaches
/// the same shard even from another address. Setting the program on one socket is enough.
pub(crate) fn spread_by_flow_id(socket: BorrowedFd<'_>, shards: u8) -> io::Result<()> {
    let mut program = shard_program(shards);
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// Builds a classic BPF program for the UDP payload. Loads beyond the end of a short datagram end the program with 0,
/// the first shard, which ignores the datagram.
fn shard_program(shards: u8) -> [libc::sock_filter; 9] {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const RETURN_A: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let unless_zero_skip = |jf| libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf, k: 0 };
    [
        op(LOAD_WORD, FLOW_ID_OFFSET),
        unless_zero_skip(4),
        op(LOAD_WORD, FLOW_ID_OFFSET + 4),
        unless_zero_skip(2),
        op(LOAD_BYTE, SENDER_ID_LAST_BYTE),
        op(JUMP, 1),
        op(LOAD_BYTE, FLOW_ID_OFFSET),
        op(AND, u32::from(shards.max(1) - 1)),
        op(RETURN_A, 0),
    ]
}

/// Returns the MTU (IP packet length) of the route from a socket bound like `spec` to `remote`. Sends nothing: it
/// connects a UDP socket and queries its MTU.
pub(crate) fn route_mtu(spec: &SocketSpec<'_>, remote: SocketAddr) -> io::Result<u32> {
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    if let Some((name, index)) = spec.interface {
        bind_to_interface(&socket, name, index, remote.is_ipv6())?;
    }
    set_mark(&socket, spec.mark)?;
    ask_route_mtu(&socket, spec.local.ip(), remote)
}

/// Returns the MTU of the route through the interface with this index (0 for any).
pub(crate) fn route_mtu_by_index(
    local: IpAddr,
    interface: u32,
    remote: SocketAddr,
) -> io::Result<u32> {
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    if interface != 0 {
        hint_interface(&socket, interface, remote.is_ipv6())?;
    }
    ask_route_mtu(&socket, local, remote)
}

pub(super) fn ask_route_mtu(socket: &Socket, local: IpAddr, remote: SocketAddr) -> io::Result<u32> {
    socket.bind(&SocketAddr::new(local, 0).into())?;
    socket.connect(&remote.into())?;
    let mtu = if remote.is_ipv6() { sockopt::ipv6_mtu(socket) } else { sockopt::ip_mtu(socket) };
    Ok(mtu?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn group(shards: u8) -> Vec<UdpSocket> {
        let mut local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut sockets = Vec::new();
        for shard in 0..shards {
            let port = if shard == 0 { PortSharing::First } else { PortSharing::Additional };
            let spec = SocketSpec { local, interface: None, port, mark: 0 };
            let socket = open(&spec).unwrap();
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            local = socket.local_addr().unwrap();
            sockets.push(socket);
        }
        spread_by_flow_id(sockets[0].as_fd(), shards).unwrap();
        sockets
    }

    #[test]
    fn the_kernel_gives_each_flow_to_its_shard_and_spreads_first_syns() {
        let sockets = group(4);
        let to = sockets[0].local_addr().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut buf = [0; 64];
        for top in [0u8, 1, 2, 3, 4, 7, 0x82, 0xff] {
            let mut datagram = vec![0x10, top];
            datagram.extend([0, 0, 0, 0, 0, 0, 9]);
            datagram.extend([0; 20]);
            sender.send_to(&datagram, to).unwrap();
            let (len, _) = sockets[usize::from(top & 3)].recv_from(&mut buf).unwrap();
            assert_eq!(&buf[..len], &datagram[..], "top byte {top:#x}");
        }
        let mut syn = vec![0x11];
        syn.extend([0; 40]);
        for last in 0..16u8 {
            syn[16] = last;
            sender.send_to(&syn, to).unwrap();
            let (len, _) = sockets[usize::from(last & 3)].recv_from(&mut buf).unwrap();
            assert_eq!(&buf[..len], &syn[..], "sender's id ends in {last:#x}");
        }
        for len in 0..17 {
            sender.send_to(&syn[..len], to).unwrap();
            assert!(sockets[0].recv_from(&mut buf).is_ok(), "{len} bytes go to the first shard");
        }
    }

    #[test]
    fn a_group_has_its_port_for_itself() {
        let sockets = group(2);
        let local = sockets[0].local_addr().unwrap();
        let spec = SocketSpec { local, interface: None, port: PortSharing::First, mark: 0 };
        assert_eq!(open(&spec).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn the_mtu_of_a_route_is_known() {
        let local = "127.0.0.1:0".parse().unwrap();
        let (interface, port) = (Some(("lo", 1)), PortSharing::Alone);
        let spec = SocketSpec { local, interface, port, mark: 0 };
        assert!(route_mtu(&spec, "127.0.0.1:9".parse().unwrap()).unwrap() >= 1500);
    }
}
