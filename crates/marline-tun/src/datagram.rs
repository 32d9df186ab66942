//! UDP datagrams of the programs inside, and the place where their carrier is attached.

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
    /// The program's end.
    pub source: SocketAddr,
    /// Where it is to go.
    pub destination: SocketAddr,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// An echo request that a program has sent (ICMP).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// The program's end.
    pub source: IpAddr,
    /// Where it is to go.
    pub destination: IpAddr,
    /// The program's identifier, as a port is that of a datagram.
    pub identifier: u16,
    /// Its sequence number.
    pub sequence: u16,
    /// Its time to live behind the gateway, at least 1.
    pub hops: u8,
    /// Its data.
    pub payload: &'a [u8],
}

/// What becomes of a datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is on its way, or lost like any other.
    Carried,
    /// It does not go anywhere, and the program is told so (ICMP port unreachable; of an echo request,
    /// administratively prohibited).
    Refused,
    /// The way takes payloads of so many bytes at most. The program is told so, if it wants to know.
    TooBig(usize),
}

/// Carrier of datagrams.
pub trait Datagrams: Send {
    /// Takes a datagram. Answers are written to `answers`, now or later. It must neither wait nor take long.
    fn on_datagram(&mut self, datagram: &Datagram<'_>, answers: &DatagramWriter) -> Fate;

    /// Takes an echo request, likewise. Who carries datagrams alone refuses it.
    fn on_echo(&mut self, echo: &Echo<'_>, answers: &DatagramWriter) -> Fate {
        let _ = (echo, answers);
        Fate::Refused
    }
}

/// No carrier: programs that try UDP learn at once that it does not work, and use TCP if they can.
#[derive(Copy, Clone, Debug, Default)]
pub struct NoDatagrams;

impl Datagrams for NoDatagrams {
    fn on_datagram(&mut self, _datagram: &Datagram<'_>, _answers: &DatagramWriter) -> Fate {
        Fate::Refused
    }
}

/// Writer of datagrams to the programs inside.
#[derive(Clone, Debug)]
pub struct DatagramWriter {
    tun: Arc<Tun>,
}

impl DatagramWriter {
    /// Writes to this interface.
    #[must_use]
    pub const fn new(tun: Arc<Tun>) -> DatagramWriter {
        DatagramWriter { tun }
    }

    /// Sends a datagram to a program, as if it came from `from`.
    ///
    /// # Errors
    /// It does not fit the interface's MTU, the ends are of two families, or the interface is gone.
    pub fn send(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> io::Result<()> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let header = ip_header_len(from.ip());
        let whole = header + UDP_HEADER_LEN + payload.len();
        if whole > MTU as usize {
            return Err(invalid("the datagram does not fit the interface's MTU"));
        }
        let mut packet = vec![0; header + UDP_HEADER_LEN];
        let ends = (from.ip(), to.ip());
        let udp_len = UDP_HEADER_LEN + payload.len();
        let unfit = |_| invalid("the ends are of two families");
        emit_ip(ends, PROTOCOL_UDP, 0, udp_len, &mut packet).map_err(unfit)?;
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
