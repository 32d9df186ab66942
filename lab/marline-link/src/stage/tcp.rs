//! Fields of a TCP segment that middleboxes read and change.

/// Length of a TCP header without options.
pub(super) const HEADER: usize = 20;
pub(super) const FLAGS_AT: usize = 13;
pub(super) const CHECKSUM_AT: usize = 16;
pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const URG: u8 = 0x20;
const END: u8 = 0;
pub(super) const NO_OPERATION: u8 = 1;
pub(super) const SACK: u8 = 5;
pub(super) const TIMESTAMPS: u8 = 8;
const SEQUENCE_AT: usize = 4;
const ACKNOWLEDGMENT_AT: usize = 8;
const WINDOW_AT: usize = 14;

/// End of the options. `None` if the bytes are not a TCP header.
pub(super) fn options_end(segment: &[u8]) -> Option<usize> {
    let end = usize::from(segment.get(12)? >> 4) * 4;
    (end >= HEADER && end <= segment.len()).then_some(end)
}

/// Source and destination port. The segment must have a header.
pub(super) fn ports(segment: &[u8]) -> (u16, u16) {
    (u16_at(segment, 0), u16_at(segment, 2))
}

pub(super) fn sequence(segment: &[u8]) -> u32 {
    u32_at(segment, SEQUENCE_AT)
}

pub(super) fn acknowledgment(segment: &[u8]) -> u32 {
    u32_at(segment, ACKNOWLEDGMENT_AT)
}

pub(super) fn set_sequence(segment: &mut [u8], value: u32) {
    change(segment, SEQUENCE_AT, &value.to_be_bytes());
}

pub(super) fn set_acknowledgment(segment: &mut [u8], value: u32) {
    change(segment, ACKNOWLEDGMENT_AT, &value.to_be_bytes());
}

/// The bytes of the window field.
pub(super) fn window(segment: &[u8]) -> [u8; 2] {
    [segment[WINDOW_AT], segment[WINDOW_AT + 1]]
}

pub(super) fn set_window(segment: &mut [u8], window: [u8; 2]) {
    change(segment, WINDOW_AT, &window);
}

pub(super) fn set_flags(segment: &mut [u8], flags: u8) {
    change(segment, FLAGS_AT, &[flags]);
}

pub(super) fn set_source_port(segment: &mut [u8], port: u16) {
    change(segment, 0, &port.to_be_bytes());
}

pub(super) fn set_destination_port(segment: &mut [u8], port: u16) {
    change(segment, 2, &port.to_be_bytes());
}

/// The big-endian 32-bit word at an offset.
pub(super) fn u32_at(segment: &[u8], at: usize) -> u32 {
    u32::from(u16_at(segment, at)) << 16 | u32::from(u16_at(segment, at + 2))
}

fn u16_at(segment: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([segment[at], segment[at + 1]])
}

/// Start and end of the first option of a kind.
pub(super) fn option(segment: &[u8], kind: u8) -> Option<(usize, usize)> {
    find_option(segment, HEADER, |option| option[0] == kind)
}

/// Start and end of the first matching option, searched from the start of an option. A malformed option ends the
/// search.
pub(super) fn find_option(
    segment: &[u8],
    from: usize,
    is_like_this: impl Fn(&[u8]) -> bool,
) -> Option<(usize, usize)> {
    let end = options_end(segment)?;
    let mut at = from;
    while at < end && segment[at] != END {
        if segment[at] == NO_OPERATION {
            at += 1;
            continue;
        }
        let length = usize::from(*segment.get(at + 1)?);
        if length < 2 || at + length > end {
            return None;
        }
        if is_like_this(&segment[at..at + length]) {
            return Some((at, at + length));
        }
        at += length;
    }
    None
}

/// Overwrites bytes and updates the checksum incrementally (RFC 1624), so that a damaged segment stays damaged.
pub(super) fn change(segment: &mut [u8], at: usize, bytes: &[u8]) {
    // Options may begin at any byte, but the checksum consists of 16-bit words.
    let words = at & !1..(at + bytes.len()).next_multiple_of(2).min(segment.len());
    let before = checksum(&segment[words.clone()]);
    segment[at..at + bytes.len()].copy_from_slice(bytes);
    let after = checksum(&segment[words]);
    update_checksum(segment, before, after);
}

/// Overwrites bytes with no-operations and updates the checksum.
pub(super) fn blank(segment: &mut [u8], start: usize, end: usize) {
    // Maximum length of an option.
    const MAX_OPTION_BYTES: usize = 40;
    let blanks = [NO_OPERATION; MAX_OPTION_BYTES];
    change(segment, start, &blanks[..(end - start).min(MAX_OPTION_BYTES)]);
}

/// Updates the checksum after words with the sum `before` were replaced by words with the sum `after`.
pub(super) fn update_checksum(segment: &mut [u8], before: u16, after: u16) {
    let old = u16_at(segment, CHECKSUM_AT);
    // Equation 3 of RFC 1624, with sums of words instead of a single word.
    let total = fold(u32::from(!old) + u32::from(!before) + u32::from(after));
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&(!total).to_be_bytes());
}

/// Sets the checksum of a segment made from another one. The contribution of other covered data (the addresses, if
/// any) is derived from the other segment's checksum, so that a damaged segment results in damaged ones.
pub(super) fn seal(segment: &mut [u8], made_of: &[u8]) {
    // If the checksum is valid for the segment alone, it covers nothing else, not even a length.
    let beside = !checksum(made_of);
    let lengths = if beside == 0 {
        0
    } else {
        fold(u32::from(!(made_of.len() as u16)) + u32::from(segment.len() as u16))
    };
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
    let total = fold(u32::from(beside) + u32::from(lengths) + u32::from(checksum(segment)));
    segment[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&(!total).to_be_bytes());
}

/// The one's complement sum. An odd last byte is the high byte of its word.
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let word = |word: &[u8]| u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
    fold(bytes.chunks(2).map(|bytes| u32::from(word(bytes))).sum())
}

fn fold(mut total: u32) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
