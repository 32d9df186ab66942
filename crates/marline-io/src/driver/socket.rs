//! A UDP socket of a shard, and what the kernel may say when we send.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use marline_core::Ecn;
use quinn_udp::{EcnCodepoint, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::carrier::Outer;
use crate::sys::error_queue::{self, NetworkError};
use crate::sys::socket::{self, SocketSpec};

/// Batches that wait for room in the kernel; more are dropped, as a router would.
const STALLED_CAPACITY: usize = 32;

/// How a socket is to be opened.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Address and port to bind; port 0 lets the system choose.
    pub local: SocketAddr,
    /// Interface to bind to: name and index.
    pub interface: Option<(String, u32)>,
    /// One of several that share the port.
    pub share_port: bool,
}

impl SocketOptions {
    fn spec(&self) -> SocketSpec<'_> {
        SocketSpec {
            local: self.local,
            interface: self.interface.as_ref().map(|(name, index)| (name.as_str(), *index)),
            share_port: self.share_port,
        }
    }
}

/// An open socket.
#[derive(Debug)]
pub(crate) struct UdpSock {
    pub(crate) fd: AsyncFd<UdpSocket>,
    pub(crate) state: UdpSocketState,
    pub(crate) options: SocketOptions,
    /// The address it is bound to.
    pub(crate) local: SocketAddr,
    /// It is bound to all addresses: replies must name theirs.
    wildcard: bool,
}

impl UdpSock {
    pub(crate) fn open(options: SocketOptions) -> io::Result<Self> {
        let socket = socket::open(&options.spec())?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let local = socket.local_addr()?;
        let fd = crate::sys::watch(socket, Interest::READABLE | Interest::ERROR)?;
        Ok(UdpSock { fd, state, options, local, wildcard: local.ip().is_unspecified() })
    }

    /// Sends one batch, or says why not. `stride` 0: a single datagram.
    pub(crate) fn send(
        &self,
        outer: &Outer,
        ecn: Ecn,
        stride: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let reference = UdpSockRef::from(self.fd.get_ref());
        let mut transmit = quinn_udp::Transmit {
            destination: outer.remote,
            ecn: codepoint(ecn),
            contents: bytes,
            segment_size: (stride > 0 && stride < bytes.len()).then_some(stride),
            src_ip: self.wildcard.then_some(outer.local),
        };
        if transmit.segment_size.is_none() || self.state.max_gso_segments() > 1 {
            return self.state.try_send(reference, &transmit);
        }
        transmit.segment_size = None;
        for datagram in bytes.chunks(stride) {
            transmit.contents = datagram;
            self.state.try_send(UdpSockRef::from(self.fd.get_ref()), &transmit)?;
        }
        Ok(())
    }

    /// The next ICMP error the kernel kept for us.
    pub(crate) fn next_error(&self) -> Option<NetworkError> {
        error_queue::next(self.fd.get_ref().as_fd())
    }

    /// Bytes of UDP payload that fit the route to `remote` without fragments, as far as is known.
    pub(crate) fn route_payload(&self, remote: SocketAddr, local: IpAddr) -> Option<u16> {
        let mut spec = self.options.spec();
        spec.local = SocketAddr::new(local, 0);
        payload_of_mtu(socket::route_mtu(&spec, remote).ok()?, remote)
    }
}

/// UDP payload of an IP packet of `mtu` bytes.
pub(crate) fn payload_of_mtu(mtu: u32, remote: SocketAddr) -> Option<u16> {
    const UDP_HEADER: u32 = 8;
    let ip_header = if remote.is_ipv6() { 40 } else { 20 };
    let payload = mtu.checked_sub(ip_header + UDP_HEADER)?;
    Some(u16::try_from(payload).unwrap_or(u16::MAX))
}

fn codepoint(ecn: Ecn) -> Option<EcnCodepoint> {
    match ecn {
        Ecn::NotEct => None,
        Ecn::Ect0 => Some(EcnCodepoint::Ect0),
        Ecn::Ect1 => Some(EcnCodepoint::Ect1),
        Ecn::Ce => Some(EcnCodepoint::Ce),
    }
}

/// The other way round.
pub(crate) fn ecn_of(codepoint: Option<EcnCodepoint>) -> Ecn {
    match codepoint {
        None => Ecn::NotEct,
        Some(EcnCodepoint::Ect0) => Ecn::Ect0,
        Some(EcnCodepoint::Ect1) => Ecn::Ect1,
        Some(EcnCodepoint::Ce) => Ecn::Ce,
    }
}

/// A batch the kernel had no room for.
#[derive(Debug)]
pub(crate) struct Stalled {
    pub(crate) outer: Outer,
    pub(crate) ecn: Ecn,
    pub(crate) stride: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Batches that wait for room, in order, per socket.
#[derive(Debug, Default)]
pub(crate) struct StalledQueue {
    pub(crate) batches: VecDeque<Stalled>,
    pub(crate) dropped: u64,
}

impl StalledQueue {
    pub(crate) fn push(&mut self, batch: Stalled) {
        if self.batches.len() >= STALLED_CAPACITY {
            self.dropped += 1;
            return;
        }
        self.batches.push_back(batch);
    }
}
