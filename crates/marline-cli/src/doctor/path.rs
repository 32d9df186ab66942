//! Path diagnosis: each path to a server is tried alone, and the segments seen at both ends are
//! compared.
//!
//! A middlebox is visible in the difference between the segments sent by one end and received by the other. Therefore
//! the other end must report them: `marline doctor --listen` is an echo server that records the segments of its
//! connections and reports them over a second connection, which uses plain TCP. The client records its own segments
//! likewise. For any other server, only findings from this side are reported.
//!
//! The exchange consists of small messages with pauses, then a burst in both directions. This reveals options
//! removed in mid-stream, middleboxes that merge small segments or split long ones, and lost NAT mappings. DSS
//! checksums are requested, so that changed bytes are detected.

mod diagnosis;
mod exchange;
mod responder;
mod seen;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use marline::config::Linger;
use marline::paths::PathSpec;
use marline::{BindError, Carrier, Client};
use marline_io::{SegmentLog, TappedSegment};
use tokio::time::timeout;

use self::diagnosis::{Behavior, SUBJECT, diagnose};
use self::exchange::{ExchangeResult, exchange, fetch_report};
use super::invite::usable_paths;
use super::{Finding, FindingStatus};
pub use responder::{respond, responder};

/// Maximum number of segments recorded per connection.
const MAX_LOGGED_SEGMENTS: usize = 8_192;
/// Time limit for all checks on one path.
const TIMEOUT: Duration = Duration::from_secs(75);
/// Time limit for the other end's report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(12);

/// Checks each of these paths to a server, or all paths that a client would use.
pub async fn examine(server: SocketAddr, paths: &[PathSpec]) -> Vec<Finding> {
    let paths = match usable_paths(paths) {
        Ok(paths) => paths,
        Err(why) => return vec![Finding::fails(SUBJECT, why)],
    };
    let mut findings = Vec::new();
    for path in paths {
        let name = path.to_string();
        let found = match timeout(TIMEOUT, examine_path(server, path)).await {
            Ok(found) => found,
            Err(_) => vec![Finding::fails(SUBJECT, "did not finish within a minute".to_owned())],
        };
        let named =
            |finding: Finding| Finding { text: format!("{name}: {}", finding.text), ..finding };
        findings.extend(found.into_iter().map(named));
    }
    findings
}

/// Returns a client with only this path.
async fn client(
    path: &PathSpec,
    mptcp: bool,
    tap: Option<SegmentLog>,
) -> Result<Client, BindError> {
    let mut client = Client::builder();
    client.carrier(Carrier::Raw).path(path.clone());
    // A connection that does not end within the linger time is a result, too.
    let linger = Linger::new(marline::time::Duration::from_secs(8));
    client.transport_mut().mptcp(mptcp).dss_checksum(true).linger(linger);
    if let Some(tap) = tap {
        client.segment_log(tap);
    }
    client.bind().await
}

async fn examine_path(server: SocketAddr, path: PathSpec) -> Vec<Finding> {
    let log = SegmentLog::new(MAX_LOGGED_SEGMENTS);
    let opened = client(&path, true, Some(log.clone())).await;
    let probing = match opened {
        Ok(probing) => probing,
        Err(error) => {
            let text = format!("cannot test: {:#}", anyhow::Error::new(error));
            return vec![Finding::fails(SUBJECT, text)];
        }
    };
    let exchanged = exchange(&probing, server).await;
    let theirs = match client(&path, false, None).await {
        Ok(plain) if exchanged.answered => {
            timeout(REPORT_TIMEOUT, fetch_report(&plain, server, exchanged.nonce))
                .await
                .ok()
                .flatten()
        }
        _ => None,
    };
    findings(&log.entries(), theirs.as_deref(), &exchanged)
}

/// Returns the findings from the records of both sides.
fn findings(
    ours: &[TappedSegment],
    theirs: Option<&[TappedSegment]>,
    exchanged: &ExchangeResult,
) -> Vec<Finding> {
    let behaviors = diagnose(ours, theirs);
    let mut findings: Vec<Finding> = Vec::new();
    findings.push(outcome(exchanged));
    if theirs.is_none() && exchanged.answered {
        findings.push(Finding::note(
            SUBJECT,
            "no report from the other end: only this side was checked",
        ));
    }
    findings.extend(behaviors.iter().map(Behavior::finding));
    let clean = behaviors.iter().all(|behavior| *behavior == Behavior::Translates);
    if clean && theirs.is_some() && exchanged.fallback.is_none() && exchanged.error.is_none() {
        findings.push(Finding::passed(SUBJECT, "no middlebox interferes with Multipath TCP"));
    }
    findings
}

/// Returns the finding about the connection itself.
fn outcome(exchanged: &ExchangeResult) -> Finding {
    let how = match &exchanged.fallback {
        None => "Multipath TCP".to_owned(),
        Some(reason) => format!("plain TCP ({reason})"),
    };
    match &exchanged.error {
        Some(error) if !exchanged.opened => Finding::fails(SUBJECT, error.clone()),
        _ if exchanged.is_foreign => Finding::note(
            SUBJECT,
            format!(
                "{how}; the other end is not `marline doctor --listen`, so only this side was checked"
            ),
        ),
        None if exchanged.fallback.is_none() => {
            Finding::passed(SUBJECT, format!("{how}, {} bytes echoed correctly", exchanged.right))
        }
        None => {
            Finding::note(SUBJECT, format!("{how}, {} bytes echoed correctly", exchanged.right))
        }
        Some(error) => Finding {
            what: SUBJECT,
            status: FindingStatus::Fails,
            text: format!("{how}, {} bytes echoed correctly, then: {error}", exchanged.right),
        },
    }
}
