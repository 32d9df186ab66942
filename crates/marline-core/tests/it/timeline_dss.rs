//! Tests of DSS, segment by segment: every width of DSN and DATA_ACK with and without checksum, mappings that span
//! segments, are repeated, missing or overlap (RFC 8684 sections 3.3.1 and 3.3.2).

use marline_core::{CloseReason, ConnectionConfig};
use marline_testkit::timeline::multipath::{Subflows, capable, multipath, sum, syn};
use marline_testkit::{Seg, SentSegment};
use marline_wire::mptcp::{DataAck, Dss, MpCapableForm, MptcpOption, WireDsn, WireMapping};

/// Form of a mapping of the peer's next bytes.
struct Form {
    long_dsn: bool,
    /// `None` for no DATA_ACK.
    long_ack: Option<bool>,
    checksum: bool,
}

fn dss(line: &Subflows, form: &Form, bytes: &[u8], fin: bool) -> Seg {
    let peer = &line.peers[0];
    let (dsn, ack) = (peer.next_dsn, peer.expected_dsn);
    let length = bytes.len() as u16 + u16::from(fin);
    let ssn = if bytes.is_empty() { 0 } else { peer.next.offset_from(peer.iss) };
    let mapping = WireMapping {
        dsn: if form.long_dsn { WireDsn::Long(dsn) } else { WireDsn::Short(dsn as u32) },
        ssn,
        length,
        checksum: form.checksum.then(|| sum(dsn, ssn, length, bytes)),
    };
    let data_ack = form.long_ack.map(|long| match long {
        true => DataAck::Long(ack),
        false => DataAck::Short(ack as u32),
    });
    let mut seg = Seg::ack().payload(bytes);
    seg.options.dss = Some(Dss { data_ack, mapping: Some(mapping), data_fin: fin });
    seg
}

fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for long_dsn in [false, true] {
        for long_ack in [None, Some(false), Some(true)] {
            for checksum in [false, true] {
                forms.push(Form { long_dsn, long_ack, checksum });
            }
        }
    }
    forms
}

fn connection(checksums: bool) -> Subflows {
    let mut line = Subflows::listening(multipath());
    if checksums {
        line = line.with_checksums();
    }
    line.open();
    line
}

#[test]
fn data_in_every_form_arrives_and_is_acknowledged_in_the_sender_s_width() {
    for form in forms() {
        let mut line = connection(form.checksum);
        let first = dss(&line, &form, b"hello", false);
        line.advance_dsn(5);
        line.send(0, first);
        let ack = if form.long_dsn { "dack8" } else { "dack" };
        assert_eq!(line.sent(), [format!("a: ack 6 {ack} 6")]);
        assert_eq!(line.read(), b"hello");
        // A DATA_FIN with data: it counts in the mapping's length but not in the subflow's numbers.
        let last = dss(&line, &form, b"bye", true);
        line.advance_dsn(4);
        line.send(0, last);
        assert_eq!(line.sent(), [format!("a: ack 9 {ack} 10")]);
        assert_eq!(line.read(), b"bye");
    }
}

#[test]
fn a_data_fin_alone_in_every_form_is_acknowledged() {
    for form in forms() {
        let mut line = connection(form.checksum);
        let fin = dss(&line, &form, b"", true);
        line.advance_dsn(1);
        line.send(0, fin);
        let ack = if form.long_dsn { "dack8" } else { "dack" };
        assert_eq!(line.sent(), [format!("a: ack 1 {ack} 2")]);
        line.write(3);
        let sent = line.sent();
        assert!(sent[0].starts_with("a: 1:4 P"), "the other half is open: {sent:?}");
    }
}

#[test]
fn a_data_fin_without_a_mapping_says_nothing() {
    let mut line = connection(false);
    let mut seg = Seg::ack();
    let data_ack = Some(DataAck::Long(line.peers[0].expected_dsn));
    seg.options.dss = Some(Dss { data_ack, mapping: None, data_fin: true });
    line.send(0, seg);
    assert_eq!(line.sent(), [""; 0]);
    line.data(0, b"more");
    assert_eq!(line.read(), b"more");
}

#[test]
fn our_numbers_have_four_bytes_and_a_checksum_if_agreed_on() {
    for checksums in [false, true] {
        let config = ConnectionConfig { dss_checksum: checksums, ..multipath() };
        let mut line = Subflows::served(config);
        line.ack(0);
        line.write(5);
        let sum = if checksums { " sum" } else { "" };
        assert_eq!(line.sent(), [format!("a: 1:6 P dack 1 dsn 1+5{sum}")]);
        line.shutdown();
        assert_eq!(line.sent(), [format!("a: ack 1 dack 1 dsn 6+1@0{sum} dfin")]);
    }
}

#[test]
fn options_and_payload_respect_the_mss_of_the_peer() {
    for checksums in [false, true] {
        let config = ConnectionConfig { timestamps: true, ..multipath() };
        let mut line = Subflows::listening(ConnectionConfig { dss_checksum: checksums, ..config });
        let capable = |form| MptcpOption::Capable(capable(form));
        line.send(0, syn().mss(48).timestamps(1, 0).mptcp(capable(MpCapableForm::Syn)));
        assert!(line.sent()[0].starts_with("a: S ack capable"));
        let third = capable(line.keys_form());
        line.send(0, Seg::ack().timestamps(2, 1).mptcp(third));
        let _ = line.sent();
        line.id = line.script.take_incoming();
        line.write(1_000);
        let sent = line.script.take_sent();
        assert!(sent.iter().any(|s| s.seg.payload.len() >= 8), "{sent:?}");
        for SentSegment { seg, .. } in &sent {
            let bytes = seg.options.encoded_len() + seg.payload.len();
            assert!(bytes <= 48, "{bytes}: {seg:?}");
        }
    }
}

#[test]
fn a_data_ack_of_either_width_frees_its_data() {
    for long in [false, true] {
        let mut line = connection(false);
        line.ack(0);
        line.write(5);
        let _ = line.sent();
        let ack = line.endpoint_dsn(6);
        let mut seg = Seg::ack();
        let data_ack = if long { DataAck::Long(ack) } else { DataAck::Short(ack as u32) };
        seg.options.dss = Some(Dss { data_ack: Some(data_ack), mapping: None, data_fin: false });
        line.send(0, seg);
        let acked =
            line.script.endpoint.info(line.id()).expect("the connection exists").bytes_acked;
        assert_eq!(acked, 5);
        assert_eq!(line.wait_for_send(5_000), None, "nothing is left to repeat");
    }
}

#[test]
fn data_without_a_data_ack_is_sent_again() {
    let mut line = connection(false);
    line.ack(0);
    line.write(5);
    let _ = line.sent();
    line.ack(0);
    line.write(5);
    assert_eq!(line.sent(), ["a: 6:11 P dack 1 dsn 6+5"]);
    // The subflow has all of it, the connection only the first five.
    let half = line.endpoint_dsn(6);
    line.send(0, Seg::ack().data_ack(half));
    line.wait_for_send(10_000).expect("the data-level timer");
    assert_eq!(line.sent(), ["a: 11:16 P dack 1 dsn 6+5"], "the same data, new on the subflow");
}

#[test]
fn one_mapping_covers_several_segments_in_any_order() {
    let mut line = connection(false);
    let whole = line.mapped(0, b"0123456789");
    let mut head = whole.clone();
    head.payload.truncate(4);
    // The first part has the mapping, the last overtakes the middle.
    line.send_at(0, 1, head);
    line.send_at(0, 8, Seg::ack().payload(b"789"));
    assert_eq!(line.read(), b"0123");
    line.send_at(0, 5, Seg::ack().payload(b"456"));
    assert_eq!(line.read(), b"456789");
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: ack 11 dack8 11"));
}

#[test]
fn a_mapping_may_repeat_known_parts() {
    let mut line = connection(false);
    let dsn = line.dsn(1);
    line.send_at(0, 1, Seg::ack().mapping(dsn, 1, 6).payload(b"abcdef"));
    let part = Seg::ack().mapping(dsn + 2, 3, 4).payload(b"cdef");
    line.send_at(0, 3, part);
    let more = Seg::ack().mapping(dsn + 6, 7, 3).payload(b"ghi");
    line.send_at(0, 7, more);
    assert_eq!(line.read(), b"abcdefghi");
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: ack 10 dack8 10"), "{sent:?}");
}

#[test]
fn a_mapping_that_says_otherwise_than_before_ends_the_subflow() {
    let mut line = connection(false);
    line.data(0, b"first");
    let _ = line.sent();
    let dsn = line.dsn(6);
    line.send_at(0, 6, Seg::ack().mapping(dsn, 6, 10).payload(b"01234"));
    line.send_at(0, 11, Seg::ack().mapping(dsn + 50, 6, 10).payload(b"56789"));
    let sent = line.sent();
    assert!(sent.last().is_some_and(|w| w.starts_with("a: R 1") && w.ends_with("reset 1")));
}

#[test]
fn data_without_a_mapping_is_not_data_acked_and_ends_the_subflow() {
    let mut line = connection(false);
    line.data(0, b"first");
    assert_eq!(line.sent(), ["a: ack 6 dack8 6"]);
    line.write(3);
    let _ = line.sent();
    line.ack(0);
    line.send(0, Seg::ack().data_ack(line_ack(&line)).payload(b"whence?"));
    let sent = line.sent();
    assert!(sent.iter().all(|words| !words.contains("dack8 13")), "{sent:?}");
    assert!(sent.last().is_some_and(|w| w.starts_with("a: R 4") && w.ends_with("reset 6")));
    assert_eq!(line.read(), b"first");
}

/// Both sides know that options pass.
fn proven(checksums: bool) -> Subflows {
    let mut line = connection(checksums);
    line.write(3);
    let _ = line.sent();
    line.ack(0);
    line
}

/// Three segments of ten bytes, each split in two by a middlebox that then merges pieces, with the options of the
/// first of two.
fn cut_and_joined(options_on_all: bool, checksums: bool) -> (Subflows, Vec<String>) {
    let mut line = proven(checksums);
    let whole: Vec<u8> = (b'a'..=b'z').chain(*b"0123").collect();
    let segments: Vec<Seg> = whole
        .chunks(10)
        .enumerate()
        .map(|(n, bytes)| {
            let at = 1 + 10 * n as u32;
            let dsn = line.dsn(u64::from(at));
            let mut seg = Seg::ack().mapping(dsn, at, 10).payload(bytes);
            if checksums {
                let sum = sum(dsn, at, 10, bytes);
                let dss = seg.options.dss.as_mut();
                dss.and_then(|dss| dss.mapping.as_mut()).expect("mapped").checksum = Some(sum);
            }
            seg
        })
        .collect();
    let bare = |seg: &Seg| if options_on_all { seg.clone() } else { Seg::ack() };
    // The first piece alone; of the next two, from different segments, a single segment.
    line.send_at(0, 1, segments[0].clone().payload(&whole[..6]));
    line.send_at(0, 7, bare(&segments[0]).payload(&whole[6..16]));
    line.send_at(0, 17, bare(&segments[1]).payload(&whole[16..20]));
    line.send_at(0, 21, segments[2].clone().payload(&whole[20..30]));
    let sent = line.sent();
    assert_eq!(line.read(), &whole[..10], "{sent:?}");
    (line, sent)
}

#[test]
fn data_merged_without_its_mapping_is_resent_and_ends_nothing() {
    for (options_on_all, checksums) in [(true, false), (false, false), (true, true), (false, true)]
    {
        let (mut line, sent) = cut_and_joined(options_on_all, checksums);
        let last = sent.last().map(String::as_str);
        assert_eq!(last, Some("a: ack 31 dack8 11"), "options on all {options_on_all}");
        // The second segment's data again.
        line.peers[0].next = line.peers[0].iss.add(31);
        line.advance_dsn(10);
        line.data(0, b"klmnopqrst");
        assert_eq!(line.read(), b"klmnopqrstuvwxyz0123", "options on all {options_on_all}");
        assert_eq!(line.sent(), ["a: ack 41 dack8 31"]);
    }
}

/// Like the previous test, with the rest behind a gap.
#[test]
fn unmapped_data_behind_a_hole_is_skipped_once_it_is_filled() {
    let mut line = proven(false);
    let dsn = |line: &Subflows, at| line.dsn(at);
    let (first, third) = (dsn(&line, 1), dsn(&line, 21));
    line.send_at(0, 21, Seg::ack().mapping(third, 21, 10).payload(b"uvwxyz0123 and"));
    line.send_at(0, 35, Seg::ack().payload(b" more"));
    let second = dsn(&line, 11);
    line.send_at(0, 11, Seg::ack().mapping(second, 11, 10).payload(b"klmnopqrst"));
    let _ = line.sent();
    line.send_at(0, 1, Seg::ack().mapping(first, 1, 10).payload(b"abcdefghij"));
    assert_eq!(line.read(), b"abcdefghijklmnopqrstuvwxyz0123");
    let sent = line.sent();
    assert_eq!(sent.last().map(String::as_str), Some("a: ack 40 dack8 31"), "{sent:?}");
    line.peers[0].next = line.peers[0].iss.add(40);
    line.advance_dsn(30);
    line.data(0, b" and more");
    assert_eq!(line.read(), b" and more");
}

/// The limit: no mapping is longer than 65,535 bytes, so a longer unmapped range has lost more than one.
#[test]
fn a_stretch_without_mappings_that_is_longer_than_any_of_them_ends_the_subflow() {
    let mut line = proven(false);
    let dsn = line.dsn(1);
    line.send_at(0, 1, Seg::ack().mapping(dsn, 1, 10).payload(&[b'x'; 1_010]));
    let mut at = 1_011;
    let reset = |sent: &[String]| sent.iter().any(|words| words.contains(" reset "));
    while !reset(&line.sent()) {
        assert!(at < 11 + 65_535 + 1_000, "{at}");
        line.send_at(0, at, Seg::ack().payload(&[b'x'; 1_000]));
        at += 1_000;
    }
    assert!(at > 65_535, "{at}");
    assert_eq!(line.read(), b"xxxxxxxxxx");
}

/// A path on which every subflow can be opened but none can be used: after six in a row without progress of the
/// stream, both applications get an error. Progress in between resets the count.
#[test]
fn six_subflows_in_a_row_without_progress_end_the_connection() {
    for progress_after in [None, Some(5)] {
        let mut line = proven(false);
        let (mut on, mut lost) = (0, 0);
        loop {
            line.send(on, Seg::ack().data_ack(line_ack(&line)).payload(b"bare"));
            lost += 1;
            let sent = line.sent();
            assert!(sent.iter().any(|words| words.contains(": R ")), "{sent:?}");
            if let Some(why) = line.closed() {
                assert_eq!(why, CloseReason::PeerMisbehaved);
                let last = sent.last().map(String::as_str);
                assert!(last.is_some_and(|words| words.contains("fastclose")), "{sent:?}");
                break;
            }
            on = line.join(lost);
            if progress_after == Some(lost) {
                line.data(on, b"word");
                assert_eq!(line.read(), b"word");
                let _ = line.sent();
            }
        }
        assert_eq!(lost, progress_after.unwrap_or(0) + 6);
    }
}

fn line_ack(line: &Subflows) -> u64 {
    line.peers[0].expected_dsn
}

#[test]
fn the_same_data_on_two_subflows_counts_once() {
    let mut line = connection(false);
    line.data(0, b"hello");
    let _ = line.sent();
    let b = line.join(3);
    let (dsn, both) = (line.dsn(6), b"twice");
    line.advance_dsn(5);
    for on in [0, b] {
        let at = line.peers[on].next.offset_from(line.peers[on].iss);
        let ack = line_ack(&line);
        line.send(on, Seg::ack().data_ack(ack).mapping(dsn, at, 5).payload(both));
    }
    assert_eq!(line.sent(), ["a: ack 11 dack8 11", "b: ack 6 dack8 11"], "acknowledged on both");
    assert_eq!(line.read(), b"hellotwice");
}

#[test]
fn a_hole_of_the_stream_is_filled_by_another_subflow() {
    let mut line = connection(false);
    line.data(0, b"0");
    let b = line.join(3);
    let _ = line.sent();
    let dsn = line.dsn(2);
    line.send(b, Seg::ack().mapping(dsn + 3, 1, 3).payload(b"456"));
    assert_eq!(line.sent(), ["b: ack 4 dack8 2"], "the subflow has it, the stream not");
    assert_eq!(line.read(), b"0");
    line.send(0, Seg::ack().mapping(dsn, 2, 3).payload(b"123"));
    assert_eq!(line.sent(), ["a: ack 5 dack8 8"]);
    assert_eq!(line.read(), b"123456");
}

#[test]
fn an_old_data_ack_and_one_of_unsent_data_change_nothing() {
    let mut line = connection(false);
    line.ack(0);
    line.write(5);
    let _ = line.sent();
    let never = line.endpoint_dsn(1_000);
    line.send(0, Seg::ack().data_ack(never));
    let old = line.endpoint_dsn(0).wrapping_sub(9);
    line.send(0, Seg::ack().data_ack(old));
    let acked = line.script.endpoint.info(line.id()).expect("the connection exists").bytes_acked;
    assert_eq!(acked, 0);
    assert_eq!(line.fallback(), None);
}

#[test]
fn a_checksum_that_is_missing_or_was_not_asked_for_ends_the_subflow() {
    for checksums in [true, false] {
        let mut line = connection(checksums);
        let other = Form { long_dsn: true, long_ack: Some(true), checksum: !checksums };
        let seg = dss(&line, &other, b"hello", false);
        line.send(0, seg);
        let sent = line.sent();
        assert!(sent.last().is_some_and(|w| w.starts_with("a: R 1") && w.ends_with("reset 1")));
        assert_eq!(line.read(), b"");
    }
}

/// The only subflow falls silent with data in flight, dies, and another one takes its slot. The new one was silent
/// for a while as well; when the peer answers on it, the reinjections of the dead one are not withdrawn.
#[test]
fn data_of_a_dead_subflow_stays_queued_when_its_successor_recovers() {
    let mut line = connection(false);
    line.ack(0);
    // The window grows, and then a full window is lost.
    for _ in 0..2 {
        line.write(14_000);
        let _ = line.sent();
        line.wait(10);
        line.ack(0);
    }
    line.write(42_000);
    line.wait(10);
    let lost: usize = line.script.take_sent().iter().map(|sent| sent.seg.payload.len()).sum();
    assert!(lost >= 35_000, "{lost}: more than a first window");
    line.wait(400);
    line.send(0, Seg::rst());
    let _ = line.sent();
    let on = line.add_path();
    let syn = line.join_syn(1, false);
    line.send(on, syn);
    assert!(line.sent()[0].ends_with("S ack join 0 hmac"));
    let third = line.join_ack(on);
    line.send(on, third);
    line.wait(1_500);
    let sent = line.script.take_sent();
    let (mut rounds, end) = (0, line.endpoint_dsn(70_001));
    let hear = |line: &mut Subflows, sent: &[marline_testkit::SentSegment]| {
        let path = line.peers[on].path;
        let peer = &mut line.peers[on];
        sent.iter().filter(|sent| sent.path == path).for_each(|sent| peer.record_received(sent));
    };
    hear(&mut line, &sent);
    while line.peers[on].expected_dsn != end && rounds < 100 {
        line.ack(on);
        line.wait(10);
        let sent = line.script.take_sent();
        hear(&mut line, &sent);
        rounds += 1;
    }
    assert!(rounds <= 12, "{rounds} round trips, {} bytes lack", end - line.peers[on].expected_dsn);
}

/// A middlebox acknowledges 21 segments that it loses. The first comes again after a data-level timeout, then two,
/// then four, instead of one for each timeout.
#[test]
fn a_long_hole_is_not_filled_one_mapping_a_timeout() {
    let mut line = connection(false);
    line.ack(0);
    for _ in 0..2 {
        line.write(14_000);
        let _ = line.sent();
        line.wait(10);
        line.ack(0);
    }
    line.write(28_000);
    line.wait(10);
    let (start, end) = (line.peers[0].expected_dsn, line.endpoint_dsn(56_001));
    assert_eq!(line.peers[0].receive_all(&mut line.script).len(), 21);
    line.peers[0].expected_dsn = start;
    line.ack(0);
    let mut bursts = Vec::new();
    while line.peers[0].expected_dsn < end && bursts.len() < 30 {
        line.wait_for_send(5_000).expect("the data-level timer");
        bursts.push(line.peers[0].receive_all(&mut line.script).len());
        line.wait(10);
        line.ack(0);
    }
    assert_eq!(bursts, [1, 2, 4, 8, 6]);
}
