//! Socket for ICMP echo that needs no privilege (icmp(7): `SOCK_DGRAM` with `IPPROTO_ICMP`).
//!
//! The system gives each socket an identifier of its own and passes only answers that carry it. Who may have one says
//! `net.ipv4.ping_group_range`, for IPv6 as well. What routers say of a request comes by the socket's error queue.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::{error_queue, watch};

/// Bytes of ICMP's header.
const HEADER: usize = 8;
/// Longer messages are cut: as much data as a datagram that is carried has.
const LONGEST: usize = HEADER + 8_192;
/// Answers taken before others get their turn.
const AT_ONCE: usize = 32;
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;
const REPLY_V4: u8 = 0;
const REPLY_V6: u8 = 129;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EchoAnswer<'a> {
    /// It was answered.
    Reply {
        /// By whom.
        from: IpAddr,
        /// The request's sequence number.
        sequence: u16,
        /// The request's data, if whoever answered was honest.
        data: &'a [u8],
    },
    /// It did not arrive (RFC 792, RFC 4443).
    Failed {
        /// Where it was to go.
        to: IpAddr,
        /// The request's sequence number.
        sequence: u16,
        /// Type and code of the ICMP message.
        icmp: (u8, u8),
        /// Bytes of the packets that pass there, if that was the complaint.
        mtu: Option<u32>,
        /// Who said so.
        by: Option<IpAddr>,
    },
}

/// A socket of one address family.
#[derive(Debug)]
pub struct EchoSocket {
    fd: AsyncFd<UdpSocket>,
    ipv6: bool,
}

impl EchoSocket {
    /// Opens one, on the current tokio runtime.
    ///
    /// # Errors
    /// The system's: `PermissionDenied` where `net.ipv4.ping_group_range` leaves out this process' group.
    pub fn open(ipv6: bool) -> io::Result<EchoSocket> {
        let (domain, protocol, any) = match ipv6 {
            true => (Domain::IPV6, Protocol::ICMPV6, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
            false => (Domain::IPV4, Protocol::ICMPV4, Ipv4Addr::UNSPECIFIED.into()),
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // Draws the identifier.
        socket.bind(&SocketAddr::new(any, 0).into())?;
        error_queue::enable(socket.as_fd(), ipv6)?;
        let socket = UdpSocket::from(OwnedFd::from(socket));
        Ok(EchoSocket { fd: watch(socket, Interest::READABLE | Interest::ERROR)?, ipv6 })
    }

    /// Sends a request that may pass `hops` routers less one, at most 255.
    ///
    /// # Errors
    /// The system's: there is no way, no room, or it is too long.
    pub fn send(&self, to: IpAddr, hops: u8, sequence: u16, data: &[u8]) -> io::Result<()> {
        let socket = SockRef::from(self.fd.get_ref());
        match self.ipv6 {
            true => socket.set_unicast_hops_v6(hops.into())?,
            false => socket.set_ttl_v4(hops.into())?,
        }
        let kind = if self.ipv6 { ECHO_V6 } else { ECHO_V4 };
        let [high, low] = sequence.to_be_bytes();
        // Checksum and identifier are the system's to fill in.
        let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
        message.extend_from_slice(data);
        let to = SocketAddr::new(to, 0).into();
        // The first call may tell of an earlier request.
        let sent = socket.send_to(&message, &to);
        sent.or_else(|_| socket.send_to(&message, &to)).map(|_| ())
    }

    /// Waits for answers and tells those that are there.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn answers(&self, mut tell: impl FnMut(&EchoAnswer<'_>)) -> io::Result<()> {
        let mut ready = self.fd.ready(Interest::READABLE | Interest::ERROR).await?;
        let mut left = AT_ONCE;
        while left > 0
            && let Some(error) = error_queue::next(self.fd.as_fd())
        {
            left -= 1;
            // An error of this machine's own was told to the sender.
            if let Some(icmp) = error.icmp {
                let [.., _, _, high, low] = error.quoted[..HEADER] else { continue };
                tell(&EchoAnswer::Failed {
                    to: error.remote.ip(),
                    sequence: u16::from_be_bytes([high, low]),
                    icmp,
                    mtu: error.mtu,
                    by: error.offender,
                });
            }
        }
        let mut buffer = [0; LONGEST];
        while left > 0 {
            left -= 1;
            match self.fd.get_ref().recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if let Some((sequence, data)) = self.reply(&buffer[..len]) {
                        tell(&EchoAnswer::Reply { from: from.ip(), sequence, data });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    return Ok(());
                }
                // Of an earlier request: it is in the queue of errors as well.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn reply<'a>(&self, message: &'a [u8]) -> Option<(u16, &'a [u8])> {
        let (&[kind, 0, _, _, _, _, high, low], data) = message.split_first_chunk::<HEADER>()?
        else {
            return None;
        };
        let wanted = if self.ipv6 { REPLY_V6 } else { REPLY_V4 };
        (kind == wanted).then_some((u16::from_be_bytes([high, low]), data))
    }
}
