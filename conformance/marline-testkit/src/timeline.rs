//! Timeline scripts of plain TCP, segment by segment. Numbers count from the first byte of each side, and sent segments
//! are represented as text.
//!
//! ```text
//! 1:1001        bytes 1 to 1000            1:1001 P     with PSH
//! 4001 F        a FIN at 4001              R 1          a RST with sequence number 1
//! ack 6         a pure ACK                 ack 1 sack 1001:2001
//! S  S ack      a SYN, a SYN/ACK
//! ```

pub mod multipath;

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{ConnectionConfig, ConnectionId, FourTuple};
use marline_time::Instant;
use marline_wire::{SeqNum, TcpFlags};

use crate::{Script, Seg, SentSegment, endpoint_config, with_known_mtu};

/// The peer's first sequence number.
const PEER_ISS: SeqNum = SeqNum(0xffff_ff00);
/// Payload of a full segment, as announced by the peer.
pub const MSS: u16 = 1_000;

/// A connection of plain TCP between the endpoint and the test.
#[derive(Debug)]
pub struct Timeline {
    /// The endpoint and its clock.
    pub script: Script,
    /// The connection, once it exists.
    pub id: Option<ConnectionId>,
    path: FourTuple,
    irs: SeqNum,
    /// Position of the peer's next byte.
    next: u32,
    /// End of the endpoint's acknowledged data.
    acked: u32,
    /// The endpoint's timestamp in the last segment taken.
    pub stamp: u32,
    started: Instant,
}

/// The default configuration with plain TCP and no pacing, so that segments are sent as soon as permitted.
#[must_use]
pub fn plain() -> ConnectionConfig {
    ConnectionConfig { mptcp: false, pacing: false, timestamps: false, ..crate::config() }
}

impl Timeline {
    /// A listening endpoint without connections yet.
    #[must_use]
    pub fn listening(config: ConnectionConfig) -> Self {
        let script = Script::new(with_known_mtu(endpoint_config(Some(config))), 7);
        let path = FourTuple {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, 0, 0, 2], 40_000)),
        };
        let started = script.now();
        Timeline { script, id: None, path, irs: SeqNum(0), next: 0, acked: 0, stamp: 0, started }
    }

    /// An accepted connection with a round trip of `rtt_ms`.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[must_use]
    pub fn served(config: ConnectionConfig, sack: bool, rtt_ms: u64) -> Self {
        let mut line = Timeline::listening(config);
        let syn = Seg::syn().mss(MSS).window_scale(7);
        line.send(if sack { syn.sack_permitted() } else { syn });
        assert_eq!(line.sent(), ["S ack"]);
        line.wait(rtt_ms);
        line.ack(1);
        line.id = line.script.take_incoming();
        assert!(line.id.is_some(), "no connection was accepted");
        line
    }

    /// An endpoint that opens a connection. Its SYN has been sent but not answered.
    ///
    /// # Panics
    /// If no SYN is sent.
    #[must_use]
    pub fn calling(config: ConnectionConfig) -> Self {
        let mut line = Timeline::listening(config.clone());
        line.script = Script::new(with_known_mtu(endpoint_config(None)), 7);
        let (local, remote) = (SocketAddr::from(([10, 0, 0, 1], 80)), line.path.remote);
        line.id = Some(line.script.connect(config, local, remote));
        assert_eq!(line.sent(), ["S"]);
        line
    }

    /// The connection.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        match self.id {
            Some(id) => id,
            None => panic!("no connection yet"),
        }
    }

    /// Sends the peer's next segment.
    pub fn send(&mut self, seg: Seg) {
        let at = self.next;
        self.next += seg.len();
        self.send_at(at, seg);
    }

    /// Sends a segment from the peer at a position in its stream, regardless of earlier ones.
    pub fn send_at(&mut self, at: u32, seg: Seg) {
        let seg = seg.at(PEER_ISS.add(at));
        let first = seg.header.flags.contains(TcpFlags::SYN);
        let known = !first || seg.header.flags.contains(TcpFlags::ACK);
        let seg = if known { seg.acking(self.irs.add(self.acked)) } else { seg };
        self.script.inject(self.path, seg);
    }

    /// Answers the endpoint's SYN with `seg`, the peer's first segment.
    pub fn answer_syn(&mut self, seg: Seg) {
        self.acked = 1;
        self.send(seg);
    }

    /// Sends a pure ACK for all data before `to`.
    pub fn ack(&mut self, to: u32) {
        self.ack_sack(to, &[]);
    }

    /// Sends a pure ACK with SACK blocks.
    pub fn ack_sack(&mut self, to: u32, blocks: &[(u32, u32)]) {
        self.acked = to;
        let mut seg = Seg::ack();
        for (left, right) in blocks {
            seg = seg.sack(self.irs.add(*left), self.irs.add(*right));
        }
        self.send(seg);
    }

    /// Sends a pure ACK with this window field, unscaled.
    pub fn ack_window(&mut self, to: u32, window: u16) {
        self.ack_with(to, Seg::ack().window(window));
    }

    /// Sends this segment as an ACK for all data before `to`.
    pub fn ack_with(&mut self, to: u32, seg: Seg) {
        self.acked = to;
        self.send(seg);
    }

    /// Sends payload from the peer, with PSH.
    pub fn data(&mut self, bytes: &[u8]) {
        self.send(Seg::ack().flag(TcpFlags::PSH).payload(bytes));
    }

    /// Writes this many bytes as the application.
    ///
    /// # Panics
    /// If not all of them are accepted.
    pub fn write(&mut self, len: usize) {
        let id = self.id();
        let taken = self.script.run(|e, now| e.write(now, id, &vec![b'x'; len]));
        assert_eq!(taken, Ok(len));
    }

    /// Lets `ms` milliseconds pass.
    pub fn wait(&mut self, ms: u64) {
        self.script.advance(Duration::from_millis(ms));
    }

    /// Waits until the endpoint sends something on its own, at most `within_ms`. Returns the milliseconds waited.
    pub fn wait_for_send(&mut self, within_ms: u64) -> Option<u64> {
        let before = self.script.now();
        let sends = self.script.advance_to_send(Duration::from_millis(within_ms));
        sends.then(|| self.script.now().since(before).as_millis() as u64)
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.script.now().since(self.started).as_millis() as u64
    }

    /// Segments sent since the last call, as text.
    pub fn sent(&mut self) -> Vec<String> {
        let sent = self.script.take_sent();
        sent.iter().map(|sent| self.words(sent)).collect()
    }

    fn words(&mut self, sent: &SentSegment) -> String {
        let seg = &sent.seg;
        let flags = seg.header.flags;
        self.stamp = seg.options.timestamps.map_or(self.stamp, |timestamps| timestamps.value);
        if flags.contains(TcpFlags::SYN) {
            self.irs = seg.header.seq;
            return if flags.contains(TcpFlags::ACK) { "S ack" } else { "S" }.to_owned();
        }
        let at = seg.header.seq.offset_from(self.irs);
        if flags.contains(TcpFlags::RST) {
            return format!("R {at}");
        }
        let end = at + seg.payload.len() as u32;
        let mut words = match (seg.payload.is_empty(), flags.contains(TcpFlags::FIN)) {
            (true, false) => format!("ack {}", seg.header.ack.offset_from(PEER_ISS)),
            (true, true) => format!("{at} F"),
            (false, false) => format!("{at}:{end}"),
            (false, true) => format!("{at}:{end} F"),
        };
        if flags.contains(TcpFlags::PSH) {
            words.push_str(" P");
        }
        for block in seg.options.sack.as_slice() {
            let (left, right) = (block.left, block.right);
            let (left, right) = (left.offset_from(PEER_ISS), right.offset_from(PEER_ISS));
            words.push_str(&format!(" sack {left}:{right}"));
        }
        words
    }
}

/// Text of consecutive full segments without PSH, starting at `start`.
#[must_use]
pub fn full_segments(start: u32, count: u32) -> Vec<String> {
    let mss = u32::from(MSS);
    (0..count).map(|n| format!("{}:{}", start + n * mss, start + (n + 1) * mss)).collect()
}
