//! Capture at one end of a path: round trips from the data that this end sent to its ACK.
//!
//! The handshake shows at which end the capture was made, because only answers of the other end take a round trip. A
//! round trip ends with the first ACK or SACK block that covers the data, and it includes the receiver's
//! acknowledgment delay.
//!
//! Transmissions of the same data are distinguished by Karn's rule and by timestamps: an ACK that echoes the timestamp
//! of exactly one transmission belongs to it, and earlier transmissions were lost. Without such an echo, all but the
//! last count as lost, unless the receiver reports the data as duplicate (D-SACK); the last one is left out. Without
//! SACK, data that an ACK covers together with retransmitted data is left out, too, because it may have waited for a
//! gap to be filled.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::ensure;
use marline_wire::{IpPacket, PROTOCOL_TCP, TcpFlags, TcpSegment};

use super::PathPacket;
use super::pcap::{find_ip_packet, for_each_frame};

/// One of the two answers in the handshake must take at least this many times as long as the other. Otherwise the
/// capture was not made at an end.
const MIN_DELAY_RATIO: i64 = 4;

/// Maximum time that data is in transit in ns. Older sequence numbers are not compared.
const MAX_FLIGHT_NS: i64 = 60_000_000_000;

/// Round trips of the data that one end of a path sent.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTrips {
    /// Transmissions of data, in the order of sending: each with its round trip, or lost.
    pub sent: Vec<PathPacket>,
    /// Number of transmissions whose fate is unknown.
    pub ambiguous: usize,
}

/// A transmission of data.
#[derive(Copy, Clone, Debug)]
struct Transmission {
    start: u32,
    end: u32,
    at_ns: i64,
    timestamp: Option<u32>,
    outcome: TransmissionOutcome,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum TransmissionOutcome {
    /// Not covered by an ACK.
    Open,
    /// Acknowledged after this time in ns.
    AckedAfter(i64),
    Lost,
    Ambiguous,
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
struct Flow {
    all: Vec<Transmission>,
    /// Indices into `all` of the open transmissions.
    open: Vec<usize>,
    /// End of the sent data.
    sent_end: Option<u32>,
}

/// State of a connection so far.
#[derive(Clone, Debug, Default)]
struct ConnectionState {
    /// Times of the SYN, the SYN-ACK and the initiator's next segment.
    handshake: [Option<i64>; 3],
    /// True if both ends permit SACK.
    sack: bool,
    /// Data from the initiator, and from the other end.
    flows: [Flow; 2],
}

/// Computes the round trips of the TCP data that the capturing end sent, from a pcap or pcapng file.
///
/// # Errors
/// The file is not a capture, has no handshake that shows at which end it was made, or has no data from there.
pub fn round_trips(file: &str, bytes: &[u8]) -> anyhow::Result<RoundTrips> {
    let mut all: BTreeMap<[SocketAddr; 2], ConnectionState> = BTreeMap::new();
    for_each_frame(file, bytes, |at_ns, link, frame| {
        let packet = find_ip_packet(link, frame).and_then(|ip| IpPacket::parse(ip).ok());
        let packet =
            packet.filter(|packet| packet.protocol == PROTOCOL_TCP && packet.fragment.is_none());
        let Some(packet) = packet else { return };
        let Ok(segment) = TcpSegment::parse(packet.payload) else { return };
        let from = SocketAddr::new(packet.src, segment.header.src_port);
        let to = SocketAddr::new(packet.dst, segment.header.dst_port);
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
            all.entry([from, to]).or_default();
        }
        if let Some(conversation) = all.get_mut(&[from, to]) {
            conversation.add_segment(0, at_ns, &segment);
        } else if let Some(conversation) = all.get_mut(&[to, from]) {
            conversation.add_segment(1, at_ns, &segment);
        }
    })?;
    let (mut sent, mut untold, mut known) = (Vec::new(), 0, 0);
    for conversation in all.values() {
        let Some(end) = conversation.find_capturing_end() else { continue };
        known += 1;
        for one in &conversation.flows[end].all {
            match one.outcome {
                TransmissionOutcome::AckedAfter(ns) => {
                    sent.push(PathPacket { at_ns: one.at_ns, took_ns: Some(ns) })
                }
                TransmissionOutcome::Lost => {
                    sent.push(PathPacket { at_ns: one.at_ns, took_ns: None })
                }
                TransmissionOutcome::Open | TransmissionOutcome::Ambiguous => untold += 1,
            }
        }
    }
    ensure!(
        known > 0,
        "{file}: no TCP handshake, so it is unknown at which end the capture was made: start the \
            capture before the connection, at the end that sends the data, or give captures of \
            both ends (CLIENT,SERVER), which UDP always needs"
    );
    ensure!(
        !sent.is_empty(),
        "{file}: the capturing end sent no data that was acknowledged: capture at the end that \
            sends data"
    );
    sent.sort_by_key(|passage| passage.at_ns);
    Ok(RoundTrips { sent, ambiguous: untold })
}

/// Returns true if `a` is at or after `b`.
const fn is_at_or_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

const fn overlap(a: &Transmission, b: &Transmission) -> bool {
    !is_at_or_after(a.start, b.end) && !is_at_or_after(b.start, a.end)
}

impl ConnectionState {
    /// The capturing end: 0 is the initiator, 1 the other end.
    fn find_capturing_end(&self) -> Option<usize> {
        let [syn, answer, next] = self.handshake;
        let (there, back) = (answer? - syn?, next? - answer?);
        if back.max(0) * MIN_DELAY_RATIO < there {
            return Some(0);
        }
        (there.max(0) * MIN_DELAY_RATIO < back).then_some(1)
    }

    fn add_segment(&mut self, from: usize, at_ns: i64, segment: &TcpSegment<'_>) {
        let flags = segment.header.flags;
        match (from, flags.contains(TcpFlags::SYN)) {
            // The last SYN before the answer.
            (0, true) if self.handshake[1].is_none() => {
                self.handshake[0] = Some(at_ns);
                self.sack = segment.options.sack_permitted;
            }
            (1, true) if self.handshake[2].is_none() => {
                self.handshake[1] = Some(at_ns);
                self.sack &= segment.options.sack_permitted;
            }
            (0, false) if self.handshake[1].is_some() => {
                self.handshake[2].get_or_insert(at_ns);
            }
            _ => {}
        }
        if !segment.payload.is_empty() && !flags.contains(TcpFlags::SYN) {
            self.flows[from].sends(at_ns, segment);
        }
        if flags.contains(TcpFlags::ACK) {
            self.flows[1 - from].on_acknowledgment(at_ns, segment, self.sack);
        }
    }
}

impl Flow {
    /// Transmissions that may still be acknowledged, newest first.
    fn recent(&self, now_ns: i64) -> impl Iterator<Item = usize> {
        let since = self.all.partition_point(|one| one.at_ns < now_ns - MAX_FLIGHT_NS);
        (since..self.all.len()).rev()
    }

    fn sends(&mut self, at_ns: i64, segment: &TcpSegment<'_>) {
        let start = segment.header.seq.0;
        let end = start.wrapping_add(segment.payload.len() as u32);
        let timestamp = segment.options.timestamps.map(|timestamps| timestamps.value);
        let mut one =
            Transmission { start, end, at_ns, timestamp, outcome: TransmissionOutcome::Open };
        // If data is sent again after its acknowledgment, the fate of the repetition is unknown.
        let repeats = self.sent_end.is_some_and(|to| !is_at_or_after(start, to));
        let there = |earlier: &Transmission| {
            matches!(
                earlier.outcome,
                TransmissionOutcome::AckedAfter(_) | TransmissionOutcome::Ambiguous
            ) && overlap(earlier, &one)
        };
        if repeats && self.recent(at_ns).any(|n| there(&self.all[n])) {
            one.outcome = TransmissionOutcome::Ambiguous;
        } else {
            self.open.push(self.all.len());
        }
        self.all.push(one);
        if self.sent_end.is_none_or(|to| is_at_or_after(end, to)) {
            self.sent_end = Some(end);
        }
    }

    fn on_acknowledgment(&mut self, at_ns: i64, segment: &TcpSegment<'_>, sack: bool) {
        let ack = segment.header.ack.0;
        let blocks = segment.options.sack.as_slice();
        let within = |one: &Transmission, left: u32, right: u32| {
            is_at_or_after(one.start, left) && is_at_or_after(right, one.end)
        };
        // The first block is a D-SACK if it is below the ACK or within the second block (RFC 2883).
        if let Some(first) = blocks.first() {
            let inner = blocks.get(1).is_some_and(|second| {
                is_at_or_after(first.left.0, second.left.0)
                    && is_at_or_after(second.right.0, first.right.0)
            });
            if is_at_or_after(ack, first.right.0) || inner {
                let twice = |one: &Transmission| {
                    one.outcome == TransmissionOutcome::Lost
                        && within(one, first.left.0, first.right.0)
                };
                let found: Vec<_> = self.recent(at_ns).filter(|n| twice(&self.all[*n])).collect();
                found
                    .into_iter()
                    .for_each(|n| self.all[n].outcome = TransmissionOutcome::Ambiguous);
            }
        }
        let covered = |one: &Transmission| {
            is_at_or_after(ack, one.end) || blocks.iter().any(|b| within(one, b.left.0, b.right.0))
        };
        let open = core::mem::take(&mut self.open);
        let (now, rest): (Vec<usize>, Vec<usize>) =
            open.into_iter().partition(|n| covered(&self.all[*n]));
        self.open = rest;
        let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
        let groups: Vec<Vec<usize>> = now
            .iter()
            .map(|n| {
                now.iter().copied().filter(|m| overlap(&self.all[*n], &self.all[*m])).collect()
            })
            .collect();
        let repaired = groups.iter().any(|group| group.len() > 1);
        for (n, group) in now.iter().zip(&groups) {
            let took = TransmissionOutcome::AckedAfter(at_ns - self.all[*n].at_ns);
            self.all[*n].outcome = match group.len() {
                1 if repaired && !sack => TransmissionOutcome::Ambiguous,
                1 => took,
                _ => self.repeated_outcome(*n, group, echo).unwrap_or(took),
            };
        }
    }

    /// The fate of one of several transmissions of the same data. `None` for the acknowledged one.
    fn repeated_outcome(
        &self,
        one: usize,
        group: &[usize],
        echo: Option<u32>,
    ) -> Option<TransmissionOutcome> {
        let echoed = |n: &&usize| echo.is_some() && self.all[**n].timestamp == echo;
        let mut found = group.iter().filter(echoed);
        let last = group.iter().max().copied().unwrap_or(one);
        match (found.next().copied(), found.next()) {
            (Some(hit), None) if hit == one => None,
            (Some(hit), None) => Some(if one < hit {
                TransmissionOutcome::Lost
            } else {
                TransmissionOutcome::Ambiguous
            }),
            _ => Some(if one < last {
                TransmissionOutcome::Lost
            } else {
                TransmissionOutcome::Ambiguous
            }),
        }
    }
}
