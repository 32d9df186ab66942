//! Checks captures of Multipath TCP between any two stacks: recomputes all values that packets alone determine.
//!
//! Wireshark decodes the options but verifies neither HMACs nor DSS checksums. Here the keys of the handshake give
//! tokens and HMACs (RFC 8684 sections 3.1, 3.2, 3.4.1). The mappings give each byte's data sequence number, and
//! checksums (3.3.1). A byte that is sent twice, on any subflows, must have the same value. If a capture stops early,
//! some values remain unchecked, but none is reported as wrong.

mod connection;
mod fast_join;
mod mapping;
mod reader;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use marline_wire::mptcp::{AddAddr, MpCapableForm, MpJoin, MptcpOption};
use marline_wire::{
    IpPacket, PROTOCOL_TCP, TcpFlags, TcpSegment, tcp_pseudo_header, verify_tcp_checksum,
};

use connection::{Connection, Flow, Join};
pub use reader::ReadError;

/// Maximum number of faults that are stored.
const MAX_FAULTS: usize = 32;

/// Findings: the number of checks by kind, and the errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Number of correct and wrong results per check.
    pub checks: BTreeMap<&'static str, (u64, u64)>,
    /// Observations that are neither correct nor wrong.
    pub seen: BTreeMap<&'static str, u64>,
    /// The first faults: capture file, frame number (counted from 1) and description.
    pub faults: Vec<String>,
}

impl Findings {
    /// True if no check failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.checks.values().all(|(_, wrong)| *wrong == 0)
    }

    /// Number of correct results of a check.
    #[must_use]
    pub fn count_correct(&self, check: &str) -> u64 {
        self.checks.get(check).map_or(0, |(right, _)| *right)
    }

    fn check(&mut self, name: &'static str, right: bool, at: FrameRef) {
        let (good, bad) = self.checks.entry(name).or_default();
        if right {
            *good += 1;
            return;
        }
        *bad += 1;
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(format!("{at}: {name}"));
        }
    }

    fn count_seen(&mut self, name: &'static str) {
        *self.seen.entry(name).or_default() += 1;
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.checks.iter().map(|(name, (right, wrong))| match wrong {
            0 => format!("{right} {name}"),
            _ => format!("{right} {name} ({wrong} WRONG)"),
        });
        let seen = self.seen.iter().map(|(name, count)| format!("{count} {name}"));
        f.write_str(&checks.chain(seen).collect::<Vec<String>>().join(", "))
    }
}

/// A frame of a capture.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct FrameRef {
    file: usize,
    frame: usize,
}

impl fmt::Display for FrameRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "capture {} frame {}", self.file + 1, self.frame)
    }
}

/// Checks one or more captures (pcap or pcapng) of the same connections, taken at the same host.
///
/// # Errors
/// A file is not a capture or has an unknown link layer. If a capture is truncated within a packet, it is read up to
/// that packet.
pub fn check(captures: &[&[u8]]) -> Result<Findings, ReadError> {
    let mut packets = Vec::new();
    for (file, bytes) in captures.iter().enumerate() {
        packets.extend(reader::read(file, bytes)?);
    }
    // A stable sort: packets with the same timestamp keep the order of their file.
    packets.sort_by_key(|packet| packet.time_ns);
    let mut tap = Wiretap::default();
    for packet in &packets {
        tap.packet(packet.bytes, FrameRef { file: packet.file, frame: packet.frame });
    }
    tap.finish();
    Ok(tap.findings)
}

/// State of the check.
#[derive(Debug, Default)]
struct Wiretap<'a> {
    findings: Findings,
    connections: Vec<Connection>,
    /// Connection and owner of each token: 0 is the initiator, 1 is the listener.
    tokens: BTreeMap<u32, (usize, usize)>,
    /// Connection by (active opener, other end).
    current: BTreeMap<(SocketAddr, SocketAddr), usize>,
    flows: Vec<Flow<'a>>,
}

impl<'a> Wiretap<'a> {
    fn packet(&mut self, bytes: &'a [u8], at: FrameRef) {
        let Ok(ip) = IpPacket::parse(bytes) else { return self.findings.count_seen("not IP") };
        if ip.protocol != PROTOCOL_TCP || ip.fragment.is_some() {
            return self.findings.count_seen("not TCP");
        }
        let Ok(segment) = TcpSegment::parse(ip.payload) else {
            return self.findings.check("TCP headers", false, at);
        };
        let addresses = Some((ip.src, ip.dst));
        if is_unfinished(addresses, ip.payload) {
            self.findings.count_seen("checksums left to hardware");
        } else {
            self.findings.check("TCP checksums", verify_tcp_checksum(addresses, ip.payload), at);
        }
        let from = SocketAddr::new(ip.src, segment.header.src_port);
        let to = SocketAddr::new(ip.dst, segment.header.dst_port);
        self.segment(from, to, &segment, at);
    }

    fn segment(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        segment: &TcpSegment<'a>,
        at: FrameRef,
    ) {
        let flags = segment.header.flags;
        let opens = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK);
        if opens {
            let again = self
                .current
                .get(&(from, to))
                .is_some_and(|flow| self.flows[*flow].isn[0] == Some(segment.header.seq));
            if !again {
                self.current.insert((from, to), self.flows.len());
                self.flows.push(Flow::new(segment.header.seq));
            }
        }
        let (flow, side) = match (self.current.get(&(from, to)), self.current.get(&(to, from))) {
            (Some(flow), _) => (*flow, 0),
            (None, Some(flow)) => (*flow, 1),
            (None, None) => {
                return self.findings.count_seen("segments of flows that began before the capture");
            }
        };
        if flags.contains(TcpFlags::SYN) {
            self.flows[flow].isn[side] = Some(segment.header.seq);
        }
        if segment.options.mptcp.malformed {
            self.findings.check("MPTCP options", false, at);
        }
        for option in segment.options.mptcp.iter() {
            self.option(flow, side, &option, segment, at);
        }
        let Flow { connection, .. } = self.flows[flow];
        if let Some(dss) = segment.options.dss {
            self.findings.count_seen("DSS options");
            if let (Some(mapping), Some(number)) = (dss.mapping, connection) {
                let sender = self.flows[flow].sender(side);
                let known = &mut self.connections[number];
                self.flows[flow].map(side, &mapping, dss.data_fin, &mut known.highest[sender], at);
            }
        }
        self.flows[flow].payload(side, segment.header.seq, flags, segment.payload);
    }

    fn option(
        &mut self,
        flow: usize,
        side: usize,
        option: &MptcpOption,
        segment: &TcpSegment<'a>,
        at: FrameRef,
    ) {
        match option {
            MptcpOption::Capable(capable) => {
                if let MpCapableForm::SynAck { listener_key } = capable.form {
                    self.flows[flow].listener_key = Some(listener_key);
                }
                if let MpCapableForm::Ack { initiator_key, listener_key, data } = capable.form {
                    self.process_capable_ack(flow, initiator_key, listener_key, at);
                    let number = self.flows[flow].connection;
                    if let (Some(data), Some(number)) = (data, number) {
                        let first = self.connections[number].first_dsn(0);
                        self.flows[flow].record_first_mapping(first, data, at);
                    }
                }
            }
            MptcpOption::Join(join) => self.join(flow, join, at),
            MptcpOption::AddAddr(announced) => self.process_add_addr(flow, side, announced, at),
            MptcpOption::Fastclose(close) => {
                let Some((connection, sender)) = self.of(flow, side) else { return };
                let right = close.receiver_key == connection.keys[1 - sender];
                self.findings.check("keys of MP_FASTCLOSE", right, at);
            }
            MptcpOption::Fail(_) => self.findings.count_seen("MP_FAIL"),
            MptcpOption::TcpRst(_) => self.findings.count_seen("MP_TCPRST"),
            MptcpOption::RemoveAddr(_) => self.findings.count_seen("REMOVE_ADDR"),
            MptcpOption::Prio(_) => self.findings.count_seen("MP_PRIO"),
            MptcpOption::Experimental(option) => {
                self.findings.count_seen("MP_EXPERIMENTAL");
                self.fast_join(flow, side, option, segment, at);
            }
        }
        if segment.header.flags.contains(TcpFlags::SYN) && side == 0 {
            self.findings.count_seen("SYNs with MPTCP");
        }
    }

    /// The connection of a flow, and the end that sends on this side of the flow.
    fn of(&self, flow: usize, side: usize) -> Option<(&Connection, usize)> {
        let flow = &self.flows[flow];
        Some((&self.connections[flow.connection?], flow.sender(side)))
    }

    fn process_capable_ack(
        &mut self,
        flow: usize,
        initiator_key: u64,
        listener_key: u64,
        at: FrameRef,
    ) {
        if self.flows[flow].connection.is_some() {
            return;
        }
        let right = self.flows[flow].listener_key == Some(listener_key);
        self.findings.check("keys echoed", right, at);
        let number = self.connections.len();
        let connection = Connection::new([initiator_key, listener_key]);
        for (whose, token) in connection.tokens().into_iter().enumerate() {
            self.tokens.insert(token, (number, whose));
        }
        self.connections.push(connection);
        self.flows[flow].connection = Some(number);
    }

    fn join(&mut self, flow: usize, join: &MpJoin, at: FrameRef) {
        match *join {
            MpJoin::Syn { token, nonce, .. } => {
                let known = self.tokens.get(&token).copied();
                self.findings.check("tokens of joins", known.is_some(), at);
                let Some((connection, whose)) = known else { return };
                // The token is the receiver's. The active opener is the other end.
                let flow = &mut self.flows[flow];
                flow.opener = 1 - whose;
                flow.connection = Some(connection);
                flow.join = Some(Join { nonces: [nonce, 0] });
            }
            MpJoin::SynAck { nonce, hmac, .. } => {
                let Some(join) = &mut self.flows[flow].join else { return };
                join.nonces[1] = nonce;
                let nonces = join.nonces;
                let Some((connection, sender)) = self.of(flow, 1) else { return };
                let right = connection.join_hmac(sender, [nonces[1], nonces[0]]);
                let right = crate::keys::left64(right) == hmac;
                self.findings.check("HMACs of SYN/ACKs", right, at);
            }
            MpJoin::Ack { hmac } => {
                let Some(Join { nonces }) = self.flows[flow].join else { return };
                let Some((connection, sender)) = self.of(flow, 0) else { return };
                let right = connection.join_hmac(sender, nonces)[..20] == hmac;
                self.findings.check("HMACs of third ACKs", right, at);
            }
        }
    }

    fn process_add_addr(&mut self, flow: usize, side: usize, announced: &AddAddr, at: FrameRef) {
        let Some(hmac) = announced.hmac else { return self.findings.count_seen("ADD_ADDR echoes") };
        let Some((connection, sender)) = self.of(flow, side) else { return };
        let right = connection.add_addr_hmac(sender, announced) == hmac;
        self.findings.check("HMACs of ADD_ADDR", right, at);
    }

    /// Verifies the mappings after all bytes have been recorded.
    fn finish(&mut self) {
        for flow in &mut self.flows {
            let Some(number) = flow.connection else {
                self.findings.count_seen("flows of plain TCP or unknown");
                continue;
            };
            flow.verify(&mut self.connections[number], &mut self.findings);
        }
    }
}

/// True if the checksum field holds only the sum of the pseudo-header, because the checksum was left to an interface
/// that this packet never reached.
fn is_unfinished(addresses: Option<(std::net::IpAddr, std::net::IpAddr)>, segment: &[u8]) -> bool {
    const FIELD: std::ops::Range<usize> = 16..18;
    let Some(field) = segment.get(FIELD) else { return false };
    let sum = tcp_pseudo_header(addresses, segment.len()).sum16();
    field == sum.to_be_bytes() && !verify_tcp_checksum(addresses, segment)
}
