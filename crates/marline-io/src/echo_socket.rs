//! Socket for ICMP echo that needs no privilege (icmp(7): `SOCK_DGRAM` with `IPPROTO_ICMP`).
//!
//! The kernel gives each socket its own identifier and delivers only answers with this identifier. The sysctl
//! `net.ipv4.ping_group_range` decides which groups may open such a socket, also for IPv6. ICMP errors about requests
//! arrive in the socket's error queue.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::edge::descriptor::watch;
use crate::sys::error_queue;

/// Length of the ICMP header.
const HEADER: usize = 8;
/// Maximum message length: the data of the largest datagram that a tunnel carries. Longer messages are truncated.
const MAX_MESSAGE_LEN: usize = HEADER + 8_192;
/// Number of answers handled before other tasks get their turn.
const ANSWERS_PER_TURN: usize = 32;
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;
const REPLY_V4: u8 = 0;
const REPLY_V6: u8 = 129;

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EchoAnswer<'a> {
    /// The request was answered.
    Reply {
        /// Sender of the answer.
        from: IpAddr,
        /// Sequence number of the request.
        sequence: u16,
        /// Data of the request, if the sender copied it correctly.
        data: &'a [u8],
    },
    /// The request did not arrive (RFC 792, RFC 4443).
    Failed {
        /// Destination of the request.
        to: IpAddr,
        /// Sequence number of the request.
        sequence: u16,
        /// Type and code of the ICMP message.
        icmp: (u8, u8),
        /// MTU reported by a "packet too big" error, in bytes.
        mtu: Option<u32>,
        /// Sender of the error.
        by: Option<IpAddr>,
    },
}

/// ICMP echo socket of one address family.
#[derive(Debug)]
pub struct EchoSocket {
    fd: AsyncFd<UdpSocket>,
    ipv6: bool,
}

impl EchoSocket {
    /// Opens a socket on the current tokio runtime.
    ///
    /// # Errors
    /// Fails if the socket cannot be opened: with `PermissionDenied` if `net.ipv4.ping_group_range` does not include
    /// this process's group.
    pub fn open(ipv6: bool) -> io::Result<EchoSocket> {
        let (domain, protocol, any) = match ipv6 {
            true => (Domain::IPV6, Protocol::ICMPV6, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
            false => (Domain::IPV4, Protocol::ICMPV4, Ipv4Addr::UNSPECIFIED.into()),
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // Binding assigns the identifier.
        socket.bind(&SocketAddr::new(any, 0).into())?;
        error_queue::enable(socket.as_fd(), ipv6)?;
        let socket = UdpSocket::from(OwnedFd::from(socket));
        Ok(EchoSocket { fd: watch(socket, Interest::READABLE | Interest::ERROR)?, ipv6 })
    }

    /// Sends a request with this hop limit (1 to 255).
    ///
    /// # Errors
    /// Fails if there is no route or no buffer space, or if the message is too long.
    pub fn send(&self, to: IpAddr, hops: u8, sequence: u16, data: &[u8]) -> io::Result<()> {
        let socket = SockRef::from(self.fd.get_ref());
        match self.ipv6 {
            true => socket.set_unicast_hops_v6(hops.into())?,
            false => socket.set_ttl_v4(hops.into())?,
        }
        let kind = if self.ipv6 { ECHO_V6 } else { ECHO_V4 };
        let [high, low] = sequence.to_be_bytes();
        // The kernel fills in the checksum and the identifier.
        let mut message = vec![kind, 0, 0, 0, 0, 0, high, low];
        message.extend_from_slice(data);
        let to = SocketAddr::new(to, 0).into();
        // The first call may return the error of an earlier request.
        let sent = socket.send_to(&message, &to);
        sent.or_else(|_| socket.send_to(&message, &to)).map(|_| ())
    }

    /// Waits for answers and passes all available ones to `report`.
    ///
    /// # Errors
    /// Fails if the runtime is shutting down.
    pub async fn answers(&self, mut report: impl FnMut(&EchoAnswer<'_>)) -> io::Result<()> {
        let mut ready = self.fd.ready(Interest::READABLE | Interest::ERROR).await?;
        let mut left = ANSWERS_PER_TURN;
        while left > 0
            && let Some(error) = error_queue::next(self.fd.as_fd())
        {
            left -= 1;
            // The send call has already reported an error of this machine.
            if let Some(icmp) = error.icmp {
                let [.., _, _, high, low] = error.quoted[..HEADER] else { continue };
                report(&EchoAnswer::Failed {
                    to: error.remote.ip(),
                    sequence: u16::from_be_bytes([high, low]),
                    icmp,
                    mtu: error.mtu,
                    by: error.offender,
                });
            }
        }
        let mut buffer = [0; MAX_MESSAGE_LEN];
        while left > 0 {
            left -= 1;
            match self.fd.get_ref().recv_from(&mut buffer) {
                Ok((len, from)) => {
                    if let Some((sequence, data)) = self.reply(&buffer[..len]) {
                        report(&EchoAnswer::Reply { from: from.ip(), sequence, data });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                    return Ok(());
                }
                // This error of an earlier request is also in the error queue.
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
