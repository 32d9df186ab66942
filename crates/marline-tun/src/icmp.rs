//! ICMP messages of the gateway (RFC 792, RFC 4443): echo replies, and unreachable destinations.

use std::net::{IpAddr, SocketAddr};

use marline_wire::{Checksum, EmitError, IpPacket, PROTOCOL_TCP, SeqNum, emit_ip, ip_header_len};

pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;

/// Length of the header before an echo's data or the quoted packet.
const HEADER_LEN: usize = 8;
/// Maximum number of quoted bytes of the refused packet: an IPv4 message has at most 576 bytes (RFC 1812 section
/// 4.3.2.3), and an IPv6 message at most 1,280 (RFC 4443 section 2.4).
const QUOTED_V4: usize = 576 - 20 - HEADER_LEN;
const QUOTED_V6: usize = 1_280 - 40 - HEADER_LEN;
/// Number of bytes of a TCP segment that an ICMP message has to quote: ports and sequence number.
const QUOTED_TCP: usize = 8;

/// Reason why a destination cannot be reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route to the network.
    Network,
    /// The host does not answer.
    Host,
    /// No receiver at this port.
    Port,
    /// Prohibited by policy.
    Prohibited,
}

impl Unreachable {
    const fn code(self, ipv6: bool) -> u8 {
        match (self, ipv6) {
            (Unreachable::Network, _) => 0,
            (Unreachable::Host, false) | (Unreachable::Prohibited, true) => 1,
            (Unreachable::Host, true) => 3,
            (Unreachable::Port, false) => 3,
            (Unreachable::Port, true) => 4,
            (Unreachable::Prohibited, false) => 13,
        }
    }
}

/// Returns true if the checksum of an ICMP message is correct.
pub(crate) fn is_intact(packet: &IpPacket<'_>) -> bool {
    checksum(packet.src, packet.dst, packet.payload).is_valid()
}

fn checksum(from: IpAddr, to: IpAddr, message: &[u8]) -> Checksum {
    let mut sum = Checksum::new();
    if from.is_ipv6() {
        sum.add_pseudo_header(from, to, PROTOCOL_ICMPV6, message.len() as u32);
    }
    sum.add_bytes(message);
    sum
}

/// Returns true if this is an echo request.
pub(crate) fn is_echo_request(ipv6: bool, message: &[u8]) -> bool {
    let kind = if ipv6 { 128 } else { 8 };
    matches!(message, [first, 0, ..] if *first == kind) && message.len() >= HEADER_LEN
}

/// Returns true if this is an error message, which must not cause another one (RFC 1122 section 3.2.2).
pub(crate) fn is_error(ipv6: bool, message: &[u8]) -> bool {
    match message.first() {
        Some(kind) if ipv6 => *kind < 128,
        Some(kind) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        None => true,
    }
}

/// Writes the reply to an echo request as a whole packet from `from` to `to`.
pub(crate) fn write_echo_reply(from: IpAddr, to: IpAddr, request: &[u8], out: &mut Vec<u8>) {
    let kind = if from.is_ipv6() { 129 } else { 0 };
    write(from, to, out, |message| {
        message.extend_from_slice(&[kind, 0, 0, 0]);
        message.extend_from_slice(request.get(4..).unwrap_or_default());
    });
}

/// Returns the identifier, sequence number and data of an echo request.
pub(crate) fn echo_fields(request: &[u8]) -> Option<(u16, u16, &[u8])> {
    let (&[_, _, _, _, a, b, c, d], data) = request.split_first_chunk::<HEADER_LEN>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), data))
}

/// Numbers by which a program recognizes the reply to its echo request.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EchoNumbers {
    pub(crate) identifier: u16,
    pub(crate) sequence: u16,
}

/// Writes the reply that another host sent to an echo request, as a whole packet from `from` to `to`.
pub(crate) fn write_echo_answer(
    from: IpAddr,
    to: IpAddr,
    echo: EchoNumbers,
    data: &[u8],
    out: &mut Vec<u8>,
) {
    let kind = if from.is_ipv6() { 129 } else { 0 };
    write(from, to, out, |message| {
        message.extend_from_slice(&[kind, 0, 0, 0]);
        message.extend_from_slice(&echo.identifier.to_be_bytes());
        message.extend_from_slice(&echo.sequence.to_be_bytes());
        message.extend_from_slice(data);
    });
}

/// Failure of an echo request, as an ICMP message of the request's family reports it: type, code, and the MTU for a
/// request that was too long.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct EchoFailure {
    pub(crate) icmp: (u8, u8),
    pub(crate) mtu: u16,
}

impl EchoFailure {
    /// Returns true for errors that are reported to programs: unreachable, too long, hop limit exceeded.
    pub(crate) fn is_known(self, ipv6: bool) -> bool {
        if ipv6 { matches!(self.icmp.0, 1..=3) } else { matches!(self.icmp.0, 3 | 11) }
    }

    /// Returns the first eight bytes of the message, excluding its checksum. The position of the MTU depends on the
    /// family.
    fn beginning(self, ipv6: bool) -> [u8; 8] {
        let ((kind, code), [high, low]) = (self.icmp, self.mtu.to_be_bytes());
        let too_big = if ipv6 { kind == 2 } else { (kind, code) == (3, 4) };
        if too_big { [kind, code, 0, 0, 0, 0, high, low] } else { [kind, code, 0, 0, 0, 0, 0, 0] }
    }
}

/// Writes the failure of an echo request from `source` to `destination`, as a whole packet from `by` to `source`.
pub(crate) fn write_echo_failure(
    by: IpAddr,
    source: IpAddr,
    destination: IpAddr,
    echo: EchoNumbers,
    why: EchoFailure,
    out: &mut Vec<u8>,
) {
    let ipv6 = source.is_ipv6();
    let mut quoted = [0; 40 + HEADER_LEN];
    let protocol = if ipv6 { PROTOCOL_ICMPV6 } else { PROTOCOL_ICMP };
    let Ok(len) = emit_ip(source, destination, protocol, 0, HEADER_LEN, &mut quoted) else {
        return out.clear();
    };
    // The request's checksum covered the data, which was not kept.
    let message = &mut quoted[len..len + HEADER_LEN];
    message[0] = if ipv6 { 128 } else { 8 };
    message[4..6].copy_from_slice(&echo.identifier.to_be_bytes());
    message[6..].copy_from_slice(&echo.sequence.to_be_bytes());
    write_error(by, source, why.beginning(ipv6), &quoted[..len + HEADER_LEN], out);
}

/// Writes a time exceeded message as a whole packet to the source of `packet`.
pub(crate) fn write_time_exceeded(from: IpAddr, to: IpAddr, packet: &[u8], out: &mut Vec<u8>) {
    let kind = if from.is_ipv6() { 3 } else { 11 };
    write_error(from, to, [kind, 0, 0, 0, 0, 0, 0, 0], packet, out);
}

/// Writes a destination unreachable message from `from` as a whole packet to the source of `refused`.
pub(crate) fn write_unreachable(
    from: IpAddr,
    to: IpAddr,
    why: Unreachable,
    refused: &[u8],
    out: &mut Vec<u8>,
) {
    let ipv6 = from.is_ipv6();
    let kind = if ipv6 { 1 } else { 3 };
    write_error(from, to, [kind, why.code(ipv6), 0, 0, 0, 0, 0, 0], refused, out);
}

/// Writes a message from `from` that a packet exceeds `mtu`, the limit of the path, as a whole packet to the packet's
/// source (RFC 1191, RFC 4443 section 3.2).
pub(crate) fn write_too_big(
    from: IpAddr,
    to: IpAddr,
    mtu: usize,
    refused: &[u8],
    out: &mut Vec<u8>,
) {
    let (kind, code) = if from.is_ipv6() { (2, 0) } else { (3, 4) };
    let [high, low] = u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes();
    write_error(from, to, [kind, code, 0, 0, 0, 0, high, low], refused, out);
}

/// Writes an error message that starts with these bytes and quotes the refused packet.
fn write_error(from: IpAddr, to: IpAddr, beginning: [u8; 8], refused: &[u8], out: &mut Vec<u8>) {
    let most = if from.is_ipv6() { QUOTED_V6 } else { QUOTED_V4 };
    write(from, to, out, |message| {
        message.extend_from_slice(&beginning);
        message.extend_from_slice(&refused[..refused.len().min(most)]);
    });
}

/// Writes an unreachable message for a SYN with this sequence number, as a whole packet to the SYN's sender.
pub(crate) fn write_syn_unreachable(
    from: IpAddr,
    asker: SocketAddr,
    target: SocketAddr,
    seq: SeqNum,
    why: Unreachable,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    let mut quoted = [0; 40 + QUOTED_TCP];
    let len = emit_ip(asker.ip(), target.ip(), PROTOCOL_TCP, 0, 20, &mut quoted)?;
    let tcp = &mut quoted[len..len + QUOTED_TCP];
    tcp[..2].copy_from_slice(&asker.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&target.port().to_be_bytes());
    tcp[4..].copy_from_slice(&seq.0.to_be_bytes());
    write_unreachable(from, asker.ip(), why, &quoted[..len + QUOTED_TCP], out);
    Ok(())
}

/// Writes the IP header, the message that `fill` appends, and its checksum. Leaves `out` empty if the message does
/// not fit a packet.
fn write(from: IpAddr, to: IpAddr, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let header = ip_header_len(from);
    out.clear();
    out.resize(header, 0);
    fill(out);
    let len = out.len() - header;
    let protocol = if from.is_ipv6() { PROTOCOL_ICMPV6 } else { PROTOCOL_ICMP };
    if emit_ip(from, to, protocol, 0, len, &mut out[..header]).is_err() {
        out.clear();
        return;
    }
    let sum = checksum(from, to, &out[header..]).finish();
    out[header + 2..header + 4].copy_from_slice(&sum.to_be_bytes());
}
