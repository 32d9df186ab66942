//! Connections and flows as known to an observer of packets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use marline_wire::mptcp::{AddAddr, CapableData, FastJoinForm, WireMapping};
use marline_wire::{SeqNum, TcpFlags};

use super::mapping::Mapping;
use super::{Findings, FrameRef};
use crate::keys;

/// Names of the counters for mappings of already mapped data, by sender: the connection's initiator or listener.
const COPIES: [&str; 2] = ["copies from the client", "copies from the server"];

/// A connection, identified by its keys.
#[derive(Debug)]
pub(super) struct Connection {
    /// Keys of the initiator and of the listener.
    pub(super) keys: [u64; 2],
    /// The highest data sequence number seen from each end, used to extend short ones.
    pub(super) highest: [u64; 2],
    /// Data sent by each end, keyed by the data sequence number (DSN) of the first byte.
    pub(super) pieces: [BTreeMap<u64, Vec<u8>>; 2],
}

impl Connection {
    pub(super) fn new(keys: [u64; 2]) -> Self {
        let mut connection = Connection { keys, highest: [0; 2], pieces: Default::default() };
        connection.highest = [connection.first_dsn(0), connection.first_dsn(1)];
        connection
    }

    /// DSN of the first byte that an end sends.
    pub(super) fn first_dsn(&self, sender: usize) -> u64 {
        keys::idsn(self.keys[sender]).wrapping_add(1)
    }

    pub(super) fn tokens(&self) -> [u32; 2] {
        self.keys.map(keys::token)
    }

    pub(super) fn join_hmac(&self, sender: usize, nonces: [u32; 2]) -> [u8; 32] {
        keys::join_hmac(self.keys[sender], self.keys[1 - sender], nonces[0], nonces[1])
    }

    pub(super) fn add_addr_hmac(&self, sender: usize, announced: &AddAddr) -> u64 {
        let mut message = vec![announced.address_id];
        match announced.address {
            IpAddr::V4(address) => message.extend(address.octets()),
            IpAddr::V6(address) => message.extend(address.octets()),
        }
        message.extend(announced.port.unwrap_or(0).to_be_bytes());
        keys::right64(keys::hmac(self.keys[sender], self.keys[1 - sender], &message))
    }
}

/// The nonces of a join, the active opener's first.
#[derive(Copy, Clone, Debug)]
pub(super) struct Join {
    pub(super) nonces: [u32; 2],
}

/// One TCP connection. Side 0 is the active opener.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    pub(super) isn: [Option<SeqNum>; 2],
    pub(super) connection: Option<usize>,
    /// The end of the connection that opened this flow: 0 for its initiator.
    pub(super) opener: usize,
    pub(super) listener_key: Option<u64>,
    pub(super) join: Option<Join>,
    /// Form and HMAC of its Fast JOIN.
    pub(super) fast_syn: Option<(FastJoinForm, u64)>,
    mappings: [Vec<Mapping>; 2],
    /// Payload by the offset of its first byte in the subflow's stream.
    bytes: [BTreeMap<u32, &'a [u8]>; 2],
}

impl<'a> Flow<'a> {
    pub(super) fn new(isn: SeqNum) -> Self {
        Flow {
            isn: [Some(isn), None],
            connection: None,
            opener: 0,
            listener_key: None,
            join: None,
            fast_syn: None,
            mappings: Default::default(),
            bytes: Default::default(),
        }
    }

    /// The end of the connection that sends on one side of this flow.
    pub(super) const fn sender(&self, side: usize) -> usize {
        self.opener ^ side
    }

    /// Records payload. The first copy of a byte counts, as in TCP's receiver.
    pub(super) fn payload(&mut self, side: usize, seq: SeqNum, flags: TcpFlags, bytes: &'a [u8]) {
        let Some(isn) = self.isn[side] else { return };
        if bytes.is_empty() || flags.contains(TcpFlags::RST) {
            return;
        }
        // The first byte after the SYN has offset 1.
        let offset =
            seq.0.wrapping_sub(isn.0).wrapping_add(u32::from(flags.contains(TcpFlags::SYN)));
        let known = self.bytes[side].entry(offset).or_insert(bytes);
        if known.len() < bytes.len() {
            *known = bytes;
        }
    }

    /// Records a mapping.
    pub(super) fn map(
        &mut self,
        side: usize,
        wire: &WireMapping,
        data_fin: bool,
        highest: &mut u64,
        at: FrameRef,
    ) {
        let Some(dsn) = wire.dsn.unwrap_near(*highest) else { return };
        let end = dsn.wrapping_add(u64::from(wire.length));
        *highest = (*highest).max(end);
        let (ssn, length, checksum) = (wire.ssn, wire.length, wire.checksum);
        self.remember(side, Mapping { dsn, ssn, length, checksum, data_fin, at });
    }

    /// MP_CAPABLE with data maps the first bytes of the initiator.
    pub(super) fn record_first_mapping(&mut self, dsn: u64, data: CapableData, at: FrameRef) {
        let CapableData { length, checksum } = data;
        self.remember(0, Mapping { dsn, ssn: 1, length, checksum, data_fin: false, at });
    }

    fn remember(&mut self, side: usize, mapping: Mapping) {
        // The mapping is repeated on its next segment or in a retransmission.
        let mappings = &mut self.mappings[side];
        if mappings.last().is_none_or(|last| !last.is_same(&mapping)) {
            mappings.push(mapping);
        }
    }

    /// Verifies every complete mapping.
    pub(super) fn verify(&mut self, connection: &mut Connection, findings: &mut Findings) {
        for side in 0..2 {
            let sender = self.sender(side);
            let copies = COPIES[sender];
            for mapping in std::mem::take(&mut self.mappings[side]) {
                let pieces = &mut connection.pieces[sender];
                mapping.verify(&self.bytes[side], pieces, copies, findings);
            }
        }
    }
}
