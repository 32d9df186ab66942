//! Positions of captured segments in the stream, from the mappings that their subflow announced.

use std::collections::BTreeMap;

use marline_wire::mptcp::{WireDsn, WireMapping};
use marline_wire::{SeqNum, TcpFlags, TcpSegment};

/// Mappings that one end of a connection announced on each subflow. The caller chooses `K` to identify subflows. All
/// mappings are kept, so this is only for tests and measurements.
#[derive(Clone, Debug)]
pub struct Placement<K> {
    subflows: BTreeMap<K, Subflow>,
}

#[derive(Clone, Debug)]
struct Subflow {
    /// Sequence number of the SYN.
    first: SeqNum,
    mappings: Vec<WireMapping>,
}

impl<K> Default for Placement<K> {
    fn default() -> Self {
        Placement { subflows: BTreeMap::new() }
    }
}

impl<K: Ord> Placement<K> {
    /// Processes a segment of the subflow. Returns the low half of the DSN of its first payload byte. `None` if it has
    /// no payload or no mapping so far covers it. If the subflow's SYN was not seen, the first mapped segment counts
    /// as the start of its mapping.
    pub fn place_segment(&mut self, subflow: K, segment: &TcpSegment<'_>) -> Option<u32> {
        let seq = segment.header.seq;
        if segment.header.flags.contains(TcpFlags::SYN) {
            self.subflows.insert(subflow, Subflow { first: seq, mappings: Vec::new() });
            return None;
        }
        let mapping = segment.options.dss.and_then(|dss| dss.mapping).filter(|m| m.ssn != 0);
        if segment.payload.is_empty() {
            return None;
        }
        let guessed = mapping.map(|mapping| SeqNum(seq.0.wrapping_sub(mapping.ssn)));
        let known = match (self.subflows.contains_key(&subflow), guessed) {
            (false, None) => return None,
            (_, guessed) => self
                .subflows
                .entry(subflow)
                .or_insert_with(|| Subflow { first: guessed.unwrap_or(seq), mappings: Vec::new() }),
        };
        if mapping.is_some() && known.mappings.last() != mapping.as_ref() {
            known.mappings.extend(mapping);
        }
        let at = seq.0.wrapping_sub(known.first.0);
        let offset = |mapping: &WireMapping| at.wrapping_sub(mapping.ssn);
        let covers = |mapping: &&WireMapping| offset(mapping) < u32::from(mapping.length);
        let mapping = known.mappings.iter().rev().find(covers)?;
        Some(low(mapping.dsn).wrapping_add(offset(mapping)))
    }
}

const fn low(dsn: WireDsn) -> u32 {
    match dsn {
        WireDsn::Short(low) => low,
        WireDsn::Long(all) => all as u32,
    }
}
