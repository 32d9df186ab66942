//! UDP sockets of the emulator: batched receive (recvmmsg, with GRO packets split) and batched send (GSO).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};

/// Requested receive buffer in bytes. A burst that waits for the emulator's thread must reach the link model without
/// loss.
const KERNEL_BUFFER: usize = 4 << 20;

/// Size of the largest GRO super-datagram in bytes.
const SLOT: usize = 65_536;

/// Maximum plausible age. A step of the wall clock causes larger values.
const MAX_PLAUSIBLE_AGE: Duration = Duration::from_secs(1);

/// A non-blocking UDP socket with segmentation offload.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// A received datagram.
#[derive(Debug)]
pub(crate) struct ReceivedDatagram<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    /// Time that it spent in the kernel before it was read.
    pub(crate) age: Duration,
    pub(crate) bytes: &'a [u8],
}

/// Datagrams of equal size (the last may be shorter) for one destination.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) from_ip: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: &'a [u8],
    pub(crate) segment: usize,
}

/// Buffers for one batch, shared by all sockets of an engine.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    bytes: Vec<u8>,
    meta: Vec<RecvMeta>,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        ReceiveBuffers {
            bytes: vec![0; SLOT * BATCH_SIZE],
            meta: vec![RecvMeta::default(); BATCH_SIZE],
        }
    }
}

impl DatagramSocket {
    /// Creates a socket bound to `local`.
    pub(crate) fn bind(local: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(local)?;
        let state = UdpSocketState::new((&socket).into())?;
        // The kernel may grant less (net.core.rmem_max), which is not an error.
        let _ = state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER);
        let _ = state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER);
        Ok(DatagramSocket { socket, state })
    }

    /// Creates a socket on a port of the kernel's choice that is connected to `remote`, like a NAT binding.
    pub(crate) fn connected(remote: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = DatagramSocket::bind(SocketAddr::new(any, 0))?;
        socket.socket.connect(remote)?;
        Ok(socket)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Maximum number of datagrams in one send.
    pub(crate) fn send_batch_limit(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Reads one batch and calls `each` per datagram. Returns true if the batch was full and more datagrams may be
    /// waiting.
    pub(crate) fn receive(
        &self,
        buffers: &mut ReceiveBuffers,
        mut each: impl FnMut(ReceivedDatagram<'_>),
    ) -> io::Result<bool> {
        let ReceiveBuffers { bytes, meta } = buffers;
        let mut slots: [IoSliceMut<'_>; BATCH_SIZE] = {
            let mut chunks = bytes.chunks_exact_mut(SLOT);
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()))
        };
        let count = self.state.recv((&self.socket).into(), &mut slots, meta)?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for (slot, meta) in slots.iter().zip(meta.iter()).take(count) {
            let age = meta.timestamp.map_or(Duration::ZERO, |at| wall.saturating_sub(at));
            let age = if age > MAX_PLAUSIBLE_AGE { Duration::ZERO } else { age };
            let whole = &slot[..meta.len];
            for bytes in whole.chunks(meta.stride.max(1)) {
                let (from, to_ip, ecn) = (meta.addr, meta.dst_ip, meta.ecn);
                each(ReceivedDatagram { from, to_ip, ecn, age, bytes });
            }
        }
        Ok(count == BATCH_SIZE)
    }

    /// Sends a batch. After an ICMP error caused by an earlier datagram, the kernel fails the next call without
    /// sending anything, so this retries once.
    pub(crate) fn send(&self, batch: &Outgoing<'_>) -> io::Result<()> {
        let transmit = Transmit {
            destination: batch.to,
            ecn: batch.ecn,
            contents: batch.bytes,
            segment_size: Some(batch.segment),
            src_ip: batch.from_ip,
        };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.state.try_send((&self.socket).into(), &transmit)
            }
            result => result,
        }
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Datagrams the kernel dropped because the socket's buffer was full: losses that are not part of the link model.
/// `None` if the system does not report them.
pub(crate) fn kernel_drops(socket: &DatagramSocket) -> Option<u64> {
    let local = socket.local_addr().ok()?;
    let table = match local {
        SocketAddr::V4(_) => "/proc/self/net/udp",
        SocketAddr::V6(_) => "/proc/self/net/udp6",
    };
    parse_drops(&std::fs::read_to_string(table).ok()?, local.port())
}

/// Finds the last column of the line whose local port (hexadecimal, second column) is `port`.
fn parse_drops(table: &str, port: u16) -> Option<u64> {
    let wanted = format!(":{port:04X}");
    let mut drops = None;
    for line in table.lines().skip(1) {
        let mut columns = line.split_ascii_whitespace();
        if columns.nth(1).is_some_and(|local| local.ends_with(&wanted)) {
            let count: u64 = columns.next_back()?.parse().ok()?;
            drops = Some(drops.unwrap_or(0) + count);
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_kernel_table() {
        // Columns: slot, local, remote, state, queues, timer, retransmits, user, timeout, inode,
        // references, pointer, drops.
        let line = |slot: u32, local: &str, drops: u32| {
            format!("{slot}: {local} 00000000:0000 07 0:0 00:0 0 0 0 99 2 0 {drops}\n")
        };
        let table = ["  sl  local_address ...\n".to_owned(), line(12, "0100007F:1B59", 17)]
            .concat()
            + &line(13, "0100007F:1B5A", 0);
        assert_eq!(parse_drops(&table, 7001), Some(17));
        assert_eq!(parse_drops(&table, 7002), Some(0));
        assert_eq!(parse_drops(&table, 7003), None);
        assert_eq!(parse_drops("nonsense", 1), None);
    }

    #[test]
    fn a_batch_arrives_as_the_datagrams_it_was_made_of() {
        let loopback: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let receiver = DatagramSocket::bind(loopback).expect("bind");
        let to = receiver.local_addr().expect("address");
        let sender = DatagramSocket::connected(to).expect("connect");
        let payload: Vec<u8> = (0..250u8).collect();
        let limit = sender.send_batch_limit();
        let segment = if limit > 2 { 100 } else { 250 };
        let batch = Outgoing { to, from_ip: None, ecn: None, bytes: &payload, segment };
        sender.send(&batch).expect("send");
        let (mut buffers, mut got) = (ReceiveBuffers::new(), Vec::new());
        for _ in 0..1_000 {
            match receiver.receive(&mut buffers, |d| got.push(d.bytes.to_vec())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => drop(other.expect("receive")),
            }
            if got.concat().len() == payload.len() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(got.concat(), payload);
        assert_eq!(got.len(), payload.len().div_ceil(segment));
    }
}
