//! Middleboxes that split and merge segments.

use super::super::tcp::{
    self, ACK, FIN, FLAGS_AT, PSH, RST, SYN, URG, acknowledgment, options_end, ports, sequence,
};
use crate::{Packet, Split, SplitOptions};

/// Option kind of Multipath TCP.
const MPTCP: u8 = 30;
/// Maximum length of a merged packet in bytes.
const MAX_MERGED_PACKET: usize = 1_500;

/// Splits a segment. `None` if it is short enough or cannot be split.
pub(super) fn split<P: Packet>(packet: &mut P, split: Split) -> Option<Vec<P>> {
    let segment = packet.tcp_mut()?.to_vec();
    let start = options_end(&segment)?;
    let most = usize::from(split.bytes).max(1);
    let flags = segment[FLAGS_AT];
    if segment.len() - start <= most || flags & (SYN | RST | URG) != 0 {
        return None;
    }
    let pieces = segment[start..].chunks(most).enumerate();
    let count = (segment.len() - start).div_ceil(most);
    pieces
        .map(|(index, payload)| {
            let mut piece = segment[..start].to_vec();
            piece.extend_from_slice(payload);
            tcp::seal(&mut piece, &segment);
            let offset = (index * most) as u32;
            let moved = sequence(&segment).wrapping_add(offset);
            tcp::set_sequence(&mut piece, moved);
            if index + 1 < count {
                tcp::set_flags(&mut piece, flags & !(FIN | PSH));
            }
            if index > 0 && split.options == SplitOptions::First {
                while let Some((start, end)) = tcp::option(&piece, MPTCP) {
                    tcp::blank(&mut piece, start, end);
                }
            }
            packet.with_tcp(&piece)
        })
        .collect()
}

/// Merges two segments, with the options of the first. `None` if the second does not follow the first, or both are too
/// long for one packet.
pub(super) fn merge_segments<P: Packet>(first: &mut P, second: &mut P) -> Option<P> {
    let room = MAX_MERGED_PACKET.checked_sub(first.wire_len())?;
    let ahead = first.tcp_mut()?.to_vec();
    let behind = second.tcp_mut()?;
    let (ahead_start, behind_start) = (options_end(&ahead)?, options_end(behind)?);
    let length = ahead.len() - ahead_start;
    let payload = &behind[behind_start..];
    let follows = ports(&ahead) == ports(behind)
        && sequence(behind) == sequence(&ahead).wrapping_add(length as u32)
        && (ahead[FLAGS_AT] | behind[FLAGS_AT]) & (SYN | RST | URG) == 0
        && ahead[FLAGS_AT] & FIN == 0
        && length > 0
        && !payload.is_empty()
        && payload.len() <= room;
    if !follows {
        return None;
    }
    let mut joined = ahead.clone();
    joined.extend_from_slice(payload);
    tcp::seal(&mut joined, &ahead);
    tcp::set_acknowledgment(&mut joined, acknowledgment(behind));
    tcp::set_window(&mut joined, tcp::window(behind));
    tcp::set_flags(&mut joined, ahead[FLAGS_AT] | behind[FLAGS_AT] | ACK);
    first.with_tcp(&joined)
}
