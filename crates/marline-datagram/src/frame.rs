//! Frames of the lane (docs/spec/datagrams.md sections 1 and 2): encoding and parsing.
//!
//! ```text
//! header   0x28, receiver's lane id (8), packet number (8)
//! body     sealed: one item after the other
//! tag      16
//! ```
//! Variable-length numbers are encoded as in RFC 9000 section 16.

mod repair;

use marline_policy::PathId;
use marline_time::Duration;

pub(crate) use repair::{LEN_BYTES, MAX_GROUP_FRAMES, Repair, add_part};

/// Type of lane frames among the frames of the UDP carrier.
pub const FRAME_TYPE: u8 = 8;
/// First byte: version 2 of the carrier, and the frame type.
const FIRST_BYTE: u8 = 2 << 4 | FRAME_TYPE;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 17;
/// Length of the tag in bytes.
pub const TAG_BYTES: usize = 16;
/// Length of the largest frame in bytes: the largest UDP payload of the carrier.
pub const LARGEST_FRAME: usize = 1_472;
/// Length of the smallest frame in bytes: one byte of body.
pub const SMALLEST_FRAME: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Maximum number of ranges in an ACK.
pub(crate) const MAX_RANGE_COUNT: usize = 32;

const PADDING: u8 = 0;
const DATAGRAM: u8 = 1;
const DATAGRAM_TO_FRAME_END: u8 = 2;
const ACK: u8 = 3;
const PING: u8 = 4;
const SIZE: u8 = 5;
const REPAIR: u8 = 6;
const READ_VERSION: u8 = 7;
const PIECE: u8 = 8;

/// Highest kind of item that this version understands, which READS announces.
pub(crate) const LAST_KIND: u8 = PIECE;

/// Length of the largest datagram in bytes: 8 KiB of application data, plus overhead.
pub(crate) const LARGEST_DATAGRAM: usize = 8_192 + 512;
/// Length in bytes of the largest frame that is sent in pieces: a frame with the largest datagram.
pub(crate) const MAX_WHOLE_FRAME: usize =
    HEADER_BYTES + datagram_overhead(LARGEST_NUMBER, None) + LARGEST_DATAGRAM + TAG_BYTES;
/// Overhead in bytes of a frame that carries a piece: header, tag, kind, number, total and offset.
pub(crate) const PIECE_OVERHEAD: usize = HEADER_BYTES + TAG_BYTES + 1 + 8 + 2 + 2;
/// Length in bytes above which a sealed frame counts as several packets under the cipher's limits (RFC 9001 appendix
/// B.1).
pub(crate) const LONG_SEALED_BYTES: usize = 1 << 11;

/// Largest variable-length number.
pub(crate) const LARGEST_NUMBER: u64 = (1 << 62) - 1;

/// Header of a frame; the tag authenticates it, but it is not encrypted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id of the receiver's lane; the top byte contains the shard.
    pub lane: u64,
    /// Packet number, which is equal in both copies of a packet.
    pub packet_number: u64,
}

impl Header {
    /// Parses the header of a datagram; `None` if it is not a lane frame.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<Header> {
        if datagram.len() > LARGEST_FRAME { None } else { Header::parse_whole(datagram) }
    }

    /// Parses the header of a frame that arrived in pieces.
    pub(crate) fn parse_whole(frame: &[u8]) -> Option<Header> {
        if frame.len() < SMALLEST_FRAME || frame[0] != FIRST_BYTE {
            return None;
        }
        let word = |at: usize| Some(u64::from_be_bytes(frame.get(at..at + 8)?.try_into().ok()?));
        Some(Header { lane: word(1)?, packet_number: word(9)? })
    }

    /// Encodes the header.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [FIRST_BYTE; HEADER_BYTES];
        bytes[1..9].copy_from_slice(&self.lane.to_be_bytes());
        bytes[9..].copy_from_slice(&self.packet_number.to_be_bytes());
        bytes
    }
}

/// Range of packet numbers, including both ends.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberRange {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

/// Acknowledgment of frames received on one path.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    /// Path of the frames.
    pub(crate) path: PathId,
    /// Time between the arrival of the largest number and this ACK.
    pub(crate) delay: Duration,
    ranges: [NumberRange; MAX_RANGE_COUNT],
    len: usize,
}

impl Ack {
    /// Creates an ACK of these ranges, which are descending and not adjacent. Ranges beyond the maximum are omitted.
    pub(crate) fn new(path: PathId, delay: Duration, falling: &[NumberRange]) -> Ack {
        let mut ack = Ack { path, delay, ranges: Default::default(), len: 0 };
        for range in falling.iter().take(MAX_RANGE_COUNT) {
            ack.ranges[ack.len] = *range;
            ack.len += 1;
        }
        ack
    }

    /// Ranges in descending order; at least one.
    pub(crate) fn ranges(&self) -> &[NumberRange] {
        &self.ranges[..self.len]
    }

    fn parse(reader: &mut Reader<'_>) -> Option<Ack> {
        let path = PathId(reader.byte()?);
        let most = reader.number()?;
        let delay = Duration::from_micros(reader.number()?.min(u32::MAX.into()));
        let further = usize::from(reader.byte()?);
        if further >= MAX_RANGE_COUNT {
            return None;
        }
        let least = most.checked_sub(reader.number()?)?;
        let mut ack = Ack::new(path, delay, &[NumberRange { least, most }]);
        for _ in 0..further {
            let below = ack.ranges[ack.len - 1].least;
            let most = below.checked_sub(reader.number()?)?.checked_sub(2)?;
            let least = most.checked_sub(reader.number()?)?;
            ack.ranges[ack.len] = NumberRange { least, most };
            ack.len += 1;
        }
        Some(ack)
    }

    /// Appends the ACK with as many ranges as fit into `most_bytes`. Returns false if none fits.
    pub(crate) fn write(&self, out: &mut Vec<u8>, most_bytes: usize) -> bool {
        let Some(first) = self.ranges().first() else { return false };
        let start = out.len();
        out.extend_from_slice(&[ACK, self.path.0]);
        write_number(out, first.most);
        write_number(out, (self.delay.as_micros() as u64).min(u32::MAX.into()));
        let count_at = out.len();
        out.push(0);
        write_number(out, first.most - first.least);
        if out.len() - start > most_bytes {
            out.truncate(start);
            return false;
        }
        let mut below = first.least;
        for range in &self.ranges()[1..] {
            let before = out.len();
            write_number(out, below - range.most - 2);
            write_number(out, range.most - range.least);
            if out.len() - start > most_bytes {
                out.truncate(before);
                break;
            }
            out[count_at] += 1;
            below = range.least;
        }
        true
    }
}

/// Returns the part of a body that repairs cover: its datagrams, which are at the end; empty if there are none.
pub(crate) fn datagram_part(body: &[u8]) -> &[u8] {
    let mut items = Items::new(body);
    loop {
        let rest = items.reader.rest;
        match items.next() {
            Some(Ok(Item::Datagram { .. })) => return rest,
            Some(Ok(_)) => {}
            Some(Err(MalformedBody)) | None => return &[],
        }
    }
}

/// Item of a body.
#[expect(clippy::large_enum_variant, reason = "short-lived: handled as soon as it is read")]
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// Datagram for the application.
    Datagram { flow: u64, payload: &'a [u8] },
    /// Acknowledgment of received frames.
    Ack(Ack),
    /// Elicits an acknowledgment and has no other effect.
    Ping,
    /// Frames of this many bytes pass on this path from the item's sender to its receiver.
    Size { path: PathId, bytes: u16 },
    /// Repair data from which a lost frame may be recovered.
    Repair(Repair<'a>),
    /// The sender understands items up to this kind.
    Reads { kind: u8 },
    /// Piece of another frame.
    Piece(Piece<'a>),
}

/// Piece of a frame that is larger than the path allows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Number of the whole frame.
    pub(crate) number: u64,
    /// Length of the whole frame, in bytes.
    pub(crate) total: usize,
    /// Offset of the piece in the frame, in bytes.
    pub(crate) offset: usize,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    fn parse(reader: &mut Reader<'a>) -> Option<Piece<'a>> {
        let number = reader.number()?;
        let (total, offset) = (reader.number()?, reader.number()?);
        let bytes = core::mem::take(&mut reader.rest);
        Some(Piece {
            number,
            total: usize::try_from(total).ok()?,
            offset: usize::try_from(offset).ok()?,
            bytes,
        })
    }

    /// Appends the piece, which must be the last item of a body.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(PIECE);
        write_number(out, self.number);
        write_number(out, self.total as u64);
        write_number(out, self.offset as u64);
        out.extend_from_slice(self.bytes);
    }
}

/// Overhead in bytes of a datagram item, with or without an explicit length.
pub(crate) const fn datagram_overhead(flow: u64, len: Option<usize>) -> usize {
    let len_bytes = match len {
        Some(len) => number_len(len as u64),
        None => 0,
    };
    1 + number_len(flow) + len_bytes
}

/// Appends a datagram item, which may be the last item of a body.
pub(crate) fn write_datagram(out: &mut Vec<u8>, flow: u64, payload: &[u8], last: bool) {
    out.push(if last { DATAGRAM_TO_FRAME_END } else { DATAGRAM });
    write_number(out, flow);
    if !last {
        write_number(out, payload.len() as u64);
    }
    out.extend_from_slice(payload);
}

pub(crate) fn write_ping(out: &mut Vec<u8>) {
    out.push(PING);
}

pub(crate) fn write_size(out: &mut Vec<u8>, path: PathId, bytes: u16) {
    out.extend_from_slice(&[SIZE, path.0]);
    out.extend_from_slice(&bytes.to_be_bytes());
}

/// Announces the items that the sender understands. A peer that does not know this item stops parsing here, so the item
/// must be last in the body.
pub(crate) fn write_reads(out: &mut Vec<u8>) {
    out.extend_from_slice(&[READ_VERSION, LAST_KIND]);
}

/// Iterator over the items of a decrypted body; yields `Err` at the end if the body is malformed.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    reader: Reader<'a>,
}

/// Error for a malformed body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct MalformedBody;

/// Returns true if a peer that understands items up to this kind understands repairs.
pub(crate) const fn supports_repairs(kind: u8) -> bool {
    kind >= REPAIR
}

impl<'a> Items<'a> {
    pub(crate) const fn new(body: &'a [u8]) -> Self {
        Items { reader: Reader { rest: body } }
    }

    fn read(&mut self) -> Option<Option<Item<'a>>> {
        let reader = &mut self.reader;
        let kind = reader.byte()?;
        Some(Some(match kind {
            PADDING => {
                // Padding extends to the end of the body.
                let rest = core::mem::take(&mut reader.rest);
                return rest.iter().all(|byte| *byte == PADDING).then_some(None);
            }
            DATAGRAM => {
                let (flow, len) = (reader.number()?, reader.number()?);
                Item::Datagram { flow, payload: reader.take(usize::try_from(len).ok()?)? }
            }
            DATAGRAM_TO_FRAME_END => {
                let flow = reader.number()?;
                Item::Datagram { flow, payload: core::mem::take(&mut reader.rest) }
            }
            ACK => Item::Ack(Ack::parse(reader)?),
            PING => Item::Ping,
            SIZE => {
                let path = PathId(reader.byte()?);
                let bytes = u16::from_be_bytes([reader.byte()?, reader.byte()?]);
                Item::Size { path, bytes }
            }
            REPAIR => Item::Repair(Repair::parse(reader)?),
            READ_VERSION => Item::Reads { kind: reader.byte()? },
            PIECE => Item::Piece(Piece::parse(reader)?),
            _ => return None,
        }))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, MalformedBody>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.rest.is_empty() {
            return None;
        }
        match self.read() {
            Some(item) => item.map(Ok),
            None => {
                self.reader.rest = &[];
                Some(Err(MalformedBody))
            }
        }
    }
}

#[derive(Debug)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let rest = self.take((1 << (first >> 6)) - 1)?;
        let start = u64::from(first & 0x3f);
        Some(rest.iter().fold(start, |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// Length of a variable-length number in bytes.
pub(crate) const fn number_len(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends a number; values above the maximum are written as the maximum.
fn write_number(out: &mut Vec<u8>, value: u64) {
    let value = value.min(LARGEST_NUMBER);
    let len = number_len(value);
    let marked = value | (len.trailing_zeros() as u64) << (len * 8 - 2);
    out.extend_from_slice(&marked.to_be_bytes()[8 - len..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = u64> {
        (0..62u32, any::<u64>()).prop_map(|(bits, value)| value & ((1 << (bits + 1)) - 1))
    }

    fn ack() -> impl Strategy<Value = Ack> {
        let steps = prop::collection::vec((0..1_000u64, 0..100u64), 1..MAX_RANGE_COUNT);
        (any::<u8>(), 1u64 << 40..1 << 41, 0..u64::from(u32::MAX), steps).prop_map(
            |(path, most, delay, steps)| {
                let mut ranges: Vec<NumberRange> = Vec::new();
                let mut most = most;
                for (gap, length) in steps {
                    ranges.push(NumberRange { least: most - length, most });
                    most = most - length - gap - 2;
                }
                Ack::new(PathId(path), Duration::from_micros(delay), &ranges)
            },
        )
    }

    #[expect(clippy::large_enum_variant, reason = "short-lived, and few are created")]
    #[derive(Clone, Debug)]
    enum Made {
        Datagram(u64, Vec<u8>),
        Ack(Ack),
        Ping,
        Size(u8, u16),
        Reads,
    }

    fn made() -> impl Strategy<Value = Made> {
        prop_oneof![
            (number(), prop::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(flow, payload)| Made::Datagram(flow, payload)),
            ack().prop_map(Made::Ack),
            Just(Made::Ping),
            (any::<u8>(), any::<u16>()).prop_map(|(path, bytes)| Made::Size(path, bytes)),
            Just(Made::Reads),
        ]
    }

    fn write(items: &[Made], padding: usize) -> Vec<u8> {
        let mut body = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let last = index + 1 == items.len() && padding == 0;
            match item {
                Made::Datagram(flow, payload) => write_datagram(&mut body, *flow, payload, last),
                Made::Ack(ack) => assert!(ack.write(&mut body, usize::MAX)),
                Made::Ping => write_ping(&mut body),
                Made::Size(path, bytes) => write_size(&mut body, PathId(*path), *bytes),
                Made::Reads => write_reads(&mut body),
            }
        }
        body.resize(body.len() + padding, PADDING);
        body
    }

    proptest! {
        #[test]
        fn written_frame_items_parse_back(
            items in prop::collection::vec(made(), 1..6),
            padding in 0usize..40,
        ) {
            let body = write(&items, padding);
            let read: Vec<Item<'_>> = Items::new(&body).map(|item| item.unwrap()).collect();
            prop_assert_eq!(read.len(), items.len());
            for (read, made) in read.into_iter().zip(&items) {
                match made {
                    Made::Datagram(flow, payload) => {
                        prop_assert_eq!(read, Item::Datagram { flow: *flow, payload });
                    }
                    Made::Ack(ack) => prop_assert_eq!(read, Item::Ack(*ack)),
                    Made::Ping => prop_assert_eq!(read, Item::Ping),
                    Made::Size(path, bytes) => {
                        prop_assert_eq!(read, Item::Size { path: PathId(*path), bytes: *bytes });
                    }
                    Made::Reads => prop_assert_eq!(read, Item::Reads { kind: LAST_KIND }),
                }
            }
        }

        #[test]
        fn a_repair_is_read_back_with_the_announced_length(
            row in any::<u8>(),
            gaps in prop::collection::vec(number(), 2..=MAX_GROUP_FRAMES),
            sum in prop::collection::vec(any::<u8>(), LEN_BYTES + 1..1_300),
        ) {
            let mut next = 0;
            let rising = |gap: &u64| {
                let number = next + gap % (1 << 40);
                next = number + 1;
                number
            };
            let numbers: Vec<u64> = gaps.iter().map(rising).collect();
            let repair = Repair::new(row, &numbers, &sum);
            let mut body = Vec::new();
            write_ping(&mut body);
            repair.write(&mut body);
            prop_assert_eq!(body.len(), 1 + Repair::overhead(&numbers) + sum.len() - LEN_BYTES);
            let read: Vec<_> = Items::new(&body).collect();
            prop_assert_eq!(read, [Ok(Item::Ping), Ok(Item::Repair(repair))]);
        }

        #[test]
        fn datagrams_are_the_end_of_a_body(
            asides in prop::collection::vec(prop_oneof![ack().prop_map(Made::Ack), Just(Made::Ping)], 0..3),
            datagrams in prop::collection::vec((number(), prop::collection::vec(any::<u8>(), 0..90)), 0..4),
        ) {
            let datagrams: Vec<Made> =
                datagrams.into_iter().map(|(flow, payload)| Made::Datagram(flow, payload)).collect();
            let alone = write(&datagrams, 0);
            let body = [write(&asides, 0), alone.clone()].concat();
            prop_assert_eq!(datagram_part(&body), alone);
        }

        #[test]
        fn arbitrary_bytes_neither_panic_nor_loop(body in prop::collection::vec(any::<u8>(), 0..1_500)) {
            let mut count = 0;
            for item in Items::new(&body) {
                count += 1;
                if let Ok(Item::Ack(ack)) = item {
                    let falls = ack.ranges().windows(2).all(|pair| pair[1].most + 1 < pair[0].least);
                    prop_assert!(falls && ack.ranges().iter().all(|range| range.least <= range.most));
                }
            }
            prop_assert!(count <= body.len());
        }

        #[test]
        fn a_body_that_was_cut_is_malformed_or_shorter(items in prop::collection::vec(made(), 1..4)) {
            let body = write(&items, 0);
            for len in 0..body.len() {
                let read: Vec<_> = Items::new(&body[..len]).collect();
                prop_assert!(read.len() <= items.len());
            }
        }

        #[test]
        fn an_ack_is_cut_to_the_room_and_its_newest_ranges_stay(ack in ack(), room in 0usize..200) {
            let mut body = Vec::new();
            if ack.write(&mut body, room) {
                prop_assert!(body.len() <= room);
                let Some(Ok(Item::Ack(read))) = Items::new(&body).next() else { panic!("an ACK") };
                prop_assert_eq!(read.ranges(), &ack.ranges()[..read.ranges().len()]);
            } else {
                prop_assert!(body.is_empty());
            }
        }
    }

    #[test]
    fn a_header_is_read_back_and_nothing_else_is_one() {
        let header = Header { lane: 0x0102_0304_0506_0708, packet_number: 9 };
        let mut frame = header.bytes().to_vec();
        frame.resize(SMALLEST_FRAME, 0);
        assert_eq!(Header::parse(&frame), Some(header));
        for first in 0..=255u8 {
            frame[0] = first;
            assert_eq!(Header::parse(&frame).is_some(), first == 0x28, "{first:#x}");
        }
        frame[0] = FIRST_BYTE;
        assert_eq!(Header::parse(&frame[..SMALLEST_FRAME - 1]), None);
        frame.resize(LARGEST_FRAME + 1, 0);
        assert_eq!(Header::parse(&frame), None);
    }

    #[test]
    fn a_repair_of_one_frame_of_too_many_or_of_nothing_is_malformed() {
        for body in [
            &[REPAIR, 0, 1, 5, 0, 0, 1][..],
            &[REPAIR, 0, 17, 5, 0, 0, 1],
            &[REPAIR, 0, 2, 5, 0, 0, 1],
            &[REPAIR, 0, 2, 5, 0],
        ] {
            assert_eq!(Items::new(body).next(), Some(Err(MalformedBody)), "{body:?}");
        }
        let sum = Repair::new(0, &[5, 6], &[0, 1, 9]);
        let body = [REPAIR, 0, 2, 5, 0, 0, 1, 9];
        assert_eq!(Items::new(&body).next(), Some(Ok(Item::Repair(sum))));
    }

    #[test]
    fn an_unknown_item_and_padding_with_something_in_it_are_malformed() {
        assert_eq!(Items::new(&[99]).next(), Some(Err(MalformedBody)));
        assert_eq!(Items::new(&[PADDING, 0, 1]).next(), Some(Err(MalformedBody)));
        assert_eq!(Items::new(&[PADDING, 0, 0]).next(), None);
        let mut items = Items::new(&[PING, 99, PING]);
        assert_eq!(items.next(), Some(Ok(Item::Ping)));
        assert_eq!((items.next(), items.next()), (Some(Err(MalformedBody)), None));
    }
}
