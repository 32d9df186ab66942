//! Tests of Fast Open, segment by segment, in both roles, on plain TCP and with Multipath TCP (RFC 7413, RFC 8684
//! appendix B), and of two endpoints between which segments are lost.

use std::net::SocketAddr;
use std::time::Duration;

use marline_core::{ConnectionConfig, ConnectionId, Event, FastOpen, FourTuple};
use marline_testkit::timeline::multipath::{KEY, capable, sum};
use marline_testkit::{Script, Seg, SentSegment, config, endpoint_config, keys, with_known_mtu};
use marline_wire::mptcp::{CapableData, DataAck, MpCapable, MpCapableForm, MptcpOption, WireDsn};
use marline_wire::{FastOpenOption, SeqNum, TcpFlags};
use proptest::prelude::*;

use crate::two_hosts::two_paths;

/// The test's own first sequence number.
const ISS: SeqNum = SeqNum(0xffff_ff00);
const MSS: u16 = 1_000;

fn plain() -> ConnectionConfig {
    ConnectionConfig { mptcp: false, ..multipath() }
}

fn multipath() -> ConnectionConfig {
    let fast_open = Some(FastOpen::default());
    ConnectionConfig { pacing: false, timestamps: false, fast_open, ..config() }
}

fn cookie(byte: u8) -> FastOpenOption {
    FastOpenOption::cookie(&[byte; 8]).expect("a cookie")
}

fn syn_ack() -> Seg {
    Seg::syn_ack().mss(MSS).sack_permitted().window_scale(7)
}

fn ends() -> (SocketAddr, SocketAddr) {
    (SocketAddr::from(([10, 0, 0, 1], 0)), SocketAddr::from(([10, 0, 0, 2], 443)))
}

/// Opens a connection and writes to it before anything is sent. Returns the connection and its SYN.
fn open(script: &mut Script, config: ConnectionConfig, data: &[u8]) -> (ConnectionId, SentSegment) {
    let (local, remote) = ends();
    let id = script.run(|endpoint, now| {
        let id = endpoint.connect(now, config, local, remote).expect("a connection");
        if !data.is_empty() {
            assert_eq!(endpoint.write(now, id, data), Ok(data.len()));
        }
        id
    });
    let mut sent = script.take_sent();
    assert_eq!(sent.len(), 1, "{sent:#?}");
    (id, sent.remove(0))
}

/// Segments sent on the path of a SYN.
fn on_its_path(script: &mut Script, syn: &SentSegment) -> Vec<SentSegment> {
    let mut all = script.take_sent();
    all.retain(|sent| sent.path == syn.path);
    all
}

/// A client that has this cookie.
fn client(config: &ConnectionConfig) -> Script {
    let mut script = Script::new(with_known_mtu(endpoint_config(None)), 7);
    let (id, syn) = open(&mut script, config.clone(), b"");
    assert_eq!(syn.seg.fast_open, Some(FastOpenOption::REQUEST));
    answer(&mut script, &syn, 1, syn_ack().fast_open(cookie(7)));
    script.run(|endpoint, now| endpoint.abort(now, id));
    script.take_sent();
    script.take_events();
    script
}

/// Answers a SYN, and acknowledges this many of its octets.
fn answer(script: &mut Script, syn: &SentSegment, octets: u32, seg: Seg) {
    script.advance(Duration::from_millis(10));
    script.inject(syn.path, seg.at(ISS).acking(syn.seg.header.seq.add(octets)));
}

/// Sequence numbers, counted from the SYN, and payload lengths of the sent segments.
fn sent(script: &mut Script, syn: &SentSegment) -> Vec<(u32, usize)> {
    let all = on_its_path(script, syn);
    let at = |s: &SentSegment| s.seg.header.seq.offset_from(syn.seg.header.seq);
    all.iter().map(|s| (at(s), s.seg.payload.len())).collect()
}

#[test]
fn data_goes_with_the_syn_once_there_is_a_cookie() {
    let mut script = client(&plain());
    let (local, remote) = ends();
    let path = FourTuple { local, remote };
    // The server's MSS, minus room for all possible options.
    assert_eq!(script.endpoint.fast_open_room(script.now(), &plain(), &path), Some(960));
    let (id, syn) = open(&mut script, plain(), &[b'x'; 2_000]);
    assert_eq!((syn.seg.fast_open, syn.seg.payload.len()), (Some(cookie(7)), 960));
    answer(&mut script, &syn, 961, syn_ack());
    assert_eq!(sent(&mut script, &syn), [(961, 1_000), (1_961, 40)]);
    let info = script.endpoint.info(id).expect("a connection");
    assert_eq!(info.bytes_acked, 960);
    assert!(info.subflows[0].tcp.took_syn_data);
    assert!(script.take_events().iter().any(|e| matches!(e, Event::Connected { .. })));
}

#[test]
fn without_the_setting_nothing_of_it_is_seen() {
    let mut script = Script::new(with_known_mtu(endpoint_config(None)), 7);
    let off = ConnectionConfig { fast_open: None, ..plain() };
    let (_, syn) = open(&mut script, off.clone(), b"hello");
    assert_eq!((syn.seg.fast_open, syn.seg.payload.len()), (None, 0));
    answer(&mut script, &syn, 1, syn_ack().fast_open(cookie(7)));
    script.take_sent();
    let (_, syn) = open(&mut script, plain(), b"hello");
    assert_eq!(syn.seg.fast_open, Some(FastOpenOption::REQUEST), "that cookie was not requested");
    let mut server = Script::new(with_known_mtu(endpoint_config(Some(off))), 7);
    server.inject(path(), Seg::syn().mss(MSS).fast_open(cookie(7)).payload(b"hello").at(ISS));
    let all = server.take_sent();
    assert_eq!((all[0].seg.fast_open, all[0].seg.header.ack), (None, ISS.add(1)));
}

#[test]
fn data_that_the_syn_ack_does_not_acknowledge_goes_again_immediately() {
    let mut script = client(&plain());
    let (id, syn) = open(&mut script, plain(), &[b'x'; 500]);
    answer(&mut script, &syn, 1, syn_ack());
    assert_eq!(sent(&mut script, &syn), [(1, 500)]);
    assert!(
        !script.endpoint.info(id).expect("the connection exists").subflows[0].tcp.took_syn_data
    );
    // A part of it was accepted.
    let (id, syn) = open(&mut script, plain(), &[b'x'; 500]);
    answer(&mut script, &syn, 101, syn_ack());
    assert_eq!(sent(&mut script, &syn), [(101, 400)]);
    assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, 100);
    // More than was sent: not an answer to this SYN.
    let (_, syn) = open(&mut script, plain(), &[b'x'; 500]);
    answer(&mut script, &syn, 502, syn_ack());
    let reset = script.take_sent();
    assert!(reset[0].seg.header.flags.contains(TcpFlags::RST), "{reset:#?}");
}

#[test]
fn a_repeated_syn_is_bare_and_a_way_that_swallows_two_is_spared() {
    let mut script = client(&plain());
    for _ in 0..2 {
        let (_, syn) = open(&mut script, plain(), &[b'x'; 500]);
        assert_eq!(syn.seg.payload.len(), 500);
        script.advance(Duration::from_millis(1_000));
        let again = on_its_path(&mut script, &syn);
        assert_eq!((again[0].seg.fast_open, again[0].seg.payload.len()), (None, 0));
        assert_eq!(again[0].seg.header.seq, syn.seg.header.seq);
        answer(&mut script, &syn, 1, syn_ack());
        assert_eq!(sent(&mut script, &syn), [(1, 500)]);
    }
    let (_, syn) = open(&mut script, plain(), &[b'x'; 500]);
    assert_eq!((syn.seg.fast_open, syn.seg.payload.len()), (None, 0));
    script.advance(Duration::from_secs(3_600));
    script.take_sent();
    let (_, syn) = open(&mut script, plain(), &[b'x'; 500]);
    assert_eq!(syn.seg.payload.len(), 500, "an hour later it is tried again");
}

#[test]
fn a_client_that_is_done_before_the_answer_sends_its_fin_behind_the_data() {
    let mut script = client(&plain());
    let (id, syn) = open(&mut script, plain(), b"all there is");
    script.run(|endpoint, now| endpoint.shutdown(now, id));
    assert!(script.take_sent().is_empty());
    answer(&mut script, &syn, 13, syn_ack());
    let all = script.take_sent();
    let fin = all.last().expect("a FIN");
    assert!(fin.seg.header.flags.contains(TcpFlags::FIN));
    assert_eq!(fin.seg.header.seq.offset_from(syn.seg.header.seq), 13);
}

/// SYNs on the other paths would each open a separate connection at the server, possibly with the same data.
#[test]
fn a_syn_with_data_is_not_raced_over_other_paths() {
    let mut script = client(&multipath());
    let (_, syn) = open(&mut script, two_paths(multipath()), b"hello");
    assert_eq!(syn.seg.payload, b"hello");
    script.advance(Duration::from_millis(900));
    assert!(script.take_sent().is_empty());
    // A SYN without data is, from the other address.
    let (_, syn) = open(&mut script, two_paths(multipath()), b"");
    script.advance(Duration::from_millis(300));
    let other = |sent: &SentSegment| sent.path.local.ip() != syn.path.local.ip();
    assert!(script.take_sent().iter().any(other));
}

fn path() -> FourTuple {
    FourTuple {
        local: SocketAddr::from(([10, 0, 0, 1], 80)),
        remote: SocketAddr::from(([10, 0, 0, 2], 40_000)),
    }
}

fn path_from(port: u16) -> FourTuple {
    FourTuple { remote: SocketAddr::from(([10, 0, 0, 2], port)), ..path() }
}

fn server(config: ConnectionConfig) -> (Script, FastOpenOption) {
    let mut script = Script::new(with_known_mtu(endpoint_config(Some(config))), 7);
    let asks = path_from(39_999);
    script.inject(asks, Seg::syn().mss(MSS).fast_open(FastOpenOption::REQUEST).at(ISS));
    let all = script.take_sent();
    let given = all[0].seg.fast_open.expect("a cookie");
    assert!(!given.is_request() && !given.is_experimental());
    assert_eq!(script.take_incoming(), None);
    script.inject(asks, Seg::rst().at(ISS.add(1)));
    (script, given)
}

fn syn_with(cookie: FastOpenOption, data: &[u8]) -> Seg {
    Seg::syn().mss(MSS).sack_permitted().window_scale(7).fast_open(cookie).payload(data).at(ISS)
}

#[test]
fn a_server_has_the_data_with_the_syn_and_answers_before_the_third_ack() {
    let (mut script, given) = server(plain());
    script.inject(path(), syn_with(given, b"question"));
    let syn_ack = script.take_sent().remove(0);
    assert_eq!(syn_ack.seg.header.ack, ISS.add(9));
    assert_eq!(syn_ack.seg.fast_open, None, "the cookie was good");
    let id = script.take_incoming().expect("a connection");
    assert_eq!(script.read_all(id), b"question");
    script.run(|endpoint, now| endpoint.write(now, id, b"answer")).expect("written");
    let answer = script.take_sent();
    assert_eq!((answer.len(), answer[0].seg.payload.as_slice()), (1, b"answer".as_slice()));
    // Without the third ACK only the SYN/ACK is repeated.
    script.advance(Duration::from_millis(1_000));
    let again = script.take_sent();
    assert_eq!(again.len(), 1, "{again:#?}");
    assert!(again[0].seg.header.flags.contains(TcpFlags::SYN));
    assert_eq!(again[0].seg.header.ack, ISS.add(9));
    // The third ACK shows that the answer was lost, and is answered with another one.
    let first = syn_ack.seg.header.seq.add(1);
    script.inject(path(), Seg::ack().at(ISS.add(9)).acking(first));
    assert!(script.advance_to_send(Duration::from_secs(3)), "the answer is sent again");
    assert_eq!(script.take_sent()[0].seg.payload, b"answer");
    script.inject(path(), Seg::ack().at(ISS.add(9)).acking(first.add(6)));
    assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, 6);
}

#[test]
fn a_wrong_cookie_is_replaced_and_its_data_comes_again() {
    let (mut script, given) = server(plain());
    script.inject(path(), syn_with(cookie(9).with_form(true), b"hello"));
    let all = script.take_sent();
    assert_eq!(all[0].seg.header.ack, ISS.add(1));
    assert_eq!(all[0].seg.fast_open, Some(given.with_form(true)), "in the form of the request");
    assert_eq!(script.take_incoming(), None);
    // A cookie of another client.
    let other = FourTuple { remote: SocketAddr::from(([10, 0, 0, 3], 40_000)), ..path() };
    script.inject(other, syn_with(given, b"hello"));
    assert_eq!(script.take_sent()[0].seg.header.ack, ISS.add(1));
    assert_eq!(script.take_incoming(), None);
}

#[test]
fn pending_fast_open_connections_are_limited() {
    let few = FastOpen { pending: 2, ..FastOpen::default() };
    let (mut script, given) = server(ConnectionConfig { fast_open: Some(few), ..plain() });
    let mut acked = Vec::new();
    for port in 1..=3 {
        script.inject(path_from(port), syn_with(given, b"hello"));
        acked.push(script.take_sent()[0].seg.header.ack.offset_from(ISS));
    }
    assert_eq!(acked, [6, 6, 1]);
    // One is answered, another one ends.
    script.inject(path_from(1), Seg::rst().at(ISS.add(6)));
    script.inject(path_from(4), syn_with(given, b"hello"));
    assert_eq!(script.take_sent()[0].seg.header.ack, ISS.add(6));
}

#[test]
fn without_cookies_any_data_is_taken() {
    let fast_open = Some(FastOpen { without_cookie: true, ..FastOpen::default() });
    let config = ConnectionConfig { fast_open, ..plain() };
    let mut script = Script::new(with_known_mtu(endpoint_config(Some(config.clone()))), 7);
    script.inject(path(), Seg::syn().mss(MSS).payload(b"hello").at(ISS));
    assert_eq!(script.take_sent()[0].seg.header.ack, ISS.add(6));
    let mut client = Script::new(with_known_mtu(endpoint_config(None)), 7);
    let (_, syn) = open(&mut client, config, b"hello");
    assert_eq!((syn.seg.fast_open, syn.seg.payload.as_slice()), (None, b"hello".as_slice()));
}

fn capable_option(form: MpCapableForm, checksum: bool) -> MptcpOption {
    MptcpOption::Capable(MpCapable { checksum_required: checksum, ..capable(form) })
}

fn mp_capable(seg: &Seg) -> MpCapableForm {
    let mut options = seg.options.mptcp.iter();
    let form = options.find_map(|option| match option {
        MptcpOption::Capable(capable) => Some(capable.form),
        _ => None,
    });
    form.expect("MP_CAPABLE")
}

/// Cap-12 and cap-13 of docs/spec: data of the SYN is in neither of a mapping's number spaces.
#[test]
fn with_multipath_the_first_mapping_begins_behind_the_syns_data() {
    for checksum in [false, true] {
        let mut script = client(&multipath());
        let (id, syn) = open(&mut script, multipath(), b"12345678901234567890");
        assert_eq!(mp_capable(&syn.seg), MpCapableForm::Syn);
        let form = MpCapableForm::SynAck { listener_key: KEY };
        answer(&mut script, &syn, 21, syn_ack().mptcp(capable_option(form, checksum)));
        let third = script.take_sent().remove(0);
        let MpCapableForm::Ack { initiator_key, data: None, .. } = mp_capable(&third.seg) else {
            panic!("no third ACK: {third:?}")
        };
        let idsn = keys::idsn(initiator_key);
        script.run(|endpoint, now| endpoint.write(now, id, b"hello")).expect("written");
        let first = script.take_sent().remove(0);
        let wanted = checksum.then(|| sum(idsn.wrapping_add(1), 1, 5, b"hello"));
        let MpCapableForm::Ack { data, .. } = mp_capable(&first.seg) else {
            panic!("no keys: {first:?}")
        };
        assert_eq!(data, Some(CapableData { length: 5, checksum: wanted }));
        assert_eq!(first.seg.header.seq.offset_from(syn.seg.header.seq), 21);
        // The server has it, and acknowledges it with DSNs of its own.
        let seg = Seg::ack().at(ISS.add(1)).acking(first.seg.end());
        script.inject(syn.path, seg.data_ack(idsn.wrapping_add(6)));
        assert_eq!(script.endpoint.info(id).expect("the connection exists").bytes_acked, 25);
        script.run(|endpoint, now| endpoint.write(now, id, b"world")).expect("written");
        let next = script.take_sent().remove(0);
        let mapping = next.seg.dss().mapping.expect("a mapping");
        assert_eq!(mapping.dsn, WireDsn::Short(idsn.wrapping_add(6) as u32));
        assert_eq!((mapping.ssn, mapping.length), (6, 5));
        let wanted = checksum.then(|| sum(idsn.wrapping_add(6), 6, 5, b"world"));
        assert_eq!(mapping.checksum, wanted);
    }
}

#[test]
fn with_multipath_refused_data_is_mapped_as_if_it_had_never_gone() {
    for (taken, checksum) in [(0, false), (0, true), (4, false), (4, true)] {
        let mut script = client(&multipath());
        let (_, syn) = open(&mut script, multipath(), b"question");
        let form = MpCapableForm::SynAck { listener_key: KEY };
        answer(&mut script, &syn, 1 + taken, syn_ack().mptcp(capable_option(form, checksum)));
        let again = script.take_sent().remove(0);
        let rest = &b"question"[taken as usize..];
        assert_eq!(again.seg.payload, rest);
        let MpCapableForm::Ack { initiator_key, data, .. } = mp_capable(&again.seg) else {
            panic!("no keys: {again:?}")
        };
        let idsn = keys::idsn(initiator_key);
        let length = rest.len() as u16;
        let wanted = checksum.then(|| sum(idsn.wrapping_add(1), 1, length, rest));
        assert_eq!(data, Some(CapableData { length, checksum: wanted }));
    }
}

#[test]
fn a_server_counts_the_clients_mappings_from_behind_the_syns_data() {
    for checksum in [false, true] {
        let (mut script, given) = server(multipath());
        let syn = syn_with(given, b"12345678901234567890");
        script.inject(path(), syn.mptcp(capable_option(MpCapableForm::Syn, checksum)));
        let syn_ack = script.take_sent().remove(0);
        assert_eq!(syn_ack.seg.header.ack, ISS.add(21));
        let MpCapableForm::SynAck { listener_key } = mp_capable(&syn_ack.seg) else {
            panic!("no key: {syn_ack:?}")
        };
        let id = script.take_incoming().expect("the application has it");
        assert_eq!(script.read_all(id), b"12345678901234567890");
        let first = syn_ack.seg.header.seq.add(1);
        let idsn = keys::idsn(KEY);
        let told = checksum.then(|| sum(idsn.wrapping_add(1), 1, 5, b"hello"));
        let data = Some(CapableData { length: 5, checksum: told });
        let form = MpCapableForm::Ack { initiator_key: KEY, listener_key, data };
        let seg = Seg::ack().mptcp(capable_option(form, checksum)).payload(b"hello");
        script.inject(path(), seg.at(ISS.add(21)).acking(first));
        assert_eq!(script.read_all(id), b"hello");
        // The next data by a DSS, at SSN 6 although 26 bytes of the subflow come before it.
        let mut seg = Seg::ack().data_ack(keys::idsn(listener_key).wrapping_add(1));
        seg = seg.mapping(idsn.wrapping_add(6), 6, 5).payload(b"world");
        if checksum {
            seg = marline_testkit::timeline::multipath::with_sum(seg);
        }
        script.inject(path(), seg.at(ISS.add(26)).acking(first));
        assert_eq!(script.read_all(id), b"world");
        let info = script.endpoint.info(id).expect("the connection exists");
        assert_eq!(info.fallback, None);
        script.advance(Duration::from_millis(50));
        let all = script.take_sent();
        let acks = all.iter().rev().find_map(|s| s.seg.dss().data_ack);
        assert_eq!(acks, Some(DataAck::Long(idsn.wrapping_add(11))));
    }
}

/// Linux 6.18 does this when its SYN's data is rejected: it sends it again with a DSS without mapping, without keys.
#[test]
fn a_client_that_cannot_map_its_refused_data_goes_on_in_plain_tcp() {
    let off = ConnectionConfig { fast_open: None, ..multipath() };
    let mut script = Script::new(with_known_mtu(endpoint_config(Some(off))), 7);
    let syn = syn_with(cookie(9), b"hello");
    script.inject(path(), syn.mptcp(capable_option(MpCapableForm::Syn, false)));
    let syn_ack = script.take_sent().remove(0);
    assert_eq!(syn_ack.seg.header.ack, ISS.add(1));
    let MpCapableForm::SynAck { listener_key } = mp_capable(&syn_ack.seg) else {
        panic!("no key: {syn_ack:?}")
    };
    let seg = Seg::ack().data_ack(keys::idsn(listener_key).wrapping_add(1)).payload(b"hello");
    script.inject(path(), seg.at(ISS.add(1)).acking(syn_ack.seg.header.seq.add(1)));
    let id = script.take_incoming().expect("a connection");
    assert_eq!(script.read_all(id), b"hello");
    assert!(script.endpoint.info(id).expect("the connection exists").fallback.is_some());
}

/// Linux 6.18 does this if its application shuts down before the SYN/ACK arrives: each answer to a SYN/ACK is a
/// DATA_FIN without keys. It falls back when it receives an ACK without options, and then sends a FIN.
#[test]
fn a_client_that_sends_a_data_fin_instead_of_its_keys_goes_on_in_plain_tcp() {
    let (mut script, given) = server(multipath());
    let syn = syn_with(given, b"question");
    script.inject(path(), syn.mptcp(capable_option(MpCapableForm::Syn, false)));
    let syn_ack = script.take_sent().remove(0);
    let MpCapableForm::SynAck { listener_key } = mp_capable(&syn_ack.seg) else {
        panic!("no key: {syn_ack:?}")
    };
    let id = script.take_incoming().expect("a connection");
    let first = syn_ack.seg.header.seq.add(1);
    let end = Seg::ack().data_ack(keys::idsn(listener_key).wrapping_add(1));
    let end = end.mapping(keys::idsn(KEY).wrapping_add(1), 0, 1).data_fin();
    let end = end.at(ISS.add(9)).acking(first);
    // It may have overtaken the third ACK.
    script.inject(path(), end.clone());
    script.inject(path(), end.clone());
    assert!(script.take_sent().is_empty());
    assert_eq!(script.endpoint.info(id).expect("the connection exists").fallback, None);
    // The SYN/ACK is repeated.
    script.advance(Duration::from_secs(1));
    assert!(script.take_sent()[0].seg.header.flags.contains(TcpFlags::SYN));
    script.inject(path(), end);
    let answer = script.take_sent().remove(0);
    assert!(!answer.seg.options.has_mptcp() && answer.seg.header.ack == ISS.add(9), "{answer:?}");
    assert!(script.endpoint.info(id).expect("the connection exists").fallback.is_some());
    script.inject(path(), Seg::fin().at(ISS.add(9)).acking(first));
    assert_eq!(script.read_all(id), b"question");
    let end = script.run(|endpoint, now| endpoint.read(now, id, &mut [0; 10]));
    assert_eq!(end, Ok(0), "the end of the stream");
}

/// A cookie, a key and timestamps do not fit: the timestamps are left out.
#[test]
fn a_cookie_that_is_given_takes_the_place_of_timestamps() {
    let config = ConnectionConfig { timestamps: true, ..multipath() };
    let mut script = Script::new(with_known_mtu(endpoint_config(Some(config))), 7);
    let asks = Seg::syn().mss(MSS).sack_permitted().window_scale(7).timestamps(1, 0);
    let asks = asks.fast_open(FastOpenOption::REQUEST);
    script.inject(path(), asks.mptcp(capable_option(MpCapableForm::Syn, false)).at(ISS));
    let syn_ack = script.take_sent().remove(0);
    assert!(syn_ack.seg.fast_open.is_some() && syn_ack.seg.options.timestamps.is_none());
    let MpCapableForm::SynAck { listener_key } = mp_capable(&syn_ack.seg) else {
        panic!("no key: {syn_ack:?}")
    };
    let form = MpCapableForm::Ack { initiator_key: KEY, listener_key, data: None };
    let third = Seg::ack().mptcp(capable_option(form, false));
    script.inject(path(), third.at(ISS.add(1)).acking(syn_ack.seg.header.seq.add(1)));
    let fourth = script.take_sent().remove(0);
    assert_eq!(fourth.seg.options.timestamps, None);
}

/// Carries segments between two endpoints until none is in flight; drops those that `lost` selects.
fn exchange(client: &mut Script, server: &mut Script, lost: &mut impl FnMut() -> bool) {
    for _ in 0..700 {
        let (out, back) = (client.take_sent(), server.take_sent());
        for (sent, to) in
            out.into_iter().map(|s| (s, true)).chain(back.into_iter().map(|s| (s, false)))
        {
            if lost() {
                continue;
            }
            let path = FourTuple { local: sent.path.remote, remote: sent.path.local };
            if to { server.inject(path, sent.seg) } else { client.inject(path, sent.seg) }
        }
        client.advance(Duration::from_millis(50));
        server.advance(Duration::from_millis(50));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Regardless of losses in the handshake, each byte comes once and in order, both ways, on three connections.
    #[test]
    fn every_byte_arrives_once_despite_handshake_losses(
        mptcp: bool, server_mptcp: bool, checksum: bool,
        losses in proptest::collection::vec(any::<bool>(), 0..6),
        lengths in proptest::collection::vec(0usize..2_500, 3),
    ) {
        let of = |mptcp| ConnectionConfig { mptcp, dss_checksum: checksum, ..multipath() };
        let mut client = Script::new(with_known_mtu(endpoint_config(None)), 7);
        let mut server = Script::new(with_known_mtu(endpoint_config(Some(of(server_mptcp)))), 8);
        let mut losses = losses.into_iter();
        let mut lose = || losses.next().unwrap_or(false);
        for length in lengths {
            let question: Vec<u8> = (0..length).map(|n| (n * 7 % 251) as u8).collect();
            let (local, remote) = ends();
            let id = client.run(|endpoint, now| {
                let id = endpoint.connect(now, of(mptcp), local, remote).expect("a connection");
                if !question.is_empty() {
                    assert_eq!(endpoint.write(now, id, &question), Ok(question.len()));
                }
                id
            });
            exchange(&mut client, &mut server, &mut lose);
            let accepted = server.take_incoming().expect("the connection was accepted");
            prop_assert_eq!(&server.read_all(accepted), &question);
            server.run(|endpoint, now| endpoint.write(now, accepted, b"answer")).expect("written");
            client.run(|endpoint, now| endpoint.write(now, id, b"more")).expect("written");
            exchange(&mut client, &mut server, &mut lose);
            prop_assert_eq!(client.read_all(id), b"answer");
            prop_assert_eq!(server.read_all(accepted), b"more");
            client.run(|endpoint, now| endpoint.shutdown(now, id));
            server.run(|endpoint, now| endpoint.shutdown(now, accepted));
            exchange(&mut client, &mut server, &mut lose);
        }
    }
}
