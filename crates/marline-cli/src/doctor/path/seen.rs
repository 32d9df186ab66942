//! Recorded segments, in the form of reports and in the form of the diagnosis.

use std::fmt::Write as _;

use marline_io::TappedSegment;

/// Option kind of Multipath TCP.
const MPTCP: u8 = 30;
const SACK: u8 = 5;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Writes a segment as one line: time, direction, endpoints, header, payload.
pub(super) fn write_line(entry: &TappedSegment, text: &mut String) {
    let way = if entry.sent { 'S' } else { 'R' };
    let TappedSegment { at_us, local, remote, payload_len, payload_sum, .. } = entry;
    // Writing to a String cannot fail.
    let _ = write!(text, "{at_us} {way} {local} {remote} {payload_len} {payload_sum} ");
    for byte in &entry.header {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
}

/// Parses such a line. Returns `None` if it is malformed.
pub(super) fn read_line(line: &str) -> Option<TappedSegment> {
    let mut words = line.split(' ');
    let mut next = || words.next();
    let (at_us, way) = (next()?.parse().ok()?, next()?);
    let (local, remote) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let (payload_len, payload_sum) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let digits = next()?;
    if digits.len() % 2 != 0 || !digits.is_ascii() || !(40..=120).contains(&digits.len()) {
        return None;
    }
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    let header = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    let sent = way == "S";
    Some(TappedSegment { at_us, sent, local, remote, header, payload_len, payload_sum })
}

/// Fields of a segment that the diagnosis uses.
#[derive(Clone, Debug)]
pub(super) struct SeenSegment {
    /// Time by the clock of the recording end, in microseconds.
    pub(super) at_us: u64,
    /// Port of the client, as seen by this end.
    pub(super) client_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    flags: u8,
    pub(super) mptcp: bool,
    /// First edge of the first SACK block.
    pub(super) sack: Option<u32>,
    pub(super) len: u32,
    pub(super) sum: u32,
}

impl SeenSegment {
    /// Converts an entry of a segment log. `of_client` is true if the client recorded the segment.
    pub(super) fn from_entry(entry: &TappedSegment, of_client: bool) -> SeenSegment {
        let header = &entry.header;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let client = if of_client { entry.local } else { entry.remote };
        let sack = option(header, SACK).filter(|at| at + 6 <= header.len()).map(|at| word(at + 2));
        SeenSegment {
            at_us: entry.at_us,
            client_port: client.port(),
            seq: word(4),
            ack: word(8),
            flags: header[13],
            mptcp: option(header, MPTCP).is_some(),
            sack,
            len: u32::from(entry.payload_len),
            sum: entry.payload_sum,
        }
    }

    pub(super) const fn is_syn(&self) -> bool {
        self.flags & SYN != 0
    }

    pub(super) const fn is_rst(&self) -> bool {
        self.flags & RST != 0
    }

    pub(super) const fn has_ack(&self) -> bool {
        self.flags & ACK != 0
    }

    /// Returns true for an acknowledgment without data and flags.
    pub(super) const fn is_pure_ack(&self) -> bool {
        self.len == 0 && self.flags & (SYN | FIN | RST) == 0
    }
}

/// Returns the position of the first option of this kind.
fn option(header: &[u8], kind: u8) -> Option<usize> {
    let mut at = 20;
    while at < header.len() && header[at] != 0 {
        if header[at] == 1 {
            at += 1;
            continue;
        }
        let length = usize::from(*header.get(at + 1)?);
        if length < 2 || at + length > header.len() {
            return None;
        }
        if header[at] == kind {
            return Some(at);
        }
        at += length;
    }
    None
}
