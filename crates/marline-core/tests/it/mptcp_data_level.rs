//! Tests of retransmission and flow control at the data level (RFC 8684 sections 3.3.4 to 3.3.6).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::two_hosts::{
    MiddleboxAction, Packet, TwoHosts, by_turns, bytes, closed, read, served, served_by,
    served_path, two_paths, write,
};
use marline_core::FourTuple;
use marline_policy::{
    AckSample, CongestionController, CongestionFactory, CongestionSignal, SubflowId, SubflowView,
};
use marline_testkit::{Peer, Script, Seg, Side, config, endpoint_config};
use marline_wire::mptcp::{MpCapable, MpCapableForm, MptcpOption};

/// A listening endpoint whose scheduler takes turns, and two subflows to it.
fn two_subflows() -> (Script, Peer, Peer) {
    let (mut script, mut first) = served(by_turns(config()), 7, 1);
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(Duration::from_millis(20));
    for sent in script.take_sent() {
        hear(&sent, &mut first, &mut second);
    }
    (script, first, second)
}

fn hear(sent: &marline_testkit::SentSegment, first: &mut Peer, second: &mut Peer) {
    let peer = if sent.path == first.path { first } else { second };
    peer.record_received(sent);
}

fn data_on(script: &mut Script, path: FourTuple) -> Vec<Seg> {
    let sent = script.take_sent().into_iter().filter(|s| s.path == path);
    sent.map(|s| s.seg).filter(|s| !s.payload.is_empty()).collect()
}

/// The subflow whose retransmission timer fired, and the bytes in flight of each in the group.
type Fired = (SubflowId, Vec<(SubflowId, u64)>);

/// A window of fixed size that records the group's state when a retransmission timer fires.
#[derive(Clone, Debug, Default)]
struct Watchful(Arc<Mutex<Vec<Fired>>>);

impl CongestionFactory for Watchful {
    fn name(&self) -> &str {
        "watchful"
    }

    fn build(&self, _: u32, _: u64, _: marline_time::Instant) -> Box<dyn CongestionController> {
        Box::new(self.clone())
    }
}

impl CongestionController for Watchful {
    fn on_ack(&mut self, _: &AckSample, _: SubflowId, _: &[SubflowView]) {}

    fn on_signal(
        &mut self,
        signal: CongestionSignal,
        _: marline_time::Instant,
        me: SubflowId,
        group: &[SubflowView],
    ) {
        if let CongestionSignal::Rto { .. } = signal {
            let seen = group.iter().map(|view| (view.id, view.bytes_in_flight)).collect();
            self.0.lock().expect("unpoisoned").push((me, seen));
        }
    }

    fn window(&self) -> u64 {
        20_000
    }

    fn ssthresh(&self) -> u64 {
        u64::MAX
    }

    fn on_mss_change(&mut self, _: u32) {}

    fn wants_group(&self) -> bool {
        true
    }
}

/// The first subflow received its last segment before there was a second: at its timeout it must see the current
/// group.
#[test]
fn a_coupled_controller_sees_its_siblings_as_they_are_when_a_timer_fires() {
    let watchful = Watchful::default();
    let mut accept = by_turns(config());
    accept.policies.congestion = Arc::new(watchful.clone());
    let (mut script, mut first) = served(accept, 7, 1);
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(Duration::from_millis(20));
    for sent in script.take_sent() {
        hear(&sent, &mut first, &mut second);
    }
    write(&mut script, &bytes(6_000, 1));
    let start = first.expected_dsn;
    let mut in_flight = [0; 2];
    for _ in 0..100 {
        script.advance(Duration::from_millis(50));
        for sent in script.take_sent() {
            in_flight[usize::from(sent.path == second.path)] += sent.seg.payload.len() as u64;
            hear(&sent, &mut first, &mut second);
        }
        if !watchful.0.lock().expect("unpoisoned").is_empty() {
            break;
        }
        second.send(&mut script, Seg::ack().data_ack(start));
    }
    let seen = watchful.0.lock().expect("unpoisoned")[0].clone();
    assert!(in_flight.iter().all(|bytes| *bytes > 0), "{in_flight:?}: both carry data");
    let (me, group) = seen;
    assert_eq!((me, group.len()), (SubflowId(0), 2), "{group:?}");
    assert!(group[0].1 > 0, "its lost data still counts as in flight: {group:?}");
    assert_eq!(group[1], (SubflowId(1), 0), "the second's peer has acknowledged all");
}

/// A middlebox on one path acknowledges data that it never delivers: the other path carries it.
#[test]
fn a_path_that_swallows_data() {
    let (mut script, mut first, mut second) = two_subflows();
    let start = first.expected_dsn;
    write(&mut script, &bytes(6_000, 1));
    let mut carried = [0; 2];
    for sent in script.take_sent() {
        carried[usize::from(sent.path == second.path)] += sent.seg.payload.len();
        hear(&sent, &mut first, &mut second);
    }
    assert!(carried[1] > 0, "{carried:?}: the second path carries some");
    // Both acknowledge at the TCP level; the DATA_ACK never passes the second one's data.
    let missing = first.expected_dsn;
    for peer in [&mut first, &mut second] {
        let seg = Seg::ack().data_ack(missing);
        peer.send(&mut script, seg);
    }
    script.take_sent();
    let mut repeated = Vec::new();
    for _ in 0..200 {
        script.advance(Duration::from_millis(50));
        for seg in data_on(&mut script, first.path) {
            let dsn = seg.dss().mapping.expect("a mapping").dsn;
            repeated.push(dsn.unwrap_near(start).expect("near"));
            first.expected = first.expected.add(seg.payload.len() as u32);
        }
        let seg = Seg::ack().data_ack(missing);
        first.send(&mut script, seg);
    }
    assert!(repeated.contains(&missing), "{repeated:?} lacks {missing}");
    let id = script.endpoint.connections()[0];
    assert!(script.endpoint.info(id).is_some() && closed(&mut script).is_none());
}

/// End to end: one path passes handshakes and ACKs and loses all data.
#[test]
fn bytes_arrive_although_one_path_loses_all_data() {
    let lose = |p: &mut Packet<'_>| {
        let loses = p.path == 1 && p.to == Side::B && !p.seg.payload.is_empty();
        if loses { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
    };
    let mut hosts = TwoHosts::new(two_paths(by_turns(config())), config(), lose, 1);
    hosts.exchange_and_close(Side::A, &bytes(1_000_000, 1), &bytes(1_000_000, 2));
}

/// A peer without window scaling that never offers more than this.
const WINDOW: u16 = 6_400;

/// The receive window belongs to the connection and counts from the DATA_ACK: both subflows together stay within
/// it (RFC 8684 section 3.3.5).
#[test]
fn the_window_is_shared() {
    let syn = Seg::syn().mss(1_400).window(WINDOW);
    let (mut script, mut first) = served_by(endpoint_config(Some(by_turns(config()))), syn);
    let una = first.expected_dsn;
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(Duration::from_millis(20));
    let mut edge = una + u64::from(WINDOW);
    let mut highest = una;
    write(&mut script, &bytes(100_000, 1));
    for round in 0..60 {
        script.advance(Duration::from_millis(10));
        for s in script.take_sent() {
            let Some(mapping) = s.seg.dss().mapping else { continue };
            let dsn = mapping.dsn.unwrap_near(una).expect("near");
            highest = highest.max(dsn + u64::from(mapping.length));
            hear(&s, &mut first, &mut second);
        }
        assert!(highest <= edge, "{} bytes beyond the window", highest - edge);
        assert!(highest + 1_400 > edge, "{} bytes of the window are unused", edge - highest);
        // TCP acknowledges everything on both subflows, the connection only every fourth time, on the second one:
        // the window follows the DATA_ACK, whichever subflow carries it.
        let data_ack = if round % 4 == 3 { highest } else { edge - u64::from(WINDOW) };
        edge = data_ack + u64::from(WINDOW);
        first.send(&mut script, Seg::ack().data_ack(una).window(WINDOW));
        // The joined subflow scales by 7.
        second.send(&mut script, Seg::ack().data_ack(data_ack).window(WINDOW >> 7));
    }
    assert!(highest > una + 80_000, "{}", highest - una);
}

/// Data received on both subflows counts once.
#[test]
fn the_same_data_on_both_subflows() {
    let (mut script, mut first, mut second) = two_subflows();
    second.next_dsn = first.next_dsn;
    first.send_data(&mut script, b"once and ");
    second.send_data(&mut script, b"once and ");
    second.send_data(&mut script, b"for all");
    assert_eq!(read(&mut script), b"once and for all");
}

/// A retransmitted segment is old for its subflow and does not change its window. Its DATA_ACK may be new, and
/// then belongs with the window of the same segment (RFC 8684 section 3.3.1) instead of the subflow's.
#[test]
fn a_data_ack_goes_with_the_window_of_its_own_segment() {
    let syn = Seg::syn().mss(1_400).window(WINDOW);
    let (mut script, mut peer) = served_by(endpoint_config(Some(config())), syn);
    let una = peer.expected_dsn;
    let edge = una + u64::from(WINDOW);
    let highest = |script: &mut Script| {
        let end = |sent: &marline_testkit::SentSegment| {
            let mapping = sent.seg.dss().mapping?;
            Some(mapping.dsn.unwrap_near(una).expect("near") + u64::from(mapping.length))
        };
        script.take_sent().iter().filter_map(end).max()
    };
    write(&mut script, &bytes(100_000, 1));
    script.advance(Duration::from_millis(20));
    assert!(highest(&mut script).is_some_and(|end| end <= edge && end + 1_400 > edge));
    // The first of two segments is late. By then the peer has 3,000 bytes from another subflow.
    let late = peer.mapped(b"first").data_ack(una + 3_000).window(WINDOW - 3_000);
    let late = peer.stamp(late);
    (peer.next, peer.next_dsn) = (peer.next.add(5), peer.next_dsn + 5);
    let second = peer.mapped(b"second").window(WINDOW);
    peer.send(&mut script, second);
    peer.inject(&mut script, late);
    script.advance(Duration::from_millis(20));
    assert!(highest(&mut script) <= Some(edge), "beyond the window");
    // A larger offer of the peer is accepted.
    let more = Seg::ack().data_ack(una + 3_000).window(WINDOW);
    peer.send(&mut script, more);
    script.advance(Duration::from_millis(20));
    assert!(highest(&mut script).is_some_and(|end| end > edge && end <= edge + 3_000));
}

/// The third ACK comes again, late. A peer that sends the keys has no data from us yet, so its window counts from
/// the first byte instead of the last DATA_ACK.
#[test]
fn a_late_third_ack_opens_no_window() {
    let syn = Seg::syn().mss(1_400).window(WINDOW);
    let (mut script, mut peer) = served_by(endpoint_config(Some(config())), syn);
    let una = peer.expected_dsn;
    let edge = una + u64::from(WINDOW);
    let highest = |sent: &[marline_testkit::SentSegment]| {
        let end = |sent: &marline_testkit::SentSegment| {
            let mapping = sent.seg.dss().mapping?;
            Some(mapping.dsn.unwrap_near(una).expect("near") + u64::from(mapping.length))
        };
        sent.iter().filter_map(end).max()
    };
    let (initiator_key, listener_key) = (peer.key, peer.their_key);
    let third = MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Ack { initiator_key, listener_key, data: None },
    });
    let late = peer.stamp(Seg::ack().mptcp(third).window(WINDOW));
    write(&mut script, &bytes(100_000, 1));
    script.advance(Duration::from_millis(20));
    let sent = peer.receive_all(&mut script);
    assert!(highest(&sent).is_some_and(|end| end <= edge && end + 1_400 > edge));
    // The peer has 4,200 bytes, which its application does not read.
    let some = Seg::ack().data_ack(una + 4_200).window(WINDOW - 4_200);
    peer.send(&mut script, some);
    peer.inject(&mut script, late);
    script.advance(Duration::from_millis(20));
    assert!(highest(&peer.receive_all(&mut script)) <= Some(edge), "beyond the window");
    let read = Seg::ack().data_ack(una + 4_200).window(WINDOW);
    peer.send(&mut script, read);
    script.advance(Duration::from_millis(20));
    assert!(highest(&peer.receive_all(&mut script)).is_some_and(|end| end > edge));
}
