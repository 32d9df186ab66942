//! UDP datagrams of the programs behind the interface, and the trait of their carrier.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use marline_io::Tun;
use marline_wire::{
    PROTOCOL_UDP, UDP_HEADER_LEN, emit_ip, emit_udp, fill_udp_checksum, ip_header_len,
};

use crate::addresses::MTU;

/// A datagram that a program has sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Address of the program.
    pub source: SocketAddr,
    /// Destination address.
    pub destination: SocketAddr,
    /// Payload.
    pub payload: &'a [u8],
}

/// An echo request that a program has sent (ICMP).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Address of the program.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Identifier chosen by the program, with the role of a port.
    pub identifier: u16,
    /// Sequence number.
    pub sequence: u16,
    /// Remaining hop limit behind the gateway, at least 1.
    pub hops: u8,
    /// Data.
    pub payload: &'a [u8],
}

/// Result of passing on a datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DatagramOutcome {
    /// The datagram is on its way, or lost like any other.
    Carried,
    /// The datagram is not sent, and the program is notified (ICMP port unreachable, or administratively prohibited
    /// for an echo request).
    Refused,
    /// The datagram exceeds this maximum payload length of the path. The program is notified if it requested that.
    TooBig(usize),
}

/// Carrier of datagrams.
pub trait Datagrams: Send {
    /// Accepts a datagram. Replies are written to `answers`, now or later. Must not block or take long.
    fn on_datagram(&mut self, datagram: &Datagram<'_>, answers: &DatagramWriter)
    -> DatagramOutcome;

    /// Accepts an echo request, like [`Datagrams::on_datagram`]. The default refuses it.
    fn on_echo(&mut self, echo: &Echo<'_>, answers: &DatagramWriter) -> DatagramOutcome {
        let _ = (echo, answers);
        DatagramOutcome::Refused
    }
}

/// No carrier: programs that try UDP are notified immediately that it does not work, and use TCP if they can.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoDatagrams;

impl Datagrams for NoDatagrams {
    fn on_datagram(
        &mut self,
        _datagram: &Datagram<'_>,
        _answers: &DatagramWriter,
    ) -> DatagramOutcome {
        DatagramOutcome::Refused
    }
}

/// Delivers datagrams to the programs behind the interface.
#[derive(Clone, Debug)]
pub struct DatagramWriter {
    tun: Arc<Tun>,
}

impl DatagramWriter {
    /// Creates a writer for this interface.
    #[must_use]
    pub const fn new(tun: Arc<Tun>) -> DatagramWriter {
        DatagramWriter { tun }
    }

    /// Sends a datagram to a program with `from` as its source address.
    ///
    /// # Errors
    /// The datagram exceeds the interface's MTU, the addresses are of different families, or the interface no longer
    /// exists.
    pub fn send(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let header = ip_header_len(from.ip());
        let whole = header + UDP_HEADER_LEN + payload.len();
        if whole > MTU as usize {
            return Err(invalid("the datagram exceeds the interface's MTU"));
        }
        let mut packet = vec![0; header + UDP_HEADER_LEN];
        let udp_len = UDP_HEADER_LEN + payload.len();
        let unfit = |_| invalid("the two addresses are of different families");
        emit_ip(from.ip(), to.ip(), PROTOCOL_UDP, 0, udp_len, &mut packet).map_err(unfit)?;
        let udp = &mut packet[header..];
        emit_udp(from.port(), to.port(), payload.len(), udp).map_err(unfit)?;
        packet.extend_from_slice(payload);
        fill_udp_checksum(from.ip(), to.ip(), &mut packet[header..]);
        self.tun.write(&packet)
    }

    /// Sends a whole packet.
    pub(crate) fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.tun.write(packet)
    }
}
