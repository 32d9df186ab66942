//! Recorded exchange for diagnosis tests: the segments that both ends record, with a middlebox between them.
//!
//! Both ends always send the same data: a handshake, messages in turn, and a burst in each direction. The middlebox
//! determines for each segment what arrives at the other side.

use std::net::SocketAddr;

use marline_io::TappedSegment;

pub(super) const SYN: u8 = 0x02;
pub(super) const ACK: u8 = 0x10;

/// Initial sequence numbers of the ends.
const ISN: [u32; 2] = [1_000, 9_000_000];
const MESSAGES: u32 = 24;
const MESSAGE_LEN: u32 = 150;
const BURST: u32 = 60;
const BURST_LEN: u32 = 1_200;

/// Checksum of the sender's bytes at this position.
pub(super) const fn content(seq: u32, len: u32) -> u32 {
    seq ^ len
}

/// A segment in transit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// True if sent toward the server.
    pub(super) up: bool,
    pub(super) client_port: u16,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// True if the segment has options of Multipath TCP.
    pub(super) mptcp: bool,
    /// Start of a SACK block.
    pub(super) sack: Option<u32>,
    pub(super) len: u32,
    pub(super) sum: u32,
    /// Sending time in microseconds.
    pub(super) at_us: u64,
}

impl Segment {
    pub(super) const fn is_syn(&self) -> bool {
        self.flags & SYN != 0
    }

    /// Returns true for segments after the handshake.
    pub(super) const fn is_rest(&self) -> bool {
        !self.is_syn()
    }

    fn header(&self) -> Vec<u8> {
        let mut header = vec![0; 20];
        header[4..8].copy_from_slice(&self.seq.to_be_bytes());
        header[8..12].copy_from_slice(&self.ack.to_be_bytes());
        header[13] = self.flags;
        if self.mptcp {
            header.extend_from_slice(&[30, 4, 0x20, 0]);
        }
        if let Some(edge) = self.sack {
            header.extend_from_slice(&[1, 1, 5, 10]);
            header.extend_from_slice(&edge.to_be_bytes());
            header.extend_from_slice(&(edge.wrapping_add(self.len)).to_be_bytes());
        }
        header[12] = (header.len() / 4 * 16) as u8;
        header
    }

    fn noted(&self, sent: bool, by_client: bool) -> TappedSegment {
        let client = SocketAddr::from(([10, 0, 0, 2], self.client_port));
        let server = SocketAddr::from(([10, 0, 0, 1], 7_000));
        let (local, remote) = if by_client { (client, server) } else { (server, client) };
        let payload_len = self.len as u16;
        let (at_us, payload_sum) = (self.at_us, self.sum);
        TappedSegment {
            at_us,
            sent,
            local,
            remote,
            header: self.header(),
            payload_len,
            payload_sum,
        }
    }
}

/// The middlebox between the ends: returns what each segment becomes, in order.
pub(super) type Middle<'a> = &'a mut dyn FnMut(&Segment) -> Vec<Segment>;

/// Segments recorded by both ends.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) client: Vec<TappedSegment>,
    pub(super) server: Vec<TappedSegment>,
}

/// State of the exchange.
pub(super) struct Talk<'a> {
    middle: Middle<'a>,
    notes: Notes,
    /// Number of bytes sent by each end.
    sent: [u32; 2],
    /// Offset of each end's sequence numbers at the other end.
    moved: [u32; 2],
    mptcp: bool,
    client_port: u16,
    at_us: u64,
}

impl<'a> Talk<'a> {
    pub(super) fn new(middle: Middle<'a>) -> Talk<'a> {
        let (notes, sent, moved) = (Notes::default(), [0; 2], [0; 2]);
        Talk { middle, notes, sent, moved, mptcp: true, client_port: 40_000, at_us: 0 }
    }

    /// Sets the offsets of a middlebox that shifts sequence numbers. Each end acknowledges the numbers it sees.
    pub(super) fn behind(mut self, moved: [u32; 2]) -> Self {
        self.moved = moved;
        self
    }

    /// Stops sending options of Multipath TCP.
    pub(super) fn without_options(mut self) -> Self {
        self.mptcp = false;
        self
    }

    /// Advances the time.
    pub(super) fn later_s(mut self, seconds: u64) -> Self {
        self.at_us += seconds * 1_000_000;
        self
    }

    fn pass(&mut self, segment: Segment) {
        self.at_us += 1_000;
        let by_client = segment.up;
        self.notes.of(by_client).push(segment.noted(true, by_client));
        for out in (self.middle)(&segment) {
            // Segments in the opposite direction were created by the middlebox.
            self.notes.of(!out.up).push(out.noted(false, !out.up));
        }
    }

    fn segment(&self, up: bool, len: u32) -> Segment {
        let from = usize::from(!up);
        let flags = ACK;
        let seq = ISN[from] + 1 + self.sent[from];
        let ack = ISN[1 - from] + self.moved[1 - from] + 1 + self.sent[1 - from];
        let (mptcp, client_port, at_us) = (self.mptcp, self.client_port, self.at_us);
        Segment {
            up,
            client_port,
            flags,
            seq,
            ack,
            mptcp,
            sack: None,
            len,
            sum: content(seq, len),
            at_us,
        }
    }

    /// Creates the client's SYN.
    pub(super) fn syn(mut self) -> Self {
        let segment = Segment { flags: SYN, seq: ISN[0], ack: 0, ..self.segment(true, 0) };
        self.pass(segment);
        self
    }

    /// Creates the server's SYN/ACK.
    pub(super) fn syn_ack(mut self) -> Self {
        let segment = Segment { flags: SYN | ACK, seq: ISN[1], ..self.segment(false, 0) };
        self.pass(segment);
        self
    }

    /// Creates the server's SYN/ACK, and the client's acknowledgment of it.
    pub(super) fn answer(self) -> Self {
        self.syn_ack().acknowledged(true)
    }

    /// Creates an acknowledgment of all received data.
    pub(super) fn acknowledged(mut self, up: bool) -> Self {
        let segment = self.segment(up, 0);
        self.pass(segment);
        self
    }

    /// Data that is not acknowledged.
    pub(super) fn data(mut self, up: bool) -> Self {
        self.send(up, MESSAGE_LEN);
        self
    }

    fn send(&mut self, up: bool, len: u32) {
        let segment = self.segment(up, len);
        self.pass(segment);
        self.sent[usize::from(!up)] += len;
    }

    fn acknowledge(&mut self, up: bool) {
        let segment = self.segment(up, 0);
        self.pass(segment);
    }

    /// Retransmits the same data this many times, seconds apart, without success.
    pub(super) fn in_vain(mut self, up: bool, times: u64) -> Self {
        for _ in 0..times {
            let segment = self.segment(up, MESSAGE_LEN);
            self.pass(segment);
            self = self.later_s(1);
        }
        self
    }

    /// Creates an acknowledgment with a SACK block.
    pub(super) fn with_sack(mut self, up: bool) -> Self {
        let segment = self.segment(up, 0);
        // A part of data that was already acknowledged: a duplicate.
        let segment = Segment { sack: Some(segment.ack - 500), ..segment };
        self.pass(segment);
        self
    }

    /// Messages of two segments in both directions.
    pub(super) fn messages(mut self) -> Self {
        for _ in 0..MESSAGES {
            for up in [true, false] {
                self.send(up, MESSAGE_LEN);
                self.send(up, MESSAGE_LEN);
                self.acknowledge(!up);
            }
            self.at_us += 80_000;
        }
        self
    }

    /// Creates a burst in both directions.
    pub(super) fn burst(mut self) -> Self {
        for _ in 0..BURST {
            for up in [true, false] {
                self.send(up, BURST_LEN);
                self.acknowledge(!up);
            }
        }
        self
    }

    /// Continues from another client port.
    pub(super) fn at_port(mut self, port: u16) -> Self {
        self.client_port = port;
        self
    }

    pub(super) fn whole(self) -> Notes {
        self.syn().answer().messages().burst().notes
    }

    pub(super) fn notes(self) -> Notes {
        self.notes
    }
}

impl Notes {
    fn of(&mut self, client: bool) -> &mut Vec<TappedSegment> {
        if client { &mut self.client } else { &mut self.server }
    }
}
