//! Tests of the memory that a peer can make a sender hold by acknowledging data at the data level but not on the
//! subflows that carried it: such data is kept, because a subflow must be able to retransmit it.

use std::time::Duration;

use marline_core::{ConnectionConfig, ConnectionId, ConnectionInfo, WriteError};
use marline_testkit::{Peer, Script, Seg, config, keys};
use marline_wire::SeqNum;

use crate::two_hosts::{by_turns, reset_reason, served, served_path};

const ROUND: Duration = Duration::from_millis(10);
const SEND_BUFFER: u64 = 1 << 20;
/// Memory limit of a connection's sending side: the send buffer, the same amount again for acknowledged data that
/// is still kept, and a chunk at each edge.
const MOST_HELD: u64 = 2 * SEND_BUFFER + 3 * 16_384;
/// Bytes of bookkeeping: for kept segments, and for loss recovery.
const MOST_BOOKKEEPING: u64 = 2 << 20;

fn sending() -> ConnectionConfig {
    ConnectionConfig { send_buffer: SEND_BUFFER, ..by_turns(config()) }
}

/// The peer's end of a subflow whose acknowledgments it withholds.
struct Withheld {
    peer: Peer,
    /// Number that it acknowledges.
    acked: SeqNum,
    /// End of the first segment that it does not acknowledge.
    sacked_from: Option<SeqNum>,
}

/// Maximum memory of a connection.
#[derive(Debug, Default)]
struct Held {
    buffered: u64,
    bookkeeping: u64,
    /// Data that the peer acknowledged meanwhile.
    acked: u64,
}

impl Withheld {
    fn new(peer: Peer) -> Self {
        Withheld { acked: peer.expected, peer, sacked_from: None }
    }

    fn hear_all(&mut self, sent: &[marline_testkit::SentSegment]) {
        let path = self.peer.path;
        for sent in sent.iter().filter(|sent| sent.path == path) {
            let seg = &sent.seg;
            let first = seg.header.seq == self.acked && !seg.payload.is_empty();
            if first && self.sacked_from.is_none() {
                self.sacked_from = Some(seg.end());
            }
            self.peer.record_received(sent);
        }
    }

    /// A SACK of all segments but the first, and a DATA_ACK up to `data_ack`.
    fn withhold(&mut self, script: &mut Script, data_ack: u64) {
        let mut seg = self.peer.stamp(Seg::ack().data_ack(data_ack)).acking(self.acked);
        if let Some(from) = self.sacked_from.filter(|from| *from != self.peer.expected) {
            seg = seg.sack(from, self.peer.expected);
        }
        self.peer.inject(script, seg);
    }

    /// Acknowledges at both levels, as an honest peer does.
    fn acknowledge(&mut self, script: &mut Script, data_ack: u64) {
        (self.acked, self.sacked_from) = (self.peer.expected, None);
        self.withhold(script, data_ack);
    }

    /// Acknowledges one more byte, so that no retransmission timer gives up the subflow.
    fn drip(&mut self) {
        let left = self.sacked_from.map_or(0, |from| from.offset_from(self.acked));
        if left > 1 {
            self.acked = self.acked.add(1);
        }
    }
}

fn info(script: &Script) -> Option<ConnectionInfo> {
    script.endpoint.info(script.endpoint.connections().first().copied()?)
}

fn id(script: &Script) -> ConnectionId {
    script.endpoint.connections()[0]
}

/// The application writes as much as there is room for; returns the bytes written.
fn fill(script: &mut Script) -> u64 {
    let id = id(script);
    let bytes = [7; 65_536];
    let mut written = 0;
    while let Ok(n) = script.run(|e, now| e.write(now, id, &bytes)) {
        written += n as u64;
    }
    written
}

/// End of all sent data as a DATA_ACK of the peer.
fn all_data(script: &Script, peer: &Peer) -> u64 {
    let info = info(script).expect("a connection");
    keys::idsn(peer.their_key).wrapping_add(1) + info.bytes_written - info.unsent
}

/// Rounds in which the application writes and each subflow's peer answers; `honest` ones also acknowledge on their
/// subflow. Every tenth round the others acknowledge a byte if `drips`.
fn rounds(
    script: &mut Script,
    subflows: &mut [Withheld],
    count: u32,
    honest: &[bool],
    drips: bool,
) -> Held {
    let mut held = Held::default();
    let before = info(script).expect("a connection").bytes_acked;
    for round in 0..count {
        fill(script);
        let sent = script.take_sent();
        subflows.iter_mut().for_each(|subflow| subflow.hear_all(&sent));
        script.advance(ROUND);
        let data_ack = all_data(script, &subflows[0].peer);
        for (subflow, honest) in subflows.iter_mut().zip(honest) {
            match honest {
                true => subflow.acknowledge(script, data_ack),
                false => {
                    if drips && round % 10 == 9 {
                        subflow.drip();
                    }
                    subflow.withhold(script, data_ack);
                }
            }
        }
        let Some(info) = info(script) else { break };
        held.buffered = held.buffered.max(info.buffered);
        held.bookkeeping = held.bookkeeping.max(info.bookkeeping);
        held.acked = info.bytes_acked - before;
    }
    held
}

fn assert_bounded(held: &Held) {
    assert!(held.buffered <= MOST_HELD, "{held:?}");
    assert!(held.bookkeeping <= MOST_BOOKKEEPING, "{held:?}");
}

#[test]
fn a_peer_that_withholds_the_acks_of_the_only_subflow_pins_one_send_buffer() {
    for drips in [false, true] {
        let (mut script, peer) = served(sending(), 7, 1);
        let mut subflows = [Withheld::new(peer)];
        rounds(&mut script, &mut subflows, 30, &[true], false);
        let held = rounds(&mut script, &mut subflows, 200, &[false], drips);
        assert_bounded(&held);
        if !drips {
            continue;
        }
        // It withheld them long enough to be given up, unless it sent ACKs. Once it acknowledges, the stream
        // continues.
        let id = id(&script);
        let refused = script.run(|e, now| e.write(now, id, b"more"));
        assert_eq!(refused, Err(WriteError::Blocked));
        let _ = script.take_events();
        rounds(&mut script, &mut subflows, 1, &[true], false);
        let held = rounds(&mut script, &mut subflows, 30, &[true], false);
        assert!(held.acked > SEND_BUFFER, "{held:?}: the connection continues");
        assert_bounded(&held);
    }
}

/// A connection and the peer's end of its first subflow.
fn first_subflow() -> (Script, Withheld) {
    let (script, peer) = served(sending(), 7, 1);
    (script, Withheld::new(peer))
}

/// Two subflows, both of which were honest until their windows had grown.
fn two_subflows() -> (Script, [Withheld; 2]) {
    let (mut script, mut first) = first_subflow();
    let second = join(&mut script, &mut first, 1);
    let mut subflows = [first, second];
    rounds(&mut script, &mut subflows, 30, &[true, true], false);
    (script, subflows)
}

/// Joins on another path; the data sent before is received.
fn join(script: &mut Script, first: &mut Withheld, n: u8) -> Withheld {
    first.hear_all(&script.take_sent());
    let mut peer = Peer::new(served_path(n), 0);
    peer.join(script, &first.peer, n + 1);
    script.advance(ROUND);
    let sent = script.take_sent();
    first.hear_all(&sent);
    let mut joined = Withheld::new(peer);
    joined.hear_all(&sent);
    joined.acked = joined.peer.expected;
    let data_ack = all_data(script, &first.peer);
    first.acknowledge(script, data_ack);
    joined
}

#[test]
fn a_subflow_that_keeps_too_much_is_reset_and_the_other_continues() {
    for drips in [false, true] {
        let (mut script, mut subflows) = two_subflows();
        let held = rounds(&mut script, &mut subflows, 400, &[true, false], drips);
        assert_bounded(&held);
        assert!(held.acked > 20 * SEND_BUFFER, "{held:?}: the first subflow continues");
        let info = info(&script).expect("a connection");
        assert_eq!(info.subflows.len(), 1, "{:?}", info.subflows);
        // The kept data is released.
        let held = rounds(&mut script, &mut subflows, 1, &[true, false], false);
        assert!(held.buffered <= SEND_BUFFER + 2 * 16_384, "{held:?}");
    }
}

#[test]
fn the_reset_of_a_subflow_that_keeps_too_much_says_so() {
    const TOO_MUCH_OUTSTANDING_DATA: u8 = 4;
    let (mut script, [mut first, mut second]) = two_subflows();
    let mut reasons = Vec::new();
    for round in 0..400 {
        fill(&mut script);
        let sent = script.take_sent();
        let on_second = sent.iter().filter(|sent| sent.path == second.peer.path);
        reasons.extend(on_second.filter_map(|sent| reset_reason(&sent.seg)));
        first.hear_all(&sent);
        second.hear_all(&sent);
        script.advance(ROUND);
        let data_ack = all_data(&script, &first.peer);
        first.acknowledge(&mut script, data_ack);
        if round % 10 == 9 {
            second.drip();
        }
        second.withhold(&mut script, data_ack);
    }
    assert_eq!(reasons, [TOO_MUCH_OUTSTANDING_DATA]);
}

#[test]
fn subflows_that_close_with_their_acks_withheld_pin_no_more_together() {
    let (mut script, first) = first_subflow();
    let mut subflows = vec![first];
    for n in 1..7 {
        let [first, ..] = &mut subflows[..] else { panic!("the first subflow exists") };
        let joined = join(&mut script, first, n);
        subflows.push(joined);
        let honest: Vec<bool> = (0..=n).map(|number| number == 0 || number == n).collect();
        assert_bounded(&rounds(&mut script, &mut subflows, 10, &honest, true));
        let honest: Vec<bool> = (0..=n).map(|number| number == 0).collect();
        assert_bounded(&rounds(&mut script, &mut subflows, 10, &honest, true));
        if let Some(last) = subflows.last_mut() {
            let fin = last.peer.stamp(Seg::fin()).acking(last.acked);
            last.peer.inject(&mut script, fin);
            last.peer.next = last.peer.next.add(1);
        }
    }
    let honest: Vec<bool> = (0..7).map(|number| number == 0).collect();
    let held = rounds(&mut script, &mut subflows, 200, &honest, true);
    assert_bounded(&held);
    assert!(held.acked > 10 * SEND_BUFFER, "{held:?}: the first subflow continues");
}

/// Each write is a segment, and every few rounds one more byte is acknowledged at the data level.
#[test]
fn bytes_sent_one_by_one_are_bounded_in_number_while_their_data_ack_is_withheld() {
    let config = ConnectionConfig { send_buffer: 128 << 10, ..sending() };
    let (mut script, mut peer) = served(config, 7, 1);
    let (id, mut data_ack) = (id(&script), peer.expected_dsn);
    let mut most = 0;
    for round in 0..2_000 {
        for _ in 0..16 {
            let _ = script.run(|e, now| e.write(now, id, b"x"));
        }
        for sent in script.take_sent() {
            peer.record_received(&sent);
        }
        script.advance(ROUND);
        data_ack += u64::from(round % 10 == 9);
        peer.send(&mut script, Seg::ack().data_ack(data_ack));
        most = most.max(info(&script).expect("a connection").bookkeeping);
    }
    assert!(most < 256 << 10, "{most} bytes of lists");
    // After an acknowledgment the stream continues.
    for _ in 0..100 {
        for sent in script.take_sent() {
            peer.record_received(&sent);
        }
        script.advance(ROUND);
        let data_ack = all_data(&script, &peer);
        peer.send(&mut script, Seg::ack().data_ack(data_ack));
    }
    let info = info(&script).expect("a connection");
    assert_eq!((info.bytes_acked, info.unsent), (info.bytes_written, 0));
}
