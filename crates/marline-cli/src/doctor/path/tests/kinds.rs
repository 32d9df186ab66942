//! Diagnosis tests, one for every kind of middlebox in docs/concepts/middleboxes.md.

use marline::monitor::FallbackReason;

use super::super::exchange::ExchangeResult;
use super::super::responder::{connection_start, report_entries};
use super::super::{FindingStatus, findings};
use super::talk::{ACK, Notes, SYN, Segment, Talk, content};

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/concepts/middleboxes.md"));
const LIVE: [&str; 2] = [
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/doctor_paths.rs")),
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/nat.rs")),
];

/// Result of the connection itself.
#[derive(Copy, Clone, Debug)]
enum Came {
    Multipath,
    Plain(FallbackReason),
    /// Plain TCP with a server that is not a responder.
    Stranger,
    Broken,
}

/// A kind of middlebox.
struct Kind {
    /// Name in docs/concepts/middleboxes.md.
    name: &'static str,
    /// Text in the live tests ([`LIVE`]) that emulates or names it, usually its link. `None`: only simulated.
    live: Option<&'static str>,
    /// Records of both ends. Empty for a server that cannot report.
    notes: fn() -> (Notes, Came),
    /// Words that each finding about the path must contain. No other finding is allowed.
    says: &'static [&'static str],
}

/// Passes the segment unchanged.
fn same(segment: &Segment) -> Vec<Segment> {
    vec![segment.clone()]
}

/// Removes the options of Multipath TCP where `which` holds.
fn stripped(segment: &Segment, which: bool) -> Vec<Segment> {
    vec![Segment { mptcp: segment.mptcp && !which, ..segment.clone() }]
}

/// Drops segments with options where `which` holds.
fn blocked(segment: &Segment, which: bool) -> Vec<Segment> {
    if segment.mptcp && which { Vec::new() } else { same(segment) }
}

fn untouched() -> (Notes, Came) {
    (Talk::new(&mut same).whole(), Came::Multipath)
}

fn strips_syn() -> (Notes, Came) {
    let mut middle = |segment: &Segment| stripped(segment, segment.up && segment.is_syn());
    let talk = Talk::new(&mut middle).syn().without_options().answer().messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::SynAckWithoutOption))
}

fn strips_syn_ack() -> (Notes, Came) {
    let mut middle = |segment: &Segment| stripped(segment, !segment.up && segment.is_syn());
    let talk = Talk::new(&mut middle).syn().syn_ack().without_options();
    let talk = talk.acknowledged(true).messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::SynAckWithoutOption))
}

/// Removes options after the handshake. Both ends fall back after the first data.
fn strips_rest(up: bool, down: bool) -> (Notes, Came) {
    let mut middle = |segment: &Segment| {
        stripped(segment, segment.is_rest() && if segment.up { up } else { down })
    };
    let talk = Talk::new(&mut middle).syn().answer().data(true).acknowledged(false).data(false);
    let talk = talk.without_options().acknowledged(true).messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::FirstDataWithoutOption))
}

/// Removes options only after some messages have passed.
fn strips_later(up: bool, down: bool) -> (Notes, Came) {
    let mut passed = 0;
    let mut middle = |segment: &Segment| {
        passed += 1;
        stripped(segment, passed > 60 && if segment.up { up } else { down })
    };
    let talk = Talk::new(&mut middle).syn().answer().messages();
    (talk.in_vain(up, 3).notes(), Came::Broken)
}

fn drops_syn() -> (Notes, Came) {
    let mut middle = |segment: &Segment| blocked(segment, segment.up && segment.is_syn());
    let talk = Talk::new(&mut middle).syn().later_s(1).syn().later_s(2).syn().later_s(4);
    let talk = talk.without_options().syn().answer().messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::SynRetries))
}

fn drops_syn_ack() -> (Notes, Came) {
    let mut middle = |segment: &Segment| blocked(segment, !segment.up && segment.is_syn());
    let talk = Talk::new(&mut middle).syn().syn_ack().later_s(1).syn().syn_ack().later_s(6);
    let talk = talk.without_options().syn().answer().messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::SynRetries))
}

fn drops_rest(up: bool, down: bool) -> (Notes, Came) {
    let mut middle = |segment: &Segment| {
        blocked(segment, segment.is_rest() && if segment.up { up } else { down })
    };
    let talk = Talk::new(&mut middle).syn().answer();
    // At the client, its data is acknowledged, but no answer arrives.
    let talk = if up { talk.in_vain(true, 3) } else { talk.data(true).in_vain(false, 3) };
    let talk = talk.without_options().messages().burst();
    (talk.notes(), Came::Plain(FallbackReason::OptionsUnanswered))
}

fn drops_later() -> (Notes, Came) {
    let mut passed = 0;
    let mut middle = |segment: &Segment| {
        passed += 1;
        // All messages pass.
        blocked(segment, passed > 147)
    };
    let talk = Talk::new(&mut middle).syn().answer().messages().in_vain(true, 8);
    (talk.notes(), Came::Broken)
}

const MOVED: [u32; 2] = [77_777_777, 5_555];

/// Shifts the sequence numbers of each side, in both directions. SACK blocks are shifted only with `sack_too`.
fn renumbers(sack_too: bool) -> (Notes, Came) {
    let mut middle = |segment: &Segment| {
        let from = usize::from(!segment.up);
        let back = |number: u32| number.wrapping_sub(MOVED[1 - from]);
        let sack = segment.sack.map(|edge| if sack_too { back(edge) } else { edge });
        let seq = segment.seq.wrapping_add(MOVED[from]);
        vec![Segment { seq, ack: back(segment.ack), sack, ..segment.clone() }]
    };
    // The server acknowledges in the shifted numbers.
    let talk = Talk::new(&mut middle).behind(MOVED);
    let talk = talk.syn().answer().messages().with_sack(false).with_sack(true).burst();
    (talk.notes(), Came::Multipath)
}

/// Splits a segment into pieces of `most` bytes, with the options on each piece or on the first.
fn pieces(segment: &Segment, most: u32, options_on_all: bool) -> Vec<Segment> {
    if segment.len <= most {
        return same(segment);
    }
    let cut = (0..segment.len).step_by(most as usize).map(|at| Segment {
        seq: segment.seq + at,
        len: most.min(segment.len - at),
        mptcp: segment.mptcp && (options_on_all || at == 0),
        sum: content(segment.seq + at, most.min(segment.len - at)),
        ..segment.clone()
    });
    cut.collect()
}

fn splits(most: u32, options_on_all: bool) -> (Notes, Came) {
    let mut middle = |segment: &Segment| pieces(segment, most, options_on_all);
    (Talk::new(&mut middle).whole(), Came::Multipath)
}

/// Merges two consecutive segments that have no more than `most` bytes together.
#[derive(Default)]
struct Joiner {
    held: Vec<Segment>,
}

impl Joiner {
    fn take(&mut self, segment: &Segment, most: u32) -> Vec<Segment> {
        let place = self.held.iter().position(|held| held.up == segment.up);
        let Some(mut held) = place.map(|place| self.held.remove(place)) else {
            if segment.len == 0 {
                return same(segment);
            }
            self.held.push(segment.clone());
            return Vec::new();
        };
        if segment.len > 0 && held.len + segment.len <= most {
            held.len += segment.len;
            held.sum = content(held.seq, held.len);
            return vec![held];
        }
        let mut out = vec![held];
        out.extend(same(segment));
        out
    }
}

fn coalesces() -> (Notes, Came) {
    let mut joiner = Joiner::default();
    let mut middle = |segment: &Segment| joiner.take(segment, 1_500);
    (Talk::new(&mut middle).whole(), Came::Multipath)
}

fn splits_and_coalesces(options_on_all: bool) -> (Notes, Came) {
    let mut joiner = Joiner::default();
    let mut middle = |segment: &Segment| {
        let cut = pieces(segment, 700, options_on_all);
        // Small segments are merged. Pieces of one segment are not, because that would restore it.
        cut.iter().flat_map(|piece| joiner.take(piece, 1_000)).collect()
    };
    (Talk::new(&mut middle).whole(), Came::Multipath)
}

/// Passes one of eight acknowledgments, and drops one of `lost` segments.
fn thins(lost: u32) -> (Notes, Came) {
    let (mut acks, mut passed) = (0, 0);
    let mut middle = |segment: &Segment| {
        passed += 1;
        let pure = segment.len == 0 && segment.is_rest();
        acks += u32::from(pure);
        let gone = pure && acks % 8 != 1 || lost > 0 && passed % lost == 0;
        if gone { Vec::new() } else { same(segment) }
    };
    (Talk::new(&mut middle).whole(), Came::Multipath)
}

fn rebinds() -> (Notes, Came) {
    let mut passed = 0;
    let mut middle = |segment: &Segment| {
        passed += 1;
        let old = segment.client_port == 40_000;
        match (old && passed > 100, segment.up) {
            (false, _) => same(segment),
            (true, true) => vec![Segment { client_port: 51_000, ..segment.clone() }],
            // The mapping has been lost.
            (true, false) => Vec::new(),
        }
    };
    let talk = Talk::new(&mut middle).syn().answer().messages().at_port(40_001);
    (talk.syn().answer().messages().notes(), Came::Multipath)
}

/// Returns a middlebox that acknowledges and drops data once, after some segments have passed.
fn swallows(up: bool) -> (Notes, Came) {
    let mut data = 0;
    let mut middle = |segment: &Segment| {
        data += u32::from(segment.up == up && segment.len > 0);
        if segment.up != up || segment.len == 0 || data <= 48 {
            return same(segment);
        }
        vec![made_up_answer(segment)]
    };
    let talk = Talk::new(&mut middle).syn().answer().messages().data(up);
    (talk.notes(), Came::Multipath)
}

fn made_up_answer(segment: &Segment) -> Segment {
    Segment {
        up: !segment.up,
        flags: ACK,
        seq: segment.ack,
        ack: segment.seq + segment.len,
        mptcp: false,
        sack: None,
        len: 0,
        sum: 0,
        ..segment.clone()
    }
}

/// The server never receives a segment, so it cannot report any.
fn swallows_all() -> (Notes, Came) {
    let mut middle = |segment: &Segment| {
        if segment.len > 0 { vec![made_up_answer(segment)] } else { same(segment) }
    };
    let mut notes = Talk::new(&mut middle).syn().answer().data(true).data(true).notes();
    notes.server.clear();
    (notes, Came::Broken)
}

fn changes_payload() -> (Notes, Came) {
    let mut data = 0;
    let mut middle = |segment: &Segment| {
        data += u32::from(segment.len > 0);
        let sum = if segment.len > 0 && data % 20 == 0 { !segment.sum } else { segment.sum };
        vec![Segment { sum, ..segment.clone() }]
    };
    (Talk::new(&mut middle).whole(), Came::Broken)
}

fn translates() -> (Notes, Came) {
    let mut middle = |segment: &Segment| {
        let client_port = if segment.up { 61_000 } else { 40_000 };
        vec![Segment { client_port, ..segment.clone() }]
    };
    let mut notes = Talk::new(&mut middle).whole();
    // The server's own records contain the port that it sees.
    for entry in notes.server.iter_mut().filter(|entry| entry.sent) {
        entry.remote.set_port(61_000);
    }
    (notes, Came::Multipath)
}

/// Returns a server without support for Multipath TCP and without a responder.
fn stranger() -> (Notes, Came) {
    let mut notes = Talk::new(&mut same).syn().without_options().answer().messages().notes();
    notes.server.clear();
    (notes, Came::Stranger)
}

const NOTHING: &str = "no middlebox interferes with Multipath TCP";

/// Kinds of middleboxes, in the order of the page's table.
#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind { name: "no box", live: Some(""), notes: untouched, says: &[NOTHING] },
    Kind { name: "options stripped from the SYN", live: Some(",up.strip=mptcp:syn"), notes: strips_syn,
        says: &["strips the options of Multipath TCP from SYNs: connections over it run as plain TCP"] },
    Kind { name: "options stripped from the SYN/ACK", live: Some(",down.strip=mptcp:synack"),
        notes: strips_syn_ack, says: &["strips the options of Multipath TCP from SYN/ACKs"] },
    Kind { name: "options stripped after the handshake", live: Some(",strip=mptcp:rest"),
        notes: || strips_rest(true, true),
        says: &["strips the options of Multipath TCP after the handshake, toward the server",
            "strips the options of Multipath TCP after the handshake, from the server"] },
    Kind { name: "the same toward the server", live: Some(",up.strip=mptcp:rest"),
        notes: || strips_rest(true, false),
        says: &["strips the options of Multipath TCP after the handshake, toward the server"] },
    Kind { name: "the same toward the client", live: Some(",down.strip=mptcp:rest"),
        notes: || strips_rest(false, true),
        says: &["strips the options of Multipath TCP after the handshake, from the server"] },
    Kind { name: "options stripped in mid-stream", live: Some(",strip=mptcp:rest@2s"),
        notes: || strips_later(true, true),
        says: &["strips the options of Multipath TCP in mid-stream, toward the server: subflows on this path \
                are reset when that begins",
            "strips the options of Multipath TCP in mid-stream, from the server: subflows on this path are \
                reset when that begins"] },
    Kind { name: "the same toward the server", live: Some(",up.strip=mptcp:rest@2s"),
        notes: || strips_later(true, false),
        says: &["strips the options of Multipath TCP in mid-stream, toward the server"] },
    Kind { name: "the same toward the client", live: Some(",down.strip=mptcp:rest@2s"),
        notes: || strips_later(false, true),
        says: &["strips the options of Multipath TCP in mid-stream, from the server"] },
    // A segment that lost its only option of kind 30 looks the same as one without DSS.
    Kind { name: "DSS stripped in mid-stream", live: Some(",strip=dss:rest@2s"),
        notes: || strips_later(true, true),
        says: &["strips the options of Multipath TCP in mid-stream, toward the server",
            "strips the options of Multipath TCP in mid-stream, from the server"] },
    Kind { name: "all options but MSS stripped",
        live: Some(",strip=mptcp+sack_permitted+sack+timestamps+window_scale"), notes: strips_syn,
        says: &["strips the options of Multipath TCP from SYNs"] },
    Kind { name: "SYN with options dropped", live: Some(",up.block=mptcp:syn"), notes: drops_syn,
        says: &["drops SYNs with the options of Multipath TCP: the first connection waits seven seconds"] },
    Kind { name: "SYN/ACK with options dropped", live: Some(",down.block=mptcp:synack"), notes: drops_syn_ack,
        says: &["drops SYN/ACKs with the options of Multipath TCP"] },
    Kind { name: "segments with options dropped", live: Some(",block=mptcp:rest"),
        notes: || drops_rest(true, true),
        says: &["drops segments with the options of Multipath TCP, toward the server"] },
    Kind { name: "the same toward the client", live: Some(",down.block=mptcp:rest"),
        notes: || drops_rest(false, true),
        says: &["drops segments with the options of Multipath TCP, from the server"] },
    Kind { name: "the same toward the server", live: Some(",up.block=mptcp:rest"),
        notes: || drops_rest(true, false),
        says: &["drops segments with the options of Multipath TCP, toward the server"] },
    Kind { name: "the same in mid-stream", live: Some(",block=mptcp:rest@2s"), notes: drops_later,
        says: &["drops segments with the options of Multipath TCP in mid-stream, toward the server"] },
    Kind { name: "sequence numbers rewritten", live: Some(",renumber=yes"), notes: || renumbers(true),
        says: &["rewrites sequence numbers: harmless to Multipath TCP"] },
    Kind { name: "but not in SACK, with losses", live: Some(",renumber=not-sack,loss=3%"),
        notes: || renumbers(false),
        says: &["rewrites sequence numbers: harmless to Multipath TCP",
            "rewrites sequence numbers, but not those in selective acknowledgments"] },
    Kind { name: "segments split", live: Some(",split=500B"), notes: || splits(500, true),
        says: &["splits segments"] },
    Kind { name: "options on the first piece", live: Some(",split=500B:first"), notes: || splits(500, false),
        says: &["splits segments"] },
    Kind { name: "segments split into crumbs", live: Some(",split=90B:first"), notes: || splits(90, false),
        says: &["splits segments"] },
    Kind { name: "split and coalesced", live: Some(",split=700B,coalesce=3ms"),
        notes: || splits_and_coalesces(true), says: &["splits segments", "coalesces segments"] },
    Kind { name: "the first piece's", live: Some(",split=700B:first,coalesce=3ms"),
        notes: || splits_and_coalesces(false), says: &["splits segments", "coalesces segments"] },
    Kind { name: "segments coalesced", live: Some(",coalesce=3ms"), notes: coalesces,
        says: &["coalesces segments"] },
    Kind { name: "ACKs thinned", live: Some(",thin=8"), notes: || thins(0),
        says: &["thins out acknowledgments"] },
    Kind { name: "ACKs thinned, with losses", live: Some(",thin=8,loss=1%"), notes: || thins(90),
        says: &["thins out acknowledgments"] },
    Kind { name: "NAT rebinding", live: Some(",rebind=2s"), notes: rebinds,
        says: &["drops NAT mappings of live connections (NAT rebinding): native subflows break"] },
    Kind { name: "data swallowed", live: Some(",swallow=2%"), notes: || swallows(false),
        says: &["acknowledges data that it does not deliver"] },
    Kind { name: "data swallowed toward the server", live: Some(",up.swallow=2%"),
        notes: || swallows(true), says: &["acknowledges data that it does not deliver"] },
    Kind { name: "all data swallowed", live: Some(",swallow=100%"), notes: swallows_all,
        says: &["data is acknowledged, but nothing comes back"] },
];

/// Cases that the page describes outside the table.
#[rustfmt::skip]
const OTHERS: &[Kind] = &[
    Kind { name: "payload changed", live: Some(",up.rewrite=5%"), notes: changes_payload,
        says: &["changes payload: enable DSS checksums there"] },
    Kind { name: "NAT", live: Some("translates addresses or ports (NAT)"), notes: translates,
        says: &["translates addresses or ports (NAT): harmless to Multipath TCP", NOTHING] },
    Kind { name: "a server without Multipath TCP",
        live: Some("the SYN/ACK lacks the Multipath TCP option"), notes: stranger,
        says: &["the SYN/ACK lacks the Multipath TCP option: the server does not support it"] },
];

impl Kind {
    /// Findings in addition to the result of the connection.
    fn said(&self) -> Vec<(FindingStatus, String)> {
        let (notes, came) = (self.notes)();
        let (opened, answered) = (true, !notes.server.is_empty());
        let right = 157_200;
        let mut exchanged = ExchangeResult { opened, answered, right, ..ExchangeResult::default() };
        match came {
            Came::Multipath => {}
            Came::Plain(reason) => exchanged.fallback = Some(reason),
            Came::Stranger => {
                exchanged.is_foreign = true;
                exchanged.fallback = Some(FallbackReason::SynAckWithoutOption);
            }
            Came::Broken => {
                exchanged.right = 3_000;
                exchanged.error = Some("no more data received".to_owned());
            }
        }
        let theirs = (!notes.server.is_empty()).then_some(&notes.server[..]);
        let said = findings(&notes.client, theirs, &exchanged);
        let first = &said[0];
        let expected = match came {
            Came::Multipath => {
                (FindingStatus::Works, "Multipath TCP, 157200 bytes echoed correctly")
            }
            Came::Plain(_) => (FindingStatus::Note, "plain TCP ("),
            Came::Stranger => {
                (FindingStatus::Note, "the other end is not `marline doctor --listen`")
            }
            Came::Broken => (FindingStatus::Fails, "then: no more data received"),
        };
        assert!(
            first.status == expected.0 && first.text.contains(expected.1),
            "{}: {first:?}",
            self.name
        );
        said.into_iter().skip(1).map(|finding| (finding.status, finding.text)).collect()
    }
}

#[test]
fn every_middlebox_kind_yields_exactly_its_findings() {
    for kind in KINDS.iter().chain(OTHERS) {
        let said = kind.said();
        assert_eq!(said.len(), kind.says.len(), "{}: {said:#?}", kind.name);
        for words in kind.says {
            let found = said.iter().any(|(_, text)| text.contains(words));
            assert!(found, "{}: no {words:?} in {said:#?}", kind.name);
        }
    }
}

/// A middlebox that costs bytes or time is reported as a failure, not as a note.
#[test]
fn middleboxes_that_break_connections_are_failures() {
    let fails = [
        "data swallowed",
        "data swallowed toward the server",
        "all data swallowed",
        "payload changed",
    ];
    for kind in KINDS.iter().chain(OTHERS) {
        let failed = kind.said().iter().any(|(status, _)| *status == FindingStatus::Fails);
        assert_eq!(failed, fails.contains(&kind.name), "{}", kind.name);
    }
}

/// An incomplete recording never leads to a finding about a path without a middlebox.
#[test]
fn an_incomplete_recording_reports_no_middlebox() {
    let whole = untouched().0;
    for end in 0..whole.client.len() {
        let sent_then = whole.client[end].at_us;
        let until = |notes: &[marline_io::TappedSegment]| {
            notes.iter().filter(|entry| entry.at_us < sent_then).cloned().collect::<Vec<_>>()
        };
        let (ours, theirs) = (until(&whole.client), until(&whole.server));
        let error = Some("no more data received".to_owned());
        let exchanged =
            ExchangeResult { opened: true, answered: true, error, ..ExchangeResult::default() };
        let said = findings(&ours, Some(&theirs), &exchanged);
        let accusation = said.iter().find(|finding| finding.text.contains("a middlebox"));
        assert!(accusation.is_none(), "after {end} segments: {accusation:?}");
    }
}

/// A responder that is used again soon, or by two machines behind one NAT, reports only the right connection.
#[test]
fn earlier_connections_of_the_same_address_are_not_reported() {
    let mut before = Talk::new(&mut same).whole().server;
    // The last segment of the earlier connection arrives late.
    let mut last = before.last().expect("a segment").clone();
    let later = before.last().map_or(0, |last| last.at_us) + 1_000_000;
    let asked = Talk::new(&mut same).at_port(40_007).later_s(later / 1_000_000 + 1).whole();
    last.at_us = asked.server[5].at_us + 1;
    before.extend(asked.server.clone());
    before.insert(before.len() - asked.server.len() + 6, last);
    let peer = asked.server[0].remote;
    let since_us = connection_start(&before, peer, 0).expect("a SYN");
    let asks = "10.0.0.2:50000".parse().expect("an address");
    assert_eq!(report_entries(&before, peer, asks, since_us), asked.server);
}

/// Rows of the page's table of results, by their first cell.
fn documented() -> Vec<&'static str> {
    let table = PAGE.split("| box | plain TCP, s |").nth(1).expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_start_matches('|').split('|').next().unwrap_or_default().trim())
        .collect()
}

#[test]
fn the_page_has_these_kinds_and_those_played_live_are() {
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    assert_eq!(documented(), names, "docs/concepts/middleboxes.md");
    for kind in KINDS.iter().chain(OTHERS) {
        match kind.live {
            Some(link) => {
                let played = LIVE.iter().any(|text| text.contains(&format!("{link:?}")));
                assert!(played, "{}: {link} is not played", kind.name);
            }
            None => {
                let line = format!("only virtual: {}", kind.name);
                assert!(
                    PAGE.contains(&line),
                    "{line:?} is not said in docs/concepts/middleboxes.md"
                );
            }
        }
    }
}

#[test]
fn the_flags_of_a_talk_are_those_of_tcp() {
    let notes = untouched().0;
    assert_eq!(notes.client[0].header[13], SYN);
    assert_eq!(notes.server[1].header[13], SYN | ACK);
}
