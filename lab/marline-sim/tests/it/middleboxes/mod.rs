//! Tests with middleboxes found in the field. In every case the bytes are correct or both applications get an error,
//! nothing hangs, and nothing is worse than plain TCP through the same middlebox, except where the table gives a
//! reason.

mod memory;
mod reshape;
mod world;

use marline_core::FallbackReason;
use marline_time::Duration;
use world::{Outcome, Run, run, seconds};

/// Required outcome of a connection through a middlebox.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ExpectedOutcome {
    /// Multipath TCP to the end.
    Multipath,
    /// Falls back to plain TCP, and all bytes arrive.
    Plain,
    /// All bytes arrive, in a mode that depends on the middlebox.
    Arrives,
    /// An error on both sides.
    Error,
    /// No worse than plain TCP, which also fails.
    AsPlain,
}

use ExpectedOutcome::{Arrives, AsPlain, Error, Multipath, Plain};

/// A middlebox, with the required outcome of a connection with only this path, and of one with another path.
struct Case {
    name: &'static str,
    boxes: &'static str,
    alone: ExpectedOutcome,
    beside: ExpectedOutcome,
    /// Allowed delay relative to plain TCP, ms: timers that detect blocked options.
    later_ms: u64,
}

const fn case(
    name: &'static str,
    boxes: &'static str,
    alone: ExpectedOutcome,
    beside: ExpectedOutcome,
    later_ms: u64,
) -> Case {
    Case { name, boxes, alone, beside, later_ms }
}

/// SYNs with the option at 0, 1 and 3 s, without it at 7 s.
const SYN_RETRIES_MS: u64 = 7_100;
/// Two timeouts of the first data, the first of a second.
const FIRST_DATA_MS: u64 = 4_000;

const BOXES: &[Case] = &[
    case("no box", "", Multipath, Multipath, 0),
    case("options stripped from the SYN", "up.strip=mptcp:syn", Plain, Multipath, 0),
    case("options stripped from the SYN/ACK", "down.strip=mptcp:synack", Plain, Multipath, 0),
    case("options stripped after the handshake", "strip=mptcp:rest", Plain, Plain, 0),
    case("the same towards the server", "up.strip=mptcp:rest", Plain, Plain, 0),
    case("the same towards the client", "down.strip=mptcp:rest", Plain, Plain, 0),
    // RFC 8684 section 3.7: in mid-stream no fallback can be signaled, so the subflow is broken, while plain TCP would
    // continue. Guessing the position of the next bytes could be wrong.
    case("options stripped in mid-stream", "strip=mptcp:rest@1s", Error, Multipath, 0),
    case("the same towards the server", "up.strip=mptcp:rest@1s", Error, Multipath, 0),
    case("the same towards the client", "down.strip=mptcp:rest@1s", Error, Multipath, 0),
    case("DSS stripped in mid-stream", "strip=dss:rest@1s", Error, Multipath, 0),
    case(
        "all options but MSS stripped",
        "strip=mptcp+sack_permitted+sack+timestamps+window_scale",
        Plain,
        Multipath,
        0,
    ),
    case("SYN with options dropped", "up.block=mptcp:syn", Plain, Multipath, SYN_RETRIES_MS),
    case(
        "SYN/ACK with options dropped",
        "down.block=mptcp:synack",
        Plain,
        Multipath,
        SYN_RETRIES_MS,
    ),
    case("segments with options dropped", "block=mptcp:rest", Plain, Plain, FIRST_DATA_MS),
    case("the same towards the client", "down.block=mptcp:rest", Plain, Plain, FIRST_DATA_MS),
    case("the same towards the server", "up.block=mptcp:rest", Plain, Plain, FIRST_DATA_MS),
    // This looks exactly like a dead path.
    case("the same in mid-stream", "block=mptcp:rest@1s", Error, Multipath, 0),
    case("sequence numbers rewritten", "renumber=yes", Multipath, Multipath, 0),
    case("but not in SACK, with losses", "renumber=not-sack,loss=0.5%", Multipath, Multipath, 500),
    case("segments split", "split=500B", Multipath, Multipath, 0),
    case("options on the first piece", "split=500B:first", Multipath, Multipath, 0),
    case("segments split into crumbs", "split=90B:first", Multipath, Multipath, 0),
    case("split and coalesced", "split=700B,coalesce=2ms", Multipath, Multipath, 0),
    case("the first piece's", "split=700B:first,coalesce=2ms", Multipath, Multipath, 0),
    case("segments coalesced", "coalesce=2ms", Multipath, Multipath, 0),
    case("ACKs thinned", "thin=8", Multipath, Multipath, 0),
    case("ACKs thinned, with losses", "thin=8,loss=1%", Multipath, Multipath, 4_000),
    // A reset of the old subflow shows the rebinding; the new subflow has a translation.
    case("NAT rebinding", "rebind=1s", Multipath, Multipath, 0),
    // The gap in the subflow cannot be filled, so it must be replaced.
    case("data swallowed", "swallow=0.3%", Arrives, Multipath, 0),
    case("data swallowed towards the server", "up.swallow=0.3%", Arrives, Multipath, 0),
    case("all data swallowed", "swallow=100%", AsPlain, AsPlain, 0),
];

impl Case {
    /// Error of an outcome, if any.
    fn judge(
        &self,
        fate: ExpectedOutcome,
        outcome: &Outcome,
        plain: &Outcome,
    ) -> Result<(), String> {
        let fell_back = outcome.fallback.iter().any(Option::is_some);
        match fate {
            AsPlain => {
                // The server accepted in both cases but never received data, so only the client can detect the
                // failure.
                let told = outcome.closed[0].is_some() || plain.closed[0].is_none();
                return if told { Ok(()) } else { Err("the client waits forever".to_owned()) };
            }
            Error if outcome.complete.is_none() => return outcome.is_clear(),
            _ => {}
        }
        outcome.is_clear()?;
        let Some(took) = outcome.complete else { return Err("an error".to_owned()) };
        if fate == Multipath && fell_back || fate == Plain && !fell_back {
            return Err(format!("{:?}", outcome.fallback));
        }
        let allowed = |plain: Duration| plain * 5 / 4 + Duration::from_millis(self.later_ms);
        match plain.complete {
            Some(plain) if took > allowed(plain) => {
                Err(format!("took {took:?}, plain TCP {plain:?}"))
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn no_middlebox_breaks_a_connection_or_makes_it_hang() {
    let mut complaints = Vec::new();
    for case in BOXES {
        let both = [case.boxes, ""];
        let plain = |seed| run(&Run { mptcp: false, seed, ..Run::new(&both[..1]) });
        let mut plains = [1, 2, 3].map(|seed| (seed, plain(seed)));
        if case.boxes.contains("loss=") {
            // The losses differ, so plain TCP may be lucky with one seed.
            let slowest = plains.iter().filter_map(|(_, plain)| plain.complete).max();
            plains.iter_mut().for_each(|(_, plain)| plain.complete = slowest);
        }
        if case.boxes.contains("swallow=") {
            // Plain TCP hangs, or was lucky, so there is no reference.
            plains.iter_mut().for_each(|(_, plain)| plain.complete = None);
        }
        for (seed, plain) in plains {
            for (paths, checksum) in [(1, false), (1, true), (2, false), (2, true)] {
                let outcome = run(&Run { checksum, seed, ..Run::new(&both[..paths]) });
                assert!(case.boxes.is_empty() || outcome.faults > 0 || outcome.moved, "no box");
                let fate = if paths == 1 { case.alone } else { case.beside };
                if let Err(words) = case.judge(fate, &outcome, &plain) {
                    let what = format!("{} ({paths} paths, checksum {checksum})", case.name);
                    complaints.push(format!("{what}, seed {seed}: not {fate:?}: {words}"));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

/// Data that a middlebox acknowledges and drops leaves a permanent gap in the subflow. The subflow is abandoned one
/// timeout after this is certain, so that a gap costs half a second and not ten.
#[test]
fn a_box_that_swallows_data_costs_little_time() {
    for boxes in ["swallow=0.3%", "up.swallow=0.3%", "down.swallow=0.3%"] {
        for (paths, most_s) in [(1, 15), (2, 4)] {
            let all = [boxes, ""];
            for seed in 1..=20 {
                let outcome = run(&Run { seed, ..Run::new(&all[..paths]) });
                let took = outcome.complete.expect("all arrives");
                let most = Duration::from_secs(most_s);
                assert!(took <= most, "{boxes}, {paths} paths, seed {seed}: {took:?}");
            }
        }
    }
}

/// A middlebox that changes bytes and repairs TCP's checksum. With another path its subflow is reset and the bytes use
/// the other path; alone, MP_FAIL leads to plain TCP, which can no longer detect changes.
#[test]
fn changed_payload_is_noticed_as_long_as_there_are_checksums() {
    let failed = [FallbackReason::ChecksumFailed, FallbackReason::PeerFailed];
    let says = |reason: &Option<_>| reason.is_some_and(|reason| failed.contains(&reason));
    for boxes in ["rewrite=0.3%", "up.rewrite=0.3%", "down.rewrite=0.3%"] {
        for seed in 1..=5 {
            let both = [boxes, ""];
            let beside = run(&Run { checksum: true, seed, ..Run::new(&both) });
            assert!(beside.complete.is_some(), "{boxes}, seed {seed}: {beside:?}");
            let noticed = !beside.lost.is_empty() || beside.fallback.iter().all(says);
            assert!(noticed || beside.rewritten == 0, "{boxes}, seed {seed}: {beside:?}");
            let alone = run(&Run { checksum: true, seed, ..Run::new(&both[..1]) });
            assert!(alone.fallback.iter().all(says), "{boxes}, seed {seed}: {alone:?}");
            assert!(alone.has_ended(), "{boxes}, seed {seed}: {alone:?}");
        }
    }
}

/// Small messages, which middleboxes merge far more often than full segments. Mappings are lost, and a path where this
/// happens from the start falls back to plain TCP.
#[test]
fn small_messages_through_boxes_that_reshape() {
    let through = BOXES.iter().filter(|case| matches!(case.alone, Multipath | Plain));
    let through = through.map(|case| (case.boxes, case.later_ms));
    let hard = ["coalesce=5ms", "split=40B:first", "split=60B:first,coalesce=5ms", "thin=16"];
    for (boxes, later_ms) in through.chain(hard.map(|boxes| (boxes, 0))) {
        for checksum in [false, true] {
            // Every other message is separate, so that a mapping lost by merging is missed soon.
            for pairs in [false, true] {
                let worst = Duration::from_millis(1_500 + later_ms);
                let outcome = world::messages(boxes, checksum, pairs, worst);
                assert_eq!(outcome, Ok(()), "{boxes}, checksum {checksum}, pairs {pairs}");
            }
        }
    }
}

#[test]
#[ignore = "prints a table: cargo test -p marline-sim --test it boxes -- --ignored --nocapture"]
fn table() {
    println!("| box | plain TCP, s | one path, s | | with another path, s | |");
    println!("|---|---|---|---|---|---|");
    for case in BOXES {
        let both = [case.boxes, ""];
        let plain = run(&Run { mptcp: false, ..Run::new(&both[..1]) });
        let cells = [1, 2].map(|paths| {
            let outcome = run(&Run::new(&both[..paths]));
            let how = match (outcome.complete, outcome.fallback[0].or(outcome.fallback[1])) {
                (Some(_), Some(reason)) => format!("plain TCP: {reason}"),
                (Some(_), None) => "Multipath TCP".to_owned(),
                (None, _) => outcome.ends(),
            };
            format!("{} | {how}", seconds(outcome.complete))
        });
        println!("| {} | {} | {} |", case.name, seconds(plain.complete), cells.join(" | "));
    }
}
