//! Checks of data sequence mappings: their checksums, and that a DSN always means the same byte.

use std::collections::BTreeMap;

use marline_wire::{Checksum, dss_checksum};

use super::{Findings, FrameRef};

/// Maximum mapping length in bytes: its field has 16 bits.
const MAX_MAPPING_LEN: u64 = 65_535;

/// A mapping with its full data sequence number.
#[derive(Copy, Clone, Debug)]
pub(super) struct Mapping {
    pub(super) dsn: u64,
    pub(super) ssn: u32,
    pub(super) length: u16,
    pub(super) checksum: Option<u16>,
    pub(super) data_fin: bool,
    pub(super) at: FrameRef,
}

impl Mapping {
    pub(super) fn is_same(&self, other: &Mapping) -> bool {
        (self.dsn, self.ssn, self.length, self.checksum)
            == (other.dsn, other.ssn, other.length, other.checksum)
    }

    pub(super) fn verify(
        &self,
        bytes: &BTreeMap<u32, &[u8]>,
        pieces: &mut BTreeMap<u64, Vec<u8>>,
        copies: &'static str,
        findings: &mut Findings,
    ) {
        if self.length == 0 {
            return findings.count_seen("infinite mappings");
        }
        let fin = u16::from(self.data_fin);
        if self.ssn == 0 {
            let alone = self.data_fin && self.length == fin;
            findings.check("lengths of DATA_FIN alone", alone, self.at);
            return self.verify_checksum(&[], "DSS checksums of DATA_FIN", findings);
        }
        let Some(body) = body(bytes, self.ssn, usize::from(self.length - fin.min(self.length)))
        else {
            return findings.count_seen("mappings whose bytes are not all captured");
        };
        self.verify_checksum(&body, "DSS checksums", findings);
        if self.compare(body, pieces, findings) {
            findings.count_seen(copies);
        }
    }

    fn verify_checksum(&self, body: &[u8], name: &'static str, findings: &mut Findings) {
        let Some(checksum) = self.checksum else {
            return findings.count_seen("mappings without checksum");
        };
        // Verified by summing instead of comparing, because zero has two forms.
        let mut sum = Checksum::new();
        sum.add_u16(checksum);
        sum.add_u16(!dss_checksum(self.dsn, self.ssn, self.length, Checksum::of(body)));
        findings.check(name, sum.is_valid(), self.at);
    }

    /// Compares data with earlier data that has the same DSNs, and stores new data. Returns true if there was earlier
    /// data.
    fn compare(
        &self,
        body: Vec<u8>,
        pieces: &mut BTreeMap<u64, Vec<u8>>,
        findings: &mut Findings,
    ) -> bool {
        let end = self.dsn + body.len() as u64;
        let mut again = false;
        let mut equal = true;
        for (start, piece) in pieces.range(self.dsn.saturating_sub(MAX_MAPPING_LEN)..end) {
            let from = self.dsn.max(*start);
            let to = end.min(*start + piece.len() as u64);
            if from < to {
                let of = |first: u64, bytes: &[u8]| {
                    bytes[(from - first) as usize..(to - first) as usize].to_vec()
                };
                again = true;
                equal &= of(self.dsn, &body) == of(*start, piece);
            }
        }
        if again && !equal && body.len() == 1 {
            // Linux probes a zero window with the next byte, but with the sequence number of the last acknowledged one,
            // so the receiver drops it.
            findings.count_seen("probes of a zero window");
            return false;
        }
        if body.len() == 1 && !again {
            // This may be such a probe, and the earlier bytes were not captured, so it cannot be compared.
            return false;
        }
        if again {
            findings.check("bytes sent again", equal, self.at);
        }
        let known = pieces.entry(self.dsn).or_default();
        if known.len() < body.len() {
            *known = body;
        }
        again
    }
}

/// The bytes of a subflow starting at offset `first`, if all were captured.
fn body(bytes: &BTreeMap<u32, &[u8]>, first: u32, length: usize) -> Option<Vec<u8>> {
    let mut body = Vec::with_capacity(length);
    while body.len() < length {
        let next = first.wrapping_add(body.len() as u32);
        // Retransmissions may start at other positions, so this uses the last piece that starts before `first` and
        // reaches it.
        let earliest = next.saturating_sub(MAX_MAPPING_LEN as u32);
        let mut before = bytes.range(earliest..=next).rev();
        let (start, piece) = before.find(|(start, p)| ((next - **start) as usize) < p.len())?;
        let rest = &piece[(next - start) as usize..];
        body.extend_from_slice(&rest[..rest.len().min(length - body.len())]);
    }
    Some(body)
}
