//! REPAIR item: a sum over the datagrams of several frames (docs/spec/datagrams.md section 2).

use marline_wire::repair_code::add_multiple;

use super::{REPAIR, Reader, number_len, write_number};

/// Maximum number of frames that one repair covers.
pub(crate) const MAX_GROUP_FRAMES: usize = 16;

/// Sum over the datagrams of several frames, from which a lost frame can be recovered.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repair<'a> {
    /// Row of the code matrix used for the sum.
    pub(crate) row: u8,
    numbers: [u64; MAX_GROUP_FRAMES],
    len: usize,
    /// Sum over the datagrams of all frames. The datagrams of a frame are encoded as a length (two bytes) and the
    /// result of [`datagram_part`](super::datagram_part).
    pub(crate) sum: &'a [u8],
}

impl<'a> Repair<'a> {
    /// Creates a repair of at most [`MAX_GROUP_FRAMES`] frames with ascending numbers.
    pub(crate) fn new(row: u8, rising: &[u64], sum: &'a [u8]) -> Repair<'a> {
        let mut repair = Repair { row, numbers: [0; MAX_GROUP_FRAMES], len: 0, sum };
        for number in rising.iter().take(MAX_GROUP_FRAMES) {
            repair.numbers[repair.len] = *number;
            repair.len += 1;
        }
        repair
    }

    /// Numbers of the frames, ascending; at least two.
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers[..self.len]
    }

    pub(super) fn parse(reader: &mut Reader<'a>) -> Option<Repair<'a>> {
        let row = reader.byte()?;
        let len = usize::from(reader.byte()?);
        if !(2..=MAX_GROUP_FRAMES).contains(&len) {
            return None;
        }
        let mut repair = Repair::new(row, &[reader.number()?], &[]);
        while repair.len < len {
            let above = repair.numbers[repair.len - 1].checked_add(1)?;
            repair.numbers[repair.len] = above.checked_add(reader.number()?)?;
            repair.len += 1;
        }
        repair.sum = core::mem::take(&mut reader.rest);
        (repair.sum.len() > LEN_BYTES).then_some(repair)
    }

    /// Appends the repair, which must be the last item of a body.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[REPAIR, self.row, self.len as u8]);
        let mut next = 0;
        for number in self.numbers() {
            write_number(out, number - next);
            next = number + 1;
        }
        out.extend_from_slice(self.sum);
    }

    /// Returns the length of a repair, excluding the datagrams of the longest frame.
    pub(crate) fn overhead(rising: &[u64]) -> usize {
        let mut next = 0;
        let gap = |number: &u64| {
            let bytes = number_len(number - next);
            next = number + 1;
            bytes
        };
        3 + rising.iter().map(gap).sum::<usize>() + LEN_BYTES
    }
}

/// Size of the length field in a sum, in bytes.
pub(crate) const LEN_BYTES: usize = 2;

/// Adds a frame's datagrams with their length, multiplied by `factor`, to a sum.
pub(crate) fn add_part(sum: &mut [u8], part: &[u8], factor: u8) {
    let (len, bytes) = sum.split_at_mut(LEN_BYTES);
    add_multiple(len, &(part.len() as u16).to_be_bytes(), factor);
    add_multiple(bytes, part, factor);
}
