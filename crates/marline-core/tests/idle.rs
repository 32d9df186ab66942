//! MP_IDLE and the exchange of the retransmission timeout: what a server marks and answers, and what a
//! client makes of it (docs/spec/experimental.md).

mod two_hosts;

use std::time::Duration;

use marline_core::{ConnectionConfig, Event, Extensions, FourTuple, MonitorKind, ReceiveTimer};
use marline_policy::SilenceCause;
use marline_testkit::{Peer, Script, Seg, Sent, config, endpoint_config};
use marline_wire::mptcp::{DataAck, ExperimentalMessage, MpExperimental, MptcpOption, WireDsn};
use two_hosts::{bytes, served, served_by, served_path, two_paths, with_checksums, write};

const BOTH: Extensions = Extensions::IDLE.with(Extensions::RTO);
/// Payload of a full segment between these peers: 1,400 bytes, timestamps and a DSS of 20 off.
const FULL: usize = 1_400 - 12 - 20;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn option(message: ExperimentalMessage) -> MptcpOption {
    MptcpOption::Experimental(message.option())
}

fn messages(seg: &Seg) -> Vec<ExperimentalMessage> {
    let message = |option| match option {
        MptcpOption::Experimental(option) => ExperimentalMessage::parse(&option),
        _ => None,
    };
    seg.options.mptcp.iter().filter_map(message).collect()
}

fn is_marked(seg: &Seg) -> bool {
    messages(seg).contains(&ExperimentalMessage::Idle)
}

fn data_of(sent: &[Sent]) -> Vec<Seg> {
    sent.iter().map(|s| s.seg.clone()).filter(|seg| !seg.payload.is_empty()).collect()
}

// --- The server marks.

/// A server and a scripted client that agreed on these.
fn server_with(config: ConnectionConfig, extensions: Extensions) -> (Script, Peer) {
    let (mut script, mut peer) = served(config, 7, 1);
    let hello = option(ExperimentalMessage::Hello(extensions));
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
    peer.send(&mut script, seg);
    script.advance(ms(50));
    let answered = peer.hear_all(&mut script);
    let answer = ExperimentalMessage::Hello(extensions);
    assert!(answered.iter().any(|s| messages(&s.seg).contains(&answer)), "{answered:#?}");
    (script, peer)
}

#[test]
fn the_last_segment_of_what_was_written_is_marked_and_no_other() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    for len in [1, 100, FULL - 4, 5_000, 9_999] {
        write(&mut script, &bytes(len, 1));
        let sent = data_of(&peer.hear_all(&mut script));
        let marks: Vec<bool> = sent.iter().map(is_marked).collect();
        let (last, before) = marks.split_last().expect("segments");
        assert!(*last && !before.contains(&true), "{len} bytes: {marks:?}");
        assert!(sent.last().is_some_and(|seg| seg.dss().mapping.is_some()));
        peer.acknowledge(&mut script);
        script.advance(ms(20));
    }
    assert_eq!(script.endpoint.counters().mp_idle_tx, 5);
}

#[test]
fn nothing_is_marked_that_was_not_agreed_on() {
    let (mut stranger, mut peer) = served(config(), 7, 1);
    write(&mut stranger, b"before any HELLO");
    assert!(!data_of(&peer.hear_all(&mut stranger)).iter().any(is_marked));
    let (mut script, mut peer) = server_with(config(), Extensions::RTO);
    write(&mut script, b"not this one");
    assert!(!data_of(&peer.hear_all(&mut script)).iter().any(is_marked));
}

/// The mark takes four bytes. A burst that would fill its last segment goes on in one more: no segment
/// is longer than others of its batch, no byte is lost, and the mark is always there.
#[test]
fn every_length_ends_in_one_mark() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    for len in (FULL * 2 - 12)..(FULL * 2 + 12) {
        let written = bytes(len, 3);
        write(&mut script, &written);
        let sent = data_of(&peer.hear_all(&mut script));
        let got: Vec<u8> = sent.iter().flat_map(|seg| seg.payload.clone()).collect();
        assert!(got == written, "{len} bytes");
        let marks: Vec<bool> = sent.iter().map(is_marked).collect();
        assert_eq!(marks.iter().filter(|marked| **marked).count(), 1, "{len} bytes: {marks:?}");
        assert!(marks.ends_with(&[true]), "{len} bytes: {marks:?}");
        let size = |seg: &Seg| seg.bytes(None).len();
        let largest = sent.iter().map(size).max().expect("segments");
        assert!(largest <= 1_400 + 20, "{largest}");
        peer.acknowledge(&mut script);
        script.advance(ms(20));
    }
}

#[test]
fn what_is_repeated_is_marked_as_long_as_it_is_the_last() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    write(&mut script, b"the end for now");
    let first = data_of(&peer.hear_all(&mut script));
    assert!(first.len() == 1 && is_marked(&first[0]));
    // The probe repeats it: still the last.
    assert!(script.advance_to_send(ms(400)));
    let repeats = data_of(&script.take_sent());
    assert!(!repeats.is_empty() && repeats.iter().all(is_marked), "{repeats:#?}");
    // More is written; what was the last is so no longer.
    write(&mut script, b"but not for ever");
    script.advance(ms(3_000));
    let old = |seg: &&Seg| seg.payload == b"the end for now";
    let later = data_of(&script.take_sent());
    let (again, new): (Vec<&Seg>, Vec<&Seg>) = later.iter().partition(old);
    assert!(!again.is_empty() && !again.iter().any(|seg| is_marked(seg)), "{later:#?}");
    assert!(new.first().is_some_and(|seg| is_marked(seg)), "{later:#?}");
}

/// A box may drop every segment with an option that it does not know.
#[test]
fn a_box_that_drops_marks_does_not_keep_the_bytes() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    write(&mut script, b"the end for now");
    script.advance(ms(3_000));
    let sent = data_of(&script.take_sent());
    let marks: Vec<bool> = sent.iter().map(is_marked).collect();
    // First, the probe, and the timeout's repeat. What the data-level timer sends anew is marked anew.
    assert!(marks.len() > 3 && marks[..3] == [true, true, false], "{marks:?}");
    peer.expected = peer.expected.add(15);
    peer.expected_dsn = peer.expected_dsn.wrapping_add(15);
    peer.acknowledge(&mut script);
    write(&mut script, b"and then");
    assert!(data_of(&peer.hear_all(&mut script)).iter().all(is_marked));
}

#[test]
fn copies_and_reinjections_are_marked_alike() {
    let registry = marline_algos::Registry::default();
    let mut twice = config();
    twice.policies.scheduler = registry.scheduler("redundant").expect("a scheduler");
    let (mut script, mut first) = server_with(twice, BOTH);
    let mut second = Peer::new(served_path(1), 0);
    second.join(&mut script, &first, 2);
    script.advance(ms(20));
    first.hear_all(&mut script);
    write(&mut script, b"on both");
    let sent = script.take_sent();
    for path in [first.path, second.path] {
        let copies: Vec<Sent> = sent.iter().filter(|s| s.path == path).cloned().collect();
        let copies = data_of(&copies);
        assert!(copies.len() == 1 && is_marked(&copies[0]), "{path:?}: {copies:#?}");
    }
}

/// What waits for the peer's window is not sent yet: the last segment of the window is no last one.
#[test]
fn the_end_of_the_window_is_not_the_end() {
    let syn = Seg::syn().mss(1_400).window(6_400);
    let (mut script, mut peer) = served_by(endpoint_config(Some(config())), syn);
    let hello = option(ExperimentalMessage::Hello(BOTH));
    let seg = Seg::ack().data_ack(peer.expected_dsn).window(6_400).mptcp(hello);
    peer.send(&mut script, seg);
    script.advance(ms(50));
    peer.hear_all(&mut script);
    write(&mut script, &bytes(8_000, 1));
    let sent = data_of(&peer.hear_all(&mut script));
    let passed: usize = sent.iter().map(|seg| seg.payload.len()).sum();
    assert!(passed > 0 && passed <= 6_400, "{passed}");
    assert!(!sent.iter().any(is_marked), "{sent:#?}");
}

#[test]
fn the_mark_stands_beside_checksums() {
    let (mut script, mut peer) = {
        let (mut script, mut peer) = served(with_checksums(), 7, 1);
        let hello = option(ExperimentalMessage::Hello(BOTH));
        let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
        peer.send(&mut script, seg);
        script.advance(ms(50));
        peer.hear_all(&mut script);
        (script, peer)
    };
    write(&mut script, &bytes(3_000, 1));
    let sent = data_of(&peer.hear_all(&mut script));
    let last = sent.last().expect("segments");
    assert!(is_marked(last) && last.dss().mapping.is_some_and(|m| m.checksum.is_some()));
    assert!(last.options.timestamps.is_some());
}

#[test]
fn the_mark_stands_beside_long_data_acks() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    // A 64-bit DSN from the peer makes our DATA_ACKs 64 bits long.
    peer.send_data(&mut script, b"long numbers");
    script.advance(ms(50));
    peer.hear_all(&mut script);
    write(&mut script, b"room enough");
    let sent = data_of(&peer.hear_all(&mut script));
    assert!(matches!(sent[0].dss().data_ack, Some(DataAck::Long(_))));
    assert!(is_marked(&sent[0]));
}

/// 64-bit numbers both ways and timestamps use up the 40 bytes: then there is no mark, and no segment that
/// cannot be.
#[test]
fn options_that_are_full_have_no_mark() {
    let mut listener = endpoint_config(Some(config()));
    (listener.capabilities.base_segment, listener.capabilities.max_segment) = (60_000, 60_000);
    let syn = Seg::syn().mss(59_900).sack_permitted().window_scale(10).timestamps(1, 0);
    let (mut script, mut peer) = served_by(listener, syn);
    peer.timestamps = Some((2, 0));
    let id = script.endpoint.connections()[0];
    let hello = option(ExperimentalMessage::Hello(BOTH));
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
    peer.send(&mut script, seg);
    let chunk = vec![7; 1 << 20];
    let is_long = |sent: &Sent| {
        sent.seg.dss().mapping.is_some_and(|mapping| matches!(mapping.dsn, WireDsn::Long(_)))
    };
    // Whoever sends more than 2^31 bytes in two minutes goes to 64-bit numbers.
    let mut rounds = 0;
    while rounds < 20_000
        && !script.take_sent().iter().any(|sent| {
            peer.hear(sent);
            is_long(sent)
        })
    {
        rounds += 1;
        while script.run(|e, now| e.write(now, id, &chunk)).is_ok() {}
        peer.acknowledge(&mut script);
        script.advance(ms(5));
    }
    // The rest of what was written.
    for _ in 0..200 {
        peer.acknowledge(&mut script);
        script.advance(ms(5));
        peer.hear_all(&mut script);
    }
    for long_ack in [false, true] {
        if long_ack {
            peer.send_data(&mut script, b"long numbers");
            script.advance(ms(50));
            peer.hear_all(&mut script);
        }
        write(&mut script, b"the last");
        let sent = peer.hear_all(&mut script);
        let last = sent.last().expect("a segment");
        assert!(is_long(last) && last.seg.payload == b"the last", "{last:?}");
        assert_eq!(is_marked(&last.seg), !long_ack, "{:?}", last.seg.options);
        peer.acknowledge(&mut script);
    }
}

#[test]
fn a_client_marks_nothing() {
    let (mut script, mut peer) = client(BOTH);
    write(&mut script, b"a request");
    assert!(!data_of(&peer.hear_all(&mut script)).iter().any(is_marked));
    assert_eq!(script.endpoint.counters().mp_idle_tx, 0);
}

// --- The server tells its timeout.

fn ask(script: &mut Script, peer: &mut Peer) -> Vec<u32> {
    let seg = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, seg.mptcp(option(ExperimentalMessage::RtoRequest)));
    let told = |message: ExperimentalMessage| match message {
        ExperimentalMessage::RtoInfo { rto_us } => Some(rto_us),
        _ => None,
    };
    let sent = peer.hear_all(script);
    sent.iter().flat_map(|s| messages(&s.seg)).filter_map(told).collect()
}

#[test]
fn a_question_is_answered_with_the_timeout() {
    let (mut script, mut peer) = server_with(config(), BOTH);
    let told = ask(&mut script, &mut peer);
    // A handshake of 10 ms: 200 ms and the round trip.
    assert!(told.len() == 1 && (205_000..225_000).contains(&told[0]), "{told:?}");
    // A flood is answered ten times a second.
    let mut answers = 0;
    for _ in 0..1_000 {
        script.advance(ms(1));
        answers += ask(&mut script, &mut peer).len();
    }
    assert!((9..=11).contains(&answers), "{answers}");
}

#[test]
fn a_question_that_was_not_agreed_on_is_not_answered() {
    let (mut script, mut peer) = server_with(config(), Extensions::IDLE);
    assert_eq!(ask(&mut script, &mut peer), []);
}

// --- The client waits.

/// A client with a second address that it leaves alone, and a scripted server that agreed on these.
fn client(extensions: Extensions) -> (Script, Peer) {
    let (mut script, mut peer) = asking_client();
    agree(&mut script, &mut peer, extensions);
    (script, peer)
}

/// A client with a second address that it leaves alone, whose HELLO the scripted server has heard.
fn asking_client() -> (Script, Peer) {
    let registry = marline_algos::Registry::default();
    let mut config = two_paths(config());
    config.policies.path_manager = registry.path_manager("manual").expect("a path manager");
    config.receive_timer = Some(ReceiveTimer::multimob());
    config.extensions = BOTH;
    let mut endpoint = endpoint_config(None);
    endpoint.monitor = true;
    let mut script = Script::new(endpoint, 1);
    let path = FourTuple {
        local: "10.0.0.1:0".parse().expect("an address"),
        remote: "10.9.0.1:443".parse().expect("an address"),
    };
    script.connect(config, path.local, path.remote);
    let mut peer = Peer::new(path, 7);
    peer.accept(&mut script);
    peer.acknowledge(&mut script);
    let sent = peer.hear_all(&mut script);
    let hello = ExperimentalMessage::Hello(BOTH);
    assert!(sent.iter().any(|s| messages(&s.seg).contains(&hello)), "{sent:#?}");
    (script, peer)
}

fn agree(script: &mut Script, peer: &mut Peer, extensions: Extensions) {
    let answer = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, answer.mptcp(option(ExperimentalMessage::Hello(extensions))));
    script.advance(ms(10));
    peer.hear_all(script);
    script.take_events();
}

/// Data with a mapping of 32-bit numbers, which leave room for a mark beside timestamps.
fn mapped(peer: &Peer, payload: &[u8]) -> Seg {
    let mut seg = peer.mapped(payload);
    let dss = seg.options.dss.as_mut().expect("a DSS");
    dss.data_ack = Some(DataAck::Short(peer.expected_dsn as u32));
    let mapping = dss.mapping.as_mut().expect("a mapping");
    mapping.dsn = WireDsn::Short(peer.next_dsn as u32);
    seg
}

fn send(script: &mut Script, peer: &mut Peer, payload: &[u8], marked: bool) {
    let mut seg = mapped(peer, payload);
    if marked {
        seg = seg.mptcp(option(ExperimentalMessage::Idle));
    }
    peer.next_dsn = peer.next_dsn.wrapping_add(payload.len() as u64);
    peer.send(script, seg);
}

fn tell(script: &mut Script, peer: &mut Peer, rto_us: u32) {
    let seg = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, seg.mptcp(option(ExperimentalMessage::RtoInfo { rto_us })));
}

/// Milliseconds from now until the receive timer judges, within a minute.
fn judged_after(script: &mut Script) -> Option<u64> {
    let start = script.now();
    script.advance(ms(60_000));
    let mut silent = script.take_events().into_iter().filter_map(|event| match event {
        Event::Monitor(event) => match event.kind {
            MonitorKind::SubflowSilent { cause, .. } => Some((event.at, cause)),
            _ => None,
        },
        _ => None,
    });
    let first = silent.next();
    assert_eq!(silent.next(), None, "one silence, one verdict");
    let (at, cause) = first?;
    assert_eq!(cause, SilenceCause::ReceiveTimer);
    Some(at.since(start).as_millis() as u64)
}

#[test]
fn data_without_the_mark_starts_the_timer() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500), "no timeout was told");
    let counters = script.endpoint.counters();
    assert_eq!((counters.receive_timer_expired, counters.receive_timer_probes), (1, 0));
}

#[test]
fn the_mark_stops_it() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    script.advance(ms(100));
    send(&mut script, &mut peer, b"that was it", true);
    assert_eq!(judged_after(&mut script), None);
    assert_eq!(script.endpoint.counters().mp_idle_rx, 1);
    // Idle, then more.
    send(&mut script, &mut peer, b"there is more", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// What a server sent before it agreed has no mark, whatever it is the end of.
#[test]
fn what_came_before_the_agreement_starts_nothing() {
    let (mut script, mut peer) = asking_client();
    send(&mut script, &mut peer, b"an answer", false);
    agree(&mut script, &mut peer, BOTH);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
    // The same if the agreement overtakes it.
    let (mut script, mut peer) = asking_client();
    let late = peer.stamp(mapped(&peer, b"an answer"));
    peer.next = late.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(9);
    agree(&mut script, &mut peer, BOTH);
    peer.inject(&mut script, late);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// The mark got lost: either a box dropped the option, or the segment with it is missing.
#[test]
fn a_lost_mark_is_a_verdict() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let lost = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let lost = peer.stamp(lost);
    script.advance(ms(1_000));
    // It is repeated just in time.
    peer.inject(&mut script, lost);
    assert_eq!(judged_after(&mut script), None);
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

#[test]
fn a_mark_that_overtakes_counts_once_the_rest_is_here() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"one ", false);
    let late = peer.stamp(mapped(&peer, b"two "));
    peer.next = late.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(4);
    send(&mut script, &mut peer, b"three", true);
    script.advance(ms(1_000));
    peer.inject(&mut script, late);
    assert_eq!(judged_after(&mut script), None);
}

#[test]
fn an_old_mark_does_not_stop_what_came_after() {
    let (mut script, mut peer) = client(BOTH);
    let marked = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let marked = peer.stamp(marked);
    peer.inject(&mut script, marked.clone());
    peer.next = marked.end();
    peer.next_dsn = peer.next_dsn.wrapping_add(11);
    script.advance(ms(20));
    send(&mut script, &mut peer, b"no, it was not", false);
    script.advance(ms(100));
    peer.inject(&mut script, marked);
    assert_eq!(judged_after(&mut script), Some(1_400));
}

#[test]
fn marks_that_mean_nothing_are_ignored() {
    let mark = || option(ExperimentalMessage::Idle);
    // Without a mapping, on the peer's pure ACK.
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let ack = Seg::ack().data_ack(peer.expected_dsn).mptcp(mark());
    peer.send(&mut script, ack);
    assert_eq!(judged_after(&mut script), Some(1_500));
    // Not agreed on: nothing at all is waited for, since every pause would be a verdict.
    let (mut script, mut peer) = client(Extensions::RTO);
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(judged_after(&mut script), None);
    send(&mut script, &mut peer, b"that was it", true);
    assert_eq!(script.endpoint.counters().mp_idle_rx, 0);
    // With a length that is no mark's.
    let (mut script, mut peer) = client(BOTH);
    let longer = MpExperimental::new(1, &[0]).expect("an option");
    let seg = mapped(&peer, b"that was it").mptcp(MptcpOption::Experimental(longer));
    peer.send(&mut script, seg);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// A mark on data beyond the window, which is not taken, is no promise.
#[test]
fn a_mark_beyond_the_window_is_ignored() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    let mut far = mapped(&peer, b"that was it").mptcp(option(ExperimentalMessage::Idle));
    let mapping = far.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut()).expect("one");
    mapping.dsn = WireDsn::Short(peer.next_dsn as u32 + (1 << 30));
    peer.send(&mut script, far);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

/// A DATA_ACK that moves is a sign of life.
#[test]
fn progress_of_our_own_data_restarts_it() {
    let (mut script, mut peer) = client(BOTH);
    send(&mut script, &mut peer, b"more to come", false);
    script.advance(ms(1_000));
    write(&mut script, b"a request");
    peer.hear_all(&mut script);
    peer.acknowledge(&mut script);
    assert_eq!(judged_after(&mut script), Some(1_500));
}

// --- The client asks.

fn questions(script: &mut Script, peer: &mut Peer) -> usize {
    let sent = peer.hear_all(script);
    let asks = |s: &&Sent| messages(&s.seg).contains(&ExperimentalMessage::RtoRequest);
    sent.iter().filter(asks).count()
}

#[test]
fn the_timeout_that_was_told_is_the_wait_within_bounds() {
    for (rto_us, wait_ms) in [(700_000, 700), (213_000, 500), (0, 500), (u32::MAX, 10_000)] {
        let (mut script, mut peer) = client(BOTH);
        send(&mut script, &mut peer, b"that was it", true);
        script.advance(ms(1_000));
        send(&mut script, &mut peer, b"more to come", false);
        assert_eq!(questions(&mut script, &mut peer), 1);
        tell(&mut script, &mut peer, rto_us);
        send(&mut script, &mut peer, b"and more", false);
        assert_eq!(judged_after(&mut script), Some(wait_ms), "{rto_us} us");
    }
}

#[test]
fn an_answer_without_a_question_is_refused() {
    let (mut script, mut peer) = client(BOTH);
    script.advance(ms(1_000));
    send(&mut script, &mut peer, b"more to come", false);
    assert_eq!(questions(&mut script, &mut peer), 1);
    tell(&mut script, &mut peer, 600_000);
    for _ in 0..10 {
        tell(&mut script, &mut peer, 9_000_000);
    }
    let counters = script.endpoint.counters();
    assert_eq!((counters.rto_info_rx, counters.rto_info_refused), (1, 10));
    send(&mut script, &mut peer, b"and more", false);
    assert_eq!(judged_after(&mut script), Some(600));
}

#[test]
fn it_asks_again_when_the_answer_is_old_and_less_often_without_one() {
    let (mut script, mut peer) = client(BOTH);
    let (mut asked, start) = (Vec::new(), script.now());
    for n in 0..300 {
        script.advance(ms(100));
        send(&mut script, &mut peer, &bytes(100, n as u8), false);
        for _ in 0..questions(&mut script, &mut peer) {
            asked.push(script.now().since(start).as_millis() / 100);
            if asked.len() > 3 {
                tell(&mut script, &mut peer, 300_000);
            }
        }
    }
    let gaps: Vec<u128> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(gaps[..3], [20, 40, 80], "unanswered, in tenths of a second: {asked:?}");
    assert!(gaps[3..].iter().all(|gap| *gap == 100), "answered: {asked:?}");
}

#[test]
fn it_asks_only_who_agreed() {
    let (mut script, mut peer) = client(Extensions::IDLE);
    for n in 0..50 {
        script.advance(ms(100));
        send(&mut script, &mut peer, &bytes(100, n), false);
    }
    assert_eq!(questions(&mut script, &mut peer), 0);
    tell(&mut script, &mut peer, 9_000_000);
    assert_eq!(script.endpoint.counters().rto_info_rx, 0);
}
