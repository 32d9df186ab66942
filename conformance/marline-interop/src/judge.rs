//! Checks that must hold in every cell, for all combinations.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use marline_lab::net::Counters;
use marline_lab::scenario::Side;
use marline_testkit::wiretap::{self, Findings};

use crate::cell::{Cell, Condition, Workload};
use crate::cell_result::{CellResult, Evidence};
use crate::cell_setup::{OTHER_PORT, PORT};
use crate::content::End;
use crate::exchange::Outcome;

/// Kernel counters for missing or incorrect Multipath TCP.
const UNEXPECTED_COUNTERS: &[&str] = &[
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPFallbackTokenInit",
    "MPCapableDataFallback",
    "MD5SigFallback",
    "DssFallback",
    "SimultConnectFallback",
    "FallbackFailed",
    "DSSNotMatching",
    "DSSCorruptionFallback",
    "DSSCorruptionReset",
    "DSSNoMatchTCP",
    "InfiniteMapTx",
    "InfiniteMapRx",
    "DataCsumErr",
    "MPJoinNoTokenFound",
    "MPJoinSynAckHMacFailure",
    "MPJoinAckHMacFailure",
    "MPFailTx",
    "MPFailRx",
    "TcpInErrs",
    "TcpInCsumErrors",
];

/// Judges a cell that has finished.
pub(crate) fn judge(cell: Cell, evidence: &Evidence<'_>) -> anyhow::Result<CellResult> {
    let mut problems = Vec::new();
    applications(evidence, &mut problems);
    for (side, connection, reason) in evidence.fallbacks() {
        problems.push(format!("{side:?} {connection}: fell back to plain TCP: {reason}"));
    }
    paths(cell, evidence, &mut problems)?;
    let pair = cell.pair;
    let mut counters = Counters::default();
    for (side, is_kernel) in
        [(Side::Client, pair.kernel_client()), (Side::Server, pair.kernel_server())]
    {
        if is_kernel {
            counters = evidence.net.counters(side)?;
            kernel(cell, evidence, &counters, side, &mut problems);
        }
    }
    report_kernel_warnings(&evidence.kernel_messages, &mut problems);
    let (capture, _) = captures(&evidence.captures, true, &mut problems)?;
    Ok(CellResult {
        problems,
        counters: nonzero_counters(&counters),
        capture,
        doubts: evidence.net.doubts()?,
        ..CellResult::default()
    })
}

/// Reports kernel warnings about TCP.
pub(crate) fn report_kernel_warnings(said: &[String], problems: &mut Vec<String>) {
    let words = ["mptcp", "tcp", "warning", "bug:", "rcu", "refcount"];
    let about_us = |line: &&String| words.iter().any(|word| line.to_lowercase().contains(word));
    let said = said.iter().filter(about_us);
    problems.extend(said.map(|line| format!("kernel warning: {line}")));
}

/// The counters to store: those that are not zero.
pub(crate) fn nonzero_counters(counters: &Counters) -> Vec<(String, u64)> {
    let named = |(name, value): (&str, u64)| (name.to_owned(), value);
    let mut shown: Vec<(String, u64)> = counters.nonzero("MP").map(named).collect();
    shown.extend(counters.nonzero("TcpRetrans").map(named));
    shown
}

/// Requires that exactly the sent bytes were delivered.
pub(crate) fn applications(evidence: &Evidence<'_>, problems: &mut Vec<String>) {
    let plan = evidence.plan;
    for (side, outcomes) in [(Side::Client, &evidence.client), (Side::Server, &evidence.server)] {
        if outcomes.len() != plan.connections() {
            problems.push(format!(
                "the {side:?} reported {} of {} connections",
                outcomes.len(),
                plan.connections()
            ));
        }
        for (connection, outcome) in outcomes.iter().enumerate() {
            let mut say = |what: String| problems.push(format!("{side:?} {connection}: {what}"));
            if let Some(error) = &outcome.error {
                say(error.clone());
            }
            check_end(evidence, side, connection, outcome, &mut say);
        }
    }
}

fn check_end(
    evidence: &Evidence<'_>,
    side: Side,
    connection: usize,
    outcome: &Outcome,
    say: &mut dyn FnMut(String),
) {
    let plan = evidence.plan;
    if plan.workload == Workload::Messages {
        if side == Side::Client && outcome.echoed != plan.messages {
            say(format!("{} of {} messages were echoed", outcome.echoed, plan.messages));
        }
        return;
    }
    let (from_client, from_server) = plan.streams(connection);
    let expected = if side == Side::Client { from_server } else { from_client };
    if outcome.aborted {
        return;
    }
    let Some(received) = &outcome.received else {
        return say("did not report received data".to_owned());
    };
    if !received.matches {
        say(format!("the received bytes differ from those sent ({received:?})"));
    }
    if plan.workload == Workload::Abort {
        if received.bytes > expected / 2 {
            say(format!("received {} bytes; {} were sent", received.bytes, expected / 2));
        }
        if received.end == End::Eof {
            say(format!(
                "treated an abort as the end of the stream after {} bytes",
                received.bytes
            ));
        }
        return;
    }
    if let Some(error) = &outcome.send_error {
        say(format!("could not send: {error}"));
    }
    if received.bytes != expected || received.end != End::Eof {
        say(format!("received {} of {expected} bytes, then {:?}", received.bytes, received.end));
    } else if received.sha256 != plan.sha256(side, connection, expected) {
        say("SHA-256 differs".to_owned());
    }
}

/// Requires that every working path was used.
fn paths(cell: Cell, evidence: &Evidence<'_>, problems: &mut Vec<String>) -> anyhow::Result<()> {
    // A handshake and an acknowledgment.
    const MIN_REPEATS: u64 = 2;
    let dead = usize::from(cell.condition == Condition::FirstDead);
    for report in evidence.net.report()?.iter().skip(dead) {
        let (up, down) = (report.up.stats.delivered_packets, report.down.stats.delivered_packets);
        if up < MIN_REPEATS || down == 0 {
            problems
                .push(format!("path {} was not used: {up} packets up, {down} down", report.name));
        }
    }
    Ok(())
}

/// Requires that no error counter has changed, except the expected ones.
pub(crate) fn check_unexpected_counters(
    counters: &Counters,
    expected: &[&str],
    problems: &mut Vec<String>,
) {
    // A retransmitted SYN/ACK, after the ACK of the first was lost, also counts as an error.
    let harmless =
        |name: &str| if name == "TcpInErrs" { counters.get("TCPSYNChallenge") } else { 0 };
    for name in UNEXPECTED_COUNTERS.iter().filter(|name| !expected.contains(*name)) {
        let count = counters.get(name).saturating_sub(harmless(name));
        if count > 0 {
            problems.push(format!("kernel counter {name} is {count}, not 0"));
        }
    }
}

fn kernel(
    cell: Cell,
    evidence: &Evidence<'_>,
    counters: &Counters,
    side: Side,
    problems: &mut Vec<String>,
) {
    check_unexpected_counters(counters, &[], problems);
    let (capable, joined) = match side {
        Side::Client => ("MPCapableSYNACKRX", "MPJoinSynAckRx"),
        Side::Server => ("MPCapableACKRX", "MPJoinAckRx"),
    };
    let connections = evidence.plan.connections() as u64;
    // The kernel rejects a path that returns after all data was sent, which is unavoidable.
    let rejected = counters.get("MPJoinRejected");
    if rejected > 0 && cell.condition != Condition::Cut {
        problems.push(format!("kernel counter MPJoinRejected is {rejected}; expected 0"));
    }
    let least = match (cell.condition, cell.subflows.count() as u64) {
        (Condition::FirstDead, subflows) => (subflows - 2) * connections,
        // A lost SYN is retransmitted after a second, and the connection may have ended by then.
        (Condition::Loss | Condition::Cut, subflows) => u64::from(subflows > 1),
        (_, subflows) => (subflows - 1) * connections,
    };
    for (name, least) in [(capable, connections), (joined, least)] {
        let count = counters.get(name);
        if count < least {
            problems.push(format!("kernel counter {name} is {count}; expected at least {least}"));
        }
    }
}

/// Checks captures with Wireshark and with our own checker. `multipath` requires keys, tokens and mappings.
pub(crate) fn captures(
    files: &[PathBuf],
    multipath: bool,
    problems: &mut Vec<String>,
) -> anyhow::Result<(String, Findings)> {
    let Some(directory) = files.first().and_then(|file| file.parent()) else {
        return Ok((String::new(), Findings::default()));
    };
    let merged = directory.join("all.pcapng");
    let merge = Command::new("mergecap").arg("-w").arg(&merged).args(files).output();
    let merge = merge.context("cannot run mergecap")?;
    if !merge.status.success() {
        problems.push(format!("mergecap: {}", String::from_utf8_lossy(&merge.stderr).trim()));
    }
    let fields = [
        "_ws.malformed",
        "tcp.options.mptcp.sendkey",
        "mptcp.expected_token",
        "tcp.options.mptcp.rawdataseqno",
    ];
    let (frames, [mut malformed, keys, tokens, mappings]) = dissect(&merged, true, fields)?;
    let mut gave_up = String::new();
    if malformed > 0 {
        // Wireshark's analysis of mappings has bugs: assertions fail on acknowledgments of both stacks and are
        // reported as malformed. Malformed packets are also reported without the analysis.
        let (_, [without, ..]) = dissect(&merged, false, fields)?;
        gave_up = format!(", Wireshark's analysis failed on {} frames", malformed - without);
        malformed = without;
    }
    if malformed > 0 {
        problems.push(format!("tshark: {malformed} malformed frames"));
    }
    if multipath && (keys == 0 || tokens == 0 || mappings == 0) {
        problems.push(format!("tshark: {keys} keys, {tokens} tokens, {mappings} mappings"));
    }
    // Our checker verifies the checksums, because the kernel occasionally sends ffff for 0, which is valid according
    // to RFC 1071 but an error for Wireshark.
    let files = files.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    let findings = wiretap::check(&files.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    problems.extend(findings.faults.iter().take(3).map(|fault| format!("checker: {fault}")));
    Ok((format!("{frames} frames, {mappings} mappings{gave_up}; {findings}"), findings))
}

/// Counts the frames, and those in which Wireshark finds each of these fields.
fn dissect(capture: &Path, mappings: bool, fields: [&str; 4]) -> anyhow::Result<(u64, [u64; 4])> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-o", "mptcp.analyze_mptcp:TRUE"]);
    let word = if mappings { "TRUE" } else { "FALSE" };
    tshark.args(["-o", &format!("mptcp.analyze_mappings:{word}")]);
    // Random bytes on ports that Wireshark assigns to another protocol would be reported as malformed.
    for port in [PORT, OTHER_PORT] {
        tshark.args(["-d", &format!("tcp.port=={port},data")]);
    }
    tshark.arg("-r").arg(capture).args(["-T", "fields"]);
    fields.iter().for_each(|field| {
        tshark.args(["-e", field]);
    });
    let output = tshark.output().context("cannot run tshark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut counts = [0u64; 4];
    let mut frames = 0;
    for line in text.lines() {
        frames += 1;
        let mut columns = line.split('\t');
        for count in &mut counts {
            *count += u64::from(columns.next().is_some_and(|value| !value.is_empty()));
        }
    }
    Ok((frames, counts))
}
