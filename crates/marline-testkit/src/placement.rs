//! Places of captured segments in the stream, by the mappings that their subflow announced.

use std::collections::BTreeMap;

use marline_wire::mptcp::{WireDsn, WireMapping};
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

/// What one end of a connection said on each subflow, which the caller names as it likes.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    subflows: BTreeMap<usize, Subflow>,
}

#[derive(Clone, Debug)]
struct Subflow {
    first: SeqNum,
    mappings: Vec<WireMapping>,
}

impl Placement {
    /// Takes a segment of the subflow, from its SYN on. The low half of the DSN of the first byte of its payload;
    /// `None` if it has none, or no mapping so far covers it.
    pub fn place(&mut self, subflow: usize, segment: &TcpSegment<'_>) -> Option<u32> {
        let seq = segment.header.seq;
        if segment.header.flags.contains(TcpFlags::SYN) {
            self.subflows.insert(subflow, Subflow { first: seq, mappings: Vec::new() });
            return None;
        }
        let subflow = self.subflows.get_mut(&subflow)?;
        let announced = segment.options.dss.and_then(|dss| dss.mapping);
        let known = |mapping: &WireMapping| subflow.mappings.last() == Some(mapping);
        if let Some(mapping) = announced.filter(|m| m.ssn != 0 && !known(m)) {
            subflow.mappings.push(mapping);
        }
        if segment.payload.is_empty() {
            return None;
        }
        let at = seq.0.wrapping_sub(subflow.first.0);
        let offset = |mapping: &WireMapping| at.wrapping_sub(mapping.ssn);
        let covers = |mapping: &&WireMapping| offset(mapping) < u32::from(mapping.length);
        let mapping = subflow.mappings.iter().rev().find(covers)?;
        Some(low(mapping.dsn).wrapping_add(offset(mapping)))
    }
}

const fn low(dsn: WireDsn) -> u32 {
    match dsn {
        WireDsn::Short(low) => low,
        WireDsn::Long(all) => all as u32,
    }
}
