//! Raw IP sockets for TCP segments (raw(7), ipv6(7)): one per family, with batches in both directions.
//!
//! The kernel writes the IP header of outgoing packets: source address, interface and ECN bits are parameters of each
//! call (IP_PKTINFO). A received packet begins with the IP header on IPv4 and with the TCP header on IPv6, whose
//! addresses arrive in control messages.

use core::mem;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{check, error_queue, filter, set_option, socket};
use crate::edge::raw_packet::{MESSAGES, RawDestination, RawMeta};

/// Length of each receive buffer: the maximum that the kernel coalesces.
const MESSAGE_BYTES: usize = 64 << 10;
/// Option for automatic flow labels, which libc does not define for all targets.
const IPV6_AUTOFLOWLABEL: libc::c_int = 70;
/// Length of the buffer for control messages: a destination and a traffic class.
const CONTROL_BYTES: usize = 128;
/// Option values.
const ON: libc::c_int = 1;
const OFF: libc::c_int = 0;

/// Addresses to which no TCP packets are sent (RFC 9293 section 3.9.2.3): in organization-local scope and not assigned
/// (RFC 2365, RFC 4291 section 2.7).
const UNUSED_DESTINATION_V4: Ipv4Addr = Ipv4Addr::new(239, 192, 255, 254);
const UNUSED_DESTINATION_V6: Ipv6Addr = Ipv6Addr::new(0xff18, 0, 0, 0, 0, 0, 0, 0xfffe);

/// Opens a raw socket for TCP that receives nothing at first: its filter drops everything, and packets that arrived
/// before the filter are discarded.
pub(crate) fn open(ipv6: bool) -> io::Result<OwnedFd> {
    let raw = open_silent(ipv6)?;
    let (level, option) = if ipv6 {
        set_option(raw.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &ON)?;
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    set_option(raw.as_fd(), level, option, &ON)?;
    error_queue::enable(raw.as_fd(), ipv6)?;
    Ok(raw)
}

/// Opens a send-only raw socket for TCP, which receives neither packets nor errors.
pub(crate) fn open_sender(ipv6: bool) -> io::Result<OwnedFd> {
    let raw = open_silent(ipv6)?;
    bind_to_unused_address(raw.as_fd(), ipv6);
    Ok(raw)
}

/// Binds a send-only socket to an address to which no packets are sent.
///
/// For each TCP packet, the kernel copies the header for each raw socket that may receive it and runs that socket's
/// filter on the copy. A bound socket gets only packets to its address. A multicast address can be bound on every
/// machine, is never used as a source address, and is never the destination of TCP packets.
fn bind_to_unused_address(fd: BorrowedFd<'_>, ipv6: bool) {
    let nobody =
        if ipv6 { IpAddr::V6(UNUSED_DESTINATION_V6) } else { IpAddr::V4(UNUSED_DESTINATION_V4) };
    if let Err(error) = rustix::net::bind(fd, &SocketAddr::new(nobody, 0)) {
        // This only costs time, because the filter drops the packets.
        tracing::debug!(%error, "cannot bind a send-only raw socket; it gets copies of packets");
    }
}

/// Opens a raw socket for TCP whose filter drops everything.
fn open_silent(ipv6: bool) -> io::Result<OwnedFd> {
    let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let raw = Socket::new(domain, Type::RAW.nonblocking(), Some(Protocol::TCP))?;
    filter::attach(raw.as_fd(), &filter::DROP_ALL)?;
    drain(raw.as_fd());
    socket::raise_buffers(&raw);
    // The core probes the MTU itself: the kernel sets DF and ignores its own path MTU.
    if ipv6 {
        let value = libc::IPV6_PMTUDISC_PROBE;
        set_option(raw.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &value)?;
        // Packets that other code writes have no flow label, and a flow must use only one.
        set_option(raw.as_fd(), libc::IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &OFF)?;
    } else {
        let value = libc::IP_PMTUDISC_PROBE;
        set_option(raw.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &value)?;
    }
    Ok(raw.into())
}

/// Binds a socket to an interface. This needs no privilege on a socket that was never bound to an interface (Linux
/// 5.7).
pub(crate) fn bind_to_interface(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &(index as libc::c_int))
}

/// Discards everything in the receive queue.
pub(crate) fn drain(fd: BorrowedFd<'_>) {
    let mut byte = [0u8; 1];
    // An interrupted call does not mean that the queue is empty.
    while matches!(rustix::net::recv(fd, &mut byte, RecvFlags::DONTWAIT), Ok(_) | Err(Errno::INTR))
    {
    }
}

/// Buffer for control messages, aligned for their headers.
#[repr(C, align(8))]
#[derive(Copy, Clone)]
struct Control([u8; CONTROL_BYTES]);

/// Appends a control message. Returns the bytes used so far.
fn push_control<T>(control: &mut Control, used: usize, level: i32, kind: i32, value: &T) -> usize {
    let size = mem::size_of::<T>();
    // SAFETY: arithmetic on a constant.
    let (space, len) =
        unsafe { (libc::CMSG_SPACE(size as u32) as usize, libc::CMSG_LEN(size as u32) as usize) };
    assert!(used + space <= CONTROL_BYTES, "room for two control messages");
    // SAFETY: `space` bytes from `used` are within the buffer (asserted), which is aligned for
    // cmsghdr since every `space` is a multiple of its alignment; all types here are plain data.
    unsafe {
        let header = control.0.as_mut_ptr().add(used).cast::<libc::cmsghdr>();
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        core::ptr::write_unaligned(libc::CMSG_DATA(header).cast::<T>(), core::ptr::read(value));
    }
    used + space
}

fn destination_control(to: &RawDestination, control: &mut Control) -> usize {
    let class = libc::c_int::from(to.ecn);
    match to.local {
        IpAddr::V4(source) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: to.interface as libc::c_int,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(source).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let used = push_control(control, 0, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            push_control(control, used, libc::IPPROTO_IP, libc::IP_TOS, &class)
        }
        IpAddr::V6(source) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: source.octets() },
                ipi6_ifindex: to.interface,
            };
            let used = push_control(control, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            push_control(control, used, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)
        }
    }
}

/// Sends segments that lie `stride` bytes apart in `bytes` (0 for a single one), at most [`MESSAGES`]. Returns the
/// number of segments that the kernel accepted, at least one.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    to: &RawDestination,
    stride: usize,
    bytes: &[u8],
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let control_len = destination_control(to, &mut control);
    // On IPv6, the destination port of a raw socket is a protocol number and must be 0.
    let mut remote = to.remote;
    remote.set_port(0);
    let name = socket2::SockAddr::from(remote);
    // SAFETY: all-zero bytes are a valid iovec and a valid mmsghdr (null pointers, zero lengths).
    let (mut iovecs, mut messages) = unsafe {
        (mem::zeroed::<[libc::iovec; MESSAGES]>(), mem::zeroed::<[libc::mmsghdr; MESSAGES]>())
    };
    let mut count = 0;
    let stride = if stride == 0 { bytes.len().max(1) } else { stride };
    for (at, segment) in bytes.chunks(stride).take(MESSAGES).enumerate() {
        iovecs[at] =
            libc::iovec { iov_base: segment.as_ptr().cast_mut().cast(), iov_len: segment.len() };
        let header = &mut messages[at].msg_hdr;
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
        header.msg_iov = &raw mut iovecs[at];
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control_len as _;
        count += 1;
    }
    // SAFETY: `count` headers are filled in; every pointer in them refers to a live value of the length given next to
    // it, which the call only reads.
    let sent = check(unsafe {
        libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
    })?;
    Ok(sent as usize)
}

/// Sends one segment made of these parts.
pub(crate) fn send_parts(
    fd: BorrowedFd<'_>,
    to: &RawDestination,
    parts: &[IoSlice<'_>],
) -> io::Result<()> {
    let mut control = Control([0; CONTROL_BYTES]);
    let control_len = destination_control(to, &mut control);
    let mut remote = to.remote;
    remote.set_port(0);
    let name = socket2::SockAddr::from(remote);
    // SAFETY: all-zero bytes are a valid msghdr (null pointers, zero lengths).
    let mut message = unsafe { mem::zeroed::<libc::msghdr>() };
    message.msg_name = name.as_ptr().cast_mut().cast();
    message.msg_namelen = name.len();
    // An IoSlice has the layout of an iovec.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_len as _;
    // SAFETY: every pointer in the header refers to a live value of the length given next to it, which the call only
    // reads.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the MTU that the kernel uses for TCP packets to this destination. IPsec makes it smaller than the MTU of the
/// route. The socket is connected for this query and then disconnected.
pub(crate) fn kernel_mtu(fd: BorrowedFd<'_>, to: &RawDestination) -> io::Result<u32> {
    let asked = socket::ask_route_mtu(&SockRef::from(&fd), to.local, to.remote);
    rustix::net::connect_unspec(fd)?;
    bind_to_unused_address(fd, to.local.is_ipv6());
    asked
}

/// Receive buffer for packets.
pub(crate) struct RawBuffer {
    bytes: Box<[u8]>,
    metas: Box<[RawMeta; MESSAGES]>,
    received: usize,
}

impl RawBuffer {
    pub(crate) fn new() -> Self {
        let source = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let (destination, taken_for, class) = (None, None, 0);
        let meta = RawMeta {
            len: 0,
            truncated: false,
            source,
            destination,
            delivered_to: taken_for,
            class,
        };
        RawBuffer {
            bytes: vec![0; MESSAGES * MESSAGE_BYTES].into_boxed_slice(),
            metas: Box::new([meta; MESSAGES]),
            received: 0,
        }
    }

    /// Receives available packets and returns their number.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.received = 0;
        let mut controls = [Control([0; CONTROL_BYTES]); MESSAGES];
        // SAFETY: all-zero bytes are a valid sockaddr_storage, iovec and mmsghdr.
        let (mut names, mut iovecs, mut messages) = unsafe {
            (
                mem::zeroed::<[libc::sockaddr_storage; MESSAGES]>(),
                mem::zeroed::<[libc::iovec; MESSAGES]>(),
                mem::zeroed::<[libc::mmsghdr; MESSAGES]>(),
            )
        };
        for (at, chunk) in self.bytes.chunks_mut(MESSAGE_BYTES).enumerate() {
            iovecs[at] = libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() };
            let header = &mut messages[at].msg_hdr;
            header.msg_name = (&raw mut names[at]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut iovecs[at];
            header.msg_iovlen = 1;
            header.msg_control = controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: every pointer in the headers refers to a live, writable value of the length given next to it.
        let received = check(unsafe {
            let (messages, count) = (messages.as_mut_ptr(), MESSAGES as libc::c_uint);
            let no_timeout = core::ptr::null_mut();
            libc::recvmmsg(fd.as_raw_fd(), messages, count, libc::MSG_DONTWAIT as _, no_timeout)
        })? as usize;
        for at in 0..received {
            self.metas[at] = meta(&messages[at], &names[at]);
        }
        self.received = received;
        Ok(received)
    }

    /// Returns the packets of the last [`receive`](Self::receive).
    pub(crate) fn packets(&self) -> impl Iterator<Item = (&RawMeta, &[u8])> {
        let packets = self.metas.iter().zip(self.bytes.chunks(MESSAGE_BYTES)).take(self.received);
        packets.map(|(meta, bytes)| (meta, bytes.get(..meta.len).unwrap_or_default()))
    }
}

fn meta(message: &libc::mmsghdr, name: &libc::sockaddr_storage) -> RawMeta {
    let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let mut meta = RawMeta {
        len: message.msg_len as usize,
        truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        source: error_queue::socket_addr(name).unwrap_or(unknown),
        destination: None,
        delivered_to: None,
        class: 0,
    };
    // SAFETY: the kernel filled the header's control buffer, which is still live.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&raw const message.msg_hdr) };
    while !cmsg.is_null() {
        read_control(cmsg, &mut meta);
        // SAFETY: both pointers belong to the same filled control buffer.
        cmsg = unsafe { libc::CMSG_NXTHDR(&raw const message.msg_hdr, cmsg) };
    }
    meta
}

fn read_control(cmsg: *const libc::cmsghdr, meta: &mut RawMeta) {
    // SAFETY: the caller passes a pointer into a control buffer that the kernel filled.
    let (level, kind, data) =
        unsafe { ((*cmsg).cmsg_level, (*cmsg).cmsg_type, libc::CMSG_DATA(cmsg)) };
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            // SAFETY: a message of this kind contains an in_pktinfo; it may be unaligned.
            let info: libc::in_pktinfo = unsafe { core::ptr::read_unaligned(data.cast()) };
            let ip = |addr: libc::in_addr| IpAddr::V4(Ipv4Addr::from(u32::from_be(addr.s_addr)));
            meta.destination = Some(ip(info.ipi_addr));
            meta.delivered_to = Some(ip(info.ipi_spec_dst));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            // SAFETY: a message of this kind contains an in6_pktinfo; it may be unaligned.
            let info: libc::in6_pktinfo = unsafe { core::ptr::read_unaligned(data.cast()) };
            meta.destination = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
        }
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
            // SAFETY: a message of this kind contains a c_int; it may be unaligned.
            let class: libc::c_int = unsafe { core::ptr::read_unaligned(data.cast()) };
            meta.class = class as u8;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use marline_testkit::need;

    use super::*;

    /// Returns true if a raw socket with an open filter receives packets between other sockets.
    fn receives_foreign_packets(raw: &OwnedFd, at: &str) -> bool {
        let everything = libc::sock_filter { k: u32::MAX, ..filter::DROP_ALL[0] };
        filter::attach(raw.as_fd(), &[everything]).unwrap();
        let listener = TcpListener::bind(at).unwrap();
        let _connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        RawBuffer::new().receive(raw.as_fd()).is_ok_and(|count| count > 0)
    }

    #[test]
    fn a_socket_that_only_sends_gets_no_copies() {
        if !need::root() {
            return;
        }
        for (ipv6, at) in [(false, "127.0.0.1:0"), (true, "[::1]:0")] {
            let receiver = match open(ipv6) {
                Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => continue,
                receiver => receiver.unwrap(),
            };
            assert!(receives_foreign_packets(&receiver, at), "{at}: the receiver gets the packets");
            assert!(!receives_foreign_packets(&open_sender(ipv6).unwrap(), at), "{at}");
        }
    }

    #[test]
    fn a_raw_socket_sends_from_the_given_source_address() {
        if !need::root() {
            return;
        }
        let (receiver, sender) = (open(false).unwrap(), open_sender(false).unwrap());
        let everything = libc::sock_filter { k: u32::MAX, ..filter::DROP_ALL[0] };
        filter::attach(receiver.as_fd(), &[everything]).unwrap();
        let local: IpAddr = "127.0.0.77".parse().unwrap();
        let remote = "127.0.0.78:9".parse().unwrap();
        let to = RawDestination { local, remote, interface: 0, ecn: 0 };
        let segment = [7; 20];
        assert_eq!(send(sender.as_fd(), &to, 0, &segment).unwrap(), 1);
        let mut buffer = RawBuffer::new();
        // Packets of other tests arrive, too.
        for _ in 0..50 {
            while buffer.receive(receiver.as_fd()).is_ok() {
                let ours = |(meta, bytes): (&RawMeta, &[u8])| {
                    bytes.ends_with(&segment) && meta.source.ip() == local
                };
                if buffer.packets().any(ours) {
                    return;
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the packet did not arrive");
    }
}
