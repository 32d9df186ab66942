//! Middleboxes that change sequence numbers or ports, or send their own acknowledgments.

use super::super::tcp::{
    self, ACK, FIN, FLAGS_AT, HEADER, NO_OPERATION, SACK, TIMESTAMPS, acknowledgment, options_end,
    ports, sequence,
};
use crate::{Packet, Rebind, Renumber};

/// Adds an offset to the sender's numbers, and subtracts the other direction's offset from the acknowledged numbers.
/// Each offset is computed from the ports in the sender's order, so that both directions agree.
pub(super) fn renumber(segment: &mut [u8], kind: Renumber) {
    let (from, to) = ports(segment);
    let moved = sequence(segment).wrapping_add(offset(from, to));
    tcp::set_sequence(segment, moved);
    if segment[FLAGS_AT] & ACK == 0 {
        return;
    }
    let back = offset(to, from);
    let acknowledged = acknowledgment(segment).wrapping_sub(back);
    tcp::set_acknowledgment(segment, acknowledged);
    if kind == Renumber::NotSack {
        return;
    }
    let Some((start, end)) = tcp::option(segment, SACK) else { return };
    for at in (start + 2..end.saturating_sub(3)).step_by(4) {
        let edge = tcp::u32_at(segment, at).wrapping_sub(back);
        tcp::change(segment, at, &edge.to_be_bytes());
    }
}

/// A large pseudorandom offset for every connection, computed from its ports.
const fn offset(from: u16, to: u16) -> u32 {
    let ports = (from as u32) << 16 | to as u32;
    (ports ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1) | 1 << 30
}

/// Lowest port of clients.
const FIRST_CLIENT_PORT: u16 = 1 << 15;

/// Acts as a NAT that has lost its translations: segments from the client get another port, and segments to the old
/// one are lost. Returns `false` if the segment is lost.
pub(super) fn rebind(segment: &mut [u8], rebind: Rebind) -> bool {
    let (from, to) = ports(segment);
    if rebind.from_client {
        if from >= FIRST_CLIENT_PORT {
            tcp::set_source_port(segment, from ^ FIRST_CLIENT_PORT);
        }
        return true;
    }
    if to < FIRST_CLIENT_PORT {
        tcp::set_destination_port(segment, to ^ FIRST_CLIENT_PORT);
    }
    to < FIRST_CLIENT_PORT
}

/// Forges an acknowledgment of a segment with data. The middlebox knows only the sender's own window and the timestamp
/// that the sender echoes.
pub(super) fn forge_acknowledgment(segment: &[u8]) -> Option<Vec<u8>> {
    let payload = segment.len() - options_end(segment)?;
    let fin = segment[FLAGS_AT] & FIN != 0;
    let mut made = segment[..HEADER].to_vec();
    let (from, to) = ports(segment);
    made[..2].copy_from_slice(&to.to_be_bytes());
    made[2..4].copy_from_slice(&from.to_be_bytes());
    let next = sequence(segment).wrapping_add(payload as u32 + u32::from(fin));
    made[4..8].copy_from_slice(&acknowledgment(segment).to_be_bytes());
    made[8..12].copy_from_slice(&next.to_be_bytes());
    made[FLAGS_AT] = ACK;
    if let Some((start, end)) = tcp::option(segment, TIMESTAMPS).filter(|(s, e)| e - s == 10) {
        made.extend([NO_OPERATION, NO_OPERATION, TIMESTAMPS, 10]);
        made.extend_from_slice(&segment[end - 4..end]);
        made.extend_from_slice(&segment[start + 2..end - 4]);
    }
    made[12] = ((made.len() / 4) as u8) << 4;
    tcp::seal(&mut made, segment);
    Some(made)
}

/// Returns true if an acknowledgment replaces another one.
pub(super) fn is_newer<P: Packet>(packet: &mut P, than: &mut P) -> bool {
    let number = |packet: &mut P| packet.tcp_mut().map(|segment| acknowledgment(segment));
    let (new, old) = (number(packet), number(than));
    new.zip(old).is_some_and(|(new, old)| new.wrapping_sub(old) < 1 << 31)
}
